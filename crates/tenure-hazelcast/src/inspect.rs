//! Who holds, and what is wrong with the cluster: for operators. Nothing here decides about a lock.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::{HoldInfo, Holder, LockStatus};
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Finding, Listed, Operate};
use tenure_core::url::Host;

use crate::errors::{Refusal, RequestError};
use crate::messages::{self, Endpoint, Group, Ownership, Target};
use crate::names;
use crate::requests::{Ask, ask};
use crate::store::{FIRST_THREAD, Lease, Store};

/// From this ttl of sessions on, `check` warns: a killed holder keeps its lock for longer than most programs wait.
const LONG_SESSION: Duration = Duration::from_secs(60);

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { break_lock(&self, &name, token).await })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move { check(&self).await })
    }
}

pub(crate) async fn inspect(store: &Store, name: LockName) -> Result<LockStatus, Error> {
    let owner = owner(store, &name).await?;
    let mut status = LockStatus::free(name);
    if owner.is_held() {
        let holder = holder(store, owner);
        let token = u64::try_from(owner.fence).ok();
        // The members tell no client when they last heard of a session: this is the longest time.
        let left = Some(store.session_ttl);
        let info = HoldInfo::new(holder, Mode::Exclusive, token, left);
        status.holds.push(info);
    }
    Ok(status)
}

/// Who has the lock, as the members agree on it.
async fn owner(store: &Store, name: &LockName) -> Result<Ownership, Error> {
    let found = ask(&store.sessions.members, owner_of(name)).await;
    found
        .map(|it| it.value)
        .map_err(RequestError::without_effect)
}

fn owner_of(name: &LockName) -> impl Ask<Ownership> {
    let name = names::encode(name);
    move |group: &Arc<Group>| Some(messages::ownership(Target { group, name: &name }))
}

/// The members keep nothing of a holder but the numbers of its session and its thread. This client knows more of its own.
fn holder(store: &Store, owner: Ownership) -> Holder {
    let Endpoint { session, thread } = owner.endpoint;
    let own = |_, lease: &Lease| (lease.endpoint() == owner.endpoint).then(|| lease.holder.clone());
    match store.leases.select(own).first() {
        Some(holder) => Holder::clone(holder),
        None => {
            let mut holder = Holder::default();
            holder.client = format!("session {session}");
            // People are shown the label.
            holder.label = match thread < FIRST_THREAD {
                true => format!("session {session}, thread {thread} of a Hazelcast client"),
                false => format!("session {session}"),
            };
            holder
        }
    }
}

/// The members tell clients no names. The names that this client holds are no answer: others hold locks too.
pub(crate) fn list() -> Result<Listed, Error> {
    Err(Error::new(
        ErrorKind::Unsupported,
        "the members of Hazelcast tell clients no names of locks; ask for one name, or use JMX or the Management Center",
    ))
}

/// Unlocks in the place of the holder.
///
/// A holder of this library has an endpoint of its own for each lease, so no other hold can be hit. The thread of a Java
/// client may have unlocked and locked again since the look, and its session has all locks of its program.
async fn break_lock(store: &Store, name: &LockName, token: u64) -> Result<bool, Error> {
    let found = owner(store, name).await?;
    if !found.is_held() || u64::try_from(found.fence) != Ok(token) {
        return Ok(false);
    }
    if found.endpoint.thread < FIRST_THREAD {
        let session = found.endpoint.session;
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the lock is held by another client of Hazelcast, and none of its holds can be ended alone; CPSessionManagementService.forceCloseSession ends its session {session} and all that it holds"
            ),
        ));
    }
    let (encoded, uid) = (names::encode(name), rand::random());
    let unlock = move |group: &Arc<Group>| {
        let target = Target {
            group,
            name: &encoded,
        };
        Some(messages::unlock(target, found.endpoint, uid))
    };
    match ask(&store.sessions.members, unlock).await {
        Ok(_) => Ok(true),
        Err(RequestError::Refused(Refusal::NotOwner | Refusal::SessionOver)) => Ok(false),
        Err(err) => Err(err.into()),
    }
}

async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let probe = LockName::new("tenure-check")?;
    owner(store, &probe).await?;
    let settings = &store.sessions.members.settings;
    let group = &settings.group;
    let ttl = store.session_ttl;
    let mut found = vec![Finding::good(format!(
        "the CP group `{group}` answers; sessions end {ttl:?} after their last heartbeat"
    ))];
    if ttl >= LONG_SESSION {
        found.push(Finding::warning(format!(
            "the lock of a killed holder stays taken for {ttl:?}, whatever the ttl of the lock is; set session-time-to-live-seconds of the members"
        )));
    }
    if let [host] = &settings.hosts[..] {
        found.push(Finding::warning(format!(
            "the URL names {host} only; name several members, so that the client reaches the cluster when that one is down"
        )));
    }
    let is_far = |host: &&Host| !host.is_this_machine();
    found.extend(settings.hosts.iter().filter(is_far).map(|host| {
        Finding::warning(format!(
            "{host}: no TLS, so each machine on the way can read names and passwords, and end, take and forge locks; encrypt the network"
        ))
    }));
    Ok(found)
}
