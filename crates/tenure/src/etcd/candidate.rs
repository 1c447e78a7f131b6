//! What a candidate of an election has in the store beside its key, whose value is the bare value of the election.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::PublishedValue;
use tenure_core::store::Request;

use super::names::Directory;
use super::record::KeyRecord;
use super::wire::KeyValue;

/// The second key of a candidate, which has the record that other contenders have in their key. Both keys are made, moved and
/// deleted together. Other programs write and read the bare value, so the record has no place in the first key.
#[derive(Clone)]
pub(super) struct Candidate {
    /// See [`Directory::record_key`].
    pub(super) record_key: Vec<u8>,
    pub(super) record: KeyRecord,
    /// The value with which the key is made.
    pub(super) first_value: Arc<str>,
    /// The mod revision of the key when this client wrote it last; 0: as it was created.
    pub(super) modified: i64,
}

impl Candidate {
    /// The candidate that a request stands for. `None`: the request is one for a lock.
    pub(super) fn of(
        request: &Request,
        directory: &Directory,
        key: &[u8],
        record: &KeyRecord,
    ) -> Option<Self> {
        let value = request.holder.value.as_ref()?;
        Some(Self {
            record_key: directory.record_key(key),
            record: record.clone(),
            first_value: value.text.clone(),
            modified: 0,
        })
    }
}

/// Refuses a value that contenders would take for the record of a lock: they would read its mode.
pub(super) fn check_value(text: &str) -> Result<(), Error> {
    match KeyRecord::parse(text.as_bytes()) {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Invalid,
            "the value of the election reads as the record of a lock in etcd (its fields `owner` or `reserved`); publish another text",
        )),
    }
}

/// The value of a leader as others see it. Its number is the mod revision, which grows with each value of any program.
pub(super) fn published(kv: &KeyValue) -> PublishedValue {
    let text = String::from_utf8_lossy(&kv.value);
    PublishedValue::new(&*text, u64::try_from(kv.mod_revision).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_reads_as_the_record_of_a_lock_is_refused() {
        for value in ["", "http://h:1", "{}", r#"{"owner":"me","mode":"shared"}"#] {
            check_value(value).unwrap();
        }
        let owner = "0123456789abcdef0123456789abcdef";
        for value in [
            format!(r#"{{"owner":"{owner}"}}"#),
            format!(r#"{{"owner":"{owner}","mode":"shared"}}"#),
            r#"{"mode":"reserved"}"#.to_owned(),
            r#"{"reserved":true}"#.to_owned(),
        ] {
            let err = check_value(&value).unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Invalid, "{value}");
        }
    }

    #[test]
    fn a_value_of_another_program_may_be_any_bytes() {
        let kv = KeyValue {
            value: b"a\xff".to_vec(),
            mod_revision: 7,
            ..KeyValue::default()
        };
        let value = published(&kv);
        assert_eq!((&*value.text, value.number), ("a\u{fffd}", 7));
    }
}
