//! Reports of waits that last long.

use std::time::Duration;

use tenure::{Client, WaitReport, memory};
use tokio::sync::mpsc;

use crate::memory_store::{settle, store};
use tenure_testkit::TEST_TIMEOUT;

const SECOND: Duration = Duration::from_secs(1);

fn record_waits(client: &Client) -> mpsc::UnboundedReceiver<WaitReport> {
    let (sender, reports) = mpsc::unbounded_channel();
    client.on_wait(move |waiting| {
        let _ = sender.send(waiting.clone());
    });
    reports
}

async fn next(reports: &mut mpsc::UnboundedReceiver<WaitReport>) -> WaitReport {
    let report = tokio::time::timeout(TEST_TIMEOUT, reports.recv()).await;
    report.unwrap().expect("the callback is registered")
}

fn wait(client: &Client, name: &str) -> tokio::task::JoinHandle<()> {
    let lock = client.lock(name);
    tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
}

async fn pass(store: &memory::Store, time: Duration) {
    store.advance(time);
    settle().await;
}

#[tokio::test]
async fn a_wait_is_reported_after_5_s_and_then_after_intervals_that_double() {
    let (store, client) = store();
    let guard = client.lock("a").label("first").acquire().await.unwrap();
    let [before, other] = [(); 2].map(|()| Client::from_store(store.clone()).unwrap());
    let waits = [wait(&before, "a")];
    settle().await;
    let mut reports = record_waits(&other);
    let waits = waits.into_iter().chain([wait(&other, "a")]);
    settle().await;
    store.run_for(SECOND * 4).await;
    assert!(reports.is_empty());
    // The first report, and four more after 5, 10, 20 and 40 s.
    store.run_for(SECOND * 76).await;
    for seconds in [5, 10, 20, 40, 80] {
        let report = next(&mut reports).await;
        assert_eq!(report.waited, seconds * SECOND);
        assert_eq!((report.name.as_str(), report.scheme), ("a", "memory"));
        assert_eq!(report.position, Some(2));
        assert_eq!(report.holder().unwrap().label, "first");
    }
    guard.release().await.unwrap();
    for wait in waits {
        wait.await.unwrap();
    }
    store.run_for(SECOND * 100).await;
    assert!(reports.is_empty(), "the wait is over");
}

#[tokio::test]
async fn tasks_of_one_client_ask_the_store_once() {
    let (store, client) = store();
    // Renewals are requests, too.
    let lock = client.lock("a").renew(tenure::Renew::Never);
    let guard = lock.acquire().await.unwrap();
    let other = Client::from_store(store.clone()).unwrap();
    let unheard = wait(&other, "a");
    settle().await;
    let requests = store.requests();
    pass(&store, SECOND * 6).await;
    assert_eq!(store.requests(), requests, "no callback asked for a report");
    let mut reports = record_waits(&other);
    let behind = wait(&other, "a");
    settle().await;
    pass(&store, SECOND * 6).await;
    let report = next(&mut reports).await;
    assert_eq!((report.status, report.position), (None, None));
    assert_eq!(store.requests(), requests, "the first task asks the store");
    guard.release().await.unwrap();
    unheard.await.unwrap();
    behind.await.unwrap();
}

#[tokio::test]
async fn a_silent_store_is_reported_without_a_holder() {
    let (store, _client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let mut reports = record_waits(&other);
    store.pause();
    let waits = wait(&other, "a");
    settle().await;
    pass(&store, SECOND * 5).await;
    assert!(reports.is_empty());
    pass(&store, SECOND).await;
    let report = next(&mut reports).await;
    assert_eq!((report.status.is_none(), report.waited), (true, 6 * SECOND));
    assert_eq!(
        report.to_string(),
        "still waiting for \"a\" (memory) after 6s"
    );
    store.resume();
    waits.await.unwrap();
}
