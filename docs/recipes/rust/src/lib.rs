//! What the recipes have in common: the job.

use std::time::Duration;

/// Stands for the work. It says when it begins and when it ends, and under which token.
pub async fn write_report(guard: &tenure::Guard) {
    println!("begin {}", guard.token());
    tokio::time::sleep(Duration::from_millis(100)).await;
    println!("end {}", guard.token());
}
