//! Sessions: one per client and timeout, with a deadline by our own clock.
//!
//! The library says that a session has expired long after the servers gave its nodes away, so nothing here
//! waits for that. A session is good for a [`Lease`] from the sending of the last write that the
//! servers applied in it. A *write*, because a majority of the servers has to agree to it: a server that is
//! cut off from the others answers reads for a while as if nothing had happened.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use zookeeper_client::{Client, Connector, Error as Said, SessionState, StateWatcher};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::{Flag, lock};
use tenure_core::time::Time;

use super::contact::{Contact, Lease};
use super::hold::Store;
use super::outcome::{self, Failed};
use super::probe;
use super::settings::{Dialect, SILENCE, Settings};
use super::warm::Warm;

/// The longest timeout that can be asked for: the protocol has a signed number of 32 bits for the milliseconds.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);

/// How long a session of a timeout of its own is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(60);

/// One session of the client library.
pub(super) struct Session {
    pub(super) client: Client,
    /// When the servers end a session that they do not hear of.
    pub(super) timeout: Duration,
    pub(super) contact: Mutex<Contact>,
    /// Of the write that was applied and makes the session last longest.
    confirmed: Mutex<Lease>,
    /// When somebody last asked for this session.
    used: AtomicU64,
    pub(super) ended: Flag,
    /// Nobody has it any more.
    dropped: Arc<Flag>,
    pub(super) warm: Mutex<Warm>,
    /// Directories with a node of this session, in the dialect that allows one of them.
    taken: Mutex<HashSet<String>>,
}

impl Session {
    pub(super) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// The write that began this lease has been applied.
    pub(super) fn confirm(&self, lease: Lease) {
        let mut confirmed = lock(&self.confirmed);
        if lease.end > confirmed.end {
            *confirmed = lease;
        }
    }

    pub(super) fn confirmed(&self) -> Lease {
        *lock(&self.confirmed)
    }

    /// From when on a lease has its whole length again, after this process was stopped.
    pub(super) fn settled(&self) -> Time {
        lock(&self.contact).settled()
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.is_raised() || self.client.state().is_terminated()
    }

    /// `false`: this session has a node there already.
    fn take(&self, dir: &str) -> bool {
        lock(&self.taken).insert(dir.to_owned())
    }

    pub(super) fn give_back(&self, dir: &str) {
        lock(&self.taken).remove(dir);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.dropped.raise();
    }
}

/// By the ttl that they are for, in ms.
#[derive(Default)]
pub(super) struct Sessions {
    open: Mutex<HashMap<u128, Vec<Arc<Session>>>>,
    /// Nobody opens one while somebody else does.
    pub(super) opening: tokio::sync::Mutex<()>,
}

impl Sessions {
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.open).values().flatten().cloned().collect()
    }

    fn find(&self, key: u128, fits: impl Fn(&Session) -> bool) -> Option<Arc<Session>> {
        let open = lock(&self.open);
        let mut all = open.get(&key)?.iter();
        all.find(|session| !session.is_over() && fits(session))
            .cloned()
    }

    fn has(&self, ttl: Duration) -> bool {
        lock(&self.open).contains_key(&ttl.as_millis())
    }

    fn forget(&self, gone: &Session) {
        lock(&self.open).retain(|_, all| {
            all.retain(|session| !std::ptr::eq(&**session, gone));
            !all.is_empty()
        });
    }

    pub(super) fn clear(&self) {
        lock(&self.open).clear();
    }
}

impl Store {
    /// The timeout to ask for, so that a lease of this length comes of it: the inverse of `whole_lease`.
    fn asked(&self, ttl: Duration) -> Duration {
        let timeout = match self.is_ensemble() {
            true => ttl + (ttl / 4).min(SILENCE / 2),
            false => ttl,
        };
        timeout.min(LONGEST)
    }

    /// How long a session lasts for certain after a write in it was sent, when this process was not stopped before.
    ///
    /// `timeout`: of the session.
    pub(super) fn whole_lease(&self, timeout: Duration) -> Duration {
        match self.is_ensemble() {
            true => timeout.saturating_sub(Settings::silence(timeout) / 2),
            false => timeout,
        }
    }

    /// The lease of a write that is about to be sent.
    pub(super) fn begin_lease(&self, session: &Session) -> Lease {
        lock(&session.contact).lease(self.clock.now(), !self.is_ensemble())
    }

    /// A session of which the leader may not know yet that its client runs again begins short leases only.
    fn is_settled(&self, session: &Session) -> bool {
        let now = self.clock.now();
        let mut contact = lock(&session.contact);
        contact.runs(now);
        !self.is_ensemble() || contact.settled() <= now
    }

    /// A session for leases of that length, opened if there is none. In the dialect where a session has one node in a
    /// directory, it is taken for `dir`.
    pub(super) async fn session(
        self: &Arc<Self>,
        ttl: Duration,
        dir: Option<&str>,
    ) -> Result<Arc<Session>, Error> {
        let key = ttl.as_millis();
        let dir = dir.filter(|_| self.settings.dialect == Dialect::SessionPrefix);
        let fits =
            |session: &Session| self.is_settled(session) && dir.is_none_or(|dir| session.take(dir));
        let found = match self.sessions.find(key, fits) {
            Some(found) => found,
            None => {
                let _opening = self.sessions.opening.lock().await;
                match self.sessions.find(key, fits) {
                    Some(found) => found,
                    None => {
                        // In a box, since it is large and rarely done: every request would have to have room for it.
                        let opened = Box::pin(self.open(ttl)).await?;
                        if let Some(dir) = dir {
                            opened.take(dir);
                        }
                        let mut open = lock(&self.sessions.open);
                        open.entry(key).or_default().push(opened.clone());
                        opened
                    }
                }
            }
        };
        let now = self.clock.now().as_nanos();
        found.used.fetch_max(now, Ordering::Relaxed);
        Ok(found)
    }

    /// Whichever is there, for requests that need no node of their own.
    pub(super) async fn any_session(self: &Arc<Self>) -> Result<Arc<Session>, Error> {
        self.session(self.settings.ttl, None).await
    }

    async fn open(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>, Error> {
        let timeout = self.asked(ttl);
        if self.closing.is_raised() {
            return Err(Error::new(ErrorKind::Closed, "the client was closed"));
        }
        let connector = self.settings.connector(timeout)?;
        let sent = self.clock.now();
        let hosts = u32::try_from(self.settings.hosts.len()).unwrap_or(u32::MAX);
        let limit = Settings::silence(timeout)
            .max(self.settings.timeout)
            .saturating_mul(hosts);
        let mut contact = Contact::new(timeout, sent);
        let opening = self.log_in(connector);
        let opened = tokio::select! {
            biased;
            opened = opening => opened,
            () = self.clock.sleep_until(sent.after(limit)) => Err(Said::Timeout),
            () = self.follow(&mut contact) => unreachable!("BUG: it has no end"),
        };
        let client = match opened {
            Ok(client) => client,
            Err(err) => return Err(probe::explain(&self.settings, err).await),
        };
        let states = client.state_watcher();
        let granted = client.session_timeout();
        contact.grant(granted);
        contact.runs(self.clock.now());
        let session = Arc::new(Session {
            timeout: granted,
            contact: Mutex::new(contact),
            // The leader makes a session, and counts from there.
            confirmed: Mutex::new(Lease {
                sent,
                end: sent.after(self.whole_lease(granted)),
            }),
            used: AtomicU64::new(sent.as_nanos()),
            ended: Flag::new(),
            dropped: Arc::default(),
            warm: Mutex::default(),
            taken: Mutex::default(),
            client,
        });
        // `close` did not see this session. The library ends a session when its last handle is dropped.
        if self.closing.is_raised() {
            return Err(Error::new(ErrorKind::Closed, "the client was closed"));
        }
        let (store, observed) = (Arc::downgrade(self), Arc::downgrade(&session));
        self.spawner.spawn(observe(store, observed, states));
        // The first one of the default ttl stays.
        if ttl != self.settings.ttl || self.sessions.has(ttl) {
            let (store, unused) = (Arc::downgrade(self), Arc::downgrade(&session));
            self.spawner.spawn(end_unused(store, unused));
        }
        tracing::debug!(asked = ?timeout, ?granted, "session opened");
        Ok(session)
    }

    /// Sees whether this process runs, until the caller drops the future.
    async fn follow(&self, contact: &mut Contact) {
        loop {
            let now = self.clock.now();
            contact.runs(now);
            self.clock.sleep_until(now.after(contact.interval())).await;
        }
    }

    /// Opens a session and says who we are.
    ///
    /// One after the other: sent together, a server on Netty that is quick may answer the second before the
    /// first, which ends the connection. But one that wants to know first of all who we are
    /// (`enforce.auth.enabled`) has it all at once.
    async fn log_in(&self, connector: Connector) -> Result<Client, Said> {
        let cluster = self.settings.cluster();
        let connect = async |connector: Connector| match self.settings.tls {
            // `Settings` refuses TLS in a build without it.
            #[cfg(not(feature = "zookeeper-tls"))]
            Some(_) => connector.connect(&cluster).await,
            #[cfg(feature = "zookeeper-tls")]
            Some(_) => connector.secure_connect(&cluster).await,
            None => connector.connect(&cluster).await,
        };
        let Some(login) = self.settings.login() else {
            return connect(connector).await;
        };
        match connect(connector.clone()).await {
            Ok(client) => {
                client.auth("digest", login.as_bytes()).await?;
                Ok(client)
            }
            Err(Said::AuthFailed) => connect(connector.with_auth("digest", login.as_bytes())).await,
            Err(err) => Err(err),
        }
    }

    /// The answer to a request, within the time limit.
    pub(super) async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, Said>>,
    ) -> Result<T, Failed> {
        let limit = self.clock.now().after(self.settings.timeout);
        tokio::select! {
            biased;
            answer = request => answer.map_err(Failed::Said),
            () = self.clock.sleep_until(limit) => Err(Failed::Silent),
        }
    }

    pub(super) fn explain(&self, failed: Failed) -> Error {
        outcome::asking(failed, self.settings.user())
    }
}

/// Follows what the library says of a session, to its end, and whether this process runs meanwhile.
async fn observe(store: Weak<Store>, session: Weak<Session>, mut states: StateWatcher) {
    let mut was_away = false;
    loop {
        let (clock, is_ensemble, look) = {
            let (Some(store), Some(session)) = (store.upgrade(), session.upgrade()) else {
                return;
            };
            let now = store.clock.now();
            let mut contact = lock(&session.contact);
            contact.runs(now);
            let look = now.after(contact.interval());
            (store.clock.clone(), store.is_ensemble(), look)
        };
        let state = tokio::select! {
            biased;
            state = states.changed() => state,
            () = clock.sleep_until(look), if is_ensemble => continue,
        };
        let (Some(store), Some(session)) = (store.upgrade(), session.upgrade()) else {
            return;
        };
        match state {
            SessionState::Disconnected => {
                was_away = true;
                tracing::debug!("disconnected");
            }
            SessionState::SyncConnected if was_away => {
                was_away = false;
                tracing::debug!("connected again");
                // The servers may have been emptied meanwhile, and the next renewal may be far.
                let verifying = session.clone();
                let verifier = store.clone();
                store
                    .spawner
                    .spawn(async move { verifier.verify(&verifying).await });
            }
            state if state.is_terminated() => {
                session.ended.raise();
                store.sessions.forget(&session);
                store.session_ended(&session, state);
                return;
            }
            _ => {}
        }
    }
}

/// Ends a session that nobody has used for a while.
async fn end_unused(store: Weak<Store>, session: Weak<Session>) {
    loop {
        let (clock, until, dropped) = {
            let (Some(store), Some(session)) = (store.upgrade(), session.upgrade()) else {
                return;
            };
            let used = Time::from_nanos(session.used.load(Ordering::Relaxed));
            let until = used.after(IDLE);
            let now = store.clock.now();
            // One in the list, one here.
            let is_unused = Arc::strong_count(&session) <= 2;
            if now >= until && is_unused {
                store.sessions.forget(&session);
                return;
            }
            let until = until.max(now.after(IDLE / 4));
            (store.clock.clone(), until, session.dropped.clone())
        };
        tokio::select! {
            () = dropped.raised() => return,
            () = clock.sleep_until(until) => {}
        }
    }
}
