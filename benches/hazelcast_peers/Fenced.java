import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ConcurrentLinkedQueue;

import com.hazelcast.client.HazelcastClient;
import com.hazelcast.client.config.ClientConfig;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.lock.FencedLock;
import com.sun.management.OperatingSystemMXBean;

/** FencedLock of the Java client in the scenarios `free` and `contend`; README.md has the arguments. */
public final class Fenced {
    /** Longer than that of others: what runs often is compiled by then. */
    private static final long WARM_UP = 2_000_000_000L;

    private final HazelcastInstance client;

    private Fenced(boolean isSmart, String port) {
        ClientConfig config = new ClientConfig();
        config.setProperty("hazelcast.logging.type", "none");
        // A client that is not smart has one connection, as tenure does; a smart one has one to each member.
        config.getNetworkConfig().setSmartRouting(isSmart).addAddress("127.0.0.1:" + port);
        client = HazelcastClient.newHazelcastClient(config);
    }

    public static void main(String[] arguments) throws Exception {
        Fenced peer = new Fenced(arguments[0].equals("smart"), arguments[1]);
        int workers = Integer.parseInt(arguments[3]);
        String answer = "{}";
        if (arguments[2].equals("free")) {
            answer = peer.free(workers, nanoseconds(arguments[4]));
        } else {
            long begin = Long.parseLong(arguments[4]);
            long end = begin + nanoseconds(arguments[5]);
            long work = Long.parseLong(arguments[6]);
            peer.contend(workers, begin, end, work, Path.of(arguments[7]), arguments[8]);
        }
        System.out.println(answer);
        System.out.flush();
        Runtime.getRuntime().halt(0); // threads may wait for ever
    }

    private static long nanoseconds(String seconds) {
        return (long) (Double.parseDouble(seconds) * 1e9);
    }

    private FencedLock lock(String name) {
        return client.getCPSubsystem().getLock(name);
    }

    private String free(int workers, long length) throws Exception {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long begin = System.nanoTime() + WARM_UP;
        long end = begin + length;
        List<Long> times = Collections.synchronizedList(new ArrayList<>());
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < workers; i++) {
            FencedLock lock = lock("free-" + i);
            threads.add(thread(() -> {
                for (long began; (began = System.nanoTime()) < end; ) {
                    lock.lockAndGetFence();
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

    private void contend(int workers, long begin, long end, long workMicros, Path file, String name)
            throws Exception {
        ConcurrentLinkedQueue<String> lines = new ConcurrentLinkedQueue<>();
        // On the clock of the machine, which System.nanoTime is on Linux.
        sleepUntil(begin);
        for (int i = 0; i < workers; i++) {
            int worker = i;
            FencedLock lock = lock(name);
            thread(() -> {
                while (System.nanoTime() < end) {
                    lock.lockAndGetFence();
                    long acquired = System.nanoTime();
                    if (workMicros > 0) {
                        Thread.sleep(workMicros / 1000, (int) (workMicros % 1000) * 1000);
                    }
                    long released = System.nanoTime();
                    if (released <= end) {
                        lines.add(worker + " " + acquired + " " + released);
                    }
                    lock.unlock();
                }
            });
        }
        sleepUntil(end);
        Files.write(file, new ArrayList<>(lines));
    }

    private interface Work {
        void run() throws Exception;
    }

    private static Thread thread(Work work) {
        Thread thread = new Thread(() -> {
            try {
                work.run();
            } catch (Exception error) {
                System.err.println("FencedLock: " + error);
                Runtime.getRuntime().halt(1);
            }
        });
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void sleepUntil(long nanoTime) throws InterruptedException {
        Thread.sleep(Math.max(0, (nanoTime - System.nanoTime()) / 1_000_000));
    }
}
