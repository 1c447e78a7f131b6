//! Names, holders and tables for people.

use std::ffi::OsStr;
use std::time::Duration;

use tenure::name::Escaped;
use tenure::{Holder, Leader, LockName, LockStatus, RestartGuard};

use crate::duration::rounded;

/// Names in quotes, `"a", "b"`. Characters that could harm a terminal are escaped.
pub(crate) fn quoted<'a>(names: impl IntoIterator<Item = &'a LockName>) -> String {
    let names: Vec<_> = names.into_iter().map(ToString::to_string).collect();
    names.join(", ")
}

/// An argument of the command line. Characters that could harm a terminal are escaped.
pub(crate) fn escaped(argument: &OsStr) -> String {
    Escaped(&argument.to_string_lossy()).to_string()
}

/// A holder on one line: `build-7, pid 4242, "deploy", since 2026-01-31T09:00:00Z (3s)`.
pub(crate) fn holder(holder: &Holder) -> String {
    let host = if holder.host.is_empty() {
        "an unknown host"
    } else {
        &holder.host
    };
    let mut line = Escaped(host).to_string();
    // A holder with the pid 0 is one whose process the store does not know.
    if holder.pid != 0 {
        line += &format!(", pid {}", holder.pid);
    }
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

/// A leader on one line: `build-7, pid 4242, since 2026-01-31T09:00:00Z (3s), token 17: http://10.0.0.7:8080`.
pub(crate) fn leader(leader: &Leader) -> String {
    let line = leader_process(leader);
    match leader.value() {
        Some(value) => format!("{line}: {}", Escaped(value)),
        None => line,
    }
}

/// The same, without what the leader publishes.
pub(crate) fn leader_process(leader: &Leader) -> String {
    let line = holder(&leader.holder);
    match leader.token {
        Some(token) => format!("{line}, token {token}"),
        None => line,
    }
}

/// `Some` if the server was started so lately that it grants no lease of that length yet.
pub(crate) fn restart_guard(status: &LockStatus, ttl: Duration) -> Option<&RestartGuard> {
    let guard = status.restart_guard.as_ref();
    guard.filter(|guard| !guard.left(ttl).is_zero())
}

/// Why a request with that ttl cannot acquire the lock now: `"x" is held by …`.
pub(crate) fn busy(status: &LockStatus, ttl: Duration) -> String {
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

/// How long the holder has held the lock (or waited for it).
pub(crate) fn age(holder: &Holder) -> Option<Duration> {
    holder.since.and_then(|since| since.elapsed().ok())
}

/// Rows under a head, with aligned columns. The last column is not padded.
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

/// The lines of a text, none longer than `width` unless one word is. The lines after the first one begin with `indent`
/// spaces, for which the first one has room already.
pub(crate) fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let room = width.saturating_sub(indent).max(20);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().filter(|line| {
            let length = line.chars().count();
            length == 0 || length + 1 + word.chars().count() <= room
        });
        match line {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) => {
                line.push(' ');
                line.push_str(word);
            }
            None => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{:indent$}", ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_between_words() {
        let text = "the store grants nothing until then";
        assert_eq!(
            wrapped(text, 24, 4),
            "the store grants\n    nothing until then"
        );
        assert_eq!(wrapped(text, 200, 4), text);
        let word = "x".repeat(50);
        assert_eq!(wrapped(&format!("a {word}"), 30, 2), format!("a\n  {word}"));
    }

    #[test]
    fn a_table_is_aligned_by_characters() {
        let rows = [
            vec!["ü".into(), "1".into()],
            vec!["long".into(), "2".into()],
        ];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME  N\nü     1\nlong  2");
    }

    #[test]
    fn a_holder_cannot_write_to_the_terminal() {
        let mut evil = Holder::new("\u{1b}[2Jhost", 7);
        evil.label = "a\nb".into();
        assert_eq!(holder(&evil), "\\u{1b}[2Jhost, pid 7, \"a\\nb\"");
    }
}
