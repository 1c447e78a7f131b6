//! `tenure leader`: prints who leads an election.

use serde_json::{Value, json};
use tenure::{Client, Leader, LockName, Observer};

use crate::args::{self, Common};
use crate::console::{self, Console};
use crate::exit::Exit;
use crate::json;
use crate::lock_name::lock_name;
use crate::results::{print_results, report_error};
use crate::signals::Signals;
use crate::store::{self, NotConnected};
use crate::text;

pub(crate) async fn leader(common: &Common, args: &args::Leader, console: &Console) -> Exit {
    let name = match lock_name(&args.name) {
        Ok(name) => name,
        Err(error) => return report_error(console, &error, Exit::BUSY),
    };
    if args.follow {
        return follow(common, &name, console).await;
    }
    print_results(console, async {
        let read = async |client: &Client| client.election(&name).leader().await;
        let leader = store::with_client(common, read).await?;
        let line = match console.json {
            true => leader_json(&name, leader.as_ref()).to_string(),
            false => leader_text(&name, leader.as_ref()),
        };
        let exit = if leader.is_some() {
            Exit::Done
        } else {
            Exit::No
        };
        Ok((vec![line], exit))
    })
    .await
}

/// Prints a line for each change, until a signal comes or the reader of standard output is gone.
async fn follow(common: &Common, name: &LockName, console: &Console) -> Exit {
    let work = async |client: &Client, signals: &mut Signals, _| {
        let observer = client.election(name).observe();
        tokio::select! {
            biased;
            _ = signals.next() => Exit::Done,
            exit = print_changes(name, observer, console) => exit,
        }
    };
    match store::with_client_and_signals(common, console, std::time::Duration::ZERO, work).await {
        Ok(exit) => exit,
        Err(NotConnected::Interrupted(_)) => Exit::Done,
        Err(failure) => failure.report(console, Exit::BUSY),
    }
}

async fn print_changes(name: &LockName, mut observer: Observer, console: &Console) -> Exit {
    let mut exit = Exit::Failed;
    while let Some(change) = observer.next().await {
        let printed = match change {
            Ok(leader) => {
                let leader = leader.as_ref();
                match console.json {
                    true => {
                        let fields = leader_json(name, leader);
                        console::print_result(json::event_line("leader", fields))
                    }
                    false => console::print_result(leader_text(name, leader)),
                }
            }
            // Once for each outage. After an error that trying again does not end, it is the last item.
            Err(error) => {
                exit = report_error(console, &error, Exit::BUSY);
                Ok(())
            }
        };
        if printed.is_err() {
            return Exit::Done;
        }
    }
    exit
}

fn leader_text(name: &LockName, leader: Option<&Leader>) -> String {
    match leader {
        None => format!("nobody leads {name}"),
        Some(leader) => format!("{name} is led by {}", text::leader(leader)),
    }
}

fn leader_json(name: &LockName, leader: Option<&Leader>) -> Value {
    json!({ "name": name.as_str(), "leader": leader.map(json::leader_json) })
}
