import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The locks of Redisson, told what to do on stdin. The orders are in ../README.md.
 *
 * <p>All orders run in one thread: to Redisson it is the owner.
 */
public final class Driver {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final RedissonClient redisson;
    /** The ids of the permits that are held, by the name of the semaphore. */
    private final Map<String, Deque<String>> permits = new HashMap<>();
    private String kind = "lock";

    private Driver(RedissonClient redisson) {
        this.redisson = redisson;
    }

    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.useSingleServer()
                .setAddress("redis://" + arguments[0] + ":" + arguments[1])
                .setClientName("redisson") // tells its connections from others in CLIENT LIST
                .setConnectionMinimumIdleSize(1)
                .setSubscriptionConnectionMinimumIdleSize(1);
        if (arguments.length > 2) {
            config.setLockWatchdogTimeout(Long.parseLong(arguments[2]));
        }
        RedissonClient redisson = Redisson.create(config);
        Driver driver = new Driver(redisson);
        OUT.println("ready\tRedisson " + Redisson.class.getPackage().getImplementationVersion());
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null && !line.equals("quit"); ) {
            String answer;
            try {
                answer = driver.obey(line.split("\t", -1));
            } catch (Exception error) {
                answer = "error\t" + error.getClass().getSimpleName() + ": " + error.getMessage();
            }
            OUT.println(answer.replace('\n', ' '));
        }
        System.exit(0); // leaves its locks where they are
    }

    private String obey(String[] order) throws Exception {
        switch (order[0]) {
            case "kind":
                kind = order[1];
                return "kind\t" + kind;
            case "try":
                return acquire(order[1], 0, Long.parseLong(order[2]));
            case "lock":
                return acquire(order[1], Long.parseLong(order[2]), Long.parseLong(order[3]));
            case "wait":
                sayWhenThisThreadSleeps();
                return acquire(order[1], Long.parseLong(order[2]), Long.parseLong(order[3]));
            case "unlock":
                if (kind.equals("semaphore")) {
                    return release(order[1]);
                }
                try {
                    lock(order[1]).unlock();
                    return "released";
                } catch (IllegalMonitorStateException notHeld) {
                    return "not-held";
                }
            case "locked":
                return lock(order[1]).isLocked() ? "yes" : "no";
            case "set":
                return semaphore(order[1]).trySetPermits(Integer.parseInt(order[2])) ? "set" : "kept";
            case "available":
                return "available\t" + semaphore(order[1]).availablePermits();
            case "depth":
                return "depth\t" + lock(order[1]).getHoldCount();
            case "count":
                return count(order[1], Integer.parseInt(order[2]), Integer.parseInt(order[3]),
                        Path.of(order[4]), Long.parseLong(order[5]));
            default:
                return "error\tunknown order " + order[0];
        }
    }

    private RLock lock(String name) {
        switch (kind) {
            case "lock": return redisson.getLock(name);
            case "fenced": return redisson.getFencedLock(name);
            case "fair": return redisson.getFairLock(name);
            case "spin": return redisson.getSpinLock(name);
            case "read": return redisson.getReadWriteLock(name).readLock();
            case "write": return redisson.getReadWriteLock(name).writeLock();
            case "multi": return multiLock(name);
            default: throw new IllegalArgumentException("unknown kind " + kind);
        }
    }

    /** All of these names, in this order. */
    private RLock multiLock(String names) {
        RLock[] locks = Arrays.stream(names.split(",")).map(redisson::getLock).toArray(RLock[]::new);
        return redisson.getMultiLock(locks);
    }

    private RPermitExpirableSemaphore semaphore(String name) {
        return redisson.getPermitExpirableSemaphore(name);
    }

    private String release(String name) {
        String id = permits.getOrDefault(name, new ArrayDeque<>()).pollLast();
        return id != null && semaphore(name).tryRelease(id) ? "released" : "not-held";
    }

    /** A lease of 0 is Redisson's -1: the watchdog's lease, renewed by it; of a permit a lease without an end. */
    private String acquire(String name, long wait, long lease) throws InterruptedException {
        long leaseOrWatchdog = lease == 0 ? -1 : lease;
        if (kind.equals("semaphore")) {
            String id = semaphore(name).tryAcquire(wait, leaseOrWatchdog, TimeUnit.MILLISECONDS);
            if (id == null) {
                return "busy";
            }
            permits.computeIfAbsent(name, key -> new ArrayDeque<>()).addLast(id);
            return "held\t" + id;
        }
        RLock lock = lock(name);
        if (lock instanceof RFencedLock) {
            RFencedLock fenced = (RFencedLock) lock;
            Long token = fenced.tryLockAndGetToken(wait, leaseOrWatchdog, TimeUnit.MILLISECONDS);
            return token == null ? "busy" : "held\t" + token;
        }
        if (!lock.tryLock(wait, leaseOrWatchdog, TimeUnit.MILLISECONDS)) {
            return "busy";
        }
        String owner = redisson.getId() + ":" + Thread.currentThread().getId();
        return "held\t" + HexFormat.of().formatHex(owner.getBytes(StandardCharsets.UTF_8));
    }

    /**
     * Prints `waiting` when this thread sleeps until a message comes. A message of the kind "a reader may come in" that
     * comes earlier is lost: Redisson's LockPubSub wakes the threads that sleep at that moment, and keeps nothing for
     * later.
     */
    private static void sayWhenThisThreadSleeps() {
        Thread waiter = Thread.currentThread();
        Thread watcher = new Thread(() -> {
            while (!sleeps(waiter)) {
                LockSupport.parkNanos(1_000_000);
            }
            OUT.println("waiting");
        });
        watcher.setDaemon(true);
        watcher.start();
    }

    /** Whether the thread is asleep in the semaphore that the messages of its lock release. */
    private static boolean sleeps(Thread thread) {
        StackTraceElement[] stack = thread.getStackTrace();
        return stack.length > 0
                && stack[0].getMethodName().equals("park")
                && Arrays.stream(stack).anyMatch(it -> it.getClassName().equals(Semaphore.class.getName()));
    }

    private String count(String name, int tasks, int n, Path file, long lease) throws Exception {
        if (kind.equals("semaphore")) {
            RPermitExpirableSemaphore semaphore = semaphore(name);
            return Orders.inThreads(tasks, () -> {
                for (int i = 0; i < n; i++) {
                    String id = semaphore.acquire(lease == 0 ? -1 : lease, TimeUnit.MILLISECONDS);
                    Orders.addOne(file);
                    semaphore.release(id);
                }
                return null;
            });
        }
        RLock lock = lock(name);
        return Orders.inThreads(tasks, () -> {
            for (int i = 0; i < n; i++) {
                lock.lock(lease == 0 ? -1 : lease, TimeUnit.MILLISECONDS);
                Orders.addOne(file);
                lock.unlock();
            }
            return null;
        });
    }
}
