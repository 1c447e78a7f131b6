//! Three servers on a network that falls apart between them, while each of them still hears its clients.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, LostReason};

use crate::common::answered;
use crate::servers::network::Network;
use crate::servers::zookeeper::{Ensemble, PASSWORD, USER, is_missing};
use crate::support::{ROOT, TTL, assert_says, connect, nodes, soon, take, until, until_renewed};

/// Longer than an election and a server that hears nobody take together.
const LONG: Duration = Duration::from_secs(15);

/// `None`: there is no ZooKeeper, or no network, which is said.
fn start() -> Option<(Ensemble, Network)> {
    if is_missing() {
        return None;
    }
    let network = Network::new(3)?;
    Some((Ensemble::start_on(&network), network))
}

fn url(ensemble: &Ensemble, servers: &[usize]) -> String {
    let addresses: Vec<_> = servers
        .iter()
        .map(|at| ensemble.nodes[*at].address())
        .collect();
    let addresses = addresses.join(",");
    format!("zookeeper://{USER}:{PASSWORD}@{addresses}{ROOT}?ttl=15s&timeout=2s")
}

/// A client that knows these servers only.
async fn client_of(ensemble: &Ensemble, servers: &[usize]) -> Client {
    connect(&url(ensemble, servers)).await
}

/// Nothing is granted, and nobody is told that somebody else holds it either.
async fn assert_grants_nothing(client: &Client, name: &str) {
    let outcome = soon(client.lock(name).ttl(TTL).try_acquire()).await;
    let kind = outcome.map(|_| ()).map_err(|err| err.kind());
    assert!(
        matches!(kind, Err(ErrorKind::Unreachable | ErrorKind::Indeterminate)),
        "{kind:?}"
    );
}

/// The old leader and who holds by it on one side, who waits on the other, where the session ends.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_cut_off_together_with_the_holder() {
    let Some((ensemble, network)) = start() else {
        return;
    };
    let leader = ensemble.leader();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    let (holder, waiter) = (
        client_of(&ensemble, &[leader]).await,
        client_of(&ensemble, &others).await,
    );
    let guard = take(&holder, "x", TTL).await;
    until_renewed(&guard).await;
    let lock = waiter.lock("x").ttl(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("it waits", || {
        nodes(&ensemble.nodes[others[0]], "x").len() == 2
    })
    .await;
    let cut = Instant::now();
    others.iter().for_each(|other| network.cut(leader, *other));
    let lost = async {
        let reason = soon(guard.lost()).await;
        (reason, Instant::now())
    };
    let granted = async {
        let next = soon(waiting).await.unwrap().unwrap();
        (next, Instant::now())
    };
    let ((reason, lost), (next, granted)) = tokio::join!(lost, granted);
    eprintln!(
        "ttl {TTL:?}: told after {:?}, granted after {:?}",
        lost - cut,
        granted - cut
    );
    assert_eq!(reason, LostReason::Expired);
    assert!(lost < granted, "both held it for {:?}", lost - granted);
    assert!(next.token() > guard.token());
    drop(guard);
    assert_grants_nothing(&holder, "y").await;

    others.iter().for_each(|other| network.join(leader, *other));
    ensemble.until_whole();
    assert!(next.is_held(), "lost as the others came back");
    until_renewed(&next).await;
    let stranger = client_of(&ensemble, &[leader]).await;
    let lock = stranger.lock("x").ttl(TTL);
    assert!(
        answered(|| lock.try_acquire()).await.is_none(),
        "two hold it"
    );
    soon(next.release()).await.unwrap();
    let own = answered(|| lock.acquire()).await;
    soon(own.release()).await.unwrap();
    for client in [holder, waiter, stranger] {
        soon(client.close()).await;
    }
    until("nothing is left", || {
        nodes(&ensemble.nodes[0], "x").is_empty()
    })
    .await;
}

/// Who knows all servers loses nothing to one that is alone, be it the leader; who knows only that one gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn one_is_cut_off_from_the_others() {
    let Some((ensemble, network)) = start() else {
        return;
    };
    let (mut holder, mut waiter) = (
        client_of(&ensemble, &[0, 1, 2]).await,
        client_of(&ensemble, &[2, 1, 0]).await,
    );
    let mut guard = take(&holder, "x", LONG).await;
    for leads in [true, false] {
        let leader = ensemble.leader();
        let alone = if leads { leader } else { (leader + 1) % 3 };
        let others = [(alone + 1) % 3, (alone + 2) % 3];
        let lock = waiter.lock("x").ttl(LONG);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("it waits", || nodes(&ensemble.nodes[0], "x").len() == 2).await;
        let stranger = client_of(&ensemble, &[alone]).await;
        others.iter().for_each(|other| network.cut(alone, *other));
        until_renewed(&guard).await;
        until_renewed(&guard).await;
        assert_grants_nothing(&stranger, "y").await;
        assert_says(
            soon(tenure::connect(&url(&ensemble, &[alone]))).await,
            ErrorKind::Unreachable,
            &["no majority"],
        );
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.token() > token);
        others.iter().for_each(|other| network.join(alone, *other));
        ensemble.until_whole();
        until_renewed(&guard).await;
        std::mem::swap(&mut holder, &mut waiter);
    }
    soon(guard.release()).await.unwrap();
}

/// Without a majority anywhere nothing is granted and nothing renewed; when it is back, all goes on.
#[tokio::test(flavor = "multi_thread")]
async fn each_is_alone() {
    let Some((ensemble, network)) = start() else {
        return;
    };
    let (first, second) = (
        client_of(&ensemble, &[0, 1, 2]).await,
        client_of(&ensemble, &[0, 1, 2]).await,
    );
    let guard = take(&first, "x", TTL).await;
    let lock = second.lock("x").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("it waits", || nodes(&ensemble.nodes[0], "x").len() == 2).await;
    let pairs = [(0, 1), (1, 2), (2, 0)];
    pairs
        .iter()
        .for_each(|(one, other)| network.cut(*one, *other));
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert_grants_nothing(&first, "y").await;
    pairs
        .iter()
        .for_each(|(one, other)| network.join(*one, *other));
    ensemble.until_whole();
    let token = guard.token();
    drop(guard);
    // A store that is silent for a lease may end a wait, with an error that says so.
    let next = match soon(waiting).await.unwrap() {
        Ok(next) => next,
        Err(err) => {
            assert!(err.is_retryable(), "{err}");
            soon(second.lock("x").ttl(TTL).acquire()).await.unwrap()
        }
    };
    assert!(next.token() > token);
    soon(next.release()).await.unwrap();
}
