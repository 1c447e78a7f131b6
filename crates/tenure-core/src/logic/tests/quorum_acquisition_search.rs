//! Tokens over several nodes, searched exhaustively: clients run the [`QuorumAcquisition`], nodes grant and are raised.
//!
//! Any message may be arbitrarily late, except a refusal: a late refusal has the same effect as none. A client may end
//! its claim, or give up, at any moment. Only after that may nodes end what the client has there, which is the purpose of
//! deadlines. Nodes start with the tokens that earlier attempts have left there. Clocks differ by any amount, unless nodes
//! forget: then a client proposes more than was granted before it started, and a node that was restarted has no vote
//! while a client lives that may have had its vote before.
//!
//! Two clients run at a time; what other clients did before, or gave up, is what the nodes start with.
//! Mutants show that the search finds violations.

use super::explore::{ModelState, Outcome, explore};
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
}

#[derive(Clone, Copy)]
struct Setup {
    clients: usize,
    tokens: [u64; NODES],
    /// How many restarts.
    restarts: u8,
    mutant: Option<Mutant>,
}

const NODES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Message {
    None,
    Ask,
    Granted(u64),
    Refused,
    Raise(u64),
    Raised(u64),
    NotRaised,
}

#[derive(Clone, Debug)]
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
}

#[derive(Clone)]
struct Node {
    last: u64,
    holder: Option<usize>,
    /// Clients that must be over before this node votes again, as bits.
    guard: u8,
}

#[derive(Clone)]
struct Nodes {
    setup: Setup,
    clients: Vec<Client>,
    nodes: Vec<Node>,
    restarts: u8,
    /// The token that was used last.
    used: u64,
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
    /// A client ends its claim, or gives up.
    Ends(usize),
    /// A node lets go of a client whose claim is over: released or run out.
    LetsGo(usize),
    /// A node forgets everything.
    Restarts(usize),
}

impl Nodes {
    fn new(setup: Setup) -> Self {
        let client = Client {
            phase: Phase::Idle,
            proposal: 0,
            acquisition: QuorumAcquisition::new(NODES),
            messages: [Message::None; NODES],
        };
        let node = |last: &u64| Node {
            last: *last,
            holder: None,
            guard: 0,
        };
        Self {
            setup,
            clients: vec![client; setup.clients],
            nodes: setup.tokens.iter().map(node).collect(),
            restarts: setup.restarts,
            used: 0,
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
        let node = &mut self.nodes[at];
        let message = &mut self.clients[client].messages[at];
        *message = match *message {
            Message::Ask => {
                let guarded = node.guard & alive != 0 && self.setup.mutant != Some(Mutant::NoGuard);
                if node.holder.is_some() || guarded {
                    Message::Refused
                } else {
                    node.last = proposal.max(node.last + 1);
                    node.holder = Some(client);
                    self.granted = self.granted.max(node.last);
                    Message::Granted(node.last)
                }
            }
            Message::Raise(token) if node.holder == Some(client) => {
                node.last = node.last.max(token);
                Message::Raised(token)
            }
            Message::Raise(_) => Message::NotRaised,
            other => other,
        };
        let refusal = matches!(message, Message::Refused | Message::NotRaised);
        if refusal || !self.is_alive(client) {
            self.returns(client, at);
        }
    }

    fn returns(&mut self, client: usize, at: usize) {
        let me = &mut self.clients[client];
        match std::mem::replace(&mut me.messages[at], Message::None) {
            Message::Granted(token) => me.acquisition.granted(at, token),
            Message::Raised(token) => me.acquisition.raised(at, token),
            _ => me.acquisition.refused(at),
        }
        if !matches!(me.phase, Phase::Asking) {
            return;
        }
        let mutant = self.setup.mutant;
        let mut claims = None;
        match me.acquisition.verdict() {
            Next::Won { token } => claims = Some(token),
            Next::Raise { token, nodes } => {
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
                claims = granted.map(|token| token.max(self.used + 1));
            }
            Next::Lost => me.phase = Phase::Over,
            Next::Wait => {}
        }
        if let (Some(_), Some(Mutant::OwnProposal)) = (claims, mutant) {
            claims = Some(me.proposal);
        }
        if let Some(token) = claims {
            let others = (0..self.clients.len()).filter(|other| *other != client);
            if others
                .into_iter()
                .any(|other| matches!(self.clients[other].phase, Phase::Claims))
            {
                self.violation = Some("two claim the name");
            } else if token == self.used {
                self.violation = Some("a token came again");
            } else if token < self.used {
                self.violation = Some("a token went backward");
            }
            self.used = token;
            self.clients[client].phase = Phase::Claims;
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
                    Message::Granted(token) => 4 + token * 3,
                    Message::Raise(token) => 5 + token * 3,
                    Message::Raised(token) => 6 + token * 3,
                });
            }
            // What is over hears replies and does nothing about them.
            if matches!(client.phase, Phase::Asking) {
                client.acquisition.image(image);
            }
        }
        for node in &self.nodes {
            image.push(node.last);
            image.push(node.holder.map_or(9, |holder| holder as u64));
            image.push(u64::from(node.guard));
        }
        let granted = if self.setup.restarts > 0 {
            self.granted
        } else {
            0
        };
        let violated = u64::from(self.violation.is_some());
        image.extend([self.used, granted, u64::from(self.restarts), violated]);
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, client) in self.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle if self.setup.mutant == Some(Mutant::BareCounter) => {
                    steps.push(Step::Starts(id, 0));
                }
                Phase::Idle if self.setup.restarts > 0 => {
                    steps.push(Step::Starts(id, self.granted + 1));
                }
                Phase::Idle => steps.extend([Step::Starts(id, 1), Step::Starts(id, 4)]),
                Phase::Asking | Phase::Claims => steps.push(Step::Ends(id)),
                Phase::Over => {}
            }
            for at in 0..NODES {
                match client.messages[at] {
                    Message::None => {}
                    Message::Ask | Message::Raise(_) => steps.push(Step::Reaches(id, at)),
                    _ if matches!(client.phase, Phase::Asking) => {
                        steps.push(Step::Returns(id, at));
                    }
                    _ => {}
                }
            }
        }
        for (at, node) in self.nodes.iter().enumerate() {
            if node.holder.is_some_and(|holder| !self.is_alive(holder)) {
                steps.push(Step::LetsGo(at));
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
                let client = &mut self.clients[id];
                client.phase = Phase::Asking;
                client.proposal = proposal;
                client.messages = [Message::Ask; NODES];
            }
            Step::Reaches(id, at) => self.reaches(id, at),
            Step::Returns(id, at) => self.returns(id, at),
            Step::Ends(id) => {
                let client = &mut self.clients[id];
                client.phase = Phase::Over;
                // Nobody hears the replies; requests are still on their way.
                for message in &mut client.messages {
                    if !matches!(message, Message::Ask | Message::Raise(_)) {
                        *message = Message::None;
                    }
                }
            }
            Step::LetsGo(at) => self.nodes[at].holder = None,
            Step::Restarts(at) => {
                let alive = (0..self.clients.len()).filter(|client| self.is_alive(*client));
                let guard = alive.fold(0, |bits, client| bits | 1 << client);
                self.restarts -= 1;
                self.nodes[at] = Node {
                    last: 0,
                    holder: None,
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

#[test]
fn tokens_grow_and_claims_never_overlap() {
    for tokens in LEFT {
        let setup = Setup {
            clients: 2,
            tokens,
            restarts: 0,
            mutant: None,
        };
        assert_eq!(search("two clients", setup), None);
    }
}

#[test]
fn tokens_grow_over_nodes_that_forget() {
    let setup = Setup {
        clients: 2,
        tokens: [0, 0, 6],
        restarts: 1,
        mutant: None,
    };
    assert_eq!(search("a restart", setup), None);
}

fn breaks(mutant: Mutant, restarts: u8, expected: &str) {
    let found = LEFT.into_iter().find_map(|tokens| {
        let setup = Setup {
            clients: 2,
            tokens,
            restarts,
            mutant: Some(mutant),
        };
        search(&format!("{mutant:?}"), setup)
    });
    let found = found.unwrap_or_else(|| panic!("{mutant:?} was not found"));
    println!("{found}");
    assert!(found.starts_with(expected), "{mutant:?}: {found}");
}

#[test]
fn mutants_are_found() {
    breaks(Mutant::NoRaise, 0, "a token");
    breaks(Mutant::RaiseNotAwaited, 0, "a token");
    breaks(Mutant::OwnProposal, 0, "a token");
    breaks(Mutant::Minority, 0, "two claim");
    breaks(Mutant::BareCounter, 1, "a token");
    breaks(Mutant::NoGuard, 1, "two claim");
}
