//! Holds that pass from task to task of a client, in a store in memory that counts requests as a server would.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Step};
use crate::guarantees::Guarantees;
use crate::holder::LockStatus;
use crate::logic::hand_over::MAX_TIME;
use crate::lost::LostReason;
use crate::memory::{self, Disturbance};
use crate::name::LockName;
use crate::rt::{Clock, poll_now};
use crate::store::{
    Answer, BoxFuture, GuardedWrite, Hold, Listed, LossNotifier, Operate, Release, Renewal,
    Request, ReserveTokens, Store,
};
use crate::{Client, FencingToken, Guard, Lock};

const TTL: Duration = Duration::from_secs(10);

/// A store in memory which answers each request by a future, as a server does.
#[derive(Clone)]
struct Remote {
    store: memory::Store,
    /// No guarded write is answered.
    is_write_silent: Arc<AtomicBool>,
}

impl Remote {
    fn new() -> Self {
        let store = memory::Store::with_virtual_clock();
        store.seed(7);
        let is_write_silent = Arc::default();
        Self {
            store,
            is_write_silent,
        }
    }

    fn client(&self) -> Client {
        Client::from_store(self.clone()).unwrap()
    }

    fn inner(&self) -> Arc<memory::Store> {
        Arc::new(self.store.clone())
    }

    /// The token of the hold in the store.
    fn token(&self) -> Option<FencingToken> {
        let status = self.store.status(&LockName::new("n").unwrap());
        status.holds.first()?.token
    }
}

impl Store for Remote {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn clock(&self) -> Clock {
        self.store.clock()
    }

    fn attach(&self, notifier: LossNotifier) {
        self.store.attach(notifier);
    }

    fn acquire(self: Arc<Self>, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        self.inner().acquire(request)
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        self.inner().renew(holds)
    }

    fn release(self: Arc<Self>, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        self.inner().release(hold)
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<Result<LockStatus, Error>> {
        self.inner().inspect(name)
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<Result<Listed, Error>> {
        self.inner().list(prefix)
    }

    fn as_reserve_tokens(self: Arc<Self>) -> Option<Arc<dyn ReserveTokens>> {
        Some(self)
    }

    fn as_guarded_write(self: Arc<Self>) -> Option<Arc<dyn GuardedWrite>> {
        Some(self)
    }

    fn as_operate(self: Arc<Self>) -> Option<Arc<dyn Operate>> {
        self.inner().as_operate()
    }
}

impl ReserveTokens for Remote {
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>> {
        let raising = <dyn Store>::raise(self.inner(), hold, last);
        Box::pin(async move { Ok(raising.await? == Some(last)) })
    }
}

impl GuardedWrite for Remote {
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        _: String,
        _: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        if self.is_write_silent.load(Ordering::SeqCst) {
            return Box::pin(std::future::pending());
        }
        let is_held = self.token() >= holds.first().map(|it| FencingToken::new(it.token));
        Box::pin(std::future::ready(Ok(is_held)))
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Guard, Error>> + Send>>;

/// Begins to acquire; the lock is taken.
fn waits(lock: &Lock) -> Acquiring {
    let lock = lock.clone();
    let acquiring: Acquiring = Box::pin(async move { lock.acquire().await });
    poll_now(acquiring).expect_err("the lock is taken")
}

/// The guard of a task that has the lock by now.
fn granted(acquiring: Acquiring) -> Guard {
    let acquired = poll_now(acquiring).ok();
    acquired.expect("the lock has passed on").unwrap()
}

struct Case {
    remote: Remote,
    client: Client,
    other: Client,
}

impl Case {
    fn new() -> Self {
        let remote = Remote::new();
        let (client, other) = (remote.client(), remote.client());
        Self {
            remote,
            client,
            other,
        }
    }

    fn lock(&self) -> Lock {
        self.client.lock("n").ttl(TTL)
    }

    fn other_lock(&self) -> Lock {
        self.other.lock("n").ttl(TTL)
    }

    fn requests(&self) -> u64 {
        self.remote.store.requests()
    }

    /// A hold that was granted while tasks of its client wait for it, and these tasks. The hold before belonged to another
    /// client, which has released it.
    async fn contended(&self, lock: &Lock, tasks: usize) -> (Guard, Vec<Acquiring>) {
        let before = self.other_lock().acquire().await.unwrap();
        let first = waits(lock);
        let tasks = (0..tasks).map(|_| waits(lock)).collect();
        before.release().await.unwrap();
        (granted(first), tasks)
    }

    /// Releases the guard, and returns how many requests that took.
    async fn release(&self, guard: Guard) -> u64 {
        let before = self.requests();
        guard.release().await.unwrap();
        self.requests() - before
    }
}

#[tokio::test]
async fn a_lock_passes_from_task_to_task_with_one_request_in_all() {
    let case = Case::new();
    let (mut guard, tasks) = case.contended(&case.lock(), 5).await;
    let mut requests = vec![];
    for task in tasks {
        let token = guard.token();
        requests.push(case.release(guard).await);
        guard = granted(task);
        assert!(guard.token() > token && guard.is_held());
        assert!(case.remote.token() >= Some(guard.token()));
    }
    // The tokens of all are reserved once.
    assert_eq!(requests, [1, 0, 0, 0, 0]);
    assert_eq!(case.release(guard).await, 1);
    assert_eq!(case.remote.token(), None);
    let last = case.other_lock().acquire().await.unwrap();
    assert_eq!(last.token(), FencingToken::new(2 + 32 + 1));
}

#[tokio::test]
async fn another_client_has_its_turn_after_so_many_tasks() {
    let case = Case::new();
    let lock = case.lock().local_hand_overs(2);
    let (mut guard, tasks) = case.contended(&lock, 6).await;
    let other = waits(&case.other_lock());
    let mut tasks = tasks.into_iter();
    for _ in 0..2 {
        guard.release().await.unwrap();
        guard = granted(tasks.next().unwrap());
    }
    // The next task waits in the queue of the store, behind the other client.
    let next = poll_now(tasks.next().unwrap()).expect_err("the lock is held");
    guard.release().await.unwrap();
    let next = poll_now(next).expect_err("the other client was first");
    granted(other).release().await.unwrap();
    let guard = granted(next);
    guard.release().await.unwrap();
    assert!(granted(tasks.next().unwrap()).is_held());
}

#[tokio::test]
async fn another_client_has_its_turn_when_the_time_is_over() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 2).await;
    let other = waits(&case.other_lock());
    case.remote.store.run_for(MAX_TIME).await;
    // The task that is next has asked the store by now.
    tasks[0] = poll_now(tasks.remove(0)).expect_err("the lock is held");
    assert_eq!(case.release(guard).await, 1);
    let other = granted(other);
    other.release().await.unwrap();
}

#[tokio::test]
async fn only_locks_of_one_kind_pass_on() {
    let lock = |case: &Case| case.lock();
    type Change = fn(Lock) -> Lock;
    let cases: [(&str, Change, Change); 8] = [
        ("fair", |it| it.fair(true), |it| it.fair(true)),
        (
            "off",
            |it| it.local_hand_overs(0),
            |it| it.local_hand_overs(0),
        ),
        ("off for the next", |it| it, |it| it.local_hand_overs(0)),
        ("another ttl", |it| it, |it| it.ttl(TTL * 2)),
        ("another label", |it| it, |it| it.label("next")),
        ("another delay", |it| it, |it| it.lock_delay(TTL)),
        ("shared", |it| it, |it| it.shared()),
        (
            "reserved",
            |it| it.min_hold(TTL / 100),
            |it| it.min_hold(TTL / 100),
        ),
    ];
    for (what, first, next) in cases {
        let case = Case::new();
        let before = case.other_lock().acquire().await.unwrap();
        let first = waits(&first(lock(&case)));
        let next = waits(&next(lock(&case)));
        before.release().await.unwrap();
        let guard = granted(first);
        // The next task asks the store at once, behind the other client.
        let next = poll_now(next).expect_err(what);
        let other = waits(&case.other_lock());
        assert_eq!(case.release(guard).await, 1, "{what}");
        case.remote.store.run_for(TTL / 50).await;
        let next = granted(next);
        next.release().await.unwrap();
        case.remote.store.run_for(TTL / 50).await;
        drop(granted(other));
    }
}

#[tokio::test]
async fn a_task_that_leaves_does_not_keep_the_lock() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 4).await;
    // One leaves before it is its turn, and one after it was given the lock.
    drop(tasks.remove(0));
    guard.release().await.unwrap();
    let before = case.requests();
    drop(tasks.remove(0));
    let guard = granted(tasks.remove(0));
    assert_eq!(case.requests(), before);
    drop(guard);
    assert!(granted(tasks.remove(0)).is_held());
    case.remote.store.run_for(Duration::from_millis(1)).await;
    assert_eq!(case.remote.token(), None);
}

/// As the branch of a `select!` while another branch works.
#[tokio::test]
async fn a_task_that_is_not_polled_keeps_the_lock_no_longer_than_a_lease() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
    let next = tasks.remove(0);
    guard.release().await.unwrap();
    let other = waits(&case.other_lock());
    case.remote.store.run_for(TTL * 3 / 2).await;
    let other = granted(other);
    let err = poll_now(next).ok().expect("its lease is over").unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate, "{err:#}");
    assert!(other.is_held());
    other.release().await.unwrap();
    assert_eq!(case.remote.token(), None);
}

/// The renewal that was due meanwhile follows at once.
#[tokio::test]
async fn a_task_that_takes_its_hold_late_keeps_it() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
    guard.release().await.unwrap();
    case.remote.store.run_for(TTL * 4 / 5).await;
    let guard = granted(tasks.remove(0));
    case.remote.store.run_for(TTL).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_release_whose_caller_leaves_still_passes_the_lock_on() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
    case.remote.store.pause();
    let releasing = poll_now(Box::pin(guard.release()));
    drop(releasing.expect_err("the store is silent"));
    case.remote.store.resume();
    case.remote.store.run_for(Duration::from_millis(1)).await;
    assert!(granted(tasks.remove(0)).is_held());
}

#[tokio::test]
async fn a_lost_lock_does_not_pass_on() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
    let token = guard.token();
    case.remote.store.expire("n").unwrap();
    // The client does not know that yet; the store says so when it is asked for tokens.
    let err = guard.release().await.unwrap_err();
    assert!(err.is_lost(), "{err:#}");
    case.remote.store.run_for(Duration::from_millis(1)).await;
    let next = granted(tasks.remove(0));
    assert!(next.token() > token);
    assert_eq!(case.remote.token(), Some(next.token()));
}

#[tokio::test]
async fn without_an_answer_the_lock_goes_back_to_the_store() {
    for disturbance in [Disturbance::RequestLost, Disturbance::ReplyLost] {
        let case = Case::new();
        let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
        case.remote.store.disturb(Step::Acquire, disturbance);
        let token = guard.token();
        guard.release().await.unwrap();
        case.remote.store.run_for(Duration::from_millis(1)).await;
        let next = granted(tasks.remove(0));
        assert!(next.token() > token);
        assert_eq!(case.remote.token(), Some(next.token()));
    }
}

#[tokio::test]
async fn a_loss_reaches_the_task_that_holds_now() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 2).await;
    guard.release().await.unwrap();
    let guard = granted(tasks.remove(0));
    let shown = case.remote.token().unwrap();
    assert!(case.other.break_lock("n", shown).await.unwrap());
    assert_eq!(guard.lost().await, Some(LostReason::TakenOver));
    // The next task asks the store.
    let next = poll_now(tasks.remove(0)).unwrap_or_else(|it| Ok(granted(it)));
    assert!(next.unwrap().token() > shown);
}

/// A renewal that is under way when the lock passes on.
#[tokio::test]
async fn an_answer_reaches_the_task_that_holds_now() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
    guard.release().await.unwrap();
    let guard = granted(tasks.remove(0));
    for _ in 0..10 {
        case.remote.store.run_for(TTL / 3).await;
        assert!(guard.is_held() && guard.remaining() > TTL / 2);
    }
    case.remote.store.expire("n").unwrap();
    case.remote.store.run_for(TTL / 3).await;
    assert_eq!(guard.lost().await, Some(LostReason::StoreSaysNo));
}

/// A write that may arrive when the next task holds the lock must not count then: the store sees one owner.
#[tokio::test]
async fn a_write_without_an_answer_keeps_the_lock_from_passing_on() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 2).await;
    guard.write("key", Some(vec![1])).await.unwrap();
    assert_eq!(case.release(guard).await, 1);
    let guard = granted(tasks.remove(0));
    case.remote.is_write_silent.store(true, Ordering::SeqCst);
    let writing = poll_now(Box::pin(guard.write("key", Some(vec![1]))));
    assert!(writing.is_err());
    drop(writing);
    let owner = case.remote.token();
    assert_eq!(case.release(guard).await, 1);
    let next = granted(tasks.remove(0));
    assert!(Some(next.token()) > owner, "the store has granted it");
}

#[tokio::test]
async fn a_task_gets_no_shorter_lease_than_it_asks_for() {
    let case = Case::new();
    let before = case.other_lock().acquire().await.unwrap();
    let first = waits(&case.lock());
    let next = waits(&case.lock().min_lease(TTL));
    before.release().await.unwrap();
    case.remote.store.advance(Duration::from_millis(5));
    assert_eq!(case.release(granted(first)).await, 1);
    assert_eq!(case.remote.token(), None);
    case.remote.store.run_for(Duration::from_millis(1)).await;
    assert!(granted(next).remaining() > TTL - TTL / 50);
}

#[tokio::test]
async fn the_longest_hold_counts_from_the_moment_when_the_task_has_the_lock() {
    let case = Case::new();
    let lock = case.lock().max_hold(Duration::from_secs(30));
    let (guard, mut tasks) = case.contended(&lock, 1).await;
    case.remote.store.run_for(MAX_TIME / 2).await;
    guard.release().await.unwrap();
    let guard = granted(tasks.remove(0));
    case.remote
        .store
        .run_for(Duration::from_secs(30) - Duration::from_millis(1))
        .await;
    assert!(guard.is_held());
    case.remote.store.run_for(Duration::from_millis(1)).await;
    assert_eq!(guard.lost().await, Some(LostReason::MaxHold));
}

#[tokio::test]
async fn a_client_that_closes_passes_nothing_on() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
    case.client.close().await;
    drop(guard);
    let err = poll_now(tasks.remove(0)).ok().unwrap().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Closed);
    case.remote.store.run_for(Duration::from_millis(1)).await;
    assert_eq!(case.remote.token(), None);
}

/// A task that tries and does not wait learns without a request that another task has the lock.
#[tokio::test]
async fn a_try_behind_a_task_that_has_the_lock_is_busy() {
    let case = Case::new();
    let (guard, mut tasks) = case.contended(&case.lock(), 1).await;
    let before = case.requests();
    assert!(case.lock().try_acquire().await.unwrap().is_none());
    assert_eq!(case.requests(), before);
    drop(guard);
    case.remote.store.run_for(Duration::from_millis(1)).await;
    assert!(granted(tasks.remove(0)).is_held());
}
