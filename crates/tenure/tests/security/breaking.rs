//! Which accounts can end the lock of another user: the table in docs/security.md, tried by accounts that have the
//! right and by accounts that do not have it.

use std::time::Duration;

use serde_json::json;
use tenure::{Client, Guard};

use crate::common::{connect, soon, take, until};
use tenure_testkit::PASSWORD;
use tenure_testkit::etcd::{self, Etcd};
use tenure_testkit::mariadb::{DATABASE, MariaDb};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::redis::{Redis, USER};
use tenure_testkit::resp::Value;
use tenure_testkit::sql_client::SqlClient;
use tenure_testkit::zookeeper::Zookeeper;

const TTL: Duration = Duration::from_secs(20);

/// The ttl on stores where a holder learns of the loss by its next renewal.
const SHORT: Duration = Duration::from_secs(5);

const SESSIONS: &str = "tls=off&timeout=3s&restart_guard=off&validate=200ms";

/// The account has no right to end the lock, so the holder still has it.
async fn assert_kept(guard: Guard) {
    assert!(guard.is_held(), "{:?}", guard.state());
    soon(guard.release()).await.unwrap();
}

/// The holder is told of the loss if the account `may` end the lock.
async fn assert_ended(guard: Guard, may: bool) {
    match may {
        true => drop(soon(guard.lost()).await),
        false => assert_kept(guard).await,
    }
}

/// What only one of the two databases understands.
struct Words<'a> {
    /// Statements that lock and unlock the name.
    lock: &'a str,
    unlock: &'a str,
    /// Whether this account could end the connection that has the lock.
    end: &'a dyn Fn(&SqlClient) -> bool,
    is_free: &'a dyn Fn() -> bool,
}

/// `accounts`: each account, and whether it may end the holder's connection.
async fn sessions(
    client: &Client,
    unprivileged: &SqlClient,
    words: Words<'_>,
    accounts: &[(&SqlClient, bool)],
) {
    let Words {
        lock,
        unlock,
        end,
        is_free,
    } = words;
    // A user who may log in may take the name before us.
    unprivileged.rows(lock);
    let tried = soon(client.lock("door").ttl(TTL).try_acquire()).await;
    assert!(tried.unwrap().is_none(), "it is taken");
    unprivileged.rows(unlock);

    for (who, may) in accounts {
        let guard = take(client, "door", TTL).await;
        assert_eq!(end(who), *may);
        assert_ended(guard, *may).await;
        // The server ends the connection before it frees the locks of its session.
        until("the lock is free", is_free).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_mysql() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let root = server.admin();
    root.rows(&format!(
        "CREATE USER unprivileged@'%' IDENTIFIED BY '{PASSWORD}';
         CREATE USER admin@'%' IDENTIFIED BY '{PASSWORD}';
         GRANT CONNECTION ADMIN ON *.* TO admin@'%'"
    ));
    let [unprivileged, admin, same] =
        ["unprivileged", "admin", USER].map(|user| server.client_as(user));
    let client = connect(&format!("{}?{SESSIONS}", server.url())).await;
    let end = |who: &SqlClient| {
        let connection = root.value("SELECT IS_USED_LOCK('door')");
        who.try_rows(&format!("KILL {connection}")).is_ok()
    };
    let words = Words {
        lock: "DO GET_LOCK('door', 0)",
        unlock: "DO RELEASE_LOCK('door')",
        end: &end,
        is_free: &|| root.value("SELECT CAST(IS_FREE_LOCK('door') AS CHAR)") == "1",
    };
    let accounts = [(&unprivileged, false), (&admin, true), (&same, true)];
    sessions(&client, &unprivileged, words, &accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_in_postgres() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let root = server.database_admin();
    for (role, rest) in [
        ("unprivileged", ""),
        ("signaller", "IN ROLE pg_signal_backend"),
    ] {
        root.rows(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}' {rest}"
        ));
    }
    let [unprivileged, signaller, same] =
        ["unprivileged", "signaller", USER].map(|role| server.database_client_as(role));
    let client = connect(&format!("{}?{SESSIONS}", server.url())).await;
    let guard = take(&client, "door", TTL).await;
    let key = root.value(
        "SELECT ((classid::bigint << 32) | objid::bigint)::text FROM pg_locks
         WHERE locktype = 'advisory' AND objsubid = 1",
    );
    assert_kept(guard).await;
    let end = |who: &SqlClient| {
        let session =
            root.value("SELECT pid::text FROM pg_locks WHERE locktype = 'advisory' AND granted");
        who.try_rows(&format!("SELECT pg_terminate_backend({session})::text"))
            .is_ok()
    };
    let [lock, unlock] =
        ["lock", "unlock"].map(|what| format!("SELECT pg_advisory_{what}({key})::text"));
    let locks = "SELECT pid::text FROM pg_locks WHERE locktype = 'advisory'";
    let words = Words {
        lock: &lock,
        unlock: &unlock,
        end: &end,
        is_free: &|| root.rows(locks).is_empty(),
    };
    let accounts = [(&unprivileged, false), (&signaller, true), (&same, true)];
    sessions(&client, &unprivileged, words, &accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_etcd() {
    needs!(etcd);
    let server = Etcd::start_secured(&[]);
    let unprivileged = json!({ "name": "unprivileged", "password": PASSWORD });
    server.order("auth/user/add", &unprivileged);
    let client = connect(&server.url()).await;
    for (who, may) in [("unprivileged", false), (USER, true)] {
        for revokes in [false, true] {
            let guard = take(&client, "door", TTL).await;
            let key = &server.keys("door")[0];
            let answer = match revokes {
                true => {
                    let lease = json!({ "ID": key.lease.to_string() });
                    server.order_as(who, "lease/revoke", &lease)
                }
                false => {
                    let key = json!({ "key": etcd::base64(key.key.as_bytes()) });
                    server.order_as(who, "kv/deleterange", &key)
                }
            };
            let is_done = answer.get("error").is_none();
            assert_eq!(is_done, may, "{who}, revokes: {revokes}: {answer}");
            assert_ended(guard, may).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_in_zookeeper() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let (port, own) = (server.port(), format!("{USER}:{PASSWORD}"));
    let ends = |login: Option<&str>, root: &str| {
        let dir = format!("{root}/door");
        let node = server.session_as(Some(&own)).children(&dir).remove(0);
        server.session_as(login).delete(&format!("{dir}/{node}"))
    };
    let guarded = format!("zookeeper://{own}@127.0.0.1:{port}/guarded?ttl=20s&timeout=3s");
    let open = format!("zookeeper://127.0.0.1:{port}/open?ttl=20s&timeout=3s");
    for (url, root, login, may) in [
        (&guarded, "/guarded", None, false),
        (&guarded, "/guarded", Some("unprivileged:password"), false),
        (&guarded, "/guarded", Some(own.as_str()), true),
        (&open, "/open", None, true),
    ] {
        let client = connect(url).await;
        let guard = take(&client, "door", TTL).await;
        assert_eq!(ends(login, root), may, "{login:?} in {root}");
        assert_ended(guard, may).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_in_redis() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = connect(&format!("{}?prefix=jobs:&restart_guard=off", server.url())).await;
    for (who, rules, ends, may) in [
        (
            "tenant",
            "~other:* +@all -@dangerous",
            "DEL jobs:door",
            false,
        ),
        (
            "reader",
            "%R~jobs:* +@all -@dangerous",
            "DEL jobs:door",
            false,
        ),
        ("writer", "~jobs:* +del", "DEL jobs:door", true),
        ("flusher", "~other:* +flushall", "FLUSHALL", true),
    ] {
        let words = format!("ACL SETUSER {who} on >{PASSWORD} {rules}");
        server.order(&words.split(' ').collect::<Vec<_>>());
        let guard = take(&client, "door", SHORT).await;
        let mut connection = server.connection();
        let login = connection.ask(&["AUTH", who, PASSWORD]).unwrap();
        assert!(!matches!(login, Value::Error(_)), "{login:?}");
        let words: Vec<_> = ends.split(' ').collect();
        let answer = connection.ask(&words).unwrap();
        let is_done = !matches!(answer, Value::Error(_));
        assert_eq!(is_done, may, "{who}: {answer:?}");
        assert_ended(guard, may).await;
    }
}

/// `table`: its name in a statement. `accounts`: each account, and whether it may write the row.
async fn rows(url: &str, table: &str, grant: impl FnOnce(), accounts: &[(&SqlClient, bool)]) {
    let client = connect(&format!("{url}?mode=table&tls=off&timeout=3s")).await;
    soon(client.init()).await.unwrap();
    grant();
    for (who, may) in accounts {
        let guard = take(&client, "door", SHORT).await;
        let ended = who.try_rows(&format!("UPDATE {table} SET until=0 WHERE name='door'"));
        assert_eq!(ended.is_ok(), *may, "{ended:?}");
        assert_ended(guard, *may).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_in_mysql() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let (root, table) = (server.admin(), format!("{DATABASE}.tenure_locks"));
    for who in ["unprivileged", "reader", "writer"] {
        root.rows(&format!("CREATE USER {who}@'%' IDENTIFIED BY '{PASSWORD}'"));
    }
    let grant = || {
        root.rows(&format!("GRANT SELECT ON {table} TO reader@'%'"));
        root.rows(&format!("GRANT SELECT, UPDATE ON {table} TO writer@'%'"));
    };
    let [unprivileged, reader, writer, same] =
        ["unprivileged", "reader", "writer", USER].map(|user| server.client_as(user));
    let accounts = [
        (&unprivileged, false),
        (&reader, false),
        (&writer, true),
        (&same, true),
    ];
    rows(&server.url(), &table, grant, &accounts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_in_postgres() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let root = server.database_admin();
    for who in ["unprivileged", "reader", "writer"] {
        root.rows(&format!("CREATE ROLE {who} LOGIN PASSWORD '{PASSWORD}'"));
    }
    let grant = || {
        root.rows("GRANT SELECT ON tenure_locks TO reader");
        root.rows("GRANT SELECT, UPDATE ON tenure_locks TO writer");
    };
    let [unprivileged, reader, writer, same] =
        ["unprivileged", "reader", "writer", USER].map(|role| server.database_client_as(role));
    let accounts = [
        (&unprivileged, false),
        (&reader, false),
        (&writer, true),
        (&same, true),
    ];
    rows(&server.url(), "tenure_locks", grant, &accounts).await;
}
