//! The statements that make the tables.

use super::super::names::Format;
use super::Dialect;

/// One statement, and what it makes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SchemaStatement {
    pub(crate) sql: String,
    /// The table that the statement makes.
    pub(crate) table: Option<String>,
}

/// The published statements for these tables.
fn text(format: Format, dialect: Dialect) -> &'static str {
    match (format, dialect) {
        (Format::Tenure, Dialect::Postgres) => include_str!("schema/postgres.sql"),
        (Format::ShedLock, Dialect::Postgres) => include_str!("schema/shedlock_postgres.sql"),
        (Format::Tenure, Dialect::MySql { .. }) => include_str!("schema/mysql.sql"),
        (Format::ShedLock, Dialect::MySql { .. }) => include_str!("schema/shedlock_mysql.sql"),
        (_, Dialect::Sqlite) => include_str!("schema/sqlite.sql"),
    }
}

pub(crate) fn steps(format: Format, dialect: Dialect, table: &str) -> Vec<SchemaStatement> {
    let waiters = format!("{table}_waiters");
    let modes = format!("{table}_modes");
    let index = format!("{}_queue", table.rsplit('.').next().unwrap_or_default());
    let text = text(format, dialect)
        .lines()
        .map(|line| line.split("--").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n");
    let statements = text.split(';').map(str::trim);
    let step = |sql: &str| SchemaStatement {
        table: match sql.starts_with("CREATE TABLE") {
            true if sql.contains("{waiters}") => Some(waiters.clone()),
            true if sql.contains("{modes}") => Some(modes.clone()),
            true => Some(table.to_owned()),
            false => None,
        },
        sql: sql
            .replace("{locks}", &dialect.quoted(table))
            .replace("{waiters}", &dialect.quoted(&waiters))
            .replace("{modes}", &dialect.quoted(&modes))
            .replace("{index}", &dialect.quoted(&index)),
    };
    statements.filter(|sql| !sql.is_empty()).map(step).collect()
}

/// The statements for a file, in their order.
#[cfg(feature = "sqlite")]
pub(crate) fn steps_of_file(table: &str) -> Vec<SchemaStatement> {
    steps(Format::Tenure, Dialect::Sqlite, table)
}

/// Finds a row if a file has a table of that name.
pub(crate) fn looks_for_table(table: &str) -> String {
    let table = Dialect::Sqlite.text(table);
    format!("SELECT name FROM sqlite_master WHERE type='table' AND name={table}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_statements_are_those_that_are_run() {
        let steps = steps(Format::Tenure, Dialect::Sqlite, "locks");
        let tables: Vec<_> = steps.iter().map(|step| step.table.as_deref()).collect();
        let made = ["locks", "locks_waiters", "locks_modes"].map(Some);
        assert_eq!(tables, [None, made[0], made[1], None, made[2]]);
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

    /// An operator who makes the tables by hand copies the statements from the page.
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
                .replace("{modes}", "tenure_locks_modes")
                .replace("{index}", "tenure_locks_queue");
            assert!(page.contains(&text), "not on the page:\n{text}");
        }
    }
}
