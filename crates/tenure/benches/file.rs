//! The `file:` store against the same system calls by hand. Prints ratios; asserts nothing.
//!
//! `cargo bench -p tenure --bench file` measures for some seconds; as a test it only runs through.

#![allow(clippy::unwrap_used, reason = "a measurement that fails is to stop")]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tenure::file::Store;
use tenure::store::{Answer, AnswerNow as _, Hold, Request, Store as _};
use tenure::{LockName, OwnerId};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The smallest executor there is: what a blocking caller would use.
fn park_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

fn request(name: &LockName) -> Request {
    let ttl = Duration::from_secs(30);
    let mut request = Request::new(name.clone(), OwnerId::random(), ttl);
    let mut holder = tenure::Holder::new("build-7", std::process::id());
    holder.client = "4f2e1f0c".into();
    request.holder = Arc::new(holder);
    request
}

async fn acquire(store: &Arc<Store>, request: Request) -> Hold {
    let request = Arc::new(request);
    let Answer::Granted(grant) = store.clone().acquire(request.clone()).await.unwrap() else {
        panic!("busy")
    };
    Hold::new(&request, grant.token)
}

/// The file of a name, opened as by hand.
struct ByHand(PathBuf);

impl ByHand {
    fn open(&self) -> File {
        let mut options = File::options();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = options.open(&self.0).unwrap();
        std::hint::black_box(file.metadata().unwrap().ino());
        file
    }

    /// What `acquire` and `release` do with an open file, with nothing around it.
    fn pair(&self, file: &File) {
        let look = || std::hint::black_box(std::fs::symlink_metadata(&self.0).unwrap().ino());
        let mut record = [0; 1112];
        file.try_lock().unwrap();
        let _ = file.read_at(&mut record, 0).unwrap();
        file.write_all_at(&record[..1024], 0).unwrap();
        look();
        // Release.
        look();
        file.write_all_at(&record[..1024], 0).unwrap();
        file.unlock().unwrap();
    }
}

/// `flock` and nothing else.
fn bare(dir: &Path, name: &str) {
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .open(dir.join(name));
    let file = file.unwrap();
    file.try_lock().unwrap();
    file.unlock().unwrap();
}

fn time(rounds: u32, mut pair: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..rounds).for_each(|_| pair());
    start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds)
}

fn pairs(dir: &Path, rounds: u32) {
    let store = Arc::new(Store::open(dir.join("locks")).unwrap());
    let name = LockName::new("nightly-report").unwrap();
    let hand = ByHand(dir.join("hand"));
    let kept = hand.open();
    for round in 1..=5 {
        let bare = time(rounds, || bare(dir, "bare"));
        let opened = time(rounds, || hand.pair(&hand.open()));
        let ours = time(rounds, || {
            park_on(async {
                let hold = acquire(&store, request(&name)).await;
                store.clone().release(hold).await.unwrap();
            });
        });
        println!(
            "pair {round}: open+flock+close {bare:.2} µs; same calls by hand {opened:.2} µs, \
             acquire+release {ours:.2} µs, ratio {:.2}",
            ours / opened
        );
        let open = time(rounds, || hand.pair(&kept));
        let ours = time(rounds, || {
            let request = request(&name);
            let grant = store.acquire_now(&request).unwrap();
            store
                .release_now(&Hold::new(&request, grant.token))
                .unwrap();
        });
        println!(
            "pair {round}: file kept open, by hand {open:.2} µs, acquire_now+release_now {ours:.2} µs, ratio {:.2}",
            ours / open
        );
    }
}

/// Monotonic and the same in all processes.
fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Holds long enough for the other process to be waiting, `rounds` times; prints when it got it and let go.
fn ping_pong(kind: &str, dir: &Path, rounds: u32) {
    let mut log = Vec::new();
    let hold = || std::thread::sleep(Duration::from_micros(300));
    let pause = || std::thread::sleep(Duration::from_micros(50));
    match kind {
        // The same, with the calls that a record and its checks need.
        "raw+record" => {
            let path = dir.join("raw");
            let mut options = File::options();
            let file = options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path);
            let file = file.unwrap();
            let mut record = [0; 1112];
            let there = || std::hint::black_box(std::fs::symlink_metadata(&path).unwrap().ino());
            for _ in 0..rounds {
                file.lock().unwrap();
                let _ = file.read_at(&mut record, 0).unwrap();
                file.write_all_at(&record[..1024], 0).unwrap();
                there();
                log.push((now(), 0));
                hold();
                log.last_mut().unwrap().1 = now();
                there();
                file.write_all_at(&record[..1024], 0).unwrap();
                file.unlock().unwrap();
                pause();
            }
        }
        // Raw, waited for in a thread that hands it to the one that wants it.
        "raw+thread" => {
            let file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.join("raw"));
            let file = file.unwrap();
            let (ask, asked) = std::sync::mpsc::channel::<()>();
            let (tell, told) = std::sync::mpsc::channel::<()>();
            let theirs = file.try_clone().unwrap();
            std::thread::spawn(move || {
                for () in asked {
                    theirs.lock().unwrap();
                    tell.send(()).unwrap();
                }
            });
            for _ in 0..rounds {
                ask.send(()).unwrap();
                told.recv().unwrap();
                log.push((now(), 0));
                hold();
                log.last_mut().unwrap().1 = now();
                file.unlock().unwrap();
                pause();
            }
        }
        "raw" => {
            let open = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(dir.join("raw"));
            let file = open.unwrap();
            for _ in 0..rounds {
                file.lock().unwrap();
                log.push((now(), 0));
                hold();
                log.last_mut().unwrap().1 = now();
                file.unlock().unwrap();
                pause();
            }
        }
        _ => {
            let store = Arc::new(Store::open(dir.join("locks")).unwrap());
            let name = LockName::new("ping-pong").unwrap();
            let work = async {
                for _ in 0..rounds {
                    let mut request = request(&name);
                    request.wait = true;
                    let held = acquire(&store, request).await;
                    log.push((now(), 0));
                    hold();
                    log.last_mut().unwrap().1 = now();
                    store.clone().release(held).await.unwrap();
                    pause();
                }
            };
            match kind {
                "park" => park_on(work),
                "tokio" => {
                    let mut builder = tokio::runtime::Builder::new_current_thread();
                    builder.enable_all().build().unwrap().block_on(work);
                }
                _ => {
                    let mut builder = tokio::runtime::Builder::new_multi_thread();
                    builder
                        .worker_threads(2)
                        .enable_all()
                        .build()
                        .unwrap()
                        .block_on(work);
                }
            }
        }
    }
    let mut out = String::new();
    log.iter()
        .for_each(|(got, gave)| out += &format!("{got} {gave}\n"));
    std::io::stdout().write_all(out.as_bytes()).unwrap();
}

fn hand_over(kind: &str, dir: &Path, rounds: u32) -> Vec<u64> {
    let me = std::env::current_exe().unwrap();
    let start = || {
        let mut command = Command::new(&me);
        command
            .arg("ping-pong")
            .arg(kind)
            .arg(dir)
            .arg(rounds.to_string());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut children = [start(), start()];
    let mut holds = Vec::new();
    for (i, child) in children.iter_mut().enumerate() {
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let (got, gave) = line.split_once(' ').unwrap();
            holds.push((got.parse::<u64>().unwrap(), gave.parse::<u64>().unwrap(), i));
        }
        assert!(child.wait().unwrap().success());
    }
    holds.sort_unstable();
    let mut gaps: Vec<u64> = holds
        .windows(2)
        .inspect(|pair| assert!(pair[0].1 <= pair[1].0, "two held at once: {pair:?}"))
        .filter(|pair| pair[0].2 != pair[1].2)
        .map(|pair| pair[1].0 - pair[0].1)
        .collect();
    gaps.sort_unstable();
    gaps
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, verb, kind, dir, rounds] = &args[..]
        && verb == "ping-pong"
    {
        return ping_pong(kind, Path::new(dir), rounds.parse().unwrap());
    }
    let is_bench = args.iter().any(|arg| arg == "--bench");
    let (pair_rounds, hand_rounds) = if is_bench {
        (100_000, 3_000)
    } else {
        (100, 20)
    };
    let dir = PathBuf::from(format!(
        "{}/tenure-bench-{}",
        std::env::temp_dir().display(),
        std::process::id()
    ));
    std::fs::create_dir_all(&dir).unwrap();
    let rounds = pair_rounds.min(2_000);
    let open = time(rounds, || drop(Store::open(dir.join("locks")).unwrap()));
    println!("open a directory that exists: {open:.1} µs");
    let store = Arc::new(Store::open(dir.join("locks")).unwrap());
    let mut fresh = 0;
    let first = time(rounds.min(200), || {
        let name = LockName::new(format!("fresh-{fresh}")).unwrap();
        fresh += 1;
        park_on(acquire(&store, request(&name)));
    });
    println!("first hold of a name (two syncs): {first:.0} µs");
    drop(store);
    pairs(&dir, pair_rounds);
    for round in 1..=3 {
        for kind in [
            "raw",
            "raw+record",
            "raw+thread",
            "park",
            "tokio",
            "tokio-multi",
        ] {
            let gaps = hand_over(kind, &dir, hand_rounds);
            if let (Some(p50), Some(p90)) =
                (gaps.get(gaps.len() / 2), gaps.get(gaps.len() * 9 / 10))
            {
                println!(
                    "hand-over {round}, {kind}: p50 {:.1} µs, p90 {:.1} µs, {} of {}",
                    *p50 as f64 / 1e3,
                    *p90 as f64 / 1e3,
                    gaps.len(),
                    2 * hand_rounds
                );
            }
        }
    }
    std::fs::remove_dir_all(&dir).unwrap();
}
