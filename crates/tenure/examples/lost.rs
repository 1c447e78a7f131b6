//! When a lock is lost, the work under it is stopped, and its result cannot look like success.

use std::time::Duration;

use tenure::memory;
use tenure::{Client, LostReason};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), tenure::Error> {
    // A store with a clock that this program moves: thirty seconds pass at once.
    let store = memory::Store::with_virtual_clock();
    let client = Client::from_store(store.clone())?;
    let ttl = Duration::from_secs(30);

    // With `run`: the closure is dropped at its current await.
    let (started, has_started) = tokio::sync::oneshot::channel();
    let lock = client.lock("import").ttl(ttl);
    let work = tokio::spawn(async move {
        lock.run(async move |_| {
            let _ = started.send(());
            std::future::pending::<()>().await; // work that takes too long
        })
        .await
    });
    has_started.await.expect("the work starts");
    store.pause(); // the store stops answering, so nothing can be renewed
    store.advance(ttl);
    let err = work.await.expect("the task does not panic").unwrap_err();
    assert!(err.is_lost());
    println!("{err:#}");
    store.resume();

    // With a guard: `lost` resolves at the deadline at the latest, also when the store does not answer.
    let guard = client.lock("export").ttl(ttl).acquire().await?;
    store.pause();
    store.advance(ttl);
    tokio::select! {
        biased;
        Some(reason) = guard.lost() => {
            println!("stopping: {reason}");
            assert_eq!(reason, LostReason::Expired);
        }
        () = std::future::pending() => {} // the work
    }
    assert!(!guard.is_held());
    Ok(())
}
