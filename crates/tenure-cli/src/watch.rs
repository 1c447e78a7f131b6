//! `tenure watch`: prints holders and queues as they change.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tenure::{Client, Error, LockStatus};

use crate::args::{self, Common};
use crate::console::{self, Console};
use crate::duration::rounded;
use crate::exit::Exit;
use crate::json;
use crate::keys::Keys;
use crate::results::report_error;
use crate::signals::Signals;
use crate::store::{self, NotConnected};
use crate::text;
use crate::watch_frame::{Outage, Size, frame};

/// More frequent inspections would load the store.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Watches until a signal comes, or until the reader of standard output is gone.
pub(crate) async fn watch(common: &Common, args: &args::Watch, console: &Console) -> Exit {
    let work = async |client: &Client, signals: &mut Signals, _| {
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
    match store::with_client_and_signals(common, console, Duration::ZERO, work).await {
        Ok(exit) => exit,
        Err(NotConnected::Interrupted(_)) => Exit::Done,
        Err(failure) => failure.report(console, Exit::BUSY),
    }
}

/// The names of the store, as its last answer listed them, and the outage since that answer.
#[derive(Default)]
struct View {
    all: Vec<LockStatus>,
    outage: Option<(Instant, Error)>,
}

impl View {
    /// Asks the store. If the store cannot be reached, that is an error at the first time and an outage later.
    async fn update(&mut self, client: &Client, prefix: &str, is_first: bool) -> Result<(), Error> {
        match client.list(prefix).await {
            Ok(all) => {
                self.all = all;
                self.outage = None;
            }
            Err(error) if is_first || !error.is_retryable() => return Err(error),
            Err(error) => {
                let since = self
                    .outage
                    .take()
                    .map_or_else(Instant::now, |(since, _)| since);
                self.outage = Some((since, error));
            }
        }
        Ok(())
    }

    fn outage(&self) -> Option<Outage> {
        let (since, error) = self.outage.as_ref()?;
        Some(Outage {
            lasts: since.elapsed(),
            error: format!("{error:#}"),
        })
    }
}

/// Draws the table again at each interval, over the previous one, until the key `q` is pressed.
async fn draw_table(client: &Client, common: &Common, args: &args::Watch) -> Result<(), Error> {
    let url = tenure::redacted_url(store::url(common));
    let keys = Keys::read();
    let mut view = View::default();
    let mut drawn = 0;
    loop {
        view.update(client, &args.prefix, drawn == 0).await?;
        let size = rustix::termios::tcgetwinsize(io::stdout());
        let (width, height) = size.map_or((80, 24), |size| (size.ws_col, size.ws_row));
        let size = Size {
            width: width.into(),
            height: height.into(),
        };
        let time = humantime::format_rfc3339_seconds(SystemTime::now());
        let title = format!("{url}  {time}  q: quit");
        let lines = frame(&title, &view.all, args.sort, size, view.outage().as_ref());
        // The cursor goes back to the first line of the last table. What is left of each line, and below, is erased.
        let mut output = match drawn {
            0 => String::new(),
            drawn => format!("\x1b[{drawn}A\r"),
        };
        for line in &lines {
            output += &format!("{line}\x1b[K\n");
        }
        output += "\x1b[J";
        drawn = lines.len();
        if write(&output).is_err() {
            return Ok(());
        }
        let pause = tokio::time::sleep(args.interval.max(MIN_INTERVAL));
        tokio::select! {
            () = pause => {}
            () = keys.quit() => return Ok(()),
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Prints a line for each hold that began or ended, and for each queue that changed.
async fn print_changes(
    client: &Client,
    args: &args::Watch,
    console: &Console,
) -> Result<(), Error> {
    let (mut before, mut view, mut is_first) = (BTreeMap::new(), View::default(), true);
    loop {
        let was_reachable = view.outage.is_none();
        view.update(client, &args.prefix, is_first).await?;
        is_first = false;
        let now = snapshot(&view.all);
        let mut lines = Vec::new();
        match &view.outage {
            Some((_, error)) if was_reachable => {
                lines.push(describe_outage(console, "unreachable", Some(error)));
            }
            None if !was_reachable => lines.push(describe_outage(console, "reachable", None)),
            _ => {}
        }
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

fn describe_outage(console: &Console, event: &str, error: Option<&Error>) -> String {
    let message = error.map(ToString::to_string);
    if console.json {
        return json::event_line(event, json!({ "message": message })).to_string();
    }
    let time = humantime::format_rfc3339_seconds(SystemTime::now());
    match message {
        Some(message) => format!("{time} the store is unreachable, trying again: {message}"),
        None => format!("{time} the store answers again"),
    }
}

/// Identifies a hold: its name, its token, and (for foreign holders, which have no token) its position in the list.
type HoldKey = (String, Option<u64>, usize);

struct HoldSnapshot {
    holder: tenure::Holder,
    ttl_left: Option<Duration>,
    waiting: Option<usize>,
}

fn snapshot(all: &[LockStatus]) -> BTreeMap<HoldKey, HoldSnapshot> {
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
                    ttl_left: hold.ttl_left,
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
            "ttl_left_ms": hold.ttl_left.map(json::millis),
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
        _ => {
            let end = hold.ttl_left.map_or(String::new(), |left| {
                format!(", ends in {} unless renewed", rounded(left))
            });
            let holder = text::holder(&hold.holder);
            format!("{time} \"{name}\" held by {holder}{token}{end}")
        }
    }
}
