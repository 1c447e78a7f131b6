//! Writes that count only while the lock is held: one script writes and checks that the holds are there.

use std::sync::Arc;

use tenure_core::error::Error;
use tenure_core::store::{BoxFuture, GuardedWrite, Hold};

use super::store::Store;

impl GuardedWrite for Store {
    fn write(
        self: Arc<Self>,
        holds: Vec<Hold>,
        key: String,
        value: Option<Vec<u8>>,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { self.requests.write(&holds, &key, value.as_deref()).await })
    }
}
