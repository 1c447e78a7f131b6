//! Shared and upgradable holds, upgrades and `min_hold` over several stores, of which single ones fail.

use std::sync::Arc;
use std::time::Duration;

use tenure::error::Step;
use tenure::majority;
use tenure::memory::{self, Disturbance};
use tenure::store::{Answer, Hold, Request, Store as _};
use tenure::{Client, Guard, HoldState, Holder, LockName, Mode, OwnerId};

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

/// The modes of the holds that each node has, in the order of their tokens.
fn modes(nodes: &[memory::Store]) -> Vec<Vec<Mode>> {
    let name = LockName::new("a").unwrap();
    let modes = |node: &memory::Store| {
        let status = node.status(&name);
        status.holds.iter().map(|hold| hold.mode).collect()
    };
    nodes.iter().map(modes).collect()
}

/// Another holder acquires the name on one node alone.
async fn take_alone(node: &memory::Store, mode: Mode, propose: Option<u64>) -> Hold {
    let mut request = Request::new(LockName::new("a").unwrap(), OwnerId::random(), TTL * 10);
    (request.mode, request.propose) = (mode, propose);
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

fn assert_idle(nodes: &[memory::Store]) {
    assert!(
        nodes.iter().all(memory::Store::is_idle),
        "{:?}",
        modes(nodes)
    );
}

async fn upgradable(client: &Client) -> Arc<Guard> {
    let lock = client.lock("a").ttl(TTL).upgradable();
    Arc::new(lock.try_acquire().await.unwrap().unwrap())
}

/// Readers of several clients that start at the same time, on nodes whose last tokens differ.
#[tokio::test]
async fn no_two_readers_have_the_same_token() {
    let nodes = nodes(3);
    for (node, ahead) in nodes.iter().zip([0, 1 << 60, 1 << 61]) {
        let hold = take_alone(node, Mode::Exclusive, Some(ahead)).await;
        Arc::new(node.clone()).release(hold).await.unwrap();
    }
    // Replies are late in different orders.
    for late in 1..5 {
        let late = Duration::from_micros(100 * late);
        nodes[(late.subsec_micros() / 100) as usize % 3]
            .disturb(Step::Acquire, Disturbance::Late(late));
    }
    let clients: Vec<_> = (0..4).map(|_| client(&nodes)).collect();
    let readers = clients.iter().map(|client| {
        let lock = client.lock("a").ttl(TTL).shared();
        tokio::spawn(async move { lock.acquire().await })
    });
    let readers: Vec<_> = readers.collect();
    advance(&nodes, Duration::from_millis(1)).await;
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.unwrap().unwrap());
    }
    let mut tokens: Vec<_> = guards.iter().map(|guard| guard.token()).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), clients.len());
    let status = clients[0].inspect("a").await.unwrap();
    let mut shown: Vec<_> = status.holds.iter().filter_map(|hold| hold.token).collect();
    shown.sort_unstable();
    assert_eq!(shown, tokens, "{status:?}");
    let broken = clients[0].break_lock("a", tokens[1].get()).await.unwrap();
    assert!(broken);
    settle().await;
    let held: Vec<_> = guards.iter().filter(|guard| guard.is_held()).collect();
    assert_eq!(held.len(), 3, "one of the readers was ended");
    assert!(held.iter().all(|guard| guard.token() != tokens[1]));
    drop(held);
    for guard in guards {
        let _ = guard.release().await;
    }
    settle().await;
    let writer = clients[0].lock("a").ttl(TTL).try_acquire().await.unwrap();
    let writer = writer.unwrap();
    assert!(writer.token() > tokens[3]);
    writer.release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// Two readers have one node in common, which grants to both before one of them has agreed on a token, and the other
/// nodes would give the same token to each of them.
#[tokio::test]
async fn readers_that_meet_in_one_node_agree_on_different_tokens() {
    let nodes = nodes(3);
    for node in [&nodes[0], &nodes[2]] {
        let hold = take_alone(node, Mode::Exclusive, Some(1 << 60)).await;
        Arc::new(node.clone()).release(hold).await.unwrap();
    }
    let millis = |millis| Disturbance::Late(Duration::from_millis(millis));
    for (node, first, second) in [
        (0, millis(1), Disturbance::RequestLost),
        (2, Disturbance::RequestLost, millis(2)),
    ] {
        nodes[node].disturb(Step::Acquire, first);
        nodes[node].disturb(Step::Acquire, second);
    }
    let mut readers = Vec::new();
    for _ in 0..2 {
        let lock = client(&nodes).lock("a").ttl(TTL).shared();
        readers.push(tokio::spawn(async move { lock.try_acquire().await }));
        settle().await;
    }
    advance(&nodes, Duration::from_millis(32)).await;
    let mut tokens = Vec::new();
    for reader in &mut readers {
        let guard = reader.await.unwrap().unwrap().unwrap();
        tokens.push(guard.token().get());
        guard.release().await.unwrap();
    }
    assert!(tokens[0] > 1 << 60 && tokens[1] > tokens[0], "{tokens:?}");
}

/// A reader of a bare majority keeps a writer out, whichever node is missing.
#[tokio::test]
async fn a_reader_on_two_of_three_nodes_excludes_writers() {
    for missing in 0..3 {
        let nodes = nodes(3);
        let (reader, writer) = (client(&nodes), client(&nodes));
        let alone = take_alone(&nodes[missing], Mode::Exclusive, None).await;
        let lock = reader.lock("a").ttl(TTL).shared();
        let guard = lock.try_acquire().await.unwrap().unwrap();
        Arc::new(nodes[missing].clone())
            .release(alone)
            .await
            .unwrap();
        let refused = writer.lock("a").ttl(TTL).try_acquire().await.unwrap();
        assert!(refused.is_none());
        settle().await;
        let beside = writer.lock("a").ttl(TTL).shared();
        let beside = beside.try_acquire().await.unwrap().unwrap();
        assert_ne!(beside.token(), guard.token());
        for guard in [guard, beside] {
            guard.release().await.unwrap();
        }
        settle().await;
        assert_idle(&nodes);
    }
}

/// A writer keeps its place at each node, so readers that come later wait behind it.
#[tokio::test]
async fn a_waiting_writer_is_not_overtaken() {
    let nodes = nodes(3);
    let (reader, writer, late) = (client(&nodes), client(&nodes), client(&nodes));
    let first = reader.lock("a").ttl(TTL).shared().acquire().await.unwrap();
    let lock = writer.lock("a").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    for _ in 0..3 {
        let refused = late.lock("a").ttl(TTL).shared().try_acquire().await;
        assert!(refused.unwrap().is_none(), "a reader overtook the writer");
        advance(&nodes, TTL).await;
    }
    first.release().await.unwrap();
    settle().await;
    waiting.await.unwrap().unwrap().release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// Two contenders for the upgradable hold have some nodes each; one gives its nodes back, and both have it in the end.
#[tokio::test]
async fn upgradable_holders_of_minorities_do_not_block_each_other() {
    let nodes = nodes(3);
    let alone = take_alone(&nodes[2], Mode::Exclusive, None).await;
    nodes[0].disturb(Step::Acquire, Disturbance::Late(Duration::from_micros(100)));
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let client = client(&nodes);
        let lock = client.lock("a").ttl(TTL).upgradable();
        waiting.push(tokio::spawn(async move {
            let guard = lock.acquire().await?;
            guard.upgrade().await?;
            guard.release().await
        }));
        settle().await;
    }
    for _ in 0..2_000 {
        if waiting.iter().all(|task| task.is_finished()) {
            break;
        }
        nodes[0].advance(Duration::from_millis(1));
        settle().await;
    }
    for task in waiting {
        assert!(task.is_finished(), "no contender gave its nodes back");
        task.await.unwrap().unwrap();
    }
    Arc::new(nodes[2].clone()).release(alone).await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// A reader of a bare majority keeps an upgrade waiting, whichever node it does not have.
#[tokio::test]
async fn an_upgrade_waits_for_a_reader_on_two_of_three_nodes() {
    for missing in 0..3 {
        let nodes = nodes(3);
        let (reader, holder) = (client(&nodes), client(&nodes));
        let alone = take_alone(&nodes[missing], Mode::Exclusive, None).await;
        let lock = reader.lock("a").ttl(TTL).shared();
        let first = lock.try_acquire().await.unwrap().unwrap();
        Arc::new(nodes[missing].clone())
            .release(alone)
            .await
            .unwrap();
        let guard = upgradable(&holder).await;
        settle().await;
        let before = guard.token().max(first.token());
        let task = guard.clone();
        let upgrading = tokio::spawn(async move { task.upgrade().await });
        settle().await;
        assert_eq!(modes(&nodes)[missing], [Mode::Exclusive]);
        advance(&nodes, TTL * 2).await;
        assert!(!upgrading.is_finished() && guard.mode() == Mode::Upgradable);
        assert!(first.is_held() && guard.is_held());
        first.release().await.unwrap();
        settle().await;
        upgrading.await.unwrap().unwrap();
        assert_eq!(guard.mode(), Mode::Exclusive);
        assert!(guard.token() > before);
        let status = reader.inspect("a").await.unwrap();
        assert_eq!(status.holds.len(), 1, "{status:?}");
        assert_eq!(status.holds[0].mode, Mode::Exclusive);
        assert_eq!(status.holds[0].token, Some(guard.token()));
        assert!(
            reader
                .lock("a")
                .shared()
                .try_acquire()
                .await
                .unwrap()
                .is_none()
        );
        Arc::into_inner(guard).unwrap().release().await.unwrap();
        settle().await;
        assert_idle(&nodes);
    }
}

/// An upgrade that is dropped, after some nodes have made the hold exclusive.
#[tokio::test]
async fn a_dropped_upgrade_goes_back_on_all_nodes() {
    let nodes = nodes(3);
    let (holder, reader) = (client(&nodes), client(&nodes));
    let guard = upgradable(&holder).await;
    settle().await;
    let mut alone = Vec::new();
    for node in &nodes[1..] {
        alone.push(take_alone(node, Mode::Shared, None).await);
    }
    let task = guard.clone();
    let upgrading = tokio::spawn(async move { task.upgrade().await });
    settle().await;
    assert_eq!(modes(&nodes)[0], [Mode::Exclusive]);
    upgrading.abort();
    settle().await;
    assert_eq!(modes(&nodes)[0], [Mode::Upgradable]);
    let beside = reader.lock("a").ttl(TTL).shared().try_acquire().await;
    beside.unwrap().unwrap().release().await.unwrap();
    assert!(guard.is_held() && guard.mode() == Mode::Upgradable);
    // One that does not wait.
    assert!(!guard.try_upgrade().await.unwrap());
    settle().await;
    assert_eq!(modes(&nodes)[0], [Mode::Upgradable]);
    for (node, hold) in nodes[1..].iter().zip(alone) {
        Arc::new(node.clone()).release(hold).await.unwrap();
    }
    assert!(guard.try_upgrade().await.unwrap());
    settle().await;
    assert_eq!(modes(&nodes), vec![[Mode::Exclusive]; 3]);
    Arc::into_inner(guard).unwrap().release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// A node that forgets the hold gets it back as it is now.
#[tokio::test]
async fn a_repaired_node_has_the_present_mode() {
    let nodes = nodes(3);
    let client = client(&nodes);
    let guard = upgradable(&client).await;
    let forget = async |node: usize| {
        nodes[node].restart(Duration::ZERO);
        advance(&nodes, TTL / 2).await;
        assert!(guard.is_held());
    };
    forget(0).await;
    assert_eq!(modes(&nodes), vec![[Mode::Upgradable]; 3]);
    guard.upgrade().await.unwrap();
    forget(1).await;
    assert_eq!(modes(&nodes), vec![[Mode::Exclusive]; 3]);
    guard.downgrade().await.unwrap();
    forget(2).await;
    assert_eq!(modes(&nodes), vec![[Mode::Shared]; 3]);
    Arc::into_inner(guard).unwrap().release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// A node that is silent takes part when it answers again: in an upgrade, and in a downgrade.
#[tokio::test]
async fn a_silent_node_follows_later() {
    let nodes = nodes(3);
    let client = client(&nodes);
    let guard = upgradable(&client).await;
    settle().await;
    nodes[1].pause();
    guard.upgrade().await.unwrap();
    assert_eq!(modes(&nodes)[1], [Mode::Upgradable]);
    nodes[1].resume();
    settle().await;
    assert_eq!(modes(&nodes), vec![[Mode::Exclusive]; 3]);
    nodes[2].pause();
    guard.downgrade().await.unwrap();
    assert_eq!(modes(&nodes)[2], [Mode::Exclusive]);
    nodes[2].resume();
    settle().await;
    assert_eq!(modes(&nodes), vec![[Mode::Shared]; 3]);
    Arc::into_inner(guard).unwrap().release().await.unwrap();
    settle().await;
    assert_idle(&nodes);
}

/// Nodes where the hold is still upgradable do not count for an exclusive claim: with one of its nodes too few left,
/// the hold is lost.
#[tokio::test]
async fn an_exclusive_claim_ends_with_its_majority() {
    for is_restarted in [false, true] {
        let nodes = nodes(5);
        let client = client(&nodes);
        let guard = upgradable(&client).await;
        settle().await;
        for node in &nodes[3..] {
            take_alone(node, Mode::Shared, None).await;
        }
        guard.upgrade().await.unwrap();
        let modes = modes(&nodes);
        assert_eq!(modes[..3], vec![[Mode::Exclusive]; 3]);
        assert_eq!(modes[3..], vec![[Mode::Upgradable, Mode::Shared]; 2]);
        if is_restarted {
            nodes[0].restart(TTL * 2);
        }
        advance(&nodes, TTL * 2).await;
        let expected = if is_restarted { 0 } else { 1 };
        assert_eq!(usize::from(guard.state() == HoldState::Held), expected);
    }
}

/// The answers to an upgrade are lost on a minority, and on all nodes.
#[tokio::test]
async fn an_upgrade_whose_answers_are_lost() {
    for count in [1, 3] {
        for fault in [Disturbance::RequestLost, Disturbance::ReplyLost] {
            let nodes = nodes(3);
            let client = client(&nodes);
            let guard = upgradable(&client).await;
            settle().await;
            let failing = nodes[..count].iter();
            failing.for_each(|node| node.disturb(Step::Upgrade, fault));
            let upgraded = guard.upgrade().await;
            assert_eq!(upgraded.is_ok(), count == 1, "{upgraded:?}");
            advance(&nodes, TTL).await;
            let expected = match count {
                1 => Mode::Exclusive,
                _ => Mode::Upgradable,
            };
            assert_eq!(guard.mode(), expected);
            assert_eq!(modes(&nodes), vec![[expected]; 3], "{fault:?}");
            guard.upgrade().await.unwrap();
            Arc::into_inner(guard).unwrap().release().await.unwrap();
            settle().await;
            assert_idle(&nodes);
        }
    }
}

/// What is kept for `min_hold`, and what is not.
mod min_hold {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    async fn is_free(client: &Client) -> bool {
        let tried = client.lock("a").ttl(TTL).try_acquire().await.unwrap();
        match tried {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    }

    /// The name stays taken although a minority forgets it, misses the release, or has the hold for the first time late.
    #[tokio::test]
    async fn a_minority_may_forget() {
        let nodes = nodes(3);
        let (first, second) = (client(&nodes), client(&nodes));
        let lock = first.lock("a").ttl(TTL).min_hold(HOUR);
        let guard = lock.try_acquire().await.unwrap().unwrap();
        settle().await;
        for forgets in [1, 0] {
            nodes[forgets].restart(Duration::ZERO);
            advance(&nodes, TTL).await;
        }
        guard.release().await.unwrap();
        settle().await;
        let reserved = second.inspect("a").await.unwrap().reserved;
        assert!(reserved.is_some(), "{reserved:?}");
        nodes[2].restart(Duration::ZERO);
        nodes[0].advance(HOUR - TTL * 2 - Duration::from_secs(1));
        assert!(!is_free(&second).await);
        settle().await;
        // Nodes that were given the hold again later keep the name no longer than the others.
        nodes[0].advance(Duration::from_secs(1));
        assert!(is_free(&second).await);
        settle().await;
        assert_idle(&nodes);
    }

    #[tokio::test]
    async fn a_release_that_a_node_misses() {
        let nodes = nodes(3);
        let (first, second) = (client(&nodes), client(&nodes));
        let lock = first.lock("a").ttl(TTL).min_hold(HOUR);
        let guard = lock.try_acquire().await.unwrap().unwrap();
        settle().await;
        nodes[0].pause();
        guard.release().await.unwrap();
        advance(&nodes, TTL * 2).await;
        assert!(!is_free(&second).await);
        nodes[0].resume();
        advance(&nodes, TTL * 2).await;
        assert!(!is_free(&second).await);
        nodes[0].advance(HOUR);
        assert!(is_free(&second).await);
        settle().await;
        assert_idle(&nodes);
    }

    /// A name that was not obtained stays free: a client that got too few nodes leaves no reservation there.
    #[tokio::test]
    async fn a_minority_that_is_given_back_is_free() {
        let nodes = nodes(3);
        let (first, second) = (client(&nodes), client(&nodes));
        let mut alone = Vec::new();
        for node in &nodes[1..] {
            alone.push(take_alone(node, Mode::Exclusive, None).await);
        }
        for is_shared in [false, true] {
            let mut lock = first.lock("a").ttl(TTL).min_hold(HOUR);
            if is_shared {
                lock = lock.shared();
            }
            assert!(lock.try_acquire().await.unwrap().is_none());
        }
        settle().await;
        for (node, hold) in nodes[1..].iter().zip(alone) {
            Arc::new(node.clone()).release(hold).await.unwrap();
        }
        assert!(is_free(&second).await);
        settle().await;
        let alone = take_alone(&nodes[0], Mode::Exclusive, None).await;
        Arc::new(nodes[0].clone()).release(alone).await.unwrap();
        assert_idle(&nodes);
    }
}

/// With n permits at each node, more than n clients can have a majority of the nodes.
#[tokio::test]
async fn a_majority_cannot_count_permits() {
    let nodes = nodes(3);
    let limit = std::num::NonZeroU32::new(2).unwrap();
    let permits = Mode::Permits { limit };
    for majority in [[0, 1], [1, 2], [2, 0]] {
        for node in majority {
            take_alone(&nodes[node], permits, None).await;
        }
    }
    let lock = client(&nodes).lock("a").permits(2);
    let refused = format!("{:#}", lock.try_acquire().await.unwrap_err());
    assert!(
        refused.contains("three clients can have two nodes each"),
        "{refused}"
    );
    assert!(refused.contains("`redis:`"), "{refused}");
}
