//! What the tests about Redis share.

use std::time::Duration;

use tenure::Client;

pub(crate) use crate::common::{
    assert_clear, assert_says, connect, soon, start_acquire, take, take_and_release, until,
    until_renewed,
};
use tenure_testkit::redis::Redis;

/// Far above what the server and a machine with other work need, short enough to wait for its end.
pub(crate) const TTL: Duration = Duration::from_secs(8);

/// For servers that keep nothing on disk, where the test is not about that: by default nothing
/// would be granted for half a minute after their start.
pub(crate) const TRUSTED: &str = "?timeout=3s&restart_guard=off";

/// A client of a server that the test is not about.
pub(crate) async fn client_of(server: &Redis) -> Client {
    connect(&format!("{}{TRUSTED}", server.url())).await
}

/// Keys of the server.
pub(crate) fn keys(server: &Redis) -> Vec<String> {
    let keys = server.ask(&["KEYS", "*"]).items();
    keys.iter().map(|key| key.text()).collect()
}

/// Who holds the lock, by its key.
pub(crate) fn owner(server: &Redis, name: &str) -> String {
    server.ask(&["GET", name]).text()
}

/// How many wait, by the queue's key.
pub(crate) fn waiting(server: &Redis, name: &str) -> i64 {
    server
        .ask(&["LLEN", &format!("tenure:{{{name}}}:queue")])
        .int()
        / 2
}

/// No key stays for ever, and no client listens.
#[track_caller]
pub(crate) fn assert_all_expire(server: &Redis) {
    for key in keys(server) {
        let left = server.ask(&["PTTL", &key]).int();
        assert!(left != -1, "{key} has no ttl");
    }
}

/// How often the server ran a command.
pub(crate) fn calls(server: &Redis, command: &str) -> u64 {
    let calls = server.info("commandstats", &format!("cmdstat_{command}"));
    let calls = calls
        .strip_prefix("calls=")
        .and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}
