//! An election: one leader at a time, and everybody knows who.
//!
//! An election is a layer on the lock of its name. A candidate waits for the lock, the holder leads, and its fencing token is
//! the number of the term. The store adds three things ([`Elections`](crate::store::Elections)): a value beside the holder,
//! changes for observers, and a request to let go.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::{Driver, Observation};
use crate::error::{Error, ErrorKind};
use crate::leader::Leader;
use crate::lock::Lock;
use crate::logic::election::{CampaignPauses, TermEnd};
use crate::name::LockName;
use crate::observer::Observer;
use crate::owner::Owner;
use crate::rt::Clock;
use crate::term::Term;
use crate::time::Time;

const LOG_TARGET: &str = "tenure::election";

/// An election of one leader among all clients that campaign under the same name. Made by
/// [`Client::election`](crate::Client::election).
///
/// Nothing is sent before one of the methods that wait is called; a wrong name or value is reported there. An election may be
/// used any number of times, also at the same time. A lock of the same name and the election exclude each other. No
/// [`Owner`] makes an election re-entrant: each campaign is a candidacy of its own, and a term is never entered again.
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// let client = tenure::connect("memory:").await?;
/// let election = client.election("scheduler").value("http://10.0.0.7:8080");
/// let term = election.campaign().await?; // waits until elected
/// let leader = election.leader().await?.expect("this client leads");
/// assert_eq!(leader.value(), Some("http://10.0.0.7:8080"));
/// assert_eq!(leader.token, Some(term.token()));
/// term.resign().await?;
/// assert!(election.leader().await?.is_none());
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until somebody campaigns or observes"]
pub struct Election {
    driver: Arc<Driver>,
    name: Result<LockName, Error>,
    lock: Lock,
}

/// Options.
impl Election {
    pub(crate) fn new(driver: Arc<Driver>, name: Result<LockName, Error>, lock: Lock) -> Self {
        // Also without a value: it tells a candidate from a waiter for a lock.
        let lock = lock.for_election().value("".into());
        Self { driver, name, lock }
    }

    /// What observers shall see of this candidate once it leads: an address, for example. Default: nothing. At most
    /// [`PublishedValue::MAX_LEN`](crate::holder::PublishedValue::MAX_LEN) bytes.
    ///
    /// The value is stored with the grant, so no observer sees the leader without it. [`Term::proclaim`] replaces it.
    pub fn value(mut self, value: impl Into<Arc<str>>) -> Self {
        self.lock = self.lock.value(value.into());
        self
    }

    /// Length of the lease: a leader that vanishes is followed by the next one so much later at most. Default: that of the
    /// client, 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// The purpose, shown to people who inspect the name. Default: that of the client, empty.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.lock = self.lock.label(label);
        self
    }
}

/// For candidates.
impl Election {
    /// Stands for election and waits until elected.
    ///
    /// # Cancel safety
    /// Cancel safe: if this future is dropped, this client is no candidate any more, and a term that was granted meanwhile ends.
    ///
    /// # Errors
    /// `Unsupported`, before any request: the store has no elections; the message names the stores that have. The errors of
    /// [`Lock::acquire`].
    pub async fn campaign(&self) -> Result<Term, Error> {
        self.check()?;
        // Of an owner of its own: a candidate enters no lock that is held already.
        let lock = self.lock.clone().owner(&Owner::new());
        Ok(Term::new(lock.acquire().await?))
    }

    /// Campaigns, runs `body` for as long as this client leads, and campaigns again: the life of a service that has standbys.
    ///
    /// - The term is lost: `body` is cancelled (dropped at its current await), and this client stands for election again.
    /// - `body` returns an error: the error is logged, the term ends so that another candidate is elected, and this client
    ///   stands again after a pause. The pause grows from 100 ms to 30 s while terms end at once, and is short again after a
    ///   term of a minute.
    /// - `body` returns `Ok(value)`: the work is done. The term ends, and `run` returns the value.
    /// - The store does not answer: this client tries again, with the same growing pauses.
    ///
    /// `body` never runs twice at once: it has ended or was dropped before this client stands again. To follow
    /// [`ask_to_resign`](Election::ask_to_resign), `body` waits for [`Term::asked_to_resign`] and returns.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// # use std::convert::Infallible;
    /// let client = tenure::connect("memory:").await?;
    /// let election = client.election("scheduler").value("http://10.0.0.7:8080");
    /// let jobs = election.run(async |term| {
    ///     println!("leader of term {}", term.token());
    ///     Ok::<_, Infallible>(42)
    /// });
    /// assert_eq!(jobs.await?, 42);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// In a task, the closure owns what it uses, clones or an `Arc`. The compiler cannot see that an async closure with
    /// references is `Send`, which `tokio::spawn` wants.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// # use std::convert::Infallible;
    /// # use std::sync::Arc;
    /// # use std::sync::atomic::{AtomicU64, Ordering};
    /// # struct Database(AtomicU64);
    /// async fn work(term: &tenure::Term, database: &Database) -> Result<u64, Infallible> {
    ///     database.0.store(term.token().get(), Ordering::Relaxed);
    ///     Ok(term.token().get())
    /// }
    ///
    /// let client = tenure::connect("memory:").await?;
    /// let database = Arc::new(Database(AtomicU64::new(0)));
    /// let task = tokio::spawn({
    ///     let (election, database) = (client.election("scheduler"), database.clone());
    ///     async move { election.run(async move |term| work(term, &database).await).await }
    /// });
    /// let token = task.await.expect("the task does not panic")?;
    /// assert_eq!(database.0.load(Ordering::Relaxed), token);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe: `body` is dropped, and the term ends. It ends in the background; [`Client::close`](crate::Client::close)
    /// waits for that, so a service that shuts down drops this future and then closes its client.
    ///
    /// # Errors
    /// An error that retrying does not end (`Denied`, `Invalid` before the first term, `Unsupported`, `Closed`), and `Lost` when the term turned out
    /// to be over as `body` returned `Ok`: then the work may have overlapped with that of the next leader.
    pub async fn run<T, E, F>(&self, mut body: F) -> Result<T, Error>
    where
        F: AsyncFnMut(&Term) -> Result<T, E>,
        E: fmt::Display,
    {
        let mut campaigns = Campaigns::new(self);
        loop {
            let term = campaigns.elected().await?;
            let outcome = until_lost(&term, body(&term)).await;
            if let Some(outcome) = campaigns.ended(term, outcome).await {
                return outcome;
            }
        }
    }

    /// As [`run`](Election::run), for generic code that spawns: the future is `Send` for every `body`. See
    /// [`Lock::run_boxed`].
    ///
    /// # Cancel safety
    /// As [`run`](Election::run).
    ///
    /// # Errors
    /// As [`run`](Election::run).
    ///
    /// # Examples
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// # use std::convert::Infallible;
    /// let election = tenure::connect("memory:").await?.election("scheduler");
    /// let task = tokio::spawn(async move {
    ///     let run = election.run_boxed(|term| Box::pin(async move { Ok::<_, Infallible>(term.is_leader()) }));
    ///     run.await
    /// });
    /// assert!(task.await.unwrap()?);
    /// # Ok(()) }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn run_boxed<T, E, F>(&self, mut body: F) -> impl Future<Output = Result<T, Error>> + Send
    where
        T: Send,
        E: fmt::Display + Send,
        F: FnMut(&Term) -> Pin<Box<dyn Future<Output = Result<T, E>> + Send + '_>> + Send,
    {
        let mut campaigns = Campaigns::new(self);
        async move {
            loop {
                let term = campaigns.elected().await?;
                let outcome = until_lost(&term, body(&term)).await;
                if let Some(outcome) = campaigns.ended(term, outcome).await {
                    return outcome;
                }
            }
        }
    }
}

/// For everybody.
impl Election {
    /// Who leads now; `None`: nobody. One request, and no candidacy.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// `Unsupported`, before any request: the store has no elections. `Unreachable` and `Denied` from the store.
    pub async fn leader(&self) -> Result<Option<Leader>, Error> {
        self.driver.leader(self.check()?).await
    }

    /// The leaders from now on, without a candidacy: see [`Observer`]. Sends nothing before the observer is polled; a wrong
    /// name, or a store that has no elections, is the first item.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// let election = client.election("scheduler").value("http://10.0.0.7:8080");
    /// let mut observer = election.observe();
    /// assert!(matches!(observer.next().await, Some(Ok(None)))); // nobody leads
    /// let term = election.campaign().await?;
    /// let Some(Ok(Some(leader))) = observer.next().await else { panic!("there is a leader") };
    /// assert_eq!(leader.value(), Some("http://10.0.0.7:8080"));
    /// term.resign().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    pub fn observe(&self) -> Observer {
        let observation = self.check();
        let driver = self.driver.clone();
        Observer::new(observation.and_then(|name| Observation::new(driver, name.clone())))
    }

    /// Asks the leader politely to resign, and does not wait for that. Returns whom it has asked; `None`: nobody leads, or the
    /// leader has just changed.
    ///
    /// The leader learns of it by [`Term::asked_to_resign`] or [`Guard::asked_to_release`](crate::Guard::asked_to_release), at
    /// once where the store can push to it, and with its next renewal otherwise, a third of its ttl later at most. It decides
    /// what to do. The request is for this term alone, and ends with it. Also asks the exclusive holder of a lock of this name.
    ///
    /// # Cancel safety
    /// If this future is dropped, the leader may have been asked.
    ///
    /// # Errors
    /// `Unsupported`: the store has no elections (before any request), or the leader is a program of another library that has
    /// no token. `Unreachable` and `Denied` from the store.
    pub async fn ask_to_resign(&self) -> Result<Option<Leader>, Error> {
        self.driver.ask_to_resign(self.check()?).await
    }

    /// The name, if it is one, and if the store has elections. Sends nothing.
    fn check(&self) -> Result<&LockName, Error> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        self.driver.elections()?;
        Ok(name)
    }
}

/// The campaigns of one call of [`Election::run`], and the pauses between them: for callers that run the body themselves, as
/// `tenure::blocking` does.
#[derive(Debug)]
pub struct Campaigns<'a> {
    election: &'a Election,
    pauses: CampaignPauses,
    /// The last grant of a term.
    began: Option<Time>,
}

impl<'a> Campaigns<'a> {
    /// No campaign has begun.
    pub fn new(election: &'a Election) -> Self {
        Self {
            election,
            pauses: CampaignPauses::default(),
            began: None,
        }
    }

    fn clock(&self) -> &Clock {
        &self.election.driver.clock
    }

    /// Campaigns until elected.
    ///
    /// # Cancel safety
    /// As [`Election::campaign`].
    ///
    /// # Errors
    /// Those of [`Election::run`] but `Lost`.
    pub async fn elected(&mut self) -> Result<Term, Error> {
        loop {
            let began = self.clock().now();
            match self.election.campaign().await {
                Err(err) if !self.campaigns_again(&err) => return Err(err),
                Err(err) => {
                    tracing::warn!(target: LOG_TARGET, err = format_args!("{err:#}"), "not elected");
                    let lasted = self.clock().now().since(began);
                    self.pause_after(TermEnd::NotElected(lasted)).await;
                }
                Ok(term) => {
                    self.began = Some(self.clock().now());
                    return Ok(term);
                }
            }
        }
    }

    /// Whether a candidate stands again after a campaign that ended with this error.
    fn campaigns_again(&self, err: &Error) -> bool {
        match err.kind() {
            ErrorKind::Lost | ErrorKind::Store => true,
            // The same options were good before, and the store is too slow for the ttl at this time.
            ErrorKind::Invalid => self.began.is_some(),
            _ => err.is_retryable(),
        }
    }

    /// Ends the term after its body, whose outcome is `None` if the term was lost before. Pauses and returns `None` if this
    /// client has to campaign again.
    ///
    /// # Cancel safety
    /// The term ends in the background if this future is dropped.
    ///
    /// # Errors
    /// `Lost`: the term was over as the body returned `Ok`.
    pub async fn ended<T, E: fmt::Display>(
        &mut self,
        term: Term,
        outcome: Option<Result<T, E>>,
    ) -> Option<Result<T, Error>> {
        let now = self.clock().now();
        let lasted = self.began.map_or(Duration::ZERO, |began| now.since(began));
        let end = match outcome {
            Some(Ok(value)) => return Some(resign_after(term, value).await),
            Some(Err(err)) => {
                tracing::warn!(target: LOG_TARGET, name = %term.guard().name(), token = %term.token(), %err, "the work of the leader failed");
                // The pause is for other candidates, so the term ends first. What the store did not confirm is repeated in
                // the background.
                let _ = term.resign().await;
                TermEnd::Failed(lasted)
            }
            // Dropping the term cleans up in the background: the store may be slow to answer.
            None => {
                drop(term);
                TermEnd::Lost(lasted)
            }
        };
        self.pause_after(end).await;
        None
    }

    async fn pause_after(&mut self, end: TermEnd) {
        let pause = self.pauses.after(end, self.clock().random());
        if !pause.is_zero() {
            self.election.driver.pause(pause).await;
        }
    }
}

/// Awaits the end of the body, or the loss of its term, whatever comes first: then the body is dropped, and there is `None`.
async fn until_lost<T>(term: &Term, body: impl Future<Output = T>) -> Option<T> {
    let lost = term.lost();
    tokio::select! {
        biased;
        Some(_) = lost => None,
        outcome = body => Some(outcome),
    }
}

/// Ends a term whose work is done. The result of work whose term was lost cannot look like success.
async fn resign_after<T>(term: Term, value: T) -> Result<T, Error> {
    let was_leader = term.is_leader();
    match term.resign().await {
        // The work was done while this client led; the release is repeated in the background.
        Err(err) if !err.is_lost() && was_leader => Ok(value),
        resigned => resigned.map(|()| value),
    }
}

#[cfg(test)]
mod tests;
