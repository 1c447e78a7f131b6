//! Holds that go on without their client: `detach` and `attach` are one script, which extends the lease of a hold and never
//! makes one. What a client needs to know of a hold that it did not acquire comes with the reply.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::lost::LostReason;
use tenure_core::options::Mode;
use tenure_core::store::{Hold, Renewal};
use tenure_core::support::{millis_down, mode_text, not_trusted_yet};

use super::acquire::start_maintenance;
use super::connection::{Connection, Script, ScriptReply, unexpected_reply};
use super::format;
use super::holds::{HeldKey, StoredTimes};
use super::redisson;
use super::scripts::DetachScripts;
use super::store::Store;

/// Lets the hold last for its ttl without this client, which forgets it. After another answer than `Renewed` the client still
/// remembers the hold, because the driver releases it.
pub(super) async fn detach(store: &Store, hold: &Hold) -> Renewal {
    let detached = async {
        let script = &scripts(store)?.detach;
        let reply = extend(store, script, hold, false).await?;
        if let Answer::Held { .. } = reply.value {
            // No renewal follows that a server could get which takes over without this one.
            until_replicated(store, hold, &reply.connection).await?;
        }
        Ok(reply)
    };
    let reply = match detached.await {
        Ok(reply) => reply,
        Err(err) => return Renewal::Unknown(err),
    };
    match reply.value {
        Answer::Held { .. } => {
            store.holds.remove(hold.owner);
            renewed(hold, &reply)
        }
        Answer::Gone(reason) => Renewal::Lost(reason),
    }
}

/// Extends the lease of a hold of another client, and remembers the hold as one of this client.
pub(super) async fn attach(store: &Arc<Store>, hold: &Hold) -> Renewal {
    let attached = async {
        let script = &scripts(store)?.attach;
        let reply = extend(store, script, hold, true).await?;
        if let Answer::Held { .. } = reply.value {
            check_trusted(store, &reply.connection)?;
        }
        Ok(reply)
    };
    let reply = match attached.await {
        Ok(reply) => reply,
        Err(err) => return Renewal::Unknown(err),
    };
    match reply.value {
        Answer::Held { times, is_asked } => {
            let context = &store.context;
            let entry = HeldKey {
                // One of several servers that are to have the same token.
                is_proposed: context.settings.servers.may_be_unreachable,
                is_asked,
                ..HeldKey::attached(hold, times, context.now())
            };
            store.holds.insert(hold.owner, entry);
            start_maintenance(store);
            renewed(hold, &reply)
        }
        Answer::Gone(reason) => Renewal::Lost(reason),
    }
}

/// Forgets a hold that this client is attached to.
pub(super) fn forget(store: &Store, owner: OwnerId) {
    if store.holds.read(owner, |entry| entry.is_attached) == Some(true) {
        store.holds.remove(owner);
    }
}

/// The scripts of detached holds. Redisson's locks have none.
pub(super) fn scripts(store: &Store) -> Result<&'static DetachScripts, Error> {
    let redisson = store.context.settings.redisson;
    format::detach_scripts(redisson).ok_or_else(redisson::no_detached_holds)
}

/// What the server says of a hold whose lease was to be extended.
enum Answer {
    Held {
        times: StoredTimes,
        /// Another client has asked the holder to let go.
        is_asked: bool,
    },
    Gone(LostReason),
}

/// Runs a script that extends the lease of the hold. With `attaches` this client is told from now on what happens to the hold.
async fn extend(
    store: &Store,
    script: &Script,
    hold: &Hold,
    attaches: bool,
) -> Result<ScriptReply<Answer>, Error> {
    let requests = &store.requests;
    let keys = requests.keys(&hold.name);
    // Mostly there is no request to let go, and so no key, for which a slot that is being moved refuses the script.
    let asked = keys.asked();
    let asked = asked.filter(|_| !store.connections.is_moving(keys.lock()));
    let all = [keys.lock(), keys.hold()].into_iter();
    let all = all.chain(keys.holders(hold.mode != Mode::Exclusive));
    let all: Vec<_> = all.chain(asked.as_deref()).collect();
    let (owner, channel) = (requests.owner(hold.owner), requests.channel(keys.lock()));
    let channel = attaches.then_some(&*channel);
    let mode = mode_text(hold.mode, false);
    let mode = mode.as_ref().and_then(|mode| mode.get(..1));
    let args = |cmd: &mut Cmd| {
        cmd.arg(&owner).arg(millis_down(hold.ttl));
        cmd.arg(mode.unwrap_or("x")).arg(channel);
    };
    let reply: ScriptReply<Vec<i64>> = store.connections.call(script, &all, &args).await?;
    let answer = match reply.value[..] {
        [1, lock_delay, min_hold, left, asked] => {
            let millis = |value: i64| u64::try_from(value).map_err(|_| unexpected_reply());
            Answer::Held {
                times: StoredTimes {
                    lock_delay: millis(lock_delay)?,
                    has_min_hold: min_hold > 0,
                    min_hold_left: Duration::from_millis(millis(left)?),
                },
                is_asked: asked == 1,
            }
        }
        [0] => Answer::Gone(LostReason::StoreSaysNo),
        [-1] => Answer::Gone(LostReason::TakenOver),
        _ => return Err(unexpected_reply()),
    };
    Ok(reply.with(answer))
}

fn renewed<T>(hold: &Hold, reply: &ScriptReply<T>) -> Renewal {
    Renewal::Renewed {
        sent: reply.sent,
        ttl: Some(Duration::from_millis(millis_down(hold.ttl))),
    }
}

/// Refuses a server that was started lately: it may have forgotten that the hold was released, and who holds now. The lease was
/// extended, so that a hold that is no such hold lasts until the server is trusted.
fn check_trusted(store: &Store, connection: &Connection) -> Result<(), Error> {
    let context = &store.context;
    // Not for the whole ttl of the hold, which may be long: the holds of others end by `restart_guard`.
    let until = context.untrusted_until(connection, Duration::ZERO);
    match until.and_then(|_| context.restart_guard(connection)) {
        Some(guard) => Err(not_trusted_yet(guard, Duration::ZERO)),
        None => Ok(()),
    }
}

/// Waits until the replicas have the lease.
async fn until_replicated(
    store: &Store,
    hold: &Hold,
    connection: &Connection,
) -> Result<(), Error> {
    let settings = &store.context.settings;
    let (wanted, limit) = (settings.wait_replicas, settings.servers.timeout / 2);
    if wanted == 0 {
        return Ok(());
    }
    let key = store.requests.keys(&hold.name).replicated();
    // In a box, as in `Server::connection`.
    let acknowledged = Box::pin(connection.acknowledged(&key, wanted)).await?;
    if acknowledged >= wanted {
        return Ok(());
    }
    let message = format!(
        "{acknowledged} of {wanted} replicas acknowledged the lease of the detached hold within {limit:?}; see wait_replicas in the URL"
    );
    Err(Error::new(ErrorKind::Unreachable, message))
}
