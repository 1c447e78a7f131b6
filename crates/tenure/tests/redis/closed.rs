//! The server closes the connection of a holder.

use std::time::Duration;

use crate::common::closed::{Contenders, on_a_closed_connection};
use crate::support::{TRUSTED, TTL, client_of, connect, owner, waiting};
use tenure_testkit::needs;
use tenure_testkit::proxy::Proxy;
use tenure_testkit::redis::Redis;

async fn with_contenders(test: impl AsyncFnOnce(Contenders<'_>, Duration)) {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let url = format!("redis://{}{TRUSTED}", proxy.address());
    let count = || {
        let waiting = usize::try_from(waiting(&server, "x")).unwrap();
        waiting + usize::from(!owner(&server, "x").is_empty())
    };
    let all = Contenders {
        proxy: &proxy,
        holder: connect(&url).await,
        waiter: client_of(&server).await,
        count: &count,
    };
    test(all, TTL).await;
}

on_a_closed_connection!(with_contenders);
