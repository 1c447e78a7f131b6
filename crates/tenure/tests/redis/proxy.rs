//! The proxy does what it says: a fault that does not happen proves nothing.

use std::time::Duration;

use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::redis::Redis;
use tenure_testkit::resp::{Connection, Value};
use tenure_testkit::until;

const ACQUIRE: &str = "-- tenure:acquire\nreturn redis.call('INCR', KEYS[1])";
const RELEASE: &str = "-- tenure:release\nreturn redis.call('DEL', KEYS[1])";
const DIGEST_OF_NOTHING: &str = "0000000000000000000000000000000000000000";

struct Site {
    server: Redis,
    proxy: Proxy,
}

impl Site {
    fn new() -> Self {
        let server = Redis::start(&[]);
        let proxy = Proxy::redis(server.port());
        Self { server, proxy }
    }

    fn connect(&self) -> Connection {
        Connection::open(self.proxy.port()).unwrap()
    }

    fn count(&self) -> String {
        self.server.ask(&["GET", "k"]).text()
    }
}

fn acquire() -> [&'static str; 4] {
    ["EVAL", ACQUIRE, "1", "k"]
}

#[test]
fn requests_pass_and_are_counted() {
    needs!(redis);
    let site = Site::new();
    let mut client = site.connect();
    assert_eq!(client.ask(&["PING"]).unwrap(), Value::Text("PONG".into()));
    assert_eq!(client.ask(&["HELLO", "3"]).unwrap().items().len(), 14);
    assert_eq!(client.ask(&acquire()).unwrap(), Value::Int(1));
    assert_eq!(client.ask(&["GET", "k"]).unwrap(), Value::Bulk(b"1".into()));
    assert_eq!(client.ask(&["GET", "none"]).unwrap(), Value::Nil);
    assert_eq!((site.proxy.requests(), site.proxy.connections()), (3, 1));
}

#[test]
fn a_request_is_answered_in_the_servers_place_and_in_its_turn() {
    needs!(redis);
    let site = Site::new();
    let mut client = site.connect();
    site.proxy.plan("acquire", Fault::Answer("LOADING not yet"));
    client.send(&["SET", "k", "5"]).unwrap();
    client.send(&acquire()).unwrap();
    client.send(&["GET", "k"]).unwrap();
    assert_eq!(client.receive().unwrap(), Value::Text("OK".into()));
    assert_eq!(
        client.receive().unwrap(),
        Value::Error("LOADING not yet".into())
    );
    assert_eq!(client.receive().unwrap(), Value::Bulk(b"5".into()));
    assert!(site.proxy.is_done());
}

#[test]
fn a_script_is_known_by_its_digest() {
    needs!(redis);
    let site = Site::new();
    let mut client = site.connect();
    let unknown = client
        .ask(&["EVALSHA", DIGEST_OF_NOTHING, "1", "k"])
        .unwrap();
    assert!(unknown.text().starts_with("NOSCRIPT"), "{unknown:?}");
    let digest = client.ask(&["SCRIPT", "LOAD", ACQUIRE]).unwrap().text();
    let call = ["EVALSHA", &digest, "1", "k"];
    assert_eq!(client.ask(&call).unwrap(), Value::Int(1));
    site.proxy.plan("acquire", Fault::Answer("OOM no"));
    assert!(client.ask(&call).unwrap().text().starts_with("OOM"));
    // The fault outlasts a call that the server refused for want of the text.
    site.server.order(&["SCRIPT", "FLUSH"]);
    site.proxy.plan("acquire", Fault::CutAfter);
    assert!(client.ask(&call).unwrap().text().starts_with("NOSCRIPT"));
    assert!(client.ask(&acquire()).is_err());
    assert_eq!(site.count(), "2");
}

#[test]
fn a_connection_is_cut_before_or_after_the_request() {
    needs!(redis);
    let site = Site::new();
    for (fault, count) in [(Fault::CutBefore, ""), (Fault::CutAfter, "1")] {
        let mut client = site.connect();
        site.proxy.plan("acquire", fault);
        assert!(client.ask(&acquire()).is_err());
        assert_eq!(site.count(), count);
    }
    let mut client = site.connect();
    assert_eq!(client.ask(&["PING"]).unwrap().text(), "PONG");
    site.proxy.cut();
    assert!(client.receive().is_err());
}

#[test]
fn a_reply_stays_away_until_the_proxy_resumes() {
    needs!(redis);
    let site = Site::new();
    let (mut client, mut other) = (site.connect(), site.connect());
    site.proxy.plan("release", Fault::NoReply);
    client.send(&acquire()).unwrap();
    client.send(&["EVAL", RELEASE, "1", "k"]).unwrap();
    client.send(&["PING"]).unwrap();
    assert_eq!(client.receive().unwrap(), Value::Int(1));
    until("the request is applied", || site.count().is_empty());
    assert_eq!(other.ask(&["PING"]).unwrap().text(), "PONG");
    site.proxy.resume();
    assert_eq!(client.receive().unwrap(), Value::Int(1));
    assert_eq!(client.receive().unwrap().text(), "PONG");
}

#[test]
fn a_request_arrives_late_and_a_reply_byte_by_byte() {
    needs!(redis);
    let site = Site::new();
    let mut client = site.connect();
    let start = std::time::Instant::now();
    let late = Duration::from_millis(200);
    site.proxy.plan("acquire", Fault::Late(late));
    client.send(&acquire()).unwrap();
    client.send(&["SET", "k", "5"]).unwrap();
    assert_eq!(client.receive().unwrap(), Value::Int(1));
    assert_eq!(client.receive().unwrap().text(), "OK");
    assert!(start.elapsed() >= late);
    let start = std::time::Instant::now();
    site.proxy.plan("acquire", Fault::Trickle(late / 4));
    assert_eq!(client.ask(&acquire()).unwrap(), Value::Int(6));
    // Three of four bytes come with a pause before them.
    assert!(start.elapsed() >= late / 4 * 3);
}

#[test]
fn a_direction_is_held_or_delayed() {
    needs!(redis);
    let site = Site::new();
    let mut client = site.connect();
    site.proxy.hold(Direction::Down, true);
    client.send(&acquire()).unwrap();
    until("the request is applied", || site.count() == "1");
    site.proxy.resume();
    assert_eq!(client.receive().unwrap(), Value::Int(1));
    site.proxy.hold(Direction::Up, true);
    client.send(&acquire()).unwrap();
    assert_eq!(site.count(), "1");
    site.proxy.resume();
    assert_eq!(client.receive().unwrap(), Value::Int(2));
    let start = std::time::Instant::now();
    let delay = Duration::from_millis(100);
    site.proxy.delay(Direction::Up, delay);
    site.proxy.delay(Direction::Down, delay);
    assert_eq!(client.ask(&acquire()).unwrap(), Value::Int(3));
    assert!(start.elapsed() >= delay * 2);
}

#[test]
fn pushes_are_no_replies() {
    needs!(redis);
    let site = Site::new();
    for protocol in ["2", "3"] {
        let (mut client, mut other) = (site.connect(), site.connect());
        client.ask(&["HELLO", protocol]).unwrap();
        client.ask(&["SUBSCRIBE", "c"]).unwrap();
        assert_eq!(other.ask(&["PUBLISH", "c", "m"]).unwrap(), Value::Int(1));
        assert_eq!(client.receive().unwrap().text(), "message c m");
        if protocol == "3" {
            site.proxy.plan("acquire", Fault::CutAfter);
            client.send(&["PING"]).unwrap();
            client.send(&acquire()).unwrap();
            assert_eq!(client.receive().unwrap().text(), "PONG");
            assert!(client.receive().is_err());
        }
    }
}
