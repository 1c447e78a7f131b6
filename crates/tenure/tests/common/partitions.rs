//! Three servers whose network is partitioned, while each server still reaches its clients.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, LostReason};
use tokio::task::JoinHandle;

use super::{answered, assert_says, connect, soon, start_acquire, take, until, until_renewed};
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
    /// How many clients hold `x` or wait for `x`, as that server knows.
    fn contenders(&self, server: usize) -> usize;
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
) -> JoinHandle<Result<tenure::Guard, tenure::Error>> {
    let waiting = start_acquire(client.lock("x").ttl(ttl));
    until("it waits", || trio.contenders(server) == 2).await;
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
    until("nothing is left", || trio.contenders(0) == 0).await;
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

/// Each of these scenarios is a test. `start` gives the servers and their network, or says why it cannot.
#[allow(unused_macros, reason = "not every program has three servers")]
macro_rules! on_three_servers {
    ($start:ident) => {
        $crate::common::partitions::on_three_servers! {
            $start:
            the_leader_is_cut_off_together_with_the_holder,
            one_is_cut_off_from_the_others,
            each_is_alone,
        }
    };
    ($start:ident: $($name:ident),* $(,)?) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            if let Some((servers, network)) = $start() {
                $crate::common::partitions::$name(servers, network).await;
            }
        }
    )* };
}
#[allow(unused_imports, reason = "likewise")]
pub(crate) use on_three_servers;
