//! `peer hold URL COUNT` holds COUNT names; `peer wait URL COUNT NAMES` has COUNT tasks, each of which waits for one of NAMES
//! names. Both in one client.
//!
//! Prints `connected`, and goes on after the first line of the standard input. Prints `ready` when all names are held, or when
//! all tasks have begun to wait, and ends with the standard input.

use std::io::Write as _;
use std::time::Duration;

use tenure::{Client, Guard};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error>;

/// So many names are asked for at the same time.
const AT_ONCE: usize = 64;

const TTL: Duration = Duration::from_secs(30);

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (url, count, names) = match words[1..] {
        ["hold", url, count] => (url, count.parse()?, None),
        ["wait", url, count, names] => (url, count.parse()?, Some(names.parse()?)),
        _ => return Err("usage: peer hold URL COUNT | peer wait URL COUNT NAMES".into()),
    };
    let client = tenure::connect(url).await?;
    client.init().await?;
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    say("connected")?;
    lines.next_line().await?;
    let _all = match names {
        None => hold(&client, count).await?,
        Some(names) => {
            wait(&client, count, names);
            Vec::new()
        }
    };
    say("ready")?;
    while lines.next_line().await?.is_some() {}
    // The server is stopped next, so nothing is released.
    std::process::exit(0);
}

async fn hold(client: &Client, count: usize) -> Result<Vec<Guard>, Failure> {
    let mut held = Vec::with_capacity(count);
    let mut under_way = JoinSet::new();
    for number in 0..count {
        if under_way.len() == AT_ONCE
            && let Some(done) = under_way.join_next().await
        {
            held.push(done??);
        }
        let lock = client.lock(name(number)).ttl(TTL);
        under_way.spawn(async move { lock.acquire().await });
    }
    while let Some(done) = under_way.join_next().await {
        held.push(done??);
    }
    Ok(held)
}

fn wait(client: &Client, count: usize, names: usize) {
    for number in 0..count {
        let lock = client.lock(name(number % names)).ttl(TTL);
        tokio::spawn(async move {
            let outcome = lock.acquire().await;
            // All names are held for as long as this program runs.
            eprintln!("a wait is over: {outcome:?}");
        });
    }
}

fn name(number: usize) -> String {
    format!("tenure-bench-at-rest-{number}")
}

fn say(line: &str) -> std::io::Result<()> {
    println!("{line}");
    std::io::stdout().flush()
}
