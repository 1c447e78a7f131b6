//! Inspection for operators: the answers of the nodes as those of one store.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tenure_core::backend::{BoxFuture, Finding, Severity};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::name::LockName;

use super::errors::no_majority;
use super::requests::NodeRequests;
use super::store::Store;

/// The answer of each node, by node; an error when fewer than a majority answered.
async fn ask_all<T>(
    store: &Store,
    request: impl Fn(usize) -> BoxFuture<Result<T, Error>>,
) -> Result<Vec<Option<T>>, Error> {
    let nodes = store.nodes.len();
    let mut requests = NodeRequests::new((0..nodes).map(request));
    let mut answers: Vec<_> = (0..nodes).map(|_| None).collect();
    let mut errors = Vec::new();
    let until = store.node_deadline(Duration::MAX);
    // An inspection may be dropped, so requests that are not answered by then are dropped.
    while let Some((node, answer)) = requests.next_until(&store.clock, until).await {
        match answer {
            Ok(answer) => answers[node] = Some(answer),
            Err(err) => errors.push(err),
        }
    }
    if answers.iter().flatten().count() < store.majority() {
        return Err(no_majority(errors, nodes, "could not be asked"));
    }
    Ok(answers)
}

pub(super) async fn inspect(store: &Store, name: &LockName) -> Result<Status, Error> {
    let statuses = ask_all(store, |node| store.nodes[node].inspect(name.clone())).await?;
    let statuses: Vec<_> = statuses.into_iter().flatten().collect();
    Ok(merge(store, name, &statuses))
}

pub(super) async fn list(store: &Store, prefix: &str) -> Result<Vec<Status>, Error> {
    let lists = ask_all(store, |node| store.nodes[node].list(prefix.to_owned())).await?;
    let answered = lists.iter().flatten().count();
    let mut by_name: BTreeMap<LockName, Vec<Status>> = BTreeMap::new();
    for status in lists.into_iter().flatten().flatten() {
        by_name.entry(status.name.clone()).or_default().push(status);
    }
    let all = by_name.into_iter().map(|(name, mut statuses)| {
        // On a node that does not list the name, the name has no holder.
        statuses.resize_with(answered, || Status::free(name.clone()));
        merge(store, &name, &statuses)
    });
    Ok(all.filter(Status::is_held).collect())
}

/// What several nodes say of one name, as one status.
fn merge(store: &Store, name: &LockName, statuses: &[Status]) -> Status {
    let majority = store.majority();
    let holds = most_common_hold(statuses);
    let mut status = Status::free(name.clone());
    let holders = if holds.len() >= majority {
        status.holds.extend(merge_holds(&holds, majority));
        &holds[..]
    } else {
        &[]
    };
    let is_held = status.is_held();
    status.queue = merge_queues(statuses, holders, majority);
    let mut reserved: Vec<_> = statuses.iter().filter_map(|it| it.reserved).collect();
    reserved.sort_unstable_by_key(|left| Reverse(*left));
    status.reserved = reserved.get(majority - 1).copied().filter(|_| !is_held);
    // The lock can be granted when a majority of nodes is trusted again. A minority may stay distrusted for longer: the
    // nodes that started last do not count, and the next one does.
    let guards = statuses.iter().filter_map(|it| it.restart_guard.clone());
    let mut guards: Vec<_> = guards.collect();
    guards.sort_unstable_by_key(|guard| guard.uptime);
    status.restart_guard = guards
        .into_iter()
        .nth(statuses.len().saturating_sub(majority))
        .filter(|_| !is_held);
    let agreeing = match (is_held, status.reserved) {
        (true, _) => holds.len(),
        (false, Some(_)) => reserved.len(),
        (false, None) => statuses.iter().filter(|status| !status.is_held()).count(),
    };
    status.with_nodes(agreeing, store.nodes.len())
}

/// The hold that most nodes know, as each of those nodes knows it.
fn most_common_hold(statuses: &[Status]) -> Vec<&HoldInfo> {
    let holds = statuses.iter().filter_map(|status| status.holds.first());
    let all: Vec<_> = holds.collect();
    let equal = |one: &&HoldInfo| -> Vec<&HoldInfo> {
        let equal = all.iter().filter(|other| is_same_hold(one, other));
        equal.copied().collect()
    };
    let groups = all.iter().map(equal);
    groups.max_by_key(Vec::len).unwrap_or_default()
}

/// Whether two nodes speak of one hold. The owner id would be exact, but an owner id is a capability, so nodes do not show
/// it; and no client has two requests for one name at a time.
fn is_same_hold(one: &HoldInfo, other: &HoldInfo) -> bool {
    one.mode == other.mode && without_time(&one.holder) == without_time(&other.holder)
}

/// The holder without the time, which each node measures for itself.
fn without_time(holder: &Holder) -> Holder {
    let mut holder = holder.clone();
    holder.since = None;
    holder
}

/// One hold, from what a majority of nodes say of it. The hold ends when the best majority of its leases ends.
fn merge_holds(holds: &[&HoldInfo], majority: usize) -> Option<HoldInfo> {
    let first = holds.first()?;
    let left = holds
        .iter()
        .map(|hold| hold.ttl_left.unwrap_or(Duration::MAX));
    let mut left: Vec<_> = left.collect();
    left.sort_unstable_by_key(|left| Reverse(*left));
    let ttl_left = Some(left[majority - 1]).filter(|left| *left < Duration::MAX);
    let mut holder = first.holder.clone();
    holder.since = holds.iter().filter_map(|hold| hold.holder.since).min();
    let token = token(holds, majority);
    Some(HoldInfo::new(holder, first.mode, token, ttl_left))
}

/// The token of a hold: the one that a majority knows, else the greatest.
fn token(holds: &[&HoldInfo], majority: usize) -> Option<u64> {
    let tokens: Vec<_> = holds.iter().filter_map(|hold| hold.token).collect();
    let count = |token| tokens.iter().filter(|known| **known == token).count();
    let mut agreed = tokens.iter().filter(|token| count(**token) >= majority);
    let token = agreed.next().or(tokens.iter().max());
    token.copied().map(u64::from)
}

/// Those who wait on any node. A waiter may have some nodes already and stand in the queues of the others, so a holder
/// may, too. `None`: too few nodes show a queue.
fn merge_queues(
    statuses: &[Status],
    holders: &[&HoldInfo],
    majority: usize,
) -> Option<Vec<Holder>> {
    let queues = statuses.iter().filter_map(|status| status.queue.as_deref());
    let queues: Vec<_> = queues.collect();
    let mut merged: Vec<Holder> = Vec::new();
    for waiter in queues.iter().copied().flatten().map(without_time) {
        let is_holder = holders
            .iter()
            .any(|hold| without_time(&hold.holder) == waiter);
        if !is_holder && !merged.contains(&waiter) {
            merged.push(waiter);
        }
    }
    (queues.len() >= majority).then_some(merged)
}

/// Ends the hold on every node that has it, whatever token it has on that node.
pub(super) async fn break_lock(
    store: &Store,
    name: &LockName,
    expected: u64,
) -> Result<bool, Error> {
    let statuses = ask_all(store, |node| store.nodes[node].inspect(name.clone())).await?;
    let answered: Vec<_> = statuses.iter().flatten().cloned().collect();
    let holds = most_common_hold(&answered);
    if holds.len() < store.majority() || token(&holds, store.majority()) != Some(expected) {
        return Ok(false);
    }
    let on_node = |status: &Option<Status>| {
        let hold = status.as_ref()?.holds.first()?;
        is_same_hold(hold, holds[0]).then_some(u64::from(hold.token?))
    };
    let tokens: Vec<_> = statuses.iter().map(on_node).collect();
    let broken = ask_all(store, |node| match tokens[node] {
        Some(token) => store.nodes[node].break_lock(name.clone(), token),
        None => Box::pin(std::future::ready(Ok(false))),
    })
    .await?;
    let broken = broken.into_iter().filter(|broken| *broken == Some(true));
    // Fewer than all: the hold ended by itself meanwhile, or too few nodes can be reached to end it.
    match broken.count() {
        0 => Ok(false),
        few if few + store.majority() <= holds.len() => Err(Error::new(
            ErrorKind::Indeterminate,
            format!(
                "{few} of {} nodes that have the hold ended it; the others may be enough for the holder; try again",
                holds.len()
            ),
        )),
        _ => Ok(true),
    }
}

pub(super) async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let all = store.nodes.len();
    let request = |node: usize| -> BoxFuture<Result<_, Error>> {
        let checking = store.nodes[node].check();
        // What is wrong with one node is a finding, not the end of the check.
        Box::pin(async move { Ok(checking.await) })
    };
    let checks = ask_all(store, request).await?;
    let reached = checks
        .iter()
        .flatten()
        .filter(|check| check.is_ok())
        .count();
    if reached < store.majority() {
        let errors = checks.into_iter().flatten().filter_map(Result::err);
        return Err(no_majority(errors.collect(), all, "could not be asked"));
    }
    let mut findings = vec![check_count(all, store.majority())];
    for (node, check) in checks.into_iter().enumerate() {
        let of_node = |severity, text: &dyn fmt::Display| {
            Finding::new(severity, format!("node {} of {all}: {text}", node + 1))
        };
        match check {
            Some(Ok(found)) => {
                let found = found.iter().map(|it| of_node(it.severity, &it.text));
                findings.extend(found);
            }
            Some(Err(err)) => findings.push(of_node(Severity::Warning, &err)),
            None => findings.push(of_node(Severity::Warning, &"it does not answer")),
        }
    }
    Ok(findings)
}

/// Whether the number of nodes is a good one.
fn check_count(all: usize, majority: usize) -> Finding {
    match (all, all % 2) {
        (0..3, _) => Finding::new(
            Severity::Bad,
            format!("{all} nodes: no majority is left when one of them fails; use three or five"),
        ),
        (_, 0) => Finding::new(
            Severity::Warning,
            format!(
                "{all} nodes: no more of them may fail than with {}; use an odd number",
                all - 1
            ),
        ),
        _ => Finding::new(
            Severity::Good,
            format!("{all} nodes, of which {} may fail", all - majority),
        ),
    }
}
