//! What `tenure run` does while its command runs: it waits for a loss of the lock, sends the guardian the limits of the
//! command, and forwards signals. At the end it releases the lock and reports how the command ended.

use std::ffi::OsStr;
use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::json;
use tenure::{Guard, LostReason, OwnerId};
use tokio::time::{Interval, MissedTickBehavior};

use crate::args::{Renewal, Run};
use crate::clock;
use crate::clock::NEVER;
use crate::console::Console;
use crate::exit::Exit;
use crate::guardian::handle::GuardianHandle;
use crate::guardian::protocol::{Limits, Report};
use crate::limits::LimitRule;
use crate::signals::{self, Signals};
use crate::text;

/// How late the guardian may be before this process ends the command itself.
const GUARDIAN_TIMEOUT: Duration = Duration::from_millis(50);

/// A command that runs under a lock.
pub(crate) struct Supervision<'a> {
    args: &'a Run,
    console: &'a Console,
    guard: Guard,
    guardian: GuardianHandle,
    limits: LimitRule,
    /// The command is in the process group of `tenure`, so the terminal sends the signals of its keys to both.
    shares_terminal: bool,
    lost: Option<LostReason>,
    /// The limits that the guardian has.
    sent: Limits,
    /// The process of the command, after its start.
    command: Option<u32>,
}

/// How the command ended.
enum Ending {
    /// The command exited, or a signal that the guardian did not send ended it.
    Itself(u8),
    /// The guardian ended the command because of the limits.
    ByGuardian,
    /// The command could not be started.
    NotStarted(Errno),
    /// The limits were over before the command could be started.
    TooLate,
    /// The guardian ended too early, and this process ended what it left.
    GuardianGone,
}

impl Ending {
    /// Whether the command ended, or failed to start, before the limits were reached.
    fn is_within_limits(&self) -> bool {
        !matches!(self, Self::ByGuardian | Self::TooLate)
    }
}

impl<'a> Supervision<'a> {
    pub(crate) fn new(
        args: &'a Run,
        console: &'a Console,
        guard: Guard,
        guardian: GuardianHandle,
        shares_terminal: bool,
    ) -> Self {
        let limits = LimitRule::new(args, guard.remaining(), clock::now());
        Self {
            args,
            console,
            guard,
            guardian,
            limits,
            shares_terminal,
            lost: None,
            sent: Limits::NONE,
            command: None,
        }
    }

    pub(crate) async fn run(mut self, signals: &mut Signals) -> Exit {
        self.share_descriptors();
        self.sent = self.limits.at(clock::now(), self.guard.remaining());
        // The command never starts on a lease that was lost meanwhile. The guardian compares the limits with the clock
        // once more.
        if !self.guard.is_held() {
            return self.conclude(Ending::TooLate).await;
        }
        if let Err(error) = self.guardian.start_command(self.sent, self.environment()) {
            self.console.error(format!(
                "cannot reach the guardian of the command: {error}; nothing was run"
            ));
            let _ = self.guard.release().await;
            return Exit::Failed;
        }
        let ending = self.supervise(signals).await;
        self.conclude(ending).await
    }

    /// The values of `TENURE_NAME`, `TENURE_TOKEN` and `TENURE_OWNER`, with one line for each name.
    fn environment(&self) -> [String; 3] {
        let (names, tokens): (Vec<_>, Vec<_>) = self
            .guard
            .tokens()
            .map(|(name, token)| (name.as_str().to_owned(), token.to_string()))
            .unzip();
        let owners: Vec<_> = self.guard.owner_ids().map(OwnerId::to_hex).collect();
        [names.join("\n"), tokens.join("\n"), owners.join("\n")]
    }

    /// Passes duplicates of the locked files to the guardian, where a lock is a locked file: when `tenure` is killed, the
    /// kernel keeps the locks until all processes of the command have ended.
    fn share_descriptors(&self) {
        let shared = crate::platform::duplicate_flocks()
            .and_then(|flocks| self.guardian.hold_descriptors(&flocks));
        // A lease goes on without `tenure`.
        if let Err(error) = shared
            && self.guard.remaining() == Duration::MAX
        {
            self.console.detail(format!(
                "if tenure is killed, the lock may be free before the command has ended: {error}"
            ));
        }
    }

    async fn supervise(&mut self, signals: &mut Signals) -> Ending {
        let mut lost = pin!(self.guard.lost());
        let mut limits_update = self.limits.update_interval.map(|interval| {
            let mut update = tokio::time::interval(interval);
            // After this process was stopped, one update is enough for all that were missed.
            update.set_missed_tick_behavior(MissedTickBehavior::Delay);
            update
        });
        loop {
            let give_up_at = clock::after(self.sent.kill_at, self.limits.margin + GUARDIAN_TIMEOUT);
            tokio::select! {
                biased;
                report = self.guardian.next_report() => match report {
                    Ok(Some(Report::Started(pid))) => {
                        self.command = Some(pid);
                        self.console.event("started", json!({ "pid": pid }));
                        self.console.detail(format!("started process {pid}"));
                    }
                    Ok(Some(Report::NotStarted(errno))) => {
                        return Ending::NotStarted(Errno::from_raw_os_error(errno));
                    }
                    Ok(Some(Report::TooLate)) => return Ending::TooLate,
                    Ok(Some(Report::Ended { status, by_guardian, survivors })) => {
                        if survivors > 0 {
                            self.console.error(format!(
                                "{survivors} processes of the command are still running: they belong to another user, so they cannot be ended"
                            ));
                        }
                        return if by_guardian { Ending::ByGuardian } else { Ending::Itself(status) };
                    }
                    Ok(None) | Err(_) => return Ending::GuardianGone,
                },
                signal = signals.next() => {
                    if !(self.shares_terminal && signals::is_sent_by_terminal(signal)) {
                        self.guardian.forward_signal(signal);
                    }
                }
                Some(reason) = &mut lost, if self.lost.is_none() => {
                    self.lost = Some(reason);
                    self.report_loss(reason);
                    let now = clock::now();
                    let kill_at = clock::after(now, self.args.grace).min(self.sent.kill_at);
                    self.send_limits(Limits { term_at: now, kill_at });
                }
                () = next_tick(&mut limits_update), if self.lost.is_none() => {
                    self.send_limits(self.limits.at(clock::now(), self.guard.remaining()));
                }
                () = sleep_until(give_up_at) => return Ending::GuardianGone,
            }
        }
    }

    fn send_limits(&mut self, limits: Limits) {
        if limits != self.sent {
            self.sent = limits;
            self.guardian.set_limits(limits);
        }
    }

    /// Ends the guardian, releases the lock and reports how the command ended.
    async fn conclude(self, ending: Ending) -> Exit {
        let (args, console) = (self.args, self.console);
        match ending {
            // The processes that the guardian left are descendants of this process now.
            Ending::GuardianGone => self.guardian.kill_tree(self.command),
            _ => self.guardian.shut_down(),
        }
        let ending = match ending {
            Ending::GuardianGone if clock::now() >= self.sent.term_at => Ending::ByGuardian,
            ending => ending,
        };
        let max_hold_is_over = clock::now() >= self.limits.own.term_at;
        let mut lost_at_release = None;
        match self.guard.release().await {
            Err(error) if error.is_lost() => lost_at_release = Some(error),
            // The command held its lock to the end. If the store cannot be reached, the lease ends the hold.
            Err(error) => console.notice(error),
            Ok(()) if self.lost.is_none() && ending.is_within_limits() => {
                console.event("released", json!({}));
                console.detail("released");
            }
            Ok(()) => {}
        }
        let (reason, message) = match (ending, lost_at_release) {
            (Ending::NotStarted(errno), _) => {
                return report_not_started(&args.command[0], errno, console);
            }
            // The loss was reported when it happened.
            _ if self.lost.is_some() => return Exit::Lost,
            (Ending::ByGuardian, _) if max_hold_is_over => (
                LostReason::MaxHold.to_string(),
                "the time of --max-hold is over; the command was ended".to_owned(),
            ),
            (Ending::ByGuardian, _) => (
                LostReason::Expired.to_string(),
                lease_over(args.acquire.lease.renew),
            ),
            (Ending::TooLate, _) => (
                LostReason::Expired.to_string(),
                "the lock was lost before the command could start; nothing was run".to_owned(),
            ),
            (Ending::GuardianGone, _) => {
                console
                    .error("the guardian of the command ended unexpectedly; the command was ended");
                return Exit::Failed;
            }
            (Ending::Itself(_), Some(error)) => (format!("{error:#}"), format!("{error:#}")),
            (Ending::Itself(status), None) => return Exit::Command(status),
        };
        console.event("lost", json!({ "reason": reason }));
        console.error(message);
        Exit::Lost
    }

    fn report_loss(&self, reason: LostReason) {
        let names: Vec<_> = self.guard.tokens().map(|(name, _)| name).collect();
        let strings: Vec<_> = names.iter().map(|name| name.as_str()).collect();
        self.console.event(
            "lost",
            json!({ "names": strings, "reason": reason.to_string() }),
        );
        if !self.console.json {
            let names = text::quoted(names);
            self.console.error(format!(
                "lost {names}: {reason}; the command is being ended"
            ));
        }
    }
}

fn lease_over(renewal: Renewal) -> String {
    match renewal {
        Renewal::Automatic => "the lease was not renewed in time; the command was ended".into(),
        Renewal::Never => "the lease is over (--ttl, --renew never); the command was ended".into(),
    }
}

/// Prints why the command could not be started, and returns the exit code that a shell has for that.
fn report_not_started(command: &OsStr, errno: Errno, console: &Console) -> Exit {
    let shown = text::escaped(command);
    let reason = io::Error::from(errno);
    let (exit, message) = match errno {
        Errno::NOENT
            if crate::guardian::find_in_path(command).is_some_and(|file| file.exists()) =>
        {
            (
                Exit::NotExecutable,
                format!(
                    "cannot run \"{shown}\": the program named in its first line does not exist"
                ),
            )
        }
        Errno::NOENT | Errno::NOTDIR => (
            Exit::NotFound,
            format!("command not found: \"{shown}\"; look at its spelling and at PATH"),
        ),
        Errno::ACCESS => (
            Exit::NotExecutable,
            format!(
                "cannot run \"{shown}\": it is not an executable file, or this user may not run it (chmod +x)"
            ),
        ),
        _ => (
            Exit::NotExecutable,
            format!("cannot run \"{shown}\": {reason}"),
        ),
    };
    console.error(message);
    exit
}

async fn next_tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The runtime's timers stand still while the machine is suspended, so the clock is read once in a second.
async fn sleep_until(at: u64) {
    if at == NEVER {
        return std::future::pending().await;
    }
    while clock::now() < at {
        tokio::time::sleep(clock::until(at).min(Duration::from_secs(1))).await;
    }
}
