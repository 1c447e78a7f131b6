//! A password that nobody may see: not in an error or in what lies below it, not in anything that can be printed, not
//! in a log at any level. On every store that takes one.

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

/// Who logs in with it.
const USER: &str = "bird";
/// How it begins, which no way of escaping changes.
const CANARY: &str = "canary-7f3a";
/// All of it, with everything that means something in a URL.
const PASSWORD: &str = "canary-7f3a:@/?#%&+";
/// The same as a URL has to have it.
const ESCAPED: &str = "canary-7f3a%3A%40%2F%3F%23%25%26%2B";

/// As what the password is in there, if it is.
pub(crate) fn betrayal(text: &str) -> Option<&'static str> {
    let list: Vec<_> = CANARY.bytes().map(|byte| byte.to_string()).collect();
    let hex = |byte: u8| format!("{byte:02x}");
    let hex: String = CANARY.bytes().map(hex).collect();
    // By the place of its first byte among three; what its neighbours have a part in is left out.
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
fn whoever_searches_finds() {
    for text in [
        format!("x{PASSWORD}x"),
        ESCAPED.to_owned(),
        format!("{:?}", PASSWORD.as_bytes()),
        base64(PASSWORD.as_bytes()),
        base64(format!("b:{PASSWORD}").as_bytes()),
        base64(format!("bird:{PASSWORD}").as_bytes()),
        base64(format!("\0bird\0{PASSWORD}").as_bytes()),
    ] {
        assert!(betrayal(&text).is_some(), "{text}");
    }
    assert_eq!(betrayal("canary"), None);
}

#[track_caller]
fn assert_clean(what: &str, text: &str) {
    if let Some(why) = betrayal(text) {
        panic!("{what} shows {why}: {text}");
    }
}

#[track_caller]
fn assert_shows_nothing(what: &str, shown: &dyn Debug) {
    assert_clean(what, &format!("{shown:?}"));
    assert_clean(what, &format!("{shown:#?}"));
}

/// In every way in which an error can be printed, with all that lies below.
#[track_caller]
fn assert_silent<T: Debug>(what: &str, outcome: Result<T, Error>) -> Error {
    let err = outcome.expect_err(what);
    assert_clean(what, &err.to_string());
    assert_shows_nothing(what, &err);
    let mut source = std::error::Error::source(&err);
    while let Some(inner) = source {
        assert_clean(what, &inner.to_string());
        assert_shows_nothing(what, inner);
        source = inner.source();
    }
    err
}

#[track_caller]
fn assert_prints_nothing(what: &str, shown: &(impl Debug + Display)) {
    assert_clean(what, &shown.to_string());
    assert_shows_nothing(what, shown);
}

/// What takes a password, and what a host of it looks like.
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
    logs::listen();
    let mut urls = Vec::new();
    for scheme in SCHEMES {
        for rest in [
            // Something is wrong beside it.
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
            // Not escaped, or not wholly.
            "//bird:{password}",
            "//bird:{password}@",
            "//bird:{password}@host",
            "//bird:1?{password}@host",
            "//bird:1?x={password}@host",
            "//bird:1?{password}=x@host",
            "//bird:{escaped}%@host",
            "//bird:{escaped}%zz@host",
            "//bird:{escaped}%ff@host",
            // In another place.
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
            // What is not understood there is not for anybody to log in with, and is an option's value at most.
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
            // Some of these are right, and there is no such host.
            let url = url.replace("@host", "@host.invalid");
            let outcome = soon(tenure::connect(&url)).await;
            if let Ok(client) = outcome {
                panic!("{url}: {client:?}");
            }
            assert_silent(&url, outcome);
        });
    }
    while let Some(outcome) = joined.join_next().await {
        outcome.unwrap();
    }
    logs::assert_discreet();
}

/// Options that make things fast, by scheme.
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
    logs::listen();
    let nobody = Port::reserve();
    let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
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
        nobody.number(),
        deaf.local_addr().unwrap().port(),
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
                    Err(err) => drop(assert_silent::<()>(&url, Err(err))),
                    // Some connect when they are first asked.
                    Ok(client) => {
                        assert_shows_nothing(&url, &client);
                        let lock = client.lock("x").wait(Duration::from_millis(500));
                        assert_silent(&url, soon(lock.acquire()).await);
                        assert_silent(&url, soon(client.list("")).await);
                    }
                }
            });
        }
    }
    while let Some(outcome) = joined.join_next().await {
        outcome.unwrap();
    }
    logs::assert_discreet();
}

/// A server that lets [`USER`] in with [`PASSWORD`].
struct Server {
    scheme: &'static str,
    port: u16,
    /// Beside those of the scheme.
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

/// All that a client shows from its first word to its last.
async fn a_life(server: Server) {
    logs::listen();
    // ZooKeeper knows no wrong password: another one is another user.
    if server.scheme != "zookeeper" {
        for wrong in [format!("{ESCAPED}x"), format!("x{ESCAPED}")] {
            let outcome = soon(tenure::connect(&server.url(&wrong))).await;
            assert_silent("a wrong password", outcome);
        }
    }
    let client = soon(tenure::connect(&server.url(ESCAPED))).await.unwrap();
    let other = soon(tenure::connect(&server.url(ESCAPED))).await.unwrap();
    assert_shows_nothing("a client", &client);
    assert_shows_nothing("promises", client.guarantees());
    // A user who may not make tables says so; nothing more is needed of it here.
    if let Err(err) = soon(client.init()).await {
        assert_silent::<()>("init", Err(err));
    }
    for finding in soon(client.check()).await.unwrap() {
        assert_shows_nothing("a finding", &finding);
    }
    let ttl = Duration::from_secs(2);
    let lock = client.lock("x").ttl(ttl);
    assert_shows_nothing("a lock", &lock);
    let guard: Guard = soon(lock.acquire()).await.unwrap();
    assert_shows_nothing("a guard", &guard);
    let busy = other.lock("x").ttl(ttl).wait(Duration::from_millis(200));
    assert_silent("busy", soon(busy.acquire()).await);
    let status = soon(other.inspect("x")).await.unwrap();
    assert_shows_nothing("a status", &status);
    for hold in &status.holds {
        assert_prints_nothing("a holder", &hold.holder);
    }
    match soon(other.list("")).await {
        Ok(list) => assert_shows_nothing("a list", &list),
        Err(err) => drop(assert_silent::<()>("a list", Err(err))),
    }
    assert_silent("no name", soon(client.lock("").acquire()).await);
    other.close().await;
    assert_silent("closed", soon(other.lock("x").acquire()).await);

    (server.kill)();
    let reason = soon(guard.lost()).await;
    assert_prints_nothing("a loss", &reason);
    assert_shows_nothing("a guard that was lost", &guard);
    let lost = assert_silent("lost", soon(guard.release()).await);
    // As `unwrap` does.
    let panicking = std::panic::AssertUnwindSafe(move || panic!("{lost:?}"));
    let panicked = std::panic::catch_unwind(panicking);
    let panicked = panicked.unwrap_err();
    assert_clean("a panic", panicked.downcast_ref::<String>().unwrap());
    let gone = client.lock("x").ttl(ttl).wait(Duration::from_millis(200));
    assert_silent("a dead server", soon(gone.acquire()).await);
    assert_silent("a dead server", soon(client.inspect("x")).await);
    assert_silent("a dead server", soon(client.list("")).await);
    assert_silent("a dead server", soon(client.break_lock("x", 1_u64)).await);
    if let Err(err) = soon(client.check()).await {
        assert_silent::<()>("a dead server", Err(err));
    }
    assert_shows_nothing("a client of a dead server", &client);
    client.close().await;
    logs::assert_discreet();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_with_redis() {
    needs!(redis);
    for options in ["", "&dialect=redisson"] {
        let redis = Redis::start_secured(&[]);
        let word = format!(">{PASSWORD}");
        redis.order(&["ACL", "SETUSER", USER, "on", &word, "~*", "&*", "+@all"]);
        a_life(Server {
            scheme: "redis",
            port: redis.port(),
            options,
            kill: Box::new(move || redis.kill()),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_with_etcd() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let user = serde_json::json!({ "name": USER, "password": PASSWORD });
    etcd.order("auth/user/add", &user);
    let role = serde_json::json!({ "user": USER, "role": "locks" });
    etcd.order("auth/user/grant", &role);
    a_life(Server {
        scheme: "etcd",
        port: etcd.members[0].port(),
        options: "",
        kill: Box::new(move || etcd.members[0].kill()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_with_zookeeper() {
    needs!(zookeeper);
    let zookeeper = Zookeeper::start(&[]);
    a_life(Server {
        scheme: "zookeeper",
        port: zookeeper.port(),
        options: "",
        kill: Box::new(move || zookeeper.kill()),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_with_mysql() {
    needs!(mariadb);
    for options in ["&restart_guard=off", "&mode=table"] {
        let mariadb = MariaDb::start(&[]);
        mariadb.admin().rows(&format!(
            "CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON locks.* TO {USER}@'%'"
        ));
        a_life(Server {
            scheme: "mysql",
            port: mariadb.port(),
            options,
            kill: Box::new(move || mariadb.kill()),
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_life_with_postgres() {
    needs!(postgres);
    for options in ["&restart_guard=off", "&mode=table"] {
        let postgres = Postgres::start(&[]);
        let operator = postgres.admin();
        operator.rows(&format!("CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'"));
        postgres
            .database_admin()
            .rows(&format!("GRANT ALL ON SCHEMA public TO {USER}"));
        a_life(Server {
            scheme: "postgres",
            port: postgres.port(),
            options,
            kill: Box::new(move || postgres.kill()),
        })
        .await;
    }
}
