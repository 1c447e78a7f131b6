//! What can happen in a state of the model, the image of a state, and the violations.

use super::explore::ModelState;
use super::message::{KINDS, Message};
use super::model::{Claims, Mutant, Phase, STEP};
use crate::logic::lease::{HoldState, Tick};
use crate::options::Mode;
use crate::time::Time;

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    TimePasses,
    Sends(u8, &'static str),
    Ticks(u8),
    Releases(u8),
    GivesUpOnRenewal(u8),
    Arrives(Message),
    ArrivesTwice(Message),
}

impl ModelState for Claims {
    type Step = Step;

    fn image(&self, image: &mut Vec<u64>) {
        // Times count from now. What lies a whole ttl back cannot make a client believe any more.
        let past = |time: Time| self.now.since(time).min(self.setup.ttl()).as_nanos() as u64;
        let future = |time: Time| match time {
            Time::MAX => u64::MAX,
            time if time >= self.now => 1 + 2 * time.since(self.now).as_nanos() as u64,
            time => 2 * self.now.since(time).as_nanos() as u64,
        };
        // Tokens count by their order.
        let slot = self.table.slots.first();
        let mut tokens: Vec<u64> = self
            .network
            .iter()
            .filter_map(|message| message.token())
            .collect();
        tokens.extend(
            self.clients
                .iter()
                .flat_map(|client| [client.token, client.place.1]),
        );
        tokens.extend(
            slot.iter()
                .flat_map(|slot| slot.holds.iter().map(|hold| hold.token)),
        );
        tokens.extend([0, self.seen, self.last_grant.0]);
        tokens.sort_unstable();
        tokens.dedup();
        let rank = |token| tokens.iter().position(|other| *other == token).unwrap() as u64;
        // The image must differ from that of the same state without the message, or the search drops the state.
        image.push(u64::from(self.problem.is_some()));
        // The newest grant has the last token of the slot, or there was none.
        image.extend([
            u64::from(self.duplicates),
            rank(self.seen),
            rank(self.last_grant.0),
        ]);
        image.push(u64::from(self.last_grant.1));
        for client in &self.clients {
            let budget = [client.asks, client.renewals, client.touches, client.writes];
            image.push(u64::from(u32::from_le_bytes(budget)) << 8 | client.phase as u64);
            if client.phase == Phase::Asking {
                image.extend([past(client.place.0), rank(client.place.1)]);
            }
            let Some(lease) = &client.lease else { continue };
            image.push(rank(client.token));
            if matches!(lease.state(self.now), HoldState::Lost(_)) {
                image.push(0);
                continue;
            }
            image.extend([
                future(lease.end),
                future(lease.cap),
                past(lease.sent),
                future(lease.renewal.due),
                lease.renewal.in_flight.map_or(u64::MAX, past),
                u64::from(lease.renewal.failures) << 1 | u64::from(lease.renewal.is_overdue),
            ]);
        }
        image.push(self.network.len() as u64);
        for message in &self.network {
            let kind = std::mem::discriminant(message);
            let unclean = matches!(message, Message::Release { unclean: true, .. });
            image.extend([
                KINDS
                    .iter()
                    .position(|other| std::mem::discriminant(other) == kind)
                    .unwrap() as u64,
                u64::from(message.who()) << 1 | u64::from(unclean),
                message.sent().map_or(0, past),
                message.token().map_or(0, rank),
            ]);
        }
        let Some(slot) = slot else { return };
        image.push(slot.holds.len() as u64);
        for hold in &slot.holds {
            image.extend([
                u64::from(hold.owner.as_bytes()[0]),
                rank(hold.token),
                future(hold.expires),
            ]);
        }
        image.push(slot.reservations.len() as u64);
        image.extend(
            slot.reservations
                .iter()
                .map(|reservation| future(reservation.until)),
        );
        for waiter in &slot.waiters {
            image.extend([
                u64::from(waiter.claim.owner.as_bytes()[0]),
                future(waiter.alive_until),
            ]);
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![Step::TimePasses];
        for (who, client) in (0..).zip(&self.clients) {
            match client.phase {
                // Clients that want the same and have done nothing yet are alike: start them in order.
                Phase::New => {
                    let before = usize::from(who).checked_sub(1);
                    let turn = before.is_none_or(|before| {
                        self.clients[before].phase != Phase::New
                            || self.setup.modes[before] != self.setup.modes[usize::from(who)]
                    });
                    if turn {
                        steps.push(Step::Sends(who, "its first request"));
                    }
                }
                Phase::Asking => {
                    if client.asks > 0 {
                        steps.push(Step::Sends(who, "its request again"));
                    }
                    if client.touches > 0 {
                        steps.push(Step::Sends(who, "a sign of life"));
                    }
                    steps.push(Step::Releases(who));
                }
                Phase::Holding => {
                    let lease = client.lease.as_ref().unwrap();
                    if lease.next() <= self.now {
                        steps.push(Step::Ticks(who));
                    }
                    if !matches!(lease.state(self.now), HoldState::Lost(_)) {
                        steps.push(Step::Releases(who));
                        if lease.renewal.in_flight.is_some() && lease.renewal.failures == 0 {
                            steps.push(Step::GivesUpOnRenewal(who));
                        }
                        if client.writes > 0 {
                            steps.push(Step::Sends(who, "a write"));
                        }
                    } else if lease.next() == Time::MAX {
                        steps.push(Step::Releases(who));
                    }
                }
                Phase::Ended => {}
            }
        }
        steps.extend(self.network.iter().map(|message| Step::Arrives(*message)));
        if self.duplicates > 0 {
            steps.extend(
                self.network
                    .iter()
                    .map(|message| Step::ArrivesTwice(*message)),
            );
        }
        steps
    }

    fn take(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::TimePasses => {
                self.now = now.after(STEP);
                self.table.tick(self.now);
                self.wake();
            }
            Step::Sends(who, what) => {
                let mutant = self.setup.mutant;
                let client = &mut self.clients[usize::from(who)];
                let message = match what {
                    "a write" => {
                        client.writes -= 1;
                        Message::Write {
                            who,
                            token: client.token,
                        }
                    }
                    "a sign of life" => {
                        client.touches -= 1;
                        if mutant == Some(Mutant::UnconfirmedPlace) {
                            client.place.0 = now;
                        }
                        Message::Touch { who, sent: now }
                    }
                    _ => {
                        client.asks -= 1;
                        if client.phase == Phase::New {
                            client.phase = Phase::Asking;
                            client.place.0 = now;
                        }
                        Message::Ask { who, sent: now }
                    }
                };
                self.send(message);
            }
            Step::Ticks(who) => {
                let client = &mut self.clients[usize::from(who)];
                match client.lease.as_mut().unwrap().tick(now) {
                    Tick::Wait => {}
                    // Beyond its budget a renewal is lost on the way.
                    Tick::Renew if client.renewals > 0 => {
                        client.renewals -= 1;
                        self.send(Message::Renew { who, sent: now });
                    }
                    Tick::Renew => {}
                    Tick::Lost(_) => self.end(who, true),
                }
            }
            Step::Releases(who) => {
                let lost = self.clients[usize::from(who)].phase == Phase::Holding
                    && !self.believes(usize::from(who));
                self.end(who, lost);
            }
            Step::GivesUpOnRenewal(who) => {
                let lease = self.clients[usize::from(who)].lease.as_mut().unwrap();
                lease.unanswered(now, u32::MAX);
            }
            Step::Arrives(message) => {
                self.network.retain(|other| *other != message);
                self.arrive(message);
            }
            Step::ArrivesTwice(message) => {
                self.duplicates -= 1;
                self.arrive(message);
            }
        }
        self.tidy();
    }

    fn violation(&self) -> Option<String> {
        if let Some(problem) = self.problem {
            return Some(problem.to_owned());
        }
        let believers: Vec<_> = (0..self.clients.len())
            .filter(|who| self.believes(*who))
            .collect();
        let modes: Vec<_> = believers.iter().map(|who| self.setup.modes[*who]).collect();
        if modes.len() > 1 && modes.contains(&Mode::Exclusive) {
            return Some(format!("two believers: {believers:?}"));
        }
        for mode in &modes {
            if let Mode::Permits { limit } = mode
                && modes.iter().filter(|other| *other == mode).count() > limit.get() as usize
            {
                return Some(format!("too many permits: {believers:?}"));
            }
        }
        for (one, first) in believers.iter().enumerate() {
            for second in &believers[one + 1..] {
                if self.clients[*first].token == self.clients[*second].token {
                    return Some(format!("one token for two: {believers:?}"));
                }
            }
        }
        if self.setup.strict {
            for who in believers {
                if !self.table_holds(who as u8, self.clients[who].token) {
                    return Some(format!("the store does not know that {who} holds"));
                }
            }
        }
        // No wake-up is lost: a free name has no waiters.
        if let Some(slot) = self.table.slots.first()
            && slot.holds.is_empty()
            && slot.reservations.is_empty()
            && !slot.waiters.is_empty()
        {
            return Some(format!("free, and still there wait {:?}", slot.waiters));
        }
        None
    }
}
