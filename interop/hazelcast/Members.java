import com.hazelcast.config.Config;
import com.hazelcast.config.NetworkConfig;
import com.hazelcast.config.TcpIpConfig;
import com.hazelcast.core.Hazelcast;
import com.hazelcast.core.HazelcastInstance;
import com.hazelcast.cp.CPGroupId;
import com.hazelcast.cp.CPMember;
import com.hazelcast.cp.CPSubsystem;
import com.hazelcast.cp.CPSubsystemManagementService;
import com.hazelcast.cp.session.CPSession;
import com.hazelcast.instance.impl.HazelcastInstanceProxy;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HexFormat;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Members of a cluster in one process, and what a test asks of them by a port of its own: one order per connection and line,
 * one line as the answer.
 *
 * <p>Arguments: CONTROL-PORT CP-MEMBERS SESSION-TTL HEARTBEAT OWN [HOST:]PORT... (times in seconds, a port for each member,
 * on the loopback interface unless an address is given; 0 CP members: no CP subsystem). The port for orders is on the
 * address of the first member in this process. OWN is {@code all}, or the number of the only member in this process, counted from 0; then the
 * orders are about this member, and {@code ready} waits until it has its place in all groups.
 *
 * <p>Orders: {@code ready}; {@code kill N} (a member, counted from 0); {@code leader GROUP}: the number of
 * the member that leads; {@code transfer GROUP N}; {@code sessions GROUP}: their numbers; {@code close GROUP SESSION};
 * {@code lock NAME [GROUP]} (the name in hexadecimal bytes): holders, waiters and the
 * session of the holder; {@code unlock NAME}: in the place of the holder; {@code reset}: of the CP subsystem.
 */
public final class Members {
    private static final String LOOPBACK = "127.0.0.1";

    private static HazelcastInstance[] members;
    private static int cp;
    private static int ttl;
    private static int heartbeat;
    private static String[] hosts;
    private static int[] ports;
    /** The only member in this process; negative: all members. */
    private static int own;
    private static volatile boolean isReady;

    private Members() {}

    public static void main(String[] arguments) throws Exception {
        cp = Integer.parseInt(arguments[1]);
        ttl = Integer.parseInt(arguments[2]);
        heartbeat = Integer.parseInt(arguments[3]);
        own = arguments[4].equals("all") ? -1 : Integer.parseInt(arguments[4]);
        ports = new int[arguments.length - 5];
        hosts = new String[ports.length];
        for (int i = 0; i < ports.length; i++) {
            String[] both = arguments[5 + i].split(":");
            hosts[i] = both.length == 1 ? LOOPBACK : both[0];
            ports[i] = Integer.parseInt(both[both.length - 1]);
        }
        members = new HazelcastInstance[ports.length];
        InetAddress here = InetAddress.getByName(hosts[Math.max(own, 0)]);
        ServerSocket control = new ServerSocket(Integer.parseInt(arguments[0]), 50, here);
        Thread orders = new Thread(() -> serve(control));
        orders.start();
        for (int i = 0; i < ports.length; i++) {
            if (own < 0 || own == i) {
                members[i] = Hazelcast.newHazelcastInstance(config(i));
            }
        }
        awaitReady();
    }

    private static void awaitReady() throws Exception {
        if (cp > 0) {
            one().getCPSubsystemManagementService().awaitUntilDiscoveryCompleted(120, TimeUnit.SECONDS);
        }
        boolean hasPlace = own < 0;
        while (!hasPlace) {
            try {
                takePlace();
                hasPlace = true;
            } catch (Exception error) {
                // Another change of the members is under way, or no member leads.
                error.printStackTrace();
                Thread.sleep(200);
            }
        }
        isReady = true;
    }

    private static Config config(int number) {
        Config config = new Config();
        for (String property : new String[] {
            "phone.home.enabled=false", "socket.bind.any=false", "logging.type=none", "operation.thread.count=2",
            "operation.generic.thread.count=2", "io.thread.count=1", "partition.count=11", "initial.wait.seconds=0",
            "wait.seconds.before.join=0"}) {
            set(config, property);
        }
        NetworkConfig network = config.getNetworkConfig();
        network.setPort(ports[number]).setPortAutoIncrement(false).setReuseAddress(true);
        network.setPublicAddress(address(number));
        network.getInterfaces().setEnabled(true).addInterface(hosts[number]);
        network.getJoin().getMulticastConfig().setEnabled(false);
        network.getJoin().getAutoDetectionConfig().setEnabled(false);
        TcpIpConfig others = network.getJoin().getTcpIpConfig().setEnabled(ports.length > 1);
        for (int i = 0; i < ports.length; i++) {
            others.addMember(address(i));
        }
        if (cp > 0) {
            config.getCPSubsystemConfig().setCPMemberCount(cp);
            config.getCPSubsystemConfig().setMissingCPMemberAutoRemovalSeconds(Math.max(60, ttl));
        }
        if (own >= 0) {
            // A member that is stopped closes no connection. By default the others wait 25 s for it before they elect a leader.
            config.getCPSubsystemConfig().getRaftAlgorithmConfig().setLeaderHeartbeatPeriodInMillis(1000)
                    .setMaxMissedLeaderHeartbeatCount(2);
        }
        if (!hosts[number].equals(LOOPBACK)) {
            // A network may cut a member off, which closes no connection. The others pass requests on to it until they remove
            // it from the cluster, by default after 60 s, and they take it back minutes later.
            for (String property : new String[] {
                "heartbeat.interval.seconds=1", "max.no.heartbeat.seconds=6", "merge.first.run.delay.seconds=2",
                "merge.next.run.delay.seconds=2"}) {
                set(config, property);
            }
        }
        config.getCPSubsystemConfig().setSessionTimeToLiveSeconds(ttl).setSessionHeartbeatIntervalSeconds(heartbeat);
        config.getJetConfig().setEnabled(false);
        config.getMetricsConfig().setEnabled(false);
        return config;
    }

    private static void set(Config config, String property) {
        String[] both = property.split("=");
        config.setProperty("hazelcast." + both[0], both[1]);
    }

    private static String address(int number) {
        return hosts[number] + ":" + ports[number];
    }

    private static void serve(ServerSocket control) {
        while (true) {
            try {
                Socket socket = control.accept();
                Thread thread = new Thread(() -> answer(socket));
                thread.setDaemon(true);
                thread.start();
            } catch (Exception error) {
                System.err.println(error);
                System.exit(1);
            }
        }
    }

    private static void answer(Socket socket) {
        try (socket) {
            BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            PrintStream out = new PrintStream(socket.getOutputStream(), true, StandardCharsets.UTF_8);
            String line = in.readLine();
            String answer;
            try {
                answer = obey(line.split("\t", -1));
            } catch (Throwable error) {
                answer = "error\t" + error;
                error.printStackTrace();
            }
            out.println(answer.replace('\n', ' '));
        } catch (Exception error) {
            System.err.println(error);
        }
    }

    private static String obey(String[] order) throws Exception {
        switch (order[0]) {
            case "ready":
                return isReady ? "yes" : "no";
            case "kill":
                members[Integer.parseInt(order[1])].getLifecycleService().terminate();
                return "killed";
            case "leader":
                return leader(order[1]);
            case "transfer":
                return transfer(order[1], Integer.parseInt(order[2]));
            case "sessions": {
                Collection<CPSession> sessions = one().getCPSessionManagementService().getAllSessions(order[1])
                        .toCompletableFuture().get(20, TimeUnit.SECONDS);
                return sessions.stream().map(session -> Long.toString(session.id())).sorted()
                        .reduce((all, next) -> all + " " + next).orElse("");
            }
            case "close":
                return one().getCPSessionManagementService().forceCloseSession(order[1], Long.parseLong(order[2]))
                        .toCompletableFuture().get(20, TimeUnit.SECONDS).toString();
            case "lock":
                return look(name(order[1]), order.length > 2 ? order[2] : "default");
            case "unlock":
                unlock(name(order[1]));
                return "unlocked";
            case "reset":
                one().getCPSubsystemManagementService().reset().toCompletableFuture().get(60, TimeUnit.SECONDS);
                return "reset";
            default:
                return "error\tunknown order " + order[0];
        }
    }

    /**
     * Gives the only member of this process the place of the one that was killed: for the CP subsystem a member that is started
     * without persistence is another one. Returns when all groups have all members.
     */
    private static void takePlace() throws Exception {
        CPSubsystemManagementService service = members[own].getCPSubsystem().getCPSubsystemManagementService();
        if (service.getLocalCPMember() == null) {
            for (CPMember member : service.getCPMembers().toCompletableFuture().get(20, TimeUnit.SECONDS)) {
                if ((member.getAddress().getHost() + ":" + member.getAddress().getPort()).equals(address(own))) {
                    service.removeCPMember(member.getUuid()).toCompletableFuture().get(20, TimeUnit.SECONDS);
                }
            }
            service.promoteToCPMember().toCompletableFuture().get(20, TimeUnit.SECONDS);
        }
        for (CPGroupId group : service.getCPGroupIds().toCompletableFuture().get(20, TimeUnit.SECONDS)) {
            while (service.getCPGroup(group.getName()).toCompletableFuture().get(20, TimeUnit.SECONDS).members().size() < cp) {
                Thread.sleep(50);
            }
        }
    }

    private static String name(String hexadecimal) {
        return new String(HexFormat.of().parseHex(hexadecimal), StandardCharsets.UTF_8);
    }

    private static boolean isUp(int number) {
        return members[number] != null && members[number].getLifecycleService().isRunning();
    }

    private static CPSubsystem one() {
        for (int i = 0; i < ports.length; i++) {
            if (isUp(i)) {
                return members[i].getCPSubsystem();
            }
        }
        throw new IllegalStateException("no member runs");
    }

    /** The number of the member that leads the group; empty: none is known. */
    private static String leader(String group) throws Exception {
        for (int i = 0; i < ports.length; i++) {
            if (!isUp(i)) {
                continue;
            }
            Object raft = service(i, "hz:core:raft");
            Object self = call(raft, "getLocalCPEndpoint");
            for (Object node : (Collection<?>) call(raft, "getAllRaftNodes")) {
                boolean isIt = call(call(node, "getGroupId"), "getName").equals(group);
                if (isIt && self != null && self.equals(call(node, "getLeader"))) {
                    return Integer.toString(i);
                }
            }
        }
        return "";
    }

    private static String transfer(String group, int to) throws Exception {
        String from = leader(group);
        if (from.equals(Integer.toString(to))) {
            return "transferred";
        }
        Object target = call(service(to, "hz:core:raft"), "getLocalCPEndpoint");
        for (Object node : (Collection<?>) call(service(Integer.parseInt(from), "hz:core:raft"), "getAllRaftNodes")) {
            if (call(call(node, "getGroupId"), "getName").equals(group)) {
                ((Future<?>) call(node, "transferLeadership", target)).get(20, TimeUnit.SECONDS);
            }
        }
        return "transferred";
    }

    /** What the leader of the group has of a lock: holders, waiters, and the session of the holder. */
    private static String look(String name, String group) throws Exception {
        Object lock = lock(name, group);
        if (lock == null) {
            return "0 0 -";
        }
        Object owner = field(lock, "owner");
        int waiters = ((Map<?, ?>) field(lock, "waitKeys")).size();
        Object session = owner == null ? "-" : call(call(owner, "endpoint"), "sessionId");
        return (owner == null ? 0 : 1) + " " + waiters + " " + session;
    }

    /** Unlocks in the place of the holder. */
    private static void unlock(String name) throws Exception {
        Object lock = lock(name, "default");
        Object endpoint = call(field(lock, "owner"), "endpoint");
        Object operation = new com.hazelcast.cp.internal.datastructures.lock.operation.UnlockOp(name,
                (Long) call(endpoint, "sessionId"), (Long) call(endpoint, "threadId"), UUID.randomUUID());
        Object invocations = call(service(Integer.parseInt(leader("default")), "hz:core:raft"), "getInvocationManager");
        ((Future<?>) call(invocations, "invoke", call(lock, "getGroupId"), operation)).get(20, TimeUnit.SECONDS);
    }

    private static Object lock(String name, String group) throws Exception {
        String leader = leader(group);
        if (leader.isEmpty()) {
            throw new IllegalStateException("no leader");
        }
        Object locks = service(Integer.parseInt(leader), "hz:raft:lockService");
        for (Object registry : ((Map<?, ?>) field(locks, "registries")).values()) {
            if (!call(call(registry, "getGroupId"), "getName").equals(group)) {
                continue;
            }
            Object lock = ((Map<?, ?>) field(registry, "resources")).get(name);
            if (lock != null) {
                return lock;
            }
        }
        return null;
    }

    private static Object service(int number, String name) throws Exception {
        Object original = ((HazelcastInstanceProxy) members[number]).getOriginal();
        return call(call(field(original, "node"), "getNodeEngine"), "getService", name);
    }

    private static Object field(Object object, String name) throws Exception {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    field.setAccessible(true);
                    return field.get(object);
                }
            }
        }
        throw new NoSuchFieldException(object.getClass() + " has no " + name);
    }

    private static Object call(Object object, String name, Object... arguments) throws Exception {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                boolean isIt = method.getName().equals(name) && method.getParameterCount() == arguments.length;
                if (isIt && !method.isBridge()) {
                    method.setAccessible(true);
                    return method.invoke(object, arguments);
                }
            }
        }
        throw new NoSuchMethodException(object.getClass() + " has no " + name);
    }
}
