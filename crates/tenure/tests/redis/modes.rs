//! Holds beside others: the scripts against the reference table, and what other programs see of such holds.

use std::num::NonZeroU32;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tenure::Mode;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Mistake, Proxy};
use tenure_testkit::redis::Redis;

use crate::common::walk::{Walk, WalkOptions};
use crate::support::{TRUSTED, client_of, connect, owner, soon, start_acquire, until, waiting};
use crate::walk::{self, until_only_tokens_are_left};

/// Longer than the test.
const LONG: Duration = Duration::from_secs(120);

/// Random steps of four clients: after each, holders and queue are those of the reference table.
#[tokio::test(flavor = "multi_thread")]
async fn the_scripts_do_what_the_table_says() {
    goes_as_the_table_says(WalkOptions::default()).await;
}

/// More owners than permits, so that permits pass to waiters.
#[tokio::test(flavor = "multi_thread")]
async fn permits_pass_on_as_the_table_says() {
    goes_as_the_table_says(permits()).await;
}

const fn permits_of(limit: u32) -> Mode {
    let limit = NonZeroU32::new(limit).expect("not zero");
    Mode::Permits { limit }
}

/// Seven owners, most of which want one of two permits.
fn permits() -> WalkOptions<'static> {
    const TWO: Mode = permits_of(2);
    const THREE: Mode = permits_of(3);
    WalkOptions {
        owners: 7,
        modes: &[TWO, TWO, TWO, TWO, TWO, TWO, THREE, Mode::Shared],
        ..WalkOptions::default()
    }
}

async fn goes_as_the_table_says(options: WalkOptions<'static>) {
    needs!(redis);
    let server = Redis::start(&[]);
    let servers = slice::from_ref(&server);
    let observers = walk::observers(servers).await;
    let client = async || client_of(&server).await;
    let options = WalkOptions {
        observers: &observers,
        shows_upgrade: &|name, expected| walk::show_upgrade(servers, name, expected),
        ..options
    };
    for seed in 0..20 {
        let name = format!("walk-{seed}");
        let mut walk = Walk::new(&name, client, seed, options).await;
        walk.goes_as_the_table_says(80).await;
        walk.close().await;
        until_only_tokens_are_left(servers, &name).await;
    }
}

/// The scripts in which mistakes are planted.
const SCRIPTS: &[&str] = &[
    include_str!("../../src/redis/lua/common.lua"),
    include_str!("../../src/redis/lua/queue.lua"),
    include_str!("../../src/redis/lua/acquire_mode.lua"),
    include_str!("../../src/redis/lua/upgrade.lua"),
    include_str!("../../src/redis/lua/downgrade.lua"),
    include_str!("../../src/redis/lua/release.lua"),
];

/// The same steps on a server whose scripts have this mistake. The test fails if the mistake changes nothing.
#[track_caller]
fn is_noticed(
    mistake: &'static Mistake,
    options: WalkOptions<'static>,
) -> impl Future<Output = ()> {
    let places = SCRIPTS
        .iter()
        .map(|script| script.matches(mistake.text).count());
    assert_eq!(
        places.sum::<usize>(),
        1,
        "places to plant {:?}",
        mistake.text
    );
    async move {
        needs!(redis);
        let server = Redis::start(&[]);
        let proxy = Proxy::redis_with(server.port(), mistake);
        let client = async || connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
        let servers = slice::from_ref(&server);
        let observers = walk::observers(servers).await;
        let options = WalkOptions {
            limit: Duration::from_secs(3),
            observers: &observers,
            shows_upgrade: &|name, expected| walk::show_upgrade(servers, name, expected),
            ..options
        };
        for seed in 0..20 {
            let mut walk = Walk::new(&format!("walk-{seed}"), client, seed, options).await;
            if let Err(why) = walk.go(80).await {
                println!("noticed with seed {seed}: {why}");
                return;
            }
            walk.close().await;
        }
        panic!("{mistake:?} changes nothing");
    }
}

/// Mistakes in scripts, each with the test that notices it in walks with these options.
macro_rules! mistakes {
    ($options:expr, $($name:ident: $text:literal => $wrong:literal;)*) => { $(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            is_noticed(&Mistake { text: $text, wrong: $wrong }, $options).await;
        }
    )* };
}

mistakes! {
    WalkOptions::default(),
    a_reader_that_ignores_a_waiting_writer_is_noticed:
        " and (not known or byte(known) ~= 43) then" => " then";
    a_permit_that_is_counted_twice_is_noticed:
        "      if mode == PERMIT then\n        all.permits = all.permits + 1" =>
        "      if mode == PERMIT then\n        all.permits = all.permits + 2";
    a_second_upgradable_holder_is_noticed:
        "return not all.upgradable" => "return true";
    an_upgrade_that_lets_others_in_is_noticed:
        "  if all.upgrading then\n    return false" => "  if false then\n    return false";
    an_upgrade_beside_a_reader_is_noticed:
        "if all.count == 1 then\n  return tonumber(become" => "if all.count <= 2 then\n  return tonumber(become";
    an_upgrade_that_keeps_its_token_is_noticed:
        "math.max(last + 1, propose or us))\n  redis.call('DEL', HOLDERS)" => "entry.token)\n  redis.call('DEL', HOLDERS)";
    a_hand_over_to_the_wrong_neighbour_is_noticed:
        "    redis.call('LPOP', QUEUE)\n    redis.call('LPOP', QUEUE)\n    if is_good then\n      local token = join" =>
        "    first = redis.call('LRANGE', QUEUE, -2, -1)\n    redis.call('RPOP', QUEUE)\n    redis.call('RPOP', QUEUE)\n    if is_good then\n      local token = join";
}

mistakes! {
    permits(),
    a_permit_that_passes_on_beside_other_holders_is_noticed:
        "  if #fields == 2 * limit then" => "  if true then";
    a_permit_that_passes_on_after_it_has_ended_is_noticed:
        "redis.call('HDEL', HOLDERS, owner) == 0" => "redis.call('HDEL', HOLDERS, owner) == 2";
    an_owner_that_waits_for_a_free_permit_is_noticed:
        "if first and (not queued[1] or" => "if token and (not queued[1] or";
}

/// A program that knows only the key excludes all our modes, and is excluded by them.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_holder_excludes_readers_and_permits() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let set = ["SET", "x", "theirs", "NX", "PX", "60000"];
    assert_eq!(server.ask(&set).text(), "OK");
    for lock in [
        client.lock("x").shared(),
        client.lock("x").upgradable(),
        client.lock("x").permits(3),
    ] {
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        let mine = start_acquire(lock.ttl(LONG));
        until("it waits", || waiting(&server, "x") == 1).await;
        mine.abort();
        until("it left", || waiting(&server, "x") == 0).await;
    }
    server.ask(&["DEL", "x"]);
    let reader = soon(client.lock("x").shared().acquire()).await.unwrap();
    let permit = soon(client.lock("x").permits(3).acquire()).await.unwrap();
    assert_eq!(owner(&server, "x"), "*");
    assert_eq!(server.ask(&set), tenure_testkit::resp::Value::Nil);
    soon(reader.release()).await.unwrap();
    assert_eq!(server.ask(&set), tenure_testkit::resp::Value::Nil);
    soon(permit.release()).await.unwrap();
    assert_eq!(server.ask(&set).text(), "OK");
}

/// The message that the other holders have left says nothing about the lease, which is that of the hold.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_waited_has_a_whole_lease() {
    needs!(redis);
    let server = Redis::start(&[]);
    let client = client_of(&server).await;
    let upgradable = client.lock("x").ttl(LONG).lock_delay(LONG).upgradable();
    let upgradable = Arc::new(soon(upgradable.acquire()).await.unwrap());
    let reader = client.lock("x").ttl(LONG).shared();
    let reader = soon(reader.acquire()).await.unwrap();
    let upgrading = {
        let upgradable = upgradable.clone();
        tokio::spawn(async move { upgradable.upgrade().await })
    };
    let entries = || server.ask(&["HVALS", "tenure:{x}:holders"]).items();
    until("it waits", || {
        entries().iter().any(|entry| entry.text().contains(" w "))
    })
    .await;
    soon(reader.release()).await.unwrap();
    soon(upgrading).await.unwrap().unwrap();
    let left = upgradable.remaining();
    assert!(left > LONG / 2, "{left:?}");
    let left = server.ask(&["PTTL", "x"]).int();
    assert!(
        u128::try_from(left).unwrap() > (LONG + LONG / 2).as_millis(),
        "with `lock_delay` {left} ms are left"
    );
}
