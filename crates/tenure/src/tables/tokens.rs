//! Tokens that are reserved for a hold, so that the tasks of a client can pass it on.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::name::LockName;
use tenure_core::store::{BoxFuture, Hold, ReserveTokens};

use super::holder_text;
use super::requests::Requests;
use super::store::Store;

impl ReserveTokens for Store {
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { self.requests.reserve(&hold, last).await })
    }
}

impl Requests {
    async fn reserve(&self, hold: &Hold, last: u64) -> Result<bool, Error> {
        let granted_by = self.holds.read(hold.owner, |entry| entry.file);
        if self.pool.is_file_gone(granted_by)? {
            return Ok(false);
        }
        let (name, owner) = (self.encode(&hold.name), hold.owner.to_hex());
        let statement = self.own.reserve(&name, &owner, (hold.token, last));
        let reply = self.pool.ask(statement).await?;
        Ok(!reply.rows.is_empty())
    }

    /// The token in the row of the hold for which `token` is reserved. `None`: there is no such hold, or that is its token.
    pub(super) async fn token_of_turn(
        &self,
        name: &LockName,
        token: u64,
    ) -> Result<Option<u64>, Error> {
        let (rows, _) = self.name_rows(name, "break").await?;
        let row = rows.map(|rows| rows.lock).filter(|row| {
            let first = holder_text::first_of_turn(&row.holder);
            first.is_some_and(|first| (first..row.token).contains(&token))
        });
        Ok(row.map(|row| row.token))
    }
}
