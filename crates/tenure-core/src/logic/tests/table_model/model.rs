//! The naive reading of the rules of the table: a list of actors per name, each in some state.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::owner;
use crate::logic::table::{LockRequest, Verdict};
use crate::options::Mode;
use crate::time::Time;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ActorState {
    Waiting {
        silent_from: Time,
    },
    Holding {
        token: u64,
        since: Time,
        until: Time,
    },
    Blocking {
        until: Time,
    },
    Gone,
}

#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) ask: LockRequest,
    pub(super) state: ActorState,
    /// The actor holds, and waits to become exclusive.
    wants_all: bool,
}

impl Actor {
    fn waits_for_others(&self) -> bool {
        self.wants_all && matches!(self.state, ActorState::Holding { .. })
    }
}

#[derive(Default)]
pub(super) struct Model {
    pub(super) actors: BTreeMap<String, Vec<Actor>>,
    tokens: BTreeMap<String, u64>,
    pub(super) told: Vec<(u8, u64)>,
    pub(super) forgotten: Vec<u8>,
}

impl Model {
    /// Whether an actor may hold in this mode together with all actors that hold or block.
    fn fits(actors: &[Actor], mode: Mode) -> bool {
        let others = actors.iter().filter(|other| {
            matches!(
                other.state,
                ActorState::Holding { .. } | ActorState::Blocking { .. }
            )
        });
        let modes: Vec<_> = others.map(|other| other.ask.mode).collect();
        let exclusive = modes
            .iter()
            .filter(|mode| **mode == Mode::Exclusive)
            .count();
        let upgradable = modes.contains(&Mode::Upgradable);
        let permits = modes
            .iter()
            .filter(|mode| matches!(mode, Mode::Permits { .. }))
            .count();
        match mode {
            Mode::Exclusive => modes.is_empty(),
            Mode::Shared => exclusive == 0,
            Mode::Upgradable => exclusive == 0 && !upgradable,
            Mode::Permits { limit } => exclusive == 0 && permits < limit.get() as usize,
        }
    }

    fn hold(&mut self, of: &str, index: usize, now: Time) -> u64 {
        let token = self.tokens.entry(of.to_owned()).or_default();
        let actor = &mut self.actors.get_mut(of).unwrap()[index];
        *token = (*token + 1).max(actor.ask.propose.unwrap_or(0));
        let until = actor.ask.ttl.map_or(Time::MAX, |ttl| now.after(ttl));
        actor.state = ActorState::Holding {
            token: *token,
            since: now,
            until,
        };
        *token
    }

    fn end(actor: &mut Actor, unclean: bool, at: Time) {
        if let ActorState::Holding { since, .. } = actor.state {
            let delay = if unclean {
                at.after(actor.ask.lock_delay)
            } else {
                at
            };
            actor.state = ActorState::Blocking {
                until: since.after(actor.ask.min_hold).max(delay),
            };
        }
    }

    /// Ends what is over at `now`, then serves the queue.
    pub(super) fn settle(&mut self, of: &str, now: Time) {
        for actor in self.actors.entry(of.to_owned()).or_default() {
            if let ActorState::Holding { until, .. } = actor.state
                && until <= now
            {
                Self::end(actor, true, until);
            }
            match actor.state {
                ActorState::Blocking { until } if until <= now => actor.state = ActorState::Gone,
                ActorState::Waiting { silent_from } if silent_from <= now => {
                    actor.state = ActorState::Gone;
                    self.forgotten.push(actor.ask.owner.as_bytes()[0]);
                }
                _ => {}
            }
        }
        self.actors
            .get_mut(of)
            .unwrap()
            .retain(|actor| actor.state != ActorState::Gone);
        if let Some(who) = self.actors[of].iter().position(Actor::waits_for_others) {
            if let Some(token) = self.become_exclusive(of, who) {
                let who = self.actors[of][who].ask.owner.as_bytes()[0];
                self.told.push((who, token));
            }
            return;
        }
        loop {
            let actors = &self.actors[of];
            let head = actors
                .iter()
                .position(|actor| matches!(actor.state, ActorState::Waiting { .. }));
            match head {
                Some(head) if Self::fits(actors, actors[head].ask.mode) => {
                    let who = actors[head].ask.owner.as_bytes()[0];
                    let token = self.hold(of, head, now);
                    self.told.push((who, token));
                }
                _ => break,
            }
        }
    }

    /// The new token, if no other actor holds or blocks.
    fn become_exclusive(&mut self, of: &str, who: usize) -> Option<u64> {
        let actors = self.actors.get_mut(of).unwrap();
        let waiting = |actor: &Actor| matches!(actor.state, ActorState::Waiting { .. });
        if actors.iter().filter(|actor| !waiting(actor)).count() > 1 {
            return None;
        }
        let last = self.tokens.get_mut(of).unwrap();
        *last += 1;
        let actor = &mut actors[who];
        actor.wants_all = false;
        actor.ask.mode = Mode::Exclusive;
        if let ActorState::Holding { token, .. } = &mut actor.state {
            *token = *last;
        }
        Some(*last)
    }

    pub(super) fn upgrade(&mut self, of: &str, who: u8, wait: bool) -> Verdict {
        let holds = |actor: &Actor| {
            actor.ask.owner == owner(who) && matches!(actor.state, ActorState::Holding { .. })
        };
        let Some(at) = self.actors[of].iter().position(holds) else {
            return Verdict::Busy;
        };
        let actor = &mut self.actors.get_mut(of).unwrap()[at];
        match (actor.ask.mode, actor.state) {
            (Mode::Exclusive, ActorState::Holding { token, .. }) => {
                return Verdict::Granted { token };
            }
            (Mode::Upgradable, _) => {}
            _ => return Verdict::Busy,
        }
        actor.wants_all = wait;
        match self.become_exclusive(of, at) {
            Some(token) => Verdict::Granted { token },
            None if wait => Verdict::Queued,
            None => Verdict::Busy,
        }
    }

    pub(super) fn downgrade(&mut self, of: &str, who: u8, mode: Mode) -> bool {
        let Some(actor) = self.of(of, who) else {
            return false;
        };
        let strength = |mode| match mode {
            Mode::Shared => 1,
            Mode::Upgradable => 2,
            Mode::Exclusive => 3,
            Mode::Permits { .. } => 0,
        };
        let holds = matches!(actor.state, ActorState::Holding { .. });
        if !holds || strength(actor.ask.mode) < strength(mode) {
            return false;
        }
        (actor.ask.mode, actor.wants_all) = (mode, false);
        true
    }

    fn of(&mut self, of: &str, who: u8) -> Option<&mut Actor> {
        self.actors.get_mut(of).unwrap().iter_mut().find(|actor| {
            actor.ask.owner == owner(who) && !matches!(actor.state, ActorState::Blocking { .. })
        })
    }

    pub(super) fn acquire(&mut self, of: &str, who: u8, ask: &LockRequest, now: Time) -> Verdict {
        let later = |ttl: Option<Duration>| ttl.map_or(Time::MAX, |ttl| now.after(ttl));
        if let Some(actor) = self.of(of, who) {
            match &mut actor.state {
                ActorState::Holding { token, until, .. } => {
                    if let Some(ttl) = ask.ttl {
                        *until = now.after(ttl).max(*until);
                    }
                    return Verdict::Granted { token: *token };
                }
                state if ask.wait => {
                    *state = ActorState::Waiting {
                        silent_from: later(actor.ask.waiter_ttl),
                    };
                    return Verdict::Queued;
                }
                state => *state = ActorState::Gone,
            }
            self.settle(of, now);
            return Verdict::Busy;
        }
        let actors = self.actors.get_mut(of).unwrap();
        let queue = actors
            .iter()
            .any(|actor| matches!(actor.state, ActorState::Waiting { .. }));
        let upgrading = actors.iter().any(Actor::waits_for_others);
        let free = Self::fits(actors, ask.mode) && (ask.barge || !queue) && !upgrading;
        if !free && !ask.wait {
            return Verdict::Busy;
        }
        let silent_from = later(ask.waiter_ttl);
        actors.push(Actor {
            ask: ask.clone(),
            state: ActorState::Waiting { silent_from },
            wants_all: false,
        });
        if free {
            let index = actors.len() - 1;
            return Verdict::Granted {
                token: self.hold(of, index, now),
            };
        }
        Verdict::Queued
    }

    pub(super) fn renew(&mut self, of: &str, who: u8, ttl: Option<Duration>, now: Time) -> bool {
        match self.of(of, who).map(|actor| &mut actor.state) {
            Some(ActorState::Holding { until, .. }) => {
                *until = ttl.map_or(*until, |ttl| now.after(ttl).max(*until));
                true
            }
            _ => false,
        }
    }

    pub(super) fn touch(&mut self, of: &str, who: u8, now: Time) -> bool {
        let Some(actor) = self.of(of, who) else {
            return false;
        };
        let ActorState::Waiting { silent_from } = &mut actor.state else {
            return false;
        };
        let waiter_ttl = actor.ask.waiter_ttl;
        *silent_from = waiter_ttl.map_or(Time::MAX, |ttl| now.after(ttl));
        true
    }

    pub(super) fn raise(&mut self, of: &str, who: u8, least: u64) -> Option<u64> {
        let last = self.tokens.get(of).copied().unwrap_or(0);
        let ActorState::Holding { token, .. } = &mut self.of(of, who)?.state else {
            return None;
        };
        if *token < least {
            // No other holder ever has that token.
            *token = least.max(last + 1);
        }
        let raised = *token;
        self.tokens.insert(of.to_owned(), last.max(raised));
        Some(raised)
    }

    pub(super) fn release(&mut self, of: &str, who: u8, unclean: bool, now: Time) -> bool {
        let Some(actor) = self.of(of, who) else {
            return false;
        };
        let holds = matches!(actor.state, ActorState::Holding { .. });
        match holds {
            true => Self::end(actor, unclean, now),
            false => actor.state = ActorState::Gone,
        }
        holds
    }

    pub(super) fn break_hold(&mut self, of: &str, token: u64, now: Time) -> bool {
        let mut actors = self.actors.get_mut(of).unwrap().iter_mut();
        let has = |actor: &&mut Actor| matches!(actor.state, ActorState::Holding { token: held, .. } if held == token);
        let hit = actors.find(has);
        hit.map(|actor| Self::end(actor, true, now)).is_some()
    }

    pub(super) fn expire(&mut self, of: &str, now: Time) -> usize {
        let actors = self.actors.get_mut(of).unwrap().iter_mut();
        let holders = actors.filter(|actor| matches!(actor.state, ActorState::Holding { .. }));
        holders.map(|actor| Self::end(actor, true, now)).count()
    }

    pub(super) fn next(&self) -> Time {
        let dues = self
            .actors
            .values()
            .flatten()
            .map(|actor| match actor.state {
                ActorState::Waiting { silent_from: due }
                | ActorState::Holding { until: due, .. }
                | ActorState::Blocking { until: due } => due,
                ActorState::Gone => Time::MAX,
            });
        dues.min().unwrap_or(Time::MAX)
    }
}
