//! Judges what observers of elections were told, by what the workers published and held.
//!
//! The order is judged without a tolerance: it is what an observer promises. How late an observer may be is judged with a
//! long tolerance, because the checker looks for changes that are never seen, and not for slow machines.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::nanos;
use crate::documented::DocumentedFaults;
use crate::elections::{ObserverHistory, Publication};
use crate::event::Sight;
use crate::history::Claim;
use crate::plan::FaultKind;

/// How late an observer may see a change, in addition to three ttl and the faults in that time.
const LATE_TOLERANCE: Duration = Duration::from_secs(5);

/// How late an observer may see a change at most, if it has no fault.
pub fn longest_delay(ttl: Duration) -> Duration {
    ttl * 3 + LATE_TOLERANCE
}

/// What is wrong with something that an observer was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Misobservation {
    /// A leader with a smaller token than an earlier one.
    OlderTerm,
    /// A leader again after its end was seen.
    TermAgain,
    /// A value of a term that was published before one that was seen.
    OlderValue,
    /// The same twice, although the observer knew who leads.
    Twice,
    /// A leader that the store had not granted.
    NotGranted,
    /// A value that was not published in that term.
    NotPublished,
    /// A leader whose term had been over for long when the observer was told something else.
    LongOver,
    /// After a quiet time: not who leads.
    NotTrue,
    /// The observer ended by itself.
    GaveUp,
}

impl Misobservation {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::OlderTerm,
        Self::TermAgain,
        Self::OlderValue,
        Self::Twice,
        Self::NotGranted,
        Self::NotPublished,
        Self::LongOver,
        Self::NotTrue,
        Self::GaveUp,
    ];

    /// The finding in a few words, after "the observer of worker 3".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OlderTerm => "saw an older leader after a newer one",
            Self::TermAgain => "saw a leader again after the end of its term",
            Self::OlderValue => "saw an older value of the term after a newer one",
            Self::Twice => "was told the same twice",
            Self::NotGranted => "saw a leader that the store had not granted",
            Self::NotPublished => "saw a value that was not published in that term",
            Self::LongOver => "saw a leader whose term had been over for long",
            Self::NotTrue => "did not see who leads, after a quiet time",
            Self::GaveUp => "ended by itself",
        }
    }
}

/// Something that an observer should not have been told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverFinding {
    /// What is wrong with it.
    pub what: Misobservation,
    /// The number of the observer.
    pub observer: u64,
    /// The worker that observed.
    pub worker: usize,
    /// When.
    pub at: u64,
    /// The fault under which the store's table allows it; none: a violation.
    pub documented: Option<FaultKind>,
}

/// Judges all observers of a run.
pub(crate) fn check(faults: DocumentedFaults<'_>) -> Vec<ObserverFinding> {
    let mut found = Vec::new();
    for name in faults.history.election_names() {
        let judge = Judge::new(faults, name);
        let observers = faults.history.elections.observers.iter();
        for observer in observers.filter(|it| it.name == name) {
            judge.items(observer, &mut found);
            judge.quiet_times(observer, &mut found);
        }
    }
    found.sort_by_key(|it| it.at);
    found
}

/// A value, and its number within its term.
struct Published<'a> {
    publication: &'a Publication,
    number: usize,
}

/// A time in which nothing changed, and who led.
struct QuietTime {
    from: u64,
    to: u64,
    /// Token and value of the leader; `None`: nobody.
    leader: Option<(u64, String)>,
}

/// One election.
struct Judge<'a> {
    faults: DocumentedFaults<'a>,
    /// How late an observer without a fault may be.
    longest_delay: u64,
    claims: Claims<'a>,
    values: HashMap<&'a str, Published<'a>>,
    quiet: Vec<QuietTime>,
}

/// The claims of one name, in the order of their starts.
struct Claims<'a> {
    all: Vec<&'a Claim>,
    of_token: HashMap<u64, Vec<&'a Claim>>,
    of_acquisition: HashMap<u64, &'a Claim>,
    /// For each claim, the latest end up to there.
    latest_end: Vec<u64>,
}

/// How far an observer has come.
#[derive(Default)]
struct Progress {
    /// The token of the newest leader, and the number of its newest value.
    newest: Option<(u64, usize)>,
    /// The end of that term was seen.
    is_over: bool,
    /// What the observer was told last; `None`: it does not know who leads.
    last: Option<Sight>,
}

impl<'a> Judge<'a> {
    fn new(faults: DocumentedFaults<'a>, name: &str) -> Self {
        let claims = faults.history.claims.iter().filter(|it| it.name == name);
        let mut numbers: HashMap<u64, usize> = HashMap::new();
        let publications = faults.history.elections.publications.iter();
        let values = publications.map(|publication| {
            let number = numbers.entry(publication.acquisition).or_default();
            *number += 1;
            let published = Published {
                publication,
                number: *number,
            };
            (publication.value.as_str(), published)
        });
        let mut judge = Self {
            faults,
            longest_delay: 3 * faults.ttl + nanos(LATE_TOLERANCE),
            values: values.collect(),
            claims: Claims::new(claims.collect()),
            quiet: Vec::new(),
        };
        judge.quiet = judge.times_with_a_leader();
        judge.quiet.extend(judge.times_without_a_leader(name));
        judge
    }

    /// Each item of an observer, by itself and after the items before it.
    fn items(&self, observer: &ObserverHistory, found: &mut Vec<ObserverFinding>) {
        let mut progress = Progress::default();
        let mut previous = observer.from;
        for item in &observer.items {
            let at = item.at;
            let mut report = |what, documented| {
                found.push(ObserverFinding {
                    what,
                    observer: observer.observer,
                    worker: observer.worker,
                    at,
                    documented,
                });
            };
            match &item.sight {
                Sight::Leader { token, value } => {
                    if let Some((what, documented)) = self.origin(at, *token, value.as_deref()) {
                        report(what, documented);
                    }
                    let number = value.as_deref().and_then(|value| self.values.get(value));
                    let number = number.map(|value| value.number);
                    if let Some(what) = progress.see_leader(*token, number, &item.sight) {
                        report(what, self.faults.token_regress_at(at));
                    }
                    if self.was_long_over(*token, observer, previous) {
                        report(Misobservation::LongOver, None);
                    }
                }
                Sight::Nobody => {
                    if progress.see_nobody() {
                        report(Misobservation::Twice, None);
                    }
                }
                Sight::Unsure(_) => progress.last = None,
                Sight::GaveUp(_) => {
                    report(Misobservation::GaveUp, self.faults.token_regress_at(at));
                }
            }
            previous = at;
        }
    }

    /// What is wrong with a leader and its value, whatever the observer was told before.
    fn origin(
        &self,
        at: u64,
        token: Option<u64>,
        value: Option<&str>,
    ) -> Option<(Misobservation, Option<FaultKind>)> {
        let Some(token) = token else {
            let documented = self.faults.without_token_at(at);
            return Some((Misobservation::NotGranted, documented));
        };
        let published = value.and_then(|value| self.values.get(value));
        let Some(published) = published.filter(|it| it.publication.at <= at) else {
            return Some((Misobservation::NotPublished, None));
        };
        let acquisition = published.publication.acquisition;
        let of_token = self.claims.of_token.get(&token);
        if of_token.is_some_and(|of| of.iter().all(|it| it.acquisition != acquisition)) {
            let documented = self.faults.token_regress_at(at);
            return Some((Misobservation::NotPublished, documented));
        }
        // The worker may have been killed before it knew of its grant, or the store may have granted a request whose answer
        // the worker never got. But after the last grant of a campaign there is none with a greater token.
        let campaign = self.claims.of_acquisition.get(&acquisition);
        if campaign.is_some_and(|claim| claim.token < token) {
            return Some((Misobservation::NotGranted, self.faults.token_regress_at(at)));
        }
        let mut leaders = self.claims.at(at);
        let still_leads = leaders.any(|it| it.acquisition != acquisition && it.token < token);
        still_leads.then(|| (Misobservation::NotGranted, self.faults.overlap_at(at)))
    }

    /// Whether the term was over for longer than a change needs, when the observer was told the `previous` item: what it was
    /// told after that should not be so old.
    fn was_long_over(&self, token: Option<u64>, observer: &ObserverHistory, previous: u64) -> bool {
        let claims = token.and_then(|token| self.claims.of_token.get(&token));
        let Some(end) = claims.and_then(|of| of.iter().map(|it| it.end).max()) else {
            return false;
        };
        // The store may show a leader that vanished for one ttl.
        self.is_long_after(end + self.faults.ttl, previous, observer.worker)
    }

    /// Whether `at` is later than `from` by more than a change needs, also with the faults of this worker in that time.
    fn is_long_after(&self, from: u64, at: u64, worker: usize) -> bool {
        let faults = self.faults.history.faults.iter();
        let own = faults.filter(|it| it.worker.is_none_or(|hit| hit == worker));
        let near = own.filter(|it| it.from <= at && it.to.saturating_add(self.faults.ttl) >= from);
        let faults: u64 = near.map(|it| it.to - it.from).sum();
        at > from.saturating_add(self.longest_delay + faults)
    }

    /// At the end of each time in which nothing changed for long, the observer must know who leads.
    fn quiet_times(&self, observer: &ObserverHistory, found: &mut Vec<ObserverFinding>) {
        for quiet in &self.quiet {
            let to = quiet.to.min(observer.to);
            let before = observer.items.partition_point(|it| it.at <= to);
            let items = &observer.items[..before];
            let unsure = |sight: &Sight| matches!(sight, Sight::Unsure(_) | Sight::GaveUp(_));
            let last = items.last().map(|it| &it.sight);
            let last_error = items.iter().rev().find(|it| unsure(&it.sight));
            let from = quiet.from.max(observer.from);
            let from = from.max(last_error.map_or(0, |it| it.at));
            // An observer whose store does not answer says so, and then it is not judged.
            if !self.is_long_after(from, to, observer.worker) || last.is_some_and(unsure) {
                continue;
            }
            let is_true = match (last, &quiet.leader) {
                (Some(Sight::Nobody), None) => true,
                (Some(Sight::Leader { token, value }), Some((leads, published))) => {
                    *token == Some(*leads) && value.as_ref() == Some(published)
                }
                _ => false,
            };
            if !is_true {
                found.push(ObserverFinding {
                    what: Misobservation::NotTrue,
                    observer: observer.observer,
                    worker: observer.worker,
                    at: to,
                    documented: None,
                });
            }
        }
    }

    /// For each term, the time after the store confirmed its last value.
    fn times_with_a_leader(&self) -> Vec<QuietTime> {
        let mut last_values: HashMap<u64, &Published<'_>> = HashMap::new();
        for value in self.values.values() {
            let last = last_values
                .entry(value.publication.acquisition)
                .or_insert(value);
            if last.number < value.number {
                *last = value;
            }
        }
        let quiet = self.claims.alone().filter_map(|claim| {
            let last = last_values.get(&claim.acquisition)?.publication;
            Some(QuietTime {
                from: last.stored?.max(claim.start),
                to: claim.end,
                leader: Some((claim.token, last.value.clone())),
            })
        });
        quiet.filter(|it| self.is_long(it)).collect()
    }

    /// The times in which no worker led or wanted to, and in which all leases were over.
    fn times_without_a_leader(&self, name: &str) -> Vec<QuietTime> {
        let history = self.faults.history;
        let waits = history.waits.iter().filter(|it| it.name == name);
        let waits = waits.map(|it| (it.from, it.to));
        let claims = self.claims.all.iter().map(|it| (it.start, it.end));
        let mut busy: Vec<(u64, u64)> = waits.chain(claims).collect();
        busy.sort_unstable();
        let mut quiet = Vec::new();
        let mut free_from = history.began;
        for (from, to) in busy.into_iter().chain([(history.over, history.over)]) {
            if from > free_from {
                quiet.push(QuietTime {
                    from: free_from,
                    to: from,
                    leader: None,
                });
            }
            free_from = free_from.max(to.saturating_add(self.faults.ttl));
        }
        quiet.retain(|it| self.is_long(it));
        quiet
    }

    fn is_long(&self, quiet: &QuietTime) -> bool {
        quiet.to > quiet.from.saturating_add(self.longest_delay)
    }
}

impl<'a> Claims<'a> {
    fn new(all: Vec<&'a Claim>) -> Self {
        let mut of_token: HashMap<u64, Vec<&Claim>> = HashMap::new();
        for claim in &all {
            of_token.entry(claim.token).or_default().push(claim);
        }
        let latest_end = all.iter().scan(0, |latest, claim| {
            *latest = claim.end.max(*latest);
            Some(*latest)
        });
        Self {
            latest_end: latest_end.collect(),
            of_acquisition: all.iter().map(|it| (it.acquisition, *it)).collect(),
            of_token,
            all,
        }
    }

    /// Those whose owners believed at this time that they hold.
    fn at(&self, at: u64) -> impl Iterator<Item = &Claim> {
        let started = self.all.partition_point(|it| it.start <= at);
        let recent = (0..started).rev();
        let recent = recent.take_while(move |index| self.latest_end[*index] > at);
        recent
            .map(|index| self.all[index])
            .filter(move |it| it.end > at)
    }

    /// Those that no other one overlaps.
    fn alone(&self) -> impl Iterator<Item = &Claim> {
        let claims = self.all.iter().enumerate();
        claims.filter_map(|(index, claim)| {
            let before = index.checked_sub(1).map_or(0, |it| self.latest_end[it]);
            let next = self.all.get(index + 1).map_or(u64::MAX, |it| it.start);
            (before <= claim.start && claim.end <= next).then_some(*claim)
        })
    }
}

impl Progress {
    /// What is wrong with the order, if the observer is told of this leader. `number`: that of its value, if it is known.
    /// A leader without a token has no place in the order.
    fn see_leader(
        &mut self,
        token: Option<u64>,
        number: Option<usize>,
        sight: &Sight,
    ) -> Option<Misobservation> {
        let is_same = self.last.as_ref() == Some(sight);
        self.last = Some(sight.clone());
        let token = token?;
        let number = number.unwrap_or(0);
        if let Some((newest, newest_number)) = self.newest
            && token <= newest
        {
            if token < newest {
                return Some(Misobservation::OlderTerm);
            }
            if self.is_over {
                return Some(Misobservation::TermAgain);
            }
            if number != 0 && number < newest_number {
                return Some(Misobservation::OlderValue);
            }
        }
        (self.newest, self.is_over) = (Some((token, number)), false);
        is_same.then_some(Misobservation::Twice)
    }

    /// Whether the observer was told so before, and nothing else since.
    fn see_nobody(&mut self) -> bool {
        self.is_over = true;
        self.last.replace(Sight::Nobody) == Some(Sight::Nobody)
    }
}
