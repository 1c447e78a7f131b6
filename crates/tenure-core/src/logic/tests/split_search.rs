//! Queues on several nodes that may differ in their order, searched exhaustively.
//!
//! A contender stands in the queue of every node. The node tells it when it is first there, or may hold together with all
//! that are before it and were told. A contender that a majority has told has the name. With some but too few nodes it may
//! give those back at any moment, and queue again there at any later moment: "after a random time" means no more than that.
//! A contender may also leave altogether.
//!
//! The search visits all states. In each, at most one contender may claim the name, and there must be a path to a state
//! in which all contenders have had the name. Times are drawn at random, so each way on is taken with some chance, and
//! with chances everywhere in a finite model, it is taken sooner or later with certainty.

use std::collections::{HashMap, VecDeque};

use crate::logic::quorum;
use crate::options::Mode;

const NODES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mutant {
    /// A contender that has some nodes keeps them until it has enough.
    Clings,
    /// What was given back is not asked for again.
    Forgets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PlaceInQueue {
    /// Not asked.
    Out,
    /// The request is on its way.
    Asked,
    /// In the queue, perhaps first there, and not told so.
    Queued,
    /// Told that it is first.
    Held,
    /// The release is on its way.
    Leaving,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Phase {
    Contends,
    Claims,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Node {
    /// The node answers no client.
    dead: bool,
    places: Vec<PlaceInQueue>,
    queue: Vec<usize>,
}

/// A mode, in an order that says nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Rank {
    Shared,
    Upgradable,
    Exclusive,
}

impl Rank {
    fn of(mode: Mode) -> Self {
        match mode {
            Mode::Shared => Self::Shared,
            Mode::Upgradable => Self::Upgradable,
            _ => Self::Exclusive,
        }
    }

    fn goes_with(self, other: Self) -> bool {
        self != Self::Exclusive
            && other != Self::Exclusive
            && (self == Self::Shared || other == Self::Shared)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Split {
    modes: Vec<Rank>,
    phases: Vec<Phase>,
    nodes: Vec<Node>,
}

impl Split {
    fn new(modes: &[Mode], dead: usize) -> Self {
        let contenders = modes.len();
        let node = |at| Node {
            dead: at < dead,
            places: vec![PlaceInQueue::Asked; contenders],
            queue: vec![],
        };
        Self {
            modes: modes.iter().copied().map(Rank::of).collect(),
            phases: vec![Phase::Contends; contenders],
            nodes: (0..NODES).map(node).collect(),
        }
    }

    /// The same for all states that differ only in the numbers of the contenders.
    fn canonical(&self) -> Self {
        let renamed = permutations(self.phases.len()).into_iter().map(|order| {
            let rename = |who: &usize| order.iter().position(|old| old == who).unwrap();
            let node = |node: &Node| Node {
                dead: node.dead,
                places: order.iter().map(|old| node.places[*old]).collect(),
                queue: node.queue.iter().map(rename).collect(),
            };
            let mut nodes: Vec<_> = self.nodes.iter().map(node).collect();
            nodes.sort();
            Self {
                modes: order.iter().map(|old| self.modes[*old]).collect(),
                phases: order.iter().map(|old| self.phases[*old]).collect(),
                nodes,
            }
        });
        renamed.min().unwrap()
    }

    /// Whether the node admits `who`: all that are before it in the queue are admitted, and `who` may hold together with them.
    fn admits(&self, node: &Node, who: usize) -> bool {
        for (at, other) in node.queue.iter().enumerate() {
            let before = &node.queue[..at];
            let goes = |before: &usize| self.modes[*before].goes_with(self.modes[*other]);
            if !before.iter().all(goes) {
                return false;
            }
            if *other == who {
                return true;
            }
        }
        false
    }

    fn held(&self, who: usize) -> usize {
        let held = |node: &&Node| node.places[who] == PlaceInQueue::Held;
        self.nodes.iter().filter(held).count()
    }

    fn is_done(&self) -> bool {
        self.phases.iter().all(|phase| *phase == Phase::Over)
            && self.nodes.iter().all(|node| node.queue.is_empty())
    }

    /// What `who` has goes back, all of it or what is held; what is on its way is cancelled.
    fn leave(&mut self, who: usize, all: bool) {
        for place in self.nodes.iter_mut().map(|node| &mut node.places[who]) {
            *place = match *place {
                PlaceInQueue::Held => PlaceInQueue::Leaving,
                PlaceInQueue::Queued if all => PlaceInQueue::Leaving,
                PlaceInQueue::Asked if all => PlaceInQueue::Out,
                other => other,
            };
        }
    }

    /// All states that may be next, and whether a contender gave up on the way there.
    fn next(&self, mutant: Option<Mutant>) -> Vec<(Self, bool)> {
        let mut states = Vec::new();
        let mut with = |gives_up: bool, change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            states.push((state.canonical(), gives_up));
        };
        for (who, phase) in self.phases.iter().copied().enumerate() {
            let held = self.held(who);
            let short = held > 0 && held < quorum::majority(NODES);
            if phase != Phase::Over {
                with(phase == Phase::Contends, &|state| {
                    state.phases[who] = Phase::Over;
                    state.leave(who, true);
                });
            }
            if phase == Phase::Contends && short && mutant != Some(Mutant::Clings) {
                with(false, &|state| state.leave(who, false));
            }
            for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.dead) {
                let first = self.admits(node, who);
                match node.places[who] {
                    PlaceInQueue::Asked => with(false, &|state| {
                        state.nodes[at].queue.push(who);
                        state.nodes[at].places[who] = PlaceInQueue::Queued;
                    }),
                    PlaceInQueue::Queued if first => with(false, &|state| {
                        state.nodes[at].places[who] = PlaceInQueue::Held;
                        let enough = state.held(who) >= quorum::majority(NODES);
                        if phase == Phase::Contends && enough {
                            state.phases[who] = Phase::Claims;
                        }
                    }),
                    PlaceInQueue::Leaving => with(false, &|state| {
                        state.nodes[at].queue.retain(|other| *other != who);
                        state.nodes[at].places[who] = PlaceInQueue::Out;
                    }),
                    PlaceInQueue::Out
                        if phase == Phase::Contends && mutant != Some(Mutant::Forgets) =>
                    {
                        with(false, &|state| {
                            state.nodes[at].places[who] = PlaceInQueue::Asked
                        });
                    }
                    _ => {}
                }
            }
        }
        states
    }
}

fn permutations(of: usize) -> Vec<Vec<usize>> {
    let longer = |shorter: &Vec<usize>| {
        let shorter = shorter.clone();
        let others = (0..of).filter(move |next| !shorter.contains(next));
        others.collect::<Vec<_>>()
    };
    (0..of).fold(vec![vec![]], |all, _| {
        let all = all.iter().flat_map(|shorter| {
            let next = longer(shorter).into_iter();
            next.map(|next| [shorter.clone(), vec![next]].concat())
        });
        all.collect()
    })
}

/// The claims that may not be at the same time.
fn claims_collide(state: &Split) -> bool {
    let claims = |who: &usize| state.phases[*who] == Phase::Claims;
    let claims: Vec<_> = (0..state.phases.len()).filter(claims).collect();
    claims.iter().enumerate().any(|(at, who)| {
        let mut others = claims[..at].iter();
        others.any(|other| !state.modes[*who].goes_with(state.modes[*other]))
    })
}

/// How many states there are; an error when two contenders claim the name, or when no path leads on from some state.
/// Giving up is no way on: it is left out where that is looked for.
fn search(modes: &[Mode], dead: usize, mutant: Option<Mutant>) -> Result<usize, String> {
    let start = Split::new(modes, dead).canonical();
    let mut ids = HashMap::from([(start.clone(), 0)]);
    let mut states = vec![start];
    let mut before: Vec<Vec<usize>> = vec![vec![]];
    let mut at = 0;
    while at < states.len() {
        let state = states[at].clone();
        if claims_collide(&state) {
            return Err(format!("two claim the name: {state:?}"));
        }
        for (next, gave_up) in state.next(mutant) {
            let id = *ids.entry(next).or_insert_with_key(|next| {
                states.push(next.clone());
                before.push(vec![]);
                states.len() - 1
            });
            if !gave_up {
                before[id].push(at);
            }
        }
        at += 1;
        assert!(at <= 1_000_000, "too many states");
    }
    let mut leads_on = vec![false; states.len()];
    let done = (0..states.len()).filter(|id| states[*id].is_done());
    let mut queue: VecDeque<_> = done.collect();
    while let Some(id) = queue.pop_front() {
        if !std::mem::replace(&mut leads_on[id], true) {
            queue.extend(&before[id]);
        }
    }
    match leads_on.iter().position(|leads_on| !leads_on) {
        Some(stuck) => Err(format!("no way on: {:?}", states[stuck])),
        None => Ok(states.len()),
    }
}

#[test]
fn there_is_a_way_on_from_every_split() {
    for (contenders, dead) in [(2, 0), (2, 1), (3, 0), (3, 1)] {
        let states = search(&[Mode::Exclusive; 3][..contenders], dead, None).unwrap();
        println!("{contenders} contenders, {dead} dead nodes: {states} states");
    }
}

/// Readers, a writer, and contenders of which one at a time can have the upgradable hold.
#[test]
fn there_is_a_way_on_for_all_modes() {
    let (reader, upgradable, writer) = (Mode::Shared, Mode::Upgradable, Mode::Exclusive);
    for (modes, dead) in [
        (&[reader, writer][..], 0),
        (&[reader, writer], 1),
        (&[upgradable, upgradable], 0),
        (&[upgradable, upgradable], 1),
        (&[upgradable, writer], 1),
        (&[reader, reader, writer], 1),
        (&[reader, upgradable, upgradable], 1),
    ] {
        let states = search(modes, dead, None).unwrap();
        println!("{modes:?}, {dead} dead nodes: {states} states");
    }
}

#[test]
fn mutants_are_found() {
    for mutant in [Mutant::Clings, Mutant::Forgets] {
        for modes in [
            [Mode::Exclusive, Mode::Exclusive],
            [Mode::Shared, Mode::Exclusive],
            [Mode::Upgradable, Mode::Upgradable],
        ] {
            let found = search(&modes, 1, Some(mutant)).unwrap_err();
            println!("{mutant:?}: {found}");
            assert!(found.starts_with("no way on"), "{found}");
        }
    }
    // With a majority of dead nodes no contender ever has the name, and the search must see that, too.
    assert!(search(&[Mode::Exclusive; 2], 2, None).is_err());
}
