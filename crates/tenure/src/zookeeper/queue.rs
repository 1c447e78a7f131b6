//! The contenders for a name in their order, and the position of one of them.

use zookeeper_client::OneshotWatcher;

use tenure_core::logic::queue::{
    Contender, Turn, Upgrading, count_holders, decide, decide_while_upgrading,
};
use tenure_core::options::Mode;
use tenure_core::queue::Position;

use super::errors::RequestError;
use super::mode::{self, HoldMode, NodeRecord};
use super::names::Child;
use super::requests::{self, Blocker};
use super::session::Session;

/// What a node of ours waits for, as it was read.
pub(super) enum Ahead {
    Nodes(Vec<Blocker>),
    /// A change of the directory, on which there is a watch already.
    Directory(Option<OneshotWatcher>),
}

/// A list of contenders, and as much of their data as one of them has to know.
pub(super) struct Queue {
    pub(super) children: Vec<Child>,
    /// As far as their data were read: the modes of their holds. The others have the modes of their names.
    pub(super) contenders: Vec<Contender>,
    versions: Vec<Option<i32>>,
    pub(super) upgrading: Option<Upgrading>,
    /// No token that was granted before the queue was read is greater.
    last_token: u64,
}

impl Queue {
    pub(super) fn new(children: Vec<Child>, last_token: u64) -> Self {
        Self {
            contenders: children.iter().map(Child::contender).collect(),
            versions: vec![None; children.len()],
            children,
            upgrading: None,
            last_token,
        }
    }

    /// Reads the contenders of a directory without their data. `None`: the node `me` is not among them.
    pub(super) async fn list(
        session: &Session,
        dir: &str,
        me: &str,
    ) -> Result<Option<(Self, usize)>, RequestError> {
        let Some((children, stat)) = requests::list_directory(session, dir).await? else {
            return Ok(None);
        };
        let children = requests::in_order(session, dir, &children).await?;
        let me = children.iter().position(|child| child.name == me);
        Ok(me.map(|me| (Self::new(children, stat.mzxid.unsigned_abs()), me)))
    }

    /// Reads the contenders of a directory, and the data of those that may have changed their mode, as far as the
    /// contender with the node `me` has to know them. `None`: there is no such node.
    pub(super) async fn read(
        session: &Session,
        dir: &str,
        me: &str,
    ) -> Result<Option<(Self, usize)>, RequestError> {
        loop {
            let Some((mut queue, me)) = Self::list(session, dir, me).await? else {
                return Ok(None);
            };
            // An exclusive contender holds when no other contender is in front, whatever its mode is.
            if queue.children[me].mode == Mode::Exclusive
                || queue.read_modes(session, dir, me).await?
                    && queue.read_watched(session, dir, me).await?
            {
                return Ok(Some((queue, me)));
            }
        }
    }

    /// The same for the contender `me` that is to become exclusive, which also has to know who holds behind it.
    pub(super) async fn read_all(
        session: &Session,
        dir: &str,
        me: &str,
    ) -> Result<Option<(Self, usize)>, RequestError> {
        loop {
            let Some((mut queue, me)) = Self::read(session, dir, me).await? else {
                return Ok(None);
            };
            let all = queue.children.len();
            if queue.read_modes(session, dir, all).await? {
                return Ok(Some((queue, me)));
            }
        }
    }

    /// Reads the data of contenders before `end`, up to the first one behind which none can hold. `false`: one of the
    /// nodes is gone, so that the list is out of date.
    async fn read_modes(
        &mut self,
        session: &Session,
        dir: &str,
        end: usize,
    ) -> Result<bool, RequestError> {
        let mut has_upgradable = false;
        for at in 0..end {
            if !mode::may_change(self.children[at].mode) {
                continue;
            }
            if !self.read_mode(session, dir, at).await? {
                return Ok(false);
            }
            match self.contenders[at].mode {
                Mode::Exclusive => break,
                Mode::Upgradable if has_upgradable => break,
                Mode::Upgradable => has_upgradable = true,
                _ => {}
            }
        }
        Ok(true)
    }

    /// Reads the data of the contender that the one at `me` has to watch, if they are not read yet: before the watch is
    /// set, that contender may hold and become a shared one. `false`: as for `read_modes`.
    async fn read_watched(
        &mut self,
        session: &Session,
        dir: &str,
        me: usize,
    ) -> Result<bool, RequestError> {
        while let Turn::WatchOne(at) = self.turn(me)
            && mode::may_change(self.children[at].mode)
            && self.versions[at].is_none()
        {
            if !self.read_mode(session, dir, at).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the data of one contender, once. `false`: as for `read_modes`.
    async fn read_mode(
        &mut self,
        session: &Session,
        dir: &str,
        at: usize,
    ) -> Result<bool, RequestError> {
        if self.versions[at].is_some() {
            return Ok(true);
        }
        let path = format!("{dir}/{}", self.children[at].name);
        let Some((stat, record)) = requests::read_record(session, &path).await? else {
            return Ok(false);
        };
        self.versions[at] = Some(stat.version);
        // The data may have changed after the list was read.
        self.last_token = self.last_token.max(stat.mzxid.unsigned_abs());
        self.learn(at, record.as_ref());
        Ok(true)
    }

    /// Takes the data of one contender into account.
    pub(super) fn learn(&mut self, at: usize, record: Option<&NodeRecord>) {
        let child = &self.children[at];
        self.contenders[at].mode = mode::current_mode(child.mode, record);
        let hold = record.and_then(|record| record.hold);
        let hold = hold.filter(|hold| hold.mode == Some(HoldMode::Upgrading));
        if let Some(hold) = hold
            && child.mode == Mode::Upgradable
        {
            let is_holder = |other: &usize| {
                let behind = self.numbers_behind(at, *other);
                hold.last.is_some_and(|last| behind <= i64::from(last))
            };
            let last_holder = (0..self.children.len()).rev().find(is_holder);
            self.upgrading = Some(Upgrading { at, last_holder });
        }
    }

    /// What the contender at `me` has to do.
    pub(super) fn turn(&self, me: usize) -> Turn {
        match self.upgrading {
            Some(upgrading) => decide_while_upgrading(&self.contenders, upgrading, me),
            None => decide(&self.contenders, me),
        }
    }

    pub(super) fn position(&self, dir: &str, me: usize) -> Position<Ahead> {
        let ahead = match self.turn(me) {
            Turn::Held => {
                return Position::Held {
                    last_token: self.last_token,
                };
            }
            Turn::WatchOne(at) => at..at + 1,
            Turn::WatchAll(range) => range,
        };
        let nodes = ahead.map(|at| self.blocker(dir, at));
        Position::Behind(Ahead::Nodes(nodes.collect()))
    }

    pub(super) fn blocker(&self, dir: &str, at: usize) -> Blocker {
        Blocker {
            path: format!("{dir}/{}", self.children[at].name),
            version: self.versions[at],
        }
    }

    /// The last contender that holds by the modes alone, when the one at `me` holds.
    pub(super) fn last_holder(&self, me: usize) -> usize {
        count_holders(&self.contenders).max(me + 1) - 1
    }

    /// How many numbers the contender at `other` is behind the one at `me`.
    pub(super) fn numbers_behind(&self, me: usize, other: usize) -> i64 {
        let number = self.children[other].number;
        number.wrapping_sub(self.children[me].number).into()
    }

    /// The last contender but the one at `me` that is at most `last` numbers behind it.
    pub(super) fn last_other(&self, me: usize, last: i64) -> Option<usize> {
        let is_other = |at: &usize| *at != me && self.numbers_behind(me, *at) <= last;
        (0..self.children.len()).rev().find(is_other)
    }

    /// How many contenders hold. Strictly first come, first served: the holders are in front of all waiters.
    pub(super) fn count_holders(&self) -> usize {
        let holds = |me: &usize| {
            let is_upgrading = self.upgrading.is_some_and(|upgrading| upgrading.at == *me);
            is_upgrading || self.turn(*me) == Turn::Held
        };
        (0..self.children.len()).take_while(holds).count()
    }
}
