//! Holds that go on without their client: a hold is a row, so nothing has to happen for that but a renewal, after which the
//! client remembers the hold no more.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::lost::LostReason;
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Detach, Hold, Renewal};
use tenure_core::time::Time;

use crate::database::Row;

use super::file_id::FileId;
use super::requests::{HeldRow, Requests, lease_end};
use super::sql::RenewItem;
use super::sql::detach::FOUND;
use super::store::Store;

impl Detach for Store {
    fn detach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { detach(&self, &hold).await })
    }

    fn attach(self: Arc<Self>, hold: Hold) -> BoxFuture<Renewal> {
        Box::pin(async move { attach(&self, &hold).await })
    }

    fn forget(&self, hold: &Hold) {
        self.requests.holds.remove(hold.owner);
    }
}

/// Renews the hold, and forgets it.
pub(super) async fn detach(store: &Store, hold: &Hold) -> Renewal {
    // `close` waits for the answer.
    let _request = store.acquisitions.enter();
    let holds = &store.requests.holds;
    // A client that is closed meanwhile must not release a hold for which a receipt may be written.
    let before = holds.update(hold.owner, |entry| {
        std::mem::replace(&mut entry.outlives_client, true)
    });
    let renewal = detach_inner(store, hold).await;
    match renewal {
        Renewal::Renewed { .. } => drop(holds.remove(hold.owner)),
        _ => drop(holds.update(hold.owner, |entry| {
            entry.outlives_client = before == Some(true);
        })),
    }
    renewal
}

async fn detach_inner(store: &Store, hold: &Hold) -> Renewal {
    let requests = &store.requests;
    let granted_by = requests.holds.read(hold.owner, |entry| entry.file);
    // A request would make the file again.
    match requests.pool.is_file_gone(granted_by) {
        Ok(false) => {}
        Ok(true) => return Renewal::Lost(LostReason::TakenOver),
        Err(err) => return Renewal::Unknown(err),
    }
    match requests.extend("detach", hold).await {
        Ok(leased) if granted_by.is_some_and(|file| file != leased.file) => {
            Renewal::Lost(LostReason::TakenOver)
        }
        Ok(leased) => leased.renewal,
        Err(err) => Renewal::Unknown(err),
    }
}

/// Finds the row of the hold and renews it. From then on the client remembers the hold as one of its own, but for its end.
pub(super) async fn attach(store: &Store, hold: &Hold) -> Renewal {
    let _request = store.acquisitions.enter();
    match attach_inner(store, hold).await {
        Ok(renewal) => renewal,
        Err(err) => Renewal::Unknown(err),
    }
}

async fn attach_inner(store: &Store, hold: &Hold) -> Result<Renewal, Error> {
    let requests = &store.requests;
    // A request would make the file.
    if requests.pool.is_file_gone(None)? {
        return Ok(Renewal::Lost(LostReason::StoreSaysNo));
    }
    let leased = requests.extend("attach", hold).await?;
    if let Renewal::Renewed { sent, ttl } = &leased.renewal {
        let entry = attached(hold, leased.file, lease_end(*sent, *ttl));
        requests.holds.insert(hold.owner, entry);
    }
    Ok(leased.renewal)
}

/// What is remembered of a hold that this client is attached to. What else its end depends on stands in its row.
fn attached(hold: &Hold, file: Option<FileId>, ends: Time) -> HeldRow {
    HeldRow {
        name: hold.name.clone(),
        min_hold: 0,
        is_shared_hold: hold.mode != Mode::Exclusive,
        is_leader: false,
        finds_requests: false,
        is_renewed: true,
        locked_by: String::new(),
        outlives_client: true,
        file,
        ends,
    }
}

/// What the database answered about a hold that was to be extended.
struct Leased {
    renewal: Renewal,
    /// The file that the answer is from.
    file: Option<FileId>,
}

impl Requests {
    /// Extends the lease of the hold, if the database has it.
    async fn extend(&self, purpose: &str, hold: &Hold) -> Result<Leased, Error> {
        let item = RenewItem {
            name: self.encode(&hold.name),
            owner: hold.owner.to_hex(),
            ttl: self.written_lease(hold.ttl),
        };
        let statement = self.own.lease(purpose, &item, hold.mode);
        let reply = self.pool.ask(statement).await?;
        // Other rows are those of the statement that locks.
        let is_found = |row: &Row| row.first().and_then(Option::as_deref) == Some(FOUND);
        let renewal = match reply.rows.iter().any(is_found) {
            true => Renewal::Renewed {
                sent: reply.sent,
                ttl: Some(self.lease(hold.ttl)),
            },
            false => Renewal::Lost(LostReason::StoreSaysNo),
        };
        Ok(Leased {
            renewal,
            file: reply.file,
        })
    }
}
