//! The lock recipe of zookeeper-client, with Curator's names.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, Error, LockOptions, LockPrefix, OwnedLockClient};

use crate::{Failure, Locks};

#[derive(Clone)]
pub(crate) struct Zookeeper {
    cluster: String,
    session: Duration,
    watcher: Client,
}

impl Zookeeper {
    pub(crate) async fn connect(
        host: &str,
        port: &str,
        session: Duration,
    ) -> Result<Self, Failure> {
        let cluster = format!("{host}:{port}");
        let watcher = open(&cluster, session).await?;
        Ok(Self {
            cluster,
            session,
            watcher,
        })
    }
}

async fn open(cluster: &str, session: Duration) -> Result<Client, Error> {
    let connector = Client::connector().with_session_timeout(session);
    connector.connect(cluster).await
}

pub(crate) struct Hold {
    lock: OwnedLockClient,
    node: String,
}

impl Locks for Zookeeper {
    type Hold = Hold;

    /// Acquires in a session of its own, by which its node is found while it waits; the session's timeout is the lease.
    async fn lock(&self, name: &str, wait: Duration, _: Duration) -> Result<Option<Hold>, Failure> {
        let client = open(&self.cluster, self.session).await?;
        let directory = format!("/{name}");
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(container)?;
        let prefix = LockPrefix::new_curator(&directory, "lock-")?;
        let given_up = async {
            if wait.is_zero() {
                is_behind(&client, &directory).await
            } else {
                tokio::time::sleep(wait).await;
                Ok(())
            }
        };
        tokio::select! {
            lock = client.lock(prefix, b"", options) => {
                let lock = lock?.into_owned();
                let node = lock.lock_path().rsplit('/').next().unwrap_or_default().to_owned();
                Ok(Some(Hold { lock, node }))
            }
            behind = given_up => {
                behind?;
                Ok(None)
            }
        }
    }

    async fn unlock(&self, hold: Hold) -> Result<bool, Failure> {
        let (client, path) = (hold.lock.client(), hold.lock.lock_path());
        match client.delete(path, None).await {
            Ok(()) => Ok(true),
            Err(Error::NoNode | Error::SessionExpired) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn locked(&self, name: &str) -> Result<bool, Failure> {
        match self.watcher.list_children(&format!("/{name}")).await {
            Ok(children) => Ok(!children.is_empty()),
            Err(Error::NoNode) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn value(hold: &Hold) -> &[u8] {
        hold.node.as_bytes()
    }
}

/// Returns when this session's node is not the first one: then a try has failed. The recipe itself has no try.
async fn is_behind(client: &Client, directory: &str) -> Result<(), Error> {
    loop {
        let own = client.list_ephemerals(directory).await?;
        if let Some(own) = own.first() {
            let own = number(own);
            let children = client.list_children(directory).await?;
            if children.iter().any(|child| number(child) < own) {
                return Ok(());
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The ten digits at the end of a node's name.
fn number(node: &str) -> &str {
    &node[node.len().saturating_sub(10)..]
}
