//! Requests to the cluster, which are sent again until they are answered. Each of them may be repeated: a session, a thread
//! and an identifier make a request to lock or to unlock the same request again.

use std::sync::Arc;

use tenure_core::error::ErrorKind;
use tenure_core::rt::Flag;
use tenure_core::support::RetryBudget;

use crate::connection::Connection;
use crate::errors::{Refusal, RequestError};
use crate::members::Members;
use crate::messages::{Call, Group};

/// The answer to a request.
pub(crate) struct Reply<T> {
    pub(crate) value: T,
    /// The request was sent once, so no copy of it can arrive later.
    pub(crate) is_first: bool,
}

/// A request about something in a CP group. `None`: the group is gone, as the members have another one by now.
pub(crate) trait Ask<T>: Fn(&Arc<Group>) -> Option<Call<T>> {}

impl<T, F: Fn(&Arc<Group>) -> Option<Call<T>>> Ask<T> for F {}

/// A request that is about this group and no later one of the same name.
pub(crate) fn within<T>(group: &Arc<Group>, call: Call<T>) -> impl Ask<T> {
    move |current: &Arc<Group>| (current == group).then(|| call.clone())
}

/// Sends a request until it is answered. An attempt has the time limit of a request to find a member that it can talk to, and
/// the same time for the answer; after an attempt without an answer there is another one, with the next member. So the whole
/// takes four times the limit at most. Cancel safe, as far as a request of unknown outcome is.
pub(crate) async fn ask<T>(members: &Members, ask: impl Ask<T>) -> Result<Reply<T>, RequestError> {
    let limit = members.clock.now().after(members.settings.timeout);
    let mut retries = RetryBudget::until(limit);
    let mut unknown = None;
    loop {
        // After the limit, an attempt that is under way goes on to its end.
        let is_last = retries.is_spent(&members.clock);
        let err = match ask_once(members, &ask).await {
            Ok(value) => {
                let is_first = unknown.is_none();
                return Ok(Reply { value, is_first });
            }
            Err(err) => err,
        };
        let is_old = matches!(err, RequestError::Refused(Refusal::GroupDestroyed));
        if is_last || !(is_old || may_pass(&err)) {
            return Err(match err {
                // Such a refusal says nothing of the attempts before; the others say what the members have.
                RequestError::Refused(Refusal::Other(_)) => unknown.unwrap_or(err),
                RequestError::Refused(_) => err,
                err => unknown.unwrap_or(err),
            });
        }
        if let RequestError::Unknown(_) = err {
            unknown.get_or_insert(err);
        }
        retries.pause(&members.clock).await;
    }
}

/// Sends a request once, for as long as an attempt may take: the caller repeats it. Cancel safe, as far as a request of unknown
/// outcome is.
pub(crate) async fn ask_once<T>(members: &Members, ask: impl Ask<T>) -> Result<T, RequestError> {
    let connection = members.connection().await.map_err(RequestError::NotSent)?;
    let call = ask(&connection.group).ok_or(GROUP_GONE)?;
    let reply = connection.call_in_time(&call).await;
    leave_after(members, &connection, reply)
}

/// Sends a request that waits in the cluster, once. Resolves with `None` when one of these flags is raised.
pub(crate) async fn wait<T>(
    members: &Members,
    ask: impl Ask<T>,
    [stop, closing]: [&Flag; 2],
) -> Option<Result<T, RequestError>> {
    let sending = async {
        let connection = members.connection().await.map_err(RequestError::NotSent)?;
        let call = ask(&connection.group).ok_or(GROUP_GONE)?;
        let reply = connection.call(&call).await;
        leave_after(members, &connection, reply)
    };
    tokio::select! {
        biased;
        () = stop.raised() => None,
        () = closing.raised() => None,
        reply = sending => Some(reply),
    }
}

/// What was asked for was in a group that the members do not have any more.
const GROUP_GONE: RequestError = RequestError::Refused(Refusal::SessionOver);

/// After a failure the next member is used. That is so for an error of the member too whose outcome is unknown: the member
/// may be leaving the cluster. With the next connection, the present group is asked for.
fn leave_after<T>(
    members: &Members,
    connection: &Arc<Connection>,
    reply: Result<T, RequestError>,
) -> Result<T, RequestError> {
    match &reply {
        Ok(_) => {}
        Err(RequestError::Refused(Refusal::GroupDestroyed)) => members.leave(connection),
        Err(RequestError::Refused(_)) => {}
        Err(RequestError::NotSent(_) | RequestError::Unknown(_)) => members.leave(connection),
    }
    reply
}

/// Whether another attempt may succeed.
pub(crate) fn may_pass(err: &RequestError) -> bool {
    match err {
        RequestError::Refused(_) => false,
        RequestError::Unknown(_) => true,
        RequestError::NotSent(err) => err.kind() == ErrorKind::Unreachable,
    }
}
