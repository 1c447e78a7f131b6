//! Works only if no other holder has the lock; "busy" is an answer and not an error.

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;
    let report = client.lock("nightly-report").label("the report of today");

    let Some(guard) = report.try_acquire().await? else {
        println!("somebody else is at it");
        return Ok(());
    };
    println!("it is ours, under number {}", guard.token());

    // Another client that tries meanwhile gets the answer "busy" at once.
    assert!(report.try_acquire().await?.is_none());
    let status = client.inspect("nightly-report").await?;
    println!("busy, held by {}", status.holds[0].holder);
    guard.release().await
}
