//! The candidates and observers of one election, and what they did and saw.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::leader::Leader;
use crate::rt::lock;
use crate::{Client, Election, Error, ErrorKind, Observer, Term};

use super::case::{Case, PAUSES};
use super::election_history::{Attempt, ElectionHistory, Seen};
use super::failure::{Failure, Verdict};

/// How late an observer may see a change of a running store: that of a store that does not push, and more.
pub(super) const OBSERVED: Duration = Duration::from_secs(5);

/// How late a leader may learn that it is asked to resign: a third of its ttl, or a second in a store that has to be read.
/// The rest is for a busy machine.
pub(super) fn asked_within(ttl: Duration) -> Duration {
    ttl / 3 + OBSERVED
}

/// One election.
pub(super) struct ElectionCase {
    pub(super) case: Arc<Case>,
    pub(super) name: String,
    pub(super) history: Arc<ElectionHistory>,
    observers: Mutex<Vec<ObserverTask>>,
}

/// A task that polls an observer. Dropping the value ends the task.
struct ObserverTask(JoinHandle<()>);

impl Drop for ObserverTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A client that may lead.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) client: Client,
    name: String,
    ttl: Duration,
    history: Arc<ElectionHistory>,
}

/// A term, of which the history has the values.
pub(super) struct Leading {
    pub(super) term: Term,
    attempt: Attempt,
    history: Arc<ElectionHistory>,
}

impl ElectionCase {
    /// An election of this name, without candidates and observers.
    pub(super) fn new(case: &Arc<Case>, tail: &str) -> Self {
        Self {
            case: case.clone(),
            name: case.name(tail),
            history: Arc::default(),
            observers: Mutex::default(),
        }
    }

    /// A client that campaigns for so long that no lease ends, however slow the machine is.
    pub(super) async fn candidate(&self) -> Result<Candidate, Failure> {
        Ok(self.candidate_of(self.case.client().await?, self.case.long()))
    }

    /// A client with the shortest ttl, for behaviours in which a lease or its renewal matters.
    pub(super) async fn short_candidate(&self) -> Result<Candidate, Failure> {
        Ok(self.candidate_of(self.case.client().await?, self.case.ttl()))
    }

    pub(super) fn candidate_of(&self, client: Client, ttl: Duration) -> Candidate {
        Candidate {
            client,
            name: self.name.clone(),
            ttl,
            history: self.history.clone(),
        }
    }

    /// The election, for a new client that is no candidate.
    pub(super) async fn outsider(&self) -> Result<Election, Failure> {
        Ok(self.case.client().await?.election(&self.name))
    }

    /// Starts so many more observers, each of a client of its own.
    pub(super) async fn observe(&self, count: usize) -> Verdict {
        for _ in 0..count {
            let observer = self.outsider().await?.observe();
            self.record(observer).await;
        }
        Ok(())
    }

    /// Starts a task that polls this observer.
    async fn record(&self, mut observer: Observer) {
        let (history, number) = (self.history.clone(), self.history.observes());
        let polling = async move {
            while let Some(item) = observer.next().await {
                history.sees(number, seen(item));
            }
            history.sees(number, Seen::End);
        };
        let task = self.case.start(polling).await;
        lock(&self.observers).push(ObserverTask(task));
    }

    /// Waits until each observer has seen the leader with this value.
    ///
    /// # Errors
    /// One of them has not.
    pub(super) async fn until_seen(&self, value: &str) -> Verdict {
        let shown = |seen: &[Seen]| {
            let mut leaders = seen.iter();
            leaders.any(|it| matches!(it, Seen::Leader { value: shown, .. } if shown == value))
        };
        self.until_each(OBSERVED, &format!("{value:?} leads"), shown)
            .await
    }

    /// Waits until each observer says that nobody leads.
    ///
    /// # Errors
    /// One of them does not.
    pub(super) async fn until_nobody_is_seen(&self, limit: Duration) -> Verdict {
        let is_last = |seen: &[Seen]| seen.last() == Some(&Seen::Nobody);
        self.until_each(limit, "nobody leads", is_last).await
    }

    /// Waits until what each observer has seen is as expected.
    ///
    /// # Errors
    /// That is never so; the text has what the observers saw.
    pub(super) async fn until_each(
        &self,
        limit: Duration,
        what: &str,
        expected: impl Fn(&[Seen]) -> bool,
    ) -> Verdict {
        let what = format!("each observer sees that {what}");
        let waiting = self.case.in_time(limit, &what, async {
            while !self.history.seen().iter().all(|seen| expected(seen)) {
                self.case.look_again().await;
            }
        });
        let seen = |err: Failure| err.with(format_args!("seen: {:?}", self.history.seen()));
        waiting.await.map_err(seen)
    }

    /// Asks the store who leads: the token and the value.
    pub(super) async fn leader(&self) -> Result<Option<(u64, String)>, Failure> {
        let leader = self.outsider().await?.leader().await?;
        Ok(leader.map(|leader| (token_of(&leader), value_of(&leader))))
    }

    /// Waits until the store says that nobody leads.
    ///
    /// # Errors
    /// Somebody still does.
    pub(super) async fn until_nobody_leads(&self) -> Verdict {
        let waiting = self.case.soon("nobody leads", async {
            while self.leader().await?.is_some() {
                self.case.look_again().await;
            }
            Ok::<_, Failure>(())
        });
        waiting.await?
    }

    /// Checks what the observers saw.
    ///
    /// # Errors
    /// An observer went backwards.
    #[track_caller]
    pub(super) fn check(&self) -> Verdict {
        self.history.check()
    }
}

impl Candidate {
    /// The election, with a first value.
    pub(super) fn election(&self, value: &str) -> Election {
        let election = self.client.election(&self.name).ttl(self.ttl);
        election.value(value)
    }

    /// Waits until elected. The value is one that no other attempt of the run has.
    pub(super) fn campaign(
        &self,
        value: &str,
    ) -> impl Future<Output = Result<Leading, Error>> + Send + 'static + use<> {
        let election = self.election(value);
        let (history, value) = (self.history.clone(), value.to_owned());
        async move {
            let attempt = history.campaigns(&value);
            let term = campaign_again(&election).await?;
            history.elected(attempt, term.token().get());
            Ok(Leading {
                term,
                attempt,
                history,
            })
        }
    }

    /// Starts a task that campaigns.
    pub(super) async fn start_campaign(
        &self,
        case: &Case,
        value: &str,
    ) -> JoinHandle<Result<Leading, Error>> {
        case.start(self.campaign(value)).await
    }
}

/// Campaigns; again where the machine stood still during two requests, or the store has just started and did not answer.
async fn campaign_again(election: &Election) -> Result<Term, Error> {
    for _ in 1..PAUSES {
        match election.campaign().await {
            Err(err) if matches!(err.kind(), ErrorKind::Invalid | ErrorKind::Unreachable) => {}
            elected => return elected,
        }
    }
    election.campaign().await
}

impl Leading {
    pub(super) fn token(&self) -> u64 {
        self.term.token().get()
    }

    /// Replaces the value by one that the run has not had.
    pub(super) async fn proclaim(&self, value: &str) -> Result<(), Error> {
        self.history.proclaims(self.attempt, value);
        self.term.proclaim(value).await
    }

    pub(super) async fn resign(self) -> Result<(), Error> {
        self.term.resign().await
    }
}

fn seen(item: Result<Option<Leader>, Error>) -> Seen {
    match item {
        Ok(None) => Seen::Nobody,
        Ok(Some(leader)) => Seen::Leader {
            token: token_of(&leader),
            value: value_of(&leader),
        },
        Err(err) => Seen::Outage(err.kind()),
    }
}

/// 0, which no grant has, for a leader without a token.
fn token_of(leader: &Leader) -> u64 {
    leader.token.map_or(0, |token| token.get())
}

fn value_of(leader: &Leader) -> String {
    leader.value().unwrap_or_default().to_owned()
}
