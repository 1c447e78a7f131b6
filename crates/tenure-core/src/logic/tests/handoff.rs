//! A model of the queue of `redis:` and its hand-over, for `handoff_search.rs`.
//!
//! The server keeps the queue: a release gives the lock to the next waiter in the same step and pushes a message to
//! that client alone. A waiter keeps its place for some time after each request, and asks again at a third of that.
//! Time goes in such thirds. A request reaches the server at once or is lost; its reply takes a third at most, unless
//! it is lost; a push has a way of its own, and may be lost, or be late by any time. (`claims.rs` has requests that
//! are late.) Clients leave, and die, at any moment.
//!
//! Two promises are checked in every state: no two clients believe that they hold, and no client waits while no client
//! holds, longer than the faults so far explain. (Who holds in the server is not checked here: the server has one clock.)
//!
//! `docs/stores/redis.md` and `redis/` have what this is a model of.

use super::explore::ModelState;

/// The lease, in thirds of a place.
const TTL: u8 = 4;
/// How long a place is valid after a request of its waiter.
const PLACE: u8 = 3;
/// From the end of a hold until the next waiter believes.
const PROMPT: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mutant {
    /// A waiter trusts in the push and never asks again.
    NoPoll,
    /// A waiter that gives up leaves its place in the queue, and does not release what is granted to it.
    NoGiveBack,
    /// A push counts whatever the last answer said.
    StalePush,
    /// The lease counts from when the push arrived.
    FromPush,
}

/// How many clients, and how many faults may happen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) clients: u8,
    pub(super) deaths: u8,
    pub(super) pauses: u8,
    pub(super) lost: u8,
    pub(super) late: u8,
    pub(super) leaves: u8,
    pub(super) mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// It does not want the lock yet.
    Away,
    /// A request is on its way, or its reply.
    Asking,
    Waiting,
    Holding,
    /// Its release was lost.
    Leaving,
    Gone,
}

#[derive(Clone, Debug)]
struct Client {
    phase: Phase,
    /// When the request that is on its way was sent.
    asked: u8,
    /// The last request that was answered with a place: when it was sent, and the last token then.
    place: (u8, u8),
    /// Gives up as soon as it has its answer.
    stop: bool,
    /// It does nothing, and time goes on.
    is_paused: bool,
    /// Of its hold.
    deadline: u8,
    /// Pushes that arrived while it was asking.
    inbox: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Held,
    /// With the last token.
    Queued(u8),
    Push(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Message {
    who: u8,
    what: What,
    sent: u8,
    /// A push that is late has had its chance to be on time.
    late: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Handoff {
    setup: Setup,
    now: u8,
    holder: Option<(u8, u8)>,
    token: u8,
    /// Who, and until when.
    queue: Vec<(u8, u8)>,
    clients: Vec<Client>,
    wire: Vec<Message>,
    /// The next request is lost.
    is_doomed: bool,
    /// For how long a client has waited while no client held.
    unserved: u8,
    /// How much of that the faults explain.
    excused: u8,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Arrives(u8),
    Delivered(usize),
    Lost(usize),
    NextRequestIsLost,
    Reads(u8),
    Polls(u8),
    AsksOnce(u8),
    LosesInterest(u8),
    Releases(u8),
    Dies(u8),
    Pauses(u8),
    GoesOn(u8),
    /// A third of a place.
    Time,
}

impl Handoff {
    pub(super) fn new(setup: Setup) -> Self {
        let client = Client {
            phase: Phase::Away,
            asked: 0,
            place: (0, 0),
            stop: false,
            is_paused: false,
            deadline: 0,
            inbox: vec![],
        };
        Self {
            setup,
            now: 0,
            holder: None,
            token: 0,
            queue: vec![],
            clients: vec![client; usize::from(setup.clients)],
            wire: vec![],
            is_doomed: false,
            unserved: 0,
            excused: 0,
        }
    }

    fn has_mutant(&self, mutant: Mutant) -> bool {
        self.setup.mutant == Some(mutant)
    }

    fn client(&mut self, who: u8) -> &mut Client {
        &mut self.clients[usize::from(who)]
    }

    fn send(&mut self, who: u8, what: What, sent: u8) {
        self.wire.push(Message {
            who,
            what,
            sent,
            late: false,
        });
    }

    fn ask(&mut self, who: u8) {
        let now = self.now;
        let client = self.client(who);
        (client.phase, client.asked) = (Phase::Asking, now);
        if !std::mem::take(&mut self.is_doomed) {
            let reply = self.asked(who);
            self.send(who, reply, now);
        }
    }

    fn leave(&mut self, who: u8) {
        let now = self.now;
        let client = self.client(who);
        (client.phase, client.asked) = (Phase::Leaving, now);
        client.inbox.clear();
        // It may have been given the lock: for who is next the wait begins here.
        self.unserved = 0;
        if !std::mem::take(&mut self.is_doomed) {
            self.client(who).phase = Phase::Gone;
            self.released(who);
        }
    }

    fn hold(&mut self, who: u8, deadline: u8) {
        let client = self.client(who);
        client.inbox.clear();
        if client.stop {
            return self.leave(who);
        }
        (client.phase, client.deadline) = (Phase::Holding, deadline);
        self.unserved = 0;
    }

    // The server.

    fn grant(&mut self, who: u8, lease: u8) {
        self.token += 1;
        self.holder = Some((who, self.now + lease));
    }

    /// Hands the free lock to the first waiter whose place is valid.
    fn serve(&mut self) -> bool {
        self.holder = None;
        while !self.queue.is_empty() {
            let (first, until) = self.queue.remove(0);
            if until > self.now {
                self.grant(first, until - self.now);
                self.send(first, What::Push(self.token), self.now);
                return true;
            }
        }
        false
    }

    fn expire(&mut self) {
        if self.holder.is_some_and(|(_, until)| until <= self.now) {
            self.holder = None;
        }
    }

    fn asked(&mut self, who: u8) -> What {
        self.expire();
        if self.holder.is_none() && !self.serve() {
            self.grant(who, TTL);
        }
        if let Some((holder, until)) = &mut self.holder
            && *holder == who
        {
            *until = self.now + TTL;
            return What::Held;
        }
        let until = self.now + PLACE;
        match self.queue.iter_mut().find(|(waiter, _)| *waiter == who) {
            Some(place) => place.1 = until,
            None => self.queue.push((who, until)),
        }
        What::Queued(self.token)
    }

    fn released(&mut self, who: u8) {
        self.expire();
        if self.holder.is_some_and(|(holder, _)| holder == who) {
            self.serve();
        }
        self.queue.retain(|(waiter, _)| *waiter != who);
    }

    fn at_client(&mut self, message: Message) {
        let Message {
            who, what, sent, ..
        } = message;
        let now = self.now;
        let client = self.client(who);
        match (what, client.phase) {
            (What::Held, Phase::Asking) if sent + TTL > now => self.hold(who, sent + TTL),
            // A grant with a lease that is over is no grant.
            (What::Held, Phase::Asking) => self.leave(who),
            (What::Queued(token), Phase::Asking) => {
                client.phase = Phase::Waiting;
                client.place = (sent, token);
                if client.stop {
                    self.lose_interest(who);
                }
            }
            (What::Push(token), Phase::Asking | Phase::Waiting) => client.inbox.push(token),
            _ => {}
        }
    }

    fn lose_interest(&mut self, who: u8) {
        if self.has_mutant(Mutant::NoGiveBack) {
            let client = self.client(who);
            client.phase = Phase::Gone;
            client.inbox.clear();
        } else {
            self.leave(who);
        }
    }

    fn read(&mut self, who: u8) {
        let now = self.now;
        let (any, from_push) = (
            self.has_mutant(Mutant::StalePush),
            self.has_mutant(Mutant::FromPush),
        );
        let client = self.client(who);
        let token = client.inbox.remove(0);
        let (sent, last) = client.place;
        let from = if from_push { now } else { sent };
        if (token > last || any) && from + PLACE > now {
            self.hold(who, from + PLACE);
        } else {
            self.ask(who);
        }
    }

    fn believes(&self, who: u8) -> bool {
        let client = &self.clients[usize::from(who)];
        client.phase == Phase::Holding && self.now < client.deadline
    }

    fn all(&self) -> std::ops::Range<u8> {
        0..self.setup.clients
    }

    /// Whether something has to happen before time goes on.
    fn is_due(&self) -> bool {
        let now = self.now;
        let late = self.setup.late;
        let message = |message: &Message| {
            let may_be_late = matches!(message.what, What::Push(_)) && late > 0;
            let is_paused = self.clients[usize::from(message.who)].is_paused;
            message.sent < now && !message.late && !is_paused && !may_be_late
        };
        let client = |client: &Client| match client.phase {
            _ if client.is_paused => false,
            Phase::Waiting => {
                !client.inbox.is_empty() || client.place.0 < now && !self.has_mutant(Mutant::NoPoll)
            }
            Phase::Holding => client.deadline <= now,
            _ => false,
        };
        self.wire.iter().any(message)
            || self.clients.iter().any(client)
            || self.all().any(|who| self.is_unanswered(who))
    }

    /// It sent a request, a third ago, and request or reply was lost.
    fn is_unanswered(&self, who: u8) -> bool {
        let client = &self.clients[usize::from(who)];
        let is_on_its_way =
            |message: &Message| message.who == who && !matches!(message.what, What::Push(_));
        matches!(client.phase, Phase::Asking | Phase::Leaving)
            && !client.is_paused
            && client.asked < self.now
            && !self.wire.iter().any(is_on_its_way)
    }

    fn time(&mut self) {
        let is_waiting = |client: &Client| {
            let waits = matches!(client.phase, Phase::Asking | Phase::Waiting);
            waits && !client.stop && !client.is_paused
        };
        let is_served = self.all().any(|who| self.believes(who));
        self.unserved = if is_served || !self.clients.iter().any(is_waiting) {
            0
        } else {
            self.unserved + 1
        };
        for message in &mut self.wire {
            let is_paused = self.clients[usize::from(message.who)].is_paused;
            if message.sent < self.now && !message.late && !is_paused {
                message.late = true;
                self.setup.late -= 1;
                self.excused += 1;
            }
        }
        self.now += 1;
    }
}

impl ModelState for Handoff {
    type Step = Step;

    fn image(&self, image: &mut Vec<u64>) {
        // Only distances matter; what is further back than everything lasts looks alike.
        let ago = |at: u8| u64::from((self.now + 16).saturating_sub(at).min(31));
        image.extend([
            u64::from(self.token),
            u64::from(self.unserved),
            u64::from(self.excused),
            u64::from(self.is_doomed),
            u64::from(self.setup.pauses) << 32
                | u64::from(self.setup.deaths) << 24
                | u64::from(self.setup.lost) << 16
                | u64::from(self.setup.late) << 8
                | u64::from(self.setup.leaves),
        ]);
        image.push(
            self.holder
                .map_or(0, |(who, until)| 1 + (u64::from(who) << 8 | ago(until))),
        );
        image.push(self.queue.len() as u64);
        image.extend(
            self.queue
                .iter()
                .map(|(who, until)| u64::from(*who) << 8 | ago(*until)),
        );
        for client in &self.clients {
            image.push(
                client.phase as u64
                    | ago(client.asked) << 8
                    | ago(client.place.0) << 16
                    | u64::from(client.place.1) << 24
                    | u64::from(client.stop) << 32
                    | u64::from(client.is_paused) << 33
                    | ago(client.deadline) << 40,
            );
            image.push(
                client
                    .inbox
                    .iter()
                    .fold(1, |all, token| all << 8 | u64::from(*token)),
            );
        }
        // Of messages on different ways, which was sent first does not matter.
        let mut wire: Vec<_> = self
            .wire
            .iter()
            .map(|message| {
                let (kind, token) = match message.what {
                    What::Held => (0, 0),
                    What::Queued(token) => (1, token),
                    What::Push(token) => (2, token),
                };
                u64::from(message.who) << 32
                    | kind << 24
                    | u64::from(token) << 16
                    | ago(message.sent) << 8
                    | u64::from(message.late)
            })
            .collect();
        wire.sort_unstable();
        image.extend(wire);
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = vec![];
        for who in self.all() {
            let client = &self.clients[usize::from(who)];
            if client.is_paused {
                steps.push(Step::GoesOn(who));
                continue;
            }
            match client.phase {
                // All clients that are away are alike, so they may come in this order.
                Phase::Away if !steps.iter().any(|step| matches!(step, Step::Arrives(_))) => {
                    steps.push(Step::Arrives(who));
                }
                Phase::Waiting if !client.inbox.is_empty() => steps.push(Step::Reads(who)),
                Phase::Waiting if client.place.0 < self.now && !self.has_mutant(Mutant::NoPoll) => {
                    steps.push(Step::Polls(who));
                }
                Phase::Holding => steps.push(Step::Releases(who)),
                _ => {}
            }
            if self.is_unanswered(who) {
                steps.push(Step::AsksOnce(who));
            }
            let waits = matches!(client.phase, Phase::Asking | Phase::Waiting);
            if waits && !client.stop && self.setup.leaves > 0 {
                steps.push(Step::LosesInterest(who));
            }
            if (waits || client.phase == Phase::Holding) && self.setup.deaths > 0 {
                steps.push(Step::Dies(who));
            }
            if (waits || client.phase == Phase::Holding) && self.setup.pauses > 0 {
                steps.push(Step::Pauses(who));
            }
        }
        for (at, message) in self.wire.iter().enumerate() {
            if self.clients[usize::from(message.who)].is_paused {
                continue;
            }
            steps.push(Step::Delivered(at));
            if self.setup.lost > 0 && !message.late {
                steps.push(Step::Lost(at));
            }
        }
        if self.setup.lost > 0 && !self.is_doomed {
            steps.push(Step::NextRequestIsLost);
        }
        let is_over = self
            .clients
            .iter()
            .all(|client| client.phase == Phase::Gone)
            && self.wire.is_empty();
        if !self.is_due() && !is_over {
            steps.push(Step::Time);
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Arrives(who) | Step::Polls(who) => self.ask(who),
            Step::AsksOnce(who) => match self.client(who).phase {
                Phase::Leaving => self.leave(who),
                _ => self.ask(who),
            },
            Step::Delivered(at) => {
                let message = self.wire.remove(at);
                self.at_client(message);
            }
            Step::NextRequestIsLost => {
                self.is_doomed = true;
                self.setup.lost -= 1;
                self.excused += 1;
            }
            Step::Lost(at) => {
                self.wire.remove(at);
                self.setup.lost -= 1;
                self.excused += 1;
            }
            Step::Reads(who) => self.read(who),
            Step::LosesInterest(who) => {
                self.setup.leaves -= 1;
                if self.client(who).phase == Phase::Waiting {
                    self.lose_interest(who);
                } else {
                    self.client(who).stop = true;
                }
            }
            Step::Releases(who) => self.leave(who),
            Step::Dies(who) => {
                let client = self.client(who);
                client.phase = Phase::Gone;
                client.inbox.clear();
                self.setup.deaths -= 1;
                self.excused += TTL;
            }
            Step::Pauses(who) => {
                self.client(who).is_paused = true;
                self.setup.pauses -= 1;
                self.excused += TTL;
            }
            Step::GoesOn(who) => self.client(who).is_paused = false,
            Step::Time => self.time(),
        }
        // A message that reaches no client, or tells its client nothing new, has no effect.
        let clients = &self.clients;
        self.wire.retain(|message| {
            let phase = clients[usize::from(message.who)].phase;
            match message.what {
                What::Push(_) => matches!(phase, Phase::Asking | Phase::Waiting),
                _ => phase == Phase::Asking,
            }
        });
        for client in &mut self.clients {
            match client.phase {
                Phase::Asking => client.deadline = 0,
                Phase::Waiting => (client.asked, client.deadline) = (0, 0),
                Phase::Holding => (client.asked, client.place) = (0, (0, 0)),
                Phase::Leaving => (client.place, client.deadline) = ((0, 0), 0),
                Phase::Away | Phase::Gone => {
                    (client.asked, client.place, client.deadline) = (0, (0, 0), 0);
                    client.stop = false;
                }
            }
        }
    }

    fn violation(&self) -> Option<String> {
        if self.all().filter(|who| self.believes(*who)).count() > 1 {
            return Some("two believe".into());
        }
        let allowed = PROMPT + self.excused;
        if self.unserved > allowed {
            return Some(format!(
                "unserved for {} thirds, {allowed} allowed",
                self.unserved
            ));
        }
        let all_gone = self
            .clients
            .iter()
            .all(|client| client.phase == Phase::Gone);
        let is_free = self.holder.is_none() && self.queue.is_empty();
        if all_gone && self.wire.is_empty() && self.excused == 0 && !is_free {
            return Some("something is left behind".into());
        }
        None
    }
}
