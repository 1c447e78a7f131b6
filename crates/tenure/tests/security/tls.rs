//! The matrix: every store that speaks TLS, and everything that can be wrong with it. Always refused, with the cause
//! and the cure, and nothing that is secret is said to somebody who has not proved who he is.

use tenure::ErrorKind::{Invalid, Unreachable};

use crate::support::{assert_says, soon};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::recorder::{Recorder, Tamper};
use tenure_testkit::redis::{Certificates, PASSWORD, Redis, USER};
use tenure_testkit::zookeeper::Zookeeper;
use tenure_testkit::{etcd, mariadb, postgres, zookeeper};

/// Whoever keeps a server up for as long as it lives.
type Keeper = Box<dyn std::any::Any>;

/// One column of the matrix.
struct Store {
    /// Starts a server under that certificate: who keeps it up, its port for TLS, and one without TLS, if those are two.
    start: fn(&Certificates, &str) -> (Keeper, u16, Option<u16>),
    /// Starts one that has no TLS.
    start_plain: fn() -> (Keeper, u16),
    /// `SCHEME://LOGIN@HOST:PORT/PATH?OPTIONS`, from the host and its port, so that TLS is demanded.
    url: fn(&str) -> String,
    /// Options for servers that want certificates of their clients, too.
    needs_own: bool,
    /// The cure when the server has no TLS.
    plain: &'static str,
    /// What a client may say before it knows that it talks to the right one, when there is no TLS.
    before: Before,
}

enum Before {
    /// The first message of TLS: TLS begins with the first byte.
    Hello,
    /// Exactly this; the server answers whether it has TLS.
    Bytes(&'static [u8]),
}

const REDIS: Store = Store {
    start: |certificates, name| {
        let server = Redis::start_tls_as(certificates, name, false);
        let (tls, plain) = (server.tls_port(), server.port());
        (Box::new(server), tls, Some(plain))
    },
    start_plain: || {
        let server = Redis::start_secured(&[]);
        let port = server.port();
        (Box::new(server), port)
    },
    url: |at| format!("rediss://{USER}:{PASSWORD}@{at}/?timeout=3s&restart_guard=off"),
    needs_own: false,
    plain: "write redis://",
    before: Before::Hello,
};

const ETCD: Store = Store {
    start: |certificates, name| {
        let server = Etcd::start_tls(certificates, name);
        let (tls, plain) = (server.members[0].tls_port(), server.members[0].port());
        (Box::new(server), tls, Some(plain))
    },
    start_plain: || {
        let server = Etcd::start_secured(&[]);
        let port = server.members[0].port();
        (Box::new(server), port)
    },
    url: |at| format!("etcds://{USER}:{PASSWORD}@{at}?timeout=3s"),
    needs_own: true,
    plain: "etcd://",
    before: Before::Hello,
};

const ZOOKEEPER: Store = Store {
    start: |certificates, name| {
        let server = Zookeeper::start_tls(certificates, name);
        let (tls, plain) = (server.tls_port(), server.port());
        (Box::new(server), tls, Some(plain))
    },
    start_plain: || {
        let server = Zookeeper::start(&[]);
        let port = server.port();
        (Box::new(server), port)
    },
    url: |at| format!("zookeeper://{USER}:{PASSWORD}@{at}/locks?ttl=2s&timeout=3s&tls=on"),
    needs_own: false,
    plain: "tls=off",
    before: Before::Hello,
};

const MYSQL: Store = Store {
    start: |certificates, name| {
        let server = MariaDb::start_tls(certificates, name);
        let port = server.port();
        (Box::new(server), port, None)
    },
    start_plain: || {
        let server = MariaDb::start(&["--skip-ssl"]);
        let port = server.port();
        (Box::new(server), port)
    },
    url: |at| format!("mysql://{USER}:{PASSWORD}@{at}/locks?timeout=3s&restart_guard=off&tls=on"),
    needs_own: false,
    plain: "tls=off",
    // The server speaks first and says what it can.
    before: Before::Bytes(b""),
};

const POSTGRES: Store = Store {
    start: |certificates, name| {
        let server = Postgres::start_tls(certificates, name);
        let port = server.port();
        (Box::new(server), port, None)
    },
    start_plain: || {
        let server = Postgres::start(&[]);
        let port = server.port();
        (Box::new(server), port)
    },
    url: |at| {
        format!("postgres://{USER}:{PASSWORD}@{at}/locks?timeout=3s&restart_guard=off&tls=on")
    },
    needs_own: false,
    plain: "tls=off",
    // The question whether there is TLS.
    before: Before::Bytes(&[0, 0, 0, 8, 4, 210, 22, 47]),
};

/// PostgreSQL's yes becomes a no.
const SAYS_NO: Tamper = |bytes| {
    assert_eq!(bytes[0], b'S');
    bytes[0] = b'N';
};

/// In MySQL's greeting the flag for TLS is cleared: after the header, the version and the first part of a nonce.
const CANNOT: Tamper = |bytes| {
    let version = bytes[5..].iter().position(|byte| *byte == 0).unwrap();
    let capabilities = 5 + version + 1 + 4 + 8 + 1;
    assert_ne!(bytes[capabilities + 1] & 0x08, 0, "the server offers TLS");
    bytes[capabilities + 1] &= !0x08;
};

const AS_IT_IS: Tamper = |_| {};

/// In TLS: "the version of the protocol is not supported"; fatal.
const ALERT: &[u8] = &[21, 3, 1, 0, 2, 2, 70];

/// Whether `secret` stands in there, as it is or as somebody would encode it who means no harm.
fn betrays(bytes: &[u8], secret: &str) -> bool {
    let encoded = etcd::base64(secret.as_bytes());
    let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    has(secret.as_bytes()) || has(encoded.trim_end_matches('=').as_bytes())
}

/// What clients said to somebody who has no TLS.
fn assert_discreet(store: &Store, recorder: &Recorder) {
    let heard = recorder.received();
    assert!(!heard.is_empty(), "nobody came");
    for said in &heard {
        assert!(!betrays(said, PASSWORD), "{said:?}");
        assert!(!betrays(said, USER), "{said:?}");
        match store.before {
            // What is nothing came from a connection that was given up before.
            Before::Hello => assert!(said.is_empty() || said[..2] == [22, 3], "{said:?}"),
            Before::Bytes(bytes) => assert!(said.is_empty() || said == bytes, "{said:?}"),
        }
    }
}

async fn all_of_it(store: &Store) {
    let certificates = Certificates::make();
    let file = |name: &str| certificates.file(name).display().to_string();
    let url = |at: &str, ca: &str| {
        let mut url = format!("{}&ca={}", (store.url)(at), file(ca));
        if store.needs_own {
            url += &format!("&cert={}&key={}", file("server.crt"), file("server.key"));
        }
        url
    };
    let local = |port: u16| format!("127.0.0.1:{port}");

    // All is well, so what follows is not refused for another reason.
    let (good, port, plain) = (store.start)(&certificates, "server");
    let client = soon(tenure::connect(&url(&local(port), "ca.crt")))
        .await
        .unwrap();
    let guard = soon(client.lock("tls").try_acquire()).await.unwrap();
    soon(guard.unwrap().release()).await.unwrap();
    client.close().await;

    let at = local(port);
    let refused = soon(tenure::connect(&url(&at, "stranger.crt"))).await;
    let words = ["signed by an authority that is not trusted", "ca=FILE"];
    assert_says("wrong authority", refused, Unreachable, &words);

    for (name, words) in [
        ("misnamed", ["is for another name", "write a name"]),
        ("expired", ["has expired", "renew it"]),
    ] {
        let (_bad, port, _) = (store.start)(&certificates, name);
        let refused = soon(tenure::connect(&url(&local(port), "ca.crt"))).await;
        assert_says(name, refused, Unreachable, &words);
    }

    // A server that has no TLS there.
    let own = plain.is_none().then(store.start_plain);
    let plain = plain.unwrap_or_else(|| own.as_ref().unwrap().1);
    let recorder = Recorder::in_front_of(plain, AS_IT_IS);
    let refused = soon(tenure::connect(&url(&local(recorder.port()), "ca.crt"))).await;
    assert_says("plaintext", refused, Unreachable, &[store.plain]);
    assert_discreet(store, &recorder);

    // Somebody in between takes TLS away: by what the protocol says of it, or by a word of TLS itself.
    let recorder = match store.before {
        Before::Hello => Recorder::in_place_of_server(ALERT),
        Before::Bytes(b"") => Recorder::in_front_of(port, CANNOT),
        Before::Bytes(_) => Recorder::in_front_of(port, SAYS_NO),
    };
    let refused = soon(tenure::connect(&url(&local(recorder.port()), "ca.crt"))).await;
    let at = local(recorder.port());
    assert_says("downgrade", refused, Unreachable, &[&at, "TLS"]);
    assert_discreet(store, &recorder);
    drop(good);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_refuses() {
    if !Certificates::skip_unless_installed() {
        all_of_it(&REDIS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_refuses() {
    if !etcd::skip_unless_installed() && !Certificates::skip_unless_installed() {
        all_of_it(&ETCD).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_refuses() {
    if !zookeeper::skip_unless_installed_for_tls() {
        all_of_it(&ZOOKEEPER).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_refuses() {
    if !mariadb::skip_unless_installed() && !Certificates::skip_unless_installed() {
        all_of_it(&MYSQL).await;
        beyond_this_machine(&MYSQL).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_refuses() {
    if !postgres::skip_unless_installed() && !Certificates::skip_unless_installed() {
        all_of_it(&POSTGRES).await;
        beyond_this_machine(&POSTGRES).await;
    }
}

/// Where nobody said a word about TLS, a server beyond this machine has to have it and to prove who it is. The address
/// of all interfaces leads to this machine and is none of its own names.
async fn beyond_this_machine(store: &Store) {
    let unsaid = |port: u16| (store.url)(&format!("0.0.0.0:{port}")).replace("&tls=on", "");
    let certificates = Certificates::make();
    let (_server, port, _) = (store.start)(&certificates, "server");
    let tamper = match store.before {
        Before::Bytes(b"") => CANNOT,
        _ => SAYS_NO,
    };
    let recorder = Recorder::in_front_of(port, tamper);
    let refused = soon(tenure::connect(&unsaid(recorder.port()))).await;
    let words = ["found no common TLS", "tls=off"];
    assert_says("no TLS", refused, Unreachable, &words);
    assert_discreet(store, &recorder);

    let refused = soon(tenure::connect(&unsaid(port))).await;
    let words = ["signed by an authority that is not trusted", "ca=FILE"];
    assert_says("its own authority", refused, Unreachable, &words);

    let recorder = Recorder::in_front_of(port, AS_IT_IS);
    let refused = soon(tenure::connect(&(unsaid(recorder.port()) + "&tls=prefer"))).await;
    let words = ["is for servers on this machine", "tls=on", "tls=off"];
    assert_says("prefer", refused, Invalid, &words);
    assert!(recorder.received().is_empty(), "it was asked");
}

/// A store that is new is in here, or has no network.
#[test]
fn the_stores_of_the_matrix_are_those_that_have_a_network() {
    let with_tls = ["redis", "etcd", "zookeeper", "mysql", "postgres"];
    for scheme in tenure::SCHEMES {
        let scheme = scheme.trim_end_matches(':').trim_end_matches("//");
        let known = with_tls.iter().any(|it| scheme.starts_with(it));
        // A majority of the first.
        let else_known = ["memory", "file", "sqlite", "redlock"].contains(&scheme);
        assert!(known || else_known, "{scheme} is not in the matrix");
    }
}
