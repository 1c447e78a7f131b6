//! Three servers, some of which are killed, stopped, or cut off.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tenure::ErrorKind;

use crate::support::{
    ROOT, assert_says, connect, nodes, soon, start_acquire, take, until, until_renewed,
};
use tenure_testkit::needs;
use tenure_testkit::zookeeper::{Ensemble, PASSWORD, USER};

/// Long enough for an election.
const TTL: Duration = Duration::from_secs(15);

/// For a lease whose end a test waits for.
const SHORT: Duration = Duration::from_secs(4);

fn url(hosts: &str) -> String {
    format!("zookeeper://{USER}:{PASSWORD}@{hosts}{ROOT}?ttl=15s&timeout=2s")
}

/// Each test kills or stops one server of this ensemble, which serves again before the next test begins.
static ENSEMBLE: LazyLock<Ensemble> = LazyLock::new(Ensemble::start);
/// Locked by the test that uses the ensemble.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Locks are held, waited for, acquired and released while the leader is killed: no hold is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader() {
    needs!(zookeeper);
    let _turn = TURN.lock().await;
    change_of_leader("killed", |ensemble, leader| ensemble.nodes[leader].kill()).await;
    let down = ENSEMBLE.nodes.iter().find(|node| !node.is_up()).unwrap();
    down.begin();
    ENSEMBLE.until_whole();
}

/// The same while the leader is stopped, which the other servers are not told.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_leader() {
    needs!(zookeeper);
    let _turn = TURN.lock().await;
    let mut stopped = 0;
    change_of_leader("stopped", |ensemble, leader| {
        ensemble.nodes[leader].stop();
        stopped = leader;
    })
    .await;
    ENSEMBLE.nodes[stopped].resume();
    ENSEMBLE.until_whole();
}

async fn change_of_leader(name: &str, trouble: impl FnOnce(&Ensemble, usize)) {
    let url = url(&ENSEMBLE.hosts());
    let (client, other) = (connect(&url).await, connect(&url).await);
    let guard = take(&client, name, TTL).await;
    let released = take(&client, &format!("{name}-released"), TTL).await;
    let waiting = start_acquire(other.lock(name).ttl(TTL));
    let leader = ENSEMBLE.leader();
    let follower = &ENSEMBLE.nodes[(leader + 1) % 3];
    until("it waits", || nodes(follower, name).len() == 2).await;
    trouble(&ENSEMBLE, leader);
    // During the election.
    let lock = client.lock(format!("{name}-acquired")).ttl(TTL);
    let acquired = soon(lock.acquire()).await.unwrap();
    let release = soon(released.release()).await;
    if let Err(err) = release {
        // The outcome was not known in time; the release continues in the background.
        let kind = err.kind();
        assert!(
            matches!(kind, ErrorKind::Indeterminate | ErrorKind::Unreachable),
            "{err}"
        );
    }
    until("it is free", || {
        nodes(follower, &format!("{name}-released")).is_empty()
    })
    .await;
    assert!(guard.is_held(), "lost by an election");
    assert!(!waiting.is_finished(), "two hold it");
    assert_eq!(nodes(follower, name).len(), 2);
    let token = guard.token();
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert!(next.token() > token && acquired.is_held());
    soon(next.release()).await.unwrap();
    soon(acquired.release()).await.unwrap();
}

/// All three are killed and started again.
#[tokio::test(flavor = "multi_thread")]
async fn all_restarted() {
    needs!(zookeeper);
    let _turn = TURN.lock().await;
    let client = connect(&url(&ENSEMBLE.hosts())).await;
    let guard = take(&client, "all", TTL).await;
    ENSEMBLE.nodes.iter().for_each(|node| node.kill());
    ENSEMBLE.nodes.iter().for_each(|node| node.begin());
    ENSEMBLE.until_whole();
    assert!(guard.is_held(), "lost within {TTL:?}");
    until_renewed(&guard).await;
    assert_eq!(nodes(&ENSEMBLE.nodes[0], "all").len(), 1);
    soon(guard.release()).await.unwrap();
}

/// Without a majority no lock is granted and none is renewed; the error says in one line why there is no session.
#[tokio::test(flavor = "multi_thread")]
async fn no_majority() {
    needs!(zookeeper);
    let _turn = TURN.lock().await;
    let client = connect(&url(&ENSEMBLE.hosts())).await;
    let guard = take(&client, "minority", SHORT).await;
    ENSEMBLE.nodes[0].kill();
    ENSEMBLE.nodes[1].kill();
    soon(guard.lost()).await;
    let tried = soon(client.lock("minority").ttl(SHORT).try_acquire()).await;
    assert!(!matches!(tried, Ok(Some(_))), "granted by a minority");
    until("the third has noticed", || {
        ENSEMBLE.nodes[2].mode().is_none()
    })
    .await;
    let alone = url(&format!("127.0.0.1:{}", ENSEMBLE.nodes[2].port()));
    let refused = soon(tenure::connect(&alone)).await;
    assert_says(
        refused,
        ErrorKind::Unreachable,
        &["no majority", "start the other"],
    );
    ENSEMBLE.nodes[0].begin();
    ENSEMBLE.nodes[1].begin();
    ENSEMBLE.until_whole();
    let next = soon(client.lock("minority").ttl(TTL).acquire())
        .await
        .unwrap();
    assert!(next.token() > guard.token());
    soon(next.release()).await.unwrap();
}

/// A server that is cut off from the others answers reads for a while; such an answer renews nothing.
#[tokio::test(flavor = "multi_thread")]
async fn reads_of_a_minority_renew_nothing() {
    needs!(zookeeper);
    let _turn = TURN.lock().await;
    let leader = ENSEMBLE.leader();
    let ours = (leader + 1) % 3;
    let client = connect(&url(&format!("127.0.0.1:{}", ENSEMBLE.nodes[ours].port()))).await;
    let guard = take(&client, "reads", SHORT).await;
    let others = (0..3).filter(|at| *at != ours);
    others.clone().for_each(|at| ENSEMBLE.nodes[at].stop());
    let start = Instant::now();
    // Our server does not know yet that it is cut off: it learns that after two seconds.
    let mode = ENSEMBLE.nodes[ours].mode();
    assert!(mode.is_some() || start.elapsed() > Duration::from_secs(1));
    until("the hold is over", || {
        let end = Instant::now() + guard.remaining();
        assert!(end <= start + SHORT, "believed for {:?}", end - start);
        !guard.is_held()
    })
    .await;
    soon(guard.lost()).await;
    others.for_each(|at| ENSEMBLE.nodes[at].resume());
    ENSEMBLE.until_whole();
}
