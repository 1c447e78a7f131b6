//! What only this store does, on real members: sessions, names, login, and members that end.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tenure_core::conformance::hostile;
use tenure_core::{Client, Error, ErrorKind, Guard, LostReason, Renew};
use tenure_testkit::hazelcast::{Hazelcast, url_of};
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::{TEST_TIMEOUT, needs, until};

mod common;

use common::{name, runtime, until_renewed};

/// The members of tests that leave all members as they are.
static MEMBERS: LazyLock<Hazelcast> = LazyLock::new(start);

/// The ttl of sessions, in seconds. The members of other tests start beside these, so no answer may come for seconds.
const SESSION_TTL: u64 = 10;

const TTL: Duration = Duration::from_secs(SESSION_TTL);

fn start() -> Hazelcast {
    Hazelcast::start_with(3, 3, SESSION_TTL)
}

async fn connect(url: &str) -> Client {
    answer(url).await.unwrap()
}

/// What the members answer to a client that connects. Members that have just started, or on a busy machine, may not answer
/// within the limit of one attempt.
async fn answer(url: &str) -> Result<Client, Error> {
    let begin = Instant::now();
    loop {
        match tenure_hazelcast::connect(url).await {
            Err(err) if err.is_retryable() && begin.elapsed() < TEST_TIMEOUT => {}
            answer => return answer,
        }
    }
}

async fn take(client: &Client, name: &str) -> Guard {
    take_for(client, name, TTL).await
}

async fn take_for(client: &Client, name: &str, ttl: Duration) -> Guard {
    let lock = client.lock(name).ttl(ttl);
    let taken = tokio::time::timeout(TEST_TIMEOUT, lock.acquire()).await;
    taken.expect("the lock is free").unwrap()
}

#[test]
fn nothing_is_left_after_close() {
    needs!(hazelcast);
    let url = MEMBERS.url() + "?group=leaks";
    runtime().block_on(async {
        let (first, second) = (connect(&url).await, connect(&url).await);
        let names: Vec<_> = (0..40).map(|_| name("leak")).collect();
        let mut guards = Vec::new();
        for name in &names {
            guards.push(take(&first, name).await);
            // Refused attempts, and waits that end.
            assert!(second.lock(name).try_acquire().await.unwrap().is_none());
            let wait = second.lock(name).wait(Duration::from_millis(5));
            let err = wait.acquire().await.unwrap_err();
            assert!(err.is_retryable(), "{err:#}");
        }
        for guard in guards.drain(..20) {
            guard.release().await.unwrap();
        }
        assert!(MEMBERS.sessions("leaks").len() >= 20);
        first.close().await;
        second.close().await;
    });
    // A session that was being closed when the client had no more time is over soon.
    until("no session is left", || {
        MEMBERS.sessions("leaks").is_empty()
    });
}

#[test]
fn a_session_is_used_again_and_closed_when_it_is_idle() {
    needs!(hazelcast);
    let url = MEMBERS.url() + "?group=idle";
    runtime().block_on(async {
        // The first request to a new group may have no answer in time, and leave a session.
        connect(&url).await.close().await;
        until("the group is at rest", || {
            MEMBERS.sessions("idle").is_empty()
        });
        let client = connect(&url).await;
        for _ in 0..20 {
            let lock = client.lock("again").ttl(TTL / 2);
            lock.acquire().await.unwrap().release().await.unwrap();
        }
        // A session is replaced after a request that was sent again, and the leader of a new group may change meanwhile.
        let sessions = MEMBERS.sessions("idle").len();
        assert!(sessions < 20, "each lock has made its session");
        until("the idle session is closed", || {
            MEMBERS.sessions("idle").is_empty()
        });
        take(&client, "again").await.release().await.unwrap();
        client.close().await;
    });
}

#[test]
fn hostile_names_are_all_distinct() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (first, second) = (connect(&MEMBERS.url()).await, connect(&MEMBERS.url()).await);
        // Each is one lock; so many are a sample of them. They are sorted, so it has names of each kind.
        let all = hostile::written::many();
        let step = all.len().div_ceil(400);
        let all: Vec<_> = all.into_iter().step_by(step).collect();
        let mut guards = Vec::new();
        for name in &all {
            let held = first.lock(name).ttl(TTL * 4).try_acquire().await.unwrap();
            guards.push(held.unwrap_or_else(|| panic!("{name:?} is another name's lock")));
        }
        for (name, guard) in all.iter().zip(&guards) {
            let status = second.inspect(name).await.unwrap();
            assert_eq!(status.holds.len(), 1, "{name:?}");
            assert_eq!(status.holds[0].token, Some(guard.token()), "{name:?}");
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
        for name in &all {
            assert!(!second.inspect(name).await.unwrap().is_held(), "{name:?}");
        }
        second.close().await;
        first.close().await;
    });
}

#[test]
fn a_ttl_longer_than_a_session_is_granted_as_the_session() {
    needs!(hazelcast);
    runtime().block_on(async {
        let client = connect(&MEMBERS.url()).await;
        let guard = client
            .lock(name("long"))
            .ttl(TTL * 20)
            .acquire()
            .await
            .unwrap();
        assert!(guard.remaining() <= TTL);
        guard.release().await.unwrap();
        // A shorter ttl ends before the session, when it is not renewed.
        let name = name("short");
        let lock = client.lock(&name).ttl(TTL / 5).renew(Renew::Never);
        let guard = lock.acquire().await.unwrap();
        assert_eq!(guard.lost().await, Some(LostReason::Expired));
        until("the members free the lock", || {
            MEMBERS.look(&name).holders == 0
        });
        drop(guard);
        client.close().await;
    });
}

#[test]
fn what_the_store_lacks_is_refused_with_the_stores_that_have_it() {
    needs!(hazelcast);
    runtime().block_on(async {
        let client = connect(&MEMBERS.url()).await;
        let lock = client.lock("x").ttl(TTL);
        for lock in [
            lock.clone().shared(),
            lock.clone().upgradable(),
            lock.clone().permits(2),
            lock.clone().min_hold(TTL / 2),
            lock.clone().lock_delay(TTL),
        ] {
            let err = lock.acquire().await.unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Unsupported);
            assert!(err.to_string().contains("`etcd:`"), "{err:#}");
        }
        let permits = client.lock("x").ttl(TTL).permits(2);
        let err = permits.acquire().await.unwrap_err().to_string();
        assert!(err.contains("`redis:`, `etcd:`, `zookeeper:`"), "{err}");
        let err = client.list("").await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unsupported);
        client.close().await;
    });
}

#[test]
fn a_login_that_is_refused_shows_no_password() {
    needs!(hazelcast);
    runtime().block_on(async {
        let port = MEMBERS.port(0);
        for url in [
            format!("hazelcast://me:canary-42@127.0.0.1:{port}"),
            format!("hazelcast://me:canary-42@127.0.0.1:{port}/other"),
            format!("hazelcast://127.0.0.1:{port}/canary-42-is-no-password"),
        ] {
            let err = answer(&url).await.unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Denied, "{err:#}");
            let text = format!("{err:#} {err:?}");
            assert!(
                !text.contains("canary-42") || url.ends_with("password"),
                "{text}"
            );
        }
    });
}

#[test]
fn a_cluster_without_the_cp_subsystem_is_refused() {
    needs!(hazelcast);
    let member = Hazelcast::start_with(1, 0, SESSION_TTL);
    runtime().block_on(async {
        for url in [member.url(), member.url() + "?group=jobs"] {
            let err = answer(&url).await.unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Unsupported);
            assert!(err.to_string().contains("unsafe mode"), "{err:#}");
        }
    });
}

#[test]
fn a_waiter_keeps_its_place_over_a_lost_connection() {
    needs!(hazelcast);
    let proxy = Proxy::hazelcast(MEMBERS.port(1));
    runtime().block_on(async {
        let name = name("place");
        let (holder, other) = (connect(&MEMBERS.url()).await, connect(&MEMBERS.url()).await);
        let waiter = connect(&url_of(&[proxy.port()])).await;
        let guard = take(&holder, &name).await;
        let wait = |client: &Client| {
            let lock = client.lock(&name).ttl(TTL);
            tokio::spawn(async move { lock.acquire().await })
        };
        let first = wait(&waiter);
        until("the first waits", || MEMBERS.look(&name).waiters == 1);
        let second = wait(&other);
        until("the second waits", || MEMBERS.look(&name).waiters == 2);
        proxy.cut();
        // Longer than a session: the heartbeats go on by the next connection.
        tokio::time::sleep(TTL * 3 / 2).await;
        assert_eq!(MEMBERS.look(&name).waiters, 2);
        guard.release().await.unwrap();
        let guard = first.await.unwrap().unwrap();
        assert!(!second.is_finished());
        guard.release().await.unwrap();
        second.await.unwrap().unwrap().release().await.unwrap();
        assert_eq!(MEMBERS.look(&name).holders, 0);
        for client in [holder, other, waiter] {
            client.close().await;
        }
    });
}

/// The ttl of the lock is much shorter than that of the session, as it is with the settings of Hazelcast.
#[test]
fn a_waiter_with_a_short_ttl_outlasts_a_lost_connection() {
    needs!(hazelcast);
    let members = Hazelcast::start_with(3, 3, TTL.as_secs() * 6);
    let proxy = Proxy::hazelcast(members.port(1));
    runtime().block_on(async {
        let (holder, waiter) = (
            connect(&members.url()).await,
            connect(&url_of(&[proxy.port()])).await,
        );
        let guard = take(&holder, "short").await;
        let lock = waiter.lock("short").ttl(TTL);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("it waits", || members.look("short").waiters == 1);
        // Longer than the ttl, and shorter than a third of the session.
        tokio::time::sleep(TTL * 6 / 5).await;
        proxy.cut();
        tokio::time::sleep(TTL / 5).await;
        assert!(!waiting.is_finished());
        guard.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
        holder.close().await;
        waiter.close().await;
    });
}

/// Sessions of the present members are shorter than those that the client knew.
#[test]
fn a_lease_is_no_longer_than_its_session_after_a_restart_with_another_setting() {
    needs!(hazelcast);
    let members = Hazelcast::start_with(3, 3, SESSION_TTL * 3);
    runtime().block_on(async {
        let client = connect(&members.url()).await;
        let before = take_for(&client, "x", TTL * 3).await;
        assert!(before.remaining() > TTL);
        before.release().await.unwrap();
        members.kill();
        members.launch_with(SESSION_TTL);
        let begin = Instant::now();
        let after = loop {
            match client.lock("x").ttl(TTL * 3).acquire().await {
                Err(err) if err.is_retryable() && begin.elapsed() < TEST_TIMEOUT => {}
                acquired => break acquired.unwrap(),
            }
        };
        assert!(after.remaining() <= TTL, "{:?}", after.remaining());
        after.release().await.unwrap();
        client.close().await;
    });
}

/// The connections to that port of this machine.
fn connections_to(port: u16) -> usize {
    let port = format!(":{port:04X}");
    let sockets = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let is_one = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        // The other side, and the state "established".
        fields[2].ends_with(&port) && fields[3] == "01"
    };
    sockets.lines().skip(1).filter(is_one).count()
}

#[test]
fn a_store_that_is_dropped_leaves_no_connection() {
    needs!(hazelcast);
    let proxy = Proxy::hazelcast(MEMBERS.port(0));
    runtime().block_on(async {
        let url = url_of(&[proxy.port()]);
        let begin = Instant::now();
        let store = loop {
            match tenure_hazelcast::Store::connect(&url).await {
                Err(err) if err.is_retryable() && begin.elapsed() < TEST_TIMEOUT => {}
                connected => break connected.unwrap(),
            }
        };
        until("there is a connection", || {
            connections_to(proxy.port()) == 1
        });
        drop(store);
        until("it is closed", || connections_to(proxy.port()) == 0);
    });
}

#[test]
fn a_request_that_arrives_late_locks_nothing() {
    needs!(hazelcast);
    let proxy = Proxy::hazelcast(MEMBERS.port(2));
    runtime().block_on(async {
        let name = name("late");
        let client = connect(&(url_of(&[proxy.port()]) + "?timeout=300ms")).await;
        // Each attempt of the request to lock is late: the acquisition fails, and its session is closed.
        let late = Duration::from_millis(1_500);
        for _ in 0..4 {
            proxy.plan("acquire", Fault::Late(late));
        }
        let lock = client.lock(&name).ttl(TTL);
        let outcome = lock.try_acquire().await;
        if let Ok(Some(guard)) = outcome {
            guard.release().await.unwrap();
        }
        proxy.forget_plans();
        tokio::time::sleep(late * 2).await;
        until("nothing is left", || MEMBERS.look(&name).holders == 0);
        client.close().await;
        assert_eq!(MEMBERS.look(&name).holders, 0);
    });
}

#[test]
fn a_silent_connection_is_left_for_the_next_member() {
    needs!(hazelcast);
    let proxy = Proxy::hazelcast(MEMBERS.port(0));
    runtime().block_on(async {
        let name = name("silent");
        let client = connect(&(url_of(&[proxy.port(), MEMBERS.port(1)]) + "?timeout=1s")).await;
        let guard = take(&client, &name).await;
        proxy.hold(Direction::Down, true);
        // The request goes to the other member.
        until_renewed(&guard, TTL);
        guard.release().await.unwrap();
        proxy.resume();
        client.close().await;
    });
}

#[test]
fn a_killed_leader_loses_nothing() {
    needs!(hazelcast);
    // Members that elect a leader on a busy machine answer nothing for seconds.
    let ttl = TTL * 3;
    let members = Hazelcast::start_with(3, 3, ttl.as_secs());
    runtime().block_on(async {
        let url = url_of(&[0, 1, 2].map(|it| members.port(it)));
        let (holder, waiter) = (connect(&url).await, connect(&url).await);
        members.transfer("default", 0);
        let held = take_for(&holder, "kept", ttl).await;
        let taken = take_for(&holder, "handed over", ttl).await;
        let lock = waiter.lock("handed over").ttl(ttl);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("one waits", || members.look("handed over").waiters == 1);
        let token = taken.token();
        // The clients are connected to this member.
        members.kill_member(0);
        until_renewed(&held, ttl);
        taken.release().await.unwrap();
        let next = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
        let next = next.expect("the waiter's turn").unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
        held.release().await.unwrap();
        holder.close().await;
        waiter.close().await;
    });
    until("no session is left", || {
        members.sessions("default").is_empty()
    });
}

#[test]
fn a_reset_of_the_cp_subsystem_ends_holds_and_the_same_client_locks_again() {
    needs!(hazelcast);
    let members = start();
    runtime().block_on(async {
        let client = connect(&members.url()).await;
        let guard = take(&client, "reset").await;
        members.reset();
        let lost = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await;
        assert!(lost.unwrap().is_some());
        assert!(guard.release().await.unwrap_err().is_lost());
        let begin = Instant::now();
        let again = loop {
            // The members elect leaders of their new groups.
            match client.lock("reset").ttl(TTL).acquire().await {
                Err(err) if err.is_retryable() && begin.elapsed() < TEST_TIMEOUT => {}
                acquired => break acquired.unwrap(),
            }
        };
        assert_eq!(members.look("reset").holders, 1);
        again.release().await.unwrap();
        client.close().await;
    });
}

/// An operator closes it with `CPSessionManagementService.forceCloseSession`.
#[test]
fn a_session_that_is_closed_by_force_ends_its_hold_and_the_next_lock_has_another_session() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (client, name) = (connect(&MEMBERS.url()).await, name("forced"));
        let guard = take(&client, &name).await;
        let session = MEMBERS.look(&name).session;
        MEMBERS.close_session(session.unwrap());
        let lost = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await;
        // At a renewal, and not only when the lease is over.
        assert_eq!(lost.unwrap(), Some(LostReason::SessionGone));
        let token = guard.token();
        assert!(guard.release().await.unwrap_err().is_lost());
        let next = take(&client, &name).await;
        assert!(next.token() > token);
        assert_ne!(MEMBERS.look(&name).session, session);
        until_renewed(&next, TTL);
        next.release().await.unwrap();
        client.close().await;
    });
}

/// A session that is kept for the next lock, and one that waits.
#[test]
fn a_session_that_is_closed_by_force_is_replaced_before_it_holds() {
    needs!(hazelcast);
    let url = MEMBERS.url() + "?group=forced";
    let sessions = || MEMBERS.sessions("forced");
    let close = |session: &i64| drop(MEMBERS.order(&format!("close\tforced\t{session}")));
    // The name is `x`.
    let waiters = || MEMBERS.order("lock\t78\tforced");
    runtime().block_on(async {
        let (holder, waiter) = (connect(&url).await, connect(&url).await);
        take(&waiter, "x").await.release().await.unwrap();
        sessions().iter().for_each(close);
        let guard = take(&holder, "x").await;
        let before = sessions();
        let lock = waiter.lock("x").ttl(TTL);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("it waits", || waiters().starts_with("1 1 "));
        let new = |all: &[i64]| {
            sessions()
                .into_iter()
                .filter(|it| !all.contains(it))
                .collect()
        };
        let closed: Vec<_> = new(&before);
        closed.iter().for_each(close);
        let known = [before, closed].concat();
        until("it waits in another session", || {
            let others: Vec<_> = new(&known);
            !others.is_empty() && waiters().starts_with("1 1 ")
        });
        assert!(!waiting.is_finished(), "two hold it");
        let token = guard.token();
        guard.release().await.unwrap();
        let next = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
        let next = next.expect("the waiter's turn").unwrap().unwrap();
        assert!(next.token() > token);
        next.release().await.unwrap();
        holder.close().await;
        waiter.close().await;
    });
}

#[test]
fn a_restart_of_all_members_begins_the_tokens_again() {
    needs!(hazelcast);
    let members = start();
    runtime().block_on(async {
        let client = connect(&members.url()).await;
        for _ in 0..20 {
            take(&client, "token").await.release().await.unwrap();
        }
        let guard = take(&client, "token").await;
        let before = guard.token();
        members.kill();
        members.launch();
        // The client notices that the members have forgotten the hold.
        let lost = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await;
        assert!(lost.unwrap().is_some());
        let other = connect(&members.url()).await;
        let after = take(&other, "token").await;
        assert!(after.token() < before, "the guarantees say so");
        after.release().await.unwrap();
        other.close().await;
        client.close().await;
    });
}

#[test]
fn without_a_majority_nothing_is_granted_and_holds_end_in_time() {
    needs!(hazelcast);
    let members = start();
    runtime().block_on(async {
        let client = connect(&(members.url() + "?timeout=500ms")).await;
        let guard = take(&client, "held").await;
        members.kill_member(0);
        members.kill_member(1);
        let lost = tokio::time::timeout(TTL + TEST_TIMEOUT, guard.lost()).await;
        assert_eq!(lost.unwrap(), Some(LostReason::Expired));
        let lock = client.lock("free").ttl(TTL).wait(Duration::from_secs(1));
        let acquiring = tokio::time::timeout(TEST_TIMEOUT, lock.acquire()).await;
        let err = acquiring.expect("each request has its limit").unwrap_err();
        let is_silence = matches!(
            err.kind(),
            ErrorKind::Unreachable | ErrorKind::Indeterminate
        );
        assert!(is_silence, "{err:#}");
        drop(guard);
        tokio::time::timeout(TEST_TIMEOUT, client.close())
            .await
            .expect("a close ends in time");
    });
}
