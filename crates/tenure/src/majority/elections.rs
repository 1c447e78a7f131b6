//! Elections: each node keeps its own part of a term, and a majority decides who leads.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::fence::FencingToken;
use tenure_core::holder::Holder;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::store::{BoxFuture, Elections, Hold};
use tenure_core::support::RetryBudget;

use super::errors::{no_answer_to_read, no_majority};
use super::requests::NodeRequests;
use super::sightings::{Merged, is_same_term, merge, tokens_on_nodes};
use super::store::Store;
use super::yes_or_no::answers;

/// How much longer the other nodes may take when a majority has answered, and all of them together say more: that nobody
/// leads, or under which token one leads. So much later is the second look where a majority has no common token: a leader tells
/// the nodes its token within one round trip.
const GRACE_PERIOD: Duration = Duration::from_millis(100);

/// The pace of the slowest node.
pub(super) fn poll_interval(store: &Store) -> Duration {
    let of_nodes = store.nodes.iter().filter_map(|node| {
        let elections = node.clone().as_elections()?;
        Some(elections.poll_interval())
    });
    of_nodes.max().unwrap_or_default()
}

/// A guard of this hold waits to be asked to let go.
pub(super) fn listen_for_requests(store: &Store, hold: &Hold) {
    let Some(held) = store.holds.get(hold.owner) else {
        return;
    };
    for (node, store) in store.nodes.iter().enumerate() {
        if let Some(elections) = store.clone().as_elections() {
            elections.listen_for_requests(held.on_node(node, false));
        }
    }
}

/// Whether every node has elections.
pub(super) fn are_there(store: &Store) -> bool {
    let has_elections =
        |node: &Arc<dyn tenure_core::store::Store>| node.clone().as_elections().is_some();
    store.nodes.iter().all(has_elections)
}

/// Sends a request to one node.
fn request<T: Send + 'static>(
    store: &Store,
    node: usize,
    request: impl FnOnce(Arc<dyn Elections>) -> BoxFuture<Result<T, Error>>,
) -> BoxFuture<Result<T, Error>> {
    match store.nodes[node].clone().as_elections() {
        Some(elections) => request(elections),
        None => {
            let err = Error::new(ErrorKind::Unsupported, "the node has no elections");
            Box::pin(std::future::ready(Err(err)))
        }
    }
}

/// Publishes on every node. A majority is enough, because every answer to an observer has a node of that majority. A node
/// that has lost the hold gets the holder as it is now from the next renewal.
pub(super) async fn publish(
    store: &Arc<Store>,
    hold: &Hold,
    holder: Arc<Holder>,
) -> Result<bool, Error> {
    let Some(held) = store.holds.get(hold.owner) else {
        return Ok(false);
    };
    held.set_holder(holder.clone());
    let nodes = store.nodes.len();
    let requests = NodeRequests::new((0..nodes).map(|node| {
        let (on_node, holder) = (held.on_node(node, false), holder.clone());
        request(store, node, |elections| elections.publish(on_node, holder))
    }));
    let answers = answers(store, hold.ttl, requests).await;
    let has_some = (0..nodes).any(|node| answers.tally.said_yes(node));
    match answers.outcome("gave no clear answer to the value") {
        // Observers may see it.
        Err(err) if has_some && err.kind() != ErrorKind::Indeterminate => Err(Error::new(
            ErrorKind::Indeterminate,
            "the value is on some nodes, and not on a majority of them",
        )
        .with_source(err)),
        outcome => outcome,
    }
}

/// Who leads, as soon as a majority says so. Where the answers leave it open, because a node is silent while another one
/// leads on the rest or begins to, the nodes are asked again; and so where a majority has one leader and no common token.
pub(super) async fn leader(store: &Arc<Store>, name: &LockName) -> Result<Sighting, Error> {
    let (sighting, _) = read_leader(store, name).await?;
    Ok(sighting)
}

/// The same, and what each node said.
async fn read_leader(
    store: &Arc<Store>,
    name: &LockName,
) -> Result<(Sighting, Vec<Option<Sighting>>), Error> {
    let mut retries = RetryBudget::until(store.node_deadline(Duration::MAX));
    let mut likely: Option<Sighting> = None;
    loop {
        let known = read(store, name).await?;
        likely = match merge(&known, store.majority()) {
            Merged::Sure(sighting) => return Ok((sighting, known)),
            Merged::Likely(sighting) => {
                if likely.is_some_and(|before| is_same_term(&before, &sighting)) {
                    return Ok((sighting, known));
                }
                Some(sighting)
            }
            Merged::Open => None,
        };
        if retries.is_spent(&store.clock) || store.closing.is_raised() {
            let answered = known.iter().flatten().count();
            let message = format!(
                "{answered} of {} nodes answered, and whether a majority has one leader depends on the others",
                known.len()
            );
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        match likely.is_some() {
            true => {
                store
                    .clock
                    .sleep_until(store.clock.now().after(GRACE_PERIOD))
                    .await
            }
            false => retries.pause(&store.clock).await,
        }
    }
}

/// What each node says, by node, until a majority has decided; an error when fewer than a majority answered.
async fn read(store: &Arc<Store>, name: &LockName) -> Result<Vec<Option<Sighting>>, Error> {
    let (nodes, majority) = (store.nodes.len(), store.majority());
    let mut requests = NodeRequests::new((0..nodes).map(|node| {
        let name = name.clone();
        request(store, node, |elections| elections.leader(name))
    }));
    let (mut known, mut errors) = (vec![None; nodes], Vec::new());
    let mut until = store.node_deadline(Duration::MAX);
    // Reading may be dropped, so requests that are not answered by then are dropped.
    while let Some((node, answer)) = requests.next_until(&store.clock, until).await {
        match answer {
            Ok(sighting) => known[node] = Some(sighting),
            Err(err) => errors.push(err),
        }
        if known.iter().flatten().count() < majority {
            continue;
        }
        match merge(&known, majority) {
            Merged::Sure(sighting) if sighting.leader.is_some() => break,
            // The more nodes say so, the surer is the token.
            Merged::Sure(_) | Merged::Likely(_) => {
                until = until.min(store.clock.now().after(GRACE_PERIOD));
            }
            Merged::Open => {}
        }
    }
    if known.iter().flatten().count() < majority {
        let timeout = store.settings.node_timeout_for(Duration::MAX);
        let silent = (0..nodes).filter(|node| requests.is_open(*node));
        errors.extend(silent.map(|_| no_answer_to_read(timeout)));
        return Err(no_majority(errors, nodes, "could not be asked"));
    }
    Ok(known)
}

/// Asks the leader on every node that has its hold, if a majority has the leader under this token. The first node that reaches
/// the leader is enough. A node may have the next leader under a number that others know for the one before.
pub(super) async fn ask_to_release(
    store: &Arc<Store>,
    name: &LockName,
    token: u64,
) -> Result<bool, Error> {
    let (sighting, known) = read_leader(store, name).await?;
    let leader = sighting
        .leader
        .filter(|it| it.token == Some(FencingToken::new(token)));
    let Some(leader) = leader else {
        return Ok(false);
    };
    let tokens = tokens_on_nodes(&known, &leader);
    let nodes = store.nodes.len();
    let mut requests = NodeRequests::new((0..nodes).map(|node| match tokens[node] {
        Some(token) => {
            let name = name.clone();
            request(store, node, |elections| {
                elections.ask_to_release(name, token)
            })
        }
        None => Box::pin(std::future::ready(Ok(false))),
    }));
    let until = store.node_deadline(Duration::MAX);
    let mut errors = Vec::new();
    let mut is_asked = false;
    while !is_asked && let Some((_, answer)) = requests.next_until(&store.clock, until).await {
        match answer {
            Ok(answer) => is_asked = answer,
            Err(err) => errors.push(err),
        }
    }
    let is_silent = requests.has_pending();
    requests.finish_in(&store.background);
    match is_asked || errors.is_empty() && !is_silent {
        true => Ok(is_asked),
        false => Err(no_majority(errors, nodes, "could not be asked")),
    }
}
