//! Works only if nobody else is at it; busy is an answer, not an error.

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    let client = tenure::connect("memory:").await?;
    let report = client.lock("nightly-report").label("the report of today");

    let Some(guard) = report.try_acquire().await? else {
        println!("somebody else is at it");
        return Ok(());
    };
    println!("it is ours, under number {}", guard.token());

    // Whoever else tries meanwhile is told at once.
    assert!(report.try_acquire().await?.is_none());
    let status = client.inspect("nightly-report").await?;
    println!("busy, held by {}", status.holds[0].holder);
    guard.release().await
}
