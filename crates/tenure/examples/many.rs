//! Several locks at once: all or none, under one guard, without deadlocks.

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;

    // Two transfers in opposite directions. Both lock the accounts in the same order, no matter how they name them.
    let there = client.lock_all(["account/1", "account/2"]);
    let back = client.lock_all(["account/2", "account/1"]);
    let transfers = [there, back].map(|both| {
        tokio::spawn(async move {
            let guard = both.acquire().await?;
            for (name, token) in guard.tokens() {
                println!("{name} under number {token}");
            }
            guard.release().await
        })
    });
    for transfer in transfers {
        transfer.await.expect("the task does not panic")?;
    }

    // When one of the names is busy, none of them is acquired.
    let one = client.lock("account/2").acquire().await?;
    let both = client.lock_all(["account/1", "account/2"]);
    assert!(both.try_acquire().await?.is_none());
    assert!(client.lock("account/1").try_acquire().await?.is_some());
    one.release().await
}
