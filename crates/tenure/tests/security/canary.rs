//! The password of a URL must not be visible: not in an error or its sources, not in any printed value, not in a log at
//! any level, on every store that takes a password.

use std::fmt::{Debug, Display};
use std::net::TcpListener;
use std::time::Duration;

use tenure::{Error, Guard};

use crate::logs;
use crate::support::soon;
use tenure_testkit::etcd::{Etcd, base64};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::process::Port;
use tenure_testkit::redis::Redis;
use tenure_testkit::zookeeper::Zookeeper;

/// The user who logs in with [`PASSWORD`].
const USER: &str = "bird";
/// The beginning of the password, which escaping does not change.
const CANARY: &str = "canary-7f3a";
/// The password, with all characters that have a meaning in a URL.
const PASSWORD: &str = "canary-7f3a:@/?#%&+";
/// The password as it is written in a URL.
const ESCAPED: &str = "canary-7f3a%3A%40%2F%3F%23%25%26%2B";

/// The form in which the text contains the password; `None` if it does not.
pub(crate) fn find_password(text: &str) -> Option<&'static str> {
    let list: Vec<_> = CANARY.bytes().map(|byte| byte.to_string()).collect();
    let hex = |byte: u8| format!("{byte:02x}");
    let hex: String = CANARY.bytes().map(hex).collect();
    // Base64 depends on the position of the first byte among three; characters that also depend on the neighbours are
    // left out.
    let coded = |before: &str, from: usize| {
        let coded = base64(format!("{before}{CANARY}").as_bytes());
        coded[from..12].to_owned()
    };
    let shapes = [
        ("the password", CANARY.to_owned()),
        ("its bytes", list.join(", ")),
        ("its bytes in hex", hex),
        ("its base64", coded("", 0)),
        ("its base64", coded("x", 2)),
        ("its base64", coded("xx", 3)),
    ];
    let mut shapes = shapes.into_iter();
    let found = shapes.find(|(_, shape)| text.contains(shape));
    found.map(|(what, _)| what)
}

#[test]
fn the_search_finds_every_form() {
    for text in [
        format!("x{PASSWORD}x"),
        ESCAPED.to_owned(),
        format!("{:?}", PASSWORD.as_bytes()),
        base64(PASSWORD.as_bytes()),
        base64(format!("b:{PASSWORD}").as_bytes()),
        base64(format!("bird:{PASSWORD}").as_bytes()),
        base64(format!("\0bird\0{PASSWORD}").as_bytes()),
    ] {
        assert!(find_password(&text).is_some(), "{text}");
    }
    assert_eq!(find_password("canary"), None);
}

#[track_caller]
fn assert_no_password(what: &str, text: &str) {
    if let Some(why) = find_password(text) {
        panic!("{what} shows {why}: {text}");
    }
}

#[track_caller]
fn assert_debug_has_no_password(what: &str, shown: &dyn Debug) {
    assert_no_password(what, &format!("{shown:?}"));
    assert_no_password(what, &format!("{shown:#?}"));
}

/// Prints the error and its sources in every way, and asserts that none of the texts contains the password.
#[track_caller]
fn assert_error_has_no_password<T: Debug>(what: &str, outcome: Result<T, Error>) -> Error {
    let err = outcome.expect_err(what);
    assert_no_password(what, &format!("{err:#}"));
    assert_debug_has_no_password(what, &err);
    let mut source = std::error::Error::source(&err);
    while let Some(inner) = source {
        assert_no_password(what, &inner.to_string());
        assert_debug_has_no_password(what, inner);
        source = inner.source();
    }
    err
}

#[track_caller]
fn assert_text_has_no_password(what: &str, shown: &(impl Debug + Display)) {
    assert_no_password(what, &shown.to_string());
    assert_debug_has_no_password(what, shown);
}

/// The schemes whose URLs take a password.
const SCHEMES: &[&str] = &[
    "redis",
    "rediss",
    "redis+sentinel",
    "redis+cluster",
    "redlock",
    "etcd",
    "etcds",
    "zookeeper",
    "mysql",
    "postgres",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_is_wrong() {
    logs::record();
    let mut urls = Vec::new();
    for scheme in SCHEMES {
        for rest in [
            // Another part of the URL is wrong.
            "//bird:{escaped}@",
            "//bird:{escaped}@:7",
            "//bird:{escaped}@host:port",
            "//bird:{escaped}@host:70000",
            "//bird:{escaped}@[::1",
            "//bird:{escaped}@a,,b",
            "//bird:{escaped}@a,b/x?nothing=like&this=1",
            "//bird:{escaped}@host/%zz",
            "//bird:{escaped}@host/%ff",
            "//bird:{escaped}@host?color=red",
            "//bird:{escaped}@host?timeout=never",
            "//bird:{escaped}@host?timeout",
            "//bird:{escaped}@host?timeout=1s&timeout=1s",
            "//bird:{escaped}@host?ca=/nowhere",
            "//bird:{escaped}@host?tls=maybe",
            "//bird:{escaped}@host?tls=on&ca=/nowhere",
            // The password is not escaped, or not completely.
            "//bird:{password}",
            "//bird:{password}@",
            "//bird:{password}@host",
            "//bird:1?{password}@host",
            "//:p@ss?{password}@host/",
            "//bird:p@ss?s={password}@host/1",
            "//bird:p@ss?{escaped}@host/",
            "//bird:p@ss?se={escaped}&x@host/1",
            "//bird:p@ss?{escaped}=cret@host/1",
            "//bird:1?x={password}@host",
            "//bird:1?{password}=x@host",
            "//bird:{escaped}%@host",
            "//bird:{escaped}%zz@host",
            "//bird:{escaped}%ff@host",
            // The password is in another place.
            ":{escaped}",
            "bird:{escaped}@host",
            "/bird:{escaped}@host",
            "/bird:{escaped}@host?x=http://a,b",
            "//host?password={escaped}",
            "//host?sentinel_password={escaped}&color=red",
            "//host?sentinel_user=x&sentinel_password={escaped}",
        ] {
            let rest = rest.replace("{escaped}", ESCAPED);
            urls.push(format!("{scheme}:{}", rest.replace("{password}", PASSWORD)));
        }
    }
    for rest in ["password={}", "x&{}", "x={}"] {
        for scheme in ["file:/tmp/x", "sqlite:/tmp/x", "memory:"] {
            let rest = rest.replace("{}", ESCAPED);
            // These stores have no login. A password can only be the value of an option.
            if !rest.starts_with("x&") {
                urls.push(format!("{scheme}?{rest}"));
            }
        }
    }
    urls.push(format!("bird:{PASSWORD}@host"));
    urls.push(format!("nothing://bird:{ESCAPED}@host"));
    let mut joined = tokio::task::JoinSet::new();
    for url in urls {
        joined.spawn(async move {
            // Some of these URLs are right, but this host does not exist.
            let url = url.replace("@host", "@host.invalid");
            let outcome = soon(tenure::connect(&url)).await;
            if let Ok(client) = outcome {
                panic!("{url}: {client:?}");
            }
            assert_error_has_no_password(&url, outcome);
        });
    }
    while let Some(outcome) = joined.join_next().await {
        outcome.unwrap();
    }
    logs::assert_no_password();
}

/// Options with short time limits, by scheme.
fn options(scheme: &str) -> &'static str {
    match scheme {
        "zookeeper" => "/birds?ttl=2s&timeout=500ms",
        "etcd" | "etcds" => "?timeout=500ms",
        "mysql" | "postgres" => "/locks?timeout=500ms",
        "redis+sentinel" => "/service?timeout=500ms",
        _ => "/?timeout=500ms&restart_guard=off",
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_none() {
    logs::record();
    let closed = Port::reserve();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let other_port = other.local_addr().unwrap().port();
    std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        for mut stream in other.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
            });
        }
    });
    let ports = [
        closed.number(),
        silent.local_addr().unwrap().port(),
        other_port,
    ];
    let mut joined = tokio::task::JoinSet::new();
    for scheme in SCHEMES {
        for port in ports {
            let at = format!("127.0.0.1:{port}");
            let hosts = match *scheme {
                "redlock" => format!("{at},localhost:{port},127.0.0.2:{port}"),
                _ => at,
            };
            let options = options(scheme);
            let url = format!("{scheme}://{USER}:{ESCAPED}@{hosts}{options}");
            joined.spawn(async move {
                match soon(tenure::connect(&url)).await {
                    Err(err) => drop(assert_error_has_no_password::<()>(&url, Err(err))),
                    // Some clients connect at their first request.
                    Ok(client) => {
                        assert_debug_has_no_password(&url, &client);
                        let lock = client.lock("x").wait(Duration::from_millis(500));
                        assert_error_has_no_password(&url, soon(lock.acquire()).await);
                        assert_error_has_no_password(&url, soon(client.list("")).await);
                    }
                }
            });
        }
    }
    while let Some(outcome) = joined.join_next().await {
        outcome.unwrap();
    }
    logs::assert_no_password();
}

/// A server that lets [`USER`] in with [`PASSWORD`].
struct Server {
    scheme: &'static str,
    port: u16,
    /// Options in addition to those of the scheme.
    options: &'static str,
    kill: Box<dyn FnOnce() + Send>,
}

impl Server {
    fn url(&self, password: &str) -> String {
        let (scheme, port) = (self.scheme, self.port);
        let options = options(scheme).replace("500ms", "3s") + self.options;
        format!("{scheme}://{USER}:{password}@127.0.0.1:{port}{options}")
    }
}

/// Prints everything that a client returns, from `connect` to `close`.
async fn a_client_prints_no_password(server: Server) {
    logs::record();
    // ZooKeeper has no wrong passwords: another password is another user.
    if server.scheme != "zookeeper" {
        for wrong in [format!("{ESCAPED}x"), format!("x{ESCAPED}")] {
            let outcome = soon(tenure::connect(&server.url(&wrong))).await;
            assert_error_has_no_password("a wrong password", outcome);
        }
    }
    let client = soon(tenure::connect(&server.url(ESCAPED))).await.unwrap();
    let other = soon(tenure::connect(&server.url(ESCAPED))).await.unwrap();
    assert_debug_has_no_password("a client", &client);
    assert_debug_has_no_password("promises", client.guarantees());
    // `init` fails for a user who may not create tables; the test needs no tables of its own.
    if let Err(err) = soon(client.init()).await {
        assert_error_has_no_password::<()>("init", Err(err));
    }
    for finding in soon(client.check()).await.unwrap() {
        assert_debug_has_no_password("a finding", &finding);
    }
    let ttl = Duration::from_secs(6);
    let lock = client.lock("x").ttl(ttl);
    assert_debug_has_no_password("a lock", &lock);
    let guard: Guard = soon(lock.acquire()).await.unwrap();
    assert_debug_has_no_password("a guard", &guard);
    let busy = other.lock("x").ttl(ttl).wait(Duration::from_millis(200));
    assert_error_has_no_password("busy", soon(busy.acquire()).await);
    let status = soon(other.inspect("x")).await.unwrap();
    assert_debug_has_no_password("a status", &status);
    for hold in &status.holds {
        assert_text_has_no_password("a holder", &hold.holder);
    }
    match soon(other.list("")).await {
        Ok(list) => assert_debug_has_no_password("a list", &list),
        Err(err) => drop(assert_error_has_no_password::<()>("a list", Err(err))),
    }
    assert_error_has_no_password("no name", soon(client.lock("").acquire()).await);
    other.close().await;
    assert_error_has_no_password("closed", soon(other.lock("x").acquire()).await);

    (server.kill)();
    let reason = soon(guard.lost()).await.unwrap();
    assert_text_has_no_password("a loss", &reason);
    assert_debug_has_no_password("a guard that was lost", &guard);
    let lost = assert_error_has_no_password("lost", soon(guard.release()).await);
    // The panic message is that of `unwrap`.
    let panicking = std::panic::AssertUnwindSafe(move || panic!("{lost:?}"));
    let panicked = std::panic::catch_unwind(panicking);
    let panicked = panicked.unwrap_err();
    assert_no_password("a panic", panicked.downcast_ref::<String>().unwrap());
    let gone = client.lock("x").ttl(ttl).wait(Duration::from_millis(200));
    assert_error_has_no_password("a dead server", soon(gone.acquire()).await);
    assert_error_has_no_password("a dead server", soon(client.inspect("x")).await);
    assert_error_has_no_password("a dead server", soon(client.list("")).await);
    assert_error_has_no_password("a dead server", soon(client.break_lock("x", 1_u64)).await);
    if let Err(err) = soon(client.check()).await {
        assert_error_has_no_password::<()>("a dead server", Err(err));
    }
    assert_debug_has_no_password("a client of a dead server", &client);
    client.close().await;
    logs::assert_no_password();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_redis() {
    needs!(redis);
    for options in ["", "&dialect=redisson"] {
        let redis = Redis::start_secured(&[]);
        let word = format!(">{PASSWORD}");
        redis.order(&["ACL", "SETUSER", USER, "on", &word, "~*", "&*", "+@all"]);
        a_client_prints_no_password(Server {
            scheme: "redis",
            port: redis.port(),
            options,
            kill: Box::new(move || redis.kill()),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_etcd() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let user = serde_json::json!({ "name": USER, "password": PASSWORD });
    etcd.order("auth/user/add", &user);
    let role = serde_json::json!({ "user": USER, "role": "locks" });
    etcd.order("auth/user/grant", &role);
    a_client_prints_no_password(Server {
        scheme: "etcd",
        port: etcd.members[0].port(),
        options: "",
        kill: Box::new(move || etcd.members[0].kill()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_zookeeper() {
    needs!(zookeeper);
    let zookeeper = Zookeeper::start(&[]);
    a_client_prints_no_password(Server {
        scheme: "zookeeper",
        port: zookeeper.port(),
        options: "",
        kill: Box::new(move || zookeeper.kill()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_mysql() {
    needs!(mariadb);
    for options in ["&restart_guard=off", "&mode=table"] {
        let mariadb = MariaDb::start(&[]);
        mariadb.admin().rows(&format!(
            "CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON locks.* TO {USER}@'%'"
        ));
        a_client_prints_no_password(Server {
            scheme: "mysql",
            port: mariadb.port(),
            options,
            kill: Box::new(move || mariadb.kill()),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_postgres() {
    needs!(postgres);
    for options in ["&restart_guard=off", "&mode=table"] {
        let postgres = Postgres::start(&[]);
        let operator = postgres.admin();
        operator.rows(&format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"));
        postgres
            .database_admin()
            .rows(&format!("GRANT ALL ON SCHEMA public TO {USER}"));
        a_client_prints_no_password(Server {
            scheme: "postgres",
            port: postgres.port(),
            options,
            kill: Box::new(move || postgres.kill()),
        })
        .await;
    }
}
