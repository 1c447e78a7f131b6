//! `tenure watch`: prints holders and queues as they change.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use serde_json::json;
use tenure::{Client, Error, Status};

use crate::args::{self, Common};
use crate::console::{self, Console};
use crate::duration::rounded;
use crate::exit::Exit;
use crate::holds_table::holds_table;
use crate::json;
use crate::results::report_error;
use crate::signals::Signals;
use crate::store::{self, NotConnected};
use crate::text;

/// More frequent inspections would load the store.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Watches until a signal comes, or until the reader of standard output is gone.
pub(crate) async fn watch(common: &Common, args: &args::Watch, console: &Console) -> Exit {
    let work = async |client: &Client, signals: &mut Signals| {
        let watch = async {
            match io::stdout().is_terminal() && !console.json {
                true => draw_table(client, common, args).await,
                false => print_changes(client, args, console).await,
            }
        };
        let ended = tokio::select! {
            biased;
            _ = signals.next() => Ok(()),
            ended = watch => ended,
        };
        match ended {
            Ok(()) => Exit::Done,
            Err(error) => report_error(console, &error, Exit::BUSY),
        }
    };
    match store::with_client_and_signals(common, work).await {
        Ok(exit) => exit,
        Err(NotConnected::Interrupted(_)) => Exit::Done,
        Err(failure) => failure.report(console, Exit::BUSY),
    }
}

/// Draws the table over the last one, again and again.
async fn draw_table(client: &Client, common: &Common, args: &args::Watch) -> Result<(), Error> {
    let url = tenure::redacted_url(store::url(common));
    let mut drawn = 0;
    loop {
        let all = client.list(&*args.prefix).await?;
        let size = rustix::termios::tcgetwinsize(io::stdout());
        let (width, height) = size.map_or((80, 24), |size| {
            (usize::from(size.ws_col), usize::from(size.ws_row))
        });
        let head = format!(
            "{url}  {} held  {}",
            all.len(),
            humantime::format_rfc3339_seconds(SystemTime::now())
        );
        let table = holds_table(&all);
        let lines: Vec<_> = [head.as_str(), ""]
            .into_iter()
            .chain(table.lines())
            .take(height.max(4) - 1)
            .collect();
        // The cursor goes back to the first line of the last table. What is left of each line, and below, is erased.
        let mut frame = if drawn > 0 {
            format!("\x1b[{drawn}A\r")
        } else {
            String::new()
        };
        for line in &lines {
            frame.extend(line.chars().take(width.max(20)));
            frame += "\x1b[K\n";
        }
        frame += "\x1b[J";
        drawn = lines.len();
        let mut stdout = io::stdout().lock();
        if stdout
            .write_all(frame.as_bytes())
            .and_then(|()| stdout.flush())
            .is_err()
        {
            return Ok(());
        }
        drop(stdout);
        tokio::time::sleep(args.interval.max(MIN_INTERVAL)).await;
    }
}

/// Prints a line for each hold that began or ended, and for each queue that changed.
async fn print_changes(
    client: &Client,
    args: &args::Watch,
    console: &Console,
) -> Result<(), Error> {
    let mut before = BTreeMap::new();
    loop {
        let now = snapshot(&client.list(&*args.prefix).await?);
        let mut lines = Vec::new();
        for (key, was) in &before {
            if !now.contains_key(key) {
                lines.push(describe_change(console, "ended", key, was));
            }
        }
        for (key, is) in &now {
            match before.get(key) {
                None => lines.push(describe_change(console, "held", key, is)),
                Some(was) if was.waiting != is.waiting => {
                    lines.push(describe_change(console, "queue", key, is))
                }
                Some(_) => {}
            }
        }
        if lines.iter().try_for_each(console::print_result).is_err() {
            return Ok(());
        }
        before = now;
        tokio::time::sleep(args.interval.max(MIN_INTERVAL)).await;
    }
}

/// Identifies a hold: its name, its token, and (for foreign holders, which have no token) its position in the list.
type HoldKey = (String, Option<u64>, usize);

struct HoldSnapshot {
    holder: tenure::Holder,
    waiting: Option<usize>,
}

fn snapshot(all: &[Status]) -> BTreeMap<HoldKey, HoldSnapshot> {
    let mut snapshot = BTreeMap::new();
    for status in all {
        let waiting = status.queue.as_ref().map(Vec::len);
        for (position, hold) in status.holds.iter().enumerate() {
            let token = hold.token.map(u64::from);
            let position = if token.is_some() { 0 } else { position };
            let key = (status.name.as_str().to_string(), token, position);
            snapshot.insert(
                key,
                HoldSnapshot {
                    holder: hold.holder.clone(),
                    waiting,
                },
            );
        }
    }
    snapshot
}

fn describe_change(
    console: &Console,
    event: &str,
    (name, token, _): &HoldKey,
    hold: &HoldSnapshot,
) -> String {
    if console.json {
        let fields = json!({
            "name": name,
            "token": token,
            "holder": json::holder_json(&hold.holder),
            "waiting": hold.waiting,
        });
        return json::event_line(event, fields).to_string();
    }
    let name = tenure::name::Escaped(name);
    let token = token.map_or(String::new(), |token| format!(", token {token}"));
    let time = humantime::format_rfc3339_seconds(SystemTime::now());
    match event {
        "queue" => {
            let waiting = hold
                .waiting
                .map_or("?".into(), |waiting| waiting.to_string());
            format!("{time} \"{name}\" {waiting} waiting")
        }
        "ended" => {
            let held = text::age(&hold.holder)
                .map_or(String::new(), |age| format!(" after {}", rounded(age)));
            format!("{time} \"{name}\" ended{held}{token}")
        }
        _ => format!(
            "{time} \"{name}\" held by {}{token}",
            text::holder(&hold.holder)
        ),
    }
}
