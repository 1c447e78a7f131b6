import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import io.etcd.jetcd.ByteSequence;
import io.etcd.jetcd.Client;
import io.etcd.jetcd.KeyValue;
import io.etcd.jetcd.lock.LockResponse;
import io.etcd.jetcd.options.GetOption;

/** The lock of jetcd, which is etcd's own over its Lock service, each with a lease of its own. */
public final class Driver extends Orders<Driver.Hold> {
    private final Client etcd;

    private Driver(Client etcd) {
        this.etcd = etcd;
    }

    public static void main(String[] arguments) throws Exception {
        Client etcd = Client.builder().endpoints("http://" + arguments[0] + ":" + arguments[1]).build();
        // Classes are loaded, and the first lock is as quick as the next.
        Driver driver = new Driver(etcd);
        driver.unlock(driver.lock("jetcd-is-ready", 0, 10_000));
        // Its manifest has no version, but the jar's name has.
        String jar = Client.class.getProtectionDomain().getCodeSource().getLocation().getPath();
        driver.serve(jar.substring(jar.lastIndexOf('/') + 1));
    }

    @Override
    Hold lock(String name, long wait, long ttl) throws Exception {
        // A lease has whole seconds.
        long lease = etcd.getLeaseClient().grant((ttl + 999) / 1000).get().getID();
        CompletableFuture<LockResponse> locking = etcd.getLockClient().lock(bytes(name), lease);
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(wait);
        while (true) {
            try {
                return new Hold(locking.get(2, TimeUnit.MILLISECONDS).getKey(), lease);
            } catch (TimeoutException waiting) {
                if (wait > 0 ? System.nanoTime() > until : isBehind(name, lease)) {
                    // The service knows neither a try nor a limit of time: without the lease its waiter is gone.
                    etcd.getLeaseClient().revoke(lease).get();
                    return null;
                }
            }
        }
    }

    /** Whether the key of that lease is there, and an older one, too. */
    private boolean isBehind(String name, long lease) throws Exception {
        String own = name + "/" + Long.toHexString(lease);
        List<KeyValue> keys = keys(name, GetOption.SortOrder.ASCEND);
        return !keys.isEmpty() && !keys.get(0).getKey().equals(bytes(own))
                && keys.stream().anyMatch(key -> key.getKey().equals(bytes(own)));
    }

    @Override
    boolean unlock(Hold hold) throws Exception {
        // The service does not tell whether it deleted anything.
        boolean mine = etcd.getKVClient().get(hold.key()).get().getCount() == 1;
        etcd.getLockClient().unlock(hold.key()).get();
        if (mine) {
            etcd.getLeaseClient().revoke(hold.lease()).get();
        }
        return mine;
    }

    @Override
    boolean locked(String name) throws Exception {
        return !keys(name, GetOption.SortOrder.NONE).isEmpty();
    }

    @Override
    String value(Hold hold) {
        return hold.key().toString(StandardCharsets.UTF_8);
    }

    private List<KeyValue> keys(String name, GetOption.SortOrder order) throws Exception {
        GetOption option = GetOption.builder().isPrefix(true)
                .withSortField(GetOption.SortTarget.CREATE).withSortOrder(order).build();
        return etcd.getKVClient().get(bytes(name + "/"), option).get().getKvs();
    }

    private static ByteSequence bytes(String text) {
        return ByteSequence.from(text, StandardCharsets.UTF_8);
    }

    record Hold(ByteSequence key, long lease) {
    }
}
