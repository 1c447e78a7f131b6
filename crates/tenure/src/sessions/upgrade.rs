//! Changing the mode of a hold. An upgrade asks on the session that has the hold, which has no other acquisition.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_core::error::{Error, ErrorParts as _};
use tenure_core::fence::OwnerId;
use tenure_core::options::Mode;
use tenure_core::rt::lock;
use tenure_core::store::{Answer, BoxFuture, ChangeMode, Hold, Request};
use tenure_core::support::RetryBudget;

use crate::database::{RequestError, Row};

use super::acquisitions::{Acquisition, AcquisitionState};
use super::attempt::{self, AttemptOutcome, Pacing};
use super::errors;
use super::key::Key;
use super::mode::KeyMode;
use super::operations::{OperationError, OperationReply, OperationResult};
use super::session::Session;
use super::statements::{self, WaitOutcome};
use super::store::Store;
use super::wait::{self, WaitFuture};

impl ChangeMode for Store {
    fn upgrade(
        self: Arc<Self>,
        _: Hold,
        request: Arc<Request>,
    ) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(async move { upgrade(&self, &request).await })
    }

    fn downgrade(self: Arc<Self>, hold: Hold, mode: Mode) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { downgrade(&self, &hold, mode).await })
    }
}

/// How often a change to a weaker mode is sent before the session ends instead.
const MAX_ATTEMPTS: u32 = 3;

/// A hold that changes its mode, and the session that has the hold.
struct Changing {
    session: Arc<Session>,
    owner: OwnerId,
    key: Key,
    mode: KeyMode,
    token: u64,
}

impl Changing {
    /// `None`: the owner has no hold any more.
    fn of(store: &Store, owner: OwnerId) -> Option<Self> {
        let session = store.holds.get(owner)?;
        if session.is_ended() {
            return None;
        }
        let acquisition = lock(&session.acquisitions).get(&owner).cloned();
        let Acquisition {
            key, mode, state, ..
        } = acquisition?;
        let AcquisitionState::Held { token, .. } = state else {
            return None;
        };
        Some(Self {
            session,
            owner,
            key,
            mode,
            token,
        })
    }

    fn set_mode(&self, mode: KeyMode) {
        lock(&self.session.acquisitions).set_mode(&self.owner, mode);
    }

    /// The server has made the hold exclusive, as this reply says.
    async fn granted(
        &self,
        store: &Store,
        request: &Request,
        token: u64,
        reply: OperationReply,
    ) -> Result<AttemptOutcome, Error> {
        let until = reply.sent.after(self.session.lifetime.ttl);
        self.session.set_held(self.owner, token, until);
        store.holder_table.remove(self.owner);
        attempt::granted(store, request, &self.session, token, reply, None).await
    }

    /// Runs a statement on the session.
    async fn query(&self, sql: String) -> Result<Vec<Row>, RequestError> {
        let limit = self.session.context.request_limit();
        let limit = limit.max(self.session.lifetime.ends());
        statements::query(&self.session, sql, limit).await
    }
}

/// Makes the upgradable hold of the owner exclusive; waits for the other holders if the request waits.
pub(super) async fn upgrade(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let server = &store.context.settings.server;
    let mut pacing = Pacing {
        retries: RetryBudget::without_limit(),
        polls: RetryBudget::without_limit(),
    };
    loop {
        let Some(changing) = Changing::of(store, request.owner) else {
            return Err(errors::lost(server));
        };
        let outcome = match try_upgrade(store, request, &changing).await? {
            AttemptOutcome::Busy if request.wait => {
                wait_for_upgrade(store, request, &changing).await?
            }
            outcome => outcome,
        };
        match outcome {
            AttemptOutcome::Granted(grant) => return Ok(Answer::Granted(grant)),
            AttemptOutcome::Busy if request.wait && !store.is_cancelled(request) => {
                tracing::debug!(name = %request.name, store = store.guarantees.scheme, "the server cancelled the wait for an upgrade; asking again");
                wait::poll_later(store, request, &mut pacing).await;
            }
            AttemptOutcome::SessionEnded(err) | AttemptOutcome::TakenBack(err) => {
                return Err(errors::lost(server).with_source(err));
            }
            AttemptOutcome::Busy | AttemptOutcome::Cancelled | AttemptOutcome::NotBefore(_) => {
                return Ok(Answer::Busy);
            }
        }
        if store.is_cancelled(request) {
            return Ok(Answer::Busy);
        }
    }
}

/// Makes the hold exclusive if no other session has the lock.
async fn try_upgrade(
    store: &Store,
    request: &Request,
    changing: &Changing,
) -> Result<AttemptOutcome, Error> {
    let (context, session) = (&store.context, &changing.session);
    let begin = context.clock.now();
    let reply = |token| OperationReply {
        result: OperationResult::Granted(token),
        sent: session.lifetime.sent(),
        round_trip: context.clock.now().since(begin),
    };
    if changing.mode == KeyMode::Upgraded {
        let token = changing.token;
        return changing.granted(store, request, token, reply(token)).await;
    }
    // From now on the session may have the lock exclusively.
    changing.set_mode(KeyMode::Upgraded);
    let sql = context.dialect.try_upgrade(&changing.key);
    match changing.query(sql).await {
        Ok(rows) => match token(&rows) {
            Some(token) => changing.granted(store, request, token, reply(token)).await,
            None => {
                changing.set_mode(KeyMode::Upgradable);
                Ok(AttemptOutcome::Busy)
            }
        },
        Err(error) if error.is_fatal() => Ok(AttemptOutcome::SessionEnded(errors::explain(
            error,
            &context.settings.server,
        ))),
        Err(error) => {
            make_upgradable(changing).await;
            let code = error.code().unwrap_or_default();
            match context.dialect.is_cancelled(&code) {
                true => Ok(AttemptOutcome::Busy),
                false => Err(errors::explain(error, &context.settings.server)),
            }
        }
    }
}

/// The token in the row of a wait; `None`: the lock was not granted.
fn token(rows: &[Row]) -> Option<u64> {
    let token = rows.first()?.get(1)?.as_deref()?.parse().ok()?;
    (token > 0).then_some(token)
}

/// Waits in the server's queue, before all waiters. [`AttemptOutcome::Busy`]: the server cancelled the wait. The hold is
/// renewed meanwhile by checks on the control connection.
async fn wait_for_upgrade(
    store: &Arc<Store>,
    request: &Request,
    changing: &Changing,
) -> Result<AttemptOutcome, Error> {
    let session = &changing.session;
    changing.set_mode(KeyMode::Upgraded);
    session.busy.is_waiting.store(true, Ordering::SeqCst);
    store.context.maintenance.wake();
    let sql = store.context.dialect.wait_for_upgrade(&changing.key);
    let mut waiting: WaitFuture = Box::pin(statements::wait_for_lock(
        session.clone(),
        request.owner,
        sql,
    ));
    let outcome = store.until_cancelled(request, &mut waiting).await;
    let server = &store.context.settings.server;
    let outcome = match outcome {
        Some(WaitOutcome::Granted(token)) => {
            store.holder_table.remove(changing.owner);
            return wait::confirm(store, request, session, token).await;
        }
        Some(outcome) => Some(outcome),
        None => wait::cancel_statement(store, request, session, &mut waiting).await,
    };
    session.busy.is_waiting.store(false, Ordering::SeqCst);
    match outcome {
        Some(WaitOutcome::SessionEnded(error)) => {
            Ok(AttemptOutcome::SessionEnded(errors::explain(error, server)))
        }
        Some(WaitOutcome::Refused(error)) => {
            make_upgradable(changing).await;
            Err(errors::explain(error, server))
        }
        // `close` waits for the end of each session that waits.
        _ if store.context.closing.is_raised() => {
            session.end();
            Ok(AttemptOutcome::Cancelled)
        }
        Some(WaitOutcome::Granted(_) | WaitOutcome::Cancelled) => {
            make_upgradable(changing).await;
            Ok(AttemptOutcome::Busy)
        }
        None => {
            session.end();
            Ok(AttemptOutcome::Cancelled)
        }
    }
}

/// Gives up what an upgrade may have got. If that fails, the session ends, and the hold with it.
async fn make_upgradable(changing: &Changing) {
    let session = &changing.session;
    if let Ok(true) = weaken(changing, KeyMode::Upgradable).await {
        session.set_held(changing.owner, changing.token, session.lifetime.ends());
    }
}

/// Makes the hold shared, or upgradable again. `false`: the owner has no hold that is at least as strong.
pub(super) async fn downgrade(store: &Store, hold: &Hold, mode: Mode) -> Result<bool, Error> {
    let Some(changing) = Changing::of(store, hold.owner) else {
        return Ok(false);
    };
    let to = match (KeyMode::from(mode), changing.mode) {
        (to, has) if to == has => return Ok(true),
        (KeyMode::Shared, _) => KeyMode::Shared,
        (KeyMode::Upgradable, KeyMode::Upgraded) => KeyMode::Upgradable,
        _ => return Ok(false),
    };
    if changing.session.busy.is_keeping.load(Ordering::SeqCst) {
        return Err(errors::kept_and_changing());
    }
    let server = &store.context.settings.server;
    if changing.mode == KeyMode::Exclusive {
        // A release may come while the statement is under way, and has to unlock what the statement leaves.
        changing.set_mode(KeyMode::Weakening);
    }
    let weakened = weaken(&changing, to).await;
    weakened.map_err(|error| errors::of_operation(error, server))
}

/// Changes to a weaker mode. `false`: the session does not have the lock. After an error the session is over: what it had
/// would be unknown.
async fn weaken(changing: &Changing, to: KeyMode) -> Result<bool, OperationError> {
    let session = &changing.session;
    let mut attempts = 0;
    let error = loop {
        attempts += 1;
        let sql = session.context.dialect.downgrade(&changing.key, to);
        match changing.query(sql).await {
            Ok(rows) if token(&rows).is_some() => {
                changing.set_mode(to);
                return Ok(true);
            }
            Ok(_) => return Ok(false),
            Err(error) if error.is_fatal() || attempts >= MAX_ATTEMPTS => break error,
            // An administrator has cancelled the statement, which may be repeated.
            Err(_) => {}
        }
    };
    session.end();
    Err(OperationError::SessionEnded(Some(error)))
}
