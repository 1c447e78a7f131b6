//! Acquires a lock, works, and releases the lock.

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;

    let guard = client.lock("orders/42").acquire().await?;
    println!("{} is ours, under number {}", guard.name(), guard.token());

    // Dropping the guard would release the lock as well, but only `release` reports
    // whether it was held to the end.
    guard.release().await?;
    Ok(())
}
