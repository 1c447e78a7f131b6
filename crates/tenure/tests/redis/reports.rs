//! Reports of waits that last long.

use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::needs;
use tenure_testkit::redis::Redis;
use tokio::sync::mpsc;

use crate::support::client_of;

#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_is_reported_with_the_holder_and_the_position() {
    needs!(redis);
    let server = Redis::start(&[]);
    let (holder, waiter) = (client_of(&server).await, client_of(&server).await);
    let guard = holder.lock("x").label("deploy").acquire().await.unwrap();
    let (sender, mut reports) = mpsc::unbounded_channel();
    waiter.on_wait(move |waiting| {
        let _ = sender.send(waiting.clone());
    });
    let lock = waiter.lock("x");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let report = tokio::time::timeout(TEST_TIMEOUT, reports.recv()).await;
    let report = report.unwrap().unwrap();
    let found = report.holder().unwrap();
    assert_eq!((&*found.label, found.pid), ("deploy", std::process::id()));
    assert_eq!((report.position, report.scheme), (Some(1), "redis"));
    guard.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}
