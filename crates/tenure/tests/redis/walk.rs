//! What the walks that all stores share have to know about Redis servers.

use tenure::Client;
use tenure_testkit::redis::Redis;
use tenure_testkit::resp::Value;

use crate::support::{assert_all_expire, client_of, keys, until};

/// A client of each server alone.
pub(crate) async fn observers(servers: &[Redis]) -> Vec<Client> {
    let mut observers = Vec::new();
    for server in servers {
        observers.push(client_of(server).await);
    }
    observers
}

/// Whether each server has a request to upgrade in its queue (`expected`), or none of them has.
pub(crate) fn show_upgrade(servers: &[Redis], name: &str, expected: bool) -> bool {
    let holders = format!("tenure:{{{name}}}:holders");
    let is_upgrading = |server: &Redis| {
        let values = server.ask(&["HVALS", &holders]).items();
        let mut values = values.iter().map(Value::text);
        values.any(|value| value.split(' ').nth(1) == Some("w"))
    };
    servers.iter().all(|it| is_upgrading(it) == expected)
}

/// Waits until only these keys are left whose names contain the name of the lock, each with the name in the place of
/// `NAME`.
pub(crate) async fn until_left(server: &Redis, name: &str, left: &[&str]) {
    let mut left: Vec<_> = left.iter().map(|key| key.replace("NAME", name)).collect();
    left.sort();
    until("nothing is left but the token", || {
        let mut all = keys(server);
        all.retain(|key| key.contains(name));
        all.sort();
        all == left
    })
    .await;
}

/// The key of the token is the only one that is left on each server, and it expires.
pub(crate) async fn until_only_tokens_are_left(servers: &[Redis], name: &str) {
    for server in servers {
        until_left(server, name, &["tenure:{NAME}:hold"]).await;
        assert_all_expire(server);
    }
}
