//! Changing the mode of a hold: by a new value of its key, which keeps its position.
//!
//! An upgrade first writes that it has arrived, and then which keys held at that moment. From both, `queue` decides which
//! keys still hold. Each request names the revision of the value that it replaces, so a request that arrives late changes
//! nothing.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::options::Mode;
use tenure_core::queue::{self as engine, HoldMode, ModeChange, Others, Replaced, lost};
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Grant, Hold, Request};
use tenure_core::support::RetryBudget;

use super::errors::{self, Recovery};
use super::key_state::KeyState;
use super::queue::{self, EarlyToken, Goal, QueueEntry, QueueSnapshot, UpgradePlan};
use super::record::KeyRecord;
use super::requests::{self, DirectorySnapshot};
use super::store::{ContenderKey, Store};
use super::wait::{self, Ahead, Operation, Queued};
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
    store: &Arc<Store>,
    hold: &Hold,
    request: &Arc<Request>,
) -> Result<Answer, Error> {
    let answer = engine::upgrade(&Operation::new(store, request, hold.token)).await?;
    if let Answer::Granted(_) = answer {
        let changed = change_reservation(store, hold, Mode::Exclusive).await;
        changed.map_err(upgrade_is_unknown)?;
    }
    Ok(answer)
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
pub(super) async fn downgrade(store: &Arc<Store>, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    let mut request = Request::new(hold.name.clone(), hold.owner, hold.ttl);
    request.mode = mode;
    let request = Arc::new(request);
    let changed = engine::downgrade(&Operation::new(store, &request, hold.token), mode).await?;
    if changed {
        change_reservation(store, hold, mode).await?;
    }
    Ok(changed)
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

/// Our key, as it was read or written last.
pub(super) struct OwnKey {
    held: ContenderKey,
    record: KeyRecord,
    modified: i64,
    /// The lease of the key. The hold may have been detached meanwhile, and then the lease is another one.
    lease: i64,
    /// What an upgrade has to wait for.
    plan: Option<UpgradePlan>,
}

impl ModeChange for Operation<'_> {
    type Own = OwnKey;

    async fn read_own(&self) -> Result<Option<OwnKey>, Error> {
        let Some(held) = self.store.holds.get(self.request.owner) else {
            return Ok(None);
        };
        if self.request.mode == Mode::Exclusive {
            return self.look(held).await.map_err(errors::without_effect);
        }
        let connections = &self.store.connections;
        let kv = requests::read_key(connections, &held.key, held.created).await?;
        let own = kv.map(|kv| OwnKey {
            record: KeyRecord::read(&kv.value),
            modified: kv.mod_revision,
            lease: kv.lease,
            plan: None,
            held,
        });
        Ok(own.filter(|own| !own.record.is_reserved()))
    }

    fn is_exclusive(&self, own: &OwnKey) -> bool {
        own.record.mode() == Mode::Exclusive
    }

    async fn replace(&self, own: &mut OwnKey, mode: HoldMode) -> Result<Replaced<()>, Error> {
        let (record, token) = (own.record.clone(), self.token);
        let record = match mode {
            HoldMode::Shared => record.with_mode(Mode::Shared, token),
            HoldMode::Upgradable => record.with_mode(Mode::Upgradable, token),
            HoldMode::Upgrading { last_holder } => record.upgrading(last_holder),
        };
        self.replace_own(own, record, Vec::new()).await
    }

    async fn others(&self, own: &mut OwnKey) -> Result<Option<Others<Queued, Ahead>>, Error> {
        let mut retries = RetryBudget::without_limit();
        loop {
            let mut queue = self.read_directory(&own.held).await?;
            // Only what was there when the upgrade arrived counts.
            queue.keys.retain(|kv| kv.create_revision < own.modified);
            let planned = plan_upgrade(&own.held, &queue.keys, own.modified);
            let (_, plan) = planned.ok_or_else(lost)?;
            let is_stopped = self.request.stop.is_raised();
            if is_stopped || self.is_token_free(&plan).await? {
                // A request that is stopped does not become exclusive.
                let has_others = plan.has_others || is_stopped;
                let last = plan.last_holder;
                own.plan = Some(plan);
                return Ok(has_others.then(|| self.end_of_others(own, queue, last)));
            }
            retries.pause(&self.store.context.clock).await;
        }
    }

    async fn become_exclusive(&self, own: &mut OwnKey) -> Result<Replaced<Grant>, Error> {
        if self.is_exclusive(own) {
            let token = own.record.token(own.held.created);
            let token = token.ok_or_else(errors::unexpected_reply)?;
            return Ok(Replaced::Done(self.granted(own, token)));
        }
        let token = own.plan.as_ref().ok_or_else(lost)?.token;
        let record = own.record.clone().upgraded(token);
        let replaced = self.replace_own(own, record, Vec::new()).await?;
        Ok(replaced.map(|()| self.granted(own, token)))
    }

    /// Becomes exclusive by one request if no other key holds.
    async fn upgrade_at_once(&self, own: &mut OwnKey) -> Result<Option<Answer>, Error> {
        let context = &self.store.context;
        let mut retries = RetryBudget::until(context.request_limit());
        loop {
            let plan = own.plan.clone().ok_or_else(lost)?;
            if self.request.stop.is_raised() || plan.has_others && !self.request.wait {
                return Ok(Some(Answer::Busy));
            }
            if !plan.has_others {
                let is_free = self.is_token_free(&plan).await;
                if is_free.map_err(errors::without_effect)?
                    && let Some(grant) = self.become_exclusive_alone(own, &plan).await?
                {
                    return Ok(Some(Answer::Granted(grant)));
                }
            }
            if self.request.wait {
                return Ok(None);
            }
            if retries.is_spent(&context.clock) {
                return Ok(Some(Answer::Busy));
            }
            retries.pause(&context.clock).await;
            *own = self.read_own().await?.ok_or_else(lost)?;
        }
    }
}

impl Operation<'_> {
    /// Our key, as one that waits for the end of all other keys that were created up to `last_holder`.
    fn end_of_others(
        &self,
        own: &OwnKey,
        queue: DirectorySnapshot,
        last_holder: i64,
    ) -> Others<Queued, Ahead> {
        let ContenderKey {
            key,
            value,
            lease,
            created,
            ..
        } = &own.held;
        let goal = Goal::EndOfOthers { last_holder };
        let snapshot = QueueSnapshot {
            position: queue::position(goal, key, &queue.keys),
            revision: queue.revision,
            early_token: EarlyToken::NotNeeded,
        };
        let entry = QueueEntry {
            directory: self.directory.clone(),
            key: key.clone(),
            value: value.clone(),
            second_key: None,
            lease: lease.id,
            goal,
            candidate: None,
        };
        Others {
            last_holder,
            entry: Queued {
                entry,
                lease: lease.clone(),
                created: *created,
                early_token: EarlyToken::NotNeeded,
                round_trip: Duration::ZERO,
            },
            position: Some(wait::position(snapshot, None)),
        }
    }

    /// Our key, and what the upgrade has to wait for; `None`: the key is gone.
    async fn look(&self, held: ContenderKey) -> Result<Option<OwnKey>, Error> {
        let queue = self.read_directory(&held).await?;
        let planned = plan_upgrade(&held, &queue.keys, queue.revision);
        Ok(planned.map(|(kv, plan)| OwnKey {
            record: KeyRecord::read(&kv.value),
            modified: kv.mod_revision,
            lease: kv.lease,
            plan: Some(plan),
            held,
        }))
    }

    async fn read_directory(&self, held: &ContenderKey) -> Result<DirectorySnapshot, Error> {
        let read = requests::read_directory(&self.store.connections, &self.directory);
        let mut snapshot = read.await?;
        queue::remove_own_reservation(&mut snapshot.keys, &held.key);
        Ok(snapshot)
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

    /// Gives our key a new value, if the key has not changed and all of `conditions` hold.
    async fn replace_own(
        &self,
        own: &mut OwnKey,
        record: KeyRecord,
        mut conditions: Vec<wire::Compare>,
    ) -> Result<Replaced<()>, Error> {
        let ContenderKey { key, lease, .. } = &own.held;
        let put = wire::Put {
            key: key.clone(),
            value: record.to_bytes(),
            lease: own.lease,
        };
        conditions.push(wire::Compare::modified(key, own.modified));
        let connections = &self.store.connections;
        let replaced = requests::replace(connections, put, Vec::new(), conditions).await;
        Ok(match replaced {
            Err(err) if err.recovery == Recovery::NewLease => {
                if lease.id == own.lease {
                    self.store.leases.end(lease);
                }
                Replaced::Gone
            }
            replaced => replaced?.map(|modified| {
                own.modified = modified;
                own.record = record;
            }),
        })
    }

    /// No other key holds. Makes our hold exclusive, unless another key has begun to hold since the queue was read; in
    /// that case `None`.
    async fn become_exclusive_alone(
        &self,
        own: &mut OwnKey,
        plan: &UpgradePlan,
    ) -> Result<Option<Grant>, Error> {
        // The first waiter is blocked by our key, and blocks all keys that come later.
        let nothing_granted = match &plan.first_waiter {
            Some(waiter) => wire::Compare::created(&waiter.key, waiter.created),
            None => wire::Compare::all_created_before(
                self.directory.start(),
                &self.directory.end(),
                plan.read_at + 1,
            ),
        };
        let record = own.record.clone().upgraded(plan.token);
        match self.replace_own(own, record, vec![nothing_granted]).await? {
            Replaced::Done(()) => {}
            Replaced::Refused => return Ok(None),
            Replaced::Gone => return Err(lost()),
        }
        let at = own.modified;
        if plan.first_waiter.is_some() || at == plan.read_at + 1 {
            return Ok(Some(self.granted(own, plan.token)));
        }
        let renumbered = self.renumber(own).await;
        renumbered.map(Some).map_err(upgrade_is_unknown)
    }

    /// Other holders may have come and gone between the look at the queue and our last change of the key. Their tokens are
    /// smaller than the revision of that change, and those of all that come later are greater.
    async fn renumber(&self, own: &mut OwnKey) -> Result<Grant, Error> {
        let token = u64::try_from(own.modified).map_err(|_| errors::unexpected_reply())?;
        let record = own.record.clone().upgraded(token);
        match self.replace_own(own, record, Vec::new()).await? {
            Replaced::Done(()) => Ok(self.granted(own, token)),
            Replaced::Gone => Err(lost()),
            Replaced::Refused => Err(Error::new(
                ErrorKind::Indeterminate,
                "another request has changed the key of this hold; whether the hold was upgraded cannot be told",
            )),
        }
    }

    fn granted(&self, own: &OwnKey, token: u64) -> Grant {
        let lease = &own.held.lease;
        let round_trip = self.store.context.now().since(self.started);
        Grant::new(token, lease.sent(), round_trip, Some(lease.ttl))
    }
}

/// Our key, and the plan of its upgrade. `keys`: the directory at `revision`, without keys that were created later. `None`:
/// our key is not there, or does not hold.
fn plan_upgrade(
    ContenderKey { key, created, .. }: &ContenderKey,
    keys: &[KeyValue],
    revision: i64,
) -> Option<(KeyValue, UpgradePlan)> {
    let mut keys = keys.to_vec();
    queue::remove_early_reservations(&mut keys);
    let is_own = |kv: &&KeyValue| kv.key == *key && kv.create_revision == *created;
    let own = keys.iter().find(is_own)?.clone();
    Some((own, queue::plan_upgrade(key, &keys, revision)?))
}
