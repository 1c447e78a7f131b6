//! The worker processes: starting, stopping, killing and replacing them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::settings::{Settings, VARIABLE};

/// The command line of a worker. The program calls [`crate::worker::main`].
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables that are added to its environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// All workers of a run.
pub struct WorkerProcesses {
    program: Program,
    /// The standard error of the workers, with the errors that kept them from working.
    log: File,
    workers: Vec<WorkerProcess>,
}

struct WorkerProcess {
    settings: Settings,
    child: Child,
}

impl WorkerProcesses {
    /// No process yet. The standard error of the workers goes to `log`.
    pub fn new(program: Program, log: File) -> Self {
        Self {
            program,
            log,
            workers: Vec::new(),
        }
    }

    /// Starts one more worker. Workers end with the thread that calls this, so it must outlive them.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn start(&mut self, settings: Settings) -> io::Result<()> {
        let child = self.launch(&settings)?;
        self.workers.push(WorkerProcess { settings, child });
        Ok(())
    }

    fn launch(&self, settings: &Settings) -> io::Result<Child> {
        Command::new(&self.program.path)
            .args(&self.program.arguments)
            .envs(self.program.environment.iter().cloned())
            .env(VARIABLE, serde_json::to_string(settings)?)
            // A worker stops when its standard input ends.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(self.log.try_clone()?)
            // A Ctrl-C at the terminal is for the runner alone, which then ends the workers in order.
            .process_group(0)
            .spawn()
    }

    /// The number of workers.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether there is no worker.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Sends a signal. No other process can have the pid: a worker is only waited for when it is replaced.
    pub fn signal(&self, worker: usize, signal: Signal) {
        // A worker may have ended by itself; the runner records that at the end.
        let _ = kill_process(Pid::from_child(&self.workers[worker].child), signal);
    }

    /// Sends a signal to all workers.
    pub fn signal_all(&self, signal: Signal) {
        (0..self.len()).for_each(|worker| self.signal(worker, signal));
    }

    /// Starts a new process instead of one that was killed.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn replace(&mut self, worker: usize) -> io::Result<()> {
        let mut settings = self.workers[worker].settings.clone();
        settings.life += 1;
        let child = self.launch(&settings)?;
        let mut old =
            std::mem::replace(&mut self.workers[worker], WorkerProcess { settings, child });
        old.child.wait()?;
        Ok(())
    }

    /// The numbers of the workers that have ended.
    pub fn ended(&mut self) -> Vec<usize> {
        let workers = self.workers.iter_mut().enumerate();
        workers
            .filter_map(|(worker, process)| process.child.try_wait().ok().flatten().map(|_| worker))
            .collect()
    }

    /// Has all workers begin the last part of the run, see [`crate::phase::Phase::Settle`].
    pub fn settle(&mut self) {
        for process in &mut self.workers {
            if let Some(input) = &mut process.child.stdin {
                // A worker that has ended reads nothing.
                let _ = input.write_all(b"\n");
            }
        }
    }

    /// Asks all workers to end, and waits for them at most `timeout`. Dropping this kills those that are left.
    pub fn end(&mut self, timeout: Duration) {
        for process in &mut self.workers {
            drop(process.child.stdin.take());
        }
        let began = Instant::now();
        while self.ended().len() < self.len() && began.elapsed() < timeout {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for WorkerProcesses {
    fn drop(&mut self) {
        for process in &mut self.workers {
            // An error means that the process has ended already.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
