//! Each request of a lock's life, when the request or its reply is lost or late: the caller has a result or an error that
//! says so, no two clients hold, and nothing is left.

use std::time::Duration;

use tenure::{Error, ErrorKind, Guard};
use tenure_testkit::proxy::Fault;

use crate::common::{
    assert_clear, soon, start_acquire, take, take_and_release, until, until_renewed,
};
use crate::stores::{LostReply, Store, TTL, acquire, name, on};

on!(shared [redis etcd zookeeper mysql postgres mysql_table postgres_table]:
    an_acquire_survives_what_happens_to_its_requests
    a_wait_survives_what_happens_to_its_requests
    a_try_that_fails_leaves_nothing
    several_names_survive_what_happens_to_their_requests
    a_release_survives_what_happens_to_its_request);
on!(shared [redis etcd zookeeper mysql_table postgres_table]:
    a_renewal_survives_what_happens_to_its_request);

fn faults(store: &Store) -> [Fault; 5] {
    [
        Fault::Answer(store.refusal),
        Fault::CutBefore,
        Fault::CutAfter,
        Fault::NoReply,
        // Later than the time limit of a request to etcd.
        Fault::Late(Duration::from_millis(2_500)),
    ]
}

/// The result of the request, or `None` after an error that a lost request or reply may have. A store that recovers has a
/// result when the connection was cut; one that reports has an error, unless the request was refused.
#[track_caller]
fn check<T>(
    lost_reply: LostReply,
    what: &str,
    fault: &Fault,
    outcome: Result<T, Error>,
) -> Option<T> {
    let is_refused = matches!(fault, Fault::Answer(_));
    let is_cut = matches!(fault, Fault::CutBefore | Fault::CutAfter);
    match outcome {
        Ok(value) => {
            let must_fail = lost_reply == LostReply::Reported && !is_refused;
            assert!(!must_fail, "{what}, {fault:?}: it has succeeded");
            Some(value)
        }
        Err(err) => {
            assert_clear(&err);
            let must_succeed = is_cut && lost_reply == LostReply::Recovered;
            let may_be = match lost_reply {
                LostReply::Reported if !is_refused => {
                    assert!(format!("{err:#}").contains("cannot be told"), "{err}");
                    &[ErrorKind::Indeterminate][..]
                }
                _ => &[ErrorKind::Indeterminate, ErrorKind::Unreachable],
            };
            let is_due = !must_succeed && may_be.contains(&err.kind());
            assert!(is_due, "{what}, {fault:?}: {err:?}");
            None
        }
    }
}

/// What becomes of a request that may wait: the client asks again, in every store.
const OF_A_WAIT: LostReply = LostReply::Recovered;

/// What becomes of a single try: a store that recovers does so only for those that may wait.
fn of_one_try(store: &Store) -> LostReply {
    match store.lost_reply {
        LostReply::Recovered => LostReply::Either,
        other => other,
    }
}

/// While a client holds, another one finds the name taken; after the release it is free.
async fn an_acquire_survives_what_happens_to_its_requests(store: &'static Store) {
    let (proxy, client) = store.proxied().await;
    let other = store.client().await;
    // The client keeps its lease or session for this hold, so what is left does not end with those.
    let kept = take(&client, &name("kept"), TTL * 10).await;
    for step in store.requests.acquire {
        for fault in faults(store) {
            for waits in [true, false] {
                let name = name("acquire");
                if *step != "parents" {
                    take_and_release(&other, &name, TTL).await;
                }
                proxy.plan(step, fault.clone());
                let lock = client.lock(&name).ttl(TTL * 10);
                let (outcome, lost_reply) = match waits {
                    true => (soon(lock.acquire()).await.map(Some), OF_A_WAIT),
                    false => (soon(lock.try_acquire()).await, of_one_try(store)),
                };
                if waits && fault == Fault::Answer("throttled") {
                    assert!(outcome.is_ok(), "{step}: {outcome:?}");
                }
                if let Some(guard) = check(lost_reply, step, &fault, outcome) {
                    let guard = guard.expect("the name is free");
                    assert_eq!(store.counts(&name), (1, 0), "{step}, {fault:?}");
                    let busy = soon(other.lock(&name).ttl(TTL).try_acquire()).await;
                    assert!(busy.unwrap().is_none(), "{step}, {fault:?}: two hold it");
                    release(guard).await;
                }
                proxy.resume();
                until("the fault happened", || proxy.is_done()).await;
                // A request that arrives late holds for a moment.
                let lock = other.lock(&name).ttl(TTL);
                let next = soon(lock.acquire()).await.unwrap();
                soon(next.release()).await.unwrap();
                store.until_idle(&name).await;
                take_and_release(&other, &name, TTL).await;
            }
        }
    }
    assert!(kept.is_held() || store.ends_with_connection);
}

/// A release that may meet the end of a fault: what is not known is repeated until the name is free.
async fn release(guard: Guard) {
    if let Err(err) = soon(guard.release()).await {
        assert!(err.is_retryable() || err.is_lost(), "{err}");
    }
}

async fn a_wait_survives_what_happens_to_its_requests(store: &'static Store) {
    let (proxy, client) = store.proxied().await;
    let other = store.client().await;
    for step in store.requests.wait {
        for fault in faults(store) {
            let name = name("wait");
            let holder = take(&other, &name, TTL * 10).await;
            let token = holder.token();
            proxy.plan(step, fault.clone());
            let waiting = start_acquire(client.lock(&name).ttl(TTL * 10));
            // The reply to a request that waits is the grant.
            if *step != "wait" {
                until("the fault happened", || proxy.is_done()).await;
            }
            until("it waits, or is told", || {
                waiting.is_finished() || store.counts(&name) == (1, 1)
            })
            .await;
            soon(holder.release()).await.unwrap();
            until("the fault happened", || proxy.is_done()).await;
            proxy.resume();
            match soon(waiting).await.unwrap() {
                Ok(guard) => {
                    assert!(guard.token() > token);
                    assert_eq!(store.counts(&name), (1, 0), "{step}, {fault:?}");
                    release(guard).await;
                }
                Err(err) => {
                    // A lock ends with its session, so the store can always ask again.
                    assert!(!store.ends_with_connection, "{step}, {fault:?}: {err:?}");
                    check::<()>(OF_A_WAIT, step, &fault, Err(err));
                }
            }
            store.until_idle(&name).await;
            take_and_release(&other, &name, TTL).await;
        }
    }
}

/// All names are acquired, or none of them stays behind.
async fn several_names_survive_what_happens_to_their_requests(store: &'static Store) {
    let (proxy, client) = store.proxied().await;
    let other = store.client().await;
    // The client keeps its lease or session for this hold, so what is left does not end with those.
    let kept = take(&client, &name("kept"), TTL * 10).await;
    for step in store.requests.several {
        for fault in faults(store) {
            let names = [(); 3].map(|()| name("all"));
            let lock = client.lock_all(&names).ttl(TTL * 10);
            release(acquire(&lock).await).await;
            proxy.plan(step, fault.clone());
            let outcome = soon(lock.try_acquire()).await;
            if let Some(guard) = check(of_one_try(store), step, &fault, outcome) {
                release(guard.expect("all names are free")).await;
            }
            proxy.resume();
            until("the fault happened", || proxy.is_done()).await;
            let all = other.lock_all(&names).ttl(TTL);
            release(acquire(&all).await).await;
            for name in &names {
                store.until_idle(name).await;
            }
        }
    }
    drop(kept);
}

/// An attempt to acquire a name that is held leaves no place in the queue.
async fn a_try_that_fails_leaves_nothing(store: &'static Store) {
    let proxy = store.server.proxy();
    let (other, name) = (store.client().await, name("try"));
    let holder = take(&other, &name, TTL * 10).await;
    let steps = match store.url().starts_with("zookeeper") {
        true => &["acquire", "list", "watch", "release"][..],
        false => &["acquire"],
    };
    for fault in [Fault::CutBefore, Fault::CutAfter] {
        for step in steps {
            let client = crate::common::connect(&store.url_at(proxy.port())).await;
            proxy.plan(step, fault.clone());
            let tried = soon(client.lock(&name).ttl(TTL).try_acquire()).await;
            assert!(!matches!(tried, Ok(Some(_))), "{step}, {fault:?}");
            until("the fault happened", || proxy.is_done()).await;
            until("only the holder is there", || store.counts(&name) == (1, 0)).await;
            client.close().await;
        }
    }
    assert!(holder.is_held());
    soon(holder.release()).await.unwrap();
}

/// The name becomes free, and a late release frees no other hold.
async fn a_release_survives_what_happens_to_its_request(store: &'static Store) {
    let (proxy, client) = store.proxied().await;
    let other = store.client().await;
    for fault in faults(store) {
        let name = name("release");
        let lock = client.lock(&name).ttl(TTL * 10);
        let guard = acquire(&lock).await;
        proxy.plan("release", fault.clone());
        check(
            store.lost_reply,
            "release",
            &fault,
            soon(guard.release()).await,
        );
        store.until_idle(&name).await;
        let next = take(&other, &name, TTL * 10).await;
        proxy.resume();
        until("the fault happened", || proxy.is_done()).await;
        // One more request, so that late requests have arrived.
        let lock = client.lock(crate::stores::name("after")).ttl(TTL);
        release(acquire(&lock).await).await;
        assert_eq!(store.counts(&name), (1, 0), "{fault:?} freed the next hold");
        soon(next.release()).await.unwrap();
    }
}

/// A renewal without a reply is neither loss nor success; the next renewal extends the lease.
async fn a_renewal_survives_what_happens_to_its_request(store: &'static Store) {
    let mut cases = Vec::new();
    for step in store.requests.renew {
        let refused = Fault::Answer(store.refusal);
        for fault in [refused, Fault::CutBefore, Fault::CutAfter, Fault::NoReply] {
            // At the same time, because the leases are long: a busy machine has time for another renewal.
            cases.push(tokio::spawn(async move {
                let (proxy, client) = store.proxied().await;
                let guard = take(&client, &name("renew"), TTL * 3).await;
                proxy.plan(step, fault);
                until("the fault happened", || proxy.is_done()).await;
                until_renewed(&guard).await;
                assert!(guard.is_held(), "{:?}", guard.state());
                proxy.resume();
                soon(guard.release()).await.unwrap();
            }));
        }
    }
    for case in cases {
        case.await.unwrap();
    }
}
