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
pub struct Crew {
    program: Program,
    /// What they say when something is wrong with them.
    talk: File,
    members: Vec<Member>,
}

struct Member {
    settings: Settings,
    child: Child,
}

impl Crew {
    /// Nobody yet; what workers say goes to `talk`.
    pub fn new(program: Program, talk: File) -> Self {
        Self {
            program,
            talk,
            members: Vec::new(),
        }
    }

    /// Starts one more. Must be called by the thread that outlives them: they end with it.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(&mut self, settings: Settings) -> io::Result<()> {
        let child = self.launch(&settings)?;
        self.members.push(Member { settings, child });
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
            .stderr(self.talk.try_clone()?)
            // A Ctrl-C at the terminal is for the runner, which then ends them in order.
            .process_group(0)
            .spawn()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Sends a signal. A worker is not waited for before it is replaced, so its number is still its own.
    pub fn signal(&self, worker: usize, signal: Signal) {
        // It may have ended by itself, which is noticed elsewhere.
        let _ = kill_process(Pid::from_child(&self.members[worker].child), signal);
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
        let mut settings = self.members[worker].settings.clone();
        settings.life += 1;
        let child = self.launch(&settings)?;
        let mut old = std::mem::replace(&mut self.members[worker], Member { settings, child });
        old.child.wait()?;
        Ok(())
    }

    /// The numbers of those that ended without being asked.
    pub fn ended(&mut self) -> Vec<usize> {
        let members = self.members.iter_mut().enumerate();
        members
            .filter_map(|(worker, member)| member.child.try_wait().ok().flatten().map(|_| worker))
            .collect()
    }

    /// Asks all to end, and waits for them at most `patience`. Those that are left are killed on the way out.
    pub fn end(&mut self, patience: Duration) {
        for member in &mut self.members {
            drop(member.child.stdin.take());
        }
        let began = Instant::now();
        while self.ended().len() < self.len() && began.elapsed() < patience {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for member in &mut self.members {
            // An error means that it is gone.
            let _ = member.child.kill();
            let _ = member.child.wait();
        }
    }
}
