//! The tool `list`.

use serde_json::{Value, json};
use tenure::LockStatus;

use super::answer::{Answer, Failure};
use super::arguments::Arguments;
use super::session::Session;
use crate::holds_table::holds_table;
use crate::json;

/// How many names are listed. A model that gets a longer answer has no room for anything else.
const MOST_LISTED: usize = 200;

pub(super) async fn list(session: &Session, mut arguments: Arguments) -> Result<Answer, Failure> {
    let prefix = arguments.text("prefix")?.unwrap_or_default();
    arguments.finish(&["prefix"])?;
    let mut all = session.client.list(prefix).await?;
    let more = all.len().saturating_sub(MOST_LISTED);
    all.truncate(MOST_LISTED);
    let mut text = match all.is_empty() {
        true => "nothing is held".into(),
        false => holds_table(&all),
    };
    if more > 0 {
        text += &format!("\nand {more} more; give a longer `prefix`");
    }
    let locks: Vec<_> = all.iter().map(|status| lock(session, status)).collect();
    let fields = json!({ "locks": locks, "more": more });
    Ok(Answer { text, fields })
}

/// With the id of each hold that is one of this client.
fn lock(session: &Session, status: &LockStatus) -> Value {
    let mut value = json::status_json(status);
    for (at, hold) in status.holds.iter().enumerate() {
        let id = hold
            .token
            .and_then(|token| session.holds.id_of(&status.name, token));
        if let Some(id) = id {
            value["holds"][at]["hold"] = id.into();
        }
    }
    value
}
