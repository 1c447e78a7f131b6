//! The clients, each with the same two functions.

use crate::scenarios::{Failure, Locks, TTL};
use crate::wire::{Delete, Deleted, Done, Etcd, Grant, Granted, Lock, Locked, Put, Revoke, Unlock};

/// A key is written and deleted: no lease, no queue, no exclusion.
#[derive(Clone)]
pub(crate) struct Raw(Etcd);

impl Raw {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        Ok(Self(Etcd::connect(port).await?))
    }
}

impl Locks for Raw {
    type Hold = Vec<u8>;

    async fn lock(&self, name: &str) -> Result<Vec<u8>, Failure> {
        // These keys have another prefix than the keys of tenure: the store keeps deleted keys, and every listing of
        // their prefix reads over them.
        let key = format!("raw/{name}/{:032x}", rand::random::<u128>()).into_bytes();
        let put = Put {
            key: key.clone(),
            // About as many bytes as tenure stores about the holder.
            value: vec![b'x'; 200],
        };
        let _: Done = self.0.ask("/etcdserverpb.KV/Put", put).await?;
        Ok(key)
    }

    async fn unlock(&self, key: Vec<u8>) -> Result<(), Failure> {
        let delete = Delete { key };
        let deleted: Deleted = self.0.ask("/etcdserverpb.KV/DeleteRange", delete).await?;
        if deleted.count == 1 {
            Ok(())
        } else {
            Err("lost".into())
        }
    }
}

#[derive(Clone)]
pub(crate) struct Tenure(tenure::Client);

impl Tenure {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        let url = format!("etcd://127.0.0.1:{port}");
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

/// The Lock service with a lease for each lock, as most programs in Java use it.
#[derive(Clone)]
pub(crate) struct LockRpc(Etcd);

impl LockRpc {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        Ok(Self(Etcd::connect(port).await?))
    }
}

impl Locks for LockRpc {
    type Hold = (Vec<u8>, i64);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let grant = Grant {
            seconds: TTL.as_secs().cast_signed(),
        };
        let granted: Granted = self.0.ask("/etcdserverpb.Lease/LeaseGrant", grant).await?;
        let lock = Lock {
            name: format!("rpc/{name}").into(),
            lease: granted.lease,
        };
        let locked: Locked = self.0.ask("/v3lockpb.Lock/Lock", lock).await?;
        Ok((locked.key, granted.lease))
    }

    async fn unlock(&self, (key, lease): Self::Hold) -> Result<(), Failure> {
        let _: Done = self.0.ask("/v3lockpb.Lock/Unlock", Unlock { key }).await?;
        let revoke = Revoke { lease };
        let _: Done = self
            .0
            .ask("/etcdserverpb.Lease/LeaseRevoke", revoke)
            .await?;
        Ok(())
    }
}
