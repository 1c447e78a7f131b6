//! Who leads: the first contender for a name, if its hold is exclusive.
//!
//! An exclusive hold is always that of the first contender, so one list and the data of one node say who leads. Whoever waits
//! behind that node changes nothing about that, so the node is all that an observer has to watch.

use zookeeper_client::{OneshotWatcher, Stat};

use tenure_core::holder::HoldInfo;
use tenure_core::leader::Sighting;
use tenure_core::options::Mode;

use super::directory_data;
use super::errors::{ClientError, RequestError};
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
    /// The number of its term.
    pub(super) token: u64,
}

impl First {
    fn sighting(&self, session: &Session) -> Sighting {
        let (token, record) = (self.token, self.data.record());
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
    /// The state of the directory, too.
    First(Child, Stat),
    /// There is no contender; the state of the directory.
    Empty(Stat),
    /// There is no directory.
    Absent,
}

/// The first contender in `dir`; `None`: there is no contender.
pub(super) async fn first(session: &Session, dir: &str) -> Result<Option<First>, RequestError> {
    loop {
        let Front::First(child, directory) = list(session, dir).await? else {
            return Ok(None);
        };
        // A node that is gone by now may have another one behind it.
        if let Some(first) = read_first(session, dir, child, &directory).await? {
            return Ok(Some(first));
        }
    }
}

/// Who leads.
pub(super) async fn read(session: &Session, dir: &str) -> Result<Sighting, RequestError> {
    loop {
        match list(session, dir).await? {
            Front::First(child, directory) => {
                if let Some(first) = read_first(session, dir, child, &directory).await? {
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
            Front::First(child, directory) => {
                let path = format!("{dir}/{}", child.name);
                if let Some((stat, data, watcher)) = requests::watch_data(session, &path).await?
                    && let Some(token) = term(session, dir, &directory, (&stat, &data)).await?
                {
                    let first = First {
                        child,
                        path,
                        stat,
                        data,
                        token,
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
    Ok(match order.into_iter().next() {
        Some(first) => Front::First(first, stat),
        None => Front::Empty(stat),
    })
}

/// `None`: the node is gone.
async fn read_first(
    session: &Session,
    dir: &str,
    child: Child,
    directory: &Stat,
) -> Result<Option<First>, RequestError> {
    let path = format!("{dir}/{}", child.name);
    let Some((stat, data)) = requests::read_node(session, &path).await? else {
        return Ok(None);
    };
    let token = term(session, dir, directory, (&stat, &data)).await?;
    Ok(token.map(|token| First {
        child,
        path,
        stat,
        data,
        token,
    }))
}

/// The number of the term of the first contender: the token of its hold, if that is one of ours. `None`: the directory is gone.
async fn term(
    session: &Session,
    dir: &str,
    directory: &Stat,
    (node, data): (&Stat, &NodeData),
) -> Result<Option<u64>, RequestError> {
    let token = mode::token(node, data.record());
    if data.own_record().is_some() || directory.mzxid.unsigned_abs() <= token {
        return Ok(Some(token));
    }
    // The directory has changed since. The change may be a request to let go that was written there.
    match directory_data::last_token_of(session, dir).await {
        Ok(last) => Ok(Some(term_after(last, token, data.is_readable()))),
        Err(err) if err.is(&ClientError::NoNode) => Ok(None),
        Err(err) => Err(err),
    }
}

/// The number of a term without a record of ours. Another program takes no new token after an upgrade before it, but observers
/// need a greater number. In the directory of a hold whose record cannot be read, its own token may be the last one.
fn term_after(last: u64, token: u64, is_readable: bool) -> u64 {
    token.max(last + u64::from(is_readable))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_of_another_program_is_later_than_an_upgrade_before_it() {
        assert_eq!(term_after(9, 8, true), 10);
        assert_eq!(term_after(9, 12, true), 12);
        assert_eq!(term_after(9, 8, false), 9);
        assert_eq!(term_after(9, 12, false), 12);
    }
}
