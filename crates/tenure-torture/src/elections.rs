//! What happened in the elections of a run: which values candidates published, and what observers saw.

use std::collections::HashMap;

use crate::event::{Event, Sight};

/// A value that a candidate or a leader published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// When the request was about to be sent.
    pub at: u64,
    /// The acquisition, which may have been granted or not.
    pub acquisition: u64,
    /// The value. No other acquisition published it.
    pub value: String,
    /// When the store had confirmed the value; `None`: it is unknown whether the value was stored.
    pub stored: Option<u64>,
}

/// Something that an observer was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// When.
    pub at: u64,
    /// What.
    pub sight: Sight,
}

/// One observer, from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObserverHistory {
    /// The number of the observer.
    pub observer: u64,
    /// The worker that observed.
    pub worker: usize,
    /// The name of the election.
    pub name: String,
    /// When the observer began.
    pub from: u64,
    /// When it ended: by itself, because its process was killed, or with the run.
    pub to: u64,
    /// In the order in which the observer was told.
    pub items: Vec<Item>,
}

/// The elections of a whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElectionHistory {
    /// In the order of their requests.
    pub publications: Vec<Publication>,
    /// In the order in which they began.
    pub observers: Vec<ObserverHistory>,
}

impl ElectionHistory {
    /// The number of times that an observer was told who leads, or that nobody leads.
    pub fn sights(&self) -> usize {
        let items = self.observers.iter().flat_map(|it| &it.items);
        let told = |item: &&Item| matches!(item.sight, Sight::Leader { .. } | Sight::Nobody);
        items.filter(told).count()
    }
}

/// Elections under construction.
#[derive(Default)]
pub(crate) struct ElectionBuilder {
    elections: ElectionHistory,
    /// The index of each observer that has not ended.
    open: HashMap<u64, usize>,
    /// The index of the last publication of each acquisition.
    last: HashMap<u64, usize>,
}

impl ElectionBuilder {
    /// Adds an event, if it is one of an election. Events are added in the order of time.
    pub(crate) fn add(&mut self, event: &Event) {
        match event {
            Event::Publishing {
                at,
                acquisition,
                value,
            } => {
                let publications = &mut self.elections.publications;
                self.last.insert(*acquisition, publications.len());
                publications.push(Publication {
                    at: *at,
                    acquisition: *acquisition,
                    value: value.clone(),
                    stored: None,
                });
            }
            // The first value is stored with the grant.
            Event::Published { at, acquisition }
            | Event::Claimed {
                at, acquisition, ..
            } => {
                if let Some(index) = self.last.get(acquisition) {
                    self.elections.publications[*index].stored = Some(*at);
                }
            }
            Event::Observing {
                at,
                observer,
                worker,
                name,
            } => {
                self.open.insert(*observer, self.elections.observers.len());
                self.elections.observers.push(ObserverHistory {
                    observer: *observer,
                    worker: *worker,
                    name: name.clone(),
                    from: *at,
                    to: u64::MAX,
                    items: Vec::new(),
                });
            }
            Event::Saw {
                at,
                observer,
                sight,
            } => self.saw(*at, *observer, sight),
            Event::Killed { at, worker } => self.end_observers_of(*worker, *at),
            _ => {}
        }
    }

    fn saw(&mut self, at: u64, observer: u64, sight: &Sight) {
        let Some(index) = self.open.get(&observer).copied() else {
            return;
        };
        let history = &mut self.elections.observers[index];
        let sight = sight.clone();
        if matches!(sight, Sight::GaveUp(_)) {
            history.to = at;
            self.open.remove(&observer);
        }
        history.items.push(Item { at, sight });
    }

    fn end_observers_of(&mut self, worker: usize, at: u64) {
        let observers = &mut self.elections.observers;
        self.open.retain(|_, index| {
            let observer = &mut observers[*index];
            if observer.worker == worker {
                observer.to = at;
            }
            observer.worker != worker
        });
    }

    /// The elections of a run that was over at this time.
    pub(crate) fn finish(mut self, over: u64) -> ElectionHistory {
        for observer in &mut self.elections.observers {
            observer.to = observer.to.min(over);
        }
        self.elections
    }
}
