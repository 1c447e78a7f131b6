//! Two clients, each with tasks that want one name, in all orders of arrivals, releases, cancelled waits, late and lost
//! answers, ends of leases, and deaths of processes.

use std::time::Duration;

use super::explore::{ModelState, explore};
use crate::logic::hand_over::{MAX_TIME, Next, Released, SharedTurn};
use crate::logic::lease::HoldState;
use crate::lost::LostReason;
use crate::time::Time;

/// How often a hold may pass on.
const LIMIT: u32 = 2;
/// How many tasks come to each client: to the first one more than a hold passes on to.
const TASKS: [u8; 2] = [4, 2];
/// How often time goes on, by half of the time that a hold passes on.
const TICKS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    /// The next task gets the token of the task before.
    ReusesToken,
    /// The number of tasks that have a hold is not counted.
    HasNoBound,
    /// A hold passes on however long ago it was granted.
    HasNoEnd,
    /// A hold that is lost passes on.
    PassesLost,
    /// Tokens are used that the store has not reserved.
    ReservesNothing,
    /// A hold passes on while a request of its task is under way.
    IgnoresLateRequests,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Arrives(usize),
    /// A waiting task gives up.
    Leaves(usize),
    /// The task that holds writes under its hold, and the write may arrive at any time.
    Writes(usize),
    /// The task that holds has ended its work.
    Ends(usize),
    /// The store answers that the tokens are reserved, or that it has no such hold.
    Reserves(usize),
    /// The store does not answer; the tokens may be reserved.
    FailsToReserve(usize, bool),
    /// The lease ends in the store. The client knows that before.
    Expires,
    Dies(usize),
    TimePasses,
}

#[derive(Clone, Debug, Default)]
struct Client {
    arrived: u8,
    waiting: u8,
    /// A task of the client has a place in the queue of the store.
    is_queued: bool,
    is_dead: bool,
    hold: Option<Held>,
}

#[derive(Clone, Debug)]
struct Held {
    token: u64,
    turn: Option<SharedTurn>,
    /// The tokens up to this one are asked for; the task has ended its work.
    asked: Option<u64>,
    is_lost: bool,
    has_written: bool,
    /// How many tasks have had the hold before.
    passed: u32,
    granted: u8,
}

#[derive(Clone, Debug)]
struct World {
    clients: [Client; 2],
    /// Which client has the lock, as the store knows it.
    owner: Option<usize>,
    queue: Vec<usize>,
    last_token: u64,
    /// The greatest token that a task has had.
    greatest: u64,
    ticks: u8,
    mutant: Option<Mutant>,
    violation: Option<&'static str>,
}

impl World {
    fn new(mutant: Option<Mutant>) -> Self {
        Self {
            clients: Default::default(),
            owner: None,
            queue: vec![],
            last_token: 0,
            greatest: 0,
            ticks: 0,
            mutant,
            violation: None,
        }
    }

    fn now(&self) -> Time {
        Time::ZERO.after(Duration::from_secs(1) + MAX_TIME / 2 * u32::from(self.ticks))
    }

    fn has_token(&mut self, token: u64) {
        if token <= self.greatest {
            self.violation = Some("a task has a token that is not greater");
        }
        self.greatest = self.greatest.max(token);
    }

    /// The client asks the store if a task waits and no hold of the client has kept the turn.
    fn settle(&mut self) {
        for who in 0..2 {
            let client = &mut self.clients[who];
            if let Some(held) = &mut client.hold {
                let now =
                    Time::ZERO.after(Duration::from_secs(1) + MAX_TIME / 2 * u32::from(self.ticks));
                let is_over = |turn: &SharedTurn| held.asked.is_none() && now >= turn.end();
                if held.turn.as_ref().is_some_and(is_over) && self.mutant != Some(Mutant::HasNoEnd)
                {
                    held.turn = None;
                }
            }
            let has_turn = client.hold.as_ref().is_none_or(|held| held.turn.is_none());
            if client.waiting > 0 && has_turn && !client.is_queued && !client.is_dead {
                client.is_queued = true;
                self.queue.push(who);
            }
        }
        while self.owner.is_none() && !self.queue.is_empty() {
            let who = self.queue.remove(0);
            self.last_token += 1;
            let (token, now, granted) = (self.last_token, self.now(), self.ticks);
            self.owner = Some(who);
            self.has_token(token);
            let client = &mut self.clients[who];
            client.is_queued = false;
            client.waiting -= 1;
            let turn = (client.waiting > 0)
                .then(|| SharedTurn::granted(token, LIMIT, Duration::ZERO, now));
            client.hold = Some(Held {
                token,
                turn,
                asked: None,
                is_lost: false,
                has_written: false,
                passed: 0,
                granted,
            });
        }
    }

    fn release(&mut self, who: usize) {
        self.clients[who].hold = None;
        if self.owner == Some(who) {
            self.owner = None;
        }
    }

    /// What the client does with a hold whose task has ended its work.
    fn pass_on(&mut self, who: usize) {
        let now = self.now();
        let waiting = self.clients[who].waiting;
        let Some(held) = &mut self.clients[who].hold else {
            return;
        };
        let Some(turn) = held.turn.clone().filter(|_| waiting > 0) else {
            return self.release(who);
        };
        let state = match held.is_lost && self.mutant != Some(Mutant::PassesLost) {
            true => HoldState::Lost(LostReason::Expired),
            false => HoldState::Held,
        };
        let released = Released {
            token: held.token,
            is_exclusive: true,
            state,
            remaining: Duration::from_secs(1),
            has_late_requests: held.has_written && self.mutant != Some(Mutant::IgnoresLateRequests),
            is_asked: false,
        };
        let mut turn = turn;
        if self.mutant == Some(Mutant::ReservesNothing) {
            turn.reserved(held.token + u64::from(LIMIT));
        }
        let now = match self.mutant {
            Some(Mutant::HasNoEnd) => turn.end().before(MAX_TIME),
            _ => now,
        };
        match turn.next(released, Duration::ZERO, now) {
            Next::Release => self.release(who),
            Next::Reserve(last) => held.asked = Some(last),
            Next::HandOver(next) => self.hand_over(who, next),
        }
    }

    /// The next task has the hold.
    fn hand_over(&mut self, who: usize, next: SharedTurn) {
        let (ticks, now) = (self.ticks, self.now());
        let client = &mut self.clients[who];
        let Some(held) = &mut client.hold else {
            return;
        };
        held.passed += 1;
        let violations = [
            (held.is_lost, "a hold that is lost passes on"),
            (held.has_written, "a late write counts for the next task"),
            (held.passed > LIMIT, "a hold passes on too often"),
            (ticks >= held.granted + 2, "a hold passes on for too long"),
        ];
        let found = violations.iter().rev().find(|(is_found, _)| *is_found);
        self.violation = found.map(|(_, text)| *text).or(self.violation);
        let token = match self.mutant {
            Some(Mutant::ReusesToken) => held.token,
            _ => next.token(),
        };
        held.token = token;
        held.asked = None;
        held.turn = match self.mutant {
            Some(Mutant::HasNoBound) => {
                let mut endless = SharedTurn::granted(token, LIMIT, Duration::ZERO, now);
                endless.reserved(token + u64::from(LIMIT));
                Some(endless)
            }
            _ => Some(next),
        };
        client.waiting -= 1;
        self.has_token(token);
    }
}

impl ModelState for World {
    type Step = Step;

    fn image(&self, image: &mut Vec<u64>) {
        for client in &self.clients {
            image.extend([u64::from(client.arrived), u64::from(client.waiting)]);
            image.push(u64::from(client.is_queued) | u64::from(client.is_dead) << 1);
            if let Some(held) = &client.hold {
                let flags = u64::from(held.is_lost) | u64::from(held.has_written) << 1;
                image.extend([1, held.token, held.asked.map_or(0, |it| it + 1), flags]);
                image.extend([u64::from(held.passed), u64::from(held.granted)]);
                let now = self.now();
                let (token, left) = held.turn.as_ref().map_or((0, 0), |turn| {
                    (turn.token() + 1, u64::from(turn.may_pass_on(now)))
                });
                image.extend([token, left]);
            }
            image.push(u64::MAX);
        }
        image.push(self.owner.map_or(0, |owner| owner as u64 + 1));
        image.extend(self.queue.iter().map(|who| *who as u64));
        image.extend([u64::MAX, self.last_token, self.greatest, self.ticks.into()]);
        image.push(u64::from(self.violation.is_some()));
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![];
        for (who, client) in self
            .clients
            .iter()
            .enumerate()
            .filter(|(_, it)| !it.is_dead)
        {
            if client.arrived < TASKS[who] {
                steps.push(Step::Arrives(who));
            }
            // A task that waits for the store may leave, too; then the queue of the store forgets it.
            if client.waiting > u8::from(client.is_queued) {
                steps.push(Step::Leaves(who));
            }
            match client
                .hold
                .as_ref()
                .map(|held| (held.asked, held.has_written))
            {
                Some((Some(_), _)) => steps.extend([
                    Step::Reserves(who),
                    Step::FailsToReserve(who, true),
                    Step::FailsToReserve(who, false),
                ]),
                Some((None, has_written)) => {
                    steps.push(Step::Ends(who));
                    if !has_written {
                        steps.push(Step::Writes(who));
                    }
                }
                None => {}
            }
        }
        // One death is enough.
        if self.clients.iter().all(|it| !it.is_dead) {
            steps.extend([Step::Dies(0), Step::Dies(1)]);
        }
        if self.owner.is_some() {
            steps.push(Step::Expires);
        }
        if self.ticks < TICKS {
            steps.push(Step::TimePasses);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Arrives(who) => {
                self.clients[who].arrived += 1;
                self.clients[who].waiting += 1;
            }
            Step::Leaves(who) => self.clients[who].waiting -= 1,
            Step::Writes(who) => {
                if let Some(held) = &mut self.clients[who].hold {
                    held.has_written = true;
                }
            }
            Step::Ends(who) => self.pass_on(who),
            Step::Reserves(who) => {
                let is_owner = self.owner == Some(who);
                let Some(held) = &mut self.clients[who].hold else {
                    return;
                };
                match held.asked.take().filter(|_| is_owner && !held.is_lost) {
                    Some(last) => {
                        self.last_token = self.last_token.max(last);
                        if let Some(turn) = &mut held.turn {
                            turn.reserved(last);
                        }
                        self.pass_on(who);
                    }
                    None => self.release(who),
                }
            }
            Step::FailsToReserve(who, has_arrived) => {
                let asked = self.clients[who].hold.as_ref().and_then(|held| held.asked);
                if let Some(last) = asked.filter(|_| has_arrived && self.owner == Some(who)) {
                    self.last_token = self.last_token.max(last);
                }
                self.release(who);
            }
            Step::Expires => {
                if let Some(held) = self
                    .owner
                    .take()
                    .and_then(|who| self.clients[who].hold.as_mut())
                {
                    held.is_lost = true;
                }
            }
            Step::Dies(who) => {
                // Its lease ends later.
                let arrived = self.clients[who].arrived;
                self.clients[who] = Client {
                    arrived,
                    is_dead: true,
                    ..Client::default()
                };
                self.queue.retain(|it| *it != who);
            }
            Step::TimePasses => self.ticks += 1,
        }
        self.settle();
    }

    fn violation(&self) -> Option<String> {
        let holds = |it: &&Client| it.hold.as_ref().is_some_and(|held| !held.is_lost);
        match self.clients.iter().filter(holds).count() {
            0 | 1 => self.violation.map(String::from),
            _ => Some("two tasks hold".into()),
        }
    }
}

#[test]
fn holds_pass_on_within_their_bounds_and_under_new_tokens() {
    let outcome = explore(World::new(None), 3_000_000);
    assert_eq!(outcome.violation, None);
    println!("{} states", outcome.states);
}

fn found(mutant: Mutant, violation: &str) {
    let outcome = explore(World::new(Some(mutant)), 3_000_000);
    let found = outcome.violation.expect("the mistake is found");
    assert!(found.starts_with(violation), "{found}");
}

#[test]
fn mutant_a_token_is_used_again() {
    found(
        Mutant::ReusesToken,
        "a task has a token that is not greater",
    );
}

#[test]
fn mutant_a_hold_passes_on_without_a_bound() {
    found(Mutant::HasNoBound, "a hold passes on too often");
}

#[test]
fn mutant_a_hold_passes_on_without_an_end() {
    found(Mutant::HasNoEnd, "a hold passes on for too long");
}

#[test]
fn mutant_a_lost_hold_passes_on() {
    found(Mutant::PassesLost, "a hold that is lost passes on");
}

#[test]
fn mutant_tokens_are_not_reserved() {
    found(
        Mutant::ReservesNothing,
        "a task has a token that is not greater",
    );
}

#[test]
fn mutant_a_late_write_counts_for_the_next_task() {
    found(
        Mutant::IgnoresLateRequests,
        "a late write counts for the next task",
    );
}
