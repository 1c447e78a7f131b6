//! The observers of one worker: each item becomes an event.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use crate::clock::now;
use crate::event::{Event, Log, Sight};
use crate::locks::{Locks, Observer as _};
use crate::settings::Settings;

/// The time until a new observer takes the place of one that has ended.
const PAUSE: Duration = Duration::from_millis(200);

/// Observes each of these elections, until the future is dropped.
pub(crate) async fn observe<L: Locks>(
    settings: &Settings,
    locks: &L,
    names: &[String],
) -> io::Result<Infallible> {
    let Some((name, others)) = names.split_first() else {
        return std::future::pending().await;
    };
    tokio::select! {
        failed = observe_one(settings, locks, name, others.len() as u64) => failed,
        failed = Box::pin(observe(settings, locks, others)) => failed,
    }
}

/// Observes one election, the `index`-th of this worker.
async fn observe_one<L: Locks>(
    settings: &Settings,
    locks: &L,
    name: &str,
    index: u64,
) -> io::Result<Infallible> {
    let mut log = Log::open(&settings.events)?;
    let mut number = settings.first_number(0) | index << 16;
    loop {
        number += 1;
        log.append(&Event::Observing {
            at: now(),
            observer: number,
            worker: settings.worker,
            name: name.to_owned(),
        })?;
        let mut observer = locks.observe(name);
        loop {
            let sight = observer.next().await;
            let is_last = matches!(sight, Sight::GaveUp(_));
            log.append(&Event::Saw {
                at: now(),
                observer: number,
                sight,
            })?;
            if is_last {
                break;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
