//! The engine in a simulation: some clients on a virtual clock, with a queue store in memory (`world`). What is checked:
//! exclusion, tokens that grow, no wake-up that is missing, and nothing left behind.

mod world;

use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::{acquire, downgrade, upgrade};
use crate::error::{Error, ErrorKind};
use crate::fence::OwnerId;
use crate::name::LockName;
use crate::options::Mode;
use crate::queue::Acquisition as _;
use crate::rt::{Clock, VirtualClock, lock};
use crate::store::{Answer, Request};
use crate::time::Time;

use world::{Contention, Mistake, Session, Store, TTL};

const CLIENTS: usize = 5;
const ROUNDS: usize = 6;

/// What the callers hold.
#[derive(Default)]
struct Holds {
    held: Vec<(OwnerId, Mode)>,
    /// The greatest token of all grants, and of the exclusive ones.
    greatest: u64,
    greatest_exclusive: u64,
    grants: usize,
    upgrades: usize,
    busy: usize,
    unknown: usize,
}

impl Holds {
    fn granted(&mut self, owner: OwnerId, mode: Mode, token: u64) {
        self.release(owner);
        for (other, held) in &self.held {
            assert!(
                are_compatible(mode, *held),
                "{mode:?} of {owner:?} beside {held:?} of {other:?}"
            );
        }
        self.held.push((owner, mode));
        if let Mode::Permits { limit } = mode {
            let is_permit = |(_, mode): &&(OwnerId, Mode)| matches!(mode, Mode::Permits { .. });
            let permits = self.held.iter().filter(is_permit).count();
            assert!(permits <= limit.get() as usize, "{permits} permits");
        }
        let before = match mode {
            Mode::Exclusive => self.greatest,
            _ => self.greatest_exclusive,
        };
        assert!(token > before, "token {token} of {mode:?} after {before}");
        self.greatest = self.greatest.max(token);
        if mode == Mode::Exclusive {
            self.greatest_exclusive = token;
        }
    }

    fn set_mode(&mut self, owner: OwnerId, mode: Mode) {
        for held in self.held.iter_mut().filter(|held| held.0 == owner) {
            held.1 = mode;
        }
    }

    fn release(&mut self, owner: OwnerId) {
        self.held.retain(|held| held.0 != owner);
    }
}

fn are_compatible(one: Mode, other: Mode) -> bool {
    one != Mode::Exclusive
        && other != Mode::Exclusive
        && [one, other] != [Mode::Upgradable, Mode::Upgradable]
}

struct Client {
    store: Arc<Store>,
    holds: Arc<Mutex<Holds>>,
    session: Mutex<Arc<Session>>,
    /// What the client holds just now.
    owner: Mutex<Option<OwnerId>>,
}

impl Client {
    /// The session ends, and with it what the client holds.
    fn crash(&self) {
        if let Some(owner) = lock(&self.owner).take() {
            lock(&self.holds).release(owner);
        }
        lock(&self.session).end(&self.store);
    }

    fn session(&self) -> Arc<Session> {
        let mut session = lock(&self.session);
        if session.ended.is_raised() {
            *session = Session::open(&self.store);
        }
        session.clone()
    }

    fn request(&self, owner: OwnerId, mode: Mode) -> Request {
        let name = LockName::new("n").expect("a valid name");
        let mut request = Request::new(name, owner, TTL);
        request.mode = mode;
        request.wait = self.store.random(5) > 0;
        request
    }

    /// What `work` returns, which is stopped at a random moment.
    async fn until_stopped<T>(&self, request: &Request, work: impl Future<Output = T>) -> T {
        let longest_wait = Duration::from_millis(self.store.random(30_000).into());
        let limit = self.store.clock.now().after(longest_wait);
        let mut work = std::pin::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = self.store.clock.sleep_until(limit) => request.stop.raise(),
        }
        let answer = work.await;
        let late = self.store.clock.now().since(limit);
        assert!(
            late <= Duration::from_secs(30),
            "{late:?} after it was stopped"
        );
        answer
    }

    async fn run(self: Arc<Self>) {
        for _ in 0..ROUNDS {
            self.store.nap(500).await;
            self.round().await;
        }
    }

    async fn round(&self) {
        let permits = Mode::Permits {
            limit: NonZeroU32::new(2).expect("not zero"),
        };
        let modes = [
            Mode::Exclusive,
            Mode::Shared,
            permits,
            Mode::Upgradable,
            Mode::Upgradable,
        ];
        let mode = modes[self.store.random(5) as usize];
        let owner = OwnerId::random();
        let request = self.request(owner, mode);
        let hold = Contention::new(&self.store, &self.session(), request);
        let answer = self.until_stopped(&hold.request, acquire(&hold)).await;
        match answer {
            Ok(Answer::Granted(grant)) => {
                lock(&self.holds).granted(owner, mode, grant.token);
                lock(&self.holds).grants += 1;
                *lock(&self.owner) = Some(owner);
                self.store.nap(1_000).await;
                self.hold(hold, mode).await;
            }
            Ok(Answer::Busy) => {
                lock(&self.holds).busy += 1;
            }
            Err(err) => self.settle(&hold, &err).await,
        }
    }

    /// The driver releases what may be left.
    async fn settle(&self, hold: &Contention, err: &Error) {
        if err.kind() == ErrorKind::Indeterminate {
            lock(&self.holds).unknown += 1;
            until_ok(|| hold.leave()).await;
        }
    }

    async fn hold(&self, hold: Contention, mode: Mode) {
        let owner = hold.request.owner;
        let hold = match mode {
            Mode::Upgradable => self.upgrade(hold).await,
            _ => hold,
        };
        lock(&self.holds).release(owner);
        *lock(&self.owner) = None;
        until_ok(|| hold.leave()).await;
    }

    async fn upgrade(&self, hold: Contention) -> Contention {
        let owner = hold.request.owner;
        let hold = hold.again(self.request(owner, Mode::Exclusive));
        let upgraded = self.until_stopped(&hold.request, upgrade(&hold)).await;
        let is_over = || hold.session.ended.is_raised();
        match upgraded {
            Ok(Answer::Granted(grant)) if !is_over() => {
                lock(&self.holds).granted(owner, Mode::Exclusive, grant.token);
                lock(&self.holds).upgrades += 1;
                self.store.nap(1_000).await;
                let mode = [Mode::Shared, Mode::Upgradable][self.store.random(2) as usize];
                lock(&self.holds).set_mode(owner, mode);
                until_ok(|| downgrade(&hold, mode)).await;
                self.store.nap(1_000).await;
            }
            Err(err) if err.kind() == ErrorKind::Indeterminate => {
                lock(&self.holds).unknown += 1;
                until_ok(|| downgrade(&hold, Mode::Upgradable)).await;
            }
            Err(err) if err.kind() == ErrorKind::Lost => assert!(is_over(), "{err}"),
            _ => {}
        }
        hold
    }
}

async fn until_ok<T, F: Future<Output = Result<T, Error>>>(work: impl Fn() -> F) {
    while work().await.is_err() {}
}

/// Tasks that run one at a time, the next one by chance.
struct Tasks {
    tasks: Vec<(Arc<Ready>, Option<Task>)>,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Ready(AtomicBool);

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Tasks {
    fn add(&mut self, task: impl Future<Output = ()> + 'static) {
        let ready = Arc::new(Ready(AtomicBool::new(true)));
        self.tasks.push((ready, Some(Box::pin(task))));
    }

    /// Polls a task that is ready. `false`: none is.
    fn poll_one(&mut self, store: &Store) -> bool {
        let is_ready = |(ready, task): &&mut (Arc<Ready>, Option<_>)| {
            task.is_some() && ready.0.load(Ordering::SeqCst)
        };
        let mut ready: Vec<_> = self.tasks.iter_mut().filter(is_ready).collect();
        if ready.is_empty() {
            return false;
        }
        let count = u32::try_from(ready.len()).expect("a few");
        let (ready, task) = &mut *ready[store.random(count) as usize];
        ready.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(ready.clone());
        let polled = task.as_mut().expect("not over");
        if let Poll::Ready(()) = polled.as_mut().poll(&mut Context::from_waker(&waker)) {
            *task = None;
        }
        true
    }
}

fn advance_to(time: &VirtualClock, at: Time) {
    time.advance(at.since(time.now()));
}

/// One run. `faults`: of 100 requests so many have a fault; with none, no session ends either.
fn simulate(seed: u64, faults: u32, mistake: Mistake) -> (Holds, u32) {
    let (clock, time) = Clock::virtual_clock();
    time.seed(seed);
    let store = Arc::new(Store::new(clock.clone(), seed, faults, mistake));
    let holds = Arc::<Mutex<Holds>>::default();
    let running = Arc::new(AtomicUsize::new(CLIENTS));
    let client = |_| {
        Arc::new(Client {
            store: store.clone(),
            holds: holds.clone(),
            session: Mutex::new(Session::open(&store)),
            owner: Mutex::default(),
        })
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let mut tasks = Tasks { tasks: Vec::new() };
    for client in clients.clone() {
        let running = running.clone();
        tasks.add(async move {
            client.run().await;
            running.fetch_sub(1, Ordering::SeqCst);
        });
    }
    let (janitor, is_running) = (store.clone(), running.clone());
    tasks.add(async move {
        while is_running.load(Ordering::SeqCst) > 0 {
            let next = janitor.clock.now().after(Duration::from_secs(1));
            janitor.clock.sleep_until(next).await;
            janitor.apply(|world| world.delete_left());
            if faults > 0 && janitor.random(10) == 0 {
                let at = janitor.random(u32::try_from(CLIENTS).expect("a few"));
                clients[at as usize].crash();
            }
        }
    });
    loop {
        let late = store.apply_late();
        if tasks.poll_one(&store) {
            continue;
        }
        let next = time.next_wake().unwrap_or(Time::MAX).min(late);
        if next == Time::MAX {
            break;
        }
        advance_to(&time, next);
    }
    assert_eq!(running.load(Ordering::SeqCst), 0, "a client waits for ever");
    let late = store.apply(|world| {
        world.delete_left();
        assert!(world.entries.is_empty(), "{:?} are left", world.entries);
        world.late_writes
    });
    drop(tasks);
    let holds = Arc::into_inner(holds);
    let holds = holds.map(|holds| std::mem::take(&mut *lock(&holds)));
    (holds.unwrap_or_default(), late)
}

fn simulate_all(seeds: std::ops::Range<u64>, faults: u32) -> (Holds, u32) {
    let (mut all, mut late) = (Holds::default(), 0);
    for seed in seeds {
        let (holds, late_writes) = simulate(seed, faults, Mistake::None);
        all.grants += holds.grants;
        all.upgrades += holds.upgrades;
        all.busy += holds.busy;
        all.unknown += holds.unknown;
        late += late_writes;
    }
    (all, late)
}

#[test]
fn without_faults_every_caller_has_an_answer() {
    let (all, _) = simulate_all(0..150, 0);
    assert_eq!(all.unknown, 0);
    assert!(all.grants > 1_000 && all.upgrades > 100 && all.busy > 100);
}

#[test]
fn with_lost_replies_late_writes_and_sessions_that_end_the_rules_hold() {
    let (all, late) = simulate_all(0..400, 8);
    assert!(all.grants > 1_000 && all.upgrades > 100 && all.busy > 100);
    assert!(all.unknown > 50 && late > 200, "{} {late}", all.unknown);
}

#[test]
fn with_very_many_faults_too() {
    let (all, _) = simulate_all(0..200, 40);
    assert!(all.grants > 100 && all.unknown > 100);
}

#[test]
fn mistakes_are_noticed() {
    for (mistake, what) in [
        (Mistake::SilentWatch, "a wake-up is missing"),
        (Mistake::NothingIsDeleted, "are left"),
        (Mistake::UpgradeForgetsHolders, " beside "),
        (Mistake::OldTokenAfterUpgrade, "token "),
    ] {
        let run = || (0..200).for_each(|seed| drop(simulate(seed, 0, mistake)));
        let panic = std::panic::catch_unwind(run).expect_err("nothing was noticed");
        let message = panic.downcast_ref::<String>().expect("a message");
        assert!(message.contains(what), "{mistake:?}: {message}");
    }
}
