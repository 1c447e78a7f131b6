//! What elections need beside the lock: the value in the leader's node, and what observers hear.
//!
//! The leader is the first contender (see [`front`]). Requests to let go are in `asking`.

use std::sync::Arc;

use futures_util::StreamExt as _;
use zookeeper_client::{SessionState, StateWatcher};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::holder::Holder;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Elections, Hold, Sightings, one_sighting};
use tenure_core::support::RetryBudget;

use super::asking;
use super::errors::{ClientError, RequestError};
use super::front;
use super::mode::{ChangedHold, HoldMode, NodeRecord, WrittenToken, token};
use super::names::Dialect;
use super::node_data::{REVOKE, check_value, to_write};
use super::observers::{Channel, Subscribed};
use super::requests;
use super::session::Session;
use super::store::{ContenderNode, Store};

impl Elections for Store {
    fn publish(self: Arc<Self>, hold: Hold, holder: Arc<Holder>) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { publish(&self, &hold, &holder).await })
    }

    fn leader(self: Arc<Self>, name: LockName) -> BoxFuture<Result<Sighting, Error>> {
        Box::pin(async move { leader(&self, &name).await })
    }

    fn watch(self: Arc<Self>, name: LockName) -> Option<Sightings> {
        let (sightings, subscribed) = self.observers.subscribe(&name);
        let channel = match subscribed {
            Subscribed::First(channel) => channel,
            Subscribed::Early => return Some(sightings),
            // What the channel has may be older than what this program knows.
            Subscribed::Late => {
                let now = one_sighting(self.leader(name));
                return Some(Box::pin(now.chain(sightings)));
            }
        };
        let store = self.clone();
        self.spawn_until_closed(async move { serve(&store, channel).await });
        Some(sightings)
    }

    fn ask_to_release(
        self: Arc<Self>,
        name: LockName,
        token: u64,
    ) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { asking::ask(&self, &name, token).await })
    }

    fn listen_for_requests(self: Arc<Self>, hold: Hold) {
        asking::listen(&self, &hold);
    }
}

/// How a request to publish ended.
enum Published {
    /// `false`: the node is gone.
    Done(bool),
    /// Another program has written the node between the read and the write.
    Overtaken,
}

/// Replaces the value in the node of a hold. Each write names the version of the data that it is based on, so a request that
/// arrives late changes nothing.
async fn publish(store: &Store, hold: &Hold, holder: &Holder) -> Result<bool, Error> {
    let dialect = store.settings.dialect;
    check_change(dialect)?;
    check_value(dialect, holder)?;
    let held = store.holds.get(hold.owner);
    let Some((session, path)) = held.and_then(ContenderNode::node) else {
        return Ok(false);
    };
    let clock = &store.clock;
    let mut retries = RetryBudget::until(clock.now().after(store.settings.timeout));
    let mut may_be_seen = false;
    loop {
        let err = match replace_value(store, &session, (hold, &path), holder).await {
            Ok(Published::Done(true)) => return Ok(true),
            Ok(Published::Done(false)) => return hold_is_gone(may_be_seen),
            Ok(Published::Overtaken) => {
                let what = "other programs write the node of this hold again and again; retry";
                Error::new(ErrorKind::Unreachable, what)
            }
            Err(err) if err.is_session_over() => return hold_is_gone(may_be_seen),
            Err(err) if !err.is_ambiguous() => return Err(session.explain(err)),
            Err(err) => {
                may_be_seen = true;
                session.explain(err)
            }
        };
        if retries.is_spent(clock) {
            return Err(err);
        }
        retries.pause(clock).await;
    }
}

/// `may_be_seen`: an attempt before got no reply.
fn hold_is_gone(may_be_seen: bool) -> Result<bool, Error> {
    match may_be_seen {
        true => Err(Error::new(
            ErrorKind::Lost,
            "the term ended before the store answered, and observers may have seen the value",
        )),
        false => Ok(false),
    }
}

/// Refuses to change the value of a latch.
fn check_change(dialect: Dialect) -> Result<(), Error> {
    if dialect != Dialect::Latch {
        return Ok(());
    }
    // Curator's `LeaderLatch` (5.9.0) watches the data of the node before its own, which reports one change, and acts only if
    // that change is the deletion of the node.
    let what = "with dialect=curator-latch the value of a leader cannot change: a LeaderLatch that waits behind it would never take over; resign and campaign with the new value, or use dialect=curator-selector";
    Err(Error::new(ErrorKind::Unsupported, what))
}

async fn replace_value(
    store: &Store,
    session: &Session,
    (hold, path): (&Hold, &str),
    holder: &Holder,
) -> Result<Published, RequestError> {
    let Some((stat, data)) = requests::read_node(session, path).await? else {
        return Ok(Published::Done(false));
    };
    if data.is(REVOKE) {
        // The value replaces the request, which a guard that waits later has to hear of, too.
        store.losses.asked_to_release(hold.owner);
    }
    let mut record = match data.own_record() {
        Some(record) => record.clone(),
        None => overwritten(session, hold, holder),
    };
    if record.holder.number > holder.value.as_ref().map(|value| value.number) {
        return Ok(Published::Done(true));
    }
    record.keep_token(token(&stat, data.record()));
    record.holder = holder.into();
    let written = to_write(session.settings().dialect, holder, &record);
    // An earlier attempt was applied, and its reply was lost.
    if data.is(&written) {
        return Ok(Published::Done(true));
    }
    match requests::set_data(session, path, &written, stat.version).await {
        Ok(Some(_)) => Ok(Published::Done(true)),
        Ok(None) => Ok(Published::Overtaken),
        Err(err) if err.is(&ClientError::NoNode) => Ok(Published::Done(false)),
        Err(err) => Err(err),
    }
}

/// The record of a hold whose data another program has overwritten.
fn overwritten(session: &Session, hold: &Hold, holder: &Holder) -> NodeRecord {
    let mut record = NodeRecord::new(holder, session.timeout.min(hold.ttl));
    let mode = match hold.mode {
        Mode::Exclusive => Some(HoldMode::Exclusive),
        Mode::Shared => Some(HoldMode::Shared),
        Mode::Upgradable => Some(HoldMode::Upgradable),
        _ => None,
    };
    record.hold = Some(ChangedHold {
        mode,
        last: None,
        token: Some(WrittenToken::Number(hold.token)),
    });
    record
}

async fn leader(store: &Store, name: &LockName) -> Result<Sighting, Error> {
    let dir = store.directory(name)?;
    let session = store.sessions.any().await?;
    let read = async {
        requests::sync(&session, &dir).await?;
        front::read(&session, &dir).await
    };
    read.await.map_err(|err| session.explain(err))
}

/// Tells the observers of a name who leads, and each change, until the last of them is gone or the connection is.
async fn serve(store: &Store, channel: Channel) {
    let telling = async {
        let mut is_new = true;
        while let Some(sighting) = next_change(store, &channel, is_new).await {
            is_new = false;
            if let Err(err) = sighting {
                channel.send(Err(err));
                return;
            }
        }
    };
    tokio::select! {
        biased;
        () = channel.unused() => {}
        () = telling => {}
    }
}

/// Sends who leads now, and returns when that may have changed. `None`: no change would be reported any more. `is_new`: nothing
/// was sent before, and a server that lags behind must not say what this program knows to be over.
async fn next_change(store: &Store, channel: &Channel, is_new: bool) -> Option<Result<(), Error>> {
    let next: Result<Option<()>, Error> = async {
        let dir = store.directory(channel.name())?;
        let session = store.sessions.any().await?;
        // From before the read, so that no change of the state is missed.
        let states = session.client.state_watcher();
        let watch = async {
            if is_new {
                requests::sync(&session, &dir).await?;
            }
            front::watch(&session, &dir).await
        };
        let (sighting, watcher) = watch.await.map_err(|err| session.explain(err))?;
        channel.send(Ok(sighting));
        Ok(tokio::select! {
            biased;
            () = disconnected(states) => None,
            _ = watcher.changed() => (!session.is_over()).then_some(()),
        })
    }
    .await;
    next.transpose()
}

/// Resolves when the session has no connection any more: the library keeps its watches and says nothing until it is connected
/// again, and observers should know that.
async fn disconnected(mut states: StateWatcher) {
    loop {
        let state = states.changed().await;
        if state == SessionState::Disconnected || state.is_terminated() {
            return;
        }
    }
}
