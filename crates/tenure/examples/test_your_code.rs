//! How to test code that uses locks: a store with a clock that stands still, and faults on request.
//!
//! In a project, the functions below `main` are tests.

use std::time::Duration;

use tenure::error::Step;
use tenure::memory::{Disturbance, Store};
use tenure::{Client, Error, ErrorKind};

/// The code to be tested: at most one report per hour, no matter which process starts it.
async fn report(client: &Client) -> Result<bool, Error> {
    let hourly = client
        .lock("report")
        .min_hold(Duration::from_secs(3600))
        .wait(Duration::ZERO);
    match hourly.run(async |_| ()).await {
        Ok(()) => Ok(true),
        Err(err) if err.kind() == ErrorKind::WaitElapsed => Ok(false),
        Err(err) => Err(err),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    once_an_hour().await?;
    when_a_reply_is_lost().await?;
    when_the_store_is_silent().await
}

async fn once_an_hour() -> Result<(), Error> {
    let store = Store::with_virtual_clock();
    let client = Client::from_store(store.clone())?;
    assert!(report(&client).await?);
    assert!(!report(&client).await?);
    store.advance(Duration::from_secs(3600)); // an hour later, at once
    assert!(report(&client).await?);
    Ok(())
}

async fn when_a_reply_is_lost() -> Result<(), Error> {
    let store = Store::with_virtual_clock();
    let client = Client::from_store(store.clone())?;
    // The lock is granted and the reply is lost: the worst moment for a network to fail.
    store.disturb(Step::Acquire, Disturbance::ReplyLost);
    let err = report(&client)
        .await
        .expect_err("nobody knows who holds the lock");
    assert_eq!(err.kind(), ErrorKind::Indeterminate);
    assert!(err.is_retryable());
    println!("{err:#}");
    Ok(())
}

async fn when_the_store_is_silent() -> Result<(), Error> {
    let store = Store::with_virtual_clock();
    let client = Client::from_store(store.clone())?;
    let guard = client
        .lock("report")
        .ttl(Duration::from_secs(30))
        .acquire()
        .await?;
    store.pause();
    store.advance(Duration::from_secs(29));
    assert!(guard.is_held(), "still inside the lease");
    store.advance(Duration::from_secs(1));
    assert!(!guard.is_held(), "without an answer nothing is renewed");
    let reason = guard.lost().await.expect("it is lost");
    println!("{reason}");
    Ok(())
}
