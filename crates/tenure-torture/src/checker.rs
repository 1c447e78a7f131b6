//! Judges a run: what went wrong, and whether the store's table of guarantees allows it. The checker reads nothing but
//! the history, so a log can be judged again.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tenure::guarantees::{Cell, Guarantees, Order, Promise};

use crate::clock::nanos;
use crate::detached::DetachedHistory;
use crate::documented::DocumentedFaults;
use crate::earlier_tokens::EarlierTokens;
use crate::history::{Claim, History};
use crate::mode::{HoldMode, PERMITS};
use crate::observer_checker::{self, ObserverFinding};
use crate::places::{Turns, places};
use crate::plan::FaultKind;

/// With fewer acquisitions than this a run proves nothing.
pub const MIN_ACQUISITIONS: usize = 20;
/// With fewer faults than this a run proves nothing.
pub const MIN_FAULTS: usize = 3;
/// How long a name may be free while a worker waits, in addition to three ttl and the faults in that time. The time is
/// long, because the checker looks for waits that never end and not for slow machines.
const GAP_TOLERANCE: Duration = Duration::from_secs(5);

/// A waiter whose process does not run for a while loses its place, and workers that ask before it runs again are served
/// first. All of their acquisitions count as one. An acquisition that was asked for this long after the first of them
/// counts by itself.
const PLACE_TOLERANCE: Duration = Duration::from_secs(5);

/// So many acquisitions out of turn, and up to a fiftieth of all acquisitions, are no violation: a waiter whose process
/// does not run for a while on a busy machine loses its place without a fault of the plan.
const MAX_CHANCE_OVERTAKINGS: usize = 5;

/// Two workers believed at the same time that they hold the name, in modes that exclude each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// Acquisition and worker of the earlier holder.
    pub first: (u64, usize),
    /// Acquisition and worker of the later holder.
    pub second: (u64, usize),
    /// When the overlap began.
    pub from: u64,
    /// When the overlap ended.
    pub to: u64,
    /// The fault under which the store's table allows it; none: a violation.
    pub documented: Option<FaultKind>,
}

/// A write or a token that should not exist: it has an instant and no duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    /// The acquisition.
    pub acquisition: u64,
    /// The instant.
    pub at: u64,
    /// The fault under which the store's table allows it; none: a violation.
    pub documented: Option<FaultKind>,
}

/// A worker that came later was served before one that waited and had no fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overtaking {
    /// The worker that waited, and since when.
    pub waiter: (usize, u64),
    /// The acquisition that was served.
    pub acquisition: u64,
    /// The instant.
    pub at: u64,
}

/// Everything that the checker found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Claims that overlap.
    pub overlaps: Vec<Overlap>,
    /// Tokens that are not greater than a token that was granted before the request for them.
    pub tokens: Vec<Anomaly>,
    /// Writes to the register that a fence refuses, or should refuse.
    pub writes: WriteFindings,
    /// Acquisitions out of turn.
    pub overtakings: Vec<Overtaking>,
    /// Whether acquisitions out of turn are so many that the store cannot be as fair as its table says.
    pub is_unfair: bool,
    /// The longest time without a holder while a worker waited.
    pub longest_gap: u64,
    /// The start and the end of each gap that is longer than a store needs.
    pub gaps: Vec<(u64, u64)>,
    /// What observers of elections should not have been told.
    pub observers: Vec<ObserverFinding>,
    /// Why the run proves nothing, if too little happened.
    pub not_enough: Option<String>,
}

/// What the checker found about writes to the register.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteFindings {
    /// Writes of former holders after another worker got the name. Only a fence can refuse them.
    pub late: Vec<Anomaly>,
    /// The number of late writes that the fenced register refused.
    pub late_refused: usize,
    /// Late writes that the fenced register accepted after a write of the newer holder.
    pub late_accepted: Vec<Anomaly>,
    /// The number of writes of the newest holder that the fenced register refused.
    pub newest_refused: usize,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing worse than documented.
    Ok,
    /// A promise was broken.
    Violation,
    /// Too little happened for a verdict.
    NotEnough,
}

impl Findings {
    /// The verdict; a violation counts however short the run was.
    pub fn verdict(&self) -> Verdict {
        if self.violations() > 0 {
            Verdict::Violation
        } else if self.not_enough.is_some() {
            Verdict::NotEnough
        } else {
            Verdict::Ok
        }
    }

    /// The number of findings that the store's table does not allow.
    pub fn violations(&self) -> usize {
        let overlaps = self.overlaps.iter();
        let anomalies = [&self.tokens, &self.writes.late, &self.writes.late_accepted];
        let anomalies = anomalies.into_iter().flatten();
        let observers = self.observers.iter();
        overlaps.filter(|it| it.documented.is_none()).count()
            + anomalies.filter(|it| it.documented.is_none()).count()
            + observers.filter(|it| it.documented.is_none()).count()
            + self.gaps.len()
            + usize::from(self.is_unfair)
    }
}

/// Judges a history by what the store promises. `asked`: the faults that the run should have had.
pub fn check(
    history: &History,
    promises: &Guarantees,
    ttl: Duration,
    asked: &[FaultKind],
) -> Findings {
    let faults = DocumentedFaults {
        history,
        promises,
        ttl: nanos(ttl),
    };
    let judge = Judge {
        history,
        promises,
        faults,
        ttl: nanos(ttl),
    };
    let mut found = Findings {
        not_enough: not_enough(history, asked),
        ..Findings::default()
    };
    for name in history.names() {
        let claims = history.claims.iter().filter(|claim| claim.name == name);
        let claims: Vec<&Claim> = claims.collect();
        judge.overlaps(&claims, &mut found);
        judge.tokens(&claims, &mut found);
        judge.writes(&claims, &mut found);
        judge.gaps(name, &claims, &mut found);
        judge.turns(name, &claims, &mut found);
    }
    found.observers = observer_checker::check(faults);
    let overtakings = found.overtakings.len();
    found.is_unfair = matches!(promises.order, Order::Fair)
        && overtakings > MAX_CHANCE_OVERTAKINGS
        && overtakings * 50 > history.claims.len();
    found
}

fn not_enough(history: &History, asked: &[FaultKind]) -> Option<String> {
    if let Some(worker) = history.failures.vanished.first() {
        return Some(format!(
            "worker {worker} ended by itself; workers.log says why"
        ));
    }
    let acquisitions = history.claims.len();
    if acquisitions < MIN_ACQUISITIONS {
        let last = history.failures.refusal.as_deref();
        let why = last.map_or(String::new(), |why| format!("; a worker was told: {why}"));
        return Some(format!(
            "only {acquisitions} acquisitions, at least {MIN_ACQUISITIONS} are needed{why}"
        ));
    }
    let missing: Vec<_> = asked
        .iter()
        .filter(|kind| !history.faults.iter().any(|it| it.kind == **kind))
        .map(|kind| kind.as_str())
        .collect();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Some(format!(
            "there was no {missing}; let it run longer with --for"
        ));
    }
    let observers = &history.elections.observers;
    if !observers.is_empty() && history.elections.sights() == 0 {
        return Some("no observer was told anything; workers.log may say why".into());
    }
    let faults = history.faults.len();
    (faults < MIN_FAULTS).then(|| {
        format!(
            "only {faults} faults, at least {MIN_FAULTS} are needed; let it run longer with --for"
        )
    })
}

struct Judge<'a> {
    history: &'a History,
    promises: &'a Guarantees,
    faults: DocumentedFaults<'a>,
    ttl: u64,
}

/// Of the holders whose mode excludes that of `claim`, the one that holds longest.
fn excluded_by<'a>(
    open: &[&'a Claim],
    claim: &Claim,
    detached: &DetachedHistory,
) -> Option<&'a Claim> {
    let together = |it: &&&Claim| it.mode.may_be_together(claim.mode);
    // A hold that was detached is the same hold when a worker is attached to it.
    let others = open.iter().filter(|it| !detached.is_same_hold(it, claim));
    let excluding = others
        .clone()
        .filter(|it| !together(it))
        .max_by_key(|it| it.end);
    let permits = others.filter(|it| it.mode == HoldMode::Permit);
    // A detached hold, and the claim of a worker that is attached to it, are one permit.
    let holds: HashSet<u64> = permits.clone().map(|it| detached.hold_of(it)).collect();
    let is_one_too_many = claim.mode == HoldMode::Permit && holds.len() >= PERMITS.get() as usize;
    let last_permit = permits.max_by_key(|it| it.end).filter(|_| is_one_too_many);
    excluding.or(last_permit).copied()
}

impl Judge<'_> {
    fn overlaps(&self, claims: &[&Claim], found: &mut Findings) {
        let mut open: Vec<&Claim> = Vec::new();
        let detached = &self.history.detached;
        for claim in self.with_detached(claims) {
            open.retain(|first| claim.start < first.end);
            if let Some(first) = excluded_by(&open, claim, detached) {
                let at = claim.start;
                found.overlaps.push(Overlap {
                    first: (first.acquisition, first.worker),
                    second: (claim.acquisition, claim.worker),
                    from: at,
                    to: first.end.min(claim.end),
                    documented: self.faults.overlap_at(at),
                });
            }
            open.push(claim);
        }
    }

    /// The claims of a name, and its detached holds, which no worker claims, in the order in which they start.
    fn with_detached<'b>(&'b self, claims: &[&'b Claim]) -> Vec<&'b Claim> {
        let name = claims.first().map(|it| &it.name);
        let detached = self.history.detached.holds.iter().map(|it| &it.claim);
        let detached = detached.filter(|it| Some(&it.name) == name && it.end > it.start);
        let mut all: Vec<_> = claims.iter().copied().chain(detached).collect();
        all.sort_by_key(|it| it.start);
        all
    }

    /// A token must be greater than each token that was granted before its request was sent, and than each that another task
    /// had before in the same turn. No two exclusive holds have the same one. A downgrade asks for none, and a worker that is
    /// attached to a hold has the token of this hold.
    fn tokens(&self, claims: &[&Claim], found: &mut Findings) {
        let mut before = EarlierTokens::default();
        for claim in claims {
            if let Some(detached) = self.history.detached.attached_to(claim) {
                if claim.token != detached.claim.token {
                    found.tokens.push(Anomaly {
                        acquisition: claim.acquisition,
                        at: claim.start,
                        documented: None,
                    });
                }
            } else if !claim.keeps_token() && !before.allow(claim) {
                let anomaly = self.token_anomaly(claim.acquisition, claim.start);
                found.tokens.push(anomaly);
            }
            before.add(claim);
        }
    }

    fn token_anomaly(&self, acquisition: u64, at: u64) -> Anomaly {
        Anomaly {
            acquisition,
            at,
            documented: self.faults.token_regress_at(at),
        }
    }

    fn writes(&self, claims: &[&Claim], found: &mut Findings) {
        let of: HashMap<u64, &Claim> = claims.iter().map(|it| (it.acquisition, *it)).collect();
        // The newest claim whose write, or whose access, the fenced side accepted.
        let (mut newest_write, mut newest_access) = (None, None);
        for write in &self.history.writes {
            let Some(claim) = of.get(&write.acquisition) else {
                continue;
            };
            // Another worker, in a mode that excludes this one, got the name after this claim and before this access.
            let before = claims.partition_point(|it| it.start < write.at);
            let later = claims[..before].iter().rev();
            let superseded = later
                .take_while(|it| it.start > claim.start)
                .any(|it| !it.mode.may_be_together(claim.mode));
            let is_write = claim.mode.is_exclusive();
            let acquisition = write.acquisition;
            let writes = &mut found.writes;
            if superseded {
                writes.late_refused += usize::from(!write.accepted);
                writes.late.push(Anomaly {
                    acquisition,
                    at: write.at,
                    documented: self.documented_for_late(write.at, claim),
                });
            } else {
                writes.newest_refused += usize::from(!write.accepted);
            }
            if write.accepted {
                let newest = if is_write {
                    newest_access
                } else {
                    newest_write
                };
                if newest.is_some_and(|newest| is_certainly_older(claim, newest)) {
                    writes
                        .late_accepted
                        .push(self.token_anomaly(acquisition, write.at));
                }
                newest_access = Some(later_of(newest_access, claim));
                if is_write {
                    newest_write = Some(later_of(newest_write, claim));
                }
            }
        }
    }

    /// A late write needs no planned fault where the table allows one after a pause: every machine has pauses of its
    /// own. A worker that is attached to a detached hold has a lease, also where other holds have none, so the cell of a pause
    /// that says what those holds promise does not count for it.
    fn documented_for_late(&self, at: u64, claim: &Claim) -> Option<FaultKind> {
        if self.history.detached.attached_to(claim).is_some() {
            return Some(FaultKind::Pause);
        }
        let weak = |cell: Option<&Cell>| {
            cell.is_none_or(|cell| matches!(cell.promise, Promise::Claims | Promise::Nothing))
        };
        match self.faults.any_cell_allows(FaultKind::Pause, weak) {
            true => Some(FaultKind::Pause),
            false => self.faults.at(at, weak),
        }
    }

    /// A request needs some time until it is in the queue, so only a worker that asked a whole ttl later is certainly
    /// behind in the queue. A waiter that had a fault meanwhile, or shortly before, may have lost its place. The tasks of a
    /// worker have one place in the queue, one after the other, and a hold that passes on among them was asked for once.
    fn turns(&self, name: &str, claims: &[&Claim], found: &mut Findings) {
        // When each wait was overtaken for the first time.
        let mut first: HashMap<(usize, u64), u64> = HashMap::new();
        let mut turns = Turns::default();
        let waits = self.history.waits.iter().filter(|it| it.name == name);
        let mut places = places(waits, claims);
        places.retain(|it| it.from + self.ttl < it.to);
        for claim in claims {
            let asked = turns.asked_for(claim);
            // An upgrade comes before all that wait.
            if claim.changes.is_some() {
                continue;
            }
            let has_trouble = |worker: usize, since: u64| {
                self.history.faults.iter().any(|it| {
                    it.worker.is_none_or(|hit| hit == worker)
                        && it.from <= claim.start
                        && it.to.saturating_add(2 * self.ttl) >= since
                })
            };
            let overtaken = places.iter().find(|place| {
                place.worker != claim.worker
                    && (self.promises.upgradable_in_turn || place.mode != HoldMode::Upgradable)
                    && place.from + self.ttl <= asked
                    && place.to > claim.start
                    && !has_trouble(place.worker, place.from)
                    && first
                        .get(&(place.worker, place.from))
                        .is_none_or(|at| at + nanos(PLACE_TOLERANCE) <= asked)
            });
            if let Some(place) = overtaken {
                let waiter = (place.worker, place.from);
                first.entry(waiter).or_insert(claim.start);
                found.overtakings.push(Overtaking {
                    waiter,
                    acquisition: claim.acquisition,
                    at: claim.start,
                });
            }
        }
    }

    fn gaps(&self, name: &str, claims: &[&Claim], found: &mut Findings) {
        let (began, over) = (self.history.began, self.history.over);
        let mut free_from = began;
        let held = claims.iter().map(|it| (it.start, it.end));
        let detached = self.history.detached.holds.iter();
        let detached = detached.filter(|it| it.claim.name == name);
        let leased = detached.map(|it| (it.claim.start, it.leased_until));
        let mut ends: Vec<_> = held.chain(leased).collect();
        ends.sort_unstable();
        // The last gap ends with the run: a name that no worker gets any more is the longest gap of all.
        for (start, end) in ends.into_iter().chain([(over, over)]) {
            if start > free_from
                && let Some((from, to)) = self.longest_wait(name, free_from, start.min(over))
            {
                found.longest_gap = found.longest_gap.max(to - from);
                let near = self
                    .history
                    .faults
                    .iter()
                    .filter(|it| it.from <= to && it.to.saturating_add(self.ttl) >= from);
                let faults: u64 = near.map(|it| it.to - it.from).sum();
                if to - from > 3 * self.ttl + nanos(GAP_TOLERANCE) + faults {
                    found.gaps.push((from, to));
                }
            }
            free_from = free_from.max(end);
        }
    }

    /// The longest time between `from` and `to` in which a worker waited for `name`.
    fn longest_wait(&self, name: &str, from: u64, to: u64) -> Option<(u64, u64)> {
        /// A worker that was refused asks again within this time; both requests count as one wait.
        const RETRY_GAP: u64 = 100_000_000;
        let waits = self.history.waits.iter().filter(|it| it.name == name);
        let mut longest: Option<(u64, u64)> = None;
        let mut open: Option<(u64, u64)> = None;
        for wait in waits {
            let (begin, end) = (wait.from.max(from), wait.to.min(to));
            if end <= begin {
                continue;
            }
            let merged = match open {
                Some((first, last)) if begin <= last + RETRY_GAP => (first, last.max(end)),
                _ => (begin, end),
            };
            open = Some(merged);
            if longest.is_none_or(|(first, last)| merged.1 - merged.0 > last - first) {
                longest = open;
            }
        }
        longest
    }
}

fn later_of<'a>(newest: Option<&'a Claim>, claim: &'a Claim) -> &'a Claim {
    newest.map_or(claim, |newest| {
        std::cmp::max_by_key(newest, claim, |it| it.start)
    })
}

/// Whether `claim` had ended, or had a smaller token, when `newest` began. Claims that overlap may begin in the opposite
/// order of their grants, because a worker on a busy machine reads its grant late; there the tokens have the order.
fn is_certainly_older(claim: &Claim, newest: &Claim) -> bool {
    let overlap = newest.start < claim.end;
    claim.start < newest.start && !(overlap && claim.token > newest.token)
}
