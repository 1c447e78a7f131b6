//! `dialect=redisson` and the locks of Redisson itself: hash, channel, watchdog, fencing token.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, Renew};

use crate::support::{
    self, Driver, LONG, PATIENCE, Redis, millis, or_skip, our_holder, say, soon, take, try_fails,
    until, waiting,
};

const SHORT: Duration = Duration::from_secs(1);
/// Names and what Redisson derives from them: an own hash tag is kept, else one is made.
const NAMES: &[(&str, &str)] = &[
    ("orders/42", "{orders/42}"),
    ("a{b}c", "a{b}c"),
    ("a{b", "a{b"),
    ("mit Leerzeichen und 🔒", "{mit Leerzeichen und 🔒}"),
];

fn channel(name: &str) -> String {
    let (_, tagged) = NAMES.iter().find(|(plain, _)| *plain == name).unwrap();
    format!("redisson_lock__channel:{tagged}")
}

const NAME: &str = "orders/42";

/// A server, a client of ours, and Redisson; `None` where one of them is not there.
async fn everybody() -> Option<(Redis, Client, Driver)> {
    let redis = Redis::start()?;
    let they = Driver::start("java", &redis).await?;
    let we = redis.redisson().await;
    Some((redis, we, they))
}

/// Waits until we have subscribed, to be told of their release.
async fn until_we_wait(redis: &Redis, name: &str) {
    let channel = channel(name);
    let subscribed = || redis.subscribers(&channel) > redis.subscriptions_of("redisson");
    until("our subscription", subscribed).await;
}

/// Waits until Redisson has subscribed, to be told of our release.
async fn until_they_wait(redis: &Redis) {
    let subscribed = || redis.subscriptions_of("redisson") > 0;
    until("their subscription", subscribed).await;
}

#[tokio::test]
async fn we_wait_for_them() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    for (name, _) in NAMES {
        they.take(name, LONG).await;
        let hash = redis.hash(name);
        assert_eq!((hash.len(), hash[0].1.as_str()), (1, "1"), "{hash:?}");
        assert!(try_fails(&we, name).await, "{name}");
        assert!(we.inspect(name).await.unwrap().is_held());
        assert_eq!(redis.hash(name), hash, "we have changed their hold");
        let waiting = waiting(&we, name);
        until_we_wait(&redis, name).await;
        assert_eq!(redis.hash(name), hash, "we have not waited");
        they.unlock(name).await;
        let guard = soon("our turn", waiting).await.unwrap();
        assert!(they.try_fails(name).await);
        guard.release().await.unwrap();
        assert!(!redis.exists(name), "{name}");
    }
}

#[tokio::test]
async fn they_wait_for_us() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    for (name, _) in NAMES {
        let guard = take(&we, name).await;
        let hash = redis.hash(name);
        assert_eq!((hash.len(), hash[0].1.as_str()), (1, "1"), "{hash:?}");
        assert!((1..=30_000).contains(&redis.ttl(name)));
        assert!(they.try_fails(name).await, "{name}");
        assert_eq!(they.ask(&["locked", name]).await, "yes");
        assert_eq!(they.ask(&["lock", name, "200", "30000"]).await, "busy");
        they.tell(&["lock", name, &millis(PATIENCE), "30000"]);
        until_they_wait(&redis).await;
        guard.release().await.unwrap();
        they.held().await;
        assert!(try_fails(&we, name).await, "{name}");
        they.unlock(name).await;
        assert!(!redis.exists(name), "{name}");
    }
}

/// Either side is woken by the message of the other, and does not sleep until the lease is over.
#[tokio::test]
async fn a_release_wakes_the_other_side() {
    const ROUNDS: usize = 20;
    let (redis, we, mut they) = or_skip!(everybody().await);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        they.take(NAME, LONG).await;
        let waiting = waiting(&we, NAME);
        until_we_wait(&redis, NAME).await;
        let released = Instant::now();
        they.unlock(NAME).await;
        let guard = soon("our turn", waiting).await.unwrap();
        ours.push(released.elapsed());

        they.tell(&["lock", NAME, &millis(PATIENCE), "30000"]);
        until_they_wait(&redis).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        they.held().await;
        theirs.push(released.elapsed());
        they.unlock(NAME).await;
    }
    for (who, mut times) in [("we", ours), ("Redisson", theirs)] {
        times.sort();
        let (median, last) = (times[ROUNDS / 2], times[ROUNDS - 1]);
        say(&format!(
            "interop java: {who} held {median:.1?} (at most {last:.1?}) after the other's release"
        ));
        // Far from what a busy machine may take, and far from the lease of 30 s.
        assert!(last < Duration::from_secs(5), "{who}: {last:?}");
    }
}

#[tokio::test]
async fn our_release_says_0_on_their_channel() {
    let Some(redis) = Redis::start() else { return };
    let we = redis.redisson().await;
    for (name, _) in NAMES {
        let mut message = redis.listen(&channel(name));
        take(&we, name).await.release().await.unwrap();
        assert_eq!(message(), "0", "{name}");
    }
}

#[tokio::test]
async fn their_watchdog_keeps_us_out() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    they.take(NAME, Duration::ZERO).await;
    assert!((20_000..=30_000).contains(&redis.ttl(NAME)));
    assert!(try_fails(&we, NAME).await);
    they.unlock(NAME).await;

    let quick = Driver::start_with("java", &redis, &[&millis(SHORT)]).await;
    let mut they = quick.expect("it has started once");
    they.take(NAME, Duration::ZERO).await;
    assert!((1..=1000).contains(&redis.ttl(NAME)));
    let lock = we.lock(NAME).wait(SHORT * 7 / 2);
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    // Killed, it renews no more.
    they.kill();
    let guard = soon("our turn", waiting(&we, NAME)).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn our_renewal_keeps_them_out() {
    let (_redis, we, mut they) = or_skip!(everybody().await);
    let lock = we.lock(NAME).ttl(SHORT);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let wait = millis(SHORT * 7 / 2);
    assert_eq!(they.ask(&["lock", NAME, &wait, "30000"]).await, "busy");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(!they.try_fails(NAME).await);
}

#[tokio::test]
async fn tokens_grow_over_both_sides() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    they.ask(&["kind", "fenced"]).await;
    for (name, tagged) in NAMES {
        let mut last = 0;
        for _ in 0..5 {
            let token: u64 = they.take(name, LONG).await.parse().unwrap();
            assert!(token > last, "{name}: they got {token} after {last}");
            // Entering again costs a number, too.
            let again: u64 = they.take(name, LONG).await.parse().unwrap();
            assert!(again > token, "{name}: they got {again} after {token}");
            they.unlock(name).await;
            they.unlock(name).await;
            let guard = take(&we, name).await;
            last = guard.token().get();
            assert!(last > again, "{name}: we got {last} after {again}");
            assert_eq!(stored_token(&redis, tagged), last);
            guard.release().await.unwrap();
            assert_eq!(stored_token(&redis, tagged), last);
        }
    }
}

fn stored_token(redis: &Redis, tagged: &str) -> u64 {
    let key = format!("redisson_lock_token:{tagged}");
    redis.ask(&["GET", &key]).text().parse().unwrap()
}

/// Also when the lock is handed from waiter to waiter.
#[tokio::test]
async fn tokens_grow_over_waiters_of_both_sides() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    they.ask(&["kind", "fenced"]).await;
    let mut last: u64 = they.take(NAME, LONG).await.parse().unwrap();
    for _ in 0..5 {
        let waiting = waiting(&we, NAME);
        until_we_wait(&redis, NAME).await;
        they.unlock(NAME).await;
        let guard = soon("our turn", waiting).await.unwrap();
        assert!(guard.token().get() > last);
        they.tell(&["lock", NAME, &millis(PATIENCE), "30000"]);
        until_they_wait(&redis).await;
        let ours = guard.token().get();
        guard.release().await.unwrap();
        last = they.held().await.parse().unwrap();
        assert!(last > ours, "they got {last} after {ours}");
    }
}

#[tokio::test]
async fn what_is_not_ours_we_do_not_release() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    let lock = we.lock(NAME).ttl(SHORT).renew(Renew::Never);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    until("the end of our hold", || !redis.exists(NAME)).await;
    // Entered twice: a release of ours must take neither.
    they.take(NAME, LONG).await;
    they.take(NAME, LONG).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(they.ask(&["depth", NAME]).await, "depth\t2");
    they.unlock(NAME).await;
    assert!(try_fails(&we, NAME).await, "they have left once of twice");
    let waiting = waiting(&we, NAME);
    until_we_wait(&redis, NAME).await;
    they.unlock(NAME).await;
    let guard = soon("our turn", waiting).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_is_not_theirs_they_do_not_release() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    they.take(NAME, Duration::from_millis(100)).await;
    until("the end of their hold", || !redis.exists(NAME)).await;
    let guard = take(&we, NAME).await;
    let hash = redis.hash(NAME);
    assert_eq!(they.ask(&["unlock", NAME]).await, "not-held");
    assert_eq!(redis.hash(NAME), hash);
    assert!(guard.is_held());
    assert!(they.try_fails(NAME).await);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn they_are_killed() {
    let (_redis, we, mut they) = or_skip!(everybody().await);
    they.take(NAME, SHORT).await;
    let waiting = waiting(&we, NAME);
    they.kill();
    let guard = soon("our turn", waiting).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn we_are_killed() {
    let (redis, _we, mut they) = or_skip!(everybody().await);
    let mut we = our_holder(&redis.url("&dialect=redisson"), NAME, "1s").await;
    assert!(they.try_fails(NAME).await);
    we.kill().unwrap();
    they.tell(&["lock", NAME, &millis(PATIENCE), "30000"]);
    they.held().await;
}

#[tokio::test]
async fn no_increment_is_lost() {
    let (_redis, we, mut they) = or_skip!(everybody().await);
    let ours = (&we, Duration::ZERO);
    support::no_increment_is_lost((&mut they, "0"), ours, NAME, [4, 500]).await;
}

/// The lock of somebody with another format: no guess, and not a wait for ever.
#[tokio::test]
async fn a_string_under_the_name_is_one_clear_error() {
    let Some(redis) = Redis::start() else { return };
    let we = redis.redisson().await;
    redis.ask(&["SET", NAME, "somebody"]);
    for error in [
        we.lock(NAME).try_acquire().await.unwrap_err(),
        we.lock(NAME).wait(PATIENCE).acquire().await.unwrap_err(),
    ] {
        let text = error.to_string();
        assert!(text.contains("holds a string"), "{text}");
        assert!(text.contains("leave dialect=redisson out"), "{text}");
        assert!(text.contains(NAME), "{text}");
    }
    assert_eq!(redis.ask(&["GET", NAME]).text(), "somebody");
}

/// And the two of ours: whoever forgets the option is told, and nobody enters.
#[tokio::test]
async fn a_hold_of_theirs_is_an_error_to_the_other_dialect() {
    let (redis, we, mut they) = or_skip!(everybody().await);
    let other = redis.client().await;
    they.take(NAME, LONG).await;
    let error = other.lock(NAME).try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("redisson"), "{error}");
    they.unlock(NAME).await;

    let guard = take(&other, NAME).await;
    assert!(we.lock(NAME).try_acquire().await.is_err());
    let answer = they.ask(&["try", NAME, "30000"]).await;
    assert!(answer.starts_with("error\t"), "{answer}");
    guard.release().await.unwrap();
}
