//! `tenure break`: ends the hold of another process.

use serde_json::json;
use tenure::{Client, Error, LockName};

use crate::args::{self, Common};
use crate::console::Console;
use crate::exit::Exit;
use crate::holds_table::token;
use crate::lock_name::lock_name;
use crate::results::print_results;
use crate::store;

pub(crate) async fn break_hold(common: &Common, args: &args::Break, console: &Console) -> Exit {
    print_results(console, async {
        let name = lock_name(&args.name)?;
        let end = async |client: &Client| end_hold(client, &name, args.token, console).await;
        store::with_client(common, end).await
    })
    .await
}

async fn end_hold(
    client: &Client,
    name: &LockName,
    number: u64,
    console: &Console,
) -> Result<(Vec<String>, Exit), Error> {
    let is_broken = client.break_lock(name, number).await?;
    let exit = if is_broken { Exit::Done } else { Exit::No };
    if console.json {
        let line = json!({ "name": name.as_str(), "token": number, "broken": is_broken });
        return Ok((vec![line.to_string()], exit));
    }
    if is_broken {
        let line = format!("ended the hold of {name} with token {number}");
        return Ok((vec![line], exit));
    }
    let status = client.inspect(name).await?;
    let holds: Vec<_> = status.holds.iter().map(token).collect();
    let now = match holds.is_empty() {
        true => "it is free".into(),
        false => format!("it is held with token {}", holds.join(", ")),
    };
    console.error(format!("{name} has no hold with token {number}; {now}"));
    Ok((Vec::new(), exit))
}
