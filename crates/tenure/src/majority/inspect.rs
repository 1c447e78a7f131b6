//! What operators see of the nodes as one store, and what they can do to it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{BoxFuture, Finding, Severity};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, Status};
use tenure_core::name::LockName;

use super::errors::merged;
use super::requests::Crowd;
use super::store::Core;

/// What each node said, by node; an error when fewer than a majority said anything.
async fn ask<T>(
    core: &Core,
    question: impl Fn(usize) -> BoxFuture<Result<T, Error>>,
) -> Result<Vec<Option<T>>, Error> {
    let nodes = core.nodes.len();
    let mut crowd = Crowd::new((0..nodes).map(question));
    let mut answers: Vec<_> = (0..nodes).map(|_| None).collect();
    let mut errors = Vec::new();
    let until = core.clock.now().after(core.node_limit(Duration::MAX));
    // A look may be dropped, so whoever has not answered by then is left where it is.
    while let Some((node, answer)) = crowd.next_until(&core.clock, until).await {
        match answer {
            Ok(answer) => answers[node] = Some(answer),
            Err(err) => errors.push(err),
        }
    }
    if answers.iter().flatten().count() < core.majority() {
        return Err(merged(errors, nodes, "could not be asked"));
    }
    Ok(answers)
}

pub(super) async fn inspect(core: Arc<Core>, name: LockName) -> Result<Status, Error> {
    let said = ask(&core, |node| core.nodes[node].inspect(name.clone())).await?;
    Ok(merge(&core, name, said.into_iter().flatten().collect()))
}

pub(super) async fn list(core: Arc<Core>, prefix: String) -> Result<Vec<Status>, Error> {
    let said = ask(&core, |node| core.nodes[node].list(prefix.clone())).await?;
    let answered = said.iter().flatten().count();
    let mut by_name: BTreeMap<LockName, Vec<Status>> = BTreeMap::new();
    for status in said.into_iter().flatten().flatten() {
        by_name.entry(status.name.clone()).or_default().push(status);
    }
    let all = by_name.into_iter().map(|(name, mut said)| {
        // A node that does not list the name says that nobody holds it there.
        said.resize_with(answered, || Status::free(name.clone()));
        merge(&core, name, said)
    });
    Ok(all.filter(Status::is_held).collect())
}

/// Who somebody is on every node alike. The owner id would be exact, but it is a capability, so nodes do not
/// show it; and no client asks for one name twice at a time.
fn same(one: &HoldInfo, other: &HoldInfo) -> bool {
    one.mode == other.mode && who(&one.holder) == who(&other.holder)
}

/// The holder without the time, which each node measures for itself.
fn who(holder: &Holder) -> Holder {
    let mut who = holder.clone();
    who.since = None;
    who
}

/// The hold that most nodes know: as each of them does.
fn leader(said: &[Status]) -> Vec<&HoldInfo> {
    let all: Vec<_> = said
        .iter()
        .filter_map(|status| status.holds.first())
        .collect();
    let group = |one: &&HoldInfo| -> Vec<&HoldInfo> {
        all.iter().filter(|hold| same(one, hold)).copied().collect()
    };
    all.iter()
        .map(group)
        .max_by_key(Vec::len)
        .unwrap_or_default()
}

/// The token of a hold: the one that a majority knows, else the greatest.
fn token(holds: &[&HoldInfo], majority: usize) -> Option<u64> {
    let tokens: Vec<_> = holds.iter().filter_map(|hold| hold.token).collect();
    let known = |token: &_| tokens.iter().filter(|known| *known == token).count() >= majority;
    let agreed = tokens.iter().copied().find(known);
    agreed
        .or_else(|| tokens.iter().copied().max())
        .map(u64::from)
}

/// What the nodes that answered say, as one.
fn merge(core: &Core, name: LockName, said: Vec<Status>) -> Status {
    let (majority, all) = (core.majority(), core.nodes.len());
    let holds = leader(&said);
    let mut status = Status::free(name);
    let is_held = holds.len() >= majority;
    if is_held && let Some(first) = holds.first() {
        let mut left: Vec<_> = holds
            .iter()
            .map(|hold| hold.ttl_left.unwrap_or(Duration::MAX))
            .collect();
        left.sort_unstable_by(|one, other| other.cmp(one));
        let mut holder = first.holder.clone();
        holder.since = holds.iter().filter_map(|hold| hold.holder.since).min();
        status.holds = vec![HoldInfo::new(
            holder,
            first.mode,
            token(&holds, majority),
            Some(left[majority - 1]).filter(|left| *left < Duration::MAX),
        )];
    }
    // A waiter may have some nodes already, and stands in the queues of the others.
    let mut queue: Vec<Holder> = Vec::new();
    let waiting = said.iter().filter_map(|status| status.queue.as_deref());
    let known = waiting.clone().count();
    for waiter in waiting.flatten() {
        let waiter = who(waiter);
        let is_holder = is_held && holds.iter().any(|hold| who(&hold.holder) == waiter);
        if !is_holder && !queue.contains(&waiter) {
            queue.push(waiter);
        }
    }
    status.queue = (known >= majority).then_some(queue);
    let mut reserved: Vec<_> = said.iter().filter_map(|status| status.reserved).collect();
    reserved.sort_unstable_by(|one, other| other.cmp(one));
    status.reserved = reserved.get(majority - 1).copied().filter(|_| !is_held);
    // The lock can be granted when a majority is past its guard. So as many of the youngest nodes as a majority can do
    // without do not matter, and the next one does.
    let mut guards: Vec<_> = said
        .iter()
        .filter_map(|status| status.restart_guard.clone())
        .collect();
    guards.sort_unstable_by_key(|guard| guard.uptime);
    status.restart_guard = guards
        .into_iter()
        .nth(said.len().saturating_sub(majority))
        .filter(|_| !is_held);
    let agreeing = match (is_held, status.reserved) {
        (true, _) => holds.len(),
        (false, Some(_)) => reserved.len(),
        (false, None) => said.iter().filter(|status| !status.is_held()).count(),
    };
    status.with_nodes(agreeing, all)
}

/// Ends the hold on every node that has it, under whatever number it has there.
pub(super) async fn break_lock(
    core: Arc<Core>,
    name: LockName,
    wanted: u64,
) -> Result<bool, Error> {
    let said = ask(&core, |node| core.nodes[node].inspect(name.clone())).await?;
    let answered: Vec<_> = said.iter().flatten().cloned().collect();
    let holds = leader(&answered);
    if holds.len() < core.majority() || token(&holds, core.majority()) != Some(wanted) {
        return Ok(false);
    }
    let on_node = |status: &Option<Status>| {
        let hold = status.as_ref()?.holds.first()?;
        same(hold, holds[0]).then_some(u64::from(hold.token?))
    };
    let tokens: Vec<_> = said.iter().map(on_node).collect();
    let broken = ask(&core, |node| match tokens[node] {
        Some(token) => core.nodes[node].break_lock(name.clone(), token),
        None => Box::pin(std::future::ready(Ok(false))),
    })
    .await?;
    let broken = broken.into_iter().filter(|broken| *broken == Some(true));
    // Fewer: it ended by itself meanwhile, or too few nodes can be reached to end it.
    match broken.count() {
        0 => Ok(false),
        few if few + core.majority() <= holds.len() => Err(Error::new(
            ErrorKind::Indeterminate,
            format!(
                "{few} of {} nodes that have the hold ended it; the others may be enough for the holder; try again",
                holds.len()
            ),
        )),
        _ => Ok(true),
    }
}

pub(super) async fn check(core: Arc<Core>) -> Result<Vec<Finding>, Error> {
    let all = core.nodes.len();
    let question = |node: usize| -> BoxFuture<Result<_, Error>> {
        let checking = core.nodes[node].check();
        // What is wrong with one node is a finding, not the end of the check.
        Box::pin(async move { Ok(checking.await) })
    };
    let said = ask(&core, question).await?;
    let reached = said.iter().flatten().filter(|said| said.is_ok()).count();
    if reached < core.majority() {
        let errors = said.into_iter().flatten().filter_map(Result::err);
        return Err(merged(errors.collect(), all, "could not be asked"));
    }
    let spare = all - core.majority();
    let mut findings = vec![match (all, all % 2) {
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
            format!("{all} nodes, of which {spare} may fail"),
        ),
    }];
    for (node, said) in said.into_iter().enumerate() {
        let of_node = |severity, text: &dyn std::fmt::Display| {
            Finding::new(severity, format!("node {} of {all}: {text}", node + 1))
        };
        match said {
            Some(Ok(found)) => {
                findings.extend(
                    found
                        .iter()
                        .map(|found| of_node(found.severity, &found.text)),
                );
            }
            Some(Err(err)) => findings.push(of_node(Severity::Warning, &err)),
            None => findings.push(of_node(Severity::Warning, &"it does not answer")),
        }
    }
    Ok(findings)
}
