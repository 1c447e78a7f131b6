//! What a leader has published, in the SQL of the servers, and where they push that it has changed.

#[cfg(feature = "postgres")]
use sha2::{Digest as _, Sha256};

#[cfg(feature = "postgres")]
use super::hex;

/// The number of the value in a description of a holder, which is JSON; 0 if there is none. Nothing else in such a text looks
/// like this field: a quote inside of a text has a backslash before it.
#[cfg(feature = "postgres")]
pub(crate) fn number_in_postgres(holder: &str) -> String {
    format!("COALESCE(substring({holder} from '\"number\":([0-9]{{1,18}})')::bigint,0)")
}

/// The same in MySQL and MariaDB.
#[cfg(feature = "mysql")]
pub(crate) fn number_in_mysql(holder: &str) -> String {
    format!("COALESCE(CAST(JSON_EXTRACT({holder},'$.number') AS UNSIGNED),0)")
}

/// The channel of the election of that name, in that table, of PostgreSQL. Every session of the database may listen to any
/// channel, so it does not have the name.
#[cfg(feature = "postgres")]
pub(crate) fn channel(table: &str, name: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(table.as_bytes());
    hash.update([0]);
    hash.update(name.as_bytes());
    let mut digits = hex(&hash.finalize());
    digits.truncate(32);
    format!("tenure_{digits}")
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    /// The published vector. A channel of PostgreSQL has 63 bytes at most.
    #[test]
    fn a_channel_is_short_and_plain() {
        let channel = channel("tenure_locks", "job1");
        assert_eq!(channel, "tenure_1cc0e0fdec6f6692488371815ce6dd49");
    }
}
