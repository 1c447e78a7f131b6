//! The parts of one client, and how a client connects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::Error;
use tenure_core::guarantees::Guarantees;
use tenure_core::holder::Holder;
use tenure_core::name::Escaped;
use tenure_core::rt::{BackgroundTasks, Clock, Flag, Spawner, host_name};
use tenure_core::store::{Hold, Request};
use tenure_core::support::{self, HoldRegistry, Maintenance};
use tenure_core::time::Time;

use crate::errors::{Refusal, RequestError};
use crate::guarantees::guarantees;
use crate::members::Members;
use crate::messages::{Endpoint, Target};
use crate::names;
use crate::sessions::{Session, Sessions};
use crate::settings::Settings;

/// Locks in the CP subsystem of Hazelcast.
pub struct Store {
    pub(crate) guarantees: Guarantees,
    /// How long after its last heartbeat the members end a session, as they said when the client connected. After a restart
    /// they may say something else of a new session.
    pub(crate) session_ttl: Duration,
    pub(crate) clock: Clock,
    pub(crate) spawner: Spawner,
    pub(crate) sessions: Sessions,
    pub(crate) leases: HoldRegistry<Lease>,
    /// The task that sends heartbeats for waiters, and ends what is not renewed.
    pub(crate) maintenance: Arc<Maintenance>,
    pub(crate) background: Arc<BackgroundTasks>,
    pub(crate) closing: Flag,
}

/// What is remembered of an acquisition.
#[derive(Clone)]
pub(crate) struct Lease {
    pub(crate) session: Arc<Session>,
    /// The name in the store.
    pub(crate) name: String,
    /// The ttl that was asked for.
    pub(crate) ttl: Duration,
    /// The thread of the endpoint. No other acquisition has it.
    pub(crate) thread: i64,
    /// The identifiers of the request to lock and of the one to unlock.
    pub(crate) uids: [u128; 2],
    pub(crate) state: State,
    /// Each request about the lease was answered at its first attempt, so none can arrive late.
    pub(crate) is_clean: bool,
    /// What others shall see of the holder.
    pub(crate) holder: Arc<Holder>,
}

/// How far an acquisition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The request is under way, or waits in the cluster.
    Waiting,
    /// The driver has the hold. Unless the hold is renewed, it ends then.
    Held { until: Time },
    /// The outcome of a request is unknown. The session has to be closed.
    Unknown,
}

impl State {
    /// The hold lasts until then at least. Replies to two renewals may come in any order.
    pub(crate) fn extend(&mut self, at_least: Time) {
        if let Self::Held { until } = self {
            *until = at_least.max(*until);
        }
    }
}

/// The least thread of an endpoint of this library. The threads of Java clients are counted from 1 on, so a greater one says
/// that the endpoint has one lease, and never another one.
pub(crate) const FIRST_THREAD: i64 = 1 << 48;

impl Lease {
    pub(crate) fn new(request: &Request, session: &Arc<Session>) -> Self {
        let thread = i64::MAX & rand::random::<i64>();
        Self {
            session: session.clone(),
            name: names::encode(&request.name),
            ttl: request.ttl,
            thread: thread | FIRST_THREAD,
            uids: [rand::random(), rand::random()],
            state: State::Waiting,
            is_clean: true,
            holder: request.holder.clone(),
        }
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target {
            group: &self.session.group,
            name: &self.name,
        }
    }

    /// When the next heartbeat of a waiter is due. A session may last for many times the ttl, and a member that does not answer
    /// has to be left within the ttl, after which a waiter gives up.
    pub(crate) fn due(&self) -> Time {
        self.session.confirmed().after(self.pace())
    }

    /// The time between two heartbeats of a waiter.
    pub(crate) fn pace(&self) -> Duration {
        self.session.lease_for(self.ttl) / 3
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint {
            session: self.session.id,
            thread: self.thread,
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = &self.sessions.members.settings.hosts;
        f.debug_tuple("Store").field(hosts).finish()
    }
}

impl Store {
    /// Refuses what [`connect`](Self::connect) refuses without a request.
    ///
    /// # Errors
    /// `Invalid`, `Unsupported`: the URL is wrong, or asks for TLS.
    pub fn check_url(url: &str) -> Result<(), Error> {
        Settings::new(url).map(drop)
    }

    /// Connects to a cluster by the members that a URL `hazelcast://` names. Must be called inside a tokio runtime; background
    /// work runs there.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`: no member answers, or the CP subsystem has no majority. `Denied`: the
    /// members refuse the name of the cluster, or the user. `Unsupported`: the cluster has no CP subsystem, or wants TLS.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let (settings, clock, spawner) =
            (Settings::new(url)?, Clock::system(), support::spawner()?);
        let name = format!("tenure {} {}", Escaped(&host_name()), std::process::id());
        let members = Arc::new(Members::new(settings, &clock, &spawner, name.clone()));
        members.connection().await?;
        let sessions = Sessions::new(&members, name);
        let session = sessions.create().await?;
        let session_ttl = session.ttl;
        let until = sessions.give_back(&session);
        let store = Self {
            guarantees: guarantees(session_ttl),
            session_ttl,
            clock,
            spawner,
            sessions,
            leases: HoldRegistry::default(),
            maintenance: Arc::default(),
            background: Arc::default(),
            closing: Flag::new(),
        };
        store.maintenance.due_at(until.unwrap_or(Time::ZERO));
        Ok(store)
    }

    /// The same text for all clients of one group of one cluster, as far as their URLs say that.
    pub(crate) fn address(&self) -> String {
        let settings = &self.sessions.members.settings;
        let mut hosts: Vec<_> = settings.hosts.iter().map(ToString::to_string).collect();
        hosts.sort_unstable();
        let (hosts, cluster, group) = (hosts.join(","), &settings.cluster, &settings.group);
        format!("hazelcast://{hosts}/{cluster}?group={group}")
    }

    pub(crate) fn set_state(&self, hold: &Hold, state: State) {
        self.leases.update(hold.owner, |lease| lease.state = state);
    }
}

/// Whether the session is over, and what it held.
pub(crate) fn is_over(err: &RequestError) -> bool {
    use RequestError::Refused;
    matches!(err, Refused(Refusal::SessionOver | Refusal::GroupDestroyed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewal_that_is_answered_late_makes_no_hold_shorter() {
        let at = |nanos| State::Held {
            until: Time::from_nanos(nanos),
        };
        let mut state = at(5);
        state.extend(Time::from_nanos(7));
        state.extend(Time::from_nanos(6));
        assert_eq!(state, at(7));
        for mut other in [State::Waiting, State::Unknown] {
            let before = other;
            other.extend(Time::from_nanos(9));
            assert_eq!(other, before);
        }
    }
}
