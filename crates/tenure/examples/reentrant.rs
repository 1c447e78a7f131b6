//! Entering a lock again that is already held: by a scope, inside `run`, and by a handle.

use tenure::{Client, Error, Owner};

/// Acquires the lock itself, also when its caller holds the lock.
async fn append(client: &Client, line: &str) -> Result<(), Error> {
    let guard = client.lock("journal").acquire().await?;
    println!("number {}: {line}", guard.token());
    guard.release().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = tenure::connect("memory:").await?;

    // A scope: every lock acquired in it belongs to one owner, without an argument.
    Owner::scope(async {
        let outer = client.lock("journal").acquire().await?;
        append(&client, "from inside a scope").await?;
        outer.release().await // the last release frees the lock
    })
    .await?;

    // `run`: its body may enter again the lock that `run` holds.
    client
        .lock("journal")
        .run(async |_| append(&client, "from inside a template").await)
        .await??;

    // A handle, which shows the owner in the code.
    let owner = Owner::new();
    let journal = client.lock("journal").owner(&owner);
    let outer = journal.acquire().await?;
    let inner = journal.acquire().await?;
    assert_eq!(outer.token(), inner.token());
    drop((outer, inner));

    // Without any of these, no task enters a lock twice, not even the holder.
    let _guard = client.lock("journal").acquire().await?;
    assert!(client.lock("journal").try_acquire().await?.is_none());
    Ok(())
}
