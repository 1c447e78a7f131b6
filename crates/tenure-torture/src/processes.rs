//! The worker processes: started, stopped, killed, replaced, and gone in the end.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::worker::{Settings, VARIABLE};

/// How to start a worker. It calls [`crate::worker::main`].
#[derive(Clone, Debug)]
pub struct Program {
    /// The program.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// What is added to its environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// All workers of a run.
pub struct WorkerProcesses {
    program: Program,
    /// What they say when something is wrong with them.
    log: File,
    workers: Vec<WorkerProcess>,
}

struct WorkerProcess {
    settings: Settings,
    child: Child,
}

impl WorkerProcesses {
    /// Nobody yet; what workers say goes to `log`.
    pub fn new(program: Program, log: File) -> Self {
        Self {
            program,
            log,
            workers: Vec::new(),
        }
    }

    /// Starts one more. Must be called by the thread that outlives them: they end with it.
    ///
    /// # Errors
    /// Those of the system.
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
            // Its end is the word to stop.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(self.log.try_clone()?)
            // A Ctrl-C at the terminal is for the runner, which then ends them in order.
            .process_group(0)
            .spawn()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.workers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.workers.is_empty()
    }

    /// Sends a signal. A worker is not waited for before it is replaced, so its number is still its own.
    pub fn signal(&self, worker: usize, signal: Signal) {
        // It may have ended by itself, which is noticed elsewhere.
        let _ = kill_process(Pid::from_child(&self.workers[worker].child), signal);
    }

    /// The same to all of them.
    pub fn signal_all(&self, signal: Signal) {
        (0..self.len()).for_each(|worker| self.signal(worker, signal));
    }

    /// Puts a new process in the place of one that was killed.
    ///
    /// # Errors
    /// Those of the system.
    pub fn replace(&mut self, worker: usize) -> io::Result<()> {
        let mut settings = self.workers[worker].settings.clone();
        settings.life += 1;
        let child = self.launch(&settings)?;
        let mut old =
            std::mem::replace(&mut self.workers[worker], WorkerProcess { settings, child });
        old.child.wait()?;
        Ok(())
    }

    /// The numbers of those that ended without being asked.
    pub fn ended(&mut self) -> Vec<usize> {
        let workers = self.workers.iter_mut().enumerate();
        workers
            .filter_map(|(worker, process)| process.child.try_wait().ok().flatten().map(|_| worker))
            .collect()
    }

    /// Asks all to end, and waits for them at most `timeout`. Those that are left are killed on the way out.
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
            // An error means that it is gone.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}
