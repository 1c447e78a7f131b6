import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/** The locks and the elections of Curator, and ZooKeeper's own recipe, in one session. */
public final class Driver extends Orders<Driver.Mutex> {
    private final CuratorFramework curator;
    private String kind = "lock";
    private int permits = 1;
    private String id = "";
    /** The last one that was granted, by its name. */
    private final Map<String, Mutex> granted = new HashMap<>();

    private Driver(CuratorFramework curator) {
        this.curator = curator;
    }

    public static void main(String[] arguments) throws Exception {
        int session = arguments.length > 2 ? Integer.parseInt(arguments[2]) : 10_000;
        CuratorFramework curator = CuratorFrameworkFactory.newClient(
                arguments[0] + ":" + arguments[1], session, session, new ExponentialBackoffRetry(100, 3));
        curator.start();
        curator.blockUntilConnected();
        // Classes are loaded, and the first lock is as quick as the next.
        Driver driver = new Driver(curator);
        driver.unlock(driver.lock("curator-is-ready", 0, 0));
        driver.serve("Curator " + InterProcessMutex.class.getPackage().getImplementationVersion());
    }

    @Override
    String obey(String[] order) throws Exception {
        switch (order[0]) {
            case "kind":
                kind = order[1];
                permits = kind.equals("semaphore") ? Integer.parseInt(order[2]) : 1;
                id = order.length > 2 ? order[2] : "";
                return "kind\t" + kind;
            case "leader":
                return "leader\t" + leader("/" + order[1]);
            case "leads":
                return granted.get(order[1]).leads() ? "yes" : "no";
            case "revoke":
                String first = children("/" + order[1]).get(0);
                Revoker.attemptRevoke(curator, "/" + order[1] + "/" + first);
                return "asked";
            case "revoked":
                return granted.get(order[1]).revoked(Long.parseLong(order[2])) ? "yes" : "no";
            default:
                return super.obey(order);
        }
    }

    /** The id of the leader, as a client that is no participant sees it. */
    private String leader(String path) throws Exception {
        Participant leader = kind.equals("latch")
                ? new LeaderLatch(curator, path).getLeader()
                : new LeaderSelector(curator, path, new Leading()).getLeader();
        return leader.getId();
    }

    /** In the order of their numbers. */
    private List<String> children(String path) throws Exception {
        return curator.getChildren().forPath(path).stream().sorted(Driver::compareNumbers).toList();
    }

    private static int compareNumbers(String one, String other) {
        return number(one).compareTo(number(other));
    }

    private static String number(String node) {
        return node.substring(node.length() - 10);
    }

    /** Each an object of its own, which its thread has entered once. */
    @Override
    Mutex lock(String name, long wait, long lease) throws Exception {
        String path = "/" + name;
        Mutex mutex = switch (kind) {
            case "lock" -> new Curators(new Telling(curator, path));
            case "read" -> new Curators(new InterProcessReadWriteLock(curator, path).readLock());
            case "write" -> new Curators(new InterProcessReadWriteLock(curator, path).writeLock());
            case "semaphore" -> new Permit(curator, path, permits);
            case "revocable" -> new Revocable(curator, path);
            case "latch" -> new Latch(path);
            case "selector" -> new Selector(path);
            case "recipe" -> new Recipe(curator.getZookeeperClient().getZooKeeper(), path);
            default -> throw new IllegalArgumentException("unknown kind " + kind);
        };
        if (!mutex.acquire(wait)) {
            return null;
        }
        granted.put(name, mutex);
        return mutex;
    }

    @Override
    boolean unlock(Mutex hold) throws Exception {
        // It does not tell whether it deleted anything.
        Stat mine = hold.path() == null ? null : curator.checkExists().forPath(hold.path());
        hold.release();
        return hold.path() == null || mine != null;
    }

    @Override
    boolean locked(String name) throws Exception {
        try {
            return !curator.getChildren().forPath("/" + name).isEmpty();
        } catch (KeeperException.NoNodeException none) {
            return false;
        }
    }

    @Override
    String value(Mutex hold) {
        String path = hold.path();
        return path == null ? "" : path.substring(path.lastIndexOf('/') + 1);
    }

    interface Mutex {
        boolean acquire(long wait) throws Exception;

        void release() throws Exception;

        /** Of the node; null where that is not told. */
        String path();

        /** Whether it leads an election. */
        default boolean leads() {
            return false;
        }

        /** Whether its holder is asked to let go within so many ms. */
        default boolean revoked(long wait) throws Exception {
            return false;
        }
    }

    /** The path of the node is known to subclasses only; that of a read or write lock is not. */
    private record Curators(InterProcessMutex mutex) implements Mutex {
        @Override
        public boolean acquire(long wait) throws Exception {
            return mutex.acquire(wait, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() throws Exception {
            mutex.release();
        }

        @Override
        public String path() {
            return mutex instanceof Telling telling ? telling.path() : null;
        }
    }

    private static final class Permit implements Mutex {
        private final InterProcessSemaphoreV2 semaphore;
        private final String path;
        private Lease lease;

        Permit(CuratorFramework curator, String path, int permits) {
            semaphore = new InterProcessSemaphoreV2(curator, path, permits);
            this.path = path;
        }

        @Override
        public boolean acquire(long wait) throws Exception {
            lease = semaphore.acquire(wait, TimeUnit.MILLISECONDS);
            return lease != null;
        }

        @Override
        public void release() {
            semaphore.returnLease(lease);
        }

        @Override
        public String path() {
            return path + "/leases/" + lease.getNodeName();
        }
    }

    private static final class Revocable implements Mutex {
        private final CountDownLatch revoked = new CountDownLatch(1);
        private final InterProcessMutex mutex;

        Revocable(CuratorFramework curator, String path) {
            mutex = new InterProcessMutex(curator, path);
            mutex.makeRevocable(lock -> revoked.countDown());
        }

        @Override
        public boolean acquire(long wait) throws Exception {
            return mutex.acquire(wait, TimeUnit.MILLISECONDS);
        }

        @Override
        public void release() throws Exception {
            mutex.release();
        }

        @Override
        public String path() {
            return null;
        }

        @Override
        public boolean revoked(long wait) throws Exception {
            return revoked.await(wait, TimeUnit.MILLISECONDS);
        }
    }

    private final class Latch implements Mutex {
        private final LeaderLatch latch;
        private final String directory;

        Latch(String path) {
            latch = new LeaderLatch(curator, path, id);
            directory = path;
        }

        @Override
        public boolean acquire(long wait) throws Exception {
            latch.start();
            boolean leads = wait == 0 ? leadsAtOnce() : latch.await(wait, TimeUnit.MILLISECONDS);
            if (!leads) {
                latch.close();
            }
            return leads;
        }

        /** A latch has no single attempt: it waits until another one stands before it. */
        private boolean leadsAtOnce() throws Exception {
            while (!latch.hasLeadership()) {
                String own = latch.getOurPath();
                if (own != null && !own.endsWith(children(directory).get(0))) {
                    return false;
                }
                Thread.sleep(5);
            }
            return true;
        }

        @Override
        public void release() throws Exception {
            latch.close();
        }

        @Override
        public String path() {
            return latch.getOurPath();
        }

        @Override
        public boolean leads() {
            return latch.hasLeadership();
        }
    }

    /** Leads until it is told not to. */
    private static final class Leading extends LeaderSelectorListenerAdapter {
        private final CountDownLatch began = new CountDownLatch(1);
        private final CountDownLatch ends = new CountDownLatch(1);

        @Override
        public void takeLeadership(CuratorFramework curator) throws Exception {
            began.countDown();
            ends.await();
        }
    }

    private final class Selector implements Mutex {
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private final Leading leading = new Leading();
        private final LeaderSelector selector;

        Selector(String path) {
            selector = new LeaderSelector(curator, path, thread, leading);
            selector.setId(id);
        }

        @Override
        public boolean acquire(long wait) throws Exception {
            selector.start();
            boolean leads = wait == 0 ? leadsAtOnce() : leading.began.await(wait, TimeUnit.MILLISECONDS);
            if (!leads) {
                // It interrupts its thread, which leaves the queue.
                selector.close();
                end();
            }
            return leads;
        }

        /** As the latch. Two participants with one id cannot be told apart. */
        private boolean leadsAtOnce() throws Exception {
            while (leading.began.getCount() > 0) {
                List<String> ids = selector.getParticipants().stream().map(Participant::getId).toList();
                if (ids.lastIndexOf(id) > 0) {
                    return false;
                }
                Thread.sleep(5);
            }
            return true;
        }

        @Override
        public void release() throws Exception {
            leading.ends.countDown();
            end();
            selector.close();
        }

        /** When the thread has ended, its mutex is released. */
        private void end() throws Exception {
            thread.shutdown();
            thread.awaitTermination(1, TimeUnit.MINUTES);
        }

        @Override
        public String path() {
            return null;
        }

        @Override
        public boolean leads() {
            return selector.hasLeadership();
        }
    }

    private static final class Telling extends InterProcessMutex {
        Telling(CuratorFramework curator, String path) {
            super(curator, path);
        }

        String path() {
            return getLockPath();
        }
    }

    /** It has no waiting of its own: it calls back. */
    private static final class Recipe implements Mutex, LockListener {
        private final CountDownLatch granted = new CountDownLatch(1);
        private final WriteLock lock;

        Recipe(ZooKeeper zookeeper, String path) {
            lock = new WriteLock(zookeeper, path, ZooDefs.Ids.OPEN_ACL_UNSAFE, this);
        }

        @Override
        public boolean acquire(long wait) throws Exception {
            if (lock.lock() || granted.await(wait, TimeUnit.MILLISECONDS)) {
                return true;
            }
            lock.unlock();
            return false;
        }

        @Override
        public void release() {
            lock.unlock();
        }

        @Override
        public String path() {
            return lock.getId();
        }

        @Override
        public void lockAcquired() {
            granted.countDown();
        }

        @Override
        public void lockReleased() {}
    }
}
