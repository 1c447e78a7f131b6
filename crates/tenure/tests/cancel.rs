//! Rule 15: every future may be dropped at every await, whatever the store does meanwhile.
//!
//! Futures are polled by hand and dropped after the k-th poll, for every k until they complete. Then the
//! store is given its peace, far less time than a ttl passes (so nothing runs out by itself), and nothing may be left:
//! no hold, no place in a queue, no task, and the names can be had.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure::error::Step;
use tenure::memory::{self, Disturbance};
use tenure::{Client, Guard, Lock, Owner, OwnerId};
use tokio::runtime::Runtime;

/// Far longer than all the time that passes here: what is left behind stays.
const TTL: Duration = Duration::from_secs(100_000);
/// How much time passes between two polls, and between two looks.
const PACE: Duration = Duration::from_millis(100);
const NAMES: [&str; 3] = ["a", "b", "c"];

type Op = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a user does.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Acquire,
    TryAcquire,
    AcquireWithWait,
    Run,
    Release,
    LockAll,
    LockAny,
    Owner,
    OwnerScope,
    Shared,
    Permit,
    Look,
}

const KINDS: [Kind; 12] = [
    Kind::Acquire,
    Kind::TryAcquire,
    Kind::AcquireWithWait,
    Kind::Run,
    Kind::Release,
    Kind::LockAll,
    Kind::LockAny,
    Kind::Owner,
    Kind::OwnerScope,
    Kind::Shared,
    Kind::Permit,
    Kind::Look,
];

/// How the store behaves: as it should, fails, fails after the fact, is slow, never answers.
const TROUBLES: [Option<Disturbance>; 5] = [
    None,
    Some(Disturbance::RequestLost),
    Some(Disturbance::ReplyLost),
    Some(Disturbance::Late(Duration::from_millis(250))),
    Some(Disturbance::ReplyNever),
];

/// One thing that a user does with `name`. Whatever it gets, it keeps for some polls.
fn op(kind: Kind, client: &Client, name: &'static str, owner: &Owner) -> Op {
    let lock = client.lock(name).ttl(TTL);
    match kind {
        Kind::Acquire => acquire_and_drop(lock),
        Kind::AcquireWithWait => acquire_and_drop(lock.wait(PACE * 5)),
        Kind::LockAll => acquire_and_drop(client.lock_all(NAMES).ttl(TTL)),
        Kind::LockAny => acquire_and_drop(client.lock_any(["a", "b"]).ttl(TTL)),
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
        Kind::Look => {
            let client = client.clone();
            Box::pin(async move {
                let status = client.inspect(name).await;
                let token = status.ok().and_then(|status| status.holds.first()?.token);
                let _ = client.list("").await;
                // Breaks what another operation holds, now and then.
                if let Some(token) = token.filter(|token| token.get() % 4 == 0) {
                    let _ = client.break_lock(name, token).await;
                }
            })
        }
    }
}

fn acquire_and_drop(lock: Lock) -> Op {
    Box::pin(async move {
        let guard = lock.acquire().await;
        tokio::task::yield_now().await;
        drop(guard);
    })
}

/// A store, its clients and the runtime that they live in. One thread: every poll happens here.
struct World {
    runtime: Runtime,
    store: memory::Backend,
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let store = memory::Backend::with_virtual_clock();
        Self { runtime, store }
    }

    fn client(&self) -> Client {
        let _inside = self.runtime.enter();
        Client::from_backend(self.store.clone()).unwrap()
    }

    fn take(&self, client: &Client, name: &str) -> Guard {
        let lock = client.lock(name).ttl(TTL);
        let taken = self.runtime.block_on(lock.try_acquire());
        taken.unwrap().unwrap_or_else(|| panic!("{name} is taken"))
    }

    /// Polls once; whether it is done.
    fn poll(&self, op: &mut Op) -> bool {
        self.runtime.block_on(async {
            let mut cx = Context::from_waker(Waker::noop());
            op.as_mut().poll(&mut cx) == Poll::Ready(())
        })
    }

    /// Background tasks run until they wait, then a little time passes.
    fn step(&self) {
        self.runtime.block_on(async {
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            self.store.advance(PACE);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
        });
    }

    /// Dropped in the runtime or out of it, as its user may.
    fn drop<T>(&self, what: T, inside: bool) {
        let _inside = inside.then(|| self.runtime.enter());
        drop(what);
    }

    /// Everybody is gone; now nothing may be left.
    fn assert_nothing_left(self, clients: Vec<Client>, about: &dyn fmt::Display) {
        self.store.resume();
        for _ in 0..100 {
            if self.store.is_idle() {
                break;
            }
            self.step();
        }
        let client = self.client();
        if !self.store.is_idle() {
            let left = NAMES.map(|name| self.runtime.block_on(client.inspect(name)).unwrap());
            panic!("{about}: left in the store: {left:?}");
        }
        // What was scripted for a step that did not come would hit us.
        for step in [Step::Acquire, Step::Release] {
            self.drain_script(&client, step, about);
        }
        for client in clients.iter().chain([&client]) {
            for name in NAMES {
                let lock = client.lock(name).ttl(TTL);
                let taken = self.runtime.block_on(lock.try_acquire()).unwrap();
                let guard = taken.unwrap_or_else(|| panic!("{about}: {name} cannot be had"));
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
        panic!("{about}: {} tasks are left", tasks());
    }

    /// Uses up disturbances that nobody met.
    fn drain_script(&self, client: &Client, step: Step, about: &dyn fmt::Display) {
        for _ in 0..100 {
            let lock = client.lock("z").ttl(TTL);
            let clean = self.runtime.block_on(async {
                // Hangs when a request is late or never answered: then time and store go on.
                let mut attempt = Box::pin(async {
                    match lock.try_acquire().await {
                        Ok(Some(guard)) => guard.release().await.is_ok(),
                        _ => false,
                    }
                });
                for _ in 0..1_000 {
                    let once = std::future::poll_fn(|cx| Poll::Ready(attempt.as_mut().poll(cx)));
                    if let Poll::Ready(clean) = once.await {
                        return clean;
                    }
                    self.store.resume();
                    self.store.advance(PACE);
                    tokio::task::yield_now().await;
                }
                panic!("{about}: a try hangs after {step}");
            });
            self.store.resume();
            self.step();
            if clean && self.store.is_idle() {
                return;
            }
        }
        panic!("{about}: the store does not come to rest");
    }
}

/// Drops `kind` after `polls` polls; whether it was done before that.
fn drop_after(
    polls: u32,
    kind: Kind,
    step: Step,
    trouble: Option<Disturbance>,
    taken: bool,
) -> bool {
    let world = World::new();
    let (client, other) = (world.client(), world.client());
    let mut holders = Vec::new();
    if taken {
        holders = NAMES.map(|name| world.take(&other, name)).into();
    }
    if let Some(trouble) = trouble {
        world.store.disturb(step, trouble);
    }
    let owner = Owner::new();
    let mut op = op(kind, &client, "a", &owner);
    let mut done = false;
    for poll in 1..=polls {
        done = world.poll(&mut op);
        if done {
            break;
        }
        world.step();
        if poll == 3 {
            world.drop(std::mem::take(&mut holders), true);
        }
        if poll == 6 {
            world.store.resume();
        }
    }
    let inside = polls.is_multiple_of(2);
    world.drop(op, inside);
    world.drop(holders, !inside);
    let about =
        format!("{kind:?}, {step} {trouble:?}, taken: {taken}, dropped after {polls} polls");
    world.assert_nothing_left(vec![client, other], &about);
    done
}

#[test]
fn every_future_may_be_dropped_after_every_poll() {
    let mut drops = 0;
    for kind in KINDS {
        for step in [Step::Acquire, Step::Release, Step::Inspect] {
            for trouble in TROUBLES {
                for taken in [false, true] {
                    let mut polls = 0;
                    while !drop_after(polls, kind, step, trouble, taken) {
                        drops += 1;
                        polls += 1;
                        assert!(polls < 60, "{kind:?}, {step} {trouble:?}: never done");
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

/// Small and seeded; not for secrets.
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

/// Ten operations of three clients at once, each dropped at a random moment; how many were not done then.
fn random_drops(random: &mut Random, about: &str) -> u32 {
    let world = World::new();
    let clients = [world.client(), world.client(), world.client()];
    let owner = Owner::new();
    for _ in 0..random.below(4) {
        if let Some(trouble) = random.pick(&TROUBLES) {
            world
                .store
                .disturb(random.pick(&[Step::Acquire, Step::Release]), trouble);
        }
    }
    let mut ops: Vec<Op> = (0..10)
        .map(|_| {
            let client = &clients[random.below(3)];
            op(random.pick(&KINDS), client, random.pick(&NAMES), &owner)
        })
        .collect();
    let mut dropped = 0;
    while !ops.is_empty() {
        let at = random.below(ops.len());
        match random.below(12) {
            0 => {
                dropped += 1;
                world.drop(ops.swap_remove(at), random.below(2) == 0);
            }
            1 | 2 => world.step(),
            3 => world.store.resume(),
            _ => {
                if world.poll(&mut ops[at]) {
                    drop(ops.swap_remove(at));
                }
            }
        }
    }
    world.assert_nothing_left(clients.into(), &about);
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

/// Outside of any runtime, in another thread, and after the runtime has ended: no panic, and what the store
/// can be told at once is told at once.
#[test]
fn futures_and_guards_may_be_dropped_anywhere() {
    for kind in KINDS {
        for polls in 0..4 {
            for ended in [false, true] {
                let world = World::new();
                let (client, other) = (world.client(), world.client());
                let holder = world.take(&other, "a");
                let mut op = op(kind, &client, "a", &Owner::new());
                for _ in 0..polls {
                    if world.poll(&mut op) {
                        op = Box::pin(async {});
                    }
                }
                let World { runtime, store } = world;
                let runtime = if ended {
                    drop(runtime);
                    None
                } else {
                    Some(runtime)
                };
                let elsewhere = std::thread::spawn(move || drop((op, holder, client, other)));
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
