//! Four processes count in one file, each reading, pausing and writing. Without the lock, counts get lost.
//!
//! The store is a directory: no server, and a process that dies frees its locks at once.

use std::path::Path;
use std::process::Command;
use std::{env, fs, io};

const PROCESSES: usize = 4;
const ROUNDS: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(dir) = env::args_os().nth(1) {
        return count(Path::new(&dir));
    }
    let dir = env::temp_dir().join(format!("tenure-example-{}", std::process::id()));
    fs::create_dir(&dir)?;
    fs::write(dir.join("counter"), "0")?;

    let me = env::current_exe()?;
    let children: io::Result<Vec<_>> = (0..PROCESSES)
        .map(|_| Command::new(&me).arg(&dir).spawn())
        .collect();
    for mut child in children? {
        assert!(child.wait()?.success());
    }

    let counted = fs::read_to_string(dir.join("counter"))?;
    println!("{PROCESSES} processes counted to {counted}");
    assert_eq!(counted, (PROCESSES * ROUNDS).to_string());
    fs::remove_dir_all(dir)?;
    Ok(())
}

fn count(dir: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let url = format!("file:{}", dir.join("locks").display());
    let client = tenure::blocking::connect(&url)?;
    let lock = client.lock("counter");
    for _ in 0..ROUNDS {
        lock.run(|_| -> io::Result<()> {
            let counter = dir.join("counter");
            let count: usize = fs::read_to_string(&counter)?
                .parse()
                .map_err(io::Error::other)?;
            std::thread::yield_now(); // without the lock another process would run in between
            fs::write(counter, (count + 1).to_string())
        })??;
    }
    Ok(())
}
