//! Acquires the locks of `run`, `hold` and `take`, and reports the wait.

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use tenure::{Client, Error, Guard, LockName, LockStatus, OwnerId};

use crate::console::Console;
use crate::duration::rounded;
use crate::exit::Exit;
use crate::json;
use crate::plan::{Plan, Role};
use crate::signals::Signals;
use crate::text;

/// A wait that is shorter than this is not reported.
const FIRST_REPORT_AFTER: Duration = Duration::from_millis(100);
/// Time between two inspections of the locks that are waited for.
const INSPECT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two inspections that only look for a server that was started too lately to grant anything.
const QUIET_INSPECT_INTERVAL: Duration = Duration::from_secs(10);
/// How long the inspection may take when its result is for an error message.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Why nothing was acquired.
pub(crate) enum NotAcquired {
    /// A signal ended the wait.
    Interrupted(Signal),
    Error(Error),
}

/// Acquires everything in `plan`. On failure it prints the reason, and returns how `tenure` ends.
///
/// `meanwhile` is called when the lock is not granted at once, for work that can be done in parallel.
pub(crate) async fn acquire(
    client: &Client,
    plan: &Plan,
    signals: &mut Signals,
    console: &Console,
    meanwhile: impl FnOnce(),
) -> Result<Guard, Exit> {
    match until_acquired(client, plan, signals, console, meanwhile).await {
        Ok(guard) => Ok(guard),
        Err(NotAcquired::Interrupted(signal)) => Err(Exit::Signal(signal)),
        Err(NotAcquired::Error(error)) => {
            let exit = Exit::of(error.kind(), plan.busy_code);
            match exit {
                Exit::Busy(_) => report_busy(client, plan, console, &error).await,
                _ => report_failure(console, &error, plan.options.ttl),
            }
            Err(exit)
        }
    }
}

/// Acquires everything in `plan`, and prints the wait and the grant.
///
/// A signal ends the wait at once. The caller has to close the client in every case, because closing waits for requests
/// that were given up.
pub(crate) async fn until_acquired(
    client: &Client,
    plan: &Plan,
    signals: &mut Signals,
    console: &Console,
    meanwhile: impl FnOnce(),
) -> Result<Guard, NotAcquired> {
    let began = Instant::now();
    let mut grant = Box::pin(plan.acquire(client));
    let outcome = match poll_once(grant.as_mut()).await {
        Some(outcome) => outcome,
        None => {
            meanwhile();
            let ended = async {
                match plan.role {
                    Role::Holder | Role::Taker => signals.next().await,
                    Role::Standby | Role::Candidate(_) => signals.next_without_command().await,
                }
            };
            tokio::select! {
                biased;
                signal = ended => {
                    // Dropping the request leaves the queue. A grant that arrives nevertheless is released.
                    drop(grant);
                    console.erase_progress();
                    return Err(NotAcquired::Interrupted(signal));
                }
                outcome = &mut grant => outcome,
                never = report_waiting(client, plan, console, began) => never,
            }
        }
    };
    console.erase_progress();
    let guard = outcome.map_err(NotAcquired::Error)?;
    let is_taken = matches!(plan.role, Role::Taker);
    report_grant(
        if is_taken {
            Grant::Taken
        } else {
            Grant::Acquired
        },
        &guard,
        console,
        began.elapsed(),
    );
    report_hidden_label(client, plan, console, &guard).await;
    Ok(guard)
}

/// Prints an error other than that the lock is busy.
pub(crate) fn report_failure(console: &Console, error: &Error, ttl: Duration) {
    let message = format!("{error:#}");
    if console.json {
        let guard = json::restart_guard_json(error.restart_guard(), ttl);
        console.event(
            "error",
            json!({ "message": message, "restart_guard": guard }),
        );
    } else {
        console.error(message);
    }
}

/// How a guard came to its hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grant {
    Acquired,
    /// The hold gets a receipt.
    Taken,
    /// The hold was there, and has a receipt.
    Attached,
}

/// Prints the grant. The owner id of a hold that outlives this process is as secret as its receipt, so no event has it.
pub(crate) fn report_grant(grant: Grant, guard: &Guard, console: &Console, waited: Duration) {
    let what = match grant {
        Grant::Acquired | Grant::Taken => "acquired",
        Grant::Attached => "attached",
    };
    if console.json {
        let mut fields = acquired_json(guard, waited);
        if let Some(fields) = fields.as_object_mut().filter(|_| grant != Grant::Acquired) {
            fields.remove("owner");
            fields.remove("owners");
        }
        console.event(what, fields);
    } else if console.verbose {
        for (name, token) in guard.tokens() {
            console.detail(format!(
                "{what} {name}, token {token}, after {}",
                rounded(waited)
            ));
        }
    }
}

/// Prints a notice if the user gave a label and other users cannot see that label: not every store can show one.
async fn report_hidden_label(client: &Client, plan: &Plan, console: &Console, guard: &Guard) {
    let label = &plan.options.label;
    let Some((name, _)) = guard.tokens().next().filter(|_| !label.is_empty()) else {
        return;
    };
    let inspected = tokio::time::timeout(INSPECT_TIMEOUT, client.inspect(name)).await;
    let Ok(Ok(status)) = inspected else { return };
    let is_hidden = !status.holds.iter().any(|hold| hold.holder.label == *label);
    if status.is_held() && is_hidden {
        console.notice(format!(
            "the label of {name} is not shown to others; `tenure check` says whether a table for that is missing"
        ));
    }
}

/// The fields of a grant, for JSON.
pub(crate) fn acquired_json(guard: &Guard, waited: Duration) -> serde_json::Value {
    let (names, tokens): (Vec<_>, Vec<_>) = guard
        .tokens()
        .map(|(name, token)| (name.as_str(), token.get()))
        .unzip();
    let owners: Vec<_> = guard.owner_ids().map(OwnerId::to_hex).collect();
    json!({
        "names": names,
        "tokens": tokens,
        "owner": guard.owner_id().to_hex(),
        "owners": owners,
        "waited_ms": json::millis(waited),
    })
}

/// Inspects the locks again and again while they are waited for. The holder is printed if the user wants to see the wait.
/// A message that the server was started too lately to grant anything is printed once, unless the user wants `--quiet`.
/// Never resolves.
async fn report_waiting<T>(client: &Client, plan: &Plan, console: &Console, began: Instant) -> T {
    let shows_wait = console.reports_waiting();
    if !shows_wait && console.quiet {
        return pending().await;
    }
    // A shorter wait ends with an error that explains it.
    tokio::time::sleep(if shows_wait {
        FIRST_REPORT_AFTER
    } else {
        INSPECT_INTERVAL
    })
    .await;
    let (mut is_first, mut is_explained, mut is_in_event) = (true, false, false);
    loop {
        let obstacle = obstacle(client, plan).await;
        let obstacle = obstacle.as_ref();
        let waited = began.elapsed();
        let ttl = plan.options.ttl;
        let guard = obstacle.and_then(|status| text::restart_guard(status, ttl));
        if let Some(guard) = guard.filter(|_| !is_explained && waited >= INSPECT_INTERVAL) {
            console.notice(guard.describe(ttl));
            is_explained = true;
        }
        if console.has_progress_line() {
            let reason = obstacle.map(|status| text::busy(status, ttl));
            let reason = reason.unwrap_or_else(|| format!("for {}", text::quoted(&plan.names)));
            let activity = plan.activity();
            console.draw_progress(&format!("{activity} {}: {reason}", rounded(waited)));
        } else if shows_wait && (is_first || guard.is_some() && !is_in_event) {
            is_in_event = guard.is_some();
            print_waiting(plan, console, obstacle, waited);
        }
        is_first = false;
        tokio::time::sleep(if shows_wait {
            INSPECT_INTERVAL
        } else {
            QUIET_INSPECT_INTERVAL
        })
        .await;
    }
}

/// Prints one event for JSON, or one line for `--verbose`.
fn print_waiting(plan: &Plan, console: &Console, obstacle: Option<&LockStatus>, waited: Duration) {
    let ttl = plan.options.ttl;
    let holder = obstacle.and_then(|status| status.holds.first());
    let guard = obstacle.and_then(|status| text::restart_guard(status, ttl));
    let names: Vec<_> = plan.names.iter().map(LockName::as_str).collect();
    console.event(
        "waiting",
        json!({
            "names": names,
            "busy": obstacle.map(|status| status.name.as_str()),
            "holder": holder.map(|hold| json::holder_json(&hold.holder)),
            "restart_guard": json::restart_guard_json(guard, ttl),
            "waited_ms": json::millis(waited),
        }),
    );
    console.detail(match obstacle {
        Some(status) => format!("{}: {}", plan.activity(), text::busy(status, ttl)),
        None => plan.activity().into(),
    });
}

/// The first of the names that cannot be acquired now.
pub(crate) async fn obstacle(client: &Client, plan: &Plan) -> Option<LockStatus> {
    let ttl = plan.options.ttl;
    for name in &plan.names {
        match client.inspect(name).await {
            Ok(status)
                if status.is_held()
                    || status.reserved.is_some()
                    || text::restart_guard(&status, ttl).is_some() =>
            {
                return Some(status);
            }
            // An inspection that fails is not reported: the acquisition reports its own error.
            _ => {}
        }
    }
    None
}

/// Prints one line that names the holder.
async fn report_busy(client: &Client, plan: &Plan, console: &Console, error: &Error) {
    let ttl = plan.options.ttl;
    let inspected = tokio::time::timeout(INSPECT_TIMEOUT, obstacle(client, plan)).await;
    let status = inspected.ok().flatten();
    let holder = status
        .as_ref()
        .and_then(|status| Some(&status.holds.first()?.holder));
    let holder = holder.or(error.holder());
    let name = status
        .as_ref()
        .map(|status| &status.name)
        .or(error.name())
        .unwrap_or(&plan.names[0]);
    let guard = status.as_ref();
    let guard = guard.and_then(|status| text::restart_guard(status, ttl));
    console.event(
        "busy",
        json!({
            "name": name.as_str(),
            "holder": holder.map(json::holder_json),
            "restart_guard": json::restart_guard_json(guard, ttl),
        }),
    );
    let mut reason = match (guard, &status, holder) {
        (Some(guard), ..) => guard.describe(ttl),
        (None, Some(status), _) => text::busy(status, ttl),
        (None, None, Some(holder)) => format!("{name} is held by {}", text::holder(holder)),
        (None, None, None) => format!("{name} is busy"),
    };
    if let (Some(count), [_, _, ..]) = (plan.count, &plan.names[..]) {
        let names = text::quoted(&plan.names);
        reason = match count {
            1 => format!("none of {names} is free: {reason}"),
            _ => format!("fewer than {count} of {names} are free: {reason}"),
        };
    }
    match plan.wait {
        Some(wait) if !wait.is_zero() => {
            console.notice(format!("gave up after {}: {reason}", rounded(wait)));
        }
        _ => console.notice(reason),
    }
}

/// Polls a future once, and returns its output if it is ready.
async fn poll_once<F: Future + ?Sized>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}
