//! `observers URL COUNT TTL`: one leader, and COUNT observers of it in one process, over one connection.
//!
//! Prints `ready` when each observer has seen the leader. Then it reads a line for each step and prints a line when the step is
//! done: `change` publishes another value and prints how many ms later the last observer saw that value; `end` ends.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tenure::Client;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::sync::Notify;

/// How many observers saw each value, and the number of errors.
#[derive(Default)]
struct Seen {
    first: AtomicUsize,
    second: AtomicUsize,
    errors: AtomicUsize,
    changed: Notify,
}

const NAME: &str = "tenure-bench-observers";

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, url, count, ttl] = &arguments[..] else {
        return Err("usage: observers URL COUNT TTL".into());
    };
    let (count, ttl): (usize, u64) = (count.parse()?, ttl.parse()?);
    // The leader is another process in real use, so it has a client of its own.
    let (leader, observer) = (tenure::connect(url).await?, tenure::connect(url).await?);
    leader.init().await?;
    let election = leader.election(NAME).ttl(Duration::from_secs(ttl));
    let term = election.value("first").campaign().await?;
    let seen = Arc::new(Seen::default());
    for _ in 0..count {
        tokio::spawn(observe(observer.clone(), seen.clone()));
    }
    until(&seen, || seen.first.load(Ordering::SeqCst) == count).await;
    say("ready")?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line != "change" {
            break;
        }
        let began = Instant::now();
        term.proclaim("second").await?;
        until(&seen, || seen.second.load(Ordering::SeqCst) == count).await;
        say(&began.elapsed().as_millis().to_string())?;
    }
    term.resign().await?;
    say(&format!("{} errors", seen.errors.load(Ordering::SeqCst)))?;
    Ok(())
}

async fn observe(client: Client, seen: Arc<Seen>) {
    let mut observer = client.election(NAME).observe();
    // After an error the leader is seen again.
    let (mut first, mut second) = (false, false);
    while let Some(item) = observer.next().await {
        let counter = match &item {
            Ok(Some(leader)) if leader.value() == Some("first") => {
                (!std::mem::replace(&mut first, true)).then_some(&seen.first)
            }
            Ok(Some(_)) => (!std::mem::replace(&mut second, true)).then_some(&seen.second),
            Ok(None) => None,
            Err(_) => Some(&seen.errors),
        };
        if let Some(counter) = counter {
            counter.fetch_add(1, Ordering::SeqCst);
            seen.changed.notify_one();
        }
    }
}

/// Waits until something is true of what was seen.
async fn until(seen: &Seen, is_done: impl Fn() -> bool) {
    while !is_done() {
        seen.changed.notified().await;
    }
}

fn say(line: &str) -> std::io::Result<()> {
    println!("{line}");
    std::io::stdout().flush()
}
