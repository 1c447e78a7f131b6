//! The restart guard: a server forgets all locks of sessions when it starts, so a server that was started lately is not
//! trusted until every lease from before its start is over.

use std::time::Duration;

use tenure_core::backend::Request;
use tenure_core::error::Error;
use tenure_core::holder::RestartGuard;
use tenure_core::support::not_trusted_yet;
use tenure_core::time::Time;

use super::session::Session;

/// Whether the server of a session knows who holds what.
pub(super) enum Trust {
    Full,
    NotBefore(Time),
}

/// Whether a grant to that request counts now.
///
/// # Errors
/// `Unreachable`: it does not, and the request does not wait.
pub(super) fn trust(session: &Session, request: &Request) -> Result<Trust, Error> {
    let Some(guard) = session.context.settings.restart_guard else {
        return Ok(Trust::Full);
    };
    let from = session.server_start().trusted_from(guard, request.ttl);
    // Most often that was long ago, and the clock need not be read.
    if from <= session.lease.sent() || session.context.is_past(from) {
        return Ok(Trust::Full);
    }
    let report = report(session, guard);
    if !request.wait {
        return Err(not_trusted_yet(report, request.ttl));
    }
    let why = report.describe(request.ttl);
    tracing::warn!(name = %request.name, "waiting: {why}");
    Ok(Trust::NotBefore(from))
}

/// What people are told of the start of the server.
pub(super) fn report(session: &Session, guard: Duration) -> RestartGuard {
    let context = &session.context;
    let (server, now) = (&context.settings.server, context.clock.now());
    session.server_start().report(server, guard, now)
}
