//! A driver for the locks of rslock and of zookeeper-client. It reads commands from stdin; `../README.md` lists them.

mod redis;
mod zookeeper;

use std::collections::HashMap;
use std::io::Write as _;
use std::time::Duration;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The operations of both clients.
pub(crate) trait Locks: Clone + Send + Sync + 'static {
    type Hold: Send;

    /// Acquires the lock and waits for at most that time; zero is one attempt. `None`: busy.
    fn lock(
        &self,
        name: &str,
        wait: Duration,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<Self::Hold>, Failure>> + Send;

    /// Releases the lock, and returns whether it was held.
    fn unlock(&self, hold: Self::Hold) -> impl Future<Output = Result<bool, Failure>> + Send;

    fn locked(&self, name: &str) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// The owner that the client wrote to the store.
    fn value(hold: &Self::Hold) -> &[u8];
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [host, port] => serve(redis::Rslock::connect(host, port).await?, "rslock 0.7.4").await,
        [host, port, "zookeeper-client", ref session @ ..] => {
            let session = session.first().map_or(Ok(10_000), |text| text.parse())?;
            let session = Duration::from_millis(session);
            let client = zookeeper::Zookeeper::connect(host, port, session).await?;
            serve(client, "zookeeper-client 0.11.2").await
        }
        _ => Err("driver HOST PORT [zookeeper-client [SESSION]]".into()),
    }
}

async fn serve<L: Locks>(locks: L, version: &str) -> Result<(), Failure> {
    let mut driver = Driver {
        locks,
        held: HashMap::new(),
    };
    say(&format!("ready\t{version}"))?;
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
    // The driver ends without releasing its locks.
    std::process::exit(0)
}

struct Driver<L: Locks> {
    locks: L,
    held: HashMap<String, Vec<L::Hold>>,
}

impl<L: Locks> Driver<L> {
    async fn obey(&mut self, fields: &[&str]) -> Result<String, Failure> {
        let yes = |yes| if yes { "yes" } else { "no" };
        match *fields {
            ["try", name, ttl] => self.acquire(name, Duration::ZERO, ttl).await,
            ["lock", name, wait, ttl] => self.acquire(name, milliseconds(wait)?, ttl).await,
            ["unlock", name] => {
                let Some(hold) = self.held.get_mut(name).and_then(Vec::pop) else {
                    return Ok("not-held".into());
                };
                let mine = self.locks.unlock(hold).await?;
                Ok(if mine { "released" } else { "not-held" }.into())
            }
            ["locked", name] => Ok(yes(self.locks.locked(name).await?).into()),
            ["count", name, tasks, n, file, ttl] => {
                let ttl = milliseconds(ttl)?;
                let n: u32 = n.parse()?;
                let mut workers = tokio::task::JoinSet::new();
                for _ in 0..tasks.parse()? {
                    let locks = self.locks.clone();
                    workers.spawn(count(locks, name.to_owned(), n, file.to_owned(), ttl));
                }
                while let Some(worker) = workers.join_next().await {
                    worker??;
                }
                Ok("counted".into())
            }
            _ => Err(format!("unknown order {fields:?}").into()),
        }
    }

    async fn acquire(&mut self, name: &str, wait: Duration, ttl: &str) -> Result<String, Failure> {
        let Some(hold) = self.locks.lock(name, wait, milliseconds(ttl)?).await? else {
            return Ok("busy".into());
        };
        let value = L::value(&hold).iter();
        let value: String = value.map(|byte| format!("{byte:02x}")).collect();
        self.held.entry(name.into()).or_default().push(hold);
        Ok(format!("held\t{value}"))
    }
}

async fn count<L: Locks>(
    locks: L,
    name: String,
    n: u32,
    file: String,
    ttl: Duration,
) -> Result<(), Failure> {
    for _ in 0..n {
        let hold = locks.lock(&name, Duration::from_secs(600), ttl).await?;
        add_one(&file).await?;
        locks.unlock(hold.ok_or("busy")?).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Increments the number in the file. Other tasks run between the read and the write, so that increments are lost
/// without exclusion.
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
