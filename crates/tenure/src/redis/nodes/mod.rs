//! Which server has a key: one server, the primary that sentinels name, or a node of a cluster.

mod cluster;
mod ears;
mod sentinel;
mod slots;

use std::borrow::Cow;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisError};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::name::Escaped;
use tenure_core::rt::{Clock, Spawner};
use tenure_core::time::Time;

use self::cluster::Cluster;
use self::ears::Listening;
use self::sentinel::Sentinels;
use super::inbox::Inbox;
use super::link::{Link, Session};
use super::names::{self, Keys};
use super::outcome;
use super::script::{Publish, Script, Scripts};
use super::settings::{Settings, Shape};

/// Locks that are renewed by one script: the server does nothing else for the time of some 300 commands.
const BATCH: usize = 100;

/// All servers of one store.
pub(super) struct Nodes {
    shape: Kind,
    inbox: Arc<Inbox>,
    clock: Clock,
    pub(super) scripts: &'static Scripts,
}

enum Kind {
    One(Box<Link>),
    Sentinel(Sentinels),
    Cluster(Cluster),
}

/// Pauses before try number `attempt + 1`.
async fn pause(clock: &Clock, spawner: &Spawner, attempt: u32) -> Result<(), Error> {
    // The release of a guard that was dropped late gets here.
    if spawner.is_shut_down() {
        let message = "the runtime of this client is gone";
        return Err(Error::new(ErrorKind::Closed, message));
    }
    let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
    clock.sleep_until(clock.now().after(pause)).await;
    Ok(())
}

/// What came of a call.
pub(super) struct Reply<T> {
    pub(super) value: T,
    /// When the request was sent that was answered; it may have gone to other servers before, which had
    /// nothing to do with it.
    pub(super) sent: Time,
    pub(super) session: Arc<Session>,
}

/// A call of a script, to be sent to one server or another.
struct Call<'a> {
    script: &'a Script,
    keys: usize,
    fill: &'a (dyn Fn(&mut Cmd) + Sync),
    clock: &'a Clock,
}

impl Call<'_> {
    /// Sends it: by its digest, and by its text when the server does not know that.
    async fn send<T: FromRedisValue>(
        &self,
        session: Arc<Session>,
        asking: bool,
    ) -> Result<Reply<T>, RedisError> {
        let mut cmd = self.script.by_digest(self.keys);
        for attempt in 0.. {
            let sent = self.clock.now();
            (self.fill)(&mut cmd);
            let answer = if asking {
                // In a box, as in `Link::session`.
                Box::pin(session.send_asking(&cmd)).await
            } else {
                session.send(&cmd).await
            };
            if attempt > 0 || !answer.as_ref().is_err_and(is_unknown_script) {
                return answer.map(|value| Reply {
                    value,
                    sent,
                    session,
                });
            }
            cmd = self.script.by_text(self.keys);
        }
        unreachable!("the second attempt returns")
    }
}

impl Nodes {
    /// Connects.
    pub(super) async fn connect(
        settings: &Settings,
        inbox: &Arc<Inbox>,
        clock: &Clock,
        spawner: &Spawner,
    ) -> Result<Self, Error> {
        let mut publish = Publish::Everywhere;
        let shape = match &settings.shape {
            Shape::One(host) => {
                let link = Link::new(host.clone(), settings, inbox.clone(), clock.clone())?;
                match link.session().await {
                    // One of several that are independent: it may come later.
                    Err(err) if settings.may_be_away && err.kind() == ErrorKind::Unreachable => {
                        tracing::warn!(%err, "one of the servers is not there");
                    }
                    session => drop(session?),
                }
                Kind::One(Box::new(link))
            }
            Shape::Sentinel { sentinels, service } => {
                let sentinels =
                    Sentinels::new(sentinels, service, settings, inbox, clock, spawner)?;
                sentinels.session().await?;
                Kind::Sentinel(sentinels)
            }
            Shape::Cluster(seeds) => {
                let cluster = Cluster::connect(seeds, settings, inbox, clock, spawner).await?;
                publish = cluster.publish();
                Kind::Cluster(cluster)
            }
        };
        Ok(Self {
            shape,
            inbox: inbox.clone(),
            clock: clock.clone(),
            scripts: Scripts::get(settings.dialect, publish),
        })
    }

    /// The connection to the server that has this key.
    pub(super) async fn session(&self, key: &str) -> Result<Arc<Session>, Error> {
        match &self.shape {
            Kind::One(link) => link.session().await,
            Kind::Sentinel(sentinels) => sentinels.session().await,
            Kind::Cluster(cluster) => cluster.session(key).await,
        }
    }

    /// The connections to all servers that have keys.
    pub(super) async fn sessions(&self) -> Result<Vec<Arc<Session>>, Error> {
        match &self.shape {
            Kind::One(link) => Ok(vec![link.session().await?]),
            Kind::Sentinel(sentinels) => Ok(vec![sentinels.session().await?]),
            Kind::Cluster(cluster) => cluster.sessions().await,
        }
    }

    /// The same, without those that cannot be reached.
    pub(super) async fn reachable(&self) -> Result<Vec<Arc<Session>>, Error> {
        match &self.shape {
            Kind::Cluster(cluster) => Ok(cluster.reachable().await),
            _ => self.sessions().await,
        }
    }

    /// Runs a script about one lock.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &Keys,
        args: impl Fn(&mut Cmd) + Sync,
    ) -> Result<T, Error> {
        Ok(self.ask(script, keys, args).await?.value)
    }

    /// The same, and who answered.
    pub(super) async fn ask<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &Keys,
        args: impl Fn(&mut Cmd) + Sync,
    ) -> Result<Reply<T>, Error> {
        let fill = |cmd: &mut Cmd| {
            for key in keys.all() {
                cmd.arg(key);
            }
            args(cmd);
        };
        self.call(keys.lock(), script, keys.all().count(), fill)
            .await
    }

    /// Runs a script where `key` is.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        key: &str,
        script: &Script,
        keys: usize,
        fill: impl Fn(&mut Cmd) + Sync,
    ) -> Result<Reply<T>, Error> {
        let (fill, clock) = (&fill, &self.clock);
        let call = Call {
            script,
            keys,
            fill,
            clock,
        };
        match &self.shape {
            Kind::One(link) => {
                let session = link.session().await?;
                call.send(session, false).await.map_err(outcome::asking)
            }
            Kind::Sentinel(sentinels) => sentinels.call(&call).await,
            Kind::Cluster(cluster) => cluster.call(key, &call).await,
        }
    }

    /// Refuses what no script can do with `lock` in one step: another server may have that key.
    pub(super) fn check_slot(&self, lock: &str, key: &str) -> Result<(), Error> {
        let is_apart =
            matches!(self.shape, Kind::Cluster(_)) && names::slot(key) != names::slot(lock);
        if !is_apart {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Invalid,
            format!(
                "the key \"{}\" is in another slot of the cluster than the lock; put what the lock's key is hashed by into braces in it, as in {{{}}}:data",
                Escaped(key),
                Escaped(names::hashed(lock)),
            ),
        ))
    }

    /// Which locks go into one script together, by their places in `keys`.
    pub(super) fn batches(&self, keys: &[Keys]) -> Vec<Vec<usize>> {
        match &self.shape {
            Kind::One(_) | Kind::Sentinel(_) => {
                let all: Vec<_> = (0..keys.len()).collect();
                all.chunks(BATCH).map(<[usize]>::to_vec).collect()
            }
            Kind::Cluster(cluster) => cluster.batches(keys, BATCH),
        }
    }

    /// Whether one lock may be out of reach while another one is not.
    pub(super) fn are_many(&self) -> bool {
        matches!(self.shape, Kind::Cluster(_))
    }

    /// The channel on which a waiter for this lock is told.
    pub(super) fn channel(&self, key: &str) -> Cow<'_, str> {
        match &self.shape {
            Kind::Cluster(cluster) => cluster.channel(key),
            Kind::One(_) | Kind::Sentinel(_) => Cow::Borrowed(&self.inbox.channel),
        }
    }

    /// Sees to it that news of this lock reach `owner`, who has asked at `sent` and waits now, for as long
    /// as the answer lives. Whoever may have missed something is told to look.
    pub(super) fn listen(&self, key: &str, owner: OwnerId, sent: Time) -> Option<Listening> {
        match &self.shape {
            Kind::Cluster(cluster) => cluster.listen(key, owner, sent),
            Kind::One(_) | Kind::Sentinel(_) => None,
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        match &self.shape {
            Kind::One(link) => link.disconnect(),
            Kind::Sentinel(sentinels) => sentinels.close(),
            Kind::Cluster(cluster) => cluster.close(),
        }
    }
}

fn is_unknown_script(err: &RedisError) -> bool {
    err.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}
