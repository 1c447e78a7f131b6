//! The data of a directory: a request to let go, where the nodes of the contenders have no place for one, and what the writes
//! of the directory say about tokens.

use serde::Deserialize;
use zookeeper_client::Stat;

use super::errors::RequestError;
use super::session::Session;

/// The data of a directory whose contenders have bare values.
#[derive(Deserialize)]
pub(super) struct DirectoryRecord {
    /// The token of the hold whose holder was asked to let go.
    pub(super) asked: u64,
    /// The mzxid of the directory, as if no request had been written: no token so far is greater than this number and the
    /// czxids of the contenders.
    pub(super) last: u64,
    /// The version of the data that this record has replaced: `last` is out of date if other data were written since.
    pub(super) version: i32,
}

impl DirectoryRecord {
    pub(super) fn read(data: &[u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    pub(super) fn to_json(&self) -> String {
        let Self {
            asked,
            last,
            version,
        } = self;
        format!(r#"{{"asked":{asked},"last":{last},"version":{version}}}"#)
    }
}

/// What `mzxid` of a directory says about tokens when the data of the directory are a request of ours.
pub(super) fn last_token(data: &[u8], stat: &Stat) -> u64 {
    let record = DirectoryRecord::read(data);
    let record = record.filter(|record| record.version.wrapping_add(1) == stat.version);
    record.map_or(stat.mzxid.unsigned_abs(), |record| record.last)
}

/// The greatest token that was granted in the directory without a node of its own; for a directory with bare values.
pub(super) async fn last_token_of(session: &Session, dir: &str) -> Result<u64, RequestError> {
    let directory = session.reply_to(session.client.get_data(dir)).await;
    let (data, stat) = directory?;
    Ok(last_token(&data, &stat))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(mzxid: i64, version: i32) -> Stat {
        Stat {
            czxid: 1,
            mzxid,
            pzxid: 1,
            ctime: 0,
            mtime: 0,
            version,
            cversion: 0,
            aversion: 0,
            ephemeral_owner: 0,
            data_length: 0,
            num_children: 0,
        }
    }

    #[test]
    fn a_request_in_a_directory_makes_no_token_greater() {
        let request = DirectoryRecord {
            asked: 7,
            last: 5,
            version: 2,
        };
        let request = request.to_json();
        assert_eq!(request, r#"{"asked":7,"last":5,"version":2}"#);
        let request = request.as_bytes();
        assert_eq!(last_token(request, &stat(9, 3)), 5);
        // Another client has written the directory since, for the token of an upgrade, with the data that were there.
        assert_eq!(last_token(request, &stat(9, 4)), 9);
        assert_eq!(last_token(b"", &stat(9, 0)), 9);
        assert_eq!(last_token(b"notes", &stat(9, 1)), 9);
        let other = br#"{"asked":7}"#;
        assert!(DirectoryRecord::read(other).is_none());
    }
}
