//! One lock: asked for, kept, given back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures_util::future;

use tenure_core::backend::{Hold, LossNotifier, Release, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::guarantees::Guarantees;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::rt::{BackgroundTasks, Clock, Flag, NextWakeup, Spawner, lock, wall_now};
use tenure_core::time::Time;

use super::ears::Ears;
use super::link::{Link, Reply};
use super::names::Directory;
use super::outcome::{self, Trouble};
use super::place::{self, ENOUGH, Standing, Written};
use super::session::{BATCH, Doubt, Lease, whole_seconds};
use super::settings::Settings;
use super::wire::{self, By, KeyValue, Order, path};

/// What one client knows of its store.
pub(super) struct Store {
    pub(super) settings: Settings,
    pub(super) guarantees: Guarantees,
    pub(super) link: Link,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    /// Leases that are being given up, or granted to a request that was stopped.
    pub(super) background: Arc<BackgroundTasks>,
    pub(super) alarm: OnceLock<LossNotifier>,
    pub(super) closing: Flag,
    /// By their ttl in seconds.
    pub(super) sessions: Mutex<HashMap<i64, Arc<Lease>>>,
    pub(super) kept: Mutex<HashMap<OwnerId, Kept, RandomAlready>>,
    pub(super) doubts: Mutex<Vec<Doubt>>,
    pub(super) ears: Ears,
    /// Keys that are not to be used by another acquisition before that time.
    pub(super) taken: Mutex<HashMap<Vec<u8>, Time>>,
    /// Held by whoever makes a session.
    pub(super) making: tokio::sync::Mutex<()>,
    /// Held by whoever keeps leases alive.
    pub(super) refreshing: tokio::sync::Mutex<()>,
    /// Of the task that keeps leases alive.
    pub(super) maintenance: Arc<NextWakeup>,
    /// The runtime of the connections is gone: what is left runs out.
    pub(super) is_stranded: AtomicBool,
}

/// What has to be remembered of an acquisition to keep it and to give it back.
pub(super) struct Kept {
    pub(super) lease: Arc<Lease>,
    pub(super) key: Vec<u8>,
    /// What it was made with; no other acquisition has the same.
    value: Arc<[u8]>,
    /// The create revision of the key; 0 while nobody knows it.
    pub(super) token: i64,
    pub(super) stage: Stage,
    /// Until when the name stays taken, even past the release.
    rests_until: Time,
    min_hold: Duration,
    /// The request that made the key was sent more than once: one of them may arrive late.
    pub(super) is_doubtful: bool,
    /// A release was sent whose fate is unknown.
    may_be_released: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// It was asked for, or waits.
    Asking,
    /// The last time that the driver was told that it holds; the whole lease ran from then on.
    Held { renewed: Time },
    /// Not renewed any more, and not gone yet: to be deleted then, and again until that is done.
    Over { again: Time },
    /// It is to be released; forgotten at that time, if nobody can say what came of it.
    Ending { until: Time },
}

/// What a renewal has to know of a hold.
struct Known {
    lease: Arc<Lease>,
    key: Vec<u8>,
}

/// A key of ours, on its way.
pub(super) struct Place {
    pub(super) directory: Directory,
    pub(super) key: Vec<u8>,
    value: Arc<[u8]>,
    pub(super) lease: Arc<Lease>,
}

/// The answer to the first request.
pub(super) enum Asked {
    Busy,
    /// A former acquisition's key is still there, or there again: use another one.
    Occupied,
    /// Our key is in the store since that revision, and that is where it stands.
    Stands {
        created: i64,
        standing: Standing,
        /// The revision at which it stood there.
        revision: i64,
        round_trip: Duration,
    },
}

/// Which key is meant, of those that may lie under one name after each other.
pub(super) enum Which<'a> {
    /// The one that is there since that revision.
    Created(i64),
    /// The one that was made with this value.
    Written(&'a [u8]),
}

/// A directory, read.
pub(super) struct Seen {
    pub(super) standing: Standing,
    pub(super) revision: i64,
}

impl Store {
    pub(super) fn new(
        settings: Settings,
        guarantees: Guarantees,
        link: Link,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        Self {
            settings,
            guarantees,
            link,
            clock,
            spawner,
            background: Arc::default(),
            alarm: OnceLock::new(),
            closing: Flag::new(),
            sessions: Mutex::default(),
            kept: Mutex::default(),
            doubts: Mutex::default(),
            ears: Ears::default(),
            taken: Mutex::default(),
            making: tokio::sync::Mutex::new(()),
            refreshing: tokio::sync::Mutex::new(()),
            maintenance: Arc::new(NextWakeup::new()),
            is_stranded: AtomicBool::new(false),
        }
    }

    pub(super) fn directory(&self, name: &LockName) -> Directory {
        Directory::new(&self.settings, name)
    }

    pub(super) async fn txn(&self, txn: wire::Txn) -> Result<Reply<wire::TxnAnswer>, Trouble> {
        self.link.call(path::TXN, txn).await
    }

    /// Decides where the key of an acquisition is to lie, and remembers that.
    pub(super) fn place(self: &Arc<Self>, request: &Request, lease: Arc<Lease>) -> Place {
        let directory = self.directory(&request.name);
        let written = Written::new(&request.holder, request.mode, request.owner, wall_now());
        let value: Arc<[u8]> = written.to_bytes().into();
        let key = {
            let now = self.clock.now();
            let mut taken = lock(&self.taken);
            // The same keys again and again: the store remembers each one that ever was, until it is compacted.
            let mut keys = (0..).map(|beside| directory.key(lease.id, beside));
            let free = keys.find(|key| taken.get(key).is_none_or(|until| *until <= now));
            let key = free.expect("numbers do not run out");
            taken.insert(key.clone(), Time::MAX);
            key
        };
        let kept = Kept {
            lease: lease.clone(),
            key: key.clone(),
            value: value.clone(),
            token: 0,
            stage: Stage::Asking,
            rests_until: Time::ZERO,
            min_hold: request.min_hold,
            is_doubtful: false,
            may_be_released: false,
        };
        self.keep(request.owner, kept);
        Place {
            directory,
            key,
            value,
            lease,
        }
    }

    /// Nothing is left of that acquisition.
    pub(super) fn forget(self: &Arc<Self>, owner: OwnerId) {
        let Some(kept) = lock(&self.kept).remove(&owner) else {
            return;
        };
        if kept.rests_until > self.clock.now() {
            // As nobody's it lies there until then.
            self.leave_alone(&kept.key, kept.rests_until);
        } else {
            lock(&self.taken).remove(&kept.key);
        }
        if !kept.lease.is_session {
            self.drop_lease(&kept.lease);
        } else if kept.is_doubtful {
            self.doubt(&kept.lease, &kept.key, &kept.value);
        }
    }

    /// That key is not to be used before that time.
    pub(super) fn leave_alone(&self, key: &[u8], until: Time) {
        lock(&self.taken).insert(key.to_vec(), until);
    }

    /// Asks for the lock, and for a place in its queue if the request waits.
    /// Sent any number of times, it comes to the same.
    pub(super) async fn ask(&self, request: &Request, place: &Place) -> Result<Asked, Trouble> {
        let put = wire::Put {
            key: place.key.clone(),
            value: place.value.to_vec(),
            lease: place.lease.id,
        };
        let own = wire::Range {
            key: place.key.clone(),
            ..wire::Range::default()
        };
        // Who does not wait and can hold only alone leaves no trace in the store when it is taken.
        let is_try = !request.wait && !place::needs_values(request.mode);
        let (start, end) = (place.directory.start(), place.directory.end());
        let compare = match is_try {
            true => wire::Compare::is_empty(start, &end),
            false => wire::Compare::created(&place.key, 0),
        };
        let txn = wire::Txn {
            compare: vec![compare],
            success: vec![put.into(), self.ahead(request, place, 0).into()],
            failure: vec![own.into()],
        };
        let reply = self.txn(txn).await?;
        if reply.is_repeated
            && let Some(kept) = lock(&self.kept).get_mut(&request.owner)
        {
            kept.is_doubtful = true;
        }
        let (
            wire::TxnAnswer {
                header,
                succeeded,
                mut answers,
            },
            round_trip,
        ) = (reply.value, reply.round_trip);
        let revision = header.map_or(0, |header| header.revision);
        let kvs = answers
            .pop()
            .and_then(|it| it.range)
            .unwrap_or_default()
            .kvs;
        if succeeded {
            return Ok(Asked::Stands {
                created: revision,
                standing: standing(request, place, kvs),
                revision,
                round_trip,
            });
        }
        // Then an earlier try of this request has put it, or it is taken.
        let own = match kvs.first() {
            Some(own) if *own.value == *place.value => own,
            _ if is_try => return Ok(Asked::Busy),
            _ => return Ok(Asked::Occupied),
        };
        let seen = self.look(request, place, own.create_revision, 0).await?;
        Ok(Asked::Stands {
            created: own.create_revision,
            standing: seen.standing,
            revision: seen.revision,
            round_trip,
        })
    }

    /// The keys of the directory that are not younger than `created`, as far as a place in it depends on them.
    fn ahead(&self, request: &Request, place: &Place, created: i64) -> wire::Range {
        let needs_values = place::needs_values(request.mode);
        wire::Range {
            key: place.directory.start().to_vec(),
            range_end: place.directory.end(),
            limit: if needs_values { 0 } else { ENOUGH as i64 },
            sort_order: Order::Descend.into(),
            sort_target: By::Create.into(),
            keys_only: !needs_values,
            max_create_revision: created,
            ..wire::Range::default()
        }
    }

    /// Reads the directory, as it was at that revision or later; with 0 as it is.
    pub(super) async fn look(
        &self,
        request: &Request,
        place: &Place,
        created: i64,
        at_least: i64,
    ) -> Result<Seen, Trouble> {
        let mut range = self.ahead(request, place, created);
        // The member that told us of a change has it; so it need not ask the others.
        range.serializable = at_least > 0;
        loop {
            let is_serializable = range.serializable;
            let reply = self.link.call(path::RANGE, range.clone()).await?;
            let answer: wire::RangeAnswer = reply.value;
            let revision = answer.header.map_or(0, |header| header.revision);
            if !is_serializable || revision >= at_least {
                let standing = standing(request, place, answer.kvs);
                return Ok(Seen { standing, revision });
            }
            range.serializable = false;
        }
    }

    /// Remembers a hold that is about to be passed to the driver.
    pub(super) fn granted(self: &Arc<Self>, request: &Request, created: i64, renewed: Time) {
        let rests_until = self.clock.now().after(request.min_hold);
        let mut due = Time::MAX;
        if let Some(kept) = lock(&self.kept).get_mut(&request.owner) {
            kept.token = created;
            kept.stage = Stage::Held { renewed };
            kept.rests_until = rests_until;
            if kept.lease.is_session {
                due = renewed.after(kept.lease.ttl / 3);
            }
        }
        self.due_at(due);
    }

    /// One look at all of these, and one keep-alive for their leases.
    pub(super) async fn renew(&self, holds: &[Hold]) -> Vec<Renewal> {
        let known: Vec<Option<Known>> = {
            let kept = lock(&self.kept);
            let known = |hold: &Hold| {
                let kept = kept.get(&hold.owner)?;
                let is_held = matches!(kept.stage, Stage::Held { .. });
                is_held.then(|| Known {
                    lease: kept.lease.clone(),
                    key: kept.key.clone(),
                })
            };
            holds.iter().map(known).collect()
        };
        let mut leases: Vec<Arc<Lease>> =
            known.iter().flatten().map(|it| it.lease.clone()).collect();
        leases.sort_by_key(|lease| lease.id);
        leases.dedup_by_key(|lease| lease.id);
        let shortest = leases.iter().map(|lease| lease.ttl).min();
        // What was confirmed a moment ago need not be asked again. A short moment: the next renewal comes a third of
        // the ttl after this one, however old its answer is.
        let age = shortest.unwrap_or_default() / 32;
        let keys: Vec<_> = holds
            .iter()
            .zip(&known)
            .filter_map(|(hold, known)| Some((&known.as_ref()?.key[..], signed(hold.token))))
            .collect();
        let asked = self.clock.now();
        let (refreshed, there) =
            future::join(self.refresh_all(&leases, age), self.are_there(&keys)).await;
        let mut there = there.into_iter();
        let mut kept = lock(&self.kept);
        let renewal = |(hold, known): (&Hold, Option<Known>)| {
            let Some(Known { lease, .. }) = known else {
                return Renewal::Lost(LostReason::StoreSaysNo);
            };
            let is_there = there.next().unwrap_or_else(|| Err(outcome::nonsense()));
            let sent = lease.sent();
            // One of several leases may have been confirmed although another was not.
            let is_confirmed = asked.since(sent) <= age;
            match (is_there, &refreshed) {
                _ if lease.gone.is_raised() => Renewal::Lost(LostReason::SessionGone),
                (Ok(false), _) => Renewal::Lost(LostReason::StoreSaysNo),
                (Err(err), _) => Renewal::Unknown(err),
                (Ok(true), Err(err)) if !is_confirmed => Renewal::Unknown(outcome::copy(err)),
                (Ok(true), _) => {
                    if let Some(Kept {
                        stage: Stage::Held { renewed },
                        ..
                    }) = kept.get_mut(&hold.owner)
                    {
                        *renewed = sent;
                    }
                    let ttl = Some(lease.ttl);
                    Renewal::Renewed { sent, ttl }
                }
            }
        };
        holds.iter().zip(known).map(renewal).collect()
    }

    /// Whether these keys are there since those revisions.
    async fn are_there(&self, keys: &[(&[u8], i64)]) -> Vec<Result<bool, Error>> {
        let batches = keys.chunks(BATCH).map(|batch| async move {
            let look = |(key, _): &(&[u8], i64)| {
                let range = wire::Range {
                    key: key.to_vec(),
                    keys_only: true,
                    ..wire::Range::default()
                };
                range.into()
            };
            let compare = |(key, token): &(&[u8], i64)| wire::Compare::created(key, *token);
            // If all is well the answer is short.
            let txn = wire::Txn {
                compare: batch.iter().map(compare).collect(),
                success: Vec::new(),
                failure: batch.iter().map(look).collect(),
            };
            let all = |answer: &dyn Fn() -> Result<bool, Error>| -> Vec<_> {
                batch.iter().map(|_| answer()).collect()
            };
            match self.txn(txn).await {
                Ok(reply) if reply.value.succeeded => all(&|| Ok(true)),
                Ok(reply) if reply.value.answers.len() == batch.len() => {
                    let is_there = |(answer, (_, token)): (wire::OpAnswer, &(&[u8], i64))| {
                        let kvs = answer.range.unwrap_or_default().kvs;
                        Ok(kvs.first().is_some_and(|kv| kv.create_revision == *token))
                    };
                    reply
                        .value
                        .answers
                        .into_iter()
                        .zip(batch)
                        .map(is_there)
                        .collect()
                }
                Ok(_) => all(&|| Err(outcome::nonsense())),
                Err(trouble) => all(&|| Err(outcome::copy(&trouble.error))),
            }
        });
        let batches = future::join_all(batches).await;
        batches.into_iter().flatten().collect()
    }

    /// Deletes that key and no other that lies there. `false`: it is not there.
    pub(super) async fn delete(&self, key: &[u8], which: &Which<'_>) -> Result<bool, Error> {
        let delete = wire::Delete { key: key.to_vec() };
        let txn = wire::Txn {
            compare: vec![match which {
                Which::Created(revision) => wire::Compare::created(key, *revision),
                Which::Written(value) => wire::Compare::has_value(key, value),
            }],
            success: vec![delete.into()],
            failure: Vec::new(),
        };
        let reply = self.txn(txn).await?;
        let answer = reply.value.answers.into_iter().next();
        let deleted = answer.and_then(|it| it.delete).map_or(0, |it| it.deleted);
        // If it was sent twice, the first one may have done it.
        Ok(deleted > 0 || reply.is_repeated)
    }

    /// Gives back what the owner has: the lock, or its place in the queue.
    pub(super) async fn release(self: &Arc<Self>, hold: &Hold) -> Result<Release, Error> {
        if self.is_stranded.load(Ordering::SeqCst) {
            return Err(Error::new(
                ErrorKind::Closed,
                "the runtime of this client is gone; the lease runs out by itself",
            ));
        }
        let now = self.clock.now();
        let (kept, may_be_released) = {
            let mut all = lock(&self.kept);
            let Some(kept) = all.get_mut(&hold.owner) else {
                return Ok(Release::NotHeld);
            };
            let until = now.after(kept.lease.ttl.max(hold.ttl) * 2);
            kept.stage = Stage::Ending { until };
            kept.is_doubtful |= hold.token == 0;
            let copy = Kept {
                lease: kept.lease.clone(),
                key: kept.key.clone(),
                value: kept.value.clone(),
                ..*kept
            };
            (copy, kept.may_be_released)
        };
        let rest = kept.rests_until.since(now);
        let released = if hold.token == 0 && !kept.lease.is_session {
            // With its lease even a late request for the key is refused.
            kept.lease.gone.raise();
            self.revoke(kept.lease.id).await
        } else if kept.min_hold.is_zero() || rest.is_zero() {
            let which = match kept.token {
                0 => Which::Written(&kept.value),
                token => Which::Created(token),
            };
            self.delete(&kept.key, &which).await
        } else {
            self.rest(&kept, rest).await
        };
        match released {
            Ok(released) => {
                self.forget(hold.owner);
                Ok(match released || may_be_released {
                    true => Release::Released,
                    false => Release::NotHeld,
                })
            }
            Err(err) => {
                if err.kind() == ErrorKind::Indeterminate
                    && let Some(kept) = lock(&self.kept).get_mut(&hold.owner)
                {
                    kept.may_be_released = true;
                }
                Err(err)
            }
        }
    }

    /// Lets the key live on for that long, as nobody's: it keeps its place.
    async fn rest(self: &Arc<Self>, kept: &Kept, rest: Duration) -> Result<bool, Error> {
        let lease = self.grant(whole_seconds(rest), false).await?;
        let put = wire::Put {
            key: kept.key.clone(),
            value: Written::reserved().to_bytes(),
            lease: lease.id,
        };
        let txn = wire::Txn {
            compare: vec![wire::Compare::created(&kept.key, kept.token)],
            success: vec![put.into()],
            failure: Vec::new(),
        };
        let rests = self.txn(txn).await?.value.succeeded;
        if !rests {
            self.drop_lease(&lease);
        }
        Ok(rests)
    }

    /// See [`Backend::write`](tenure_core::backend::Backend::write).
    pub(super) async fn write(
        &self,
        holds: &[Hold],
        key: String,
        value: Option<Vec<u8>>,
    ) -> Result<bool, Error> {
        let mut compare = Vec::with_capacity(holds.len());
        {
            let kept = lock(&self.kept);
            for hold in holds {
                let Some(kept) = kept.get(&hold.owner) else {
                    return Ok(false);
                };
                compare.push(wire::Compare::created(&kept.key, signed(hold.token)));
            }
        }
        let key = key.into_bytes();
        let write = match value {
            Some(value) => wire::Put {
                key,
                value,
                lease: 0,
            }
            .into(),
            None => wire::Delete { key }.into(),
        };
        let txn = wire::Txn {
            compare,
            success: vec![write],
            failure: Vec::new(),
        };
        let reply = self.txn(txn).await?;
        // Sent twice and refused the second time, the first one may have been applied.
        if reply.is_repeated && !reply.value.succeeded {
            return Err(Error::new(
                ErrorKind::Indeterminate,
                "a member went away while it wrote; whether it was written cannot be told",
            ));
        }
        Ok(reply.value.succeeded)
    }
}

/// Revisions are signed in the protocol, and positive.
pub(super) fn signed(token: u64) -> i64 {
    i64::try_from(token).unwrap_or(i64::MAX)
}

/// The keys come youngest first.
fn standing(request: &Request, place: &Place, mut kvs: Vec<KeyValue>) -> Standing {
    kvs.reverse();
    place::standing(request.mode, &place.key, &kvs)
}
