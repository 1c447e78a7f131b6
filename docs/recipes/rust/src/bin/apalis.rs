//! Every instance of this program has a worker with the same schedule. One of them runs the job, the others skip it.
//!
//!     TENURE_URL=redis://localhost SCHEDULE='0 0 3 * * *' apalis

use std::str::FromStr as _;
use std::time::Duration;

use apalis::prelude::{Data, WorkerBuilder};
use apalis_cron::{CronScheduler, Tick};
use tenure_recipes::write_report;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = tenure::connect(&std::env::var("TENURE_URL")?).await?;
    let schedule = cron::Schedule::from_str(&std::env::var("SCHEDULE")?)?;

    let worker = WorkerBuilder::new("nightly-report")
        .backend(CronScheduler::new(schedule))
        .data(locks.clone())
        .build(report);
    worker.run_until(tokio::signal::ctrl_c()).await?;
    locks.close().await;
    Ok(())
}

async fn report(_tick: Tick, locks: Data<tenure::Client>) -> Result<(), tenure::Error> {
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
