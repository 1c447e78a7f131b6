//! Redis: one server, TLS, sentinels, a cluster, independent servers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use super::clock::Clock;
use super::process::{Directory, Port, Process, new_directory};
use super::resp::{Connection, Value};
use super::skip;
use super::wait::until;

pub use super::login::{PASSWORD, USER};

/// The name under which the sentinels of [`SentinelSetup`] know their primary.
pub const SERVICE: &str = "mymaster";

/// Returns `true`, which ends the test, where the server is not installed; prints that.
pub fn skip_unless_installed() -> bool {
    skip::skip_unless_installed(&["redis-server"])
}

/// The server, which may be that of another version or of Valkey.
pub fn program() -> String {
    std::env::var("TENURE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into())
}

/// One server process (or a sentinel), which can be killed and started again on its port and directory.
pub struct Redis {
    port: Port,
    /// The port for TLS or for the cluster bus.
    other: Port,
    /// The port for the cluster bus of a node that has TLS.
    bus: Port,
    dir: PathBuf,
    command: Vec<String>,
    password: Option<&'static str>,
    process: Mutex<Option<Process>>,
}

impl Redis {
    /// A server without persistence, with these lines added to its configuration.
    pub fn start(lines: &[&str]) -> Self {
        let server = Self::prepare(&[]);
        server.launch_with(lines);
        server
    }

    /// [`start`](Redis::start), and only [`USER`] with [`PASSWORD`] may log in.
    pub fn start_secured(lines: &[&str]) -> Self {
        let mut server = Self::prepare(&[]);
        server.secure_and_launch(lines);
        server
    }

    /// TLS on [`tls_port`](Redis::tls_port), with [`PASSWORD`]. The test itself uses the ordinary port.
    pub fn start_tls(certificates: &Certificates) -> Self {
        Self::start_tls_as(certificates, "server", false)
    }

    /// [`start_tls`](Redis::start_tls) with another certificate. `asks`: clients need one, too.
    pub fn start_tls_as(certificates: &Certificates, name: &str, asks: bool) -> Self {
        let mut server = Self::prepare(&[]);
        let auth = if asks { "yes" } else { "optional" };
        let tls = server.tls_lines(certificates, name) + &format!("tls-auth-clients {auth}");
        server.secure_and_launch(&[&tls]);
        server
    }

    /// A cluster of one node, with TLS as in [`start_tls`](Redis::start_tls).
    pub fn start_tls_cluster(certificates: &Certificates) -> Self {
        let mut server = Self::prepare(&[]);
        let tls = server.tls_lines(certificates, "server") + "tls-auth-clients optional";
        let bus = format!("cluster-port {}", server.bus.number());
        server.secure_and_launch(&[&tls, "cluster-enabled yes", "tls-cluster yes", &bus]);
        let last = (SLOTS - 1).to_string();
        server.order(&["CLUSTER", "ADDSLOTSRANGE", "0", &last]);
        until("the cluster has all slots", || {
            let info = server.ask(&["CLUSTER", "INFO"]).text();
            info.contains("cluster_state:ok")
        });
        server
    }

    /// A sentinel of [`SERVICE`] with TLS, for a primary that was started with [`start_tls`](Redis::start_tls).
    pub fn start_tls_sentinel(certificates: &Certificates, primary: &Redis) -> Self {
        let mut sentinel = Self::prepare(&[]);
        sentinel.command.push("--sentinel".into());
        let tls = sentinel.tls_lines(certificates, "server") + "tls-auth-clients optional";
        sentinel.launch_with(&[
            &tls,
            "tls-replication yes",
            &format!(
                "sentinel monitor {SERVICE} 127.0.0.1 {} 1",
                primary.tls_port()
            ),
            &format!("sentinel auth-user {SERVICE} {USER}"),
            &format!("sentinel auth-pass {SERVICE} {PASSWORD}"),
        ]);
        sentinel
    }

    /// The configuration of TLS with that certificate.
    fn tls_lines(&self, certificates: &Certificates, name: &str) -> String {
        let file = |name: &str| certificates.file(name).display().to_string();
        format!(
            "tls-port {}\ntls-cert-file {}\ntls-key-file {}\ntls-ca-cert-file {}\n",
            self.other.number(),
            file(&format!("{name}.crt")),
            file(&format!("{name}.key")),
            file("ca.crt"),
        )
    }

    /// A server with a wall clock that the test sets.
    pub fn start_with_clock(clock: &Clock, lines: &[&str]) -> Self {
        Self::start_with(&clock.command(), lines)
    }

    /// `before`: words before the program, which set its environment.
    pub fn start_with(before: &[String], lines: &[&str]) -> Self {
        let server = Self::prepare(before);
        server.launch_with(lines);
        server
    }

    fn start_sentinel(lines: &[&str]) -> Self {
        let mut server = Self::prepare(&[]);
        server.command.push("--sentinel".into());
        server.launch_with(lines);
        server
    }

    /// A node that knows no other node yet. The port of the cluster bus is reserved, too: the usual one, 10,000 above,
    /// may be used by any connection.
    pub fn start_in_cluster() -> Self {
        let server = Self::prepare(&[]);
        let bus = format!("cluster-port {}", server.other.number());
        server.launch_with(&["cluster-enabled yes", "cluster-node-timeout 4000", &bus]);
        server
    }

    fn prepare(before: &[String]) -> Self {
        let dir = new_directory("redis");
        let mut command = before.to_vec();
        command.push(program());
        command.push(dir.join("conf").display().to_string());
        Self {
            port: Port::reserve(),
            other: Port::reserve(),
            bus: Port::reserve(),
            dir,
            command,
            password: None,
            process: Mutex::new(None),
        }
    }

    fn secure_and_launch(&mut self, lines: &[&str]) {
        self.password = Some(PASSWORD);
        let user = format!("user {USER} on >{PASSWORD} ~* &* +@all");
        let default = format!("requirepass {PASSWORD}");
        self.launch_with(&[lines, &[&user, &default]].concat());
    }

    fn launch_with(&self, lines: &[&str]) {
        let is_sentinel = self.command.iter().any(|word| word == "--sentinel");
        let port = format!("port {}", self.port());
        let dir = format!("dir {}", self.dir.display());
        let mut all = vec!["bind 127.0.0.1", &port, &dir];
        if !is_sentinel {
            all.extend(["save \"\"", "appendonly no", "repl-diskless-sync-delay 0"]);
        }
        all.extend(lines);
        std::fs::write(self.dir.join("conf"), all.join("\n") + "\n").unwrap();
        self.launch();
    }

    /// Starts the process and waits until it answers; its data may not be loaded by then.
    ///
    /// # Panics
    /// When the server runs already, or does not start.
    pub fn launch(&self) {
        let mut slot = self.process.lock().unwrap();
        assert!(slot.is_none(), "it runs");
        let process = Process::start(&self.dir, &self.command);
        until("the server answers", || {
            if process.has_ended() {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap();
                panic!("redis-server ended:\n{log}");
            }
            let answer = Connection::open(self.port()).and_then(|mut to| to.ask(&["PING"]));
            answer.is_ok()
        });
        *slot = Some(process);
    }

    /// SIGKILL. What the server has not written to its directory is lost.
    pub fn kill(&self) {
        let process = self.process.lock().unwrap().take();
        process.expect("it runs").kill();
    }

    /// Kills the server and starts it again.
    pub fn restart(&self) {
        self.kill();
        self.launch();
    }

    /// SIGSTOP: the server answers no client, and the kernel still accepts what clients send.
    pub fn stop(&self) {
        self.with_process(Process::stop);
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.with_process(Process::resume);
    }

    fn with_process(&self, act: impl FnOnce(&Process)) {
        let slot = self.process.lock().unwrap();
        act(slot.as_ref().expect("it runs"));
    }

    pub fn is_up(&self) -> bool {
        self.process.lock().unwrap().is_some()
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn tls_port(&self) -> u16 {
        self.other.number()
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// `user:password@` of a secured server.
    fn login(&self) -> String {
        self.password
            .map_or_else(String::new, |password| format!("{USER}:{password}@"))
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        self.url_by(self.port())
    }

    /// The URL with another port, for example of a proxy.
    pub fn url_by(&self, port: u16) -> String {
        format!("redis://{}127.0.0.1:{port}/", self.login())
    }

    pub fn tls_url(&self) -> String {
        format!("rediss://{}127.0.0.1:{}/", self.login(), self.tls_port())
    }

    /// A connection past the library, logged in.
    pub fn connection(&self) -> Connection {
        let mut connection = Connection::open(self.port()).unwrap();
        if let Some(password) = self.password {
            let answer = connection.ask(&["AUTH", password]).unwrap();
            assert_eq!(answer, Value::Text("OK".into()));
        }
        connection
    }

    /// Sends a command past the library. An error of the server is an answer.
    ///
    /// # Panics
    /// When the server does not answer.
    #[track_caller]
    pub fn ask<A: AsRef<[u8]>>(&self, words: &[A]) -> Value {
        self.connection().ask(words).unwrap()
    }

    /// Sends a command past the library that has to succeed.
    ///
    /// # Panics
    /// When the answer is an error.
    #[track_caller]
    pub fn order<A: AsRef<[u8]>>(&self, words: &[A]) -> Value {
        let answer = self.ask(words);
        assert!(!matches!(answer, Value::Error(_)), "{answer:?}");
        answer
    }

    /// One line of INFO.
    pub fn info(&self, section: &str, field: &str) -> String {
        self.try_info(section, field).unwrap()
    }

    /// Whether a line of INFO has this value. `false` while the server does not answer: a replica that becomes a
    /// primary, or the reverse, closes its connections.
    pub fn info_is(&self, section: &str, field: &str, value: &str) -> bool {
        self.try_info(section, field).is_ok_and(|it| it == value)
    }

    /// [`info`](Redis::info) of a server that may close the connection: a sentinel does that when it demotes a server.
    pub fn try_info(&self, section: &str, field: &str) -> std::io::Result<String> {
        let mut connection = Connection::open(self.port())?;
        if let Some(password) = self.password {
            connection.ask(&["AUTH", password])?;
        }
        let info = connection.ask(&["INFO", section])?.text();
        let mut lines = info.lines();
        let line = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(line.unwrap_or_default().trim().to_owned())
    }

    /// Cuts the connections of all clients.
    pub fn cut_all(&self) {
        let mut connection = self.connection();
        for kind in ["normal", "pubsub"] {
            connection
                .ask(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"])
                .unwrap();
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        super::process::end(&mut self.process, &self.dir);
    }
}

/// A certificate authority, good and bad certificates of servers signed by it, and an authority that signed none.
pub struct Certificates {
    dir: Directory,
}

impl Certificates {
    pub fn skip_unless_installed() -> bool {
        skip::skip_unless_installed(&["redis-server", "openssl"])
    }

    pub fn make() -> Self {
        let made = Self {
            dir: Directory::new("certificates"),
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -batch";
        for authority in ["ca", "foreign"] {
            made.openssl(&format!(
                "req -x509 {key} -days 2 -subj /CN=tenure-{authority} -keyout {authority}.key -out {authority}.crt"
            ));
        }
        for (name, names, days) in [
            ("server", "IP:127.0.0.1,DNS:localhost", "2"),
            ("misnamed", "DNS:elsewhere.invalid", "2"),
            ("expired", "IP:127.0.0.1,DNS:localhost", "-1"),
        ] {
            let names = format!("subjectAltName={names}\n");
            std::fs::write(made.file("names"), names).unwrap();
            made.openssl(&format!(
                "req {key} -subj /CN=localhost -keyout {name}.key -out {name}.csr"
            ));
            made.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days {days} -extfile names -out {name}.crt"
            ));
        }
        made
    }

    /// Runs `openssl` with these arguments in the folder of the files.
    pub fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command
            .args(arguments.split(' '))
            .current_dir(self.dir.path());
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// `ca.crt`, `foreign.crt`; `server`, `misnamed`, `expired`, each with `.crt` and `.key`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A primary, its replica, and three sentinels that watch them.
pub struct SentinelSetup {
    pub servers: [Redis; 2],
    pub sentinels: [Redis; 3],
}

impl SentinelSetup {
    /// `down_after`: after how many milliseconds of silence a primary is replaced.
    pub fn start(down_after: u32) -> Self {
        let primary = Redis::start(&[]);
        let replica = Redis::start(&[&format!("replicaof 127.0.0.1 {}", primary.port())]);
        until("the replica follows", || {
            replica.info("replication", "master_link_status") == "up"
        });
        let lines = [
            format!("sentinel monitor {SERVICE} 127.0.0.1 {} 2", primary.port()),
            format!("sentinel down-after-milliseconds {SERVICE} {down_after}"),
            format!("sentinel failover-timeout {SERVICE} 3000"),
        ];
        let lines = lines.each_ref().map(String::as_str);
        let sentinels = [(); 3].map(|()| Redis::start_sentinel(&lines));
        until("the sentinels know each other", || {
            let knows_all = |sentinel: &Redis| {
                let known = sentinel.ask(&["INFO", "sentinel"]).text();
                known.contains("slaves=1,sentinels=3")
            };
            sentinels.iter().all(knows_all)
        });
        Self {
            servers: [primary, replica],
            sentinels,
        }
    }

    pub fn url(&self) -> String {
        let addresses = self.sentinels.each_ref().map(Redis::address);
        format!("redis+sentinel://{}/{SERVICE}", addresses.join(","))
    }

    /// The port of the primary, as the sentinels report it.
    pub fn primary_port(&self) -> u16 {
        let words = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE];
        let address = self.sentinels[0].ask(&words).items();
        address[1].text().parse().unwrap()
    }

    pub fn primary(&self) -> &Redis {
        let port = self.primary_port();
        self.servers
            .iter()
            .find(|server| server.port() == port)
            .unwrap()
    }
}

/// A cluster: masters first, then one replica of each, if any.
pub struct Cluster {
    pub nodes: Vec<Redis>,
}

pub const SLOTS: u16 = 16_384;
const MASTERS: u16 = 3;

impl Cluster {
    pub fn start(with_replicas: bool) -> Self {
        let count = if with_replicas { 2 * MASTERS } else { MASTERS };
        let nodes: Vec<_> = (0..count).map(|_| Redis::start_in_cluster()).collect();
        let word = |number: u16| number.to_string();
        for master in 0..MASTERS {
            let (from, to) = (master * SLOTS / MASTERS, (master + 1) * SLOTS / MASTERS - 1);
            let node = &nodes[usize::from(master)];
            node.order(&["CLUSTER", "ADDSLOTSRANGE", &word(from), &word(to)]);
            node.order(&["CLUSTER", "SET-CONFIG-EPOCH", &word(master + 1)]);
        }
        for node in &nodes[1..] {
            let (port, bus) = (word(node.port()), word(node.other.number()));
            nodes[0].order(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
        let cluster = Self { nodes };
        cluster.until_all("cluster_known_nodes", &count.to_string());
        for (replica, master) in cluster
            .nodes
            .iter()
            .skip(MASTERS.into())
            .zip(&cluster.nodes)
        {
            let id = cluster.id(master);
            // The replica may not know its master yet.
            until("the replica knows its master", || {
                !matches!(replica.ask(&["CLUSTER", "REPLICATE", &id]), Value::Error(_))
            });
        }
        for replica in cluster.nodes.iter().skip(MASTERS.into()) {
            until("the replica follows", || {
                replica.info("replication", "master_link_status") == "up"
            });
        }
        cluster.until_all("cluster_state", "ok");
        cluster
    }

    fn until_all(&self, field: &str, value: &str) {
        let line = format!("{field}:{value}");
        until(&line, || {
            let shows = |node: &Redis| {
                let info = node.ask(&["CLUSTER", "INFO"]).text();
                info.lines().any(|shown| shown.trim() == line)
            };
            self.nodes.iter().all(shows)
        });
    }

    pub fn id(&self, node: &Redis) -> String {
        node.ask(&["CLUSTER", "MYID"]).text()
    }

    pub fn masters(&self) -> &[Redis] {
        &self.nodes[..MASTERS.into()]
    }

    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.masters().iter().map(Redis::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// Returns the replica of a master, when it has all that was written there until now.
    ///
    /// A master that is killed takes with it what its replica has not read yet.
    pub fn replica_with_all(&self, master: &Redis) -> &Redis {
        let port = master.port().to_string();
        let mut replicas = self.nodes[MASTERS.into()..].iter();
        let is_of_master = |node: &&Redis| node.info("replication", "master_port") == port;
        let replica = replicas.find(is_of_master).unwrap();
        // `WAIT` on a connection of our own would wait for our own writes only, and there are none.
        let offset = |node: &Redis, field| node.info("replication", field).parse::<u64>().unwrap();
        let written = offset(master, "master_repl_offset");
        until("the replica has what was written", || {
            offset(replica, "slave_repl_offset") >= written
        });
        replica
    }

    /// Moves a slot as `redis-cli --cluster reshard` does. `meanwhile` is called when the keys are about to move. Returns
    /// when all nodes know the new owner: a replica that takes over before has none of the slot.
    pub fn migrate(&self, slot: u16, to: &Redis, meanwhile: impl FnOnce()) {
        let from = self.owner(slot);
        let (number, slot) = (slot, slot.to_string());
        let (from_id, to_id) = (self.id(from), self.id(to));
        to.order(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
        from.order(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
        meanwhile();
        let port = to.port().to_string();
        loop {
            let keys = from
                .ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])
                .items();
            if keys.is_empty() {
                break;
            }
            for key in keys {
                from.order(&["MIGRATE", "127.0.0.1", &port, &key.text(), "0", "5000"]);
            }
        }
        // The new owner comes first, so that at every moment a node says that it owns the slot.
        for node in [to].into_iter().chain(self.masters()) {
            node.order(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
        }
        until("all nodes know the new owner", || {
            let knows = |node: &Redis| owner_port(node, number) == Some(to.port());
            self.nodes.iter().filter(|node| node.is_up()).all(knows)
        });
    }

    /// The slot of a key, as the servers compute it.
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key]).int();
        u16::try_from(slot).unwrap()
    }

    /// The owner of a slot, as a running node reports it.
    pub fn owner(&self, slot: u16) -> &Redis {
        self.find_owner(slot).unwrap()
    }

    /// [`owner`](Cluster::owner) while it may be unknown: a node that has just restarted knows no owner before another
    /// node tells it.
    pub fn find_owner(&self, slot: u16) -> Option<&Redis> {
        let asked = self.nodes.iter().find(|node| node.is_up())?;
        let port = owner_port(asked, slot);
        self.nodes.iter().find(|node| Some(node.port()) == port)
    }
}

/// The port of the owner of a slot, as that node knows it.
fn owner_port(node: &Redis, slot: u16) -> Option<u16> {
    let of = i64::from(slot);
    let ranges = node.ask(&["CLUSTER", "SLOTS"]).items();
    let port = ranges.into_iter().find_map(|range| {
        let range = range.items();
        let has = range[0].int() <= of && of <= range[1].int();
        has.then(|| range[2].clone().items()[1].int())
    });
    u16::try_from(port?).ok()
}

/// Independent masters, as Redlock needs them.
pub fn independent(count: usize) -> Vec<Redis> {
    (0..count).map(|_| Redis::start(&[])).collect()
}

pub fn redlock_url(servers: &[Redis]) -> String {
    let addresses: Vec<_> = servers.iter().map(Redis::address).collect();
    format!("redlock://{}", addresses.join(","))
}
