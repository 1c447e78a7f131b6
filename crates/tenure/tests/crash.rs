//! Real processes on the file store, killed at random: no reported increment is lost, no token is granted twice, and
//! other processes continue after every kill.

#![cfg(feature = "file")]
#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tenure::OwnerId;
use tenure::conformance::lock_holder::{LockHolder, read_count};

/// The time limit for the next line of the processes. It is long, so that processes that reach it are stuck.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
const NAME: &str = "counter";

/// A directory with locks and a counter; removed at the end.
struct CounterDirectory(PathBuf);

impl CounterDirectory {
    fn new() -> Self {
        let unique = OwnerId::random().to_hex();
        let directory = std::env::temp_dir().join(format!("tenure-crash-{unique}"));
        fs::create_dir(&directory).unwrap();
        File::create(directory.join("counter")).unwrap();
        Self(directory)
    }

    fn counter(&self) -> PathBuf {
        self.0.join("counter")
    }

    fn url(&self) -> String {
        format!("file:{}", self.0.join("locks").display())
    }

    /// A process that increments the counter `count` times.
    fn counting(&self, count: u64, options: &[&str]) -> LockHolder {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-lock-holder"));
        command.arg("count").arg(self.url()).arg(NAME);
        command.arg(self.counter()).arg(count.to_string());
        command.args(options);
        LockHolder::spawn(command).unwrap()
    }

    fn count(&self) -> u64 {
        read_count(&File::open(self.counter()).unwrap()).unwrap()
    }
}

impl Drop for CounterDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The lines of all processes so far.
#[derive(Default)]
struct Record {
    /// Reported value to the token under which it was written.
    counts: BTreeMap<u64, u64>,
    /// Token to the process that was granted it.
    tokens: BTreeMap<u64, usize>,
    /// Whether the last line of a process says that it holds.
    holds: BTreeMap<usize, bool>,
}

impl Record {
    /// Adds a line of process `who`.
    fn add(&mut self, who: usize, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        self.holds.insert(who, words[0] == "held");
        match words.as_slice() {
            ["held", token] => {
                let before = self.tokens.insert(token.parse().unwrap(), who);
                assert!(
                    before.is_none(),
                    "token {token} was granted twice: to {before:?} and {who}"
                );
            }
            ["count", value, token] => {
                let (value, token) = (value.parse().unwrap(), token.parse().unwrap());
                let holder = self.tokens.get(&token);
                assert_eq!(holder, Some(&who), "token {token} is somebody else's");
                let before = self.counts.insert(value, token);
                assert!(
                    before.is_none(),
                    "two increments made {value}: one of them is lost"
                );
            }
            _ => panic!("process {who} says {line:?}"),
        }
    }

    /// Asserts what must be true of all lines together.
    fn assert_consistent(&self) {
        let tokens: Vec<_> = self.counts.values().collect();
        assert!(
            tokens.is_sorted_by(|a, b| a < b),
            "a later increment was made under a smaller token"
        );
    }
}

/// The next line of a process that still runs, and the number of the process.
async fn next_line(
    holders: &mut [LockHolder],
    next: &mut usize,
) -> Option<(usize, Option<String>)> {
    let count = holders.len();
    if count == 0 {
        return None;
    }
    // The search starts at another process each time, so that a process that prints all the time hides no other one.
    *next = (*next + 1) % count;
    let start = *next;
    let mut lines: Vec<_> = holders
        .iter_mut()
        .map(|holder| Box::pin(holder.line()))
        .collect();
    let any = std::future::poll_fn(|cx| {
        for i in 0..count {
            let at = (start + i) % count;
            if let std::task::Poll::Ready(line) = lines[at].as_mut().poll(cx) {
                return std::task::Poll::Ready((at, line));
            }
        }
        std::task::Poll::Pending
    });
    let line = tokio::time::timeout(STEP_TIMEOUT, any).await;
    Some(line.expect("everybody is stuck: no line from any process"))
}

#[tokio::test]
async fn eight_processes_count_to_four_thousand() {
    let directory = CounterDirectory::new();
    let mut holders: Vec<_> = (0..8)
        .map(|_| directory.counting(500, &["--sleep", "50us"]))
        .collect();
    let mut record = Record::default();
    for (who, holder) in holders.iter_mut().enumerate() {
        // The lines of the other processes wait in their channels meanwhile.
        let mut said = Vec::new();
        while let Some(line) = tokio::time::timeout(STEP_TIMEOUT, holder.line())
            .await
            .unwrap()
        {
            said.push(line);
        }
        assert!(
            holder.wait().unwrap().success(),
            "process {who}: {:?}",
            said.last()
        );
        said.iter().for_each(|line| record.add(who, line));
    }
    record.assert_consistent();
    assert_eq!(directory.count(), 4_000);
    assert_eq!(record.counts.len(), 4_000);
    assert_eq!(record.tokens.len(), 4_000);
}

/// Asserts that the counter has every reported increment. Each of the `killed` processes may have died between its
/// write and its report.
fn assert_no_report_is_lost(record: &Record, count: u64, killed: u64) {
    let reported = record.counts.len() as u64;
    let highest = record
        .counts
        .last_key_value()
        .map_or(0, |(value, _)| *value);
    assert!(
        count >= highest,
        "{highest} was reported, and {count} is left"
    );
    assert!(
        reported + killed >= count,
        "{count}, of which {reported} reported"
    );
}

/// The options of a process. Every third process waits for ever when it holds for the second time, so the kill
/// certainly hits a holder.
fn options_of(who: usize) -> Vec<&'static str> {
    let stick: &[&str] = if who.is_multiple_of(3) {
        &["--stick-at", "2"]
    } else {
        &[]
    };
    [&["--sleep", "300us"], stick].concat()
}

/// Kills a process. Lines that it printed before were printed under the lock, and count.
async fn kill(holder: &mut LockHolder, who: usize, record: &mut Record) {
    holder.kill().unwrap();
    while let Some(line) = holder.line().await {
        record.add(who, &line);
    }
}

#[tokio::test]
async fn killed_holders_lose_nothing_that_was_reported() {
    const PROCESSES: usize = 8;
    const KILLS: usize = 60;
    let directory = CounterDirectory::new();
    let mut record = Record::default();
    let mut names = Vec::new();
    let mut holders = Vec::new();
    let mut born = 0;
    let mut start = |holders: &mut Vec<LockHolder>, names: &mut Vec<usize>| {
        holders.push(directory.counting(1_000_000, &options_of(born)));
        names.push(born);
        born += 1;
    };
    for _ in 0..PROCESSES {
        start(&mut holders, &mut names);
    }
    let (mut next, mut kills, mut holders_killed, mut since_kill) = (0, 0, 0, 0u64);
    let mut turns: BTreeMap<usize, u64> = BTreeMap::new();
    while kills < KILLS {
        let (at, line) = next_line(&mut holders, &mut next).await.unwrap();
        let who = names[at];
        let line = line.unwrap_or_else(|| panic!("process {who} ended by itself"));
        record.add(who, &line);
        if !line.starts_with("held") {
            since_kill += 1;
            continue;
        }
        let turn = turns.entry(who).or_default();
        *turn += 1;
        let sticks = who % 3 == 0 && *turn == 2;
        // Otherwise, after every few increments, a process is killed that holds, or held a moment ago.
        if !sticks && since_kill < 5 + u64::from(random_byte() % 8) {
            continue;
        }
        // Sometimes a process is killed that waits, or is about to wait.
        let at = match random_byte() {
            byte if !sticks && byte < 64 => usize::from(byte) % holders.len(),
            _ => at,
        };
        let (mut killed, who) = (holders.swap_remove(at), names.swap_remove(at));
        kill(&mut killed, who, &mut record).await;
        holders_killed += usize::from(record.holds.get(&who) == Some(&true));
        kills += 1;
        since_kill = 0;
        // `next_line` has a time limit, so the loop shows that another process gets the lock after each kill.
        start(&mut holders, &mut names);
    }
    for (holder, who) in holders.iter_mut().zip(&names) {
        kill(holder, *who, &mut record).await;
    }
    record.assert_consistent();
    assert_no_report_is_lost(&record, directory.count(), (KILLS + PROCESSES) as u64);
    assert!(
        holders_killed >= KILLS / 6,
        "only {holders_killed} of {KILLS} killed held the lock"
    );
    let reported = record.counts.len();
    println!("{kills} kills, {holders_killed} of them of holders; {reported} increments reported");
}

fn random_byte() -> u8 {
    OwnerId::random().as_bytes()[0]
}
