//! The primitives of [`sync`](super) in a model that `loom` checks, and what models use to run futures.
//!
//! The mutexes and the atomics are those of loom. A primitive of tokio is one step, which loom orders like any other: what
//! happens inside is checked by the models of tokio itself.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Wake, Waker};

use loom::sync::{Condvar, MutexGuard};

pub(crate) use loom::sync::Mutex;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

/// So often loom takes the processor away from a thread that could go on, in one run of a model. Faults that need more
/// switches are rare, and each one more multiplies the runs.
const MAX_PREEMPTIONS: usize = 3;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("a panic ends the model")
}

/// Runs `model` for each order of its threads.
pub(crate) fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(MAX_PREEMPTIONS);
    builder.check(model);
}

/// Runs `future` on this thread of a model until it has an output.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let parked = Arc::new(ParkedThread::default());
    let waker = Waker::from(parked.clone());
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        parked.wait();
    }
}

/// Runs `future` on a thread of its own.
pub(crate) fn spawn<T: 'static>(
    future: impl Future<Output = T> + 'static,
) -> loom::thread::JoinHandle<T> {
    loom::thread::spawn(move || block_on(future))
}

/// Runs `future` on a thread of its own, and returns one that does nothing, for the runtime.
pub(crate) fn on_a_thread(
    future: impl Future<Output = ()> + 'static,
) -> impl Future<Output = ()> + Send + 'static {
    drop(spawn(future));
    std::future::ready(())
}

/// Wakes the thread of a [`block_on`]. Its counts are those of the standard library: tokio drops a waker while it has a
/// lock of its own, and loom must not switch to another thread then.
#[derive(Default)]
struct ParkedThread {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl ParkedThread {
    fn wait(&self) {
        let mut is_woken = lock(&self.is_woken);
        while !*is_woken {
            is_woken = self.woken.wait(is_woken).expect("a panic ends the model");
        }
        *is_woken = false;
    }
}

impl Wake for ParkedThread {
    fn wake(self: Arc<Self>) {
        *lock(&self.is_woken) = true;
        self.woken.notify_one();
    }
}

/// A moment at which loom may switch to another thread.
#[derive(Default)]
struct Step(AtomicUsize);

impl Step {
    fn take(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// tokio's `Notify`.
#[derive(Default)]
pub(crate) struct Notify {
    notify: tokio::sync::Notify,
    step: Step,
}

impl Notify {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notified(&self) -> tokio::sync::futures::Notified<'_> {
        self.step.take();
        self.notify.notified()
    }

    pub(crate) fn notify_one(&self) {
        self.step.take();
        self.notify.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        self.step.take();
        self.notify.notify_waiters();
    }
}

/// tokio's `oneshot`.
pub(crate) mod oneshot {
    use super::{Arc, Context, Pin, Poll, Step, fmt};

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let step = Arc::<Step>::default();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        (Sender(sender, step.clone()), Receiver(receiver, step))
    }

    pub(crate) struct Sender<T>(tokio::sync::oneshot::Sender<T>, Arc<Step>);

    impl<T> Sender<T> {
        pub(crate) fn send(self, value: T) -> Result<(), T> {
            self.1.take();
            self.0.send(value)
        }

        pub(crate) fn is_closed(&self) -> bool {
            self.1.take();
            self.0.is_closed()
        }
    }

    impl<T> fmt::Debug for Sender<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Sender")
        }
    }

    pub(crate) struct Receiver<T>(tokio::sync::oneshot::Receiver<T>, Arc<Step>);

    impl<T> Future for Receiver<T> {
        type Output = Result<T, tokio::sync::oneshot::error::RecvError>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            self.1.take();
            Pin::new(&mut self.0).poll(cx)
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            self.1.take();
        }
    }
}
