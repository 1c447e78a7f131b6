//! Queues on several nodes that may differ in their order, searched exhaustively.
//!
//! A contender stands in the queue of every node, is told when it is first there, and has the name when
//! it is first on a majority. With some but too few nodes it may at any moment give those back, and queue
//! again there at any later moment: that is what "after a random time" comes to. It may also leave altogether.
//!
//! Searched are all worlds; in each, nobody may claim beside another, and there must be a way on to where
//! everybody has had the name. Times are drawn at random, so each way on is taken with some chance, and
//! with chances everywhere in a finite world, it is taken sooner or later with certainty.

use std::collections::{HashMap, VecDeque};

use crate::logic::quorum;

const NODES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wrong {
    /// Whoever has some nodes keeps them until it has enough.
    Clings,
    /// What was given back is not asked for again.
    Forgets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Seat {
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
    /// It answers nobody.
    dead: bool,
    seats: Vec<Seat>,
    queue: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Split {
    phases: Vec<Phase>,
    nodes: Vec<Node>,
}

impl Split {
    fn new(contenders: usize, dead: usize) -> Self {
        let node = |at| Node {
            dead: at < dead,
            seats: vec![Seat::Asked; contenders],
            queue: vec![],
        };
        Self {
            phases: vec![Phase::Contends; contenders],
            nodes: (0..NODES).map(node).collect(),
        }
    }

    /// One for all worlds that differ only in who is who.
    fn canonical(&self) -> Self {
        let renamed = permutations(self.phases.len()).into_iter().map(|order| {
            let rename = |who: &usize| order.iter().position(|old| old == who).unwrap();
            let node = |node: &Node| Node {
                dead: node.dead,
                seats: order.iter().map(|old| node.seats[*old]).collect(),
                queue: node.queue.iter().map(rename).collect(),
            };
            let mut nodes: Vec<_> = self.nodes.iter().map(node).collect();
            nodes.sort();
            Self {
                phases: order.iter().map(|old| self.phases[*old]).collect(),
                nodes,
            }
        });
        renamed.min().unwrap()
    }

    fn held(&self, who: usize) -> usize {
        let held = |node: &&Node| node.seats[who] == Seat::Held;
        self.nodes.iter().filter(held).count()
    }

    fn is_done(&self) -> bool {
        self.phases.iter().all(|phase| *phase == Phase::Over)
            && self.nodes.iter().all(|node| node.queue.is_empty())
    }

    /// What `who` has goes back, all of it or what is held; what is on its way is called off.
    fn leave(&mut self, who: usize, all: bool) {
        for seat in self.nodes.iter_mut().map(|node| &mut node.seats[who]) {
            *seat = match *seat {
                Seat::Held => Seat::Leaving,
                Seat::Queued if all => Seat::Leaving,
                Seat::Asked if all => Seat::Out,
                other => other,
            };
        }
    }

    /// All worlds that may be next, and whether somebody gave up on the way there.
    fn next(&self, wrong: Option<Wrong>) -> Vec<(Self, bool)> {
        let mut worlds = Vec::new();
        let mut with = |gives_up: bool, change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            worlds.push((world.canonical(), gives_up));
        };
        for (who, phase) in self.phases.iter().copied().enumerate() {
            let held = self.held(who);
            let short = held > 0 && held < quorum::majority(NODES);
            if phase != Phase::Over {
                with(phase == Phase::Contends, &|world| {
                    world.phases[who] = Phase::Over;
                    world.leave(who, true);
                });
            }
            if phase == Phase::Contends && short && wrong != Some(Wrong::Clings) {
                with(false, &|world| world.leave(who, false));
            }
            for (at, node) in self.nodes.iter().enumerate().filter(|(_, node)| !node.dead) {
                let first = node.queue.first() == Some(&who);
                match node.seats[who] {
                    Seat::Asked => with(false, &|world| {
                        world.nodes[at].queue.push(who);
                        world.nodes[at].seats[who] = Seat::Queued;
                    }),
                    Seat::Queued if first => with(false, &|world| {
                        world.nodes[at].seats[who] = Seat::Held;
                        let enough = world.held(who) >= quorum::majority(NODES);
                        if phase == Phase::Contends && enough {
                            world.phases[who] = Phase::Claims;
                        }
                    }),
                    Seat::Leaving => with(false, &|world| {
                        world.nodes[at].queue.retain(|other| *other != who);
                        world.nodes[at].seats[who] = Seat::Out;
                    }),
                    Seat::Out if phase == Phase::Contends && wrong != Some(Wrong::Forgets) => {
                        with(false, &|world| world.nodes[at].seats[who] = Seat::Asked);
                    }
                    _ => {}
                }
            }
        }
        worlds
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

/// How many worlds there are; an error when two claim the name, or there is no way on from some world.
/// Giving up is no way on: it is left out where that is looked for.
fn search(contenders: usize, dead: usize, wrong: Option<Wrong>) -> Result<usize, String> {
    let start = Split::new(contenders, dead).canonical();
    let mut ids = HashMap::from([(start.clone(), 0)]);
    let mut worlds = vec![start];
    let mut before: Vec<Vec<usize>> = vec![vec![]];
    let mut at = 0;
    while at < worlds.len() {
        let world = worlds[at].clone();
        let claims = |phase: &&Phase| **phase == Phase::Claims;
        if world.phases.iter().filter(claims).count() > 1 {
            return Err(format!("two claim the name: {world:?}"));
        }
        for (next, gave_up) in world.next(wrong) {
            let id = *ids.entry(next).or_insert_with_key(|next| {
                worlds.push(next.clone());
                before.push(vec![]);
                worlds.len() - 1
            });
            if !gave_up {
                before[id].push(at);
            }
        }
        at += 1;
        assert!(at <= 1_000_000, "too many worlds");
    }
    let mut leads_on = vec![false; worlds.len()];
    let done = (0..worlds.len()).filter(|id| worlds[*id].is_done());
    let mut queue: VecDeque<_> = done.collect();
    while let Some(id) = queue.pop_front() {
        if !std::mem::replace(&mut leads_on[id], true) {
            queue.extend(&before[id]);
        }
    }
    match leads_on.iter().position(|leads_on| !leads_on) {
        Some(stuck) => Err(format!("no way on: {:?}", worlds[stuck])),
        None => Ok(worlds.len()),
    }
}

#[test]
fn there_is_a_way_on_from_every_split() {
    for (contenders, dead) in [(2, 0), (2, 1), (3, 0), (3, 1)] {
        let worlds = search(contenders, dead, None).unwrap();
        println!("{contenders} contenders, {dead} dead nodes: {worlds} worlds");
    }
}

#[test]
fn planted_mistakes_are_found() {
    for wrong in [Wrong::Clings, Wrong::Forgets] {
        let found = search(2, 1, Some(wrong)).unwrap_err();
        println!("{wrong:?}: {found}");
        assert!(found.starts_with("no way on"), "{found}");
    }
    // With a majority of dead nodes nobody ever has the name, and the search must see that, too.
    assert!(search(2, 2, None).is_err());
}
