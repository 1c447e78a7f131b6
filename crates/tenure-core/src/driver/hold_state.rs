//! The state of one hold, as the futures and tokens of its guard read it. They may be kept for longer than the guard, so
//! the state keeps alive neither the hold nor its client.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, ready};
use std::time::Duration;

use crate::error::Error;
use crate::logic::lease::{HoldState, Lease};
use crate::lost::LostReason;
use crate::options::Mode;
use crate::rt::Clock;
use crate::rt::sync::{AtomicBool, AtomicUsize, Mutex, Notify, lock};
use crate::time::Time;

use super::kept_turn::KeptTurn;
use super::observe::HoldObservation;
#[cfg(feature = "tokio-util")]
use super::tokens::Tokens;

/// The state of one hold, from its grant to its end.
pub(crate) struct SharedHoldState {
    clock: Clock,
    /// Time alone can change the state: the hold has a deadline, or has to be checked.
    pub(super) is_clocked: bool,
    pub(super) lease: Mutex<ScheduledLease>,
    pub(super) progress: Progress,
    /// Notified when a renewal is overdue or has failed, and when the hold is lost or over.
    changed: Notify,
    #[cfg(feature = "tokio-util")]
    pub(super) tokens: Tokens,
}

/// How far the hold has come between its grant and its end.
#[derive(Default)]
pub(super) struct Progress {
    /// A caller has the guard. Before that, a release is one of an unused hold.
    pub(super) is_used: AtomicBool,
    /// The hold was passed on to a task that has not taken it yet. Such a task may never be polled again.
    pub(super) is_offered: AtomicBool,
    /// The release has begun: from now on the hold is neither renewed nor reported as lost.
    pub(super) is_ending: AtomicBool,
    /// Another client asks the holder to let go.
    is_asked: AtomicBool,
    /// A guard waits to be asked, and the store knows that.
    is_listening: AtomicBool,
    /// The loss is reported.
    is_lost: AtomicBool,
    /// The hold has ended: no loss is reported any more.
    is_over: AtomicBool,
    /// Something waits for a change, or has waited.
    is_watched: AtomicBool,
    /// Requests under this hold that may still arrive in the store, and must not count for a later holder.
    pub(super) late_requests: AtomicUsize,
}

/// The lease, its entry in the list of the renewal task, and what is passed on or shown to observers when the hold ends.
pub(super) struct ScheduledLease {
    pub(super) lease: Lease,
    pub(super) mode: Mode,
    /// The store has not confirmed yet that the hold is shared.
    pub(super) is_unconfirmed: bool,
    pub(super) due: Option<Time>,
    pub(super) observation: Option<HoldObservation>,
    /// The error of the last renewal if that renewal failed, or what the store says of the end of the hold.
    pub(super) error: Option<Error>,
    /// The turn of the task, if the hold may pass on to the next one.
    pub(super) turn: Option<Box<KeptTurn>>,
}

impl SharedHoldState {
    pub(super) fn new(clock: Clock, lease: ScheduledLease, is_clocked: bool) -> Arc<Self> {
        Arc::new(Self {
            clock,
            is_clocked,
            lease: Mutex::new(lease),
            progress: Progress::default(),
            changed: Notify::new(),
            #[cfg(feature = "tokio-util")]
            tokens: Tokens::default(),
        })
    }

    pub(super) fn now(&self) -> Time {
        if self.is_clocked {
            self.clock.now()
        } else {
            Time::ZERO
        }
    }

    /// Held, at risk or lost, by the clock of this moment.
    pub(crate) fn state(&self) -> HoldState {
        let now = self.now();
        lock(&self.lease).lease.state(now)
    }

    /// Time until the deadline; [`Duration::MAX`] without one.
    pub(crate) fn remaining(&self) -> Duration {
        let scheduled = lock(&self.lease);
        let now = self.clock.now();
        match scheduled.lease.state(now) {
            HoldState::Lost(_) => Duration::ZERO,
            _ => scheduled.lease.deadline().since(now),
        }
    }

    pub(super) fn is_ending(&self) -> bool {
        self.progress.is_ending.load(Ordering::SeqCst)
    }

    /// Says that the hold is lost. Returns whether that was not said before.
    pub(super) fn raise_lost(&self) -> bool {
        !self.progress.is_lost.swap(true, Ordering::SeqCst)
    }

    /// Says that nothing more happens to the hold: what waits for a loss ends.
    pub(super) fn set_over(&self) {
        let is_over = &self.progress.is_over;
        // A plain read is cheaper, and each hold is said to be over twice.
        if !is_over.load(Ordering::SeqCst) && !is_over.swap(true, Ordering::SeqCst) {
            self.notify();
        }
    }

    /// Wakes what waits for a change. Most holds end while nothing waits, and this costs less than to notify nothing.
    pub(crate) fn notify(&self) {
        // Both sides write the flag, so one of the two writes comes first: either what waits sees the change, or this sees
        // that something waits.
        if self.progress.is_watched.fetch_or(false, Ordering::SeqCst) {
            self.changed.notify_waiters();
        }
    }

    /// Wakes what waits for a loss, and cancels the tokens.
    pub(super) fn notify_loss(&self) {
        self.notify();
        #[cfg(feature = "tokio-util")]
        self.tokens.cancel();
    }

    /// A token that the loss of this hold cancels.
    #[cfg(feature = "tokio-util")]
    pub(crate) fn child_token(&self) -> tokio_util::sync::CancellationToken {
        let parent = self.tokens.parent();
        // No timer is needed for a deadline that has passed.
        if matches!(self.state(), HoldState::Lost(_)) {
            parent.cancel();
        }
        parent.child_token()
    }

    /// How the hold ended; `None`: it has not ended. `Some(None)`: it ended without a loss.
    fn end(&self) -> Option<Option<LostReason>> {
        let now = self.now();
        let scheduled = lock(&self.lease);
        let progress = &self.progress;
        let (is_lost, is_over) = (&progress.is_lost, &progress.is_over);
        let is_over = is_over.load(Ordering::SeqCst);
        // Once its release has begun, a hold is lost only when the release says so: not by its deadline.
        let may_be_lost = is_lost.load(Ordering::SeqCst) || !self.is_ending();
        match scheduled.lease.state(now) {
            HoldState::Lost(reason) if may_be_lost => Some(Some(reason)),
            _ => is_over.then_some(None),
        }
    }

    /// Resolves with the reason when the hold is lost, and with `None` when the hold, or this entry into it, has ended
    /// without a loss. Reads the clock whenever it is polled. Cancel safe.
    pub(crate) async fn lost(self: Arc<Self>, entry: EntryEnd) -> Option<LostReason> {
        self.when(|it| it.end().or_else(|| entry.is_over().then_some(None)))
            .await
    }

    /// Resolves with the time until the deadline when a renewal is overdue or has failed, and when the hold is lost; with
    /// `None` as [`lost`](Self::lost). Reads the clock whenever it is polled. Cancel safe.
    pub(crate) async fn at_risk(self: Arc<Self>, entry: EntryEnd) -> Option<Duration> {
        let is_at_risk = |it: &Self| !it.is_ending() && it.state() != HoldState::Held;
        self.when(|it| match it.end() {
            Some(end) => Some(end.map(|_| Duration::ZERO)),
            None if entry.is_over() => Some(None),
            None => is_at_risk(it).then(|| Some(it.remaining())),
        })
        .await
    }

    /// A request under this hold is on its way that must not count for a later holder. Without an answer it stays so.
    pub(super) fn begin_late_request(&self) {
        self.progress.late_requests.fetch_add(1, Ordering::SeqCst);
    }

    /// Such a request was answered, so it cannot arrive any more.
    pub(super) fn end_late_request(&self) {
        self.progress.late_requests.fetch_sub(1, Ordering::SeqCst);
    }

    /// Says that another client asks the holder to let go.
    pub(super) fn set_asked(&self) {
        if !self.progress.is_asked.swap(true, Ordering::SeqCst) {
            self.notify();
        }
    }

    /// Whether another client has asked the holder to let go.
    pub(crate) fn is_asked(&self) -> bool {
        self.progress.is_asked.load(Ordering::SeqCst)
    }

    /// A guard waits to be asked to let go. Returns whether none did before.
    pub(super) fn set_listening(&self) -> bool {
        !self.progress.is_listening.swap(true, Ordering::SeqCst)
    }

    /// Resolves when another client asks the holder to let go; with `None` when the hold, or this entry into it, has ended
    /// before. Cancel safe.
    pub(crate) async fn asked_to_release(self: Arc<Self>, entry: EntryEnd) -> Option<()> {
        self.when(|it| match it.end() {
            Some(_) => Some(None),
            None if entry.is_over() => Some(None),
            None => it.is_asked().then_some(Some(())),
        })
        .await
    }

    /// Resolves when the hold is lost, and when it has ended in another way. Cancel safe.
    pub(super) async fn ended(&self) {
        self.when(|it| it.end().map(drop)).await;
    }

    /// Resolves with what `read` returns, which is asked whenever this is polled.
    async fn when<T>(&self, read: impl Fn(&Self) -> Option<T>) -> T {
        let mut woken = pin!(self.changed.notified());
        self.progress.is_watched.swap(true, Ordering::SeqCst);
        poll_fn(|cx| {
            loop {
                // Registers before it reads the state, so that a change in between is not missed.
                woken.as_mut().enable();
                if let Some(output) = read(self) {
                    return Poll::Ready(output);
                }
                ready!(woken.as_mut().poll(cx));
                woken.set(self.changed.notified());
            }
        })
        .await
    }
}

/// Whether an entry into the hold has ended while other entries go on. An entry that is the only one ends with the hold.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryEnd(Option<Arc<AtomicBool>>);

impl EntryEnd {
    /// The end of one of several entries.
    pub(crate) fn of_entry() -> Self {
        Self(Some(Arc::default()))
    }

    /// The entry has ended; [`SharedHoldState::notify`] wakes what waits for that.
    pub(crate) fn set_over(&self) {
        if let Some(is_over) = &self.0 {
            is_over.store(true, Ordering::SeqCst);
        }
    }

    fn is_over(&self) -> bool {
        let is_over = self.0.as_ref();
        is_over.is_some_and(|is_over| is_over.load(Ordering::SeqCst))
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use super::*;
    use crate::logic::lease::Terms;
    use crate::options::Renew;
    use crate::rt::sync::{block_on, check, spawn};

    fn held() -> Arc<SharedHoldState> {
        let (clock, _) = Clock::virtual_clock();
        let terms = Terms {
            ttl: Duration::from_secs(10),
            drift: Duration::ZERO,
            renew: Renew::Automatic,
            max_hold: None,
        };
        let scheduled = ScheduledLease {
            lease: Lease::granted(terms, clock.now(), Some(terms.ttl)),
            mode: Mode::Exclusive,
            is_unconfirmed: false,
            due: None,
            observation: None,
            error: None,
            turn: None,
        };
        SharedHoldState::new(clock, scheduled, true)
    }

    #[test]
    fn a_loss_is_seen_by_what_waits_for_it() {
        check(|| {
            let hold = held();
            let losing = spawn({
                let hold = hold.clone();
                async move {
                    lock(&hold.lease).lease.refused(LostReason::Expired);
                    assert!(hold.raise_lost());
                    hold.notify_loss();
                }
            });
            let waiting = spawn(hold.clone().at_risk(EntryEnd::default()));
            let lost = block_on(hold.lost(EntryEnd::default()));
            assert_eq!(lost, Some(LostReason::Expired));
            assert_eq!(waiting.join().unwrap(), Some(Duration::ZERO));
            losing.join().unwrap();
        });
    }

    #[test]
    fn a_request_to_let_go_is_seen_by_what_waits_for_it() {
        check(|| {
            let hold = held();
            let asking = spawn({
                let hold = hold.clone();
                async move { hold.set_asked() }
            });
            let asked = hold.asked_to_release(EntryEnd::default());
            assert_eq!(block_on(asked), Some(()));
            asking.join().unwrap();
        });
    }

    #[test]
    fn the_end_of_a_hold_and_of_an_entry_end_what_waits_for_a_loss() {
        check(|| {
            let hold = held();
            let entry = EntryEnd::of_entry();
            let entry_ends = spawn({
                let (hold, entry) = (hold.clone(), entry.clone());
                async move {
                    entry.set_over();
                    hold.notify();
                }
            });
            let released = spawn({
                let hold = hold.clone();
                async move {
                    hold.progress.is_ending.store(true, Ordering::SeqCst);
                    hold.set_over();
                }
            });
            assert_eq!(block_on(hold.clone().lost(entry)), None);
            assert_eq!(block_on(hold.lost(EntryEnd::default())), None);
            entry_ends.join().unwrap();
            released.join().unwrap();
        });
    }
}
