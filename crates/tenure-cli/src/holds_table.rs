//! The table of holds that `list` prints and `watch` draws.

use tenure::{HoldInfo, Status};

use crate::duration::rounded;
use crate::text;

/// One row for each hold, and one for each name that is free but reserved or waited for.
pub(crate) fn holds_table(all: &[Status]) -> String {
    let mut rows = Vec::new();
    for status in all {
        let name = tenure::name::Escaped(status.name.as_str()).to_string();
        let waiting = status
            .queue
            .as_ref()
            .map_or("?".into(), |queue| queue.len().to_string());
        for hold in &status.holds {
            let holder = &hold.holder;
            let pid = if holder.pid == 0 {
                "?".into()
            } else {
                holder.pid.to_string()
            };
            rows.push(vec![
                name.clone(),
                tenure::name::Escaped(&holder.host).to_string(),
                pid,
                text::age(holder).map_or("?".into(), rounded),
                hold.ttl_left.map_or("-".into(), rounded),
                token(hold),
                hold.mode.to_string(),
                waiting.clone(),
                tenure::name::Escaped(&holder.label).to_string(),
            ]);
        }
        if status.holds.is_empty() {
            let reserved = status.reserved.map_or("-".into(), rounded);
            let state = if status.reserved.is_some() {
                "reserved"
            } else {
                "free"
            };
            let dash = || "-".to_string();
            rows.push(vec![
                name,
                dash(),
                dash(),
                dash(),
                reserved,
                dash(),
                state.into(),
                waiting,
                String::new(),
            ]);
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
