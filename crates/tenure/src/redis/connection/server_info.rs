//! What a server says about itself. A client asks once for each connection.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, ServerErrorKind};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::url::Host;

/// What survives a restart of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing, or a snapshot of some time ago.
    #[default]
    None,
    /// All but the last second or two, when the machine loses power (`appendfsync everysec`).
    Mostly,
    /// Every write that was answered (`appendfsync always`).
    Full,
}

/// The part of the reply to `INFO` that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServerInfo {
    pub(crate) version: String,
    /// The user may not run `INFO`.
    pub(crate) is_unknown: bool,
    /// The server has just started and loads its data. Until that is done, it reports that it has no append-only file.
    pub(crate) is_loading: bool,
    pub(crate) uptime: Duration,
    pub(crate) is_replica: bool,
    pub(crate) is_sentinel: bool,
    pub(crate) replicas: u32,
    pub(crate) persistence: Persistence,
    /// The policy by which the server evicts keys when its memory is full. `None`: it evicts no keys.
    pub(crate) evicts: Option<String>,
    pub(crate) run_id: String,
}

impl ServerInfo {
    pub(crate) async fn ask(connection: &mut MultiplexedConnection) -> Result<Self, RedisError> {
        let info: Result<String, _> = redis::cmd("INFO").query_async(connection).await;
        let mut server_info = match info {
            Ok(info) => Self::parse(&info),
            Err(err) if is_denied(&err) => Self {
                is_unknown: true,
                ..Self::default()
            },
            Err(err) => return Err(err),
        };
        if server_info.persistence == Persistence::Mostly {
            let mut asking = redis::cmd("CONFIG");
            asking.arg("GET").arg("appendfsync");
            let policy: Result<Vec<(String, String)>, _> = asking.query_async(connection).await;
            match policy {
                Ok(policy) if policy.iter().any(|(_, value)| value == "always") => {
                    server_info.persistence = Persistence::Full;
                }
                Err(err) if err.is_io_error() => return Err(err),
                // The user may not ask, or there is no such command: the weaker promise stands.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(server_info)
    }

    fn parse(info: &str) -> Self {
        let get = |key: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(key));
            line.and_then(|rest| rest.strip_prefix(':')).unwrap_or("")
        };
        let number = |key| get(key).parse().unwrap_or(0_u64);
        let policy = get("maxmemory_policy");
        let version = match get("valkey_version") {
            "" => format!("Redis {}", get("redis_version")),
            version => format!("Valkey {version}"),
        };
        Self {
            version,
            is_unknown: false,
            is_loading: get("loading") == "1",
            uptime: Duration::from_secs(number("uptime_in_seconds")),
            is_replica: get("role") == "slave",
            is_sentinel: get("redis_mode") == "sentinel",
            replicas: u32::try_from(number("connected_slaves")).unwrap_or(u32::MAX),
            persistence: if get("aof_enabled") == "1" {
                Persistence::Mostly
            } else {
                Persistence::None
            },
            evicts: (number("maxmemory") > 0 && policy != "noeviction" && !policy.is_empty())
                .then(|| policy.to_owned()),
            run_id: get("run_id").to_owned(),
        }
    }

    /// Whether there are sharded channels: in Redis 7, and in every Valkey.
    pub(crate) fn has_shard_channels(&self) -> bool {
        let number = self.version.split(' ').nth(1).unwrap_or_default();
        let major = number.split('.').next().and_then(|it| it.parse().ok());
        major.is_some_and(|major: u32| major >= 7)
    }

    /// Refuses a server that takes no writes, with a hint, and warns of one that may evict keys.
    pub(crate) fn refuse(&self, host: &Host, hint: &str) -> Result<(), Error> {
        if self.is_sentinel {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{host} is a sentinel and keeps no data; write redis+sentinel://{host}/SERVICE, with the name of the service"
                ),
            ));
        }
        if self.is_loading {
            return Err(Error::new(
                ErrorKind::Unreachable,
                format!("{host} is still loading its data; retry"),
            ));
        }
        if self.is_replica {
            return Err(Error::new(
                ErrorKind::Unreachable,
                format!("{host} is a replica and takes no writes; {hint}"),
            ));
        }
        if let Some(policy) = &self.evicts {
            tracing::warn!(%host, policy, "this server may throw away keys when its memory is full; set maxmemory-policy to noeviction");
        }
        Ok(())
    }
}

fn is_denied(err: &RedisError) -> bool {
    err.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\nrun_id:abc\r\nuptime_in_seconds:61\r\n# Memory\r\nmaxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\n# Persistence\r\naof_enabled:1\r\n# Replication\r\nrole:master\r\nconnected_slaves:2\r\n# Cluster\r\ncluster_enabled:0\r\n";
        let server_info = ServerInfo::parse(info);
        assert_eq!(
            server_info,
            ServerInfo {
                version: "Redis 7.0.15".into(),
                is_unknown: false,
                is_loading: false,
                uptime: Duration::from_secs(61),
                is_replica: false,
                is_sentinel: false,
                replicas: 2,
                persistence: Persistence::Mostly,
                evicts: Some("allkeys-lru".into()),
                run_id: "abc".into(),
            }
        );
        let server_info = ServerInfo::parse(
            "role:slave\r\nvalkey_version:8.1.1\r\nmaxmemory_policy:allkeys-lru\r\n",
        );
        assert!(server_info.is_replica && server_info.evicts.is_none());
        assert!(ServerInfo::parse("aof_enabled:0\r\nloading:1\r\n").is_loading);
        assert_eq!(server_info.version, "Valkey 8.1.1");
    }
}
