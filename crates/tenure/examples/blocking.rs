//! Without async: threads, and re-entrance by thread as in `java.util.concurrent`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

fn main() -> Result<(), tenure::Error> {
    let client = tenure::blocking::connect("memory:")?;
    let counter = AtomicU32::new(0);

    thread::scope(|scope| {
        for _ in 0..4 {
            let lock = client.lock("counter");
            let counter = &counter;
            scope.spawn(move || -> Result<(), tenure::Error> {
                let guard = lock.acquire()?;
                // The same thread enters again; another thread waits.
                let again = lock.acquire()?;
                assert_eq!(guard.token(), again.token());
                again.release()?;
                let before = counter.load(Ordering::SeqCst);
                thread::yield_now(); // without the lock another thread would run in between
                counter.store(before + 1, Ordering::SeqCst);
                guard.release()
            });
        }
    });
    assert_eq!(counter.into_inner(), 4);

    // A thread cannot be stopped from outside, so long work checks its guard from time to time.
    let rounds = client.lock("counter").run(|guard| {
        let mut rounds = 0;
        while guard.is_held() && rounds < 1_000 {
            rounds += 1;
        }
        rounds
    })?;
    println!("{rounds} rounds, all of them under the lock");
    Ok(())
}
