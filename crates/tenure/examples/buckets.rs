//! Acquires any free lock of several: three workers share four buckets of work.

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;
    let buckets = ["bucket-0", "bucket-1", "bucket-2", "bucket-3"];
    let any = client.lock_any(buckets);

    let mut guards = Vec::new();
    for worker in 0..3 {
        let guard = any.acquire().await?;
        println!("worker {worker} has {}", guard.name());
        guards.push(guard);
    }
    let last = any.acquire().await?;
    println!("{} was left over", last.name());
    assert!(any.try_acquire().await?.is_none(), "all buckets are taken");

    // A worker that waits for any bucket waits for all of them, and gets the first bucket that is released.
    let waiting = {
        let any = any.clone();
        tokio::spawn(async move { any.acquire().await })
    };
    let given_back = last.name().clone();
    last.release().await?;
    let guard = waiting.await.expect("the task does not panic")?;
    assert_eq!(guard.name(), &given_back);
    Ok(())
}
