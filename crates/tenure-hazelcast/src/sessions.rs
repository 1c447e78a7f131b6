//! Sessions of the CP group. A session has at most one lease at a time, and the members end what it holds when it ends.
//!
//! # Why each lease has a session of its own
//! The Java client has one session for all its locks. Here the end of a session is the one request that ends a lease for
//! certain: whatever was sent for the lease before, and arrives late, is refused from then on. With one session for several
//! leases, a request to lock that comes late, after its lock was released, would lock again, and nothing could end that hold
//! but the end of all others. The price is one heartbeat for each lease, every third of its ttl.
//!
//! A session is used again after a lease of which every request was answered at its first attempt: then nothing can come
//! late. So a lock that is taken and released over and over costs two requests, as in Java, and a new session now and then.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::rt::lock;
use tenure_core::time::Time;

use crate::errors::{self, Refusal, RequestError};
use crate::members::Members;
use crate::messages::{self, Group};
use crate::requests::{ask, ask_once, within};

/// So many sessions without a lease are kept: as many leases as a program is likely to take at the same time again.
const MAX_IDLE: usize = 16;

/// How long a session without a lease is kept at most. The members close a session that has no lease for its ttl.
const MAX_IDLE_TIME: Duration = Duration::from_secs(5);

/// The members remember the last request of each lease, also of one that was refused, until its session ends, and look through
/// all of them at each request to unlock. So a session is closed after so many.
const MAX_LEASES: u32 = 64;

/// One session.
pub(crate) struct Session {
    pub(crate) id: i64,
    pub(crate) group: Arc<Group>,
    /// So long after a heartbeat the members end the session.
    pub(crate) ttl: Duration,
    /// When the last heartbeat that was answered was sent.
    confirmed: Mutex<Time>,
    /// A heartbeat is under way in the background.
    is_beating: AtomicBool,
    leases: AtomicU32,
}

impl Session {
    /// Until when the members keep the session at least.
    pub(crate) fn end(&self) -> Time {
        self.confirmed().after(self.ttl)
    }

    /// How long a lease for this ttl is, at most as long as the session.
    pub(crate) fn lease_for(&self, ttl: Duration) -> Duration {
        ttl.min(self.ttl)
    }

    /// When the last heartbeat that was answered was sent.
    pub(crate) fn confirmed(&self) -> Time {
        *lock(&self.confirmed)
    }

    /// Whether the session may be used for another lease: most of its ttl is left.
    fn is_fresh(&self, now: Time) -> bool {
        self.confirmed().after(self.ttl / 3) > now
    }

    /// Counts a lease that uses this session.
    pub(crate) fn count_lease(&self) {
        self.leases.fetch_add(1, Ordering::Relaxed);
    }

    /// Claims the heartbeat of the background. `false`: one is under way.
    pub(crate) fn begin_beat(&self) -> bool {
        !self.is_beating.swap(true, Ordering::SeqCst)
    }

    /// The heartbeat of the background is over.
    pub(crate) fn end_beat(&self) {
        self.is_beating.store(false, Ordering::SeqCst);
    }
}

/// The sessions of one client.
pub(crate) struct Sessions {
    pub(crate) members: Arc<Members>,
    /// The name of each session, which operators see.
    name: String,
    /// Sessions without a lease, with the time from which on each is closed.
    idle: Mutex<Vec<(Time, Arc<Session>)>>,
    /// Sessions that are being closed.
    leaving: Mutex<Vec<Arc<Session>>>,
}

impl Sessions {
    pub(crate) fn new(members: &Arc<Members>, name: String) -> Self {
        Self {
            members: members.clone(),
            name,
            idle: Mutex::default(),
            leaving: Mutex::default(),
        }
    }

    /// A session without a lease: one that is there, or a new one. A session that is there may have ended.
    pub(crate) async fn get(&self) -> Result<Arc<Session>, Error> {
        let now = self.members.clock.now();
        let is_fresh =
            |(until, session): &(Time, Arc<Session>)| *until > now && session.is_fresh(now);
        // One that is not fresh stays, until it is closed with those that are overdue.
        let found = lock(&self.idle).pop_if(|entry| is_fresh(entry));
        match found {
            Some((_, session)) => Ok(session),
            None => self.create().await,
        }
    }

    /// A new session. Without a reply nothing was locked.
    pub(crate) async fn create(&self) -> Result<Arc<Session>, Error> {
        let created = self.request_session().await;
        created.map_err(RequestError::without_effect)
    }

    async fn request_session(&self) -> Result<Arc<Session>, RequestError> {
        let group = Mutex::new(None);
        let sent = self.members.clock.now();
        let create = |current: &Arc<Group>| {
            *lock(&group) = Some(current.clone());
            Some(messages::create_session(current, &self.name))
        };
        let created = ask(&self.members, create).await?.value;
        let group = lock(&group).take();
        let millis = u64::try_from(created.ttl).ok().filter(|it| *it > 0);
        let millis =
            millis.ok_or_else(|| RequestError::NotSent(errors::malformed(&"the cluster")))?;
        Ok(Arc::new(Session {
            id: created.id,
            group: group.ok_or(RequestError::Refused(Refusal::GroupDestroyed))?,
            ttl: Duration::from_millis(millis),
            confirmed: Mutex::new(sent),
            is_beating: AtomicBool::new(false),
            leases: AtomicU32::new(0),
        }))
    }

    /// The session lasts for its ttl from the returned time on. Sent once: the caller repeats it.
    pub(crate) async fn heartbeat(&self, session: &Session) -> Result<Time, RequestError> {
        let sent = self.members.clock.now();
        let call = messages::heartbeat(&session.group, session.id);
        ask_once(&self.members, within(&session.group, call)).await?;
        let mut confirmed = lock(&session.confirmed);
        *confirmed = sent.max(*confirmed);
        Ok(sent)
    }

    /// Ends the session, with what it holds and what waits in it. `false`: it was over already.
    pub(crate) async fn close(&self, session: &Arc<Session>) -> Result<bool, RequestError> {
        let call = messages::close_session(&session.group, session.id);
        let closed = ask(&self.members, within(&session.group, call)).await;
        let was_open = match closed {
            Ok(reply) => reply.value,
            Err(RequestError::Refused(Refusal::SessionOver | Refusal::GroupDestroyed)) => false,
            Err(err) => return Err(err),
        };
        self.forget(session);
        Ok(was_open)
    }

    /// The session is over, or ends by itself.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        lock(&self.leaving).retain(|it| !Arc::ptr_eq(it, session));
    }

    /// Keeps a session whose lease is over, and of which nothing is under way. Returns when it has to be closed; `None`: now.
    pub(crate) fn give_back(&self, session: &Arc<Session>) -> Option<Time> {
        let now = self.members.clock.now();
        let until = now.after(MAX_IDLE_TIME.min(session.ttl / 4));
        let mut idle = lock(&self.idle);
        if session.leases.load(Ordering::Relaxed) >= MAX_LEASES || idle.len() >= MAX_IDLE {
            return None;
        }
        idle.push((until, session.clone()));
        Some(until)
    }

    /// Takes out the sessions that were without a lease for too long. Also returns when the next one is due.
    pub(crate) fn take_overdue(&self, now: Time) -> (Vec<Arc<Session>>, Time) {
        let mut idle = lock(&self.idle);
        let overdue = idle.extract_if(.., |(until, _)| *until <= now);
        let overdue = overdue.map(|(_, session)| session).collect();
        let next = idle.iter().map(|(until, _)| *until).min();
        (overdue, next.unwrap_or(Time::MAX))
    }

    /// The session is about to be closed in the background.
    pub(crate) fn begin_to_leave(&self, session: &Arc<Session>) {
        lock(&self.leaving).push(session.clone());
    }

    /// Takes out all sessions without a lease, those that are being closed too.
    pub(crate) fn take_all(&self) -> Vec<Arc<Session>> {
        let mut all = std::mem::take(&mut *lock(&self.leaving));
        let idle = std::mem::take(&mut *lock(&self.idle));
        all.extend(idle.into_iter().map(|(_, session)| session));
        all
    }
}
