//! The scenarios for the clients in Rust: a module of every program here that is written in Rust.
//!
//! `PROGRAM ... SCENARIO [ARGUMENT]...`; the README of each folder lists the scenarios.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A client, with its own way of waiting.
pub(crate) trait Locks: Clone + Send + Sync + 'static {
    type Hold: Send;
    fn lock(&self, name: &str) -> impl Future<Output = Result<Self::Hold, Failure>> + Send;
    fn unlock(&self, hold: Self::Hold) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// The lease of all clients.
#[allow(dead_code, reason = "one of a database session has none to be named")]
pub(crate) const TTL: Duration = Duration::from_secs(30);

const WARM_UP: u64 = 200_000_000;

/// The main function of a program: one client, one scenario, one line of JSON. `run` gets the arguments.
pub(crate) fn program(run: impl AsyncFnOnce(&[&str]) -> Result<String, Failure>) -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    // With one worker a second thread would only be woken for each answer.
    let mut runtime = match arguments.as_slice() {
        [_, _, "free", "1", ..] => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be had");
    match runtime.block_on(run(&arguments)) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("peer {arguments:?}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Nanoseconds on the clock that all processes share.
pub(crate) fn now() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// The processor time of this process, in nanoseconds.
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
        ["free", workers, time] => {
            let name = |worker| format!("free-{worker}");
            free(locks, workers.parse()?, seconds(time)?, name).await
        }
        ["share", workers, time] => {
            let name = |_| "shared".to_owned();
            free(locks, workers.parse()?, seconds(time)?, name).await
        }
        [
            "contend",
            workers,
            start,
            time,
            work_us,
            file,
            ref name @ ..,
        ] => {
            let start = start.parse()?;
            let window = (start, start + seconds(time)?);
            let work = Duration::from_micros(work_us.parse()?);
            let name = name.first().unwrap_or(&"contended");
            contend(locks, workers.parse()?, window, work, file, name).await
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

/// Pairs of acquire and release that no worker has to wait for.
async fn free<L: Locks>(
    locks: L,
    workers: usize,
    time: u64,
    name: impl Fn(usize) -> String,
) -> Result<String, Failure> {
    let begin = now() + WARM_UP;
    let end = begin + time;
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let (locks, name) = (locks.clone(), name(worker));
        tasks.spawn(async move {
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

/// All workers of all processes compete for one lock. Writes the holders with their times, and ends without releasing.
async fn contend<L: Locks>(
    locks: L,
    workers: usize,
    (start, end): (u64, u64),
    work: Duration,
    file: &str,
    name: &str,
) -> Result<String, Failure> {
    tokio::time::sleep(Duration::from_nanos(start.saturating_sub(now()))).await;
    let mut tasks = JoinSet::new();
    for worker in 0..workers {
        let (locks, name) = (locks.clone(), name.to_owned());
        tasks.spawn(async move {
            let mut held = Vec::new();
            let over = Duration::from_nanos(end.saturating_sub(now()));
            let turns = async {
                loop {
                    let hold = locks.lock(&name).await?;
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

/// All workers wait for a lock that another client holds all the time.
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
