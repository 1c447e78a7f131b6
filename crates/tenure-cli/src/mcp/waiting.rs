//! Waits of calls: their limit, their end, and what the client learns meanwhile.

use std::time::{Duration, Instant};

use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use tenure::{LockStatus, RestartGuard};

use super::answer::Failure;
use super::session::Session;
use crate::duration::rounded;
use crate::text;

/// How long a call waits if it does not say it. Many clients give a call up after a minute.
pub(super) const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// A wait that is shorter than this is not reported.
const FIRST_REPORT_AFTER: Duration = Duration::from_millis(100);
/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The wait of one call.
pub(super) struct Waiting<'a> {
    session: &'a Session,
    call: &'a RequestContext<RoleServer>,
    began: Instant,
    limit: Duration,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(
        session: &'a Session,
        call: &'a RequestContext<RoleServer>,
        limit: Duration,
    ) -> Self {
        let began = Instant::now();
        Self {
            session,
            call,
            began,
            limit,
        }
    }

    pub(super) fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// What is left of the limit.
    pub(super) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.waited())
    }

    /// Whether the client has cancelled the call, so that no answer is wanted.
    pub(super) fn is_cancelled(&self) -> bool {
        self.call.ct.is_cancelled()
    }

    /// Awaits the work, unless the client cancels the call or is gone; then the work is dropped. Meanwhile the client gets
    /// reports, if it wants them: what `look` says about the obstacle.
    ///
    /// # Errors
    /// The call is cancelled, or the session is over.
    pub(super) async fn during<T, L: Future<Output = Option<String>>>(
        &self,
        work: impl Future<Output = T>,
        look: impl Fn() -> L,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            () = self.call.ct.cancelled() => Err(Failure::cancelled()),
            done = work => Ok(done),
            () = self.session.ended() => Err(Failure::ended()),
            never = self.report(look) => never,
        }
    }

    /// Never resolves.
    async fn report<T, L: Future<Output = Option<String>>>(&self, look: impl Fn() -> L) -> T {
        let Some(token) = self.call.meta.get_progress_token() else {
            return std::future::pending().await;
        };
        tokio::time::sleep(FIRST_REPORT_AFTER).await;
        loop {
            if let Some(obstacle) = look().await {
                let waited = self.waited();
                let message = format!("waiting {}: {obstacle}", rounded(waited));
                let progress = ProgressNotificationParam::new(token.clone(), waited.as_secs_f64())
                    .with_total(self.limit.as_secs_f64())
                    .with_message(message);
                // A client that cannot be reached is one that is gone, which ends the wait.
                let _ = self.call.peer.notify_progress(progress).await;
            }
            tokio::time::sleep(REPORT_INTERVAL).await;
        }
    }
}

/// Why the lock cannot be taken now, and how many wait for it. `label`: that of our own entry in the queue, if there is one.
pub(super) fn obstacle(status: &LockStatus, ttl: Duration, label: Option<&str>) -> String {
    let reason = text::busy(status, ttl);
    let Some(queue) = status.queue.as_deref().filter(|queue| !queue.is_empty()) else {
        return reason;
    };
    match label.and_then(|label| position(status, label)) {
        Some(position) => format!(
            "{reason}; position {position} of {} in the queue",
            queue.len()
        ),
        None => format!("{reason}; {} in the queue", queue.len()),
    }
}

/// The place of our own entry in the queue, from 1 on. Calls of one client that wait for the same name with the same text have
/// one place, that of the first of them.
pub(super) fn position(status: &LockStatus, label: &str) -> Option<usize> {
    let mut queue = status.queue.as_deref()?.iter();
    let before = queue.position(|it| it.pid == std::process::id() && it.label == label)?;
    Some(before + 1)
}

/// Whether a request could be granted now.
pub(super) fn is_free(status: &LockStatus, ttl: Duration) -> bool {
    let guard: Option<&RestartGuard> = text::restart_guard(status, ttl);
    !status.is_held() && status.reserved.is_none() && guard.is_none()
}
