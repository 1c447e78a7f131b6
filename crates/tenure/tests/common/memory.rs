//! The memory store on a virtual clock, and a client of it.

use tenure::Client;
use tenure::memory;

pub(crate) fn store() -> (memory::Store, Client) {
    let store = memory::Store::with_virtual_clock();
    let client = Client::from_store(store.clone()).unwrap();
    (store, client)
}

/// Lets every task run until all of them wait.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
