//! What a server reports about itself when a client connects.

use tenure_core::error::Error;

use crate::database::Row;

use super::guarantees::Durability;
use super::pool::Pool;
use super::sql::{Dialect, Statement};

#[derive(Clone, Debug, Default)]
pub(super) struct ServerInfo {
    pub(super) version: String,
    pub(super) durability: Durability,
    /// The server is a replica of another one, and takes no writes.
    pub(super) is_replica: bool,
    /// The server has a replica that may take over without the last writes.
    pub(super) fails_over: bool,
}

fn text(rows: &[Row], at: usize) -> &str {
    let row = rows.first().map(Vec::as_slice).unwrap_or_default();
    row.get(at).and_then(Option::as_deref).unwrap_or_default()
}

/// Whether PostgreSQL waits for a replica before it answers a commit. Both settings are needed for that.
fn waits_for_replicas(standby_names: &str, synchronous_commit: &str) -> bool {
    !standby_names.is_empty() && !matches!(synchronous_commit, "local" | "off")
}

impl ServerInfo {
    /// Asks the server over a connection of the pool.
    pub(super) async fn ask(pool: &Pool, dialect: Dialect) -> Result<Self, Error> {
        let sql = match dialect {
            // Without the right to see replicas the count is zero.
            Dialect::Postgres => {
                "SELECT version(),current_setting('fsync'),current_setting('synchronous_commit'),pg_is_in_recovery()::text,(SELECT COUNT(*)FROM pg_stat_replication WHERE application_name<>'pg_basebackup'),current_setting('synchronous_standby_names')"
            }
            Dialect::MySql { .. } => {
                "SELECT VERSION(),@@innodb_flush_log_at_trx_commit,@@global.read_only,(SELECT COUNT(*)FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%')"
            }
            Dialect::Sqlite => "SELECT sqlite_version()",
        };
        let reply = pool
            .ask(Statement::rows(format!("/*tenure:facts*/ {sql}")))
            .await?;
        let rows = &reply.rows;
        let version = text(rows, 0).to_owned();
        Ok(match dialect {
            Dialect::Postgres => Self {
                version,
                durability: match (text(rows, 1), text(rows, 2)) {
                    (_, "off") => Durability::Nothing,
                    ("off", _) => Durability::Killed,
                    _ => Durability::Full,
                },
                is_replica: text(rows, 3) == "true",
                fails_over: text(rows, 4) != "0"
                    && !waits_for_replicas(text(rows, 5), text(rows, 2)),
            },
            Dialect::MySql { .. } => Self {
                version,
                durability: match text(rows, 1) {
                    "1" => Durability::Full,
                    "2" => Durability::Killed,
                    _ => Durability::Nothing,
                },
                is_replica: matches!(text(rows, 2), "1" | "ON"),
                fails_over: text(rows, 3) != "0",
            },
            Dialect::Sqlite => Self {
                version,
                ..Self::default()
            },
        })
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn a_commit_waits_for_replicas_if_both_settings_say_so() {
        for (standby_names, synchronous_commit, expected) in [
            ("", "on", false),
            ("*", "on", true),
            ("ANY 1 (a, b)", "remote_apply", true),
            ("*", "remote_write", true),
            ("*", "local", false),
            ("*", "off", false),
        ] {
            let waits = waits_for_replicas(standby_names, synchronous_commit);
            assert_eq!(waits, expected, "{standby_names:?} {synchronous_commit}");
        }
    }
}
