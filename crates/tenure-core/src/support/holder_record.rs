//! What a store keeps about a holder, for people to read.

use serde::{Deserialize, Serialize};

use crate::holder::{Holder, PublishedValue};

/// The part of [`Holder`] that is written into stores, as JSON. Other versions and other programs read it, so names
/// and order of the fields are part of the published formats.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HolderRecord {
    /// See [`Holder::host`].
    pub host: String,
    /// See [`Holder::pid`].
    pub pid: u32,
    /// See [`Holder::label`].
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// See [`Holder::client`].
    pub client: String,
    /// The text of [`Holder::value`]. A lock has none, and its record has no such field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The number of that value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
}

impl HolderRecord {
    /// The record as it is written.
    ///
    /// # Panics
    /// Never: strings and numbers can be written.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("strings and numbers can be written")
    }

    /// The holder in a record, as far as the text is one.
    pub fn read(json: &str) -> Holder {
        serde_json::from_str::<Self>(json)
            .unwrap_or_default()
            .into()
    }
}

impl From<&Holder> for HolderRecord {
    fn from(holder: &Holder) -> Self {
        Self {
            host: holder.host.clone(),
            pid: holder.pid,
            label: holder.label.clone(),
            client: holder.client.clone(),
            value: holder.value.as_ref().map(|value| value.text.to_string()),
            number: holder.value.as_ref().map(|value| value.number),
        }
    }
}

impl From<HolderRecord> for Holder {
    /// The store adds `since`, where it knows that.
    fn from(record: HolderRecord) -> Self {
        let number = record.number.unwrap_or(0);
        let value = record.value;
        Self {
            host: record.host,
            pid: record.pid,
            label: record.label,
            client: record.client,
            since: None,
            value: value.map(|text| PublishedValue::new(text, number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_written_in_a_fixed_order_and_read_leniently() {
        let mut record = HolderRecord {
            host: "h".into(),
            pid: 7,
            label: "why".into(),
            client: "c".into(),
            ..HolderRecord::default()
        };
        let text = r#"{"host":"h","pid":7,"label":"why","client":"c"}"#;
        assert_eq!(record.to_json(), text);
        record.label.clear();
        assert_eq!(record.to_json(), r#"{"host":"h","pid":7,"client":"c"}"#);
        let text = record.to_json();
        assert_eq!(HolderRecord::read(&text), Holder::from(record));
        for text in [r#"{"new":1}"#, "nonsense", ""] {
            assert_eq!(HolderRecord::read(text), Holder::default());
        }
    }

    #[test]
    fn only_the_record_of_a_candidate_has_a_value() {
        let mut holder = Holder::new("h", 7);
        let text = HolderRecord::from(&holder).to_json();
        assert_eq!(text, r#"{"host":"h","pid":7,"client":""}"#);
        for (value, fields) in [
            ("", r#""value":"","number":3"#),
            ("a", r#""value":"a","number":3"#),
        ] {
            holder.value = Some(PublishedValue::new(value, 3));
            let text = HolderRecord::from(&holder).to_json();
            assert!(text.ends_with(&format!("{fields}}}")), "{text}");
            assert_eq!(HolderRecord::read(&text), holder);
        }
    }
}
