//! `dialect=redisson` and the locks of Redisson itself: hash, channel, watchdog, fencing token.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, Renew};

use crate::support::{
    self, Driver, LONG, RESERVATION, Redis, WAIT_TIMEOUT, millis, or_skip, our_holder, print_line,
    soon, take, try_fails, until, waiting,
};

const SHORT: Duration = Duration::from_secs(1);
/// A ttl of a hold that is renewed: a process may stand still for some seconds.
const KEPT: Duration = Duration::from_secs(4);
/// Names, and what Redisson derives from them: a hash tag in the name is kept, otherwise one is added.
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

/// A server, a client of ours, and Redisson; `None` where one of them is not installed.
async fn start_all() -> Option<(Redis, Client, Driver)> {
    let redis = Redis::start()?;
    let foreign = Driver::start("java", &redis).await?;
    let our_client = redis.redisson().await;
    Some((redis, our_client, foreign))
}

/// Waits until our client has subscribed to the channel on which Redisson publishes a release.
async fn until_tenure_subscribed(redis: &Redis, name: &str) {
    let channel = channel(name);
    let subscribed = || redis.subscribers(&channel) > redis.subscriptions_of("redisson");
    until("our subscription", subscribed).await;
}

/// Waits until Redisson has subscribed to the channel on which we publish a release.
async fn until_redisson_subscribed(redis: &Redis) {
    let subscribed = || redis.subscriptions_of("redisson") > 0;
    until("their subscription", subscribed).await;
}

#[tokio::test]
async fn tenure_waits_for_a_foreign_holder() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    for (name, _) in NAMES {
        foreign.take(name, LONG).await;
        let hash = redis.hash(name);
        assert_eq!((hash.len(), hash[0].1.as_str()), (1, "1"), "{hash:?}");
        assert!(try_fails(&our_client, name).await, "{name}");
        assert!(our_client.inspect(name).await.unwrap().is_held());
        assert_eq!(redis.hash(name), hash, "we have changed their hold");
        let waiting = waiting(&our_client, name);
        until_tenure_subscribed(&redis, name).await;
        assert_eq!(redis.hash(name), hash, "we have not waited");
        foreign.unlock(name).await;
        let guard = soon("our turn", waiting).await.unwrap();
        assert!(foreign.try_fails(name).await);
        guard.release().await.unwrap();
        assert!(!redis.exists(name), "{name}");
    }
}

#[tokio::test]
async fn a_foreign_client_waits_for_tenure() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    for (name, _) in NAMES {
        let guard = take(&our_client, name).await;
        let hash = redis.hash(name);
        assert_eq!((hash.len(), hash[0].1.as_str()), (1, "1"), "{hash:?}");
        assert!((1..=30_000).contains(&redis.ttl(name)));
        assert!(foreign.try_fails(name).await, "{name}");
        assert_eq!(foreign.ask(&["locked", name]).await, "yes");
        assert_eq!(foreign.ask(&["lock", name, "200", "30000"]).await, "busy");
        foreign.tell(&["lock", name, &millis(WAIT_TIMEOUT), "30000"]);
        until_redisson_subscribed(&redis).await;
        guard.release().await.unwrap();
        foreign.held().await;
        assert!(try_fails(&our_client, name).await, "{name}");
        foreign.unlock(name).await;
        assert!(!redis.exists(name), "{name}");
    }
}

/// After our release the name stays reserved, and Redisson waits until then, no longer.
#[tokio::test]
async fn a_foreign_client_waits_until_our_reservation_ends() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let start = Instant::now();
    let lock = our_client.lock(NAME).ttl(LONG).min_hold(RESERVATION);
    let guard = soon("our request", lock.try_acquire()).await.unwrap();
    foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
    until_redisson_subscribed(&redis).await;
    guard.unwrap().release().await.unwrap();
    assert_eq!(redis.hash(NAME), [("-".to_owned(), "1".to_owned())]);
    assert!(u128::from(redis.ttl(NAME).unsigned_abs()) <= RESERVATION.as_millis());
    let status = our_client.inspect(NAME).await.unwrap();
    assert!(status.reserved.is_some() && !status.is_held());
    assert!(try_fails(&our_client, NAME).await);
    foreign.held().await;
    assert!(start.elapsed() >= RESERVATION);
    foreign.unlock(NAME).await;
    assert!(!redis.exists(NAME));
}

/// The message of a release wakes the waiter of the other library, which does not sleep until the end of the lease.
#[tokio::test]
async fn a_release_wakes_the_other_side() {
    const ROUNDS: usize = 20;
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        foreign.take(NAME, LONG).await;
        let waiting = waiting(&our_client, NAME);
        until_tenure_subscribed(&redis, NAME).await;
        let released = Instant::now();
        foreign.unlock(NAME).await;
        let guard = soon("our turn", waiting).await.unwrap();
        ours.push(released.elapsed());

        foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
        until_redisson_subscribed(&redis).await;
        let released = Instant::now();
        guard.release().await.unwrap();
        foreign.held().await;
        theirs.push(released.elapsed());
        foreign.unlock(NAME).await;
    }
    for (who, mut times) in [("we", ours), ("Redisson", theirs)] {
        times.sort();
        let (median, last) = (times[ROUNDS / 2], times[ROUNDS - 1]);
        print_line(&format!(
            "interop java: {who} held {median:.1?} (at most {last:.1?}) after the other's release"
        ));
        // Much longer than a busy machine needs, and much shorter than the lease of 30 s.
        assert!(last < Duration::from_secs(5), "{who}: {last:?}");
    }
}

#[tokio::test]
async fn our_release_publishes_0_on_the_channel_of_redisson() {
    let Some(redis) = Redis::start() else { return };
    let our_client = redis.redisson().await;
    for (name, _) in NAMES {
        let mut message = redis.listen(&channel(name));
        take(&our_client, name).await.release().await.unwrap();
        assert_eq!(message(), "0", "{name}");
    }
}

#[tokio::test]
async fn the_watchdog_of_redisson_keeps_us_out() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.take(NAME, Duration::ZERO).await;
    assert!((20_000..=30_000).contains(&redis.ttl(NAME)));
    assert!(try_fails(&our_client, NAME).await);
    foreign.unlock(NAME).await;

    let quick = Driver::start_with("java", &redis, &[&millis(KEPT)]).await;
    let mut foreign = quick.expect("it has started once");
    foreign.take(NAME, Duration::ZERO).await;
    assert!((1..=4000).contains(&redis.ttl(NAME)));
    let lock = our_client.lock(NAME).wait(KEPT * 3 / 2);
    let error = lock.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitElapsed, "{error}");
    // A process that was killed sends no more renewals.
    foreign.kill();
    let guard = soon("our turn", waiting(&our_client, NAME)).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn our_renewal_keeps_foreign_clients_out() {
    let (_redis, our_client, mut foreign) = or_skip!(start_all().await);
    let lock = our_client.lock(NAME).ttl(KEPT);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    let wait = millis(KEPT * 3 / 2);
    assert_eq!(foreign.ask(&["lock", NAME, &wait, "30000"]).await, "busy");
    assert!(guard.is_held());
    guard.release().await.unwrap();
    assert!(!foreign.try_fails(NAME).await);
}

#[tokio::test]
async fn tokens_grow_over_both_sides() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.ask(&["kind", "fenced"]).await;
    for (name, tagged) in NAMES {
        let mut last = 0;
        for _ in 0..5 {
            let token: u64 = foreign.take(name, LONG).await.parse().unwrap();
            assert!(token > last, "{name}: they got {token} after {last}");
            // Entering the lock again also uses a token.
            let again: u64 = foreign.take(name, LONG).await.parse().unwrap();
            assert!(again > token, "{name}: they got {again} after {token}");
            foreign.unlock(name).await;
            foreign.unlock(name).await;
            let guard = take(&our_client, name).await;
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

/// Tokens also grow when the lock is handed from waiter to waiter.
#[tokio::test]
async fn tokens_grow_over_waiters_of_both_sides() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.ask(&["kind", "fenced"]).await;
    let mut last: u64 = foreign.take(NAME, LONG).await.parse().unwrap();
    for _ in 0..5 {
        let waiting = waiting(&our_client, NAME);
        until_tenure_subscribed(&redis, NAME).await;
        foreign.unlock(NAME).await;
        let guard = soon("our turn", waiting).await.unwrap();
        assert!(guard.token().get() > last);
        foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
        until_redisson_subscribed(&redis).await;
        let ours = guard.token().get();
        guard.release().await.unwrap();
        last = foreign.held().await.parse().unwrap();
        assert!(last > ours, "they got {last} after {ours}");
    }
}

#[tokio::test]
async fn we_do_not_release_a_foreign_hold() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let lock = our_client.lock(NAME).ttl(SHORT).renew(Renew::Never);
    let guard = lock.try_acquire().await.unwrap().unwrap();
    until("the end of our hold", || !redis.exists(NAME)).await;
    // Redisson has entered the lock twice, and our release must end neither entry.
    foreign.take(NAME, LONG).await;
    foreign.take(NAME, LONG).await;
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(foreign.ask(&["depth", NAME]).await, "depth\t2");
    foreign.unlock(NAME).await;
    assert!(
        try_fails(&our_client, NAME).await,
        "they have left once of twice"
    );
    let waiting = waiting(&our_client, NAME);
    until_tenure_subscribed(&redis, NAME).await;
    foreign.unlock(NAME).await;
    let guard = soon("our turn", waiting).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_foreign_client_does_not_release_our_hold() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.take(NAME, Duration::from_secs(1)).await;
    until("the end of their hold", || !redis.exists(NAME)).await;
    let guard = take(&our_client, NAME).await;
    let hash = redis.hash(NAME);
    assert_eq!(foreign.ask(&["unlock", NAME]).await, "not-held");
    assert_eq!(redis.hash(NAME), hash);
    assert!(guard.is_held());
    assert!(foreign.try_fails(NAME).await);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_foreign_holder_is_killed() {
    let (_redis, our_client, mut foreign) = or_skip!(start_all().await);
    foreign.take(NAME, SHORT).await;
    let waiting = waiting(&our_client, NAME);
    foreign.kill();
    let guard = soon("our turn", waiting).await.unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_holder_of_ours_is_killed() {
    let (redis, _we, mut foreign) = or_skip!(start_all().await);
    let mut our_client = our_holder(&redis.url("&dialect=redisson"), NAME, "6s").await;
    assert!(foreign.try_fails(NAME).await);
    our_client.kill().unwrap();
    foreign.tell(&["lock", NAME, &millis(WAIT_TIMEOUT), "30000"]);
    foreign.held().await;
}

#[tokio::test]
async fn no_increment_is_lost() {
    let (_redis, our_client, mut foreign) = or_skip!(start_all().await);
    let ours = (&our_client, Duration::ZERO);
    support::no_increment_is_lost((&mut foreign, "0"), ours, NAME, [4, 500]).await;
}

/// A value of another format under the name is an error: the client neither guesses its meaning nor waits for ever.
#[tokio::test]
async fn a_string_under_the_name_is_one_clear_error() {
    let Some(redis) = Redis::start() else { return };
    let our_client = redis.redisson().await;
    redis.ask(&["SET", NAME, "somebody"]);
    for error in [
        our_client.lock(NAME).try_acquire().await.unwrap_err(),
        our_client
            .lock(NAME)
            .wait(WAIT_TIMEOUT)
            .acquire()
            .await
            .unwrap_err(),
    ] {
        let text = format!("{error:#}");
        assert!(text.contains("holds a string"), "{text}");
        assert!(text.contains("leave dialect=redisson out"), "{text}");
        assert!(text.contains(NAME), "{text}");
    }
    assert_eq!(redis.ask(&["GET", NAME]).text(), "somebody");
}

/// A client without `dialect=redisson` gets an error for a lock of Redisson, and neither client enters the lock of the
/// other.
#[tokio::test]
async fn a_hold_of_redisson_is_an_error_to_the_other_dialect() {
    let (redis, our_client, mut foreign) = or_skip!(start_all().await);
    let other = redis.client().await;
    foreign.take(NAME, LONG).await;
    let error = other.lock(NAME).try_acquire().await.unwrap_err();
    assert!(format!("{error:#}").contains("redisson"), "{error}");
    foreign.unlock(NAME).await;

    let guard = take(&other, NAME).await;
    assert!(our_client.lock(NAME).try_acquire().await.is_err());
    let answer = foreign.ask(&["try", NAME, "30000"]).await;
    assert!(answer.starts_with("error\t"), "{answer}");
    guard.release().await.unwrap();
}
