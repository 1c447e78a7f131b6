//! A hold that is spread over the nodes: kept, healed, given back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::backend::{Answer, BoxFuture, Hold, Release, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::logic::quorum::{Tally, Verdict};
use tenure_core::lost::LostReason;
use tenure_core::rt::{Flag, lock};
use tenure_core::time::Time;

use super::crowd::Crowd;
use super::{Core, merged, no_answer};

/// What one acquisition has, or may have, on the nodes.
pub(super) struct Claim {
    /// Our identity towards the driver.
    pub(super) owner: OwnerId,
    /// What was asked for.
    pub(super) request: Arc<Request>,
    /// Raised when nothing on any node is wanted any more: whoever finds something gives it back.
    pub(super) ended: Flag,
    seats: Mutex<Seats>,
}

struct Seats {
    of_node: Vec<Seat>,
    /// The agreed token; 0 before there is one.
    token: u64,
    ended_at: Time,
}

/// What we have on one node.
#[derive(Clone, Copy)]
struct Seat {
    /// Under which identity. Ours to begin with; another one after something was given back there, because
    /// a release that comes late must not hit what was acquired since.
    owner: OwnerId,
    held: bool,
    /// The node has said that it released it.
    released: bool,
    /// A release is on its way, and sees to whatever comes of the seat.
    leaving: bool,
    /// A request that was still under way then may have been granted after it.
    late: bool,
    healing: bool,
}

impl Claim {
    pub(super) fn new(request: &Arc<Request>, nodes: usize) -> Arc<Self> {
        let seat = Seat {
            owner: request.owner,
            held: false,
            released: false,
            leaving: false,
            late: false,
            healing: false,
        };
        Arc::new(Self {
            owner: request.owner,
            request: request.clone(),
            ended: Flag::new(),
            seats: Mutex::new(Seats {
                of_node: vec![seat; nodes],
                token: 0,
                ended_at: Time::MAX,
            }),
        })
    }

    /// The request of this claim to one node.
    pub(super) fn ask(&self, node: usize, wait: bool, propose: u64) -> Arc<Request> {
        let ours = &self.request;
        let owner = lock(&self.seats).of_node[node].owner;
        let mut request = Request::new(ours.name.clone(), owner, ours.ttl);
        request.mode = ours.mode;
        request.wait = wait;
        request.fair = ours.fair;
        request.min_hold = ours.min_hold;
        request.lock_delay = ours.lock_delay;
        request.min_lease = ours.min_lease;
        request.propose = Some(propose);
        request.holder = ours.holder.clone();
        Arc::new(request)
    }

    /// What one node knows as our hold.
    pub(super) fn on(&self, node: usize, unclean: bool) -> Hold {
        let seats = lock(&self.seats);
        let mut hold = Hold::new(&self.request, seats.token);
        hold.owner = seats.of_node[node].owner;
        hold.unclean = unclean;
        hold
    }

    pub(super) fn owners(&self) -> Vec<OwnerId> {
        let seats = lock(&self.seats);
        let others = seats.of_node.iter().map(|seat| seat.owner);
        others.chain([self.owner]).collect()
    }

    pub(super) fn token(&self) -> u64 {
        lock(&self.seats).token
    }

    pub(super) fn agree(&self, token: u64) {
        lock(&self.seats).token = token;
    }

    pub(super) fn held(&self, node: usize) {
        lock(&self.seats).of_node[node].held = true;
    }

    /// A node does not have it any more; how many still do.
    pub(super) fn lost_node(&self, node: usize) -> usize {
        let mut seats = lock(&self.seats);
        seats.of_node[node].held = false;
        seats.of_node.iter().filter(|seat| seat.held).count()
    }

    /// A new identity for a node where the old one was given back; returns what to give back.
    pub(super) fn leave_node(&self, node: usize) -> Hold {
        let hold = self.on(node, false);
        let mut seats = lock(&self.seats);
        seats.of_node[node].held = false;
        seats.of_node[node].owner = OwnerId::random();
        hold
    }

    pub(super) fn end(&self, now: Time) {
        self.ended.raise();
        let mut seats = lock(&self.seats);
        seats.ended_at = seats.ended_at.min(now);
    }

    /// Resolves when the hold is over, unless a release of it is on its way to the node, which ends there what waits.
    async fn unwanted(&self, node: usize) {
        self.ended.raised().await;
        if lock(&self.seats).of_node[node].leaving {
            std::future::pending::<()>().await;
        }
    }

    /// A release is sent to each node now.
    fn leave(&self, now: Time) {
        let mut seats = lock(&self.seats);
        seats
            .of_node
            .iter_mut()
            .for_each(|seat| seat.leaving = true);
        drop(seats);
        self.end(now);
    }

    /// The node has answered a release; whether it is to be asked once more, because something came after it.
    fn left(&self, node: usize, release: Release) -> bool {
        let mut seats = lock(&self.seats);
        let seat = &mut seats.of_node[node];
        seat.leaving = false;
        seat.released |= release == Release::Released;
        std::mem::take(&mut seat.late) && !seat.released
    }

    /// Something was granted when all was over; whether nobody else gives it back.
    fn is_orphan(&self, node: usize, owner: OwnerId) -> bool {
        let mut seats = lock(&self.seats);
        let seat = &mut seats.of_node[node];
        if seat.owner != owner {
            return true;
        }
        seat.late |= seat.leaving;
        !seat.leaving && !seat.released
    }

    /// Nobody asks for the release of a hold any more that ended so long ago: its leases are over.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        let ended_at = lock(&self.seats).ended_at;
        self.ended.is_raised() && now.since(ended_at) > self.request.ttl * 2
    }
}

/// Renews on all nodes, one request for each. A majority decides, for each hold.
pub(super) async fn renew(core: Arc<Core>, holds: Vec<Hold>) -> Vec<Renewal> {
    let claims: Vec<_> = holds.iter().map(|hold| core.claim(hold.owner)).collect();
    let known: Vec<_> = claims.iter().flatten().cloned().collect();
    let renewed = renew_claims(&core, &known).await;
    let mut renewed = renewed.into_iter();
    claims
        .iter()
        .map(|claim| {
            let of_claim = claim.as_ref().and_then(|_| renewed.next());
            of_claim.unwrap_or(Renewal::Lost(LostReason::StoreSaysNo))
        })
        .collect()
}

/// What the nodes said of one hold.
struct Vote {
    tally: Tally,
    /// Until when each yes is good.
    ends: Vec<(Time, Time)>,
    no_lease: usize,
    /// Nodes that definitely do not have it.
    missing: Vec<usize>,
    reason: LostReason,
    errors: Vec<Error>,
}

pub(super) async fn renew_claims(core: &Arc<Core>, claims: &[Arc<Claim>]) -> Vec<Renewal> {
    let nodes = core.nodes.len();
    let sent = core.clock.now();
    let ttl = claims.iter().map(|claim| claim.request.ttl).min();
    let limit = core.hold_limit(ttl.unwrap_or_default());
    let mut crowd = Crowd::new(core.nodes.iter().enumerate().map(|(node, backend)| {
        backend.renew(claims.iter().map(|claim| claim.on(node, false)).collect())
    }));
    let mut votes: Vec<_> = claims.iter().map(|_| Vote::new(nodes)).collect();
    let until = sent.after(limit);
    while votes
        .iter()
        .any(|vote| vote.tally.verdict() == Verdict::Pending)
        && let Some((node, answers)) = crowd.next_until(&core.clock, until).await
    {
        debug_assert_eq!(answers.len(), votes.len(), "BUG: one answer per hold");
        for (vote, answer) in votes.iter_mut().zip(answers) {
            vote.hear(node, answer);
        }
    }
    // What has landed meanwhile tells what to heal, and makes a loss definite.
    while let Some((node, answers)) = crowd.landed() {
        for (vote, answer) in votes.iter_mut().zip(answers) {
            vote.hear(node, answer);
        }
    }
    let mut renewed = Vec::new();
    let verdicts = votes.into_iter().zip(claims).map(|(vote, claim)| {
        let missing = vote.missing.clone();
        let renewal = vote.verdict(nodes, sent, limit);
        let is_renewed = matches!(renewal, Renewal::Renewed { .. });
        if is_renewed {
            missing.into_iter().for_each(|node| heal(core, claim, node));
        }
        renewed.push(is_renewed.then(|| claim.clone()));
        renewal
    });
    let verdicts = verdicts.collect();
    if crowd.is_any_flying() {
        core.see_to(Box::pin(heal_stragglers(core.clone(), crowd, renewed)));
    }
    verdicts
}

/// The answers that came after the majority's decide nothing, but they say where a hold is missing.
async fn heal_stragglers(
    core: Arc<Core>,
    mut crowd: Crowd<Vec<Renewal>>,
    claims: Vec<Option<Arc<Claim>>>,
) {
    while let Some((node, answers)) = crowd.next().await {
        for (claim, answer) in claims.iter().zip(answers) {
            if let (Some(claim), Renewal::Lost(_)) = (claim, answer)
                && !claim.ended.is_raised()
            {
                heal(&core, claim, node);
            }
        }
    }
}

impl Vote {
    fn new(nodes: usize) -> Self {
        Self {
            tally: Tally::new(nodes),
            ends: Vec::new(),
            no_lease: 0,
            missing: Vec::new(),
            reason: LostReason::StoreSaysNo,
            errors: Vec::new(),
        }
    }

    fn hear(&mut self, node: usize, answer: Renewal) {
        match answer {
            Renewal::Renewed { sent, ttl } => {
                match ttl {
                    Some(ttl) => self.ends.push((sent.after(ttl), sent)),
                    None => self.no_lease += 1,
                }
                self.tally.yes(node);
            }
            Renewal::Lost(reason) => {
                self.reason = reason;
                self.missing.push(node);
                self.tally.no(node);
            }
            Renewal::Unknown(err) => {
                self.errors.push(err);
                self.tally.unknown(node);
            }
            // There is no other answer.
            _ => {
                self.tally.unknown(node);
            }
        }
    }

    fn verdict(self, nodes: usize, sent: Time, limit: Duration) -> Renewal {
        if self.tally.verdict() == Verdict::Won {
            let lease = weakest(self.ends, self.no_lease, self.tally.majority());
            return match lease {
                Some((sent, ttl)) => Renewal::Renewed {
                    sent,
                    ttl: Some(ttl),
                },
                None => Renewal::Renewed { sent, ttl: None },
            };
        }
        if self.tally.is_refused() {
            return Renewal::Lost(self.reason);
        }
        let mut errors = self.errors;
        let answered = self.ends.len() + self.no_lease + self.missing.len() + errors.len();
        errors.extend((answered..nodes).map(|_| no_answer(limit)));
        Renewal::Unknown(merged(errors, nodes, "gave no clear answer"))
    }
}

/// The lease that a majority carries, given until when each node does, and since when: it ends with the
/// weakest node of the best majority. `None` when `no_lease` nodes, where none runs, are a majority by themselves.
///
/// The driver's margin is what Redlock calls drift, so nothing is taken off for that here.
pub(super) fn weakest(
    mut ends: Vec<(Time, Time)>,
    no_lease: usize,
    majority: usize,
) -> Option<(Time, Duration)> {
    ends.sort_unstable_by(|one, other| other.cmp(one));
    ends.truncate(majority.saturating_sub(no_lease));
    let (end, _) = *ends.last()?;
    let sent = ends.iter().map(|(_, sent)| *sent).min()?;
    Some((sent, end.since(sent)))
}

/// A node that definitely does not have the hold gets it again, unless somebody else has it there.
fn heal(core: &Arc<Core>, claim: &Arc<Claim>, node: usize) {
    {
        let mut seats = lock(&claim.seats);
        let seat = &mut seats.of_node[node];
        seat.held = false;
        if std::mem::replace(&mut seat.healing, true) {
            return;
        }
    }
    let (of_core, of_claim) = (core.clone(), claim.clone());
    core.see_to(Box::pin(async move {
        let (core, claim) = (of_core, of_claim);
        if !claim.ended.is_raised() {
            let ask = claim.ask(node, false, claim.token());
            let asking = core.nodes[node].acquire(ask.clone());
            see_out(&core, &claim, node, ask, asking).await;
        }
        lock(&claim.seats).of_node[node].healing = false;
    }));
}

/// Brings one request of a hold that is decided to its end: what it brings is kept while the hold lasts,
/// told the token, and given back otherwise.
pub(super) async fn see_out(
    core: &Arc<Core>,
    claim: &Arc<Claim>,
    node: usize,
    ask: Arc<Request>,
    mut asking: BoxFuture<Result<Answer, Error>>,
) {
    let limit = core.node_limit(claim.request.ttl);
    let until = core.clock.now().after(limit);
    let answer = tokio::select! {
        biased;
        answer = &mut asking => answer,
        () = claim.unwanted(node) => {
            ask.stop.raise();
            asking.await
        }
        () = core.clock.sleep_until(until) => {
            ask.stop.raise();
            asking.await
        }
    };
    let mut hold = Hold::new(&ask, 0);
    let mut unclear = matches!(&answer, Err(err) if err.kind() == ErrorKind::Indeterminate);
    if let Ok(Answer::Granted(grant)) = answer {
        core.saw(grant.token);
        hold.token = grant.token;
        let token = claim.token();
        if grant.token < token && !claim.ended.is_raised() {
            // If it fails: the token is safe with the majority that knows it.
            let _ = core.nodes[node].raise(hold.clone(), token).await;
        }
        claim.held(node);
        unclear = true;
    }
    if unclear && claim.ended.is_raised() && claim.is_orphan(node, hold.owner) {
        give_back(core.clone(), node, hold).await;
    }
}

/// Releases on one node until it has answered definitely, the lease is over, or the client closes.
pub(super) async fn give_back(core: Arc<Core>, node: usize, hold: Hold) {
    let give_up = core.clock.now().after(hold.ttl);
    for attempt in 0.. {
        if core.nodes[node].release(hold.clone()).await.is_ok() {
            return;
        }
        if core.closing.is_raised() {
            return;
        }
        let left = give_up.since(core.clock.now());
        let Some(pause) = pace::next(attempt, rand::random(), None, Some(left)) else {
            return;
        };
        tokio::select! {
            // Once more, and that is all.
            () = core.closing.raised() => {}
            () = core.clock.sleep_until(core.clock.now().after(pause)) => {}
        }
    }
}

/// Gives back on all nodes. It was ours, and is free, when a majority says so; it was not ours when
/// a majority definitely did not have it.
pub(super) async fn release(core: Arc<Core>, hold: Hold) -> Result<Release, Error> {
    let Some(claim) = core.claim(hold.owner) else {
        return Ok(Release::NotHeld);
    };
    let now = core.clock.now();
    claim.leave(now);
    let nodes = core.nodes.len();
    let limit = core.hold_limit(hold.ttl);
    let until = now.after(limit);
    let mut crowd =
        Crowd::new((0..nodes).map(|node| core.nodes[node].release(claim.on(node, hold.unclean))));
    let mut tally = Tally::new(nodes);
    let mut errors = Vec::new();
    let mut hear = |node: usize, answer| match answer {
        Ok(release) => {
            if claim.left(node, release) {
                let again = give_back(core.clone(), node, claim.on(node, false));
                core.see_to(Box::pin(again));
            }
            // It may have said so before, when too few others did.
            if lock(&claim.seats).of_node[node].released {
                tally.yes(node)
            } else {
                tally.no(node)
            }
        }
        Err(err) => {
            errors.push(err);
            tally.unknown(node)
        }
    };
    while let Some((node, answer)) = crowd.next_until(&core.clock, until).await {
        if hear(node, answer) == Verdict::Won {
            break;
        }
    }
    while let Some((node, answer)) = crowd.landed() {
        hear(node, answer);
    }
    let outcome = if tally.verdict() == Verdict::Won {
        Ok(Release::Released)
    } else if tally.is_refused() {
        Ok(Release::NotHeld)
    } else {
        let silent = (0..nodes).filter(|node| crowd.is_flying(*node));
        errors.extend(silent.map(|_| no_answer(limit)));
        Err(merged(errors, nodes, "gave no clear answer to the release"))
    };
    if outcome.is_ok() {
        core.forget(&claim);
        // The others are told until they have heard it.
        for node in tally.to_release() {
            if tally.said_yes(node) {
                continue;
            }
            let (of_core, of_claim) = (core.clone(), claim.clone());
            let (hold, flight) = (claim.on(node, hold.unclean), crowd.take(node));
            core.see_to(Box::pin(async move {
                if let Some(flight) = flight
                    && let Ok(release) = flight.await
                    && !of_claim.left(node, release)
                {
                    return;
                }
                // What is granted from now on may come after what is sent from now on.
                lock(&of_claim.seats).of_node[node].leaving = false;
                give_back(of_core, node, hold).await;
            }));
        }
    } else {
        crowd.leave(&core);
    }
    outcome
}
