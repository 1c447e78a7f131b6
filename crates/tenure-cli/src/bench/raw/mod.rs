//! The bare requests that a lock needs at least on each kind of store: `tenure` cannot be faster.

pub(crate) mod file;
pub(crate) mod redis;
pub(crate) mod sql;

mod etcd;
mod server_address;
mod zookeeper;

use tenure::Error;

use crate::bench::common::system;
use etcd::RawEtcd;
use file::RawFile;
use redis::RawRedis;
use sql::RawSql;
use zookeeper::RawZookeeper;

/// Raw locking on one kind of store. Kinds that have none here are measured alone.
pub(crate) enum Raw {
    /// A mutex of the runtime.
    Memory(tokio::sync::Mutex<()>),
    /// `flock` on a file.
    File(RawFile),
    /// The commands that a lock needs at least.
    Redis(RawRedis),
    /// The requests that a lock needs at least.
    Etcd(RawEtcd),
    Zookeeper(RawZookeeper),
    /// The statements that a lock needs at least.
    Sql(RawSql),
}

impl Raw {
    /// For the store with this URL; its own key or the like bears `name`.
    pub(crate) async fn new(backend: &str, url: &str, name: &str) -> Result<Option<Self>, Error> {
        Ok(match backend {
            "memory" => Some(Self::Memory(tokio::sync::Mutex::new(()))),
            "file" => Some(Self::File(RawFile::new().map_err(system)?)),
            "redis" => RawRedis::new(url, name).await?.map(Self::Redis),
            "etcd" => RawEtcd::new(url, name).await?.map(Self::Etcd),
            "zookeeper" => RawZookeeper::new(url, name).await?.map(Self::Zookeeper),
            "mysql" | "postgres" => RawSql::new(url, name).await?.map(Self::Sql),
            _ => None,
        })
    }

    pub(crate) fn pair_name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "tokio::sync::Mutex",
            Self::File(_) => {
                "the same system calls by hand: flock, read, write, stat; stat, write, unlock"
            }
            Self::Redis(_) => "SET NX PX; EVALSHA of a compare-and-delete",
            Self::Etcd(_) => "Put and Delete of a key",
            Self::Zookeeper(_) => "create an ephemeral sequential node; delete it",
            Self::Sql(sql) => sql.pair_name(),
        }
    }

    /// Empty where a hand-off is measured alone.
    pub(crate) fn handoff_name(&self) -> &'static str {
        match self {
            Self::Memory(_) => "tokio::sync::Mutex between two tasks",
            Self::File(_) => "blocking flock in two processes",
            Self::Redis(_) => "PUBLISH to the other process",
            Self::Sql(sql) if sql.is_session() => "the same functions in two processes",
            Self::Etcd(_) | Self::Zookeeper(_) | Self::Sql(_) => "",
        }
    }

    /// Locks and unlocks.
    pub(crate) async fn pair(&self) -> Result<(), Error> {
        match self {
            Self::Memory(mutex) => {
                drop(mutex.lock().await);
                Ok(())
            }
            Self::File(file) => file.pair().map_err(system),
            Self::Redis(redis) => redis.pair(0).await,
            Self::Etcd(etcd) => etcd.pair(0).await,
            Self::Zookeeper(zookeeper) => zookeeper.pair(0).await,
            Self::Sql(sql) => sql.pair(0).await,
        }
    }

    /// The same for any of [`WORKERS`](crate::bench::common::WORKERS) names; `None` where names share nothing.
    pub(crate) fn pairs(&self) -> Option<Pairs> {
        Some(match self {
            Self::Memory(_) | Self::File(_) => return None,
            Self::Redis(redis) => Pairs::Redis(redis.clone()),
            Self::Etcd(etcd) => Pairs::Etcd(etcd.clone()),
            Self::Zookeeper(zookeeper) => Pairs::Zookeeper(zookeeper.clone()),
            Self::Sql(sql) => Pairs::Sql(sql.clone()),
        })
    }

    /// Removes what is left in the store.
    pub(crate) async fn end(self) {
        match self {
            Self::Redis(redis) => redis.end().await,
            Self::Etcd(etcd) => etcd.end().await,
            Self::Zookeeper(zookeeper) => zookeeper.end().await,
            Self::Sql(sql) => sql.end().await,
            Self::Memory(_) | Self::File(_) => {}
        }
    }
}

/// Raw pairs by many tasks.
#[derive(Clone)]
pub(crate) enum Pairs {
    Redis(RawRedis),
    Etcd(RawEtcd),
    Zookeeper(RawZookeeper),
    Sql(RawSql),
}

impl Pairs {
    /// Locks and unlocks the name with that number.
    pub(crate) async fn pair(&self, number: usize) -> Result<(), Error> {
        match self {
            Self::Redis(redis) => redis.pair(number).await,
            Self::Etcd(etcd) => etcd.pair(number).await,
            Self::Zookeeper(zookeeper) => zookeeper.pair(number).await,
            Self::Sql(sql) => sql.pair(number).await,
        }
    }
}
