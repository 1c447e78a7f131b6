//! Waits for a limited time; the error names the holder.

use std::time::Duration;

use tenure::ErrorKind;

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;
    let deploy = client.lock("deploy").wait(Duration::from_millis(100));

    let guard = client.lock("deploy").label("release 7").acquire().await?;
    match deploy.acquire().await {
        Err(err) if err.kind() == ErrorKind::WaitElapsed => {
            println!("{err:#}");
            println!("in the way: {:?}", err.holder().map(|holder| &holder.label));
        }
        other => panic!("the lock is held, so the wait had to end in vain: {other:?}"),
    }

    // The release wakes the waiter, which does not poll.
    let waiting = tokio::spawn(async move { deploy.acquire().await });
    guard.release().await?;
    let guard = waiting.await.expect("the task does not panic")?;
    println!("our turn, number {}", guard.token());
    guard.release().await
}
