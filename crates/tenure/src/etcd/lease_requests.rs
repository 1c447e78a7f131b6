//! The requests about leases, one function each.

use std::time::Duration;

use futures_util::stream;

use tenure_core::error::Error;
use tenure_core::time::Time;

use super::connection::Connections;
use super::errors::{self, Recovery, RequestError};
use super::wire::{self, path};

/// The reply to [`keep_alive`].
pub(super) struct KeepAliveReply {
    pub(super) sent: Time,
    /// The ttl of each lease, in seconds; 0 or less: the lease is over.
    pub(super) ttls: Vec<i64>,
}

/// Makes a lease. Returns its ttl in seconds, and when the request was sent.
pub(super) async fn grant_lease(
    connections: &Connections,
    id: i64,
    seconds: i64,
) -> Result<(i64, Time), RequestError> {
    let grant = wire::LeaseGrant { ttl: seconds, id };
    let reply = connections.call(path::LEASE_GRANT, grant).await?;
    let response: wire::LeaseGrantResponse = reply.value;
    Ok((response.ttl, reply.sent))
}

/// Ends a lease, and deletes its keys with it. `false`: there is no such lease.
pub(super) async fn revoke_lease(connections: &Connections, id: i64) -> Result<bool, Error> {
    let revoke = wire::LeaseId { id };
    match connections.call(path::LEASE_REVOKE, revoke).await {
        Ok(reply) => {
            let wire::Empty {} = reply.value;
            Ok(true)
        }
        Err(err) if err.recovery == Recovery::NewLease => Ok(false),
        Err(err) => Err(err.error),
    }
}

/// Keeps these leases alive. The stream of the request ends with it: an open stream would tie the client to one member.
pub(super) async fn keep_alive(
    connections: &Connections,
    ids: &[i64],
) -> Result<KeepAliveReply, Error> {
    let mut last = None;
    let limit = connections.request_limit();
    for others in (0..connections.member_count()).rev() {
        let until = connections.share(limit, others);
        match keep_alive_once(connections, ids, until).await {
            Ok(reply) => return Ok(reply),
            Err(err) => {
                let goes_on = matches!(err.recovery, Recovery::AnotherMember | Recovery::LogIn);
                last = Some(err.error);
                if !goes_on {
                    break;
                }
            }
        }
    }
    Err(last.expect("BUG: a URL has a host"))
}

async fn keep_alive_once(
    connections: &Connections,
    ids: &[i64],
    until: Time,
) -> Result<KeepAliveReply, RequestError> {
    let messages: Vec<_> = ids.iter().map(|id| wire::LeaseId { id: *id }).collect();
    let sent = connections.now();
    let messages = stream::iter(messages);
    let stream = connections.stream(path::LEASE_KEEP_ALIVE, messages, until);
    let (connection, mut responses) = stream.await?;
    let mut ttls = Vec::with_capacity(ids.len());
    for id in ids {
        let response = connections.next(&connection, &mut responses, until).await?;
        let wire::LeaseResponse { id: of, ttl } = response;
        if of != *id {
            return Err(RequestError {
                error: errors::unexpected_reply(),
                recovery: Recovery::None,
            });
        }
        ttls.push(ttl);
    }
    Ok(KeepAliveReply { sent, ttls })
}

/// How long a lease still lasts, in whole seconds; `None`: the key has no lease.
pub(super) async fn lease_time_left(
    connections: &Connections,
    lease: i64,
) -> Result<Option<Duration>, Error> {
    if lease == 0 {
        return Ok(None);
    }
    let id = wire::LeaseId { id: lease };
    let reply = connections.call(path::LEASE_TIME_TO_LIVE, id).await?;
    let response: wire::LeaseResponse = reply.value;
    let left = u64::try_from(response.ttl).unwrap_or(0);
    Ok(Some(Duration::from_secs(left)))
}

/// How long a lease lasts.
pub(super) struct LeaseTimes {
    /// When the request was sent that asked for this.
    pub(super) sent: Time,
    /// In whole seconds, rounded down.
    pub(super) left: i64,
    /// The whole ttl in seconds.
    pub(super) granted: i64,
}

/// How long a lease lasts, without a change of it; `None`: there is no such lease.
pub(super) async fn lease_times(
    connections: &Connections,
    lease: i64,
) -> Result<Option<LeaseTimes>, Error> {
    let id = wire::LeaseId { id: lease };
    let reply = connections.call(path::LEASE_TIME_TO_LIVE, id).await?;
    let response: wire::LeaseTimesResponse = reply.value;
    let times = LeaseTimes {
        sent: reply.sent,
        left: response.ttl,
        granted: response.granted,
    };
    Ok((times.granted > 0).then_some(times))
}
