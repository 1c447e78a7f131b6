//! `tenure ask`: asks the leader of an election, or the holder of a lock, politely to let go.

use serde_json::json;
use tenure::{Client, Error, LockName};

use crate::args::{self, Common};
use crate::console::Console;
use crate::exit::Exit;
use crate::json;
use crate::lock_name::lock_name;
use crate::results::print_results;
use crate::store;
use crate::text;

pub(crate) async fn ask(common: &Common, args: &args::Ask, console: &Console) -> Exit {
    print_results(console, async {
        let name = lock_name(&args.name)?;
        let ask = async |client: &Client| ask_holder(client, &name, console).await;
        store::with_client(common, ask).await
    })
    .await
}

async fn ask_holder(
    client: &Client,
    name: &LockName,
    console: &Console,
) -> Result<(Vec<String>, Exit), Error> {
    let asked = client.election(name).ask_to_resign().await?;
    let exit = if asked.is_some() {
        Exit::Done
    } else {
        Exit::No
    };
    if console.json {
        let leader = asked.as_ref().map(json::leader_json);
        let line = json!({ "name": name.as_str(), "asked": leader.is_some(), "leader": leader });
        return Ok((vec![line.to_string()], exit));
    }
    if let Some(leader) = asked {
        let line = format!(
            "asked {} to let go of {name}",
            text::leader_process(&leader)
        );
        return Ok((vec![line], exit));
    }
    let is_held = client.inspect(name).await?.is_held();
    console.error(match is_held {
        true => format!("nobody holds {name} alone, and other holders cannot be asked"),
        false => format!("nobody holds {name}"),
    });
    Ok((Vec::new(), exit))
}
