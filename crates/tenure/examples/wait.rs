//! Waits for a while, and says who was in the way.

use std::time::Duration;

use tenure::ErrorKind;

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;
    let deploy = client.lock("deploy").wait(Duration::from_millis(100));

    let guard = client.lock("deploy").label("release 7").acquire().await?;
    match deploy.acquire().await {
        Err(err) if err.kind() == ErrorKind::WaitElapsed => {
            println!("{err}");
            println!("in the way: {:?}", err.holder().map(|holder| &holder.label));
        }
        other => panic!("the lock is held, so the wait had to end in vain: {other:?}"),
    }

    // Who waits is woken by the release; nobody sleeps and looks.
    let waiting = tokio::spawn(async move { deploy.acquire().await });
    guard.release().await?;
    let guard = waiting.await.expect("the task does not panic")?;
    println!("our turn, number {}", guard.token());
    guard.release().await
}
