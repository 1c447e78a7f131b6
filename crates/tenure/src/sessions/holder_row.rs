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
    /// The last of the tokens that are reserved for the tasks of the client. `None`: the hold has one token.
    pub(super) last_token: Option<u64>,
}

/// The start of the description of a holder for whom tokens are reserved. No other description starts like that.
const RESERVED: &str = r#"{"reserved":"#;

/// The last of the tokens that are reserved for the holder of that description. `None`: it has one token.
pub(super) fn last_reserved(holder: &str) -> Option<u64> {
    let (last, _) = holder.strip_prefix(RESERVED)?.split_once(',')?;
    last.parse().ok()
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
            last_token: None,
        }
    }

    /// The row of the same hold, when the tokens up to `last` are reserved for it.
    pub(super) fn with_reserved(&self, last: u64) -> Self {
        Self {
            last_token: Some(last),
            ..self.clone()
        }
    }

    /// What others may know of the holder, as JSON. It is made when the row is written: most rows never are.
    pub(super) fn holder(&self) -> String {
        let record = HolderRecord::from(&*self.holder).to_json();
        match (self.last_token, record.strip_prefix('{')) {
            (Some(last), Some(fields)) => format!("{RESERVED}{last},{fields}"),
            _ => record,
        }
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
            last_token: None,
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

#[cfg(test)]
mod tests {
    use tenure_core::fence::OwnerId;

    use super::*;

    #[test]
    fn reserved_tokens_leave_the_rest_as_it_is() {
        let mut holder = Holder::new(r#"","reserved":5,"#, 7);
        holder.client = r#"{"reserved":5,"#.into();
        let name = LockName::new("a").expect("a name");
        let mut request = Request::new(name, OwnerId::random(), Duration::from_secs(1));
        request.holder = Arc::new(holder.clone());
        let session = SessionId {
            number: 1,
            since: 2,
        };
        let of = (session, Duration::from_secs(1));
        let row = HolderRow::new(of, Key::One(3), 4, &request);
        assert_eq!(last_reserved(&row.holder()), None);
        let row = row.with_reserved(42);
        assert_eq!(last_reserved(&row.holder()), Some(42));
        assert_eq!(HolderRecord::read(&row.holder()), holder);
        assert_eq!(last_reserved(r#"{"reserved":x,"#), None);
    }
}
