//! The mode of a hold: the name of its node says with which mode the node was made, and the field `hold` of its data how
//! the mode was changed since. `docs/stores/zookeeper.md` publishes this format.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_core::holder::Holder;
use tenure_core::options::Mode;
use tenure_core::support::{HolderRecord, millis_down};
use zookeeper_client::Stat;

/// What a node says about its owner.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NodeRecord {
    #[serde(flatten)]
    pub(super) holder: HolderRecord,
    /// In ms.
    pub(super) ttl: u64,
    /// How many permits there are, for the node of a permit of which the name does not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<NonZeroU32>,
    /// Set when the mode of the hold was changed, or when its token is not the czxid of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold: Option<ChangedHold>,
    /// The token of the hold whose holder was asked to let go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) asked: Option<u64>,
}

/// What has changed since the node was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChangedHold {
    /// `None`: the mode is that of the node's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mode: Option<HoldMode>,
    /// For a hold that waits to become exclusive: the number of the last other contender that holds, less its own number.
    /// That contender came before the announcement. `None`: not known yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last: Option<u32>,
    /// `None`: the czxid of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<WrittenToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum HoldMode {
    Shared,
    Upgradable,
    /// Upgradable, and waits to become exclusive.
    Upgrading,
    Exclusive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum WrittenToken {
    Number(u64),
    /// The mzxid of the node: the transaction that wrote this record.
    Written(Mzxid),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mzxid {
    Mzxid,
}

/// The token of a hold whose record is written in the transaction that grants the token.
pub(super) const MZXID: WrittenToken = WrittenToken::Written(Mzxid::Mzxid);

impl NodeRecord {
    pub(super) fn new(holder: &Holder, ttl: Duration) -> Self {
        Self {
            holder: holder.into(),
            ttl: millis_down(ttl),
            limit: None,
            hold: None,
            asked: None,
        }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings and numbers can be written")
    }

    pub(super) fn mode(&self) -> Option<HoldMode> {
        self.hold.and_then(|hold| hold.mode)
    }

    /// Prepares the record for another write of the node: then the mzxid of the node is another one, and the token stays.
    pub(super) fn keep_token(&mut self, token: u64) {
        if let Some(hold) = self.hold.as_mut().filter(|hold| hold.token == Some(MZXID)) {
            hold.token = Some(WrittenToken::Number(token));
        }
    }
}

/// The fencing token of the hold with that node.
pub(super) fn token(stat: &Stat, record: Option<&NodeRecord>) -> u64 {
    let written = record.and_then(|record| record.hold?.token);
    match written {
        Some(WrittenToken::Number(token)) => token,
        Some(WrittenToken::Written(Mzxid::Mzxid)) => stat.mzxid.unsigned_abs(),
        None => stat.czxid.unsigned_abs(),
    }
}

/// Whether a hold of which the node's name says this mode may have another one by now.
pub(super) fn may_change(mode: Mode) -> bool {
    matches!(mode, Mode::Exclusive | Mode::Upgradable)
}

/// The mode of a hold by the name of its node and by its data. `record`: `None` if the data cannot be read, or are not of
/// this library. Then the hold excludes as much as it may.
pub(super) fn current_mode(named: Mode, record: Option<&NodeRecord>) -> Mode {
    match (named, record.map(NodeRecord::mode)) {
        (Mode::Exclusive | Mode::Upgradable, Some(Some(HoldMode::Shared))) => Mode::Shared,
        (Mode::Upgradable, None | Some(Some(HoldMode::Exclusive))) => Mode::Exclusive,
        _ => named,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> Option<NodeRecord> {
        serde_json::from_slice(text.as_bytes()).ok()
    }

    #[test]
    fn records_are_those_of_the_docs() {
        let mut holder = Holder::default();
        holder.host = "h".into();
        let mut written = NodeRecord::new(&holder, Duration::from_secs(1));
        let plain = written.to_bytes();
        assert!(!String::from_utf8(plain).unwrap().contains("hold\""));
        for (hold, text) in [
            (
                ChangedHold {
                    mode: Some(HoldMode::Upgrading),
                    last: Some(3),
                    token: None,
                },
                r#"{"mode":"upgrading","last":3}"#,
            ),
            (
                ChangedHold {
                    mode: Some(HoldMode::Exclusive),
                    last: None,
                    token: Some(MZXID),
                },
                r#"{"mode":"exclusive","token":"mzxid"}"#,
            ),
            (
                ChangedHold {
                    mode: Some(HoldMode::Shared),
                    last: None,
                    token: Some(WrittenToken::Number(42)),
                },
                r#"{"mode":"shared","token":42}"#,
            ),
        ] {
            written.hold = Some(hold);
            let whole = String::from_utf8(written.to_bytes()).unwrap();
            assert!(whole.ends_with(&format!(r#""hold":{text}}}"#)), "{whole}");
            assert_eq!(record(&whole).unwrap().hold, Some(hold), "{whole}");
        }
    }

    #[test]
    fn a_token_survives_another_write() {
        for (hold, kept) in [
            (
                r#"{"hold":{"token":"mzxid"}}"#,
                Some(WrittenToken::Number(7)),
            ),
            (r#"{"hold":{"token":5}}"#, Some(WrittenToken::Number(5))),
            (r#"{"hold":{"mode":"shared"}}"#, None),
        ] {
            let mut record = record(hold).unwrap();
            record.keep_token(7);
            assert_eq!(record.hold.unwrap().token, kept, "{hold}");
        }
    }

    #[test]
    fn what_cannot_be_read_excludes() {
        let (exclusive, upgradable) = (Mode::Exclusive, Mode::Upgradable);
        for foreign in ["127.0.0.1", "__REVOKE__", "", r#"{"hold":{"mode":"new"}}"#] {
            let foreign = record(foreign);
            assert_eq!(current_mode(exclusive, foreign.as_ref()), exclusive);
            assert_eq!(current_mode(upgradable, foreign.as_ref()), exclusive);
            assert_eq!(current_mode(Mode::Shared, foreign.as_ref()), Mode::Shared);
        }
        for (named, hold, mode) in [
            (exclusive, "{}", exclusive),
            (exclusive, r#"{"hold":{"mode":"shared"}}"#, Mode::Shared),
            // No exclusive hold becomes upgradable.
            (exclusive, r#"{"hold":{"mode":"upgradable"}}"#, exclusive),
            (upgradable, "{}", upgradable),
            (upgradable, r#"{"hold":{"mode":"upgrading"}}"#, upgradable),
            (upgradable, r#"{"hold":{"mode":"exclusive"}}"#, exclusive),
            (upgradable, r#"{"hold":{"mode":"shared"}}"#, Mode::Shared),
        ] {
            assert_eq!(current_mode(named, record(hold).as_ref()), mode, "{hold}");
        }
    }
}
