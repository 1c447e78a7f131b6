//! One run: starts the workers, steps the nemesis, lets observers settle, and ends all. The result is a file of events.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::getpid;

use crate::campaign::{led_last, settling_time};
use crate::clock::{nanos, now};
use crate::event::{self, Event, Log};
use crate::history::History;
use crate::mode::HoldMode;
use crate::nemesis::{Environment, Nemesis};
use crate::observer_checker::longest_delay;
use crate::plan::{FaultKind, plan};
use crate::processes::{Program, WorkerProcesses};
use crate::proxy::{self, Proxy, VanishedConnections};
use crate::register::Register;
use crate::server_url::ServerUrl;
use crate::settings::{Settings, Workload};
use crate::settled::all_know;

/// The time between two steps of the nemesis.
const STEP_INTERVAL: Duration = Duration::from_millis(2);

/// The settings of a run.
#[derive(Clone)]
pub struct Setup {
    /// The URL of the store.
    pub url: String,
    /// The duration of the run.
    pub lasts: Duration,
    /// The processes that use the store.
    pub workload: Workload,
    /// The seed for the plan of faults and for the choices of the workers.
    pub seed: u64,
    /// The kinds of faults; see [`possible`].
    pub faults: Vec<FaultKind>,
    /// Whether a run that is stopped early goes on until observers know who leads last.
    pub settles_when_stopped: bool,
    /// The directory for the events and the page.
    pub out: PathBuf,
    /// The program of a worker process.
    pub program: Program,
    /// Servers and clocks, if the caller runs them.
    pub environment: Option<Arc<dyn Environment>>,
}

/// The file of events in the directory of a run.
pub fn events_of(out: &Path) -> PathBuf {
    out.join("events.jsonl")
}

/// The standard error of the workers.
pub fn worker_log_of(out: &Path) -> PathBuf {
    out.join("workers.log")
}

/// The faults that can be injected on this store, and a text about those that are left out.
pub fn possible(
    url: &str,
    environment: Option<&dyn Environment>,
) -> (Vec<FaultKind>, Option<String>) {
    let server_url = ServerUrl::parse(url);
    let can_vanish = proxy::can_drop_incoming_packets();
    let around = environment.map_or_else(Vec::new, Environment::kinds);
    let kinds = FaultKind::ALL.into_iter();
    let kinds = kinds.filter(|kind| match kind {
        FaultKind::Vanish => server_url.is_ok() && can_vanish.is_ok(),
        kind if kind.is_of_connection() => server_url.is_ok(),
        kind if kind.hits_all_workers() => around.contains(kind),
        _ => true,
    });
    let left_out = match (&server_url, &can_vanish) {
        (Err(why), _) => Some(format!("faults of the connection: {why}")),
        (_, Err(why)) => Some(format!(
            "{}: this system refuses it ({why})",
            FaultKind::Vanish
        )),
        _ => None,
    };
    (kinds.collect(), left_out)
}

/// The largest number of elections in a run: two are enough to notice that one is taken for the other, and each of them has
/// many observers.
const MAX_ELECTIONS: usize = 2;

/// The names that a run uses. They are the same in each run, because some stores keep a record of every name for ever.
pub fn names(setup: &Setup) -> Vec<String> {
    let workload = &setup.workload;
    [lock_names(workload), election_names(workload)].concat()
}

/// The names that are locked, unless all holds are those of leaders.
fn lock_names(workload: &Workload) -> Vec<String> {
    let modes = workload.modes.without(HoldMode::Election);
    let names = modes.iter().next().map_or(0, |_| workload.names);
    let names = (0..names).map(|number| format!("tenure-torture-{number}"));
    names.collect()
}

/// The names of elections. No election has the name of a lock, because observers see each holder of the name.
fn election_names(workload: &Workload) -> Vec<String> {
    let names = match workload.modes.contains(HoldMode::Election) {
        true => workload.names.min(MAX_ELECTIONS),
        false => 0,
    };
    let names = (0..names).map(|number| format!("tenure-torture-leader-{number}"));
    names.collect()
}

/// Runs workers and injects faults until the time is over or `stop` is set; returns when all workers are gone. `tell`
/// is called with each fault when it begins. The result must be kept for as long as the store is inspected.
///
/// # Errors
/// The errors of the system: no port, no process, no file.
pub fn run(
    setup: &Setup,
    names: &[String],
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&str),
) -> io::Result<VanishedConnections> {
    let workload = setup.workload;
    let mut log = Log::create(&events_of(&setup.out))?;
    let register = Register::open(log.try_clone()?)?;
    let worker_log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(worker_log_of(&setup.out))?;
    let proxies = proxies(setup)?;
    let mut workers = WorkerProcesses::new(setup.program.clone(), worker_log);
    for worker in 0..workload.workers {
        workers.start(settings_of(worker, setup, &proxies, &register))?;
    }
    let began = now();
    log.append(&Event::Began { at: began })?;
    let plan = plan(
        setup.seed,
        &setup.faults,
        workload.ttl,
        setup.lasts,
        names.len(),
    );
    let mut nemesis = Nemesis::new(began, plan, setup.environment.clone(), log.try_clone()?);
    let end = began.saturating_add(nanos(setup.lasts));
    while now() < end && !stop.load(Ordering::SeqCst) {
        nemesis.step(&mut workers, &proxies, &register, names, tell)?;
        std::thread::sleep(STEP_INTERVAL);
    }
    nemesis.finish(&mut workers, &proxies)?;
    // Workers that were killed by a fault have been replaced by now.
    for worker in workers.ended() {
        log.append(&Event::Vanished { at: now(), worker })?;
    }
    let was_stopped = stop.load(Ordering::SeqCst) && !setup.settles_when_stopped;
    if workload.modes.contains(HoldMode::Election) && !was_stopped {
        settle(&mut workers, setup, stop);
    }
    log.append(&Event::Over { at: now() })?;
    workers.end(workload.ttl * 2 + Duration::from_secs(3));
    drop(workers);
    drop(register);
    Ok(proxies.iter().map(Proxy::take_vanished).collect())
}

/// What one worker is told when it starts.
fn settings_of(worker: usize, setup: &Setup, proxies: &[Proxy], register: &Register) -> Settings {
    let url = match (proxies.get(worker), ServerUrl::parse(&setup.url)) {
        (Some(proxy), Ok(server_url)) => server_url.with_servers(proxy.addresses()),
        _ => setup.url.clone(),
    };
    Settings {
        url,
        worker,
        life: 0,
        names: lock_names(&setup.workload),
        elections: election_names(&setup.workload),
        workload: setup.workload,
        register: register.address(),
        events: events_of(&setup.out),
        seed: setup.seed,
        runner: getpid().as_raw_pid(),
    }
}

/// Has the workers acquire nothing more, while the first of them leads one of the elections or none, until each observer knows
/// that or has had enough time for it.
fn settle(workers: &mut WorkerProcesses, setup: &Setup, stop: &AtomicBool) {
    /// The time between two readings of the log, at least.
    const PAUSE: Duration = Duration::from_millis(100);
    workers.settle();
    let elections = election_names(&setup.workload);
    let leader = led_last(&elections, setup.seed);
    // The leader of before may have vanished.
    let most = settling_time(&setup.workload) + longest_delay(setup.workload.ttl);
    let end = now().saturating_add(nanos(most));
    let goes_on = || setup.settles_when_stopped || !stop.load(Ordering::SeqCst);
    // The first worker ends by itself when there was enough time.
    while now() < end && goes_on() && !workers.ended().contains(&0) {
        let began = Instant::now();
        if let Ok(mut events) = event::read(&events_of(&setup.out)) {
            // What has no end by now goes on.
            events.push(Event::Over { at: now() });
            if all_know(&History::of(&events), &elections, leader) {
                return;
            }
        }
        // The log of a long run is read for a while.
        std::thread::sleep(PAUSE.max(began.elapsed() * 2));
    }
}

/// A proxy for each worker, or none at all.
fn proxies(setup: &Setup) -> io::Result<Vec<Proxy>> {
    let wanted = setup.faults.iter().any(|kind| kind.is_of_connection());
    match ServerUrl::parse(&setup.url) {
        Ok(server_url) if wanted => (0..setup.workload.workers)
            .map(|_| Proxy::open(&server_url.servers))
            .collect(),
        _ => Ok(Vec::new()),
    }
}

/// Makes the directory of a run.
///
/// # Errors
/// The errors of the directory, and one if it has the events of another run.
pub fn prepare(out: &Path) -> io::Result<()> {
    std::fs::create_dir_all(out)?;
    if events_of(out).exists() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it has the events of another run",
        ));
    }
    File::create(worker_log_of(out)).map(drop)
}
