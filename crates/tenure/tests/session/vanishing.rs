//! The client's host is gone from one moment to the next: no FIN, no RST, nobody who acknowledges anything.
//!
//! No proxy can do that, for its kernel goes on answering. So the client lives in a network of its own, which takes
//! the right to make one.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure::conformance::taker::Taker;

use crate::servers::mariadb::{self, MariaDb};
use crate::servers::postgres::{self, Postgres};
use crate::servers::process::Directory;
use crate::support::{Database, OPTIONS, TTL, connect, name, soon};

/// A wire between this machine and a network in which there is one client.
struct Wire {
    namespace: String,
    /// This machine's address on it.
    address: String,
}

impl Wire {
    /// None: we may not make one, which is said.
    fn new() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (pid, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::SeqCst));
        let wire = Self {
            namespace: format!("tenure-{pid}-{count}"),
            // Of a block that is for machines to talk to themselves when they are measured (RFC 2544).
            address: format!("198.18.{}.{}", pid % 256, count * 4 + 1),
        };
        let theirs = format!("198.18.{}.{}", pid % 256, count * 4 + 2);
        let (near, far) = (format!("tn{pid}-{count}"), format!("tf{pid}-{count}"));
        let space = wire.namespace.as_str();
        let made = [
            format!("netns add {space}"),
            format!("link add {near} type veth peer name {far} netns {space}"),
            format!("addr add {}/30 dev {near}", wire.address),
            format!("link set {near} up"),
            format!("-n {space} addr add {theirs}/30 dev {far}"),
            format!("-n {space} link set {far} up"),
        ];
        for line in made {
            if let Err(why) = ip(&line) {
                crate::servers::say_skip(&format!("no network of our own (ip {line}: {why})"));
                return None;
            }
        }
        Some(wire)
    }

    /// All that comes to the other end is dropped, and nothing leaves it.
    fn vanish(&self) {
        let far = self.namespace.replace("tenure-", "tf");
        ip(&format!("-n {} addr flush dev {far}", self.namespace)).unwrap();
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // A network lives on for as long as its last connection tries to end, so the wire does not go with it.
        let near = self.namespace.replace("tenure-", "tn");
        let _ = ip(&format!("link delete {near}"));
        let _ = ip(&format!("netns delete {}", self.namespace));
    }
}

fn ip(line: &str) -> Result<(), String> {
    let output = Command::new("ip").args(line.split(' ')).output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

async fn the_lock_is_free_again(database: &dyn Database, wire: &Wire) {
    let name = name("vanished");
    let url = database.url_at(database.port());
    let url = url.replace("127.0.0.1", &wire.address);
    let mut command = Command::new("ip");
    command.args([
        "netns",
        "exec",
        &wire.namespace,
        env!("CARGO_BIN_EXE_tenure-taker"),
    ]);
    command.args([&format!("{url}?{OPTIONS}"), &name, "--ttl", "2s"]);
    let mut holder = Taker::spawn(command).unwrap();
    soon(holder.held()).await.unwrap();

    let client = connect(&database.url()).await;
    let lock = client.lock(&name).ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    crate::support::until("it waits", || database.waiters(&name).len() == 1).await;
    wire.vanish();
    let start = std::time::Instant::now();
    // The kernel would keep such a connection for a quarter of an hour; that is far beyond any patience here.
    let next = soon(waiting).await.unwrap().unwrap();
    println!(
        "free {:?} after the host had vanished, ttl {TTL:?}",
        start.elapsed()
    );
    let reason = soon(holder.expect("lost")).await.unwrap();
    println!("its holder, whom nobody hears, knows: {reason}");
    assert!(next.is_held());
    soon(next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    if mariadb::is_missing() {
        return;
    }
    let Some(wire) = Wire::new() else { return };
    let server = MariaDb::start(&["--bind-address=0.0.0.0"]);
    the_lock_is_free_again(&server, &wire).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    if postgres::is_missing() {
        return;
    }
    let Some(wire) = Wire::new() else { return };
    let dir = Directory::new("hba");
    let hba = dir.path().join("hba");
    std::fs::write(&hba, "host all all all md5\n").unwrap();
    let hba = format!("hba_file={}", hba.display());
    let server = Postgres::start(&["listen_addresses=*", &hba]);
    the_lock_is_free_again(&server, &wire).await;
}
