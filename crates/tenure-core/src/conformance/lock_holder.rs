//! A helper program that acquires a lock and obeys orders on its standard input. Tests kill, stop and resume it.
//!
//! ```text
//! tenure-lock-holder URL NAME [--ttl 500ms] [--wait 5s] [--mode shared|upgradable|permits=N]
//!                       [--label TEXT] [--renew never] [--lock-delay 1s] [--min-hold 1s]
//! tenure-lock-holder URL NAME --value TEXT [--ttl 500ms] [--label TEXT]
//! tenure-lock-holder URL NAME --attach RECEIPT
//! tenure-lock-holder count URL NAME FILE N [--ttl 500ms] [--sleep 200us] [--stick-at K]
//! ```
//!
//! The first form says `waiting` before it acquires, then `held TOKEN` (or `busy`, or `error KIND TEXT`), and
//! `lost REASON` when the hold is lost. The program obeys the lines `status` (answer: `status held|at-risk|lost MILLIS`),
//! `release` (answer: `released`, or `error KIND TEXT`), `detach` (answer: `receipt TEXT`, or `error KIND TEXT`) and `exit` (the
//! program exits at once and releases nothing).
//! At the end of its input the program releases the lock and exits, so that it does not outlive its test.
//!
//! With `--value` the program is a candidate of the election NAME. It says the same, and `asked` when the leader is asked to
//! resign. It also obeys `proclaim TEXT` (answer: `proclaimed`).
//!
//! With `--attach` the program attaches itself to the hold of RECEIPT, and says and obeys the same as the first form.
//!
//! The last form increments the decimal number in FILE N times by read, sleep, write, each time under the lock.
//! The program says `held TOKEN` after it has acquired, and `count VALUE TOKEN` after it has written and before it
//! releases. With the K-th hold it writes nothing and waits to be killed.

use std::future::pending;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions};
use tokio::sync::mpsc;

use crate::error::ErrorParts as _;
use crate::lost::LostReason;
use crate::time::parse_duration;
use crate::{Client, Election, Error, ErrorKind, Guard, HoldState, Lock, Receipt, Renew, Term};

use super::case::Case;
use super::failure::Failure;
use super::harness::Harness;

/// Whether other processes can reach this store.
pub(super) fn is_possible(harness: &dyn Harness) -> bool {
    harness.url().is_some() && harness.lock_holder().is_some()
}

/// A running helper process. Dropping the value kills the process.
pub struct LockHolder {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl LockHolder {
    /// Starts a helper process that acquires `name` on the store of `case`.
    ///
    /// # Errors
    /// The process could not be started.
    pub fn start(case: &Case, name: &str, options: &[&str]) -> Result<Self, Failure> {
        let (Some(url), Some(program)) = (case.harness().url(), case.harness().lock_holder())
        else {
            return Err(Failure::new("this harness has no helper program"));
        };
        let ttl = format!("{}ms", case.ttl().as_millis());
        let mut command = Command::new(program);
        command.arg(url).arg(name).arg("--ttl").arg(ttl);
        command.args(options);
        Ok(Self::spawn(command)?)
    }

    /// Starts `command`, which runs the helper program with all its arguments.
    ///
    /// # Errors
    /// The process could not be started.
    pub fn spawn(mut command: Command) -> std::io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (sender, lines) = mpsc::unbounded_channel();
        let stdout = child.stdout.take();
        // The thread ends when the child, and every process that inherited its output, has closed it.
        std::thread::spawn(move || {
            for line in stdout
                .into_iter()
                .flat_map(|out| BufReader::new(out).lines())
            {
                // Lines are read even after the receiver is dropped, because a full pipe would block the child.
                let Ok(line) = line else { return };
                let _ = sender.send(line);
            }
        });
        Ok(Self {
            stdin: child.stdin.take(),
            child,
            lines,
        })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the process prints; `None` when the process has ended.
    pub async fn line(&mut self) -> Option<String> {
        self.lines.recv().await
    }

    /// The rest of the next line, which begins with `word`. There is no time limit.
    ///
    /// # Errors
    /// The process printed another line, or has ended.
    pub async fn expect(&mut self, word: &str) -> Result<String, Failure> {
        let line = self.line().await;
        match line.as_deref().and_then(|line| line.strip_prefix(word)) {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => Err(Failure::new(format_args!(
                "the helper should say \"{word}\" and says {line:?}"
            ))),
        }
    }

    /// Waits until the process holds the lock; returns the token.
    ///
    /// # Errors
    /// The process printed another line, or has ended.
    pub async fn held(&mut self) -> Result<u64, Failure> {
        self.expect("waiting").await?;
        let token = self.expect("held").await?;
        token
            .parse()
            .map_err(|err| Failure::new(format_args!("{token:?}: {err}")))
    }

    /// Sends an order to the process.
    ///
    /// # Errors
    /// The process has ended.
    pub fn say(&mut self, order: &str) -> std::io::Result<()> {
        let Some(stdin) = &mut self.stdin else {
            return Ok(());
        };
        writeln!(stdin, "{order}")?;
        stdin.flush()
    }

    /// Closes the standard input of the process.
    pub fn hang_up(&mut self) {
        self.stdin = None;
    }

    /// Kills the process (`SIGKILL`) and waits for its end. Lines that it printed before can still be read.
    ///
    /// # Errors
    /// The system call failed.
    pub fn kill(&mut self) -> std::io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Waits until the process has exited by itself.
    ///
    /// # Errors
    /// The system call failed.
    pub fn wait(&mut self) -> std::io::Result<std::process::ExitStatus> {
        self.child.wait()
    }

    /// Stops the process (`SIGSTOP`) and waits until the system reports the stop.
    ///
    /// # Errors
    /// The system call failed.
    pub fn stop(&mut self) -> std::io::Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), Signal::STOP)?;
        let pid = Some(Pid::from_child(&self.child));
        while let Some((_, status)) = rustix::process::waitpid(pid, WaitOptions::UNTRACED)? {
            if status.stopped() {
                break;
            }
        }
        Ok(())
    }

    /// Resumes the process (`SIGCONT`).
    ///
    /// # Errors
    /// The system call failed.
    pub fn go_on(&mut self) -> std::io::Result<()> {
        Ok(rustix::process::kill_process(
            Pid::from_child(&self.child),
            Signal::CONT,
        )?)
    }
}

impl Drop for LockHolder {
    fn drop(&mut self) {
        // An error is ignored: the process may have ended already, and a drop cannot report anything.
        let _ = self.kill();
    }
}

/// The program. `connect` makes a client of the URL: `tenure::connect`, or that of
/// your own store.
pub fn main<F: Future<Output = Result<Client, Error>>>(connect: impl Fn(String) -> F) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let arguments = std::env::args().skip(1).collect();
    let outcome = match runtime {
        Ok(runtime) => match Arguments::parse(arguments) {
            Ok(arguments) => runtime
                .block_on(arguments.run(connect))
                .map_err(|err| format!("{:?} {err:#}", err.kind())),
            Err(text) => Err(format!("Usage {text}")),
        },
        Err(err) => Err(format!("Runtime {err}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            say(format_args!("error {text}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line. The program exits if the test that started it no longer reads the output.
fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}

#[derive(Default)]
struct Arguments {
    url: String,
    name: String,
    /// File and number of increments.
    count: Option<(PathBuf, u64)>,
    ttl: Option<Duration>,
    wait: Option<Duration>,
    mode: Option<String>,
    label: String,
    value: Option<String>,
    attach: Option<String>,
    fixed: bool,
    lock_delay: Option<Duration>,
    min_hold: Option<Duration>,
    sleep: Option<Duration>,
    stick_at: Option<u64>,
}

impl Arguments {
    fn parse(arguments: Vec<String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut plain = Vec::new();
        let mut rest = arguments.into_iter();
        while let Some(argument) = rest.next() {
            if !argument.starts_with("--") {
                plain.push(argument);
                continue;
            }
            let value = rest.next().ok_or(format!("{argument} has no value"))?;
            match argument.as_str() {
                "--ttl" => parsed.ttl = Some(duration(&value)?),
                "--wait" => parsed.wait = Some(duration(&value)?),
                "--mode" => parsed.mode = Some(value),
                "--label" => parsed.label = value,
                "--value" => parsed.value = Some(value),
                "--attach" => parsed.attach = Some(value),
                "--renew" => parsed.fixed = value == "never",
                "--lock-delay" => parsed.lock_delay = Some(duration(&value)?),
                "--min-hold" => parsed.min_hold = Some(duration(&value)?),
                "--sleep" => parsed.sleep = Some(duration(&value)?),
                "--stick-at" => parsed.stick_at = Some(number(&value)?),
                _ => return Err(format!("unknown option {argument}")),
            }
        }
        match plain.as_slice() {
            [url, name] => (parsed.url, parsed.name) = (url.clone(), name.clone()),
            [count, url, name, file, n] if count == "count" => {
                (parsed.url, parsed.name) = (url.clone(), name.clone());
                parsed.count = Some((file.into(), number(n)?));
            }
            _ => return Err("tenure-lock-holder [count] URL NAME [FILE N] [OPTIONS]".into()),
        }
        Ok(parsed)
    }

    fn lock(&self, client: &Client) -> Result<Lock, Error> {
        let mut lock = client.lock(&self.name).label(&self.label);
        if let Some(ttl) = self.ttl {
            lock = lock.ttl(ttl);
        }
        if let Some(wait) = self.wait {
            lock = lock.wait(wait);
        }
        if let Some(delay) = self.lock_delay {
            lock = lock.lock_delay(delay);
        }
        if let Some(min_hold) = self.min_hold {
            lock = lock.min_hold(min_hold);
        }
        if self.fixed {
            lock = lock.renew(Renew::Never);
        }
        let invalid = |text| Error::new(ErrorKind::Invalid, text);
        Ok(match self.mode.as_deref() {
            None => lock,
            Some("shared") => lock.shared(),
            Some("upgradable") => lock.upgradable(),
            Some(mode) => {
                let limit = mode.strip_prefix("permits=").unwrap_or(mode);
                lock.permits(limit.parse().map_err(|_| invalid("unknown mode"))?)
            }
        })
    }

    fn election(&self, client: &Client, value: &str) -> Election {
        let election = client.election(&self.name).label(&self.label).value(value);
        match self.ttl {
            Some(ttl) => election.ttl(ttl),
            None => election,
        }
    }

    async fn run<F: Future<Output = Result<Client, Error>>>(
        self,
        connect: impl Fn(String) -> F,
    ) -> Result<(), Error> {
        let client = connect(self.url.clone()).await?;
        if let Some(value) = &self.value {
            return obey(&Contender::Candidate(self.election(&client, value))).await;
        }
        if let Some(receipt) = &self.attach {
            return obey(&Contender::Holder(client, receipt.parse()?)).await;
        }
        let lock = self.lock(&client)?;
        match &self.count {
            Some((file, n)) => self.count(&lock, file, *n).await,
            None => obey(&Contender::Waiter(lock)).await,
        }
    }

    async fn count(&self, lock: &Lock, file: &PathBuf, n: u64) -> Result<(), Error> {
        let trouble = |err: std::io::Error| {
            Error::new(ErrorKind::Store, "the counter's file").with_source(err)
        };
        let file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(file)
            .map_err(trouble)?;
        for turn in 1..=n {
            let guard = lock.acquire().await?;
            let token = guard.token();
            say(format_args!("held {token}"));
            if self.stick_at == Some(turn) {
                // Until this process is killed, or the test that would kill it has ended.
                let _ = std::io::stdin().lines().count();
                return Ok(());
            }
            let value = read_count(&file).map_err(trouble)?;
            // Holds up this thread, and renewal with it: far shorter than any ttl.
            std::thread::sleep(self.sleep.unwrap_or(Duration::from_micros(200)));
            // One write of constant length: a kill leaves the old number or the new one.
            let text = format!("{:020}\n", value + 1);
            file.write_all_at(text.as_bytes(), 0).map_err(trouble)?;
            say(format_args!("count {} {token}", value + 1));
            guard.release().await?;
        }
        Ok(())
    }
}

/// The number in a counter's file; 0 when it is empty.
///
/// # Errors
/// Reading failed, or there is something else in it.
pub fn read_count(file: &std::fs::File) -> std::io::Result<u64> {
    let mut text = [0; 32];
    let length = file.read_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text[..length]);
    match text.trim() {
        "" => Ok(0),
        number => number.parse().map_err(std::io::Error::other),
    }
}

/// What the program takes.
enum Contender {
    Waiter(Lock),
    Candidate(Election),
    /// Of a hold that another process has detached.
    Holder(Client, Receipt),
}

impl Contender {
    async fn acquire(&self) -> Result<Guard, Error> {
        match self {
            Self::Waiter(lock) => lock.acquire().await,
            Self::Candidate(election) => election.campaign().await.map(Term::into_guard),
            Self::Holder(client, receipt) => client.attach(receipt).await,
        }
    }

    /// Resolves with `true` when the leader is asked to resign. The holder of a lock does not wait for that: a store may have
    /// to do more for a holder that does.
    fn asked(&self, guard: &Guard) -> Pin<Box<dyn Future<Output = bool>>> {
        match self {
            Self::Waiter(_) | Self::Holder(..) => Box::pin(pending()),
            Self::Candidate(_) => Box::pin(guard.asked_to_release()),
        }
    }
}

/// Takes the lock, then does what stdin says.
async fn obey(contender: &Contender) -> Result<(), Error> {
    let (sender, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if line == "exit" {
                std::process::exit(0);
            }
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    say(format_args!("waiting"));
    let acquired = tokio::select! {
        acquired = contender.acquire() => acquired,
        () = until_hung_up(&mut orders) => return Ok(()),
    };
    match acquired {
        Ok(guard) => {
            say(format_args!("held {}", guard.token()));
            let (lost, asked) = (Box::pin(guard.lost()), contender.asked(&guard));
            obey_orders(Some(guard), lost, asked, orders).await
        }
        Err(err) if err.kind() == ErrorKind::WaitElapsed => {
            say(format_args!("busy"));
            obey_orders(None, Box::pin(pending()), Box::pin(pending()), orders).await
        }
        Err(err) => Err(err),
    }
}

async fn obey_orders(
    mut guard: Option<Guard>,
    mut lost: Pin<Box<dyn Future<Output = Option<LostReason>>>>,
    mut asked: Pin<Box<dyn Future<Output = bool>>>,
    mut orders: mpsc::UnboundedReceiver<String>,
) -> Result<(), Error> {
    loop {
        tokio::select! {
            biased;
            Some(reason) = &mut lost => {
                say(format_args!("lost {reason}"));
                lost = Box::pin(pending());
            }
            is_asked = &mut asked => {
                if is_asked {
                    say(format_args!("asked"));
                }
                asked = Box::pin(pending());
            }
            order = orders.recv() => match order {
                Some(order) => obey_order(&order, &mut guard).await?,
                None => {
                    if let Some(guard) = guard.take() {
                        guard.release().await?;
                    }
                    return Ok(());
                }
            },
        }
    }
}

async fn obey_order(order: &str, guard: &mut Option<Guard>) -> Result<(), Error> {
    match (order, order.strip_prefix("proclaim ")) {
        ("status", _) => say(format_args!("status {}", status(guard.as_ref()))),
        ("release", _) => match guard.take() {
            Some(guard) => {
                guard.release().await?;
                say(format_args!("released"));
            }
            None => say(format_args!("none")),
        },
        ("detach", _) => match guard.take() {
            Some(guard) => say(format_args!("receipt {}", guard.detach().await?)),
            None => say(format_args!("none")),
        },
        (_, Some(value)) => match guard {
            Some(guard) => {
                guard.proclaim(value.into()).await?;
                say(format_args!("proclaimed"));
            }
            None => say(format_args!("none")),
        },
        _ => say(format_args!("error Usage unknown order {order:?}")),
    }
    Ok(())
}

/// Orders that come before it holds are dropped; only the end counts.
async fn until_hung_up(orders: &mut mpsc::UnboundedReceiver<String>) {
    while orders.recv().await.is_some() {}
}

fn status(guard: Option<&Guard>) -> String {
    let Some(guard) = guard else {
        return "none".into();
    };
    let left = guard.remaining().as_millis();
    match guard.state() {
        HoldState::Held => format!("held {left}"),
        HoldState::AtRisk => format!("at-risk {left}"),
        HoldState::Lost(reason) => format!("lost {reason}"),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|err| format!("{text:?}: {err}"))
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(|why| format!("{text:?}: {why}"))
}
