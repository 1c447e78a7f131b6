//! Who holds and who waits, and what is wrong with the store: for operators. Nothing here decides about a lock.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{SessionState, Stat};

use tenure_core::error::Error;
use tenure_core::fence::OwnerId;
use tenure_core::holder::{HoldInfo, LockStatus};
use tenure_core::name::{Escaped, LockName};
use tenure_core::options::Mode;
use tenure_core::store::{BoxFuture, Finding, Listed, Operate};
use tenure_core::url::Host;

use crate::tls;

use super::errors::{ClientError, RequestError};
use super::mode;
use super::names::{self, Child, Dialect, Names};
use super::node_data::NodeData;
use super::queue::Queue;
use super::requests;
use super::server_info::{self, ServerReply};
use super::session::Session;
use super::settings::{Access, Settings};
use super::store::Store;

impl Operate for Store {
    fn break_lock(self: Arc<Self>, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(async move { break_lock(&self, &name, token).await })
    }

    fn check(self: Arc<Self>) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(async move { check(&self).await })
    }
}

/// Ends the walk through names that are paths.
const MAX_DEPTH: usize = 32;

/// One contender, and what it has written about itself.
struct Entry {
    child: Child,
    stat: Stat,
    data: NodeData,
}

pub(super) async fn inspect(store: &Store, name: LockName) -> Result<LockStatus, Error> {
    let dir = store.directory(&name)?;
    let session = store.sessions.any().await?;
    let status = async {
        requests::sync(&session, &dir).await?;
        read_status(&session, name, &dir).await
    };
    status.await.map_err(|err| session.explain(err))
}

async fn read_status(
    session: &Session,
    name: LockName,
    dir: &str,
) -> Result<LockStatus, RequestError> {
    let mut status = LockStatus::free(name);
    let dialect = session.settings().dialect;
    let queue;
    if dialect == Dialect::Semaphore {
        let permits = read_permits(session, dir).await?;
        let limit = Mode::Permits {
            limit: count_permits(&permits),
        };
        let holds = permits.iter().map(|entry| hold_info(entry, limit, dialect));
        status.holds.extend(holds);
        (_, queue) = read_entries(session, &names::semaphore_locks(dir)).await?;
    } else {
        let (modes, mut entries) = read_entries(session, dir).await?;
        queue = entries.split_off(modes.count_holders());
        let holds = entries.iter().zip(modes.contenders);
        let holds = holds.map(|(entry, contender)| hold_info(entry, contender.mode, dialect));
        status.holds.extend(holds);
    }
    let waiters = queue.iter();
    let waiters = waiters.map(|entry| entry.data.holder(&entry.stat, dialect));
    status.queue = Some(waiters.collect());
    Ok(status)
}

fn hold_info(entry: &Entry, mode: Mode, dialect: Dialect) -> HoldInfo {
    let Entry { stat, data, .. } = entry;
    let token = mode::token(stat, data.record());
    // The whole lease: the servers do not tell when they last heard of a session.
    let lease = data.own_record();
    let lease = lease.map(|record| Duration::from_millis(record.ttl));
    HoldInfo::new(data.holder(stat, dialect), mode, Some(token), lease)
}

/// The nodes that have a permit of a semaphore, and not the one that waits among them.
async fn read_permits(session: &Session, dir: &str) -> Result<Vec<Entry>, RequestError> {
    let (_, mut entries) = read_entries(session, &names::semaphore_leases(dir)).await?;
    let limit = usize::try_from(count_permits(&entries).get()).unwrap_or(usize::MAX);
    entries.truncate(limit);
    Ok(entries)
}

/// How many permits there are, as far as nodes of ours say it: the nodes of other programs do not.
fn count_permits(entries: &[Entry]) -> NonZeroU32 {
    let limits = entries
        .iter()
        .filter_map(|entry| entry.data.record()?.limit);
    let count = u32::try_from(entries.len()).ok().and_then(NonZeroU32::new);
    limits.max().or(count).unwrap_or(NonZeroU32::MIN)
}

/// All holders and waiters, in order.
async fn read_entries(session: &Session, dir: &str) -> Result<(Queue, Vec<Entry>), RequestError> {
    let Some(children) = requests::list_children(session, dir).await? else {
        return Ok((Queue::new(Vec::new(), 0), Vec::new()));
    };
    let order = requests::in_order(session, dir, &children).await?;
    let paths: Vec<_> = order
        .iter()
        .map(|child| format!("{dir}/{}", child.name))
        .collect();
    let nodes = requests::read_nodes(session, &paths).await?;
    let entry =
        |(child, node): (Child, Option<_>)| node.map(|(stat, data)| Entry { child, stat, data });
    let entries: Vec<_> = order.into_iter().zip(nodes).filter_map(entry).collect();
    let children = entries.iter().map(|entry| entry.child.clone()).collect();
    let mut queue = Queue::new(children, 0);
    for (at, entry) in entries.iter().enumerate() {
        queue.learn(at, entry.data.record());
    }
    Ok((queue, entries))
}

/// Reads every name.
pub(super) async fn list(store: &Store, prefix: &str) -> Result<Listed, Error> {
    let session = store.sessions.any().await?;
    let listing = async {
        let root = match store.settings.root.as_str() {
            "" => "/",
            root => root,
        };
        requests::sync(&session, root).await?;
        let mut names = match store.settings.names {
            Names::Encoded => encoded_names(&session, root).await?,
            Names::Raw => raw_names(&session).await?,
        };
        // A name that cannot be a path of ours is that of another program.
        names.retain(|name| name.as_str().starts_with(prefix) && store.directory(name).is_ok());
        Ok(Listed::Names(names))
    };
    listing.await.map_err(|err| session.explain(err))
}

/// The children of a node. A node that this user may not read counts as one without children.
async fn children(session: &Session, path: &str) -> Result<Vec<String>, RequestError> {
    match requests::list_children(session, path).await {
        Err(err) if err.is(&ClientError::NoAuth) => Ok(Vec::new()),
        children => Ok(children?.unwrap_or_default()),
    }
}

async fn encoded_names(session: &Session, root: &str) -> Result<Vec<LockName>, RequestError> {
    let children = children(session, root).await?;
    let is_at_root = session.settings().root.is_empty();
    let name = |child: &String| names::decode(child, is_at_root);
    Ok(children.iter().filter_map(name).collect())
}

/// Every node with a contender under it.
async fn raw_names(session: &Session) -> Result<Vec<LockName>, RequestError> {
    let root = &session.settings().root;
    let mut found = Vec::new();
    let mut left = vec![(String::new(), 0)];
    while let Some((path, depth)) = left.pop() {
        let whole = match root.len() + path.len() {
            0 => "/".to_owned(),
            _ => format!("{root}{path}"),
        };
        for child in children(session, &whole).await? {
            let is_reserved = root.is_empty() && depth == 0 && child == names::RESERVED;
            let dialect = session.settings().dialect;
            if Child::parse(&child, dialect).is_some() {
                let name = match dialect {
                    Dialect::Semaphore => path.strip_suffix(names::SEMAPHORE_LEASES),
                    _ => Some(path.as_str()),
                };
                let name = name.and_then(|name| LockName::new(name.trim_start_matches('/')).ok());
                found.extend(name);
            } else if depth < MAX_DEPTH && !is_reserved {
                left.push((format!("{path}/{child}"), depth + 1));
            }
        }
    }
    Ok(found)
}

pub(super) async fn break_lock(store: &Store, name: &LockName, token: u64) -> Result<bool, Error> {
    let dir = store.directory(name)?;
    let session = store.sessions.any().await?;
    let broken = async {
        requests::sync(&session, &dir).await?;
        let (dir, holders) = match session.settings().dialect {
            Dialect::Semaphore => {
                let permits = read_permits(&session, &dir).await?;
                (names::semaphore_leases(&dir), permits)
            }
            _ => {
                let (modes, mut entries) = read_entries(&session, &dir).await?;
                entries.truncate(modes.count_holders());
                (dir, entries)
            }
        };
        let has_token = |entry: &&Entry| mode::token(&entry.stat, entry.data.record()) == token;
        match holders.iter().find(has_token) {
            Some(entry) => {
                let path = format!("{dir}/{}", entry.child.name);
                requests::delete_node(&session, &path).await
            }
            None => Ok(false),
        }
    };
    broken.await.map_err(|err| session.explain(err))
}

/// What weakens or voids the promises of the store, and how to correct that.
pub(super) async fn check(store: &Store) -> Result<Vec<Finding>, Error> {
    let session = store.sessions.any().await?;
    let settings = &store.settings;
    let is_tls = settings.tls.is_some();
    let plain = |host| tls::plaintext(host, is_tls, "tls=on&ca=FILE");
    let mut findings: Vec<_> = settings.hosts.iter().filter_map(plain).collect();
    for host in &settings.hosts {
        // A server that wants TLS answers nothing else.
        if !is_tls {
            findings.push(check_server(host, settings).await);
        }
    }
    if session.client.state() == SessionState::ConnectedReadOnly {
        findings.push(Finding::bad(
            "the server is cut off from the others and read-only: no lock can be acquired",
        ));
    }
    findings.push(check_voters(requests::count_voters(&session).await));
    let created = check_create(&session, &settings.root).await;
    findings.extend(created.map_err(|err| session.explain(err))?);
    let (asked, timeout) = (settings.ttl, session.timeout);
    if timeout < asked || timeout > asked * 2 {
        findings.push(Finding::warning(format!(
                "for a ttl of {asked:?} the servers keep a silent session for {timeout:?} (minSessionTimeout, maxSessionTimeout); a dead holder's locks are free after that"
            ),
        ));
    }
    if settings.acl == Access::Open {
        findings.push(Finding::warning(
            "every client that reaches the servers can delete our locks; write zookeeper://USER:PASSWORD@HOST for nodes that only this user can change",
        ));
    }
    Ok(findings)
}

/// What one server says about itself.
async fn check_server(host: &Host, settings: &Settings) -> Finding {
    let reply = server_info::ask(host.clone(), "srvr", settings.timeout).await;
    let text = match reply {
        ServerReply::Text(text) if !text.contains("is not in the whitelist") => Some(text),
        _ => None,
    };
    let Some(text) = text else {
        return Finding::warning(format!(
            "{host} does not answer `srvr`: the server is away, or 4lw.commands.whitelist forbids it"
        ));
    };
    if text.contains("not currently serving") {
        return Finding::warning(format!(
            "{host} has no majority of its ensemble and serves no client; start the other servers"
        ));
    }
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or(": unknown").trim_start_matches(':').trim();
        Escaped(value.split([',', '-']).next().unwrap_or(value)).to_string()
    };
    let (version, mode) = (field("Zookeeper version"), field("Mode"));
    Finding::good(format!("{host} runs ZooKeeper {version}, {mode}"))
}

/// Tries to make a node where the first lock would make one.
async fn check_create(session: &Session, root: &str) -> Result<Option<Finding>, RequestError> {
    let mut parent = root;
    while !parent.is_empty() && requests::stat(session, parent).await?.is_none() {
        parent = parent.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    let path = format!("{parent}/tenure-check-{}", OwnerId::random().to_hex());
    let text = match requests::try_create(session, &path).await {
        Ok(()) => return Ok(None),
        Err(err) if err.is_ambiguous() => return Err(err),
        Err(err) if err.is(&ClientError::NoAuth) => format!(
            "no lock can be taken: this user may not create nodes under {}/; its access list has to allow that (`create`)",
            Escaped(parent)
        ),
        Err(err) => format!("no lock can be taken: {}", session.explain(err)),
    };
    Ok(Some(Finding::bad(text)))
}

/// What the number of voting servers means.
fn check_voters(voters: Option<usize>) -> Finding {
    match voters {
        Some(0 | 1) => Finding::warning(
            "one server and no ensemble: without it no lock can be acquired; three servers survive the loss of one",
        ),
        Some(2) => Finding::warning(
            "two voting servers: without either of them no lock can be acquired; three servers survive the loss of one",
        ),
        Some(voters) => Finding::good(format!(
            "{voters} voting servers; {} may be away",
            (voters - 1) / 2
        )),
        None => Finding::warning("how many servers vote cannot be read (/zookeeper/config)"),
    }
}
