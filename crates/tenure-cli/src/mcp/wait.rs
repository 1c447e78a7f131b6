//! The tool `wait`: waits until a name is free, and takes nothing.

use std::time::Duration;

use rmcp::RoleServer;
use rmcp::service::RequestContext;
use serde_json::json;
use tenure::{Error, LockName, LockStatus};

use super::answer::{Answer, Failure};
use super::arguments::Arguments;
use super::session::Session;
use super::waiting::{DEFAULT_WAIT, Waiting, is_free, obstacle};
use crate::duration::{self, rounded};
use crate::json;

/// Time between two looks at the name. Only who waits for a lock is told of its end by the store.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

pub(super) async fn wait(
    session: &Session,
    mut arguments: Arguments,
    call: &RequestContext<RoleServer>,
) -> Result<Answer, Failure> {
    let name = arguments.name("name")?;
    let limit = arguments.duration("wait", duration::parse)?;
    arguments.finish(&["name", "wait"])?;
    let waiting = Waiting::new(session, call, limit.unwrap_or(DEFAULT_WAIT));
    let last = tokio::sync::Mutex::new(None);
    let looks = until_free(session, &name, &waiting, &last);
    let (ttl, last) = (session.ttl, &last);
    let report = move || async move {
        let status = last.lock().await;
        status.as_ref().map(|status| obstacle(status, ttl, None))
    };
    let status = waiting.during(looks, report).await??;
    let waited = rounded(waiting.waited());
    if is_free(&status, session.ttl) {
        let text = format!(
            "{name} is free, after {waited}; it is not taken, and another client can take it at any time"
        );
        let fields = json!({ "name": name.as_str(), "free": true, "waited_ms": json::millis(waiting.waited()) });
        return Ok(Answer { text, fields });
    }
    let message = format!(
        "gave up after {waited}: {}; wait longer with `wait`",
        obstacle(&status, session.ttl, None)
    );
    let fields = json!({ "name": name.as_str(), "status": json::status_json(&status) });
    Err(Failure::busy(message, fields))
}

/// Looks at the name until it is free or the time is over. The last look is the answer; reports read `last`.
async fn until_free(
    session: &Session,
    name: &LockName,
    waiting: &Waiting<'_>,
    last: &tokio::sync::Mutex<Option<LockStatus>>,
) -> Result<LockStatus, Error> {
    loop {
        let status = session.client.inspect(name).await?;
        let left = waiting.left();
        if is_free(&status, session.ttl) || left.is_zero() {
            return Ok(status);
        }
        *last.lock().await = Some(status);
        tokio::time::sleep(LOOK_INTERVAL.min(left)).await;
    }
}
