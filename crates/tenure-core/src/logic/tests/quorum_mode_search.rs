//! A hold over three nodes whose mode changes, searched exhaustively: an upgradable holder upgrades and downgrades, nodes
//! forget and are repaired, and another client asks for the name.
//!
//! A request to a node may be carried out, and answered, at any later moment; the next request about the same hold is
//! sent when the one before was answered. A node that was restarted has no vote before each client has noticed that its
//! hold there is gone, which is what its next renewal is for, or is over. Only after the end of a claim may nodes end
//! what the client has there.
//!
//! Mutants show that the search finds violations.

use super::explore::{ModelState, Outcome, explore};
use crate::logic::quorum;
use crate::logic::quorum_mode::{QuorumMode, Repair};
use crate::options::Mode;

const NODES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    /// A node counts for an exclusive claim whatever the mode of the hold there.
    AnyModeCounts,
    /// A majority of the nodes that have the hold is enough to claim the name alone.
    MajorityOfHeld,
    /// A repaired hold counts as exclusive, though the node was asked for an upgradable one.
    RepairedAsBefore,
    /// A node counts with the stronger mode until it has answered the request to downgrade.
    WeakensLate,
    /// A node that forgets votes at once.
    NoGuard,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    /// Nodes that have the hold at first.
    held: usize,
    /// What the other client asks for, and on how many nodes it has that at first: on the last ones.
    other: Mode,
    others: usize,
    /// How often the holder upgrades.
    upgrades: u8,
    restarts: u8,
    mutant: Option<Mutant>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Message {
    None,
    Upgrade,
    /// The node has the request, and waits for the other client.
    Waiting,
    Downgrade,
    Acquire(Mode),
    /// The mode that the hold has now.
    Has(Mode),
    NoHold,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Node {
    ours: Option<Mode>,
    is_upgrading: bool,
    theirs: bool,
    /// Clients that have to notice the restart first: the holder, the other client.
    guard: [bool; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Holds,
    Upgrading,
    Over,
}

#[derive(Clone, Debug, PartialEq)]
enum Other {
    Asking,
    Claims,
    Over,
}

#[derive(Clone)]
struct Model {
    setup: Setup,
    nodes: [Node; NODES],
    phase: Phase,
    mode: QuorumMode,
    messages: [Message; NODES],
    upgrades: u8,
    other: Other,
    other_mode: QuorumMode,
    asked: [bool; NODES],
    restarts: u8,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Upgrades,
    /// The holder gives its upgrade up, or the exclusive hold that it has led to.
    Downgrades,
    Ends,
    Reaches(usize),
    Returns(usize),
    /// The holder asks a node for what it claims.
    Repairs(usize),
    /// A renewal tells a client that the node has no hold of it.
    Learns(usize),
    OtherLearns(usize),
    OtherAsks(usize),
    OtherEnds,
    /// A node ends what a client has whose claim is over.
    LetsGo(usize),
    LetsOtherGo(usize),
    Restarts(usize),
}

fn is_compatible(one: Mode, other: Mode) -> bool {
    let collides = matches!(
        (one, other),
        (Mode::Exclusive, _) | (_, Mode::Exclusive) | (Mode::Upgradable, Mode::Upgradable)
    );
    !collides
}

impl Model {
    fn new(setup: Setup) -> Self {
        let mut mode = QuorumMode::new(NODES, Mode::Upgradable);
        let mut other_mode = QuorumMode::new(NODES, setup.other);
        let node = |at: usize| Node {
            ours: (at < setup.held).then_some(Mode::Upgradable),
            is_upgrading: false,
            theirs: at >= NODES - setup.others,
            guard: [false; 2],
        };
        let nodes = [0, 1, 2].map(node);
        for (at, node) in nodes.iter().enumerate() {
            if node.ours.is_some() {
                mode.has(at, Mode::Upgradable);
            }
            if node.theirs {
                other_mode.has(at, setup.other);
            }
        }
        let is_over = !other_mode.is_supported() && setup.others > 0;
        assert!(mode.is_supported() && !is_over, "both hold a majority");
        Self {
            setup,
            nodes,
            phase: Phase::Holds,
            mode,
            messages: [Message::None; NODES],
            upgrades: setup.upgrades,
            other: match setup.others {
                0 => Other::Asking,
                _ => Other::Claims,
            },
            asked: [setup.others > 0; NODES],
            other_mode,
            restarts: setup.restarts,
        }
    }

    fn is_supported(&self) -> bool {
        if self.setup.mutant == Some(Mutant::AnyModeCounts) {
            let held = (0..NODES).filter(|node| self.mode.at(*node).is_some());
            return held.count() >= quorum::majority(NODES);
        }
        self.mode.is_supported()
    }

    /// The holder has an answer of a node, or has lost the node.
    fn decide(&mut self) {
        if self.phase == Phase::Upgrading {
            let alone = |node: &usize| self.mode.at(*node) == Some(Mode::Exclusive);
            let alone = (0..NODES).filter(alone).count();
            let held = (0..NODES).filter(|node| self.mode.at(*node).is_some());
            let claims = match self.setup.mutant {
                Some(Mutant::MajorityOfHeld) if alone >= quorum::majority(held.count()) => {
                    // Whatever the decision says.
                    let mut forced = QuorumMode::new(NODES, Mode::Exclusive);
                    (0..NODES).for_each(|node| forced.has(node, Mode::Exclusive));
                    self.mode = forced;
                    true
                }
                _ => self.mode.claim_alone(),
            };
            if claims {
                self.phase = Phase::Holds;
            }
        }
        if !self.is_supported() {
            self.end();
        }
    }

    fn end(&mut self) {
        self.phase = Phase::Over;
        for message in &mut self.messages {
            // The client receives no reply; requests are still on their way, and a request that waits is stopped.
            if matches!(
                message,
                Message::Has(_) | Message::NoHold | Message::Waiting
            ) {
                *message = Message::None;
            }
        }
    }

    /// Sends a request to downgrade, instead of a request that waits at the node.
    fn downgrade(&mut self, at: usize) {
        if self.setup.mutant != Some(Mutant::WeakensLate) {
            self.mode.weakens(at, Mode::Upgradable);
        }
        self.messages[at] = Message::Downgrade;
    }

    fn reaches(&mut self, at: usize) {
        let is_over = self.phase == Phase::Over;
        let counts_as = self.mode.claimed();
        let (setup, node) = (self.setup, &mut self.nodes[at]);
        let has = |mode| match is_over {
            true => Message::None,
            false => Message::Has(mode),
        };
        self.messages[at] = match (self.messages[at], node.ours) {
            (Message::Upgrade | Message::Downgrade, None) if is_over => Message::None,
            (Message::Upgrade | Message::Downgrade, None) => Message::NoHold,
            (Message::Upgrade, Some(_)) if node.theirs && !is_over => {
                node.is_upgrading = true;
                Message::Waiting
            }
            // The request is not sent for a claim that is over, or is stopped at once.
            (Message::Upgrade, Some(mode)) if node.theirs => has(mode),
            (Message::Upgrade, Some(_)) => {
                node.ours = Some(Mode::Exclusive);
                has(Mode::Exclusive)
            }
            (Message::Downgrade, Some(_)) => {
                node.ours = Some(Mode::Upgradable);
                node.is_upgrading = false;
                has(Mode::Upgradable)
            }
            (Message::Acquire(mode), None) => {
                let is_guarded = node.guard[1] && setup.mutant != Some(Mutant::NoGuard);
                let is_free = !node.theirs || is_compatible(mode, setup.other);
                match is_free && !is_guarded && !is_over {
                    true => {
                        node.ours = Some(mode);
                        has(match setup.mutant {
                            Some(Mutant::RepairedAsBefore) => counts_as,
                            _ => mode,
                        })
                    }
                    false if is_over => Message::None,
                    false => Message::NoHold,
                }
            }
            (Message::Acquire(_), Some(mode)) => has(mode),
            (other, _) => other,
        };
    }

    fn returns(&mut self, at: usize) {
        match std::mem::replace(&mut self.messages[at], Message::None) {
            Message::Has(mode) => self.mode.has(at, mode),
            _ => self.mode.lost(at),
        }
        self.decide();
    }

    fn serve(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        if node.is_upgrading && !node.theirs && node.ours.is_some() {
            node.is_upgrading = false;
            node.ours = Some(Mode::Exclusive);
            if self.messages[at] == Message::Waiting {
                self.messages[at] = Message::Has(Mode::Exclusive);
            }
        }
    }

    fn repair(&self, at: usize) -> Option<Message> {
        let is_free = self.messages[at] == Message::None && self.phase != Phase::Over;
        match self.mode.repair(at).filter(|_| is_free)? {
            Repair::Acquire(_) if self.setup.mutant == Some(Mutant::RepairedAsBefore) => {
                Some(Message::Acquire(Mode::Upgradable))
            }
            Repair::Acquire(mode) => Some(Message::Acquire(mode)),
            Repair::Upgrade => Some(Message::Upgrade),
            Repair::Downgrade(_) => Some(Message::Downgrade),
        }
    }
}

impl ModelState for Model {
    type Step = Step;

    fn image(&self, image: &mut Vec<u64>) {
        let mode = |mode: Option<Mode>| match mode {
            None => 0,
            Some(Mode::Shared) => 1,
            Some(Mode::Upgradable) => 2,
            _ => 3,
        };
        for (at, node) in self.nodes.iter().enumerate() {
            let bits = [
                node.is_upgrading,
                node.theirs,
                node.guard[0],
                node.guard[1],
                self.asked[at],
            ];
            let bits = bits.iter().fold(0, |bits, bit| bits << 1 | u64::from(*bit));
            let message = match self.messages[at] {
                Message::None => 0,
                Message::Upgrade => 1,
                Message::Waiting => 2,
                Message::Downgrade => 3,
                Message::NoHold => 4,
                Message::Acquire(of) => 8 + mode(Some(of)),
                Message::Has(of) => 16 + mode(Some(of)),
            };
            let known = (mode(self.mode.at(at)), mode(self.other_mode.at(at)));
            image.extend([mode(node.ours), bits, message, known.0, known.1]);
        }
        image.extend([
            self.phase as u64,
            mode(Some(self.mode.claimed())),
            u64::from(self.upgrades),
        ]);
        image.push(match self.other {
            Other::Asking => 0,
            Other::Claims => 1,
            Other::Over => 2,
        });
        image.push(u64::from(self.restarts));
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        let is_alone = self.mode.claimed() == Mode::Exclusive;
        match self.phase {
            Phase::Holds if is_alone => steps.extend([Step::Downgrades, Step::Ends]),
            Phase::Holds if self.upgrades > 0 => steps.extend([Step::Upgrades, Step::Ends]),
            Phase::Upgrading => steps.push(Step::Downgrades),
            _ => {}
        }
        if self.other == Other::Claims || self.other == Other::Asking {
            steps.push(Step::OtherEnds);
        }
        for (at, node) in self.nodes.iter().enumerate() {
            match self.messages[at] {
                Message::None | Message::Waiting => {}
                Message::Has(_) | Message::NoHold => steps.push(Step::Returns(at)),
                _ => steps.push(Step::Reaches(at)),
            }
            if self.repair(at).is_some() {
                steps.push(Step::Repairs(at));
            }
            let may_believe = self.mode.at(at).is_some() || node.guard[0];
            if self.phase != Phase::Over && node.ours.is_none() && may_believe {
                steps.push(Step::Learns(at));
            }
            if self.other == Other::Claims && !node.theirs && self.other_mode.at(at).is_some() {
                steps.push(Step::OtherLearns(at));
            }
            if self.other == Other::Asking && !self.asked[at] {
                steps.push(Step::OtherAsks(at));
            }
            if self.phase == Phase::Over && node.ours.is_some() {
                steps.push(Step::LetsGo(at));
            }
            if self.other == Other::Over && node.theirs {
                steps.push(Step::LetsOtherGo(at));
            }
            if self.restarts > 0 {
                steps.push(Step::Restarts(at));
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Upgrades => {
                self.upgrades -= 1;
                self.phase = Phase::Upgrading;
                for at in 0..NODES {
                    if self.mode.at(at).is_some() && self.messages[at] == Message::None {
                        self.messages[at] = Message::Upgrade;
                    }
                }
                self.decide();
            }
            Step::Downgrades => {
                self.phase = Phase::Holds;
                self.mode.claim_less(Mode::Upgradable);
                for at in 0..NODES {
                    let is_free = matches!(self.messages[at], Message::None | Message::Waiting);
                    if is_free && self.mode.at(at).is_some() {
                        self.downgrade(at);
                    }
                }
            }
            Step::Ends => self.end(),
            Step::Reaches(at) => self.reaches(at),
            Step::Returns(at) => self.returns(at),
            Step::Repairs(at) => match self.repair(at) {
                Some(Message::Downgrade) => self.downgrade(at),
                message => self.messages[at] = message.unwrap_or(Message::None),
            },
            Step::Learns(at) => {
                // No reply is as late as the vote of a node that was restarted.
                let is_told = matches!(self.messages[at], Message::Has(_));
                self.nodes[at].guard[0] &= is_told;
                self.mode.lost(at);
                self.decide();
            }
            Step::OtherLearns(at) => {
                self.nodes[at].guard[1] = false;
                self.other_mode.lost(at);
                if !self.other_mode.is_supported() {
                    self.other = Other::Over;
                }
            }
            Step::OtherAsks(at) => {
                self.asked[at] = true;
                let is_guarded =
                    self.nodes[at].guard[0] && self.setup.mutant != Some(Mutant::NoGuard);
                let node = &mut self.nodes[at];
                let ours = node
                    .ours
                    .filter(|ours| !is_compatible(*ours, self.setup.other));
                if ours.is_none() && !node.is_upgrading && !is_guarded {
                    node.theirs = true;
                    self.other_mode.has(at, self.setup.other);
                    if self.other_mode.is_supported() {
                        self.other = Other::Claims;
                    }
                }
            }
            Step::OtherEnds => self.other = Other::Over,
            Step::LetsGo(at) => {
                (self.nodes[at].ours, self.nodes[at].is_upgrading) = (None, false);
            }
            Step::LetsOtherGo(at) => {
                self.nodes[at].theirs = false;
                self.serve(at);
            }
            Step::Restarts(at) => {
                self.restarts -= 1;
                let ours = self.phase != Phase::Over;
                let theirs = self.other != Other::Over && self.other_mode.at(at).is_some();
                self.nodes[at] = Node {
                    ours: None,
                    is_upgrading: false,
                    theirs: false,
                    guard: [ours, theirs],
                };
                if self.messages[at] == Message::Waiting {
                    self.messages[at] = Message::NoHold;
                }
            }
        }
        // A client that is over has nothing to notice.
        for node in &mut self.nodes {
            node.guard[0] &= self.phase != Phase::Over;
            node.guard[1] &= self.other != Other::Over;
        }
    }

    fn violation(&self) -> Option<String> {
        let both = self.phase != Phase::Over && self.other == Other::Claims;
        let goes = is_compatible(self.mode.claimed(), self.setup.other);
        (both && !goes).then(|| "two claim the name".to_owned())
    }
}

/// The other client claims the name already, or asks for it now.
fn setups() -> Vec<Setup> {
    let cases = [
        (2, Mode::Shared, 0),
        (2, Mode::Shared, 2),
        (2, Mode::Upgradable, 0),
        (3, Mode::Shared, 2),
        (3, Mode::Shared, 3),
    ];
    let setup = |(held, other, others)| Setup {
        held,
        other,
        others,
        // A client that does not have the name yet leads to many more states.
        upgrades: if others > 0 { 2 } else { 1 },
        restarts: 1,
        mutant: None,
    };
    cases.map(setup).to_vec()
}

fn search(setup: Setup) -> Option<String> {
    let Outcome { states, violation } = explore(Model::new(setup), 4_000_000);
    println!("{setup:?}: {states} states");
    violation
}

#[test]
fn no_claim_beside_an_exclusive_one() {
    for setup in setups() {
        assert_eq!(search(setup), None);
    }
}

#[test]
fn mutants_are_found() {
    for mutant in [
        Mutant::AnyModeCounts,
        Mutant::MajorityOfHeld,
        Mutant::RepairedAsBefore,
        Mutant::WeakensLate,
        Mutant::NoGuard,
    ] {
        let mutant = Some(mutant);
        let found = setups()
            .into_iter()
            .find_map(|setup| search(Setup { mutant, ..setup }));
        let found = found.unwrap_or_else(|| panic!("{mutant:?} was not found"));
        println!("{mutant:?}: {found}");
        assert!(found.starts_with("two claim"), "{found}");
    }
}
