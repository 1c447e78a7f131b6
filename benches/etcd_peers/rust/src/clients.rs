//! The clients, each with the same two functions.

use crate::scenarios::{Failure, Locks, TTL};
use crate::wire::{
    Committed, Compare, Delete, Deleted, Done, Etcd, Grant, Granted, Lock, Locked, Operation, Put,
    Revoke, Transaction, Unlock,
};

/// The target of a [`Compare`].
const CREATED: i32 = 1;

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

/// The two transactions that a lock with a queue cannot do without: one puts the key if no other one is in the directory of the
/// name, and one deletes the key if it is still the one that was put. Nothing else of a lock: no lease, queue or holder.
#[derive(Clone)]
pub(crate) struct RawTransactions(Etcd);

impl RawTransactions {
    pub(crate) async fn connect(port: &str) -> Result<Self, Failure> {
        Ok(Self(Etcd::connect(port).await?))
    }

    /// Returns the revision of the transaction.
    async fn commit(&self, compare: Compare, operation: Operation) -> Result<i64, Failure> {
        let transaction = Transaction {
            compare: vec![compare],
            success: vec![operation],
        };
        let path = "/etcdserverpb.KV/Txn";
        let committed: Committed = self.0.ask(path, transaction).await?;
        match committed.header {
            Some(header) if committed.succeeded => Ok(header.revision),
            _ => Err("busy or lost".into()),
        }
    }
}

impl Locks for RawTransactions {
    type Hold = (Vec<u8>, i64);

    async fn lock(&self, name: &str) -> Result<Self::Hold, Failure> {
        let key = format!("raw/{name}/one").into_bytes();
        let put = Put {
            key: key.clone(),
            value: vec![b'x'; 200],
        };
        let is_empty = Compare {
            target: CREATED,
            key: format!("raw/{name}/").into_bytes(),
            create_revision: 0,
            range_end: format!("raw/{name}0").into_bytes(),
        };
        let operation = Operation {
            put: Some(put),
            delete: None,
        };
        Ok((key, self.commit(is_empty, operation).await?))
    }

    async fn unlock(&self, (key, created): Self::Hold) -> Result<(), Failure> {
        let is_same = Compare {
            target: CREATED,
            key: key.clone(),
            create_revision: created,
            range_end: Vec::new(),
        };
        let operation = Operation {
            put: None,
            delete: Some(Delete { key }),
        };
        self.commit(is_same, operation).await.map(drop)
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
