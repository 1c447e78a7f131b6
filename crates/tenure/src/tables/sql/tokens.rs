//! The statement that reserves tokens for a hold.

use super::super::holder_text;
use super::{Dialect, Statement, Statements};

impl Statements {
    /// Reserves the tokens from `first` to `last` for the exclusive hold that the owner has under `first`.
    pub(crate) fn reserve(&self, name: &str, owner: &str, (first, last): (u64, u64)) -> Statement {
        let (now, locks, literal) = (self.dialect.now(), &self.locks, self.dialect.name(name));
        let turn = holder_text::turn_start(first);
        let holder = match self.dialect {
            Dialect::MySql { .. } => format!("CONCAT('{turn}',SUBSTRING(holder,2))"),
            _ => format!("'{turn}'||substr(holder,2)"),
        };
        Statement::count(format!(
            "/*tenure:reserve*/ UPDATE {locks} SET token={last},holder={holder} WHERE name={literal} AND owner='{owner}' AND token={first} AND holder LIKE '{{\"%' AND until-delay>{now}"
        ))
    }
}
