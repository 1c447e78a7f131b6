//! Runs a closure under a lock: acquires, runs, releases, and cancels the closure when the lock is lost.

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = tenure::connect("memory:").await?;
    let mut orders = vec![17, 4, 21];

    // The closure may borrow local variables, and `run` returns its value.
    let total = client
        .lock("orders")
        .run(async |guard| {
            println!("under number {}", guard.token());
            orders.push(0);
            orders.iter().sum::<i32>()
        })
        .await?;
    assert_eq!(total, 42);

    // Two question marks: one for the error of the lock, one for the error of the work.
    let number: i32 = client.lock("orders").run(async |_| "42".parse()).await??;
    println!("{number} of {} orders", orders.len());
    Ok(())
}
