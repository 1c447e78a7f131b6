//! The loop of a waiter on a virtual clock, with a store that gives the replies of a list.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_core::OwnerId;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Flag, VirtualClock, lock, poll_now};
use tenure_core::store::{Answer, Grant, Release, Request};
use tenure_core::support::{self, WaiterRegistry};
use tenure_core::time::Time;

use super::places::Places;
use super::wait::{self, AcquireReply, LeaseStore};
use super::waiter::{QueuePosition, Waiter, WakeUp};

const TTL: Duration = Duration::from_secs(30);
/// When the place in the queue has to be kept.
const KEEP: Duration = Duration::from_secs(1);

/// What the store replies to a request.
#[derive(Clone, Copy)]
enum Reply {
    Granted,
    /// So many waiters are ahead, and the holder's lease ends after so many ms.
    Queued(u64, u64),
    /// The lock is taken, and the owner has no place in the queue.
    NoPlace,
    Failed(ErrorKind),
}

type Wait = Pin<Box<dyn Future<Output = Result<Answer, Error>>>>;

/// The requests that were sent, each with the ms since the start of the test.
type Log = Vec<(u64, &'static str)>;

struct Store {
    clock: Clock,
    start: Time,
    /// The last reply is given again and again.
    replies: Mutex<VecDeque<Reply>>,
    log: Mutex<Log>,
    /// Requests get their reply when this is raised.
    may_reply: Flag,
    leaves: bool,
    owner: OwnerId,
    places: Places,
    waiters: Arc<WaiterRegistry<WakeUp>>,
    has_push: Arc<AtomicBool>,
    /// How often the subscription was told of a failure.
    failures: Arc<AtomicUsize>,
}

impl Store {
    fn subscription(&self) -> Subscription {
        Subscription {
            wake_ups: self.waiters.subscribe(self.owner, ""),
            has_push: self.has_push.clone(),
            failures: self.failures.clone(),
        }
    }

    async fn reply(&self, request: &'static str) -> (Reply, Time) {
        let sent = self.clock.now();
        let millis = u64::try_from(sent.since(self.start).as_millis());
        lock(&self.log).push((millis.expect("a short test"), request));
        self.may_reply.raised().await;
        let mut replies = lock(&self.replies);
        let next = replies.front().copied().expect("the test has a reply");
        if replies.len() > 1 {
            replies.pop_front();
        }
        (next, sent)
    }
}

fn position(ahead: u64, expires_in: u64, sent: Time) -> QueuePosition {
    QueuePosition {
        ahead,
        expires_in: Some(Duration::from_millis(expires_in)),
        last_token: 3,
        sent,
        ask_by: sent.after(KEEP),
        ..QueuePosition::default()
    }
}

impl LeaseStore for &Store {
    async fn ask(&self, is_first: bool, _: Duration) -> Result<AcquireReply, Error> {
        match self.reply(if is_first { "first" } else { "ask" }).await {
            (Reply::Granted, sent) => {
                let grant = Grant::new(4, sent, Duration::ZERO, Some(TTL));
                Ok(AcquireReply::Granted(grant))
            }
            (Reply::Queued(ahead, left), sent) => {
                Ok(AcquireReply::Taken(position(ahead, left, sent)))
            }
            (Reply::NoPlace, sent) => Ok(AcquireReply::Taken(QueuePosition {
                ask_by: sent,
                ..position(0, 0, sent)
            })),
            (Reply::Failed(kind), _) => Err(Error::new(kind, "the reply of the test")),
        }
    }

    fn places(&self) -> &Places {
        &self.places
    }

    fn subscribe(&self, _: Time) -> impl wait::WakeUps {
        self.subscription()
    }

    async fn read_queue(&self) -> Option<QueuePosition> {
        match self.reply("read").await {
            (Reply::Granted, sent) => Some(position(0, 0, sent)),
            (Reply::Queued(ahead, left), sent) => Some(position(ahead, left, sent)),
            (Reply::Failed(_) | Reply::NoPlace, _) => None,
        }
    }

    async fn leave_queue(&self) -> Result<Release, Error> {
        self.reply("leave").await;
        match self.leaves {
            true => Ok(Release::Released),
            false => Err(Error::new(ErrorKind::Unreachable, "the reply of the test")),
        }
    }
}

struct Subscription {
    wake_ups: support::Subscription<WakeUp>,
    has_push: Arc<AtomicBool>,
    failures: Arc<AtomicUsize>,
}

impl wait::WakeUps for Subscription {
    async fn prepare(&mut self, has_failed: bool) {
        self.failures
            .fetch_add(usize::from(has_failed), Ordering::SeqCst);
    }

    async fn next(&mut self) -> WakeUp {
        self.wake_ups.next().await
    }

    fn has_push(&self) -> bool {
        self.has_push.load(Ordering::SeqCst)
    }
}

struct Case {
    store: Arc<Store>,
    request: Arc<Request>,
    time: Arc<VirtualClock>,
    answer: Option<Wait>,
}

impl Case {
    /// A waiter whose first request had the reply `Queued(ahead, left)`, and whose later requests have these replies.
    fn new((ahead, left): (u64, u64), replies: &[Reply]) -> Self {
        Self::with((ahead, left), replies, |_| {})
    }

    fn with(position: (u64, u64), replies: &[Reply], change: impl FnOnce(&mut Store)) -> Self {
        Self::build((&Arc::default(), 7), position, replies, change)
    }

    /// One of many waiters.
    fn among(
        waiters: &Arc<WaiterRegistry<WakeUp>>,
        seed: u64,
        position: (u64, u64),
        replies: &[Reply],
    ) -> Self {
        Self::build((waiters, seed), position, replies, |_| {})
    }

    fn build(
        (waiters, seed): (&Arc<WaiterRegistry<WakeUp>>, u64),
        (ahead, left): (u64, u64),
        replies: &[Reply],
        change: impl FnOnce(&mut Store),
    ) -> Self {
        let (clock, time) = Clock::virtual_clock();
        time.seed(seed);
        let start = clock.now();
        let mut store = Store {
            clock,
            start,
            replies: Mutex::new(replies.iter().copied().collect()),
            log: Mutex::default(),
            may_reply: Flag::new(),
            leaves: true,
            owner: OwnerId::random(),
            places: Places::default(),
            waiters: waiters.clone(),
            has_push: Arc::new(AtomicBool::new(true)),
            failures: Arc::default(),
        };
        store.may_reply.raise();
        change(&mut store);
        let name = LockName::new("n").expect("a valid name");
        let mut case = Self {
            request: Arc::new(Request::new(name, store.owner, TTL)),
            store: Arc::new(store),
            time,
            answer: None,
        };
        let (store, request) = (case.store.clone(), case.request.clone());
        let subscription = store.subscription();
        case.answer = Some(Box::pin(async move {
            let (clock, position) = (&store.clock, position(ahead, left, start));
            let waiter = Waiter::new(&request, clock, position, KEEP * 3);
            wait::wait(&&*store, subscription, clock, &request, waiter).await
        }));
        case
    }

    /// Begins with a first request, which waits or not.
    fn begin_anew(&mut self, waits: bool) {
        self.answer = None;
        let request = Arc::get_mut(&mut self.request).expect("the wait is dropped");
        request.wait = waits;
        let (store, request) = (self.store.clone(), self.request.clone());
        self.answer = Some(Box::pin(async move {
            wait::acquire(&&*store, &store.clock, &request).await
        }));
    }

    /// The answer, if there is one before so many ms have passed since the start.
    fn until(&mut self, millis: u64) -> Option<Result<Answer, Error>> {
        let end = self.store.start.after(Duration::from_millis(millis));
        loop {
            let answer = self.answer.as_mut().expect("the caller waits");
            if let Ok(answer) = poll_now(answer.as_mut()) {
                return Some(answer);
            }
            let now = self.store.clock.now();
            let next = self.time.next_wake().filter(|at| *at <= end);
            self.time.advance(next.unwrap_or(end).since(now));
            next?;
        }
    }

    fn wake(&self, wake_up: WakeUp) {
        self.store.waiters.notify(self.request.owner, wake_up);
    }

    fn requests(&self) -> Vec<&'static str> {
        lock(&self.store.log)
            .iter()
            .map(|(_, word)| *word)
            .collect()
    }

    fn last_request(&self) -> (u64, &'static str) {
        *lock(&self.store.log).last().expect("a request was sent")
    }
}

fn is_granted(answer: Option<Result<Answer, Error>>) -> bool {
    matches!(answer, Some(Ok(Answer::Granted(_))))
}

fn is_busy(answer: Option<Result<Answer, Error>>) -> bool {
    matches!(answer, Some(Ok(Answer::Busy)))
}

fn error_kind(answer: Option<Result<Answer, Error>>) -> Option<ErrorKind> {
    Some(answer?.err()?.kind())
}

#[test]
fn a_first_request_is_followed_by_a_wait_if_the_request_waits() {
    // The reply to the first request, whether the request waits and was stopped, and what is sent.
    let queued = Reply::Queued(0, 700);
    for (reply, waits, is_stopped, requests) in [
        (Reply::Granted, false, false, &["first"][..]),
        (Reply::Granted, true, true, &["first"]),
        (queued, false, false, &["first"]),
        (queued, true, false, &["first", "ask"]),
        (queued, true, true, &["first", "leave"]),
        (Reply::NoPlace, true, false, &["first", "ask"]),
        (Reply::NoPlace, true, true, &["first"]),
    ] {
        let mut case = Case::new((0, 0), &[reply, Reply::Granted]);
        case.begin_anew(waits);
        if is_stopped {
            case.request.stop.raise();
        }
        let answer = case.until(1_000);
        match requests.last() {
            Some(&"leave") => assert!(is_busy(answer)),
            Some(&"ask") => assert!(is_granted(answer)),
            _ if matches!(reply, Reply::Granted) => assert!(is_granted(answer)),
            _ => assert!(is_busy(answer)),
        }
        assert_eq!(case.requests(), requests);
    }
}

/// The server dies after it has put the waiter into its queue, and before the reply.
#[test]
fn a_first_request_without_an_answer_is_sent_again_if_the_request_waits() {
    use ErrorKind::{Denied, Indeterminate, Unreachable};
    // What the first request ends with, whether the request waits, and what is sent.
    for (kind, waits, requests) in [
        (Indeterminate, true, &["first", "ask", "ask", "ask"][..]),
        (Indeterminate, false, &["first"]),
        // Nothing was done, so the caller can be told.
        (Unreachable, true, &["first"]),
        (Denied, true, &["first"]),
    ] {
        let replies = [
            Reply::Failed(kind),
            Reply::Failed(Unreachable),
            Reply::Queued(0, 700),
            Reply::Granted,
        ];
        let mut case = Case::new((0, 0), &replies);
        case.begin_anew(waits);
        let answer = case.until(1_000);
        match requests {
            ["first"] => assert_eq!(error_kind(answer), Some(kind)),
            _ => assert!(is_granted(answer)),
        }
        assert_eq!(case.requests(), requests);
        // Only an answer says that another owner has the lock.
        assert_eq!(case.request.is_taken(), requests.len() > 1);
    }
}

#[test]
fn a_first_request_without_an_answer_is_sent_again_until_the_ttl_is_over_or_the_caller_leaves() {
    let silence = Reply::Failed(ErrorKind::Indeterminate);
    let ttl = TTL.as_millis() as u64;
    for stop_at in [None, Some(5_000)] {
        let mut case = Case::new((0, 0), &[silence]);
        case.begin_anew(true);
        let answer = match stop_at {
            Some(stop_at) => {
                assert!(case.until(stop_at).is_none());
                case.request.stop.raise();
                case.until(stop_at)
            }
            None => {
                assert!(case.until(ttl - 1).is_none());
                case.until(ttl + 1_000)
            }
        };
        match stop_at {
            Some(_) => assert!(is_busy(answer)),
            None => assert_eq!(error_kind(answer), Some(ErrorKind::Indeterminate)),
        }
        assert_eq!(case.last_request().1, "leave");
        assert!(case.requests().len() > 10 && !case.request.is_taken());
    }
}

#[test]
fn a_wake_up_leads_to_one_request() {
    let mut case = Case::new((0, 20_000), &[Reply::Granted]);
    assert!(case.until(500).is_none());
    assert!(case.requests().is_empty());
    case.wake(WakeUp::Freed);
    assert!(is_granted(case.until(500)));
    assert_eq!(case.requests(), ["ask"]);
}

#[test]
fn after_a_lost_wake_up_the_place_is_kept_and_the_end_of_the_lease_is_noticed() {
    let mut case = Case::new(
        (1, 2_500),
        &[
            Reply::Queued(1, 1_500),
            Reply::Queued(0, 500),
            Reply::Granted,
        ],
    );
    assert!(case.until(999).is_none());
    assert!(case.requests().is_empty());
    assert!(is_granted(case.until(9_999)));
    let log = lock(&case.store.log).clone();
    assert_eq!(&log[..2], &[(1_000, "ask"), (2_000, "ask")]);
    assert!((2_501..=2_504).contains(&log[2].0), "{log:?}");
}

#[test]
fn a_deadline_before_the_planned_wake_up_ends_the_wait() {
    let mut case = Case::new((0, 700), &[Reply::Granted]);
    assert!(case.until(600).is_none());
    case.request.stop.raise();
    assert!(is_busy(case.until(600)));
    assert_eq!(case.last_request(), (600, "leave"));
    assert_eq!(case.requests(), ["leave"]);
}

#[test]
fn a_stopped_request_is_not_sent_because_of_a_wake_up() {
    let mut case = Case::new((0, 20_000), &[Reply::Granted]);
    assert!(case.until(10).is_none());
    case.wake(WakeUp::AskAgain);
    case.request.stop.raise();
    assert!(is_busy(case.until(10)));
    assert_eq!(case.requests(), ["leave"]);
}

/// The driver polls on when a caller has left, so the reply arrives.
#[test]
fn a_caller_that_leaves_while_a_request_is_under_way_keeps_its_grant_or_leaves_the_queue() {
    for (reply, requests) in [
        (Reply::Granted, &["ask"][..]),
        (Reply::Queued(0, 9_000), &["ask", "leave"]),
        (Reply::Failed(ErrorKind::Indeterminate), &["ask", "leave"]),
    ] {
        let mut case = Case::with((0, 20_000), &[reply], |store| store.may_reply = Flag::new());
        case.wake(WakeUp::AskAgain);
        assert!(case.until(10).is_none());
        case.request.stop.raise();
        assert!(case.until(20).is_none());
        case.store.may_reply.raise();
        let answer = case.until(20);
        match reply {
            Reply::Granted => assert!(is_granted(answer)),
            _ => assert!(is_busy(answer)),
        }
        assert_eq!(case.requests(), requests);
    }
}

#[test]
fn a_wait_that_is_dropped_leaves_no_subscription() {
    let mut case = Case::with((0, 20_000), &[Reply::Granted], |store| {
        store.may_reply = Flag::new();
    });
    case.wake(WakeUp::AskAgain);
    assert!(case.until(10).is_none());
    assert!(!case.store.waiters.is_empty());
    case.answer = None;
    assert!(case.store.waiters.is_empty());
}

/// Closing a client stops its requests.
#[test]
fn closing_while_the_queue_is_read_ends_the_wait() {
    let mut case = Case::with((3, 20_000), &[Reply::Queued(3, 19_000)], |store| {
        store.may_reply = Flag::new();
    });
    case.store.has_push.store(false, Ordering::SeqCst);
    assert!(case.until(100).is_none());
    assert_eq!(case.requests(), ["read"]);
    case.request.stop.raise();
    case.store.may_reply.raise();
    assert!(is_busy(case.until(100)));
    assert_eq!(case.requests(), ["read", "leave"]);
}

#[test]
fn without_an_answer_to_the_last_request_the_outcome_is_unknown() {
    let away = Reply::Failed(ErrorKind::Unreachable);
    let mut case = Case::with((0, 20_000), &[away], |store| store.leaves = false);
    case.request.stop.raise();
    let kind = error_kind(case.until(0));
    assert_eq!(kind, Some(ErrorKind::Indeterminate));
}

#[test]
fn when_push_stops_the_queue_is_read_until_push_starts() {
    let mut case = Case::new((2, 20_000), &[Reply::Queued(2, 20_000)]);
    assert!(case.until(500).is_none());
    case.store.has_push.store(false, Ordering::SeqCst);
    case.wake(WakeUp::PushStopped);
    assert!(case.until(900).is_none());
    let reads = case.requests();
    assert!(reads.len() > 3 && reads.iter().all(|word| *word == "read"));
    case.store.has_push.store(true, Ordering::SeqCst);
    case.wake(WakeUp::AskAgain);
    assert!(case.until(1_800).is_none());
    assert_eq!(case.requests().len(), reads.len() + 1);
    assert_eq!(case.last_request(), (900, "ask"));
}

#[test]
fn a_queue_that_cannot_be_read_or_is_over_leads_to_a_request() {
    for reply in [Reply::Granted, Reply::Failed(ErrorKind::Unreachable)] {
        let mut case = Case::new((0, 20_000), &[reply, Reply::Granted]);
        case.store.has_push.store(false, Ordering::SeqCst);
        assert!(is_granted(case.until(1_000)));
        assert_eq!(case.requests(), ["read", "ask"]);
    }
}

#[test]
fn the_first_in_the_queue_hears_of_a_release_and_no_other_asks() {
    let mut case = Case::new((1, 20_000), &[Reply::Granted]);
    case.wake(WakeUp::Freed);
    assert!(case.until(10).is_none());
    assert!(case.requests().is_empty());
    case.wake(WakeUp::First);
    case.wake(WakeUp::Freed);
    assert!(is_granted(case.until(10)));
    assert_eq!(case.requests(), ["ask"]);
}

#[test]
fn failures_are_repeated_for_a_ttl_and_then_reported() {
    for kind in [ErrorKind::Unreachable, ErrorKind::Indeterminate] {
        let mut case = Case::new((0, 0), &[Reply::Failed(kind)]);
        assert!(case.until(29_999).is_none());
        assert_eq!(error_kind(case.until(40_000)), Some(kind));
        assert_eq!(case.last_request(), (30_000, "leave"));
        let asked = case.requests().len() - 1;
        // Pauses grow up to a quarter of a second.
        assert!((117..300).contains(&asked), "{asked}");
    }
    let mut case = Case::new((0, 0), &[Reply::Failed(ErrorKind::Denied)]);
    assert_eq!(error_kind(case.until(100)), Some(ErrorKind::Denied));
    assert_eq!(case.requests(), ["ask", "leave"]);
}

#[test]
fn a_failure_may_pass() {
    let away = Reply::Failed(ErrorKind::Unreachable);
    let mut case = Case::new(
        (0, 5),
        &[away, away, Reply::Queued(0, 5), away, Reply::Granted],
    );
    assert!(is_granted(case.until(1_000)));
    assert_eq!(case.requests(), ["ask"; 5]);
    assert_eq!(case.store.failures.load(Ordering::SeqCst), 3);
}

#[test]
fn a_lock_that_is_handed_over_needs_no_request() {
    let mut case = Case::new((1, 20_000), &[Reply::Granted]);
    assert!(case.until(10).is_none());
    case.wake(WakeUp::HandedOver { token: 4 });
    let Some(Ok(Answer::Granted(grant))) = case.until(10) else {
        panic!("the lock was handed over");
    };
    assert_eq!((grant.token, grant.sent), (4, case.store.start));
    assert!(case.requests().is_empty());
}

#[test]
fn a_hand_over_is_taken_although_the_request_was_stopped_just_then() {
    let mut case = Case::new((1, 20_000), &[Reply::Granted]);
    case.request.stop.raise();
    case.wake(WakeUp::HandedOver { token: 4 });
    assert!(is_granted(case.until(10)));
    assert!(case.requests().is_empty());
}

/// The message of a grant before the last one, or one that came too late.
#[test]
fn a_hand_over_that_proves_nothing_leads_to_a_request() {
    let mut case = Case::new((1, 20_000), &[Reply::Granted]);
    case.wake(WakeUp::HandedOver { token: 3 });
    assert!(is_granted(case.until(10)));
    assert_eq!(case.requests(), ["ask"]);
}

#[test]
fn a_release_of_the_same_client_ends_the_wait_without_a_request() {
    let mut case = Case::new((1, 20_000), &[Reply::Granted]);
    assert!(case.until(10).is_none());
    let sent = case.store.clock.now();
    case.wake(WakeUp::Released { sent });
    assert!(is_busy(case.until(10)));
    assert!(case.requests().is_empty());
}

#[test]
fn a_place_that_may_have_been_taken_again_is_left() {
    let away = Reply::Failed(ErrorKind::Indeterminate);
    let mut case = Case::new((1, 20_000), &[away]);
    assert!(case.until(1_000).is_none());
    let sent = case.store.clock.now();
    case.wake(WakeUp::Released { sent });
    assert!(is_busy(case.until(1_000)));
    assert_eq!(case.last_request(), (1_000, "leave"));
}

#[test]
fn wake_ups_that_are_pending_lead_to_one_request() {
    let mut case = Case::new((1, 20_000), &[Reply::Queued(1, 20_000)]);
    for _ in 0..10 {
        case.wake(WakeUp::AskAgain);
    }
    assert!(case.until(10).is_none());
    assert_eq!(case.requests(), ["ask"]);
}

/// The connection that brings the wake-ups was broken, and is there again.
#[test]
fn waiters_that_are_woken_together_ask_one_after_the_other() {
    const WAITERS: usize = 5_000;
    const WINDOW: u64 = 100;
    let waiters = Arc::<WaiterRegistry<WakeUp>>::default();
    let reply = [Reply::Queued(1, 20_000)];
    let mut cases: Vec<_> = (0..WAITERS)
        .map(|seed| Case::among(&waiters, seed as u64, (1, 20_000), &reply))
        .collect();
    for case in &mut cases {
        assert!(case.until(0).is_none());
    }
    super::wake_all(&waiters);
    let mut asked = vec![0; KEEP.as_millis() as usize];
    for case in &mut cases {
        assert!(case.until(KEEP.as_millis() as u64 - 1).is_none());
        assert_eq!(case.requests(), ["ask"]);
        asked[case.last_request().0 as usize] += 1;
    }
    let most = asked
        .windows(WINDOW as usize)
        .map(|it| it.iter().sum::<usize>())
        .max();
    assert!(
        most < Some(WAITERS / 5),
        "{most:?} asked within {WINDOW} ms"
    );
}

#[test]
fn a_waiter_that_is_woken_alone_asks_at_once() {
    let mut case = Case::new((1, 20_000), &[Reply::Queued(1, 20_000)]);
    super::wake_all(&case.store.waiters);
    assert!(case.until(0).is_none());
    assert_eq!(case.requests(), ["ask"]);
}
