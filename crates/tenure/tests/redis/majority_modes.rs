//! Shared and upgradable holds over several real servers: all of them up, and some of them stopped or restarted.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::{Client, Guard, Mode};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Proxy};
use tenure_testkit::redis::{Redis, independent, redlock_url};

use crate::common::walk::{Walk, WalkOptions};
use crate::support::{TRUSTED, TTL, client_of, connect, keys, soon, start_acquire, until};
use crate::walk::{self, until_only_tokens_are_left};

async fn majority_of(servers: &[Redis]) -> Client {
    connect(&format!("{}{TRUSTED}", redlock_url(servers))).await
}

/// Random steps of four clients: after each, holders and waiters are those of the reference table, at each server alone
/// and over all of them.
#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_do_what_the_table_says() {
    needs!(redis);
    let servers = independent(3);
    let client = async || majority_of(&servers).await;
    let observers = walk::observers(&servers).await;
    let options = WalkOptions {
        modes: &[
            Mode::Exclusive,
            Mode::Shared,
            Mode::Shared,
            Mode::Upgradable,
        ],
        // Independent servers promise no order of several.
        max_waiting: Some(1),
        // A server that was too slow to take part in a grant gets the hold with the next renewal, after a third of the
        // ttl. The limit of the walk must be longer than that.
        ttl: Duration::from_secs(30),
        observers: &observers,
        shows_upgrade: &|name, expected| walk::show_upgrade(&servers, name, expected),
        ..WalkOptions::default()
    };
    for seed in 100..106 {
        let name = format!("walk-{seed}");
        let mut walk = Walk::new(&name, client, seed, options).await;
        walk.goes_as_the_table_says(60).await;
        walk.close().await;
        until_only_tokens_are_left(&servers, &name).await;
    }
}

/// The present holders, as the holders themselves see it, and all tokens.
#[derive(Default)]
struct Register {
    /// Readers; minus one thousand for a holder alone.
    holders: AtomicI64,
    upgradable: AtomicI64,
    tokens: Mutex<Vec<u64>>,
}

impl Register {
    fn enter(&self, mode: Mode, token: u64) {
        match mode {
            Mode::Exclusive => {
                assert_eq!(self.holders.fetch_sub(1_000, Ordering::SeqCst), 0);
                let tokens = self.tokens.lock().unwrap();
                assert!(tokens.iter().all(|other| *other < token), "{token} is late");
            }
            _ => assert!(self.holders.fetch_add(1, Ordering::SeqCst) >= 0),
        }
        if mode == Mode::Upgradable {
            assert_eq!(self.upgradable.fetch_add(1, Ordering::SeqCst), 0);
        }
        let mut tokens = self.tokens.lock().unwrap();
        assert!(!tokens.contains(&token), "{token} came again");
        tokens.push(token);
    }

    fn leave(&self, mode: Mode) {
        match mode {
            Mode::Exclusive => self.holders.fetch_add(1_000, Ordering::SeqCst),
            _ => self.holders.fetch_sub(1, Ordering::SeqCst),
        };
        if mode == Mode::Upgradable {
            self.upgradable.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

async fn use_in_turns(client: Client, register: Arc<Register>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..12 {
        let lock = client.lock("x").ttl(TTL * 5);
        let lock = match random.random_range(0..4) {
            0 => lock,
            1 => lock.upgradable(),
            _ => lock.shared(),
        };
        let guard = soon(lock.acquire()).await.unwrap();
        let mode = guard.mode();
        register.enter(mode, guard.token().get());
        tokio::time::sleep(Duration::from_millis(random.random_range(0..10))).await;
        assert!(guard.is_held());
        register.leave(mode);
        if mode == Mode::Upgradable && random.random_range(0..2) == 0 {
            soon(guard.upgrade()).await.unwrap();
            register.enter(Mode::Exclusive, guard.token().get());
            tokio::task::yield_now().await;
            register.leave(Mode::Exclusive);
        }
        soon(guard.release()).await.unwrap();
    }
}

/// Six clients want the name in all modes at the same time, also while a node is stopped: all of them get it again and
/// again, no two tokens are equal, and nothing is left.
#[tokio::test(flavor = "multi_thread")]
async fn readers_writers_and_upgrades_compete() {
    needs!(redis);
    for is_stopped in [false, true] {
        let servers = independent(3);
        let register = Arc::<Register>::default();
        let mut clients = Vec::new();
        for _ in 0..6 {
            clients.push(majority_of(&servers).await);
        }
        if is_stopped {
            servers[1].stop();
        }
        let tasks = clients.iter().zip(0..).map(|(client, seed)| {
            tokio::spawn(use_in_turns(client.clone(), register.clone(), seed))
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        servers[1].resume();
        for client in clients {
            client.close().await;
        }
        for server in [&servers[0], &servers[2]] {
            until("nothing is left but the token", || {
                keys(server) == ["tenure:{x}:hold"]
            })
            .await;
        }
    }
}

/// The mode of the hold on each server.
async fn modes(observers: &[Client]) -> Vec<Vec<Mode>> {
    let mut modes = Vec::new();
    for observer in observers {
        let status = soon(observer.inspect("x")).await.unwrap();
        modes.push(status.holds.iter().map(|hold| hold.mode).collect());
    }
    modes
}

async fn until_all(observers: &[Client], mode: Mode) {
    let start = Instant::now();
    while modes(observers).await != vec![vec![mode]; observers.len()] {
        let shown = modes(observers).await;
        assert!(start.elapsed() < TEST_TIMEOUT, "{mode}: {shown:?}");
        tokio::time::sleep(TTL / 40).await;
    }
}

async fn upgradable(client: &Client) -> Guard {
    // When a majority was late, this tries again.
    let lock = client.lock("x").ttl(TTL * 3 / 2).upgradable();
    crate::common::answered(async || lock.acquire().await).await
}

/// Servers that restart empty get the hold back as it is now.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_forgot_get_the_present_mode() {
    needs!(redis);
    let servers = independent(3);
    let client = majority_of(&servers).await;
    let mut observers = Vec::new();
    for server in &servers {
        observers.push(client_of(server).await);
    }
    let guard = upgradable(&client).await;
    let mut last = guard.token();
    until_all(&observers, Mode::Upgradable).await;
    servers[0].restart();
    until_all(&observers, Mode::Upgradable).await;
    soon(guard.upgrade()).await.unwrap();
    assert!(guard.token() > last);
    last = guard.token();
    servers[1].restart();
    until_all(&observers, Mode::Exclusive).await;
    soon(guard.downgrade()).await.unwrap();
    servers[2].restart();
    until_all(&observers, Mode::Shared).await;
    assert!(guard.is_held() && guard.token() == last);
    soon(guard.release()).await.unwrap();
}

/// The replies of one server are held back: the upgrade and the downgrade do not wait for it, and it follows later.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_answers_late_follows() {
    needs!(redis);
    let servers = independent(3);
    let proxy = Proxy::redis(servers[2].port());
    let address = format!("127.0.0.1:{}", proxy.port());
    let url = redlock_url(&servers).replace(&servers[2].address(), &address);
    let client = connect(&format!("{url}{TRUSTED}")).await;
    let mut observers = Vec::new();
    for server in &servers {
        observers.push(client_of(server).await);
    }
    let guard = upgradable(&client).await;
    until_all(&observers, Mode::Upgradable).await;
    proxy.hold(Direction::Down, true);
    soon(guard.upgrade()).await.unwrap();
    soon(guard.downgrade()).await.unwrap();
    assert!(guard.is_held());
    proxy.hold(Direction::Down, false);
    until_all(&observers, Mode::Shared).await;
    soon(guard.release()).await.unwrap();
}

/// A reader that is not renewed keeps an upgrade waiting for one ttl at most, and an upgrading holder that is not renewed
/// keeps readers out for no longer.
#[tokio::test(flavor = "multi_thread")]
async fn leases_that_end_let_others_in() {
    needs!(redis);
    let servers = independent(3);
    let (first, second) = (majority_of(&servers).await, majority_of(&servers).await);
    let dead = |mode: Mode| {
        // Not renewed, and never released.
        let lock = first.lock("x").ttl(TTL).renew(tenure::Renew::Never);
        match mode {
            Mode::Shared => lock.shared(),
            _ => lock.upgradable(),
        }
    };
    let reader = soon(dead(Mode::Shared).acquire()).await.unwrap();
    let guard = upgradable(&second).await;
    soon(guard.upgrade()).await.unwrap();
    assert!(!reader.is_held());
    soon(guard.release()).await.unwrap();
    drop(reader);
    let reader = soon(second.lock("x").ttl(TTL).shared().acquire())
        .await
        .unwrap();
    let holder = Arc::new(soon(dead(Mode::Upgradable).acquire()).await.unwrap());
    let upgrading = tokio::spawn({
        let holder = holder.clone();
        async move { holder.upgrade().await }
    });
    let late = majority_of(&servers).await;
    let waiting = start_acquire(late.lock("x").ttl(TTL).shared());
    let beside = soon(waiting).await.unwrap().unwrap();
    assert!(reader.is_held() && beside.is_held());
    assert!(soon(upgrading).await.unwrap().is_err());
}
