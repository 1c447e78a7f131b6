//! Users who have exactly the rights that the pages of the stores list: these rights suffice, and each of them is
//! needed. (Redis and tables have tests of the same kind beside their other tests.)

use std::time::{Duration, Instant};

use tenure::ErrorKind::{Denied, Unsupported};
use tenure::{Client, Error};

use crate::common::start_acquire;
use crate::support::{assert_says, soon};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::etcd::{Etcd, base64};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::redis::PASSWORD;

/// A busy machine may need a second for a round trip, and a ttl has to be ten times as long.
const TTL: Duration = Duration::from_secs(20);

async fn connect(url: &str) -> Client {
    soon(tenure::connect(url)).await.unwrap()
}

/// All operations of two clients on a lock, up to the first error. Returns the number of listed holds.
async fn everything(first: &Client, second: &Client, name: &str) -> Result<usize, Error> {
    let guard = soon(first.lock(name).ttl(TTL).acquire()).await?;
    let waiter = start_acquire(second.lock(name).ttl(TTL));
    let inspected = soon(second.inspect(name)).await;
    let listed = soon(second.list("")).await;
    soon(guard.release()).await?;
    let guard = soon(waiter).await.unwrap()?;
    assert!(inspected?.is_held());
    if soon(first.break_lock(name, guard.token())).await? {
        soon(guard.lost()).await;
    }
    Ok(listed?.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_on_a_prefix_of_etcd() {
    needs!(etcd);
    let page = include_str!("../../../../docs/stores/etcd.md");
    assert!(page.contains("--prefix=true readwrite PREFIX"));
    let server = Etcd::start_secured(&[]);
    let range = |kind: u8| serde_json::json!({ "permType": kind, "key": base64(b"jobs/"), "range_end": base64(b"jobs0") });
    let user = serde_json::json!({ "name": "jobs", "password": PASSWORD });
    server.order("auth/user/add", &user);
    server.order("auth/role/add", &serde_json::json!({ "name": "jobs" }));
    let both = serde_json::json!({ "user": "jobs", "role": "jobs" });
    server.order("auth/user/grant", &both);
    let (read, write, all) = (0, 1, 2);
    let at = server.members[0].address();
    let url = |prefix: &str| format!("etcd://jobs:{PASSWORD}@{at}?prefix={prefix}&timeout=3s");
    for kind in [read, write, all] {
        let grant = serde_json::json!({ "name": "jobs", "perm": range(kind) });
        server.order("auth/role/grant", &grant);
        let (first, second) = (connect(&url("jobs/")).await, connect(&url("jobs/")).await);
        let outcome = match kind == all {
            true => everything(&first, &second, "x").await,
            false => soon(first.lock("x").ttl(TTL).try_acquire())
                .await
                .map(|_| 0),
        };
        match kind == all {
            true => assert_eq!(outcome.unwrap(), 1),
            false => assert_says("half of it", outcome, Denied, &["docs/stores/etcd.md"]),
        }
    }
    let other = connect(&url("others/")).await;
    let outcome = soon(other.lock("x").ttl(TTL).try_acquire()).await;
    assert_says("another prefix", outcome, Denied, &["docs/stores/etcd.md"]);
}

const GRANTS: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// Locks of sessions: every user who may log in may lock. The four grants are for inspection and `break_lock`.
async fn sessions(url: &str, sql: impl Fn(&str), table: &str, user: &str) {
    let url = format!("{url}?tls=off&timeout=3s&restart_guard=off&validate=200ms");
    // The user has none of the four grants.
    let (first, second) = (connect(&url).await, connect(&url).await);
    let guard = soon(first.lock("plain").ttl(TTL).acquire()).await.unwrap();
    assert!(
        soon(second.lock("plain").try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    soon(guard.release()).await.unwrap();
    let refused = soon(second.list("")).await;
    assert_says("no right", refused, Unsupported, &["tenure_holders"]);

    for missing in GRANTS {
        let others = GRANTS.into_iter().filter(|grant| *grant != missing);
        let others: Vec<_> = others.collect();
        sql(&format!("GRANT {} ON {table} TO {user}", others.join(", ")));
        let (first, second) = (connect(&url).await, connect(&url).await);
        let start = Instant::now();
        // Holders write their rows in the background, so a refusal shows a moment later.
        let err = loop {
            let name = format!("without-{missing}");
            if let Err(err) = everything(&first, &second, &name).await {
                break err;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "{missing} is not needed");
        };
        let is_clear = matches!(err.kind(), Denied | Unsupported);
        assert!(
            is_clear && format!("{err:#}").contains("tenure_holders"),
            "{missing}: {err}"
        );
        first.close().await;
        second.close().await;
        sql(&format!(
            "REVOKE {} ON {table} FROM {user}",
            others.join(", ")
        ));
    }
    sql(&format!("GRANT {} ON {table} TO {user}", GRANTS.join(", ")));
    let (first, second) = (connect(&url).await, connect(&url).await);
    assert_eq!(everything(&first, &second, "all").await.unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_sessions_in_mysql() {
    needs!(mariadb);
    let page = include_str!("../../../../docs/stores/mysql.md");
    assert!(page.contains("`GRANT SELECT, INSERT, UPDATE, DELETE ON DATABASE.tenure_holders`"));
    let server = MariaDb::start(&[]);
    let owner = connect(&format!("{}?restart_guard=off", server.url())).await;
    soon(owner.init()).await.unwrap();
    let operator = server.admin();
    operator.rows(&format!("CREATE USER jobs@'%' IDENTIFIED BY '{PASSWORD}'; CREATE TABLE locks.door (x int); GRANT SELECT ON locks.door TO jobs@'%'"));
    let url = format!("mysql://jobs:{PASSWORD}@127.0.0.1:{}/locks", server.port());
    let sql = |sql: &str| drop(operator.rows(sql));
    sessions(&url, sql, "locks.tenure_holders", "jobs@'%'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_sessions_in_postgres() {
    needs!(postgres);
    let page = include_str!("../../../../docs/stores/postgres.md");
    assert!(page.contains("`GRANT SELECT, INSERT, UPDATE, DELETE ON tenure_holders`"));
    let server = Postgres::start(&[]);
    let owner = connect(&format!("{}?restart_guard=off", server.url())).await;
    soon(owner.init()).await.unwrap();
    let operator = server.database_admin();
    operator.rows(&format!("CREATE ROLE jobs LOGIN PASSWORD '{PASSWORD}'"));
    let url = format!(
        "postgres://jobs:{PASSWORD}@127.0.0.1:{}/locks",
        server.port()
    );
    let sql = |sql: &str| drop(operator.rows(sql));
    sessions(&url, sql, "tenure_holders", "jobs").await;
}
