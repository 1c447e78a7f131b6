//! Many names at once.

use std::time::Duration;

use crate::support::{client_of, soon, take};
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
