//! `tenure hold`: holds locks in the foreground, with a line for each change, until standard input ends or a signal comes.

use std::fmt::Display;
use std::io::{self, Read as _};
use std::pin::pin;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure::{Client, Guard, HoldState};
use tokio::sync::oneshot;

use crate::acquire;
use crate::args::{Common, Hold};
use crate::console::{self, Console};
use crate::duration::rounded;
use crate::exit::Exit;
use crate::json;
use crate::plan::Plan;
use crate::results::report_error;
use crate::signals::{self, Signals};
use crate::store;
use crate::text;

pub(crate) async fn hold(common: &Common, args: &Hold, console: &Console) -> Exit {
    let plan = match Plan::new(&args.names, &args.acquire) {
        Ok(plan) => plan,
        Err(error) => return report_error(console, &error, args.acquire.waiting.busy_exit_code),
    };
    let (busy, wait) = (plan.busy_code, plan.wait_for_store());
    let work = async |client: &Client, signals: &mut Signals, waited| {
        let plan = plan.after_waiting(waited);
        let began = Instant::now();
        let guard = match acquire::acquire(client, &plan, signals, console, || ()).await {
            Ok(guard) => guard,
            Err(exit) => return exit,
        };
        let lines = Lines {
            console,
            names: text::quoted(guard.tokens().map(|(name, _)| name)),
        };
        if lines.print_grant(&guard, began.elapsed())
            && report_changes(&guard, plan.options.ttl, signals, &lines).await == End::Lost
        {
            let _ = guard.release().await;
            return Exit::Lost;
        }
        release(guard, &lines).await
    };
    store::with_client_and_signals(common, console, wait, work)
        .await
        .unwrap_or_else(|failure| failure.report(console, busy))
}

/// Why a hold ends.
#[derive(PartialEq, Eq)]
enum End {
    /// A signal came, standard input ended, or the reader of standard output is gone.
    Requested,
    Lost,
}

/// Prints the changes of the hold until one of them ends it.
async fn report_changes(
    guard: &Guard,
    ttl: Duration,
    signals: &mut Signals,
    lines: &Lines<'_>,
) -> End {
    let mut lost = pin!(guard.lost());
    let mut input_end = pin!(end_of_input());
    // No decision depends on how soon an overdue renewal is printed.
    let mut state_check = tokio::time::interval((ttl / 10).max(Duration::from_millis(1)));
    let mut state = HoldState::Held;
    loop {
        tokio::select! {
            biased;
            Some(reason) = &mut lost => {
                lines.print_loss(reason);
                return End::Lost;
            }
            _ = signals.next() => return End::Requested,
            () = &mut input_end => return End::Requested,
            _ = state_check.tick() => {
                let now = guard.state();
                if now != state && !lines.print_state(now, guard.remaining()) {
                    return End::Requested;
                }
                state = now;
            }
        }
    }
}

async fn release(guard: Guard, lines: &Lines<'_>) -> Exit {
    match guard.release().await {
        Ok(()) => {
            lines.print("released", json!({}), &format!("released {}", lines.names));
            Exit::Done
        }
        Err(error) if error.is_lost() => {
            lines.print_loss(error);
            Exit::Lost
        }
        Err(error) => report_error(lines.console, &error, Exit::BUSY),
    }
}

/// The lines of results. Each function returns `false` when the reader is gone.
struct Lines<'a> {
    console: &'a Console,
    /// The names that are held, in quotes.
    names: String,
}

impl Lines<'_> {
    fn print_grant(&self, guard: &Guard, waited: Duration) -> bool {
        let tokens: Vec<_> = guard.tokens().map(|(_, token)| token.to_string()).collect();
        let line = format!("acquired {}, token {}", self.names, tokens.join(", "));
        self.print("acquired", acquire::acquired_json(guard, waited), &line)
    }

    fn print_state(&self, state: HoldState, left: Duration) -> bool {
        let names = &self.names;
        let fields = json!({ "remaining_ms": json::millis(left) });
        match state {
            HoldState::AtRisk => {
                let left = rounded(left);
                let line = format!("at risk {names}: a renewal is overdue, {left} left");
                self.print("at_risk", fields, &line)
            }
            HoldState::Held => self.print("held", fields, &format!("held {names} again")),
            // `print_loss` prints the loss.
            _ => true,
        }
    }

    fn print_loss(&self, reason: impl Display) {
        let fields = json!({ "reason": format!("{reason:#}") });
        self.print("lost", fields, &format!("lost {}: {reason:#}", self.names));
    }

    fn print(&self, event: &str, fields: Value, line: &str) -> bool {
        let result = match self.console.json {
            true => console::print_result(json::event_line(event, fields)),
            false => console::print_result(line),
        };
        result.is_ok()
    }
}

/// Resolves when standard input ends. The input is discarded. In the background of a shell the terminal is not read, so
/// there is no end.
async fn end_of_input() {
    if signals::is_in_background() {
        return std::future::pending().await;
    }
    let (ended, end) = oneshot::channel();
    // A read of a terminal cannot be cancelled, so it has a thread that does not keep the process from ending.
    let reader = std::thread::Builder::new().spawn(move || {
        let mut buffer = [0; 512];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => break,
                _ => {}
            }
        }
        let _ = ended.send(());
    });
    if reader.is_ok() {
        let _ = end.await;
    }
}
