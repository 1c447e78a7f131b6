//! The matrix of every store that speaks TLS and every fault of a connection. Each fault is refused with its cause and
//! its cure, and no secret is sent to a server that has not proved its identity.

use tenure::ErrorKind::{Invalid, Unreachable};

use crate::support::{assert_says, soon};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::recorder::{Recorder, Tamper};
use tenure_testkit::redis::{Certificates, PASSWORD, Redis, USER};
use tenure_testkit::zookeeper::Zookeeper;
use tenure_testkit::{etcd, mariadb, postgres, zookeeper};

/// A server, which runs until this is dropped.
type ServerHandle = Box<dyn std::any::Any>;

/// One column of the matrix.
struct Store {
    /// Starts a server with that certificate. Returns the server, its port for TLS, and its port without TLS if that is
    /// another one.
    start: fn(&Certificates, &str) -> (ServerHandle, u16, Option<u16>),
    /// Starts a server that has no TLS.
    start_plain: fn() -> (ServerHandle, u16),
    /// The URL of `HOST:PORT`, with a login and with TLS required.
    url: fn(&str) -> String,
    /// Whether the server requires certificates of its clients.
    needs_client_certificate: bool,
    /// The cure in the error when the server has no TLS.
    plain: &'static str,
    /// The bytes that a client may send to a server without TLS.
    before: FirstBytes,
}

enum FirstBytes {
    /// The first message of a TLS handshake.
    Hello,
    /// Exactly these bytes; the server answers whether it has TLS.
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
    needs_client_certificate: false,
    plain: "write redis://",
    before: FirstBytes::Hello,
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
    needs_client_certificate: true,
    plain: "etcd://",
    before: FirstBytes::Hello,
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
    needs_client_certificate: false,
    plain: "tls=off",
    before: FirstBytes::Hello,
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
    needs_client_certificate: false,
    plain: "tls=off",
    // The server sends the first message, which says whether it has TLS.
    before: FirstBytes::Bytes(b""),
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
    needs_client_certificate: false,
    plain: "tls=off",
    // The request for TLS (`SSLRequest`).
    before: FirstBytes::Bytes(&[0, 0, 0, 8, 4, 210, 22, 47]),
};

/// Changes PostgreSQL's answer "TLS" to "no TLS".
const DENY_TLS: Tamper = |bytes| {
    assert_eq!(bytes[0], b'S');
    bytes[0] = b'N';
};

/// Clears the flag for TLS in MySQL's greeting, which comes after the header, the version and the first part of a
/// nonce.
const CLEAR_TLS_FLAG: Tamper = |bytes| {
    let version = bytes[5..].iter().position(|byte| *byte == 0).unwrap();
    let capabilities = 5 + version + 1 + 4 + 8 + 1;
    assert_ne!(bytes[capabilities + 1] & 0x08, 0, "the server offers TLS");
    bytes[capabilities + 1] &= !0x08;
};

const NO_CHANGE: Tamper = |_| {};

/// A fatal alert of TLS: the version of the protocol is not supported.
const VERSION_ALERT: &[u8] = &[21, 3, 1, 0, 2, 2, 70];

/// Whether the bytes contain `secret`, as text or in base64.
fn contains(bytes: &[u8], secret: &str) -> bool {
    let encoded = etcd::base64(secret.as_bytes());
    let has = |text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    has(secret.as_bytes()) || has(encoded.trim_end_matches('=').as_bytes())
}

/// Asserts that no client sent a login to a server without TLS.
fn assert_no_login_sent(store: &Store, recorder: &Recorder) {
    let received = recorder.received();
    assert!(!received.is_empty(), "no client connected");
    for bytes_sent in &received {
        assert!(!contains(bytes_sent, PASSWORD), "{bytes_sent:?}");
        assert!(!contains(bytes_sent, USER), "{bytes_sent:?}");
        match store.before {
            // A connection without bytes was given up before its first message.
            FirstBytes::Hello => assert!(
                bytes_sent.is_empty() || bytes_sent[..2] == [22, 3],
                "{bytes_sent:?}"
            ),
            FirstBytes::Bytes(bytes) => assert!(
                bytes_sent.is_empty() || bytes_sent == bytes,
                "{bytes_sent:?}"
            ),
        }
    }
}

async fn refuses_every_fault(store: &Store) {
    let certificates = Certificates::make();
    let file = |name: &str| certificates.file(name).display().to_string();
    let url = |at: &str, ca: &str| {
        let mut url = format!("{}&ca={}", (store.url)(at), file(ca));
        if store.needs_client_certificate {
            url += &format!("&cert={}&key={}", file("server.crt"), file("server.key"));
        }
        url
    };
    let local = |port: u16| format!("127.0.0.1:{port}");

    // The correct server is accepted, so the servers below are refused for their fault and no other reason.
    let (good, port, plain) = (store.start)(&certificates, "server");
    let client = soon(tenure::connect(&url(&local(port), "ca.crt")))
        .await
        .unwrap();
    let guard = soon(client.lock("tls").try_acquire()).await.unwrap();
    soon(guard.unwrap().release()).await.unwrap();
    client.close().await;

    let at = local(port);
    let refused = soon(tenure::connect(&url(&at, "foreign.crt"))).await;
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

    // The server at that port has no TLS.
    let own = plain.is_none().then(store.start_plain);
    let plain = plain.unwrap_or_else(|| own.as_ref().unwrap().1);
    let recorder = Recorder::in_front_of(plain, NO_CHANGE);
    let refused = soon(tenure::connect(&url(&local(recorder.port()), "ca.crt"))).await;
    assert_says("plaintext", refused, Unreachable, &[store.plain]);
    assert_no_login_sent(store, &recorder);

    // A machine between client and server removes TLS: by a changed message of the protocol, or by an alert of TLS.
    let recorder = match store.before {
        FirstBytes::Hello => Recorder::in_place_of_server(VERSION_ALERT),
        FirstBytes::Bytes(b"") => Recorder::in_front_of(port, CLEAR_TLS_FLAG),
        FirstBytes::Bytes(_) => Recorder::in_front_of(port, DENY_TLS),
    };
    let refused = soon(tenure::connect(&url(&local(recorder.port()), "ca.crt"))).await;
    let at = local(recorder.port());
    assert_says("downgrade", refused, Unreachable, &[&at, "TLS"]);
    assert_no_login_sent(store, &recorder);
    drop(good);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_refuses() {
    if !Certificates::skip_unless_installed() {
        refuses_every_fault(&REDIS).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_refuses() {
    if !etcd::skip_unless_installed() && !Certificates::skip_unless_installed() {
        refuses_every_fault(&ETCD).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn zookeeper_refuses() {
    if !zookeeper::skip_unless_installed_for_tls() {
        refuses_every_fault(&ZOOKEEPER).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql_refuses() {
    if !mariadb::skip_unless_installed() && !Certificates::skip_unless_installed() {
        refuses_every_fault(&MYSQL).await;
        remote_servers_need_tls(&MYSQL).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_refuses() {
    if !postgres::skip_unless_installed() && !Certificates::skip_unless_installed() {
        refuses_every_fault(&POSTGRES).await;
        remote_servers_need_tls(&POSTGRES).await;
    }
}

/// Without an option about TLS, a server on another machine has to speak TLS and to prove its identity. The address of
/// all interfaces leads to this machine, and the library takes it for another machine.
async fn remote_servers_need_tls(store: &Store) {
    let url_without_tls =
        |port: u16| (store.url)(&format!("0.0.0.0:{port}")).replace("&tls=on", "");
    let certificates = Certificates::make();
    let (_server, port, _) = (store.start)(&certificates, "server");
    let tamper = match store.before {
        FirstBytes::Bytes(b"") => CLEAR_TLS_FLAG,
        _ => DENY_TLS,
    };
    let recorder = Recorder::in_front_of(port, tamper);
    let refused = soon(tenure::connect(&url_without_tls(recorder.port()))).await;
    let words = ["found no common TLS", "tls=off"];
    assert_says("no TLS", refused, Unreachable, &words);
    assert_no_login_sent(store, &recorder);

    let refused = soon(tenure::connect(&url_without_tls(port))).await;
    let words = ["signed by an authority that is not trusted", "ca=FILE"];
    assert_says("its own authority", refused, Unreachable, &words);

    let recorder = Recorder::in_front_of(port, NO_CHANGE);
    let refused = soon(tenure::connect(
        &(url_without_tls(recorder.port()) + "&tls=prefer"),
    ))
    .await;
    let words = ["is for servers on this machine", "tls=on", "tls=off"];
    assert_says("prefer", refused, Invalid, &words);
    assert!(recorder.received().is_empty(), "a client connected");
}

/// A new store must be added to the matrix, unless it has no network.
#[test]
fn the_stores_of_the_matrix_are_those_that_have_a_network() {
    let with_tls = ["redis", "etcd", "zookeeper", "mysql", "postgres"];
    for scheme in tenure::SCHEMES {
        let scheme = scheme.trim_end_matches(':').trim_end_matches("//");
        let known = with_tls.iter().any(|it| scheme.starts_with(it));
        // `redlock` uses the connections of `redis`.
        let is_without_tls = ["memory", "file", "sqlite", "redlock"].contains(&scheme);
        assert!(known || is_without_tls, "{scheme} is not in the matrix");
    }
}
