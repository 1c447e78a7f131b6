//! Which server has a key: one server, the primary that sentinels name, or a node of a cluster.

mod sentinel;

use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisError};

use crate::error::Error;
use crate::rt::{Clock, Spawner};

use self::sentinel::Sentinels;
use super::inbox::Inbox;
use super::link::{Link, Session};
use super::names::Keys;
use super::outcome;
use super::script::{Publish, Script, Scripts};
use super::settings::{Settings, Shape};

/// Locks that are renewed by one script: the server does nothing else for the time of some 300 commands.
const BATCH: usize = 100;

/// All servers of one store.
pub(super) struct Nodes {
    shape: Kind,
    pub(super) scripts: &'static Scripts,
}

enum Kind {
    One(Box<Link>),
    Sentinel(Sentinels),
}

/// A call of a script, to be sent to one server or another.
struct Call<'a> {
    script: &'a Script,
    keys: usize,
    fill: &'a (dyn Fn(&mut Cmd) + Sync),
}

impl Call<'_> {
    /// Sends it: by its digest, and by its text when the server does not know that.
    async fn send<T: FromRedisValue>(
        &self,
        session: &Session,
        asking: bool,
    ) -> Result<T, RedisError> {
        let mut cmd = self.script.by_digest(self.keys);
        for attempt in 0.. {
            (self.fill)(&mut cmd);
            let answer = if asking {
                session.send_asking(&cmd).await
            } else {
                session.send(&cmd).await
            };
            if attempt > 0 || !answer.as_ref().is_err_and(is_unknown_script) {
                return answer;
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
        let shape = match &settings.shape {
            Shape::One(host) => {
                let link = Link::new(host.clone(), settings, inbox.clone(), clock.clone())?;
                link.session().await?;
                Kind::One(Box::new(link))
            }
            Shape::Sentinel { sentinels, service } => {
                let sentinels =
                    Sentinels::new(sentinels, service, settings, inbox, clock, spawner)?;
                sentinels.session().await?;
                Kind::Sentinel(sentinels)
            }
            Shape::Cluster(_) => {
                return Err(Error::new(
                    crate::error::ErrorKind::Unsupported,
                    "clusters are not in this build yet",
                ));
            }
        };
        Ok(Self {
            shape,
            scripts: Scripts::get(settings.dialect, Publish::Everywhere),
        })
    }

    /// The connection to the server that has this key.
    pub(super) async fn session(&self, key: &str) -> Result<Arc<Session>, Error> {
        let _ = key;
        match &self.shape {
            Kind::One(link) => link.session().await,
            Kind::Sentinel(sentinels) => sentinels.session().await,
        }
    }

    /// The connections to all servers that have keys.
    pub(super) async fn sessions(&self) -> Result<Vec<Arc<Session>>, Error> {
        match &self.shape {
            Kind::One(link) => Ok(vec![link.session().await?]),
            Kind::Sentinel(sentinels) => Ok(vec![sentinels.session().await?]),
        }
    }

    /// Runs a script about one lock.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &Keys,
        args: &[&str],
    ) -> Result<T, Error> {
        let fill = |cmd: &mut Cmd| {
            cmd.arg(&keys.lock).arg(&keys.hold);
            cmd.arg(&keys.queue).arg(&keys.wait);
            for arg in args {
                cmd.arg(*arg);
            }
        };
        self.call(&keys.lock, script, 4, fill).await
    }

    /// Runs a script where `key` is.
    pub(super) async fn call<T: FromRedisValue>(
        &self,
        key: &str,
        script: &Script,
        keys: usize,
        fill: impl Fn(&mut Cmd) + Sync,
    ) -> Result<T, Error> {
        let (fill, _) = (&fill, key);
        let call = Call { script, keys, fill };
        match &self.shape {
            Kind::One(link) => {
                let session = link.session().await?;
                call.send(&session, false).await.map_err(outcome::asking)
            }
            Kind::Sentinel(sentinels) => sentinels.call(&call).await,
        }
    }

    /// Which locks go into one script together, by their places in `keys`.
    pub(super) fn batches(&self, keys: &[Keys]) -> Vec<Vec<usize>> {
        match &self.shape {
            Kind::One(_) | Kind::Sentinel(_) => {
                let all: Vec<_> = (0..keys.len()).collect();
                all.chunks(BATCH).map(<[usize]>::to_vec).collect()
            }
        }
    }

    /// Ends all connections.
    pub(super) fn close(&self) {
        match &self.shape {
            Kind::One(link) => link.disconnect(),
            Kind::Sentinel(sentinels) => sentinels.close(),
        }
    }
}

fn is_unknown_script(err: &RedisError) -> bool {
    err.kind() == redis::ErrorKind::Server(redis::ServerErrorKind::NoScript)
}
