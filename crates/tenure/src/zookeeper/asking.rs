//! Requests to let go: where they are written, and how a holder hears of them.
//!
//! A request is the field `asked` in the record of the holder's node, with the token of the hold. A node with a bare value has
//! no place for that, and a `LeaderLatch` of Curator that waits behind it takes one change of its data only. There the
//! request is in the data of the directory, which no contender watches. Curator's own requests (`__REVOKE__` as the data of
//! the node) are heard in every dialect.

use std::sync::Arc;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::name::LockName;
use tenure_core::store::Hold;
use tenure_core::support::RetryBudget;

use super::directory_data::{DirectoryRecord, last_token};
use super::errors::{ClientError, RequestError};
use super::front::{self, First};
use super::mode;
use super::names;
use super::node_data::REVOKE;
use super::requests::{self, MAX_ATTEMPTS};
use super::session::Session;
use super::store::Store;

/// How an attempt to ask ended.
enum Asked {
    /// `false`: there is no such hold.
    Done(bool),
    /// Another client has written the same node.
    Overtaken,
    /// The request cannot be written, or the holder would not hear of it.
    Unsupported(&'static str),
}

/// Asks the holder with this token to let go.
pub(super) async fn ask(store: &Store, name: &LockName, token: u64) -> Result<bool, Error> {
    let dir = store.directory(name)?;
    let session = store.sessions.any().await?;
    for _ in 0..MAX_ATTEMPTS {
        let asked = ask_first(&session, &dir, token).await;
        match asked.map_err(|err| session.explain(err))? {
            Asked::Done(is_asked) => return Ok(is_asked),
            Asked::Overtaken => {}
            Asked::Unsupported(what) => return Err(Error::new(ErrorKind::Unsupported, what)),
        }
    }
    let what = "other programs write the node of the holder again and again; retry";
    Err(Error::new(ErrorKind::Unreachable, what))
}

async fn ask_first(session: &Session, dir: &str, token: u64) -> Result<Asked, RequestError> {
    requests::sync(session, dir).await?;
    let first = front::first(session, dir).await?;
    let Some(first) = first.filter(|first| first.token == token) else {
        return Ok(Asked::Done(false));
    };
    if first.data.is_asked(token) {
        return Ok(Asked::Done(true));
    }
    let dialect = session.settings().dialect;
    let is_bare = first.data.own_record().is_none() && dialect.has_bare_values();
    let asked = match is_bare || names::is_latch(&first.child.name) {
        true => ask_in_directory(session, dir, &first).await,
        false => ask_in_node(session, first, token).await,
    };
    match asked {
        // The holder has let go meanwhile.
        Err(err) if err.is(&ClientError::NoNode) => Ok(Asked::Done(false)),
        asked => asked,
    }
}

async fn ask_in_node(session: &Session, first: First, token: u64) -> Result<Asked, RequestError> {
    let First {
        path, stat, data, ..
    } = first;
    let request = match data.own_record() {
        Some(record) => {
            let mut record = record.clone();
            record.keep_token(token);
            record.asked = Some(token);
            record.to_bytes()
        }
        // Curator's `Revoker` does the same. A lock of Curator that can be revoked has no data.
        None if data.is(b"") => REVOKE.to_vec(),
        None if !data.is_readable() => return Err(RequestError::Client(ClientError::NoAuth)),
        None => {
            return Ok(Asked::Unsupported(
                "the holder is a program of another library, which cannot be asked; see who it is with `inspect`",
            ));
        }
    };
    let written = requests::set_data(session, &path, &request, stat.version).await?;
    Ok(written.map_or(Asked::Overtaken, |_| Asked::Done(true)))
}

async fn ask_in_directory(
    session: &Session,
    dir: &str,
    first: &First,
) -> Result<Asked, RequestError> {
    let First { path, token, .. } = first;
    let directory = session.reply_to(session.client.get_data(dir)).await;
    let (data, stat) = directory?;
    match DirectoryRecord::read(&data) {
        Some(record) if record.asked == *token => return Ok(Asked::Done(true)),
        None if !data.is_empty() => {
            return Ok(Asked::Unsupported(
                "the directory of this name has data of another program, so a request cannot be written there",
            ));
        }
        _ => {}
    }
    let record = DirectoryRecord {
        asked: *token,
        last: last_token(&data, &stat),
        version: stat.version,
    };
    let record = record.to_json();
    let data = (record.as_bytes(), stat.version);
    Ok(
        match requests::set_directory_data(session, dir, data, path).await? {
            true => Asked::Done(true),
            false => Asked::Overtaken,
        },
    )
}

/// Where the requests for one hold of ours are.
struct Listening {
    owner: OwnerId,
    session: Arc<Session>,
    dir: Arc<str>,
    path: Arc<str>,
}

/// What a look at the requests says.
enum Heard {
    Asked,
    /// Something has changed since.
    Changed,
    /// The hold is over.
    Gone,
}

/// Watches the requests for this hold in the background, until there is one or the hold is over.
pub(super) fn listen(store: &Arc<Store>, hold: &Hold) {
    let Some(held) = store.holds.get(hold.owner) else {
        return;
    };
    let Some(node) = held.node else { return };
    let listening = Listening {
        owner: hold.owner,
        session: held.session,
        dir: held.dir,
        path: node.path,
    };
    let listener = store.clone();
    store.spawn_until_closed(async move { listening.run(&listener).await });
}

impl Listening {
    async fn run(self, store: &Store) {
        let mut retries = RetryBudget::without_limit();
        while store.holds.contains(self.owner) && !self.session.is_over() {
            match self.hear().await {
                Ok(Heard::Asked) => return store.losses.asked_to_release(self.owner),
                Ok(Heard::Gone) => return,
                Ok(Heard::Changed) => retries = RetryBudget::without_limit(),
                Err(err) => {
                    tracing::debug!(
                        err = format_args!("{:#}", self.session.explain(err)),
                        "requests to let go cannot be read"
                    );
                    retries.pause(&store.clock).await;
                }
            }
        }
    }

    /// Reads the requests, and waits for a change if there is none.
    async fn hear(&self) -> Result<Heard, RequestError> {
        let session = &self.session;
        let Some((stat, data, watcher)) = requests::watch_data(session, &self.path).await? else {
            return Ok(Heard::Gone);
        };
        let token = mode::token(&stat, data.record());
        if data.is_asked(token) {
            return Ok(Heard::Asked);
        }
        if !session.settings().dialect.has_bare_values() {
            watcher.changed().await;
            return Ok(Heard::Changed);
        }
        let directory = session.client.get_and_watch_data(&self.dir);
        let (data, _, in_directory) = session.reply_to(directory).await?;
        if DirectoryRecord::read(&data).is_some_and(|record| record.asked == token) {
            return Ok(Heard::Asked);
        }
        tokio::select! {
            _ = watcher.changed() => {}
            _ = in_directory.changed() => {}
        }
        Ok(Heard::Changed)
    }
}
