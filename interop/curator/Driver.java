import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;
import org.apache.zookeeper.recipes.lock.LockListener;
import org.apache.zookeeper.recipes.lock.WriteLock;

/** The mutex of Curator, its read and write locks, its semaphore, and ZooKeeper's own recipe, in one session. */
public final class Driver extends Orders<Driver.Mutex> {
    private final CuratorFramework curator;
    private String kind = "lock";
    private int permits = 1;

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
        if (order[0].equals("kind")) {
            kind = order[1];
            permits = order.length > 2 ? Integer.parseInt(order[2]) : 1;
            return "kind\t" + kind;
        }
        return super.obey(order);
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
            case "recipe" -> new Recipe(curator.getZookeeperClient().getZooKeeper(), path);
            default -> throw new IllegalArgumentException("unknown kind " + kind);
        };
        return mutex.acquire(wait) ? mutex : null;
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
