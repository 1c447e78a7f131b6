//! One thread that runs all tasks, so that the seed alone decides the order of events.
//!
//! Each client has a runtime of its own: a stopped process is a runtime that is not run. The network has another
//! runtime, because messages arrive while their sender is stopped.

use std::cell::Cell;
use std::sync::Once;

use tokio::runtime::{Builder, Handle, Runtime};

#[derive(Debug)]
pub(crate) struct Machine {
    network: Runtime,
    clients: Vec<Runtime>,
    frozen: Vec<bool>,
}

impl Machine {
    pub(crate) fn new(clients: usize) -> Self {
        Self {
            network: runtime(),
            clients: (0..clients).map(|_| runtime()).collect(),
            frozen: vec![false; clients],
        }
    }

    pub(crate) fn network(&self) -> Handle {
        self.network.handle().clone()
    }

    pub(crate) fn client(&self, client: usize) -> &Handle {
        self.clients[client].handle()
    }

    /// Ends the process of a client at any point of its work; an empty process takes its place.
    pub(crate) fn kill(&mut self, client: usize) {
        self.frozen[client] = false;
        drop(std::mem::replace(&mut self.clients[client], runtime()));
    }

    pub(crate) fn freeze(&mut self, client: usize, frozen: bool) {
        self.frozen[client] = frozen;
    }

    pub(crate) fn is_frozen(&self, client: usize) -> bool {
        self.frozen[client]
    }

    /// Runs until every task of all clients that are not frozen waits for the clock. The tasks of `first` run first.
    pub(crate) fn run_until_idle(&self, first: usize) {
        loop {
            let mut idle = true;
            for at in 0..self.clients.len() {
                let at = (first + at) % self.clients.len();
                if !self.frozen[at] {
                    idle &= !run(&self.clients[at]);
                }
                idle &= !run(&self.network);
            }
            if idle {
                return;
            }
        }
    }
}

/// A runtime without timers and sockets: a task that uses real time panics.
fn runtime() -> Runtime {
    Builder::new_current_thread()
        // A task that yields is polled again when no other task is ready; see `run`.
        .event_interval(u32::MAX)
        .build()
        .unwrap()
}

/// Runs all tasks that are ready in that runtime, and returns whether there were any.
///
/// Wake-ups from outside go through the global queue of a runtime that is not running. While the runtime runs, with
/// this event interval, the future that yields is polled again only when both its queues are empty. That is the end,
/// because no task of ours yields. One more round is for a task that used up its budget and yielded for that reason.
fn run(runtime: &Runtime) -> bool {
    if runtime.metrics().global_queue_depth() == 0 {
        return false;
    }
    runtime.block_on(async {
        for _ in 0..2 {
            tokio::task::yield_now().await;
        }
    });
    true
}

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// The number of tasks of this thread that have panicked, which a runtime does not report. The first call begins to
/// count.
pub(crate) fn panics() -> u32 {
    static COUNTS: Once = Once::new();
    COUNTS.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.get()
}

#[test]
fn idle_means_that_nothing_can_run() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn next(runtimes: Arc<Vec<Handle>>, left: usize, done: Arc<AtomicUsize>) {
        let at = left % runtimes.len();
        runtimes[at].clone().spawn(async move {
            done.fetch_add(1, Ordering::SeqCst);
            if left > 0 {
                next(runtimes, left - 1, done);
            }
        });
    }
    let mut machine = Machine::new(2);
    let all = vec![
        machine.network(),
        machine.client(0).clone(),
        machine.client(1).clone(),
    ];
    let done = Arc::new(AtomicUsize::new(0));
    next(Arc::new(all), 9_999, done.clone());
    machine.run_until_idle(0);
    assert_eq!(done.load(Ordering::SeqCst), 10_000);

    let alone = Arc::new(vec![machine.client(1).clone()]);
    next(alone, 999, done.clone());
    machine.freeze(1, true);
    machine.run_until_idle(0);
    assert_eq!(done.load(Ordering::SeqCst), 10_000, "a frozen client ran");
    machine.freeze(1, false);
    machine.run_until_idle(0);
    assert_eq!(done.load(Ordering::SeqCst), 11_000);
}
