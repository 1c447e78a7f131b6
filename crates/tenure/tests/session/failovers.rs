//! Another server answers under the same address. It does not know the sessions of the first server.

use crate::support::{Database, OPTIONS, connect, name, soon, take};
use tenure_testkit::mariadb::{self, MariaDb};
use tenure_testkit::postgres::{self, Postgres};
use tenure_testkit::proxy::Proxy;

/// As the table of guarantees says: the first server may live on, cut off from the clients that now use the second.
async fn both_hold_the_lock(first: &dyn Database, second: &dyn Database) {
    let relay = Proxy::tcp(first.port());
    let url = format!("{}?{OPTIONS}", first.url_at(relay.port()));
    let name = name("failover");
    let old = take(&connect(&url).await, &name).await;
    relay.redirect(second.port());
    let new = take(&connect(&url).await, &name).await;
    assert!(old.is_held(), "the first server has ended no session");
    assert!(new.is_held());
    soon(new.release()).await.unwrap();
    soon(old.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_mariadb_takes_over() {
    if !mariadb::skip_unless_installed() {
        both_hold_the_lock(&MariaDb::start(&[]), &MariaDb::start(&[])).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_postgres_takes_over() {
    if !postgres::skip_unless_installed() {
        both_hold_the_lock(&Postgres::start(&[]), &Postgres::start(&[])).await;
    }
}
