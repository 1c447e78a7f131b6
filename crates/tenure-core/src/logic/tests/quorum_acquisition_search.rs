//! Tokens over several nodes, searched exhaustively: clients run the [`QuorumAcquisition`], nodes grant and are raised.
//!
//! Any message may be arbitrarily late, except a refusal: a late refusal has the same effect as none. A client may end
//! its claim, or give up, at any moment. Only after that may nodes end what the client has there, which is the purpose of
//! deadlines. Nodes start with the tokens that earlier attempts have left there. Clocks differ by any amount, unless nodes
//! forget: then a client proposes more than was granted before it started, and a node that was restarted has no vote
//! while a client lives that may have had its vote before.
//!
//! Two clients run at a time; what other clients did before, or gave up, is what the nodes start with. Clients that are
//! readers may hold a node at the same time, so their tokens have an order only where one of them was over, or claimed
//! the name already, when the other one started.
//!
//! The last client, if it is a writer, may reserve the token after its own, and use it when a majority has that: tasks pass
//! the hold on. If the other client reserved one, too, no client would come that could get it again.
//! Mutants show that the search finds violations.

use super::explore::{ModelState, Outcome, explore};
use crate::logic::quorum::Tally;
use crate::logic::quorum_acquisition::{Next, QuorumAcquisition};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    /// The greatest token is used though only one node knows it.
    NoRaise,
    /// The token is used as soon as the raise is on its way.
    RaiseNotAwaited,
    /// The token that was proposed is used, whatever was granted.
    OwnProposal,
    /// Nodes that forget, and a bare counter.
    BareCounter,
    /// Nodes that forget vote at once.
    NoGuard,
    /// Half of the nodes, rounded down, are taken for a majority.
    Minority,
    /// A reader counts a node that knows a greater token, as a writer does.
    GreaterIsEnough,
    /// A node gives two readers the same token.
    RaisedToTheSame,
    /// A reader does not look for readers when it writes.
    WriterBesideReaders,
    /// A token is used as soon as its reservation is on its way.
    ReservationNotAwaited,
    /// A token is used when one node has reserved it.
    ReservedByOne,
}

#[derive(Clone, Copy)]
struct Setup {
    clients: usize,
    /// The first so many of the clients are readers.
    readers: usize,
    tokens: [u64; NODES],
    /// How many restarts.
    restarts: u8,
    mutant: Option<Mutant>,
}

const NODES: usize = 3;

/// How many tokens a client may choose before it gives up: without a limit the model has no end.
const CHOICES: u8 = 2;

impl Setup {
    fn is_reader(&self, client: usize) -> bool {
        client < self.readers
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Message {
    None,
    Ask,
    Granted(u64),
    Refused,
    Raise(u64),
    Raised(u64),
    NotRaised,
    Reserve(u64),
    Reserved(u64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Idle,
    Asking,
    Claims,
    Over,
}

#[derive(Clone)]
struct Client {
    phase: Phase,
    proposal: u64,
    acquisition: QuorumAcquisition,
    /// One per node, in either direction.
    messages: [Message; NODES],
    /// The token that it tried to agree on last, and how many there were.
    choice: (u64, u8),
    /// The greatest token that was used when it started.
    floor: u64,
    /// The token that it claims the name under.
    token: u64,
    /// The answers to a reservation.
    reservation: Option<Tally>,
}

#[derive(Clone)]
struct Node {
    last: u64,
    /// The token of each client's hold.
    holds: Vec<Option<u64>>,
    /// Clients that must be over before this node votes again, as bits.
    guard: u8,
}

#[derive(Clone)]
struct Nodes {
    setup: Setup,
    clients: Vec<Client>,
    nodes: Vec<Node>,
    restarts: u8,
    /// The tokens that were used, in their order, and the last one of a writer.
    used: Vec<u64>,
    used_alone: u64,
    /// The greatest that was ever granted.
    granted: u64,
    violation: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A client starts; its clock is early or late.
    Starts(usize, u64),
    /// A message reaches its node.
    Reaches(usize, usize),
    /// A reply reaches its client.
    Returns(usize, usize),
    /// A client that claims the name has the next token reserved.
    Reserves(usize),
    /// A client ends its claim, or gives up.
    Ends(usize),
    /// A node ends the hold of a client whose claim is over: the hold is released, or its lease ends.
    LetsGo(usize, usize),
    /// A node forgets everything.
    Restarts(usize),
}

impl Nodes {
    fn new(setup: Setup) -> Self {
        let client = |id| Client {
            phase: Phase::Idle,
            proposal: 0,
            acquisition: match setup.is_reader(id) && setup.mutant != Some(Mutant::GreaterIsEnough)
            {
                true => QuorumAcquisition::shared(NODES),
                false => QuorumAcquisition::new(NODES),
            },
            messages: [Message::None; NODES],
            choice: (0, 0),
            floor: 0,
            token: 0,
            reservation: None,
        };
        let node = |last: &u64| Node {
            last: *last,
            holds: vec![None; setup.clients],
            guard: 0,
        };
        Self {
            setup,
            clients: (0..setup.clients).map(client).collect(),
            nodes: setup.tokens.iter().map(node).collect(),
            restarts: setup.restarts,
            used: vec![],
            used_alone: 0,
            granted: *setup.tokens.iter().max().unwrap(),
            violation: None,
        }
    }

    fn is_alive(&self, client: usize) -> bool {
        matches!(self.clients[client].phase, Phase::Asking | Phase::Claims)
    }

    fn reaches(&mut self, client: usize, at: usize) {
        let alive = (0..self.clients.len()).filter(|client| self.is_alive(*client));
        let alive = alive.fold(0, |bits, client| bits | 1_u8 << client);
        let proposal = self.clients[client].proposal;
        let setup = self.setup;
        let node = &mut self.nodes[at];
        let conflicts = |(other, hold): (usize, &Option<u64>)| {
            let is_shared = setup.is_reader(client) && setup.is_reader(other)
                || setup.mutant == Some(Mutant::WriterBesideReaders) && setup.is_reader(other);
            hold.is_some() && !is_shared
        };
        let is_taken = node.holds.iter().enumerate().any(conflicts);
        let message = &mut self.clients[client].messages[at];
        *message = match *message {
            Message::Ask => {
                let guarded = node.guard & alive != 0 && self.setup.mutant != Some(Mutant::NoGuard);
                if is_taken || guarded {
                    Message::Refused
                } else {
                    node.last = proposal.max(node.last + 1);
                    node.holds[client] = Some(node.last);
                    self.granted = self.granted.max(node.last);
                    Message::Granted(node.last)
                }
            }
            Message::Raise(token) => match &mut node.holds[client] {
                Some(known) => {
                    if *known < token {
                        *known = match setup.mutant {
                            Some(Mutant::RaisedToTheSame) => token,
                            _ => token.max(node.last + 1),
                        };
                        node.last = node.last.max(*known);
                        self.granted = self.granted.max(*known);
                    }
                    Message::Raised(*known)
                }
                None => Message::NotRaised,
            },
            Message::Reserve(last) => match &mut node.holds[client] {
                Some(known) => {
                    *known = last.max(*known);
                    node.last = node.last.max(last);
                    self.granted = self.granted.max(last);
                    Message::Reserved(last)
                }
                None => Message::NotRaised,
            },
            other => other,
        };
        let refusal = matches!(message, Message::Refused | Message::NotRaised);
        if refusal || !self.is_alive(client) {
            self.returns(client, at);
        }
    }

    fn returns(&mut self, client: usize, at: usize) {
        let last_used = self.last_used();
        let me = &mut self.clients[client];
        match std::mem::replace(&mut me.messages[at], Message::None) {
            Message::Reserved(token) => return self.reserved(client, at, token),
            Message::Granted(token) => me.acquisition.granted(at, token),
            Message::Raised(token) => me.acquisition.raised(at, token),
            _ => me.acquisition.refused(at),
        }
        if !matches!(me.phase, Phase::Asking) {
            return;
        }
        let mutant = self.setup.mutant;
        let mut claims = None;
        // Both readers propose the same, which is the worst case.
        match me.acquisition.verdict(|| 0) {
            Next::Won { token } => claims = Some(token),
            Next::Raise { token, nodes } => {
                if me.choice.0 != token {
                    me.choice = (token, me.choice.1 + 1);
                }
                if me.choice.1 > CHOICES {
                    self.end(client);
                    return;
                }
                for node in nodes {
                    if me.messages[node] == Message::None {
                        me.messages[node] = Message::Raise(token);
                    }
                }
                if matches!(mutant, Some(Mutant::NoRaise | Mutant::RaiseNotAwaited)) {
                    claims = Some(token);
                }
                if mutant == Some(Mutant::NoRaise) {
                    me.messages = me.messages.map(|message| match message {
                        Message::Raise(_) => Message::None,
                        other => other,
                    });
                }
            }
            Next::Wait if mutant == Some(Mutant::Minority) => {
                let granted = me.acquisition.held().first().map(|at| self.nodes[*at].last);
                claims = granted.map(|token| token.max(last_used + 1));
            }
            Next::Lost => me.phase = Phase::Over,
            Next::Wait => {}
        }
        if let (Some(_), Some(Mutant::OwnProposal)) = (claims, mutant) {
            claims = Some(me.proposal);
        }
        if let Some(token) = claims {
            self.claim(client, token);
        }
    }

    fn reserves(&mut self, client: usize) {
        let mutant = self.setup.mutant;
        let me = &mut self.clients[client];
        me.reservation = Some(Tally::new(NODES));
        let last = me.token + 1;
        for message in &mut me.messages {
            // A node that has not answered the request before is silent.
            if !matches!(message, Message::Ask | Message::Raise(_)) {
                *message = Message::Reserve(last);
            }
        }
        if mutant == Some(Mutant::ReservationNotAwaited) {
            self.claim(client, last);
        }
    }

    fn reserved(&mut self, client: usize, at: usize, token: u64) {
        let me = &mut self.clients[client];
        let Some(votes) = me
            .reservation
            .as_mut()
            .filter(|_| me.phase == Phase::Claims)
        else {
            return;
        };
        votes.yes(at);
        let needed = match self.setup.mutant {
            Some(Mutant::ReservationNotAwaited) => 0,
            Some(Mutant::ReservedByOne) => 1,
            _ => votes.majority(),
        };
        if (0..NODES).filter(|at| votes.said_yes(*at)).count() == needed {
            self.claim(client, token);
        }
    }

    /// The client uses `token`.
    fn claim(&mut self, client: usize, token: u64) {
        let is_reader = self.setup.is_reader(client);
        let mut others = (0..self.clients.len()).filter(|other| *other != client);
        let least = match is_reader {
            true => self.used_alone.max(self.clients[client].floor),
            false => self.last_used(),
        };
        if others.any(|other| {
            let is_shared = is_reader && self.setup.is_reader(other);
            self.clients[other].phase == Phase::Claims && !is_shared
        }) {
            self.violation = Some("two claim the name");
        } else if self.used.contains(&token) {
            self.violation = Some("a token came again");
        } else if token < least {
            self.violation = Some("a token went backward");
        }
        self.used.push(token);
        self.used.sort_unstable();
        if !is_reader {
            self.used_alone = self.used_alone.max(token);
        }
        self.clients[client].token = token;
        self.clients[client].phase = Phase::Claims;
    }

    fn last_used(&self) -> u64 {
        self.used.last().copied().unwrap_or(0)
    }

    /// The client ends its claim, or gives up.
    fn end(&mut self, client: usize) {
        let client = &mut self.clients[client];
        client.phase = Phase::Over;
        // The client receives no reply; requests are still on their way.
        for message in &mut client.messages {
            if !matches!(
                message,
                Message::Ask | Message::Raise(_) | Message::Reserve(_)
            ) {
                *message = Message::None;
            }
        }
    }
}

impl ModelState for Nodes {
    type Step = Step;

    fn image(&self, image: &mut Vec<u64>) {
        for client in &self.clients {
            image.push(match client.phase {
                Phase::Idle => 0,
                Phase::Asking => 1,
                Phase::Claims => 2,
                Phase::Over => 3,
            });
            let asks = client.messages.contains(&Message::Ask);
            image.push(if asks { client.proposal } else { 0 });
            for message in client.messages {
                image.push(match message {
                    Message::None => 0,
                    Message::Ask => 1,
                    Message::Refused => 2,
                    Message::NotRaised => 3,
                    Message::Granted(token) => 4 + token * 5,
                    Message::Raise(token) => 5 + token * 5,
                    Message::Raised(token) => 6 + token * 5,
                    Message::Reserve(token) => 7 + token * 5,
                    Message::Reserved(token) => 8 + token * 5,
                });
            }
            // A client whose claim is over receives replies, and does nothing about them.
            if matches!(client.phase, Phase::Asking) {
                client.acquisition.image(image);
                image.extend([client.choice.0, u64::from(client.choice.1), client.floor]);
            } else if client.phase == Phase::Claims {
                let votes = client.reservation.as_ref();
                let yes = |at| votes.is_some_and(|votes| votes.said_yes(at));
                image.extend([client.token, u64::from(votes.is_some())]);
                image.extend((0..NODES).map(|at| u64::from(yes(at))));
            }
        }
        for node in &self.nodes {
            image.push(node.last);
            image.extend(
                node.holds
                    .iter()
                    .map(|hold| hold.map_or(0, |token| token + 1)),
            );
            image.push(u64::from(node.guard));
        }
        let granted = if self.setup.restarts > 0 {
            self.granted
        } else {
            0
        };
        let violated = u64::from(self.violation.is_some());
        image.push(self.used.len() as u64);
        image.extend(&self.used);
        image.extend([self.used_alone, granted, u64::from(self.restarts), violated]);
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, client) in self.clients.iter().enumerate() {
            let may_reserve = id + 1 == self.setup.clients && !self.setup.is_reader(id);
            if may_reserve && client.phase == Phase::Claims && client.reservation.is_none() {
                steps.push(Step::Reserves(id));
            }
            match client.phase {
                Phase::Idle if self.setup.mutant == Some(Mutant::BareCounter) => {
                    steps.push(Step::Starts(id, 0));
                }
                Phase::Idle if self.setup.restarts > 0 => {
                    steps.push(Step::Starts(id, self.granted + 1));
                }
                Phase::Idle => steps.extend([Step::Starts(id, 1), Step::Starts(id, 4)]),
                // The end of a reader changes nothing for another reader.
                _ if self.setup.readers == self.setup.clients => {}
                Phase::Asking | Phase::Claims => steps.push(Step::Ends(id)),
                Phase::Over => {}
            }
            for at in 0..NODES {
                match client.messages[at] {
                    Message::None => {}
                    Message::Ask | Message::Raise(_) | Message::Reserve(_) => {
                        steps.push(Step::Reaches(id, at));
                    }
                    Message::Reserved(_) => steps.push(Step::Returns(id, at)),
                    _ if matches!(client.phase, Phase::Asking) => {
                        steps.push(Step::Returns(id, at));
                    }
                    _ => {}
                }
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            for (id, _) in node
                .holds
                .iter()
                .enumerate()
                .filter(|(_, hold)| hold.is_some())
            {
                if !self.is_alive(id) {
                    steps.push(Step::LetsGo(at, id));
                }
            }
            if self.restarts > 0 {
                steps.push(Step::Restarts(at));
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Starts(id, proposal) => {
                let floor = self.last_used();
                let client = &mut self.clients[id];
                client.phase = Phase::Asking;
                client.proposal = proposal;
                client.messages = [Message::Ask; NODES];
                client.floor = floor;
            }
            Step::Reaches(id, at) => self.reaches(id, at),
            Step::Returns(id, at) => self.returns(id, at),
            Step::Reserves(id) => self.reserves(id),
            Step::Ends(id) => self.end(id),
            Step::LetsGo(at, id) => self.nodes[at].holds[id] = None,
            Step::Restarts(at) => {
                let alive = (0..self.clients.len()).filter(|client| self.is_alive(*client));
                let guard = alive.fold(0, |bits, client| bits | 1 << client);
                self.restarts -= 1;
                self.nodes[at] = Node {
                    last: 0,
                    holds: vec![None; self.setup.clients],
                    guard,
                };
            }
        }
    }

    fn violation(&self) -> Option<String> {
        self.violation.map(str::to_owned)
    }
}

/// All that earlier attempts may have left on three nodes, up to the order of nodes.
const LEFT: [[u64; NODES]; 4] = [[0, 0, 0], [0, 0, 6], [0, 3, 6], [0, 6, 6]];

fn search(what: &str, setup: Setup) -> Option<String> {
    let Outcome { states, violation } = explore(Nodes::new(setup), 4_000_000);
    println!("{what}, {:?}: {states} states", setup.tokens);
    violation
}

fn setup(clients: usize, readers: usize, tokens: [u64; NODES]) -> Setup {
    Setup {
        clients,
        readers,
        tokens,
        restarts: 0,
        mutant: None,
    }
}

#[test]
fn tokens_grow_and_claims_never_overlap() {
    for tokens in LEFT {
        for readers in 0..=2 {
            let what = format!("two clients, {readers} readers");
            assert_eq!(search(&what, setup(2, readers, tokens)), None);
        }
    }
}

#[test]
fn tokens_grow_over_nodes_that_forget() {
    for readers in 0..=1 {
        let setup = Setup {
            restarts: 1,
            ..setup(2, readers, [0, 0, 6])
        };
        assert_eq!(
            search(&format!("a restart, {readers} readers"), setup),
            None
        );
    }
}

fn breaks(mutant: Mutant, restarts: u8, readers: usize, expected: &str) {
    let found = LEFT.into_iter().find_map(|tokens| {
        let setup = Setup {
            restarts,
            mutant: Some(mutant),
            ..setup(2, readers, tokens)
        };
        search(&format!("{mutant:?}"), setup)
    });
    let found = found.unwrap_or_else(|| panic!("{mutant:?} was not found"));
    println!("{found}");
    assert!(found.starts_with(expected), "{mutant:?}: {found}");
}

#[test]
fn mutants_are_found() {
    breaks(Mutant::NoRaise, 0, 0, "a token");
    breaks(Mutant::RaiseNotAwaited, 0, 0, "a token");
    breaks(Mutant::OwnProposal, 0, 0, "a token");
    breaks(Mutant::Minority, 0, 0, "two claim");
    breaks(Mutant::BareCounter, 1, 0, "a token");
    breaks(Mutant::NoGuard, 1, 0, "two claim");
    breaks(Mutant::ReservationNotAwaited, 0, 0, "a token");
    breaks(Mutant::ReservedByOne, 0, 0, "a token");
}

#[test]
fn mutants_of_readers_are_found() {
    breaks(Mutant::GreaterIsEnough, 0, 2, "a token came again");
    breaks(Mutant::RaisedToTheSame, 0, 2, "a token came again");
    breaks(Mutant::WriterBesideReaders, 0, 1, "two claim");
    breaks(Mutant::NoRaise, 0, 1, "a token");
    breaks(Mutant::NoGuard, 1, 1, "two claim");
}
