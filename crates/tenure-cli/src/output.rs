//! What `tenure` says: results on standard output, talk on standard error, each for people or as JSON lines.

use std::cell::Cell;
use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::name::Escaped;
use tenure::{Error, Holder, LockName, RestartGuard, Status};

use crate::args::Common;
use crate::duration::rounded;

/// The voice of one run of `tenure`.
pub(crate) struct Talk {
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) verbose: bool,
    /// Standard error is a terminal where a line may be drawn anew.
    terminal: bool,
    /// A line that will be drawn anew is on the terminal now.
    line_shown: Cell<bool>,
}

impl Talk {
    pub(crate) fn new(common: &Common) -> Self {
        if common.verbose > 1 {
            let log = tracing_subscriber::fmt()
                .with_writer(io::stderr)
                .with_ansi(false);
            log.with_max_level(tracing::Level::DEBUG).init();
        }
        Self {
            json: common.json,
            quiet: common.quiet,
            verbose: common.verbose > 0,
            terminal: io::stderr().is_terminal(),
            line_shown: Cell::new(false),
        }
    }

    /// An error, whatever was asked for.
    pub(crate) fn error(&self, message: impl Display) {
        if self.json {
            self.event("error", json!({ "message": message.to_string() }));
        } else {
            self.say(message);
        }
    }

    /// Something that people should know, unless they asked for quiet.
    pub(crate) fn notice(&self, message: impl Display) {
        if !self.json && !self.quiet {
            self.say(message);
        }
    }

    /// Something for those who asked for more.
    pub(crate) fn detail(&self, message: impl Display) {
        if !self.json && self.verbose {
            self.say(message);
        }
    }

    /// An event with its fields, for programs.
    pub(crate) fn event(&self, event: &str, fields: Value) {
        if self.json {
            let _ = writeln!(io::stderr(), "{}", event_line(event, fields));
        }
    }

    /// Whether somebody wants to hear who holds what is waited for.
    pub(crate) fn tells_of_waiting(&self) -> bool {
        self.json || self.verbose || self.draws()
    }

    /// Whether a line may be drawn on the terminal and drawn anew.
    pub(crate) fn draws(&self) -> bool {
        self.terminal && !self.quiet && !self.json
    }

    /// Draws the one line that is drawn anew, cut to the width of the terminal.
    pub(crate) fn draw(&self, line: &str) {
        let width = rustix::termios::tcgetwinsize(io::stderr())
            .map_or(80, |size| usize::from(size.ws_col))
            .max(20);
        let cut: String = line.chars().take(width - 1).collect();
        // The line is erased to its end after it was written: less flicker than the other way round.
        let _ = write!(io::stderr(), "\r{cut}\x1b[K");
        self.line_shown.set(true);
    }

    /// Takes the drawn line away.
    pub(crate) fn erase(&self) {
        if self.line_shown.replace(false) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }

    fn say(&self, message: impl Display) {
        self.erase();
        // Whoever closed standard error does not want to hear that it is closed.
        let _ = writeln!(io::stderr(), "tenure: {message}");
    }
}

/// One event as a line of JSON.
pub(crate) fn event_line(event: &str, mut fields: Value) -> Value {
    fields["event"] = event.into();
    fields["time"] = timestamp(SystemTime::now()).into();
    fields
}

/// One line of result on standard output.
///
/// # Errors
/// Those of writing. A reader that went away is one; then there is no use in going on.
pub(crate) fn result(line: impl Display) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// Names in quotes, with what could harm a terminal escaped: `"a", "b"`.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a LockName>) -> String {
    let names: Vec<_> = names.into_iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// `2026-01-31T09:00:00Z`
pub(crate) fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// A holder on one line: `build-7, pid 4242, "deploy", since 2026-01-31T09:00:00Z (3s)`.
pub(crate) fn holder(holder: &Holder) -> String {
    let host = if holder.host.is_empty() {
        "an unknown host"
    } else {
        &holder.host
    };
    let mut line = format!("{}, pid {}", Escaped(host), holder.pid);
    if !holder.label.is_empty() {
        line += &format!(", \"{}\"", Escaped(&holder.label));
    }
    if let Some(since) = holder.since {
        line += &format!(", since {}", humantime::format_rfc3339_seconds(since));
        if let Some(age) = age(holder) {
            line += &format!(" ({})", rounded(age));
        }
    }
    line
}

/// The server grants no lease of that length yet, because it was started too lately.
pub(crate) fn restart_guard(status: &Status, ttl: Duration) -> Option<&RestartGuard> {
    let guard = status.restart_guard.as_ref();
    guard.filter(|guard| !guard.left(ttl).is_zero())
}

/// Why a name cannot be had now, by a request with that ttl: `"x" is held by …`.
pub(crate) fn busy(status: &Status, ttl: Duration) -> String {
    let name = &status.name;
    if let Some(guard) = restart_guard(status, ttl) {
        let (uptime, left) = (rounded(guard.uptime), rounded(guard.left(ttl)));
        let server = &guard.server;
        return format!(
            "{name} is free, but {server} was started {uptime} ago and grants nothing for another {left}"
        );
    }
    match (status.holds.as_slice(), status.reserved) {
        ([one], _) => format!("{name} is held by {}", holder(&one.holder)),
        ([first, others @ ..], _) => {
            format!(
                "{name} is held by {}, and {} more",
                holder(&first.holder),
                others.len()
            )
        }
        ([], Some(left)) => format!("{name} is free, but reserved for another {}", rounded(left)),
        ([], None) => format!("{name} was held a moment ago"),
    }
}

/// How long it has been held (or waited for).
pub(crate) fn age(holder: &Holder) -> Option<Duration> {
    holder.since.and_then(|since| since.elapsed().ok())
}

/// A status for programs.
pub(crate) fn status_json(status: &Status) -> Value {
    let mut value = json!(status);
    for (at, hold) in status.holds.iter().enumerate() {
        value["holds"][at]["for_ms"] = for_ms(&hold.holder);
    }
    for (at, holder) in status.queue.iter().flatten().enumerate() {
        value["queue"][at]["for_ms"] = for_ms(holder);
    }
    let guard = restart_guard(status, Duration::ZERO);
    value["restart_guard"] = restart_guard_json(guard, Duration::ZERO);
    value
}

/// Why the server grants nothing yet, for programs; null when it does.
pub(crate) fn restart_guard_json(guard: Option<&RestartGuard>, ttl: Duration) -> Value {
    guard.map_or(Value::Null, |guard| {
        let mut value = json!(guard);
        value["left_ms"] = millis(guard.left(ttl)).into();
        value
    })
}

/// A holder for programs.
pub(crate) fn holder_json(holder: &Holder) -> Value {
    let mut value = json!(holder);
    value["for_ms"] = for_ms(holder);
    value
}

/// How long it has been held (or waited for), by the clock of this moment.
fn for_ms(holder: &Holder) -> Value {
    age(holder).map(millis).into()
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// An error of the library, without the names of functions that only programs can call.
pub(crate) fn error_text(error: &Error) -> String {
    error.to_string()
}

/// Rows under a head, columns aligned. The last column is not padded.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count());
        cells.chain([head[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let padded: Vec<_> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        padded.join("  ").trim_end().to_string()
    };
    let body = rows
        .iter()
        .map(|row| line(row.iter().map(String::as_str).collect()));
    [line(head.to_vec())]
        .into_iter()
        .chain(body)
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use tenure::{HoldInfo, Mode};

    use super::*;

    #[test]
    fn a_table_is_aligned_by_characters() {
        let rows = [
            vec!["ü".into(), "1".into()],
            vec!["long".into(), "2".into()],
        ];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME  N\nü     1\nlong  2");
    }

    #[test]
    fn the_json_of_a_status_is_known_byte_for_byte() {
        let mut holder = Holder::new("build-7", 42);
        holder.label = "why \"x\"".into();
        holder.client = "0a1b2c3d".into();
        let since = SystemTime::UNIX_EPOCH + Duration::from_micros(1_769_850_061_234_567);
        holder.since = Some(since);
        let permits = Mode::Permits {
            limit: std::num::NonZeroU32::MIN.saturating_add(2),
        };
        let left = Some(Duration::from_micros(29_700_900));
        let mut status = Status::free(LockName::new("orders/\u{1b}42").unwrap());
        status.holds = [
            (Mode::Exclusive, Some(17), left),
            (Mode::Shared, None, None),
            (permits, Some(u64::MAX), None),
        ]
        .map(|(mode, token, left)| HoldInfo::new(holder.clone(), mode, token, left))
        .to_vec();
        status.queue = Some(vec![Holder::new("", 0)]);
        // How long ago it was depends on the clock.
        let shown = |status: &Status| {
            let text = status_json(status).to_string();
            let mut parts = text.split("\"for_ms\":");
            let first = parts.next().unwrap_or_default().to_owned();
            parts.fold(first, |all, part| {
                all + "\"for_ms\":" + part.trim_start_matches(|c: char| c.is_ascii_digit())
            })
        };
        let one = r#""client":"0a1b2c3d","for_ms":,"host":"build-7","label":"why \"x\"","mode""#;
        let since = r#""pid":42,"since":"2026-01-31T09:01:01.234Z""#;
        let expected = format!(
            r#"{{"held":true,"holds":[{{{one}:"exclusive",{since},"token":17,"ttl_left_ms":29700}},{{{one}:"shared",{since},"token":null,"ttl_left_ms":null}},{{{one}:"permit","permits":3,{since},"token":18446744073709551615,"ttl_left_ms":null}}],"name":"orders/\u001b42","queue":[{{"client":"","for_ms":null,"host":"","label":"","pid":0,"since":null}}],"reserved_ms":null,"restart_guard":null}}"#
        );
        assert_eq!(shown(&status), expected);
        let mut free = Status::free(LockName::new("a").unwrap()).with_nodes(3, 5);
        free.reserved = Some(Duration::from_millis(1_500));
        let expected = r#"{"held":false,"holds":[],"name":"a","nodes":{"agree":3,"all":5},"queue":null,"reserved_ms":1500,"restart_guard":null}"#;
        assert_eq!(shown(&free), expected);
    }

    #[test]
    fn a_holder_cannot_write_to_the_terminal() {
        let mut evil = Holder::new("\u{1b}[2Jhost", 7);
        evil.label = "a\nb".into();
        assert_eq!(holder(&evil), "\\u{1b}[2Jhost, pid 7, \"a\\nb\"");
    }
}
