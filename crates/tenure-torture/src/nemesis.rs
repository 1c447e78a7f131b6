//! Injects the faults of the plan into the worker that holds the lock at that moment. Faults for arbitrary workers
//! would need many times longer to find a mistake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;

use crate::clock::now;
use crate::event::{Event, Log};
use crate::plan::{FaultKind, PlannedFault};
use crate::processes::WorkerProcesses;
use crate::proxy::{ConnectionFault, Proxy};
use crate::register::Register;
use crate::settings::worker_of;

/// A worker that wrote to the register at most this long ago is taken for the holder, in nanoseconds.
const HOLDER_MAX_AGE: u64 = 20_000_000;

/// Servers and clocks around the workers, for callers that run them.
pub trait Environment: Send + Sync {
    /// The faults that this environment can cause.
    fn kinds(&self) -> Vec<FaultKind>;
    /// Begins a fault. A clock jumps by `lasts`. For a fault in which the machine sleeps, the caller stops the workers
    /// before, and resumes them after `end`.
    fn begin(&self, kind: FaultKind, lasts: Duration);
    /// Ends a fault. Clocks that have jumped and leaders that were replaced stay as they are.
    fn end(&self, kind: FaultKind);
}

/// A fault that has begun.
struct RunningFault {
    planned: PlannedFault,
    worker: Option<usize>,
    began: u64,
    over: u64,
}

/// The plan, its position, and the faults that are active.
pub struct Nemesis {
    began: u64,
    plan: std::iter::Peekable<std::vec::IntoIter<PlannedFault>>,
    running: Vec<RunningFault>,
    environment: Option<Arc<dyn Environment>>,
    log: Log,
}

impl Nemesis {
    /// Starts the plan at the instant `began`.
    pub fn new(
        began: u64,
        plan: Vec<PlannedFault>,
        environment: Option<Arc<dyn Environment>>,
        log: Log,
    ) -> Self {
        Self {
            began,
            plan: plan.into_iter().peekable(),
            running: Vec::new(),
            environment,
            log,
        }
    }

    /// Ends and begins the faults that are due. `tell` is called with each fault that begins. The runner calls this
    /// every few milliseconds.
    ///
    /// # Errors
    /// The errors of starting a worker, and of the log.
    pub fn step(
        &mut self,
        workers: &mut WorkerProcesses,
        proxies: &[Proxy],
        register: &Register,
        names: &[String],
        tell: &mut dyn FnMut(&str),
    ) -> io::Result<()> {
        let due = now();
        let (over, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|fault| fault.over <= due);
        self.running = running;
        self.end_all(over, workers, proxies)?;
        let now = now();
        let Some(next) = self.plan.peek().copied() else {
            return Ok(());
        };
        if self.began + next.at > now {
            return Ok(());
        }
        let worker = match next.kind.hits_all_workers() {
            true if self.has_to_wait(next.kind) => return Ok(()),
            true => None,
            // Without a holder the fault waits until a worker holds.
            false => match register
                .holder(&names[next.name], HOLDER_MAX_AGE)
                .map(worker_of)
            {
                Some(worker) if !self.has_fault(worker) => Some(worker),
                _ => return Ok(()),
            },
        };
        self.plan.next();
        // A fault that had to wait moves all that follow, so that they do not come all at once.
        self.began = now - next.at;
        tell(&match worker {
            Some(worker) => format!("{} of worker {worker}, which holds", next.kind),
            None => next.kind.to_string(),
        });
        self.begin(next, worker, workers, proxies)
    }

    /// Ends the faults that are active.
    ///
    /// # Errors
    /// The errors of starting a worker, and of the log.
    pub fn finish(&mut self, workers: &mut WorkerProcesses, proxies: &[Proxy]) -> io::Result<()> {
        let running = std::mem::take(&mut self.running);
        self.end_all(running, workers, proxies)
    }

    fn end_all(
        &mut self,
        faults: Vec<RunningFault>,
        workers: &mut WorkerProcesses,
        proxies: &[Proxy],
    ) -> io::Result<()> {
        let began = now();
        for fault in faults {
            self.end(fault, workers, proxies)?;
        }
        // Servers that need long until they serve again move all faults that follow, so that workers have time between them.
        self.began += now() - began;
        Ok(())
    }

    /// Whether a fault of this kind, which hits all workers, may not begin yet.
    fn has_to_wait(&self, kind: FaultKind) -> bool {
        let mut running = self.running.iter().map(|fault| fault.planned.kind);
        match kind {
            // While all workers sleep, no other fault may resume or replace one.
            FaultKind::Suspend => running.next().is_some(),
            // A server that is down cannot be hit again.
            _ => running.any(FaultKind::hits_all_workers),
        }
    }

    fn has_fault(&self, worker: usize) -> bool {
        self.running
            .iter()
            .any(|fault| fault.worker == Some(worker))
    }

    fn begin(
        &mut self,
        planned: PlannedFault,
        worker: Option<usize>,
        workers: &WorkerProcesses,
        proxies: &[Proxy],
    ) -> io::Result<()> {
        let began = now();
        let proxy = |fault| {
            if let Some(proxy) = worker.and_then(|worker| proxies.get(worker)) {
                proxy.set(fault);
            }
        };
        match (planned.kind, worker, &self.environment) {
            (FaultKind::Pause, Some(worker), _) => workers.signal(worker, Signal::STOP),
            (FaultKind::Kill, Some(worker), _) => self.kill(worker, workers)?,
            (FaultKind::Delay, ..) => {
                proxy(ConnectionFault::Delay(Duration::from_nanos(planned.late)))
            }
            (FaultKind::Stall, ..) => proxy(ConnectionFault::Stall),
            (FaultKind::Cut, ..) => proxy(ConnectionFault::Cut),
            (FaultKind::LostReply, ..) => proxy(ConnectionFault::LostReply),
            (FaultKind::Garbage, ..) => proxy(ConnectionFault::Garbage),
            (FaultKind::Trickle, ..) => proxy(ConnectionFault::Trickle),
            (FaultKind::Vanish, ..) => proxy(ConnectionFault::Vanish),
            (FaultKind::Suspend, _, Some(environment)) => {
                workers.signal_all(Signal::STOP);
                environment.begin(FaultKind::Suspend, Duration::from_nanos(planned.lasts));
            }
            (kind, _, Some(environment)) => {
                environment.begin(kind, Duration::from_nanos(planned.lasts))
            }
            _ => {}
        }
        self.running.push(RunningFault {
            planned,
            worker,
            began,
            over: began + planned.lasts,
        });
        Ok(())
    }

    fn kill(&mut self, worker: usize, workers: &WorkerProcesses) -> io::Result<()> {
        // The event comes before the signal, so that no claim is counted for longer than its owner believed in it.
        self.log.append(&Event::Killed { at: now(), worker })?;
        workers.signal(worker, Signal::KILL);
        Ok(())
    }

    fn end(
        &mut self,
        fault: RunningFault,
        workers: &mut WorkerProcesses,
        proxies: &[Proxy],
    ) -> io::Result<()> {
        match (fault.planned.kind, fault.worker, &self.environment) {
            (FaultKind::Pause, Some(worker), _) => workers.signal(worker, Signal::CONT),
            (FaultKind::Kill, Some(worker), _) => workers.replace(worker)?,
            (kind, Some(worker), _) => {
                if kind == FaultKind::Vanish {
                    self.kill(worker, workers)?;
                }
                if let Some(proxy) = proxies.get(worker) {
                    proxy.set(ConnectionFault::None);
                }
                if kind == FaultKind::Vanish {
                    workers.replace(worker)?;
                }
            }
            (FaultKind::Suspend, _, Some(environment)) => {
                environment.end(FaultKind::Suspend);
                workers.signal_all(Signal::CONT);
            }
            (kind, None, Some(environment)) => environment.end(kind),
            _ => {}
        }
        self.log.append(&Event::Fault {
            at: fault.began,
            until: now(),
            kind: fault.planned.kind,
            worker: fault.worker,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::processes::Program;

    /// A server that cannot be hit while it is down, and that needs long to come back from the first fault.
    #[derive(Default)]
    struct SlowServer(Mutex<State>);

    #[derive(Default)]
    struct State {
        is_down: bool,
        began: usize,
        ended: usize,
    }

    impl Environment for SlowServer {
        fn kinds(&self) -> Vec<FaultKind> {
            vec![FaultKind::ServerPause]
        }

        fn begin(&self, _: FaultKind, _: Duration) {
            let mut state = self.0.lock().unwrap();
            assert!(!state.is_down, "a server that is down was hit again");
            state.is_down = true;
            state.began += 1;
        }

        fn end(&self, _: FaultKind) {
            let mut state = self.0.lock().unwrap();
            if state.ended == 0 {
                // Until the planned begin of the last fault is over.
                std::thread::sleep(Duration::from_millis(100));
            }
            state.is_down = false;
            state.ended += 1;
        }
    }

    fn pause(at: u64, lasts: u64) -> PlannedFault {
        PlannedFault {
            at: at * 1_000_000,
            kind: FaultKind::ServerPause,
            lasts: lasts * 1_000_000,
            late: 0,
            name: 0,
        }
    }

    #[test]
    fn a_server_is_hit_again_only_when_the_fault_before_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::create(&dir.path().join("events")).unwrap();
        let register = Register::open(log.try_clone().unwrap()).unwrap();
        let program = Program {
            path: "true".into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        };
        let errors = std::fs::File::create(dir.path().join("errors")).unwrap();
        let mut workers = WorkerProcesses::new(program, errors);
        let server = Arc::new(SlowServer::default());
        let plan = vec![pause(0, 1), pause(5, 50), pause(30, 1)];
        let mut nemesis = Nemesis::new(now(), plan, Some(server.clone()), log);
        while server.0.lock().unwrap().ended < 3 {
            let tell = &mut |_: &str| {};
            nemesis
                .step(&mut workers, &[], &register, &[], tell)
                .unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(server.0.lock().unwrap().began, 3);
    }
}
