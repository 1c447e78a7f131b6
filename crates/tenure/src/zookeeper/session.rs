//! Sessions: one for each client and ttl, with an end that is computed by our own clock.
//!
//! The library reports that a session has expired long after the servers gave its nodes away, so nothing here
//! waits for that report. A session lasts for certain for a [`LeasePeriod`], from the sending of the last write
//! that the servers applied in it. A *write*, because a majority of the servers has to agree to a write: a server that is
//! cut off from the others answers reads for a while as if nothing had happened.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use zookeeper_client::{Client, Connector, SessionState, StateWatcher};

use tenure_core::error::Error;
use tenure_core::rt::{Clock, Flag, Spawner, lock};
use tenure_core::support::{SingleFlight, closed};
use tenure_core::time::Time;

use super::cache::DirectoryCache;
use super::contact::{Contact, LeasePeriod};
use super::diagnose;
use super::errors::{ClientError, RequestError};
use super::names::Dialect;
use super::settings::{MAX_CONNECTION_TIMEOUT, Settings};

/// The longest timeout that can be asked for: the protocol has a signed number of 32 bits for the milliseconds.
const MAX_SESSION_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// How long an unused session stays open, if it has a timeout of its own.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// What all sessions of a client share.
struct Context {
    settings: Arc<Settings>,
    clock: Clock,
    /// How many servers vote; 0: not known yet.
    voters: AtomicU8,
}

impl Context {
    /// Whether our server may be a follower; also `true` while the number of servers is not known.
    fn is_ensemble(&self) -> bool {
        self.voters.load(Ordering::Relaxed) != 1
    }

    /// The timeout to ask for, so that leases have the length `ttl`: the inverse of `whole_lease`.
    fn timeout_for(&self, ttl: Duration) -> Duration {
        let timeout = match self.is_ensemble() {
            true => ttl + (ttl / 4).min(MAX_CONNECTION_TIMEOUT / 2),
            false => ttl,
        };
        timeout.min(MAX_SESSION_TIMEOUT)
    }

    /// See [`Session::whole_lease`].
    fn whole_lease(&self, timeout: Duration) -> Duration {
        match self.is_ensemble() {
            true => timeout.saturating_sub(Settings::connection_timeout(timeout) / 2),
            false => timeout,
        }
    }
}

/// One session of the client library.
pub(super) struct Session {
    pub(super) client: Client,
    /// After how long without a message from the client the servers end this session.
    pub(super) timeout: Duration,
    context: Arc<Context>,
    contact: Mutex<Contact>,
    /// The lease that ends last, of all writes that were applied.
    confirmed: Mutex<LeasePeriod>,
    /// When an operation last asked for this session, in ns.
    last_used: AtomicU64,
    /// Raised when the library reports the end of the session.
    pub(super) ended: Flag,
    /// Raised when the last handle of the session is dropped.
    dropped: Arc<Flag>,
    pub(super) cache: DirectoryCache,
    /// Directories with a node of this session, in the dialect that allows a session one node in a directory.
    occupied: Mutex<HashSet<String>>,
}

impl Session {
    pub(super) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.context.settings
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.context.clock
    }

    /// The reply to a request, within the time limit.
    pub(super) async fn reply_to<T>(
        &self,
        request: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, RequestError> {
        let limit = self.clock().now().after(self.settings().timeout);
        tokio::select! {
            biased;
            reply = request => reply.map_err(RequestError::Client),
            () = self.clock().sleep_until(limit) => Err(RequestError::Timeout),
        }
    }

    /// The error of a request, for the user.
    pub(super) fn explain(&self, err: RequestError) -> Error {
        err.explain(self.settings().user())
    }

    /// How long a session lasts for certain after a write in it was sent, if this process was not stopped before.
    pub(super) fn whole_lease(&self) -> Duration {
        self.context.whole_lease(self.timeout)
    }

    /// The lease of a write that is about to be sent.
    pub(super) fn begin_lease(&self) -> LeasePeriod {
        lock(&self.contact).lease(self.clock().now(), !self.context.is_ensemble())
    }

    /// The write that began this lease has been applied.
    pub(super) fn confirm(&self, lease: LeasePeriod) {
        let mut confirmed = lock(&self.confirmed);
        if lease.end > confirmed.end {
            *confirmed = lease;
        }
    }

    pub(super) fn confirmed(&self) -> LeasePeriod {
        *lock(&self.confirmed)
    }

    /// From when on a lease has its whole length again, after this process was stopped.
    pub(super) fn settled_at(&self) -> Time {
        lock(&self.contact).settled_at(!self.context.is_ensemble())
    }

    /// Whether leases have their whole length. They have not while the leader may not know that this process runs
    /// again after a stop.
    fn is_settled(&self) -> bool {
        let now = self.clock().now();
        lock(&self.contact).record_run(now);
        self.settled_at() <= now
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.is_raised() || self.client.state().is_terminated()
    }

    /// `false`: this session has a node in that directory already.
    fn occupy(&self, dir: &str) -> bool {
        lock(&self.occupied).insert(dir.to_owned())
    }

    /// This session has no node in that directory any more.
    pub(super) fn vacate(&self, dir: &str) {
        lock(&self.occupied).remove(dir);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.dropped.raise();
    }
}

/// Is told what happens to sessions.
pub(super) trait SessionListener: Send + Sync {
    /// The session has a connection again, after it had none for a while.
    fn reconnected(&self, session: &Arc<Session>);

    /// The session is over, and all of its nodes with it. Returns how many holds ended.
    fn ended(&self, session: &Arc<Session>, state: SessionState) -> usize;
}

/// The sessions of one client.
pub(super) struct Sessions {
    context: Arc<Context>,
    spawner: Spawner,
    /// By the ttl that they are for, in ms.
    open: Mutex<HashMap<u128, Vec<Arc<Session>>>>,
    opening: SingleFlight<Error>,
    /// Raised when the client closes: from then on no session is opened.
    pub(super) closing: Flag,
    listener: OnceLock<Box<dyn SessionListener>>,
}

impl Sessions {
    pub(super) fn new(settings: Arc<Settings>, clock: Clock, spawner: Spawner) -> Self {
        Self {
            context: Arc::new(Context {
                settings,
                clock,
                voters: AtomicU8::new(0),
            }),
            spawner,
            open: Mutex::default(),
            opening: SingleFlight::default(),
            closing: Flag::new(),
            listener: OnceLock::new(),
        }
    }

    /// So many servers vote. Leases are longer with one server than with an ensemble.
    pub(super) fn set_voters(&self, voters: usize) {
        let voters = u8::try_from(voters.max(1)).unwrap_or(u8::MAX);
        self.context.voters.store(voters, Ordering::Relaxed);
    }

    /// Sets the listener, unless there is one.
    pub(super) fn listen(&self, listener: impl FnOnce() -> Box<dyn SessionListener>) {
        self.listener.get_or_init(listener);
    }

    /// A session for leases of that length, opened if there is none. In the dialect where a session has one node in a
    /// directory, the session is reserved for `dir`.
    pub(super) async fn for_lease(
        self: &Arc<Self>,
        ttl: Duration,
        dir: Option<&str>,
    ) -> Result<Arc<Session>, Error> {
        let dir = dir.filter(|_| self.context.settings.dialect == Dialect::SessionPrefix);
        let fits =
            |session: &Session| session.is_settled() && dir.is_none_or(|dir| session.occupy(dir));
        // In a box, since the future is large and rare: every request would have to have room for it.
        let open = async { Box::pin(self.open(ttl, dir)).await };
        let clock = &self.context.clock;
        let found = self
            .opening
            .run(clock, || self.find(ttl, fits), open)
            .await?;
        let now = clock.now().as_nanos();
        found.last_used.fetch_max(now, Ordering::Relaxed);
        Ok(found)
    }

    /// Any session, for requests that need no node of their own.
    pub(super) async fn any(self: &Arc<Self>) -> Result<Arc<Session>, Error> {
        self.for_lease(self.context.settings.ttl, None).await
    }

    fn find(&self, ttl: Duration, fits: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        let open = lock(&self.open);
        let mut sessions = open.get(&ttl.as_millis())?.iter();
        sessions
            .find(|session| !session.is_over() && fits(session))
            .cloned()
    }

    /// Opens a session and makes it available to `find`.
    async fn open(
        self: &Arc<Self>,
        ttl: Duration,
        dir: Option<&str>,
    ) -> Result<Arc<Session>, Error> {
        let session = self.connect(ttl).await?;
        // `close` did not see this session. The library ends a session when its last handle is dropped.
        if self.closing.is_raised() {
            return Err(closed());
        }
        let (sessions, observed) = (Arc::downgrade(self), Arc::downgrade(&session));
        let states = session.client.state_watcher();
        self.spawner.spawn(observe(sessions, observed, states));
        let mut open = lock(&self.open);
        // The first session of the default ttl stays.
        if ttl != self.context.settings.ttl || open.contains_key(&ttl.as_millis()) {
            let (sessions, unused) = (Arc::downgrade(self), Arc::downgrade(&session));
            self.spawner.spawn(end_unused(sessions, unused));
        }
        if let Some(dir) = dir {
            session.occupy(dir);
        }
        open.entry(ttl.as_millis())
            .or_default()
            .push(session.clone());
        Ok(session)
    }

    async fn connect(&self, ttl: Duration) -> Result<Arc<Session>, Error> {
        if self.closing.is_raised() {
            return Err(closed());
        }
        let Context {
            settings, clock, ..
        } = &*self.context;
        let timeout = self.context.timeout_for(ttl);
        let connector = settings.connector(timeout)?;
        let sent = clock.now();
        let hosts = u32::try_from(settings.hosts.len()).unwrap_or(u32::MAX);
        let limit = Settings::connection_timeout(timeout)
            .max(settings.timeout)
            .saturating_mul(hosts);
        let mut contact = Contact::new(timeout, sent);
        let opened = tokio::select! {
            biased;
            opened = log_in(settings, connector) => opened,
            () = clock.sleep_until(sent.after(limit)) => Err(ClientError::Timeout),
            () = follow(&mut contact, clock) => unreachable!("BUG: it has no end"),
        };
        let client = match opened {
            Ok(client) => client,
            Err(err) => return Err(diagnose::explain(settings, err).await),
        };
        let granted = client.session_timeout();
        contact.set_timeout(granted);
        contact.record_run(clock.now());
        tracing::debug!(asked = ?timeout, ?granted, "session opened");
        Ok(Arc::new(Session {
            timeout: granted,
            context: self.context.clone(),
            contact: Mutex::new(contact),
            // The leader makes a session, and counts from there.
            confirmed: Mutex::new(LeasePeriod {
                sent,
                end: sent.after(self.context.whole_lease(granted)),
            }),
            last_used: AtomicU64::new(sent.as_nanos()),
            ended: Flag::new(),
            dropped: Arc::default(),
            cache: DirectoryCache::default(),
            occupied: Mutex::default(),
            client,
        }))
    }

    fn remove(&self, gone: &Session) {
        lock(&self.open).retain(|_, sessions| {
            sessions.retain(|session| !std::ptr::eq(&**session, gone));
            !sessions.is_empty()
        });
    }

    /// Ends all sessions, so that nothing of them is left in the store. Returns when the servers have confirmed the ends.
    pub(super) async fn close(&self) {
        self.closing.raise();
        // A session that is being opened has to be ended as well.
        self.opening.idle().await;
        let sessions = std::mem::take(&mut *lock(&self.open));
        let states: Vec<_> = sessions
            .values()
            .flatten()
            .map(|session| session.client.state_watcher())
            .collect();
        // The library ends a session when its last handle is dropped.
        drop(sessions);
        for mut state in states {
            while !state.changed().await.is_terminated() {}
        }
    }

    /// Ends all sessions, without waiting for the answers of their servers.
    pub(super) fn abandon(&self) {
        drop(std::mem::take(&mut *lock(&self.open)));
    }
}

/// Opens a session and authenticates.
///
/// One after the other: if both are sent together, a server on Netty that is quick may answer the second before the
/// first, which ends the connection. But a server that wants the authentication first
/// (`enforce.auth.enabled`) gets both at once.
async fn log_in(settings: &Settings, connector: Connector) -> Result<Client, ClientError> {
    let cluster = settings.cluster();
    let connect = async |connector: Connector| match settings.tls {
        // `Settings` refuses TLS in a build without it.
        #[cfg(not(feature = "zookeeper-tls"))]
        Some(_) => connector.connect(&cluster).await,
        #[cfg(feature = "zookeeper-tls")]
        Some(_) => connector.secure_connect(&cluster).await,
        None => connector.connect(&cluster).await,
    };
    let Some(login) = settings.login() else {
        return connect(connector).await;
    };
    match connect(connector.clone()).await {
        Ok(client) => {
            client.auth("digest", login.as_bytes()).await?;
            Ok(client)
        }
        Err(ClientError::AuthFailed) => {
            connect(connector.with_auth("digest", login.as_bytes())).await
        }
        Err(err) => Err(err),
    }
}

/// Records that this process runs, until the caller drops the future.
async fn follow(contact: &mut Contact, clock: &Clock) {
    loop {
        let now = clock.now();
        contact.record_run(now);
        clock.sleep_until(now.after(contact.interval())).await;
    }
}

/// Follows the states that the library reports of a session, to the end of the session, and records that this process
/// runs.
async fn observe(sessions: Weak<Sessions>, session: Weak<Session>, mut states: StateWatcher) {
    let mut was_disconnected = false;
    loop {
        let (context, next) = {
            let Some(session) = session.upgrade() else {
                return;
            };
            let now = session.clock().now();
            let mut contact = lock(&session.contact);
            contact.record_run(now);
            (session.context.clone(), now.after(contact.interval()))
        };
        let state = tokio::select! {
            biased;
            state = states.changed() => state,
            () = context.clock.sleep_until(next), if context.is_ensemble() => continue,
        };
        let (Some(sessions), Some(session)) = (sessions.upgrade(), session.upgrade()) else {
            return;
        };
        match state {
            SessionState::Disconnected => {
                was_disconnected = true;
                tracing::debug!("disconnected");
            }
            SessionState::SyncConnected if was_disconnected => {
                was_disconnected = false;
                tracing::debug!("connected again");
                if let Some(listener) = sessions.listener.get() {
                    listener.reconnected(&session);
                }
            }
            state if state.is_terminated() => {
                session.ended.raise();
                sessions.remove(&session);
                let listener = sessions.listener.get();
                let holds = listener.map_or(0, |listener| listener.ended(&session, state));
                if state != SessionState::Closed || holds > 0 {
                    tracing::warn!(%state, holds, "a session with the servers ended");
                }
                return;
            }
            _ => {}
        }
    }
}

/// Ends a session that was not used for a while.
async fn end_unused(sessions: Weak<Sessions>, session: Weak<Session>) {
    loop {
        let (context, next, dropped) = {
            let (Some(sessions), Some(session)) = (sessions.upgrade(), session.upgrade()) else {
                return;
            };
            let last_used = Time::from_nanos(session.last_used.load(Ordering::Relaxed));
            let until = last_used.after(IDLE_TIMEOUT);
            let now = session.clock().now();
            // One handle in the list, one here.
            let is_unused = Arc::strong_count(&session) <= 2;
            if now >= until && is_unused {
                sessions.remove(&session);
                return;
            }
            let next = until.max(now.after(IDLE_TIMEOUT / 4));
            (session.context.clone(), next, session.dropped.clone())
        };
        tokio::select! {
            () = dropped.raised() => return,
            () = context.clock.sleep_until(next) => {}
        }
    }
}
