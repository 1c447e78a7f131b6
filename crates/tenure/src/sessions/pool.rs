//! The sessions that take locks: which of them a request uses, and when another one is opened.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::rt::lock;
use tenure_core::support::{SingleFlight, closed};
use tenure_core::time::Time;

use super::acquisitions::{Acquisition, AcquisitionState, KeyState};
use super::connection::Connector;
use super::context::Context;
use super::key::Key;
use super::mode::KeyMode;
use super::operations::LockRequest;
use super::session::Session;

/// How many sessions share the requests for free locks: while the server works for one session, this client can prepare
/// the statement of the other.
const SHARED_SESSIONS: usize = 2;

/// Another shared session is opened when one has so many operations without a reply.
const GROW_THRESHOLD: usize = 8;

/// The shortest time between two such openings.
const GROW_INTERVAL: Duration = Duration::from_secs(1);

/// What is known of a session when one is chosen for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    /// The session has the ttl of the request, is known to be there, and no acquisition waits on it or needs it for
    /// itself.
    is_usable: bool,
    /// The session has no acquisitions.
    is_empty: bool,
    /// There is room for another lock.
    has_room: bool,
    /// How the session has the key of the request, or may have it.
    key_state: KeyState,
    /// Operations without a reply.
    unanswered: usize,
}

impl Candidate {
    /// Whether the session can take the lock, as its only acquisition if the request `reserves` the session.
    fn fits(&self, reserves: bool) -> bool {
        let is_good = self.is_usable && self.has_room && self.key_state == KeyState::NotHeld;
        is_good && (self.is_empty || !reserves)
    }
}

/// Which session a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionChoice<S> {
    Use(S),
    /// Another session of ours has the lock, so the server need not be asked.
    Busy,
    /// Open another session.
    Open,
    /// The request needs a session of its own, and there are as many sessions as there may be.
    Full,
}

/// The server would grant a lock once more to the session that has it, because it counts the locks of a session. So a
/// session is never asked for a key that it has. This is also true of shared holds, which would overtake the waiters.
fn choose(
    candidates: &[Candidate],
    (mode, reserves): (KeyMode, bool),
    may_open: bool,
) -> SessionChoice<usize> {
    let excludes = |state: KeyState| match state {
        KeyState::NotHeld => false,
        KeyState::Shared => !matches!(mode, KeyMode::Shared | KeyMode::Upgradable),
        KeyState::Upgradable => mode != KeyMode::Shared,
        KeyState::Exclusive => true,
    };
    if candidates.iter().any(|it| excludes(it.key_state)) {
        return SessionChoice::Busy;
    }
    let good = candidates
        .iter()
        .enumerate()
        .filter(|(_, it)| it.fits(reserves));
    // Of sessions that are equally good the first: so the others become idle, and are closed.
    if let Some((at, _)) = good.min_by_key(|(_, it)| it.unanswered) {
        return SessionChoice::Use(at);
    }
    if reserves && !may_open {
        return SessionChoice::Full;
    }
    // A shared hold that overtakes the waiters is better than none.
    let shares = |it: &Candidate| it.is_usable && it.has_room && it.key_state == KeyState::Shared;
    match candidates.iter().position(shares) {
        Some(at) if !may_open && !reserves => SessionChoice::Use(at),
        _ => SessionChoice::Open,
    }
}

/// The sessions of a client that take locks.
pub(super) struct Sessions {
    context: Arc<Context>,
    connector: Arc<Connector>,
    list: Mutex<Vec<Arc<Session>>>,
    /// One task opens a session at a time: of many tasks that need one, most can share it.
    opening: SingleFlight<Error>,
    /// No further shared session is opened before then, in ns.
    grows_from: AtomicU64,
}

impl Sessions {
    pub(super) fn new(context: Arc<Context>, connector: Arc<Connector>) -> Self {
        Self {
            context,
            connector,
            list: Mutex::default(),
            opening: SingleFlight::default(),
            grows_from: AtomicU64::new(0),
        }
    }

    fn candidate(session: &Session, request: &LockRequest, now: Time) -> Candidate {
        let acquisitions = lock(&session.acquisitions);
        Candidate {
            is_usable: session.lifetime.ttl == request.ttl
                && !session.is_ended()
                && !session.busy.is_waiting.load(Ordering::SeqCst)
                && !acquisitions.is_reserved()
                && now < session.lifetime.usable_until(),
            is_empty: acquisitions.is_empty(),
            has_room: acquisitions.len() < session.server_info.capacity,
            key_state: acquisitions.key_state(&request.key),
            unanswered: session.operations.unanswered(),
        }
    }

    /// Chooses a session for a request that takes a free lock, and adds the acquisition to that session.
    pub(super) fn choose(
        self: &Arc<Self>,
        owner: OwnerId,
        request: &LockRequest,
    ) -> SessionChoice<Arc<Session>> {
        let now = self.context.clock.now();
        let list = lock(&self.list);
        let candidate = |session: &Arc<Session>| Self::candidate(session, request, now);
        let candidates: Vec<_> = list.iter().map(candidate).collect();
        let may_open = list.len() < self.context.settings.connections;
        match choose(
            &candidates,
            (request.mode, request.reserves_session()),
            may_open,
        ) {
            SessionChoice::Busy => SessionChoice::Busy,
            SessionChoice::Open => SessionChoice::Open,
            SessionChoice::Full => SessionChoice::Full,
            SessionChoice::Use(at) => {
                let usable = candidates.iter().filter(|it| it.is_usable).count();
                let is_overloaded = candidates[at].unanswered >= GROW_THRESHOLD;
                if is_overloaded && usable < SHARED_SESSIONS && may_open {
                    self.grow(request, now);
                }
                add_acquisition(&list[at], owner, request, now);
                SessionChoice::Use(list[at].clone())
            }
        }
    }

    /// Opens one more shared session in the background, unless that was tried a moment ago.
    fn grow(self: &Arc<Self>, request: &LockRequest, now: Time) {
        let from = self.grows_from.load(Ordering::SeqCst);
        if now.as_nanos() < from {
            return;
        }
        let next = now.after(GROW_INTERVAL).as_nanos();
        let order = Ordering::SeqCst;
        let swapped = self.grows_from.compare_exchange(from, next, order, order);
        if swapped.is_err() {
            return;
        }
        let (sessions, request) = (self.clone(), request.clone());
        self.context.spawn(async move {
            let is_enough = |list: &[Arc<Session>]| {
                let now = sessions.context.clock.now();
                let is_usable = |it: &&Arc<Session>| Self::candidate(it, &request, now).is_usable;
                let usable = list.iter().filter(is_usable).count();
                usable >= SHARED_SESSIONS || list.len() >= sessions.context.settings.connections
            };
            tokio::select! {
                biased;
                () = sessions.context.closing.raised() => {}
                opened = sessions.open_unless(request.ttl, is_enough) => {
                    if let Err(err) = opened {
                        tracing::debug!(err = format_args!("{err:#}"), "no further session was opened");
                    }
                }
            }
        });
    }

    /// The session on which the key is being released, if there is one.
    pub(super) fn releasing(&self, key: &Key) -> Option<Arc<Session>> {
        let list = lock(&self.list);
        let is_releasing = |it: &&Arc<Session>| lock(&it.acquisitions).is_ending(key);
        list.iter().find(is_releasing).cloned()
    }

    /// A session for one acquisition that waits: an empty one if another usable one is left, or a new one. The acquisition
    /// is added to the session. `None`: there are as many sessions as there may be, or `is_cancelled`.
    pub(super) async fn for_waiting(
        &self,
        owner: OwnerId,
        request: &LockRequest,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Option<Arc<Session>>, Error> {
        if let Some(session) = self.empty_session(owner, request) {
            return Ok(Some(session));
        }
        let connections = self.context.settings.connections;
        let find = || {
            let is_full = lock(&self.list).len() >= connections;
            (is_full || is_cancelled()).then_some(None)
        };
        let open = async {
            let session = self.connector.open_for_locks(request.ttl).await?;
            session.busy.is_waiting.store(true, Ordering::SeqCst);
            add_acquisition(&session, owner, request, self.context.clock.now());
            self.add(&session)?;
            Ok(Some(session))
        };
        self.opening.run(&self.context.clock, find, open).await
    }

    fn empty_session(&self, owner: OwnerId, request: &LockRequest) -> Option<Arc<Session>> {
        let now = self.context.clock.now();
        let list = lock(&self.list);
        let is_usable = |it: &&Arc<Session>| Self::candidate(it, request, now).is_usable;
        let usable: Vec<_> = list.iter().filter(is_usable).collect();
        // One session is left for requests that take free locks.
        let empty = usable.iter().find(|it| lock(&it.acquisitions).is_empty());
        let session = empty.filter(|_| usable.len() > 1)?;
        session.busy.is_waiting.store(true, Ordering::SeqCst);
        add_acquisition(session, owner, request, now);
        Some((*session).clone())
    }

    /// Opens a session that the request could use, unless another task has just opened one.
    pub(super) async fn open_another(&self, request: &LockRequest) -> Result<(), Error> {
        let before: Vec<_> = lock(&self.list).clone();
        let is_new = |it: &&Arc<Session>| !before.iter().any(|old| Arc::ptr_eq(old, it));
        self.open_unless(request.ttl, |list| {
            let now = self.context.clock.now();
            list.iter().filter(is_new).any(|session| {
                Self::candidate(session, request, now).fits(request.reserves_session())
            })
        })
        .await
    }

    /// Opens a session, unless there are enough when it is our turn to open one.
    async fn open_unless(
        &self,
        ttl: Duration,
        is_enough: impl Fn(&[Arc<Session>]) -> bool,
    ) -> Result<(), Error> {
        let find = || is_enough(&lock(&self.list)).then_some(());
        let open = async {
            if self.context.closing.is_raised() {
                return Err(closed());
            }
            let session = self.connector.open_for_locks(ttl).await?;
            self.add(&session)
        };
        self.opening.run(&self.context.clock, find, open).await
    }

    /// Adds a new session, unless the client was closed meanwhile.
    fn add(&self, session: &Arc<Session>) -> Result<(), Error> {
        lock(&self.list).push(session.clone());
        self.context.maintenance.wake();
        // Read after the session was added: so either `close` finds the session, or we find that the client closes.
        if self.context.closing.is_raised() {
            self.remove(session);
            let session = session.clone();
            self.context.spawn(async move { session.close().await });
            return Err(closed());
        }
        Ok(())
    }

    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.list).clone()
    }

    pub(super) fn take_all(&self) -> Vec<Arc<Session>> {
        std::mem::take(&mut *lock(&self.list))
    }

    pub(super) fn remove(&self, session: &Arc<Session>) {
        lock(&self.list).retain(|it| !Arc::ptr_eq(it, session));
    }

    /// Closes a session that has no acquisitions.
    pub(super) fn close_unused(&self, session: &Arc<Session>) {
        {
            // `choose` adds acquisitions under this lock, so no task is about to use the session.
            let mut list = lock(&self.list);
            if !lock(&session.acquisitions).is_empty() {
                return;
            }
            list.retain(|it| !Arc::ptr_eq(it, session));
        }
        let session = session.clone();
        self.context.spawn(async move { session.close().await });
    }
}

fn add_acquisition(session: &Session, owner: OwnerId, request: &LockRequest, now: Time) {
    let acquisition = Acquisition {
        key: request.key.clone(),
        mode: request.mode,
        is_kept: request.is_kept,
        state: AcquisitionState::Requested,
    };
    session.lifetime.use_at(now);
    lock(&session.acquisitions).insert(owner, acquisition);
}

#[cfg(test)]
mod tests {
    use super::super::mode::KeyMode::{Exclusive, Shared, Upgradable};
    use super::*;

    const FREE: Candidate = Candidate {
        is_usable: true,
        is_empty: true,
        has_room: true,
        key_state: KeyState::NotHeld,
        unanswered: 0,
    };
    const UNUSABLE: Candidate = Candidate {
        is_usable: false,
        ..FREE
    };
    const FULL: Candidate = Candidate {
        has_room: false,
        ..FREE
    };

    /// As a lock without `min_hold`.
    fn choose_for(candidates: &[Candidate], mode: KeyMode, may_open: bool) -> SessionChoice<usize> {
        choose(candidates, (mode, mode.reserves_session()), may_open)
    }

    fn has(key_state: KeyState, of: Candidate) -> Candidate {
        Candidate { key_state, ..of }
    }

    #[test]
    fn free_locks_share_the_first_session_that_is_usable() {
        assert_eq!(choose_for(&[], Exclusive, true), SessionChoice::Open);
        assert_eq!(
            choose_for(&[UNUSABLE, FULL, FREE, FREE], Exclusive, true),
            SessionChoice::Use(2)
        );
        assert_eq!(
            choose_for(&[UNUSABLE, FULL], Exclusive, true),
            SessionChoice::Open
        );
        assert_eq!(
            choose_for(&[UNUSABLE, FULL], Exclusive, false),
            SessionChoice::Open
        );
    }

    #[test]
    fn the_session_that_has_least_to_do_is_asked() {
        let busy = |unanswered| Candidate { unanswered, ..FREE };
        assert_eq!(
            choose_for(&[busy(2), busy(1), busy(1)], Exclusive, true),
            SessionChoice::Use(1)
        );
    }

    /// The server would grant the lock once more to the session that has it.
    #[test]
    fn no_session_is_asked_for_a_key_that_we_have() {
        for of in [FREE, UNUSABLE, FULL] {
            let ours = has(KeyState::Exclusive, of);
            for mode in [Shared, Exclusive] {
                assert_eq!(choose_for(&[FREE, ours], mode, true), SessionChoice::Busy);
            }
            let ours = has(KeyState::Shared, of);
            assert_eq!(
                choose_for(&[ours, FREE], Exclusive, true),
                SessionChoice::Busy
            );
            assert_eq!(
                choose_for(&[ours, FREE], Shared, true),
                SessionChoice::Use(1)
            );
        }
    }

    /// An upgrade waits on the session that has the hold, and other acquisitions of the session would wait with it.
    #[test]
    fn an_upgradable_hold_has_a_session_of_its_own() {
        let used = Candidate {
            is_empty: false,
            ..FREE
        };
        let to = |candidates: &[Candidate], may_open| choose_for(candidates, Upgradable, may_open);
        assert_eq!(to(&[used, FREE], true), SessionChoice::Use(1));
        assert_eq!(to(&[used, UNUSABLE], true), SessionChoice::Open);
        assert_eq!(to(&[used, UNUSABLE], false), SessionChoice::Full);
        let kept = choose(&[used, UNUSABLE], (Exclusive, true), false);
        assert_eq!(kept, SessionChoice::Full);
        let reader = has(KeyState::Shared, used);
        assert_eq!(to(&[reader, FREE], true), SessionChoice::Use(1));
        let other = has(KeyState::Upgradable, UNUSABLE);
        for (mode, choice) in [
            (Shared, SessionChoice::Use(1)),
            (Upgradable, SessionChoice::Busy),
            (Exclusive, SessionChoice::Busy),
        ] {
            assert_eq!(choose_for(&[other, FREE], mode, true), choice);
        }
        // A shared lock of the session would not keep an upgrade of the same session waiting.
        let both = [has(KeyState::Upgradable, FREE)];
        assert_eq!(choose_for(&both, Shared, true), SessionChoice::Open);
    }

    #[test]
    fn shared_holds_go_to_sessions_of_their_own_as_long_as_there_may_be_more() {
        let ours = has(KeyState::Shared, FREE);
        assert_eq!(choose_for(&[ours], Shared, true), SessionChoice::Open);
        assert_eq!(
            choose_for(&[UNUSABLE, ours], Shared, false),
            SessionChoice::Use(1)
        );
    }
}
