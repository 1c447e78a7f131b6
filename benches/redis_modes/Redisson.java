import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.TimeUnit;

import java.lang.management.ManagementFactory;

import com.sun.management.OperatingSystemMXBean;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/** Redisson's read lock in the scenarios `free` and `share`, its semaphore of 8 permits in `contend`. */
final class RedissonPeer {
    private static final int PERMITS = 8;
    private static final long TTL = 30_000;
    /** Longer than that of others: what runs often is compiled by then. */
    private static final long WARM_UP = 2_000_000_000L;

    private final RedissonClient redisson;

    private RedissonPeer(String port) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
        redisson = Redisson.create(config);
    }

    public static void main(String[] arguments) throws Exception {
        RedissonPeer peer = new RedissonPeer(arguments[1]);
        int workers = Integer.parseInt(arguments[3]);
        String answer = "{}";
        if (arguments[2].equals("contend")) {
            long begin = Long.parseLong(arguments[4]);
            peer.contend(workers, begin, begin + nanoseconds(arguments[5]), Path.of(arguments[7]));
        } else {
            answer = peer.pairs(workers, nanoseconds(arguments[4]), arguments[2].equals("share"));
        }
        System.out.println(answer);
        System.out.flush();
        Runtime.getRuntime().halt(0); // threads may wait for ever
    }

    private static long nanoseconds(String seconds) {
        return (long) (Double.parseDouble(seconds) * 1e9);
    }

    private String pairs(int workers, long length, boolean isShared) throws Exception {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long begin = System.nanoTime() + WARM_UP;
        long end = begin + length;
        List<Long> times = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < workers; i++) {
            RLock lock = redisson.getReadWriteLock("free-" + (isShared ? 0 : i)).readLock();
            threads.add(thread(() -> {
                for (long began; (began = System.nanoTime()) < end; ) {
                    lock.lock(TTL, TimeUnit.MILLISECONDS);
                    lock.unlock();
                    if (began >= begin) {
                        times.add(System.nanoTime() - began);
                    }
                }
            }));
        }
        sleepUntil(begin);
        long before = system.getProcessCpuTime();
        for (Thread thread : threads) {
            thread.join();
        }
        long cpu = system.getProcessCpuTime() - before;
        long[] sorted = times.stream().mapToLong(Long::longValue).toArray();
        Arrays.sort(sorted);
        return String.format(Locale.ROOT, "{\"pairs\":%d,\"p50_us\":%.2f,\"p99_us\":%.2f,\"cpu_us\":%.3f}",
                sorted.length, at(sorted, 0.5), at(sorted, 0.99), cpu / 1000.0 / sorted.length);
    }

    private static double at(long[] sorted, double share) {
        return sorted[(int) ((sorted.length - 1) * share)] / 1000.0;
    }

    private void contend(int workers, long begin, long end, Path file) throws Exception {
        RPermitExpirableSemaphore semaphore = redisson.getPermitExpirableSemaphore("contended");
        semaphore.trySetPermits(PERMITS);
        ConcurrentLinkedQueue<String> lines = new ConcurrentLinkedQueue<>();
        sleepUntil(begin);
        for (int i = 0; i < workers; i++) {
            int worker = i;
            thread(() -> {
                while (System.nanoTime() < end) {
                    String permit = semaphore.acquire(TTL, TimeUnit.MILLISECONDS);
                    long acquired = System.nanoTime();
                    long released = System.nanoTime();
                    if (released <= end) {
                        lines.add(worker + " " + acquired + " " + released + "\n");
                    }
                    semaphore.release(permit);
                }
            });
        }
        sleepUntil(end);
        Files.writeString(file, String.join("", lines));
    }

    private static void sleepUntil(long time) throws InterruptedException {
        long left = time - System.nanoTime();
        if (left > 0) {
            Thread.sleep(left / 1_000_000, (int) (left % 1_000_000));
        }
    }

    private interface Work {
        void run() throws Exception;
    }

    private static Thread thread(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception failure) {
                failure.printStackTrace();
                Runtime.getRuntime().halt(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }
}
