//! An observer, as the store knows it.

use tokio::sync::mpsc;

use crate::error::Error;
use crate::leader::Sighting;
use crate::name::LockName;

/// An observer of one name.
#[derive(Debug)]
pub(super) struct Watcher {
    name: LockName,
    /// What the observer was told last: token and number of the value, or the last token if nobody leads.
    told: Option<Told>,
    sender: mpsc::Sender<Result<Sighting, Error>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Leader(u64, Option<u64>),
    Nobody(u64),
}

impl Watcher {
    pub(super) fn new(name: LockName, sender: mpsc::Sender<Result<Sighting, Error>>) -> Self {
        let told = None;
        Self { name, told, sender }
    }

    pub(super) fn name(&self) -> &LockName {
        &self.name
    }

    /// Tells the observer what is there now, unless it was told so before. `false`: the observer is gone, or has not read what
    /// it was told for too long.
    pub(super) fn tell(&mut self, sighting: Sighting) -> bool {
        let told = Told::of(&sighting);
        if self.told.as_ref() == Some(&told) {
            return !self.sender.is_closed();
        }
        self.told = Some(told);
        self.sender.try_send(Ok(sighting)).is_ok()
    }
}

impl Told {
    fn of(sighting: &Sighting) -> Self {
        let token = sighting.last_token;
        match &sighting.leader {
            Some(leader) => {
                let value = leader.holder.value.as_ref();
                Self::Leader(token, value.map(|value| value.number))
            }
            None => Self::Nobody(token),
        }
    }
}
