//! Inspection for operators: the answers of the nodes as those of one store.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::LockStatus;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Finding, Listed, Operate, Severity};

use super::errors::{no_answer_to_read, no_majority};
use super::merge::{MergedHold, merge, merge_holds};
use super::requests::NodeRequests;
use super::store::Store;

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { break_lock(&self, &name, token).await })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move { check(&self).await })
    }
}

/// A node needs several requests for a list, so a list may take so many times the time of one request.
const LIST_TIMEOUTS: u32 = 10;

/// The answer of each node, by node; an error when fewer than a majority answered.
async fn ask_all<T>(
    store: &Store,
    request: impl Fn(usize) -> BoxFuture<Result<T, Error>>,
) -> Result<Vec<Option<T>>, Error> {
    let limit = store.settings.node_timeout_for(Duration::MAX);
    ask_all_within(store, limit, request).await
}

/// The same within `limit`; when a majority has answered, the others have the time of one request.
async fn ask_all_within<T>(
    store: &Store,
    limit: Duration,
    request: impl Fn(usize) -> BoxFuture<Result<T, Error>>,
) -> Result<Vec<Option<T>>, Error> {
    let nodes = store.nodes.len();
    let mut requests = NodeRequests::new((0..nodes).map(request));
    let mut answers: Vec<_> = (0..nodes).map(|_| None).collect();
    let mut errors = Vec::new();
    let mut until = store.clock.now().after(limit);
    // An inspection may be dropped, so requests that are not answered by then are dropped.
    while let Some((node, answer)) = requests.next_until(&store.clock, until).await {
        match answer {
            Ok(answer) => answers[node] = Some(answer),
            Err(err) => errors.push(err),
        }
        if answers.iter().flatten().count() == store.majority() {
            until = until.min(store.node_deadline(Duration::MAX));
        }
    }
    if answers.iter().flatten().count() < store.majority() {
        let silent = (0..nodes).filter(|node| requests.is_open(*node));
        errors.extend(silent.map(|_| no_answer_to_read(limit)));
        return Err(no_majority(errors, nodes, "could not be asked"));
    }
    Ok(answers)
}

pub(super) async fn inspect(store: &Store, name: &LockName) -> Result<LockStatus, Error> {
    let statuses = ask_all(store, |node| {
        store.nodes[node].clone().inspect(name.clone())
    })
    .await?;
    let statuses: Vec<_> = statuses.into_iter().flatten().collect();
    Ok(merge(name, &statuses, store.nodes.len(), store.majority()))
}

pub(super) async fn list(store: &Store, prefix: &str) -> Result<Listed, Error> {
    // Each node is asked for its whole list: a silent node then costs one time limit, and not one for each name.
    let limit = store.settings.node_timeout_for(Duration::MAX) * LIST_TIMEOUTS;
    let lists = ask_all_within(store, limit, |node| {
        store.nodes[node].clone().list_held(prefix.to_owned())
    })
    .await?;
    let answered = lists.iter().flatten().count();
    let mut by_name: BTreeMap<LockName, Vec<LockStatus>> = BTreeMap::new();
    for status in lists.into_iter().flatten().flatten() {
        by_name.entry(status.name.clone()).or_default().push(status);
    }
    let all = by_name.into_iter().map(|(name, mut statuses)| {
        // On a node that does not list the name, the name has no holder.
        statuses.resize_with(answered, || LockStatus::free(name.clone()));
        merge(&name, &statuses, store.nodes.len(), store.majority())
    });
    Ok(Listed::Statuses(all.collect()))
}

/// Ends the hold on every node that has it, whatever token it has on that node. The nodes show the last token that is reserved
/// for a hold; for an earlier one each of them is asked, because it alone knows from which one on.
pub(super) async fn break_lock(
    store: &Store,
    name: &LockName,
    expected: u64,
) -> Result<bool, Error> {
    let statuses = ask_all(store, |node| {
        store.nodes[node].clone().inspect(name.clone())
    })
    .await?;
    let known = statuses.iter().enumerate();
    let known = known.filter_map(|(node, status)| Some((node, status.as_ref()?)));
    let known: Vec<_> = known.collect();
    let holds = merge_holds(&known, store.majority());
    let shown = holds.iter().find(|hold| hold.token == Some(expected));
    let may_have_reserved = |hold: &&MergedHold<'_>| {
        let mut modes = hold.parts.iter().map(|(_, info)| info.mode);
        hold.token > Some(expected) && modes.all(|mode| mode == Mode::Exclusive)
    };
    let Some(hold) = shown.or_else(|| holds.iter().find(may_have_reserved)) else {
        return Ok(false);
    };
    let mut tokens = vec![None; store.nodes.len()];
    for (node, info) in &hold.parts {
        tokens[*node] = info.token.map(u64::from);
    }
    let mut broken = vec![false; store.nodes.len()];
    if shown.is_none() {
        // A node that shows this very token has another number for the hold.
        let reserved = tokens
            .iter()
            .map(|token| token.filter(|it| *it != expected));
        let reserved: Vec<_> = reserved.map(|token| token.map(|_| expected)).collect();
        break_on(store, name, &reserved, &mut broken).await?;
        if !broken.contains(&true) {
            return Ok(false);
        }
    }
    break_on(store, name, &tokens, &mut broken).await?;
    // Fewer than all: the hold ended by itself meanwhile, or too few nodes can be reached to end it.
    match broken.into_iter().filter(|broken| *broken).count() {
        0 => Ok(false),
        few if few + store.majority() <= hold.parts.len() => Err(Error::new(
            ErrorKind::Indeterminate,
            format!(
                "{few} of {} nodes that have the hold ended it; the others may be enough for the holder; try again",
                hold.parts.len()
            ),
        )),
        _ => Ok(true),
    }
}

/// Ends the hold on each node for which a token is given, and where it was not `broken` before.
async fn break_on(
    store: &Store,
    name: &LockName,
    tokens: &[Option<u64>],
    broken: &mut [bool],
) -> Result<(), Error> {
    let answers = ask_all(store, |node| match tokens[node].filter(|_| !broken[node]) {
        Some(token) => store.nodes[node].clone().break_lock(name.clone(), token),
        None => Box::pin(std::future::ready(Ok(false))),
    })
    .await?;
    for (broken, answer) in broken.iter_mut().zip(answers) {
        *broken |= answer == Some(true);
    }
    Ok(())
}

pub(super) async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let all = store.nodes.len();
    let request = |node: usize| -> BoxFuture<Result<_, Error>> {
        let checking = store.nodes[node].clone().check();
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

/// What the number of nodes means for a majority.
fn check_count(all: usize, majority: usize) -> Finding {
    match (all, all % 2) {
        (0..3, _) => Finding::bad(format!(
            "{all} nodes: no majority is left when one of them fails; use three or five"
        )),
        (_, 0) => Finding::warning(format!(
            "{all} nodes: no more of them may fail than with {}; use an odd number",
            all - 1
        )),
        _ => Finding::good(format!("{all} nodes, of which {} may fail", all - majority)),
    }
}
