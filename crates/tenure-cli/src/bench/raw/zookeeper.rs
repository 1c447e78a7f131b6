//! The requests that a lock on ZooKeeper needs at least, through the client library that the backend uses.

use std::time::Duration;

use tenure::Error;
use zookeeper_client::{Acls, Client, CreateMode};

use super::server_address::{plain_place, with_port};
use crate::bench::common::WORKERS;
use crate::bench::common::system;

/// As long as that of the other side.
const SESSION: Duration = Duration::from_secs(30);

/// How long the server may be silent before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// About as much as the backend says of a holder.
const VALUE: [u8; 200] = [b' '; 200];

/// One session, and directories of its own.
#[derive(Clone)]
pub(crate) struct RawZookeeper {
    client: Client,
    /// One for each of those who work side by side.
    directories: Vec<String>,
}

impl RawZookeeper {
    /// Connects. `None`: the URL has a password, TLS, or a root that is written in another way.
    pub(crate) async fn new(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some((host, root, _)) = plain_place(url, "zookeeper") else {
            return Ok(None);
        };
        let root = root.trim_end_matches('/');
        if root.contains('%') {
            return Ok(None);
        }
        let connector = Client::connector().with_session_timeout(SESSION);
        let connector = connector.with_connection_timeout(PATIENCE);
        let client = connector.connect(&with_port(host, 2181)).await;
        let client = client.map_err(system)?;
        let root = match root {
            "" => String::new(),
            root => format!("/{root}"),
        };
        let directory = |number| format!("{root}/{name}-raw-{number}");
        let directories: Vec<_> = (0..WORKERS).map(directory).collect();
        // The server takes them away when they have been empty for a while.
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        for directory in &directories {
            client.mkdir(directory, &container).await.map_err(system)?;
        }
        Ok(Some(Self {
            client,
            directories,
        }))
    }

    /// Makes and deletes a node in the directory with that number.
    pub(crate) async fn pair(&self, number: usize) -> Result<(), Error> {
        let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/lock-", self.directories[number]);
        let made = self.client.create(&prefix, &VALUE, &node).await;
        let (_, sequence) = made.map_err(system)?;
        let path = format!("{prefix}{sequence}");
        self.client.delete(&path, None).await.map_err(system)
    }

    /// Removes the directories; the session ends, and with it what is in them, when this is dropped.
    pub(crate) async fn end(self) {
        for directory in &self.directories {
            // One that is not empty is removed by the server later on.
            let _ = self.client.delete(directory, None).await;
        }
    }
}
