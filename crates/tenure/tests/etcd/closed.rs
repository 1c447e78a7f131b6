//! The member closes the connection of a holder.

use std::time::Duration;

use crate::common::closed::{Contenders, on_a_closed_connection};
use crate::support::{TTL, connect};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;

async fn with_contenders(test: impl AsyncFnOnce(Contenders<'_>, Duration)) {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = etcd.url_by(&[proxy.address()]);
    let count = || etcd.keys("x/").len();
    let all = Contenders {
        proxy: &proxy,
        holder: connect(&format!("{url}?timeout=2s")).await,
        waiter: connect(&etcd.url()).await,
        count: &count,
    };
    test(all, TTL).await;
}

on_a_closed_connection!(with_contenders);
