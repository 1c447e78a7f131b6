//! `tenure run`: acquires locks, starts the command, and holds the locks until the command has ended.

use serde_json::json;
use tenure::{Client, Error, ErrorKind};

use crate::acquire;
use crate::args::{Common, Run};
use crate::console::Console;
use crate::exit::Exit;
use crate::guardian::handle::GuardianHandle;
use crate::plan::{Plan, Role};
use crate::ready_file::ReadyFile;
use crate::results::report_error;
use crate::run_attached;
use crate::signals::{self, Signals};
use crate::standby::Standby;
use crate::store;
use crate::supervision::Supervision;
use crate::text;

pub(crate) async fn run(common: &Common, args: &Run, console: &Console) -> Exit {
    let exit = match &args.receipt {
        Some(receipt) => run_attached::run(common, args, receipt, console).await,
        None => acquire_for(common, args, console).await,
    };
    console.event("exit", json!({ "code": exit.code() }));
    exit
}

async fn acquire_for(common: &Common, args: &Run, console: &Console) -> Exit {
    match prepare(args, console).and_then(|plan| Ok((plan, prepare_ready_file(args, console)?))) {
        Ok((plan, ready_file)) => run_plan(common, args, console, plan, ready_file).await,
        Err(exit) => exit,
    }
}

/// Checks the arguments, and returns what to acquire.
fn prepare(args: &Run, console: &Console) -> Result<Plan, Exit> {
    let fail = |error: Error| report_error(console, &error, args.acquire.waiting.busy_exit_code);
    let usage = |message: &str| fail(Error::new(ErrorKind::Invalid, message));
    if args.names.is_empty() {
        return Err(usage(
            "no lock name: write it before `--`, as in `tenure run nightly -- ./report.sh`",
        ));
    }
    if let ([name, command, ..], []) = (&args.names[..], &args.command[..]) {
        return Err(usage(&format!(
            "no command: write `--` in front of it, as in `tenure run {} -- {}`",
            text::escaped(name),
            text::escaped(command)
        )));
    }
    if args.command.is_empty() {
        return Err(usage(
            "no command: write it after `--`, as in `tenure run nightly -- ./report.sh`",
        ));
    }
    let mut plan = Plan::new(&args.names, &args.acquire).map_err(fail)?;
    if args.standby.standby {
        if plan.names.len() > 1 {
            return Err(usage(
                "`--standby` is about one name; run one `tenure run --standby` for each of them",
            ));
        }
        plan.role = Role::Candidate(args.standby.value.clone().unwrap_or_default());
    }
    // `tenure` ends the command at this limit and holds the lock while the command ends. So the limit of the library
    // comes later: by the grace time, and by a lease for what may delay the end.
    let delay = args.grace.saturating_add(args.acquire.lease.ttl);
    let max_hold = args.acquire.lease.max_hold;
    plan.options.max_hold = max_hold.map(|limit| limit.saturating_add(delay));
    Ok(plan)
}

/// Checks that the file of `--ready-file` can be made, and removes one that a killed process has left.
fn prepare_ready_file(args: &Run, console: &Console) -> Result<Option<ReadyFile>, Exit> {
    let path = args.standby.ready_file.as_ref();
    let ready_file = path.map(|path| ReadyFile::prepare(path)).transpose();
    ready_file.map_err(|message| {
        console.error(message);
        Exit::Failed
    })
}

async fn run_plan(
    common: &Common,
    args: &Run,
    console: &Console,
    plan: Plan,
    ready_file: Option<ReadyFile>,
) -> Exit {
    let (busy, wait) = (plan.busy_code, plan.wait_for_store());
    let work = async |client: &Client, signals: &mut Signals, waited| {
        if args.standby.standby {
            let standby = Standby::new(client, args, console, plan, ready_file);
            return standby.run(signals).await;
        }
        let plan = plan.after_waiting(waited);
        acquire_and_run(client, args, console, &plan, signals).await
    };
    store::with_client_and_signals(common, console, wait, work)
        .await
        .unwrap_or_else(|failure| failure.report(console, busy))
}

async fn acquire_and_run(
    client: &Client,
    args: &Run,
    console: &Console,
    plan: &Plan,
    signals: &mut Signals,
) -> Exit {
    let shares_terminal = signals::shares_terminal();
    let mut guardian = None;
    // The guardian starts while the store answers, and starts the command only when it is instructed to.
    let spawn_early = || guardian = Some(GuardianHandle::spawn(&args.command, shares_terminal));
    let guard = match acquire::acquire(client, plan, signals, console, spawn_early).await {
        Ok(guard) => guard,
        Err(exit) => return exit,
    };
    let guardian =
        match guardian.unwrap_or_else(|| GuardianHandle::spawn(&args.command, shares_terminal)) {
            Ok(guardian) => guardian,
            Err(error) => {
                console.error(format!(
                    "cannot start the guardian of the command: {error}; nothing was run"
                ));
                let _ = guard.release().await;
                return Exit::Failed;
            }
        };
    let supervision = Supervision::new(args, console, guard, guardian, shares_terminal);
    supervision.run(signals).await.exit
}
