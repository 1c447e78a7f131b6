//! Clients that connect at their first request, and the probe that asks whether a store answers.

use std::time::Duration;

use tenure::{Client, ErrorKind};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::process::Port;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::Redis;
use tenure_testkit::zookeeper::Zookeeper;

/// Longer than a server takes to answer on a machine that is busy.
const SOON: Duration = Duration::from_secs(60);

/// Repeats a request that may find the server away, until it succeeds.
async fn until_ok<T, F: Future<Output = Result<T, tenure::Error>>>(request: impl Fn() -> F) -> T {
    let repeated = async {
        loop {
            match request().await {
                Ok(output) => return output,
                Err(err) => assert!(err.is_retryable(), "{err}"),
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, repeated).await.expect("soon")
}

/// A server that is away when the client is made, and comes later. `url` is its URL at a port.
async fn connects_when_the_server_is_there(port: u16, url: impl Fn(u16) -> String) {
    let away = Port::reserve();
    let proxy = Proxy::tcp(away.number());
    let client = tenure::connect_lazy(&url(proxy.port())).unwrap();
    let lock = client.lock("lazy").wait(SOON);
    for outcome in [client.ping().await, lock.acquire().await.map(drop)] {
        let err = outcome.unwrap_err();
        assert!(err.is_retryable(), "{err:?}");
    }
    proxy.redirect(port);
    proxy.cut();
    until_ok(|| client.ping()).await;
    let guard = until_ok(|| lock.acquire()).await;
    assert!(guard.is_held());
    guard.release().await.unwrap();
    let store = client.guarantees().scheme;
    assert!(
        client.guarantees().setting != "not connected yet",
        "{store}"
    );
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_starts_later() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = |port| format!("{}?restart_guard=off", server.url_by(port));
    connects_when_the_server_is_there(server.port(), url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_that_starts_later() {
    needs!(etcd);
    let server = Etcd::start(1, &[]);
    let port = server.members[0].port();
    let url = |port| server.url_by(&[format!("127.0.0.1:{port}")]);
    connects_when_the_server_is_there(port, url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_that_starts_later() {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let url = |port| format!("zookeeper://127.0.0.1:{port}");
    connects_when_the_server_is_there(server.port(), url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_that_starts_later() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let url = |port| format!("{}?restart_guard=off", server.url_at(port));
    connects_when_the_server_is_there(server.port(), url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_starts_later() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = |port| format!("{}?restart_guard=off", server.url_at(port));
    connects_when_the_server_is_there(server.port(), url).await;
}

#[tokio::test]
async fn a_wrong_url_is_refused_at_once() {
    for (url, says) in [
        ("", "the URL is empty"),
        ("localhost:6379", "redis://localhost:6379"),
        ("db.internal:5432/app", "postgres://db.internal"),
        ("redis", "no scheme"),
        ("hunter2@host:1", "does not begin with a scheme"),
        ("redis://host?color=red", "color"),
        ("rediss://host?tls=off", "tls"),
        ("redlock://a,b", "3, 5 or 7"),
        ("etcd://host/path", "no path"),
        ("zookeeper://host?names=x", "names"),
        ("mysql://host/d?sslmode=require", "tls=on"),
        ("postgresql://host/d?mode=table&color=red", "color"),
        ("sqlite:", "path of a file"),
        ("memory:/x", "takes a name"),
        ("nosuch://host", "no store"),
    ] {
        for outcome in [tenure::connect_lazy(url), tenure::connect(url).await] {
            let err = outcome.unwrap_err();
            let is_wrong = matches!(err.kind(), ErrorKind::Invalid | ErrorKind::Unsupported);
            assert!(is_wrong, "{url}: {err:?}");
            let message = format!("{err:#}");
            assert!(message.contains(says), "{url}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}

#[tokio::test]
async fn schemes_have_other_names_and_may_be_in_upper_case() {
    for url in [
        "postgresql://host/d?tls=off",
        "POSTGRES://host/d?tls=off",
        "mariadb://host/d?tls=off",
        "valkey://host",
        "valkeys://host",
        "Redis://host",
    ] {
        tenure::connect_lazy(url).unwrap();
    }
}

#[tokio::test]
async fn clients_of_a_named_memory_share_a_store() {
    let connect = |url: &'static str| async move { tenure::connect(url).await.unwrap() };
    let (one, other) = (
        connect("memory:shared").await,
        connect("MEMORY:shared").await,
    );
    let apart = [connect("memory:").await, connect("memory:another").await];
    let guard = one.lock("a").acquire().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    for client in &apart {
        assert!(client.lock("a").try_acquire().await.unwrap().is_some());
    }
    guard.release().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
}

/// The file of SQLite is opened at the first request, and the client is closed as any other.
#[tokio::test]
async fn a_lazy_client_of_a_database_file_is_used_and_closed() {
    let folder = std::env::temp_dir().join(format!("tenure-lazy-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let url = format!("sqlite:{}", folder.join("locks.db").display());
    let client: Client = tenure::connect_lazy(&url).unwrap();
    let guard = client.lock("a").acquire().await.unwrap();
    guard.release().await.unwrap();
    client.close().await;
    let err = client.ping().await.unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Closed, "{err}");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Something accepts the connection and says nothing. The store has a minute to answer, and the caller less.
#[tokio::test]
async fn a_wait_is_not_longer_because_the_store_is_silent() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = silent.local_addr().unwrap();
    for url in [
        "redis://AT/?",
        "redis+sentinel://AT/service?",
        "redis+cluster://AT/?",
        "redlock://AT,localhost:1,localhost:2/?",
        "etcd://AT/?",
        "zookeeper://AT/?",
        "mysql://me@AT/d?",
        "mysql://me@AT/d?mode=table&",
        "postgres://me@AT/d?",
        "postgres://me@AT/d?mode=table&",
    ] {
        let url = format!("{url}timeout=60s").replace("AT", &at.to_string());
        let client = tenure::connect_lazy(&url).unwrap();
        let lock = client.lock("a").wait(Duration::from_millis(400));
        let outcome = tokio::time::timeout(SOON / 2, lock.acquire()).await;
        let err = outcome.expect(&url).unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unreachable, "{url}: {err}");
    }
}

/// The forms for threads.
#[test]
fn threads_connect_when_the_server_is_there() {
    needs!(redis);
    let server = Redis::start(&[]);
    let away = Port::reserve();
    let proxy = Proxy::tcp(away.number());
    let url = format!("{}?restart_guard=off", server.url_by(proxy.port()));
    let client = tenure::blocking::connect_lazy(&url).unwrap();
    let refused = client.ping().unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    proxy.redirect(server.port());
    proxy.cut();
    let end = std::time::Instant::now() + SOON;
    while let Err(err) = client.ping() {
        let is_soon = std::time::Instant::now() < end;
        assert!(err.is_retryable() && is_soon, "{err}");
        std::thread::yield_now();
    }
    let guard = client.lock("lazy").acquire().unwrap();
    guard.release().unwrap();
    client.close().unwrap();
    let wrong = tenure::blocking::connect_lazy("redis:").unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Invalid, "{wrong}");
}
