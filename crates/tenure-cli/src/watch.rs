//! `tenure watch`: holders and queues as they change.

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

/// Looks faster than this would be a load, not a view.
const SHORTEST: Duration = Duration::from_millis(50);

/// Watches until a signal comes, or nobody reads any more.
pub(crate) async fn watch(common: &Common, args: &args::Watch, console: &Console) -> Exit {
    let work = async |client: &Client, signals: &mut Signals| {
        let look = async {
            match io::stdout().is_terminal() && !console.json {
                true => view(client, common, args).await,
                false => changes(client, args, console).await,
            }
        };
        let ended = tokio::select! {
            biased;
            _ = signals.next() => Ok(()),
            ended = look => ended,
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

/// The table, drawn over the last one.
async fn view(client: &Client, common: &Common, args: &args::Watch) -> Result<(), Error> {
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
        // Back to the first line of the last table; each line is erased behind its end, and the rest below.
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
        tokio::time::sleep(args.interval.max(SHORTEST)).await;
    }
}

/// A line for each hold that began or ended, and for each queue that changed.
async fn changes(client: &Client, args: &args::Watch, console: &Console) -> Result<(), Error> {
    let mut before = BTreeMap::new();
    loop {
        let now = snapshot(&client.list(&*args.prefix).await?);
        let mut lines = Vec::new();
        for (key, was) in &before {
            if !now.contains_key(key) {
                lines.push(line(console, "ended", key, was));
            }
        }
        for (key, is) in &now {
            match before.get(key) {
                None => lines.push(line(console, "held", key, is)),
                Some(was) if was.waiting != is.waiting => {
                    lines.push(line(console, "queue", key, is))
                }
                Some(_) => {}
            }
        }
        if lines.iter().try_for_each(console::print_result).is_err() {
            return Ok(());
        }
        before = now;
        tokio::time::sleep(args.interval.max(SHORTEST)).await;
    }
}

/// What identifies a hold: its name, its token, and (for foreign holders, which have none) its place.
type Key = (String, Option<u64>, usize);

struct Seen {
    holder: tenure::Holder,
    waiting: Option<usize>,
}

fn snapshot(all: &[Status]) -> BTreeMap<Key, Seen> {
    let mut seen = BTreeMap::new();
    for status in all {
        let waiting = status.queue.as_ref().map(Vec::len);
        for (place, hold) in status.holds.iter().enumerate() {
            let token = hold.token.map(u64::from);
            let place = if token.is_some() { 0 } else { place };
            let key = (status.name.as_str().to_string(), token, place);
            seen.insert(
                key,
                Seen {
                    holder: hold.holder.clone(),
                    waiting,
                },
            );
        }
    }
    seen
}

fn line(console: &Console, event: &str, (name, token, _): &Key, seen: &Seen) -> String {
    if console.json {
        let fields = json!({
            "name": name,
            "token": token,
            "holder": json::holder_json(&seen.holder),
            "waiting": seen.waiting,
        });
        return json::event_line(event, fields).to_string();
    }
    let name = tenure::name::Escaped(name);
    let token = token.map_or(String::new(), |token| format!(", token {token}"));
    let time = humantime::format_rfc3339_seconds(SystemTime::now());
    match event {
        "queue" => {
            let waiting = seen
                .waiting
                .map_or("?".into(), |waiting| waiting.to_string());
            format!("{time} \"{name}\" {waiting} waiting")
        }
        "ended" => {
            let held = text::age(&seen.holder)
                .map_or(String::new(), |age| format!(" after {}", rounded(age)));
            format!("{time} \"{name}\" ended{held}{token}")
        }
        _ => format!(
            "{time} \"{name}\" held by {}{token}",
            text::holder(&seen.holder)
        ),
    }
}
