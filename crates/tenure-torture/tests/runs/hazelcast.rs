//! Members of Hazelcast: the leader is killed or stopped, all of them are stopped, or all are started again.

use std::time::Duration;

use tenure_torture::checker::Verdict;
use tenure_torture::plan::FaultKind;

use crate::environment::HazelcastMembers;
use crate::{Run, duration_of_long_runs, text};
use tenure_testkit::hazelcast::{Hazelcast, url_of};
use tenure_testkit::needs;

const MEMBERS: usize = 3;
/// How long the members keep the session of a holder that was killed. A lease is not longer.
const TTL: Duration = Duration::from_secs(3);
/// Members that are started again need longer until they grant.
const LONG: Duration = Duration::from_secs(6);

const SHORT: [FaultKind; 8] = [
    FaultKind::Pause,
    FaultKind::Kill,
    FaultKind::Cut,
    FaultKind::LostReply,
    FaultKind::ClientClock,
    FaultKind::ServerPause,
    FaultKind::LeaderPause,
    FaultKind::LeaderKill,
];

fn run(name: &'static str, ttl: Duration) -> Run {
    let members = Hazelcast::start_apart(MEMBERS, ttl.as_secs());
    let ports: Vec<_> = members.iter().map(|it| it.port(0)).collect();
    let url = format!("{}?timeout=1s", url_of(&ports));
    let members = HazelcastMembers(members);
    Run::on(name, url, Some(Box::new(members)), None).ttl(ttl)
}

#[test]
fn hazelcast() {
    needs!(hazelcast, "cc");
    let run = run("hazelcast", TTL);
    let run = match duration_of_long_runs() {
        Some(_) => run.without(&[FaultKind::ServerKill]),
        // Members need seconds for each fault of them, so a short run has the faults that ask most of this store.
        None => run.only(&SHORT),
    };
    assert_eq!(run.keeps_its_promise().findings.overlaps, []);
}

/// Leases are over before the members serve again, so no two hold at once.
#[test]
fn hazelcast_whose_members_are_all_started_again_begins_its_tokens_again() {
    needs!(hazelcast, "cc");
    let run = run("hazelcast, restart", LONG).only(&[FaultKind::ServerKill]);
    let report = run.go(|run| !run.found.tokens.is_empty() && run.found.not_enough.is_none());
    assert_eq!(report.verdict(), Verdict::Ok, "{}", text(&report));
    for token in &report.findings.tokens {
        assert_eq!(token.documented, Some(FaultKind::ServerKill), "{token:?}");
    }
    assert!(!report.findings.tokens.is_empty(), "{}", text(&report));
}
