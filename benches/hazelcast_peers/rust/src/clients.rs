//! The client, with the two functions of a scenario.

use tenure_core::{Client, Guard};

use crate::scenarios::{Failure, Locks, TTL};

#[derive(Clone)]
pub(crate) struct Tenure(Client);

impl Tenure {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        let url = format!("hazelcast://127.0.0.1:{port}");
        Ok(Self(tenure_hazelcast::connect(&url).await?))
    }
}

impl Locks for Tenure {
    type Hold = Guard;

    async fn lock(&self, name: &str) -> Result<Guard, Failure> {
        Ok(self.0.lock(name).ttl(TTL).acquire().await?)
    }

    async fn unlock(&self, hold: Guard) -> Result<(), Failure> {
        Ok(hold.release().await?)
    }
}
