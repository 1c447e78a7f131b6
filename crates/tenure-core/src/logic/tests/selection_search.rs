//! Clients that take several names each, in all orders of their steps: no deadlock, all or none, no free name missed.
//!
//! Every name has a queue, and a grant to a waiter is noticed later, as in a store that pushes. A client may be dropped at
//! any step.
//!
//! Two things are searched for. Where all holders release after a while, no state may be a dead end, although no client
//! begins again. Where strangers hold some names for ever, there must be a path from every state to the end of all
//! clients on which none is dropped: the times after which clients begin again are random, so such a path is taken
//! sooner or later.

use std::collections::HashMap;

use super::explore::{ModelState, explore};
use crate::logic::selection::Selection;

/// Which names a client asks for, given its choice and the names that it has asked for. The logic, or a mutant of it.
type Ask = fn(&mut Selection, &[bool]) -> Vec<usize>;
/// Which names a client gives back after its attempts.
type GiveBack = fn(&mut Selection) -> Vec<usize>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Idle,
    /// The client makes one attempt for each name; so many are done, the first of them for that name.
    Attempts {
        first: usize,
        done: usize,
    },
    Waits,
    Holds,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Client(usize),
    /// A client outside of the model, which never releases.
    Stranger,
}

#[derive(Clone)]
struct Name {
    holder: Option<Holder>,
    queue: Vec<usize>,
}

#[derive(Clone)]
struct Client {
    /// The names, in the order that the client believes to be the common one.
    names: Vec<usize>,
    wanted: usize,
    stage: Stage,
    selection: Selection,
    asked: Vec<bool>,
}

#[derive(Clone)]
struct Model {
    names: Vec<Name>,
    clients: Vec<Client>,
    ask: Ask,
    give_back: GiveBack,
    /// Whether clients begin again.
    may_begin_again: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin { client: usize, first: usize },
    Attempt { client: usize },
    Notice { client: usize, position: usize },
    BeginAgain { client: usize },
    Release { client: usize },
    Drop { client: usize },
}

impl Client {
    fn new(names: &[usize], wanted: usize) -> Self {
        Self {
            names: names.to_vec(),
            wanted,
            stage: Stage::Idle,
            selection: Selection::new(names.len(), wanted),
            asked: vec![false; names.len()],
        }
    }
}

impl Model {
    fn new(names: usize, strangers: &[usize], clients: &[Client]) -> Self {
        let name = |number| Name {
            holder: strangers.contains(&number).then_some(Holder::Stranger),
            queue: Vec::new(),
        };
        Self {
            names: (0..names).map(name).collect(),
            clients: clients.to_vec(),
            ask: |selection, _| selection.ask(),
            give_back: Selection::give_back,
            may_begin_again: false,
        }
    }

    fn is_held_by(&self, client: usize, position: usize) -> bool {
        let name = self.clients[client].names[position];
        self.names[name].holder == Some(Holder::Client(client))
    }

    /// The store: the first waiter of a free name gets it.
    fn serve(&mut self, name: usize) {
        let name = &mut self.names[name];
        if name.holder.is_none() && !name.queue.is_empty() {
            name.holder = Some(Holder::Client(name.queue.remove(0)));
        }
    }

    fn release(&mut self, client: usize, position: usize) {
        let name = self.clients[client].names[position];
        self.names[name].queue.retain(|waiter| *waiter != client);
        if self.is_held_by(client, position) {
            self.names[name].holder = None;
            self.serve(name);
        }
    }

    fn release_all(&mut self, client: usize) {
        for position in 0..self.clients[client].names.len() {
            self.release(client, position);
        }
    }

    /// The client has got another name, or its attempts are over: it is done, or it waits for more.
    fn go_on(&mut self, client: usize) {
        let state = &mut self.clients[client];
        if state.selection.missing() == 0 {
            state.stage = Stage::Holds;
            let held: Vec<_> = state.selection.held().collect();
            for position in 0..state.names.len() {
                if !held.contains(&position) {
                    self.release(client, position);
                }
            }
            return;
        }
        state.stage = Stage::Waits;
        let asked = state.asked.clone();
        for position in (self.ask)(&mut state.selection, &asked) {
            let state = &mut self.clients[client];
            state.asked[position] = true;
            let name = state.names[position];
            self.names[name].queue.push(client);
            self.serve(name);
        }
    }

    fn attempt(&mut self, client: usize, first: usize, done: usize) {
        let count = self.clients[client].names.len();
        let position = (first + done) % count;
        let name = &mut self.names[self.clients[client].names[position]];
        if name.holder.is_none() && name.queue.is_empty() {
            name.holder = Some(Holder::Client(client));
            self.clients[client].selection.granted(position);
        }
        let state = &mut self.clients[client];
        state.stage = Stage::Attempts {
            first,
            done: done + 1,
        };
        if state.selection.missing() == 0 {
            self.go_on(client);
        } else if done + 1 == count {
            for position in (self.give_back)(&mut state.selection) {
                self.release(client, position);
            }
            self.go_on(client);
        }
    }

    fn is_over(&self) -> bool {
        self.clients.iter().all(|it| it.stage == Stage::Ended)
    }

    /// The steps but `Drop`.
    fn progress(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (client, state) in self.clients.iter().enumerate() {
            match state.stage {
                Stage::Idle => {
                    let starts = match state.selection.begins_with_attempts() {
                        true => state.names.len(),
                        false => 1,
                    };
                    steps.extend((0..starts).map(|first| Step::Begin { client, first }));
                }
                Stage::Attempts { .. } => steps.push(Step::Attempt { client }),
                Stage::Waits => {
                    let is_new = |position: &usize| {
                        self.is_held_by(client, *position)
                            && state.selection.held().all(|held| held != *position)
                    };
                    let granted = (0..state.names.len()).filter(is_new);
                    steps.extend(granted.map(|position| Step::Notice { client, position }));
                    if self.may_begin_again && state.selection.may_begin_again() {
                        steps.push(Step::BeginAgain { client });
                    }
                }
                Stage::Holds => steps.push(Step::Release { client }),
                Stage::Ended => {}
            }
        }
        steps
    }
}

impl ModelState for Model {
    type Step = Step;

    fn image(&self, image: &mut Vec<u64>) {
        for name in &self.names {
            image.push(match name.holder {
                None => 0,
                Some(Holder::Stranger) => 1,
                Some(Holder::Client(client)) => 2 + client as u64,
            });
            image.push(name.queue.len() as u64);
            image.extend(name.queue.iter().map(|client| *client as u64));
        }
        for client in &self.clients {
            image.push(match client.stage {
                Stage::Idle => 0,
                Stage::Waits => 1,
                Stage::Holds => 2,
                Stage::Ended => 3,
                Stage::Attempts { first, done } => 100 + (first * 10 + done) as u64,
            });
            let bits = |positions: &mut dyn Iterator<Item = usize>| {
                positions.fold(0_u64, |bits, position| bits | 1 << position)
            };
            image.push(bits(&mut client.selection.held()));
            let asked = client.asked.iter().enumerate();
            let asked = asked.filter(|(_, asked)| **asked);
            image.push(bits(&mut asked.map(|(position, _)| position)));
        }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps = self.progress();
        let clients = self.clients.iter().enumerate();
        let alive = clients.filter(|(_, state)| state.stage != Stage::Ended);
        steps.extend(alive.map(|(client, _)| Step::Drop { client }));
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Begin { client, first } => {
                let state = &mut self.clients[client];
                match state.selection.begins_with_attempts() {
                    true => state.stage = Stage::Attempts { first, done: 0 },
                    false => self.go_on(client),
                }
            }
            Step::Attempt { client } => {
                let Stage::Attempts { first, done } = self.clients[client].stage else {
                    unreachable!("only a client that makes attempts has this step");
                };
                self.attempt(client, first, done);
            }
            Step::Notice { client, position } => {
                self.clients[client].selection.granted(position);
                self.go_on(client);
            }
            Step::BeginAgain { client } => {
                self.release_all(client);
                let Client { names, wanted, .. } = &self.clients[client];
                self.clients[client] = Client::new(names, *wanted);
                self.go_on(client);
            }
            Step::Release { client } | Step::Drop { client } => {
                self.release_all(client);
                self.clients[client].stage = Stage::Ended;
            }
        }
    }

    fn violation(&self) -> Option<String> {
        for (client, state) in self.clients.iter().enumerate() {
            let positions = 0..state.names.len();
            let held = positions.filter(|at| self.is_held_by(client, *at)).count();
            match state.stage {
                Stage::Holds if held != state.wanted => {
                    return Some(format!("client {client} has {held} of {}", state.wanted));
                }
                Stage::Ended if held != 0 => return Some(format!("client {client} left a hold")),
                _ => {}
            }
            let waits = |name: &Name| name.queue.contains(&client);
            if matches!(state.stage, Stage::Holds | Stage::Ended) && self.names.iter().any(waits) {
                return Some(format!("client {client} left its place in a queue"));
            }
        }
        (!self.is_over() && self.progress().is_empty()).then(|| "dead end".to_owned())
    }
}

/// How many states there are; an error when a state breaks a rule, or when no path leads from it to the end.
fn paths(start: Model) -> Result<usize, String> {
    let image = |state: &Model| {
        let mut image = Vec::new();
        state.image(&mut image);
        image
    };
    let mut numbers = HashMap::from([(image(&start), 0)]);
    let mut states = vec![start];
    let mut before: Vec<Vec<usize>> = vec![Vec::new()];
    let mut next = 0;
    while next < states.len() {
        let state = states[next].clone();
        if let Some(violation) = state.violation() {
            return Err(violation);
        }
        for step in state.steps() {
            let mut after = state.clone();
            after.take(step);
            let number = *numbers.entry(image(&after)).or_insert_with(|| {
                states.push(after);
                before.push(Vec::new());
                states.len() - 1
            });
            if !matches!(step, Step::Drop { .. }) {
                before[number].push(next);
            }
        }
        next += 1;
    }
    let mut leads_on: Vec<_> = states.iter().map(Model::is_over).collect();
    let ends = 0..states.len();
    let mut visit: Vec<_> = ends.filter(|number| leads_on[*number]).collect();
    while let Some(number) = visit.pop() {
        for earlier in &before[number] {
            if !std::mem::replace(&mut leads_on[*earlier], true) {
                visit.push(*earlier);
            }
        }
    }
    match leads_on.iter().all(|leads_on| *leads_on) {
        true => Ok(states.len()),
        false => Err("no way on".into()),
    }
}

/// Names, the names that strangers hold for ever, and what each client wants of which names.
type Setting = (
    usize,
    &'static [usize],
    &'static [(&'static [usize], usize)],
);

const SETTINGS: &[Setting] = &[
    // The same names, any number of them.
    (3, &[], &[(&[0, 1, 2], 2), (&[0, 1, 2], 2), (&[0, 1, 2], 2)]),
    (3, &[], &[(&[0, 1, 2], 1), (&[0, 1, 2], 2), (&[0, 1, 2], 3)]),
    (3, &[], &[(&[0, 1, 2], 3), (&[0, 1, 2], 3), (&[0, 1, 2], 1)]),
    (4, &[], &[(&[0, 1, 2, 3], 3), (&[0, 1, 2, 3], 3)]),
    (4, &[], &[(&[0, 1, 2, 3], 2), (&[0, 1, 2, 3], 3)]),
    // Different names that overlap.
    (4, &[], &[(&[0, 1, 2], 2), (&[1, 2, 3], 2), (&[0, 3], 2)]),
    (4, &[], &[(&[0, 1, 2], 2), (&[2, 3], 2), (&[0, 1, 3], 1)]),
    (4, &[], &[(&[0, 2, 3], 2), (&[0, 1, 3], 2), (&[1, 2], 2)]),
];

/// Strangers hold some names, and each client can have what it wants of the others.
const WITH_STRANGERS: &[Setting] = &[
    (3, &[2], &[(&[0, 1, 2], 2), (&[0], 1)]),
    (3, &[1], &[(&[0, 1, 2], 2), (&[0, 1, 2], 2), (&[0, 2], 2)]),
    (4, &[0], &[(&[0, 1, 2, 3], 2), (&[0, 1, 2, 3], 2)]),
    (4, &[3], &[(&[0, 1, 2, 3], 3), (&[0, 1, 2, 3], 2)]),
    (4, &[1, 3], &[(&[0, 1, 2, 3], 2), (&[0, 1, 2, 3], 2)]),
    (
        4,
        &[2],
        &[(&[0, 1, 2], 2), (&[0, 1, 3], 2), (&[1, 2, 3], 1)],
    ),
];

fn model(setting: &Setting) -> Model {
    let (names, strangers, clients) = setting;
    let client = |(names, wanted): &(&[usize], usize)| Client::new(names, *wanted);
    Model::new(
        *names,
        strangers,
        &clients.iter().map(client).collect::<Vec<_>>(),
    )
}

#[test]
fn clients_that_want_several_names_always_get_on() {
    for setting in SETTINGS {
        let outcome = explore(model(setting), 1_000_000);
        assert_eq!(outcome.violation, None, "{setting:?}");
        println!("{setting:?}: {} states", outcome.states);
    }
}

#[test]
fn clients_get_on_with_few_names_when_the_others_stay_taken() {
    for setting in WITH_STRANGERS {
        let mut model = model(setting);
        model.may_begin_again = true;
        let states = paths(model).unwrap_or_else(|wrong| panic!("{wrong}: {setting:?}"));
        println!("{setting:?}: {states} states");
    }
}

/// The first violation that is found in any setting in which all holders release.
fn violation(mutate: fn(&mut Model)) -> String {
    let found = SETTINGS.iter().find_map(|setting| {
        let mut model = model(setting);
        mutate(&mut model);
        explore(model, 1_000_000).violation
    });
    found.unwrap_or_default()
}

/// The same with strangers.
fn violation_with_strangers(mutate: fn(&mut Model)) -> String {
    let found = WITH_STRANGERS.iter().find_map(|setting| {
        let mut model = model(setting);
        model.may_begin_again = true;
        mutate(&mut model);
        paths(model).err()
    });
    found.unwrap_or_default()
}

#[test]
fn mutant_that_asks_for_every_name_waits_in_a_circle() {
    let found = violation(|model| {
        model.ask = |selection, asked| {
            let held: Vec<_> = selection.held().collect();
            let is_missing = |at: &usize| !held.contains(at) && !asked[*at];
            (0..asked.len()).filter(is_missing).collect()
        };
    });
    assert!(found.starts_with("dead end"), "{found}");
}

#[test]
fn mutant_that_keeps_all_that_its_attempts_got_waits_in_a_circle() {
    let found = violation(|model| model.give_back = |_| Vec::new());
    assert!(found.starts_with("dead end"), "{found}");
}

#[test]
fn mutant_with_an_order_of_its_own_waits_in_a_circle() {
    let found = violation(|model| model.clients[0].names.reverse());
    assert!(found.starts_with("dead end"), "{found}");
}

#[test]
fn mutant_that_never_begins_again_shares_the_last_names_for_ever() {
    let found = violation_with_strangers(|model| model.may_begin_again = false);
    assert!(found.starts_with("dead end"), "{found}");
}

#[test]
fn mutant_that_only_asks_for_names_after_its_last_one_misses_free_ones() {
    let found = violation_with_strangers(|model| {
        model.may_begin_again = false;
        model.ask = |selection, asked| {
            let last = selection.held().last();
            let names = selection.ask().into_iter();
            names
                .filter(|at| last.is_none_or(|last| *at > last) && !asked[*at])
                .collect()
        };
    });
    assert!(found.starts_with("dead end"), "{found}");
}
