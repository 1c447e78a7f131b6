//! The metrics and the spans of locks, kept by a recorder and a subscriber.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "../common/memory.rs"]
mod memory_store;
mod recorder;
mod spans;
mod subscriber;

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::error::Step;
use tenure::memory::{self, Disturbance};
use tenure::{Client, ErrorKind, LostReason, Owner, Renew};

use memory_store::settle;
use recorder::Memory;

const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

fn store() -> (memory::Store, Client) {
    subscriber::enable_all_spans();
    memory_store::store()
}

/// Runs `test` on this thread alone, where the recorder of this test is the one in use.
fn recorded(test: impl AsyncFnOnce(&Memory)) {
    let recorder = Memory::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    metrics::with_local_recorder(&recorder, || runtime.block_on(test(&recorder)));
}

#[test]
fn every_metric_is_described_and_has_series() {
    recorded(async |recorder| {
        let _client = store();
        let names = recorder.names();
        assert_eq!(names.len(), 7, "{names:?}");
        assert!(
            names.values().all(|is_described| *is_described),
            "{names:?}"
        );
        assert_eq!(recorder.nonzero(), BTreeMap::new());
    });
}

#[test]
fn waits_and_holds_are_measured_on_the_clock_of_the_store() {
    recorded(async |recorder| {
        let (store, client) = store();
        let first = client.lock("a").acquire().await.unwrap();
        assert_eq!(recorder.value("tenure_held{store=memory}"), 1.0);
        let lock = client.lock("a");
        let second = tokio::spawn(async move { lock.acquire().await });
        settle().await;
        assert_eq!(recorder.value("tenure_waiting{store=memory}"), 1.0);
        store.advance(5 * SECOND);
        first.release().await.unwrap();
        let second = second.await.unwrap().unwrap();
        store.advance(7 * SECOND);
        drop(second);

        let granted = "tenure_acquisitions_total{outcome=granted,store=memory}";
        assert_eq!(recorder.nonzero(), BTreeMap::from([(granted.into(), 2.0)]));
        let waits = recorder.values("tenure_wait_seconds{outcome=granted,store=memory}");
        assert_eq!(waits, [0.0, 5.0]);
        assert_eq!(
            recorder.values("tenure_hold_seconds{store=memory}"),
            [5.0, 7.0]
        );
    });
}

#[test]
fn every_end_of_an_acquisition_is_counted_and_nothing_goes_on_waiting() {
    recorded(async |recorder| {
        let (store, client) = store();
        let count = |outcome| {
            recorder.value(&format!(
                "tenure_acquisitions_total{{outcome={outcome},store=memory}}"
            ))
        };
        let wait = |outcome| {
            recorder.values(&format!(
                "tenure_wait_seconds{{outcome={outcome},store=memory}}"
            ))
        };
        let waiting = || recorder.value("tenure_waiting{store=memory}");
        let guard = client.lock("a").acquire().await.unwrap();
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        assert_eq!((count("busy"), waiting()), (1.0, 0.0));

        let spawn =
            |lock: tenure::Lock| tokio::spawn(async move { lock.acquire().await.map(drop) });
        let patient = spawn(client.lock("a").wait(3 * SECOND));
        let cancelled = spawn(client.lock("a"));
        let closed = spawn(client.lock("a"));
        settle().await;
        assert_eq!(waiting(), 3.0);

        store.advance(2 * SECOND);
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
        assert_eq!((count("cancelled"), waiting()), (1.0, 2.0));
        assert_eq!(wait("cancelled"), [2.0]);

        store.advance(SECOND);
        let err = patient.await.unwrap().unwrap_err();
        assert_eq!(err.kind(), ErrorKind::WaitElapsed);
        assert_eq!((count("busy"), waiting()), (2.0, 1.0));
        assert_eq!(wait("busy"), [0.0, 3.0]);

        client.close().await;
        assert_eq!(closed.await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
        assert_eq!((count("failed"), waiting()), (1.0, 0.0));
        assert_eq!(wait("failed"), [3.0]);
        // Closing the client loses its holds.
        assert_eq!(recorder.value("tenure_held{store=memory}"), 0.0);
        assert_eq!(
            recorder.value("tenure_lost_total{reason=session_gone,store=memory}"),
            1.0
        );
        drop(guard);
        assert_eq!(recorder.value("tenure_held{store=memory}"), 0.0);
        assert_eq!(recorder.values("tenure_hold_seconds{store=memory}"), [3.0]);

        // A call that is refused before the store is asked is no acquisition.
        client.lock("").acquire().await.unwrap_err();
        client
            .lock("a")
            .ttl(Duration::ZERO)
            .acquire()
            .await
            .unwrap_err();
        assert_eq!((count("failed"), count("granted")), (1.0, 1.0));
    });
}

#[test]
fn a_loss_is_counted_once_with_its_reason_however_it_is_found() {
    recorded(async |recorder| {
        let (store, client) = store();
        let held = || recorder.value("tenure_held{store=memory}");
        let lost = |reason| {
            recorder.value(&format!(
                "tenure_lost_total{{reason={reason},store=memory}}"
            ))
        };
        // The renewal task finds the loss.
        let guard = client
            .lock("a")
            .max_hold(10 * SECOND)
            .acquire()
            .await
            .unwrap();
        settle().await;
        store.advance(11 * SECOND);
        assert_eq!(guard.lost().await, Some(LostReason::MaxHold));
        settle().await;
        assert_eq!((lost("max_hold"), held()), (1.0, 0.0));
        assert!(guard.release().await.unwrap_err().is_lost());
        assert_eq!((lost("max_hold"), held()), (1.0, 0.0));

        // Reading the clock finds the loss before the renewal task runs.
        let guard = client
            .lock("b")
            .renew(Renew::Never)
            .acquire()
            .await
            .unwrap();
        store.advance(TTL);
        assert!(guard.release().await.unwrap_err().is_lost());
        assert_eq!((lost("expired"), held()), (1.0, 0.0));
        settle().await;
        assert_eq!(lost("expired"), 1.0);

        // The store reports the loss at the release, and at a renewal.
        let guard = client.lock("c").acquire().await.unwrap();
        store.expire("c").unwrap();
        assert!(guard.release().await.unwrap_err().is_lost());
        assert_eq!((lost("store_says_no"), held()), (1.0, 0.0));
        let guard = client.lock("d").acquire().await.unwrap();
        store.expire("d").unwrap();
        settle().await;
        store.advance(TTL / 3);
        guard.lost().await;
        assert_eq!((lost("store_says_no"), held()), (2.0, 0.0));
        let renewals = "tenure_renewals_total{outcome=lost,store=memory}";
        assert_eq!(recorder.value(renewals), 1.0);
    });
}

#[test]
fn renewals_are_counted_by_their_answer() {
    recorded(async |recorder| {
        let (store, client) = store();
        let count = |outcome| {
            recorder.value(&format!(
                "tenure_renewals_total{{outcome={outcome},store=memory}}"
            ))
        };
        let guard = client.lock("a").acquire().await.unwrap();
        settle().await;
        store.disturb(Step::Renew, Disturbance::RequestLost);
        store.advance(TTL / 3);
        settle().await;
        assert_eq!((count("renewed"), count("unanswered")), (0.0, 1.0));
        store.advance(SECOND);
        settle().await;
        assert_eq!((count("renewed"), count("unanswered")), (1.0, 1.0));
        guard.release().await.unwrap();
    });
}

#[test]
fn a_release_that_is_dropped_or_not_answered_ends_the_hold() {
    recorded(async |recorder| {
        let (store, client) = store();
        let held = || recorder.value("tenure_held{store=memory}");
        let guard = client.lock("a").acquire().await.unwrap();
        store.disturb(Step::Release, Disturbance::ReplyNever);
        let mut releasing = Box::pin(guard.release());
        let polled = futures_poll(releasing.as_mut());
        assert!(polled.is_pending());
        drop(releasing);
        assert_eq!(held(), 0.0);
        store.resume();

        let guard = client.lock("b").acquire().await.unwrap();
        store.disturb(Step::Release, Disturbance::RequestLost);
        guard.release().await.unwrap_err();
        assert_eq!(held(), 0.0);
        let holds = recorder.values("tenure_hold_seconds{store=memory}");
        assert_eq!(holds.len(), 2);
    });
}

fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}

#[test]
fn several_names_and_entries_of_one_owner_are_counted_as_they_were_called() {
    recorded(async |recorder| {
        let (_store, client) = store();
        let held = || recorder.value("tenure_held{store=memory}");
        let count = |outcome| {
            recorder.value(&format!(
                "tenure_acquisitions_total{{outcome={outcome},store=memory}}"
            ))
        };
        let all = client.lock_all(["a", "b", "c"]).acquire().await.unwrap();
        assert_eq!((count("granted"), held()), (1.0, 3.0));
        let any = client.lock_any(["a", "b", "x"]).acquire().await.unwrap();
        assert_eq!((count("granted"), count("busy"), held()), (2.0, 0.0, 4.0));
        drop((all, any));

        let owner = Owner::new();
        let outer = client.lock("a").owner(&owner).acquire().await.unwrap();
        let inner = client.lock("a").owner(&owner).acquire().await.unwrap();
        assert_eq!(
            (count("granted"), count("reentered"), held()),
            (3.0, 1.0, 1.0)
        );
        drop(outer);
        assert_eq!(held(), 1.0);
        drop(inner);
        assert_eq!(held(), 0.0);
        let waits = recorder.values("tenure_wait_seconds{outcome=granted,store=memory}");
        assert_eq!(waits.len(), 3);
    });
}

#[test]
fn a_lock_has_the_name_in_metrics_that_it_was_given() {
    recorded(async |recorder| {
        let (_store, client) = store();
        for id in ["orders/1", "orders/2"] {
            let lock = client.lock(id).metrics_name("orders/*");
            let guard = lock.acquire().await.unwrap();
            assert_eq!(
                recorder.value("tenure_held{name=orders/*,store=memory}"),
                1.0
            );
            assert!(lock.try_acquire().await.unwrap().is_none());
            guard.release().await.unwrap();
        }
        let of = |outcome| {
            format!("tenure_acquisitions_total{{name=orders/*,outcome={outcome},store=memory}}")
        };
        let expected = [("granted", 2.0), ("busy", 2.0)].map(|(it, count)| (of(it), count));
        assert_eq!(recorder.nonzero(), BTreeMap::from(expected));
        let long = "x".repeat(201);
        let err = client
            .lock("a")
            .metrics_name(long)
            .acquire()
            .await
            .unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Invalid);
    });
}
