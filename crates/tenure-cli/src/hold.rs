//! `tenure hold`: hold in the foreground, a line per change, until end of input or a signal.

use std::io::{self, Read as _};
use std::pin::pin;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tenure::{Client, Guard, State};
use tokio::sync::oneshot;

use crate::acquire;
use crate::args::{Common, Hold};
use crate::console::{self, Console};
use crate::exit::Exit;
use crate::json;
use crate::plan::Plan;
use crate::results::report_error;
use crate::signals::Signals;
use crate::store;
use crate::text;

/// Holds until told to end.
pub(crate) async fn hold(common: &Common, args: &Hold, console: &Console) -> Exit {
    let plan = match Plan::new(&args.names, &args.acquire) {
        Ok(plan) => plan,
        Err(error) => return report_error(console, &error, args.acquire.busy_exit_code),
    };
    let work = async |client: &Client, signals: &mut Signals| {
        let began = Instant::now();
        match acquire::acquire(client, &plan, signals, console, || ()).await {
            Ok(guard) => {
                let ttl = plan.options.ttl;
                keep(guard, ttl, began.elapsed(), signals, console).await
            }
            Err(exit) => exit,
        }
    };
    store::with_client_and_signals(common, work)
        .await
        .unwrap_or_else(|failure| failure.report(console, plan.busy_code))
}

async fn keep(
    guard: Guard,
    ttl: Duration,
    waited: Duration,
    signals: &mut Signals,
    console: &Console,
) -> Exit {
    let names = text::quoted(guard.tokens().map(|(name, _)| name));
    let tokens: Vec<_> = guard.tokens().map(|(_, token)| token.to_string()).collect();
    let fields = acquire::acquired_json(&guard, waited);
    let mut open = tell(
        console,
        "acquired",
        fields,
        &format!("acquired {names}, token {}", tokens.join(", ")),
    );
    let mut lost = pin!(guard.lost());
    let mut ended = pin!(end_of_input());
    // A renewal that is overdue shows at the next look; nothing is decided by it.
    let mut look = tokio::time::interval((ttl / 10).max(Duration::from_millis(1)));
    let mut state = State::Held;
    while open {
        tokio::select! {
            biased;
            reason = &mut lost => {
                let fields = json!({ "reason": reason.to_string() });
                tell(console, "lost", fields, &format!("lost {names}: {reason}"));
                let _ = guard.release().await;
                return Exit::Lost;
            }
            _ = signals.next() => open = false,
            () = &mut ended => open = false,
            _ = look.tick() => {
                let now = guard.state();
                if now != state {
                    let left = guard.remaining();
                    let fields = json!({ "remaining_ms": json::millis(left) });
                    open = match now {
                        State::AtRisk => tell(console, "at_risk", fields, &format!("at risk {names}: a renewal is overdue, {} left", crate::duration::rounded(left))),
                        State::Held => tell(console, "held", fields, &format!("held {names} again")),
                        // The loss has its own line.
                        _ => true,
                    };
                    state = now;
                }
            }
        }
    }
    match guard.release().await {
        Ok(()) => {
            tell(console, "released", json!({}), &format!("released {names}"));
            Exit::Done
        }
        Err(error) if error.is_lost() => {
            tell(
                console,
                "lost",
                json!({ "reason": error.to_string() }),
                &format!("lost {names}: {error}"),
            );
            Exit::Lost
        }
        Err(error) => report_error(console, &error, Exit::BUSY),
    }
}

/// One line of result; `false` when nobody reads it any more.
fn tell(console: &Console, event: &str, fields: Value, line: &str) -> bool {
    let result = match console.json {
        true => console::print_result(json::event_line(event, fields)),
        false => console::print_result(line),
    };
    result.is_ok()
}

/// Resolves when standard input is at its end. What is read is thrown away.
async fn end_of_input() {
    let (ended, end) = oneshot::channel();
    // A thread of its own: a read of a terminal cannot be cancelled, and must not keep us from ending.
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
