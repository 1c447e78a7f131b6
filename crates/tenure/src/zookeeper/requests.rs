//! One function for each request to the servers.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::{
    CreateMode, MultiWriteError, MultiWriteResult, MultiWriter, OneshotWatcher, Stat,
};

use tenure_core::error::{Error, ErrorKind};

use super::contact::LeasePeriod;
use super::errors::{ClientError, RequestError};
use super::mode::{self, NodeRecord};
use super::names::{self, Child};
use super::node_data::NodeData;
use super::session::Session;

/// How often a directory is made again that others remove meanwhile.
pub(super) const MAX_ATTEMPTS: u32 = 8;

/// A node that another one waits for.
pub(super) struct Blocker {
    pub(super) path: String,
    /// The version of the data that were read; `None`: the node waits for this one whatever the data say.
    pub(super) version: Option<i32>,
}

/// The node of a contender, as the server has made it.
#[derive(Clone)]
pub(super) struct Node {
    /// Within its directory.
    pub(super) name: String,
    pub(super) path: Arc<str>,
    pub(super) number: i32,
    /// czxid: the number of the transaction that made the node.
    pub(super) token: u64,
    pub(super) round_trip: Duration,
}

impl Node {
    fn new(dir: &str, name: String, number: i32, stat: &Stat, round_trip: Duration) -> Self {
        Self {
            path: format!("{dir}/{name}").into(),
            name,
            number,
            token: mode::token(stat, None),
            round_trip,
        }
    }

    /// The same node, under another token.
    pub(super) fn with_token(&self, token: u64) -> Self {
        Self {
            token,
            ..self.clone()
        }
    }
}

/// Makes the node of a contender, whose name is `stem` and the number that the server puts behind the stem.
/// `lease`: begun for this request.
pub(super) async fn create_node(
    session: &Session,
    dir: &str,
    stem: &str,
    data: &[u8],
    lease: LeasePeriod,
) -> Result<Node, RequestError> {
    let path = format!("{dir}/{stem}");
    let acls = session.settings().acl.acls();
    let options = CreateMode::EphemeralSequential.with_acls(acls);
    let request = session.client.create(&path, data, &options);
    let (stat, sequence) = session.reply_to(request).await?;
    session.confirm(lease);
    let number = i32::try_from(sequence.into_i64()).unwrap_or(i32::MAX);
    let round_trip = session.clock().now().since(lease.sent);
    let name = names::numbered(stem, number);
    Ok(Node::new(dir, name, number, &stat, round_trip))
}

/// Makes what is missing of the way to `dir`: containers, which the server removes when they are empty again.
pub(super) async fn create_directory(session: &Session, dir: &str) -> Result<(), Error> {
    let mut ends: Vec<_> = dir.match_indices('/').map(|(at, _)| at).skip(1).collect();
    ends.push(dir.len());
    // Goes back from the last node to one that exists, and then makes the nodes after that one.
    let mut at = ends.len() - 1;
    for _ in 0..MAX_ATTEMPTS as usize * ends.len() {
        match create_container(session, &dir[..ends[at]]).await {
            Ok(()) if at + 1 == ends.len() => return Ok(()),
            Ok(()) => at += 1,
            Err(err) if err.is(&ClientError::NoNode) && at > 0 => at -= 1,
            Err(err) => return Err(session.explain(err)),
        }
    }
    let what = "other programs delete the parent nodes of the lock as fast as they are made; retry";
    Err(Error::new(ErrorKind::Unreachable, what))
}

/// Makes one node for others to lie under, unless it is there. A server without containers makes a node that stays.
async fn create_container(session: &Session, path: &str) -> Result<(), RequestError> {
    let acls = session.settings().acl.acls();
    let create = async |mode: CreateMode| {
        let options = mode.with_acls(acls);
        let request = session.client.create(path, b"", &options);
        session.reply_to(request).await
    };
    let created = match create(CreateMode::Container).await {
        Err(err) if err.is(&ClientError::Unimplemented) => create(CreateMode::Persistent).await,
        created => created,
    };
    match created {
        Err(err) if err.is(&ClientError::NodeExists) => Ok(()),
        created => created.map(drop),
    }
}

/// The name of the node in `dir` that begins with `prefix`, if there is one.
pub(super) async fn find_name(
    session: &Session,
    dir: &str,
    prefix: &str,
) -> Result<Option<String>, RequestError> {
    // A new connection may be to a server that does not have the node yet.
    sync(session, dir).await?;
    let children = list_children(session, dir).await?.unwrap_or_default();
    Ok(children.into_iter().find(|child| child.starts_with(prefix)))
}

/// The node of this session in `dir` whose name begins with `prefix`, if there is one. A request that was sent for
/// that node before has been applied by then, or will never be: it was sent on the same connection, or the servers
/// refuse it because the session has moved to another connection.
pub(super) async fn find_node(
    session: &Session,
    dir: &str,
    prefix: &str,
) -> Result<Option<Node>, RequestError> {
    let Some(name) = find_name(session, dir, prefix).await? else {
        return Ok(None);
    };
    let sent = session.clock().now();
    let stat = stat(session, &format!("{dir}/{name}")).await?;
    let stat = stat.filter(|stat| stat.ephemeral_owner == session.id());
    let number = Child::parse(&name, session.settings().dialect).map(|child| child.number);
    let round_trip = session.clock().now().since(sent);
    let found = stat.zip(number);
    Ok(found.map(|(stat, number)| Node::new(dir, name, number, &stat, round_trip)))
}

/// Deletes a node; `false`: there was none.
pub(super) async fn delete_node(session: &Session, path: &str) -> Result<bool, RequestError> {
    let lease = session.begin_lease();
    match session.reply_to(session.client.delete(path, None)).await {
        Ok(()) => {
            session.confirm(lease);
            Ok(true)
        }
        Err(err) if err.is(&ClientError::NoNode) => Ok(false),
        Err(err) => Err(err),
    }
}

/// Makes a node and deletes it in the same transaction, to find out whether this user may make it.
pub(super) async fn try_create(session: &Session, path: &str) -> Result<(), RequestError> {
    let options = CreateMode::Persistent.with_acls(session.settings().acl.acls());
    let mut writer = session.client.new_multi_writer();
    let create = writer.add_create(path, b"", &options);
    let delete = create.and_then(|()| writer.add_delete(path, None));
    delete.map_err(RequestError::Client)?;
    let request = async {
        match writer.commit().await {
            Ok(_) => Ok(()),
            // The node may be made, and nothing was made.
            Err(MultiWriteError::OperationFailed { index: 1, .. }) => Ok(()),
            Err(err) => Err(ClientError::from(err)),
        }
    };
    session.reply_to(request).await
}

/// Checks that all of these nodes are there. A write that changes nothing, so that a majority has to agree to it.
pub(super) async fn check_nodes(
    session: &Session,
    paths: &[&str],
) -> Result<LeasePeriod, RequestError> {
    let lease = session.begin_lease();
    let mut writer = checks(session, paths)?;
    let request = async {
        let answer = writer.commit().await;
        answer.map(drop).map_err(|err| match err {
            MultiWriteError::RequestFailed { source }
            | MultiWriteError::OperationFailed { source, .. } => source,
        })
    };
    session.reply_to(request).await?;
    session.confirm(lease);
    Ok(lease)
}

/// Writes what a node says about its hold, and returns the state of the node. `None`: the data have another version.
pub(super) async fn set_record(
    session: &Session,
    path: &str,
    record: &NodeRecord,
    version: i32,
) -> Result<Option<Stat>, RequestError> {
    set_data(session, path, &record.to_bytes(), version).await
}

/// Writes the data of a node, and returns the state of the node. `None`: the data have another version.
pub(super) async fn set_data(
    session: &Session,
    path: &str,
    data: &[u8],
    version: i32,
) -> Result<Option<Stat>, RequestError> {
    let request = session.client.set_data(path, data, Some(version));
    match session.reply_to(request).await {
        Ok(stat) => Ok(Some(stat)),
        Err(err) if err.is(&ClientError::BadVersion) => Ok(None),
        Err(err) => Err(err),
    }
}

/// Writes the data of a directory, if the node of a contender is there in the same moment; else the error is `NoNode`. `false`:
/// the data have another version. `data`: with the version that they replace.
pub(super) async fn set_directory_data(
    session: &Session,
    dir: &str,
    (data, version): (&[u8], i32),
    contender: &str,
) -> Result<bool, RequestError> {
    let mut writer = checks(session, &[contender])?;
    let added = writer.add_set_data(dir, data, Some(version));
    added.map_err(RequestError::Client)?;
    let commit = writer.commit();
    match session.reply_to(async { Ok(commit.await) }).await? {
        Ok(_) => Ok(true),
        Err(MultiWriteError::OperationFailed {
            source: ClientError::BadVersion,
            ..
        }) => Ok(false),
        Err(err) => Err(RequestError::Client(err.into())),
    }
}

/// Writes what a node says about its hold, which gets the number of this transaction as its token (see `MZXID`). The same
/// transaction writes the directory, so that contenders with older nodes know that they need greater tokens. `None`: the
/// data of the node have another version. `version`: `None` for any.
pub(super) async fn grant_token(
    session: &Session,
    dir: &str,
    path: &str,
    record: &NodeRecord,
    version: Option<i32>,
) -> Result<Option<(u64, LeasePeriod)>, RequestError> {
    let data = record.to_bytes();
    // Ends, because each repetition means that another contender has its token.
    loop {
        // Other programs may have written something there, and it stays.
        let (kept, stat) = session.reply_to(session.client.get_data(dir)).await?;
        let lease = session.begin_lease();
        let mut writer = session.client.new_multi_writer();
        let added = writer
            .add_set_data(path, &data, version)
            .and_then(|()| writer.add_set_data(dir, &kept, Some(stat.version)));
        added.map_err(RequestError::Client)?;
        let commit = writer.commit();
        let written = match session.reply_to(async { Ok(commit.await) }).await? {
            Ok(written) => written,
            Err(MultiWriteError::OperationFailed {
                index,
                source: ClientError::BadVersion,
            }) => match index {
                0 => return Ok(None),
                _ => continue,
            },
            Err(err) => return Err(RequestError::Client(err.into())),
        };
        session.confirm(lease);
        if let Some(MultiWriteResult::SetData { stat }) = written.first() {
            return Ok(Some((stat.mzxid.unsigned_abs(), lease)));
        }
        let what = "a transaction without results".into();
        return Err(RequestError::Client(ClientError::UnexpectedError(what)));
    }
}

/// A transaction that is applied only if all of these nodes are there, in any version: what others may write into a node
/// of ours (`__REVOKE__`) ends no hold.
pub(super) fn checks<'a>(
    session: &'a Session,
    paths: &[&str],
) -> Result<MultiWriter<'a>, RequestError> {
    let mut writer = session.client.new_multi_writer();
    for path in paths {
        writer
            .add_check_version(path, -1)
            .map_err(RequestError::Client)?;
    }
    Ok(writer)
}

/// Makes our server catch up with its leader: without that, a server that lags behind returns old data.
pub(super) async fn sync(session: &Session, path: &str) -> Result<(), RequestError> {
    session.reply_to(session.client.sync(path)).await
}

/// The names of the children of a node; `None`: there is no such node.
pub(super) async fn list_children(
    session: &Session,
    path: &str,
) -> Result<Option<Vec<String>>, RequestError> {
    let children = session.reply_to(session.client.list_children(path)).await;
    some_if_there(children)
}

/// The names of the children of a node, and the state of the node; `None`: there is no such node.
pub(super) async fn list_directory(
    session: &Session,
    path: &str,
) -> Result<Option<(Vec<String>, Stat)>, RequestError> {
    let children = session.reply_to(session.client.get_children(path)).await;
    some_if_there(children)
}

/// The state of a node; `None`: there is no such node.
pub(super) async fn stat(session: &Session, path: &str) -> Result<Option<Stat>, RequestError> {
    session.reply_to(session.client.check_stat(path)).await
}

/// Which of these nodes are gone, all asked for at once. A request without an answer says nothing about its node.
pub(super) async fn which_are_gone(session: &Session, paths: &[&str]) -> Vec<bool> {
    let stats = paths
        .iter()
        .map(|path| session.reply_to(session.client.check_stat(path)));
    let stats = join_all(stats).await.into_iter();
    stats.map(|stat| matches!(stat, Ok(None))).collect()
}

/// Sets a watch on a directory, and returns its state; `None`: there is no such directory.
pub(super) async fn watch_directory(
    session: &Session,
    dir: &str,
) -> Result<Option<(Stat, OneshotWatcher)>, RequestError> {
    let reply = session.reply_to(session.client.get_and_watch_data(dir));
    Ok(some_if_there(reply.await)?.map(|(_, stat, watcher)| (stat, watcher)))
}

/// Sets a watch on the list of a node's children, and returns their names; `None`: there is no such node.
pub(super) async fn watch_children(
    session: &Session,
    path: &str,
) -> Result<Option<(Vec<String>, OneshotWatcher)>, RequestError> {
    let children = session.client.list_and_watch_children(path);
    some_if_there(session.reply_to(children).await)
}

/// The same with the state of the node.
pub(super) async fn watch_contenders(
    session: &Session,
    dir: &str,
) -> Result<Option<(Vec<String>, Stat, OneshotWatcher)>, RequestError> {
    let children = session.client.get_and_watch_children(dir);
    some_if_there(session.reply_to(children).await)
}

/// Sets a watch on a node, whether or not it is there, and returns its state.
pub(super) async fn watch_existence(
    session: &Session,
    path: &str,
) -> Result<(Option<Stat>, OneshotWatcher), RequestError> {
    session
        .reply_to(session.client.check_and_watch_stat(path))
        .await
}

/// Reads the data of a node, and sets a watch on them; `None`: there is no such node.
pub(super) async fn watch_data(
    session: &Session,
    path: &str,
) -> Result<Option<(Stat, NodeData, OneshotWatcher)>, RequestError> {
    match session
        .reply_to(session.client.get_and_watch_data(path))
        .await
    {
        Ok((data, stat, watcher)) => Ok(Some((stat, NodeData::read(data), watcher))),
        Err(err) if err.is(&ClientError::NoNode) => Ok(None),
        // The node of another user, whose data we may not read; whether the node is there we may know.
        Err(err) if err.is(&ClientError::NoAuth) => {
            let (stat, watcher) = watch_existence(session, path).await?;
            Ok(stat.map(|stat| (stat, NodeData::unreadable(), watcher)))
        }
        Err(err) => Err(err),
    }
}

/// Sets a watch on each of these nodes, all at once; `None`: one of the nodes is gone, or its data have changed.
pub(super) async fn watch_nodes(
    session: &Session,
    nodes: &[Blocker],
) -> Result<Option<Vec<OneshotWatcher>>, RequestError> {
    let client = &session.client;
    let requests: Vec<_> = nodes
        .iter()
        .map(|node| client.get_and_watch_data(&node.path))
        .collect();
    let mut watchers = Vec::with_capacity(requests.len());
    for (node, request) in nodes.iter().zip(requests) {
        let (stat, watcher) = match session.reply_to(request).await {
            Ok((_, stat, watcher)) => (stat, watcher),
            Err(err) if err.is(&ClientError::NoNode) => return Ok(None),
            // The node of another user, whose data we may not read; whether the node is there we may know.
            Err(err) if err.is(&ClientError::NoAuth) => {
                let request = client.check_and_watch_stat(&node.path);
                match session.reply_to(request).await? {
                    (Some(stat), watcher) => (stat, watcher),
                    (None, _) => return Ok(None),
                }
            }
            Err(err) => return Err(err),
        };
        if node.version.is_some_and(|version| version != stat.version) {
            return Ok(None);
        }
        watchers.push(watcher);
    }
    Ok(Some(watchers))
}

/// The contenders among these children, first come first. Two with the same number (a counter that has overflowed, a
/// foreign client that names its nodes itself) are told apart by when they were made.
pub(super) async fn in_order(
    session: &Session,
    dir: &str,
    children: &[String],
) -> Result<Vec<Child>, RequestError> {
    let queue = names::contenders(children, session.settings().dialect);
    if !queue.windows(2).any(|two| two[0].number == two[1].number) {
        return Ok(queue);
    }
    let base = queue.first().map_or(0, |first| first.number);
    let stats: Vec<_> = queue
        .iter()
        .map(|child| session.client.check_stat(&format!("{dir}/{}", child.name)))
        .collect();
    let mut dated = Vec::with_capacity(queue.len());
    for (child, stat) in queue.into_iter().zip(stats) {
        // A node that is gone stands in front of no other.
        if let Some(stat) = session.reply_to(stat).await? {
            dated.push((child.number.wrapping_sub(base), stat.czxid, child));
        }
    }
    dated.sort_by_key(|(distance, made, _)| (*distance, *made));
    Ok(dated.into_iter().map(|(_, _, child)| child).collect())
}

/// What a node says about its hold, and its state; `None`: there is no such node.
pub(super) async fn read_record(
    session: &Session,
    path: &str,
) -> Result<Option<(Stat, Option<NodeRecord>)>, RequestError> {
    let node = read_node(session, path).await?;
    Ok(node.map(|(stat, data)| (stat, data.into_record())))
}

/// The state of a node and its data; `None`: there is no such node.
pub(super) async fn read_node(
    session: &Session,
    path: &str,
) -> Result<Option<(Stat, NodeData)>, RequestError> {
    let mut nodes = read_nodes(session, &[path.to_owned()]).await?;
    Ok(nodes.pop().flatten())
}

/// Several nodes, all asked for at once: the state of each, and its data. `None`: there is no such node.
pub(super) async fn read_nodes(
    session: &Session,
    paths: &[String],
) -> Result<Vec<Option<(Stat, NodeData)>>, RequestError> {
    let requests: Vec<_> = paths
        .iter()
        .map(|path| session.client.get_data(path))
        .collect();
    let mut nodes = Vec::with_capacity(requests.len());
    for (path, request) in paths.iter().zip(requests) {
        nodes.push(match session.reply_to(request).await {
            Ok((data, stat)) => Some((stat, NodeData::read(data))),
            Err(err) if err.is(&ClientError::NoNode) => None,
            Err(err) if err.is(&ClientError::NoAuth) => {
                let stat = stat(session, path).await?;
                stat.map(|stat| (stat, NodeData::unreadable()))
            }
            Err(err) => return Err(err),
        });
    }
    Ok(nodes)
}

/// How many servers vote; 0: there is no ensemble. `None`: the servers do not say.
pub(super) async fn count_voters(session: &Session) -> Option<usize> {
    match session.reply_to(session.client.get_config()).await {
        Ok((data, _)) => {
            let text = String::from_utf8_lossy(&data).into_owned();
            let servers = text.lines().filter(|line| line.starts_with("server."));
            Some(servers.filter(|line| !line.contains(":observer")).count())
        }
        Err(err) if err.is(&ClientError::NoNode) => Some(0),
        Err(_) => None,
    }
}

/// A node that does not exist is an answer and no error.
fn some_if_there<T>(reply: Result<T, RequestError>) -> Result<Option<T>, RequestError> {
    match reply {
        Ok(reply) => Ok(Some(reply)),
        Err(err) if err.is(&ClientError::NoNode) => Ok(None),
        Err(err) => Err(err),
    }
}
