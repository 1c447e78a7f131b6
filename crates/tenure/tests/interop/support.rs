//! Foreign drivers, and a Redis server of its own for each test with a look at its keys past all clients.

use std::collections::BTreeSet;
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

/// How long anything may take. Generous: when it is over, somebody is stuck.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// So long that what happens in a test never happens because it ran out.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Says something past the capture of the test's output, on a line of its own.
pub(crate) fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n{line}").unwrap();
}

/// Says once, and not in every test, that a client cannot be tested with.
fn skip(language: &str, reason: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap().insert(language.to_owned()) {
        say(&format!("SKIP interop {language}: {reason}"));
    }
}

pub(crate) fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// What must come in the end, within [`PATIENCE`].
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what}: nothing for {PATIENCE:?}"),
    }
}

/// Asks again until it is so. For what the server knows and tells nobody.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    until_told(what, async || is_so()).await;
}

/// The same where the asking takes its time.
pub(crate) async fn until_told(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A directory that goes away with the test.
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

/// What a foreign client can be pointed at.
pub(crate) trait Server {
    fn port(&self) -> u16;
}

/// A server of its own for each test.
pub(crate) struct Redis(redis::Redis);

impl Redis {
    /// `None` where it is not installed.
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

    /// Sends a command and gives the answer, which is no error.
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

    /// What is left of a key's life, in ms.
    pub(crate) fn ttl(&self, key: &str) -> i64 {
        self.ask(&["PTTL", key]).int()
    }

    /// How many connections have subscribed to the channel.
    pub(crate) fn subscribers(&self, channel: &str) -> i64 {
        self.ask(&["PUBSUB", "NUMSUB", channel]).items()[1].int()
    }

    /// How many channels the connections of that name have subscribed to.
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

    /// How many commands of any kind the server has run, ours here included.
    pub(crate) fn commands(&self) -> i64 {
        let count = self.0.info("stats", "total_commands_processed");
        count.parse().unwrap()
    }

    /// Listens to a channel; the messages come from the function, which waits for them.
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

/// A process with a foreign client in it; `interop/README.md` has its language. Killed when dropped.
pub(crate) struct Driver {
    process: LockHolder,
}

impl Driver {
    /// `None` where it is not built.
    pub(crate) async fn start(language: &str, server: &impl Server) -> Option<Self> {
        Self::start_with(language, server, &[]).await
    }

    pub(crate) async fn start_with(
        language: &str,
        server: &impl Server,
        options: &[&str],
    ) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let program = root.join("target/interop").join(language).join("run");
        if !program.exists() {
            skip(language, "it is not built; run scripts/test --only interop");
            return None;
        }
        let mut command = Command::new(program);
        command.args(["127.0.0.1", &server.port().to_string()]);
        command.args(options);
        let mut driver = Self {
            process: LockHolder::spawn(command).unwrap(),
        };
        let ready = driver.answer().await;
        assert!(ready.starts_with("ready\t"), "{language}: {ready}");
        Some(driver)
    }

    /// Gives an order without waiting for the answer.
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

    /// The answer to an order that should take the lock: the owner's value or token.
    pub(crate) async fn held(&mut self) -> String {
        let answer = self.answer().await;
        match answer.strip_prefix("held\t") {
            Some(value) => value.to_owned(),
            None => panic!("the foreign client should hold and says {answer:?}"),
        }
    }

    /// Takes the lock, which is free.
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

    /// Gives back the lock, which it holds.
    pub(crate) async fn unlock(&mut self, name: &str) {
        assert_eq!(self.ask(&["unlock", name]).await, "released", "{name}");
    }

    /// `kill -9`, and waits for its end.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
    }
}

/// Takes a lock that is free, with a lease that is long.
pub(crate) async fn take(client: &Client, name: &str) -> Guard {
    let taken = client.lock(name).ttl(LONG).try_acquire().await.unwrap();
    taken.expect("the name is free")
}

/// Tries once; whether another holder was in the way.
pub(crate) async fn try_fails(client: &Client, name: &str) -> bool {
    client.lock(name).try_acquire().await.unwrap().is_none()
}

/// Starts to wait for the lock.
pub(crate) fn waiting(client: &Client, name: &str) -> JoinHandle<Guard> {
    let lock = client.lock(name).ttl(LONG).wait(PATIENCE);
    tokio::spawn(async move { lock.acquire().await.unwrap() })
}

/// A process of ours that holds the lock.
pub(crate) async fn our_holder(url: &str, name: &str, ttl: &str) -> LockHolder {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lock-holder"));
    command.args([url, name, "--ttl", ttl]);
    let mut holder = LockHolder::spawn(command).unwrap();
    holder.held().await.unwrap();
    holder
}

/// So many tasks on either side count in one file, so many times each, by a read and a write under the lock: a count
/// is lost when two hold it. `ttl` is what the foreign client is told; our tasks pause after each release.
pub(crate) async fn no_increment_is_lost(
    (they, ttl): (&mut Driver, &str),
    (we, pause): (&Client, Duration),
    name: &'static str,
    [tasks, each]: [u64; 2],
) {
    let scratch = Scratch::new();
    let file = scratch.path().join("counter");
    std::fs::write(&file, format!("{:020} nobody\n", 0)).unwrap();
    let (theirs, their_each) = (tasks.to_string(), each.to_string());
    let path = file.to_str().unwrap();
    they.tell(&["count", name, &theirs, &their_each, path, ttl]);
    let mut ours = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let (lock, file) = (we.lock(name), file.clone());
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
    assert_eq!(they.answer().await, "counted");
    let text = std::fs::read_to_string(&file).unwrap();
    let value: u64 = text.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(value, 2 * tasks * each);
    assert!(after_them.iter().sum::<u32>() > 0, "the two never met");
}

/// Waits for long enough that a waiter would be granted by mistake; whether it was.
pub(crate) async fn granted_by_mistake(guard: &mut JoinHandle<Guard>) -> bool {
    let moment = Duration::from_millis(50);
    tokio::time::timeout(moment, guard).await.is_ok()
}

/// What was started. Where it cannot be started, which has been said, the test returns.
macro_rules! or_skip {
    ($start:expr) => {
        match $start {
            Some(started) => started,
            None => return,
        }
    };
}
pub(crate) use or_skip;

/// Reads, lets others run, writes: loses counts unless it is alone. Tells who wrote before.
pub(crate) async fn add_one(file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap();
    let (value, who) = text.trim_end().split_once(' ').unwrap();
    tokio::task::yield_now().await;
    let next = value.parse::<u64>().unwrap() + 1;
    std::fs::write(file, format!("{next:020} tenure\n")).unwrap();
    who.to_owned()
}
