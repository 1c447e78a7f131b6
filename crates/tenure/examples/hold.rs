//! Takes a lock, works, gives it back.

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;

    let guard = client.lock("orders/42").acquire().await?;
    println!("{} is ours, under number {}", guard.name(), guard.token());

    // Dropping the guard would give the lock back as well, but only `release` tells
    // whether it was held to the end.
    guard.release().await?;
    Ok(())
}
