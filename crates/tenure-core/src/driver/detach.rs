//! Requests that continue as a task when their caller stops polling them.
//!
//! A caller may poll a future and then leave the future alone without dropping it: a `select!` that polls the future by
//! reference and runs a long branch is enough. If the request has something by then that other requests of the client
//! need (a connection, or the next position in the order of connecting), the other requests would wait for it, and no
//! lock of the client would be renewed. So a request that was woken and is not polled is taken from its caller and
//! continues as a task. The caller finds the answer when it polls again.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::rt::sync::{AtomicBool, AtomicU8, Mutex, lock};
use crate::rt::{Clock, Spawner, poll_now};
use crate::store::BoxFuture;

use super::labels::LOG_TARGET;

/// How often the monitor checks whether the requests that were woken have been polled. The second check that finds a
/// request woken and not polled detaches it: late enough for a busy runtime, early enough for the shortest leases.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// From this many entries on, the list of requests is swept. Fewer entries of finished requests do no harm.
const SWEEP_THRESHOLD: usize = 64;

/// Watches the requests of one client that are in flight.
pub(super) struct RequestMonitor {
    requests: Mutex<Requests>,
    spawner: Spawner,
    /// Off on a virtual clock: there nothing may happen that the test did not ask for.
    is_on: bool,
}

#[derive(Default)]
struct Requests {
    /// Finished requests are removed together when there are many: to remove each one alone would cost as much as to
    /// add it.
    all: Vec<Weak<dyn Monitored>>,
    sweep_at: usize,
    is_checking: bool,
}

impl Requests {
    fn sweep(&mut self) {
        self.all.retain(|request| request.strong_count() > 0);
        self.sweep_at = (2 * self.all.len()).max(SWEEP_THRESHOLD);
    }
}

impl RequestMonitor {
    pub(super) fn new(spawner: Spawner, clock: &Clock) -> Self {
        Self {
            requests: Mutex::default(),
            spawner,
            is_on: clock.is_real(),
        }
    }

    fn add(self: &Arc<Self>, request: Weak<dyn Monitored>) {
        let mut requests = lock(&self.requests);
        if requests.all.len() >= requests.sweep_at {
            requests.sweep();
        }
        requests.all.push(request);
        if self.is_on && !std::mem::replace(&mut requests.is_checking, true) {
            self.spawner.spawn(check_regularly(self.clone()));
        }
    }

    /// Wakes the callers of all requests, so that they poll again and notice that the client was closed.
    pub(super) fn wake_callers(&self) {
        let all = lock(&self.requests).all.clone();
        for request in all.iter().filter_map(Weak::upgrade) {
            request.wake_caller();
        }
    }

    /// The requests in flight. If there are none, the next request starts the checks again.
    fn in_flight(&self) -> Vec<Weak<dyn Monitored>> {
        let mut requests = lock(&self.requests);
        requests.sweep();
        if requests.all.is_empty() {
            // Also frees the memory that a burst of requests needed once.
            *requests = Requests::default();
        }
        requests.all.clone()
    }
}

/// Checks the requests as long as there are any, by the real clock: the checks are about tasks that really run.
async fn check_regularly(monitor: Arc<RequestMonitor>) {
    let clock = Clock::system();
    loop {
        let in_flight = monitor.in_flight();
        if in_flight.is_empty() {
            return;
        }
        for request in in_flight.iter().filter_map(Weak::upgrade) {
            request.check();
        }
        clock.sleep_until(clock.now().after(CHECK_INTERVAL)).await;
    }
}

/// A request of any type, for the monitor.
trait Monitored: Send + Sync {
    /// Detaches the request if the check before this one already found it woken and not polled.
    fn check(self: Arc<Self>);
    fn wake_caller(&self);
}

/// Whether the caller has polled a request after the last wake-up.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Polled {
    /// The caller has polled since, or nothing has woken the request.
    Yes,
    /// The request was woken after the last check.
    NotYet,
    /// The last check already found the request woken and not polled.
    NotSinceLastCheck,
}

/// [`Polled`] as an atomic: wakers, callers and the monitor change it without a lock.
struct AtomicPolled(AtomicU8);

impl AtomicPolled {
    fn new(polled: Polled) -> Self {
        Self(AtomicU8::new(polled as u8))
    }

    fn set(&self, polled: Polled) {
        self.0.store(polled as u8, Ordering::Release);
    }

    /// Goes from one value to another. `false`: the value was a third one, and stays.
    fn step(&self, from: Polled, to: Polled) -> bool {
        let (from, to) = (from as u8, to as u8);
        let stepped = self
            .0
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        stepped.is_ok()
    }
}

struct InFlight<T> {
    state: Mutex<RequestState<T>>,
    /// The task that polled the request last.
    caller: Mutex<Option<Waker>>,
    polled: AtomicPolled,
    /// The monitor has the request in its list.
    is_monitored: AtomicBool,
    monitor: Arc<RequestMonitor>,
}

enum RequestState<T> {
    /// The caller polls the future.
    WithCaller(BoxFuture<Result<T, Error>>),
    /// A task polls the future.
    Detached,
    /// The task has the answer, and the caller has not fetched it yet.
    Answered(Result<T, Error>),
    /// The caller has the answer, or the runtime of the task is gone.
    Over,
}

impl<T: Send + 'static> Wake for InFlight<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.polled.step(Polled::Yes, Polled::NotYet);
        self.wake_caller();
    }
}

impl<T: Send + 'static> Monitored for InFlight<T> {
    fn check(self: Arc<Self>) {
        if self.polled.step(Polled::NotYet, Polled::NotSinceLastCheck)
            || !self.polled.step(Polled::NotSinceLastCheck, Polled::Yes)
        {
            return;
        }
        let future = {
            let Ok(mut state) = self.state.try_lock() else {
                // The caller is polling the request, perhaps since before the wake-up: the next check decides.
                self.polled.set(Polled::NotYet);
                return;
            };
            match std::mem::replace(&mut *state, RequestState::Detached) {
                RequestState::WithCaller(future) => future,
                other => {
                    *state = other;
                    return;
                }
            }
        };
        tracing::debug!(target: LOG_TARGET, "a request is not polled by its caller; it continues as a task");
        let detached = DetachedTask(self.clone());
        self.monitor.spawner.spawn(async move {
            let answer = future.await;
            *lock(&detached.0.state) = RequestState::Answered(answer);
        });
    }

    fn wake_caller(&self) {
        let caller = lock(&self.caller).clone();
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

/// Wakes the caller when the task of a detached request ends, also when the runtime drops the task.
struct DetachedTask<T: Send + 'static>(Arc<InFlight<T>>);

impl<T: Send + 'static> Drop for DetachedTask<T> {
    fn drop(&mut self) {
        {
            let mut state = lock(&self.0.state);
            if let RequestState::Detached = *state {
                *state = RequestState::Over;
            }
        }
        self.0.wake_caller();
    }
}

/// A request, for its caller, until the caller has the answer. Dropping it drops the request as well, unless the request
/// continues as a task by then.
pub(crate) struct DetachableRequest<T>(Option<Arc<InFlight<T>>>);

impl<T: Send + 'static> DetachableRequest<T> {
    /// A request that the monitor detaches when its caller stops polling it.
    pub(super) fn new(monitor: &Arc<RequestMonitor>, future: BoxFuture<Result<T, Error>>) -> Self {
        Self(Some(Arc::new(InFlight {
            state: Mutex::new(RequestState::WithCaller(future)),
            caller: Mutex::new(None),
            polled: AtomicPolled::new(Polled::Yes),
            is_monitored: AtomicBool::new(false),
            monitor: monitor.clone(),
        })))
    }

    /// The answer, if it is there already: most stores on this machine answer at the first poll.
    pub(super) fn poll_once(&mut self) -> Option<Result<T, Error>> {
        self.0.as_ref()?;
        poll_now(self).ok()
    }

    /// The request, unless the caller has its answer.
    pub(super) fn take(&mut self) -> Option<Self> {
        self.0.take().map(|in_flight| Self(Some(in_flight)))
    }
}

impl<T: Send + 'static> Future for DetachableRequest<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let in_flight = self.0.as_ref().expect("BUG: an answer is taken once");
        let polled = in_flight.poll(cx);
        if polled.is_ready() {
            self.0 = None;
        }
        polled
    }
}

impl<T: Send + 'static> InFlight<T> {
    fn poll(self: &Arc<Self>, cx: &mut Context<'_>) -> Poll<Result<T, Error>> {
        {
            let mut caller = lock(&self.caller);
            let is_same_task = caller
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()));
            if !is_same_task {
                *caller = Some(cx.waker().clone());
            }
        }
        let mut state = lock(&self.state);
        let answer = match &mut *state {
            RequestState::WithCaller(future) => {
                // Before the poll: a wake-up from now on asks for another poll.
                self.polled.set(Polled::Yes);
                let waker = Waker::from(self.clone());
                let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker))
                else {
                    // Relaxed is enough: the lock of the state is held.
                    if !self.is_monitored.load(Ordering::Relaxed) {
                        self.is_monitored.store(true, Ordering::Relaxed);
                        let monitored: Arc<dyn Monitored> = self.clone();
                        self.monitor.add(Arc::downgrade(&monitored));
                    }
                    return Poll::Pending;
                };
                answer
            }
            RequestState::Detached => return Poll::Pending,
            RequestState::Answered(_) => match std::mem::replace(&mut *state, RequestState::Over) {
                RequestState::Answered(answer) => answer,
                _ => Err(runtime_is_gone()),
            },
            RequestState::Over => Err(runtime_is_gone()),
        };
        *state = RequestState::Over;
        Poll::Ready(answer)
    }
}

impl<T> Drop for DetachableRequest<T> {
    fn drop(&mut self) {
        let Some(in_flight) = &self.0 else {
            return;
        };
        let dropped = {
            let mut state = lock(&in_flight.state);
            match &*state {
                RequestState::WithCaller(_) => std::mem::replace(&mut *state, RequestState::Over),
                _ => return,
            }
        };
        // After the lock is released: dropping the future may wake the request.
        drop(dropped);
    }
}

pub(super) fn runtime_is_gone() -> Error {
    Error::new(
        ErrorKind::Closed,
        "the runtime of this client is gone; the lease runs out by itself",
    )
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    type Answer = oneshot::Sender<Result<u32, Error>>;

    fn pending_request() -> (Answer, DetachableRequest<u32>) {
        let spawner = Spawner::current().unwrap();
        let monitor = Arc::new(RequestMonitor::new(spawner, &Clock::system()));
        let (answer, answered) = oneshot::channel();
        let future = Box::pin(async { answered.await.unwrap() });
        (answer, DetachableRequest::new(&monitor, future))
    }

    /// Polls the request. Returns whether there is no answer yet.
    fn is_pending(request: &mut DetachableRequest<u32>) -> bool {
        poll_now(request).is_err()
    }

    /// The request, which the caller has no answer to yet.
    fn in_flight(request: &DetachableRequest<u32>) -> Arc<InFlight<u32>> {
        request.0.clone().unwrap()
    }

    fn is_detached(request: &DetachableRequest<u32>) -> bool {
        !matches!(
            *lock(&in_flight(request).state),
            RequestState::WithCaller(_)
        )
    }

    fn check(request: &DetachableRequest<u32>) {
        in_flight(request).check();
    }

    fn wake(request: &DetachableRequest<u32>) {
        in_flight(request).wake();
    }

    fn monitor(request: &DetachableRequest<u32>) -> Arc<RequestMonitor> {
        in_flight(request).monitor.clone()
    }

    /// How many requests the monitor checks.
    fn count(request: &DetachableRequest<u32>) -> usize {
        monitor(request).in_flight().len()
    }

    #[tokio::test]
    async fn a_request_that_is_polled_stays_with_its_caller() {
        let (answer, mut request) = pending_request();
        for _ in 0..5 {
            assert!(is_pending(&mut request));
            // Nothing has woken the request.
            check(&request);
            check(&request);
            check(&request);
            // A wake-up, and a poll before the second check.
            wake(&request);
            check(&request);
        }
        assert!(is_pending(&mut request) && !is_detached(&request));
        assert_eq!(count(&request), 1);
        answer.send(Ok(7)).unwrap();
        let monitor = monitor(&request);
        assert_eq!(poll_now(request).ok().unwrap().unwrap(), 7);
        assert!(monitor.in_flight().is_empty());
    }

    #[tokio::test]
    async fn a_request_that_is_not_polled_continues_as_a_task_and_answers_later() {
        let (answer, mut request) = pending_request();
        assert!(is_pending(&mut request));
        wake(&request);
        check(&request);
        assert!(!is_detached(&request));
        check(&request);
        assert!(is_detached(&request) && is_pending(&mut request));
        // The client may have to wake the caller for another reason.
        assert_eq!(count(&request), 1);
        answer.send(Ok(7)).unwrap();
        let monitor = monitor(&request);
        assert_eq!(request.await.unwrap(), 7);
        assert!(monitor.in_flight().is_empty());
    }

    #[tokio::test]
    async fn a_request_that_its_caller_leaves_alone_is_found_by_the_regular_checks() {
        let (answer, mut request) = pending_request();
        assert!(is_pending(&mut request));
        answer.send(Ok(7)).unwrap();
        let (clock, limit) = (Clock::system(), Duration::from_secs(60));
        let end = clock.now().after(limit);
        while !is_detached(&request) {
            assert!(clock.now() < end, "not within {limit:?}");
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    #[tokio::test]
    async fn a_request_is_under_way_until_its_answer_was_taken() {
        let (answer, mut request) = pending_request();
        assert!(request.poll_once().is_none());
        // A dropped future takes no answer.
        assert!(poll_now(&mut request).is_err());
        answer.send(Ok(7)).unwrap();
        let monitor = monitor(&request);
        assert_eq!((&mut request).await.unwrap(), 7);
        assert!(request.poll_once().is_none() && request.take().is_none());
        let at_once = Box::pin(std::future::ready(Ok(8)));
        let mut request = DetachableRequest::new(&monitor, at_once);
        assert_eq!(request.poll_once().unwrap().unwrap(), 8);
        assert!(request.take().is_none());
    }

    #[tokio::test]
    async fn a_dropped_request_ends_unless_it_has_become_a_task() {
        let (answer, mut dropped) = pending_request();
        assert!(is_pending(&mut dropped));
        let monitor = monitor(&dropped);
        drop(dropped);
        assert!(answer.is_closed());
        assert!(monitor.in_flight().is_empty());

        let (answer, mut detached) = pending_request();
        assert!(is_pending(&mut detached));
        wake(&detached);
        check(&detached);
        check(&detached);
        drop(detached);
        assert!(!answer.is_closed());
    }

    #[tokio::test]
    async fn finished_requests_are_not_kept() {
        let (_answer, mut kept) = pending_request();
        assert!(is_pending(&mut kept));
        let monitor = monitor(&kept);
        for _ in 0..10 * SWEEP_THRESHOLD {
            let mut over =
                DetachableRequest::<u32>::new(&monitor, Box::pin(std::future::pending()));
            assert!(is_pending(&mut over));
            drop(over);
            assert!(lock(&monitor.requests).all.len() <= SWEEP_THRESHOLD);
        }
        assert_eq!(count(&kept), 1);
    }

    #[test]
    fn a_request_whose_runtime_is_gone_says_so() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (_answer, mut request) = runtime.block_on(async { pending_request() });
        assert!(is_pending(&mut request));
        wake(&request);
        check(&request);
        check(&request);
        drop(runtime);
        let gone = poll_now(&mut request).ok().unwrap().unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Closed);
    }
}

#[cfg(all(test, tenure_loom))]
mod models {
    use super::*;
    use crate::rt::sync::{block_on, check, oneshot, spawn};

    /// The runtime of a model. The tasks that it is given run on threads of the model.
    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.build().unwrap()
    }

    fn monitor(runtime: &tokio::runtime::Runtime) -> Arc<RequestMonitor> {
        let _inside = runtime.enter();
        let (clock, _) = Clock::virtual_clock();
        Arc::new(RequestMonitor::new(Spawner::current().unwrap(), &clock))
    }

    fn request(
        monitor: &Arc<RequestMonitor>,
    ) -> (oneshot::Sender<Result<u32, Error>>, DetachableRequest<u32>) {
        let (answer, answered) = oneshot::channel();
        let future = Box::pin(async { answered.await.unwrap() });
        (answer, DetachableRequest::new(monitor, future))
    }

    /// Checks the requests so often that a request which no task polls is detached.
    async fn check_requests(monitor: Arc<RequestMonitor>) {
        for _ in 0..2 {
            for request in monitor.in_flight().iter().filter_map(Weak::upgrade) {
                request.check();
            }
        }
    }

    #[test]
    fn the_caller_gets_the_answer_once_whether_the_request_was_detached_or_not() {
        check(|| {
            let runtime = runtime();
            let monitor = monitor(&runtime);
            let (answer, request) = request(&monitor);
            let answering = spawn(async move { drop(answer.send(Ok(7))) });
            let checking = spawn(check_requests(monitor));
            assert_eq!(block_on(request).unwrap(), 7);
            answering.join().unwrap();
            checking.join().unwrap();
        });
    }

    #[test]
    fn a_request_that_its_caller_leaves_alone_does_not_keep_its_answer_from_it() {
        check(|| {
            let runtime = runtime();
            let monitor = monitor(&runtime);
            let (answer, mut request) = request(&monitor);
            assert!(poll_now(&mut request).is_err());
            let answering = spawn(async move { drop(answer.send(Ok(7))) });
            // The caller does something else meanwhile.
            let checking = spawn(check_requests(monitor));
            checking.join().unwrap();
            assert_eq!(block_on(request).unwrap(), 7);
            answering.join().unwrap();
        });
    }

    #[test]
    fn a_request_that_is_dropped_ends_or_continues_as_a_task() {
        check(|| {
            let runtime = runtime();
            let monitor = monitor(&runtime);
            let (answer, mut request) = request(&monitor);
            assert!(poll_now(&mut request).is_err());
            let in_flight = request.0.clone().unwrap();
            let answering = spawn(async move { drop(answer.send(Ok(7))) });
            let checking = spawn(check_requests(monitor));
            drop(request);
            answering.join().unwrap();
            checking.join().unwrap();
            // The task of a request that was detached ends too, because the answer has come.
            let with_caller = matches!(*lock(&in_flight.state), RequestState::WithCaller(_));
            assert!(!with_caller);
        });
    }
}
