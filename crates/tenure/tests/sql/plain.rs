//! The fence as text, with other client libraries than ours, and the end of a transaction of another client.

use std::time::Duration;

use sqlx::{MySql, Postgres, Sqlite};
use tenure::sql::{Bind, Dialect, fence_statements};
use tenure::{Client, ErrorKind};
use tokio_postgres::NoTls;

use crate::support::{Bank, POSTGRES, assert_says, bank, locks, name, soon};
use tenure_testkit::needs;

#[allow(dead_code, reason = "its main has no server")]
#[path = "../../examples/after_commit.rs"]
mod after_commit;

/// A function that fences a transaction by the text alone, for one database.
macro_rules! fence_by_text {
    ($function:ident, $db:ty, $dialect:expr) => {
        async fn $function(
            conn: &mut <$db as sqlx::Database>::Connection,
            resource: &str,
            token: u64,
        ) -> Result<(), tenure::Error> {
            let fence = fence_statements($dialect, resource, token)?;
            let (last, before) = fence.statements().split_last().unwrap();
            for statement in before {
                let mut query = sqlx::query(statement.sql);
                for bind in statement.binds.clone() {
                    query = match bind {
                        Bind::Bytes(bytes) => query.bind(bytes),
                        Bind::Integer(number) => query.bind(number),
                    };
                }
                query.execute(&mut *conn).await?;
            }
            let mut query = sqlx::query_scalar(last.sql);
            for bind in last.binds.clone() {
                query = match bind {
                    Bind::Bytes(bytes) => query.bind(bytes),
                    Bind::Integer(number) => query.bind(number),
                };
            }
            fence.check(query.fetch_one(conn).await?)
        }
    };
}

fence_by_text!(postgres, Postgres, Dialect::Postgres);
fence_by_text!(mysql, MySql, Dialect::MySql);
fence_by_text!(sqlite, Sqlite, Dialect::Sqlite);

/// The text and `tenure::sql::fence` share a row: each refuses a token that is older than the one that passed the other.
macro_rules! text_and_function_are_one_fence {
    ($test:ident, $function:ident, $db:ty) => {
        #[tokio::test]
        async fn $test() {
            if <$db as Bank>::skip_unless_installed() {
                return;
            }
            let pool = bank::<$db>(2).await;
            let resource = name("it's a 'name'");
            let mut tx = <$db as Bank>::begin(&pool).await;
            $function(&mut tx, &resource, 5).await.unwrap();
            $function(&mut tx, &resource, 5).await.unwrap();
            tx.commit().await.unwrap();
            let mut tx = <$db as Bank>::begin(&pool).await;
            let err = tenure::sql::fence(&mut tx, &resource, 4_u64)
                .await
                .unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Lost);
            tx.rollback().await.unwrap();
            let mut tx = <$db as Bank>::begin(&pool).await;
            tenure::sql::fence(&mut tx, &resource, 7_u64).await.unwrap();
            tx.commit().await.unwrap();
            let mut tx = <$db as Bank>::begin(&pool).await;
            let err = $function(&mut tx, &resource, 6).await.unwrap_err();
            assert_eq!(err.kind(), ErrorKind::Lost);
            assert_says(&err, &["6 is stale", "7 has written since", &resource]);
            // The refused statement has changed nothing, even if it is committed.
            tx.commit().await.unwrap();
            let mut tx = <$db as Bank>::begin(&pool).await;
            $function(&mut tx, &resource, 7).await.unwrap();
            let too_large = $function(&mut tx, &resource, u64::MAX).await.unwrap_err();
            assert_eq!(too_large.kind(), ErrorKind::Invalid);
            assert!($function(&mut tx, "", 1).await.is_err());
        }
    };
}

text_and_function_are_one_fence!(one_fence_in_postgres, postgres, Postgres);
text_and_function_are_one_fence!(one_fence_in_mysql, mysql, MySql);
text_and_function_are_one_fence!(one_fence_in_sqlite, sqlite, Sqlite);

/// A connection of `tokio-postgres`, and the task that serves it.
async fn connect() -> (tokio_postgres::Client, tokio::task::JoinHandle<()>) {
    let (db, connection) = soon(tokio_postgres::connect(&POSTGRES.url(), NoTls))
        .await
        .unwrap();
    let task = tokio::spawn(async move {
        let _ = connection.await;
    });
    // Tests of this program make the same tables at the same time.
    bank::<Postgres>(1).await;
    (db, task)
}

#[tokio::test]
async fn a_deposit_by_another_client_is_locked_and_fenced() {
    needs!(postgres);
    let (mut db, _task) = connect().await;
    let balances =
        "CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, balance BIGINT NOT NULL)";
    db.batch_execute(balances).await.unwrap();
    let (store, client) = locks();
    let account = name("account");
    for expected in [10, 20] {
        let deposit = after_commit::deposit(&client, &mut db, &account, 10);
        assert_eq!(soon(deposit).await.unwrap(), expected);
        assert!(store.is_idle());
    }
    // A holder that was overtaken is refused, and rolled back.
    let stale = client.lock(&account).acquire().await.unwrap();
    store.expire(&account).unwrap();
    let other = Client::from_store(store.clone()).unwrap();
    let deposit = after_commit::deposit(&other, &mut db, &account, 10);
    assert_eq!(soon(deposit).await.unwrap(), 30);
    let tx = db.transaction().await.unwrap();
    let err = after_commit::fence(&tx, &account, stale.token())
        .await
        .unwrap_err();
    assert!(err.downcast_ref::<tenure::Error>().unwrap().is_lost());
}

#[tokio::test]
async fn a_definite_no_releases_and_a_connection_that_breaks_keeps_the_lock() {
    needs!(postgres);
    let (mut db, task) = connect().await;
    let table = "CREATE TEMPORARY TABLE one (id INT UNIQUE DEFERRABLE INITIALLY DEFERRED)";
    db.batch_execute(table).await.unwrap();
    let (store, client) = locks();
    let guard = client.lock("a").acquire().await.unwrap();
    let tx = db.transaction().await.unwrap();
    tx.batch_execute("INSERT INTO one VALUES (1), (1)")
        .await
        .unwrap();
    let end = async {
        match tx.commit().await {
            Err(err) if after_commit::is_definite(&err) => Ok(Err(err)),
            other => other.map(Ok),
        }
    };
    assert!(soon(guard.after(end)).await.unwrap().is_err());
    assert!(store.is_idle(), "rolled back for certain");

    let guard = client.lock("a").acquire().await.unwrap();
    let tx = db.transaction().await.unwrap();
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let err = soon(guard.after(tx.commit())).await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Indeterminate);
    assert_says(&err, &["it is unknown", "connection closed"]);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    store.advance(Duration::from_secs(31));
    soon(client.lock("a").acquire())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}
