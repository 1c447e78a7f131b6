//! A row of the table that shows who holds.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::holder::Holder;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Request};
use tenure_core::support::HolderRecord;

use super::key::Key;
use super::server_info::SessionId;

/// One hold of a session.
#[derive(Clone, Debug)]
pub(super) struct HolderRow {
    pub(super) session: SessionId,
    pub(super) key: Key,
    pub(super) token: u64,
    pub(super) name: LockName,
    mode: Mode,
    holder: Arc<Holder>,
    /// The ttl of the session.
    pub(super) ttl: Duration,
}

impl HolderRow {
    pub(super) fn new(
        (session, ttl): (SessionId, Duration),
        key: Key,
        token: u64,
        request: &Request,
    ) -> Self {
        Self {
            session,
            key,
            token,
            name: request.name.clone(),
            mode: request.mode,
            holder: request.holder.clone(),
            ttl,
        }
    }

    /// What others may know of the holder, as JSON. It is made when the row is written: most rows never are.
    pub(super) fn holder(&self) -> String {
        HolderRecord::from(&*self.holder).to_json()
    }

    /// The row of a leader, with a new description of it.
    pub(super) fn of_leader(
        (session, ttl): (SessionId, Duration),
        key: Key,
        token: u64,
        hold: &Hold,
        holder: Arc<Holder>,
    ) -> Self {
        Self {
            session,
            key,
            token,
            name: hold.name.clone(),
            mode: hold.mode,
            holder,
            ttl,
        }
    }

    /// The number of the value that the holder publishes; `None`: it is not the leader of an election.
    pub(super) fn value_number(&self) -> Option<u64> {
        self.holder.value.as_ref().map(|value| value.number)
    }

    pub(super) fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Shared => "shared",
            Mode::Upgradable => "upgradable",
            _ => "exclusive",
        }
    }
}
