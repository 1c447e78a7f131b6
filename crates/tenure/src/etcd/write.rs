//! Writes that count only while the lock is held: one transaction writes and checks that the keys of the holds are there.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::fence::{Condition, EtcdCompare};
use tenure_core::store::{BoxFuture, GuardedWrite, Hold};

use super::attached;
use super::key_state::KeyState;
use super::requests;
use super::store::Store;

impl GuardedWrite for Store {
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move {
            loop {
                let keys: Option<Vec<_>> = holds.iter().map(|hold| self.key_of(hold)).collect();
                let Some(keys) = keys else {
                    return Ok(false);
                };
                let (key, value) = (key.clone(), value.clone());
                if requests::write(&self.connections, &keys, key, value).await? {
                    return Ok(true);
                }
                if !attached::look_for_moved_keys(&self, &holds).await? {
                    return Ok(false);
                }
            }
        })
    }

    fn condition(&self, hold: &Hold) -> Option<Condition> {
        let KeyState { key, created, .. } = self.key_of(hold)?;
        Some(Condition::Etcd(EtcdCompare::new(key, created)))
    }
}
