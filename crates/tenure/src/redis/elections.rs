//! What candidates, leaders and observers of an election ask of the server, beside the lock.

use std::sync::Arc;

use redis::Cmd;

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::holder::Holder;
use tenure_core::leader::Sighting;
use tenure_core::name::LockName;
use tenure_core::store::Hold;

use super::connection::{Script, ScriptReply, unexpected_reply};
use super::context::Context;
use super::format::Keys;
use super::redisson;
use super::scripts::ElectionScripts;
use super::sighting;
use super::store::Store;

/// Replaces what the server has about the holder, unless a later value is there. `false`: there is no such hold.
pub(super) async fn publish(
    store: &Store,
    hold: &Hold,
    holder: &Arc<Holder>,
) -> Result<bool, Error> {
    let keys = store.requests.keys(&hold.name);
    let owner = store.requests.owner(hold.owner);
    let number = holder.value.as_ref().map_or(0, |value| value.number);
    let text = store.requests.holder_text(holder);
    let args = |cmd: &mut Cmd| {
        cmd.arg(&owner).arg(number).arg(&*text);
    };
    let answer = call(store, &scripts(store)?.publish, &keys, args).await?;
    Ok(answer == 1)
}

/// Who leads.
pub(super) async fn leader(store: &Store, name: &LockName) -> Result<Sighting, Error> {
    let (script, keys) = (&scripts(store)?.leader, store.requests.keys(name));
    let both = [keys.lock(), keys.hold()];
    let reply: ScriptReply<String> = store.connections.call(script, &both, &|_| {}).await?;
    sighting::parse(&reply.value).ok_or_else(unexpected_reply)
}

/// Asks the holder with that token to let go. `false`: there is no such hold.
pub(super) async fn ask_to_release(
    store: &Store,
    name: &LockName,
    token: u64,
) -> Result<bool, Error> {
    let keys = store.requests.keys(name);
    let args = |cmd: &mut Cmd| {
        cmd.arg(token);
    };
    let answer = call(store, &scripts(store)?.ask, &keys, args).await?;
    Ok(answer == 1)
}

/// From now on renewals look for a request to let go, which the server keeps as long as the lock.
pub(super) fn listen_for_requests(store: &Store, owner: OwnerId) {
    store.holds.update(owner, |entry| entry.listens = true);
}

/// Removes the request to let go of a lock that was released. Without an answer it ends with the lease that the lock had.
pub(super) async fn end_request(store: &Store, keys: &Keys, owner: OwnerId) {
    let (Ok(scripts), Some(asked)) = (scripts(store), keys.asked()) else {
        return;
    };
    let owner = store.requests.owner(owner);
    let args = |cmd: &mut Cmd| {
        cmd.arg(&owner);
    };
    let keys = [&*asked];
    let ended = store.connections.call::<i64>(&scripts.unask, &keys, &args);
    let _ = ended.await;
}

/// Tells observers who leads now, in the background. Where the message gets lost, they read.
pub(super) fn tell(store: &Arc<Store>, name: &LockName) {
    let (told, keys) = (store.clone(), store.requests.keys(name));
    let telling = Box::pin(async move {
        if let Ok(scripts) = scripts(&told) {
            let _ = call(&told, &scripts.tell, &keys, |_| {}).await;
        }
    });
    let Context {
        operations,
        spawner,
        ..
    } = &*store.context;
    if let Err(Some(pending)) = spawner.poll_anywhere(telling) {
        operations.spawn(spawner, pending);
    }
}

fn scripts(store: &Store) -> Result<&'static ElectionScripts, Error> {
    store.requests.elections.ok_or_else(redisson::no_elections)
}

/// Runs a script that takes the keys of a lock and the key of a request to let go.
async fn call(
    store: &Store,
    script: &Script,
    keys: &Keys,
    args: impl Fn(&mut Cmd) + Sync,
) -> Result<i64, Error> {
    let asked = keys.asked();
    let (keys, count) = keys.with(asked.as_deref());
    let reply: ScriptReply<i64> = store
        .connections
        .call(script, &keys[..count], &args)
        .await?;
    Ok(reply.value)
}
