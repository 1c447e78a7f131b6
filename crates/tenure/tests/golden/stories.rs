//! What clients do while their requests are counted.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use tenure::{Client, Guard};

use crate::common::{connect, soon, start_acquire, take, until_renewed};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::proxy::Proxy;

/// No renewal is due within a story.
const LONG: Duration = Duration::from_secs(30 * 60);

/// Renewed after a third of it.
const SHORT: Duration = Duration::from_secs(3);

/// A store, by way of its proxy and past it.
pub(crate) struct Site {
    traced_url: String,
    direct_url: String,
    proxy: Proxy,
    counted: Counted,
    tells_who_waits: bool,
}

/// Of which stories the numbers are certain; of the others the kinds are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counted {
    All,
    /// A waiter also asks again after a while, without having been woken.
    AllButWaits,
}

/// These come when time has passed: notes about a hold for others to read, looks at the server's clock, at its
/// sessions, at the queue.
const BY_TIME: [&str; 3] = ["board", "look", "peek"];

impl Site {
    pub(crate) fn new(traced_url: String, direct_url: String, proxy: Proxy) -> Self {
        Self {
            traced_url,
            direct_url,
            proxy,
            counted: Counted::All,
            tells_who_waits: true,
        }
    }

    pub(crate) fn counted(self, counted: Counted) -> Self {
        Self { counted, ..self }
    }

    /// The store does not tell when a wait has begun, so there is no story about one.
    pub(crate) fn without_waits(self) -> Self {
        Self {
            tells_who_waits: false,
            ..self
        }
    }

    /// Makes the tables, where there are some.
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

    /// The kinds of requests since the last call, with how many there were of each.
    fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for kind in self.proxy.take_seen() {
            if !BY_TIME.contains(&kind.as_str()) {
                *counts.entry(kind).or_default() += 1;
            }
        }
        counts
    }
}

/// What every story cost, a line each.
pub(crate) async fn tell_all(site: &Site) -> String {
    let mut text = String::new();
    let mut note = |what: &str, counts: BTreeMap<String, usize>, is_exact: bool| {
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
    // The first client of a server teaches it the scripts and makes directories.
    take_and_release(site, 1).await;
    site.counts();
    site.traced().await.close().await;
    note("connect", site.counts(), true);
    for times in 1..=3 {
        take_and_release(site, times).await;
        let what = format!("take a free lock, {times} times");
        note(&what, site.counts(), true);
    }
    try_a_taken_lock(site).await;
    note("try a taken lock", site.counts(), true);
    if site.tells_who_waits {
        let is_exact = site.counted == Counted::All;
        wait(site).await;
        note("wait and get the lock", site.counts(), is_exact);
    }
    renew(site).await;
    // How many renewals there are depends on the machine.
    note("renew", site.counts(), false);
    text
}

async fn take_and_release(site: &Site, times: u32) {
    let client = site.traced().await;
    for _ in 0..times {
        let guard = take(&client, &format!("take-{times}"), LONG).await;
        soon(guard.release()).await.unwrap();
    }
    client.close().await;
}

async fn try_a_taken_lock(site: &Site) {
    let (holder, client) = (site.direct().await, site.traced().await);
    let guard = take(&holder, "taken", LONG).await;
    let tried = soon(client.lock("taken").ttl(LONG).try_acquire()).await;
    assert!(tried.unwrap().is_none(), "two hold it");
    client.close().await;
    soon(guard.release()).await.unwrap();
    holder.close().await;
}

/// Another client, which is not counted, holds it first.
async fn wait(site: &Site) {
    let (holder, client) = (site.direct().await, site.traced().await);
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
        let queue = status.queue.expect("the store tells who waits");
        if !queue.is_empty() {
            return;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "no client waits");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn renew(site: &Site) {
    let client = site.traced().await;
    let guard = take(&client, "renew", SHORT).await;
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
    client.close().await;
}
