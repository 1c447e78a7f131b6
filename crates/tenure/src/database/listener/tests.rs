//! The connection that listens, on a clock that stands still.

use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_core::logic::pace;
use tenure_core::rt::VirtualClock;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::sql_client::SqlClient;
use tenure_testkit::until;

use super::super::server::Server;
use super::*;

/// Much longer than a connection takes on the clock of the test, which stands still meanwhile.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Subscribers that write down what they are told.
struct Recorder {
    other_connection: SqlClient,
    channels: Mutex<BTreeSet<String>>,
    told: Mutex<Vec<BTreeSet<String>>>,
    received: AtomicUsize,
    hellos: AtomicUsize,
    may_notify: bool,
}

impl Subscribers for Recorder {
    fn channels(&self) -> BTreeSet<String> {
        lock(&self.channels).clone()
    }

    fn hello_channel(&self) -> Option<&'static str> {
        None
    }

    fn listens_to(&self, channels: &BTreeSet<String>) {
        lock(&self.told).push(channels.clone());
    }

    fn received(&self, _: &str, _: &str) {
        self.received.fetch_add(1, Ordering::SeqCst);
    }

    fn has_no_session(&self) {}

    async fn ask(&self, sql: String) -> Result<Vec<Row>, Error> {
        if sql.contains("tenure:hello") {
            self.hellos.fetch_add(1, Ordering::SeqCst);
            if !self.may_notify {
                return Err(tenure_core::support::closed());
            }
        }
        Ok(self.other_connection.rows(&sql))
    }
}

/// A listener on a clock that stands still.
struct Case {
    listener: Arc<Listener<Recorder>>,
    time: Arc<VirtualClock>,
}

impl Case {
    fn start(server: &Postgres, port: u16, channels: &[&str], may_notify: bool) -> Self {
        let url = format!("{}?tls=off", server.url_at(port));
        let (of_url, ..) = Server::parse(&url).unwrap();
        let (clock, time) = Clock::virtual_clock();
        let recorder = Recorder {
            other_connection: server.database_admin(),
            channels: Mutex::default(),
            told: Mutex::default(),
            received: AtomicUsize::new(0),
            hellos: AtomicUsize::new(0),
            may_notify,
        };
        let options = of_url.postgres_options().unwrap();
        let spawner = Spawner::current().unwrap();
        let listener = Listener::new(recorder, options, TIMEOUT, clock, spawner);
        let case = Self {
            listener: Arc::new(listener),
            time,
        };
        case.set_channels(channels);
        case.listener.subscribe_with(|_| ()).unwrap();
        case
    }

    fn set_channels(&self, channels: &[&str]) {
        let channels = channels.iter().map(|it| (*it).to_owned());
        *lock(&self.listener.subscribers.channels) = channels.collect();
    }

    /// Whether messages of exactly these channels arrive, and those of hellos.
    fn listens_to(&self, channels: &[&str]) -> bool {
        let told = lock(&self.listener.subscribers.told);
        told.last().is_some_and(|told| {
            let told = told.iter().filter(|it| !it.starts_with("tenure_"));
            told.eq(channels)
        })
    }

    /// Ends a pause between two attempts to connect, and no other wait.
    fn end_pause(&self) {
        let now = self.time.now();
        let next = self.time.next_wake().map(|next| next.since(now));
        if let Some(pause) = next.filter(|pause| *pause <= pace::CAP) {
            self.time.advance(pause);
        }
    }

    fn until_listening_to(&self, channels: &[&str]) {
        until("messages arrive", || {
            self.end_pause();
            self.listens_to(channels)
        });
    }

    fn notify(&self, channel: &str) {
        let recorder = &self.listener.subscribers;
        let before = recorder.received.load(Ordering::SeqCst);
        let notify = format!("SELECT pg_notify('{channel}','')");
        recorder.other_connection.rows(&notify);
        until("the message arrives", || {
            recorder.received.load(Ordering::SeqCst) > before
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_hello_is_repeated_with_pauses_that_grow() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let case = Case::start(&server, server.port(), &["a"], false);
    let (start, recorder) = (case.time.now(), &case.listener.subscribers);
    until("a connection was made often", || {
        case.end_pause();
        recorder.hellos.load(Ordering::SeqCst) >= 12
    });
    let passed = case.time.now().since(start);
    assert!(passed >= pace::CAP, "{passed:?}");
    let looks = lock(&recorder.told).len();
    assert!(looks < 12, "subscribers looked {looks} times");
    case.listener.stop();
    case.listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_dropped_silently_is_replaced() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let proxy = Proxy::postgres(server.port());
    let case = Case::start(&server, proxy.port(), &["a"], true);
    case.until_listening_to(&["a"]);
    until("the channel of the hello is left", || {
        case.time.advance(IDLE_STEP);
        let told = lock(&case.listener.subscribers.told);
        told.last().is_some_and(|told| told.len() == 1)
    });
    // The connection is at rest from then on.
    case.notify("a");
    proxy.hold_both(true);
    until("subscribers look by themselves", || {
        case.time.advance(IDLE_STEP);
        case.listens_to(&[])
    });
    proxy.hold_both(false);
    case.until_listening_to(&["a"]);
    case.notify("a");
    case.listener.stop();
    case.listener.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_are_left_while_messages_arrive_all_the_time() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let case = Case::start(&server, server.port(), &["busy", "unused"], true);
    case.until_listening_to(&["busy", "unused"]);
    case.set_channels(&["busy"]);
    until("the other channel is left", || {
        case.time.advance(IDLE_STEP * 2 / 3);
        case.notify("busy");
        case.listens_to(&["busy"])
    });
    case.listener.stop();
    case.listener.ended().await;
}
