//! Elections, without async.
//!
//! ```
//! # fn main() -> Result<(), tenure::Error> {
//! let client = tenure::blocking::connect("memory:")?;
//! let election = client.election("scheduler").value("http://10.0.0.7:8080");
//! let term = election.campaign()?; // waits until elected
//! println!("leader of term {}", term.token());
//! term.resign()?;
//! # Ok(()) }
//! ```

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::Campaigns;
use tenure_core::error::{Error, ErrorKind, ErrorParts as _, Step};
use tenure_core::fence::FencingToken;
use tenure_core::leader::Leader;
use tenure_core::lost::LostReason;
use tenure_core::rt::Clock;

use super::runtime::OwnRuntime;
use super::{Client, Guard, Interrupt, block_on, until_interrupted};

impl Client {
    /// See [`Client::election`](crate::Client::election).
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election {
            inner: self.inner.election(name),
            runtime: self.runtime.clone(),
            interrupt: None,
        }
    }
}

/// An election, for threads; see [`Election`](crate::Election). Made by [`Client::election`].
///
/// Re-entrance does not depend on the thread here: two campaigns of one thread exclude each other.
#[derive(Clone, Debug)]
#[must_use = "an election does nothing until somebody campaigns or observes"]
pub struct Election {
    inner: crate::Election,
    runtime: Arc<OwnRuntime>,
    interrupt: Option<Interrupt>,
}

impl Election {
    /// See [`Election::value`](crate::Election::value).
    pub fn value(mut self, value: impl Into<Arc<str>>) -> Self {
        self.inner = self.inner.value(value);
        self
    }

    /// See [`Election::ttl`](crate::Election::ttl).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.inner = self.inner.ttl(ttl);
        self
    }

    /// See [`Election::label`](crate::Election::label).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.inner = self.inner.label(label);
        self
    }

    /// Ends the waits of [`campaign`](Election::campaign), of [`run`](Election::run) and of observers with
    /// [`Interrupted`](ErrorKind::Interrupted) when `interrupt` is raised.
    pub fn interrupted_by(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Waits until elected; see [`Election::campaign`](crate::Election::campaign).
    ///
    /// # Errors
    /// As there, and [`Interrupted`](ErrorKind::Interrupted).
    pub fn campaign(&self) -> Result<Term, Error> {
        let campaign = self.inner.campaign();
        let inner = self.wait(campaign)??;
        Ok(self.term(inner))
    }

    /// Campaigns, runs `body`, and campaigns again: see [`Election::run`](crate::Election::run). A thread cannot be stopped
    /// from outside, so `body` should check [`Term::is_leader`] from time to time, and return an error when it leads no more:
    /// then this client stands for election again.
    ///
    /// ```
    /// # use std::convert::Infallible;
    /// # fn main() -> Result<(), tenure::Error> {
    /// let election = tenure::blocking::connect("memory:")?.election("scheduler");
    /// let mut jobs = 0;
    /// let done = election.run(|term| {
    ///     while jobs < 3 {
    ///         if !term.is_leader() {
    ///             return Err("leads no more");
    ///         }
    ///         jobs += 1;
    ///     }
    ///     Ok(jobs)
    /// });
    /// assert_eq!(done?, 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As there, and [`Interrupted`](ErrorKind::Interrupted): a wait was interrupted, for a term or in the pause after one.
    pub fn run<T, E: fmt::Display>(
        &self,
        mut body: impl FnMut(&Term) -> Result<T, E>,
    ) -> Result<T, Error> {
        let mut campaigns = Campaigns::new(&self.inner);
        loop {
            let term = self.wait(campaigns.elected())??;
            let term = self.term(term);
            // The process may have been stopped since the grant: nothing begins after the deadline.
            let outcome = term.is_leader().then(|| body(&term));
            let is_done = matches!(outcome, Some(Ok(_)));
            let ending = campaigns.ended(term.inner, outcome);
            let ended = match is_done {
                // No interrupt takes away the value.
                true => block_on(&self.runtime, ending)?,
                false => self.wait(ending)?,
            };
            if let Some(outcome) = ended {
                return outcome;
            }
        }
    }

    /// Who leads now; see [`Election::leader`](crate::Election::leader).
    ///
    /// # Errors
    /// As there.
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        block_on(&self.runtime, self.inner.leader())?
    }

    /// The leaders from now on; see [`Election::observe`](crate::Election::observe).
    pub fn observe(&self) -> Observer {
        Observer {
            inner: self.inner.observe(),
            runtime: self.runtime.clone(),
            interrupt: self.interrupt.clone(),
        }
    }

    /// See [`Election::ask_to_resign`](crate::Election::ask_to_resign).
    ///
    /// # Errors
    /// As there.
    pub fn ask_to_resign(&self) -> Result<Option<Leader>, Error> {
        block_on(&self.runtime, self.inner.ask_to_resign())?
    }

    fn wait<T>(&self, wait: impl Future<Output = T>) -> Result<T, Error> {
        let wait = until_interrupted(self.interrupt.as_ref(), wait);
        block_on(&self.runtime, wait)?
    }

    fn term(&self, inner: crate::Term) -> Term {
        Term {
            inner,
            runtime: self.runtime.clone(),
        }
    }
}

/// One leadership; see [`Term`](crate::Term).
#[must_use = "a term that is dropped at once ends at once"]
#[derive(Debug)]
pub struct Term {
    inner: crate::Term,
    runtime: Arc<OwnRuntime>,
}

impl Term {
    /// See [`Term::token`](crate::Term::token).
    pub fn token(&self) -> FencingToken {
        self.inner.token()
    }

    /// See [`Term::is_leader`](crate::Term::is_leader).
    pub fn is_leader(&self) -> bool {
        self.inner.is_leader()
    }

    /// Calls `listener` when the term is lost; see [`Guard::on_lost`].
    pub fn on_lost(&self, listener: impl FnOnce(LostReason) + Send + 'static) {
        self.runtime.call_when_lost(self.inner.lost(), listener);
    }

    /// Waits until another client asks the leader to resign, and returns `true`; `false`: the term has ended before. See
    /// [`Term::asked_to_resign`](crate::Term::asked_to_resign).
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) when called from async code.
    pub fn asked_to_resign(&self) -> Result<bool, Error> {
        block_on(&self.runtime, self.inner.asked_to_resign())
    }

    /// The same without a wait; see [`Term::is_asked_to_resign`](crate::Term::is_asked_to_resign).
    pub fn is_asked_to_resign(&self) -> bool {
        self.inner.is_asked_to_resign()
    }

    /// Replaces the value that observers see; see [`Term::proclaim`](crate::Term::proclaim).
    ///
    /// # Errors
    /// As there.
    pub fn proclaim(&self, value: impl Into<Arc<str>>) -> Result<(), Error> {
        block_on(&self.runtime, self.inner.proclaim(value))?
    }

    /// Ends the term; see [`Term::resign`](crate::Term::resign).
    ///
    /// # Errors
    /// As there.
    pub fn resign(self) -> Result<(), Error> {
        block_on(&self.runtime, self.inner.resign())?
    }

    /// The async guard of the term, for its name and its state; see [`Term::guard`](crate::Term::guard).
    pub fn guard(&self) -> &crate::Guard {
        self.inner.guard()
    }

    /// The guard alone; see [`Term::into_guard`](crate::Term::into_guard).
    pub fn into_guard(self) -> Guard {
        Guard {
            inner: self.inner.into_guard(),
            runtime: self.runtime,
            _other_runtime: None,
        }
    }
}

/// The leaders of an election, one after the other; see [`Observer`](crate::Observer).
///
/// The iterator waits for each item, and ends when the client is closed.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
///
/// let client = tenure::blocking::connect("memory:")?;
/// let election = client.election("scheduler").value("http://10.0.0.7:8080");
/// let term = election.campaign()?;
/// let mut observer = election.observe();
/// let leader = observer.next().expect("the client is open")?.expect("there is a leader");
/// assert_eq!(leader.value(), Some("http://10.0.0.7:8080"));
/// // Nothing changes.
/// let next = observer.next_timeout(Duration::from_millis(10)).expect("the client is open");
/// assert_eq!(next.unwrap_err().kind(), tenure::ErrorKind::WaitElapsed);
/// term.resign()?;
/// assert!(observer.next().expect("the client is open")?.is_none());
/// # Ok(()) }
/// ```
#[must_use = "an observer does nothing until it is asked for the next item"]
#[derive(Debug)]
pub struct Observer {
    inner: crate::Observer,
    runtime: Arc<OwnRuntime>,
    interrupt: Option<Interrupt>,
}

impl Observer {
    /// The next item, if it comes within this time: as `next`. Nothing is left out after a wait that has elapsed.
    ///
    /// # Errors
    /// [`WaitElapsed`](ErrorKind::WaitElapsed): leader and value have not changed. And those of `next`.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Result<Option<Leader>, Error>> {
        self.next_until(async {
            let clock = Clock::system();
            clock.sleep_until(clock.now().after(timeout)).await;
        })
    }

    fn next_until(
        &mut self,
        end: impl Future<Output = ()>,
    ) -> Option<Result<Option<Leader>, Error>> {
        let next = async {
            tokio::select! {
                biased;
                next = self.inner.next() => next,
                () = end => {
                    let message = "nothing has changed in this time";
                    let err = Error::new(ErrorKind::WaitElapsed, message);
                    Some(Err(err.with_step(Step::Inspect)))
                }
            }
        };
        let next = until_interrupted(self.interrupt.as_ref(), next);
        match block_on(&self.runtime, next) {
            Ok(Ok(next)) => next,
            Ok(Err(err)) | Err(err) => Some(Err(err)),
        }
    }
}

/// # Errors
/// The items of [`Observer`](crate::Observer), [`Interrupted`](ErrorKind::Interrupted), and [`Closed`](ErrorKind::Closed) when
/// called from async code.
impl Iterator for Observer {
    type Item = Result<Option<Leader>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_until(std::future::pending())
    }
}
