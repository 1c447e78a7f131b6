//! Scenarios: operations of clients whose requests are counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tenure::{Client, Guard};

use crate::common::{connect, soon, start_acquire, take, until_renewed};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::proxy::Proxy;

/// A ttl with which no renewal is due within a scenario.
const LONG: Duration = Duration::from_secs(30 * 60);

/// A ttl for the scenario with a renewal, which is due after a third of it.
const SHORT: Duration = Duration::from_secs(3);

/// A store, with a URL through its proxy and a direct URL.
pub(crate) struct TracedStore {
    traced_url: String,
    direct_url: String,
    proxy: Proxy,
    counted: Counted,
    shows_waiters: bool,
}

/// The scenarios whose numbers of requests are always the same. Of the others only the kinds are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    All,
    /// A waiter also sends requests after some time, without a wake-up.
    AllButWaits,
}

/// Requests that depend on time: the row of a holder, and reading the server's clock, its sessions, and the queue.
const TIMED_KINDS: [&str; 3] = ["board", "look", "peek"];

impl TracedStore {
    pub(crate) fn new(traced_url: String, direct_url: String, proxy: Proxy) -> Self {
        Self {
            traced_url,
            direct_url,
            proxy,
            counted: Counted::All,
            shows_waiters: true,
        }
    }

    pub(crate) fn counted(self, counted: Counted) -> Self {
        Self { counted, ..self }
    }

    /// The store does not show when a wait has begun, so there is no scenario with a waiter.
    pub(crate) fn without_waits(self) -> Self {
        Self {
            shows_waiters: false,
            ..self
        }
    }

    /// Creates the tables of a table store.
    pub(crate) async fn init(&self) {
        let client = self.direct().await;
        client.init().await.unwrap();
        client.close().await;
    }

    async fn traced(&self) -> Client {
        connect(&self.traced_url).await
    }

    async fn direct(&self) -> Client {
        connect(&self.direct_url).await
    }

    /// The number of requests of each kind since the last call.
    fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for kind in self.proxy.take_seen() {
            if !TIMED_KINDS.contains(&kind.as_str()) {
                *counts.entry(kind).or_default() += 1;
            }
        }
        counts
    }
}

/// Runs all scenarios. Returns a line with the requests of each.
pub(crate) async fn run_all(store: &TracedStore) -> String {
    let mut text = String::new();
    let mut add_line = |what: &str, counts: BTreeMap<String, usize>, is_exact: bool| {
        let kinds: Vec<_> = counts
            .into_iter()
            .map(|(kind, count)| match is_exact {
                true => format!("{kind} {count}"),
                false => kind,
            })
            .collect();
        let what = match is_exact {
            true => what.to_owned(),
            false => format!("{what}, kinds only"),
        };
        writeln!(text, "{what}: {}", kinds.join(", ")).unwrap();
    };
    // The first client of a server loads the scripts and creates directories.
    take_and_release(store, 1).await;
    store.counts();
    store.traced().await.close().await;
    add_line("connect", store.counts(), true);
    for times in 1..=3 {
        take_and_release(store, times).await;
        let what = format!("take a free lock, {times} times");
        add_line(&what, store.counts(), true);
    }
    try_a_taken_lock(store).await;
    add_line("try a taken lock", store.counts(), true);
    if store.shows_waiters {
        let is_exact = store.counted == Counted::All;
        wait(store).await;
        add_line("wait and get the lock", store.counts(), is_exact);
    }
    renew(store).await;
    // The number of renewals depends on the speed of the machine.
    add_line("renew", store.counts(), false);
    // The first time loads the script.
    take_three_and_release(store).await;
    store.counts();
    take_three_and_release(store).await;
    add_line("take three free locks", store.counts(), true);
    text
}

/// The same for elections, each with a line for the candidate and one for the observer.
pub(crate) async fn run_elections(store: &TracedStore) -> String {
    let mut text = String::new();
    for (what, run) in [
        // The first time loads the scripts.
        ("", Run::Lead),
        ("lead and resign", Run::Lead),
        ("wait behind a lock, lead and resign", Run::Wait),
        ("lead, publish another value and resign", Run::Publish),
        ("ask the leader, which another client is", Run::Ask),
        ("observe the term of another client", Run::Observe),
    ] {
        run_election(store, run).await;
        let counts = store.counts();
        if !what.is_empty() {
            let kinds = counts.iter().map(|(kind, count)| format!("{kind} {count}"));
            let kinds: Vec<_> = kinds.collect();
            writeln!(text, "{what}: {}", kinds.join(", ")).unwrap();
        }
    }
    text
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    Lead,
    Wait,
    Publish,
    Ask,
    Observe,
}

async fn run_election(store: &TracedStore, run: Run) {
    let (direct, traced) = (store.direct().await, store.traced().await);
    // The leader is the traced client, unless the scenario is about others.
    let leads_elsewhere = matches!(run, Run::Ask | Run::Observe);
    let leader = if leads_elsewhere { &direct } else { &traced };
    let election = |client: &Client| client.election("led").ttl(LONG).value("a");
    let mut observer = election(&traced).observe();
    if run == Run::Observe {
        assert!(soon(observer.next()).await.unwrap().unwrap().is_none());
    }
    let term = match run {
        Run::Wait => {
            let guard = take(&direct, "led", LONG).await;
            let candidate = election(leader);
            let waiting = tokio::spawn(async move { candidate.campaign().await });
            until_waiting(&direct, "led").await;
            soon(guard.release()).await.unwrap();
            soon(waiting).await.unwrap().unwrap()
        }
        _ => soon(election(leader).campaign()).await.unwrap(),
    };
    if run == Run::Observe {
        let seen = soon(observer.next()).await.unwrap().unwrap();
        assert_eq!(seen.unwrap().value(), Some("a"));
    }
    if matches!(run, Run::Publish | Run::Observe) {
        soon(term.proclaim("b")).await.unwrap();
    }
    if run == Run::Observe {
        let seen = soon(observer.next()).await.unwrap().unwrap();
        assert_eq!(seen.unwrap().value(), Some("b"));
    }
    if run == Run::Ask {
        let asked = soon(election(&traced).ask_to_resign()).await.unwrap();
        assert!(asked.is_some());
        assert!(soon(term.asked_to_resign()).await);
    }
    soon(term.resign()).await.unwrap();
    if run == Run::Observe {
        assert!(soon(observer.next()).await.unwrap().unwrap().is_none());
    }
    drop(observer);
    traced.close().await;
    direct.close().await;
}

async fn take_and_release(store: &TracedStore, times: u32) {
    let client = store.traced().await;
    for _ in 0..times {
        let guard = take(&client, &format!("take-{times}"), LONG).await;
        soon(guard.release()).await.unwrap();
    }
    client.close().await;
}

async fn take_three_and_release(store: &TracedStore) {
    let client = store.traced().await;
    let all = client.lock_all(["three-1", "three-2", "three-3"]).ttl(LONG);
    let guard = soon(all.acquire()).await.unwrap();
    soon(guard.release()).await.unwrap();
    client.close().await;
}

async fn try_a_taken_lock(store: &TracedStore) {
    let (holder, client) = (store.direct().await, store.traced().await);
    let guard = take(&holder, "taken", LONG).await;
    let tried = soon(client.lock("taken").ttl(LONG).try_acquire()).await;
    assert!(tried.unwrap().is_none(), "two hold it");
    client.close().await;
    soon(guard.release()).await.unwrap();
    holder.close().await;
}

/// Another client, whose requests are not counted, holds the lock first.
async fn wait(store: &TracedStore) {
    let (holder, client) = (store.direct().await, store.traced().await);
    let guard = take(&holder, "wait", LONG).await;
    let waiting = start_acquire(client.lock("wait").ttl(LONG));
    until_waiting(&holder, "wait").await;
    soon(guard.release()).await.unwrap();
    let granted: Guard = soon(waiting).await.unwrap().unwrap();
    soon(granted.release()).await.unwrap();
    client.close().await;
    holder.close().await;
}

async fn until_waiting(client: &Client, name: &str) {
    let start = std::time::Instant::now();
    loop {
        let status = soon(client.inspect(name)).await.unwrap();
        let queue = status.queue.expect("the store shows waiters");
        if !queue.is_empty() {
            return;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "no client waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn renew(store: &TracedStore) {
    let client = store.traced().await;
    let guard = take(&client, "renew", SHORT).await;
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
    client.close().await;
}
