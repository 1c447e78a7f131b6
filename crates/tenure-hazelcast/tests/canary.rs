//! The password of a URL must not be visible: not in an error or its sources, not in any printed value, not in a log line.

use std::fmt::{Debug, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use tenure_core::{Client, Error, ErrorKind};
use tenure_hazelcast::Store;
use tenure_testkit::hazelcast::{Hazelcast, SESSION_TTL, url_of};
use tenure_testkit::process::Port;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::{TEST_TIMEOUT, needs};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

static MEMBERS: LazyLock<Hazelcast> = LazyLock::new(Hazelcast::start);

const TTL: Duration = Duration::from_secs(SESSION_TTL);

/// The beginning of the password, which escaping does not change.
const CANARY: &str = "canary-7f3a";
/// The password as it is written in a URL, with all characters that have a meaning there.
const ESCAPED: &str = "canary-7f3a%3A%40%2F%3F%23%25%26%2B";

/// The form in which the text contains the password; `None` if it does not.
fn find_password(text: &str) -> Option<&'static str> {
    let list: Vec<_> = CANARY.bytes().map(|byte| byte.to_string()).collect();
    let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let shapes = [
        ("the password", CANARY.to_owned()),
        ("its bytes", list.join(", ")),
        ("its bytes in hex", hex),
    ];
    let mut shapes = shapes.into_iter();
    let found = shapes.find(|(_, shape)| text.contains(shape));
    found.map(|(what, _)| what)
}

#[track_caller]
fn assert_no_password(what: &str, shown: &dyn Debug) {
    for text in [format!("{shown:?}"), format!("{shown:#?}")] {
        if let Some(why) = find_password(&text) {
            panic!("{what} shows {why}: {text}");
        }
    }
}

/// Prints the error and its sources in every way, and asserts that none of the texts contains the password.
#[track_caller]
fn assert_error<T: Debug>(what: &str, outcome: Result<T, Error>) -> ErrorKind {
    let err = outcome.expect_err(what);
    assert_no_password(what, &format!("{err:#}"));
    assert_no_password(what, &err);
    let mut source = std::error::Error::source(&err);
    while let Some(inner) = source {
        assert_no_password(what, &inner.to_string());
        assert_no_password(what, &inner);
        source = inner.source();
    }
    err.kind()
}

/// Lines that contain the password.
static LEAKS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The number of lines of this crate: without lines the search proves nothing.
static OURS: AtomicU64 = AtomicU64::new(0);

/// Searches each line that this program logs, at any level.
struct Recorder(AtomicU64);

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Line {
    fn check(self, target: &str) {
        if target.starts_with("tenure_hazelcast") {
            OURS.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(why) = find_password(&self.0) {
            let mut leaks = LEAKS.lock().unwrap_or_else(PoisonError::into_inner);
            leaks.push(format!("{target} logs {why}: {}", self.0));
        }
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut line = Line::default();
        span.record(&mut line);
        line.check(span.metadata().target());
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut line = Line::default();
        values.record(&mut line);
        line.check("a span");
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        line.check(event.metadata().target());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Installs the recorder; a second call does nothing.
fn record() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::subscriber::set_global_default(Recorder(AtomicU64::new(1))).unwrap();
    });
}

/// # Panics
/// When a line contains the password, or there is no line of this crate.
#[track_caller]
fn assert_logs_have_no_password() {
    let leaks = LEAKS.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(leaks.is_empty(), "{}", leaks.join("\n"));
    assert!(OURS.load(Ordering::Relaxed) > 0, "nothing was logged");
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    let outcome = tokio::time::timeout(TEST_TIMEOUT, future).await;
    outcome.expect("an answer in time")
}

/// Members on a busy machine may not answer within the limit of one attempt.
async fn connect(url: &str) -> Client {
    let begin = Instant::now();
    loop {
        match tenure_hazelcast::connect(url).await {
            Err(err) if err.is_retryable() && begin.elapsed() < TEST_TIMEOUT => {}
            connected => return connected.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_is_wrong() {
    record();
    for rest in [
        "//bird:{}@",
        "//bird:{}@:7",
        "//bird:{}@host:port",
        "//bird:{}@[::1",
        "//bird:{}@a,,b",
        "//bird:{}@host/%zz",
        "//bird:{}@host/%ff",
        "//bird:{}@host?color=red",
        "//bird:{}@host?timeout=never",
        "//bird:{}@host?group=METADATA",
        "//bird:{}@host?group=%40",
        "//:{}@host",
        // TLS is refused.
        "//bird:{}@host?tls=on",
        "//bird:{}@host?ca=/nowhere",
        "//bird:{}@host?cert=/nowhere&key=/nowhere",
        // The password is in another place.
        ":{}",
        "bird:{}@host",
        "/bird:{}@host",
        "//host?password={}",
        "//bird:p@ss?{}@host/",
        "//bird:1?x={}@host",
        "//bird:{}%zz@host",
    ] {
        for scheme in ["hazelcast", "hazelcasts"] {
            let url = format!("{scheme}:{}", rest.replace("{}", ESCAPED));
            assert_error(&url, Store::check_url(&url));
            assert_error(&url, soon(tenure_hazelcast::connect(&url)).await);
        }
    }
}

/// What a server that is no member answers to the first bytes.
#[derive(Clone, Copy)]
enum Answer {
    Nothing,
    Bytes(&'static [u8]),
    /// The login comes back, with the password in it.
    Echo,
}

/// Returns the port of a server that is no member.
async fn serve(answer: Answer) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            connections.spawn(async move {
                let mut buffer = [0; 4096];
                // A client that is gone ends the connection.
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    let _ = match answer {
                        Answer::Nothing => Ok(()),
                        Answer::Bytes(bytes) => stream.write_all(bytes).await,
                        Answer::Echo => {
                            // Behind the word that begins the protocol, where it comes with the login.
                            let from = usize::from(buffer.starts_with(b"CP2")) * 3;
                            stream.write_all(&buffer[from..count]).await
                        }
                    };
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_none() {
    record();
    let closed = Port::reserve();
    let mut ports = vec![closed.number()];
    for answer in [
        Answer::Nothing,
        Answer::Echo,
        Answer::Bytes(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
        // An alert of TLS: the message was no handshake.
        Answer::Bytes(b"\x15\x03\x03\x00\x02\x02\x0a"),
    ] {
        ports.push(serve(answer).await);
    }
    let hosts: Vec<_> = ports
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    for hosts in hosts.iter().cloned().chain([hosts.join(",")]) {
        let url = format!("hazelcast://bird:{ESCAPED}@{hosts}?timeout=500ms");
        assert_error(&url, soon(tenure_hazelcast::connect(&url)).await);
    }
    assert_logs_have_no_password();
}

/// Stands before a member that has no users, and lets every user in: the login of a client with a password goes on as that of
/// the first client, which has none.
struct Gate {
    port: u16,
    accepting: JoinHandle<()>,
    /// How many logins with the password came.
    passwords: Arc<AtomicU64>,
}

impl Gate {
    async fn open(member: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let passwords = Arc::new(AtomicU64::new(0));
        let counter = passwords.clone();
        let accepting = tokio::spawn(async move {
            let first = Arc::new(Mutex::new(None));
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (first, counter) = (first.clone(), counter.clone());
                connections.spawn(async move { pass(client, member, &first, &counter).await });
            }
        });
        Self {
            port,
            accepting,
            passwords,
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(
    mut client: TcpStream,
    member: u16,
    first: &Mutex<Option<Vec<u8>>>,
    passwords: &AtomicU64,
) -> std::io::Result<()> {
    let login = read_login(&mut client).await?;
    if String::from_utf8_lossy(&login).contains(CANARY) {
        passwords.fetch_add(1, Ordering::SeqCst);
    }
    let login = first.lock().unwrap().get_or_insert(login).clone();
    let mut server = TcpStream::connect(("127.0.0.1", member)).await?;
    server.write_all(&login).await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// The word that begins the protocol and the first message, whose last frame has the flag FINAL.
async fn read_login(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut login = vec![0; 3];
    client.read_exact(&mut login).await?;
    loop {
        let mut header = [0; 6];
        client.read_exact(&mut header).await?;
        let [a, b, c, d, e, f] = header;
        let mut content = vec![0; u32::from_le_bytes([a, b, c, d]) as usize - header.len()];
        client.read_exact(&mut content).await?;
        login.extend(header);
        login.extend(content);
        if u16::from_le_bytes([e, f]) & 0x2000 != 0 {
            return Ok(login);
        }
    }
}

/// Prints everything that a client with a password returns, from `connect` to `close`, with members that are there, silent and
/// gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_prints_no_password() {
    needs!(hazelcast);
    record();
    let gate = Gate::open(MEMBERS.port(0)).await;
    connect(&url_of(&[gate.port])).await.close().await;
    let proxy = Proxy::tcp(gate.port);
    let url = format!(
        "hazelcast://bird:{ESCAPED}@127.0.0.1:{}?timeout=3s",
        proxy.port()
    );
    let (client, other) = (connect(&url).await, connect(&url).await);
    assert!(gate.passwords.load(Ordering::SeqCst) >= 2);
    assert_no_password("a client", &client);
    assert_no_password("a store", &soon(Store::connect(&url)).await);
    assert_no_password("guarantees", client.guarantees());
    for finding in soon(client.check()).await.unwrap() {
        assert_no_password("a finding", &finding);
    }
    let lock = client.lock("canary").ttl(TTL);
    assert_no_password("a lock", &lock);
    let guard = soon(lock.acquire()).await.unwrap();
    assert_no_password("a guard", &guard);
    let busy = other.lock("canary").ttl(TTL).wait(TTL / 20);
    assert_error("busy", soon(busy.acquire()).await);
    let status = soon(other.inspect("canary")).await.unwrap();
    assert_no_password("a status", &status);
    assert_error("a list", soon(other.list("")).await);
    assert_error("no name", soon(client.lock("").acquire()).await);
    soon(other.close()).await;
    assert_error("closed", soon(other.lock("canary").acquire()).await);

    proxy.hold_both(true);
    let silent = client.lock("silent").ttl(TTL);
    assert_error("silence", soon(silent.try_acquire()).await);
    assert_no_password("a loss", &soon(guard.lost()).await);
    assert_no_password("a guard that was lost", &guard);
    assert_error("lost", soon(guard.release()).await);
    assert_error("silence", soon(client.inspect("canary")).await);
    assert_error("silence", soon(tenure_hazelcast::connect(&url)).await);

    let closed = Port::reserve();
    proxy.redirect(closed.number());
    proxy.cut();
    proxy.resume();
    assert_error("gone", soon(silent.acquire()).await);
    assert_error("gone", soon(client.inspect("canary")).await);
    assert_error("gone", soon(client.break_lock("canary", 1_u64)).await);
    assert_error("gone", soon(client.check()).await);
    assert_no_password("a client of nothing", &client);
    soon(client.close()).await;
    assert_logs_have_no_password();
}

/// The open-source members know no users and refuse every password.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_the_members_refuse() {
    needs!(hazelcast);
    record();
    connect(&MEMBERS.url()).await.close().await;
    for cluster in ["", "/other"] {
        let port = MEMBERS.port(0);
        let url = format!("hazelcast://bird:{ESCAPED}@127.0.0.1:{port}{cluster}");
        let begin = Instant::now();
        loop {
            let kind = assert_error(&url, soon(tenure_hazelcast::connect(&url)).await);
            if kind == ErrorKind::Denied {
                break;
            }
            // A member on a busy machine may not answer within the limit.
            assert!(begin.elapsed() < TEST_TIMEOUT, "{kind:?}");
        }
    }
    assert_logs_have_no_password();
}
