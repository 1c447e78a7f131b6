//! A server that is cut off from two others.

use std::time::{Duration, Instant};

use crate::support::{ROOT, connect, soon, take, until};
use tenure_testkit::needs;
use tenure_testkit::zookeeper::{Ensemble, PASSWORD, USER};

/// For a lease whose end a test waits for.
const SHORT: Duration = Duration::from_secs(4);

fn url(hosts: &str) -> String {
    format!("zookeeper://{USER}:{PASSWORD}@{hosts}{ROOT}?ttl=15s&timeout=2s")
}

/// A server that is cut off from the others answers reads for a while; such an answer renews nothing.
#[tokio::test(flavor = "multi_thread")]
async fn reads_of_a_minority_renew_nothing() {
    needs!(zookeeper);
    let ensemble = Ensemble::start();
    let leader = ensemble.leader();
    let ours = (leader + 1) % 3;
    let client = connect(&url(&format!("127.0.0.1:{}", ensemble.nodes[ours].port()))).await;
    let guard = take(&client, "reads", SHORT).await;
    let others = (0..3).filter(|at| *at != ours);
    others.clone().for_each(|at| ensemble.nodes[at].stop());
    let start = Instant::now();
    // Our server does not know yet that it is cut off: it learns that after two seconds.
    let mode = ensemble.nodes[ours].mode();
    assert!(mode.is_some() || start.elapsed() > Duration::from_secs(1));
    until("the hold is over", || {
        let end = Instant::now() + guard.remaining();
        assert!(end <= start + SHORT, "believed for {:?}", end - start);
        !guard.is_held()
    })
    .await;
    soon(guard.lost()).await;
    others.for_each(|at| ensemble.nodes[at].resume());
    ensemble.until_whole();
}
