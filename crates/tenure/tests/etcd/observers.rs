//! Elections: what observers are told, by pushes and by reads.

use tenure::ErrorKind;

use crate::elections::{HOUR, MOMENT, campaign, campaign_behind, next, seen, until_led_by};
use crate::support::{TTL, assert_says, connect, soon, take, take_and_release, until};
use tenure_testkit::etcd::Etcd;
use tenure_testkit::needs;
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::redis::{PASSWORD, USER};

/// The reservation does not say under which token the hold was upgraded.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgraded_hold_whose_name_is_reserved_leads_no_more() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    for option in ["min_hold", "lock_delay"] {
        let lock = client.lock(option).ttl(TTL).upgradable();
        let lock = match option {
            "min_hold" => lock.min_hold(HOUR),
            _ => lock.lock_delay(HOUR),
        };
        let guard = soon(lock.acquire()).await.unwrap();
        soon(guard.upgrade()).await.unwrap();
        let (key, token) = (etcd.keys(&format!("{option}/")).remove(0), guard.token());
        assert!(token.get() > key.created);
        let mut observer = other.election(option).observe();
        assert_eq!(
            next(&mut observer).await,
            Some((token.get(), String::new()))
        );
        match option {
            "min_hold" => soon(guard.release()).await.unwrap(),
            _ => assert!(soon(other.break_lock(option, token)).await.unwrap()),
        }
        assert_eq!(next(&mut observer).await, None, "{option}");
        assert!(
            soon(other.inspect(option))
                .await
                .unwrap()
                .reserved
                .is_some()
        );
    }
}

/// The record was left by a program that deleted the key of a candidate of ours.
#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_key_that_is_gone_hides_no_leader() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let client = connect(&etcd.url()).await;
    let record = r#"{"host":"gone","client":"c","owner":"0123456789abcdef0123456789abcdef"}"#;
    etcd.try_put("%record:e%:7", record).unwrap();
    let term = campaign(&client, "e", "v").await;
    let leader = soon(client.election("e").leader()).await.unwrap().unwrap();
    assert_eq!(
        (leader.token, leader.value()),
        (Some(term.token()), Some("v"))
    );
    assert_eq!(leader.holder.pid, std::process::id());
    soon(term.resign()).await.unwrap();
}

/// A new value comes with the event; a new leader costs one read; at rest there are no requests.
#[tokio::test(flavor = "multi_thread")]
async fn changes_are_pushed() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let observing = connect(&etcd.url_by(&[proxy.address()])).await;
    let (first, second) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let mut observer = observing.election("e").observe();
    assert_eq!(next(&mut observer).await, None);
    let term = campaign(&first, "e", "one").await;
    assert_eq!(next(&mut observer).await, seen(&term, "one"));
    proxy.take_seen();
    for value in ["two", "", "three"] {
        soon(term.proclaim(value)).await.unwrap();
        assert_eq!(next(&mut observer).await, seen(&term, value));
    }
    let waiting = campaign_behind(&etcd, &second, "e", "four").await;
    assert_eq!(proxy.take_seen(), [""; 0], "a push tells it all");
    soon(term.resign()).await.unwrap();
    let term = soon(waiting).await.unwrap();
    assert_eq!(next(&mut observer).await, seen(&term, "four"));
    assert_eq!(proxy.take_seen(), ["look"]);
    soon(term.resign()).await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    // The holder of a lock leads, too, and has no value; readers do not lead.
    let guard = take(&first, "e", TTL).await;
    let leader = soon(observer.next()).await.unwrap().unwrap().unwrap();
    assert_eq!((leader.token, leader.value()), (Some(guard.token()), None));
    soon(guard.release()).await.unwrap();
    assert_eq!(next(&mut observer).await, None);
    let reader = first.lock("e").ttl(TTL).shared();
    let reader = soon(reader.acquire()).await.unwrap();
    let waiting = campaign_behind(&etcd, &second, "e", "behind a reader").await;
    tokio::time::sleep(MOMENT).await;
    soon(reader.release()).await.unwrap();
    let term = soon(waiting).await.unwrap();
    assert_eq!(next(&mut observer).await, seen(&term, "behind a reader"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_observers_of_one_client_share_a_watch_that_ends_with_the_last() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, candidate) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let term = campaign(&candidate, "e", "v").await;
    let mut observers: Vec<_> = (0..20).map(|_| client.election("e").observe()).collect();
    let firsts = observers.iter_mut().map(next);
    for first in futures_util::future::join_all(firsts).await {
        assert_eq!(first, seen(&term, "v"));
    }
    until("there is one watch", || etcd.watches() == 1).await;
    soon(term.proclaim("w")).await.unwrap();
    // An observer that comes later begins with what is there.
    let mut late = client.election("e").observe();
    assert_eq!(next(&mut late).await, seen(&term, "w"));
    for observer in &mut observers {
        assert_eq!(next(observer).await, seen(&term, "w"));
    }
    assert_eq!(etcd.watches(), 1);
    drop(observers);
    soon(term.proclaim("x")).await.unwrap();
    assert_eq!(next(&mut late).await, seen(&term, "x"));
    drop(late);
    until("no watch is left", || etcd.watches() == 0).await;
    // An observer that is not polled holds up nothing, however much there is to be read.
    let mut idle = client.election("e").observe();
    assert_eq!(next(&mut idle).await, seen(&term, "x"));
    let long = "v".repeat(4_096);
    for number in 0..100 {
        soon(term.proclaim(format!("{number}{}", &long[4..])))
            .await
            .unwrap();
    }
    take_and_release(&client, "other", TTL).await;
    soon(term.proclaim("last")).await.unwrap();
    until_led_by(&mut idle, "last").await;
}

/// The history is compacted while the observer cannot be reached: it begins again with what is there.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_outlasts_a_compaction_and_broken_connections() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = format!("{}?timeout=1s", etcd.url_by(&[proxy.address()]));
    let (observing, candidate) = (connect(&url).await, connect(&etcd.url()).await);
    let mut observer = observing.election("e").observe();
    assert_eq!(next(&mut observer).await, None);
    for (turn, fault) in ["compaction", "cut", "silence", "refused", "lost"]
        .into_iter()
        .enumerate()
    {
        let value = format!("{turn} {fault}");
        match fault {
            "compaction" => {
                proxy.hold(Direction::Down, true);
                soon(campaign(&candidate, "e", "short").await.resign())
                    .await
                    .unwrap();
                etcd.compact();
                proxy.cut();
                proxy.hold(Direction::Down, false);
            }
            "cut" => proxy.cut(),
            "silence" => {
                proxy.plan("watch", Fault::NoReply);
                proxy.cut();
            }
            "refused" => {
                proxy.plan("watch", Fault::Answer("14 etcdserver: no leader"));
                proxy.cut();
            }
            _ => {
                proxy.plan("look", Fault::CutAfter);
                proxy.cut();
            }
        }
        let term = campaign(&candidate, "e", &value).await;
        until_led_by(&mut observer, &value).await;
        proxy.resume();
        soon(term.resign()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn observers_and_leaders_outlast_each_member_in_turn() {
    needs!(etcd);
    let etcd = Etcd::start(3, &[]);
    let url = format!("{}?timeout=2s", etcd.url());
    let (first, second) = (connect(&url).await, connect(&url).await);
    let mut observers = [
        connect(&url).await.election("e").observe(),
        connect(&url).await.election("e").observe(),
        connect(&url).await.election("e").observe(),
    ];
    let mut term = campaign(&first, "e", "begin").await;
    for observer in &mut observers {
        until_led_by(observer, "begin").await;
    }
    for (turn, member) in etcd.members.iter().enumerate() {
        let value = format!("turn {turn}");
        let candidate = if turn % 2 == 0 { &second } else { &first };
        let waiting = campaign_behind(&etcd, candidate, "e", &value).await;
        member.kill();
        // The outcome of the request may be unknown.
        let _ = soon(term.resign()).await;
        term = soon(waiting).await.unwrap();
        for observer in &mut observers {
            until_led_by(observer, &value).await;
        }
        member.start();
        etcd.until_ready();
    }
    soon(term.resign()).await.unwrap();
}

/// A new password ends all logins of its user, also if it is the old one. An open watch goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_whose_login_is_over_logs_in_again() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let observing = connect(&etcd.url_by(&[proxy.address()])).await;
    let mut observer = observing.election("e").observe();
    assert_eq!(next(&mut observer).await, None);
    let password = serde_json::json!({ "name": USER, "password": PASSWORD });
    etcd.order("auth/user/changepw", &password);
    proxy.cut();
    let leader = connect(&etcd.url()).await;
    let term = campaign(&leader, "e", "v").await;
    until_led_by(&mut observer, "v").await;
    soon(term.resign()).await.unwrap();
}

/// An observer needs no right to write.
#[tokio::test(flavor = "multi_thread")]
async fn an_observer_needs_the_right_to_read() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let guest = connect(&crate::access::introduce_guest(&etcd)).await;
    let mut observer = guest.election("e").observe();
    let outcome = soon(observer.next()).await.unwrap();
    assert_says(outcome, ErrorKind::Denied, &["permission denied"]);
    assert!(soon(observer.next()).await.is_none(), "a denial is final");
    crate::access::allow(&etcd, 0);
    let mut observer = guest.election("e").observe();
    assert_eq!(next(&mut observer).await, None);
    let leader = connect(&format!("{}?prefix=jobs/", etcd.url())).await;
    let term = campaign(&leader, "e", "v").await;
    assert_eq!(next(&mut observer).await, seen(&term, "v"));
    let outcome = soon(guest.election("e").ask_to_resign()).await;
    assert_says(outcome, ErrorKind::Denied, &["docs/stores/etcd.md"]);
    crate::access::allow(&etcd, 2);
    assert!(
        soon(guest.election("e").ask_to_resign())
            .await
            .unwrap()
            .is_some()
    );
    assert!(soon(term.asked_to_resign()).await);
}
