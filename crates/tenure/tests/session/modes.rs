//! Holds beside others in PostgreSQL: the server against the reference table, foreign clients beside our modes, and what
//! is left afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tenure::{Client, Error, ErrorKind, Guard, HoldInfo, Lock, LostReason, Mode};
use tenure_core::fence::OwnerId;
use tenure_core::logic::table::{LockRequest, Table, Verdict};
use tenure_core::time::Time;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::sql_client::SqlClient;
use tokio::task::JoinHandle;

use crate::support::{
    Database, OPTIONS, TTL, assert_says, connect, name, postgres_key, soon, start_acquire, take,
    until,
};

/// Longer than a test.
const LONG: Duration = Duration::from_secs(120);

const OWNERS: usize = 4;

/// Two clients of a server of this test, and a client that knows nothing of us.
async fn parties(server: &Postgres) -> (Client, Client, SqlClient) {
    let first = connect(&Database::url(server)).await;
    soon(first.init()).await.unwrap();
    let second = connect(&Database::url(server)).await;
    (first, second, server.database_admin())
}

/// How many advisory locks all sessions have or wait for.
fn advisory_locks(server: &Postgres) -> Vec<u64> {
    let count = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    let value = server.rows(count)[0][0].clone();
    vec![value.unwrap().parse().unwrap()]
}

async fn assert_nothing_left(server: &Postgres) {
    until("no lock is left in the server", || {
        advisory_locks(server) == [0]
    })
    .await;
}

/// Whether a session that has the lock waits for more of it.
fn has_upgrading(server: &Postgres, name: &str) -> bool {
    let holders = server.holders(name);
    server.waiters(name).iter().any(|it| holders.contains(it))
}

async fn upgradable(client: &Client, name: &str) -> Arc<Guard> {
    let lock = client.lock(name).ttl(TTL).upgradable();
    Arc::new(soon(lock.try_acquire()).await.unwrap().unwrap())
}

async fn reader(client: &Client, name: &str) -> Guard {
    let lock = client.lock(name).ttl(TTL).shared();
    soon(lock.try_acquire()).await.unwrap().unwrap()
}

/// Begins to upgrade, and returns when the server has the request in its queue.
async fn upgrade_behind_readers(
    server: &Postgres,
    guard: &Arc<Guard>,
) -> JoinHandle<Result<(), Error>> {
    let task = guard.clone();
    let upgrading = tokio::spawn(async move { task.upgrade().await });
    until("the upgrade waits", || {
        has_upgrading(server, guard.name().as_str())
    })
    .await;
    upgrading
}

/// What one owner does at the moment.
enum State {
    Idle,
    Waiting(JoinHandle<Result<Guard, Error>>),
    Holding(Arc<Guard>),
    Upgrading(Arc<Guard>, JoinHandle<Result<(), Error>>),
}

/// Four clients of a server, and the table that says what they should see.
struct Walk<'a> {
    server: &'a Postgres,
    name: String,
    clients: Vec<Client>,
    states: Vec<State>,
    /// The owner that asked for an upgradable hold. While there is one, no other owner asks: such requests wait for each
    /// other before they enter the queue of the lock, so the order is not that of the table.
    upgradable: Option<usize>,
    table: Table,
    last_token: u64,
    random: StdRng,
}

fn id(who: usize) -> OwnerId {
    OwnerId::from_bytes([who as u8; 16])
}

impl Walk<'_> {
    fn lock(&self, who: usize, mode: Mode) -> Lock {
        let lock = self.clients[who].lock(&self.name).ttl(LONG);
        let lock = lock.label(who.to_string());
        match mode {
            Mode::Shared => lock.shared(),
            Mode::Upgradable => lock.upgradable(),
            _ => lock,
        }
    }

    /// One step of one owner, in the table and on the server.
    async fn step(&mut self) -> String {
        let who = self.random.random_range(0..OWNERS);
        let name = tenure::LockName::new(&self.name).unwrap();
        let now = Time::ZERO;
        match std::mem::replace(&mut self.states[who], State::Idle) {
            State::Idle => {
                let modes = [
                    Mode::Exclusive,
                    Mode::Shared,
                    Mode::Shared,
                    Mode::Upgradable,
                    Mode::Upgradable,
                ];
                let mut mode = modes[self.random.random_range(0..modes.len())];
                match (mode, self.upgradable) {
                    (Mode::Upgradable, None) => self.upgradable = Some(who),
                    (Mode::Upgradable, Some(_)) => mode = Mode::Shared,
                    _ => {}
                }
                let request = LockRequest {
                    name,
                    owner: id(who),
                    mode,
                    ttl: None,
                    wait: true,
                    barge: false,
                    min_hold: Duration::ZERO,
                    lock_delay: Duration::ZERO,
                    waiter_ttl: None,
                    propose: None,
                };
                self.table.acquire(&request, now);
                let waiting = start_acquire(self.lock(who, mode));
                self.states[who] = State::Waiting(waiting);
                format!("{who} acquires {mode}")
            }
            State::Waiting(waiting) => {
                self.table.release(&name, id(who), false, now);
                waiting.abort();
                self.has_ended(who);
                format!("{who} leaves the queue")
            }
            State::Upgrading(guard, upgrading) => {
                let upgradable = Mode::Upgradable;
                self.table.downgrade(&name, id(who), upgradable, now);
                upgrading.abort();
                self.states[who] = State::Holding(guard);
                format!("{who} gives up its upgrade")
            }
            State::Holding(guard) => match (self.random.random_range(0..4), guard.mode()) {
                (0 | 1, Mode::Upgradable) => {
                    let verdict = self.table.upgrade(&name, id(who), true, now);
                    let upgrading = if verdict == Verdict::Queued {
                        upgrade_behind_readers(self.server, &guard).await
                    } else {
                        let task = guard.clone();
                        tokio::spawn(async move { task.upgrade().await })
                    };
                    self.states[who] = State::Upgrading(guard, upgrading);
                    format!("{who} upgrades")
                }
                (2, Mode::Upgradable | Mode::Exclusive) => {
                    self.table.downgrade(&name, id(who), Mode::Shared, now);
                    soon(guard.downgrade()).await.unwrap();
                    self.states[who] = State::Holding(guard);
                    self.has_ended(who);
                    format!("{who} downgrades")
                }
                _ => {
                    self.table.release(&name, id(who), false, now);
                    let guard = Arc::into_inner(guard).unwrap();
                    soon(guard.release()).await.unwrap();
                    self.has_ended(who);
                    format!("{who} releases")
                }
            },
        }
    }

    /// The owner is neither upgradable nor on the way to it.
    fn has_ended(&mut self, who: usize) {
        self.upgradable = self.upgradable.filter(|it| *it != who);
    }

    /// Waits until the server shows what the table says, and takes over what was granted.
    async fn agree(&mut self, steps: &[String]) {
        let name = tenure::LockName::new(&self.name).unwrap();
        let view = self.table.view(&name);
        let who = |owner: OwnerId| owner.as_bytes()[0].to_string();
        let (mut holds, mut waiters) = (Vec::new(), Vec::new());
        if let Some(view) = view {
            holds.extend(view.holds.iter().map(|hold| (who(hold.owner), hold.mode)));
            waiters.extend(view.waiters.iter().map(|(owner, _)| who(*owner)));
        }
        holds.sort_by(|a, b| a.0.cmp(&b.0));
        for attempt in 0.. {
            let status = soon(self.clients[0].inspect(&self.name)).await.unwrap();
            let hold = |hold: &HoldInfo| (hold.holder.label.clone(), hold.mode);
            let mut held: Vec<_> = status.holds.iter().map(hold).collect();
            held.sort_by(|a, b| a.0.cmp(&b.0));
            let queue = status.queue.unwrap_or_default();
            let queue: Vec<_> = queue.iter().map(|holder| holder.label.clone()).collect();
            if held == holds && queue == waiters {
                break;
            }
            // Far above what the requests of one step take.
            if attempt > 1_000 {
                panic!(
                    "shown: {held:?} {queue:?}\nwanted: {holds:?} {waiters:?}\nafter {steps:#?}"
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for (label, mode) in &holds {
            let who: usize = label.parse().unwrap();
            match std::mem::replace(&mut self.states[who], State::Idle) {
                State::Waiting(waiting) => {
                    let guard = soon(waiting).await.unwrap().unwrap();
                    self.last_token = self.last_token.max(guard.token().get());
                    self.states[who] = State::Holding(Arc::new(guard));
                }
                State::Upgrading(guard, upgrading) if *mode == Mode::Exclusive => {
                    soon(upgrading).await.unwrap().unwrap();
                    let token = guard.token().get();
                    assert!(token > self.last_token, "{steps:#?}");
                    self.last_token = token;
                    self.states[who] = State::Holding(guard);
                }
                state => self.states[who] = state,
            }
        }
    }
}

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_does_what_the_table_says() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (first, ..) = parties(&server).await;
    first.close().await;
    for seed in 0..6 {
        let mut clients = Vec::new();
        for _ in 0..OWNERS {
            clients.push(connect(&Database::url(&server)).await);
        }
        let mut walk = Walk {
            server: &server,
            name: format!("walk-{seed}"),
            clients,
            states: (0..OWNERS).map(|_| State::Idle).collect(),
            upgradable: None,
            table: Table::new(),
            last_token: 0,
            random: StdRng::seed_from_u64(seed),
        };
        let mut steps = vec![format!("seed {seed}")];
        for _ in 0..50 {
            let step = walk.step().await;
            steps.push(step);
            walk.agree(&steps).await;
        }
        walk.states.clear();
        for client in walk.clients {
            client.close().await;
        }
        assert_nothing_left(&server).await;
    }
}

/// A program that knows only the key excludes all our modes, and is excluded by them, as its own mode wants.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_excludes_each_mode_and_is_excluded() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, _, foreign) = parties(&server).await;
    let name = name("foreign");
    let key = postgres_key(&name);
    let call = |function: &str| foreign.value(&format!("SELECT {function}({key})::int"));
    let modes = |lock: &dyn Fn() -> Lock| [lock(), lock().shared(), lock().upgradable()];
    let lock = || client.lock(&name).ttl(TTL);

    assert_eq!(call("pg_try_advisory_lock"), "1");
    for lock in modes(&lock) {
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        let mine = start_acquire(lock);
        until("it waits", || server.waiters(&name).len() == 1).await;
        mine.abort();
        // The session of an upgradable request gives back the lock of such requests some time after it left the queue.
        until("only the foreign lock is left", || {
            advisory_locks(&server) == [1]
        })
        .await;
    }
    assert_eq!(call("pg_advisory_unlock"), "1");

    for lock in modes(&lock) {
        let guard = soon(lock.try_acquire()).await.unwrap().unwrap();
        let is_exclusive = guard.mode() == Mode::Exclusive;
        assert_eq!(call("pg_try_advisory_lock"), "0");
        let beside = if is_exclusive { "0" } else { "1" };
        assert_eq!(call("pg_try_advisory_lock_shared"), beside);
        if !is_exclusive {
            assert_eq!(call("pg_advisory_unlock_shared"), "1");
        }
        soon(guard.release()).await.unwrap();
    }

    // An upgrade waits for a foreign reader.
    assert_eq!(call("pg_try_advisory_lock_shared"), "1");
    let guard = upgradable(&client, &name).await;
    assert!(!soon(guard.try_upgrade()).await.unwrap());
    let upgrading = upgrade_behind_readers(&server, &guard).await;
    assert_eq!(call("pg_advisory_unlock_shared"), "1");
    soon(upgrading).await.unwrap().unwrap();
    assert_eq!(call("pg_try_advisory_lock_shared"), "0");
    soon(guard.downgrade()).await.unwrap();
    assert_eq!(call("pg_try_advisory_lock_shared"), "1");
    assert_eq!(call("pg_advisory_unlock_shared"), "1");
    soon(Arc::into_inner(guard).unwrap().release())
        .await
        .unwrap();
    assert_eq!(call("pg_try_advisory_lock"), "1");
    assert_eq!(call("pg_advisory_unlock"), "1");
    assert_nothing_left(&server).await;
}

/// `pg_try_advisory_lock` fails as long as any session waits, and an upgrade must not.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_comes_before_a_foreign_writer_that_waits() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, other, foreign) = parties(&server).await;
    let name = name("before");
    let lock = format!("SELECT pg_advisory_lock({})::text", postgres_key(&name));
    for has_reader in [false, true] {
        let guard = upgradable(&client, &name).await;
        let reader = match has_reader {
            true => Some(reader(&other, &name).await),
            false => None,
        };
        let writer = std::thread::scope(|scope| {
            let writer = scope.spawn(|| foreign.value(&lock));
            let runtime = tokio::runtime::Handle::current();
            tokio::task::block_in_place(|| {
                runtime.block_on(async {
                    until("the writer waits", || !server.waiters(&name).is_empty()).await;
                    if let Some(reader) = reader {
                        assert!(!soon(guard.try_upgrade()).await.unwrap());
                        let upgrading = upgrade_behind_readers(&server, &guard).await;
                        soon(reader.release()).await.unwrap();
                        soon(upgrading).await.unwrap().unwrap();
                    } else {
                        assert!(soon(guard.try_upgrade()).await.unwrap());
                    }
                    assert_eq!(guard.mode(), Mode::Exclusive);
                    assert!(!writer.is_finished(), "the writer came in between");
                    let guard = Arc::into_inner(guard).unwrap();
                    soon(guard.release()).await.unwrap();
                })
            });
            writer.join().unwrap()
        });
        assert_eq!(writer, "");
        let unlock = format!("SELECT pg_advisory_unlock({})::int", postgres_key(&name));
        assert_eq!(foreign.value(&unlock), "1");
    }
    assert_nothing_left(&server).await;
}

/// The session of the upgrade answers nothing meanwhile, and no lock of the client depends on an answer of it.
#[tokio::test(flavor = "multi_thread")]
async fn holds_are_renewed_while_an_upgrade_waits() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, other, _) = parties(&server).await;
    let (name, beside) = (name("renewed"), name("beside"));
    let reader = reader(&other, &name).await;
    let guard = upgradable(&client, &name).await;
    let exclusive = take(&client, &beside).await;
    let upgrading = upgrade_behind_readers(&server, &guard).await;
    let start = Instant::now();
    while start.elapsed() < TTL * 2 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(guard.is_held(), "lost after {:?}", start.elapsed());
        assert!(exclusive.is_held(), "lost after {:?}", start.elapsed());
    }
    assert!(!upgrading.is_finished());
    soon(reader.release()).await.unwrap();
    soon(upgrading).await.unwrap().unwrap();
    // An upgrade that is over does not keep the session from being silent.
    assert!(guard.remaining() <= TTL);
    soon(exclusive.release()).await.unwrap();
    soon(Arc::into_inner(guard).unwrap().release())
        .await
        .unwrap();
    assert_nothing_left(&server).await;
}

/// A session that dies frees both keys, whatever it was doing.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_session_frees_both_keys() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, other, _) = parties(&server).await;
    let name = name("dead");
    let reader = reader(&other, &name).await;
    let guard = upgradable(&client, &name).await;
    let holder = server.holders(&name);
    let next = start_acquire(other.lock(&name).ttl(TTL).upgradable());
    let upgrading = upgrade_behind_readers(&server, &guard).await;
    let upgrader = server.waiters(&name)[0];
    assert!(
        holder.contains(&upgrader),
        "the upgrade is on the session of the hold"
    );
    server.end(upgrader);
    let ended = soon(upgrading).await.unwrap();
    assert_says(ended, ErrorKind::Lost, &[]);
    assert_eq!(soon(guard.lost()).await, LostReason::SessionGone);
    let next = soon(next).await.unwrap().unwrap();

    // A waiter for the second key dies, and asks again on another session.
    let waiting = start_acquire(client.lock(&name).ttl(TTL).upgradable());
    let gate = |granted: bool| {
        let query = format!(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted = {granted}"
        );
        let rows = server.rows(&query);
        rows.into_iter().flatten().flatten().collect::<Vec<_>>()
    };
    until("it waits", || gate(false).len() == 1).await;
    let dead = gate(false);
    server.end(dead[0].parse().unwrap());
    until("it waits again", || {
        let waiters = gate(false);
        waiters.len() == 1 && waiters != dead
    })
    .await;
    soon(next.release()).await.unwrap();
    let last = soon(waiting).await.unwrap().unwrap();
    assert_eq!(gate(true).len(), 1);
    soon(last.release()).await.unwrap();
    soon(reader.release()).await.unwrap();
    drop(guard);
    assert_nothing_left(&server).await;
}

/// `list` shows each holder with its mode, and `break` ends the one with that token.
#[tokio::test(flavor = "multi_thread")]
async fn all_holders_are_shown_and_one_is_broken() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let (client, other, _) = parties(&server).await;
    let name = name("shown");
    let first = reader(&client, &name).await;
    let second = reader(&other, &name).await;
    let guard = upgradable(&client, &name).await;
    let modes = async || {
        let listed = soon(other.list(&name)).await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        let mut holds: Vec<_> = listed[0].holds.clone();
        holds.sort_by_key(|hold| hold.token);
        let shown = holds
            .iter()
            .map(|hold| (hold.mode, hold.token.map(|it| it.get())));
        shown.collect::<Vec<_>>()
    };
    let of = |guard: &Guard, mode| (mode, Some(guard.token().get()));
    let shown = [
        of(&first, Mode::Shared),
        of(&second, Mode::Shared),
        of(&guard, Mode::Upgradable),
    ];
    assert_eq!(modes().await, shown);
    let broken = other.break_lock(&name, first.token().get());
    assert!(soon(broken).await.unwrap());
    assert_eq!(soon(first.lost()).await, LostReason::TakenOver);
    assert_eq!(modes().await, shown[1..]);
    soon(second.release()).await.unwrap();
    soon(guard.upgrade()).await.unwrap();
    assert_eq!(modes().await, [of(&guard, Mode::Exclusive)]);
    let broken = other.break_lock(&name, guard.token().get());
    assert!(soon(broken).await.unwrap());
    assert_eq!(soon(guard.lost()).await, LostReason::TakenOver);
    drop((first, guard));
    assert_nothing_left(&server).await;
}

/// Each upgradable hold has a connection of its own, and a client says so when it may open no more.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgradable_hold_needs_a_connection() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = server.url_at(Postgres::port(&server));
    let client = connect(&format!("{url}?{OPTIONS}&connections=2")).await;
    let (one, two, three) = (name("one"), name("two"), name("three"));
    let first = upgradable(&client, &one).await;
    let second = upgradable(&client, &two).await;
    let lock = client.lock(&three).ttl(TTL).upgradable();
    let refused = soon(lock.try_acquire()).await;
    assert_says(refused, ErrorKind::Backend, &["`connections`", "all 2"]);
    let waiting = start_acquire(lock);
    soon(Arc::into_inner(first).unwrap().release())
        .await
        .unwrap();
    let third = soon(waiting).await.unwrap().unwrap();
    assert!(second.is_held() && third.is_held());
    drop((second, third));
    assert_nothing_left(&server).await;
}
