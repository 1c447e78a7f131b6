//! Events, holders and states for programs.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use tenure::{Holder, Leader, LockStatus, RestartGuard};

use crate::text::{age, restart_guard};

/// One event as a line of JSON.
pub(crate) fn event_line(event: &str, mut fields: Value) -> Value {
    fields["event"] = event.into();
    fields["time"] = timestamp(SystemTime::now()).into();
    fields
}

/// `2026-01-31T09:00:00Z`
pub(crate) fn timestamp(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

pub(crate) fn status_json(status: &LockStatus) -> Value {
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

/// Why the server grants nothing yet; null if it grants leases.
pub(crate) fn restart_guard_json(guard: Option<&RestartGuard>, ttl: Duration) -> Value {
    guard.map_or(Value::Null, |guard| {
        let mut value = json!(guard);
        value["left_ms"] = millis(guard.left(ttl)).into();
        value
    })
}

pub(crate) fn holder_json(holder: &Holder) -> Value {
    let mut value = json!(holder);
    value["for_ms"] = for_ms(holder);
    value
}

pub(crate) fn leader_json(leader: &Leader) -> Value {
    let mut value = holder_json(&leader.holder);
    value["token"] = json!(leader.token);
    value["value"] = json!(leader.value());
    value
}

/// How long the holder has held the lock (or waited for it), by the clock of this moment.
fn for_ms(holder: &Holder) -> Value {
    age(holder).map(millis).into()
}

/// Whole milliseconds.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tenure::{HoldInfo, LockName, Mode};

    use super::*;

    #[test]
    fn the_json_of_a_status_stays_the_same() {
        let mut holder = Holder::new("build-7", 42);
        holder.label = "why \"x\"".into();
        holder.client = "0a1b2c3d".into();
        let since = SystemTime::UNIX_EPOCH + Duration::from_micros(1_769_850_061_234_567);
        holder.since = Some(since);
        let permits = Mode::Permits {
            limit: std::num::NonZeroU32::MIN.saturating_add(2),
        };
        let left = Some(Duration::from_micros(29_700_900));
        let mut status = LockStatus::free(LockName::new("orders/\u{1b}42").unwrap());
        status.holds = [
            (Mode::Exclusive, Some(17), left),
            (Mode::Shared, None, None),
            (permits, Some(u64::MAX), None),
        ]
        .map(|(mode, token, left)| HoldInfo::new(holder.clone(), mode, token, left))
        .to_vec();
        status.queue = Some(vec![Holder::new("", 0)]);
        // The age depends on the clock, so it is removed.
        let shown = |status: &LockStatus| {
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
        let mut free = LockStatus::free(LockName::new("a").unwrap()).with_nodes(3, 5);
        free.reserved = Some(Duration::from_millis(1_500));
        let expected = r#"{"held":false,"holds":[],"name":"a","nodes":{"agree":3,"all":5},"queue":null,"reserved_ms":1500,"restart_guard":null}"#;
        assert_eq!(shown(&free), expected);
    }
}
