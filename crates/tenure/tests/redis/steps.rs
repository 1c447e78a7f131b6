//! Each request of each step goes wrong in each way. In every case a client that believes to hold the lock has the key,
//! the same client can go on, the next client gets the lock with a greater token, and nothing stays behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::ErrorKind::{self, Indeterminate, Store, Unreachable};
use tenure::{Client, Error, Guard, HoldState};

use crate::support::{
    TTL, assert_all_expire, assert_clear, client_of, connect, owner, soon, start_acquire, take,
    take_and_release, until, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::redis::Redis;

/// What a request meets, and the error that comes of it when it is not repeated.
pub(crate) const FAULTS: &[(Fault, Option<ErrorKind>)] = &[
    (Fault::CutBefore, Some(Indeterminate)),
    (Fault::CutAfter, Some(Indeterminate)),
    (Fault::NoReply, Some(Indeterminate)),
    (Fault::Garbage(b"\x00\xff{}[]\r\n"), Some(Indeterminate)),
    (Fault::Garbage(b"$5\r\nab"), Some(Indeterminate)),
    (Fault::Garbage(b"+what?\r\n"), Some(Indeterminate)),
    (Fault::Garbage(b"*2\r\n:7\r\n:7\r\n"), Some(Indeterminate)),
    answered(
        "LOADING Redis is loading the dataset in memory",
        Unreachable,
    ),
    answered(
        "READONLY You can't write against a read only replica.",
        Unreachable,
    ),
    answered(
        "TRYAGAIN Multiple keys request during rehashing of slot",
        Unreachable,
    ),
    answered("CLUSTERDOWN The cluster is down", Unreachable),
    answered("MASTERDOWN Link with MASTER is down", Unreachable),
    answered("NOREPLICAS Not enough good replicas to write.", Unreachable),
    answered("BUSY Redis is busy running a script.", Unreachable),
    answered(
        "OOM command not allowed when used memory > 'maxmemory'.",
        Store,
    ),
    answered("MISCONF Redis is configured to save RDB snapshots", Store),
    answered("ERR a new reason", Store),
    (Fault::Answer("NOSCRIPT No matching script."), None),
    (Fault::Trickle(Duration::from_millis(2)), None),
    (Fault::Late(Duration::from_millis(50)), None),
];

const fn answered(text: &'static str, due: ErrorKind) -> (Fault, Option<ErrorKind>) {
    (Fault::Answer(text), Some(due))
}

/// For faults after which no whole reply comes: a renewal can be repeated several times before the lease ends.
const TIMEOUT: Duration = Duration::from_millis(300);

/// Far longer than a busy machine may need: only a fault can be the reason that a request fails.
const PATIENT: Duration = Duration::from_secs(20);

/// A lease that survives several seconds in which this process does not run.
const KEPT_TTL: Duration = TTL.saturating_add(Duration::from_secs(2));

/// Whether the client waits for the rest of the reply until its timeout.
fn hangs(fault: &Fault) -> bool {
    matches!(fault, Fault::NoReply | Fault::Garbage(b"$5\r\nab"))
}

pub(crate) struct Site {
    pub(crate) server: Arc<Redis>,
    pub(crate) proxy: Proxy,
    /// By way of the proxy.
    pub(crate) client: Client,
    /// By another way.
    pub(crate) other: Client,
    /// Whether the timeout of `client` is so short that a busy machine may exceed it.
    is_hasty: bool,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::on(&Arc::new(Redis::start(&[]))).await
    }

    /// With a proxy and clients of its own.
    pub(crate) async fn on(server: &Arc<Redis>) -> Self {
        Self::with(server, false).await
    }

    /// The client gives up early where the fault would let it wait for its timeout.
    pub(crate) async fn for_fault(server: &Arc<Redis>, fault: &Fault) -> Self {
        Self::with(server, hangs(fault)).await
    }

    async fn with(server: &Arc<Redis>, is_hasty: bool) -> Self {
        let server = server.clone();
        let proxy = Proxy::redis(server.port());
        let options = |timeout: Duration| {
            let timeout = timeout.as_millis();
            format!("?timeout={timeout}ms&restart_guard=off")
        };
        let timeout = if is_hasty { TIMEOUT } else { PATIENT };
        let url = server.url_by(proxy.port()) + &options(timeout);
        let client = crate::common::answered(async || tenure::connect(&url).await).await;
        let other = connect(&(server.url() + &options(PATIENT))).await;
        Self {
            server,
            proxy,
            client,
            other,
            is_hasty,
        }
    }

    /// Acquires a name that is free, or will be. With the short timeout a busy machine may need several requests.
    pub(crate) async fn take(&self, client: &Client, name: &str, ttl: Duration) -> Guard {
        let (lock, start) = (client.lock(name).ttl(ttl), Instant::now());
        loop {
            match soon(lock.acquire()).await {
                Ok(guard) => return guard,
                Err(err) => {
                    let may_repeat = self.is_hasty && err.is_retryable();
                    assert!(may_repeat && start.elapsed() < TEST_TIMEOUT, "{err}");
                }
            }
        }
    }

    /// A release that meets no fault.
    pub(crate) async fn release(&self, guard: Guard) {
        if let Err(err) = soon(guard.release()).await {
            // With the short timeout a busy machine may exceed it; the client goes on to release the lock.
            assert!(self.is_hasty && err.is_retryable(), "{err}");
        }
    }

    /// The next client gets the lock within the ttl, under a greater token than `token`.
    pub(crate) async fn next_one(&self, client: &Client, name: &str, token: u64) -> u64 {
        let guard = self.take(client, name, TTL).await;
        let next = guard.token().get();
        assert!(next > token, "{next} follows {token}");
        let value = owner(&self.server, name);
        assert!(!value.is_empty(), "granted and not held");
        self.release(guard).await;
        next
    }

    /// Nothing stays behind for longer than the ttl.
    pub(crate) async fn settles(&self, name: &str) {
        assert!(self.proxy.is_done(), "the fault did not happen");
        until("no client holds the lock or waits for it", || {
            owner(&self.server, name).is_empty() && waiting(&self.server, name) == 0
        })
        .await;
        assert_all_expire(&self.server);
    }
}

/// The outcome is the error that was due, or none if none was.
#[track_caller]
pub(crate) fn check<T: std::fmt::Debug>(
    fault: &Fault,
    due: Option<ErrorKind>,
    outcome: &Result<T, Error>,
) {
    match outcome {
        Ok(_) => assert_eq!(due, None, "no error after {fault:?}"),
        Err(err) => {
            assert_eq!(due, Some(err.kind()), "after {fault:?}: {err}");
            assert_clear(err);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, due)) in FAULTS.iter().enumerate() {
        let site = Site::for_fault(&server, fault).await;
        let name = format!("acquire{i}");
        site.proxy.plan("acquire", fault.clone());
        let outcome = soon(site.client.lock(&name).ttl(TTL).try_acquire()).await;
        check(fault, *due, &outcome);
        if let Ok(guard) = outcome {
            let guard = guard.expect("the name was free");
            soon(guard.release()).await.unwrap();
        }
        site.proxy.resume();
        let token = site.next_one(&site.client, &name, 0).await;
        site.next_one(&site.other, &name, token).await;
        site.settles(&name).await;
    }
}

/// All faults at the same time, each with a site of its own: where most of the time is spent waiting.
async fn at_once<F: Future<Output = ()> + Send + 'static>(
    test: impl Fn(Site, String, &'static Fault) -> F,
) {
    let server = Arc::new(Redis::start(&[]));
    let mut tests = Vec::new();
    for (i, (fault, _)) in FAULTS.iter().enumerate() {
        let site = Site::for_fault(&server, fault).await;
        tests.push(tokio::spawn(test(site, format!("name{i}"), fault)));
    }
    for test in tests {
        test.await.unwrap();
    }
    assert_all_expire(&server);
}

/// A request of a waiter fails. Its place in the queue may be lost, but the waiter gets the lock or an error.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_goes_wrong_while_it_waits() {
    needs!(redis);
    at_once(async |site, name, fault| {
        let holder = take(&site.other, &name, TTL).await;
        let token = holder.token().get();
        let waiter = start_acquire(site.client.lock(&name).ttl(TTL));
        until("it waits", || waiting(&site.server, &name) == 1).await;
        // The next sign of life.
        site.proxy.plan("acquire", fault.clone());
        until("the fault happens", || site.proxy.is_done()).await;
        soon(holder.release()).await.unwrap();
        site.proxy.resume();
        match soon(waiter).await.unwrap() {
            Ok(guard) => {
                assert!(guard.token().get() > token);
                site.release(guard).await;
            }
            Err(err) => {
                assert_clear(&err);
                let told = [Store, Unreachable, Indeterminate].contains(&err.kind());
                assert!(told, "after {fault:?}: {err}");
            }
        }
        site.next_one(&site.other, &name, token).await;
        site.settles(&name).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_goes_wrong() {
    needs!(redis);
    at_once(async |site, name, fault| {
        let guard = site.take(&site.client, &name, KEPT_TTL).await;
        site.proxy.plan("renew", fault.clone());
        until("the fault happens", || site.proxy.is_done()).await;
        let start = Instant::now();
        if *fault == Fault::NoReply {
            tokio::time::sleep(TIMEOUT).await;
            site.proxy.resume();
        }
        // One more renewal is enough.
        while start.elapsed() < KEPT_TTL || guard.state() != HoldState::Held {
            let state = guard.state();
            assert!(guard.is_held(), "{state:?} after {fault:?}");
            assert!(start.elapsed() < TEST_TIMEOUT, "{state:?} after {fault:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let before = Instant::now();
        let claimed = guard.remaining().as_millis();
        let left = site.server.ask(&["PTTL", &name]).int();
        // The server has answered a moment later.
        let later = before.elapsed().as_millis();
        assert!(
            claimed <= u128::try_from(left + 10).unwrap() + later,
            "{claimed} ms are claimed, {left} are left"
        );
        site.release(guard).await;
        site.settles(&name).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, due)) in FAULTS.iter().enumerate() {
        for drops in [false, true] {
            let site = Site::for_fault(&server, fault).await;
            let name = format!("release{i}{drops}");
            let guard = site.take(&site.client, &name, TTL).await;
            let token = guard.token().get();
            site.proxy.plan("release", fault.clone());
            if drops {
                drop(guard);
                until("the fault happens", || site.proxy.is_done()).await;
            } else {
                let outcome = soon(guard.release()).await;
                check(fault, *due, &outcome);
            }
            site.proxy.resume();
            site.next_one(&site.other, &name, token).await;
            site.next_one(&site.client, &name, token).await;
            site.settles(&name).await;
        }
    }
}

/// The client sends a failed release again as it was: the next holder gets a token from the server's clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_release_is_sent_again_unchanged() {
    needs!(redis);
    let site = Site::new().await;
    let holder = take(&site.client, "again", TTL * 10).await;
    let token = holder.token().get();
    let waiter = start_acquire(site.other.lock("again").ttl(TTL * 10));
    until("it waits", || waiting(&site.server, "again") == 1).await;
    site.proxy.plan("release", Fault::CutBefore);
    drop(holder);
    let next = soon(waiter).await.unwrap().unwrap();
    // The clock counts microseconds, and the release took longer than one of them.
    assert!(next.token().get() > token + 1);
    soon(next.release()).await.unwrap();
    site.settles("again").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_goes_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    let holder = Site::on(&server).await;
    let guard = take(&holder.client, "look", TTL * 100).await;
    for (fault, due) in FAULTS {
        let site = Site::for_fault(&server, fault).await;
        site.proxy.plan("look", fault.clone());
        let outcome = soon(site.client.inspect("look")).await;
        match (&outcome, due) {
            (Ok(status), None) => assert!(status.is_held()),
            // Nothing to be undone: whether the request arrived does not matter.
            (Err(err), Some(_)) => assert_clear(err),
            _ => panic!("{outcome:?} after {fault:?}"),
        }
        assert!(site.proxy.is_done(), "the fault did not happen");
        site.proxy.resume();
        let status = match site.is_hasty {
            true => crate::common::answered(async || site.client.inspect("look").await).await,
            false => soon(site.client.inspect("look")).await.unwrap(),
        };
        assert!(status.is_held());
    }
    for (fault, due) in FAULTS {
        let site = Site::for_fault(&server, fault).await;
        site.proxy.plan("break", fault.clone());
        // No such token: nothing is broken, and yet the fault happens.
        let outcome = soon(site.client.break_lock("look", 1_u64)).await;
        check(fault, *due, &outcome);
        assert!(site.proxy.is_done(), "the fault did not happen");
        site.proxy.resume();
        assert!(guard.is_held(), "{:?} after {fault:?}", guard.state());
    }
    assert!(
        soon(holder.client.break_lock("look", guard.token()))
            .await
            .unwrap()
    );
    soon(guard.lost()).await;
    drop(guard);
    holder.settles("look").await;
}

/// `SCRIPT FLUSH` by another program: every step sends its text again.
#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_are_forgotten_while_we_hold() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let flush = || server.order(&["SCRIPT", "FLUSH"]);
    let guards = [
        take(&client, "a", KEPT_TTL).await,
        take(&client, "b", KEPT_TTL).await,
    ];
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        flush();
        tokio::time::sleep(TTL / 50).await;
        let states = guards.each_ref().map(Guard::state);
        assert!(guards.iter().all(Guard::is_held), "{states:?}");
    }
    for guard in guards {
        flush();
        assert!(
            soon(client.inspect(guard.name().as_str()))
                .await
                .unwrap()
                .is_held()
        );
        flush();
        soon(guard.release()).await.unwrap();
    }
    flush();
    take_and_release(&client, "a", TTL).await;
}
