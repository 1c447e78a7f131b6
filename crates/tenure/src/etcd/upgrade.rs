//! Changing the mode of a hold: by a new value of its key, which keeps its position.
//!
//! An upgrade first says that it has arrived, and then which keys held at that moment: `queue` decides by that who goes on
//! to hold. Each request names the revision of the value that it replaces, so a request that arrives late changes nothing.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::options::Mode;
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Grant, Hold, Request};
use tenure_core::support::RetryBudget;
use tenure_core::time::Time;

use super::errors::{self, Recovery, RequestError};
use super::key_state::KeyState;
use super::names::Directory;
use super::queue::{self, EarlyToken, Goal, QueueEntry, QueuePosition, UpgradePlan};
use super::record::KeyRecord;
use super::requests::{self, DirectorySnapshot, Replaced};
use super::store::{HeldEntry, Store};
use super::wait::{WaitOutcome, Waiter};
use super::wire::{self, KeyValue};

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        hold: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { upgrade(&self, &hold, &request).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { downgrade(&self, &hold, mode).await })
    }
}

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
pub(super) async fn upgrade(
    store: &Store,
    hold: &Hold,
    request: &Request,
) -> Result<Answer, Error> {
    let entry = store.holds.get(hold.owner).ok_or_else(lost)?;
    let upgrading = Upgrade {
        directory: store.directory(&hold.name),
        started: store.context.now(),
        store,
        request,
        entry,
    };
    let answer = upgrading.until_answered(hold).await?;
    if let Answer::Granted(_) = answer {
        let changed = change_reservation(store, hold, Mode::Exclusive).await;
        changed.map_err(upgrade_is_unknown)?;
    }
    Ok(answer)
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
pub(super) async fn downgrade(store: &Store, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    let Some(entry) = store.holds.get(hold.owner) else {
        return Ok(false);
    };
    let (key, connections) = (&entry.key, &store.connections);
    loop {
        let Some(own) = requests::read_key(connections, key, entry.created).await? else {
            return Ok(false);
        };
        let record = KeyRecord::read(&own.value);
        if record.is_reserved() {
            return Ok(false);
        }
        // The value is replaced even if it says this mode already: then a late request to upgrade is refused.
        let value = record.with_mode(mode, hold.token);
        match replace_own(store, &entry, &value, own.mod_revision, Vec::new()).await? {
            Replaced::At(_) => {
                change_reservation(store, hold, mode).await?;
                return Ok(true);
            }
            Replaced::Gone => return Ok(false),
            // A late request has changed the value since it was read.
            Replaced::Refused => {}
        }
    }
}

/// From now on the reservation of the hold conflicts with the same modes as the hold does.
async fn change_reservation(store: &Store, hold: &Hold, mode: Mode) -> Result<(), Error> {
    let entry = store.holds.get(hold.owner);
    let Some((created, reservation)) = entry.and_then(|it| Some((it.created, it.reservation?)))
    else {
        return Ok(());
    };
    let Some(lease) = &reservation.lease else {
        return Ok(());
    };
    // If the time is over, the key is gone.
    let state = KeyState::created_at(&reservation.second_key.key, created);
    requests::reserve_name(&store.connections, &state, mode, lease.id).await?;
    Ok(())
}

/// Gives our key a new value, if the key has its value since `modified` and all of `conditions` hold.
async fn replace_own(
    store: &Store,
    entry: &HeldEntry,
    record: &KeyRecord,
    modified: i64,
    mut conditions: Vec<wire::Compare>,
) -> Result<Replaced, Error> {
    let put = wire::Put {
        key: entry.key.clone(),
        value: record.to_bytes(),
        lease: entry.lease.id,
    };
    conditions.push(wire::Compare::modified(&entry.key, modified));
    match requests::replace(&store.connections, put, conditions).await {
        Ok(replaced) => Ok(replaced),
        Err(RequestError {
            recovery: Recovery::NewLease,
            ..
        }) => {
            store.leases.end(&entry.lease);
            Ok(Replaced::Gone)
        }
        Err(err) => Err(err.error),
    }
}

fn lost() -> Error {
    Error::new(
        ErrorKind::Lost,
        "the store has no key of this hold; the lock was lost",
    )
}

/// An error after the request to upgrade was sent.
fn upgrade_is_unknown(err: Error) -> Error {
    match err.kind() {
        ErrorKind::Indeterminate | ErrorKind::Lost => err,
        _ => Error::new(
            ErrorKind::Indeterminate,
            "whether the hold was upgraded cannot be told",
        )
        .with_source(err),
    }
}

/// One request to upgrade.
struct Upgrade<'a> {
    store: &'a Store,
    request: &'a Request,
    entry: HeldEntry,
    directory: Directory,
    started: Time,
}

impl Upgrade<'_> {
    /// Becomes exclusive, if need be after the other holders have left.
    async fn until_answered(&self, hold: &Hold) -> Result<Answer, Error> {
        let context = &self.store.context;
        let mut retries = RetryBudget::until(context.request_limit());
        loop {
            let (own, plan) = self.look().await.map_err(errors::without_effect)?;
            let record = KeyRecord::read(&own.value);
            if record.mode() == Mode::Exclusive {
                let token = record.token(own.create_revision);
                return Ok(self.granted(token.ok_or_else(errors::unexpected_reply)?));
            }
            if self.request.stop.is_raised() || plan.has_others && !self.request.wait {
                return Ok(Answer::Busy);
            }
            if !plan.has_others
                && self
                    .is_token_free(&plan)
                    .await
                    .map_err(errors::without_effect)?
                && let Some(answer) = self.become_exclusive_alone(&own, &plan).await?
            {
                return Ok(answer);
            }
            if self.request.wait {
                let waited = self.wait_for_others(hold, &own).await;
                return waited.map_err(upgrade_is_unknown);
            }
            if retries.is_spent(&context.clock) {
                return Ok(Answer::Busy);
            }
            retries.pause(&context.clock).await;
        }
    }

    /// Whether the token of the plan is that of no other hold. It may be that of a reader that has left, if the first waiter
    /// came right behind that reader: then the client of the waiter makes its key again, and the next look finds another token.
    async fn is_token_free(&self, plan: &UpgradePlan) -> Result<bool, Error> {
        let Some(waiter) = plan.first_waiter.as_ref().filter(|it| it.may_be_made_again) else {
            return Ok(true);
        };
        let connections = &self.store.connections;
        match requests::read_directory_at(connections, &self.directory, waiter.created).await {
            Ok(then) => Ok(queue::early_token(&waiter.key, &then.keys) != EarlyToken::Taken),
            // The waiter has been there for so long that its client has read the answer and has left the key as it is.
            Err(err) if err.recovery == Recovery::ReadPresent => Ok(true),
            Err(err) => Err(err.error),
        }
    }

    /// Our key, and what the upgrade has to wait for.
    async fn look(&self) -> Result<(KeyValue, UpgradePlan), Error> {
        let snapshot = self.read_directory().await?;
        self.plan(&snapshot.keys, snapshot.revision)
    }

    async fn read_directory(&self) -> Result<DirectorySnapshot, Error> {
        let read = requests::read_directory(&self.store.connections, &self.directory);
        let mut snapshot = read.await?;
        queue::remove_own_reservation(&mut snapshot.keys, &self.entry.key);
        Ok(snapshot)
    }

    fn plan(&self, keys: &[KeyValue], revision: i64) -> Result<(KeyValue, UpgradePlan), Error> {
        let HeldEntry { key, created, .. } = &self.entry;
        let keys = &mut keys.to_vec();
        queue::remove_early_reservations(keys);
        let is_own = |kv: &&KeyValue| kv.key == *key && kv.create_revision == *created;
        let own = keys.iter().find(is_own).ok_or_else(lost)?;
        let plan = queue::plan_upgrade(key, keys, revision).ok_or_else(lost)?;
        Ok((own.clone(), plan))
    }

    fn granted(&self, token: u64) -> Answer {
        let lease = &self.entry.lease;
        let round_trip = self.store.context.now().since(self.started);
        Answer::Granted(Grant::new(token, lease.sent(), round_trip, Some(lease.ttl)))
    }

    async fn replace_own(
        &self,
        record: &KeyRecord,
        modified: i64,
        conditions: Vec<wire::Compare>,
    ) -> Result<Replaced, Error> {
        replace_own(self.store, &self.entry, record, modified, conditions).await
    }

    /// No other key holds. Makes our hold exclusive, unless another key has begun to hold since the queue was read; in
    /// that case `None`.
    async fn become_exclusive_alone(
        &self,
        own: &KeyValue,
        plan: &UpgradePlan,
    ) -> Result<Option<Answer>, Error> {
        // The first waiter is blocked by our key, and keeps out all that come later.
        let nothing_granted = match &plan.first_waiter {
            Some(waiter) => wire::Compare::created(&waiter.key, waiter.created),
            None => wire::Compare::all_created_before(
                self.directory.start(),
                &self.directory.end(),
                plan.read_at + 1,
            ),
        };
        let record = KeyRecord::read(&own.value).upgraded(plan.token);
        let conditions = vec![nothing_granted];
        match self
            .replace_own(&record, own.mod_revision, conditions)
            .await?
        {
            Replaced::At(at) if plan.first_waiter.is_some() || at == plan.read_at + 1 => {
                Ok(Some(self.granted(plan.token)))
            }
            Replaced::At(at) => {
                let renumbered = self.renumber(&record, at).await;
                renumbered.map(Some).map_err(upgrade_is_unknown)
            }
            Replaced::Refused => Ok(None),
            Replaced::Gone => Err(lost()),
        }
    }

    /// Other holders may have come and gone between the look at the queue and our change at the revision `changed`. Their tokens
    /// are smaller than `changed`, and those of all that come later are greater.
    async fn renumber(&self, record: &KeyRecord, changed: i64) -> Result<Answer, Error> {
        let token = u64::try_from(changed).map_err(|_| errors::unexpected_reply())?;
        let record = record.clone().upgraded(token);
        at(self.replace_own(&record, changed, Vec::new()).await?)?;
        Ok(self.granted(token))
    }

    /// Keeps all others out, and makes our hold exclusive when all other holders have left.
    async fn wait_for_others(&self, hold: &Hold, own: &KeyValue) -> Result<Answer, Error> {
        let record = KeyRecord::read(&own.value);
        let arriving = record.clone().upgrading(None);
        let arrived = self.replace_own(&arriving, own.mod_revision, Vec::new());
        let arrived = at(arrived.await?)?;
        let Some((snapshot, plan)) = self.plan_since(arrived).await? else {
            return self.give_up(hold).await;
        };
        let saying = record.clone().upgrading(Some(plan.last_holder));
        let said = at(self.replace_own(&saying, arrived, Vec::new()).await?)?;
        match self.wait(&snapshot, plan.last_holder).await? {
            WaitOutcome::Held => {
                let upgraded = record.upgraded(plan.token);
                at(self.replace_own(&upgraded, said, Vec::new()).await?)?;
                Ok(self.granted(plan.token))
            }
            WaitOutcome::EntryLost => Err(lost()),
            WaitOutcome::Stopped => self.give_up(hold).await,
        }
    }

    /// The keys that were there when the upgrade arrived, and the plan. `None`: the request was stopped.
    async fn plan_since(
        &self,
        arrived: i64,
    ) -> Result<Option<(DirectorySnapshot, UpgradePlan)>, Error> {
        let mut retries = RetryBudget::without_limit();
        loop {
            let mut snapshot = self.read_directory().await?;
            snapshot.keys.retain(|kv| kv.create_revision < arrived);
            let (_, plan) = self.plan(&snapshot.keys, arrived)?;
            if self.is_token_free(&plan).await? {
                return Ok(Some((snapshot, plan)));
            }
            if self.request.stop.is_raised() {
                return Ok(None);
            }
            retries.pause(&self.store.context.clock).await;
        }
    }

    /// Lets the others in again.
    async fn give_up(&self, hold: &Hold) -> Result<Answer, Error> {
        match downgrade(self.store, hold, Mode::Upgradable).await? {
            true => Ok(Answer::Busy),
            false => Err(lost()),
        }
    }

    /// Waits for the end of all other keys that were created up to `last_holder`.
    async fn wait(
        &self,
        snapshot: &DirectorySnapshot,
        last_holder: i64,
    ) -> Result<WaitOutcome, Error> {
        let entry = QueueEntry {
            directory: self.directory.clone(),
            key: self.entry.key.clone(),
            value: self.entry.value.clone(),
            second_key: None,
            lease: self.entry.lease.id,
            goal: Goal::EndOfOthers { last_holder },
        };
        let ahead = match queue::position(entry.goal, &entry.key, &snapshot.keys) {
            QueuePosition::Held => return Ok(WaitOutcome::Held),
            QueuePosition::Gone => return Ok(WaitOutcome::EntryLost),
            QueuePosition::Behind(ahead) => ahead,
        };
        let waiter = Waiter {
            store: self.store,
            request: self.request,
            entry: &entry,
            lease: &self.entry.lease,
            created: self.entry.created,
            ahead,
            revision: snapshot.revision,
            subscription: None,
        };
        waiter.wait().await
    }
}

/// The revision of the new value.
fn at(replaced: Replaced) -> Result<i64, Error> {
    match replaced {
        Replaced::At(revision) => Ok(revision),
        Replaced::Gone => Err(lost()),
        Replaced::Refused => Err(Error::new(
            ErrorKind::Indeterminate,
            "another request has changed the key of this hold; whether the hold was upgraded cannot be told",
        )),
    }
}
