//! What a lock in a transaction is.

use std::sync::{Arc, Mutex};

use sqlx::Pool;
use tenure::ErrorKind;
use tenure::sql::{init, lock_in_tx};
use tokio::sync::oneshot;

use crate::support::{
    Bank, account, assert_says, balance, bank, name, on_each, read, send_connection_number, soon,
    until, until_waits, write,
};

on_each!(
    tables_are_made_once_and_never_silently,
    it_is_held_until_commit,
    it_is_held_until_rollback,
    taking_it_again_is_free,
    numbers_grow_over_rollbacks,
    numbers_grow_in_the_order_of_grants,
    other_names_do_not_wait,
    names_are_distinguished,
    init_creates_nothing_if_all_is_there,
    a_read_only_transaction_is_reported,
    a_missing_table_is_reported_with_its_cure,
    what_was_read_before_is_not_hidden,
);

async fn tables_are_made_once_and_never_silently<DB: Bank>() {
    let pool = DB::connect(DB::port(), 8).await;
    let many = (0..8).map(|_| {
        let pool = pool.clone();
        tokio::spawn(async move { init(&pool).await })
    });
    for made in many.collect::<Vec<_>>() {
        soon(made).await.unwrap().unwrap();
    }
    // A transaction does as well.
    let mut tx = pool.begin().await.unwrap();
    init(&mut tx).await.unwrap();
}

/// Another transaction waits until this one ends.
async fn commit_order<DB: Bank>(pool: &Pool<DB>, commit: bool) {
    let (lock, id) = (name("lock"), account(pool).await);
    let mut first = DB::begin(pool).await;
    let token = lock_in_tx(&mut first, &lock).await.unwrap();
    write::<DB>(&mut first, &id, 1).await.unwrap();
    let (sender, receiver) = oneshot::channel();
    let second = {
        let (pool, lock, id) = (pool.clone(), lock.clone(), id.clone());
        tokio::spawn(async move {
            let mut tx = DB::begin(&pool).await;
            send_connection_number::<DB>(&mut tx, sender).await;
            let token = lock_in_tx(&mut tx, &lock).await.unwrap();
            let seen = read::<DB>(&mut tx, &id).await.unwrap();
            tx.commit().await.unwrap();
            (token, seen)
        })
    };
    until_waits::<DB>(receiver).await;
    assert!(!second.is_finished());
    if commit {
        first.commit().await.unwrap();
    } else {
        first.rollback().await.unwrap();
    }
    let (later, seen) = soon(second).await.unwrap();
    assert!(later > token, "{later} after {token}");
    assert_eq!(seen, if commit { 1 } else { 100 });
}

async fn it_is_held_until_commit<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    commit_order(&pool, true).await;
}

async fn it_is_held_until_rollback<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    commit_order(&pool, false).await;
}

async fn taking_it_again_is_free<DB: Bank>() {
    let pool = bank::<DB>(2).await;
    let lock = name("lock");
    let mut tx = DB::begin(&pool).await;
    let mut last = None;
    for _ in 0..3 {
        let token = lock_in_tx(&mut tx, &lock).await.unwrap();
        assert!(Some(token) > last, "{token} after {last:?}");
        last = Some(token);
    }
    tx.commit().await.unwrap();
    let mut tx = DB::begin(&pool).await;
    let token = lock_in_tx(&mut tx, &lock).await.unwrap();
    assert!(Some(token) > last);
}

async fn numbers_grow_over_rollbacks<DB: Bank>() {
    let pool = bank::<DB>(2).await;
    let lock = name("lock");
    let mut last = None;
    // Also after the first transaction of all, whose row is gone with it.
    for round in 0..200 {
        let mut tx = DB::begin(&pool).await;
        let token = lock_in_tx(&mut tx, &lock).await.unwrap();
        assert!(Some(token) > last, "round {round}: {token} after {last:?}");
        last = Some(token);
        if round % 7 == 6 {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
    }
}

async fn numbers_grow_in_the_order_of_grants<DB: Bank>() {
    let pool = bank::<DB>(8).await;
    let lock = name("lock");
    // The row exists: the test is about the numbers of transactions that wait behind commits and rollbacks.
    let mut tx = DB::begin(&pool).await;
    lock_in_tx(&mut tx, &lock).await.unwrap();
    tx.commit().await.unwrap();
    let granted = Arc::new(Mutex::new(Vec::new()));
    let workers = (0..8).map(|worker| {
        let (pool, lock, granted) = (pool.clone(), lock.clone(), granted.clone());
        tokio::spawn(async move {
            for round in 0..25 {
                let mut tx = DB::begin(&pool).await;
                let token = lock_in_tx(&mut tx, &lock).await.unwrap();
                granted.lock().unwrap().push(token);
                if (worker + round) % 3 == 0 {
                    tx.commit().await.unwrap();
                } else {
                    tx.rollback().await.unwrap();
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        soon(worker).await.unwrap();
    }
    let granted = granted.lock().unwrap();
    assert_eq!(granted.len(), 200);
    assert!(granted.is_sorted_by(|a, b| a < b), "{granted:?}");
}

async fn other_names_do_not_wait<DB: Bank>() {
    if DB::ONE_WRITER {
        return;
    }
    let pool = bank::<DB>(3).await;
    let (a, b) = (name("lock"), name("lock"));
    let mut first = DB::begin(&pool).await;
    lock_in_tx(&mut first, &a).await.unwrap();
    let mut second = DB::begin(&pool).await;
    soon(lock_in_tx(&mut second, &b)).await.unwrap();
    second.commit().await.unwrap();
    first.commit().await.unwrap();
}

async fn names_are_distinguished<DB: Bank>() {
    let pool = bank::<DB>(2).await;
    let unique = name("lock");
    let long = format!("{unique}{}", "x".repeat(1_000))[..1_000].to_owned();
    let names = [
        unique.clone(),
        unique.to_uppercase(),
        format!("{unique} "),
        format!("{unique}\0"),
        format!("{unique}'; DROP TABLE accounts; --"),
        format!("{unique}é"),
        format!("{unique}e\u{301}"),
        long.clone(),
        format!("{}y", &long[..999]),
    ];
    let mut tx = DB::begin(&pool).await;
    for it in &names {
        lock_in_tx(&mut tx, it).await.unwrap();
    }
    tx.commit().await.unwrap();
    let column = "SELECT COUNT(*) FROM tenure_tx_locks";
    let mut conn = pool.acquire().await.unwrap();
    let count = DB::number(&mut conn, column.into()).await.unwrap();
    assert!(count >= Some(names.len() as i64), "{count:?}");
    drop(conn);
    let mut tx = DB::begin(&pool).await;
    for bad in ["", &"x".repeat(1_001)] {
        let err = lock_in_tx(&mut tx, bad).await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
    }
}

/// At each start of a program: a role that may not create tables is not refused, and no server sends a notice, which the
/// client library would log.
async fn init_creates_nothing_if_all_is_there<DB: Bank>() {
    let pool = bank::<DB>(2).await;
    let mut conn = pool.acquire().await.unwrap();
    let off = only_read::<DB>(&mut conn).await;
    let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
    init(&mut tx).await.unwrap();
    tx.rollback().await.unwrap();
    DB::execute(&mut conn, off.into()).await.unwrap();
    drop(conn.detach());
}

/// Lets this connection only read, and returns the statement that ends that before the connection is closed.
async fn only_read<DB: Bank>(conn: &mut DB::Connection) -> &'static str {
    let (on, off) = if DB::ONE_WRITER {
        ("PRAGMA query_only = 1", "PRAGMA query_only = 0")
    } else {
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "")
    };
    // The error of MySQL has fewer words.
    let on = match DB::NAME {
        "MySQL" => "SET SESSION TRANSACTION READ ONLY",
        _ => on,
    };
    DB::execute(conn, on.into()).await.unwrap();
    off
}

async fn a_read_only_transaction_is_reported<DB: Bank>() {
    let pool = bank::<DB>(2).await;
    let mut conn = pool.acquire().await.unwrap();
    let off = only_read::<DB>(&mut conn).await;
    let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
    let err = lock_in_tx(&mut tx, &name("lock")).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Denied, "{err}");
    assert_says(&err, &["read-only"]);
    tx.rollback().await.unwrap();
    DB::execute(&mut conn, off.into()).await.unwrap();
    drop(conn.detach());
}

async fn a_missing_table_is_reported_with_its_cure<DB: Bank>() {
    // In another schema, another database, another file, which have none of the tables.
    let pool = DB::connect(DB::port(), 2).await;
    let mut conn = pool.acquire().await.unwrap();
    let empty = match DB::NAME {
        "PostgreSQL" => "CREATE SCHEMA IF NOT EXISTS empty; SET search_path = empty",
        "MySQL" => "USE information_schema",
        _ => "",
    };
    DB::execute(&mut conn, empty.into()).await.unwrap();
    let mut tx = sqlx::Connection::begin(&mut *conn).await.unwrap();
    let err = lock_in_tx(&mut tx, &name("lock")).await.unwrap_err();
    if DB::NAME != "MySQL" {
        assert_says(&err, &["tenure::sql::init(&pool)", "missing"]);
        assert_eq!(err.kind(), ErrorKind::Store, "{err}");
        assert_eq!(err.scheme().map(str::is_empty), Some(false));
    }
    drop(tx);
    drop(conn.detach());
}

/// The lock does not protect what the transaction has read before. Where the database notices that, it is an error.
async fn what_was_read_before_is_not_hidden<DB: Bank>() {
    let pool = bank::<DB>(3).await;
    let (lock, id) = (name("lock"), account(&pool).await);
    let begin = match DB::NAME {
        "PostgreSQL" => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        // The default of MySQL.
        _ => "BEGIN",
    };
    let mut first = DB::begin(&pool).await;
    lock_in_tx(&mut first, &lock).await.unwrap();
    first.commit().await.unwrap();
    let mut late = pool.begin_with(begin).await.unwrap();
    assert_eq!(read::<DB>(&mut late, &id).await.unwrap(), 100);
    let mut first = DB::begin(&pool).await;
    lock_in_tx(&mut first, &lock).await.unwrap();
    write::<DB>(&mut first, &id, 1).await.unwrap();
    first.commit().await.unwrap();
    match lock_in_tx(&mut late, &lock).await {
        Ok(_) => assert_eq!(DB::NAME, "MySQL"),
        Err(err) => {
            assert_eq!(err.kind(), ErrorKind::Store, "{err}");
            assert_says(&err, &["changed", "lock before reading"]);
        }
    }
    late.rollback().await.unwrap();
    assert_eq!(balance(&pool, &id).await, 1);
    until("the pool is whole", async || pool.num_idle() > 0).await;
}
