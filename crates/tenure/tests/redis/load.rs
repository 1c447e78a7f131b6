//! Many names at once.

use std::time::Duration;

use crate::support::{client_of, soon, take, until, waiting};
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;

/// For a lease that must not end, however busy the machine is.
const TTL: Duration = Duration::from_secs(6);

/// Copies a hold to names `many/1` and so on, with a lease of an hour.
const COPY: &str = "local token = redis.call('GET', 'seed')
local hold = redis.call('DUMP', 'tenure:{seed}:hold')
for at = 1, ARGV[1] do
  local name = 'many/' .. at
  redis.call('SET', name, token, 'PX', 3600000)
  redis.call('RESTORE', 'tenure:{' .. name .. '}:hold', 3600000, hold)
end";

/// Reserves the names `many/1` and so on for an hour.
const RESERVE: &str = "for at = 1, ARGV[1] do
  redis.call('SET', 'many/' .. at, '-', 'PX', 3600000)
end";

/// For how many ms the place of the first waiter is valid.
const LEFT: &str = "local now = redis.call('TIME')
local deadline = string.match(redis.call('LINDEX', KEYS[1], 1), '^%d+')
return deadline - now[1] * 1000 - math.floor(now[2] / 1000)";

/// A hold goes on being renewed while an operator lists far more names than the server answers within one lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_very_many_names_leaves_room_for_renewals() {
    needs!(redis);
    const NAMES: usize = 50_000;
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    // The script that copies it keeps a busy server for longer than a short lease.
    let seed = take(&client, "seed", TTL * 20).await;
    server.ask(&["EVAL", COPY, "0", &NAMES.to_string()]);
    soon(seed.release()).await.unwrap();
    let guard = take(&client, "held", TTL).await;
    let lost = guard.cancellation_token();
    let listed = tokio::time::timeout(4 * tenure_testkit::TEST_TIMEOUT, client.list("many/"));
    let listed = listed.await.unwrap().unwrap();
    assert_eq!(listed.len(), NAMES);
    assert!(listed.is_sorted_by_key(|status| status.name.as_str()));
    assert!(guard.is_held() && !lost.is_cancelled());
    soon(guard.release()).await.unwrap();
}

/// The waiters of a client that waits for very many names ask less often, and their places last longer for it. So do the
/// queues.
#[tokio::test(flavor = "multi_thread")]
async fn the_places_of_very_many_waiters_last_longer() {
    needs!(redis);
    // Each place lasts 9 s, so that all of them need 1,000 requests in a second.
    const NAMES: usize = 3_000;
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    server.ask(&["EVAL", RESERVE, "0", &NAMES.to_string()]);
    let wait = |at: usize| {
        let lock = client.lock(format!("many/{at}")).ttl(TTL * 20);
        tokio::spawn(async move { lock.acquire().await.map(drop) })
    };
    let tasks: Vec<_> = (1..=NAMES).map(wait).collect();
    until("all wait", || {
        waiting(&server, &format!("many/{NAMES}")) == 1
    })
    .await;
    let queue = "tenure:{many/1}:queue";
    let millis = |words: &[&str]| server.ask(words).int();
    until("the queue lasts twice as long as a place", || {
        millis(&["PTTL", queue]) > 15_000
    })
    .await;
    until("a place lasts for longer than five seconds", || {
        millis(&["EVAL", LEFT, "1", queue]) > 5_000
    })
    .await;
    assert!(millis(&["PTTL", queue]) <= 18_000);
    assert!(millis(&["EVAL", LEFT, "1", queue]) <= 9_000);
    for task in tasks {
        task.abort();
    }
    soon(client.close()).await;
}
