//! One error for the whole crate: a kind to branch on, and one line that says what, why and what next.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::holder::{Holder, RestartGuard};
use crate::name::LockName;

/// What went wrong, in terms of what the caller should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock was not granted before `wait` was over, because the store said that the name is taken or reserved. The same
    /// call may be repeated.
    WaitElapsed,
    /// The hold ended before it was released. Do not simply repeat the work: it may have overlapped with that of the
    /// next holder.
    Lost,
    /// It is unknown whether a request was applied. Treat the lock as not held; the request may have acquired the
    /// lock, which then stays taken until its ttl is over (clean-up continues in the background).
    Indeterminate,
    /// The store did not answer; nothing was applied. Retry with backoff. Also: a whole `wait` passed without an answer. Then
    /// the request is given up, and what the request may still lead to is released in the background.
    Unreachable,
    /// The store refused the request: wrong credentials or missing permissions. Retrying does not help.
    Denied,
    /// A name, an option or a URL is wrong; the message says which. Nothing was sent.
    Invalid,
    /// This store cannot do what was asked for; the message names the stores that can. Nothing was sent.
    Unsupported,
    /// The client was closed by [`Client::close`](crate::Client::close), or its runtime is gone: the program ends, or this
    /// part of it. [`Error::is_retryable`] is false, because the same client never succeeds again. A service that shuts down
    /// treats this kind as it treats any request that came too late.
    Closed,
    /// A blocking wait was interrupted by its `Interrupt`.
    Interrupted,
    /// Any other error of the store; see the error's source.
    Store,
}

/// The step during which an error happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Opening the store.
    Connect,
    /// Acquiring a lock.
    Acquire,
    /// Making an upgradable hold exclusive.
    Upgrade,
    /// Making a hold shared.
    Downgrade,
    /// Renewing a lease.
    Renew,
    /// Releasing a lock.
    Release,
    /// Writing into the store under a lock.
    Write,
    /// Detaching a hold from its client.
    Detach,
    /// Attaching a client to a hold.
    Attach,
    /// Inspecting locks, or breaking one.
    Inspect,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "connect",
            Self::Acquire => "acquire",
            Self::Upgrade => "upgrade",
            Self::Downgrade => "downgrade",
            Self::Renew => "renew",
            Self::Release => "release",
            Self::Write => "write",
            Self::Detach => "detach",
            Self::Attach => "attach",
            Self::Inspect => "inspect",
        })
    }
}

/// The one error type of this crate.
///
/// Branch on [`Error::kind`]; print the error for people. The message is one line in lower case and
/// says what was attempted, why it failed and what to do. It never contains a password:
/// stores are named by their scheme, never by their URL.
///
/// `{}` prints what this error says itself, and [`source`](StdError::source) has its cause: that of a server or of a
/// connection is the error of the client library (`sqlx::Error`, `redis::RedisError` and so on), so a program can look at
/// it with `downcast_ref`. `{:#}` prints the error and its cause in one line, for a log.
///
/// A clone is the same error: of many tasks that wait for one request, each gets one.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    name: Option<LockName>,
    scheme: Option<&'static str>,
    step: Option<Step>,
    holder: Option<Holder>,
    restart_guard: Option<RestartGuard>,
    is_timeout: bool,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// What the source says, where its own text is not fit for one line.
    quote: Option<String>,
}

impl Error {
    /// An error of `kind` that says `message`: lower case, one line, no final dot.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: message.into(),
            name: None,
            scheme: None,
            step: None,
            holder: None,
            restart_guard: None,
            is_timeout: false,
            source: None,
            quote: None,
        }))
    }

    /// The error as one of a request that only reads: nothing can have been applied, so no answer is `Unreachable`.
    pub(crate) fn of_read(mut self) -> Self {
        if self.0.kind == ErrorKind::Indeterminate {
            self.0.kind = ErrorKind::Unreachable;
            // The rest says that the outcome of a write is not known.
            let end = self.0.message.find("; whether ");
            self.0.message.truncate(end.unwrap_or(usize::MAX));
        }
        self
    }

    /// The kind of the error, which says what to do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the same call may succeed later without a change by an operator or a programmer.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self.0.kind,
            ErrorKind::WaitElapsed | ErrorKind::Unreachable | ErrorKind::Indeterminate
        )
    }

    /// Whether the hold ended before it was released.
    pub fn is_lost(&self) -> bool {
        self.0.kind == ErrorKind::Lost
    }

    /// Whether another client holds the lock, or the name is reserved: [`ErrorKind::WaitElapsed`].
    pub fn is_busy(&self) -> bool {
        self.0.kind == ErrorKind::WaitElapsed
    }

    /// Whether the store cannot be reached: [`ErrorKind::Unreachable`].
    pub fn is_unreachable(&self) -> bool {
        self.0.kind == ErrorKind::Unreachable
    }

    /// Whether the store refused the user of this client: [`ErrorKind::Denied`].
    pub fn is_denied(&self) -> bool {
        self.0.kind == ErrorKind::Denied
    }

    /// Whether a limit of time was over: the `wait` of the acquisition, or the limit of a request, an attempt to connect or
    /// a probe. The [kind](Self::kind) says what that means.
    pub fn is_timeout(&self) -> bool {
        let source = self.0.source.as_ref();
        let source = source.and_then(|source| source.downcast_ref::<Self>());
        self.0.is_timeout || self.is_busy() || source.is_some_and(Self::is_timeout)
    }

    /// The lock that the error is about.
    pub fn name(&self) -> Option<&LockName> {
        self.0.name.as_ref()
    }

    /// The store, by its URL scheme. Often `None` in an error of `connect`, whose message names the server.
    pub fn scheme(&self) -> Option<&'static str> {
        self.0.scheme
    }

    /// The step during which the error happened.
    pub fn step(&self) -> Option<Step> {
        self.0.step
    }

    /// The process that holds the lock, as far as the store could say.
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// The server was started so lately that it may have forgotten a holder, and grants nothing yet.
    pub fn restart_guard(&self) -> Option<&RestartGuard> {
        self.0.restart_guard.as_ref()
    }
}

/// Adds to an error what a store, or the driver, knows of it: for authors of stores. Programs only read errors.
pub trait ErrorParts: Sized {
    /// Adds the name of the lock, unless the error has one already.
    #[must_use]
    fn with_name(self, name: &LockName) -> Self;

    /// Adds the name of the store, unless the error has one already.
    #[must_use]
    fn with_scheme(self, scheme: &'static str) -> Self;

    /// Adds the step, unless the error has one already.
    #[must_use]
    fn with_step(self, step: Step) -> Self;

    /// Adds the holder of the lock.
    #[must_use]
    fn with_holder(self, holder: Option<Holder>) -> Self;

    /// Says that a server was started too lately to grant anything.
    #[must_use]
    fn with_restart_guard(self, guard: Option<RestartGuard>) -> Self;

    /// Says that a limit of time was over.
    #[must_use]
    fn with_timeout(self) -> Self;

    /// Attaches the cause. Its text must not be repeated in the message, and must hold no secret.
    #[must_use]
    fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self;

    /// Attaches the cause, which `{:#}` quotes in these words: one line, without what helps no user. Empty: the message says
    /// everything, and the cause is for programs.
    #[must_use]
    fn with_quoted_source(
        self,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
        quote: impl Into<String>,
    ) -> Self;
}

impl ErrorParts for Error {
    fn with_name(mut self, name: &LockName) -> Self {
        self.0.name.get_or_insert_with(|| name.clone());
        self
    }

    fn with_scheme(mut self, scheme: &'static str) -> Self {
        self.0.scheme.get_or_insert(scheme);
        self
    }

    fn with_step(mut self, step: Step) -> Self {
        self.0.step.get_or_insert(step);
        self
    }

    fn with_holder(mut self, holder: Option<Holder>) -> Self {
        self.0.holder = holder;
        self
    }

    fn with_restart_guard(mut self, guard: Option<RestartGuard>) -> Self {
        self.0.restart_guard = guard;
        self
    }

    fn with_timeout(mut self) -> Self {
        self.0.is_timeout = true;
        self
    }

    fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into().into());
        self.0.quote = None;
        self
    }

    fn with_quoted_source(
        self,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
        quote: impl Into<String>,
    ) -> Self {
        let mut err = self.with_source(source);
        err.0.quote = Some(quote.into());
        err
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        // The message of a wait that ended already says name and holder.
        match (&self.0.name, self.0.scheme) {
            (Some(name), Some(scheme)) => write!(f, " (lock {name}, {scheme})")?,
            (Some(name), None) => write!(f, " (lock {name})")?,
            (None, Some(scheme)) => write!(f, " ({scheme})")?,
            (None, None) => {}
        }
        match (&self.0.quote, &self.0.source) {
            _ if !f.alternate() => Ok(()),
            (Some(quote), _) if quote.is_empty() => Ok(()),
            (Some(quote), _) => write!(f, ": {quote}"),
            (None, Some(source)) => write!(f, ": {source:#}"),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("step", &self.0.step)
            .field("message", &format_args!("{self:#}"))
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.0.source.as_ref()?;
        Some(&**source)
    }
}
