//! A directory of its own for each test, and processes that take locks on command.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use tenure::file;
use tenure::store::{
    Answer, BoxFuture, ChangeMode as _, Detach as _, Grant, Hold, Listed, Release, Renewal,
    Request, Store as _,
};
use tenure::{Error, Holder, LockName, LockStatus, Mode, OwnerId};

pub(crate) const TTL: Duration = Duration::from_secs(30);

/// A directory that is removed at the end of the test.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!(
            "tenure-file-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(unique);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// The lock directory.
    pub(crate) fn locks(&self) -> PathBuf {
        self.0.join("locks")
    }

    pub(crate) fn open(&self) -> Arc<file::Store> {
        Arc::new(file::Store::open(self.locks()).unwrap())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// A request that does not wait, with a label by which the holder can be recognized.
pub(crate) fn request(text: &str) -> Request {
    let mut request = Request::new(name(text), OwnerId::random(), TTL);
    let mut holder = Holder::new("here", std::process::id());
    holder.label = "test".into();
    request.holder = Arc::new(holder);
    request
}

pub(crate) fn waiting(text: &str) -> Request {
    let mut request = request(text);
    request.wait = true;
    request
}

/// Polls the future once, without a runtime.
pub(crate) fn poll<T>(future: &mut BoxFuture<T>) -> Poll<T> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

/// The output of a future that has to be ready at its first poll.
pub(crate) fn now<T>(mut future: BoxFuture<T>) -> T {
    match poll(&mut future) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("not ready at the first poll"),
    }
}

pub(crate) type Taken = (Hold, Grant);

pub(crate) fn hold(request: &Request, answer: Answer) -> Option<Taken> {
    match answer {
        Answer::Granted(grant) => Some((Hold::new(request, grant.token), grant)),
        _ => None,
    }
}

/// One attempt; `None`: the name is taken.
pub(crate) fn try_acquire(
    store: &Arc<file::Store>,
    request: Request,
) -> Result<Option<Taken>, Error> {
    let request = Arc::new(request);
    Ok(hold(&request, now(store.clone().acquire(request.clone()))?))
}

/// The hold of a request that waits.
pub(crate) fn acquire(store: &Arc<file::Store>, request: Request) -> Taken {
    let request = Arc::new(request);
    let answer = block_on(store.clone().acquire(request.clone())).unwrap();
    hold(&request, answer).unwrap()
}

/// Acquires a name that is free.
pub(crate) fn take(store: &Arc<file::Store>, text: &str) -> Hold {
    try_acquire(store, request(text))
        .unwrap()
        .expect("the name is free")
        .0
}

pub(crate) fn is_free(store: &Arc<file::Store>, text: &str) -> bool {
    match try_acquire(store, request(text)).unwrap() {
        Some((hold, _)) => {
            release(store, hold);
            true
        }
        None => false,
    }
}

#[track_caller]
pub(crate) fn release(store: &Arc<file::Store>, hold: Hold) {
    assert_eq!(now(store.clone().release(hold)).unwrap(), Release::Released);
}

/// What the driver makes of a list.
pub(crate) fn list(store: &Arc<file::Store>, prefix: &str) -> Vec<LockStatus> {
    let Listed::Statuses(mut all) = now(store.clone().list(prefix.into())).unwrap() else {
        panic!("the directory is read once");
    };
    all.retain(LockStatus::is_held);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

pub(crate) fn inspect(store: &Arc<file::Store>, text: &str) -> LockStatus {
    now(store.clone().inspect(name(text))).unwrap()
}

pub(crate) fn permits(limit: u32) -> Mode {
    Mode::Permits {
        limit: NonZeroU32::new(limit).unwrap(),
    }
}

pub(crate) fn with(mut request: Request, mode: Mode) -> Request {
    request.mode = mode;
    request
}

/// One attempt in that mode.
pub(crate) fn try_mode(store: &Arc<file::Store>, text: &str, mode: Mode) -> Option<Taken> {
    try_acquire(store, with(request(text), mode)).unwrap()
}

/// The request to make `hold` exclusive.
pub(crate) fn upgrade_of(hold: &Hold, wait: bool) -> Arc<Request> {
    let mut request = Request::new(hold.name.clone(), hold.owner, hold.ttl);
    request.wait = wait;
    Arc::new(request)
}

/// The token of the exclusive hold; `None`: others hold.
pub(crate) fn try_upgrade(store: &Arc<file::Store>, hold: &Hold) -> Option<u64> {
    match now(store.clone().upgrade(hold.clone(), upgrade_of(hold, false))).unwrap() {
        Answer::Granted(grant) => Some(grant.token),
        _ => None,
    }
}

/// The future of an upgrade that waits, after its first poll.
pub(crate) fn start_upgrade(
    store: &Arc<file::Store>,
    hold: &Hold,
) -> (Arc<Request>, BoxFuture<Result<Answer, Error>>) {
    let request = upgrade_of(hold, true);
    let mut future = store.clone().upgrade(hold.clone(), request.clone());
    assert!(poll(&mut future).is_pending());
    (request, future)
}

/// The future of an acquisition that waits, after its first poll.
pub(crate) fn start_waiting(
    store: &Arc<file::Store>,
    request: Request,
) -> (Arc<Request>, BoxFuture<Result<Answer, Error>>) {
    let request = Arc::new(request);
    let mut future = store.clone().acquire(request.clone());
    assert!(poll(&mut future).is_pending());
    (request, future)
}

/// Open descriptors of this process that lead below `dir`.
pub(crate) fn open_below(dir: &Path) -> Vec<PathBuf> {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(dir)).collect()
}

/// Yields until `condition` is true. There is no event to await; the test hangs if the condition never becomes true.
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

/// How many lock calls on the file are blocked in the kernel, by the list of the kernel.
pub(crate) fn blocked_on(path: &Path) -> usize {
    use std::os::unix::fs::MetadataExt as _;
    let inode = format!(":{} ", std::fs::metadata(path).unwrap().ino());
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    locks
        .lines()
        .filter(|line| line.contains("-> FLOCK") && line.contains(&inode))
        .count()
}

/// Another process, which runs [`child`] and executes commands.
pub(crate) struct LockProcess {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The environment variable that tells [`child`] its lock directory.
const DIRECTORY_VARIABLE: &str = "TENURE_TEST_LOCK_DIR";

impl LockProcess {
    pub(crate) fn start(dir: &Path) -> Self {
        Self::start_with(dir, Vec::new())
    }

    /// A process with more variables in its environment.
    pub(crate) fn start_with(dir: &Path, variables: Vec<(OsString, OsString)>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "support::child",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(DIRECTORY_VARIABLE, dir)
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child, to, from }
    }

    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.to, "{command}").unwrap();
    }

    /// The next answer of the process.
    pub(crate) fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(
                self.from.read_line(&mut line).unwrap() > 0,
                "the other process ended"
            );
            // Lines without the mark are output of the test harness.
            if let Some((_, answer)) = line.trim_end().split_once('@') {
                return answer.to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.answer()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGSTOP; returns when all threads of the process stand still.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        until(|| tenure_testkit::process::is_stopped(self.pid()));
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// `kill -9`, without waiting for the end of the process.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for LockProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test: the program of [`LockProcess`]. Without its environment variable it does nothing.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIRECTORY_VARIABLE) else {
        return;
    };
    let store = Arc::new(file::Store::open(Path::new(&dir)).unwrap());
    let mut held = Vec::new();
    let answer = |text: String| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "@{text}").and_then(|()| out.flush()).unwrap();
    };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (verb, text) = line.split_once(' ').unwrap_or((&line, ""));
        match verb {
            "try" => match try_acquire(&store, request(text)) {
                Ok(Some((hold, grant))) => {
                    held.push(hold);
                    answer(format!("{}", grant.token));
                }
                Ok(None) => answer("busy".into()),
                Err(err) => answer(format!("error {err}")),
            },
            "permits" => {
                let (limit, text) = text.split_once(' ').unwrap();
                let mode = permits(limit.parse().unwrap());
                let taken = try_mode(&store, text, mode).unwrap();
                held.push(taken.0);
                answer("held".into());
            }
            "shared" | "permit" | "upgradable" => {
                let (hold, grant) = acquire(&store, with(waiting(text), mode_of(verb)));
                held.push(hold);
                answer(format!("{}", grant.token));
            }
            "upgrade" => {
                let hold: &Hold = held.last().unwrap();
                let upgraded = store.clone().upgrade(hold.clone(), upgrade_of(hold, true));
                answer(format!("{:?}", block_on(upgraded).unwrap()));
            }
            "delayed" => {
                let mut delayed = request(text);
                delayed.lock_delay = Duration::from_secs(3600);
                held.push(try_acquire(&store, delayed).unwrap().unwrap().0);
                answer("held".into());
            }
            // Detaches the last hold for so many milliseconds, and tells its owner.
            "detach" => {
                let hold: &mut Hold = held.last_mut().unwrap();
                hold.ttl = Duration::from_millis(text.parse().unwrap());
                answer(match now(store.clone().detach(hold.clone())) {
                    Renewal::Renewed { .. } => held.pop().unwrap().owner.to_hex(),
                    other => format!("{other:?}"),
                });
            }
            "attach" => {
                let [ttl, owner, text] = words(text);
                let hold = detached_hold(text, owner, ttl);
                answer(outcome(now(store.clone().attach(hold.clone()))).into());
                held.push(hold);
            }
            "renew" => {
                let renewals = now(store.clone().renew(vec![held.last().unwrap().clone()]));
                answer(outcome(renewals.into_iter().next().unwrap()).into());
            }
            "lock" => {
                let (hold, grant) = acquire(&store, waiting(text));
                held.push(hold);
                answer(format!("{}", grant.token));
            }
            "release" => {
                let hold = held.pop().unwrap();
                answer(format!("{:?}", now(store.clone().release(hold)).unwrap()));
            }
            "limit" => {
                let limit = Some(text.parse().unwrap());
                let limit = rustix::process::Rlimit {
                    current: limit,
                    maximum: limit,
                };
                rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
                answer("ok".into());
            }
            // Adds one to the number in the file, `n` times, with the lock held.
            "count" => {
                let (n, path) = text.split_once(' ').unwrap();
                for _ in 0..n.parse::<u32>().unwrap() {
                    let (hold, _) = acquire(&store, waiting("counter"));
                    add_one(Path::new(path));
                    release(&store, hold);
                }
                answer("done".into());
            }
            other => panic!("what is {other}?"),
        }
    }
}

/// `N` words of a command.
fn words<const N: usize>(text: &str) -> [&str; N] {
    let words: Vec<_> = text.splitn(N, ' ').collect();
    words.try_into().unwrap()
}

/// What a receipt says: the name, and the owner and the lease (ms) of [`LockProcess`].
pub(crate) fn detached_hold(text: &str, owner: &str, ttl: &str) -> Hold {
    let mut hold = Hold::of(name(text), OwnerId::from_hex(owner).unwrap());
    hold.ttl = Duration::from_millis(ttl.parse().unwrap());
    hold
}

/// The outcome of a renewal in one word.
pub(crate) fn outcome(renewal: Renewal) -> &'static str {
    match renewal {
        Renewal::Renewed { .. } => "renewed",
        Renewal::Lost(_) => "lost",
        Renewal::Unknown(_) => "unknown",
        other => panic!("{other:?}"),
    }
}

/// The mode that a command of [`child`] names. There is one permit.
pub(crate) fn mode_of(verb: &str) -> Mode {
    match verb {
        "shared" => Mode::Shared,
        "permit" => permits(1),
        "upgradable" => Mode::Upgradable,
        _ => Mode::Exclusive,
    }
}

/// Adds one to the number in the file, and yields between reading and writing: counts get lost unless callers exclude
/// each other.
pub(crate) fn add_one(path: &Path) {
    let count: u64 = std::fs::read_to_string(path)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    std::thread::yield_now();
    std::fs::write(path, format!("{}\n", count + 1)).unwrap();
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
