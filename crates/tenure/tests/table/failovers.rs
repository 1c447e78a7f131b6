//! A replica takes over that has not heard of the last grants.

use std::path::Path;

use crate::common::{answered, power};
use crate::support::{Db, OPTIONS, TTL, connect, soon};
use tenure_testkit::disk::Disk;
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::Proxy;

/// The table says so: what was not copied is not there.
async fn two_hold_it(first: &Db, second: &Db) {
    let (relay, url) = match first {
        Db::MySql(server) => {
            let relay = Proxy::tcp(server.port());
            let url = server.url_at(relay.port()) + OPTIONS;
            (relay, url)
        }
        Db::Postgres(server, _) => {
            let relay = Proxy::tcp(server.port());
            let url = server.url_at(relay.port()) + OPTIONS;
            (relay, url)
        }
        Db::File(_) => unreachable!(),
    };
    first.init().await;
    second.init().await;
    let old = connect(&url).await;
    let lock = old.lock("failover").ttl(TTL * 10);
    let old = soon(lock.acquire()).await.unwrap();
    relay.redirect(match second {
        Db::MySql(server) => server.port(),
        Db::Postgres(server, _) => server.port(),
        Db::File(_) => unreachable!(),
    });
    let new = connect(&url).await;
    let lock = new.lock("failover").ttl(TTL * 10);
    let new = soon(lock.acquire()).await.unwrap();
    assert!(old.is_held(), "nobody has told its holder");
    assert!(
        new.token() > old.token(),
        "{} follows {}, by the clock",
        new.token(),
        old.token()
    );
    soon(new.release()).await.unwrap();
    soon(old.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_mariadb_takes_over() {
    if let (Some(first), Some(second)) = (Db::mysql(&[]), Db::mysql(&[])) {
        two_hold_it(&first, &second).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_postgres_takes_over() {
    if let (Some(first), Some(second)) = (Db::postgres(&[]), Db::postgres(&[])) {
        two_hold_it(&first, &second).await;
    }
}

/// A planned switch ends no connection: those that are open lead to the old server.
#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_that_takes_no_writes_any_more_is_left() {
    let (Some(first), Some(second)) = (Db::mysql(&[]), Db::mysql(&[])) else {
        return;
    };
    let Db::MySql(server) = &second else {
        unreachable!();
    };
    first.init().await;
    second.init().await;
    let (relay, url) = first.proxied();
    let client = connect(&url).await;
    let lock = client.lock("switched").ttl(TTL);
    soon(soon(lock.acquire()).await.unwrap().release())
        .await
        .unwrap();
    first.rows("SET GLOBAL read_only = 1");
    relay.redirect(server.port());
    let lock = client.lock("switched").ttl(TTL);
    let guard = answered(async || lock.acquire().await).await;
    assert!(guard.is_held());
    soon(guard.release()).await.unwrap();
}

/// No replica at all: the server itself comes back without them. The table says so of servers that answer a commit
/// before it is written.
async fn it_forgets(db: &Db, end: impl Fn(&Db)) {
    let (first, second) = (connect(&db.url()).await, connect(&db.url()).await);
    // Not renewed: a renewal would tell, which makes it a matter of luck who is first.
    let lock = first
        .lock("lossy")
        .ttl(TTL * 10)
        .renew(tenure::Renew::Never);
    let old = soon(lock.acquire()).await.unwrap();
    end(db);
    let lock = second.lock("lossy").ttl(TTL * 10);
    let new = soon(lock.acquire()).await.unwrap();
    assert!(old.is_held(), "nobody has told its holder");
    assert!(new.token() > old.token(), "by the clock");
    soon(new.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_that_loses_commits() {
    let lossy = [
        "--innodb-flush-log-at-trx-commit=0",
        "--innodb-flush-log-at-timeout=2000",
    ];
    if !mariadb::skip_unless_installed() {
        let db = Db::MySql(MariaDb::start_on_disk(&[], &lossy));
        db.init().await;
        // The tables themselves are to outlast it.
        db.rows("FLUSH LOGS");
        it_forgets(&db, Db::restart).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_that_loses_commits() {
    let lossy = ["synchronous_commit=off", "wal_writer_delay=10s"];
    if let Some(db) = Db::postgres(&lossy) {
        db.init().await;
        // The tables themselves are to outlast it.
        db.rows("CHECKPOINT");
        it_forgets(&db, Db::restart).await;
    }
}

async fn the_power_is_lost(db: &Db, disk: &Disk, remembers: bool) {
    db.init().await;
    let restart_after = |act: &dyn Fn(&Path)| db.restart_after(act);
    let tokens = power::lose_power(disk, &db.url(), TTL * 10, remembers, restart_after).await;
    assert!(tokens.new > tokens.old);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mariadb_loses_power() {
    needs!(mariadb, "cc");
    for (flushes, remembers) in [("1", true), ("2", false)] {
        let disk = Disk::make();
        let options = format!("--innodb-flush-log-at-trx-commit={flushes}");
        let server = MariaDb::start_on_disk(&disk.command(), &[&options]);
        the_power_is_lost(&Db::MySql(server), &disk, remembers).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgres_loses_power() {
    needs!(postgres, "cc");
    for (fsync, remembers) in [("on", true), ("off", false)] {
        let disk = Disk::make();
        let server = Postgres::start_with(&disk.command(), &[&format!("fsync={fsync}")]);
        let inside = server.database_admin();
        the_power_is_lost(&Db::Postgres(Box::new(server), inside), &disk, remembers).await;
    }
}
