import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;

/**
 * A lock client that is told on stdin what to do. The orders are in ../README.md.
 *
 * <p>All orders run in one thread: to some clients it is the owner.
 *
 * @param <H> what can be given back
 */
abstract class Orders<H> {
    private static final PrintStream OUT = new PrintStream(System.out, true, StandardCharsets.UTF_8);

    private final Map<String, Deque<H>> held = new HashMap<>();

    /** Waits so long, in ms; zero is one attempt. Null: busy. */
    abstract H lock(String name, long wait, long lease) throws Exception;

    /** Whether it was held. */
    abstract boolean unlock(H hold) throws Exception;

    abstract boolean locked(String name) throws Exception;

    /** What the client has written as owner. */
    abstract String value(H hold);

    /** Obeys until the end of the input, and leaves its locks where they are. */
    final void serve(String version) throws Exception {
        OUT.println("ready\t" + version);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = orders.readLine()) != null && !line.equals("quit"); ) {
            String answer;
            try {
                answer = obey(line.split("\t", -1));
            } catch (Exception error) {
                answer = "error\t" + error.getClass().getSimpleName() + ": " + error.getMessage();
            }
            OUT.println(answer.replace('\n', ' '));
        }
        Runtime.getRuntime().halt(0);
    }

    /** For a client with orders of its own. */
    String obey(String[] order) throws Exception {
        switch (order[0]) {
            case "try":
                return acquire(order[1], 0, Long.parseLong(order[2]));
            case "lock":
                return acquire(order[1], Long.parseLong(order[2]), Long.parseLong(order[3]));
            case "unlock":
                H hold = held.getOrDefault(order[1], new ArrayDeque<>()).pollLast();
                return hold != null && unlock(hold) ? "released" : "not-held";
            case "locked":
                return locked(order[1]) ? "yes" : "no";
            case "count":
                return count(order[1], Integer.parseInt(order[2]), Integer.parseInt(order[3]),
                        Path.of(order[4]), Long.parseLong(order[5]));
            default:
                return "error\tunknown order " + order[0];
        }
    }

    private String acquire(String name, long wait, long lease) throws Exception {
        H hold = lock(name, wait, lease);
        if (hold == null) {
            return "busy";
        }
        held.computeIfAbsent(name, key -> new ArrayDeque<>()).addLast(hold);
        return "held\t" + HexFormat.of().formatHex(value(hold).getBytes(StandardCharsets.UTF_8));
    }

    private String count(String name, int tasks, int n, Path file, long lease) throws Exception {
        return inThreads(tasks, () -> {
            for (int i = 0; i < n; i++) {
                H hold = lock(name, TimeUnit.MINUTES.toMillis(10), lease);
                addOne(file);
                unlock(hold);
                Thread.sleep(5);
            }
            return null;
        });
    }

    static String inThreads(int tasks, Callable<Void> work) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(tasks);
        try {
            for (Future<Void> one : threads.invokeAll(IntStream.range(0, tasks).mapToObj(i -> work).toList())) {
                one.get();
            }
        } finally {
            threads.shutdown();
        }
        return "counted";
    }

    /** Reads, lets others run, writes: loses counts unless it is alone. */
    static void addOne(Path file) throws Exception {
        long value = Long.parseLong(Files.readString(file).split(" ")[0].trim());
        Thread.sleep(0, 200_000);
        Files.writeString(file, String.format("%020d java%n", value + 1));
    }
}
