//! Three servers that are killed, stopped and started again, or whose network is partitioned while each server still
//! reaches its clients.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, Guard, LostReason};
use tokio::task::JoinHandle;

use super::{
    answered, assert_clear, assert_says, connect, soon, start_acquire, take, until, until_renewed,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::network::Network;

/// Three servers that elect a leader.
pub(crate) trait Trio {
    /// A lease that ends during the partition.
    const TTL: Duration;
    /// Longer than an election and the time limit of a server without peers together.
    const LONG: Duration;
    /// A word in the error of a server without a majority.
    const ALONE: &str;

    /// The URL for clients that know these servers only.
    fn url(&self, servers: &[usize]) -> String;
    fn leader(&self) -> usize;
    /// Returns when all servers follow a leader.
    fn until_whole(&self);
    /// How many clients hold that name or wait for it, as that server knows.
    fn contenders(&self, server: usize, name: &str) -> usize;
    fn kill(&self, server: usize);
    fn start(&self, server: usize);
    fn stop(&self, server: usize);
    fn resume(&self, server: usize);
}

const ALL: [usize; 3] = [0, 1, 2];

async fn client_of(trio: &impl Trio, servers: &[usize]) -> Client {
    connect(&trio.url(servers)).await
}

/// Begins to wait behind one holder.
async fn wait_behind<T: Trio>(
    trio: &T,
    client: &Client,
    ttl: Duration,
    server: usize,
) -> JoinHandle<Result<Guard, tenure::Error>> {
    let waiting = start_acquire(client.lock("x").ttl(ttl));
    until("it waits", || trio.contenders(server, "x") == 2).await;
    waiting
}

/// A try is not granted, and its error does not say that the lock is held.
async fn assert_grants_nothing<T: Trio>(client: &Client) {
    let outcome = soon(client.lock("y").ttl(T::TTL).try_acquire()).await;
    let kind = outcome.map(|_| ()).map_err(|err| err.kind());
    assert!(
        matches!(kind, Err(ErrorKind::Unreachable | ErrorKind::Indeterminate)),
        "{kind:?}"
    );
}

/// Longer than a leader is stopped. A leader that goes on after a whole ttl ends leases that its successor has kept
/// alive, in versions of etcd that `tenure check` warns of (etcd-io/etcd#15247).
const LONGER_THAN_A_STOP: Duration = Duration::from_secs(30);

/// A client that comes later acquires a free name, and finds the held one taken.
async fn assert_works<T: Trio>(trio: &T, held: &Guard) {
    let client = answered(async || tenure::connect(&trio.url(&ALL)).await).await;
    let free = client.lock("after").ttl(T::LONG);
    let guard = answered(async || free.acquire().await).await;
    soon(guard.release()).await.unwrap();
    let lock = client.lock(held.name()).ttl(T::LONG);
    let tried = soon(lock.try_acquire()).await.unwrap();
    assert!(tried.is_none(), "two clients hold the lock");
}

/// One client holds, one waits, one acquires again and again. What `act` does to the leader costs none of them its lock
/// or its place.
async fn survives<T: Trio>(trio: &T, act: impl Fn(&T, usize), undo: impl Fn(&T, usize)) {
    let (first, second, third) = (
        client_of(trio, &ALL).await,
        client_of(trio, &ALL).await,
        client_of(trio, &ALL).await,
    );
    let mut guard = take(&first, "x", LONGER_THAN_A_STOP).await;
    for _ in 0..2 {
        let leader = trio.leader();
        let follower = (leader + 1) % 3;
        let waiting = wait_behind(trio, &second, LONGER_THAN_A_STOP, follower).await;
        let released = take(&third, "released", LONGER_THAN_A_STOP).await;
        let lock = third.lock("busy").ttl(LONGER_THAN_A_STOP);
        let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
        let acquiring = tokio::spawn(async move {
            let (mut has_held, mut is_over) = (false, false);
            while !(has_held && is_over) {
                is_over |= stopped.try_recv().is_ok();
                // The outcome may be unknown; a grant is never wrong.
                if let Ok(guard) = lock.acquire().await {
                    let _ = guard.release().await;
                    has_held = true;
                }
            }
        });
        act(trio, leader);
        if let Err(err) = soon(released.release()).await {
            // The outcome was not known in time; the release goes on in the background.
            assert!(err.is_retryable(), "{err}");
        }
        assert_works(trio, &guard).await;
        assert!(guard.is_held(), "lost with the leader");
        assert!(!waiting.is_finished(), "two clients hold the lock");
        assert_eq!(trio.contenders(follower, "x"), 2);
        until("it is released", || {
            trio.contenders(follower, "released") == 0
        })
        .await;
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.token() > token);
        stop.send(()).unwrap();
        soon(acquiring).await.unwrap();
        undo(trio, leader);
        trio.until_whole();
        soon(guard.release()).await.unwrap();
        let lock = first.lock("x").ttl(LONGER_THAN_A_STOP);
        guard = answered(async || lock.acquire().await).await;
    }
    soon(guard.release()).await.unwrap();
    for client in [first, second, third] {
        soon(client.close()).await;
    }
    // Requests of unknown outcome end with their lease or session.
    until("nothing is left", || {
        let names = ["x", "busy", "released", "after"];
        names.iter().all(|name| trio.contenders(0, name) == 0)
    })
    .await;
}

pub(crate) async fn the_leader_is_killed<T: Trio>(trio: T) {
    survives(&trio, T::kill, T::start).await;
}

/// Its followers are not told of that.
pub(crate) async fn the_leader_is_stopped<T: Trio>(trio: T) {
    survives(&trio, T::stop, T::resume).await;
}

/// Locks are on disk; a waiter keeps its place.
pub(crate) async fn all_are_started_again<T: Trio>(trio: T) {
    let (first, second) = (client_of(&trio, &ALL).await, client_of(&trio, &ALL).await);
    let guard = take(&first, "x", LONGER_THAN_A_STOP).await;
    let waiting = wait_behind(&trio, &second, LONGER_THAN_A_STOP, 0).await;
    ALL.iter().for_each(|server| trio.kill(*server));
    ALL.iter().for_each(|server| trio.start(*server));
    trio.until_whole();
    assert!(guard.is_held(), "{:?}", guard.state());
    until_renewed(&guard).await;
    assert_works(&trio, &guard).await;
    until("both are there", || trio.contenders(0, "x") == 2).await;
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
}

/// Without a majority nothing is granted and nothing is renewed; when there is a majority again, both go on.
pub(crate) async fn a_majority_is_away<T: Trio>(trio: T) {
    let (first, second) = (client_of(&trio, &ALL).await, client_of(&trio, &ALL).await);
    let guard = take(&first, "x", T::TTL).await;
    ALL[1..].iter().for_each(|server| trio.stop(*server));
    assert_grants_nothing::<T>(&second).await;
    assert_eq!(soon(guard.lost()).await, Some(LostReason::Expired));
    // The server that is alone learns that after a while, and says so in one line.
    let start = Instant::now();
    loop {
        match soon(tenure::connect(&trio.url(&[0]))).await {
            Err(err) if format!("{err:#}").contains(T::ALONE) => {
                assert_eq!(err.kind(), ErrorKind::Unreachable, "{err}");
                assert_clear(&err);
                break;
            }
            other => assert!(start.elapsed() < TEST_TIMEOUT, "{other:?}"),
        }
    }
    ALL[1..].iter().for_each(|server| trio.resume(*server));
    trio.until_whole();
    let token = guard.token();
    drop(guard);
    for name in ["x", "y"] {
        let lock = second.lock(name).ttl(T::LONG);
        let next = answered(async || lock.acquire().await).await;
        assert!(next.token() > token);
        soon(next.release()).await.unwrap();
    }
}

/// The old leader and the holder are on one side; the waiter is on the other side, where the lease ends.
pub(crate) async fn the_leader_is_cut_off_together_with_the_holder<T: Trio>(
    trio: T,
    network: Network,
) {
    let leader = trio.leader();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    let (holder, waiter) = (
        client_of(&trio, &[leader]).await,
        client_of(&trio, &others).await,
    );
    let guard = take(&holder, "x", T::TTL).await;
    until_renewed(&guard).await;
    let waiting = wait_behind(&trio, &waiter, T::LONG, others[0]).await;
    let cut = Instant::now();
    others.iter().for_each(|other| network.cut(leader, *other));
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(!guard.is_held(), "both hold it");
    eprintln!("ttl {:?}: granted after {:?}", T::TTL, cut.elapsed());
    assert_eq!(soon(guard.lost()).await, Some(LostReason::Expired));
    assert!(next.token() > guard.token());
    drop(guard);
    assert_grants_nothing::<T>(&holder).await;

    others.iter().for_each(|other| network.join(leader, *other));
    trio.until_whole();
    assert!(next.is_held(), "lost as the others came back");
    until_renewed(&next).await;
    let client_of_one_server = client_of(&trio, &[leader]).await;
    let lock = client_of_one_server.lock("x").ttl(T::TTL);
    assert!(
        answered(|| lock.try_acquire()).await.is_none(),
        "two hold it"
    );
    soon(next.release()).await.unwrap();
    let own = answered(|| lock.acquire()).await;
    soon(own.release()).await.unwrap();
    for client in [holder, waiter, client_of_one_server] {
        soon(client.close()).await;
    }
    until("nothing is left", || trio.contenders(0, "x") == 0).await;
}

/// A client that knows all servers keeps its hold when one server is alone, even the leader. A client that knows only
/// that server gets no lock.
pub(crate) async fn one_is_cut_off_from_the_others<T: Trio>(trio: T, network: Network) {
    let (mut holder, mut waiter) = (
        client_of(&trio, &ALL).await,
        client_of(&trio, &[2, 1, 0]).await,
    );
    let mut guard = take(&holder, "x", T::LONG).await;
    for leads in [true, false] {
        let leader = trio.leader();
        let alone = if leads { leader } else { (leader + 1) % 3 };
        let others = [(alone + 1) % 3, (alone + 2) % 3];
        let waiting = wait_behind(&trio, &waiter, T::LONG, 0).await;
        let client_of_one_server = client_of(&trio, &[alone]).await;
        others.iter().for_each(|other| network.cut(alone, *other));
        until_renewed(&guard).await;
        until_renewed(&guard).await;
        assert_grants_nothing::<T>(&client_of_one_server).await;
        assert_says(
            soon(tenure::connect(&trio.url(&[alone]))).await,
            ErrorKind::Unreachable,
            &[T::ALONE],
        );
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.token() > token);
        others.iter().for_each(|other| network.join(alone, *other));
        trio.until_whole();
        until_renewed(&guard).await;
        std::mem::swap(&mut holder, &mut waiter);
    }
    soon(guard.release()).await.unwrap();
}

/// Without a majority no lock is granted and no hold is renewed. When the majority is back, both go on.
pub(crate) async fn each_is_alone<T: Trio>(trio: T, network: Network) {
    let (first, second) = (client_of(&trio, &ALL).await, client_of(&trio, &ALL).await);
    let guard = take(&first, "x", T::TTL).await;
    let waiting = wait_behind(&trio, &second, T::TTL, 0).await;
    let pairs = [(0, 1), (1, 2), (2, 0)];
    pairs
        .iter()
        .for_each(|(one, other)| network.cut(*one, *other));
    assert_eq!(soon(guard.lost()).await, Some(LostReason::Expired));
    assert_grants_nothing::<T>(&first).await;
    pairs
        .iter()
        .for_each(|(one, other)| network.join(*one, *other));
    trio.until_whole();
    let token = guard.token();
    drop(guard);
    // A store that is silent for a lease may end a wait, with an error that says so.
    let next = match soon(waiting).await.unwrap() {
        Ok(next) => next,
        Err(err) => {
            assert!(err.is_retryable(), "{err}");
            soon(second.lock("x").ttl(T::TTL).acquire()).await.unwrap()
        }
    };
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
}

/// Each scenario of this file is a test. `start` gives the servers, and `start_on_network` with their network; each of them
/// says why it cannot.
#[allow(unused_macros, reason = "not every program has three servers")]
macro_rules! on_three_servers {
    ($start:ident, $start_on_network:ident) => {
        $crate::common::trio::on_three_servers! { @ $start:
            the_leader_is_killed,
            the_leader_is_stopped,
            all_are_started_again,
            a_majority_is_away,
        }
        $crate::common::trio::on_three_servers! { @ network $start_on_network:
            the_leader_is_cut_off_together_with_the_holder,
            one_is_cut_off_from_the_others,
            each_is_alone,
        }
    };
    (@ $start:ident: $($name:ident,)*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            if let Some(servers) = $start() {
                $crate::common::trio::$name(servers).await;
            }
        }
    )* };
    (@ network $start:ident: $($name:ident,)*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            if let Some((servers, network)) = $start() {
                $crate::common::trio::$name(servers, network).await;
            }
        }
    )* };
}
#[allow(unused_imports, reason = "likewise")]
pub(crate) use on_three_servers;
