//! Holds that go on without their client, over several stores of which single ones fail.

use std::sync::Arc;
use std::time::Duration;

use tenure::error::Step;
use tenure::guarantees::{Capability, DetachedHolds};
use tenure::majority;
use tenure::memory::{self, Disturbance};
use tenure::store::{Answer, Hold, Request, Store as _};
use tenure::{
    Client, ErrorKind, Guard, HoldState, Holder, LockName, LostReason, Mode, OwnerId, Receipt,
};

const TTL: Duration = Duration::from_secs(30);

/// Stores on one virtual clock.
fn nodes(count: usize) -> Vec<memory::Store> {
    let first = memory::Store::with_virtual_clock();
    let others = (1..count).map(|_| first.beside());
    let others: Vec<_> = others.collect();
    [vec![first], others].concat()
}

fn client(nodes: &[memory::Store]) -> Client {
    let nodes = nodes.iter().map(|node| Arc::new(node.clone()) as _);
    let store = majority::Store::new(nodes.collect(), majority::Settings::default()).unwrap();
    Client::from_dyn_store(store).unwrap()
}

/// Lets every task run until all of them wait.
async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Moves the clock in steps that are shorter than the time between renewals.
async fn advance(nodes: &[memory::Store], time: Duration) {
    for _ in 0..32 {
        settle().await;
        nodes[0].advance(time / 32);
    }
    settle().await;
}

/// The tokens under which each node says that the name is held.
fn tokens(nodes: &[memory::Store]) -> Vec<Option<u64>> {
    let name = LockName::new("a").unwrap();
    let token = |node: &memory::Store| {
        let status = node.status(&name);
        let hold = status.holds.first();
        hold.and_then(|hold| hold.token).map(u64::from)
    };
    nodes.iter().map(token).collect()
}

/// Another holder acquires the name on one node alone.
async fn take_alone(node: &memory::Store) -> Hold {
    let mut request = Request::new(LockName::new("a").unwrap(), OwnerId::random(), TTL * 10);
    request.holder = Arc::new(Holder::new("elsewhere", 1));
    let request = Arc::new(request);
    match Arc::new(node.clone())
        .acquire(request.clone())
        .await
        .unwrap()
    {
        Answer::Granted(grant) => Hold::new(&request, grant.token),
        other => panic!("{other:?}"),
    }
}

async fn release_alone(node: &memory::Store, hold: Hold) {
    Arc::new(node.clone()).release(hold).await.unwrap();
}

fn assert_idle(nodes: &[memory::Store]) {
    assert!(
        nodes.iter().all(memory::Store::is_idle),
        "{:?}",
        tokens(nodes)
    );
}

/// A receipt of a hold that has no client any more.
async fn detached(nodes: &[memory::Store]) -> Receipt {
    let client = client(nodes);
    let receipt = detached_from(&client).await;
    client.close().await;
    settle().await;
    receipt
}

async fn detached_from(client: &Client) -> Receipt {
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    settle().await;
    guard.detach().await.unwrap()
}

/// Whether the name is free for another client.
async fn is_free(nodes: &[memory::Store]) -> bool {
    let guard = client(nodes).lock("a").try_acquire().await.unwrap();
    guard.is_some()
}

#[tokio::test]
async fn a_hold_is_handed_over_on_all_nodes() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let token = receipt.token().get();
    assert_eq!(tokens(&nodes), [Some(token); 3]);
    assert!(!is_free(&nodes).await);
    let second = client(&nodes);
    let guard = second.attach(&receipt).await.unwrap();
    assert_eq!(guard.token().get(), token);
    assert_eq!(second.inspect("a").await.unwrap().nodes, Some((3, 3)));
    advance(&nodes, TTL * 3).await;
    assert_eq!(guard.state(), HoldState::Held, "it is renewed");
    guard.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

#[tokio::test]
async fn a_minority_may_fail_in_any_way() {
    let troubles = [
        Disturbance::RequestLost,
        Disturbance::ReplyLost,
        Disturbance::ReplyNever,
        Disturbance::Late(TTL / 100),
    ];
    for step in [Step::Detach, Step::Attach] {
        for one in troubles {
            for other in troubles {
                let nodes = nodes(5);
                nodes[1].disturb(step, one);
                nodes[3].disturb(step, other);
                let (first, second) = (client(&nodes), client(&nodes));
                let receipt = detached_from(&first).await;
                let guard = second.attach(&receipt).await.unwrap();
                advance(&nodes, TTL * 2).await;
                assert_eq!(guard.state(), HoldState::Held, "{step:?} {one:?} {other:?}");
                guard.release().await.unwrap();
                // A request that hangs does so until the node answers again.
                nodes.iter().for_each(memory::Store::resume);
                advance(&nodes, TTL * 2).await;
                assert_idle(&nodes);
            }
        }
    }
}

/// A node that was not reached by the detach keeps the lease of the last renewal, and the others are enough.
#[tokio::test]
async fn one_node_is_down_all_the_time() {
    let nodes = nodes(3);
    let client_before = client(&nodes);
    let guard = client_before.lock("a").ttl(TTL).acquire().await.unwrap();
    settle().await;
    nodes[2].pause();
    let receipt = guard.detach().await.unwrap();
    let second = client(&nodes);
    let guard = second.attach(&receipt).await.unwrap();
    advance(&nodes, TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await.unwrap();
    nodes[2].resume();
    advance(&nodes, TTL * 2).await;
    assert_idle(&nodes);
}

#[tokio::test]
async fn a_majority_that_is_down_loses_nothing() {
    for (fault, expected) in [
        (Disturbance::RequestLost, ErrorKind::Unreachable),
        (Disturbance::ReplyLost, ErrorKind::Indeterminate),
    ] {
        let nodes = nodes(3);
        let receipt = detached(&nodes).await;
        let second = client(&nodes);
        nodes[1..]
            .iter()
            .for_each(|it| it.disturb(Step::Attach, fault));
        let err = second.attach(&receipt).await.unwrap_err();
        assert_eq!(err.kind(), expected, "{err:#}");
        assert!(format!("{err:#}").contains("2 of 3 nodes"), "{err:#}");
        settle().await;
        second.close().await;
        assert_eq!(tokens(&nodes), [Some(receipt.token().get()); 3]);
        let guard = client(&nodes).attach(&receipt).await.unwrap();
        guard.release().await.unwrap();
        settle().await;
        assert_idle(&nodes);
    }
}

/// Silent nodes cost an attach as much as an attempt to acquire, however long the lease is.
#[tokio::test]
async fn a_silent_majority_is_not_waited_for() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await.with_ttl(TTL * 100);
    nodes[1..].iter().for_each(memory::Store::pause);
    let second = client(&nodes);
    let attaching = tokio::spawn(async move { second.attach(&receipt).await.map(drop) });
    settle().await;
    assert!(!attaching.is_finished());
    nodes[0].advance(majority::MAX_NODE_TIMEOUT);
    let err = attaching.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err}");
}

/// Nothing is written down after that, so the hold ends.
#[tokio::test]
async fn a_detach_without_a_majority_releases() {
    for fault in [Disturbance::RequestLost, Disturbance::ReplyLost] {
        let nodes = nodes(3);
        let client = client(&nodes);
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        settle().await;
        nodes[1..]
            .iter()
            .for_each(|it| it.disturb(Step::Detach, fault));
        let err = guard.detach().await.unwrap_err();
        assert!(!err.is_lost(), "{err}");
        settle().await;
        assert_idle(&nodes);
    }
}

/// Of two names, one may fail to be detached: then the other is released too.
#[tokio::test]
async fn a_hold_that_was_detached_can_still_be_released() {
    let nodes = nodes(3);
    let client = client(&nodes);
    let guard = client
        .lock_all(["a", "b"])
        .ttl(TTL)
        .acquire()
        .await
        .unwrap();
    settle().await;
    for node in &nodes[1..] {
        node.disturb(Step::Detach, Disturbance::Late(Duration::ZERO));
        node.disturb(Step::Detach, Disturbance::RequestLost);
    }
    let detaching = tokio::spawn(guard.detach());
    advance(&nodes, Duration::from_millis(1)).await;
    assert!(!detaching.await.unwrap().unwrap_err().is_lost());
    settle().await;
    assert_idle(&nodes);
}

#[tokio::test]
async fn an_attach_after_the_release_touches_nothing() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let second = client(&nodes);
    let guard = second.attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
    settle().await;
    for is_taken in [false, true] {
        let other = client(&nodes);
        let other = match is_taken {
            true => other.lock("a").ttl(TTL).try_acquire().await.unwrap(),
            false => None,
        };
        settle().await;
        let before = tokens(&nodes);
        let err = second.attach(&receipt).await.unwrap_err();
        assert!(err.is_lost(), "{err}");
        settle().await;
        assert_eq!(tokens(&nodes), before);
        assert!(other.is_none_or(|guard| guard.is_held()));
    }
}

/// The definite answer of two nodes is worth waiting for, also if the third one fails at once.
#[tokio::test]
async fn an_attach_after_the_release_is_lost_without_one_node() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let guard = client(&nodes).attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
    settle().await;
    nodes[0].disturb(Step::Attach, Disturbance::RequestLost);
    nodes[2].disturb(Step::Attach, Disturbance::Late(Duration::from_millis(5)));
    let late = client(&nodes);
    let attaching = tokio::spawn(async move { late.attach(&receipt).await });
    advance(&nodes, Duration::from_millis(10)).await;
    let err = attaching.await.unwrap().unwrap_err();
    assert!(err.is_lost(), "{err}");
}

/// Where the hold is missing, another attached client may have released it.
#[tokio::test]
async fn a_node_that_has_lost_the_hold_stays_without() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let token = Some(receipt.token().get());
    nodes[2].restart(Duration::ZERO);
    let second = client(&nodes);
    let guard = second.attach(&receipt).await.unwrap();
    advance(&nodes, TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(tokens(&nodes), [token, token, None]);
    // Another holder has that node alone, and a release does not touch it.
    let other = take_alone(&nodes[2]).await;
    guard.release().await.unwrap();
    settle().await;
    assert_eq!(tokens(&nodes), [None, None, Some(other.token)]);
    release_alone(&nodes[2], other).await;
    assert_idle(&nodes);
}

#[tokio::test]
async fn a_majority_that_has_lost_the_hold_is_a_loss() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let token = Some(receipt.token().get());
    nodes[1..]
        .iter()
        .for_each(|node| node.restart(Duration::ZERO));
    let second = client(&nodes);
    let err = second.attach(&receipt).await.unwrap_err();
    assert!(err.is_lost(), "{err}");
    settle().await;
    second.close().await;
    assert_eq!(tokens(&nodes), [token, None, None], "nothing was released");
}

#[tokio::test]
async fn a_shorter_ttl_does_not_shorten_the_lease() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let second = client(&nodes);
    let guard = second
        .attach(receipt.clone().with_ttl(TTL / 10))
        .await
        .unwrap();
    assert!(guard.remaining() <= TTL / 10);
    settle().await;
    let again = guard.detach().await.unwrap();
    assert_eq!(again.ttl(), TTL / 10);
    advance(&nodes, TTL / 2).await;
    assert!(!is_free(&nodes).await);
    advance(&nodes, TTL).await;
    assert!(is_free(&nodes).await, "the lease is over");
    settle().await;
    let err = second.attach(&receipt).await.unwrap_err();
    assert!(err.is_lost(), "{err}");
}

#[tokio::test]
async fn one_of_two_attached_clients_releases() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let (second, third) = (client(&nodes), client(&nodes));
    let one = second.attach(&receipt).await.unwrap();
    let other = third.attach(&receipt).await.unwrap();
    advance(&nodes, TTL).await;
    assert!(one.is_held() && other.is_held());
    one.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
    let next = client(&nodes);
    let next = next
        .lock("a")
        .ttl(TTL)
        .try_acquire()
        .await
        .unwrap()
        .unwrap();
    advance(&nodes, TTL / 2).await;
    assert_eq!(other.lost().await, Some(LostReason::StoreSaysNo));
    assert!(other.release().await.unwrap_err().is_lost());
    third.close().await;
    advance(&nodes, TTL).await;
    assert_eq!(next.state(), HoldState::Held);
    next.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// A client that is closed leaves the hold to the other one, and so does a client whose lease is over.
#[tokio::test]
async fn the_end_of_an_attached_client_ends_nothing() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let (second, third) = (client(&nodes), client(&nodes));
    let one = second.attach(&receipt).await.unwrap();
    let other = third.attach(&receipt).await.unwrap();
    second.close().await;
    settle().await;
    assert!(one.release().await.is_err());
    settle().await;
    advance(&nodes, TTL * 2).await;
    assert_eq!(other.state(), HoldState::Held);
    assert_eq!(third.inspect("a").await.unwrap().nodes, Some((3, 3)));
    other.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// What nodes report about the hold of an attached client counts as always: when no majority is left.
#[tokio::test]
async fn losses_are_reported_to_an_attached_client() {
    let nodes = nodes(3);
    let receipt = detached(&nodes).await;
    let second = client(&nodes);
    let guard = second.attach(&receipt).await.unwrap();
    let name = || LockName::new("a").unwrap();
    let token = receipt.token().get();
    let break_on = |node: &memory::Store| {
        let store: Arc<dyn tenure::store::Store> = Arc::new(node.clone());
        store.break_lock(name(), token)
    };
    assert!(break_on(&nodes[0]).await.unwrap());
    settle().await;
    assert_eq!(guard.state(), HoldState::Held);
    assert!(break_on(&nodes[1]).await.unwrap());
    settle().await;
    assert_eq!(guard.lost().await, Some(LostReason::TakenOver));
    assert!(guard.release().await.unwrap_err().is_lost());
    settle().await;
    assert_eq!(tokens(&nodes), [None, None, Some(token)]);
}

/// A client that waited among others has given nodes back, and has the hold there under another owner id.
///
/// Others have the last two nodes.
async fn acquired_after_a_shortage(nodes: &[memory::Store], client: &Client) -> (Guard, Vec<Hold>) {
    let mut others = Vec::new();
    for node in &nodes[3..] {
        others.push(take_alone(node).await);
    }
    let third = take_alone(&nodes[2]).await;
    let lock = client.lock("a").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    assert!(tokens(nodes)[0].is_some());
    // Longer than each such pause.
    advance(nodes, Duration::from_secs(1)).await;
    assert_eq!(tokens(nodes)[0], None, "the nodes were given back");
    release_alone(&nodes[2], third).await;
    settle().await;
    (waiting.await.unwrap().unwrap(), others)
}

async fn release_others(nodes: &[memory::Store], others: Vec<Hold>) {
    for (node, hold) in nodes[3..].iter().zip(others) {
        release_alone(node, hold).await;
    }
    settle().await;
}

/// All nodes that have the hold are needed for the majority.
#[tokio::test]
async fn a_hold_is_found_under_other_owner_ids() {
    let nodes = nodes(5);
    let first = client(&nodes);
    let (guard, others) = acquired_after_a_shortage(&nodes, &first).await;
    settle().await;
    let receipt = guard.detach().await.unwrap();
    first.close().await;
    settle().await;
    let token = Some(receipt.token().get());
    assert_eq!(tokens(&nodes)[..3], [token; 3]);
    let second = client(&nodes);
    let guard = second.attach(&receipt).await.unwrap();
    advance(&nodes, TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await.unwrap();
    release_others(&nodes, others).await;
    assert_idle(&nodes);
}

#[tokio::test]
async fn a_hold_is_found_by_a_later_request() {
    let nodes = nodes(5);
    let first = client(&nodes);
    let (guard, others) = acquired_after_a_shortage(&nodes, &first).await;
    release_others(&nodes, others).await;
    let receipt = guard.detach().await.unwrap();
    first.close().await;
    settle().await;
    let second = client(&nodes);
    // One node says only after a renewal under which owner id it has the hold.
    nodes[1].disturb(Step::Attach, Disturbance::ReplyLost);
    let held = tokens(&nodes);
    let guard = second.attach(&receipt).await.unwrap();
    advance(&nodes, TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert_eq!(tokens(&nodes), held);
    guard.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// A release reaches a node that has not said under which owner id it has the hold.
#[tokio::test]
async fn a_release_ends_the_hold_under_every_owner_id() {
    let nodes = nodes(5);
    let first = client(&nodes);
    let (guard, others) = acquired_after_a_shortage(&nodes, &first).await;
    release_others(&nodes, others).await;
    let receipt = guard.detach().await.unwrap();
    let second = client(&nodes);
    nodes[1].disturb(Step::Attach, Disturbance::RequestLost);
    let guard = second.attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// A node that answers its grant after the detach keeps its part, because the node may have been counted.
#[tokio::test]
async fn a_grant_that_is_known_after_the_detach_stays() {
    let nodes = nodes(3);
    let first = client(&nodes);
    nodes[2].disturb(Step::Acquire, Disturbance::ReplyNever);
    let guard = first.lock("a").ttl(TTL).acquire().await.unwrap();
    settle().await;
    nodes[1].disturb(Step::Detach, Disturbance::RequestLost);
    // The task that waits for the grant runs after the detach.
    nodes[2].resume();
    let receipt = guard.detach().await.unwrap();
    settle().await;
    assert!(tokens(&nodes).iter().all(Option::is_some));
    advance(&nodes, TTL / 2).await;
    nodes[1].restart(Duration::ZERO);
    let guard = client(&nodes).attach(&receipt).await.unwrap();
    guard.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// A node where the hold is still upgradable lets readers in. An attached client could not tell, so the node gives the hold back.
#[tokio::test]
async fn a_node_that_did_not_follow_an_upgrade_gives_the_hold_back() {
    for is_silent in [false, true] {
        let nodes = nodes(3);
        let client_before = client(&nodes);
        let lock = client_before.lock("a").ttl(TTL).upgradable();
        let guard = lock.acquire().await.unwrap();
        settle().await;
        // The upgrade, and the repair by the renewal that follows.
        nodes[2].disturb(Step::Upgrade, Disturbance::RequestLost);
        nodes[2].disturb(Step::Upgrade, Disturbance::RequestLost);
        assert!(guard.try_upgrade().await.unwrap());
        if is_silent {
            nodes[2].disturb(Step::Release, Disturbance::RequestLost);
        }
        let detached = guard.detach().await;
        settle().await;
        match is_silent {
            false => {
                let receipt = detached.unwrap();
                assert_eq!(receipt.mode(), Mode::Exclusive);
                let token = Some(receipt.token().get());
                assert_eq!(tokens(&nodes), [token, token, None]);
                let guard = client(&nodes).attach(&receipt).await.unwrap();
                guard.release().await.unwrap();
            }
            true => assert!(!detached.unwrap_err().is_lost()),
        }
        settle().await;
        assert_idle(&nodes);
    }
}

#[tokio::test]
async fn readers_are_detached_too() {
    let nodes = nodes(3);
    let (first, second) = (client(&nodes), client(&nodes));
    let one = first.lock("a").ttl(TTL).shared().acquire().await.unwrap();
    let other = second.lock("a").ttl(TTL).shared().acquire().await.unwrap();
    settle().await;
    let receipt = one.detach().await.unwrap();
    assert_eq!(receipt.mode(), Mode::Shared);
    let guard = second.attach(&receipt).await.unwrap();
    other.release().await.unwrap();
    advance(&nodes, TTL * 2).await;
    assert_eq!(guard.state(), HoldState::Held);
    assert!(!is_free(&nodes).await);
    guard.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

#[test]
fn a_majority_detaches_what_each_node_does() {
    use DetachedHolds::{EachMode, Exclusive, None};
    for (of_nodes, expected) in [
        ([EachMode, EachMode, EachMode], EachMode),
        ([EachMode, Exclusive, EachMode], Exclusive),
        ([EachMode, Exclusive, None], None),
    ] {
        let of_nodes = of_nodes.map(|detached| {
            let mut node = memory::guarantees();
            node.detached = detached;
            node
        });
        let majority = majority::guarantees(&of_nodes);
        assert_eq!(majority.detached, expected);
        assert_eq!(Capability::Detach.is_in(&majority), expected != None);
    }
}
