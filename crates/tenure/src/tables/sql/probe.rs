//! Statements that need what all other statements on the tables need, and change nothing: no row has an empty name.
//!
//! A server refuses such a statement to a user without the right to it, on a standby, and in a transaction that may only
//! read, whether or not a row is found.

use super::{Statement, Statements, shedlock};

impl Statements {
    /// Writes no row into the tables of locks and waiters.
    pub(crate) fn probe(&self) -> Statement {
        let (locks, waiters) = (&self.locks, &self.waiters);
        let mut steps = vec![
            insert(
                locks,
                "name,owner,token,until,since,min_hold,delay,holder,queued",
            ),
            update(locks),
            insert(waiters, "name,owner,until,holder"),
            update(waiters),
            delete(waiters),
        ];
        // Waiters are told in the same transactions.
        if self.dialect.is_postgres() {
            steps.push("SELECT pg_notify('tenure','') WHERE false".to_owned());
        }
        Statement::rows(format!("/*tenure:look*/ {}", steps.join(";")))
    }

    /// The same for the table of modes, which an earlier build did not make.
    pub(crate) fn probe_modes(&self) -> Statement {
        let modes = &self.modes;
        let columns = "name,owner,mode,token,until,since,min_hold,delay,holder";
        let steps = [insert(modes, columns), update(modes), delete(modes)];
        Statement::rows(format!("/*tenure:look*/ {}", steps.join(";")))
    }
}

impl shedlock::Statements {
    /// Writes no row.
    pub(crate) fn probe(&self) -> Statement {
        let table = &self.table;
        let columns = "name,lock_until,locked_at,locked_by";
        Statement::rows(format!(
            "/*tenure:look*/ {};UPDATE {table} SET locked_by=locked_by WHERE name=''",
            insert(table, columns)
        ))
    }
}

fn insert(table: &str, columns: &str) -> String {
    format!("INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE name=''")
}

fn update(table: &str) -> String {
    format!("UPDATE {table} SET owner=owner WHERE name=''")
}

fn delete(table: &str) -> String {
    format!("DELETE FROM {table} WHERE name=''")
}
