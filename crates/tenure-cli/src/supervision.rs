//! What `tenure run` does while its command runs: it waits for a loss of the lock, sends the guardian the limits of the
//! command, and forwards signals. At the end it releases the lock (with a receipt, it detaches the hold) and reports how the command ended. With `--standby` it also
//! ends the command when another process asks for the lock.

use std::ffi::OsStr;
use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::json;
use tenure::{Error, Guard, LostReason, OwnerId};
use tokio::time::{Interval, MissedTickBehavior};

use crate::args::{Renewal, Run};
use crate::clock;
use crate::clock::NEVER;
use crate::console::Console;
use crate::exit::Exit;
use crate::guardian::handle::GuardianHandle;
use crate::guardian::protocol::{Limits, Report};
use crate::limits::LimitRule;
use crate::ready_file::Mark;
use crate::signals::{self, Signals};
use crate::text;

/// How late the guardian may be before this process ends the command itself.
const GUARDIAN_TIMEOUT: Duration = Duration::from_millis(50);

/// Status of a command that SIGKILL ended, as a shell gives it.
const KILLED_STATUS: u8 = 128 + 9;

/// A command that runs under a lock.
pub(crate) struct Supervision<'a> {
    args: &'a Run,
    console: &'a Console,
    guard: Guard,
    guardian: GuardianHandle,
    limits: LimitRule,
    /// The command is in the process group of `tenure`, so the terminal sends the signals of its keys to both.
    shares_terminal: bool,
    ends: EndReasons,
    /// The file that says that this process leads.
    ready: Option<Mark>,
    /// The limits that the guardian has.
    sent: Limits,
    /// The process of the command, after its start.
    command: Option<u32>,
}

/// Why the command has to end before it does so by itself.
#[derive(Default)]
struct EndReasons {
    lost: Option<LostReason>,
    /// Another process asks for the lock. Without `--standby` the command goes on.
    is_asked: bool,
    /// A signal to `tenure` asks for its end, and for that of the command.
    is_signalled: bool,
}

/// What becomes of a hold at the end of its command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum HoldAfter {
    Released,
    /// The hold has a receipt, and goes on under it.
    Detached,
}

impl HoldAfter {
    /// Ends the guard.
    ///
    /// # Errors
    /// `Lost`: the hold had ended before. Others: the store did not confirm it.
    pub(crate) async fn end(self, guard: Guard) -> Result<(), Error> {
        match self {
            Self::Released => guard.release().await,
            Self::Detached => guard.detach().await.map(drop),
        }
    }
}

/// How a command under a lock ended, after the lock was given up.
pub(crate) struct Conclusion {
    /// How `tenure` ends, unless it stands by again.
    pub(crate) exit: Exit,
    pub(crate) cause: EndCause,
    /// A signal asks for the end of `tenure`.
    pub(crate) is_signalled: bool,
}

/// Why the command runs no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndCause {
    /// The command ended by itself, or with the guardian.
    Ended,
    /// The command cannot be run on this machine.
    NotStarted,
    /// The lock was lost.
    Lost,
    /// The time of `--max-hold` is over.
    MaxHold,
    /// Another process asked for the lock.
    Asked,
}

/// How the command ended.
enum Ending {
    /// The command exited, or a signal that the guardian did not send ended it.
    Itself(u8),
    /// The guardian ended the command because of the limits. The status is that of the command.
    ByGuardian(u8),
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
        !matches!(self, Self::ByGuardian(_) | Self::TooLate)
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
            ends: EndReasons::default(),
            ready: None,
            sent: Limits::NONE,
            command: None,
        }
    }

    /// With a file that is removed as soon as the command has to end.
    pub(crate) fn with_ready_file(mut self, mark: Option<Mark>) -> Self {
        if let Some(mark) = &mark {
            // The guardian that is not reached is noticed at the start of the command.
            self.guardian.remove_at_the_end(&mark.path, &mark.text);
        }
        self.ready = mark;
        self
    }

    /// What becomes of the hold when the command has ended.
    fn after(&self) -> HoldAfter {
        match self.args.receipt {
            Some(_) => HoldAfter::Detached,
            None => HoldAfter::Released,
        }
    }

    pub(crate) async fn run(mut self, signals: &mut Signals) -> Conclusion {
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
            self.ready = None;
            let after = self.after();
            let _ = after.end(self.guard).await;
            return Conclusion {
                exit: Exit::Failed,
                cause: EndCause::Ended,
                is_signalled: false,
            };
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
        // A guard that waits to be asked makes work in some stores.
        let console = self.console;
        let is_told = self.args.standby.standby || console.json || console.verbose;
        let asked = is_told.then(|| self.guard.asked_to_release());
        let mut asked = pin!(until_asked(asked));
        let mut limits_update = self.limits_update();
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
                        self.report_survivors(survivors);
                        return if by_guardian { Ending::ByGuardian(status) } else { Ending::Itself(status) };
                    }
                    Ok(None) | Err(_) => return Ending::GuardianGone,
                },
                signal = signals.next() => {
                    if signals::asks_to_end(signal) {
                        self.ends.is_signalled = true;
                        self.ready = None;
                    }
                    // The terminal sends the signal of a key to the command, too.
                    if !(self.shares_terminal && signals.is_from_terminal(signal)) {
                        self.guardian.forward_signal(signal);
                    }
                }
                Some(reason) = &mut lost, if self.ends.lost.is_none() => {
                    self.ends.lost = Some(reason);
                    self.report_loss(reason);
                    self.end_command();
                }
                () = &mut asked, if !self.ends.is_asked => {
                    self.ends.is_asked = true;
                    self.report_asked();
                    if self.has_to_let_go() {
                        self.end_command();
                    }
                }
                () = next_tick(&mut limits_update), if self.ends.lost.is_none() && !self.has_to_let_go() => {
                    self.send_limits(self.limits.at(clock::now(), self.guard.remaining()));
                }
                () = sleep_until(self.sent.term_at), if self.ready.is_some() => self.ready = None,
                () = sleep_until(give_up_at) => return Ending::GuardianGone,
            }
        }
    }

    /// When to send the limits again. `None`: they do not change.
    fn limits_update(&self) -> Option<Interval> {
        let mut update = tokio::time::interval(self.limits.update_interval?);
        // After this process was stopped, one update is enough for all that were missed.
        update.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Some(update)
    }

    fn report_survivors(&self, survivors: u32) {
        if survivors > 0 {
            self.console.error(format!(
                "{survivors} processes of the command are still running: they belong to another user, so they cannot be ended"
            ));
        }
    }

    /// Whether the command has to end because another process asked for the lock.
    fn has_to_let_go(&self) -> bool {
        self.ends.is_asked && self.args.standby.standby
    }

    /// Has the guardian end the command: TERM now, and KILL after the grace time, or earlier at the end of the lease.
    fn end_command(&mut self) {
        self.ready = None;
        let term_at = clock::now();
        let kill_at = clock::after(term_at, self.args.grace).min(self.sent.kill_at);
        self.send_limits(Limits { term_at, kill_at });
    }

    fn send_limits(&mut self, limits: Limits) {
        if limits != self.sent {
            self.sent = limits;
            self.guardian.set_limits(limits);
        }
    }

    /// Ends the guardian, releases the lock and reports how the command ended.
    async fn conclude(mut self, ending: Ending) -> Conclusion {
        let after = self.after();
        // Before the lock is given up.
        self.ready = None;
        let (args, console, has_let_go) = (self.args, self.console, self.has_to_let_go());
        match ending {
            // The processes that the guardian left are descendants of this process now.
            Ending::GuardianGone => self.guardian.kill_tree(self.command),
            _ => self.guardian.shut_down(),
        }
        let ending = match ending {
            Ending::GuardianGone if clock::now() >= self.sent.term_at => {
                Ending::ByGuardian(KILLED_STATUS)
            }
            ending => ending,
        };
        let max_hold_is_over = clock::now() >= self.limits.own.term_at;
        let mut lost_at_release = None;
        match after.end(self.guard).await {
            Err(error) if error.is_lost() => lost_at_release = Some(error),
            // The command held its lock to the end. If the store cannot be reached, the lease ends the hold.
            Err(error) => console.notice(error),
            Ok(()) if self.ends.lost.is_none() && (has_let_go || ending.is_within_limits()) => {
                let end = match after {
                    HoldAfter::Released => "released",
                    HoldAfter::Detached => "detached",
                };
                console.event(end, json!({}));
                console.detail(end);
            }
            Ok(()) => {}
        }
        let end = TermEnd {
            ending,
            lost_at_release,
            was_lost: self.ends.lost.is_some(),
            has_let_go,
            max_hold_is_over,
        };
        let (exit, cause) = end.report(args, console);
        Conclusion {
            exit,
            cause,
            is_signalled: self.ends.is_signalled,
        }
    }

    fn report_asked(&self) {
        let names: Vec<_> = self.guard.tokens().map(|(name, _)| name).collect();
        let strings: Vec<_> = names.iter().map(|name| name.as_str()).collect();
        self.console.event("asked", json!({ "names": strings }));
        let consequence = match self.has_to_let_go() {
            true => "the command is being ended",
            false => "the lock is kept until the command has ended",
        };
        self.console.detail(format!(
            "another process asks for {}; {consequence}",
            text::quoted(names)
        ));
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

/// What is known of the end of a command after its lock was given up.
struct TermEnd {
    ending: Ending,
    /// The release found that the lock had been lost.
    lost_at_release: Option<Error>,
    /// The loss was reported when it happened.
    was_lost: bool,
    has_let_go: bool,
    max_hold_is_over: bool,
}

impl TermEnd {
    /// Prints what was not printed when it happened. Returns how `tenure` ends, and why the command runs no more.
    fn report(self, args: &Run, console: &Console) -> (Exit, EndCause) {
        let (cause, reason, message) = match (self.ending, self.lost_at_release) {
            (Ending::NotStarted(errno), _) => {
                let exit = report_not_started(&args.command[0], errno, console);
                return (exit, EndCause::NotStarted);
            }
            _ if self.was_lost => return (Exit::Lost, EndCause::Lost),
            (Ending::ByGuardian(status), None) if self.has_let_go => {
                return (Exit::Command(status), EndCause::Asked);
            }
            (Ending::ByGuardian(_), _) if self.max_hold_is_over => (
                EndCause::MaxHold,
                LostReason::MaxHold.to_string(),
                "the time of --max-hold is over; the command was ended".to_owned(),
            ),
            (Ending::ByGuardian(_), _) => (
                EndCause::Lost,
                LostReason::Expired.to_string(),
                lease_over(args.acquire.lease.renew),
            ),
            (Ending::TooLate, None) if self.max_hold_is_over => (
                EndCause::MaxHold,
                LostReason::MaxHold.to_string(),
                "the time of --max-hold was over before the command could start; nothing was run"
                    .to_owned(),
            ),
            (Ending::TooLate, _) => (
                EndCause::Lost,
                LostReason::Expired.to_string(),
                "the lock was lost before the command could start; nothing was run".to_owned(),
            ),
            (Ending::GuardianGone, _) => {
                console
                    .error("the guardian of the command ended unexpectedly; the command was ended");
                return (Exit::Failed, EndCause::Ended);
            }
            (Ending::Itself(_), Some(error)) => {
                let reason = format!("{error:#}");
                (EndCause::Lost, reason.clone(), reason)
            }
            (Ending::Itself(status), None) => return (Exit::Command(status), EndCause::Ended),
        };
        console.event("lost", json!({ "reason": reason }));
        console.error(message);
        (Exit::Lost, cause)
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

/// Resolves when another process asks for the lock; never without a future.
async fn until_asked(asked: Option<impl Future<Output = bool>>) {
    let is_asked = match asked {
        Some(asked) => asked.await,
        None => false,
    };
    // The hold has ended, or nobody listens.
    if !is_asked {
        pending().await
    }
}

async fn next_tick(interval: &mut Option<Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => pending().await,
    }
}

/// The runtime's timers stand still while the machine is suspended, so the clock is read once in a second.
async fn sleep_until(at: u64) {
    if at == NEVER {
        return pending().await;
    }
    while clock::now() < at {
        tokio::time::sleep(clock::until(at).min(Duration::from_secs(1))).await;
    }
}
