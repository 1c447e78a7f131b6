//! Entering a lock again that is held already: by a handle, by a scope, inside a template.

use tenure::{Client, Error, Owner};

/// Locks for itself, whether its caller holds the lock or not.
async fn append(client: &Client, line: &str) -> Result<(), Error> {
    let guard = client.lock("journal").acquire().await?;
    println!("number {}: {line}", guard.token());
    guard.release().await
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = tenure::connect("memory:").await?;

    // A scope: everything acquired in it belongs to one owner, without a word about it.
    Owner::scope(async {
        let outer = client.lock("journal").acquire().await?;
        append(&client, "from inside a scope").await?;
        outer.release().await // the last one out gives the lock back
    })
    .await?;

    // A template: what it holds may be entered again inside.
    client
        .lock("journal")
        .run(async |_| append(&client, "from inside a template").await)
        .await??;

    // A handle, where the owner is to be seen.
    let owner = Owner::new();
    let journal = client.lock("journal").owner(&owner);
    let outer = journal.acquire().await?;
    let inner = journal.acquire().await?;
    assert_eq!(outer.token(), inner.token());
    drop((outer, inner));

    // Without any of these, nobody enters twice, not even the same task.
    let _guard = client.lock("journal").acquire().await?;
    assert!(client.lock("journal").try_acquire().await?.is_none());
    Ok(())
}
