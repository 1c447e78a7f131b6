//! Short runs on real stores. A run ends after so many faults, not after a time.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../../../tenure/tests/servers/mod.rs"]
mod servers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use servers::redis::{self, Redis};
use tenure_torture::checker::{Findings, Verdict, check};
use tenure_torture::crew::Program;
use tenure_torture::event;
use tenure_torture::history::History;
use tenure_torture::nemesis::Server;
use tenure_torture::plan::Kind;
use tenure_torture::report::Report;
use tenure_torture::runner::{self, Setup};
use tenure_torture::worker::VARIABLE;

/// Not a test but the worker: the harness starts this program again with this one name.
#[test]
fn worker_process() {
    if std::env::var_os(VARIABLE).is_some() {
        tenure_torture::worker::main().unwrap();
    }
}

struct OurRedis(Redis);

impl Server for OurRedis {
    fn stop(&self) {
        self.0.stop();
    }

    fn go_on(&self) {
        self.0.go_on();
    }

    fn kill(&self) {
        self.0.kill();
    }

    fn start(&self) {
        self.0.launch();
    }
}

fn setup(url: String, out: &Path, server: Option<Arc<dyn Server>>) -> Setup {
    let ttl = Duration::from_millis(500);
    let (faults, _) = runner::possible(&url, server.is_some());
    Setup {
        url,
        // More than any of these needs; it is ended before.
        lasts: Duration::from_secs(600),
        workers: 4,
        names: 1,
        seed: 5,
        ttl,
        hold: ttl.mul_f64(0.8),
        faults,
        out: out.to_owned(),
        program: Program {
            path: std::env::current_exe().unwrap(),
            arguments: ["--exact", "worker_process", "--nocapture"]
                .map(Into::into)
                .to_vec(),
        },
        server,
    }
}

/// A whole run, which ends at the first fault at which `is_enough` says so of what was found by then.
fn torture(setup: Setup, is_enough: impl Fn(usize, &Findings) -> bool + Send + 'static) -> Report {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = stop.clone();
    let (events, kinds, ttl) = (
        runner::events_of(&setup.out),
        setup.faults.clone(),
        setup.ttl,
    );
    let nothing = tenure::guarantees::Guarantees::new(
        "any",
        tenure::guarantees::Order::Unordered(""),
        Vec::new(),
    );
    let mut made = 0;
    let on_fault = move |_: &str| {
        made += 1;
        let history = History::of(&event::read(&events).unwrap());
        if is_enough(made, &check(&history, &nothing, ttl, &kinds)) {
            raised.store(true, Ordering::SeqCst);
        }
    };
    let run = tenure_torture::torture(setup, "shown".into(), stop, on_fault);
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    runtime.block_on(run).unwrap()
}

/// All kinds were there, and enough was granted.
fn two_of_each(kinds: usize) -> impl Fn(usize, &Findings) -> bool {
    move |made, found| made > 2 * kinds && found.not_enough.is_none()
}

#[test]
fn files_keep_what_they_promise() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file:{}", dir.path().join("locks").display());
    let setup = setup(url, &dir.path().join("out"), None);
    assert_eq!(setup.faults, [Kind::Pause, Kind::Kill]);
    let report = torture(setup, two_of_each(2));
    assert_eq!(report.verdict(), Verdict::Ok, "{:?}", report.lines());
    // A kernel that holds the lock for a stopped process lets nobody else write.
    assert_eq!(report.findings.stale, []);
    assert!(report.left_out.unwrap().contains("network"));

    let page = std::fs::read_to_string(&report.page).unwrap();
    assert!(page.contains("<svg") && page.contains("class=\"fault pause\""));
    assert!(
        !page.contains("<script") && !page.contains("http"),
        "it needs nobody"
    );
}

#[test]
fn redis_keeps_what_it_promises_with_all_faults_of_holders_and_links() {
    if redis::is_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Redis::start(&[]);
    let url = format!("{}?restart_guard=off&timeout=1s", server.url());
    let setup = setup(url, dir.path(), None);
    assert_eq!(setup.faults.len(), 6);
    let report = torture(setup, two_of_each(6));
    assert_eq!(report.verdict(), Verdict::Ok, "{:?}", report.lines());
    assert_eq!(report.findings.overlaps, []);
    assert_eq!(report.findings.stale_accepted, []);
    assert_eq!(report.fault_counts().len(), 6);
}

#[test]
fn redis_that_stands_still_keeps_what_it_promises() {
    if redis::is_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Redis::start(&[]);
    let url = format!("{}?restart_guard=off&timeout=1s", server.url());
    let mut setup = setup(url, dir.path(), Some(Arc::new(OurRedis(server))));
    setup.faults = vec![Kind::ServerPause, Kind::Pause];
    let report = torture(setup, two_of_each(2));
    assert_eq!(report.verdict(), Verdict::Ok, "{:?}", report.lines());
    assert_eq!(report.findings.overlaps, []);
}

/// What the table says is not promised must be found: else the harness finds nothing, or the table is wrong.
#[test]
fn redis_that_forgets_lets_two_hold_at_once_as_documented() {
    if redis::is_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Redis::start(&[]);
    let url = format!("{}?restart_guard=off&timeout=1s", server.url());
    let mut setup = setup(url, dir.path(), Some(Arc::new(OurRedis(server))));
    setup.faults = vec![Kind::ServerKill];
    // Held for long, so that a restart falls into a hold and not between two.
    setup.ttl = Duration::from_secs(2);
    setup.hold = Duration::from_secs(2);
    let report = torture(setup, |made, found| {
        made > 3 && !found.overlaps.is_empty() && found.not_enough.is_none()
    });
    assert_eq!(report.verdict(), Verdict::Ok, "{:?}", report.lines());
    assert!(!report.findings.overlaps.is_empty());
    for overlap in &report.findings.overlaps {
        assert_eq!(overlap.documented, Some(Kind::ServerKill));
    }
    // The token outlives the loss, so the fence still holds.
    assert_eq!(report.findings.tokens, []);
    assert_eq!(report.findings.stale_accepted, []);
}

#[test]
fn a_store_in_memory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let setup = setup("memory:".into(), dir.path(), None);
    let run = tenure_torture::torture(setup, "memory:".into(), Arc::default(), |_: &str| {});
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let error = runtime.block_on(run).unwrap_err();
    assert!(error.to_string().contains("file:"), "{error}");
}
