//! Rule 15: every future may be dropped at every await, whatever the store does meanwhile.
//!
//! The test polls futures by hand and drops them after the k-th poll, for every k until they complete. Then the store
//! answers again, and far less time than a ttl passes (so no lease ends). Nothing may be left: no hold, no entry in a
//! queue, no task, and all names can be acquired.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure::error::Step;
use tenure::memory::{self, Disturbance};
use tenure::{Client, Guard, Lock, Owner, OwnerId};
use tokio::runtime::Runtime;

/// Far longer than all the time that passes here, so that no hold that is left behind ends by itself.
const TTL: Duration = Duration::from_secs(100_000);
/// The time that passes between two polls, and between two checks.
const STEP_TIME: Duration = Duration::from_millis(100);
const NAMES: [&str; 3] = ["a", "b", "c"];

type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The operation of a user.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Acquire,
    TryAcquire,
    AcquireWithWait,
    Run,
    Release,
    LockAll,
    LockAny,
    KOf,
    Owner,
    OwnerScope,
    Shared,
    Permit,
    Inspect,
}

const KINDS: [Kind; 13] = [
    Kind::Acquire,
    Kind::TryAcquire,
    Kind::AcquireWithWait,
    Kind::Run,
    Kind::Release,
    Kind::LockAll,
    Kind::LockAny,
    Kind::KOf,
    Kind::Owner,
    Kind::OwnerScope,
    Kind::Shared,
    Kind::Permit,
    Kind::Inspect,
];

/// The behaviour of the store: it works, loses the request, loses the reply, is slow, never answers.
const DISTURBANCES: [Option<Disturbance>; 5] = [
    None,
    Some(Disturbance::RequestLost),
    Some(Disturbance::ReplyLost),
    Some(Disturbance::Late(Duration::from_millis(250))),
    Some(Disturbance::ReplyNever),
];

/// An operation of a user on `name`, which keeps what it acquires for some polls.
fn operation(kind: Kind, client: &Client, name: &'static str, owner: &Owner) -> Operation {
    let lock = client.lock(name).ttl(TTL);
    match kind {
        Kind::Acquire => acquire_and_drop(lock),
        Kind::AcquireWithWait => acquire_and_drop(lock.wait(STEP_TIME * 5)),
        Kind::LockAll => acquire_and_drop(client.lock_all(NAMES).ttl(TTL)),
        Kind::LockAny => acquire_and_drop(client.lock_any(["a", "b"]).ttl(TTL)),
        Kind::KOf => acquire_and_drop(lock.k_of(NAMES, 2)),
        Kind::Owner => acquire_and_drop(lock.owner(owner)),
        Kind::Shared => acquire_and_drop(lock.shared()),
        Kind::Permit => acquire_and_drop(lock.permits(2)),
        Kind::TryAcquire => Box::pin(async move {
            let guard = lock.try_acquire().await;
            tokio::task::yield_now().await;
            drop(guard);
        }),
        Kind::Run => Box::pin(async move {
            let inner = lock.clone();
            let _ = lock
                .run(async move |_| {
                    let _ = inner.run(async |_| tokio::task::yield_now().await).await;
                })
                .await;
        }),
        Kind::Release => Box::pin(async move {
            if let Ok(guard) = lock.acquire().await {
                let _ = guard.release().await;
            }
        }),
        Kind::OwnerScope => {
            let owner = owner.clone();
            Box::pin(async move {
                let nested = async {
                    let outer = lock.acquire().await;
                    let inner = lock.try_acquire().await;
                    if let Ok(outer) = outer {
                        let _ = outer.release().await;
                    }
                    tokio::task::yield_now().await;
                    drop(inner);
                };
                owner.enter_scope(nested).await;
            })
        }
        Kind::Inspect => {
            let client = client.clone();
            Box::pin(async move {
                let status = client.inspect(name).await;
                let token = status.ok().and_then(|status| status.holds.first()?.token);
                let _ = client.list("").await;
                // Some of the holds of other operations are broken.
                if let Some(token) = token.filter(|token| token.get() % 4 == 0) {
                    let _ = client.break_lock(name, token).await;
                }
            })
        }
    }
}

fn acquire_and_drop(lock: Lock) -> Operation {
    Box::pin(async move {
        let guard = lock.acquire().await;
        tokio::task::yield_now().await;
        drop(guard);
    })
}

/// A store and the runtime of its clients. The runtime has one thread: every poll happens in the test's thread.
struct Fixture {
    runtime: Runtime,
    store: memory::Store,
}

impl Fixture {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let store = memory::Store::with_virtual_clock();
        Self { runtime, store }
    }

    fn client(&self) -> Client {
        let _inside = self.runtime.enter();
        Client::from_store(self.store.clone()).unwrap()
    }

    fn take(&self, client: &Client, name: &str) -> Guard {
        let lock = client.lock(name).ttl(TTL);
        let taken = self.runtime.block_on(lock.try_acquire());
        taken.unwrap().unwrap_or_else(|| panic!("{name} is taken"))
    }

    /// Polls once, and returns whether the operation is complete.
    fn poll(&self, operation: &mut Operation) -> bool {
        self.runtime.block_on(async {
            let mut cx = Context::from_waker(Waker::noop());
            operation.as_mut().poll(&mut cx) == Poll::Ready(())
        })
    }

    /// Background tasks run until they wait, then a little time passes.
    fn step(&self) {
        self.runtime.block_on(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            self.store.advance(STEP_TIME);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Drops a value inside or outside of the runtime; a user may do both.
    fn drop<T>(&self, what: T, inside: bool) {
        let _inside = inside.then(|| self.runtime.enter());
        drop(what);
    }

    /// Asserts that nothing is left after all operations have ended.
    fn assert_nothing_left(self, clients: Vec<Client>, case: &dyn fmt::Display) {
        for _ in 0..100 {
            // A request of the last step may be one that the store never answers.
            self.store.resume();
            if self.store.is_idle() {
                break;
            }
            self.step();
        }
        self.store.resume();
        let client = self.client();
        if !self.store.is_idle() {
            let left = NAMES.map(|name| self.runtime.block_on(client.inspect(name)).unwrap());
            panic!("{case}: left in the store: {left:?}");
        }
        // A disturbance of a step that did not come would happen to the requests below.
        for step in [Step::Acquire, Step::Release] {
            self.use_up_disturbances(&client, step, case);
        }
        for client in clients.iter().chain([&client]) {
            for name in NAMES {
                let lock = client.lock(name).ttl(TTL);
                let taken = self.runtime.block_on(lock.try_acquire()).unwrap();
                let guard = taken.unwrap_or_else(|| panic!("{case}: {name} cannot be had"));
                self.runtime.block_on(guard.release()).unwrap();
            }
        }
        drop((clients, client));
        let tasks = || self.runtime.metrics().num_alive_tasks();
        for _ in 0..100 {
            if tasks() == 0 {
                return;
            }
            self.step();
        }
        panic!("{case}: {} tasks are left", tasks());
    }

    /// Uses up the disturbances that happened to no request.
    fn use_up_disturbances(&self, client: &Client, step: Step, case: &dyn fmt::Display) {
        for _ in 0..100 {
            let lock = client.lock("z").ttl(TTL);
            let is_undisturbed = self.runtime.block_on(async {
                // The attempt blocks when a request is late or never answered; then time passes and the store answers.
                let mut attempt = Box::pin(async {
                    match lock.try_acquire().await {
                        Ok(Some(guard)) => guard.release().await.is_ok(),
                        _ => false,
                    }
                });
                for _ in 0..1_000 {
                    let once = std::future::poll_fn(|cx| Poll::Ready(attempt.as_mut().poll(cx)));
                    if let Poll::Ready(is_undisturbed) = once.await {
                        return is_undisturbed;
                    }
                    self.store.resume();
                    self.store.advance(STEP_TIME);
                    tokio::task::yield_now().await;
                }
                panic!("{case}: a try hangs after {step}");
            });
            self.store.resume();
            self.step();
            if is_undisturbed && self.store.is_idle() {
                return;
            }
        }
        panic!("{case}: the store does not come to rest");
    }
}

/// Drops the operation after `polls` polls, and returns whether it was complete before.
fn drop_after(
    polls: u32,
    kind: Kind,
    step: Step,
    disturbance: Option<Disturbance>,
    taken: bool,
) -> bool {
    let fixture = Fixture::new();
    let (client, other) = (fixture.client(), fixture.client());
    let mut holders = Vec::new();
    if taken {
        holders = NAMES.map(|name| fixture.take(&other, name)).into();
    }
    if let Some(disturbance) = disturbance {
        fixture.store.disturb(step, disturbance);
    }
    let owner = Owner::new();
    let mut operation = operation(kind, &client, "a", &owner);
    let mut done = false;
    for poll in 1..=polls {
        done = fixture.poll(&mut operation);
        if done {
            break;
        }
        fixture.step();
        if poll == 3 {
            fixture.drop(std::mem::take(&mut holders), true);
        }
        if poll == 6 {
            fixture.store.resume();
        }
    }
    let inside = polls.is_multiple_of(2);
    fixture.drop(operation, inside);
    fixture.drop(holders, !inside);
    let case =
        format!("{kind:?}, {step} {disturbance:?}, taken: {taken}, dropped after {polls} polls");
    fixture.assert_nothing_left(vec![client, other], &case);
    done
}

#[test]
fn every_future_may_be_dropped_after_every_poll() {
    let mut drops = 0;
    for kind in KINDS {
        for step in [Step::Acquire, Step::Release, Step::Inspect] {
            for disturbance in DISTURBANCES {
                for taken in [false, true] {
                    let mut polls = 0;
                    while !drop_after(polls, kind, step, disturbance, taken) {
                        drops += 1;
                        polls += 1;
                        assert!(polls < 60, "{kind:?}, {step} {disturbance:?}: never done");
                    }
                }
            }
        }
    }
    println!("{drops} drops");
    assert!(
        drops > 500,
        "only {drops} drops: are futures ready at once?"
    );
}

/// A small generator with a seed, not for secrets.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((word ^ (word >> 31)) % bound as u64).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Runs ten operations of three clients at once and drops each at a random moment. Returns how many were not complete.
fn random_drops(random: &mut Random, case: &str) -> u32 {
    let fixture = Fixture::new();
    let clients = [fixture.client(), fixture.client(), fixture.client()];
    let owner = Owner::new();
    for _ in 0..random.below(4) {
        if let Some(disturbance) = random.pick(&DISTURBANCES) {
            fixture
                .store
                .disturb(random.pick(&[Step::Acquire, Step::Release]), disturbance);
        }
    }
    let mut ops: Vec<Operation> = (0..10)
        .map(|_| {
            let client = &clients[random.below(3)];
            operation(random.pick(&KINDS), client, random.pick(&NAMES), &owner)
        })
        .collect();
    let mut dropped = 0;
    while !ops.is_empty() {
        let at = random.below(ops.len());
        match random.below(12) {
            0 => {
                dropped += 1;
                fixture.drop(ops.swap_remove(at), random.below(2) == 0);
            }
            1 | 2 => fixture.step(),
            3 => fixture.store.resume(),
            _ => {
                if fixture.poll(&mut ops[at]) {
                    drop(ops.swap_remove(at));
                }
            }
        }
    }
    fixture.assert_nothing_left(clients.into(), &case);
    dropped
}

#[test]
fn ten_thousand_random_drops_leave_nothing() {
    let seed = std::env::var("TENURE_SEED").map_or_else(
        |_| u64::from_le_bytes(OwnerId::random().as_bytes()[..8].try_into().unwrap()),
        |seed| seed.parse().unwrap(),
    );
    println!("TENURE_SEED={seed}");
    let mut drops = 0;
    for round in 0u64.. {
        // Each round has a seed of its own, so that one round can be run alone.
        let seed = seed.wrapping_add(round);
        drops += random_drops(&mut Random(seed), &format!("TENURE_SEED={seed}"));
        if drops >= 10_000 {
            break;
        }
    }
}

/// Futures and guards are dropped outside of any runtime, in another thread, and after the runtime has ended. There is
/// no panic, and a release that needs no runtime happens at once.
#[test]
fn futures_and_guards_may_be_dropped_anywhere() {
    for kind in KINDS {
        for polls in 0..4 {
            for ended in [false, true] {
                let fixture = Fixture::new();
                let (client, other) = (fixture.client(), fixture.client());
                let holder = fixture.take(&other, "a");
                let mut operation = operation(kind, &client, "a", &Owner::new());
                for _ in 0..polls {
                    if fixture.poll(&mut operation) {
                        operation = Box::pin(async {});
                    }
                }
                let Fixture { runtime, store } = fixture;
                let runtime = if ended {
                    drop(runtime);
                    None
                } else {
                    Some(runtime)
                };
                let elsewhere =
                    std::thread::spawn(move || drop((operation, holder, client, other)));
                elsewhere.join().unwrap();
                assert!(
                    store.is_idle(),
                    "{kind:?} after {polls} polls, ended: {ended}"
                );
                drop(runtime);
            }
        }
    }
}
