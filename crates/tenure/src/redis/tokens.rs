//! Tokens of a hold other than that of its grant: a token that is raised, and tokens that are reserved for the tasks of a client.

use std::sync::Arc;

use redis::Cmd;

use tenure_core::error::Error;
use tenure_core::store::{BoxFuture, Hold, RaiseToken, ReserveTokens};

use super::connection::ScriptReply;
use super::redisson;
use super::requests::Requests;
use super::store::Store;

impl RaiseToken for Store {
    fn raise(self: Arc<Self>, hold: Hold, token: u64) -> BoxFuture<Result<Option<u64>, Error>> {
        let is_candidate = self.is_candidate(hold.owner);
        Box::pin(async move { self.requests.raise(&hold, token, is_candidate).await })
    }
}

impl ReserveTokens for Store {
    fn reserve(self: Arc<Self>, hold: Hold, last: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { self.requests.reserve(&hold, last).await })
    }
}

impl Requests {
    /// See [`RaiseToken::raise`].
    async fn raise(
        &self,
        hold: &Hold,
        token: u64,
        is_candidate: bool,
    ) -> Result<Option<u64>, Error> {
        let (keys, owner) = (self.keys(&hold.name), self.owner(hold.owner));
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner).arg(token);
        };
        let elections = self.elections.filter(|_| is_candidate);
        let script = elections.map(|scripts| &scripts.raise);
        let script = script.or(self.scripts.tokens.as_ref().map(|scripts| &scripts.raise));
        let script = script.ok_or_else(redisson::no_node)?;
        let asked = elections.and_then(|_| keys.asked());
        let (keys, count) = keys.with(asked.as_deref());
        let reply: ScriptReply<u64> = self.connections.call(script, &keys[..count], &args).await?;
        Ok(Some(reply.value).filter(|token| *token > 0))
    }

    /// Whether the format can reserve tokens for a hold.
    pub(super) fn reserves_tokens(&self) -> bool {
        let tokens = self.scripts.tokens.as_ref();
        tokens.is_some_and(|scripts| scripts.reserve.is_some())
    }

    /// See [`ReserveTokens::reserve`].
    async fn reserve(&self, hold: &Hold, last: u64) -> Result<bool, Error> {
        let tokens = self.scripts.tokens.as_ref();
        let Some(script) = tokens.and_then(|scripts| scripts.reserve.as_ref()) else {
            return Ok(false);
        };
        let (keys, owner) = (self.keys(&hold.name), self.owner(hold.owner));
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner).arg(hold.token).arg(last);
        };
        let keys = [keys.lock(), keys.hold()];
        let reply: ScriptReply<u64> = self.connections.call(script, &keys, &args).await?;
        Ok(reply.value == 1)
    }
}
