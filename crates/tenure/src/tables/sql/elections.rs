//! The statements of elections: who leads, what the leader publishes, and a request to let go.

#[cfg(feature = "mysql")]
use crate::database::number_in_mysql;
#[cfg(feature = "postgres")]
use crate::database::{channel, number_in_postgres};

use super::super::holder_text::ASKED_END;
use super::{Dialect, SEVERAL, Statement, Statements, hex};

/// What a leader publishes. `asked` is the same for a leader that is asked to let go.
pub(crate) struct PublishItem {
    pub(crate) name: String,
    pub(crate) owner: String,
    pub(crate) number: u64,
    pub(crate) holder: String,
    pub(crate) asked: String,
}

impl Statements {
    /// Where observers of the name listen. `None`: the database pushes nothing.
    pub(crate) fn channel(&self, name: &str) -> Option<String> {
        match self.dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Some(channel(&self.table, name)),
            _ => {
                let _ = name;
                None
            }
        }
    }

    /// Tells observers that the leader or its value has changed.
    pub(super) fn tell_observers(&self, name: &str) -> Option<String> {
        let channel = self.channel(name)?;
        Some(format!("SELECT pg_notify('{channel}','')"))
    }

    /// The row of the name, as in [`read_name`](Self::read_name).
    pub(crate) fn leader(&self, name: &str) -> Statement {
        let row = self.read_lock(&self.dialect.name(name));
        Statement::rows(format!("/*tenure:leader*/ {row}"))
    }

    /// Replaces the description of the holder, unless a newer value is there. A row for a hold that is there.
    pub(crate) fn publish(&self, item: &PublishItem) -> Statement {
        let (now, locks, owner) = (self.dialect.now(), &self.locks, &item.owner);
        let (name, holder) = (self.dialect.name(&item.name), self.published(item));
        let update = format!(
            "UPDATE {locks} SET holder={holder} WHERE name={name} AND owner='{owner}' AND until>{now}"
        );
        match self.tell_observers(&item.name) {
            Some(tell) => Statement::rows(format!(
                "/*tenure:publish*/ WITH r AS({update} RETURNING 1){tell} FROM r"
            )),
            None => Statement::count(format!("/*tenure:publish*/ {update}")),
        }
    }

    /// Notes that the holder with that token is asked to let go, if its description is still `holder`. A row if it is.
    pub(crate) fn ask_to_release(
        &self,
        name: &str,
        token: u64,
        holder: &str,
        asked: &str,
    ) -> Statement {
        let (now, locks) = (self.dialect.now(), &self.locks);
        let (name, asked) = (self.dialect.name(name), self.dialect.text(asked));
        let is_same = match self.dialect {
            // Two texts that differ by case may be equal there.
            Dialect::MySql { .. } => {
                format!("CAST(holder AS BINARY)=X'{}'", hex(holder.as_bytes()))
            }
            _ => format!("holder={}", self.dialect.text(holder)),
        };
        Statement::count(format!(
            "/*tenure:ask*/ UPDATE {locks} SET holder={asked} WHERE name={name} AND token={token} AND owner NOT IN('','{SEVERAL}')AND until>{now} AND {is_same}"
        ))
    }

    /// One more column of a renewal, if it is wanted: whether the holder is asked to let go.
    pub(super) fn asked_column(&self, is_wanted: bool) -> String {
        match is_wanted {
            true => format!(",CASE WHEN {} THEN 1 ELSE 0 END", self.is_asked()),
            false => String::new(),
        }
    }

    fn is_asked(&self) -> String {
        let length = ASKED_END.len();
        match self.dialect {
            Dialect::Sqlite => format!("SUBSTR(holder,-{length})='{ASKED_END}'"),
            _ => format!("RIGHT(holder,{length})='{ASKED_END}'"),
        }
    }

    /// The new description of a holder, from the one that is there.
    fn published(&self, item: &PublishItem) -> String {
        let number = match self.dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => number_in_postgres("holder"),
            #[cfg(feature = "mysql")]
            Dialect::MySql { .. } => number_in_mysql("holder"),
            _ => "COALESCE(json_extract(holder,'$.number'),0)".to_owned(),
        };
        let (holder, asked) = (&item.holder, &item.asked);
        let (holder, asked) = (self.dialect.text(holder), self.dialect.text(asked));
        format!(
            "CASE WHEN {number}>{} THEN holder WHEN {} THEN {asked} ELSE {holder} END",
            item.number,
            self.is_asked()
        )
    }
}
