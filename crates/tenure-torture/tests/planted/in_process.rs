//! Workers that are tasks of this process, on a store in memory, without faults: what a run needs of a store that other
//! processes cannot reach.

use std::path::Path;
use std::time::Duration;

use tenure_core::{Client, Error, memory};
use tenure_torture::checker::{Findings, check};
use tenure_torture::clock::now;
use tenure_torture::event::{self, Event, Log};
use tenure_torture::history::History;
use tenure_torture::mode::{HoldMode, Modes};
use tenure_torture::register::Register;
use tenure_torture::runner;
use tenure_torture::worker::{Locks as _, Phase, Settings, Tenure, Workload, work};
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::lying_store::{Lie, LyingStore};

/// How long workers work at least. After that they settle.
const WORKS: Duration = Duration::from_secs(2);

/// So much has to be seen of elections before a run without violations says something: on a busy machine that takes longer.
pub(crate) const ENOUGH_SIGHTS: usize = 50;
/// The same of holds that pass on from task to task.
pub(crate) const ENOUGH_HAND_OVERS: usize = 50;

/// Waits until enough has happened, at most a minute.
async fn until_enough(events: &Path, is_enough: impl Fn(&History) -> bool) {
    for _ in 0..600 {
        if is_enough(&History::of(&event::read(events).unwrap())) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A short lease, so that the quiet time is short too. Tasks of one process share one thread, and no lease must end because
/// another task had its turn.
const TTL: Duration = Duration::from_millis(500);

/// Six workers on a store with this mistake, or without one. Each seed has another of the two elections led in the end.
pub(crate) fn run(lie: Option<Lie>, seed: u64) -> (History, Findings) {
    let store = memory::Store::new();
    let client = || match lie {
        Some(lie) => Client::from_store(LyingStore::new(store.clone(), Some(lie))),
        None => Client::from_store(store.clone()),
    };
    let modes = Modes::of(&[HoldMode::Exclusive, HoldMode::Election]);
    // What is wrong with other stores is seen before.
    let settles = matches!(lie, None | Some(Lie::OldAnswers | Lie::Frozen));
    let waits = matches!(lie, None | Some(Lie::OldAnswers));
    let is_enough = move |history: &History| !waits || history.elections.sights() > ENOUGH_SIGHTS;
    run_workers(workload(6, 1, modes), seed, client, settles, is_enough)
}

/// Two workers with four tasks each, which pass holds on, on a store with this mistake or without one.
pub(crate) fn run_tasks(lie: Option<Lie>) -> (History, Findings) {
    let store = memory::Store::new();
    let client = || Client::from_store(LyingStore::new(store.clone(), lie));
    let is_enough = |history: &History| history.passed_on() > ENOUGH_HAND_OVERS;
    let workload = workload(2, 4, Modes::EXCLUSIVE);
    run_workers(workload, 12, client, false, is_enough)
}

fn workload(workers: usize, tasks: usize, modes: Modes) -> Workload {
    Workload {
        workers,
        tasks,
        names: 1,
        ttl: TTL,
        hold: TTL.mul_f64(0.8),
        only_tries: false,
        modes,
    }
}

/// Runs workers, each with a client of its own, until enough has happened; `settles`: and until observers know who leads.
fn run_workers(
    workload: Workload,
    seed: u64,
    client: impl Fn() -> Result<Client, Error>,
    settles: bool,
    is_enough: impl Fn(&History) -> bool,
) -> (History, Findings) {
    let dir = tempfile::tempdir().unwrap();
    let events = runner::events_of(dir.path());
    let mut log = Log::create(&events).unwrap();
    let register = Register::open(log.try_clone().unwrap()).unwrap();
    let (phase, phases) = watch::channel(Phase::Work);
    let tasks = LocalSet::new();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let entered = runtime.enter();
    log.append(&Event::Began { at: now() }).unwrap();
    let workers = (0..workload.workers).map(|worker| {
        let settings = Settings {
            url: "memory:".into(),
            worker,
            life: 0,
            names: vec!["lock".into()],
            elections: match workload.modes.contains(HoldMode::Election) {
                true => vec!["leader-0".into(), "leader-1".into()],
                false => Vec::new(),
            },
            workload,
            register: register.address(),
            events: events.clone(),
            seed,
            runner: 0,
        };
        let client = client().unwrap();
        let phases = phases.clone();
        tasks.spawn_local(async move {
            let locks = Tenure::of_client(client, &settings);
            work(&settings, &locks, phases).await.unwrap();
            locks.close().await;
        })
    });
    let workers: Vec<_> = workers.collect();
    drop(entered);
    runtime.block_on(tasks.run_until(async {
        tokio::time::sleep(WORKS).await;
        until_enough(&events, is_enough).await;
        let mut workers = workers.into_iter();
        if settles {
            phase.send_replace(Phase::Settle);
            // The first one ends when there was enough time for all observers.
            workers.next().unwrap().await.unwrap();
        }
        phase.send_replace(Phase::End);
        for worker in workers {
            worker.await.unwrap();
        }
    }));
    log.append(&Event::Over { at: now() }).unwrap();
    let history = History::of(&event::read(&events).unwrap());
    let found = check(&history, &memory::guarantees(), TTL, &[]);
    (history, found)
}
