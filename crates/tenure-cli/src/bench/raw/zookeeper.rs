//! The requests that a lock on ZooKeeper needs at least, through the client library that the store uses.

use std::time::Duration;

use tenure::Error;
use zookeeper_client::{Acls, Client, CreateMode};

use super::server_address::{plain_server, with_port};
use crate::bench::common::{RESPONSE_TIMEOUT, TASKS, measurement_error};

/// As long as the session of `tenure`.
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

/// About as long as the record of a holder.
const VALUE: [u8; 200] = [b' '; 200];

/// One session, and the directories of this measurement.
#[derive(Clone)]
pub(crate) struct RawZookeeper {
    client: Client,
    /// One directory for each task.
    directories: Vec<String>,
}

impl RawZookeeper {
    /// Connects. Returns `None` for a URL with a password, TLS, or a percent-encoded root.
    pub(crate) async fn connect(url: &str, name: &str) -> Result<Option<Self>, Error> {
        let Some((host, root)) = plain_server(url, "zookeeper") else {
            return Ok(None);
        };
        let root = root.trim_end_matches('/');
        if root.contains('%') {
            return Ok(None);
        }
        let connector = Client::connector().with_session_timeout(SESSION_TIMEOUT);
        let connector = connector.with_connection_timeout(RESPONSE_TIMEOUT);
        let client = connector.connect(&with_port(host, 2181)).await;
        let client = client.map_err(measurement_error)?;
        let root = match root {
            "" => String::new(),
            root => format!("/{root}"),
        };
        let directory = |task| format!("{root}/{name}-raw-{task}");
        let directories: Vec<_> = (0..TASKS).map(directory).collect();
        // The server removes a container node after it has been empty for a while.
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        for directory in &directories {
            client
                .mkdir(directory, &container)
                .await
                .map_err(measurement_error)?;
        }
        Ok(Some(Self {
            client,
            directories,
        }))
    }

    /// Creates and deletes a node in the directory of this task.
    pub(crate) async fn run_round(&self, task: usize) -> Result<(), Error> {
        let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let prefix = format!("{}/lock-", self.directories[task]);
        let created = self.client.create(&prefix, &VALUE, &node).await;
        let (_, sequence) = created.map_err(measurement_error)?;
        let path = format!("{prefix}{sequence}");
        self.client
            .delete(&path, None)
            .await
            .map_err(measurement_error)
    }

    /// Deletes the directories. When this is dropped, the session ends, and the server deletes the nodes in them.
    pub(crate) async fn clean_up(self) {
        for directory in &self.directories {
            // If a directory is not empty yet, the server removes it later.
            let _ = self.client.delete(directory, None).await;
        }
    }
}
