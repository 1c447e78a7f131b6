//! The server closes the connection of a holder. The session goes on in the server until its timeout.

use std::time::Duration;

use crate::common::closed::{Contenders, on_a_closed_connection};
use crate::support::{TTL, client_by, client_of, nodes};
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::zookeeper::Zookeeper;

async fn with_contenders(test: impl AsyncFnOnce(Contenders<'_>, Duration)) {
    needs!(zookeeper);
    let server = Zookeeper::start(&[]);
    let proxy = Proxy::zookeeper(server.port());
    let count = || nodes(&server, "x").len();
    let all = Contenders {
        proxy: &proxy,
        holder: client_by(&proxy).await,
        waiter: client_of(&server).await,
        count: &count,
    };
    test(all, TTL).await;
}

on_a_closed_connection!(with_contenders);
