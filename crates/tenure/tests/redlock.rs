//! One lock over several stores, of which single ones fail. (The conformance suite shows what happens when all of them
//! fail in the same way.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tenure::error::Step;
use tenure::guarantees::{Fault, Promise};
use tenure::majority;
use tenure::memory::{self, Disturbance};
use tenure::store::{self, Answer, Hold, Release, Request, Severity, Store as _};
use tenure::{Client, ErrorKind, HoldState, Holder, LockName, LostReason, OwnerId, Renew};
use tenure_core::rt;

const TTL: Duration = Duration::from_secs(30);

/// Stores on one virtual clock.
fn nodes(count: usize) -> Vec<memory::Store> {
    let first = memory::Store::with_virtual_clock();
    let others = (1..count).map(|_| first.beside());
    let others: Vec<_> = others.collect();
    [vec![first], others].concat()
}

fn over(nodes: &[memory::Store]) -> Arc<majority::Store> {
    let nodes = nodes.iter().map(|node| Arc::new(node.clone()) as _);
    majority::Store::new(nodes.collect(), majority::Settings::default()).unwrap()
}

fn client(nodes: &[memory::Store]) -> Client {
    Client::from_dyn_store(over(nodes)).unwrap()
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

/// The token under which each node says that the name is held.
async fn tokens(nodes: &[memory::Store], name: &str) -> Vec<Option<u64>> {
    let mut tokens = Vec::new();
    for node in nodes {
        let status = Arc::new(node.clone())
            .inspect(LockName::new(name).unwrap())
            .await
            .unwrap();
        let hold = status.holds.first();
        tokens.push(hold.and_then(|hold| hold.token).map(u64::from));
    }
    tokens
}

/// Another holder acquires the name on one node alone.
async fn take_alone(node: &memory::Store, name: &str, propose: Option<u64>) -> Hold {
    static NEXT_PID: AtomicU32 = AtomicU32::new(1);
    let mut request = Request::new(LockName::new(name).unwrap(), OwnerId::random(), TTL);
    request.propose = propose;
    request.holder = Arc::new(Holder::new("elsewhere", NEXT_PID.fetch_add(1, Relaxed)));
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

fn are_idle(nodes: &[memory::Store]) -> bool {
    nodes.iter().all(memory::Store::is_idle)
}

#[tokio::test]
async fn a_minority_may_fail_in_any_way() {
    let troubles = [
        Disturbance::RequestLost,
        Disturbance::ReplyLost,
        Disturbance::ReplyNever,
        Disturbance::Late(TTL / 100),
    ];
    for step in [Step::Acquire, Step::Renew, Step::Release] {
        for one in troubles {
            for other in troubles {
                let nodes = nodes(5);
                let client = client(&nodes);
                nodes[1].disturb(step, one);
                nodes[3].disturb(step, other);
                let guard = client.lock("a").ttl(TTL).try_acquire().await.unwrap();
                let guard = guard.unwrap_or_else(|| panic!("{step:?} {one:?} {other:?}"));
                advance(&nodes, TTL * 2).await;
                assert_eq!(guard.state(), HoldState::Held, "{step:?} {one:?} {other:?}");
                guard.release().await.unwrap();
                // A request that hangs does so until the node answers again.
                nodes.iter().for_each(memory::Store::resume);
                advance(&nodes, TTL * 2).await;
                assert!(are_idle(&nodes), "{step:?} {one:?} {other:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_majority_that_fails_is_an_error_that_leaves_nothing() {
    for (request_fault, expected) in [
        (Disturbance::RequestLost, ErrorKind::Unreachable),
        (Disturbance::ReplyLost, ErrorKind::Indeterminate),
    ] {
        let nodes = nodes(5);
        let client = client(&nodes);
        let failing = || nodes[..3].iter();
        failing().for_each(|node| node.disturb(Step::Acquire, request_fault));
        let err = client.lock("a").acquire().await.unwrap_err();
        assert_eq!(err.kind(), expected, "{err}");
        assert!(format!("{err:#}").contains("3 of 5 nodes"), "{err}");
        settle().await;
        assert!(are_idle(&nodes));
        let guard = client.lock("a").acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn silent_nodes_cost_their_limit_only_when_they_are_needed() {
    let nodes = nodes(5);
    let client = client(&nodes);
    nodes[..2].iter().for_each(memory::Store::pause);
    // No time passes: the other nodes are a majority.
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    guard.release().await.unwrap();
    nodes[2].pause();
    let lock = client.lock("a").ttl(TTL);
    let trying = tokio::spawn(async move { lock.try_acquire().await.map(drop) });
    settle().await;
    assert!(!trying.is_finished());
    nodes[0].advance(majority::MAX_NODE_TIMEOUT);
    let err = trying.await.unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err}");
    nodes.iter().for_each(memory::Store::resume);
    settle().await;
    assert!(are_idle(&nodes));
}

/// Two clients, of which the first has three of five nodes, and one of the three restarts and forgets it.
async fn claims_after_a_restart(guard: Duration) -> usize {
    let nodes = nodes(5);
    let (first, second) = (client(&nodes), client(&nodes));
    let d = take_alone(&nodes[3], "a", None).await;
    let e = take_alone(&nodes[4], "a", None).await;
    let one = first.lock("a").ttl(TTL).try_acquire().await.unwrap();
    for (node, hold) in nodes[3..].iter().zip([d, e]) {
        Arc::new(node.clone()).release(hold).await.unwrap();
    }
    nodes[2].restart(guard);
    let other = second.lock("a").ttl(TTL).try_acquire().await.unwrap();
    [one, other]
        .iter()
        .flatten()
        .filter(|guard| guard.is_held())
        .count()
}

/// D1: a node that forgets its holds lets two clients hold the name, unless the restart guard is on.
#[tokio::test]
async fn a_node_that_was_restarted_has_no_vote() {
    assert_eq!(claims_after_a_restart(TTL).await, 1);
    assert_eq!(
        claims_after_a_restart(Duration::ZERO).await,
        2,
        "the rule is off"
    );
}

/// D2: a renewal restores the hold on a node that has lost it.
#[tokio::test]
async fn renewal_heals_and_never_steals() {
    let nodes = nodes(5);
    let client = client(&nodes);
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    let token = guard.token().get();
    nodes[1].restart(Duration::ZERO);
    nodes[4].restart(Duration::ZERO);
    let other = take_alone(&nodes[4], "a", None).await;
    let seen = client.inspect("a").await.unwrap();
    assert!(seen.is_held());
    assert_eq!(seen.nodes, Some((3, 5)));
    advance(&nodes, TTL / 2).await;
    let tokens = tokens(&nodes, "a").await;
    assert_eq!(tokens[..4], [Some(token); 4]);
    assert_eq!(tokens[4], Some(other.token), "the node had another holder");
    assert_eq!(client.inspect("a").await.unwrap().nodes, Some((4, 5)));
    // The other holder's lease runs out, and the node is ours again.
    advance(&nodes, TTL).await;
    assert_eq!(client.inspect("a").await.unwrap().nodes, Some((5, 5)));
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await.unwrap();
    Arc::new(nodes[4].clone()).release(other).await.unwrap();
    settle().await;
    assert!(are_idle(&nodes));
}

#[tokio::test]
async fn a_hold_is_lost_with_the_majority() {
    let nodes = nodes(3);
    let client = client(&nodes);
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    nodes[..2].iter().for_each(|node| node.restart(TTL));
    advance(&nodes, TTL / 2).await;
    assert_eq!(guard.lost().await, Some(LostReason::StoreSaysNo));
    assert!(guard.release().await.unwrap_err().is_lost());
    settle().await;
    assert!(are_idle(&nodes));
}

#[tokio::test]
async fn all_nodes_know_the_greatest_token() {
    let nodes = nodes(3);
    let ahead = 1 << 60; // decades ahead of the clocks
    for node in 0..3 {
        let ahead = ahead + 1_000 * node;
        let node = &nodes[node as usize];
        let hold = take_alone(node, "a", Some(ahead)).await;
        Arc::new(node.clone()).release(hold).await.unwrap();
    }
    let client = client(&nodes);
    let mut last = 0;
    for round in 0..3 {
        let guard = client.lock("a").acquire().await.unwrap();
        let token = guard.token().get();
        assert!(token > last.max(ahead + 1_000), "{token} in round {round}");
        settle().await;
        let known = tokens(&nodes, "a").await;
        assert!(known[..2] == [Some(token); 2], "{known:?} in round {round}");
        assert!(known[2] >= Some(token), "{known:?} in round {round}");
        last = token;
        guard.release().await.unwrap();
    }
}

/// A node that has granted, and is still to raise its token, is given back when the acquisition is given up, and keeps its
/// hold when a majority did without that node.
#[tokio::test]
async fn a_node_that_is_to_raise_its_token_is_given_back_or_kept() {
    let (ahead, late) = (1 << 60, Duration::from_millis(10));
    for is_won in [false, true] {
        let nodes = nodes(5);
        let client = client(&nodes);
        let takes = [(2, false), (3, !is_won), (4, true)];
        let mut others = Vec::new();
        for (node, keeps) in takes {
            let hold = take_alone(&nodes[node], "a", Some(ahead)).await;
            match keeps {
                true => others.push((node, hold)),
                false => drop(Arc::new(nodes[node].clone()).release(hold).await.unwrap()),
            }
        }
        // The grant at once, and the greater token after a long time.
        nodes[0].disturb(Step::Acquire, Disturbance::Late(Duration::ZERO));
        nodes[0].disturb(
            Step::Acquire,
            Disturbance::Late(majority::MAX_NODE_TIMEOUT * 2),
        );
        nodes[3].disturb(Step::Acquire, Disturbance::Late(late));
        let lock = client.lock("a").ttl(TTL);
        let trying = tokio::spawn(async move { lock.try_acquire().await });
        advance(&nodes, late).await;
        advance(&nodes, majority::MAX_NODE_TIMEOUT).await;
        let tried = trying.await.unwrap();
        advance(&nodes, majority::MAX_NODE_TIMEOUT * 2).await;
        let known = tokens(&nodes, "a").await;
        match is_won {
            true => {
                let guard = tried.unwrap().expect("a majority has granted");
                assert_eq!(known[0], Some(guard.token().get()));
                assert_eq!(guard.state(), HoldState::Held);
                guard.release().await.unwrap();
            }
            false => {
                assert!(!matches!(tried, Ok(Some(_))), "{tried:?}");
                assert_eq!(known[..3], [None; 3]);
            }
        }
        for (node, hold) in others {
            Arc::new(nodes[node].clone()).release(hold).await.unwrap();
        }
        settle().await;
        assert!(are_idle(&nodes), "won: {is_won}");
    }
}

/// A2: what a node grants after the decision is kept while the hold lasts, and released after that.
#[tokio::test]
async fn stragglers_are_kept_or_given_back() {
    let late = Duration::from_millis(500);
    for released_before in [false, true] {
        let nodes = nodes(5);
        let client = client(&nodes);
        nodes[4].disturb(Step::Acquire, Disturbance::Late(late));
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        assert_eq!(client.inspect("a").await.unwrap().nodes, Some((4, 5)));
        if released_before {
            drop(guard);
            advance(&nodes, late).await;
        } else {
            advance(&nodes, late).await;
            assert_eq!(client.inspect("a").await.unwrap().nodes, Some((5, 5)));
            guard.release().await.unwrap();
            settle().await;
        }
        assert!(are_idle(&nodes));
    }
}

/// A3: the validity is ttl - elapsed - drift.
#[tokio::test]
async fn the_drift_is_taken_off_once() {
    let nodes = nodes(3);
    let client = client(&nodes);
    let lock = client.lock("a").ttl(TTL).renew(Renew::Never);
    let guard = lock.acquire().await.unwrap();
    let most = TTL - TTL / 100;
    assert_eq!(guard.remaining(), most);
    nodes[0].advance(Duration::from_secs(1));
    assert!(guard.remaining() < most);
}

/// A waiter with too few nodes gives them back, and asks again as soon as it can win.
#[tokio::test]
async fn who_has_too_few_nodes_makes_room() {
    let nodes = nodes(3);
    let client = client(&nodes);
    let b = take_alone(&nodes[1], "a", None).await;
    let c = take_alone(&nodes[2], "a", None).await;
    let lock = client.lock("a").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    settle().await;
    advance(&nodes, Duration::from_millis(100)).await;
    assert!(tokens(&nodes, "a").await[0].is_some());
    advance(&nodes, Duration::from_millis(200)).await;
    assert_eq!(tokens(&nodes, "a").await[0], None);
    assert_eq!(client.inspect("a").await.unwrap().holds, []);
    Arc::new(nodes[1].clone()).release(b).await.unwrap();
    settle().await;
    // The first node is asked again at once, because it makes a majority now.
    let guard = waiting.await.unwrap().unwrap();
    Arc::new(nodes[2].clone()).release(c).await.unwrap();
    guard.release().await.unwrap();
    settle().await;
    assert!(are_idle(&nodes));
}

/// The queues of the nodes differ in their order: one waiter gives its nodes back, and both are granted in the end.
#[tokio::test]
async fn a_split_vote_is_resolved() {
    let nodes = nodes(3);
    let c = take_alone(&nodes[2], "a", None).await;
    nodes[0].disturb(Step::Acquire, Disturbance::Late(Duration::from_micros(100)));
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let client = client(&nodes);
        let lock = client.lock("a").ttl(TTL);
        waiting.push(tokio::spawn(async move {
            lock.acquire().await?.release().await
        }));
        settle().await;
    }
    let held = tokens(&nodes, "a").await;
    assert!(held.iter().all(Option::is_some), "each has one: {held:?}");
    for _ in 0..2_000 {
        if waiting.iter().all(|task| task.is_finished()) {
            break;
        }
        nodes[0].advance(Duration::from_millis(1));
        settle().await;
    }
    for task in waiting {
        assert!(task.is_finished(), "no waiter gave its nodes back");
        task.await.unwrap().unwrap();
    }
    Arc::new(nodes[2].clone()).release(c).await.unwrap();
    settle().await;
    assert!(are_idle(&nodes));
}

/// The last node is silent, and each of two waiters has one of the others. The waiter with the first node comes next.
#[tokio::test]
async fn who_has_the_first_node_comes_next() {
    let nodes = nodes(3);
    nodes[2].pause();
    nodes[0].disturb(Step::Acquire, Disturbance::Late(Duration::from_micros(100)));
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let client = client(&nodes);
        let lock = client.lock("a").ttl(TTL);
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        settle().await;
    }
    assert!(waiting.iter().all(|task| !task.is_finished()));
    advance(&nodes, Duration::from_millis(2)).await;
    let [second, first] = [0, 1].map(|_| waiting.remove(0));
    assert!(first.is_finished());
    let guard = first.await.unwrap().unwrap();
    assert!(!second.is_finished());
    guard.release().await.unwrap();
    settle().await;
    let guard = second.await.unwrap().unwrap();
    guard.release().await.unwrap();
    nodes[2].resume();
    advance(&nodes, TTL * 2).await;
    assert!(are_idle(&nodes));
}

/// The holder of the first node never has the others. Nodes that were given back for it three times are kept from then on.
#[tokio::test]
async fn a_first_node_that_never_grants_is_passed_over() {
    let nodes = nodes(3);
    let client = client(&nodes);
    let a = take_alone(&nodes[0], "a", None).await;
    let c = take_alone(&nodes[2], "a", None).await;
    let lock = client.lock("a").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let mut kept = Vec::new();
    for _ in 0..4 {
        let mut held = Duration::ZERO;
        while held.is_zero() || tokens(&nodes, "a").await[1].is_some() {
            settle().await;
            if tokens(&nodes, "a").await[1].is_some() {
                held += Duration::from_millis(1);
            }
            nodes[0].advance(Duration::from_millis(1));
            settle().await;
        }
        kept.push(held);
    }
    let (last, before) = kept.split_last().unwrap();
    let soon = Duration::from_millis(3);
    assert!(
        before.iter().all(|kept| *kept <= soon) && *last > 10 * soon,
        "{kept:?}"
    );
    Arc::new(nodes[0].clone()).release(a).await.unwrap();
    settle().await;
    let guard = waiting.await.unwrap().unwrap();
    guard.release().await.unwrap();
    Arc::new(nodes[2].clone()).release(c).await.unwrap();
    settle().await;
    assert!(are_idle(&nodes));
}

#[tokio::test]
async fn a_release_has_three_outcomes() {
    let nodes = nodes(5);
    let store = over(&nodes);
    let _client = Client::from_dyn_store(store.clone()).unwrap(); // attaches the store to the runtime
    for (failing, expected) in [
        (2, Ok(Release::Released)),
        (3, Err(ErrorKind::Indeterminate)),
    ] {
        let request = Request::new(LockName::new("a").unwrap(), OwnerId::random(), TTL);
        let request = Arc::new(request);
        let answer = store.clone().acquire(request.clone()).await.unwrap();
        let Answer::Granted(grant) = answer else {
            panic!("{answer:?}")
        };
        let failing = nodes[..failing].iter();
        failing.for_each(|node| node.disturb(Step::Release, Disturbance::ReplyLost));
        let hold = Hold::new(&request, grant.token);
        let outcome = store.clone().release(hold.clone()).await;
        assert_eq!(outcome.map_err(|err| err.kind()), expected);
        // In both cases the hold is over now.
        let again = store.clone().release(hold).await.unwrap();
        assert_eq!(again, Release::NotHeld);
        settle().await;
        assert!(are_idle(&nodes));
    }
}

/// A majority of answers ends a release. What is still under way to the other nodes is finished by `close`.
#[tokio::test]
async fn close_waits_for_releases_in_the_background() {
    let late = Duration::from_millis(500);
    let nodes = nodes(5);
    let store = over(&nodes);
    let client = Client::from_dyn_store(store.clone()).unwrap();
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    settle().await;
    nodes[3].disturb(Step::Release, Disturbance::ReplyLost);
    nodes[4].disturb(Step::Release, Disturbance::Late(late));
    guard.release().await.unwrap();
    let closing = rt::poll_now(store.clone().close());
    let closing = closing.expect_err("a release is under way");
    nodes[0].advance(late);
    // The tasks end before `close` is polled again, so its limit on the real clock decides nothing.
    settle().await;
    closing.await;
    assert!(are_idle(&nodes));
}

#[tokio::test]
async fn breaking_ends_the_hold_whatever_number_it_has_on_a_node() {
    let nodes = nodes(3);
    let ahead = take_alone(&nodes[2], "a", Some(1 << 60)).await;
    Arc::new(nodes[2].clone()).release(ahead).await.unwrap();
    let (holder, operator) = (client(&nodes), client(&nodes));
    let guard = holder.lock("a").ttl(TTL).acquire().await.unwrap();
    let seen = operator.inspect("a").await.unwrap();
    let token = seen.holds[0].token.unwrap();
    assert_eq!(token, guard.token());
    assert!(!operator.break_lock("a", token.get() + 1).await.unwrap());
    assert!(operator.break_lock("a", token).await.unwrap());
    assert_eq!(tokens(&nodes, "a").await, [None; 3]);
    assert_eq!(guard.lost().await, Some(LostReason::TakenOver));
}

#[tokio::test]
async fn check_says_what_is_wrong_with_which_node() {
    for (count, severity) in [
        (2, Severity::Bad),
        (3, Severity::Good),
        (4, Severity::Warning),
    ] {
        let found = client(&nodes(count)).check().await.unwrap();
        assert_eq!(found[0].severity, severity, "{found:?}");
        assert!(
            found[0].text.starts_with(&format!("{count} nodes")),
            "{found:?}"
        );
        assert!(
            found[count]
                .text
                .starts_with(&format!("node {count} of {count}: "))
        );
    }
    assert!(majority::Store::new(vec![], majority::Settings::default()).is_err());
}

#[tokio::test]
async fn refusals_say_why() {
    let client = client(&nodes(3));
    let err = client.lock("a").permits(2).acquire().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    assert!(format!("{err:#}").contains("a majority"), "{err}");
    assert!(format!("{err:#}").contains("`etcd:`"), "{err}");
    let err = client.lock("a").fair(true).acquire().await.unwrap_err();
    assert!(format!("{err:#}").contains("different orders"), "{err}");
    let guarantees = client.guarantees();
    let cell = guarantees.cell(Fault::HolderPaused).unwrap();
    assert_eq!(cell.promise, Promise::Claims);
    let faults: Vec<_> = guarantees.faults.iter().map(|cell| cell.fault).collect();
    assert_eq!(faults, Fault::ALL);
}

/// Where the holds of the nodes have no lease, a hold on a majority has none.
#[tokio::test]
async fn a_lock_over_nodes_without_leases_has_none() {
    let leaseless: Vec<Arc<dyn store::Store>> = (0..3)
        .map(|_| Arc::new(memory::Store::new()) as _)
        .collect();
    let store = majority::Store::new(leaseless, majority::Settings::default()).unwrap();
    let client = Client::from_dyn_store(store).unwrap();
    let guard = client.lock("a").acquire().await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    assert!(
        client.inspect("a").await.unwrap().holds[0]
            .ttl_left
            .is_none()
    );
    guard.release().await.unwrap();
}
