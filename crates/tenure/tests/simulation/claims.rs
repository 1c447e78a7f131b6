//! The names that each client believes to hold, the writes to the resource, and the checks of both.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tenure::{Guard, LostReason, Mode, OwnerId};

use crate::history::Event;
use crate::state::{NAMES, Simulation, State};

/// The state of a name.
#[derive(Clone, Copy, Default)]
pub(crate) struct Name {
    /// The newest grant in the store.
    pub(crate) holder: Option<(u64, OwnerId)>,
    /// The greatest token that a client got, and the number of grants that clients got.
    greatest: u64,
    turn: u64,
    fenced: Register,
    plain: Register,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Register {
    token: u64,
    turn: u64,
}

/// A claim lasts from the return of an acquisition to the call of its release, or to the loss that the guard reports.
pub(crate) struct Claim {
    client: usize,
    mode: Mode,
    guard: Arc<Guard>,
    lost: Pin<Box<dyn Future<Output = Option<LostReason>> + Send + Sync>>,
    parts: Vec<ClaimedName>,
}

/// One name of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClaimedName {
    pub(crate) name: usize,
    pub(crate) token: u64,
    owner: OwnerId,
    /// The number of this claim among the claims on the name.
    turn: u64,
}

/// The claims of all clients that run.
#[derive(Default)]
pub(crate) struct Claims {
    by_id: BTreeMap<u64, Claim>,
    next_id: u64,
}

impl Claims {
    /// Adds a claim, and returns its id.
    fn insert(&mut self, claim: Claim) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.by_id.insert(id, claim);
        id
    }
}

impl State {
    /// Checks that a new claim of `client` may exist beside the claims of others.
    fn check_overlap(&mut self, client: usize, mode: Mode, parts: &[ClaimedName]) {
        let mut is_together = false;
        let is_excused = |part: &ClaimedName| self.broken.contains(&(part.name, part.token));
        let mut own = parts.iter().filter(|own| !is_excused(own));
        let clash = own.find_map(|own| {
            let mut permits = Vec::new();
            self.claims.by_id.values().find_map(|other| {
                let is_other = |theirs: &&ClaimedName| {
                    theirs.name == own.name && theirs.owner != own.owner && !is_excused(theirs)
                };
                let theirs = other.parts.iter().find(is_other)?;
                if !other.guard.is_held() {
                    return None;
                }
                is_together = true;
                let is_too_much = match (mode, other.mode) {
                    (Mode::Exclusive, _) | (_, Mode::Exclusive) => true,
                    (Mode::Permits { limit }, Mode::Permits { .. }) => {
                        // An owner that entered again has two claims and one permit.
                        if !permits.contains(&theirs.owner) {
                            permits.push(theirs.owner);
                        }
                        permits.len() >= limit.get() as usize
                    }
                    _ => false,
                };
                is_too_much.then(|| (own.name, other.client, other.guard.remaining()))
            })
        });
        self.counts.together += u64::from(is_together);
        if let Some((name, other, left)) = clash {
            let name = NAMES[name];
            let what = format!(
                "claims overlap: client {client} acquired {name}, client {other} holds it for another {left:?}"
            );
            self.violation.get_or_insert(what);
        }
    }
}

impl Simulation {
    /// The greatest tokens so far. Requests from now on must get greater tokens.
    pub(crate) fn floors(&self) -> [u64; NAMES.len()] {
        self.state().names.map(|name| name.greatest)
    }

    /// Begins a claim when an acquisition returns. `floors`: the greatest tokens from before its request; `None` for an
    /// entry into a hold.
    pub(crate) fn claim(
        &self,
        client: usize,
        guard: Guard,
        mode: Mode,
        floors: Option<&[u64; NAMES.len()]>,
    ) -> (u64, Arc<Guard>, Vec<ClaimedName>) {
        let guard = Arc::new(guard);
        let mut state = self.state();
        let parts = self.record_grants(&mut state, client, &guard, floors);
        state.counts.acquired += u64::from(floors.is_some());
        // A claim that has ended does not begin again, so an overlap of claims always begins here.
        if guard.is_held() {
            state.check_overlap(client, mode, &parts);
        }
        let claim = Claim {
            client,
            mode,
            guard: guard.clone(),
            lost: Box::pin(guard.lost()),
            parts: parts.clone(),
        };
        let id = state.claims.insert(claim);
        (id, guard, parts)
    }

    /// Records the grants of the guard's names, and checks that their tokens are greater than the `floors`.
    fn record_grants(
        &self,
        state: &mut State,
        client: usize,
        guard: &Guard,
        floors: Option<&[u64; NAMES.len()]>,
    ) -> Vec<ClaimedName> {
        let mut parts = Vec::new();
        for ((name, token), owner) in guard.tokens().zip(guard.owner_ids()) {
            let token = token.get();
            let name = NAMES
                .iter()
                .position(|known| *known == name.as_str())
                .unwrap();
            let record = &mut state.names[name];
            if let Some(floors) = floors {
                record.turn += 1;
                if token <= floors[name] {
                    let (name, floor) = (NAMES[name], floors[name]);
                    let what = format!("token {token} of {name} does not grow: {floor} was before");
                    state.violation.get_or_insert(what);
                }
            }
            let record = &mut state.names[name];
            record.greatest = record.greatest.max(token);
            parts.push(ClaimedName {
                name,
                token,
                owner,
                turn: record.turn,
            });
            state.history.note(Event {
                at: self.clock.now(),
                client,
                what: "acquired",
                name: NAMES[name],
                number: token,
            });
        }
        parts
    }

    /// Ends the claim and returns its guard.
    pub(crate) fn end_claim(&self, id: u64, guard: Arc<Guard>) -> Guard {
        drop(self.state().claims.by_id.remove(&id));
        Arc::try_unwrap(guard).expect("a guard has one worker")
    }

    /// Removes the claims of a client that was killed.
    pub(crate) fn remove(&self, client: usize) {
        let gone: BTreeMap<_, _> = {
            let claims = &mut self.state().claims.by_id;
            let (gone, kept) = std::mem::take(claims)
                .into_iter()
                .partition(|(_, claim)| claim.client == client);
            *claims = kept;
            gone
        };
        // The guards are dropped after the mutex is unlocked, because dropping a guard releases its lock.
        drop(gone);
    }

    /// Checks that each client that runs and has lost a lock was told of the loss.
    pub(crate) fn check_losses(&self, is_frozen: impl Fn(usize) -> bool) {
        let mut state = self.state();
        let mut silent = None;
        for claim in state.claims.by_id.values_mut() {
            if claim.guard.is_held() || is_frozen(claim.client) {
                continue;
            }
            let told = claim
                .lost
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()));
            match told {
                // The result is kept, because polling the future again would panic.
                Poll::Ready(reason) => claim.lost = Box::pin(std::future::ready(reason)),
                Poll::Pending => silent = Some((claim.client, claim.parts[0].name)),
            }
        }
        if let Some((client, name)) = silent {
            let what = format!("client {client} was not told that {} is lost", NAMES[name]);
            state.violation.get_or_insert(what);
        }
    }

    /// A write that arrives at both sides of the resource, the plain side and the fenced side.
    pub(crate) fn write(&self, part: ClaimedName) {
        let mut state = self.state();
        if state.broken.contains(&(part.name, part.token)) {
            return;
        }
        state.counts.writes += 1;
        let name = &mut state.names[part.name];
        let is_late = part.turn < name.plain.turn;
        name.plain.turn = part.turn;
        let mut what = None;
        let mut refused = 0;
        if part.token < name.fenced.token {
            refused = 1;
            if part.turn == name.turn {
                what = Some("the fence refused the holder");
            }
        } else {
            if part.turn < name.fenced.turn {
                what = Some("the fence took a stale write");
            }
            name.fenced.token = part.token;
            name.fenced.turn = part.turn;
        }
        state.counts.refused_writes += refused;
        state.counts.late_writes += u64::from(is_late);
        if let Some(what) = what {
            let what = format!("{what}: {part:?}");
            state.violation.get_or_insert(what);
        }
    }
}
