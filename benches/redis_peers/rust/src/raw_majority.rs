//! The scripts of tenure on several servers, a majority of which grants a lock.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Script};

use crate::clients::{ACQUIRE, HOLDER, KEEP, RELEASE, connection};
use crate::scenarios::{Failure, Locks, TTL};

/// The requests to one server that may wait to be written. A request that found no room could be overtaken by the release.
const BUFFER: usize = 4096;

/// The scripts that tenure sends to several servers for a free lock, and nothing else of tenure: no queue, renewal, span,
/// timeout of a server, or choice of another token. Each server gets the same token proposed. This client cannot wait.
#[derive(Clone)]
pub(crate) struct RawMajority(Arc<Servers>);

struct Servers {
    connections: Vec<MultiplexedConnection>,
    acquire: Script,
    release: Script,
}

impl RawMajority {
    pub(crate) async fn connect(ports: &str) -> Result<Self, Failure> {
        let (acquire, release) = (Script::new(ACQUIRE), Script::new(RELEASE));
        let mut connections = Vec::new();
        for port in ports.split(',') {
            let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(BUFFER);
            let mut connection = connection(port, config).await?;
            // A script that the server does not know would have to be sent again, after later requests.
            acquire.load_async(&mut connection).await?;
            release.load_async(&mut connection).await?;
            connections.push(connection);
        }
        Ok(Self(Arc::new(Servers {
            connections,
            acquire,
            release,
        })))
    }
}

impl Servers {
    /// Sends the command to all servers at once, in the order of the calls for each server. Whether a majority answers `yes`;
    /// a task receives the answers that come after the decision.
    async fn majority(&self, command: Cmd, yes: u64) -> bool {
        let command = Arc::new(command);
        let mut answers: FuturesUnordered<_> = self
            .connections
            .iter()
            .map(|connection| {
                let (mut connection, command) = (connection.clone(), command.clone());
                async move { command.query_async::<[u64; 1]>(&mut connection).await }
            })
            .collect();
        let majority = self.connections.len() / 2 + 1;
        let mut agreed = 0;
        while agreed < majority && agreed + answers.len() >= majority {
            match answers.next().await {
                Some(answer) => agreed += usize::from(answer.is_ok_and(|[answer]| answer == yes)),
                None => break,
            }
        }
        if !answers.is_empty() {
            tokio::spawn(async move { while answers.next().await.is_some() {} });
        }
        agreed >= majority
    }

    fn release_command(&self, keys: &[String; 2], owner: &str) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.release.get_hash()).arg(2).arg(keys);
        command.arg(owner);
        command
    }
}

impl Locks for RawMajority {
    type Hold = ([String; 2], String);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let Self(servers) = self;
        let owner = format!("{:032x}", rand::random::<u128>());
        let keys = [name.to_owned(), format!("{{{name}}}:hold")];
        // In µs since 1970, as the servers choose tokens themselves.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let token = u64::try_from(since.as_micros())?;
        let mut command = redis::cmd("EVALSHA");
        command.arg(servers.acquire.get_hash()).arg(2).arg(&keys);
        command.arg(TTL.as_millis() as u64).arg(HOLDER).arg(KEEP);
        command.arg(&owner).arg(token);
        if servers.majority(command, token).await {
            return Ok((keys, owner));
        }
        let release = servers.release_command(&keys, &owner);
        servers.majority(release, 1).await;
        Err("busy".into())
    }

    async fn unlock(&self, (keys, owner): Self::Hold) -> Result<(), Failure> {
        let Self(servers) = self;
        let release = servers.release_command(&keys, &owner);
        match servers.majority(release, 1).await {
            true => Ok(()),
            false => Err("lost".into()),
        }
    }
}
