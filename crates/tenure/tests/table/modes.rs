//! Holds beside others: random steps against the reference table, what the rows say, and what a crash leaves.

use std::process::Command;
use std::time::Duration;

use tenure::conformance::lock_holder::LockHolder;
use tenure::{ErrorKind, Guard, HoldInfo};

use crate::common::walk::{HolderStep, Walk, WalkOptions};
use crate::support::{
    Db, SHORT, TTL, assert_says, connect, name, shared, short_lock_holder, soon, take_and_release,
    until,
};

/// Longer than the test.
const LONG: Duration = Duration::from_secs(120);

/// How many rows of shared holders a name has: of all, or of one kind.
fn mode_rows(db: &Db, name: &str, which: &str) -> i64 {
    db.number(&format!(
        "SELECT COUNT(*) FROM tenure_locks_modes WHERE name='{name}' AND {which}"
    ))
}

/// Nothing is left of a name but its row, which keeps the token.
async fn until_nothing_is_left(db: &Db, name: &str) {
    let lock = format!("SELECT owner,until,queued FROM tenure_locks WHERE name='{name}'");
    let waiters = format!("SELECT owner FROM tenure_locks_waiters WHERE name='{name}'");
    let modes = format!("SELECT owner,mode,token FROM tenure_locks_modes WHERE name='{name}'");
    let free = vec![["", "0", "0"].map(|cell| Some(cell.to_owned())).to_vec()];
    let mut shown = None;
    until("nothing is left but the token", || {
        let left = [&lock, &waiters, &modes].map(|sql| db.rows(sql));
        let is_free = left == [free.clone(), Vec::new(), Vec::new()];
        if shown.as_ref() != Some(&left) {
            println!("{name}: {left:?}");
            shown = Some(left);
        }
        is_free
    })
    .await;
}

async fn walk(db: &Db, seed: u64) {
    let name = name("walk");
    let url = db.url();
    let client = async || connect(&url).await;
    let upgrading = |name: &str| mode_rows(db, name, "mode='w'");
    let options = WalkOptions {
        holder_steps: &[
            HolderStep::Upgrade,
            HolderStep::Upgrade,
            HolderStep::Downgrade,
            HolderStep::Break,
            HolderStep::Release,
        ],
        shows_upgrade: &|name, expected| upgrading(name) == i64::from(expected),
        ..WalkOptions::default()
    };
    let mut walk = Walk::new(&name, client, seed, options).await;
    walk.goes_as_the_table_says(60).await;
    walk.drop_all();
    until_nothing_is_left(db, &name).await;
    walk.close().await;
}

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_rows_do_what_the_table_says() {
    for db in shared().await {
        let walks = (0..8).map(|seed| walk(db, seed));
        futures_util::future::join_all(walks).await;
    }
}

/// What other programs read, and what `list` and `inspect` show.
#[tokio::test(flavor = "multi_thread")]
async fn holders_beside_each_other_stand_as_published() {
    for db in shared().await {
        let name = name("beside");
        let client = connect(&db.url()).await;
        let lock = client.lock(&name).ttl(LONG);
        let reader = soon(lock.clone().shared().label("r").acquire()).await;
        let reader = reader.unwrap();
        let upgradable = soon(lock.clone().upgradable().label("u").acquire()).await;
        let upgradable = upgradable.unwrap();
        let permit = soon(lock.clone().permits(3).label("p").acquire()).await;
        let permit = permit.unwrap();
        assert!(reader.token() < upgradable.token() && upgradable.token() < permit.token());
        assert_eq!(db.owner(&name), "*");
        let rows = db.rows(&format!(
            "SELECT mode,token,min_hold,delay FROM tenure_locks_modes WHERE name='{name}' ORDER BY token"
        ));
        let row = |mode: &str, guard: &Guard| {
            let token = guard.token().get().to_string();
            [mode.to_owned(), token, "0".into(), "0".into()].map(Some)
        };
        let expected = [row("s", &reader), row("u", &upgradable), row("p3", &permit)];
        assert_eq!(rows, expected);
        let until = format!(
            "SELECT l.until-MAX(m.until) FROM tenure_locks l JOIN tenure_locks_modes m ON m.name=l.name WHERE l.name='{name}' GROUP BY l.until"
        );
        assert_eq!(db.number(&until), 0);
        let listed = soon(client.list(&name)).await.unwrap();
        let inspected = soon(client.inspect(&name)).await.unwrap();
        let show = |hold: &HoldInfo| (hold.holder.label.clone(), hold.mode, hold.token);
        for status in [&listed[0], &inspected] {
            let holds: Vec<_> = status.holds.iter().map(show).collect();
            let hold =
                |label: &str, guard: &Guard| (label.to_owned(), guard.mode(), Some(guard.token()));
            let expected = [
                hold("r", &reader),
                hold("u", &upgradable),
                hold("p", &permit),
            ];
            assert_eq!(holds, expected);
            let is_dated = |hold: &HoldInfo| hold.holder.since.is_some();
            assert!(status.holds.iter().all(is_dated));
        }
        // The token of the row is that of the last holder: one of them is broken, and the others stay.
        let other = connect(&db.url()).await;
        assert!(soon(other.break_lock(&name, permit.token())).await.unwrap());
        assert!(!soon(other.break_lock(&name, permit.token())).await.unwrap());
        let status = soon(other.inspect(&name)).await.unwrap();
        assert_eq!(status.holds.len(), 2);
        let ended = soon(permit.release()).await;
        assert_says(ended, ErrorKind::Lost, &["beside"]);
        soon(upgradable.release()).await.unwrap();
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        soon(reader.release()).await.unwrap();
        until_nothing_is_left(db, &name).await;
    }
}

/// A process that takes `name` beside others.
fn reader_process(db: &Db, name: &str, ttl: Duration) -> LockHolder {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lock-holder"));
    command.arg(db.url()).arg(name).args(["--mode", "shared"]);
    command.arg("--ttl").arg(format!("{}ms", ttl.as_millis()));
    LockHolder::spawn(command).unwrap()
}

/// A process that held beside others is gone when its lease is over, and a dead waiter when its place is.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_a_holder_or_a_waiter_costs_a_lease() {
    for db in shared().await {
        let name = name("crash");
        let client = connect(&db.url()).await;
        // The lease that must not end before the crash is longer than a place in the queue.
        let mut dead = reader_process(db, &name, SHORT * 2);
        let token: u64 = soon(dead.held()).await.unwrap();
        // A writer that dies keeps readers out for a while, although a reader holds.
        let mut dead_writer = short_lock_holder(&db.url(), &name);
        soon(dead_writer.expect("waiting")).await.unwrap();
        until("it waits", || db.waiting(&name) == 1).await;
        let mut dead_reader = reader_process(db, &name, SHORT);
        soon(dead_reader.expect("waiting")).await.unwrap();
        until("it waits too", || db.waiting(&name) == 2).await;
        dead_writer.kill().unwrap();
        dead_reader.kill().unwrap();
        let reader = soon(client.lock(&name).ttl(TTL).shared().acquire()).await;
        let reader = reader.unwrap();
        assert!(reader.token().get() > token);
        dead.kill().unwrap();
        soon(reader.release()).await.unwrap();
        let writer = soon(client.lock(&name).ttl(TTL).acquire()).await.unwrap();
        // The rows of the dead say nothing about the next holders.
        soon(writer.downgrade()).await.unwrap();
        let status = soon(client.inspect(&name)).await.unwrap();
        assert_eq!(status.holds.len(), 1, "{status:?}");
        soon(writer.release()).await.unwrap();
        until_nothing_is_left(db, &name).await;
    }
}

/// Shared holders are renewed, and the row of the name lasts as long as they do. So does a hold that was
/// acquired beside others and is exclusive now.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_holder_keeps_others_out() {
    for db in shared().await {
        let name = name("renewed");
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        // Long enough to be renewed on a busy machine, and not longer: the test waits for its end.
        let ttl = SHORT * 2;
        let lock = client.lock(&name).ttl(ttl);
        let exclusive = other.lock(&name).ttl(ttl);
        let end = || {
            let until = format!("SELECT until FROM tenure_locks WHERE name='{name}'");
            db.number(&until)
        };
        let ttl = i64::try_from(ttl.as_micros()).unwrap();
        let permit = soon(lock.clone().permits(2).acquire()).await.unwrap();
        let guard = soon(lock.upgradable().acquire()).await.unwrap();
        for is_upgraded in [false, true] {
            if is_upgraded {
                soon(guard.upgrade()).await.unwrap();
            } else {
                assert!(permit.is_held());
            }
            let before = end();
            until("the lease is over and renewed", || end() > before + ttl).await;
            assert!(soon(exclusive.try_acquire()).await.unwrap().is_none());
            assert!(guard.is_held());
            if !is_upgraded {
                assert!(permit.is_held());
                let permits =
                    format!("SELECT MIN(until) FROM tenure_locks_modes WHERE name='{name}'");
                assert!(db.number(&permits) > before);
                let token = permit.token();
                assert!(soon(other.break_lock(&name, token)).await.unwrap());
                soon(permit.lost()).await;
            }
        }
        soon(guard.release()).await.unwrap();
        drop(permit);
        until_nothing_is_left(db, &name).await;
    }
}

/// The places of holders that have ended stay reserved: for their modes, and for exclusive requests.
#[tokio::test(flavor = "multi_thread")]
async fn reserved_places_conflict_as_the_holds_did() {
    for db in shared().await {
        let name = name("reserved");
        let client = connect(&db.url()).await;
        let permits = client.lock(&name).ttl(TTL).permits(1).min_hold(SHORT * 4);
        let first = soon(permits.acquire()).await.unwrap();
        soon(first.release()).await.unwrap();
        let status = soon(client.inspect(&name)).await.unwrap();
        assert!(status.holds.is_empty() && status.reserved.is_some());
        assert!(soon(permits.try_acquire()).await.unwrap().is_none());
        let exclusive = client.lock(&name).ttl(TTL);
        assert!(soon(exclusive.try_acquire()).await.unwrap().is_none());
        let reader = soon(exclusive.clone().shared().try_acquire()).await;
        soon(reader.unwrap().unwrap().release()).await.unwrap();
        let second = soon(permits.acquire()).await.unwrap();
        soon(second.release()).await.unwrap();
        let last = soon(exclusive.acquire()).await.unwrap();
        // The row of the place that was reserved stays until the next request for a shared hold.
        assert_eq!(mode_rows(db, &name, "owner='-0'"), 1);
        soon(last.release()).await.unwrap();
        let reader = soon(exclusive.clone().shared().acquire()).await.unwrap();
        assert_eq!(mode_rows(db, &name, "owner='-0'"), 0);
        soon(reader.release()).await.unwrap();
        until_nothing_is_left(db, &name).await;
    }
}

/// Tables that were made before there were other modes: exclusive locks work, and `init` makes what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn tables_without_modes_are_completed() {
    for db in Db::servers() {
        db.init().await;
        db.rows("DROP TABLE tenure_locks_modes");
        let client = connect(&db.url()).await;
        take_and_release(&client, "x", TTL).await;
        let outcome = soon(client.lock("x").shared().acquire()).await;
        assert_says(
            outcome,
            ErrorKind::Denied,
            &["tenure_locks_modes", "--init"],
        );
        assert_eq!(db.init().await, ["table tenure_locks_modes"]);
        let guard = soon(client.lock("x").shared().acquire()).await.unwrap();
        soon(guard.release()).await.unwrap();
    }
}
