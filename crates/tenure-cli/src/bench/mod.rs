//! `tenure bench`: what a lock costs here, compared with bare requests to the same store.
//!
//! Both sides are measured in one run, in turns, so that other work of the machine delays both.
//!
//! `uncontended.rs`, `parallel.rs` and `handoff.rs` measure one thing each. `contender.rs` is a process that `handoff.rs`
//! starts. `raw/` has the bare requests of each kind of store.

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
use handoff::handoff;
use parallel::parallel;
use raw::Raw;
use report::{Row, as_table};
use uncontended::uncontended;

pub(crate) use contender::{ARGUMENT, contender};

pub(crate) async fn bench(common: &Common, args: &args::Bench, console: &Console) -> Exit {
    print_results(console, async {
        let work = async |client: &Client| {
            let scheme = client.guarantees().scheme;
            // No other program uses this name.
            let name = format!("tenure-bench-{}", &OwnerId::random().to_hex()[..12]);
            let url = store::url(common);
            let raw = Raw::connect(scheme, url, &name).await?;
            let rows = measure(url, client, &name, raw.as_ref(), args.rounds).await;
            if let Some(raw) = raw {
                raw.clean_up().await;
            }
            Ok((scheme, rows?))
        };
        let (scheme, rows) = store::with_client(common, work).await?;
        let lines = match console.json {
            true => rows
                .iter()
                .map(|row| row.to_json(scheme).to_string())
                .collect(),
            false => vec![as_table(scheme, &rows)],
        };
        Ok((lines, Exit::Done))
    })
    .await
}

/// Measures all that can be measured on this store.
async fn measure(
    url: &str,
    client: &Client,
    name: &str,
    raw: Option<&Raw>,
    rounds: Option<NonZeroU32>,
) -> Result<Vec<Row>, Error> {
    // A server that was started lately grants nothing for a while. An attempt that does not wait fails at once.
    if let Some(guard) = client.lock(name).try_acquire().await? {
        guard.release().await?;
    }
    let mut rows = vec![uncontended(client, name, raw, rounds).await?];
    if raw.is_none_or(Raw::has_server) {
        rows.push(parallel(client, name, raw, rounds).await?);
    }
    rows.push(handoff(url, client, name, raw, rounds).await?);
    Ok(rows)
}
