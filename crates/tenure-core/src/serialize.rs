//! What clients say about locks, for `serde`: the form that `tenure --json` prints.
//!
//! | Type | Form |
//! | --- | --- |
//! | durations (`ttl_left_ms`, `reserved_ms`) | whole milliseconds; what is below one is cut off |
//! | points in time (`since`) | RFC 3339 in UTC, with milliseconds |
//! | tokens | a number |
//! | what is not known | `null` |
//!
//! All of it is in this file and not beside each type, so that the types can be read without `serde`.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::fence::FencingToken;
use crate::guarantees::{Capability, Cell, Guarantees, Order, Promise};
use crate::holder::{HoldInfo, Holder, LockStatus, PublishedValue, RestartGuard};
use crate::name::LockName;
use crate::options::Mode;
use crate::receipt::Receipt;

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.get())
    }
}

/// A token that was sent along with a request. It proves nothing by itself; the resource compares it.
impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        u64::deserialize(deserializer).map(Self::new)
    }
}

impl Serialize for Receipt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Checked as by `FromStr`.
impl<'de> Deserialize<'de> for Receipt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Checked as by [`LockName::new`].
impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        Self::new(name).map_err(D::Error::custom)
    }
}

#[derive(Serialize, Deserialize)]
struct HolderForm<'a> {
    host: Cow<'a, str>,
    pid: u32,
    label: Cow<'a, str>,
    client: Cow<'a, str>,
    since: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
}

impl<'a> From<&'a Holder> for HolderForm<'a> {
    fn from(holder: &'a Holder) -> Self {
        Self {
            host: Cow::Borrowed(&holder.host),
            pid: holder.pid,
            label: Cow::Borrowed(&holder.label),
            client: Cow::Borrowed(&holder.client),
            since: holder.since.map(|since| Cow::Owned(rfc3339(since))),
            value: (holder.value.as_ref())
                .filter(|value| !value.text.is_empty())
                .map(|value| Cow::Borrowed(&*value.text)),
        }
    }
}

impl HolderForm<'_> {
    fn read<E: serde::de::Error>(self) -> Result<Holder, E> {
        let since = self.since.map(|text| {
            let invalid = || {
                E::custom(format_args!(
                    "{text:?} is no time such as 2026-01-31T09:00:00.000Z"
                ))
            };
            from_rfc3339(&text).ok_or_else(invalid)
        });
        Ok(Holder {
            host: self.host.into_owned(),
            pid: self.pid,
            label: self.label.into_owned(),
            client: self.client.into_owned(),
            since: since.transpose()?,
            // The number orders the values of one term for observers of the store; a text that was printed has none.
            value: self.value.map(|text| PublishedValue::new(text, 0)),
        })
    }
}

impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        HolderForm::from(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Holder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        HolderForm::deserialize(deserializer)?.read()
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ModeForm {
    Exclusive,
    Shared,
    Upgradable,
    Permit,
}

#[derive(Serialize, Deserialize)]
struct HoldForm<'a> {
    #[serde(flatten, borrow)]
    holder: HolderForm<'a>,
    mode: ModeForm,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    permits: Option<NonZeroU32>,
    token: Option<FencingToken>,
    ttl_left_ms: Option<u64>,
}

impl Serialize for HoldInfo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (mode, permits) = match self.mode {
            Mode::Exclusive => (ModeForm::Exclusive, None),
            Mode::Shared => (ModeForm::Shared, None),
            Mode::Upgradable => (ModeForm::Upgradable, None),
            Mode::Permits { limit } => (ModeForm::Permit, Some(limit)),
        };
        let form = HoldForm {
            holder: HolderForm::from(&self.holder),
            mode,
            permits,
            token: self.token,
            ttl_left_ms: self.ttl_left.map(millis),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for HoldInfo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = HoldForm::deserialize(deserializer)?;
        let mode = match (form.mode, form.permits) {
            (ModeForm::Exclusive, _) => Mode::Exclusive,
            (ModeForm::Shared, _) => Mode::Shared,
            (ModeForm::Upgradable, _) => Mode::Upgradable,
            (ModeForm::Permit, Some(limit)) => Mode::Permits { limit },
            (ModeForm::Permit, None) => return Err(D::Error::missing_field("permits")),
        };
        Ok(Self {
            holder: form.holder.read()?,
            mode,
            token: form.token,
            ttl_left: form.ttl_left_ms.map(Duration::from_millis),
        })
    }
}

#[derive(Serialize, Deserialize)]
struct NodesForm {
    agree: usize,
    all: usize,
}

#[derive(Serialize, Deserialize)]
struct RestartGuardForm<'a> {
    server: Cow<'a, str>,
    uptime_ms: u64,
    guard_ms: u64,
}

impl Serialize for RestartGuard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = RestartGuardForm {
            server: Cow::Borrowed(&self.server),
            uptime_ms: millis(self.uptime),
            guard_ms: millis(self.guard),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RestartGuard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = RestartGuardForm::deserialize(deserializer)?;
        let (uptime, guard) = (form.uptime_ms, form.guard_ms);
        let (uptime, guard) = (Duration::from_millis(uptime), Duration::from_millis(guard));
        Ok(Self::new(form.server, uptime, guard))
    }
}

#[derive(Serialize)]
struct StatusForm<'a> {
    name: &'a LockName,
    held: bool,
    holds: &'a [HoldInfo],
    queue: Option<&'a [Holder]>,
    reserved_ms: Option<u64>,
    restart_guard: Option<&'a RestartGuard>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<NodesForm>,
}

/// The same, as it is read; `held` follows from `holds`.
#[derive(Deserialize)]
struct StatusRead {
    name: LockName,
    holds: Vec<HoldInfo>,
    queue: Option<Vec<Holder>>,
    reserved_ms: Option<u64>,
    restart_guard: Option<RestartGuard>,
    nodes: Option<NodesForm>,
}

impl Serialize for LockStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = StatusForm {
            name: &self.name,
            held: self.is_held(),
            holds: &self.holds,
            queue: self.queue.as_deref(),
            reserved_ms: self.reserved.map(millis),
            restart_guard: self.restart_guard.as_ref(),
            nodes: self.nodes.map(|(agree, all)| NodesForm { agree, all }),
        };
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LockStatus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = StatusRead::deserialize(deserializer)?;
        Ok(Self {
            name: read.name,
            holds: read.holds,
            queue: read.queue,
            reserved: read.reserved_ms.map(Duration::from_millis),
            restart_guard: read.restart_guard,
            nodes: read.nodes.map(|nodes| (nodes.agree, nodes.all)),
        })
    }
}

#[derive(Serialize)]
struct CellForm {
    fault: &'static str,
    promise: &'static str,
    late: bool,
    token_regress: bool,
    note: &'static str,
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let form = CellForm {
            fault: self.fault.as_str(),
            promise: match self.promise {
                Promise::Nothing => "nothing",
                Promise::Claims => "claims",
                Promise::Effects => "effects",
                Promise::NotApplicable => "not_applicable",
            },
            late: self.late,
            token_regress: self.token_regress,
            note: self.note,
        };
        form.serialize(serializer)
    }
}

/// What a store can do, and the sentences about it.
#[derive(Serialize)]
struct GuaranteesForm<'a> {
    scheme: &'static str,
    features: Vec<&'static str>,
    #[serde(flatten)]
    texts: TextsForm<'a>,
    faults: &'a [Cell],
}

#[derive(Serialize)]
struct TextsForm<'a> {
    setting: &'a str,
    why_not: &'static str,
    order: &'static str,
    liveness: &'static str,
    clock: &'static str,
    waiting: &'static str,
    token: &'static str,
    loss: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    observers: &'static str,
    fit: &'static str,
}

impl Serialize for Guarantees {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_fair = self.order == Order::Fair;
        let features = [
            (self.exclusive, "exclusive"),
            (self.shared, "shared"),
            (self.upgradable, "upgradable"),
            (self.permits, "permits"),
            (is_fair, "fair"),
            (self.min_hold, "min-hold"),
            (self.lock_delay, "lock-delay"),
            (Capability::Elections.is_in(self), "elections"),
            (Capability::Detach.is_in(self), "detach"),
        ];
        let features = features.iter().filter(|(can, _)| *can);
        let form = GuaranteesForm {
            scheme: self.scheme,
            features: features.map(|(_, feature)| *feature).collect(),
            texts: TextsForm {
                setting: &self.setting,
                why_not: self.why_not,
                order: self.order_text(),
                liveness: self.liveness,
                clock: self.clock,
                waiting: self.waiting,
                token: self.token,
                loss: self.loss,
                observers: self.observers,
                fit: self.fit,
            },
            faults: &self.faults,
        };
        form.serialize(serializer)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const DAY: u64 = 86_400;
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH: i64 = 719_468;
/// Days of 400 years, after which the calendar repeats itself.
const ERA: i64 = 146_097;

/// `2026-01-31T09:00:00.123Z`. A time before 1970 is shown as the start of 1970.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
    let (year, month, day) = date(i64::try_from(days).unwrap_or(i64::MAX - EPOCH));
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (second, milli) = (second % 60, since.subsec_millis());
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Year, month and day of a day that is counted from 1970-01-01. Years are counted from March, so that the leap
/// day is their last (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + EPOCH;
    let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The inverse of [`date`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * ERA + year * 365 + year / 4 - year / 100 + day - EPOCH
}

/// Reads what [`rfc3339`] writes, with any number of digits after the second.
fn from_rfc3339(text: &str) -> Option<SystemTime> {
    let (date_text, time_text) = text.strip_suffix('Z')?.split_once('T')?;
    let (whole, fraction) = time_text.split_once('.').unwrap_or((time_text, "0"));
    let [year, month, day] = numbers(date_text, '-')?;
    let [hour, minute, second] = numbers(whole, ':')?;
    let is_in_range = hour < 24 && minute < 60 && second < 61;
    let count = days(year, month, day);
    // What is no day of the calendar comes back as another one.
    if !is_in_range || !(1..=12).contains(&month) || date(count) != (year, month, day) {
        return None;
    }
    if fraction.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let seconds = u64::try_from(count * 86_400 + hour * 3600 + minute * 60 + second).ok()?;
    UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

fn numbers(text: &str, separator: char) -> Option<[i64; 3]> {
    let mut parts = text.split(separator).map(|part| {
        let is_number = !part.is_empty() && part.len() <= 4;
        let is_number = is_number && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.parse().ok()).flatten()
    });
    let all = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarantees::Fault;

    #[test]
    fn times_are_written_and_read() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (951_868_799, "2000-02-29T23:59:59.000Z"),
            (1_709_210_096, "2024-02-29T12:34:56.000Z"),
            (1_769_850_000, "2026-01-31T09:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(rfc3339(time), text);
            assert_eq!(from_rfc3339(text), Some(time));
        }
        let time = UNIX_EPOCH + Duration::from_nanos(1_234_567_890);
        assert_eq!(rfc3339(time), "1970-01-01T00:00:01.234Z");
        assert_eq!(from_rfc3339("1970-01-01T00:00:01.23456789Z"), Some(time));
        // Every day once, over leap years and turns of centuries.
        for day in 0..200_000 {
            let (year, month, of_month) = date(day);
            assert_eq!(days(year, month, of_month), day);
        }
        for text in [
            "",
            "Z",
            "2026-01-31",
            "2026-01-31T09:00:00",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "2026-01-31T24:00:00Z",
            "2026-01-31T09:60:00Z",
            "2026-01-31T09:00:00.Z",
            "2026-01-31T09:00:00.xZ",
            "1969-12-31T00:00:00Z",
            "+026-01-31T09:00:00Z",
            "2026-01-31-01T09:00:00Z",
        ] {
            assert_eq!(from_rfc3339(text), None, "{text}");
        }
    }

    fn status() -> LockStatus {
        let mut holder = Holder::new("build-7", 42);
        holder.label = "why \"x\"".into();
        holder.since = Some(UNIX_EPOCH + Duration::from_millis(1_769_850_000_123));
        let limit = NonZeroU32::MIN;
        let left = Some(Duration::from_millis(29_700));
        let holds = [
            (Mode::Exclusive, Some(u64::MAX), left),
            (Mode::Shared, None, None),
            (Mode::Upgradable, Some(6), left),
            (Mode::Permits { limit }, Some(7), left),
        ];
        let mut status = LockStatus::free(LockName::new("orders/42").unwrap()).with_nodes(2, 3);
        status.holds = holds
            .map(|(mode, token, left)| HoldInfo::new(holder.clone(), mode, token, left))
            .to_vec();
        status.queue = Some(vec![Holder::default()]);
        status.reserved = left;
        let (uptime, guard) = (Duration::from_millis(1_500), Duration::from_secs(30));
        status.restart_guard = Some(RestartGuard::new("db:6379", uptime, guard));
        status
    }

    #[test]
    fn a_status_is_read_back_as_it_was_written() {
        let whole = status();
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<LockStatus>(&text).unwrap(), whole);
        assert!(text.starts_with(
            r#"{"name":"orders/42","held":true,"holds":[{"host":"build-7","pid":42,"#
        ));
        let free = LockStatus::free(LockName::new("a").unwrap());
        let text = serde_json::to_string(&free).unwrap();
        assert_eq!(
            text,
            r#"{"name":"a","held":false,"holds":[],"queue":null,"reserved_ms":null,"restart_guard":null}"#
        );
        assert_eq!(serde_json::from_str::<LockStatus>(&text).unwrap(), free);
        // Text in a value that is owned, and fields of a newer version.
        let mut value = serde_json::to_value(&whole).unwrap();
        value["holds"][0]["for_ms"] = 5.into();
        assert_eq!(serde_json::from_value::<LockStatus>(value).unwrap(), whole);
    }

    #[test]
    fn what_cannot_be_is_not_read() {
        let text = serde_json::to_string(&status()).unwrap();
        for (from, to) in [
            ("orders/42", ""),
            ("09:00:00", "25:00:00"),
            ("\"permit\"", "\"optimistic\""),
            ("\"permits\":1,", ""),
            ("\"permits\":1", "\"permits\":0"),
            ("\"token\":7", "\"token\":-7"),
        ] {
            let wrong = text.replace(from, to);
            assert_ne!(wrong, text, "{from}");
            assert!(
                serde_json::from_str::<LockStatus>(&wrong).is_err(),
                "{wrong}"
            );
        }
        let token: FencingToken = serde_json::from_str("17").unwrap();
        assert_eq!(token.get(), 17);
    }

    #[test]
    fn guarantees_have_their_features_and_cells() {
        let cell = Cell::new(Fault::StoreRestart, Promise::NotApplicable, "why").late();
        let mut guarantees = Guarantees::new("x", Order::Fair, vec![cell]);
        guarantees.min_hold = true;
        let value = serde_json::to_value(&guarantees).unwrap();
        assert_eq!(
            value["features"],
            serde_json::json!(["exclusive", "fair", "min-hold"])
        );
        assert_eq!(value["order"], "first come, first served");
        let cell = serde_json::json!({
            "fault": "restart", "promise": "not_applicable", "late": true, "token_regress": false, "note": "why"
        });
        assert_eq!(value["faults"], serde_json::json!([cell]));
    }
}
