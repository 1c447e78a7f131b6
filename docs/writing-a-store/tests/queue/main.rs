//! A complete queue store with the engine of `tenure-core`, and the conformance suite on it with a real server.

mod store;

use std::future::ready;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use store::Store;
use tenure_core::conformance::{ContenderCounts, Failure, Harness, Setup, run};
use tenure_core::guarantees::Guarantees;
use tenure_core::store::BoxFuture;
use tenure_core::{Client, Error};
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

static SERVER: LazyLock<Redis> = LazyLock::new(|| Redis::start(&[]));

struct Server;

impl Harness for Server {
    fn client(&self) -> BoxFuture<Result<Client, Error>> {
        let url = SERVER.url();
        Box::pin(async move { Client::from_store(Store::connect(&url).await?) })
    }

    fn guarantees(&self) -> Guarantees {
        store::guarantees()
    }

    fn count_contenders(&self, name: &str) -> BoxFuture<Result<ContenderCounts, Failure>> {
        let (client, name) = (self.client(), name.to_owned());
        Box::pin(async move {
            let status = client.await?.inspect(&name).await?;
            Ok(ContenderCounts {
                holders: status.holds.len(),
                waiters: status.queue.map(|queue| queue.len()),
            })
        })
    }

    fn leases(&self) -> bool {
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn evict(&self, name: &str) -> Option<BoxFuture<Result<(), Failure>>> {
        let key = format!("queue:{name}");
        Some(Box::pin(async move {
            SERVER.ask(&["DEL", &key]);
            Ok(())
        }))
    }
}

#[test]
fn a_queue_store_shows_every_behaviour_that_it_claims() {
    needs!(redis);
    run(&Setup {
        name: "example-queue",
        open: || Box::pin(ready(Ok(Arc::new(Server) as _))),
        single_thread: false,
        together: 4,
        skips: &[
            // What this store does not do.
            ("no `min_hold`", &[]),
            ("no `lock_delay`", &[]),
            ("no elections", &[]),
            ("no detached holds", &[]),
            // What this harness cannot do to the server.
            ("no request to this store can get lost", &[]),
            ("requests to this store cannot be counted", &[]),
            ("there is no password for this store", &[]),
            ("no other process can reach this store", &[]),
            ("this store cannot fall silent", &[]),
            ("there is no connection to this store", &[]),
            ("this store forgets nothing while it runs", &[]),
            ("this store cannot be restarted", &[]),
        ],
    })
    .assert();
}
