//! The bare requests that a lock needs at least on each kind of store: `tenure` cannot be faster.
//!
//! A round is what one acquisition and one release need.

pub(super) mod file;
pub(super) mod redis;
pub(super) mod sql;

mod etcd;
mod server_address;
mod zookeeper;

use std::sync::Arc;

use tenure::Error;
use tokio::sync::Mutex;

use super::common::measurement_error;
use etcd::RawEtcd;
use file::RawFile;
use redis::RawRedis;
use sql::RawSql;
use zookeeper::RawZookeeper;

/// Bare requests to one kind of store.
#[derive(Clone)]
pub(super) enum Raw {
    Memory(Arc<Mutex<()>>),
    File(Arc<RawFile>),
    Redis(RawRedis),
    Etcd(RawEtcd),
    Zookeeper(RawZookeeper),
    Sql(RawSql),
}

impl Raw {
    /// Connects to the store with this URL; `name` is part of the names of all keys, nodes and tables. Returns `None`
    /// when the store can only be measured alone.
    pub(super) async fn connect(store: &str, url: &str, name: &str) -> Result<Option<Self>, Error> {
        Ok(match store {
            "memory" => Some(Self::Memory(Arc::default())),
            "file" => {
                let file = RawFile::new().map_err(measurement_error)?;
                Some(Self::File(Arc::new(file)))
            }
            "redis" => RawRedis::connect(url, name).await?.map(Self::Redis),
            "etcd" => RawEtcd::connect(url, name).await?.map(Self::Etcd),
            "zookeeper" => RawZookeeper::connect(url, name).await?.map(Self::Zookeeper),
            "mysql" | "postgres" => RawSql::connect(url, name).await?.map(Self::Sql),
            _ => None,
        })
    }

    /// Whether the locks are requests to a server, which many tasks share.
    pub(super) fn has_server(&self) -> bool {
        !matches!(self, Self::Memory(_) | Self::File(_))
    }

    pub(super) fn describe_round(&self) -> &'static str {
        match self {
            Self::Memory(_) => "tokio::sync::Mutex",
            Self::File(_) => {
                "the same system calls by hand: flock, read, write, stat; stat, write, unlock"
            }
            Self::Redis(_) => "SET NX PX; EVALSHA of a compare-and-delete",
            Self::Etcd(_) => "Put and Delete of a key",
            Self::Zookeeper(_) => "create an ephemeral sequential node; delete it",
            Self::Sql(sql) => sql.describe_round(),
        }
    }

    /// Empty where only the hand-off of the lock is measured.
    pub(super) fn describe_handoff(&self) -> &'static str {
        match self {
            Self::Memory(_) => "tokio::sync::Mutex between two tasks",
            Self::File(_) => "blocking flock in two processes",
            Self::Redis(_) => "PUBLISH to the other process",
            Self::Sql(sql) if sql.is_session() => "the same functions in two processes",
            Self::Etcd(_) | Self::Zookeeper(_) | Self::Sql(_) => "",
        }
    }

    /// Locks and unlocks what belongs to this task.
    pub(super) async fn run_round(&self, task: usize) -> Result<(), Error> {
        match self {
            Self::Memory(mutex) => {
                drop(mutex.lock().await);
                Ok(())
            }
            Self::File(file) => file.run_round().map_err(measurement_error),
            Self::Redis(redis) => redis.run_round(task).await,
            Self::Etcd(etcd) => etcd.run_round(task).await,
            Self::Zookeeper(zookeeper) => zookeeper.run_round(task).await,
            Self::Sql(sql) => sql.run_round(task).await,
        }
    }

    /// Removes what is left in the store.
    pub(super) async fn clean_up(self) {
        match self {
            Self::Redis(redis) => redis.clean_up().await,
            Self::Etcd(etcd) => etcd.clean_up().await,
            Self::Zookeeper(zookeeper) => zookeeper.clean_up().await,
            Self::Sql(sql) => sql.clean_up().await,
            Self::Memory(_) | Self::File(_) => {}
        }
    }
}
