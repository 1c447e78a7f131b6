//! Another server answers under the same address. It knows nothing of the sessions of the first.

use crate::support::{Database, OPTIONS, connect, name, soon, take};
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::{self, Postgres};
use tenure_testkit::proxy::Proxy;

/// The table says so: the first server may live on, cut off from those who now go to the second.
async fn two_hold_it(first: &dyn Database, second: &dyn Database) {
    let relay = Proxy::tcp(first.port());
    let url = format!("{}?{OPTIONS}", first.url_at(relay.port()));
    let name = name("failover");
    let old = take(&connect(&url).await, &name).await;
    relay.redirect(second.port());
    let new = take(&connect(&url).await, &name).await;
    assert!(old.is_held(), "nobody has told its holder");
    assert!(new.is_held());
    soon(new.release()).await.unwrap();
    soon(old.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_mariadb_takes_over() {
    if !mariadb::skip_unless_installed() {
        two_hold_it(&MariaDb::start(&[]), &MariaDb::start(&[])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_postgres_takes_over() {
    if !postgres::skip_unless_installed() {
        two_hold_it(&Postgres::start(&[]), &Postgres::start(&[])).await;
    }
}
