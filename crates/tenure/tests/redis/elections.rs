//! Elections on real servers: what is pushed and to whom, and that nothing is left of candidates and observers.

use std::sync::Arc;
use std::time::Duration;

use tenure::ErrorKind::{Denied, Unsupported};
use tenure::holder::{Holder, PublishedValue};
use tenure::store::{Answer, Hold, Request, Store};
use tenure::{Client, Election, Leader, LockName, Observer, OwnerId, Term};

use crate::steps::{FAULTS, Site};
use crate::support::{
    TRUSTED, TTL, assert_all_expire, assert_says, client_of, connect, keys, owner, soon,
    start_acquire, take, take_and_release, until, until_renewed, waiting,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};
use tenure_testkit::redis::Redis;

/// A lease that lasts for the whole test, so that no observer reads because of its end.
const LONG: Duration = Duration::from_secs(3_600);

pub(crate) fn election(client: &Client, value: &str) -> Election {
    client.election("x").ttl(LONG).value(value)
}

pub(crate) async fn lead(client: &Client, value: &str) -> Term {
    soon(election(client, value).campaign()).await.unwrap()
}

/// The value of the leader that the observer sees next; `None`: nobody leads, or the leader has none.
#[track_caller]
pub(crate) fn seen(observer: &mut Observer) -> impl Future<Output = Option<String>> {
    let next = soon(observer.next());
    async move {
        let leader = next.await.expect("the stream goes on").unwrap();
        leader.and_then(|leader| leader.value().map(str::to_owned))
    }
}

/// Passes over what the observer sees until the leader has this value. Errors say that the store does not answer.
pub(crate) async fn until_seen(observer: &mut Observer, value: Option<&str>) {
    let seeing = async {
        loop {
            let item = observer.next().await.expect("the stream goes on");
            if let Ok(leader) = item
                && leader.as_ref().and_then(Leader::value) == value
            {
                return;
            }
        }
    };
    soon(seeing).await;
}

pub(crate) fn subscribers(server: &Redis) -> i64 {
    let count = ["PUBSUB", "NUMSUB", "tenure:{x}:leader"];
    server.ask(&count).items()[1].int()
}

/// However many observe in one client, there is one subscription, and no read after the first of each.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_pushed_to_all_observers_over_one_subscription() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let leader = client_of(&server).await;
    let outsider = connect(&format!("{}{TRUSTED}", server.url_by(proxy.port()))).await;
    let mut observers: Vec<_> = (0..3).map(|_| outsider.election("x").observe()).collect();
    for observer in &mut observers {
        assert_eq!(seen(observer).await, None);
    }
    assert_eq!(subscribers(&server), 1);
    proxy.take_seen();
    for turn in 0..2 {
        let (first, second) = (format!("first {turn}"), format!("\"second\" {turn}\n"));
        let term = lead(&leader, &first).await;
        for observer in &mut observers {
            assert_eq!(seen(observer).await.as_deref(), Some(&*first));
        }
        soon(term.proclaim(second.clone())).await.unwrap();
        for observer in &mut observers {
            assert_eq!(seen(observer).await.as_deref(), Some(&*second));
        }
        soon(term.resign()).await.unwrap();
        for observer in &mut observers {
            assert_eq!(seen(observer).await, None);
        }
    }
    assert_eq!(proxy.take_seen(), Vec::<String>::new());
    observers.truncate(1);
    let term = lead(&leader, "third").await;
    assert_eq!(seen(&mut observers[0]).await.as_deref(), Some("third"));
    assert_eq!(subscribers(&server), 1);
    observers.clear();
    until("the subscription has ended", || subscribers(&server) == 0).await;
    // The next one subscribes again.
    let mut observer = outsider.election("x").observe();
    assert_eq!(seen(&mut observer).await.as_deref(), Some("third"));
    assert_eq!(subscribers(&server), 1);
    soon(term.resign()).await.unwrap();
    assert_eq!(seen(&mut observer).await, None);
    drop(observer);
    until("the subscription has ended", || subscribers(&server) == 0).await;
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);
}

/// Observers that come and go at the same time never lose the subscription of another one.
#[tokio::test(flavor = "multi_thread")]
async fn observers_that_come_and_go_do_not_disturb_each_other() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (leader, outsider) = (client_of(&server).await, client_of(&server).await);
    let mut tasks = Vec::new();
    for number in 0..8_u64 {
        let outsider = outsider.clone();
        tasks.push(tokio::spawn(async move {
            for turn in 0..25_u64 {
                let mut observer = outsider.election("x").observe();
                // Some are dropped while they subscribe.
                let limit = Duration::from_micros((number * 25 + turn) * 20);
                let _ = tokio::time::timeout(limit, observer.next()).await;
            }
        }));
    }
    for turn in 0..10 {
        let mut observer = outsider.election("x").observe();
        assert_eq!(seen(&mut observer).await, None);
        let value = format!("term {turn}");
        let term = lead(&leader, &value).await;
        assert_eq!(seen(&mut observer).await, Some(value));
        soon(term.resign()).await.unwrap();
        assert_eq!(seen(&mut observer).await, None);
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
    until("no subscription is left", || subscribers(&server) == 0).await;
}

/// The script of a lock, which tells no observer, hands the lock over to a candidate; and the other way round.
#[tokio::test(flavor = "multi_thread")]
async fn hand_overs_between_locks_and_candidates_are_pushed() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (first, second) = (client_of(&server).await, client_of(&server).await);
    let mut observer = client_of(&server).await.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    let modes: [fn(&Client) -> tenure::Lock; 2] = [
        |client| client.lock("x").ttl(LONG),
        |client| client.lock("x").ttl(LONG).shared(),
    ];
    for (number, lock) in modes.into_iter().enumerate() {
        let value = format!("candidate {number}");
        let guard = soon(lock(&first).acquire()).await.unwrap();
        let candidate = election(&second, &value);
        let campaign = tokio::spawn(async move { candidate.campaign().await });
        until("it waits", || waiting(&server, "x") == 1).await;
        soon(guard.release()).await.unwrap();
        let term = soon(campaign).await.unwrap().unwrap();
        until_seen(&mut observer, Some(&value)).await;
        // A lock that waits comes next.
        let waiter = start_acquire(lock(&first));
        until("it waits", || waiting(&server, "x") == 1).await;
        let token = term.token();
        soon(term.resign()).await.unwrap();
        let guard = soon(waiter).await.unwrap().unwrap();
        let item = soon(observer.next()).await.unwrap().unwrap();
        match (number, item) {
            // A lock leads without a value.
            (0, Some(leader)) => {
                assert_eq!((leader.token, leader.value()), (Some(guard.token()), None));
            }
            // Readers do not lead.
            (1, None) => assert!(guard.token() > token),
            (_, item) => panic!("{item:?}"),
        }
        soon(guard.release()).await.unwrap();
    }
}

/// The candidate that is first in the queue leads, also if a lock notices that the lease has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_term_and_a_dead_leader_are_seen() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (client, other) = (client_of(&server).await, client_of(&server).await);
    let mut observer = client_of(&server).await.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    let term = lead(&client, "broken").await;
    assert_eq!(seen(&mut observer).await.as_deref(), Some("broken"));
    assert!(
        soon(election(&other, "").ask_to_resign())
            .await
            .unwrap()
            .is_some()
    );
    let token = term.token().get();
    assert!(soon(other.break_lock("x", token)).await.unwrap());
    assert_eq!(seen(&mut observer).await, None);
    assert!(soon(term.lost()).await.is_some());
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);
    drop(term);
    // With a candidate behind it.
    let term = lead(&client, "broken again").await;
    assert_eq!(seen(&mut observer).await.as_deref(), Some("broken again"));
    let candidate = election(&other, "next");
    let campaign = tokio::spawn(async move { candidate.campaign().await });
    until("it waits", || waiting(&server, "x") == 1).await;
    let token = term.token().get();
    assert!(soon(client.break_lock("x", token)).await.unwrap());
    let next = soon(campaign).await.unwrap().unwrap();
    until_seen(&mut observer, Some("next")).await;
    soon(next.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
    drop(term);
}

/// A request to let go: by a message, and by the key with the next renewal. It ends with the hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_to_let_go_reaches_leader_and_lock_and_ends_with_the_hold() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (client, other) = (client_of(&server).await, client_of(&server).await);
    let asked_key = "tenure:{x}:asked";
    let term = lead(&client, "asked").await;
    soon(election(&other, "").ask_to_resign()).await.unwrap();
    assert!(soon(term.asked_to_resign()).await);
    assert_eq!(server.ask(&["GET", asked_key]).text(), owner(&server, "x"));
    soon(term.resign()).await.unwrap();
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);

    // The message was lost.
    let term = soon(client.election("x").ttl(TTL).campaign())
        .await
        .unwrap();
    let put = |server: &Redis| server.order(&["SET", asked_key, &owner(server, "x"), "PX", "8000"]);
    put(&server);
    assert!(soon(term.asked_to_resign()).await);
    // As long as the lock.
    for _ in 0..2 {
        until_renewed(term.guard()).await;
    }
    let left = |key: &str| server.ask(&["PTTL", key]).int();
    assert!((left("x") - left(asked_key)).abs() < 100);
    soon(term.resign()).await.unwrap();
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);

    // A lock, by a message.
    let guard = take(&client, "x", LONG).await;
    soon(election(&other, "").ask_to_resign()).await.unwrap();
    assert!(soon(guard.asked_to_release()).await);
    soon(guard.release()).await.unwrap();
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);

    // A lock that waits for a request finds it with its next renewal.
    let guard = take(&client, "x", TTL).await;
    let asked = guard.asked_to_release();
    put(&server);
    assert!(soon(asked).await);
    soon(guard.release()).await.unwrap();
    assert_eq!(keys(&server), ["tenure:{x}:hold"]);
}

/// Clients die without a word: with their runtime all of their requests and connections end.
#[tokio::test(flavor = "multi_thread")]
async fn leader_candidate_and_observer_that_die_leave_nothing() {
    needs!(redis);
    let server = Redis::start(&[]);
    let behind = client_of(&server).await;
    let mut observer = behind.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    let doomed = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    for value in ["first", "second"] {
        let url = format!("{}{TRUSTED}", server.url());
        doomed.spawn(async move {
            let client = tenure::connect(&url).await.unwrap();
            let mut observer = client.election("x").observe();
            observer.next().await.unwrap().unwrap();
            let election = client.election("x").ttl(TTL).value(value);
            let _term = election.campaign().await.unwrap();
            loop {
                observer.next().await;
            }
        });
        let leads = || !owner(&server, "x").is_empty();
        match value {
            "first" => until("it leads", leads).await,
            _ => until("it waits", || waiting(&server, "x") == 1).await,
        }
    }
    assert_eq!(seen(&mut observer).await.as_deref(), Some("first"));
    soon(behind.election("x").ask_to_resign()).await.unwrap();
    doomed.shutdown_background();
    // Nobody waits any more: the end is read.
    let limit = TTL * 2 + TEST_TIMEOUT;
    let ended = tokio::time::timeout(limit, until_seen(&mut observer, None));
    ended.await.expect("the end of the last lease is seen");
    drop(observer);
    until("nothing is left", || {
        subscribers(&server) == 0 && keys(&server) == ["tenure:{x}:hold"]
    })
    .await;
    assert_all_expire(&server);
}

/// Requests of candidates go wrong as those of locks do.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_candidate_go_wrong() {
    needs!(redis);
    let server = Arc::new(Redis::start(&[]));
    for (i, (fault, _)) in FAULTS.iter().enumerate() {
        let site = Site::for_fault(&server, fault).await;
        let name = format!("election{i}");
        let campaign = async || {
            let campaign = site.client.election(&name).ttl(TTL).value("a");
            crate::common::answered(async || campaign.campaign().await).await
        };
        let leader = async || {
            let leader =
                crate::common::answered(async || site.other.election(&name).leader().await);
            leader
                .await
                .and_then(|leader| leader.value().map(str::to_owned))
        };
        site.proxy.plan("acquire", fault.clone());
        let term = match soon(site.client.election(&name).ttl(TTL).value("a").campaign()).await {
            Ok(term) => term,
            Err(_) => {
                site.proxy.resume();
                campaign().await
            }
        };
        assert_eq!(leader().await.as_deref(), Some("a"), "{fault:?}");
        site.proxy.plan("publish", fault.clone());
        if let Err(err) = soon(term.proclaim("b")).await {
            assert!(!err.is_lost(), "after {fault:?}: {err}");
            site.proxy.resume();
            crate::common::answered(async || term.proclaim("b").await).await;
        }
        assert_eq!(leader().await.as_deref(), Some("b"), "{fault:?}");
        site.proxy.plan("release", fault.clone());
        let _ = soon(term.resign()).await;
        site.proxy.resume();
        let next = campaign().await;
        assert_eq!(leader().await.as_deref(), Some("a"), "{fault:?}");
        soon(next.resign()).await.unwrap();
        site.settles(&name).await;
    }
}

/// A value with a smaller number than the stored one changes nothing, and no other owner publishes.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_value_does_not_replace_a_later_one() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = format!("{}{TRUSTED}", server.url());
    let store = tenure::redis::Store::connect(&url).await.unwrap();
    let elections = store.clone().as_elections().unwrap();
    let name = LockName::new("x").unwrap();
    let holder = |number: u64| {
        let mut holder = Holder::new("h", 1);
        holder.value = Some(PublishedValue::new(format!("value {number}"), number));
        Arc::new(holder)
    };
    let mut request = Request::new(name.clone(), OwnerId::random(), TTL * 10);
    request.holder = holder(0);
    let request = Arc::new(request);
    let granted = soon(store.clone().acquire(request.clone())).await;
    let Ok(Answer::Granted(grant)) = granted else {
        panic!("the name is free");
    };
    let hold = Hold::new(&request, grant.token);
    for (number, shown) in [(2, 2), (1, 2), (2, 2), (10, 10), (9, 10)] {
        let publishing = elections.clone().publish(hold.clone(), holder(number));
        assert!(soon(publishing).await.unwrap());
        let sighting = soon(elections.clone().leader(name.clone())).await.unwrap();
        let value = sighting.leader.unwrap().holder.value.unwrap();
        assert_eq!(value.number, shown);
    }
    let other = Hold::of(name.clone(), OwnerId::random());
    let publishing = elections.clone().publish(other, holder(99));
    assert!(!soon(publishing).await.unwrap());
    soon(store.clone().release(hold.clone())).await.unwrap();
    assert!(
        !soon(elections.clone().publish(hold, holder(99)))
            .await
            .unwrap()
    );
    let sighting = soon(elections.leader(name)).await.unwrap();
    assert!(sighting.leader.is_none() && sighting.last_token == grant.token);
}

/// A candidate that may not tell observers is not elected, and leaves nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_the_channel_of_observers_cannot_lead() {
    needs!(redis);
    let server = Redis::start(&[]);
    server.order(&[
        "ACL",
        "SETUSER",
        "weak",
        "on",
        ">word",
        "~*",
        "+@all",
        "resetchannels",
        "&tenure:push:*",
    ]);
    let url = format!("redis://weak:word@{}/{TRUSTED}", server.address());
    let weak = connect(&url).await;
    let refused = soon(weak.election("x").ttl(TTL).campaign()).await;
    assert_says(refused.map(drop), Denied, &["docs/stores/redis.md"]);
    assert_eq!(owner(&server, "x"), "");
    let mut observer = weak.election("x").observe();
    let refused = soon(observer.next()).await.unwrap();
    assert_says(refused, Denied, &["docs/stores/redis.md"]);
    assert!(soon(observer.next()).await.is_none());
    take_and_release(&weak, "x", TTL).await;
    let findings = soon(weak.check()).await.unwrap();
    let about = findings.iter().filter(|it| it.text.contains("election"));
    assert_eq!(about.count(), 1, "{findings:?}");
    // A lock of that user hands over to a candidate, which tells observers.
    let strong = client_of(&server).await;
    let mut observer = strong.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    let guard = take(&weak, "x", LONG).await;
    let candidate = election(&strong, "strong");
    let campaign = tokio::spawn(async move { candidate.campaign().await });
    until("it waits", || waiting(&server, "x") == 1).await;
    soon(guard.release()).await.unwrap();
    let term = soon(campaign).await.unwrap().unwrap();
    until_seen(&mut observer, Some("strong")).await;
    // And may break the term.
    assert!(
        soon(weak.break_lock("x", term.token().get()))
            .await
            .unwrap()
    );
    assert_eq!(owner(&server, "x"), "");
    drop(term);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_redisson_are_no_elections() {
    needs!(redis);
    let server = Redis::start(&[]);
    let url = format!("{}{TRUSTED}&dialect=redisson", server.url());
    let client = connect(&url).await;
    let refused = soon(client.election("x").campaign()).await;
    assert_says(
        refused.map(drop),
        Unsupported,
        &["redis has no elections", "memory:"],
    );
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// The reply to the request of a candidate is lost: the candidate asks again. One that has left by then is released, and
/// observers are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_without_a_reply_leads_or_is_released() {
    needs!(redis);
    let server = Redis::start(&[]);
    let proxy = Proxy::redis(server.port());
    let url = server.url_by(proxy.port());
    let client = connect(&format!("{url}?timeout=2s&restart_guard=off")).await;
    let mut observer = client_of(&server).await.election("x").observe();
    assert_eq!(seen(&mut observer).await, None);
    proxy.plan("acquire", Fault::CutAfter);
    let term = lead(&client, "recovered").await;
    assert!(proxy.is_done());
    until_seen(&mut observer, Some("recovered")).await;
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
    proxy.plan("acquire", Fault::NoReply);
    let candidate = election(&client, "gone");
    let campaign = tokio::spawn(async move { candidate.campaign().await });
    until_seen(&mut observer, Some("gone")).await;
    campaign.abort();
    until_seen(&mut observer, None).await;
    assert_eq!(owner(&server, "x"), "");
    proxy.resume();
}
