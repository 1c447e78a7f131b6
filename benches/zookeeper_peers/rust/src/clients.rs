//! The clients, each with the same two functions.

use zookeeper_client::{Acls, Client, CreateMode, Error, LockOptions, LockPrefix, OwnedLockClient};

use crate::scenarios::{Failure, Locks, TTL};

/// About as many bytes as tenure stores about the holder.
const DESCRIPTION: [u8; 200] = [b'x'; 200];

async fn connect(port: &str) -> Result<Client, Failure> {
    let connector = Client::connector().with_session_timeout(TTL);
    Ok(connector.connect(&format!("127.0.0.1:{port}")).await?)
}

/// A node is created and deleted; the client does not check whether it is the first node.
#[derive(Clone)]
pub(crate) struct Raw(Client);

impl Raw {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        Ok(Self(connect(port).await?))
    }
}

impl Locks for Raw {
    type Hold = String;

    async fn lock(&self, name: &str) -> Result<String, Failure> {
        let node = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let directory = CreateMode::Container.with_acls(Acls::anyone_all());
        let data = DESCRIPTION;
        let prefix = format!("/{name}/_c_00000000-0000-0000-0000-000000000000-lock-");
        loop {
            match self.0.create(&prefix, &data, &node).await {
                Ok((_, sequence)) => return Ok(format!("{prefix}{sequence}")),
                Err(Error::NoNode) => self.0.mkdir(&format!("/{name}"), &directory).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn unlock(&self, path: String) -> Result<(), Failure> {
        Ok(self.0.delete(&path, None).await?)
    }
}

#[derive(Clone)]
pub(crate) struct Tenure(tenure::Client);

impl Tenure {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        let url = format!("zookeeper://127.0.0.1:{port}");
        Ok(Self(tenure::connect(&url).await?))
    }
}

impl Locks for Tenure {
    type Hold = tenure::Guard;

    async fn lock(&self, name: &str) -> Result<tenure::Guard, Failure> {
        Ok(self.0.lock(name).ttl(TTL).acquire().await?)
    }

    async fn unlock(&self, hold: tenure::Guard) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}

/// The recipe that comes with the client library.
#[derive(Clone)]
pub(crate) struct Recipe {
    client: Client,
    data: &'static [u8],
}

impl Recipe {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        let client = connect(port).await?;
        Ok(Self { client, data: b"" })
    }

    /// Its nodes have as much data as those of tenure.
    pub(crate) async fn with_data(port: &str) -> Result<Self, Failure> {
        let client = connect(port).await?;
        let data = &DESCRIPTION;
        Ok(Self { client, data })
    }
}

impl Locks for Recipe {
    type Hold = OwnedLockClient;

    async fn lock(&self, name: &str) -> Result<OwnedLockClient, Failure> {
        let directory = format!("/{name}");
        let container = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(container)?;
        let prefix = LockPrefix::new_curator(&directory, "lock-")?;
        Ok(self
            .client
            .lock(prefix, self.data, options)
            .await?
            .into_owned())
    }

    async fn unlock(&self, hold: OwnedLockClient) -> Result<(), Failure> {
        self.client.delete(hold.lock_path(), None).await?;
        // Dropping the lock would delete the node once more, which the other clients do not do; this small leak is
        // accepted.
        std::mem::forget(hold);
        Ok(())
    }
}
