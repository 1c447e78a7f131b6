//! The drivers of foreign clients, and a Redis server for each test, which the test inspects directly.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use tenure::conformance::lock_holder::LockHolder;
use tenure::{Client, Guard, OwnerId};
use tokio::task::JoinHandle;

use tenure_testkit::redis;
use tenure_testkit::resp::Value;

/// The time limit of a wait. It is long, so that a wait that reaches it is stuck.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(180);
/// A ttl that does not end during a test.
pub(crate) const LONG: Duration = Duration::from_secs(30);
/// For how long a name stays reserved. A client in Java has begun to wait by then, also on a busy machine.
pub(crate) const RESERVATION: Duration = Duration::from_secs(10);

/// Prints a line that the capture of the test's output does not hide.
pub(crate) fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").unwrap();
}

/// Prints once, and not in every test, that a client is not available.
fn skip(language: &str, reason: &str) {
    static SKIPPED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SKIPPED.lock().unwrap().insert(language.to_owned()) {
        print_line(&format!("SKIP interop {language}: {reason}"));
    }
}

pub(crate) fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// The output of the future, which must come within [`WAIT_TIMEOUT`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(WAIT_TIMEOUT, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: nothing for {WAIT_TIMEOUT:?}"),
    }
}

/// Checks the condition again until it holds, for a state of which the server sends no message.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_async(what, async || is_so()).await;
}

/// [`until`] for an asynchronous condition.
pub(crate) async fn until_async(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A directory that is removed at the end of the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        let unique = format!("tenure-interop-{}", OwnerId::random().to_hex());
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A server to which a foreign client can connect.
pub(crate) trait Server {
    fn port(&self) -> u16;
}

/// A server of its own for each test.
pub(crate) struct Redis(redis::Redis);

impl Redis {
    /// `None` where Redis is not installed.
    pub(crate) fn start() -> Option<Self> {
        (!redis::skip_unless_installed()).then(|| Self(redis::Redis::start(&[])))
    }

    pub(crate) fn url(&self, options: &str) -> String {
        format!("{}?restart_guard=off{options}", self.0.url())
    }

    /// A client of ours with the default dialect.
    pub(crate) async fn client(&self) -> Client {
        tenure::connect(&self.url("")).await.unwrap()
    }

    /// A client of ours that locks as Redisson does.
    pub(crate) async fn redisson(&self) -> Client {
        let url = self.url("&dialect=redisson");
        tenure::connect(&url).await.unwrap()
    }

    /// A client of ours for one kind of lock of Redisson.
    pub(crate) async fn redisson_lock(&self, lock: &str) -> Client {
        let url = self.redisson_url(lock);
        tenure::connect(&url).await.unwrap()
    }

    pub(crate) fn redisson_url(&self, lock: &str) -> String {
        self.url(&format!("&dialect=redisson&lock={lock}"))
    }

    /// Sends a command and returns the answer, which must not be an error.
    #[track_caller]
    pub(crate) fn ask(&self, command: &[&str]) -> Value {
        self.0.order(command)
    }

    pub(crate) fn exists(&self, key: &str) -> bool {
        self.ask(&["EXISTS", key]).int() == 1
    }

    /// The value of a string key, in hexadecimal; empty when there is none.
    pub(crate) fn value(&self, key: &str) -> String {
        match self.ask(&["GET", key]) {
            Value::Bulk(value) => hex(&value),
            Value::Nil => String::new(),
            other => panic!("GET {key}: {other:?}"),
        }
    }

    /// The fields and values of a hash.
    pub(crate) fn hash(&self, key: &str) -> Vec<(String, String)> {
        let list = self.ask(&["HGETALL", key]).items();
        let text = list.iter().map(Value::text).collect::<Vec<_>>();
        let pairs = text.chunks(2);
        pairs.map(|x| (x[0].clone(), x[1].clone())).collect()
    }

    /// The remaining lifetime of a key, in ms.
    pub(crate) fn ttl(&self, key: &str) -> i64 {
        self.ask(&["PTTL", key]).int()
    }

    /// The number of connections that have subscribed to the channel.
    pub(crate) fn subscribers(&self, channel: &str) -> i64 {
        self.ask(&["PUBSUB", "NUMSUB", channel]).items()[1].int()
    }

    /// How many subscriptions the server has made since its start. Unlike the number of subscribers, this number does not
    /// fall when a waiter that was served ends its subscription some time later.
    pub(crate) fn subscriptions_made(&self) -> i64 {
        let text = self.ask(&["INFO", "commandstats"]).text();
        let calls = |line: &str| {
            let calls = line.strip_prefix("cmdstat_subscribe:calls=")?;
            calls.split(',').next()?.parse().ok()
        };
        text.lines().find_map(calls).unwrap_or(0)
    }

    /// The number of channels to which the connections of that name have subscribed.
    pub(crate) fn subscriptions_of(&self, client: &str) -> i64 {
        let list = self.ask(&["CLIENT", "LIST"]).text();
        let name = format!(" name={client} ");
        let theirs = list.lines().filter(|line| line.contains(&name));
        let fields = theirs.flat_map(|line| line.split(' '));
        fields
            .filter_map(|field| field.strip_prefix("sub="))
            .map(|number| number.parse::<i64>().unwrap())
            .sum()
    }

    /// The number of commands that the server has executed, this one included.
    pub(crate) fn commands(&self) -> i64 {
        let count = self.0.info("stats", "total_commands_processed");
        count.parse().unwrap()
    }

    /// Subscribes to a channel. The returned function waits for the next message.
    pub(crate) fn listen(&self, channel: &str) -> impl FnMut() -> String + use<> {
        let mut connection = self.0.connection();
        connection.ask(&["SUBSCRIBE", channel]).unwrap();
        move || connection.receive().unwrap().items()[2].text()
    }
}

impl Server for Redis {
    fn port(&self) -> u16 {
        self.0.port()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A process with a foreign client; `interop/README.md` describes its commands. Dropping this kills the process.
pub(crate) struct Driver {
    process: LockHolder,
}

impl Driver {
    /// `None` where the driver is not built.
    pub(crate) async fn start(language: &str, server: &impl Server) -> Option<Self> {
        Self::start_with(language, server, &[]).await
    }

    pub(crate) async fn start_with(
        language: &str,
        server: &impl Server,
        options: &[&str],
    ) -> Option<Self> {
        let arguments = options.iter().map(|it| (*it).to_owned()).collect();
        Self::start_in(language, server, arguments, Vec::new()).await
    }

    /// Redisson, which uses locks of this kind.
    pub(crate) async fn redisson(server: &impl Server, kind: &str) -> Option<Self> {
        let mut driver = Self::start("java", server).await?;
        driver.ask(&["kind", kind]).await;
        Some(driver)
    }

    /// Starts the driver with these arguments and this environment.
    pub(crate) async fn start_in(
        language: &str,
        server: &impl Server,
        arguments: Vec<String>,
        environment: Vec<(OsString, OsString)>,
    ) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = root.join("target/interop").join(language).join("run");
        if !program.exists() {
            skip(language, "it is not built; run scripts/test --only interop");
            return None;
        }
        let mut command = Command::new(program);
        command.args(["127.0.0.1", &server.port().to_string()]);
        command.args(arguments).envs(environment);
        let mut driver = Self {
            process: LockHolder::spawn(command).unwrap(),
        };
        let ready = driver.answer().await;
        assert!(ready.starts_with("ready\t"), "{language}: {ready}");
        Some(driver)
    }

    /// Sends a command without waiting for the answer.
    pub(crate) fn tell(&mut self, order: &[&str]) {
        self.process.say(&order.join("\t")).unwrap();
    }

    pub(crate) async fn answer(&mut self) -> String {
        let line = soon("the foreign client", self.process.line()).await;
        line.expect("the foreign client ended")
    }

    pub(crate) async fn ask(&mut self, order: &[&str]) -> String {
        self.tell(order);
        self.answer().await
    }

    /// The answer to a command that should acquire the lock: the owner's value or token.
    pub(crate) async fn held(&mut self) -> String {
        let answer = self.answer().await;
        match answer.strip_prefix("held\t") {
            Some(value) => value.to_owned(),
            None => panic!("the foreign client should hold and says {answer:?}"),
        }
    }

    /// Acquires the lock, which is free.
    pub(crate) async fn take(&mut self, name: &str, ttl: Duration) -> String {
        self.tell(&["try", name, &millis(ttl)]);
        self.held().await
    }

    pub(crate) async fn try_fails(&mut self, name: &str) -> bool {
        match self.ask(&["try", name, &millis(LONG)]).await.as_str() {
            "busy" => true,
            answer if answer.starts_with("held\t") => false,
            answer => panic!("{answer}"),
        }
    }

    /// Releases the lock, which the client holds.
    pub(crate) async fn unlock(&mut self, name: &str) {
        assert_eq!(self.ask(&["unlock", name]).await, "released", "{name}");
    }

    /// Kills the process by SIGKILL, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }
}

/// Acquires a lock that is free, with a long lease.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    let taken = client.lock(name).ttl(LONG).try_acquire().await.unwrap();
    taken.expect("the name is free")
}

/// Tries once, and returns whether another holder has the lock.
pub(crate) async fn try_fails(client: &Client, name: &str) -> bool {
    client.lock(name).try_acquire().await.unwrap().is_none()
}

/// Starts to wait for the lock.
pub(crate) fn waiting(client: &Client, name: &str) -> JoinHandle<Guard> {
    let lock = client.lock(name).ttl(LONG).wait(WAIT_TIMEOUT);
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// A process of ours that holds the lock.
pub(crate) async fn our_holder(url: &str, name: &str, ttl: &str) -> LockHolder {
    our_holder_in(url, name, &["--ttl", ttl]).await
}

/// A process of ours that holds the lock, with these options.
pub(crate) async fn our_holder_in(url: &str, name: &str, options: &[&str]) -> LockHolder {
    let mut holder = our_process(url, name, options);
    holder.held().await.unwrap();
    holder
}

/// A process of ours that acquires the lock, with these options.
pub(crate) fn our_process(url: &str, name: &str, options: &[&str]) -> LockHolder {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lock-holder"));
    command.args([url, name]).args(options);
    LockHolder::spawn(command).unwrap()
}

/// `tasks` tasks of each of the two clients increment a number in one file, `each` times, by a read and a write under
/// the lock: an increment is lost when two tasks hold the lock. `ttl` is the ttl of the foreign client; our tasks pause
/// after each release.
pub(crate) async fn no_increment_is_lost(
    (foreign, ttl): (&mut Driver, &str),
    (our_client, pause): (&Client, Duration),
    name: &'static str,
    [tasks, each]: [u64; 2],
) {
    let scratch = Scratch::new();
    let file = scratch.path().join("counter");
    std::fs::write(&file, format!("{:020} nobody\n", 0)).unwrap();
    let (theirs, their_each) = (tasks.to_string(), each.to_string());
    let path = file.to_str().unwrap();
    foreign.tell(&["count", name, &theirs, &their_each, path, ttl]);
    let mut ours = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let (lock, file) = (our_client.lock(name), file.clone());
        ours.spawn(async move {
            let mut after_them = 0;
            for _ in 0..each {
                let guard = lock.acquire().await.unwrap();
                after_them += u32::from(add_one(&file).await != "tenure");
                guard.release().await.unwrap();
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            after_them
        });
    }
    let after_them = soon("our tasks", ours.join_all()).await;
    assert_eq!(foreign.answer().await, "counted");
    let text = std::fs::read_to_string(&file).unwrap();
    let value: u64 = text.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(value, 2 * tasks * each);
    assert!(after_them.iter().sum::<u32>() > 0, "the two never met");
}

/// Waits long enough for a grant by mistake, and returns whether the waiter was granted.
pub(crate) async fn granted_by_mistake(guard: &mut JoinHandle<Guard>) -> bool {
    let moment = Duration::from_millis(50);
    tokio::time::timeout(moment, guard).await.is_ok()
}

/// The started value. If it could not be started, which was printed, the test returns.
macro_rules! or_skip {
    ($start:expr) => {
        match $start {
            Some(started) => started,
            None => return,
        }
    };
}
pub(crate) use or_skip;

/// Increments the number in the file. Other tasks run between the read and the write, so that increments are lost
/// without exclusion. Returns the last writer.
pub(crate) async fn add_one(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let (value, who) = text.trim_end().split_once(' ').unwrap();
    tokio::task::yield_now().await;
    let next = value.parse::<u64>().unwrap() + 1;
    std::fs::write(file, format!("{next:020} tenure\n")).unwrap();
    who.to_owned()
}
