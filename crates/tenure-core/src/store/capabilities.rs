//! What some stores can do and others cannot.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};

use super::finding::Finding;
use super::messages::{AllAnswer, Answer, BoxFuture, Grant, Hold, Release, Renewal, Request};
use crate::error::Error;
use crate::fence::Condition;
use crate::holder::Holder;
use crate::leader::Sighting;
use crate::name::LockName;
use crate::options::Mode;

/// Takes several names in one step. Without it the driver takes one after the other.
pub trait AcquireAll: Send + Sync {
    /// Takes the names of all these requests, at least two and no name twice, if each is free at this moment and has no
    /// waiters; otherwise none of them. This is one atomic step in the store.
    ///
    /// The requests do not wait, differ in name and owner only, and are stopped together. Grants and errors are as those of
    /// [`Store::acquire`](super::Store::acquire): after an `Indeterminate` error the driver releases each owner until the
    /// answer is definite. [`AllAnswer::OneByOne`] makes the driver acquire the names one after the other.
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<Arc<Request>>,
    ) -> BoxFuture<Result<AllAnswer, Error>>;
}

/// Answers without waiting: for stores on this machine.
pub trait AnswerNow: Send + Sync {
    /// Takes the name at once or returns `None`. After `None` nothing of the request is left, and the driver calls
    /// [`Store::acquire`](super::Store::acquire).
    ///
    /// Several of these may run at the same time for one name.
    fn acquire_now(&self, request: &Request) -> Option<Grant>;

    /// The counterpart of [`acquire_now`](AnswerNow::acquire_now): the outcome, or `None` when
    /// it takes a request. After `None` nothing was done, and `release` is called.
    fn release_now(&self, hold: &Hold) -> Option<Release>;
}

/// Changes the mode of a hold.
pub trait ChangeMode: Send + Sync {
    /// Makes the upgradable hold of `request.owner` exclusive, under a new token, with no other exclusive hold in between;
    /// waits for the other holders when `request.wait` is set, and from its arrival on the store grants nothing else.
    /// An owner that holds exclusively already is granted what it has. Never makes a hold of an owner that has none.
    ///
    /// Resolves with [`Answer::Busy`] soon after [`Request::stop`] was raised, if not granted by then. After `Busy`, and
    /// after an error that is not `Indeterminate`, the hold is as it was before; after an `Indeterminate` error the driver
    /// calls [`downgrade`](ChangeMode::downgrade) until the answer is definite.
    /// The hold is renewed all the time, and the client may acquire the same name for another owner.
    fn upgrade(
        self: Arc<Self>,
        hold: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>>;

    /// Makes the hold shared, or upgradable again, which also gives up a request to upgrade. May be repeated. `false`: the
    /// owner has no hold any more.
    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>>;
}

/// Raises the token of a hold: for stores that may be nodes of another one.
pub trait RaiseToken: Send + Sync {
    /// Raises the token of the hold to `token`, so that later grants of the name get greater tokens, and returns the token
    /// that the hold has now: `token`, or the token that it had if that is greater. If another hold at the same time has or
    /// had `token` or a greater one, the hold gets one that is greater than all of these. `None`: there is no such hold.
    fn raise(self: Arc<Self>, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>>;
}

/// Reserves tokens for a hold, so that the tasks of one client can pass it on without a request: for stores where a request
/// takes longer than a task of this process needs to start.
pub trait ReserveTokens: Send + Sync {
    /// Reserves the tokens from `hold.token`, under which the hold was granted, up to `last` for the exclusive hold: later
    /// grants of the name get greater tokens than `last`, and [`break_lock`](Operate::break_lock) with any of the reserved
    /// tokens ends the hold. What [`inspect`](super::Store::inspect) shows is `last` from then on. `false`: there is no such
    /// hold, or it has other tokens reserved; then nothing was changed. May be repeated.
    ///
    /// A store that may be a node of another one may have granted another token than `hold.token`: it reserves the same tokens,
    /// unless its own is greater than `last`; then nothing is left to do, and the answer is `true`.
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>>;
}

/// Writes data that counts only while holds are there.
pub trait GuardedWrite: Send + Sync {
    /// Sets `key` in this same store to `value`, or deletes it, if all these holds are still there: in one atomic step.
    /// `false`: one of the holds is not there, and nothing was written.
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>>;

    /// What a transaction in this same store can be made conditional on, so that it counts only while the
    /// hold is there.
    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let _ = hold;
        None
    }
}

/// Changes of an election, as a store pushes them.
pub type Sightings = Pin<Box<dyn Stream<Item = Result<Sighting, Error>> + Send + 'static>>;

/// Makes a lock an election: the holder publishes a value, observers learn who leads, and others ask the holder to let go.
///
/// The leader is the exclusive holder of the name. A candidate is an ordinary waiter; its first value is in
/// [`Request::holder`] and is stored with the grant, in the same step.
pub trait Elections: Send + Sync {
    /// Replaces what the store shows about the holder of this hold. `false`: the store has no such hold, and nothing was
    /// changed. A renewal keeps what was stored last.
    ///
    /// The driver sends one of these for a hold at a time, and the number of the value grows. A request that arrives late,
    /// with a smaller number than the stored one, changes nothing and is answered as the others.
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>>;

    /// Who leads, as the store decides it: by one request that reads.
    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>>;

    /// What the store has now, and after that each change of leader or value, until an error, the end of the stream or the end
    /// of the observer, which drops the stream. A change may be reported twice or late. `None`: the store does not push
    /// changes, and observers call [`leader`](Elections::leader) at the pace of [`poll_interval`](Elections::poll_interval).
    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        let _ = name;
        None
    }

    /// The pace of observers of a store that does not push.
    fn poll_interval(&self) -> Duration {
        DEFAULT_POLL_INTERVAL
    }

    /// Passes a request to let go to the client that holds the name under this token, which hears of it from
    /// [`LossNotifier::asked_to_release`](super::LossNotifier::asked_to_release): by a push, or with its next renewal.
    /// `false`: the store has no such hold. Nothing about the hold changes.
    ///
    /// The store answers `true` when the request is stored, whether or not the holder listens yet.
    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>>;

    /// A guard of this hold waits to be asked to let go, for the first time. From now on until the hold ends, a store that
    /// neither pushes such requests nor learns of them with a renewal looks for them, in the background. The requests that
    /// were made before count, too. A hold that has ended meanwhile is ignored.
    ///
    /// Returns at once, and may be called outside of a runtime.
    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        drop(hold);
    }
}

/// A stream of this answer alone, for a store that has to connect before it knows whether it pushes changes: the observer asks
/// again when the stream has ended.
pub fn one_sighting(answer: BoxFuture<Result<Sighting, Error>>) -> Sightings {
    Box::pin(stream::once(answer))
}

/// One request a second for each observer, and a change is seen a second late at most.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Detaches holds from their client, so that they outlive it, and attaches them to another one.
///
/// A detached hold is in the store what it was before: the same owner, token, mode and holder. Its lease runs by itself, also
/// in a store whose holds have none otherwise. Several clients may be attached to a hold at the same time, and none of them
/// may end what another one counts on: so **no request shortens the lease** of a hold that is or was detached. It ends at the
/// latest instant that any detach, attach or renewal has asked for.
pub trait Detach: Send + Sync {
    /// Lets the hold last `hold.ttl` from this request on, whatever becomes of this client: neither `close`, `abandon` nor the
    /// end of a session or a connection ends the hold, and this client forgets it.
    ///
    /// Answers as a renewal, always with a lease. After [`Renewal::Lost`] there is no such hold. After [`Renewal::Unknown`] the
    /// driver releases the hold, which the store therefore still finds. If the caller has left before the answer, the driver
    /// [attaches](Detach::attach) this client again and releases the hold.
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal>;

    /// Finds the hold of `hold.owner` in the store and renews it for `hold.ttl`: from then on this client renews, inspects and
    /// releases it as if it had acquired it. Never makes a hold, and never ends one.
    ///
    /// Answers as a renewal, always with a lease. After [`Renewal::Lost`] and [`Renewal::Unknown`] this client has no hold. The
    /// driver attaches an owner once at a time.
    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal>;

    /// This client is no longer attached: it forgets the hold and sends nothing, because another client may hold on. Called
    /// when the client has lost an attached hold, and when it gives up an `attach`. Returns at once, and may be called outside
    /// of a runtime. Attached holds that are left at the end of the client are not ended by `close` and `abandon` either.
    fn forget(&self, hold: &Hold);
}

/// What operators ask for.
pub trait Operate: Send + Sync {
    /// Ends the hold with that token and no other. `false` when there is none.
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>>;

    /// Checks the store and its settings: what weakens or voids the guarantees, and the remedy.
    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>>;

    /// Makes what locks need and the store does not have yet, tables for example; one line for each thing made.
    /// May be called again at any time.
    fn init(self: Arc<Self>) -> BoxFuture<Result<Vec<String>, Error>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }
}
