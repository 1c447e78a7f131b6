//! How the tables are made: in a server only when an operator asks for it, in a file also when the file is opened
//! (`database_file.rs`).

use tenure_core::error::Error;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use tenure_core::error::{ErrorKind, ErrorParts as _};

use super::settings::Location;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::sql::{Dialect, Statement, Statements, schema};
use super::store::Store;

/// Makes what is missing, and returns a line for each thing made.
pub(super) async fn init(store: &Store) -> Result<Vec<String>, Error> {
    match &store.settings.location {
        #[cfg(feature = "sqlite")]
        Location::File(_) => store.requests.pool.make_file().await,
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        Location::Server(_) => init_server(store).await,
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn init_server(store: &Store) -> Result<Vec<String>, Error> {
    let (requests, table) = (&store.requests, store.settings.table());
    let mut made = Vec::new();
    for step in schema::steps(requests.format, requests.own.dialect, table) {
        // A statement whose table or index is there may still fail for a missing privilege.
        let is_needed = match &step.table {
            Some(table) => !has_table(store, table).await?,
            None => !made.is_empty(),
        };
        if !is_needed {
            continue;
        }
        let done = requests.pool.ask(make(&requests.own, &step.sql)).await;
        done.map_err(|err| match err.kind() {
            ErrorKind::Denied => Error::new(
                ErrorKind::Denied,
                "this user may not make the tables; have them made by a user that may, with docs/stores/table.md",
            )
            .with_source(err),
            _ => err,
        })?;
        made.extend(step.table.map(|table| format!("table {table}")));
    }
    Ok(made)
}

/// A statement that makes a table or an index.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn make(statements: &Statements, sql: &str) -> Statement {
    match statements.dialect {
        // Two sessions that make a table at the same time disturb each other in spite of IF NOT EXISTS.
        Dialect::Postgres => statements.transaction(
            "init",
            &[
                "SELECT pg_advisory_xact_lock(hashtext('tenure init'))".to_owned(),
                sql.to_owned(),
            ],
        ),
        _ => Statement::rows(format!("/*tenure:init*/ {sql}")),
    }
}

/// Whether there is a table of that name.
#[cfg(any(feature = "mysql", feature = "postgres"))]
async fn has_table(store: &Store, table: &str) -> Result<bool, Error> {
    let dialect = store.requests.own.dialect;
    let sql = match dialect {
        Dialect::Postgres => {
            let table = dialect.text(&dialect.quoted(table));
            format!("SELECT to_regclass({table})::text WHERE to_regclass({table}) IS NOT NULL")
        }
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
        Dialect::Sqlite => schema::looks_for_table(table),
    };
    let rows = store
        .requests
        .read(format!("/*tenure:init*/ {sql}"))
        .await?;
    Ok(!rows.is_empty())
}
