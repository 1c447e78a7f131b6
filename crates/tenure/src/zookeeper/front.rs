//! Who leads: the first contender for a name, if its hold is exclusive.
//!
//! An exclusive hold is always that of the first contender, so one list and the data of one node say who leads. Whoever waits
//! behind that node changes nothing about that, so the node is all that an observer has to watch.

use zookeeper_client::{OneshotWatcher, Stat};

use tenure_core::holder::HoldInfo;
use tenure_core::leader::Sighting;
use tenure_core::options::Mode;

use super::errors::RequestError;
use super::mode;
use super::names::{self, Child};
use super::node_data::NodeData;
use super::requests;
use super::session::Session;

/// The first contender.
pub(super) struct First {
    pub(super) child: Child,
    pub(super) path: String,
    pub(super) stat: Stat,
    pub(super) data: NodeData,
}

impl First {
    pub(super) fn token(&self) -> u64 {
        mode::token(&self.stat, self.data.record())
    }

    fn sighting(&self, session: &Session) -> Sighting {
        let (token, record) = (self.token(), self.data.record());
        if mode::current_mode(self.child.mode, record) != Mode::Exclusive {
            return Sighting::of_nobody(token);
        }
        let holder = self.data.holder(&self.stat, session.settings().dialect);
        // Without the end of a lease: the server deletes the node, and tells its observers.
        Sighting::of_hold(HoldInfo::new(holder, Mode::Exclusive, Some(token), None))
    }
}

/// What the list of a directory says.
enum Front {
    First(Child),
    /// There is no contender; the state of the directory.
    Empty(Stat),
    /// There is no directory.
    Absent,
}

/// The first contender in `dir`; `None`: there is no contender.
pub(super) async fn first(session: &Session, dir: &str) -> Result<Option<First>, RequestError> {
    loop {
        let Front::First(child) = list(session, dir).await? else {
            return Ok(None);
        };
        // A node that is gone by now may have another one behind it.
        if let Some(first) = read_first(session, dir, child).await? {
            return Ok(Some(first));
        }
    }
}

/// Who leads.
pub(super) async fn read(session: &Session, dir: &str) -> Result<Sighting, RequestError> {
    loop {
        match list(session, dir).await? {
            Front::First(child) => {
                if let Some(first) = read_first(session, dir, child).await? {
                    return Ok(first.sighting(session));
                }
            }
            Front::Empty(stat) => return Ok(Sighting::of_nobody(last_token(&stat))),
            Front::Absent => {
                let last = deletion_of(session, dir).await?;
                if requests::stat(session, dir).await?.is_none() {
                    return Ok(Sighting::of_nobody(last));
                }
            }
        }
    }
}

/// Who leads, with a watch that reports when that may have changed. Makes no node.
pub(super) async fn watch(
    session: &Session,
    dir: &str,
) -> Result<(Sighting, OneshotWatcher), RequestError> {
    loop {
        match list(session, dir).await? {
            Front::First(child) => {
                let path = format!("{dir}/{}", child.name);
                if let Some((stat, data, watcher)) = requests::watch_data(session, &path).await? {
                    let first = First {
                        child,
                        path,
                        stat,
                        data,
                    };
                    return Ok((first.sighting(session), watcher));
                }
            }
            Front::Empty(_) => {
                if let Some((children, stat, watcher)) =
                    requests::watch_contenders(session, dir).await?
                    && names::contenders(&children, session.settings().dialect).is_empty()
                {
                    return Ok((Sighting::of_nobody(last_token(&stat)), watcher));
                }
            }
            Front::Absent => {
                let last = deletion_of(session, dir).await?;
                if let (None, watcher) = requests::watch_existence(session, dir).await? {
                    return Ok((Sighting::of_nobody(last), watcher));
                }
            }
        }
    }
}

async fn list(session: &Session, dir: &str) -> Result<Front, RequestError> {
    let Some((children, stat)) = requests::list_directory(session, dir).await? else {
        return Ok(Front::Absent);
    };
    let order = requests::in_order(session, dir, &children).await?;
    let first = order.into_iter().next();
    Ok(first.map_or(Front::Empty(stat), Front::First))
}

/// `None`: the node is gone.
async fn read_first(
    session: &Session,
    dir: &str,
    child: Child,
) -> Result<Option<First>, RequestError> {
    let path = format!("{dir}/{}", child.name);
    let node = requests::read_node(session, &path).await?;
    Ok(node.map(|(stat, data)| First {
        child,
        path,
        stat,
        data,
    }))
}

/// A number that is not less than any token so far, and less than that of the next node, for a directory without contenders:
/// the last change of its children, or the last grant of a token that is not the czxid of a node.
fn last_token(dir: &Stat) -> u64 {
    dir.pzxid.max(dir.mzxid).unsigned_abs()
}

/// The same for a directory that is not there: its deletion has changed the children of the node above. The directory has to
/// be looked for once more after this.
async fn deletion_of(session: &Session, dir: &str) -> Result<u64, RequestError> {
    let mut path = dir;
    while let Some((above, _)) = path.rsplit_once('/') {
        let node = if above.is_empty() { "/" } else { above };
        if let Some(stat) = requests::stat(session, node).await? {
            return Ok(stat.pzxid.unsigned_abs());
        }
        path = above;
    }
    Ok(0)
}
