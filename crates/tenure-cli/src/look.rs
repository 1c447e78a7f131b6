//! `list`, `status`, `break`: what the store knows, and one way to change it.

use std::io;
use std::time::Duration;

use serde_json::json;
use tenure::{Client, Error, HoldInfo, LockName, Status};

use crate::acquire::lock_name;
use crate::args::{self, Common};
use crate::duration::rounded;
use crate::exit::Exit;
use crate::output::{self, Talk};
use crate::store;

/// Who holds what.
pub(crate) async fn list(common: &Common, args: &args::List, talk: &Talk) -> Exit {
    answer(talk, async {
        let list = async |client: &Client| client.list(&*args.prefix).await;
        let all = store::with_client(common, list).await?;
        Ok(if talk.json {
            let lines = all
                .iter()
                .map(|status| output::status_json(status).to_string());
            (lines.collect(), Exit::Done)
        } else if all.is_empty() {
            talk.notice("nothing is held");
            (Vec::new(), Exit::Done)
        } else {
            (vec![holds_table(&all)], Exit::Done)
        })
    })
    .await
}

/// Who holds one name, and who waits.
pub(crate) async fn status(common: &Common, args: &args::Status, talk: &Talk) -> Exit {
    answer(talk, async {
        let name = lock_name(&args.name)?;
        let inspect = async |client: &Client| client.inspect(&name).await;
        let status = store::with_client(common, inspect).await?;
        let line = match talk.json {
            true => output::status_json(&status).to_string(),
            false => status_text(&status),
        };
        Ok((vec![line], Exit::Done))
    })
    .await
}

/// Ends one hold.
pub(crate) async fn break_hold(common: &Common, args: &args::Break, talk: &Talk) -> Exit {
    answer(talk, async {
        let name = lock_name(&args.name)?;
        let end = async |client: &Client| end_hold(client, &name, args.token, talk).await;
        store::with_client(common, end).await
    })
    .await
}

async fn end_hold(
    client: &Client,
    name: &LockName,
    number: u64,
    talk: &Talk,
) -> Result<(Vec<String>, Exit), Error> {
    let is_broken = client.break_lock(name, number).await?;
    let exit = if is_broken { Exit::Done } else { Exit::No };
    if talk.json {
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
    talk.error(format!("{name} has no hold with token {number}; {now}"));
    Ok((Vec::new(), exit))
}

/// Prints lines of results, or the error.
pub(crate) async fn answer(
    talk: &Talk,
    question: impl Future<Output = Result<(Vec<String>, Exit), Error>>,
) -> Exit {
    let (lines, exit) = match question.await {
        Ok(answer) => answer,
        Err(error) => {
            talk.error(output::error_text(&error));
            return Exit::of(error.kind(), Exit::BUSY);
        }
    };
    match lines.iter().try_for_each(output::result) {
        // A reader such as `head` had enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            talk.error(format!("cannot write to standard output: {error}"));
            Exit::Failed
        }
        _ => exit,
    }
}

/// One row per hold; names that are free but reserved or waited for have one, too.
pub(crate) fn holds_table(all: &[Status]) -> String {
    let mut rows = Vec::new();
    for status in all {
        let name = tenure::name::Escaped(status.name.as_str()).to_string();
        let waiting = status
            .queue
            .as_ref()
            .map_or("?".into(), |queue| queue.len().to_string());
        for hold in &status.holds {
            let holder = &hold.holder;
            let pid = if holder.pid == 0 {
                "?".into()
            } else {
                holder.pid.to_string()
            };
            rows.push(vec![
                name.clone(),
                tenure::name::Escaped(&holder.host).to_string(),
                pid,
                output::age(holder).map_or("?".into(), rounded),
                hold.ttl_left.map_or("-".into(), rounded),
                token(hold),
                hold.mode.to_string(),
                waiting.clone(),
                tenure::name::Escaped(&holder.label).to_string(),
            ]);
        }
        if status.holds.is_empty() {
            let reserved = status.reserved.map_or("-".into(), rounded);
            let state = if status.reserved.is_some() {
                "reserved"
            } else {
                "free"
            };
            let dash = || "-".to_string();
            rows.push(vec![
                name,
                dash(),
                dash(),
                dash(),
                reserved,
                dash(),
                state.into(),
                waiting,
                String::new(),
            ]);
        }
    }
    let head = [
        "NAME", "HOST", "PID", "FOR", "LEFT", "TOKEN", "MODE", "WAITING", "LABEL",
    ];
    output::table(&head, &rows)
}

fn token(hold: &HoldInfo) -> String {
    hold.token.map_or("-".into(), |token| token.to_string())
}

fn status_text(status: &Status) -> String {
    let mut lines = Vec::new();
    if status.holds.is_empty() {
        lines.push(match status.reserved {
            None => format!("{} is free", status.name),
            Some(_) => output::busy(status, Duration::ZERO),
        });
    }
    for hold in &status.holds {
        lines.push(format!(
            "{} is held by {}",
            status.name,
            output::holder(&hold.holder)
        ));
        lines.push(format!("  token {}, {}", token(hold), hold.mode));
        lines.push(match hold.ttl_left {
            Some(left) => format!(
                "  the store frees the lock in {} unless its holder renews it",
                rounded(left)
            ),
            None => "  no time limit: held until it is released or its process ends".into(),
        });
    }
    if let Some((agree, all)) = status.nodes {
        lines.push(format!("  {agree} of {all} servers say so"));
    }
    match status.queue.as_deref() {
        None if status.is_held() => lines.push("  this store cannot say who waits".into()),
        None | Some([]) => {}
        Some(queue) => {
            lines.push(format!("{} waiting:", queue.len()));
            lines.extend(
                queue
                    .iter()
                    .map(|waiter| format!("  {}", output::holder(waiter))),
            );
        }
    }
    lines.join("\n")
}
