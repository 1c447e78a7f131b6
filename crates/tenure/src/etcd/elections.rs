//! Elections: the value of a leader, what observers hear, and requests to let go.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::Holder;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::store::{BoxFuture, Elections, Hold, Sightings};
use tenure_core::support::RetryBudget;

use super::candidate;
use super::candidate_requests::{self, Publication, Published};
use super::contenders::{self, ContenderKind};
use super::leader;
use super::names::asked_key;
use super::store::{AcquisitionState, Store};

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { publish(&self, &hold, &holder).await })
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        Box::pin(async move {
            let directory = self.directory(&name);
            let reading = leader::read(&self.connections, &directory, 0).await?;
            Ok(reading.sighting)
        })
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        let observers = self.elections.observers.clone();
        Some(observers.observe(self.directory(&name)))
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { ask_to_release(&self, &name, token).await })
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        let key = self
            .holds
            .read(hold.owner, |entry| (entry.key.clone(), entry.created));
        if let Some((key, created)) = key {
            let requests = &self.elections.release_requests;
            requests.listen(&key, created, hold.owner);
            // The hold may have ended meanwhile, and then nothing else ends the watch.
            if !self.holds.contains(hold.owner) {
                requests.forget(&key, created, false);
            }
        }
    }
}

/// Replaces the value and the record of a candidate. `false`: the store has no such hold.
///
/// The number in the record decides which of two values is the later one, and the mod revision of the key keeps out a request
/// that arrives late.
async fn publish(store: &Store, hold: &Hold, holder: &Holder) -> Result<bool, Error> {
    let value = match &holder.value {
        Some(value) => &*value.text,
        None => "",
    };
    candidate::check_value(value)?;
    let Some(entry) = store.holds.get(hold.owner) else {
        return Ok(false);
    };
    if !matches!(entry.state, AcquisitionState::Held { .. }) {
        return Ok(false);
    }
    let Some(candidate) = &entry.candidate else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "a lock has no value that observers could see",
        ));
    };
    let record = candidate.record.clone().with_holder(holder);
    let publication = Publication {
        key: &entry.key,
        created: entry.created,
        lease: entry.lease.id,
        value,
        record_key: &candidate.record_key,
        record: &record,
    };
    let context = &store.context;
    let mut modified = candidate.modified.max(entry.created);
    let mut retries = RetryBudget::until(context.request_limit());
    loop {
        let published = candidate_requests::publish(&store.connections, &publication, modified);
        match published.await? {
            Published::Gone => return Ok(false),
            Published::Done(revision) => {
                store.holds.update(hold.owner, |entry| {
                    if let Some(candidate) = &mut entry.candidate {
                        (candidate.record, candidate.modified) = (record, revision);
                    }
                });
                return Ok(true);
            }
            Published::Changed(_) if retries.is_spent(&context.clock) => {
                return Err(Error::new(
                    ErrorKind::Store,
                    "another program goes on to change the key of this leader, and nothing was published",
                ));
            }
            // The reply to an earlier value got lost, or another program has written the key.
            Published::Changed(revision) => {
                if revision == modified {
                    retries.pause(&context.clock).await;
                }
                modified = revision;
            }
        }
    }
}

/// Stores a request to let go for the holder with this token. `false`: no holder has it.
async fn ask_to_release(store: &Store, name: &LockName, token: u64) -> Result<bool, Error> {
    let (connections, directory) = (&store.connections, store.directory(name));
    let (contenders, _) = contenders::read(connections, &directory).await?;
    let mut holders = contenders
        .into_iter()
        .filter(|it| it.is_held && !it.record.is_reserved());
    let Some(holder) = holders.find(|it| it.token() == Some(token)) else {
        return Ok(false);
    };
    let kv = holder.kv;
    let asked = asked_key(&store.context.settings, &kv.key, kv.create_revision);
    let Some(asked) = asked.filter(|_| holder.kind != ContenderKind::Foreign) else {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "the leader is a program of another library, which no request to let go can reach; see who it is with `inspect`, or end its term with `break`",
        ));
    };
    Ok(candidate_requests::ask_to_release(connections, asked, &kv).await?)
}
