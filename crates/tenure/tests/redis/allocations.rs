//! How often a lock asks the allocator for memory, which shows work that the code hides: boxes, tasks, copies of names.

use allocation_counter::measure;
use tenure::Client;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;
use tokio::runtime::Runtime;

use crate::support::client_of;

const PAIRS: u64 = 200;

/// What one acquire and release of a free name allocate. The connection, the scripts and the buffers are there already.
fn allocations_of_a_pair(runtime: &Runtime, client: &Client) -> u64 {
    let pairs = || {
        runtime.block_on(async {
            for _ in 0..PAIRS {
                let guard = client.lock("free").acquire().await.unwrap();
                guard.release().await.unwrap();
            }
        });
    };
    pairs();
    // All tasks of the client are on this thread, and so is all that they allocate.
    measure(pairs).count_total.div_ceil(PAIRS)
}

#[test]
fn a_free_lock_allocates_little() {
    needs!(redis);
    let server = Redis::start(&[]);
    let runtime = runtime();
    let client = runtime.block_on(client_of(&server));
    let allocations = allocations_of_a_pair(&runtime, &client);
    // Half of them are those of the client library, for two requests and their replies.
    assert!(allocations <= 30, "{allocations} allocations");
}

#[test]
fn a_free_lock_in_memory_allocates_little() {
    let runtime = runtime();
    let client = runtime.block_on(tenure::connect("memory:")).unwrap();
    let allocations = allocations_of_a_pair(&runtime, &client);
    assert!(allocations <= 6, "{allocations} allocations");
}

fn runtime() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().unwrap()
}
