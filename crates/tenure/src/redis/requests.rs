//! One function for each request to a server: it makes the arguments, and reads what the reply means.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, FromRedisValue as _, Value};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::holder::Holder;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::lock;
use tenure_core::store::{AllAnswer, Grant, Hold, Release, Renewal, Request};
use tenure_core::support::{HolderRecord, millis_down, millis_up, mode_text};
use tenure_core::time::Time;

use crate::waiting::{self, AcquireReply, QueuePosition, WAITER_TTL};

use super::batch::{BatchItem, BatchKey, Batcher};
use super::connection::{Connections, ScriptReply, hashed, slot, unexpected_reply};
use super::context::Context;
use super::errors;
use super::format::{self, Keys};
use super::holds::{is_candidate, may_reserve};
use super::redisson::{self, RedissonLock};
use super::scripts::{ElectionScripts, OwnerText, Scripts, Text};

/// A token outlives its hold by a day, so that tokens grow even when the server's clock is set back by hours.
const TOKEN_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// Requests about one lock each that an inspection of all locks, or the end of a client, has under way at a time. More of
/// them would delay renewals on the same connection.
pub(super) const MAX_PARALLEL: usize = 64;

/// The requests of one client.
pub(super) struct Requests {
    context: Arc<Context>,
    pub(super) connections: Arc<Connections>,
    batcher: Arc<Batcher>,
    pub(super) scripts: &'static Scripts,
    /// `None`: the format has no elections.
    pub(super) elections: Option<&'static ElectionScripts>,
    /// The holder of the last request, as it is written.
    last_holder: Mutex<Option<(Arc<Holder>, Arc<str>)>>,
}

/// What is known of something that is to be released.
#[derive(Clone, Copy)]
pub(super) struct ReleaseKind {
    /// See [`Hold::unclean`].
    pub(super) is_unclean: bool,
    /// Whether the name may stay reserved after the release.
    pub(super) may_reserve: bool,
    /// Whether it may be a shared hold.
    pub(super) is_shared_hold: bool,
    /// Whether it is that of a candidate of an election.
    pub(super) is_candidate: bool,
    /// The least token of the next grant.
    pub(super) next_token: Option<u64>,
}

impl ReleaseKind {
    /// Of a request whose grant was not used, so that the name does not stay reserved: a hold of any mode, or a place in
    /// the queue.
    pub(super) fn unused(request: &Request) -> Self {
        Self {
            is_unclean: false,
            may_reserve: false,
            is_shared_hold: true,
            is_candidate: is_candidate(request),
            next_token: None,
        }
    }
}

/// What a renewal is sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A new lease.
    Extend,
    /// Whether the lock is still ours.
    Verify,
}

/// One lock of a renewal.
pub(super) struct RenewItem {
    pub(super) keys: Keys,
    pub(super) owner: OwnerId,
    pub(super) ttl: Duration,
    /// How long the key is to live, in ms.
    pub(super) live: u64,
    pub(super) kind: RenewKind,
}

/// Which script renews a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RenewKind {
    Exclusive,
    /// It may be a shared hold.
    Shared,
    /// It may have been asked to let go.
    Asked,
}

impl RenewKind {
    pub(super) const ALL: [Self; 3] = [Self::Shared, Self::Asked, Self::Exclusive];
}

/// One lock, as the server has it.
pub(super) struct LockState {
    /// The owner; empty: the lock is free; `-`: the name is reserved.
    pub(super) value: String,
    pub(super) expires_in: Option<Duration>,
    /// What the `hold` key says of the last holder.
    pub(super) hold: String,
    /// What the queue says of each waiter.
    pub(super) waiters: Vec<String>,
}

impl Requests {
    pub(super) fn new(context: &Arc<Context>, connections: &Arc<Connections>) -> Self {
        let (redisson, is_in_slots) = (context.settings.redisson, connections.has_shard_channels());
        let scripts = format::scripts(redisson, is_in_slots);
        Self {
            context: context.clone(),
            connections: connections.clone(),
            batcher: Arc::new(Batcher::new(context, connections, scripts)),
            scripts,
            elections: format::election_scripts(redisson, is_in_slots),
            last_holder: Mutex::default(),
        }
    }

    pub(super) fn keys(&self, name: &LockName) -> Keys {
        let settings = &self.context.settings;
        Keys::new(settings.redisson, &settings.prefix, name)
    }

    /// Whether waiters of this client are woken on a channel for each slot. Redisson's locks have a channel each.
    pub(super) fn has_slot_channels(&self) -> bool {
        self.connections.has_shard_channels() && self.context.settings.redisson.is_none()
    }

    /// The channel on which a waiter of this client for the lock with this key is woken.
    pub(super) fn channel(&self, lock: &str) -> Cow<'_, str> {
        let events = &self.context.events;
        match self.has_slot_channels() {
            true => Cow::Owned(events.slot_channel(slot(lock))),
            false => Cow::Borrowed(&events.channel),
        }
    }

    /// An owner as it is written.
    pub(super) fn owner(&self, owner: OwnerId) -> OwnerText<'_> {
        let redisson = self.context.settings.redisson;
        let has_client = redisson.is_some_and(RedissonLock::has_client_in_owner);
        let client = has_client.then_some(&*self.context.events.client);
        OwnerText { client, owner }
    }

    /// The holder as it is written: the same text for all acquisitions of a client without a label.
    pub(super) fn holder_text(&self, holder: &Arc<Holder>) -> Arc<str> {
        let mut last = lock(&self.last_holder);
        if let Some((known, text)) = &*last
            && Arc::ptr_eq(known, holder)
        {
            return text.clone();
        }
        let text: Arc<str> = HolderRecord::from(&**holder).to_json().into();
        *last = Some((holder.clone(), text.clone()));
        text
    }

    /// Asks for the lock, and for a place in its queue if the lock is taken and the request waits. May be repeated for
    /// the same owner at any time. A first request is sent together with others when there are many.
    pub(super) async fn acquire(
        &self,
        request: &Request,
        keys: &Keys,
        is_first: bool,
        place: Duration,
    ) -> Result<ScriptReply<AcquireReply>, Error> {
        keys.check()?;
        let _in_flight = self.batcher.enter();
        let is_candidate = self.elections.is_some() && is_candidate(request);
        if is_first
            && matches!(request.mode, Mode::Exclusive | Mode::Shared)
            && !is_candidate
            && let Some(reply) = self.acquire_in_batch(request, keys).await?
        {
            let grant = self.grant(request, reply.sent, reply.value);
            return Ok(reply.with(AcquireReply::Granted(grant)));
        }
        // In a box: a request of a batch needs no space for this larger future.
        Box::pin(self.acquire_alone(request, keys, is_first, place)).await
    }

    async fn acquire_alone(
        &self,
        request: &Request,
        keys: &Keys,
        is_first: bool,
        place: Duration,
    ) -> Result<ScriptReply<AcquireReply>, Error> {
        let elections = self.elections.filter(|_| is_candidate(request));
        let lease = self.lease(request.mode, request.ttl);
        if lease < request.min_lease {
            return Err(redisson::lease_too_long(lease));
        }
        let live = live(request, lease);
        let channel = self.channel(keys.lock());
        let (min_hold, delay) = (millis_up(request.min_hold), millis_up(request.lock_delay));
        let holder = self.holder_text(&request.holder);
        let place_millis = match request.wait {
            true => millis_up(place),
            false => 0,
        };
        let is_first = u8::from(is_first);
        let (owner, retention) = (self.owner(request.owner), token_retention(live));
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner).arg(live);
            cmd.arg(Text(format_args!("{min_hold} {delay} {channel} {holder}")));
            cmd.arg(retention)
                .arg(Text(format_args!("{place_millis} {is_first}")));
            cmd.arg(mode_text(request.mode, false)).arg(request.propose);
        };
        let script = match elections {
            Some(scripts) => &scripts.acquire,
            None => self.scripts.acquire.get(request.mode != Mode::Exclusive),
        };
        let asked = elections.and_then(|_| keys.asked());
        let (keys, count) = keys.with(asked.as_deref());
        let reply = self.connections.call(script, &keys[..count], &args).await?;
        self.acquire_reply(request, reply, place)
    }

    /// Asks for the lock together with other requests. `None`: the lock has to be asked for alone.
    async fn acquire_in_batch(
        &self,
        request: &Request,
        keys: &Keys,
    ) -> Result<Option<ScriptReply<u64>>, Error> {
        let Some(scripts) = self.batcher.scripts().filter(|_| !may_reserve(request)) else {
            return Ok(None);
        };
        let ttl = millis_down(request.ttl);
        let (token_retention, holder) = (token_retention(ttl), self.holder_text(&request.holder));
        let key = match request.mode {
            Mode::Exclusive => BatchKey::Acquire {
                ttl,
                token_retention,
                holder,
                is_proposed: request.propose.is_some(),
            },
            // One script has one token for all to begin with.
            _ if request.propose.is_some() => return Ok(None),
            _ => BatchKey::AcquireShared {
                keys: keys.clone(),
                ttl,
                token_retention,
                holder,
            },
        };
        let item = BatchItem {
            keys: keys.clone(),
            owner: request.owner,
            propose: request.propose,
            key,
        };
        self.batcher.send(scripts, item).await
    }

    /// The lease of a hold whose request asks for this ttl.
    pub(super) fn lease(&self, mode: Mode, ttl: Duration) -> Duration {
        match self.context.settings.redisson {
            Some(lock) => lock.lease(mode, ttl),
            None => ttl,
        }
    }

    fn grant(&self, request: &Request, sent: Time, token: u64) -> Grant {
        let lease = self.lease(request.mode, request.ttl);
        let ttl = Some(Duration::from_millis(millis_down(lease)));
        let round_trip = self.context.now().since(sent);
        Grant::new(token, sent, round_trip, ttl)
    }

    /// Asks for all these locks, which differ in name and owner only, with one script. `None`: they have to be asked for
    /// one by one.
    pub(super) async fn acquire_all(
        &self,
        requests: &[Arc<Request>],
        keys: &[Keys],
    ) -> Result<Option<ScriptReply<AllAnswer>>, Error> {
        let connections = &self.connections;
        let (Some(scripts), [first, ..]) = (&self.scripts.many, requests) else {
            return Ok(None);
        };
        let _in_flight = self.batcher.enter();
        let (min_hold, delay) = (millis_up(first.min_hold), millis_up(first.lock_delay));
        let live = live(first, first.ttl);
        let channel = self.channel(keys[0].lock());
        let holder = self.holder_text(&first.holder);
        let all_keys: Vec<_> = keys.iter().map(Keys::lock).collect();
        let all_keys = [all_keys, keys.iter().map(Keys::hold).collect()].concat();
        let args = |cmd: &mut Cmd| {
            cmd.arg(live);
            cmd.arg(Text(format_args!("{min_hold} {delay} {channel} {holder}")));
            cmd.arg(token_retention(live));
            for request in requests {
                cmd.arg(self.owner(request.owner));
            }
        };
        let called = connections.call(&scripts.acquire_all, &all_keys, &args);
        let reply: ScriptReply<Value> = match called.await {
            Ok(reply) => reply,
            Err(err) if err.kind() == ErrorKind::Indeterminate => return Err(err),
            // Nothing was done. Asked for alone, each lock finds out whether the error is about itself.
            Err(_) => return Ok(None),
        };
        let answer = match &reply.value {
            Value::Int(0) => return Ok(None),
            Value::Int(position) => {
                let position = usize::try_from(*position).map_err(|_| unexpected_reply())?;
                AllAnswer::Busy(position - 1)
            }
            Value::Array(tokens) if tokens.len() == requests.len() => {
                let grant = |(request, token): (&Arc<Request>, &Value)| {
                    let token = u64::from_redis_value_ref(token).map_err(|_| unexpected_reply())?;
                    Ok(self.grant(request, reply.sent, token))
                };
                let grants = requests.iter().zip(tokens).map(grant);
                AllAnswer::Granted(grants.collect::<Result<_, Error>>()?)
            }
            _ => return Err(unexpected_reply()),
        };
        Ok(Some(reply.with(answer)))
    }

    /// What the reply to a request for the lock, or to an upgrade, means.
    fn acquire_reply(
        &self,
        request: &Request,
        reply: ScriptReply<Value>,
        place: Duration,
    ) -> Result<ScriptReply<AcquireReply>, Error> {
        let value = match &reply.value {
            Value::Int(token) => {
                let token = u64::try_from(*token).map_err(|_| unexpected_reply())?;
                AcquireReply::Granted(self.grant(request, reply.sent, token))
            }
            Value::Array(words) => self.taken(request, words, reply.sent, place)?,
            _ => return Err(unexpected_reply()),
        };
        Ok(reply.with(value))
    }

    /// The reply of a server where the lock is taken.
    fn taken(
        &self,
        request: &Request,
        words: &[Value],
        sent: Time,
        place: Duration,
    ) -> Result<AcquireReply, Error> {
        let redisson = self.context.settings.redisson;
        match words {
            [
                Value::Int(0),
                Value::Int(left),
                Value::Int(foreign),
                Value::Int(ahead),
                token @ ..,
            ] => Ok(AcquireReply::Taken(QueuePosition {
                ahead: u64::try_from(*ahead).unwrap_or(0),
                expires_in: u64::try_from(*left).ok().map(Duration::from_millis),
                last_token: match token {
                    [Value::Int(token)] => u64::try_from(*token).unwrap_or(0),
                    // In Redisson's format nothing is handed over.
                    _ => 0,
                },
                is_foreign: *foreign == 1,
                sent,
                round_trip: self.context.now().since(sent),
                ask_by: match redisson {
                    // There is no place in a queue to keep, but a message may be lost.
                    Some(lock) if !lock.has_queue() => sent.after(WAITER_TTL),
                    _ => waiting::keep_by(sent, place),
                },
            })),
            _ => Err(match redisson {
                Some(lock) => redisson::refused(lock, words, request.mode),
                None => errors::refused(words),
            }),
        }
    }

    /// Asks for the upgradable hold of the request's owner to become exclusive. May be repeated at any time. The key
    /// is to live for `live` ms.
    pub(super) async fn upgrade(
        &self,
        request: &Request,
        keys: &Keys,
        live: u64,
        place: Duration,
    ) -> Result<ScriptReply<AcquireReply>, Error> {
        let (owner, retention) = (self.owner(request.owner), token_retention(live));
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner).arg(live).arg(retention);
            cmd.arg(u8::from(request.wait)).arg(request.propose);
        };
        let script = self.scripts.upgrade.as_ref();
        let script = script.ok_or_else(redisson::no_mode_change)?;
        let reply = self.connections.call(script, &keys.all(), &args).await?;
        self.acquire_reply(request, reply, place)
    }

    /// Makes the hold shared, or upgradable again. `false`: the owner has no hold.
    pub(super) async fn downgrade(
        &self,
        keys: &Keys,
        owner: OwnerId,
        mode: Mode,
    ) -> Result<bool, Error> {
        let owner = self.owner(owner);
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner).arg(mode_text(mode, false));
        };
        let script = self.scripts.downgrade.as_ref();
        let script = script.ok_or_else(redisson::no_mode_change)?;
        let reply: ScriptReply<i64> = self.connections.call(script, &keys.all(), &args).await?;
        Ok(reply.value == 1)
    }

    /// Renews these locks, which are of one kind, with one script.
    pub(super) async fn renew(&self, items: &[&RenewItem], purpose: Purpose) -> Vec<Renewal> {
        let is_kind = |kind| items.iter().any(|item| item.kind == kind);
        let is_shared_hold = is_kind(RenewKind::Shared);
        let elections = self.elections.filter(|_| is_kind(RenewKind::Asked));
        let script = match elections {
            Some(scripts) => &scripts.renew,
            None => self.scripts.renew.get(is_shared_hold),
        };
        let asked = items
            .iter()
            .map(|it| elections.and_then(|_| it.keys.asked()));
        let asked: Vec<_> = asked.collect();
        let keys = items.iter().zip(&asked).flat_map(|(item, asked)| {
            let keys = [item.keys.lock(), item.keys.hold()].into_iter();
            let keys = keys.chain(item.keys.holders(is_shared_hold));
            keys.chain(asked.as_deref())
        });
        let keys: Vec<_> = keys.collect();
        let args = |cmd: &mut Cmd| {
            for item in items {
                let live = match purpose {
                    Purpose::Extend => item.live,
                    Purpose::Verify => 0,
                };
                let owner = self.owner(item.owner);
                cmd.arg(owner).arg(live).arg(token_retention(item.live));
            }
        };
        let reply: Result<ScriptReply<Vec<i64>>, Error> =
            self.connections.call(script, &keys, &args).await;
        let unknown = |err: Error| {
            items
                .iter()
                .map(|_| Renewal::Unknown(err.clone()))
                .collect()
        };
        let reply = match reply {
            Ok(reply) if reply.value.len() == items.len() => reply,
            Ok(_) => return unknown(unexpected_reply()),
            Err(err) => return unknown(err),
        };
        let renewals = reply.value.iter().zip(items);
        let renewals = renewals.map(|(answer, item)| match answer {
            1 | 2 => {
                if *answer == 2 {
                    self.context.events.asked_to_release(item.owner);
                }
                Renewal::Renewed {
                    sent: reply.sent,
                    ttl: Some(Duration::from_millis(millis_down(item.ttl))),
                }
            }
            0 => Renewal::Lost(LostReason::StoreSaysNo),
            _ => Renewal::Lost(LostReason::TakenOver),
        });
        renewals.collect()
    }

    /// Releases what the owner has: the lock, or its place in the queue.
    pub(super) async fn release(
        &self,
        keys: &Keys,
        owner: OwnerId,
        kind: ReleaseKind,
    ) -> Result<Release, Error> {
        let _in_flight = self.batcher.enter();
        let is_candidate = self.elections.is_some() && kind.is_candidate;
        let may_batch = !kind.may_reserve && !is_candidate;
        if may_batch
            && self
                .release_in_batch(keys, owner, kind.is_shared_hold)
                .await?
        {
            return Ok(Release::Released);
        }
        // In a box, as in `acquire`.
        Box::pin(self.release_alone(keys, owner, kind)).await
    }

    async fn release_alone(
        &self,
        keys: &Keys,
        owner: OwnerId,
        kind: ReleaseKind,
    ) -> Result<Release, Error> {
        let elections = self.elections.filter(|_| kind.is_candidate);
        let owner = self.owner(owner);
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner);
            if kind.may_reserve {
                cmd.arg(u8::from(kind.is_unclean));
            } else if kind.next_token.is_some() {
                cmd.arg("-");
            }
            if let Some(token) = kind.next_token {
                cmd.arg(token);
            }
        };
        let script = elections.map_or(&self.scripts.release, |scripts| &scripts.release);
        let asked = elections.and_then(|_| keys.asked());
        let (keys, count) = keys.with(asked.as_deref());
        let reply: ScriptReply<i64> = self.connections.call(script, &keys[..count], &args).await?;
        Ok(Release::of(reply.value != 0))
    }

    /// Releases a lock together with other requests. `false`: nothing was done.
    async fn release_in_batch(
        &self,
        keys: &Keys,
        owner: OwnerId,
        is_shared_hold: bool,
    ) -> Result<bool, Error> {
        let Some(scripts) = self.batcher.scripts() else {
            return Ok(false);
        };
        let item = BatchItem {
            keys: keys.clone(),
            owner,
            propose: None,
            key: match is_shared_hold {
                true => BatchKey::ReleaseShared(keys.clone()),
                false => BatchKey::Release,
            },
        };
        Ok(self.batcher.send(scripts, item).await?.is_some())
    }

    /// Whether requests for shared holds of one lock are sent together when there are many.
    pub(super) fn batches_shared(&self) -> bool {
        self.scripts.many.is_some() && !self.connections.is_cluster()
    }

    /// See [`GuardedWrite::write`](tenure_core::store::GuardedWrite::write).
    pub(super) async fn write(
        &self,
        holds: &[Hold],
        key: &str,
        value: Option<&[u8]>,
    ) -> Result<bool, Error> {
        let locks: Vec<_> = holds.iter().map(|hold| self.keys(&hold.name)).collect();
        for keys in &locks {
            let both = [keys.lock(), key].into_iter();
            if !self.connections.are_together(both) {
                return Err(errors::other_slot(key, hashed(keys.lock())));
            }
        }
        // Of a hold that was downgraded the mode says it, too.
        let is_shared_hold = holds.iter().any(|hold| hold.mode != Mode::Exclusive);
        let script = self.scripts.write.get(is_shared_hold);
        let keys = locks
            .iter()
            .flat_map(|keys| std::iter::once(keys.lock()).chain(keys.holders(is_shared_hold)));
        let keys: Vec<_> = std::iter::once(key).chain(keys).collect();
        let args = |cmd: &mut Cmd| {
            for hold in holds {
                cmd.arg(self.owner(hold.owner));
            }
            cmd.arg(value);
        };
        let reply: ScriptReply<i64> = self.connections.call(script, &keys, &args).await?;
        Ok(reply.value == 1)
    }

    /// Ends the hold with that token. `false`: there is none.
    pub(super) async fn break_hold(&self, name: &LockName, token: u64) -> Result<bool, Error> {
        let keys = self.keys(name);
        let args = |cmd: &mut Cmd| {
            cmd.arg(token);
        };
        let script = &self.scripts.break_hold;
        let asked = keys.asked();
        let (keys, count) = keys.with(asked.as_deref());
        let reply: ScriptReply<i64> = self.connections.call(script, &keys[..count], &args).await?;
        Ok(reply.value == 1)
    }

    /// Reads one lock, and changes nothing.
    pub(super) async fn inspect(&self, keys: &Keys) -> Result<LockState, Error> {
        let script = &self.scripts.inspect;
        let reply: ScriptReply<Vec<Value>> =
            self.connections.call(script, &keys.all(), &|_| {}).await?;
        // The value of a foreign holder may be any bytes.
        let text = |value: &Value| match value {
            Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::Int(number) => number.to_string(),
            _ => String::new(),
        };
        let mut words = reply.value.iter().map(text);
        let (Some(value), Some(left), Some(hold)) = (words.next(), words.next(), words.next())
        else {
            return Err(unexpected_reply());
        };
        Ok(LockState {
            value,
            expires_in: left.parse().ok().map(Duration::from_millis),
            hold,
            waiters: words.collect(),
        })
    }
}

/// How long a token is kept whose hold lives for `live`, in ms.
fn token_retention(live: u64) -> u64 {
    millis_up(TOKEN_RETENTION).max(live.saturating_mul(2))
}

/// How long the key of a hold lives that is granted now with this lease, in ms: until the lease and `lock_delay` are over,
/// and not less than `min_hold`, also when the holder dies.
fn live(request: &Request, lease: Duration) -> u64 {
    let live = millis_down(lease).saturating_add(millis_up(request.lock_delay));
    live.max(millis_up(request.min_hold))
}
