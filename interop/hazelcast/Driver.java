import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.lock.FencedLock;
import com.hazelcast.instance.BuildInfoProvider;
import java.util.concurrent.TimeUnit;

/**
 * The locks of Hazelcast's Java client, told what to do on stdin. The orders are in ../README.md.
 */
public final class Driver extends Orders<Driver.Hold> {
    /** One entry into a lock. */
    record Hold(FencedLock lock, long fence) {}

    private final HazelcastInstance client;

    private Driver(HazelcastInstance client) {
        this.client = client;
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfig config = new ClientConfig();
        config.setProperty("hazelcast.logging.type", "none");
        config.getNetworkConfig().addAddress(arguments[0] + ":" + arguments[1]);
        config.getConnectionStrategyConfig().getConnectionRetryConfig().setClusterConnectTimeoutMillis(20_000);
        HazelcastInstance client = HazelcastClient.newHazelcastClient(config);
        new Driver(client).serve("Hazelcast " + BuildInfoProvider.getBuildInfo().getVersion());
    }

    private FencedLock of(String name) {
        return client.getCPSubsystem().getLock(name);
    }

    @Override
    Hold lock(String name, long wait, long lease) {
        FencedLock lock = of(name);
        long fence = lock.tryLockAndGetFence(wait, TimeUnit.MILLISECONDS);
        return fence == FencedLock.INVALID_FENCE ? null : new Hold(lock, fence);
    }

    @Override
    boolean unlock(Hold hold) {
        try {
            hold.lock().unlock();
            return true;
        } catch (IllegalMonitorStateException notHeld) {
            return false;
        }
    }

    @Override
    boolean locked(String name) {
        return of(name).isLocked();
    }

    @Override
    String value(Hold hold) {
        return Long.toString(hold.fence());
    }

    /** As well: {@code fence}, {@code destroy}, and {@code pairs} for comparisons. */
    @Override
    String obey(String[] order) throws Exception {
        switch (order[0]) {
            case "destroy":
                of(order[1]).destroy();
                return "destroyed";
            case "entries":
                return "entries\t" + of(order[1]).getLockCount();
            case "pairs": {
                FencedLock lock = of(order[1]);
                int count = Integer.parseInt(order[2]);
                long[] took = new long[count];
                for (int i = 0; i < count; i++) {
                    long begin = System.nanoTime();
                    lock.lockAndGetFence();
                    lock.unlock();
                    took[i] = System.nanoTime() - begin;
                }
                java.util.Arrays.sort(took);
                return "pairs\t" + took[count / 2] / 1000;
            }
            default:
                return super.obey(order);
        }
    }
}
