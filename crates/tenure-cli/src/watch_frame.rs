//! What `tenure watch` draws on a terminal: the lines of one frame.

use std::cmp::Reverse;
use std::time::Duration;

use clap::ValueEnum;
use tenure::LockStatus;

use crate::duration::rounded;
use crate::holds_table::{self, HEAD};
use crate::text;

/// A name or label that needs more than this part of the width is cut in the middle, so that the other columns stay on
/// a narrow terminal.
const MAX_CELL_PART: usize = 3;

/// Which names come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// The names with the most waiters
    Waiting,
    /// The names that are held for the longest time
    For,
    /// The order of the alphabet
    Name,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// Since when the store does not answer, and the last error.
pub(crate) struct Outage {
    pub(crate) lasts: Duration,
    pub(crate) error: String,
}

/// The lines of one frame. `title` is the store and the time.
pub(crate) fn frame(
    title: &str,
    all: &[LockStatus],
    order: Order,
    size: Size,
    outage: Option<&Outage>,
) -> Vec<String> {
    let (width, height) = (size.width.max(20), size.height.max(5) - 1);
    let state = match outage {
        Some(Outage { lasts, error }) => {
            format!("unreachable for {}, trying again: {error}", rounded(*lasts))
        }
        None => format!("{} held", all.iter().filter(|it| it.is_held()).count()),
    };
    let mut sorted = all.to_vec();
    sort(&mut sorted, order);
    let mut rows = holds_table::rows(&sorted);
    for row in &mut rows {
        for cell in row {
            *cell = cut_in_the_middle(cell, width / MAX_CELL_PART);
        }
    }
    let room = height - 3;
    let hidden = match rows.len() > room {
        true => rows.len() - (room - 1),
        false => 0,
    };
    rows.truncate(rows.len() - hidden);
    let mut lines = vec![title.to_owned(), state];
    lines.extend(text::table(&HEAD, &rows).lines().map(str::to_owned));
    if hidden > 0 {
        lines.push(format!("{hidden} more; write a prefix to see fewer names"));
    }
    let cut = |line: String| line.chars().take(width).collect();
    lines.into_iter().map(cut).collect()
}

fn sort(all: &mut [LockStatus], order: Order) {
    let waiting = |status: &LockStatus| status.queue.as_ref().map_or(0, Vec::len);
    let held_for = |status: &LockStatus| {
        let ages = status
            .holds
            .iter()
            .filter_map(|hold| text::age(&hold.holder));
        ages.max()
    };
    all.sort_by(|one, other| one.name.cmp(&other.name));
    match order {
        Order::Waiting => all.sort_by_key(|status| Reverse(waiting(status))),
        Order::For => all.sort_by_key(|status| Reverse(held_for(status))),
        Order::Name => {}
    }
}

/// The beginning and the end of a text that is too long: names often differ only at their end.
fn cut_in_the_middle(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let begin = most.saturating_sub(2).div_ceil(2);
    let end = most.saturating_sub(2) - begin;
    let head = text.chars().take(begin);
    let tail = text.chars().skip(length - end);
    head.chain("..".chars()).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use tenure::{HoldInfo, Holder, LockName, Mode};

    use super::*;

    const TERMINAL: Size = Size {
        width: 80,
        height: 24,
    };

    fn held(name: &str, waiters: usize) -> LockStatus {
        let mut status = LockStatus::free(LockName::new(name).unwrap());
        let mut holder = Holder::new("build-7", 42);
        holder.label = format!("label of {name}");
        status
            .holds
            .push(HoldInfo::new(holder, Mode::Exclusive, None, None));
        status.queue = Some(vec![Holder::new("web-1", 7); waiters]);
        status
    }

    fn names(lines: &[String]) -> Vec<&str> {
        let rows = lines.iter().skip(3);
        rows.filter_map(|line| line.split_whitespace().next())
            .collect()
    }

    #[test]
    fn names_with_waiters_come_first() {
        let all = [held("a", 0), held("b", 3), held("c", 1)];
        let lines = frame("title", &all, Order::Waiting, TERMINAL, None);
        assert_eq!(names(&lines), ["b", "c", "a"]);
        assert_eq!(lines[1], "3 held");
        let lines = frame("title", &all, Order::Name, TERMINAL, None);
        assert_eq!(names(&lines), ["a", "b", "c"]);
    }

    #[test]
    fn a_long_name_leaves_room_for_the_waiters() {
        let name = format!("{}/end", "x".repeat(200));
        let size = Size {
            width: 60,
            height: 24,
        };
        let lines = frame("title", &[held(&name, 2)], Order::Waiting, size, None);
        assert!(
            lines[3].contains("xx..") && lines[3].contains("x/end "),
            "{lines:?}"
        );
        assert!(lines[2].contains("WAITING"), "{lines:?}");
        assert!(lines.iter().all(|line| line.chars().count() <= 60));
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let all: Vec<_> = (0..31)
            .map(|number| held(&format!("job/{number}"), 0))
            .collect();
        let size = Size {
            width: 80,
            height: 14,
        };
        let lines = frame("title", &all, Order::Waiting, size, None);
        assert_eq!(lines.len(), 13);
        assert!(lines[12].starts_with("22 more"), "{lines:?}");
        let size = Size {
            width: 80,
            height: 35,
        };
        let lines = frame("title", &all, Order::Waiting, size, None);
        assert_eq!(names(&lines).len(), 31);
    }

    #[test]
    fn an_outage_is_shown_above_the_last_table() {
        let outage = Outage {
            lasts: Duration::from_secs(5),
            error: "no connection".into(),
        };
        let lines = frame(
            "title",
            &[held("a", 0)],
            Order::Waiting,
            TERMINAL,
            Some(&outage),
        );
        assert_eq!(
            lines[1],
            "unreachable for 5.0s, trying again: no connection"
        );
        assert_eq!(names(&lines), ["a"]);
    }
}
