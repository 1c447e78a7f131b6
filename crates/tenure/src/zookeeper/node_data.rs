//! What the data of a contender's node say about its owner: a record of ours, the bare value of a candidate, or what another
//! program has written.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use zookeeper_client::Stat;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{Holder, PublishedValue};

use super::mode::NodeRecord;
use super::names::Dialect;

/// What Curator's `Revoker` writes into the node of a holder that is asked to let go.
pub(super) const REVOKE: &[u8] = b"__REVOKE__";

/// The data of a node.
#[derive(Clone)]
pub(super) struct NodeData {
    /// `None`: this user may not read them.
    bytes: Option<Vec<u8>>,
    /// As far as the data are a record, also that of another version of this library.
    record: Option<NodeRecord>,
}

impl NodeData {
    pub(super) fn read(bytes: Vec<u8>) -> Self {
        let record = serde_json::from_slice(&bytes).ok();
        let bytes = Some(bytes);
        Self { bytes, record }
    }

    pub(super) fn unreadable() -> Self {
        let (bytes, record) = (None, None);
        Self { bytes, record }
    }

    pub(super) fn is_readable(&self) -> bool {
        self.bytes.is_some()
    }

    /// What decides about modes and tokens.
    pub(super) fn record(&self) -> Option<&NodeRecord> {
        self.record.as_ref()
    }

    pub(super) fn into_record(self) -> Option<NodeRecord> {
        self.record
    }

    /// The record, if this library has written it: its records name their client. A value that is JSON is none.
    pub(super) fn own_record(&self) -> Option<&NodeRecord> {
        let record = self.record.as_ref();
        record.filter(|record| !record.holder.client.is_empty())
    }

    pub(super) fn is(&self, bytes: &[u8]) -> bool {
        self.bytes.as_deref() == Some(bytes)
    }

    /// Whether the holder under this token was asked to let go.
    pub(super) fn is_asked(&self, token: u64) -> bool {
        let asked = self.own_record().and_then(|record| record.asked);
        asked == Some(token) || self.is(REVOKE)
    }

    /// What others see of the owner of a node with these data.
    pub(super) fn holder(&self, stat: &Stat, dialect: Dialect) -> Holder {
        let mut holder = match self.own_record() {
            Some(record) => record.holder.clone().into(),
            None => self.foreign_holder(dialect),
        };
        if let Some(value) = &mut holder.value {
            // The server counts the writes, also those of other programs, so that no value is older than one before it.
            value.number = u64::try_from(stat.version).unwrap_or(0);
        }
        let made = Duration::from_millis(stat.ctime.unsigned_abs());
        holder.since = SystemTime::checked_add(&UNIX_EPOCH, made);
        holder
    }

    /// The owner of a node without a record.
    fn foreign_holder(&self, dialect: Dialect) -> Holder {
        let mut holder = Holder::default();
        // Candidates of ours write no more than their value there.
        if !dialect.has_bare_values() {
            holder.label = "another program".into();
        }
        let value = self.bytes.as_ref().map(|_| self.bare_value());
        holder.value = value.map(|text| PublishedValue::new(text, 0));
        holder
    }

    /// The data as a value; empty if they cannot be one.
    fn bare_value(&self) -> Arc<str> {
        let bytes = self.bytes.as_deref().unwrap_or_default();
        let is_value = bytes.len() <= PublishedValue::MAX_LEN && bytes != REVOKE;
        let text = std::str::from_utf8(bytes).ok().filter(|_| is_value);
        text.unwrap_or_default().into()
    }
}

/// What is written into the node of a contender: the bare value of a candidate if the dialect has bare values, and a record
/// otherwise.
pub(super) fn to_write(dialect: Dialect, holder: &Holder, record: &NodeRecord) -> Vec<u8> {
    match &holder.value {
        Some(value) if dialect.has_bare_values() => value.text.as_bytes().to_vec(),
        _ => record.to_bytes(),
    }
}

/// Refuses a bare value that would be read as something else: as a record, whose `hold` decides about modes, or as a request
/// to let go.
pub(super) fn check_value(dialect: Dialect, holder: &Holder) -> Result<(), Error> {
    let Some(value) = holder.value.as_ref().filter(|_| dialect.has_bare_values()) else {
        return Ok(());
    };
    let data = NodeData::read(value.text.as_bytes().to_vec());
    let has_hold = data.record().is_some_and(|record| record.hold.is_some());
    if has_hold || data.own_record().is_some() || data.is(REVOKE) {
        let what = "other clients would take this value for a record of tenure or for `__REVOKE__`; publish another value, or leave `dialect` out of the URL";
        return Err(Error::new(ErrorKind::Invalid, what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(text: &str) -> NodeData {
        NodeData::read(text.as_bytes().to_vec())
    }

    fn stat(version: i32) -> Stat {
        Stat {
            czxid: 1,
            mzxid: 2,
            ctime: 5_000,
            mtime: 6_000,
            version,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 1,
            data_length: 0,
            num_children: 0,
            pzxid: 1,
        }
    }

    fn candidate(text: &str) -> Holder {
        let mut holder = Holder::new("h", 7);
        holder.client = "c".into();
        holder.value = Some(PublishedValue::new(text, 3));
        holder
    }

    fn record(holder: &Holder) -> NodeRecord {
        NodeRecord::new(holder, Duration::from_secs(1))
    }

    #[test]
    fn a_candidate_is_read_back_as_it_was_written() {
        let holder = candidate("http://h:8080");
        for dialect in [Dialect::Curator, Dialect::ReadWrite, Dialect::SessionPrefix] {
            let written = to_write(dialect, &holder, &record(&holder));
            let read = NodeData::read(written).holder(&stat(4), dialect);
            assert_eq!((read.host.as_str(), read.pid), ("h", 7));
            let value = read.value.unwrap();
            assert_eq!((&*value.text, value.number), ("http://h:8080", 4));
        }
        for dialect in [Dialect::Selector, Dialect::Latch] {
            let written = to_write(dialect, &holder, &record(&holder));
            assert_eq!(written, b"http://h:8080");
            let read = NodeData::read(written).holder(&stat(4), dialect);
            assert_eq!(&*read.value.unwrap().text, "http://h:8080");
            let lock = Holder::new("h", 7);
            let written = to_write(dialect, &lock, &record(&lock));
            assert!(written.starts_with(b"{"), "a lock says who holds it");
        }
    }

    #[test]
    fn a_lock_has_no_value_and_the_data_of_another_program_are_one() {
        let mut lock = candidate("");
        lock.value = None;
        let written = record(&lock).to_bytes();
        let read = NodeData::read(written).holder(&stat(0), Dialect::Curator);
        assert_eq!(read.value, None);
        let value = |data: &NodeData| {
            let holder = data.holder(&stat(2), Dialect::Curator);
            assert_eq!(holder.label, "another program");
            holder.value.map(|value| value.text.to_string())
        };
        for (text, read) in [
            ("worker-7", "worker-7"),
            (r#"{"url":"http://h"}"#, r#"{"url":"http://h"}"#),
            ("", ""),
            ("__REVOKE__", ""),
        ] {
            assert_eq!(value(&data(text)).as_deref(), Some(read), "{text}");
        }
        let long = "x".repeat(PublishedValue::MAX_LEN + 1);
        assert_eq!(value(&data(&long)).as_deref(), Some(""));
        let binary = NodeData::read(vec![0x12, 0xff]);
        assert_eq!(value(&binary).as_deref(), Some(""));
        assert_eq!(value(&NodeData::unreadable()), None);
    }

    #[test]
    fn a_request_to_let_go_is_for_one_token_or_for_the_node() {
        let mut asked = record(&candidate("a"));
        asked.asked = Some(9);
        let asked = NodeData::read(asked.to_bytes());
        assert!(asked.is_asked(9) && !asked.is_asked(8));
        assert!(data("__REVOKE__").is_asked(8));
        assert!(!data("worker-7").is_asked(8) && !NodeData::unreadable().is_asked(8));
    }

    #[test]
    fn a_value_that_would_decide_about_a_hold_is_refused() {
        let hold = r#"{"hold":{"mode":"shared"}}"#;
        let ours = String::from_utf8(record(&candidate("a")).to_bytes()).unwrap();
        for text in [hold, ours.as_str(), "__REVOKE__"] {
            let holder = candidate(text);
            let refused = check_value(Dialect::Latch, &holder).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{text}");
            assert!(check_value(Dialect::Curator, &holder).is_ok());
        }
        for text in ["", "worker-7", r#"{"url":"http://h"}"#, "[1]"] {
            assert!(
                check_value(Dialect::Selector, &candidate(text)).is_ok(),
                "{text}"
            );
        }
    }
}
