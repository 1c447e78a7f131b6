//! Several names in one transaction, all or none.

use super::{AcquireItem, Dialect, Statement, Statements};

impl Statements {
    /// Takes each name that is free and has no waiters, in a transaction that [`end_together`](Self::end_together) ends:
    /// `[owner, token]` of each name in MySQL, `[token, position]` of each name that was taken elsewhere.
    ///
    /// The names have to be in an order that all clients keep: each statement locks the row of its name.
    pub(crate) fn acquire_together(&self, requests: &[AcquireItem]) -> Statement {
        let each = requests.iter().enumerate().map(|(position, request)| {
            let acquire = self.acquire(request).sql;
            match self.dialect {
                Dialect::MySql { .. } => acquire,
                _ => format!("{acquire},{position}"),
            }
        });
        let each = each.collect::<Vec<_>>().join(";");
        let begin = self.begin_limited();
        Statement::in_transaction(format!("/*tenure:acquire*/ {begin};{each}"))
    }

    /// Keeps what [`acquire_together`](Self::acquire_together) took, or gives back all of it.
    pub(crate) fn end_together(&self, is_kept: bool) -> Statement {
        let (what, end) = match is_kept {
            true => ("commit", self.end_limited("COMMIT")),
            false => ("rollback", self.end_limited("ROLLBACK")),
        };
        Statement::in_transaction(format!("/*tenure:{what}*/ {end}"))
    }
}
