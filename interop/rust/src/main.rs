//! The lock of rslock, told what to do on stdin. The orders are in `../README.md`.

use std::collections::HashMap;
use std::io::Write as _;
use std::time::Duration;

use rslock::{Lock, LockError, LockManager};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The longest pause between two attempts; the client draws one from zero up to this.
const DELAY: Duration = Duration::from_millis(20);

struct Driver {
    url: String,
    once: LockManager,
    held: HashMap<String, Vec<Lock>>,
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let host = arguments.next().ok_or("driver HOST PORT")?;
    let port = arguments.next().ok_or("driver HOST PORT")?;
    let url = format!("redis://{host}:{port}/");
    let mut driver = Driver {
        once: manager(&url, Duration::ZERO),
        url,
        held: HashMap::new(),
    };
    driver.once.query_redis_for_key_value(b"ready").await?;
    say("ready\trslock 0.7.4")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let fields: Vec<_> = line.split('\t').collect();
        if fields == ["quit"] {
            break;
        }
        match driver.obey(&fields).await {
            Ok(answer) => say(&answer)?,
            Err(error) => say(&format!("error\t{error}"))?,
        }
    }
    Ok(())
}

impl Driver {
    async fn obey(&mut self, fields: &[&str]) -> Result<String, Failure> {
        match *fields {
            ["try", name, ttl] => {
                let manager = self.once.clone();
                self.acquire(&manager, name, ttl).await
            }
            ["lock", name, wait, ttl] => {
                let manager = manager(&self.url, milliseconds(wait)?);
                self.acquire(&manager, name, ttl).await
            }
            ["unlock", name] => {
                let Some(lock) = self.held.get_mut(name).and_then(Vec::pop) else {
                    return Ok("not-held".into());
                };
                // The client does not tell whether it deleted anything.
                let mine = self.value(name).await?.as_ref() == Some(&lock.val);
                lock.lock_manager.unlock(&lock).await;
                Ok(if mine { "released" } else { "not-held" }.into())
            }
            ["locked", name] => {
                let value = self.value(name).await?;
                Ok(if value.is_some() { "yes" } else { "no" }.into())
            }
            ["count", name, tasks, n, file, ttl] => {
                let ttl = milliseconds(ttl)?;
                let n: u32 = n.parse()?;
                let mut workers = tokio::task::JoinSet::new();
                for _ in 0..tasks.parse()? {
                    let manager = manager(&self.url, Duration::from_secs(600));
                    workers.spawn(count(manager, name.to_owned(), n, file.to_owned(), ttl));
                }
                while let Some(worker) = workers.join_next().await {
                    worker??;
                }
                Ok("counted".into())
            }
            _ => Err(format!("unknown order {fields:?}").into()),
        }
    }

    async fn acquire(
        &mut self,
        manager: &LockManager,
        name: &str,
        ttl: &str,
    ) -> Result<String, Failure> {
        let lock = match manager.lock(name.as_bytes(), milliseconds(ttl)?).await {
            Ok(lock) => lock,
            Err(LockError::Unavailable) => return Ok("busy".into()),
            Err(error) => return Err(error.into()),
        };
        let value: String = lock.val.iter().map(|byte| format!("{byte:02x}")).collect();
        self.held.entry(name.into()).or_default().push(lock);
        Ok(format!("held\t{value}"))
    }

    async fn value(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        Ok(self.once.query_redis_for_key_value(name.as_bytes()).await?)
    }
}

fn manager(url: &str, wait: Duration) -> LockManager {
    let mut manager = LockManager::new(vec![url]);
    // The pauses are half of DELAY on average.
    let tries = 1 + 2 * wait.as_millis() / DELAY.as_millis();
    manager.set_retry(u32::try_from(tries).unwrap_or(u32::MAX), DELAY);
    manager
}

async fn count(
    manager: LockManager,
    name: String,
    n: u32,
    file: String,
    ttl: Duration,
) -> Result<(), Failure> {
    for _ in 0..n {
        let lock = manager.lock(name.as_bytes(), ttl).await?;
        add_one(&file).await?;
        manager.unlock(&lock).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Reads, lets others run, writes: loses counts unless it is alone.
async fn add_one(file: &str) -> Result<(), Failure> {
    let text = std::fs::read_to_string(file)?;
    let value: u64 = text.split(' ').next().unwrap_or_default().trim().parse()?;
    tokio::task::yield_now().await;
    Ok(std::fs::write(file, format!("{:020} rust\n", value + 1))?)
}

fn milliseconds(text: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_millis(text.parse()?))
}

fn say(line: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
