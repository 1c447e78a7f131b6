//! The only proof that a lock is held.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::driver::Held;
#[cfg(feature = "tokio-util")]
use crate::driver::JointToken;
use crate::entry::{Entry, first_of};
use crate::error::{Error, ErrorKind, ErrorParts as _, Step};
use crate::fence::{Condition, FencingToken, OwnerId};
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::Mode;
use crate::receipt::{Receipt, ReceiptHold};

/// A lock that is held: one name, several that were taken together, or the locks of two stores.
///
/// What is said here of several names is true of two stores as well.
///
/// The hold lasts until [`release`](Guard::release), until the guard is dropped, or until it is
/// [`lost`](Guard::lost), whichever comes first. Until then it is renewed in the background.
///
/// **Dropping a guard may release the lock later.** Drop asks for the release and neither blocks nor panics, inside
/// and outside of a runtime. With `memory:` and `file:` the lock is released when drop returns; with other stores
/// the release goes on in the background. If the client's runtime has ended by then, the lock is free when its
/// lease ends.
///
/// A guard is `Send` and `Sync`, may be moved to other tasks, and keeps the client alive.
#[must_use = "a guard that is dropped at once releases the lock at once"]
pub struct Guard {
    entries: Entries,
    #[cfg(feature = "tokio-util")]
    /// Of a guard of several names. Made when a caller first asks for a token.
    joint_token: std::sync::OnceLock<Box<JointToken>>,
}

/// Most guards hold one name: no list is allocated for them.
enum Entries {
    One(Entry),
    /// In canonical order; at least one.
    Many(Vec<Entry>),
    /// The guards of [`Lock::both`](crate::Lock::both), in the order of its arguments.
    Two(Box<[Guard; 2]>),
}

impl Guard {
    pub(crate) fn one(entry: Entry) -> Self {
        Self::new(Entries::One(entry))
    }

    /// A guard of these entries, at least one, in canonical order.
    pub(crate) fn of(mut entries: Vec<Entry>) -> Self {
        debug_assert!(!entries.is_empty(), "BUG: a guard holds something");
        match entries.len() {
            1 => Self::one(entries.remove(0)),
            _ => Self::new(Entries::Many(entries)),
        }
    }

    pub(crate) fn of_two(a: Self, b: Self) -> Self {
        Self::new(Entries::Two(Box::new([a, b])))
    }

    fn new(entries: Entries) -> Self {
        Self {
            entries,
            #[cfg(feature = "tokio-util")]
            joint_token: std::sync::OnceLock::new(),
        }
    }

    /// The guard goes to the caller: a release from now on is one of a hold that was used.
    pub(crate) fn delivered(self) -> Self {
        self.all().for_each(|entry| entry.held().set_used());
        self
    }

    fn all(&self) -> impl Iterator<Item = &Entry> {
        let slices = match &self.entries {
            Entries::Two(guards) => [guards[0].own(), guards[1].own()],
            _ => [self.own(), &[]],
        };
        slices.into_iter().flatten()
    }

    /// The entries of a guard of one store.
    fn own(&self) -> &[Entry] {
        match &self.entries {
            Entries::One(entry) => std::slice::from_ref(entry),
            Entries::Many(entries) => entries,
            // A lock of two stores is no part of another one.
            Entries::Two(guards) => guards[0].own(),
        }
    }

    fn first(&self) -> &Entry {
        &self.own()[0]
    }

    /// The guards of the two locks of [`Lock::both`](crate::Lock::both), in the order of its arguments: each has a token and
    /// can [write](crate::guard_traits::KeyValueGuard::put) in its store. `None` for every other guard.
    ///
    /// Both end with this guard. Each of them says what became of its own lock; this guard is lost as soon as one is.
    pub fn both(&self) -> Option<(&Self, &Self)> {
        match &self.entries {
            Entries::Two(guards) => Some((&guards[0], &guards[1])),
            _ => None,
        }
    }

    /// Whether no name was taken from the store for this guard: the owner held all of them already.
    pub(crate) fn is_reentry(&self) -> bool {
        self.all().all(Entry::is_reentry)
    }

    /// The name that is held; if there are several, the first one in byte order. `Display` prints a name in quotes, with
    /// control characters escaped, for messages; [`LockName::as_str`] is the name itself, for a path or a key.
    ///
    /// After [`Client::lock_any`](crate::Client::lock_any) it is the name that was acquired; see [`names`](Guard::names).
    pub fn name(&self) -> &LockName {
        self.first().held().name()
    }

    /// The mode in which the name is held. Of two stores: that of the first lock.
    pub fn mode(&self) -> Mode {
        self.first().held().mode()
    }

    /// The fencing token of this grant, which the protected resource checks. With several names: the token of
    /// [`name`](Guard::name).
    pub fn token(&self) -> FencingToken {
        FencingToken::new(self.first().held().token())
    }

    /// Every name that is held, in byte order; of two stores in the order of the arguments of
    /// [`Lock::both`](crate::Lock::both).
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.all().map(|entry| entry.held().name())
    }

    /// Every name with its fencing token, in the order of [`names`](Guard::names).
    pub fn tokens(&self) -> impl Iterator<Item = (&LockName, FencingToken)> {
        self.all()
            .map(|entry| (entry.held().name(), FencingToken::new(entry.held().token())))
    }

    /// The random identity of this hold in the store. With several names: the identity of [`name`](Guard::name).
    /// Keep it secret: a client that knows it can release the lock in the store.
    ///
    /// Tasks that pass the lock on among themselves ([`Lock::local_hand_overs`](crate::Lock::local_hand_overs)) have the same
    /// identity. A request of your own that compares it in the store, and arrives late, may count for the next task: let your
    /// data compare the fencing token, or turn that off.
    pub fn owner_id(&self) -> OwnerId {
        self.first().held().owner()
    }

    /// The identity of each name's hold, in the order of [`names`](Guard::names).
    pub fn owner_ids(&self) -> impl Iterator<Item = OwnerId> {
        self.all().map(|entry| entry.held().owner())
    }

    /// Time until the local deadline, after which the lock counts as lost. Zero when the hold is lost,
    /// [`Duration::MAX`] where there is no lease (`memory:`, `file:`: the hold lasts as long as the process).
    ///
    /// With several names: the time until the earliest deadline. Each renewal makes it longer again.
    /// Reads the clock, so it is right even when the runtime is blocked.
    pub fn remaining(&self) -> Duration {
        self.all()
            .map(|entry| entry.held().remaining())
            .min()
            .unwrap_or(Duration::ZERO)
    }

    /// Held, at risk or lost, at this moment. With several names: the worst state of them.
    /// Reads the clock, so it is right even when the runtime is blocked.
    pub fn state(&self) -> HoldState {
        let mut worst = HoldState::Held;
        for entry in self.all() {
            match entry.held().state() {
                lost @ HoldState::Lost(_) => return lost,
                HoldState::AtRisk => worst = HoldState::AtRisk,
                HoldState::Held => {}
            }
        }
        worst
    }

    /// Why the lock is not held any more.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        match self.state() {
            HoldState::Lost(reason) => Some(reason),
            HoldState::Held | HoldState::AtRisk => None,
        }
    }

    /// Whether the lock is still held, as far as this client can know.
    pub fn is_held(&self) -> bool {
        self.loss().is_none()
    }

    /// Resolves with the reason when the hold is lost, that is, when it ends without a release: at the deadline at the
    /// latest, even when the store is unreachable. With several names: when the first of them is lost.
    ///
    /// Resolves with `None` when the hold has ended in another way: it was released, or the guard was dropped. So a task
    /// that waits for this future ends with the hold. With a re-entrant [`Owner`](crate::Owner): when this guard has ended.
    ///
    /// The future reads the clock whenever it is polled: in a `select!` that is `biased` and has this branch first,
    /// no other branch runs on after the deadline, even if the process was stopped meanwhile.
    ///
    /// The future borrows nothing: it may be moved into another task, and keeps alive neither the hold nor the client.
    /// After a dropped guard it resolves when the release, which goes on in the background, has ended.
    ///
    /// ```
    /// # async fn example(guard: &tenure::Guard, work: impl Future<Output = ()>) {
    /// tokio::select! {
    ///     biased;
    ///     // Another task that has the guard may release it: that is no loss, and does not end the work.
    ///     Some(reason) = guard.lost() => println!("stop: {reason}"),
    ///     () = work => println!("done"),
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn lost(&self) -> impl Future<Output = Option<LostReason>> + Send + Sync + 'static + use<> {
        first_of(self.all().map(Entry::lost).collect())
    }

    /// The early warning: resolves as soon as a renewal is overdue or has failed, and says how much time is left until
    /// the deadline. Nothing is lost by then; it is the time to begin nothing new, and to save what can be saved.
    ///
    /// A renewal is sent when a third of the ttl is over, and is overdue when two thirds are. Resolves at once when the
    /// [state](Guard::state) is [`AtRisk`](HoldState::AtRisk) already, so before it is asked again for the next time,
    /// wait until the state is [`Held`](HoldState::Held).
    ///
    /// - The hold recovers: nothing more happens; a risk that is over before this future is polled may go unseen.
    /// - The hold is lost: resolves with zero. That may be the first report: a hold is not at risk before its loss if the
    ///   lock was broken, if its lease is fixed, or if the [drift](crate::Lock::drift) takes away the last third.
    /// - The hold is released: resolves with `None`, as [`lost`](Guard::lost).
    /// - The guard has several names: resolves for the first that is at risk.
    ///
    /// The future owns what it needs, as that of [`lost`](Guard::lost).
    ///
    /// ```
    /// # async fn example(guard: &tenure::Guard, work: impl Future<Output = ()>) {
    /// tokio::select! {
    ///     biased;
    ///     Some(reason) = guard.lost() => println!("stop: {reason}"),
    ///     Some(left) = guard.at_risk() => println!("the store does not answer; {left:.0?} left, begin nothing new"),
    ///     () = work => println!("done"),
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn at_risk(
        &self,
    ) -> impl Future<Output = Option<Duration>> + Send + Sync + 'static + use<> {
        first_of(self.all().map(Entry::at_risk).collect())
    }

    /// Resolves with `true` when another client politely asks the holder to let go
    /// ([`Election::ask_to_resign`](crate::Election::ask_to_resign)), with `false` when the hold has ended before. The holder
    /// decides: the hold goes on until it is released. With several names: when one of them is asked for.
    ///
    /// A request that was made resolves each later call too. A store without [elections](crate::guarantees::Capability::Elections)
    /// passes no such request on.
    ///
    /// The future owns what it needs, as that of [`lost`](Guard::lost).
    ///
    /// ```
    /// # async fn example(guard: &tenure::Guard, mut jobs: tokio::sync::mpsc::Receiver<u32>) {
    /// loop {
    ///     tokio::select! {
    ///         biased;
    ///         Some(reason) = guard.lost() => return println!("stop: {reason}"),
    ///         true = guard.asked_to_release() => return println!("another process wants the lock; the last job is done"),
    ///         Some(job) = jobs.recv() => println!("job {job}"),
    ///         else => return,
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn asked_to_release(&self) -> impl Future<Output = bool> + Send + Sync + 'static + use<> {
        let asked = first_of(self.all().map(Entry::asked_to_release).collect());
        async move { asked.await.is_some() }
    }

    /// Whether another client has asked the holder to let go: as [`asked_to_release`](Guard::asked_to_release), without a wait.
    ///
    /// Sends nothing. Where the store has to look for requests, it begins with the first call of one of the two.
    pub fn is_asked_to_release(&self) -> bool {
        // Each name is looked for, also if the first one is asked for.
        let asked: Vec<_> = self.all().map(Entry::is_asked_to_release).collect();
        asked.contains(&true)
    }

    /// Replaces the value that observers of an election see.
    pub(crate) async fn proclaim(&self, value: Arc<str>) -> Result<(), Error> {
        self.first().held().proclaim(value).await
    }

    /// A token that is cancelled when the hold is [lost](Guard::lost), for code that takes one (feature `tokio-util`);
    /// of several names, when the first is lost. Cancelled at once if the hold is lost already.
    ///
    /// A release does **not** cancel the token: the token means "stop, the lock is gone", and not "done". So wait for the
    /// work that has the token before you release, or cancel the token yourself then. Each call makes another token: to
    /// cancel one does nothing to the others, nor to the lock.
    ///
    /// The token keeps alive neither the hold nor the client, and may be kept for longer than the guard. The token of a
    /// guard of several names is cancelled only as long as the guard exists.
    ///
    /// ```
    /// # async fn example() -> Result<(), tenure::Error> {
    /// let client = tenure::connect("memory:").await?;
    /// let guard = client.lock("orders/42").acquire().await?;
    /// let stop = guard.cancellation_token();
    /// let work = tokio::spawn(async move { stop.run_until_cancelled(async { 6 * 7 }).await });
    /// assert_eq!(work.await.ok(), Some(Some(42)));
    /// guard.release().await
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
    /// ```
    #[cfg(feature = "tokio-util")]
    pub fn cancellation_token(&self) -> tokio_util::sync::CancellationToken {
        let state = |entry: &Entry| entry.held().hold_state().clone();
        if let Entries::One(entry) = &self.entries {
            return state(entry).child_token();
        }
        let joint = || Box::new(JointToken::new(self.all().map(state).collect()));
        self.joint_token.get_or_init(joint).child_token()
    }

    /// Adds the name of the lock and of the store to an error about this hold.
    pub(crate) fn explained(&self, err: Error) -> Error {
        self.explainer()(err)
    }

    /// The store that answers for this guard: of several names the one that is lost, else the first.
    fn affected(&self) -> &Entry {
        let is_lost = |entry: &&Entry| matches!(entry.held().state(), HoldState::Lost(_));
        self.all().find(is_lost).unwrap_or(self.first())
    }

    /// The same, for a time when the guard is gone.
    pub(crate) fn explainer(&self) -> impl Fn(Error) -> Error + Send + use<> {
        let held = self.affected().held().clone();
        move |err| held.explain(err, Step::Renew)
    }

    /// Sets `key` to `value`, or deletes it, if this guard still holds the lock.
    pub(crate) async fn write(&self, key: &str, value: Option<Vec<u8>>) -> Result<(), Error> {
        if let Entries::Two(_) = &self.entries {
            let message = "a guard of two stores cannot choose the store; write with one of the guards that `both` gives";
            let err = Error::new(ErrorKind::Invalid, message).with_step(Step::Write);
            return Err(self.explained(err));
        }
        let all: Vec<_> = self.all().map(Entry::held).collect();
        Held::write(&all, key.to_owned(), value).await
    }

    /// For each name the condition of a transaction in the store that is true while the name is held. `None`: the store has
    /// no such transactions, or there are two stores.
    pub(crate) fn conditions(&self) -> Option<Vec<Condition>> {
        if let Entries::Two(_) = &self.entries {
            return None;
        }
        self.all().map(|entry| entry.held().condition()).collect()
    }

    /// Makes an [upgradable](crate::Lock::upgradable) hold exclusive: waits until the other holders have left, and lets
    /// no other exclusive holder in between. From the call on, new requests of any mode wait behind this one.
    ///
    /// The grant has a new, greater [`token`](Guard::token). The hold is renewed while it waits. There is no limit to the
    /// wait: put a timeout around this future, or see [`try_upgrade`](Guard::try_upgrade).
    ///
    /// # Cancel safety
    /// Cancel safe: if this future is dropped, the hold stays upgradable, and the requests behind it go on. An exclusive
    /// grant that has arrived in the store meanwhile is given back there in the background.
    ///
    /// # Errors
    /// `Invalid`: the hold is neither upgradable nor exclusive, or the guard holds several names. `Lost`: the hold has
    /// ended. `Indeterminate`, `Unreachable`: the store did not answer; the hold is upgradable.
    pub async fn upgrade(&self) -> Result<(), Error> {
        self.only_entry("upgrade")?.held().upgrade(true).await?;
        Ok(())
    }

    /// The same, if no other holder has to be waited for. `Ok(false)`: there are other holders, and the hold is
    /// upgradable as before.
    ///
    /// # Cancel safety
    /// As [`upgrade`](Guard::upgrade).
    ///
    /// # Errors
    /// As [`upgrade`](Guard::upgrade).
    pub async fn try_upgrade(&self) -> Result<bool, Error> {
        self.only_entry("upgrade")?.held().upgrade(false).await
    }

    /// Makes an exclusive or [upgradable](crate::Lock::upgradable) hold shared: waiting requests that a shared hold allows
    /// are granted. Never waits for another holder. The [`token`](Guard::token) stays the same.
    ///
    /// # Cancel safety
    /// After the call the change goes on in the background, even if this future is dropped.
    ///
    /// # Errors
    /// `Invalid`: the hold is a permit or a term of an election, the guard holds several names, or the [`Owner`](crate::Owner) has entered the lock
    /// more than once and may rely on the stronger mode. `Unsupported`: this hold cannot become shared in this store, and
    /// its mode stays. `Lost`: the hold has ended. Any other kind: the store did not confirm the change; this guard counts
    /// as shared, and the request is repeated in the background.
    pub async fn downgrade(&self) -> Result<(), Error> {
        let entry = self.only_entry("downgrade")?;
        let if_alone = |change: &dyn Fn()| entry.change_alone(change);
        entry.held().downgrade(if_alone).await
    }

    fn only_entry(&self, what: &str) -> Result<&Entry, Error> {
        match &self.entries {
            Entries::One(entry) => Ok(entry),
            Entries::Many(_) | Entries::Two(_) => Err(self.explained(Error::new(
                ErrorKind::Invalid,
                format!("a guard of several names cannot {what}; acquire the name alone"),
            ))),
        }
    }

    /// Detaches the hold from this process: the lock stays held for its [`ttl`](crate::Lock::ttl) from now on, whatever becomes
    /// of the process, and is renewed no more. With the receipt another process can [attach](crate::Client::attach) itself to
    /// the hold, renew and release it. If that does not happen, the lock is free when the lease ends.
    ///
    /// A lease of 30 s, the default, is short for this; [`attach`](crate::Client::attach) renews a receipt for
    /// [another lease](Receipt::with_ttl). Several names are detached one after the other, into one receipt.
    ///
    /// # Cancel safety
    /// If this future is dropped before its end, the hold is released in the background, because it is written down nowhere.
    /// (A hold that this client was attached to stays, under the receipt that it has.)
    ///
    /// # Errors
    /// `Unsupported`: the holds of this store, or of this mode, end with their client; the message names the stores that
    /// have detached holds, and [`Client::require`](crate::Client::require) says it before a lock is acquired. `Invalid`: a
    /// guard of [two stores](crate::Lock::both), or an entry of an [`Owner`](crate::Owner) that has entered the lock more than
    /// once. `Lost`: the hold had ended. `Indeterminate`, `Unreachable`: the store did not confirm it. After each of these
    /// errors the hold is released, as if the guard had been dropped.
    pub async fn detach(self) -> Result<Receipt, Error> {
        let explain = self.explainer();
        let invalid =
            |message| explain(Error::new(ErrorKind::Invalid, message).with_step(Step::Detach));
        if let Entries::Two(_) = &self.entries {
            return Err(invalid(
                "a guard of two stores cannot be detached; take each lock alone",
            ));
        }
        for entry in self.all() {
            let refused = entry.held().check_detachable();
            refused.map_err(|err| entry.held().explain(err, Step::Detach))?;
        }
        let (mode, first) = (self.mode(), self.first().held());
        let (store, ttl) = (first.driver().store_address(), first.ttl());
        let entries = match self.entries {
            Entries::One(entry) => vec![entry],
            Entries::Many(entries) => entries,
            Entries::Two(_) => Vec::new(),
        };
        let mut holds = DetachedSoFar {
            detached: Vec::new(),
            rest: entries.into(),
        };
        while let Some(entry) = holds.rest.pop_front() {
            let Some(held) = entry.into_hold() else {
                return Err(invalid(
                    "this owner has entered the lock more than once, and another guard counts on it",
                ));
            };
            held.detach().await?;
            holds.detached.push(held);
        }
        Ok(Receipt::new(store, mode, ttl, holds.written_down()))
    }

    /// Neither renews nor releases from now on: the lock is free when its lease ends, and not before. Says how long
    /// that takes.
    pub(crate) fn abandon(self) -> Duration {
        let left = self.all().map(|entry| entry.held().abandon());
        left.max().unwrap_or_default()
    }

    /// Releases the lock. With several names all are released, the last one acquired first, even if one release fails;
    /// two stores are asked at the same time.
    ///
    /// With a re-entrant [`Owner`](crate::Owner) only the last guard releases the lock; the other guards only end.
    ///
    /// # Cancel safety
    /// After the call the release goes on in the background, even if this future is dropped.
    ///
    /// # Errors
    /// [`Lost`](crate::ErrorKind::Lost): the hold had ended before; the work may have overlapped with that of the next
    /// holder. `Indeterminate` or `Unreachable`: the store did not confirm the release; it is repeated in the
    /// background until the store confirms it or the lease ends.
    pub async fn release(self) -> Result<(), Error> {
        let mut entries = match self.entries {
            Entries::One(entry) => return entry.release().await,
            Entries::Many(entries) => entries,
            Entries::Two(guards) => return release_two(*guards).await,
        };
        let mut first_error = Ok(());
        while let Some(entry) = entries.pop() {
            let result = entry.release().await;
            if first_error.is_ok() {
                first_error = result;
            }
        }
        first_error
    }
}

/// The holds of a guard that is being detached. If they are dropped without a receipt, they are released. Those that this client
/// was attached to have a receipt already, and stay.
struct DetachedSoFar {
    detached: Vec<Arc<Held>>,
    rest: VecDeque<Entry>,
}

impl DetachedSoFar {
    fn written_down(mut self) -> Vec<ReceiptHold> {
        let holds = std::mem::take(&mut self.detached);
        let written = holds.iter().map(|held| ReceiptHold {
            name: held.name().clone(),
            token: FencingToken::new(held.token()),
            owner: held.owner(),
        });
        written.collect()
    }
}

impl Drop for DetachedSoFar {
    fn drop(&mut self) {
        self.detached.iter().for_each(Held::release_detached);
        for entry in self.rest.drain(..) {
            if entry.held().is_attached()
                && let Some(held) = entry.into_hold()
            {
                held.leave();
            }
        }
    }
}

/// Asks both stores at the same time, each in the runtime of its client. A loss is the more important error.
async fn release_two([a, b]: [Guard; 2]) -> Result<(), Error> {
    let driver_of = |guard: &Guard| guard.first().held().driver().clone();
    let (driver_a, driver_b) = (driver_of(&a), driver_of(&b));
    let released = tokio::join!(
        driver_a.within(Box::pin(a.release())),
        driver_b.within(Box::pin(b.release()))
    );
    match released {
        (Err(a), Err(b)) if b.is_lost() && !a.is_lost() => Err(b),
        (Err(err), _) | (Ok(()), Err(err)) => Err(err),
        (Ok(()), Ok(())) => Ok(()),
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.tokens().map(|(name, token)| (name, token.get())))
            .finish()
    }
}
