//! The client's host vanishes: no FIN, no RST, and no packet is acknowledged any more.
//!
//! A proxy cannot do that, because its kernel goes on answering. So the client runs on another host.

use std::process::Command;

use tenure::conformance::lock_holder::LockHolder;

use crate::support::{Database, OPTIONS, TTL, connect, name, soon, start_acquire};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::network::Network;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::process::Directory;

async fn the_lock_is_free_again(database: &dyn Database, network: &Network) {
    let name = name("vanished");
    let url = database.url_at(database.port());
    let url = url.replace("127.0.0.1", &network.here);
    let mut words = network.hosts[0].command();
    words.push(env!("CARGO_BIN_EXE_tenure-lock-holder").into());
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .args([&format!("{url}?{OPTIONS}"), &name, "--ttl", "2s"]);
    let mut holder = LockHolder::spawn(command).unwrap();
    soon(holder.held()).await.unwrap();

    let client = connect(&database.url()).await;
    let waiting = start_acquire(client.lock(&name).ttl(TTL));
    crate::support::until("it waits", || database.waiters(&name).len() == 1).await;
    network.vanish(0);
    let start = std::time::Instant::now();
    // The kernel would keep such a connection for a quarter of an hour, which is much longer than this test waits.
    let next = soon(waiting).await.unwrap().unwrap();
    println!(
        "free {:?} after the host had vanished, ttl {TTL:?}",
        start.elapsed()
    );
    let reason = soon(holder.expect("lost")).await.unwrap();
    println!("the holder on the vanished host knows: {reason}");
    assert!(next.is_held());
    soon(next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    needs!(mariadb);
    let Some(network) = Network::new(1) else {
        return;
    };
    let server = MariaDb::start(&["--bind-address=0.0.0.0"]);
    the_lock_is_free_again(&server, &network).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    needs!(postgres);
    let Some(network) = Network::new(1) else {
        return;
    };
    let dir = Directory::new("hba");
    let hba = dir.path().join("hba");
    std::fs::write(&hba, "host all all all md5\n").unwrap();
    let hba = format!("hba_file={}", hba.display());
    let server = Postgres::start(&["listen_addresses=*", &hba]);
    the_lock_is_free_again(&server, &network).await;
}
