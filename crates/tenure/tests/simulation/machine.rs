//! One thread that runs all tasks, so that nothing but the seed decides what comes after what.
//!
//! Each client has a runtime of its own: one that is not run is a process that is stopped. The network has
//! another, because what is on its way arrives while its sender stands still.

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

    /// Ends the process of a client, in the middle of whatever it does; an empty one takes its place.
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

    /// Runs until every task of everybody who is not frozen waits for the clock; `first` goes first.
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

/// Neither timers nor sockets: whoever asks for real time panics, and is found out.
fn runtime() -> Runtime {
    Builder::new_current_thread()
        // A task that yields comes back when nothing else is left to do; see `run`.
        .event_interval(u32::MAX)
        .build()
        .unwrap()
}

/// Runs what can run there; whether there was anything.
///
/// A runtime that is not running can only be woken from outside, and that goes through its global queue. While it
/// runs, with this event interval, the future that yields is polled again only when both its queues are empty:
/// that is the end, as no task of ours yields. Once more, for one that used up its budget and yielded for that.
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

/// How many tasks of this thread panicked so far: a runtime keeps that to itself. The first call begins to count.
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
