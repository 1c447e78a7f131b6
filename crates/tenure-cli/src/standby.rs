//! `tenure run --standby`: runs the command while this process leads, and stands by again when the term is over.
//!
//! Each term is as `tenure run` without `--standby`: a grant, a guardian, a command, and the release after the command has
//! ended. In a store with elections the process is a candidate, so that `tenure leader` shows it; in other stores it waits for
//! the lock.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure::guarantees::Capability;
use tenure::{Client, Error, ErrorKind, Guard};
use tenure_core::logic::election::{CampaignPauses, TermEnd};
use tenure_core::rt::Clock;

use crate::acquire::{NotAcquired, report_failure, until_acquired};
use crate::args::Run;
use crate::console::Console;
use crate::duration::rounded;
use crate::exit::Exit;
use crate::guardian::handle::GuardianHandle;
use crate::json::millis;
use crate::plan::{Plan, Role};
use crate::process_tree;
use crate::ready_file::ReadyFile;
use crate::signals::{self, Signals};
use crate::supervision::{Conclusion, EndCause, Supervision};
use crate::text;

/// How long a process that was asked to let go is no candidate: a process that asks at that moment can be faster than one
/// that waits, where the store has no strict order.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(1);

/// A process that stays.
pub(crate) struct Standby<'a> {
    client: &'a Client,
    args: &'a Run,
    console: &'a Console,
    plan: Plan,
    ready_file: Option<ReadyFile>,
    /// Waits for the next term.
    guardian: Option<GuardianHandle>,
    shares_terminal: bool,
    pauses: CampaignPauses,
    /// The kind of the error that was printed last, until this process leads again. The text may differ with each attempt.
    outage: Option<ErrorKind>,
}

impl<'a> Standby<'a> {
    pub(crate) fn new(
        client: &'a Client,
        args: &'a Run,
        console: &'a Console,
        mut plan: Plan,
        ready_file: Option<ReadyFile>,
    ) -> Self {
        // With a text to show, the store itself says that it has no elections.
        if args.standby.value.is_none() && !Capability::Elections.is_in(client.guarantees()) {
            plan.role = Role::Standby;
        }
        Self {
            client,
            args,
            console,
            plan,
            ready_file,
            guardian: None,
            shares_terminal: signals::shares_terminal(),
            pauses: CampaignPauses::default(),
            outage: None,
        }
    }

    pub(crate) async fn run(mut self, signals: &mut Signals) -> Exit {
        let clock = Clock::system();
        loop {
            let pause = match self.serve_term(signals).await {
                ControlFlow::Break(exit) => return exit,
                ControlFlow::Continue(Next::AtOnce) => continue,
                ControlFlow::Continue(Next::After(end)) => self.pauses.after(end, clock.random()),
                ControlFlow::Continue(Next::AfterHandOver) => HAND_OVER_PAUSE,
            };
            self.report_pause(pause);
            tokio::select! {
                biased;
                signal = signals.next_without_command() => return Exit::Signal(signal),
                () = clock.sleep_until(clock.now().after(pause)) => {}
            }
        }
    }

    /// Stands by, and runs the command.
    async fn serve_term(&mut self, signals: &mut Signals) -> ControlFlow<Exit, Next> {
        let began = Instant::now();
        let guard = match self.stand_by(signals).await {
            Ok(guard) => guard,
            Err(NotAcquired::Interrupted(signal)) => {
                return ControlFlow::Break(Exit::Signal(signal));
            }
            Err(NotAcquired::Error(error)) => return self.not_elected(&error, began.elapsed()),
        };
        self.outage = None;
        let mark = match self.ready_file.as_ref().map(|file| file.create(&guard)) {
            None => None,
            Some(Ok(mark)) => Some(mark),
            Some(Err(message)) => {
                self.console
                    .error(format!("{message}; the lock is given up"));
                let _ = guard.release().await;
                return after(TermEnd::Failed(Duration::ZERO));
            }
        };
        // It may have waited for days.
        let waiting = self.guardian.take();
        let waiting = waiting.and_then(|mut it| it.is_there().then_some(it));
        let guardian = match waiting.map_or_else(|| self.spawn(), Ok) {
            Ok(guardian) => guardian,
            Err(error) => {
                self.console.error(format!(
                    "cannot start the guardian of the command: {error}; nothing was run"
                ));
                drop(mark);
                let _ = guard.release().await;
                return ControlFlow::Break(Exit::Failed);
            }
        };
        // A signal from before is not for the command, which is not started yet.
        if let Some(signal) = signals.came_without_command().await {
            drop(mark);
            let _ = guard.release().await;
            return ControlFlow::Break(Exit::Signal(signal));
        }
        let began = Instant::now();
        let (args, console) = (self.args, self.console);
        let supervision = Supervision::new(args, console, guard, guardian, self.shares_terminal);
        let supervision = supervision.with_ready_file(mark);
        let conclusion = supervision.run(signals).await;
        // Processes that the command left became children of this one. No guardian is there whose end they could hide.
        while let Ok(Some(_)) = process_tree::reap() {}
        next(&conclusion, args.standby.restart, began.elapsed())
    }

    async fn stand_by(&mut self, signals: &mut Signals) -> Result<Guard, NotAcquired> {
        let mut guardian = self.guardian.take();
        let spawn_early = || {
            if guardian.is_none() {
                // An error is reported when the command is to start.
                guardian = self.spawn().ok();
            }
        };
        let plan = &self.plan;
        let guard = until_acquired(self.client, plan, signals, self.console, spawn_early).await;
        self.guardian = guardian;
        guard
    }

    fn spawn(&self) -> std::io::Result<GuardianHandle> {
        GuardianHandle::spawn(&self.args.command, self.shares_terminal)
    }

    /// What follows an error of the store, after this process stood by for so long.
    fn not_elected(&mut self, error: &Error, lasted: Duration) -> ControlFlow<Exit, Next> {
        let may_fall_back = matches!(self.plan.role, Role::Candidate(_));
        if error.kind() == ErrorKind::Unsupported
            && may_fall_back
            && self.args.standby.value.is_none()
        {
            // Sessions of a database have elections after their table was made.
            self.plan.role = Role::Standby;
            self.console.detail(format!(
                "{error:#}; standing by for the lock, which `tenure leader` does not show"
            ));
            return ControlFlow::Continue(Next::AtOnce);
        }
        let passes =
            error.is_retryable() || matches!(error.kind(), ErrorKind::Lost | ErrorKind::Store);
        if !passes {
            report_failure(self.console, error, self.plan.options.ttl);
            return ControlFlow::Break(Exit::of(error.kind(), self.plan.busy_code));
        }
        if self.outage.replace(error.kind()) != Some(error.kind()) {
            report_failure(self.console, error, self.plan.options.ttl);
        }
        after(TermEnd::NotElected(lasted))
    }

    fn report_pause(&self, pause: Duration) {
        let names: Vec<_> = self.plan.names.iter().map(|name| name.as_str()).collect();
        let fields = json!({ "names": names, "pause_ms": millis(pause) });
        self.console.event("standing_by", fields);
        let names = text::quoted(&self.plan.names);
        let when = match pause.is_zero() {
            true => String::new(),
            false => format!(" after a pause of {}", rounded(pause)),
        };
        self.console
            .detail(format!("standing by for {names} again{when}"));
    }
}

/// When the process stands by again.
enum Next {
    AtOnce,
    /// After a pause that depends on how the term ended.
    After(TermEnd),
    /// When another process has had the time to take over.
    AfterHandOver,
}

fn after(end: TermEnd) -> ControlFlow<Exit, Next> {
    ControlFlow::Continue(Next::After(end))
}

/// What follows a term that has lasted so long.
fn next(conclusion: &Conclusion, restarts: bool, lasted: Duration) -> ControlFlow<Exit, Next> {
    if conclusion.is_signalled {
        return ControlFlow::Break(conclusion.exit);
    }
    match conclusion.cause {
        EndCause::Ended if restarts => after(TermEnd::Failed(lasted)),
        EndCause::Ended | EndCause::NotStarted => ControlFlow::Break(conclusion.exit),
        EndCause::Lost => after(TermEnd::Lost(lasted)),
        EndCause::MaxHold | EndCause::Asked => ControlFlow::Continue(Next::AfterHandOver),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_followed_by_the_end_or_by_another_one() {
        let lasted = Duration::from_secs(3);
        let next = |cause, restarts, is_signalled| {
            let conclusion = Conclusion {
                exit: Exit::Command(7),
                cause,
                is_signalled,
            };
            next(&conclusion, restarts, lasted)
        };
        let ends = |flow| matches!(flow, ControlFlow::Break(Exit::Command(7)));
        let goes_on = |flow| !ends(flow);
        assert!(ends(next(EndCause::Ended, false, false)));
        assert!(matches!(
            next(EndCause::Ended, true, false),
            ControlFlow::Continue(Next::After(TermEnd::Failed(it))) if it == lasted
        ));
        assert!(matches!(
            next(EndCause::Lost, false, false),
            ControlFlow::Continue(Next::After(TermEnd::Lost(it))) if it == lasted
        ));
        assert!(goes_on(next(EndCause::Asked, false, false)));
        assert!(goes_on(next(EndCause::MaxHold, false, false)));
        for restarts in [false, true] {
            assert!(ends(next(EndCause::NotStarted, restarts, false)));
            for cause in [EndCause::Ended, EndCause::Lost, EndCause::Asked] {
                assert!(ends(next(cause, restarts, true)), "{cause:?}");
            }
        }
    }
}
