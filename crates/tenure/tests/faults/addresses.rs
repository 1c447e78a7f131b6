//! Addresses at which no server answers: one clear line, which names the address.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use tenure::ErrorKind::Unreachable;
use tenure_testkit::PASSWORD;
use tenure_testkit::process::Port;

use crate::common::{assert_says, soon};

/// The URL of each store, with a place for the address, and what its errors say where no server listens, where another
/// program answers, and where a listener says nothing.
const STORES: &[(&str, [&str; 3])] = &[
    (
        "redis://tenure:PASSWORD@ADDRESS/?timeout=1s",
        ["", "", "answer"],
    ),
    (
        "etcd://tenure:PASSWORD@ADDRESS?timeout=1s",
        [
            "no connection to",
            "is the port right",
            "no answer as an etcd member",
        ],
    ),
    (
        "zookeeper://tenure:PASSWORD@ADDRESS/locks?ttl=8s&timeout=1s",
        ["no connection to", "is the port right", ""],
    ),
    (
        "mysql://tenure:PASSWORD@ADDRESS/locks?tls=off&timeout=1s",
        ["cannot be reached", "", "did not answer within 1s"],
    ),
    (
        "postgres://tenure:PASSWORD@ADDRESS/locks?tls=off&timeout=1s",
        ["cannot be reached", "", "did not answer within 1s"],
    ),
    (
        "mysql://tenure:PASSWORD@ADDRESS/locks?mode=table&tls=off&timeout=1s",
        ["", "", ""],
    ),
    (
        "postgres://tenure:PASSWORD@ADDRESS/locks?mode=table&tls=off&timeout=1s",
        ["", "", ""],
    ),
];

/// Connects each store to that address, where nothing listens (0), another program answers (1), or says nothing (2).
async fn assert_unreachable(address: &str, what: usize) {
    for (url, words) in STORES {
        let url = url.replace("PASSWORD", PASSWORD);
        let url = url.replace("ADDRESS", address);
        let outcome = soon(tenure::connect(&url)).await;
        assert_says(outcome, Unreachable, &[address, words[what]]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_server_listens_there() {
    let port = Port::reserve();
    assert_unreachable(&format!("127.0.0.1:{}", port.number()), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_has_no_address() {
    for (url, _) in STORES {
        let url = url.replace("PASSWORD", PASSWORD);
        let url = url.replace("ADDRESS", "no-such-host.invalid");
        let refused = soon(tenure::connect(&url)).await;
        let host = match url.starts_with("zookeeper") {
            // With the port that is not in the URL.
            true => "no-such-host.invalid:2181",
            false => "no-such-host.invalid",
        };
        assert_says(refused, Unreachable, &[host]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    assert_unreachable(&address, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_answers_or_closes_the_connection() {
    for says in ["HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n", ""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if !says.is_empty() {
                    let _ = stream.read(&mut [0; 1024]);
                    let _ = stream.write_all(says.as_bytes());
                }
            }
        });
        assert_unreachable(&address, 1).await;
    }
}
