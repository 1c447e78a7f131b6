//! While the command of `tenure run` runs: the lock is watched, the guardian is told until when the command may run, and
//! signals are passed on.

use std::ffi::OsStr;
use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::io::Errno;
use serde_json::json;
use tenure::{Client, Guard, LostReason, OwnerId};

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

/// How late the guardian may be before we do its work.
const GUARDIAN_PATIENCE: Duration = Duration::from_millis(50);

/// A command that runs under a lock.
pub(crate) struct Supervision<'a> {
    args: &'a Run,
    console: &'a Console,
    guard: Guard,
    guardian: GuardianHandle,
    limits: LimitRule,
    /// The command lives in our process group, and keys reach it without us.
    shares_terminal: bool,
    lost: Option<LostReason>,
    /// What the guardian was told last.
    sent: Limits,
    /// The command's process, once it runs.
    command: Option<u32>,
}

/// How the command ended.
enum Ending {
    /// By itself, or by a signal of somebody else.
    Itself(u8),
    /// We ended it, because of the limits.
    ByUs,
    /// It never began.
    NotStarted(Errno),
    /// The limits were over before it could begin.
    TooLate,
    /// The guardian is gone; we ended what it left.
    GuardianGone,
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

    pub(crate) async fn run(mut self, client: &Client, signals: &mut Signals) -> Exit {
        if client.guarantees().backend == "file" {
            self.share_descriptors();
        }
        self.sent = self.limits.at(clock::now(), self.guard.remaining());
        // Never on a lease that was lost meanwhile. The guardian looks at the clock once more.
        if !self.guard.is_held() {
            return self.never_began().await;
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

    /// What the command finds in its environment; of several names, one line each.
    fn environment(&self) -> [String; 3] {
        let (names, tokens): (Vec<_>, Vec<_>) = self
            .guard
            .tokens()
            .map(|(name, token)| (name.as_str().to_owned(), token.to_string()))
            .unzip();
        let owners: Vec<_> = self.guard.owner_ids().map(OwnerId::to_hex).collect();
        [names.join("\n"), tokens.join("\n"), owners.join("\n")]
    }

    /// Lets the guardian keep the kernel's locks: when we are killed, the next holder comes
    /// only when the command's tree is gone.
    fn share_descriptors(&self) {
        let shared = crate::platform::duplicate_flocks()
            .and_then(|flocks| self.guardian.hold_descriptors(&flocks));
        if let Err(error) = shared {
            self.console.detail(format!(
                "if tenure is killed, the lock may be free before the command has ended: {error}"
            ));
        }
    }

    async fn supervise(&mut self, signals: &mut Signals) -> Ending {
        let mut lost = pin!(self.guard.lost());
        let mut look = self.limits.look_every.map(|every| {
            let mut look = tokio::time::interval(every);
            // After a stop there is one look to be made up for, not many.
            look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            look
        });
        loop {
            let give_up_at =
                clock::after(self.sent.kill_at, self.limits.margin + GUARDIAN_PATIENCE);
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
                    Ok(Some(Report::Ended { status, by_us, survivors })) => {
                        if survivors > 0 {
                            self.console.error(format!(
                                "{survivors} processes of the command are still running: they belong to another user, so they cannot be ended"
                            ));
                        }
                        return if by_us { Ending::ByUs } else { Ending::Itself(status) };
                    }
                    Ok(None) | Err(_) => return Ending::GuardianGone,
                },
                signal = signals.next() => {
                    if !(self.shares_terminal && signals::is_sent_by_terminal(signal)) {
                        self.guardian.forward_signal(signal);
                    }
                }
                reason = &mut lost, if self.lost.is_none() => {
                    self.lost = Some(reason);
                    self.say_lost();
                    let now = clock::now();
                    let kill_at = clock::after(now, self.args.grace).min(self.sent.kill_at);
                    self.limit(Limits { term_at: now, kill_at });
                }
                () = tick(&mut look), if self.lost.is_none() => {
                    self.limit(self.limits.at(clock::now(), self.guard.remaining()));
                }
                () = until(give_up_at) => return Ending::GuardianGone,
            }
        }
    }

    fn limit(&mut self, limits: Limits) {
        if limits != self.sent {
            self.sent = limits;
            self.guardian.set_limits(limits);
        }
    }

    async fn conclude(self, ending: Ending) -> Exit {
        let Self {
            args,
            console,
            guard,
            guardian,
            lost,
            limits,
            sent,
            command,
            ..
        } = self;
        let ending = match ending {
            Ending::GuardianGone => {
                // Whatever it left hangs below us now.
                guardian.kill_tree(command);
                if clock::now() >= sent.term_at {
                    Ending::ByUs
                } else {
                    ending
                }
            }
            _ => {
                guardian.shut_down();
                ending
            }
        };
        let over = clock::now() >= limits.own.term_at;
        let released = guard.release().await;
        let lost_now = matches!(&released, Err(error) if error.is_lost());
        if let Err(error) = &released
            && !lost_now
        {
            // The command had its lock to the end. When the store cannot be told, the lease ends the hold.
            console.notice(error);
        }
        if released.is_ok() && lost.is_none() && !matches!(ending, Ending::ByUs | Ending::TooLate) {
            console.event("released", json!({}));
            console.detail("released");
        }
        match ending {
            Ending::NotStarted(errno) => not_started(&args.command[0], errno, console),
            _ if lost.is_some() => Exit::Lost,
            Ending::ByUs if over => {
                console.event("lost", json!({ "reason": LostReason::MaxHold.to_string() }));
                console.error("the time of --max-hold is over; the command was ended");
                Exit::Lost
            }
            Ending::ByUs => {
                console.event("lost", json!({ "reason": LostReason::Expired.to_string() }));
                console.error(match args.acquire.renew {
                    Renewal::Automatic => {
                        "the lease was not renewed in time; the command was ended"
                    }
                    Renewal::Never => {
                        "the lease is over (--ttl, --renew never); the command was ended"
                    }
                });
                Exit::Lost
            }
            Ending::TooLate => {
                console.event("lost", json!({ "reason": LostReason::Expired.to_string() }));
                console.error("the lock was lost before the command could start; nothing was run");
                Exit::Lost
            }
            Ending::GuardianGone => {
                console
                    .error("the guardian of the command ended unexpectedly; the command was ended");
                Exit::Failed
            }
            Ending::Itself(_) if lost_now => {
                if let Err(error) = released {
                    console.event("lost", json!({ "reason": error.to_string() }));
                    console.error(&error);
                }
                Exit::Lost
            }
            Ending::Itself(status) => Exit::Command(status),
        }
    }

    async fn never_began(self) -> Exit {
        self.conclude(Ending::TooLate).await
    }

    fn say_lost(&self) {
        if let Some(reason) = self.lost {
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
}

/// The shell's answer to a command that cannot be started.
fn not_started(command: &OsStr, errno: Errno, console: &Console) -> Exit {
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

async fn tick(look: &mut Option<tokio::time::Interval>) {
    match look {
        Some(look) => {
            look.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The runtime's timers stand still while the machine is suspended, hence a look at the boot clock now and then.
async fn until(at: u64) {
    if at == NEVER {
        return std::future::pending().await;
    }
    while clock::now() < at {
        tokio::time::sleep(clock::until(at).min(Duration::from_secs(1))).await;
    }
}
