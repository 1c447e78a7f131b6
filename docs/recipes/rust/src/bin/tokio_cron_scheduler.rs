//! Every instance of this program has the same schedule. One of them runs the job, the others skip it.
//!
//!     TENURE_URL=redis://localhost SCHEDULE='0 0 3 * * *' tokio_cron_scheduler

use std::time::Duration;

use tenure_recipes::write_report;
use tokio_cron_scheduler::{Job, JobScheduler};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = tenure::connect(&std::env::var("TENURE_URL")?).await?;
    let schedule = std::env::var("SCHEDULE")?;

    let mut scheduler = JobScheduler::new().await?;
    let clients = locks.clone();
    let job = Job::new_async(schedule, move |_, _| {
        let locks = clients.clone();
        Box::pin(async move {
            if let Err(error) = report(&locks).await {
                eprintln!("no report: {error:#}");
            }
        })
    })?;
    scheduler.add(job).await?;
    scheduler.start().await?;

    tokio::signal::ctrl_c().await?;
    scheduler.shutdown().await?;
    locks.close().await;
    Ok(())
}

async fn report(locks: &tenure::Client) -> Result<(), tenure::Error> {
    // The clocks of two machines differ: the name stays taken for a while, so that an instance whose clock is late does
    // not run the same job again. Choose more than the clocks differ, and less than the interval of the schedule.
    let lock = locks
        .lock("nightly-report")
        .min_hold(Duration::from_millis(500));
    // `None`: another instance has it. The body is dropped if the lock is lost.
    lock.try_run(async |guard| write_report(guard).await)
        .await?;
    Ok(())
}
