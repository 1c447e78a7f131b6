//! What each client is put through.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::Failure;
use crate::clients::Locks;

const WARM_UP: u64 = 200_000_000;

/// Nanoseconds on the clock that all processes share.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// Of this process, in nanoseconds.
pub(crate) fn processor_time() -> u64 {
    nanoseconds(ClockId::ProcessCPUTime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

pub(crate) async fn run<L: Locks>(locks: L, scenario: &[&str]) -> Result<String, Failure> {
    let seconds = |text: &str| -> Result<u64, Failure> { Ok((text.parse::<f64>()? * 1e9) as u64) };
    match *scenario {
        ["free", workers, time] => free(locks, workers.parse()?, seconds(time)?).await,
        ["contend", workers, start, time, work_us, file] => {
            let start = start.parse()?;
            let window = (start, start + seconds(time)?);
            let work = Duration::from_micros(work_us.parse()?);
            contend(locks, workers.parse()?, window, work, file).await
        }
        ["wait", workers, time] => wait(locks, workers.parse()?, seconds(time)?).await,
        ["hold", time] => {
            let hold = locks.lock("contended").await?;
            tokio::time::sleep(Duration::from_nanos(seconds(time)?)).await;
            locks.unlock(hold).await?;
            Ok("{}".into())
        }
        _ => Err("there is no such scenario".into()),
    }
}

/// Pairs of acquire and release, each worker with a name of its own.
async fn free<L: Locks>(locks: L, workers: usize, time: u64) -> Result<String, Failure> {
    let begin = now() + WARM_UP;
    let end = begin + time;
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let locks = locks.clone();
        tasks.spawn(async move {
            let name = format!("free-{worker}");
            let mut times = Vec::new();
            loop {
                let began = now();
                if began >= end {
                    return Ok::<_, Failure>(times);
                }
                let hold = locks.lock(&name).await?;
                locks.unlock(hold).await?;
                if began >= begin {
                    times.push(now() - began);
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_nanos(begin.saturating_sub(now()))).await;
    let before = processor_time();
    let mut times = Vec::new();
    while let Some(task) = tasks.join_next().await {
        times.extend(task??);
    }
    let cpu = processor_time() - before;
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1000.0;
    Ok(format!(
        r#"{{"pairs":{},"p50_us":{:.2},"p99_us":{:.2},"cpu_us":{:.3}}}"#,
        times.len(),
        at(0.5),
        at(0.99),
        cpu as f64 / 1000.0 / times.len() as f64,
    ))
}

/// All workers of all processes want one lock; writes who held when, and leaves without tidying up.
async fn contend<L: Locks>(
    locks: L,
    workers: usize,
    (start, end): (u64, u64),
    work: Duration,
    file: &str,
) -> Result<String, Failure> {
    tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut held = Vec::new();
            let over = Duration::from_nanos(end.saturating_sub(now()));
            let turns = async {
                loop {
                    let hold = locks.lock("contended").await?;
                    let acquired = now();
                    if !work.is_zero() {
                        tokio::time::sleep(work).await;
                    }
                    held.push((acquired, now()));
                    locks.unlock(hold).await?;
                }
            };
            match tokio::time::timeout(over, turns).await {
                Ok(Err(failure)) => Err::<_, Failure>(failure),
                Ok(Ok(())) | Err(_) => Ok((worker, held)),
            }
        });
    }
    let mut lines = String::new();
    while let Some(task) = tasks.join_next().await {
        let (worker, held) = task??;
        for (acquired, released) in held {
            writeln!(lines, "{worker} {acquired} {released}")?;
        }
    }
    std::fs::write(file, lines)?;
    Ok("{}".into())
}

/// All workers wait for a lock that somebody else holds all the time.
async fn wait<L: Locks>(locks: L, workers: usize, time: u64) -> Result<String, Failure> {
    let mut tasks = JoinSet::new();
    for _ in 0..workers {
        let locks = locks.clone();
        tasks.spawn(async move { locks.lock("contended").await.map(drop) });
    }
    tokio::time::sleep(Duration::from_nanos(time)).await;
    tasks.abort_all();
    Ok("{}".into())
}
