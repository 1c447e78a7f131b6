//! One session in the server: its connection, what it has, until when it lasts, and its end.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedMutexGuard};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::holder::RestartGuard;
use tenure_core::rt::{Flag, lock};
use tenure_core::support::ServerStart;
use tenure_core::time::Time;

use crate::database::{Connection, EndWatch};

use super::acquisitions::{AcquisitionState, Acquisitions};
use super::context::Context;
use super::operations::PendingOperation;
use super::server_info::ServerInfo;

/// A session.
pub(super) struct Session {
    pub(super) server_info: ServerInfo,
    pub(super) lifetime: SessionLifetime,
    pub(super) operations: OperationQueue,
    pub(super) acquisitions: Mutex<Acquisitions>,
    /// Notified when an acquisition has changed or is gone.
    pub(super) changed: Notify,
    pub(super) busy: Busy,
    pub(super) end: SessionEnd,
    /// The checks of the session find out which holders are asked to let go: it has had a leader, or a guard waits for that.
    pub(super) finds_requests: AtomicBool,
    pub(super) context: Arc<Context>,
    observer: Weak<dyn SessionObserver>,
}

/// What a session is busy with.
#[derive(Default)]
pub(super) struct Busy {
    /// One acquisition waits in the server's queue, so the session can do nothing else.
    pub(super) is_waiting: AtomicBool,
    /// A statement keeps the lock of the one acquisition (`min_hold`), so the session can do nothing else.
    pub(super) is_keeping: AtomicBool,
    /// The maintenance task checks the session at this moment.
    pub(super) is_being_checked: AtomicBool,
}

/// Is called when a session ends.
pub(super) trait SessionObserver: Send + Sync {
    /// The session has ended for this client, and perhaps not for the server.
    fn on_session_ended(self: Arc<Self>, session: &Arc<Session>);
}

/// How long a session lasts.
pub(super) struct SessionLifetime {
    /// The server ends the session when it has received nothing for this long.
    pub(super) ttl: Duration,
    /// Read before the connection was opened.
    opened: Time,
    /// When the last request was sent that was answered, in ns.
    sent: AtomicU64,
    /// When the session was last needed, in ns.
    used: AtomicU64,
    /// When the last check began, or the first of the holds that the session has now, in ns.
    checked: AtomicU64,
}

/// The connection of a session, and the operations that wait for it.
pub(super) struct OperationQueue {
    /// `None`: the connection is closed, or its next answer belongs to a request whose task was dropped.
    connection: Arc<tokio::sync::Mutex<Option<Connection>>>,
    pub(super) queue: Mutex<VecDeque<PendingOperation>>,
    unanswered: AtomicUsize,
}

/// How far the end of a session is.
pub(super) struct SessionEnd {
    /// The session is over for this client.
    pub(super) ended: Arc<Flag>,
    /// The session is over for the server too, or is left to the server.
    pub(super) closed: Flag,
    /// The server has confirmed the statement that keeps the lock (`min_hold`), and runs it to its end whatever
    /// becomes of this client.
    pub(super) is_kept: AtomicBool,
    /// What ended the session, for those who lose their locks with it.
    pub(super) cause: OnceLock<Error>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.server_info.session;
        f.debug_tuple("Session").field(&id).finish()
    }
}

impl SessionLifetime {
    /// A session for which a connection was opened at `opened`, and whose set-up was sent at `sent`.
    pub(super) fn new(ttl: Duration, opened: Time, sent: Time) -> Self {
        Self {
            ttl,
            opened,
            sent: sent.as_nanos().into(),
            used: sent.as_nanos().into(),
            checked: sent.as_nanos().into(),
        }
    }

    /// When the last request was sent that was answered: the session lasts for a ttl from then on.
    pub(super) fn sent(&self) -> Time {
        Time::from_nanos(self.sent.load(Ordering::SeqCst))
    }

    /// A request that was sent at `sent` was answered.
    pub(super) fn renew(&self, sent: Time) {
        self.sent.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// When the session was last needed.
    pub(super) fn used(&self) -> Time {
        Time::from_nanos(self.used.load(Ordering::SeqCst))
    }

    /// The session is needed now.
    pub(super) fn use_at(&self, now: Time) {
        self.used.fetch_max(now.as_nanos(), Ordering::SeqCst);
    }

    /// When the last check began, or the first of the holds that the session has now.
    pub(super) fn checked(&self) -> Time {
        Time::from_nanos(self.checked.load(Ordering::SeqCst))
    }

    /// A check begins now, or the session has its first hold.
    pub(super) fn check_at(&self, now: Time) {
        self.checked.fetch_max(now.as_nanos(), Ordering::SeqCst);
    }

    /// When the session ends unless another request is answered.
    pub(super) fn ends(&self) -> Time {
        self.sent().after(self.ttl)
    }

    /// Until when the session may be used: later the server may be about to end it.
    pub(super) fn usable_until(&self) -> Time {
        self.sent().after(self.ttl * 2 / 3)
    }
}

impl OperationQueue {
    fn new(connection: Connection) -> Self {
        Self {
            connection: Arc::new(tokio::sync::Mutex::new(Some(connection))),
            queue: Mutex::default(),
            unanswered: AtomicUsize::new(0),
        }
    }

    /// Resolves when no other task uses the connection.
    pub(super) async fn lock(&self) -> OwnedMutexGuard<Option<Connection>> {
        self.connection.clone().lock_owned().await
    }

    /// `None`: another task uses the connection.
    pub(super) fn try_lock(&self) -> Option<OwnedMutexGuard<Option<Connection>>> {
        self.connection.clone().try_lock_owned().ok()
    }

    /// How many operations have no reply yet.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Counts an operation until the returned value is dropped.
    pub(super) fn count(&self) -> Unanswered<'_> {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        Unanswered(&self.unanswered)
    }
}

/// Counts one operation without a reply.
pub(super) struct Unanswered<'a>(&'a AtomicUsize);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    pub(super) fn new(
        context: Arc<Context>,
        observer: Weak<dyn SessionObserver>,
        connection: Connection,
        server_info: ServerInfo,
        lifetime: SessionLifetime,
    ) -> Arc<Self> {
        Arc::new(Self {
            server_info,
            lifetime,
            operations: OperationQueue::new(connection),
            acquisitions: Mutex::default(),
            changed: Notify::new(),
            busy: Busy::default(),
            end: SessionEnd {
                ended: Arc::default(),
                closed: Flag::new(),
                is_kept: AtomicBool::new(false),
                cause: OnceLock::new(),
            },
            finds_requests: AtomicBool::new(false),
            context,
            observer,
        })
    }

    /// The statement that asks what others want of the holders of this session.
    pub(super) fn ask_for_requests(&self) -> String {
        let (dialect, id) = (&self.context.dialect, self.server_info.session);
        match self.finds_requests.load(Ordering::SeqCst) {
            true => dialect.requests_to_holders(id),
            false => dialect.requested_breaks(id),
        }
    }

    /// Ends the session as soon as its connection has ended: a check comes only every
    /// [`validate`](super::settings::Settings::validate), and the server may have given the locks to others by then.
    pub(super) fn watch(self: &Arc<Self>, end_watch: EndWatch) {
        let (session, is_over) = (Arc::downgrade(self), self.end.ended.clone());
        self.context.spawn(async move {
            tokio::select! {
                biased;
                () = is_over.raised() => return,
                () = end_watch.ended() => {}
            }
            if let Some(session) = session.upgrade() {
                let message =
                    "the connection of the session was ended by the server or by the network";
                session.end_because(Error::new(ErrorKind::Lost, message));
            }
        });
    }

    /// When the server was started.
    pub(super) fn server_start(&self) -> ServerStart {
        ServerStart::new(self.lifetime.opened, self.server_info.uptime)
    }

    /// The restart guard of that length, for people.
    pub(super) fn restart_guard(&self, guard: Duration) -> RestartGuard {
        let (server, now) = (&self.context.settings.server, self.context.clock.now());
        self.server_start().report(server, guard, now)
    }

    pub(super) fn is_ended(&self) -> bool {
        self.end.ended.is_raised()
    }

    /// Whether the session runs a statement without a time limit of its own: a wait, or one that keeps a lock.
    pub(super) fn is_busy(&self) -> bool {
        self.busy.is_waiting.load(Ordering::SeqCst) || self.busy.is_keeping.load(Ordering::SeqCst)
    }

    /// When the maintenance task checks whether the session is there, and what others want of its holders. Other requests show
    /// that the session is there, but not what others want; so a session that is never idle is checked as often.
    pub(super) fn check_due_at(&self) -> Time {
        let interval = self.context.settings.validate.min(self.lifetime.ttl / 3);
        let lifetime = &self.lifetime;
        lifetime.sent().min(lifetime.checked()).after(interval)
    }

    /// When a release that is sent now is sent again if it has no reply.
    pub(super) fn release_retry_at(&self) -> Time {
        self.context.clock.now().after(self.lifetime.ttl / 3)
    }

    /// The server has granted the lock to that acquisition.
    pub(super) fn set_held(&self, owner: OwnerId, token: u64, until: Time) {
        let mut acquisitions = lock(&self.acquisitions);
        let state = acquisitions.get(&owner).map(|it| it.state);
        // The caller may have given up meanwhile, or the session may have ended.
        if let Some(AcquisitionState::Requested | AcquisitionState::Held { .. }) = state {
            let is_hold = |state| matches!(state, AcquisitionState::Held { .. });
            if !acquisitions.iter().any(|(_, it)| is_hold(it.state)) {
                self.lifetime.check_at(self.lifetime.sent());
            }
            acquisitions.set(&owner, AcquisitionState::Held { token, until });
        }
    }

    /// Whether the lock of the session stays reserved when the session ends for this client.
    pub(super) fn is_left_to_server(&self) -> bool {
        self.busy.is_keeping.load(Ordering::SeqCst) && self.end.is_kept.load(Ordering::SeqCst)
    }

    /// Ends the session; those who lose their locks with it are told this cause.
    pub(super) fn end_because(self: &Arc<Self>, cause: Error) {
        let _ = self.end.cause.set(cause);
        self.end();
    }

    /// Ends the session for this client: its connection is closed. The observer reports the loss of its holds, and tells
    /// the server, on another connection, to end the session too, unless the session is left to the server.
    pub(super) fn end(self: &Arc<Self>) {
        if !self.end.ended.raise_once() {
            return;
        }
        drop(lock(&self.operations.queue).drain(..).collect::<Vec<_>>());
        // A task that uses the connection at this moment closes it.
        if let Some(mut connection) = self.operations.try_lock() {
            *connection = None;
        }
        self.changed.notify_waiters();
        match self.observer.upgrade() {
            Some(observer) => observer.on_session_ended(self),
            // The client is gone.
            None => self.end.closed.raise(),
        }
    }

    /// Waits until the session is over for the server too, for as long as a request may take. `false`: the server has not
    /// confirmed that.
    pub(super) async fn confirm_closed(&self) -> bool {
        let limit = self.context.request_limit();
        tokio::select! {
            biased;
            () = self.end.closed.raised() => true,
            () = self.context.clock.sleep_until(limit) => false,
        }
    }

    /// Closes the connection, and leaves the session to the server: it ends after the statement that it runs.
    pub(super) fn leave(&self) {
        self.end.ended.raise();
        self.end.closed.raise();
        // The task that runs the statement closes the connection.
        if let Some(mut connection) = self.operations.try_lock() {
            *connection = None;
        }
    }

    /// Takes the connection out of a session that has no acquisitions, to make another session of it.
    pub(super) async fn take_connection(&self) -> Option<Connection> {
        self.end.ended.raise();
        self.end.closed.raise();
        self.operations.lock().await.take()
    }

    /// Closes an idle session in order: the server gets a message.
    pub(super) async fn close(&self) {
        self.end.ended.raise();
        let connection = self.operations.lock().await.take();
        if let Some(connection) = connection {
            let limit = self.context.request_limit();
            tokio::select! {
                _ = connection.close() => {}
                () = self.context.clock.sleep_until(limit) => {}
            }
        }
        self.end.closed.raise();
    }
}
