//! The spans around an acquisition and around a hold.

use std::pin::pin;

use tenure::{Client, ErrorKind, LostReason};
use tracing::Instrument as _;

use crate::subscriber::{SpanRecorder, enable_all_spans};
use crate::{SECOND, futures_poll, settle, store};

fn recorded(test: impl AsyncFnOnce(&SpanRecorder)) {
    enable_all_spans();
    let recorder = SpanRecorder::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tracing::subscriber::with_default(recorder.clone(), || runtime.block_on(test(&recorder)));
}

#[test]
fn an_acquisition_lies_in_the_span_of_its_caller_and_a_hold_follows_from_it() {
    recorded(async |recorder| {
        let (store, client) = store();
        let request = tracing::info_span!("request");
        let lock = client.lock("orders/42").wait(5 * SECOND);
        let guard = lock.acquire().instrument(request.clone()).await.unwrap();

        let acquire = &recorder.named("tenure.acquire")[0];
        assert_eq!(acquire.parent, recorder.index("request"));
        assert!(acquire.is_closed());
        let fields = ["store", "name", "mode", "wait", "token", "outcome", "error"];
        let token = guard.token().to_string();
        assert_eq!(
            fields.map(|field| acquire.field(field)),
            [
                "memory",
                "orders/42",
                "exclusive",
                "5s",
                &token,
                "granted",
                ""
            ]
        );
        let hold = &recorder.named("tenure.hold")[0];
        assert_eq!(
            (hold.parent, hold.follows_from),
            (None, recorder.index("tenure.acquire"))
        );
        assert!(!hold.is_closed());
        let fields = ["store", "name", "mode", "token", "outcome", "reason"];
        assert_eq!(
            fields.map(|field| hold.field(field)),
            ["memory", "orders/42", "exclusive", &token, "", ""]
        );
        // The span of the caller ends with its own work, no matter how long the lock is held.
        drop(request);
        assert!(recorder.named("request")[0].is_closed());

        store.advance(SECOND);
        guard.release().await.unwrap();
        let hold = &recorder.named("tenure.hold")[0];
        assert!(hold.is_closed());
        assert_eq!(hold.field("outcome"), "released");

        drop(client.lock("b").acquire().await.unwrap());
        let hold = &recorder.named("tenure.hold")[1];
        assert!(hold.is_closed());
        assert_eq!(hold.field("outcome"), "released");
    });
}

#[test]
fn a_hold_that_is_lost_ends_with_the_reason_while_its_guard_lives() {
    recorded(async |recorder| {
        let (store, client) = store();
        let lock = client.lock("a").max_hold(10 * SECOND);
        let guard = lock.acquire().await.unwrap();
        settle().await;
        store.advance(11 * SECOND);
        assert_eq!(guard.lost().await, Some(LostReason::MaxHold));
        // `lost` has read the clock; the renewal task reports the loss.
        settle().await;
        let hold = &recorder.named("tenure.hold")[0];
        assert!(hold.is_closed());
        assert_eq!(
            (hold.field("outcome"), hold.field("reason")),
            ("lost", "max_hold")
        );
    });
}

#[test]
fn a_hold_that_is_detached_has_a_span_for_each_client() {
    recorded(async |recorder| {
        let (_store, client) = store();
        let guard = client.lock("a").acquire().await.unwrap();
        let receipt = guard.detach().await.unwrap();
        let hold = &recorder.named("tenure.hold")[0];
        assert!(hold.is_closed());
        assert_eq!(hold.field("outcome"), "detached");
        let guard = client.attach(&receipt).await.unwrap();
        let hold = &recorder.named("tenure.hold")[1];
        assert!(!hold.is_closed());
        assert_eq!(hold.field("token"), receipt.token().to_string());
        let receipt = guard.detach().await.unwrap();
        let hold = &recorder.named("tenure.hold")[1];
        assert_eq!(
            (hold.is_closed(), hold.field("outcome")),
            (true, "detached")
        );
        let guard = client.attach(&receipt).await.unwrap();
        guard.release().await.unwrap();
        let hold = &recorder.named("tenure.hold")[2];
        assert_eq!(
            (hold.is_closed(), hold.field("outcome")),
            (true, "released")
        );
    });
}

#[test]
fn every_end_of_an_acquisition_is_recorded_and_no_span_is_left_entered() {
    recorded(async |recorder| {
        let (_store, client) = store();
        let ends = || {
            let spans = recorder.named("tenure.acquire");
            let last = spans.last().unwrap().clone();
            (
                last.is_closed(),
                last.field("wait").to_owned(),
                last.field("outcome").to_owned(),
            )
        };
        let end = |wait: &str, outcome: &str| (true, wait.to_owned(), outcome.to_owned());
        let guard = client.lock("a").acquire().await.unwrap();
        assert_eq!(ends(), end("forever", "granted"));
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        assert_eq!(ends(), end("0ns", "busy"));
        let lock = client.lock_all(["a", "b"]);
        {
            let mut waits = pin!(lock.acquire());
            assert!(futures_poll(waits.as_mut()).is_pending());
            assert_eq!(recorder.entered(), 0);
            assert!(!ends().0);
        }
        // The future was dropped, and its request with it.
        let mut waits = Box::pin(lock.acquire());
        assert!(futures_poll(waits.as_mut()).is_pending());
        drop(waits);
        assert_eq!(ends(), end("forever", "cancelled"));
        assert_eq!(
            recorder
                .named("tenure.acquire")
                .last()
                .unwrap()
                .field("name"),
            "a, b"
        );

        client.close().await;
        let err = client.lock("a").acquire().await.unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Closed);
        assert_eq!(ends(), end("forever", "failed"));
        let failed = recorder.named("tenure.acquire").pop().unwrap();
        assert_eq!(failed.field("error"), format!("{err:#}"));
        assert_eq!(failed.field("token"), "");
        drop(guard);
        assert_eq!(recorder.entered(), 0);
        let holds = recorder.named("tenure.hold");
        assert!(holds.iter().all(|hold| hold.is_closed()));
        assert_eq!(holds[0].field("reason"), "session_gone");
    });
}

#[test]
fn a_long_wait_is_logged_with_the_holder_and_the_position() {
    recorded(async |recorder| {
        let (store, client) = store();
        let guard = client.lock("a").label("deploy").acquire().await.unwrap();
        let other = Client::from_store(store.clone()).unwrap();
        let lock = other.lock("a");
        let mut wait = pin!(lock.acquire());
        assert!(futures_poll(wait.as_mut()).is_pending());
        for (seconds, reports) in [(4, 0), (1, 1), (4, 1), (1, 2), (10, 3)] {
            store.advance(seconds * SECOND);
            assert!(futures_poll(wait.as_mut()).is_pending());
            assert_eq!(recorder.events("still waiting").len(), reports);
        }
        let report = &recorder.events("still waiting")[0];
        assert!(report["holder"].contains("\"deploy\""), "{report:?}");
        let fields = ["name", "store", "waited", "position"];
        assert_eq!(
            fields.map(|it| &*report[it]),
            ["\"a\"", "memory", "5s", "1"]
        );
        guard.release().await.unwrap();
        drop(wait.await.unwrap());
    });
}
