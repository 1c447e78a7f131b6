//! Requests that go on though nobody polls them.
//!
//! A caller may poll a future and then leave it alone without dropping it: `select!` on it by reference, with a branch
//! that takes its time, is enough. If it has something by then that the client's other requests need (a connection, or
//! the turn to make one) they would wait for it, and no lock of the client would be renewed. So a future that was woken
//! and is not polled is taken away from its caller and goes on as a task; the caller finds the answer when it comes.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::backend::BoxFuture;
use crate::error::{Error, ErrorKind};
use crate::rt::{Clock, Spawner, lock};

use super::observe::LOG_TARGET;

/// How often it is looked whether those that were woken have been polled. At the second look that finds the same one so
/// it is taken away: late enough for a runtime that has much to do, early enough for the shortest leases.
const LOOK: Duration = Duration::from_millis(100);

/// The requests of one client that are under way.
pub(super) struct Carrier {
    under_way: Mutex<UnderWay>,
    spawner: Spawner,
    /// Where a test moves time nothing may happen by itself.
    is_on: bool,
}

#[derive(Default)]
struct UnderWay {
    /// Those that are over are swept out when there are many: to take out each by itself would cost as much as to put
    /// it in.
    all: Vec<Weak<dyn Watched>>,
    swept_from: usize,
    is_watched: bool,
}

impl UnderWay {
    fn sweep(&mut self) {
        self.all.retain(|request| request.strong_count() > 0);
        self.swept_from = (2 * self.all.len()).max(FEW);
    }
}

/// So many that are over do not matter.
const FEW: usize = 64;

impl Carrier {
    pub(super) fn new(spawner: Spawner, clock: &Clock) -> Self {
        Self {
            under_way: Mutex::default(),
            spawner,
            is_on: clock.is_real(),
        }
    }

    /// Sees to it that `future` goes on.
    pub(super) fn carried<T: Send + 'static>(
        self: &Arc<Self>,
        future: BoxFuture<Result<T, Error>>,
    ) -> Carried<T> {
        Carried(Arc::new(Inflight {
            stage: Mutex::new(Stage::Here(future)),
            caller: Mutex::new(None),
            woken: AtomicU8::new(NOT),
            is_known: AtomicBool::new(false),
            carrier: self.clone(),
        }))
    }

    fn add(self: &Arc<Self>, request: Weak<dyn Watched>) {
        let mut under_way = lock(&self.under_way);
        if under_way.all.len() >= under_way.swept_from {
            under_way.sweep();
        }
        under_way.all.push(request);
        if self.is_on && !std::mem::replace(&mut under_way.is_watched, true) {
            self.spawner.spawn(watch(self.clone()));
        }
    }

    /// Has all of them polled by their callers, who have something else to look at.
    pub(super) fn wake_all(&self) {
        let all = lock(&self.under_way).all.clone();
        for request in all.iter().filter_map(Weak::upgrade) {
            request.wake_caller();
        }
    }

    /// None if there are none; then nobody looks at them any more.
    fn all(&self) -> Vec<Weak<dyn Watched>> {
        let mut under_way = lock(&self.under_way);
        under_way.sweep();
        if under_way.all.is_empty() {
            // What a crowd needed once is not kept for ever.
            *under_way = UnderWay::default();
        }
        under_way.all.clone()
    }
}

/// Looks at them for as long as there are any. By the real clock: it is about tasks that do run.
async fn watch(carrier: Arc<Carrier>) {
    let clock = Clock::system();
    loop {
        let all = carrier.all();
        if all.is_empty() {
            return;
        }
        for request in all.iter().filter_map(Weak::upgrade) {
            request.look();
        }
        clock.sleep_until(clock.now().after(LOOK)).await;
    }
}

/// A request, for who looks at all of them.
trait Watched: Send + Sync {
    fn look(self: Arc<Self>);
    fn wake_caller(&self);
}

/// Has it been woken since it was polled last? And for longer than since the last look?
const NOT: u8 = 0;
const LATELY: u8 = 1;
const BEFORE: u8 = 2;

struct Inflight<T> {
    stage: Mutex<Stage<T>>,
    /// Who polled it last.
    caller: Mutex<Option<Waker>>,
    woken: AtomicU8,
    /// It is one of those that are looked at.
    is_known: AtomicBool,
    carrier: Arc<Carrier>,
}

enum Stage<T> {
    /// Its caller polls it.
    Here(BoxFuture<Result<T, Error>>),
    /// A task does.
    Away,
    Done(Result<T, Error>),
    /// The answer was given, or the runtime of the task is gone.
    Over,
}

impl<T: Send + 'static> Wake for Inflight<T> {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let order = Ordering::AcqRel;
        let _ = self
            .woken
            .compare_exchange(NOT, LATELY, order, Ordering::Relaxed);
        self.wake_caller();
    }
}

impl<T: Send + 'static> Watched for Inflight<T> {
    fn look(self: Arc<Self>) {
        let order = Ordering::AcqRel;
        let step = |from, to| {
            let stepped = self
                .woken
                .compare_exchange(from, to, order, Ordering::Relaxed);
            stepped.is_ok()
        };
        if step(LATELY, BEFORE) || !step(BEFORE, NOT) {
            return;
        }
        let future = {
            let Ok(mut stage) = self.stage.try_lock() else {
                // It is being polled, maybe since before it was woken: so it is looked at again.
                self.woken.store(LATELY, Ordering::Release);
                return;
            };
            match std::mem::replace(&mut *stage, Stage::Away) {
                Stage::Here(future) => future,
                other => {
                    *stage = other;
                    return;
                }
            }
        };
        tracing::debug!(target: LOG_TARGET, "a request is not polled by its caller; it goes on as a task");
        let away = Away(self.clone());
        self.carrier.spawner.spawn(async move {
            let answer = future.await;
            *lock(&away.0.stage) = Stage::Done(answer);
        });
    }

    fn wake_caller(&self) {
        let caller = lock(&self.caller).clone();
        if let Some(caller) = caller {
            caller.wake();
        }
    }
}

/// The task of a request.
struct Away<T: Send + 'static>(Arc<Inflight<T>>);

impl<T: Send + 'static> Drop for Away<T> {
    fn drop(&mut self) {
        {
            let mut stage = lock(&self.0.stage);
            if let Stage::Away = *stage {
                *stage = Stage::Over;
            }
        }
        self.0.wake_caller();
    }
}

/// A request, for its caller. Dropped, the request is dropped as well, unless it has become a task.
pub(crate) struct Carried<T>(Arc<Inflight<T>>);

impl<T: Send + 'static> Future for Carried<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let request = &self.0;
        {
            let mut caller = lock(&request.caller);
            let is_known = caller
                .as_ref()
                .is_some_and(|known| known.will_wake(cx.waker()));
            if !is_known {
                *caller = Some(cx.waker().clone());
            }
        }
        let mut stage = lock(&request.stage);
        let answer = match &mut *stage {
            Stage::Here(future) => {
                // Before it is polled: what wakes it from now on is not answered yet.
                request.woken.store(NOT, Ordering::Release);
                let waker = Waker::from(request.clone());
                let Poll::Ready(answer) = future.as_mut().poll(&mut Context::from_waker(&waker))
                else {
                    // Under the lock of its stage.
                    if !request.is_known.load(Ordering::Relaxed) {
                        request.is_known.store(true, Ordering::Relaxed);
                        let watched: Arc<dyn Watched> = request.clone();
                        request.carrier.add(Arc::downgrade(&watched));
                    }
                    return Poll::Pending;
                };
                answer
            }
            Stage::Away => return Poll::Pending,
            Stage::Done(_) => match std::mem::replace(&mut *stage, Stage::Over) {
                Stage::Done(answer) => answer,
                _ => Err(gone()),
            },
            Stage::Over => Err(gone()),
        };
        *stage = Stage::Over;
        Poll::Ready(answer)
    }
}

impl<T> Drop for Carried<T> {
    fn drop(&mut self) {
        let dropped = {
            let mut stage = lock(&self.0.stage);
            match &*stage {
                Stage::Here(_) => std::mem::replace(&mut *stage, Stage::Over),
                _ => return,
            }
        };
        // Without the lock: whatever it does when it is dropped may wake it.
        drop(dropped);
    }
}

fn gone() -> Error {
    Error::new(
        ErrorKind::Closed,
        "the runtime of this client is gone; the lease runs out by itself",
    )
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::rt::poll_now;

    type Answer = oneshot::Sender<Result<u32, Error>>;

    fn carried() -> (Answer, Carried<u32>) {
        let spawner = Spawner::current().unwrap();
        let carrier = Arc::new(Carrier::new(spawner, &Clock::system()));
        let (answer, answered) = oneshot::channel();
        let future = Box::pin(async { answered.await.unwrap() });
        (answer, carrier.carried(future))
    }

    /// Polls it, and says whether there is no answer yet.
    fn is_pending(carried: &mut Carried<u32>) -> bool {
        poll_now(carried).is_err()
    }

    fn is_away(carried: &Carried<u32>) -> bool {
        !matches!(*lock(&carried.0.stage), Stage::Here(_))
    }

    fn look(carried: &Carried<u32>) {
        carried.0.clone().look();
    }

    /// How many requests are looked at.
    fn count(carried: &Carried<u32>) -> usize {
        carried.0.carrier.all().len()
    }

    #[tokio::test]
    async fn one_that_is_polled_stays_with_its_caller() {
        let (answer, mut carried) = carried();
        for _ in 0..5 {
            assert!(is_pending(&mut carried));
            // Nothing has woken it.
            look(&carried);
            look(&carried);
            look(&carried);
            // It was woken, and polled before the second look.
            carried.0.clone().wake();
            look(&carried);
        }
        assert!(is_pending(&mut carried) && !is_away(&carried));
        assert_eq!(count(&carried), 1);
        answer.send(Ok(7)).unwrap();
        let carrier = carried.0.carrier.clone();
        assert_eq!(poll_now(carried).ok().unwrap().unwrap(), 7);
        assert!(carrier.all().is_empty());
    }

    #[tokio::test]
    async fn one_that_is_not_polled_goes_on_and_has_its_answer_later() {
        let (answer, mut carried) = carried();
        assert!(is_pending(&mut carried));
        carried.0.clone().wake();
        look(&carried);
        assert!(!is_away(&carried));
        look(&carried);
        assert!(is_away(&carried) && is_pending(&mut carried));
        // Its caller may have to be woken for something else.
        assert_eq!(count(&carried), 1);
        answer.send(Ok(7)).unwrap();
        let carrier = carried.0.carrier.clone();
        assert_eq!(carried.await.unwrap(), 7);
        assert!(carrier.all().is_empty());
    }

    #[tokio::test]
    async fn one_that_is_dropped_is_dropped_unless_it_has_become_a_task() {
        let (answer, mut dropped) = carried();
        assert!(is_pending(&mut dropped));
        let carrier = dropped.0.carrier.clone();
        drop(dropped);
        assert!(answer.is_closed());
        assert!(carrier.all().is_empty());

        let (answer, mut away) = carried();
        assert!(is_pending(&mut away));
        away.0.clone().wake();
        look(&away);
        look(&away);
        drop(away);
        assert!(!answer.is_closed());
    }

    #[tokio::test]
    async fn those_that_are_over_are_not_kept() {
        let (_answer, mut kept) = carried();
        assert!(is_pending(&mut kept));
        let carrier = kept.0.carrier.clone();
        for _ in 0..10 * FEW {
            let mut over = carrier.carried::<u32>(Box::pin(std::future::pending()));
            assert!(is_pending(&mut over));
            drop(over);
            assert!(lock(&carrier.under_way).all.len() <= FEW);
        }
        assert_eq!(count(&kept), 1);
    }

    #[test]
    fn one_whose_runtime_is_gone_says_so() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let (_answer, mut carried) = runtime.block_on(async { carried() });
        assert!(is_pending(&mut carried));
        carried.0.clone().wake();
        look(&carried);
        look(&carried);
        drop(runtime);
        let gone = poll_now(&mut carried).ok().unwrap().unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Closed);
    }
}
