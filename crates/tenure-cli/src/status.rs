//! `tenure status`: prints who holds a lock and who waits for it.

use std::time::Duration;

use tenure::{Client, LockStatus};

use crate::args::{self, Common};
use crate::console::Console;
use crate::duration::rounded;
use crate::exit::Exit;
use crate::holds_table::token;
use crate::json;
use crate::lock_name::lock_name;
use crate::results::print_results;
use crate::store;
use crate::text;

pub(crate) async fn status(common: &Common, args: &args::Status, console: &Console) -> Exit {
    print_results(console, async {
        let name = lock_name(&args.name)?;
        let inspect = async |client: &Client| client.inspect(&name).await;
        let status = store::with_client(common, inspect).await?;
        let line = match console.json {
            true => json::status_json(&status).to_string(),
            false => status_text(&status),
        };
        Ok((vec![line], Exit::Done))
    })
    .await
}

fn status_text(status: &LockStatus) -> String {
    let mut lines = Vec::new();
    if status.holds.is_empty() {
        lines.push(match status.reserved {
            None => format!("{} is free", status.name),
            Some(_) => text::busy(status, Duration::ZERO),
        });
    }
    for hold in &status.holds {
        lines.push(format!(
            "{} is held by {}",
            status.name,
            text::holder(&hold.holder)
        ));
        lines.push(format!("  token {}, {}", token(hold), hold.mode));
        lines.push(match hold.ttl_left {
            Some(left) => format!("  ends in {} unless its holder renews it", rounded(left)),
            None => "  no time limit: held until it is released or its process ends".into(),
        });
    }
    if let Some((agree, all)) = status.nodes {
        lines.push(format!("  {agree} of {all} servers agree"));
    }
    match status.queue.as_deref() {
        None if status.is_held() => lines.push("  this store cannot say who waits".into()),
        None | Some([]) => {}
        Some(queue) => {
            lines.push(format!("{} waiting:", queue.len()));
            lines.extend(
                queue
                    .iter()
                    .map(|waiter| format!("  {}", text::holder(waiter))),
            );
        }
    }
    lines.join("\n")
}
