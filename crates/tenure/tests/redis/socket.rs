//! A server that listens on a socket of this machine and on no port.

use tenure::ErrorKind::{Denied, Unreachable};

use crate::common::answered;
use crate::support::{TTL, assert_says, connect, soon, start_acquire, take, take_and_release};
use tenure_testkit::needs;
use tenure_testkit::process::{Directory, Process};
use tenure_testkit::redis::program;

fn start(dir: &Directory, socket: &str, setting: [&str; 2]) -> Process {
    let words = ["--port", "0", "--save", "", "--unixsocket", socket];
    let words = words.into_iter().chain(setting).map(str::to_owned);
    let command: Vec<_> = [program()].into_iter().chain(words).collect();
    Process::start(dir.path(), &command)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_port() {
    needs!(redis);
    let dir = Directory::new("socket");
    let socket = dir.path().join("a b@c.sock");
    let socket = socket.to_str().unwrap();
    let _server = start(&dir, socket, ["--requirepass", "p@ss/word"]);
    let path = socket.replace(' ', "%20").replace('@', "%40");
    let options = "timeout=3s&restart_guard=off";
    let by_login = format!("redis+unix://:p%40ss%2Fword@{path}?{options}");
    let by_options = format!("redis+unix://{path}?pass=p%40ss/word&{options}");
    let first = answered(|| tenure::connect(&by_login)).await;
    let second = connect(&by_options).await;

    let guard = take(&first, "x", TTL).await;
    let waiting = start_acquire(second.lock("x").ttl(TTL));
    // Another database has other locks.
    let other = connect(&format!("{by_login}&db=1")).await;
    take_and_release(&other, "x", TTL).await;
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert_eq!(soon(first.list("")).await.unwrap().len(), 1);
    soon(first.check()).await.unwrap();
    soon(next.release()).await.unwrap();

    let wrong = by_login.replace("p%40ss%2Fword", "word");
    assert_says(soon(tenure::connect(&wrong)).await, Denied, &[socket]);
    let nowhere = by_login.replace(".sock", ".none");
    let refused = soon(tenure::connect(&nowhere)).await;
    assert_says(refused, Unreachable, &["no connection to", "c.none"]);
}

/// The server says why it closes the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_free_connection_says_so() {
    needs!(redis);
    let dir = Directory::new("socket");
    let socket = dir.path().join("s");
    let socket = socket.to_str().unwrap();
    let _server = start(&dir, socket, ["--maxclients", "1"]);
    let url = format!("redis+unix://{socket}?timeout=3s&restart_guard=off");
    let _only = answered(|| tenure::connect(&url)).await;
    let refused = soon(tenure::connect(&url)).await;
    assert_says(refused, Unreachable, &[socket, "maxclients"]);
}
