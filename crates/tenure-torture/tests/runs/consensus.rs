//! etcd and ZooKeeper, with one and with three servers. These runs are the longest, so the module comes first by its
//! name: tests begin in the order of their names.

use std::time::Duration;

use tenure_torture::plan::FaultKind;

use crate::Run;
use tenure_testkit::clock::Clock;
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::zookeeper::{Ensemble, Zookeeper};

/// Longer than two elections.
const TTL: Duration = Duration::from_secs(2);

#[track_caller]
fn nothing_overlaps(run: Run) {
    assert_eq!(run.keeps_its_promise().findings.overlaps, []);
}

#[test]
fn etcd_of_one() {
    needs!(etcd, tracer);
    let clock = Clock::make();
    let etcd = Etcd::start_after(&clock.traced_command(), 1, &[]);
    let url = format!("{}?timeout=1s", etcd.url());
    nothing_overlaps(Run::on("etcd", url, Some(Box::new(etcd)), Some(clock)));
}

/// In the versions that `check` warns of, a leader that is stopped and resumed may end leases that were renewed
/// meanwhile. So this run does not stop the leader; see the test `the_leader_is_stopped` of this store.
#[test]
fn etcd_of_three() {
    needs!(etcd, tracer);
    let clock = Clock::make();
    let etcd = Etcd::start_after(&clock.traced_command(), 3, &[]);
    let url = format!("{}?timeout=1s", etcd.url());
    let run = Run::on("etcd of three", url, Some(Box::new(etcd)), Some(clock)).ttl(TTL);
    nothing_overlaps(run.without(&[FaultKind::LeaderPause]));
}

#[test]
fn zookeeper_of_one() {
    needs!(zookeeper, "cc");
    let clock = Clock::make();
    let server = Zookeeper::start_with_clock(&clock);
    let url = format!(
        "zookeeper://127.0.0.1:{}/locks?ttl=1s&timeout=1s",
        server.port()
    );
    nothing_overlaps(Run::on(
        "zookeeper",
        url,
        Some(Box::new(server)),
        Some(clock),
    ));
}

#[test]
fn zookeeper_of_three() {
    needs!(zookeeper, "cc");
    let clock = Clock::make();
    let ensemble = Ensemble::start_with_clock(&clock);
    let url = format!("zookeeper://{}/locks?ttl=2s&timeout=1s", ensemble.hosts());
    let run = Run::on(
        "zookeeper of three",
        url,
        Some(Box::new(ensemble)),
        Some(clock),
    )
    .ttl(TTL);
    nothing_overlaps(run);
}
