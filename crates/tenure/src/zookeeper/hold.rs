//! One node: made, found again, deleted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zookeeper_client::{CreateMode, Error as Said};

use tenure_core::backend::{Alarm, Hold, Release, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::{OwnerId, RandomAlready};
use tenure_core::holder::Holder;
use tenure_core::logic::pace;
use tenure_core::options::Mode;
use tenure_core::rt::{Clock, Flag, NextWakeup, Spawner, lock};
use tenure_core::support::HolderRecord;
use tenure_core::time::Time;

use super::contact::Lease;
use super::names;
use super::outcome::Failed;
use super::session::{Session, Sessions};
use super::settings::{Dialect, Settings};
use super::warm::Known;

/// How often a node is made again whose parents went away meanwhile: a container is collected once in a
/// minute.
const TRIES: u32 = 8;

/// What one client knows of its store.
pub(super) struct Store {
    pub(super) settings: Settings,
    pub(super) sessions: Sessions,
    pub(super) clock: Clock,
    pub(super) spawner: Spawner,
    pub(super) closing: Flag,
    /// See [`Store::is_ensemble`].
    members: AtomicU8,
    pub(super) holds: Mutex<HashMap<OwnerId, Kept, RandomAlready>>,
    /// Of the task that ends leases which nobody renews.
    pub(super) expiry: Arc<NextWakeup>,
    pub(super) alarm: Mutex<Option<Alarm>>,
}

/// What has to be remembered of a request, to keep its node and to delete it.
#[derive(Clone)]
pub(super) struct Kept {
    pub(super) session: Arc<Session>,
    pub(super) dir: Arc<str>,
    /// How the node's name begins: nobody else's does.
    prefix: Arc<str>,
    /// The whole path, once it is known.
    pub(super) path: Option<Arc<str>>,
    number: i32,
    mode: Mode,
    /// It holds, until then: the session lasts longer than a lease that is not renewed.
    pub(super) until: Option<Time>,
    /// A delete of it has no answer.
    pub(super) is_unclear: bool,
}

impl Kept {
    /// The node of a hold.
    pub(super) fn node(self) -> Option<(Arc<Session>, Arc<str>)> {
        Some((self.session, self.path?))
    }
}

/// A node of ours.
pub(super) struct Place {
    pub(super) session: Arc<Session>,
    pub(super) dir: Arc<str>,
    /// Within the directory.
    pub(super) name: String,
    pub(super) path: Arc<str>,
    pub(super) number: i32,
    /// czxid: the number of the transaction that made it.
    pub(super) token: u64,
    /// Of the request that made it.
    pub(super) lease: Lease,
    pub(super) round_trip: Duration,
}

/// What a node says about its owner.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct NodeRecord {
    #[serde(flatten)]
    pub(super) holder: HolderRecord,
    /// In ms.
    pub(super) ttl: u64,
}

impl NodeRecord {
    fn new(holder: &Holder, ttl: Duration) -> Self {
        Self {
            holder: holder.into(),
            ttl: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Store {
    pub(super) fn new(settings: Settings, spawner: Spawner) -> Self {
        Self {
            settings,
            sessions: Sessions::default(),
            clock: Clock::system(),
            spawner,
            closing: Flag::new(),
            members: AtomicU8::new(0),
            holds: Mutex::default(),
            expiry: Arc::new(NextWakeup::new()),
            alarm: Mutex::default(),
        }
    }

    /// Whether our server may be one that only follows; so it is until we know better.
    pub(super) fn is_ensemble(&self) -> bool {
        self.members.load(Ordering::Relaxed) != 1
    }

    pub(super) fn set_members(&self, members: usize) {
        let members = u8::try_from(members).unwrap_or(u8::MAX);
        self.members.store(members, Ordering::Relaxed);
    }

    pub(super) fn dir(&self, name: &tenure_core::name::LockName) -> Result<Arc<str>, Error> {
        names::directory(&self.settings.root, self.settings.names, name).map(Into::into)
    }

    /// Makes a node for the request and says so in `holds` before it does, so that whatever comes of it can
    /// be deleted.
    pub(super) async fn enter(
        self: &Arc<Self>,
        request: &Request,
        session: &Arc<Session>,
        dir: &Arc<str>,
    ) -> Result<Place, Error> {
        let stem = match self.settings.dialect {
            Dialect::Curator => names::node(request.owner, request.mode),
            Dialect::SessionPrefix => names::session_prefix(session.id()),
        };
        let prefix: Arc<str> = match self.settings.dialect {
            Dialect::Curator => names::own_prefix(request.owner).into(),
            Dialect::SessionPrefix => stem.as_str().into(),
        };
        let kept = Kept {
            session: session.clone(),
            dir: dir.clone(),
            prefix,
            path: None,
            number: 0,
            mode: request.mode,
            until: None,
            is_unclear: false,
        };
        lock(&self.holds).insert(request.owner, kept.clone());
        let made = self.make(request, &kept, &stem).await;
        match &made {
            Ok(place) => {
                if let Some(kept) = lock(&self.holds).get_mut(&request.owner) {
                    kept.path = Some(place.path.clone());
                    kept.number = place.number;
                }
            }
            Err(err) if err.kind() == ErrorKind::Indeterminate => {}
            Err(_) => self.forget(request.owner),
        }
        made
    }

    async fn make(
        self: &Arc<Self>,
        request: &Request,
        kept: &Kept,
        stem: &str,
    ) -> Result<Place, Error> {
        let (session, dir) = (&kept.session, &kept.dir);
        let path = format!("{dir}/{stem}");
        let written = NodeRecord::new(&request.holder, session.timeout.min(request.ttl));
        let data = serde_json::to_vec(&written).expect("strings and numbers can be written");
        let options = CreateMode::EphemeralSequential.with_acls(self.settings.acl.acls());
        let mut tries = 0;
        loop {
            if tries > 0 {
                unless_stopped(request)?;
            }
            let lease = self.begin_lease(session);
            let answer = self
                .ask(session.client.create(&path, &data, &options))
                .await;
            match answer {
                Ok((stat, sequence)) => {
                    session.confirm(lease);
                    let number = i32::try_from(sequence.into_i64()).unwrap_or(i32::MAX);
                    // As the server has put it together.
                    let name = format!("{stem}{}", Padded(number));
                    return Ok(Place {
                        session: session.clone(),
                        dir: dir.clone(),
                        path: format!("{dir}/{name}").into(),
                        name,
                        number,
                        token: stat.czxid.unsigned_abs(),
                        lease,
                        round_trip: self.clock.now().since(lease.sent),
                    });
                }
                Err(failed) if failed.is(&Said::NoNode) && tries < TRIES => {
                    unless_stopped(request)?;
                    self.make_directory(session, dir).await?;
                }
                Err(failed) if failed.is_unclear() && tries < TRIES => {
                    let found = self.find(session, kept).await;
                    match found.map_err(|_| self.explain(failed.clone()))? {
                        Some(place) => return Ok(Place { lease, ..place }),
                        None if request.stop.is_raised() || failed == Failed::Silent => {
                            // Definitely not there, and it will not be made any more.
                            let mut err = self.explain(failed);
                            if err.kind() == ErrorKind::Indeterminate {
                                let what = "no answer in time; nothing was applied";
                                err = Error::new(ErrorKind::Unreachable, what);
                            }
                            return Err(err);
                        }
                        None => {}
                    }
                }
                Err(failed) => return Err(self.explain(failed)),
            }
            tries += 1;
        }
    }

    /// Makes what is missing of the way to `dir`: nodes that the server removes when they are empty again.
    pub(super) async fn make_directory(&self, session: &Session, dir: &str) -> Result<(), Error> {
        let acls = self.settings.acl.acls();
        let mut ends: Vec<_> = dir.match_indices('/').map(|(at, _)| at).skip(1).collect();
        ends.push(dir.len());
        // From the last one back to one that is there, and forth again.
        let mut at = ends.len() - 1;
        for _ in 0..TRIES as usize * ends.len() {
            let path = &dir[..ends[at]];
            let container = CreateMode::Container.with_acls(acls);
            let made = self.ask(session.client.create(path, b"", &container)).await;
            let made = match made {
                Err(failed) if failed.is(&Said::Unimplemented) => {
                    let persistent = CreateMode::Persistent.with_acls(acls);
                    self.ask(session.client.create(path, b"", &persistent))
                        .await
                }
                made => made,
            };
            match made {
                Ok(_) if at + 1 == ends.len() => return Ok(()),
                Err(failed) if failed.is(&Said::NodeExists) && at + 1 == ends.len() => {
                    return Ok(());
                }
                Ok(_) => at += 1,
                Err(failed) if failed.is(&Said::NodeExists) => at += 1,
                Err(failed) if failed.is(&Said::NoNode) && at > 0 => at -= 1,
                Err(failed) => return Err(self.explain(failed)),
            }
        }
        let what = "the nodes above the lock are deleted as fast as they are made; retry";
        Err(Error::new(ErrorKind::Unreachable, what))
    }

    /// The node of this request, if there is one. Whatever was sent for it before has been applied by then, or
    /// will never be: it was sent on the same connection, or the servers refuse it because the session
    /// has moved to another connection.
    async fn find(&self, session: &Arc<Session>, kept: &Kept) -> Result<Option<Place>, Failed> {
        let Some(name) = self.find_name(session, kept).await? else {
            return Ok(None);
        };
        let path = format!("{}/{name}", kept.dir);
        let lease = self.begin_lease(session);
        let stat = self.ask(session.client.check_stat(&path)).await?;
        let number = names::Child::parse(&name).map(|child| child.number);
        let Some((stat, number)) = stat.zip(number) else {
            return Ok(None);
        };
        if stat.ephemeral_owner != session.id() {
            return Ok(None);
        }
        Ok(Some(Place {
            session: session.clone(),
            dir: kept.dir.clone(),
            path: path.into(),
            name,
            number,
            token: stat.czxid.unsigned_abs(),
            lease,
            round_trip: self.clock.now().since(lease.sent),
        }))
    }

    async fn find_name(&self, session: &Session, kept: &Kept) -> Result<Option<String>, Failed> {
        // A new connection may be to a server that has not heard of it yet.
        self.ask(session.client.sync(&kept.dir)).await?;
        match self.ask(session.client.list_children(&kept.dir)).await {
            Ok(children) => Ok(children
                .into_iter()
                .find(|child| child.starts_with(&*kept.prefix))),
            Err(failed) if failed.is(&Said::NoNode) => Ok(None),
            Err(failed) => Err(failed),
        }
    }

    fn forget(&self, owner: OwnerId) {
        if let Some(kept) = lock(&self.holds).remove(&owner) {
            kept.session.give_back(&kept.dir);
        }
    }

    pub(super) fn kept(&self, owner: OwnerId) -> Option<Kept> {
        lock(&self.holds).get(&owner).cloned()
    }

    /// All nodes go with their sessions.
    pub(super) fn forget_all(&self) {
        let all = std::mem::take(&mut *lock(&self.holds));
        drop(all);
        self.expiry.wake();
    }

    /// Deletes the node of that owner.
    pub(super) async fn release(self: &Arc<Self>, hold: Hold) -> Result<Release, Error> {
        let kept = match self.kept(hold.owner) {
            Some(kept) => kept,
            None if self.settings.dialect == Dialect::SessionPrefix => {
                return Ok(Release::NotHeld);
            }
            // Of a request that came to nothing, as far as we know.
            None => Kept {
                session: self.any_session().await?,
                dir: self.dir(&hold.name)?,
                prefix: names::own_prefix(hold.owner).into(),
                path: None,
                number: 0,
                mode: hold.mode,
                until: None,
                is_unclear: false,
            },
        };
        // A session that is over says nothing about its nodes: the servers may keep them for a while.
        let session = match kept.session.ended.is_raised() {
            true => self.any_session().await?,
            false => kept.session.clone(),
        };
        let until = self.clock.now().after(self.settings.timeout);
        let mut is_unclear = kept.is_unclear;
        for attempt in 0_u32.. {
            let deleted = self.delete(&session, &kept).await;
            let failed = match deleted {
                Ok(true) => {
                    self.deleted(&hold, &kept);
                    return Ok(Release::Released);
                }
                Ok(false) => {
                    self.forget(hold.owner);
                    return Ok(match is_unclear {
                        true => Release::Released,
                        false => Release::NotHeld,
                    });
                }
                Err(failed) => failed,
            };
            is_unclear |= failed.is_unclear();
            let now = self.clock.now();
            let left = Some(until.since(now)).filter(|left| !left.is_zero());
            let pause = left.and_then(|left| pace::next(attempt, rand::random(), None, Some(left)));
            match pause {
                Some(pause) if failed.is_unclear() => {
                    self.clock.sleep_until(now.after(pause)).await;
                }
                _ => {
                    if let Some(kept) = lock(&self.holds).get_mut(&hold.owner) {
                        kept.is_unclear |= is_unclear;
                    }
                    return Err(self.explain(failed));
                }
            }
        }
        unreachable!("BUG: the loop ends by its time limit")
    }

    /// `false`: there is none.
    pub(super) async fn delete(&self, session: &Arc<Session>, kept: &Kept) -> Result<bool, Failed> {
        let path = match &kept.path {
            Some(path) => path.clone(),
            None => match self.find_name(session, kept).await? {
                Some(name) => format!("{}/{name}", kept.dir).into(),
                None => return Ok(false),
            },
        };
        let lease = self.begin_lease(session);
        match self.ask(session.client.delete(&path, None)).await {
            Ok(()) => {
                session.confirm(lease);
                Ok(true)
            }
            Err(failed) if failed.is(&Said::NoNode) => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    fn deleted(&self, hold: &Hold, kept: &Kept) {
        let is_front = kept.until.is_some() && kept.mode == Mode::Exclusive;
        let mut warm = lock(&kept.session.warm);
        if let Some(known) = warm.take(&kept.dir) {
            warm.put(&kept.dir, known, is_front.then_some(kept.number));
        }
        drop(warm);
        self.forget(hold.owner);
    }

    /// What was known of the directory when a node was made there.
    pub(super) fn take_known(&self, place: &Place) -> (bool, bool) {
        let mut warm = lock(&place.session.warm);
        let known = warm.take(&place.dir);
        let (holds, rest) = known.map_or((false, None), |known| known.follows(place.number));
        let is_watched = rest.is_some();
        if let Some(rest) = rest {
            warm.put(&place.dir, rest, None);
        }
        (holds, is_watched)
    }

    pub(super) fn put_known(&self, place: &Place, known: Known) {
        lock(&place.session.warm).put(&place.dir, known, None);
    }
}

/// An error when nobody wants the node any more, which was not made yet.
fn unless_stopped(request: &Request) -> Result<(), Error> {
    match request.stop.is_raised() {
        true => Err(Error::new(
            ErrorKind::Unreachable,
            "the request was stopped",
        )),
        false => Ok(()),
    }
}

/// A number as the server writes it: Java's `%010d`, in which a minus takes one of the ten places.
struct Padded(i32);

impl std::fmt::Display for Padded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:010}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_padded_as_the_server_does() {
        for (number, text) in [
            (7, "0000000007"),
            (i32::MAX, "2147483647"),
            (-5, "-000000005"),
            (i32::MIN, "-2147483648"),
        ] {
            assert_eq!(Padded(number).to_string(), text);
        }
    }
}
