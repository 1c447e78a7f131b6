//! The servers that the tests start are what the tests expect.

use tenure_testkit::clock::Clock;
use tenure_testkit::needs;
use tenure_testkit::redis::{Certificates, Cluster, PASSWORD, Redis, SentinelSetup, USER};
use tenure_testkit::resp::Connection;
use tenure_testkit::until;

#[test]
fn a_server_keeps_its_port_and_forgets_or_keeps_its_data() {
    needs!(redis);
    for (lines, kept) in [
        (&[][..], ""),
        (&["appendonly yes", "appendfsync always"], "1"),
    ] {
        let server = Redis::start(lines);
        server.order(&["SET", "k", "1"]);
        let before = server.port();
        server.restart();
        assert_eq!(server.port(), before);
        until("it has loaded", || {
            server.info_is("persistence", "loading", "0")
        });
        assert_eq!(server.ask(&["GET", "k"]).text(), kept);
        server.stop();
        let mut connection = Connection::open(before).unwrap();
        connection.send(&["PING"]).unwrap();
        server.resume();
        assert_eq!(connection.receive().unwrap().text(), "PONG");
        let dir = server.dir().to_owned();
        drop(server);
        assert!(!dir.exists());
        assert!(Connection::open(before).is_err());
    }
}

#[test]
fn a_secured_server_wants_its_password() {
    needs!(redis);
    let server = Redis::start_secured(&[]);
    let mut anonymous = Connection::open(server.port()).unwrap();
    assert!(
        anonymous
            .ask(&["PING"])
            .unwrap()
            .text()
            .starts_with("NOAUTH")
    );
    assert_eq!(
        anonymous.ask(&["AUTH", USER, PASSWORD]).unwrap().text(),
        "OK"
    );
    assert_eq!(server.ask(&["PING"]).text(), "PONG");
    assert!(server.url().contains(PASSWORD));
}

#[test]
fn a_server_speaks_tls() {
    needs!(redis, "openssl");
    let certificates = Certificates::make();
    let server = Redis::start_tls(&certificates);
    let address = format!("127.0.0.1:{}", server.tls_port());
    for (authority, fits) in [("ca.crt", true), ("foreign.crt", false)] {
        let mut client = std::process::Command::new("openssl");
        client.args(["s_client", "-connect", &address, "-verify_return_error"]);
        client.arg("-CAfile").arg(certificates.file(authority));
        let status = client
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap()
            .status;
        assert_eq!(status.success(), fits, "{authority}");
    }
}

#[test]
fn sentinels_replace_a_primary() {
    needs!(redis);
    let watched = SentinelSetup::start(1_000);
    let before = watched.primary_port();
    assert_eq!(before, watched.servers[0].port());
    watched.servers[0].kill();
    until("another primary", || watched.primary_port() != before);
    until("it takes writes", || {
        watched.primary().ask(&["SET", "k", "1"]).text() == "OK"
    });
}

#[test]
fn a_cluster_has_masters_and_replicas() {
    needs!(redis);
    let cluster = Cluster::start(true);
    let key = "orders/42";
    let slot = cluster.slot(key);
    let owner = cluster.owner(slot).port();
    for node in cluster.masters() {
        let answer = node.ask(&["SET", key, "1"]).text();
        let expected = if node.port() == owner {
            "OK".to_owned()
        } else {
            format!("MOVED {slot} 127.0.0.1:{owner}")
        };
        assert_eq!(answer, expected);
    }
    cluster.owner(slot).kill();
    until("a replica takes over", || cluster.owner(slot).is_up());
    until("it takes writes", || {
        cluster.owner(slot).ask(&["SET", key, "1"]).text() == "OK"
    });
}

#[test]
fn a_servers_wall_clock_is_moved() {
    needs!(redis, "cc");
    let clock = Clock::make();
    let server = Redis::start_with_clock(&clock, &[]);
    let time = || {
        server.ask(&["TIME"]).items()[0]
            .text()
            .parse::<i64>()
            .unwrap()
    };
    let start = time();
    server.order(&["SET", "k", "1", "PX", "60000"]);
    clock.set(30);
    assert!((29..33).contains(&(time() - start)));
    assert!(server.ask(&["PTTL", "k"]).int() <= 30_000);
    clock.set(3_600);
    assert_eq!(server.ask(&["GET", "k"]).text(), "");
    clock.set(-3_600);
    assert!(time() < start - 3_500);
}

#[test]
fn a_slot_moves_to_another_master() {
    needs!(redis);
    let cluster = Cluster::start(false);
    let slot = cluster.slot("x");
    let from = cluster.owner(slot);
    let to = cluster
        .masters()
        .iter()
        .find(|node| node.port() != from.port())
        .unwrap();
    from.order(&["SET", "x", "1"]);
    cluster.migrate(slot, to, || {
        let answer = from.ask(&["GET", "tenure:{x}:hold"]).text();
        assert_eq!(answer, format!("ASK {slot} 127.0.0.1:{}", to.port()));
        let answer = from.ask(&["MGET", "x", "tenure:{x}:hold"]).text();
        assert!(answer.starts_with("TRYAGAIN"), "{answer}");
    });
    assert_eq!(to.ask(&["GET", "x"]).text(), "1");
    let answer = from.ask(&["GET", "x"]).text();
    assert_eq!(answer, format!("MOVED {slot} 127.0.0.1:{}", to.port()));
    assert_eq!(cluster.owner(slot).port(), to.port());
}
