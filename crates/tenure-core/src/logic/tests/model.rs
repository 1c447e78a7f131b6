//! The model that is searched: clients, messages on their way, a store, a protected resource.

use std::time::Duration;

use super::message::Message;
use super::{name, owner};
use crate::logic::lease::{HoldState, Lease, MIN_MARGIN, Terms};
use crate::logic::table::{LockRequest, Table, Verdict};
use crate::lost::LostReason;
use crate::name::LockName;
use crate::options::{Mode, Renew};
use crate::time::Time;

/// One step of time: the least margin. So a lease of 3 steps is renewed after one and over after two.
pub(super) const STEP: Duration = MIN_MARGIN;

/// What can happen in the model, and how often.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) modes: &'static [Mode],
    /// In steps.
    pub(super) ttl: u32,
    pub(super) wait: bool,
    /// Requests per client, the first included.
    pub(super) asks: u8,
    pub(super) renewals: u8,
    pub(super) touches: u8,
    /// Messages delivered twice, in all.
    pub(super) duplicates: u8,
    /// Whether holders write to the protected resource.
    pub(super) writes: bool,
    pub(super) max_hold: Option<Duration>,
    pub(super) lock_delay: Duration,
    pub(super) waiter_ttl: Option<Duration>,
    /// Whether a client that believes to hold while the store has no such hold is a violation already.
    pub(super) strict: bool,
    pub(super) mutant: Option<Mutant>,
}

impl Setup {
    pub(super) fn ttl(&self) -> Duration {
        STEP * self.ttl
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mutant {
    /// The client counts its deadline from the reply.
    DeadlineFromReply,
    /// The client counts a renewed lease from the yes, and takes it even when the hold is lost.
    LateYesResurrects,
    /// The store frees the name for any owner.
    ReleaseIgnoresOwner,
    /// The store gives the name to any owner that renews.
    RenewalResurrects,
    /// The store says yes to a repeated request without counting the lease anew.
    RepeatedAskKeepsLease,
    /// A waiter counts from its last request, although the store has not confirmed it.
    UnconfirmedPlace,
    /// A waiter believes every wake-up. Then this can happen: the waiter is granted the name, the message is slow, the
    /// hold ends, the waiter asks again and is queued again, and the old message arrives. Therefore a reply that confirms
    /// a place names the last token granted by then, and a waiter believes only a message of a greater one.
    StaleWakeUp,
    /// The resource takes every write.
    ResourceWithoutFence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    New,
    Asking,
    Holding,
    Ended,
}

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) phase: Phase,
    pub(super) lease: Option<Lease>,
    pub(super) token: u64,
    /// When the last request was sent of which we know that it kept our place, and the last token
    /// that had been granted, to any client, when it did.
    pub(super) place: (Time, u64),
    pub(super) asks: u8,
    pub(super) renewals: u8,
    pub(super) touches: u8,
    pub(super) writes: u8,
}

#[derive(Clone, Debug)]
pub(super) struct Claims {
    pub(super) setup: Setup,
    pub(super) door: LockName,
    pub(super) now: Time,
    pub(super) table: Table,
    pub(super) clients: Vec<Client>,
    pub(super) network: Vec<Message>,
    pub(super) duplicates: u8,
    /// Greatest token granted, and to whom.
    pub(super) last_grant: (u64, u8),
    /// Greatest token that the resource has seen.
    pub(super) seen: u64,
    pub(super) problem: Option<&'static str>,
}

impl Claims {
    pub(super) fn new(setup: Setup) -> Self {
        let client = Client {
            phase: Phase::New,
            lease: None,
            token: 0,
            place: (Time::ZERO, 0),
            asks: setup.asks,
            renewals: setup.renewals,
            touches: setup.touches,
            writes: u8::from(setup.writes),
        };
        Self {
            setup,
            door: name("door"),
            // Any instant but the first, so that the past can be told from "never".
            now: Time::from_millis(1_000),
            table: Table::new(),
            clients: vec![client; setup.modes.len()],
            network: vec![],
            duplicates: setup.duplicates,
            last_grant: (0, 0),
            seen: 0,
            problem: None,
        }
    }

    pub(super) fn believes(&self, who: usize) -> bool {
        let client = &self.clients[who];
        client.phase == Phase::Holding
            && client.lease.as_ref().is_some_and(|lease| {
                matches!(lease.state(self.now), HoldState::Held | HoldState::AtRisk)
            })
    }

    pub(super) fn send(&mut self, message: Message) {
        // Equal messages are one that may arrive twice: that is counted elsewhere.
        if let Err(at) = self.network.binary_search(&message) {
            self.network.insert(at, message);
        }
    }

    pub(super) fn ask(&self, who: u8) -> LockRequest {
        LockRequest {
            name: self.door.clone(),
            owner: owner(who),
            mode: self.setup.modes[usize::from(who)],
            ttl: Some(self.setup.ttl()),
            wait: self.setup.wait,
            barge: false,
            min_hold: Duration::ZERO,
            lock_delay: self.setup.lock_delay,
            waiter_ttl: self.setup.waiter_ttl,
            propose: None,
        }
    }

    pub(super) fn queued(&mut self, who: u8, sent: Time) {
        let token = self.table.slots[0].last_token;
        self.send(Message::Queued { who, sent, token });
    }

    pub(super) fn granted(&mut self, who: u8, token: u64) {
        let (last, to) = self.last_grant;
        if token < last && !self.table_holds(who, token) || token == last && who != to {
            self.problem = Some("a token that does not grow");
        }
        if token > last {
            self.last_grant = (token, who);
        }
    }

    pub(super) fn table_holds(&self, who: u8, token: u64) -> bool {
        self.table.slots.first().is_some_and(|slot| {
            slot.holds
                .iter()
                .any(|hold| hold.owner == owner(who) && hold.token == token)
        })
    }

    /// Passes the grants to waiters on to the network.
    pub(super) fn wake(&mut self) {
        let mut granted = vec![];
        self.table.granted(&mut granted);
        self.table.forgotten(&mut vec![]);
        for (who, token) in granted {
            let who = who.as_bytes()[0];
            self.granted(who, token);
            self.send(Message::Woken { who, token });
        }
    }

    pub(super) fn arrive(&mut self, message: Message) {
        let now = self.now;
        let ttl = self.setup.ttl();
        let door = self.door.clone();
        match message {
            Message::Ask { who, sent } => {
                if self.setup.mutant == Some(Mutant::RepeatedAskKeepsLease)
                    && let Some(view) = self.table.view(&door)
                    && let Some(hold) = view.holds.iter().find(|hold| hold.owner == owner(who))
                {
                    return self.send(Message::Granted {
                        who,
                        sent,
                        token: hold.token,
                    });
                }
                match self.table.acquire(&self.ask(who), now) {
                    Verdict::Granted { token } => {
                        self.granted(who, token);
                        self.send(Message::Granted { who, sent, token });
                    }
                    Verdict::Queued => self.queued(who, sent),
                    Verdict::Busy => self.send(Message::Busy { who }),
                }
            }
            Message::Touch { who, sent } => {
                if self.table.touch(&door, owner(who), now) {
                    self.queued(who, sent);
                }
            }
            Message::Renew { who, sent } => {
                let mut yes = self.table.renew(&door, owner(who), Some(ttl), now);
                if !yes && self.setup.mutant == Some(Mutant::RenewalResurrects) {
                    self.table.expire(&door, now);
                    let ask = LockRequest {
                        wait: false,
                        barge: true,
                        ..self.ask(who)
                    };
                    yes = self.table.acquire(&ask, now) != Verdict::Busy;
                }
                self.send(if yes {
                    Message::Renewed { who, sent }
                } else {
                    Message::Refused { who }
                });
            }
            Message::Release { who, unclean } => {
                let mut whose = owner(who);
                if self.setup.mutant == Some(Mutant::ReleaseIgnoresOwner)
                    && let Some(view) = self.table.view(&door)
                    && let Some(hold) = view.holds.first()
                {
                    whose = hold.owner;
                }
                self.table.release(&door, whose, unclean, now);
            }
            Message::Write { token, .. } => {
                let fenced = self.setup.mutant != Some(Mutant::ResourceWithoutFence);
                if !fenced || token >= self.seen {
                    if token < self.seen {
                        self.problem = Some("a stale write was accepted");
                    }
                    self.seen = self.seen.max(token);
                }
            }
            reply => self.learn(reply),
        }
        self.wake();
    }

    pub(super) fn learn(&mut self, reply: Message) {
        let now = self.now;
        let ttl = self.setup.ttl();
        let terms = Terms {
            ttl,
            drift: Duration::ZERO,
            renew: Renew::Automatic,
            max_hold: self.setup.max_hold,
        };
        let mutant = self.setup.mutant;
        let client = &mut self.clients[usize::from(reply.who())];
        match (reply, client.phase) {
            (Message::Granted { sent, token, .. }, Phase::Asking) => {
                let sent = if mutant == Some(Mutant::DeadlineFromReply) {
                    now
                } else {
                    sent
                };
                client.phase = Phase::Holding;
                client.token = token;
                client.lease = Some(Lease::granted(terms, sent, Some(ttl)));
            }
            (Message::Woken { token, .. }, Phase::Asking)
                if token > client.place.1 || mutant == Some(Mutant::StaleWakeUp) =>
            {
                client.phase = Phase::Holding;
                client.token = token;
                client.lease = Some(Lease::granted(terms, client.place.0, Some(ttl)));
            }
            (Message::Queued { sent, token, .. }, Phase::Asking) => {
                client.place = client.place.max((sent, token));
            }
            (Message::Busy { .. }, Phase::Asking) if client.asks == 0 => {
                self.end(reply.who(), false)
            }
            (Message::Renewed { sent, .. }, Phase::Holding) => {
                let lease = client.lease.as_mut().unwrap();
                if mutant == Some(Mutant::LateYesResurrects) {
                    *lease = Lease::granted(terms, now, Some(ttl));
                }
                lease.renewed(sent, Some(ttl), now);
            }
            (Message::Refused { .. }, Phase::Holding) => {
                client
                    .lease
                    .as_mut()
                    .unwrap()
                    .refused(LostReason::StoreSaysNo);
            }
            _ => {}
        }
    }

    /// Forgets what no later step depends on, so that states that differ in nothing else are the same state.
    pub(super) fn tidy(&mut self) {
        for (who, client) in (0..).zip(&mut self.clients) {
            if client.phase != Phase::Asking && client.phase != Phase::New {
                (client.asks, client.touches) = (0, 0);
            }
            if client.phase != Phase::Asking {
                client.place = (Time::ZERO, 0);
            }
            if client.phase == Phase::Ended {
                (client.renewals, client.writes, client.token) = (0, 0, 0);
            }
            let slot = self.table.slots.first();
            let known = slot.is_some_and(|slot| {
                let holds = slot.holds.iter().any(|hold| hold.owner == owner(who));
                holds
                    || slot
                        .waiters
                        .iter()
                        .any(|waiter| waiter.claim.owner == owner(who))
            });
            let lease = client.lease.as_ref();
            let lost =
                lease.is_none_or(|lease| matches!(lease.state(self.now), HoldState::Lost(_)));
            let asks = self
                .network
                .iter()
                .any(|message| message.who() == who && matches!(message, Message::Ask { .. }));
            let absent = !known && !asks && client.phase == Phase::Ended;
            let mutant = self.setup.mutant;
            self.network.retain(|message| {
                message.who() != who
                    || match message {
                        Message::Ask { .. } | Message::Write { .. } => true,
                        Message::Touch { .. } => client.phase == Phase::Asking,
                        Message::Renew { .. } => {
                            !absent || mutant == Some(Mutant::RenewalResurrects)
                        }
                        Message::Release { .. } => {
                            !absent || mutant == Some(Mutant::ReleaseIgnoresOwner)
                        }
                        Message::Queued { sent, token, .. } => {
                            client.phase == Phase::Asking && (*sent, *token) > client.place
                        }
                        Message::Granted { .. } => client.phase == Phase::Asking,
                        Message::Woken { token, .. } => {
                            client.phase == Phase::Asking
                                && (*token > client.place.1 || mutant == Some(Mutant::StaleWakeUp))
                        }
                        Message::Busy { .. } => client.phase == Phase::Asking && client.asks == 0,
                        Message::Refused { .. } => !lost,
                        Message::Renewed { sent, .. } => {
                            client.phase == Phase::Holding
                                && (mutant == Some(Mutant::LateYesResurrects)
                                    || !lost && lease.is_some_and(|lease| lease.sent <= *sent))
                        }
                    }
            });
        }
    }

    /// The client is done with it; replies do not reach it any more.
    pub(super) fn end(&mut self, who: u8, unclean: bool) {
        let client = &mut self.clients[usize::from(who)];
        client.phase = Phase::Ended;
        client.lease = None;
        self.send(Message::Release { who, unclean });
    }
}
