//! The parts of one client, and how a client connects.

use std::fmt;
use std::sync::Arc;

use tonic::transport::Channel;

use tenure_core::error::Error;
use tenure_core::guarantees::Guarantees;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Flag};
use tenure_core::store::{Hold, Losses};
use tenure_core::support::{self, HoldRegistry, Maintenance};
use tenure_core::time::Time;

use super::attachment::Attachment;
use super::callers_channel::CallersChannel;
use super::candidate::Candidate;
use super::connection::Connections;
use super::context::Context;
use super::errors;
use super::guarantees::guarantees;
use super::key_state::KeyState;
use super::keys::KeysInUse;
use super::leases::{Lease, Leases};
use super::names::Directory;
use super::observers::Observers;
use super::queue::SecondKey;
use super::release_requests::ReleaseRequests;
use super::requests;
use super::settings::Settings;
use super::subscribe::Subscriptions;

/// Locks in etcd.
pub struct Store {
    pub(super) guarantees: Guarantees,
    pub(super) context: Arc<Context>,
    pub(super) connections: Arc<Connections>,
    pub(super) leases: Arc<Leases>,
    pub(super) subscriptions: Arc<Subscriptions>,
    pub(super) elections: ElectionWatches,
    pub(super) keys: KeysInUse,
    pub(super) holds: HoldRegistry<ContenderKey>,
    /// The task that keeps leases alive and deletes keys that are not renewed.
    pub(super) maintenance: Arc<Maintenance>,
    pub(super) losses: Arc<Losses>,
}

/// The watches that only elections need.
pub(super) struct ElectionWatches {
    pub(super) observers: Arc<Observers>,
    pub(super) release_requests: Arc<ReleaseRequests>,
}

/// What is remembered of an acquisition, to keep its lease alive and to delete its key.
#[derive(Clone)]
pub(super) struct ContenderKey {
    pub(super) lease: Arc<Lease>,
    pub(super) key: Vec<u8>,
    /// The value with which the key is made; no other acquisition has the same. Later the key may get another value.
    pub(super) value: Arc<[u8]>,
    /// The create revision of the key; 0: not known yet.
    pub(super) created: i64,
    pub(super) state: AcquisitionState,
    /// The second key, if the name stays taken for `min_hold`.
    pub(super) reservation: Option<Reservation>,
    /// The request that made the key was sent more than once, so the key may be put late.
    pub(super) is_ambiguous: bool,
    /// A release got no reply.
    pub(super) may_be_released: bool,
    /// What a candidate of an election has beside its key. Then `value` is that of the second key.
    pub(super) candidate: Option<Candidate>,
    /// The hold was detached from another client, or from this one, and this client is attached to it. Then `value` is the
    /// present one.
    pub(super) attachment: Option<Attachment>,
}

/// The second key of an acquisition with `min_hold`. It is made together with the first one, so all that come later wait
/// for both. When the lock is granted the second key moves to a lease of `min_hold`, which goes on whatever becomes of
/// the hold.
#[derive(Clone)]
pub(super) struct Reservation {
    pub(super) second_key: SecondKey,
    /// The lease of `min_hold`; `None`: not granted yet.
    pub(super) lease: Option<Arc<Lease>>,
    /// Until when the name stays taken; [`Time::ZERO`]: the hold has not begun, or was not used.
    pub(super) until: Time,
}

impl Reservation {
    /// Before the second key is made.
    pub(super) fn of(second_key: SecondKey) -> Self {
        Self {
            second_key,
            lease: None,
            until: Time::ZERO,
        }
    }
}

#[derive(Clone, Copy)]
pub(super) enum AcquisitionState {
    /// The request is under way, or waits in the queue.
    Waiting,
    /// The driver was told that the key holds, the last time with a lease that began at `renewed`.
    Held { renewed: Time },
    /// The key is given a lease of its own.
    Detaching,
    /// The driver did not renew the hold. The key has to be deleted, again at `retry_at`.
    Expired { retry_at: Time },
    /// The hold goes on without this client, which releases it only if its caller has left before the answer. Nothing is
    /// remembered after `until`.
    Detached { until: Time },
    /// A release was sent. Its entry is removed at `until`, if no reply has come by then.
    Releasing { until: Time },
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = &self.context.settings.hosts;
        f.debug_tuple("Store").field(hosts).finish()
    }
}

impl Store {
    /// What [`connect`](Store::connect) refuses without a request.
    pub(crate) fn check_url(url: &str) -> Result<(), Error> {
        Settings::new(url).map(drop)
    }

    /// Connects to the cluster of a URL `etcd://` or `etcds://`.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`, `Unsupported`: the members cannot be reached, have no
    /// leader, refused the user, or cannot keep locks.
    pub async fn connect(url: &str) -> Result<Arc<Self>, Error> {
        Self::with(Settings::new(url)?).await
    }

    /// The cluster to which a channel of `tonic` 0.14 leads: requests and watches of this client go over that channel, beside
    /// what the program sends itself. [`Settings::store_with`](super::builder::Settings::store_with) takes options,
    /// and `store_with_interceptor` an interceptor too.
    ///
    /// Login and TLS are matters of the channel. Set
    /// [`http2_keep_alive_interval`](tonic::transport::Endpoint::http2_keep_alive_interval): without it a waiter whose
    /// connection is silent learns that only from its next look, after ten seconds.
    ///
    /// ```no_run
    /// # async fn example(channel: tonic::transport::Channel) -> Result<(), tenure::Error> {
    /// let store = tenure::etcd::Store::from_channel(channel).await?;
    /// let client = tenure::Client::builder(store).build()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn from_channel(channel: Channel) -> Result<Arc<Self>, Error> {
        let channel = CallersChannel::new(channel);
        Self::with(Settings::of_channel(channel, "")?).await
    }

    pub(super) async fn with(settings: Settings) -> Result<Arc<Self>, Error> {
        let hosts: Vec<_> = settings.hosts.iter().map(ToString::to_string).collect();
        let (mut hosts, is_tls) = (hosts.join(", "), settings.tls.is_some());
        if settings.channel.is_some() {
            hosts = CallersChannel::host().to_string();
        }
        let explain = |err| errors::explain_first_request(err, &hosts, is_tls);
        let context = Arc::new(Context {
            settings,
            clock: Clock::system(),
            spawner: support::spawner()?,
            background: Arc::default(),
            closing: Flag::new(),
        });
        let connections = Arc::new(Connections::new(&context)?);
        connections.open().await.map_err(explain)?;
        let voters = requests::count_voters(&connections).await;
        let losses = Arc::default();
        Ok(Arc::new(Self {
            guarantees: guarantees(voters.map_err(explain)?),
            leases: Arc::new(Leases::new(&context, &connections)),
            subscriptions: Arc::new(Subscriptions::new(&context, &connections)),
            elections: ElectionWatches {
                observers: Arc::new(Observers::new(&context, &connections)),
                release_requests: Arc::new(ReleaseRequests::new(&context, &connections, &losses)),
            },
            keys: KeysInUse::default(),
            holds: HoldRegistry::default(),
            maintenance: Arc::default(),
            losses,
            connections,
            context,
        }))
    }

    /// The directory of the keys that contend for `name`.
    pub(super) fn directory(&self, name: &LockName) -> Directory {
        Directory::new(&self.context.settings, name)
    }

    /// The key of a hold.
    pub(super) fn key_of(&self, hold: &Hold) -> Option<KeyState> {
        self.holds.read(hold.owner, ContenderKey::key_state)
    }
}

impl ContenderKey {
    /// When the maintenance task has to end the acquisition, or to end it once more.
    pub(super) fn deadline(&self) -> Time {
        match self.state {
            AcquisitionState::Held { renewed } if self.lease.is_shared => {
                renewed.after(self.lease.ttl)
            }
            AcquisitionState::Detached { until: at }
            | AcquisitionState::Releasing { until: at }
            | AcquisitionState::Expired { retry_at: at } => at,
            // The driver renews the hold, or lets its lease expire.
            AcquisitionState::Waiting
            | AcquisitionState::Held { .. }
            | AcquisitionState::Detaching => Time::MAX,
        }
    }

    /// Until when the name stays taken, whatever becomes of the hold.
    pub(super) fn reserved_until(&self) -> Time {
        let reservation = self.reservation.as_ref();
        reservation.map_or(Time::ZERO, |reservation| reservation.until)
    }

    /// The lease of a reservation whose hold has not begun, or was not used.
    pub(super) fn unused_reservation(&self) -> Option<i64> {
        let reservation = self.reservation.as_ref()?;
        let is_unused = reservation.until == Time::ZERO;
        Some(reservation.lease.as_ref().filter(|_| is_unused)?.id)
    }

    /// The lease that ends with this client. That of a hold which was detached, or is being detached, does not.
    pub(super) fn lease_of_client(&self) -> Option<i64> {
        let is_detaching = matches!(self.state, AcquisitionState::Detaching);
        (self.attachment.is_none() && !is_detaching).then_some(self.lease.id)
    }

    /// The second key of a candidate of an election.
    pub(super) fn record_key(&self) -> Option<&[u8]> {
        Some(&self.candidate.as_ref()?.record_key)
    }

    pub(super) fn key_state(&self) -> KeyState {
        KeyState {
            key: self.key.clone(),
            created: self.created,
            lease: (!self.lease.delay.is_zero()).then_some(self.lease.id),
            record_key: self.record_key().map(<[u8]>::to_vec),
        }
    }
}
