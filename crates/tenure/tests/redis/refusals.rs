//! Servers that are not there, not ready, or would not have us: one clear line, of the right kind,
//! without the password.

use tenure::ErrorKind::{Denied, Invalid, Store, Unreachable};
use tenure::store::Severity;

use crate::support::{
    TRUSTED, TTL, assert_clear, assert_says, client_of, connect, keys, owner, soon, start_acquire,
    take, take_and_release, until, waiting,
};
use tenure_testkit::needs;
use tenure_testkit::network::Network;
use tenure_testkit::process::new_directory;
use tenure_testkit::redis::{Cluster, PASSWORD, Redis, SentinelSetup, USER};

#[tokio::test(flavor = "multi_thread")]
async fn the_password_is_missing_wrong_or_too_much() {
    needs!(redis);
    let secured = Redis::start_secured(&[]);
    let at = secured.address();
    let refused = soon(tenure::connect(&format!("redis://{at}/"))).await;
    assert_says(refused, Denied, &[&at, "password"]);
    let wrong = format!("redis://{USER}:x{PASSWORD}@{at}/");
    assert_says(
        soon(tenure::connect(&wrong)).await,
        Denied,
        &[&at, "password"],
    );
    let wrong = format!("redis://:x{PASSWORD}@{at}/");
    assert_says(
        soon(tenure::connect(&wrong)).await,
        Denied,
        &[&at, "password"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_may_not_do_what_a_lock_needs() {
    needs!(redis);
    let server = Redis::start_secured(&[]);
    for (rules, connects) in [
        (&["~*", "&*", "+@all", "-@scripting"][..], true),
        (&["~other:*", "&*", "+@all"], true),
        (&["~*", "resetchannels", "+@all"], false),
    ] {
        let all = [
            &["ACL", "SETUSER", "weak", "reset", "on", ">weak-word"],
            rules,
        ]
        .concat();
        server.order(&all);
        let url = format!("redis://weak:weak-word@{}/{TRUSTED}", server.address());
        let connected = soon(tenure::connect(&url)).await;
        assert_eq!(connected.is_ok(), connects, "{rules:?}: {connected:?}");
        let outcome = match connected {
            Ok(client) => soon(client.lock("x").ttl(TTL).acquire()).await.map(drop),
            Err(err) => Err(err),
        };
        let text = format!("{outcome:?}");
        assert!(!text.contains("weak-word"), "{text}");
        assert_says(outcome, Denied, &["user"]);
        assert_eq!(keys(&server), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_keeps_no_locks() {
    needs!(redis);
    let primary = Redis::start(&[]);
    let replica = Redis::start(&[&format!("replicaof 127.0.0.1 {}", primary.port())]);
    let url = format!("{}{TRUSTED}", replica.url());
    assert_says(
        soon(tenure::connect(&url)).await,
        Unreachable,
        &[&replica.address(), "replica"],
    );

    // It becomes one under our feet.
    let other = Redis::start(&[]);
    let client = client_of(&other).await;
    let guard = take(&client, "held", TTL).await;
    other.order(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    for _ in 0..2 {
        let refused = soon(client.lock("new").ttl(TTL).try_acquire()).await;
        assert_says(refused, Unreachable, &["replica"]);
    }
    soon(guard.lost()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_is_full() {
    needs!(redis);
    let server = Redis::start(&["maxmemory-policy noeviction"]);
    let client = client_of(&server).await;
    let guard = take(&client, "held", TTL).await;
    let reader = client.lock("read").ttl(TTL).shared();
    let reader = soon(reader.acquire()).await.unwrap();
    let (handed, other) = (take(&client, "handed", TTL).await, client_of(&server).await);
    let next = start_acquire(other.lock("handed").ttl(TTL));
    until("one waits", || waiting(&server, "handed") == 1).await;
    server.order(&["CONFIG", "SET", "maxmemory", "1mb"]);
    let full = server.ask(&["SET", "filler", "x"]).text();
    assert!(full.starts_with("OOM"), "{full}");
    // Before the waiter has to keep its place, which needs memory.
    soon(handed.release()).await.unwrap();
    soon(soon(next).await.unwrap().unwrap().release())
        .await
        .unwrap();
    for waits in [false, true] {
        let lock = client.lock("new").ttl(TTL);
        let refused = match waits {
            false => soon(lock.try_acquire()).await.map(drop),
            true => soon(lock.acquire()).await.map(drop),
        };
        assert_says(refused, Store, &["memory", "maxmemory"]);
    }
    // What needs no memory goes on.
    tokio::time::sleep(TTL * 2).await;
    for held in [guard, reader] {
        assert!(held.is_held(), "{:?}", held.state());
        soon(held.release()).await.unwrap();
    }
    assert_eq!(owner(&server, "held"), "");
    server.order(&["CONFIG", "SET", "maxmemory", "0"]);
    take_and_release(&client, "new", TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_cannot_save() {
    needs!(redis);
    let gone = new_directory("gone");
    let server = Redis::start(&["save 3600 1", &format!("dir {}", gone.display())]);
    let client = client_of(&server).await;
    std::fs::remove_dir_all(&gone).unwrap();
    server.order(&["SET", "k", "v"]);
    server.order(&["BGSAVE"]);
    until("the server gives up saving", || {
        server.info_is("persistence", "rdb_last_bgsave_status", "err")
    })
    .await;
    let refused = soon(client.lock("x").ttl(TTL).acquire()).await;
    assert_says(refused, Store, &["save"]);
    server.order(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    take_and_release(&client, "x", TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn something_else_lies_under_the_name() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    for (make, kind) in [
        (&["LPUSH", "x", "a"][..], "list"),
        (&["SADD", "x", "a"], "set"),
        (&["HSET", "x", "a", "b"], "hash"),
        (&["ZADD", "x", "1", "a"], "zset"),
        (&["XADD", "x", "*", "a", "b"], "stream"),
    ] {
        server.order(make);
        let before = server.ask(&["DUMP", "x"]);
        for waits in [false, true] {
            let lock = client.lock("x").ttl(TTL);
            let refused = match waits {
                false => soon(lock.try_acquire()).await.map(drop),
                true => soon(lock.acquire()).await.map(drop),
            };
            assert_says(refused, Store, &[kind, "x"]);
        }
        assert_eq!(server.ask(&["DUMP", "x"]), before, "{kind}");
        assert_eq!(keys(&server), ["x"]);
        server.order(&["DEL", "x"]);
    }
    // A string is a lock, also one that another program wrote.
    server.order(&["SET", "x", "somebody"]);
    assert!(
        soon(client.lock("x").try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    // Replaced while we hold it, it is lost, and not deleted by our release.
    server.order(&["DEL", "x"]);
    let guard = take(&client, "x", TTL).await;
    server.order(&["DEL", "x"]);
    server.order(&["HSET", "x", "a", "b"]);
    soon(guard.lost()).await;
    assert!(soon(guard.release()).await.is_err());
    assert_eq!(server.ask(&["TYPE", "x"]).text(), "hash");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_cluster_is_no_server_of_its_own() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let url = format!("{}{TRUSTED}", cluster.nodes[0].url());
    match soon(tenure::connect(&url)).await {
        Err(err) => assert_says::<()>(Err(err), Invalid, &["redis+cluster://"]),
        Ok(client) => {
            for name in ["a", "b", "c", "d", "e", "f"] {
                if let Err(err) = soon(client.lock(name).ttl(TTL).try_acquire()).await {
                    return assert_says::<()>(Err(err), Invalid, &["redis+cluster://"]);
                }
            }
            panic!("names of all slots are locked in one node of a cluster");
        }
    }
}

/// Real loading, which takes seconds, and in which the server answers now and then. What it says of itself
/// by then is not what it will say: it must not be taken for a server that keeps nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_still_loads_is_not_ready() {
    needs!(redis);
    // The delay, in µs, is for each key; between two answers lie a thousand keys.
    let server = Redis::start(&["appendonly yes", "appendfsync always", "key-load-delay 300"]);
    let url = format!("{}?timeout=5s", server.url());
    let client = connect(&url).await;
    let guard = take(&client, "held", TTL * 10).await;
    let mut connection = server.connection();
    for number in 0..80_000 {
        connection
            .send(&["SET", &format!("filler{number}"), "x"])
            .unwrap();
    }
    for _ in 0..80_000 {
        connection.receive().unwrap();
    }
    server.restart();
    assert_eq!(server.info("persistence", "loading"), "1");
    let fresh = connect_or_none(&url).await;
    for client in [Some(client.clone()), fresh].into_iter().flatten() {
        let refused = soon(client.lock("new").ttl(TTL).try_acquire()).await;
        if server.info_is("persistence", "loading", "1") {
            assert_says(refused, Unreachable, &["loading"]);
        }
    }
    server.order(&["CONFIG", "SET", "key-load-delay", "0"]);
    until("it has loaded", || {
        server.info_is("persistence", "loading", "0")
    })
    .await;
    // The server has every write, so it is trusted at once, and grants no other client what we hold.
    let next = connect(&url).await;
    assert!(
        soon(next.lock("held").try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    take_and_release(&next, "new", TTL).await;
    take_and_release(&client, "newer", TTL).await;
    assert!(guard.is_held(), "{:?}", guard.state());
    soon(guard.release()).await.unwrap();
}

/// A server that loads may refuse the connection or take it; both are fine if they say so.
async fn connect_or_none(url: &str) -> Option<tenure::Client> {
    match soon(tenure::connect(url)).await {
        Ok(client) => Some(client),
        Err(err) => {
            assert_eq!(err.kind(), Unreachable, "{err}");
            assert_clear(&err);
            None
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_busy_with_a_script_is_not_lost() {
    needs!(redis);
    let server = Redis::start(&["busy-reply-threshold 50"]);
    let client = client_of(&server).await;
    let mut busy = server.connection();
    busy.send(&["EVAL", "while true do end", "0"]).unwrap();
    until("the server is busy", || {
        server.ask(&["PING"]).text().starts_with("BUSY")
    })
    .await;
    let refused = soon(client.lock("x").ttl(TTL).try_acquire()).await;
    assert_says(refused, Unreachable, &["busy"]);
    server.order(&["SCRIPT", "KILL"]);
    until("it is killed", || server.ask(&["PING"]).text() == "PONG").await;
    take_and_release(&client, "x", TTL).await;
}

/// The server says why it closes a connection, before the client has sent anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_says_so() {
    needs!(redis);
    let server = Redis::start(&[]);
    let mut kept = server.connection();
    kept.ask(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    let refused = soon(tenure::connect(&format!("{}{TRUSTED}", server.url()))).await;
    assert_says(refused, Unreachable, &[&server.address(), "maxclients"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_does_not_exist_is_wrong_usage() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = format!("{}{TRUSTED}", server.url()).replace("/?", "/77?");
    assert_says(soon(tenure::connect(&url)).await, Invalid, &["database"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_told_from_a_server() {
    needs!(redis);
    let watched = SentinelSetup::start(60_000);
    let at = watched.sentinels[0].address();
    let refused = soon(tenure::connect(&format!("redis://{at}/"))).await;
    assert_says(refused, Invalid, &[&at, "redis+sentinel://"]);
}

/// A process that connects anew each time would hear of a start that never was.
#[tokio::test(flavor = "multi_thread")]
async fn without_info_the_restart_guard_names_the_missing_right() {
    needs!(redis);
    let server = Redis::start(&[]);
    let user = [
        "ACL", "SETUSER", "weak", "on", "nopass", "~*", "&*", "+@all", "-info",
    ];
    server.order(&user);
    let url = server.url().replace("redis://", "redis://weak:word@");
    let client = connect(&url).await;
    let refused = soon(client.lock("x").ttl(TTL).try_acquire()).await;
    assert_says(refused, Unreachable, &["may not run INFO", "+info"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_protected_mode_says_so() {
    needs!(redis);
    // A client that uses the loopback address is served.
    let Some(network) = Network::new(0) else {
        return;
    };
    let server = Redis::start(&["bind 0.0.0.0", "protected-mode yes"]);
    let url = format!("redis://{}:{}{TRUSTED}", network.here, server.port());
    let refused = soon(tenure::connect(&url)).await;
    assert_says(refused, Denied, &[&network.here, "protected mode"]);
}

/// A check tries what a grant does.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_that_no_lock_can_be_taken() {
    needs!(redis);
    let server = Redis::start(&[]);
    let bad = async |url: &str| {
        let client = connect(url).await;
        let findings = soon(client.check()).await.unwrap();
        let bad = findings
            .into_iter()
            .filter(|it| it.severity == Severity::Bad);
        bad.map(|it| it.text).collect::<Vec<_>>().join("\n")
    };
    let url = format!("{}{TRUSTED}", server.url());
    assert_eq!(bad(&url).await, "");
    for right in ["-@scripting", "-set", "resetkeys", "-publish"] {
        let user = [
            "ACL", "SETUSER", "weak", "reset", "on", "nopass", "~*", "&*", "+@all", right,
        ];
        server.order(&user);
        let url = url.replace("redis://", "redis://weak:word@");
        let found = bad(&url).await;
        assert!(found.contains("docs/stores/redis.md"), "{right}: {found}");
    }
    server.order(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(bad(&url).await.contains("min-replicas-to-write"));
    server.order(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    server.order(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(bad(&url).await.contains("maxmemory"));
}
