import java.util.concurrent.TimeUnit;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.ExponentialBackoffRetry;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.data.Stat;

/** The mutex of Curator, and its read and write locks, in one session. */
public final class Driver extends Orders<Driver.Mutex> {
    private final CuratorFramework curator;
    private String kind = "lock";

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
            return "kind\t" + kind;
        }
        return super.obey(order);
    }

    /** Each an object of its own, which its thread has entered once. */
    @Override
    Mutex lock(String name, long wait, long lease) throws Exception {
        String path = "/" + name;
        Mutex mutex = switch (kind) {
            case "lock" -> new Mutex(curator, path);
            case "read" -> new Mutex(new InterProcessReadWriteLock(curator, path).readLock());
            case "write" -> new Mutex(new InterProcessReadWriteLock(curator, path).writeLock());
            default -> throw new IllegalArgumentException("unknown kind " + kind);
        };
        return mutex.mutex.acquire(wait, TimeUnit.MILLISECONDS) ? mutex : null;
    }

    @Override
    boolean unlock(Mutex hold) throws Exception {
        // It does not tell whether it deleted anything.
        Stat mine = hold.path() == null ? null : curator.checkExists().forPath(hold.path());
        hold.mutex.release();
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

    /** The path of the node is known to subclasses only; that of a read or write lock is not. */
    static final class Mutex {
        private final InterProcessMutex mutex;

        Mutex(InterProcessMutex mutex) {
            this.mutex = mutex;
        }

        Mutex(CuratorFramework curator, String path) {
            this(new Telling(curator, path));
        }

        String path() {
            return mutex instanceof Telling ? ((Telling) mutex).path() : null;
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
}
