//! The table of holds that `list` prints and `watch` draws.

use tenure::name::Escaped;
use tenure::{HoldInfo, Status};

use crate::duration::rounded;
use crate::text;

/// One row for each hold, and one for each name that is free but reserved or waited for.
pub(crate) fn holds_table(all: &[Status]) -> String {
    let mut rows = Vec::new();
    for status in all {
        let name = Escaped(status.name.as_str()).to_string();
        let queue = status.queue.as_ref();
        let waiting = queue.map_or("?".into(), |queue| queue.len().to_string());
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
                token(hold),
                hold.mode.to_string(),
                waiting.clone(),
                Escaped(&holder.label).to_string(),
            ]);
        }
        if status.holds.is_empty() {
            let (left, state) = match status.reserved {
                Some(left) => (rounded(left), "reserved"),
                None => ("-".into(), "free"),
            };
            let row = [&name, "-", "-", "-", &left, "-", state, &waiting, ""];
            rows.push(row.map(String::from).to_vec());
        }
    }
    let head = [
        "NAME", "HOST", "PID", "FOR", "LEFT", "TOKEN", "MODE", "WAITING", "LABEL",
    ];
    text::table(&head, &rows)
}

pub(crate) fn token(hold: &HoldInfo) -> String {
    hold.token.map_or("-".into(), |token| token.to_string())
}
