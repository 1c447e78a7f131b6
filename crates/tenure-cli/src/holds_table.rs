//! The table of holds that `list` prints and `watch` draws.

use tenure::name::Escaped;
use tenure::{HoldInfo, LockStatus};

use crate::duration::rounded;
use crate::text;

/// The columns, the most useful ones first: a narrow terminal cuts the others off.
pub(crate) const HEAD: [&str; 9] = [
    "NAME", "HOST", "PID", "FOR", "LEFT", "WAITING", "LABEL", "MODE", "TOKEN",
];

/// The table of these names.
pub(crate) fn holds_table(all: &[LockStatus]) -> String {
    text::table(&HEAD, &rows(all))
}

/// One row for each hold, and one for each name that is free but reserved or waited for.
pub(crate) fn rows(all: &[LockStatus]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for status in all {
        let name = Escaped(status.name.as_str()).to_string();
        let waiting = waiting(status);
        for hold in &status.holds {
            let holder = &hold.holder;
            rows.push(vec![
                name.clone(),
                Escaped(&holder.host).to_string(),
                match holder.pid {
                    0 => "?".into(),
                    pid => pid.to_string(),
                },
                text::age(holder).map_or("?".into(), rounded),
                hold.ttl_left.map_or("-".into(), rounded),
                waiting.clone(),
                Escaped(&holder.label).to_string(),
                hold.mode.to_string(),
                token(hold),
            ]);
        }
        if status.holds.is_empty() {
            let (left, state) = match status.reserved {
                Some(left) => (rounded(left), "reserved"),
                None => ("-".into(), "free"),
            };
            let row = [&name, "-", "-", "-", &left, &waiting, "", state, "-"];
            rows.push(row.map(String::from).to_vec());
        }
    }
    rows
}

/// How many wait, and for how long the first one of them has waited.
fn waiting(status: &LockStatus) -> String {
    let Some(queue) = &status.queue else {
        return "?".into();
    };
    let longest = queue.iter().filter_map(text::age).max();
    let longest = longest.map_or(String::new(), |age| format!(" ({})", rounded(age)));
    format!("{}{longest}", queue.len())
}

pub(crate) fn token(hold: &HoldInfo) -> String {
    hold.token.map_or("-".into(), |token| token.to_string())
}
