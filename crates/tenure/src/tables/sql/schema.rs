//! Making the tables: in a server when an operator asks for it and never else, in a file when it is opened (`file`).

use tenure_core::error::Error;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::error::ErrorKind;

use super::super::hold::Store;
use super::super::names::Format;
use super::super::settings::Place;
use super::Dialect;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::{Statement, Statements};

/// One statement, and what it makes.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tables) struct Step {
    pub(in crate::tables) sql: String,
    /// The table that it makes.
    pub(in crate::tables) table: Option<String>,
}

/// The published statements for these tables.
fn text(format: Format, dialect: Dialect) -> &'static str {
    match (format, dialect) {
        #[cfg(feature = "postgres")]
        (Format::Tenure, Dialect::Postgres) => include_str!("schema/postgres.sql"),
        #[cfg(feature = "postgres")]
        (Format::ShedLock, Dialect::Postgres) => include_str!("schema/shedlock_postgres.sql"),
        #[cfg(feature = "mysql")]
        (Format::Tenure, Dialect::MySql { .. }) => include_str!("schema/mysql.sql"),
        #[cfg(feature = "mysql")]
        (Format::ShedLock, Dialect::MySql { .. }) => include_str!("schema/shedlock_mysql.sql"),
        #[cfg(feature = "sqlite")]
        (_, Dialect::Sqlite) => include_str!("schema/sqlite.sql"),
    }
}

fn steps(format: Format, dialect: Dialect, table: &str) -> Vec<Step> {
    let waiters = format!("{table}_waiters");
    let index = format!("{}_queue", table.rsplit('.').next().unwrap_or_default());
    let text = text(format, dialect)
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let statements = text.split(';').map(str::trim);
    let step = |sql: &str| Step {
        table: match sql.starts_with("CREATE TABLE") {
            true if sql.contains("{waiters}") => Some(waiters.clone()),
            true => Some(table.to_owned()),
            false => None,
        },
        sql: sql
            .replace("{locks}", &dialect.quoted(table))
            .replace("{waiters}", &dialect.quoted(&waiters))
            .replace("{index}", &dialect.quoted(&index)),
    };
    statements.filter(|sql| !sql.is_empty()).map(step).collect()
}

/// The statements for a file, in their order.
#[cfg(feature = "sqlite")]
pub(in crate::tables) fn steps_of_file(table: &str) -> Vec<Step> {
    steps(Format::Tenure, Dialect::Sqlite, table)
}

/// Finds a row if a file has a table of that name.
#[cfg(feature = "sqlite")]
pub(in crate::tables) fn looks_for_table(table: &str) -> String {
    let table = Dialect::Sqlite.text(table);
    format!("SELECT name FROM sqlite_master WHERE type='table' AND name={table}")
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
impl Statements {
    /// Runs a statement that makes something.
    fn make(&self, sql: &str) -> Statement {
        match self.dialect {
            // There, two that make a table at the same time get in each other's way in spite of IF NOT EXISTS.
            #[cfg(feature = "postgres")]
            Dialect::Postgres => self.transaction(
                "init",
                &[
                    "SELECT pg_advisory_xact_lock(hashtext('tenure init'))".to_owned(),
                    sql.to_owned(),
                ],
            ),
            #[cfg(any(feature = "sqlite", feature = "mysql"))]
            _ => Statement::rows(format!("/*tenure:init*/ {sql}")),
        }
    }
}

impl Store {
    /// Makes what is not there yet, and says what that was.
    pub(in crate::tables) async fn init(&self) -> Result<Vec<String>, Error> {
        match &self.settings.place {
            #[cfg(feature = "sqlite")]
            Place::File(_) => self.pool.make_file().await,
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            Place::Server(_) => self.init_server().await,
        }
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    async fn init_server(&self) -> Result<Vec<String>, Error> {
        let mut made = Vec::new();
        let table = self.settings.table();
        for step in steps(self.settings.format, self.ours.dialect, table) {
            // A statement that finds its table, or its index, may still complain of privileges.
            let is_needed = match &step.table {
                Some(table) => !self.has(table).await?,
                None => !made.is_empty(),
            };
            if !is_needed {
                continue;
            }
            let done = self.pool.ask(self.ours.make(&step.sql)).await;
            done.map_err(|err| match err.kind() {
                ErrorKind::Denied => Error::new(
                    ErrorKind::Denied,
                    "this user may not make the tables; have them made by one who may, with docs/stores/table.md",
                )
                .with_source(err),
                _ => err,
            })?;
            made.extend(step.table.map(|table| format!("table {table}")));
        }
        Ok(made)
    }

    /// Whether there is a table of that name.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    async fn has(&self, table: &str) -> Result<bool, Error> {
        let dialect = self.ours.dialect;
        let sql = match dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => {
                let table = dialect.text(&dialect.quoted(table));
                format!("SELECT to_regclass({table})::text WHERE to_regclass({table}) IS NOT NULL")
            }
            #[cfg(feature = "mysql")]
            Dialect::MySql { .. } => {
                let (schema, table) = match table.split_once('.') {
                    Some((schema, table)) => (dialect.text(schema), table),
                    None => ("DATABASE()".to_owned(), table),
                };
                let table = dialect.text(table);
                format!(
                    "SELECT table_name FROM information_schema.tables WHERE table_schema={schema} AND table_name={table}"
                )
            }
            #[cfg(feature = "sqlite")]
            Dialect::Sqlite => looks_for_table(table),
        };
        let reply = self
            .pool
            .ask(Statement::rows(format!("/*tenure:init*/ {sql}")));
        Ok(!reply.await?.rows.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "sqlite")]
    #[test]
    fn the_published_statements_are_those_that_are_run() {
        let steps = steps(Format::Tenure, Dialect::Sqlite, "locks");
        let tables: Vec<_> = steps.iter().map(|step| step.table.as_deref()).collect();
        assert_eq!(tables, [None, Some("locks"), Some("locks_waiters"), None]);
        assert!(
            steps[1]
                .sql
                .starts_with("CREATE TABLE IF NOT EXISTS \"locks\" (")
        );
        assert!(!steps.iter().any(|step| step.sql.contains("--")));
        assert!(
            steps[3]
                .sql
                .ends_with("\"locks_queue\" ON \"locks_waiters\" (name, place)")
        );
    }

    /// Whoever makes the tables by hand copies them from the page.
    #[test]
    fn the_page_has_the_statements() {
        let page = include_str!("../../../../../docs/stores/table.md");
        for (text, locks) in [
            (include_str!("schema/postgres.sql"), "tenure_locks"),
            (include_str!("schema/mysql.sql"), "tenure_locks"),
            (include_str!("schema/sqlite.sql"), "tenure_locks"),
            (include_str!("schema/shedlock_postgres.sql"), "shedlock"),
            (include_str!("schema/shedlock_mysql.sql"), "shedlock"),
        ] {
            let text = text
                .replace("{locks}", locks)
                .replace("{waiters}", "tenure_locks_waiters")
                .replace("{index}", "tenure_locks_queue");
            assert!(page.contains(&text), "not on the page:\n{text}");
        }
    }
}
