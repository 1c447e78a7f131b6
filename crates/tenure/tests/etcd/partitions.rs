//! Three members on a network that falls apart between them, while each of them still hears its clients.

use std::time::Instant;

use tenure::{Client, ErrorKind, LostReason};

use crate::common::answered;
use crate::servers::etcd::{Etcd, is_missing};
use crate::servers::network::Network;
use crate::support::{
    LONG, TTL, assert_says, connect, soon, take, until, until_renewed, wait_behind,
};

/// `None`: there is no etcd, or no network, which is said.
fn start() -> Option<(Etcd, Network)> {
    if is_missing() {
        return None;
    }
    let network = Network::new(3)?;
    Some((Etcd::start_on(&network), network))
}

/// A client that knows these members only, and is told soon that one does not answer.
async fn client_of(etcd: &Etcd, members: &[usize]) -> Client {
    let addresses: Vec<_> = members
        .iter()
        .map(|at| etcd.members[*at].address())
        .collect();
    connect(&format!("{}?timeout=1s", etcd.url_by(&addresses))).await
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

/// The old leader and who holds by it on one side, who waits on the other, where the lease ends.
#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_cut_off_together_with_the_holder() {
    let Some((etcd, network)) = start() else {
        return;
    };
    let leader = etcd.leader();
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    let (holder, waiter) = (
        client_of(&etcd, &[leader]).await,
        client_of(&etcd, &others).await,
    );
    let guard = take(&holder, "x", TTL).await;
    until_renewed(&guard).await;
    let waiting = wait_behind(&etcd, &waiter, "x", 1).await;
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
    etcd.until_ready();
    assert!(next.is_held(), "lost as the others came back");
    until_renewed(&next).await;
    let lock = holder.lock("x").ttl(TTL);
    assert!(
        answered(|| lock.try_acquire()).await.is_none(),
        "two hold it"
    );
    soon(next.release()).await.unwrap();
    let own = answered(|| lock.acquire()).await;
    soon(own.release()).await.unwrap();
    soon(holder.close()).await;
    soon(waiter.close()).await;
    until("nothing is left", || etcd.keys("").is_empty()).await;
}

/// Who knows all members loses nothing to one that is alone, be it the leader; who knows only that one gets nothing.
#[tokio::test(flavor = "multi_thread")]
async fn one_is_cut_off_from_the_others() {
    let Some((etcd, network)) = start() else {
        return;
    };
    let (mut holder, mut waiter) = (
        client_of(&etcd, &[0, 1, 2]).await,
        client_of(&etcd, &[2, 1, 0]).await,
    );
    let mut guard = take(&holder, "x", LONG).await;
    for leads in [true, false] {
        let leader = etcd.leader();
        let alone = if leads { leader } else { (leader + 1) % 3 };
        let others = [(alone + 1) % 3, (alone + 2) % 3];
        let waiting = wait_behind(&etcd, &waiter, "x", 1).await;
        let stranger = client_of(&etcd, &[alone]).await;
        others.iter().for_each(|other| network.cut(alone, *other));
        until_renewed(&guard).await;
        until_renewed(&guard).await;
        assert_grants_nothing(&stranger, "y").await;
        assert_says(
            soon(tenure::connect(
                &etcd.url_by(&[etcd.members[alone].address()]),
            ))
            .await,
            ErrorKind::Unreachable,
            &["no leader"],
        );
        let token = guard.token();
        soon(guard.release()).await.unwrap();
        guard = soon(waiting).await.unwrap().unwrap();
        assert!(guard.token() > token);
        others.iter().for_each(|other| network.join(alone, *other));
        etcd.until_ready();
        until_renewed(&guard).await;
        std::mem::swap(&mut holder, &mut waiter);
    }
    soon(guard.release()).await.unwrap();
}

/// Without a majority anywhere nothing is granted and nothing renewed; when it is back, all goes on.
#[tokio::test(flavor = "multi_thread")]
async fn each_is_alone() {
    let Some((etcd, network)) = start() else {
        return;
    };
    let (first, second) = (
        client_of(&etcd, &[0, 1, 2]).await,
        client_of(&etcd, &[0, 1, 2]).await,
    );
    let guard = take(&first, "x", TTL).await;
    let waiting = wait_behind(&etcd, &second, "x", 1).await;
    let pairs = [(0, 1), (1, 2), (2, 0)];
    pairs
        .iter()
        .for_each(|(one, other)| network.cut(*one, *other));
    assert_eq!(soon(guard.lost()).await, LostReason::Expired);
    assert_grants_nothing(&first, "y").await;
    pairs
        .iter()
        .for_each(|(one, other)| network.join(*one, *other));
    etcd.until_ready();
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
