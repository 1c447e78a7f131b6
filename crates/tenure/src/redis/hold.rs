//! One lock: asked for, kept, given back.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue as _, RedisWrite, ToRedisArgs, Value};

use tenure_core::backend::{Grant, Hold, Release, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::guarantees::Guarantees;
use tenure_core::holder::Holder;
use tenure_core::lost::LostReason;
use tenure_core::name::LockName;
use tenure_core::rt::{BackgroundTasks, Clock, Spawner, lock};
use tenure_core::support::{HoldRegistry, HolderRecord, Maintenance, RuntimeWatch};
use tenure_core::time::Time;

use super::batch::Batcher;
use super::connection::Connection;
use super::connection::{Connections, Reply};
use super::errors;
use super::events::ServerEvents;
use super::names::Keys;
use super::settings::{Format, Settings};

/// How long a place in the queue is good for without a sign of its waiter, at most. A waiter that died costs
/// those behind it this long.
pub(super) const WAITER_TTL: Duration = Duration::from_secs(5);

/// A token outlives its hold by a day, so that it grows even when the server's clock is set back by hours.
const TOKEN_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// What one client knows of its store.
pub(super) struct Store {
    pub(super) settings: Arc<Settings>,
    pub(super) guarantees: Guarantees,
    pub(super) nodes: Connections,
    pub(super) inbox: Arc<ServerEvents>,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    pub(super) holds: HoldRegistry<HeldEntry>,
    /// Acquisitions and background requests that are under way: `close` waits for them.
    pub(super) operations: Arc<BackgroundTasks>,
    /// The task that verifies the holds when a connection was lost.
    pub(super) maintenance: Arc<Maintenance>,
    /// The runtime of the connections.
    pub(super) runtime: RuntimeWatch,
    /// The last holder that was written, and how.
    written: Mutex<Option<(Arc<Holder>, Arc<str>)>>,
    pub(super) crowd: Batcher,
}

/// What has to be remembered of a hold to keep it and to give it back.
#[derive(Clone, Debug)]
pub(super) struct HeldEntry {
    pub(super) name: LockName,
    /// By how much the key outlives the lease (`lock_delay`), in ms.
    delay: u64,
    /// Whether the name may stay taken after a release.
    rests: bool,
    /// Whether the token was proposed: it is to be the same on several servers.
    proposed: bool,
    /// A release failed. The driver sends the release again, until the lease has ended.
    pub(super) is_released: bool,
}

/// How something is given back.
#[derive(Clone, Copy)]
pub(super) struct ReleaseKind {
    /// See [`Hold::unclean`].
    unclean: bool,
    /// Whether the name may stay taken after it.
    rests: bool,
    /// The token to be given next, at least.
    next: Option<u64>,
}

impl ReleaseKind {
    /// Of what may be held, or may not: the server knows the rest.
    pub(super) const UNKNOWN: Self = Self {
        unclean: false,
        rests: true,
        next: None,
    };
}

/// The answer to one request for the lock.
pub(super) enum AcquireReply {
    Granted(Grant),
    Queued(QueuePosition),
}

/// Why not, and when to ask again.
pub(super) struct QueuePosition {
    /// Time until the holder's lease is over, if it has one.
    pub(super) left: Option<Duration>,
    /// The holder is another program, which will not tell us when it is done.
    pub(super) is_stranger: bool,
    /// How many are before us.
    pub(super) ahead: u64,
    /// The last one that was given out. A message about an older one is from before we asked.
    pub(super) token: u64,
    /// When we asked.
    pub(super) sent: Time,
    pub(super) round_trip: Duration,
}

/// An owner, ready to be sent.
pub(super) enum OwnerText {
    Hex([u8; 32]),
    Long(String),
}

impl ToRedisArgs for OwnerText {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        out.write_arg(match self {
            Self::Hex(digits) => digits,
            Self::Long(text) => text.as_bytes(),
        });
    }
}

/// An argument that is written where it belongs, without a string of its own.
pub(super) struct Text<'a>(pub(super) std::fmt::Arguments<'a>);

impl ToRedisArgs for Text<'_> {
    fn write_redis_args<W: RedisWrite + ?Sized>(&self, out: &mut W) {
        use std::io::Write as _;
        // It goes to memory.
        let _ = out.writer_for_next_arg().write_fmt(self.0);
    }
}

/// In ms, so that nothing ends before it was asked to.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// How long the place of a waiter is good for.
pub(super) fn place(ttl: Duration) -> Duration {
    ttl.min(WAITER_TTL)
}

/// For how long a token is kept, in ms.
pub(super) fn keep(ttl: Duration) -> u64 {
    millis(TOKEN_RETENTION.max(ttl * 2))
}

/// The lease in whole ms, because what is granted counts.
pub(super) fn lease(request: &Request) -> u64 {
    u64::try_from(request.ttl.as_millis()).unwrap_or(u64::MAX)
}

impl Store {
    pub(super) fn new(
        settings: Arc<Settings>,
        guarantees: Guarantees,
        nodes: Connections,
        inbox: Arc<ServerEvents>,
        maintenance: Arc<Maintenance>,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        Self {
            settings,
            guarantees,
            nodes,
            inbox,
            clock,
            holds: HoldRegistry::default(),
            operations: Arc::default(),
            maintenance,
            runtime: RuntimeWatch::new(&spawner),
            spawner,
            written: Mutex::default(),
            crowd: Batcher::default(),
        }
    }

    pub(super) fn keys(&self, name: &LockName) -> Keys {
        Keys::new(self.settings.format, &self.settings.prefix, name)
    }

    /// The owner as it is written.
    pub(super) fn owner(&self, owner: OwnerId) -> OwnerText {
        match self.settings.format {
            Format::Token => OwnerText::Hex(owner.to_digits()),
            // Redisson writes the id of a client and that of a thread, and reads neither.
            Format::Redisson => {
                OwnerText::Long([&self.inbox.client, ":", &owner.to_hex()].concat())
            }
        }
    }

    /// Asks for the lock, and for a place in its queue if it is taken and the request waits.
    /// May be repeated for the same owner at any time; `is_first` says that it is not.
    /// Also says who answered.
    pub(super) async fn ask(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
        is_first: bool,
    ) -> Result<(AcquireReply, Arc<Connection>), Error> {
        let _under_way = self.crowd.enter();
        if is_first && let Some(taken) = self.take_with_others(request, keys).await? {
            let Reply {
                value,
                sent,
                connection: session,
            } = taken;
            let grant = self.grant(request, keys, &session, sent, value).await?;
            return Ok((AcquireReply::Granted(grant), session));
        }
        let nodes = &self.nodes;
        let ttl = lease(request);
        let channel = nodes.channel(keys.lock());
        let (min_hold, delay) = (millis(request.min_hold), millis(request.lock_delay));
        let holder = self.written(&request.holder);
        let place = if request.wait {
            millis(place(request.ttl))
        } else {
            0
        };
        let (owner, keep) = (self.owner(request.owner), keep(request.ttl));
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner).arg(ttl + delay);
            cmd.arg(Text(format_args!("{min_hold} {delay} {channel} {holder}")));
            cmd.arg(keep)
                .arg(Text(format_args!("{place} {}", u8::from(is_first))));
            if let Some(token) = request.propose {
                cmd.arg(token);
            }
        };
        let reply: Reply<Value> = nodes.run(&nodes.scripts.acquire, keys, args).await?;
        let sent = reply.sent;
        let asked = match &reply.value {
            Value::Int(token) => {
                let token = u64::try_from(*token).map_err(|_| nonsense())?;
                let grant = self
                    .grant(request, keys, &reply.connection, sent, token)
                    .await;
                grant.map(AcquireReply::Granted)
            }
            Value::Array(words) => match &words[..] {
                [
                    Value::Int(0),
                    Value::Int(left),
                    Value::Int(stranger),
                    Value::Int(ahead),
                    token @ ..,
                ] => Ok(AcquireReply::Queued(QueuePosition {
                    left: u64::try_from(*left).ok().map(Duration::from_millis),
                    is_stranger: *stranger == 1,
                    ahead: u64::try_from(*ahead).unwrap_or(0),
                    token: match token {
                        [Value::Int(token)] => u64::try_from(*token).unwrap_or(0),
                        // Nothing is handed over in that dialect.
                        _ => 0,
                    },
                    sent,
                    round_trip: self.clock.now().since(sent),
                })),
                [Value::Int(-1), found] => {
                    let found = String::from_redis_value_ref(found).unwrap_or_default();
                    Err(errors::wrong_type(&found, self.wanted_type()))
                }
                _ => Err(nonsense()),
            },
            _ => Err(nonsense()),
        };
        Ok((asked?, reply.connection))
    }

    /// What a server has granted, once as many replicas have it as are asked for.
    async fn grant(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
        session: &Connection,
        sent: Time,
        token: u64,
    ) -> Result<Grant, Error> {
        let ttl = Some(Duration::from_millis(lease(request)));
        let grant = Grant::new(token, sent, self.clock.now().since(sent), ttl);
        if self.settings.wait_replicas > 0 {
            // In a box, as in `Server::session`.
            Box::pin(self.acknowledged(request, keys, session)).await?;
        }
        Ok(grant)
    }

    fn wanted_type(&self) -> &'static str {
        match self.settings.format {
            Format::Token => "string",
            Format::Redisson => "hash",
        }
    }

    /// Remembers a hold that is about to be passed to the driver.
    pub(super) fn keep(&self, request: &Request) {
        let kept = HeldEntry {
            name: request.name.clone(),
            delay: millis(request.lock_delay),
            rests: !request.min_hold.is_zero() || !request.lock_delay.is_zero(),
            proposed: request.propose.is_some(),
            is_released: false,
        };
        self.holds.insert(request.owner, kept);
    }

    /// Waits until the replicas have the grant, and takes it back when they do not get it.
    async fn acknowledged(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
        session: &Connection,
    ) -> Result<(), Error> {
        let (wanted, limit) = (self.settings.wait_replicas, self.settings.timeout / 2);
        let mut wait = redis::cmd("WAIT");
        wait.arg(wanted).arg(millis(limit));
        let acknowledged: u32 = session.send(&wait).await.map_err(errors::request)?;
        if acknowledged >= wanted {
            return Ok(());
        }
        self.give_back(keys, request.owner, ReleaseKind::UNKNOWN)
            .await?;
        Err(Error::new(
            ErrorKind::Unreachable,
            format!(
                "{acknowledged} of {wanted} replicas acknowledged within {limit:?}, so it was given back; see wait_replicas in the URL"
            ),
        ))
    }

    /// Renews, or with `only_look` asks whether it is still ours: in batches, all on their way at once.
    pub(super) async fn renew(&self, holds: &[Hold], only_look: bool) -> Vec<Renewal> {
        let keys: Vec<_> = holds.iter().map(|hold| self.keys(&hold.name)).collect();
        let batches = self.nodes.batches(&keys);
        let answers = batches
            .iter()
            .map(|batch| self.renew_in_time(holds, &keys, batch, only_look));
        let answers = join_all(answers).await;
        let mut renewals: Vec<_> = holds.iter().map(|_| None).collect();
        for (batch, answers) in batches.iter().zip(answers) {
            for (at, answer) in batch.iter().zip(answers) {
                renewals[*at] = Some(answer);
            }
        }
        let lost = |renewal: Option<Renewal>| renewal.unwrap_or(Renewal::Unknown(nonsense()));
        renewals.into_iter().map(lost).collect()
    }

    /// A node that does not answer must not keep the answers of others from those that need them.
    async fn renew_in_time(
        &self,
        holds: &[Hold],
        keys: &[Keys],
        batch: &[usize],
        only_look: bool,
    ) -> Vec<Renewal> {
        let ttls = batch.iter().map(|at| holds[*at].ttl);
        let shortest = ttls.min().filter(|ttl| !ttl.is_zero());
        let too_late = async {
            match shortest.filter(|_| self.nodes.is_cluster()) {
                // Half of the time between two renewals.
                Some(ttl) => {
                    self.clock
                        .sleep_until(self.clock.now().after(ttl / 6))
                        .await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answers = self.renew_batch(holds, keys, batch, only_look) => answers,
            () = too_late => {
                let silent = |_| {
                    let message = "no answer in time from the node that has the lock";
                    Renewal::Unknown(Error::new(ErrorKind::Indeterminate, message))
                };
                batch.iter().map(silent).collect()
            }
        }
    }

    async fn renew_batch(
        &self,
        holds: &[Hold],
        keys: &[Keys],
        batch: &[usize],
        only_look: bool,
    ) -> Vec<Renewal> {
        let args = batch.iter().map(|at| {
            let hold = &holds[*at];
            let delay = self.holds.read(hold.owner, |kept| kept.delay);
            let ttl = u64::try_from(hold.ttl.as_millis()).unwrap_or(u64::MAX);
            let live = if only_look {
                0
            } else {
                ttl + delay.unwrap_or(0)
            };
            (
                &keys[*at],
                self.owner(hold.owner),
                live,
                keep(hold.ttl),
                ttl,
            )
        });
        let args: Vec<_> = args.collect();
        let answers: Result<Reply<Vec<i64>>, Error> = self
            .nodes
            .call(
                keys[batch[0]].lock(),
                &self.nodes.scripts.renew,
                2 * batch.len(),
                |cmd| {
                    for (keys, ..) in &args {
                        cmd.arg(keys.lock()).arg(keys.hold());
                    }
                    for (_, owner, live, keep, _) in &args {
                        cmd.arg(owner).arg(live).arg(keep);
                    }
                },
            )
            .await;
        match answers {
            Ok(Reply { value, sent, .. }) if value.len() == batch.len() => value
                .iter()
                .zip(&args)
                .map(|(answer, (.., ttl))| match answer {
                    1 => Renewal::Renewed {
                        sent,
                        ttl: Some(Duration::from_millis(*ttl)),
                    },
                    0 => Renewal::Lost(LostReason::StoreSaysNo),
                    _ => Renewal::Lost(LostReason::TakenOver),
                })
                .collect(),
            Ok(_) => batch.iter().map(|_| Renewal::Unknown(nonsense())).collect(),
            Err(err) => {
                let unknown = |_| Renewal::Unknown(Error::new(err.kind(), err.to_string()));
                batch.iter().map(unknown).collect()
            }
        }
    }

    /// Gives back what the owner has: the lock, or its place in the queue.
    pub(super) async fn release(self: &Arc<Self>, hold: Hold) -> Result<Release, Error> {
        let kept = self.holds.remove(hold.owner);
        if self.runtime.is_gone() {
            return Err(Error::new(
                ErrorKind::Closed,
                "the runtime of this client is gone; the lease runs out by itself",
            ));
        }
        let ending = ReleaseKind {
            unclean: hold.unclean,
            // Of unknown fate: the server knows.
            rests: kept.as_ref().is_none_or(|kept| kept.rests),
            // Several servers that hand it over at the same time agree on that one, and need not be made to.
            next: (hold.token > 0 && kept.as_ref().is_none_or(|kept| kept.proposed))
                .then_some(hold.token + 1),
        };
        let keys = self.keys(&hold.name);
        let sent = self.clock.now();
        let release = self.give_back(&keys, hold.owner, ending).await;
        match (&release, kept) {
            (Ok(_), Some(_)) | (Err(_), None) => {}
            (Ok(_), None) => self.inbox.left(hold.owner, sent),
            // The driver sends the release again, which then has to be the same request.
            (Err(_), Some(kept)) => {
                let is_released = true;
                let kept = HeldEntry {
                    is_released,
                    ..kept
                };
                self.holds.insert(hold.owner, kept);
            }
        }
        release
    }

    pub(super) async fn give_back(
        self: &Arc<Self>,
        keys: &Keys,
        owner: OwnerId,
        ending: ReleaseKind,
    ) -> Result<Release, Error> {
        let _under_way = self.crowd.enter();
        if !ending.rests && self.give_with_others(keys, owner).await? {
            return Ok(Release::Released);
        }
        let owner = self.owner(owner);
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner);
            if ending.rests {
                cmd.arg(u8::from(ending.unclean));
            } else if ending.next.is_some() {
                cmd.arg("-");
            }
            if let Some(next) = ending.next {
                cmd.arg(next);
            }
        };
        let release = &self.nodes.scripts.release;
        let released: i64 = self.nodes.run(release, keys, args).await?.value;
        Ok(match released {
            0 => Release::NotHeld,
            _ => Release::Released,
        })
    }

    /// See [`Backend::raise`](tenure_core::backend::Backend::raise).
    pub(super) async fn raise(&self, hold: Hold, token: u64) -> Result<bool, Error> {
        let keys = self.keys(&hold.name);
        let owner = self.owner(hold.owner);
        let args = |cmd: &mut Cmd| {
            cmd.arg(&owner).arg(token);
        };
        let raised: i64 = self
            .nodes
            .run(&self.nodes.scripts.raise, &keys, args)
            .await?
            .value;
        Ok(raised == 1)
    }

    /// See [`Backend::write`](tenure_core::backend::Backend::write).
    pub(super) async fn write(
        &self,
        holds: &[Hold],
        key: &str,
        value: Option<&[u8]>,
    ) -> Result<bool, Error> {
        let keys: Vec<_> = holds.iter().map(|hold| self.keys(&hold.name)).collect();
        let first = keys.first().map(Keys::lock).unwrap_or_default();
        self.nodes.check_slot(first, key)?;
        for others in &keys {
            self.nodes.check_slot(first, others.lock())?;
        }
        let fill = |cmd: &mut Cmd| {
            cmd.arg(key);
            for keys in &keys {
                cmd.arg(keys.lock());
            }
            for hold in holds {
                cmd.arg(self.owner(hold.owner));
            }
            cmd.arg(value);
        };
        let script = &self.nodes.scripts.write;
        let reply: Reply<i64> = self.nodes.call(first, script, 1 + keys.len(), fill).await?;
        Ok(reply.value == 1)
    }

    /// What is written about a holder: the same for all acquisitions of a client without a label.
    pub(super) fn written(&self, holder: &Arc<Holder>) -> Arc<str> {
        let mut written = lock(&self.written);
        if let Some((known, text)) = &*written
            && Arc::ptr_eq(known, holder)
        {
            return text.clone();
        }
        let text: Arc<str> = HolderRecord::from(&**holder).to_json().into();
        *written = Some((holder.clone(), text.clone()));
        text
    }
}

pub(super) fn nonsense() -> Error {
    Error::new(
        ErrorKind::Indeterminate,
        "the server's answer makes no sense to this version; is something between us and it?",
    )
}
