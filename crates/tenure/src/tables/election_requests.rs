//! The requests of elections: who leads, what the leader publishes, and a request to let go.

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::Holder;
use tenure_core::name::LockName;
use tenure_core::rt::lock;
use tenure_core::store::{Hold, Request};
use tenure_core::support::HolderRecord;

use super::holder_text;
use super::pool::StatementReply;
use super::requests::Requests;
use super::sql::elections::PublishItem;
use super::sql::{Dialect, SEVERAL, Statement};
use super::step::NameRows;

/// How often a request to let go is written while the holder publishes one value after the other.
const MAX_ATTEMPTS: u32 = 10;

impl Requests {
    /// Sends a request for a lock, and remembers a candidate that got no answer.
    pub(super) async fn ask_for_lock(
        &self,
        statement: Statement,
        request: &Request,
    ) -> Result<StatementReply, Error> {
        let reply = self.pool.ask_for_lock(statement, &request.stop).await;
        let is_told = self.own.dialect == Dialect::Postgres && request.holder.value.is_some();
        if let Err(err) = &reply
            && err.kind() == ErrorKind::Indeterminate
            && is_told
        {
            lock(&self.unanswered).insert(request.owner);
        }
        reply
    }

    /// The row of the name. `None`: the table has no row of that name.
    pub(super) async fn leader<'a>(
        &self,
        name: &'a LockName,
    ) -> Result<Option<NameRows<'a>>, Error> {
        let statement = self.own.leader(&self.encode(name));
        let reply = self.pool.ask(statement).await?;
        NameRows::read(name, &reply.rows, None)
    }

    /// Replaces what the row says about the holder, unless a newer value is there. `false`: there is no such hold.
    pub(super) async fn publish(&self, hold: &Hold, holder: &Holder) -> Result<bool, Error> {
        let granted_by = self.holds.read(hold.owner, |entry| entry.file);
        if self.pool.is_file_gone(granted_by)? {
            return Ok(false);
        }
        let record = HolderRecord::from(holder).to_json();
        let item = PublishItem {
            name: self.encode(&hold.name),
            owner: hold.owner.to_hex(),
            number: holder.value.as_ref().map_or(0, |value| value.number),
            asked: holder_text::with_request(&record).unwrap_or_else(|| record.clone()),
            holder: record,
        };
        let reply = self.pool.ask(self.own.publish(&item)).await?;
        Ok(!reply.rows.is_empty())
    }

    /// Notes that the exclusive holder with that token is asked to let go. `false`: there is none.
    pub(super) async fn ask_to_release(&self, name: &LockName, token: u64) -> Result<bool, Error> {
        for _ in 0..MAX_ATTEMPTS {
            let rows = self.leader(name).await?;
            let Some(rows) = rows.filter(|it| it.is_held_under(token)) else {
                return Ok(false);
            };
            let holder = &rows.lock.holder;
            if holder_text::is_asked(holder) {
                return Ok(true);
            }
            let Some(asked) = holder_text::with_request(holder) else {
                let message =
                    "the holder is a program that does not describe itself, so it cannot be asked";
                return Err(Error::new(ErrorKind::Unsupported, message));
            };
            let name = self.encode(name);
            let statement = self.own.ask_to_release(&name, token, holder, &asked);
            if !self.pool.ask(statement).await?.rows.is_empty() {
                return Ok(true);
            }
            // The holder has published another value, or is gone.
        }
        let message = "the leader publishes one value after the other, so the request was not written; ask again";
        Err(Error::new(ErrorKind::Store, message))
    }
}

impl NameRows<'_> {
    /// Whether one exclusive holder has the name, under that token.
    fn is_held_under(&self, token: u64) -> bool {
        let lock = &self.lock;
        let has_lease = lock.until.saturating_sub(lock.delay) > self.now;
        lock.token == token && has_lease && !matches!(lock.owner.as_str(), "" | SEVERAL)
    }
}
