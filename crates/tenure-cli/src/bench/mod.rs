//! `tenure bench`: what a lock costs here, compared with bare requests to the same store.
//!
//! Both are measured in one run, in turns, so that what else the machine does hits both.

mod common;
mod contender;
mod contention;
mod handoff;
mod parallel;
mod raw;
mod report;
mod statistics;
mod uncontended;

use std::num::NonZeroU32;

use tenure::{Client, Error, OwnerId};

use crate::args::{self, Common};
use crate::console::Console;
use crate::exit::Exit;
use crate::results::print_results;
use crate::store;
use handoff::contended;
use raw::Raw;
use report::{Row, as_table};
use uncontended::uncontended;

pub(crate) use contender::worker;
pub(crate) use contention::ARGUMENT;

/// Measures and prints.
pub(crate) async fn bench(common: &Common, args: &args::Bench, console: &Console) -> Exit {
    print_results(console, async {
        let work = async |client: &Client| {
            let backend = client.guarantees().backend;
            // No other program uses this name.
            let name = format!("tenure-bench-{}", &OwnerId::random().to_hex()[..12]);
            let url = store::url(common);
            let raw = Raw::new(backend, url, &name).await?;
            let rows = measure(url, client, &name, raw.as_ref(), args.rounds).await;
            if let Some(raw) = raw {
                raw.end().await;
            }
            Ok((backend, rows?))
        };
        let (backend, rows) = store::with_client(common, work).await?;
        let lines = match console.json {
            true => rows
                .iter()
                .map(|row| row.to_json(backend).to_string())
                .collect(),
            false => vec![as_table(backend, &rows)],
        };
        Ok((lines, Exit::Done))
    })
    .await
}

/// All that can be measured on this store, in turns.
async fn measure(
    url: &str,
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Vec<Row>, Error> {
    // A server that grants nothing for a while says so to who does not wait.
    if let Some(guard) = client.lock(name).try_acquire().await? {
        guard.release().await?;
    }
    let mut rows = vec![uncontended(client, name, raw, rounds).await?];
    // Without a server there is nothing that many could share.
    if !matches!(raw, Some(Raw::Memory(_) | Raw::File(_))) {
        rows.push(parallel::parallel(client, name, raw, rounds).await?);
    }
    rows.push(contended(url, client, name, raw, rounds).await?);
    Ok(rows)
}
