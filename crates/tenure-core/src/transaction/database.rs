//! The databases of `sqlx`, as far as a transaction under a lock has to know them.

use sqlx::error::DatabaseError;

/// A database whose transactions [`Lock::transaction`](crate::Lock::transaction) runs: `sqlx::Postgres`,
/// `sqlx::MySql` (MariaDB too) and `sqlx::Sqlite`, each with the feature of that name.
pub trait SqlDatabase: sqlx::Database {
    /// Its name in errors: the scheme of its URL.
    const SCHEME: &'static str;

    /// Sends a statement without effect. After an error, a COMMIT would roll the transaction back and report no error.
    fn probe(conn: &mut Self::Connection) -> impl Future<Output = Result<(), sqlx::Error>> + Send {
        let _ = conn;
        std::future::ready(Ok(()))
    }

    /// What the database said, in our terms.
    fn sort(said: &dyn DatabaseError) -> Sort;

    /// Whether a COMMIT that was answered with this did not commit, for certain.
    fn is_no(said: &dyn DatabaseError) -> bool;
}

/// What an error of a database means for the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Another transaction kept the row until the limit.
    Busy,
    /// The transactions waited for each other, and this one was chosen to end.
    Deadlock,
    /// Another transaction changed what this one had read before.
    Outdated,
    /// One of our tables is not there.
    NoTable,
    /// An earlier statement of the transaction has failed, and it takes no other.
    Aborted,
    /// A privilege is missing.
    Denied,
    /// A standby, a replica, or a transaction that may only read.
    ReadOnly,
    /// The server ended the connection.
    Gone,
    /// Anything else.
    Other,
}

#[cfg(feature = "mysql")]
impl SqlDatabase for sqlx::MySql {
    const SCHEME: &'static str = "mysql";

    fn sort(said: &dyn DatabaseError) -> Sort {
        match mysql_code(said) {
            // Limit of a lock; MariaDB: limit of a statement; NOWAIT.
            1205 | 1969 | 3572 => Sort::Busy,
            1213 => Sort::Deadlock,
            // MariaDB with innodb_snapshot_isolation.
            1020 => Sort::Outdated,
            1146 => Sort::NoTable,
            1044 | 1142 | 1143 | 1227 | 1370 => Sort::Denied,
            1290 | 1792 | 1836 => Sort::ReadOnly,
            1053 | 1927 | 3169 | 4031 => Sort::Gone,
            _ => Sort::Other,
        }
    }

    fn is_no(said: &dyn DatabaseError) -> bool {
        // Also: not ready (Galera), a hook refused it (group replication).
        matches!(
            Self::sort(said),
            Sort::Busy | Sort::Deadlock | Sort::Outdated | Sort::Denied | Sort::ReadOnly
        ) || matches!(mysql_code(said), 1047 | 3100 | 3101)
    }
}

#[cfg(feature = "mysql")]
fn mysql_code(said: &dyn DatabaseError) -> u16 {
    said.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .map_or(0, sqlx::mysql::MySqlDatabaseError::number)
}

#[cfg(feature = "postgres")]
impl SqlDatabase for sqlx::Postgres {
    const SCHEME: &'static str = "postgres";

    async fn probe(conn: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
        // COMMIT of a transaction in which a statement has failed is a ROLLBACK, and no error.
        sqlx::raw_sql("SELECT 1").execute(conn).await.map(drop)
    }

    fn sort(said: &dyn DatabaseError) -> Sort {
        match said.code().as_deref().unwrap_or_default() {
            "55P03" => Sort::Busy,
            "40P01" => Sort::Deadlock,
            "40001" => Sort::Outdated,
            "42P01" => Sort::NoTable,
            "25P02" => Sort::Aborted,
            "42501" => Sort::Denied,
            "25006" => Sort::ReadOnly,
            "57P01" | "57P02" | "57P03" | "57P05" | "25P03" => Sort::Gone,
            code if code.starts_with("08") => Sort::Gone,
            _ => Sort::Other,
        }
    }

    fn is_no(said: &dyn DatabaseError) -> bool {
        let code = said.code().unwrap_or_default();
        // Data, constraints (deferred ones are looked at now), state of the transaction, conflicts, triggers,
        // cancelled. Not 40003: "statement completion unknown".
        let classes = ["22", "23", "25", "40", "42", "44", "P0"];
        let is_known = classes.iter().any(|class| code.starts_with(class)) || code == "57014";
        is_known && code != "40003" && Self::sort(said) != Sort::Gone
    }
}

#[cfg(feature = "sqlite")]
impl SqlDatabase for sqlx::Sqlite {
    const SCHEME: &'static str = "sqlite";

    fn sort(said: &dyn DatabaseError) -> Sort {
        let code = sqlite_code(said);
        match (code, code & 0xff) {
            // This transaction read before another one wrote: waiting would not help.
            (517, _) => Sort::Outdated,
            (_, 5 | 6) => Sort::Busy,
            (_, 3 | 23) => Sort::Denied,
            (_, 8) => Sort::ReadOnly,
            (_, 1) if said.message().starts_with("no such table") => Sort::NoTable,
            _ => Sort::Other,
        }
    }

    fn is_no(said: &dyn DatabaseError) -> bool {
        // Busy, locked, read-only, full, a constraint that is looked at now.
        matches!(sqlite_code(said) & 0xff, 5 | 6 | 8 | 13 | 19)
    }
}

#[cfg(feature = "sqlite")]
fn sqlite_code(said: &dyn DatabaseError) -> i32 {
    let code = said.code().unwrap_or_default();
    code.parse().unwrap_or_default()
}
