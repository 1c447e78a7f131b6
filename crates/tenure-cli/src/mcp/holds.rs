//! The holds of the client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rmcp::model::RequestId;
use tenure::{FencingToken, Guard, LockName, Receipt};

/// For how many holds with a receipt the call that took them is known. A client cancels a call that it waits for, so few are
/// enough.
const KNOWN_RECEIPTS: usize = 64;

/// The holds that end with the client, and the calls that took the last ones that do not.
#[derive(Default)]
pub(super) struct Holds(Mutex<State>);

#[derive(Default)]
struct State {
    is_closed: bool,
    last: u64,
    connected: BTreeMap<u64, Connected>,
    kept: VecDeque<(RequestId, Receipt)>,
}

struct Connected {
    request: RequestId,
    guard: Guard,
}

/// What a call has taken.
pub(super) enum Granted {
    Connected(Guard),
    Detached(Receipt),
}

impl Holds {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a hold that ends with the client, and returns its id.
    ///
    /// # Errors
    /// The guard: the call is cancelled, or the session is over.
    pub(super) fn add(
        &self,
        request: &RequestId,
        guard: Guard,
        is_cancelled: impl FnOnce() -> bool,
    ) -> Result<String, Box<Guard>> {
        let mut state = self.state();
        // Under the lock, so that a cancellation that comes later finds the hold.
        if state.is_closed || is_cancelled() {
            return Err(Box::new(guard));
        }
        state.last += 1;
        let (id, request) = (state.last, request.clone());
        state.connected.insert(id, Connected { request, guard });
        Ok(hold_id(id))
    }

    /// Remembers which call has taken a hold with a receipt. `false`: the call is cancelled.
    pub(super) fn add_kept(
        &self,
        request: &RequestId,
        receipt: &Receipt,
        is_cancelled: impl FnOnce() -> bool,
    ) -> bool {
        let mut state = self.state();
        if is_cancelled() {
            return false;
        }
        if state.kept.len() == KNOWN_RECEIPTS {
            state.kept.pop_front();
        }
        state.kept.push_back((request.clone(), receipt.clone()));
        true
    }

    /// Takes out what this call has taken.
    pub(super) fn take_of_request(&self, request: &RequestId) -> Option<Granted> {
        let mut state = self.state();
        let mut ids = state.connected.iter();
        let found = ids.find_map(|(id, held)| (held.request == *request).then_some(*id));
        if let Some(held) = found.and_then(|id| state.connected.remove(&id)) {
            return Some(Granted::Connected(held.guard));
        }
        let at = state.kept.iter().position(|(id, _)| id == request)?;
        let (_, receipt) = state.kept.remove(at)?;
        Some(Granted::Detached(receipt))
    }

    /// Takes out the hold with this id.
    pub(super) fn take(&self, id: &str) -> Option<Guard> {
        let held = self.state().connected.remove(&hold_number(id)?)?;
        Some(held.guard)
    }

    /// Looks at the hold with this id.
    pub(super) fn look<T>(&self, id: &str, look: impl FnOnce(&Guard) -> T) -> Option<T> {
        let state = self.state();
        let held = state.connected.get(&hold_number(id)?)?;
        Some(look(&held.guard))
    }

    /// The id of the hold of this client that has this name and token.
    pub(super) fn id_of(&self, name: &LockName, token: FencingToken) -> Option<String> {
        let state = self.state();
        let mut ids = state.connected.iter();
        let found = ids.find(|(_, held)| held.guard.tokens().any(|it| it == (name, token)));
        found.map(|(id, _)| hold_id(*id))
    }

    /// The id of a hold of this client that has this name and is not lost.
    pub(super) fn id_with_name(&self, name: &LockName) -> Option<String> {
        let state = self.state();
        let mut ids = state.connected.iter();
        let has_it = |guard: &Guard| guard.is_held() && guard.names().any(|it| it == name);
        let found = ids.find(|(_, held)| has_it(&held.guard));
        found.map(|(id, _)| hold_id(*id))
    }

    /// Takes all holds out, and lets none in any more.
    pub(super) fn close(&self) -> Vec<Guard> {
        let mut state = self.state();
        state.is_closed = true;
        let all = std::mem::take(&mut state.connected);
        all.into_values().map(|held| held.guard).collect()
    }
}

fn hold_id(number: u64) -> String {
    format!("h{number}")
}

fn hold_number(id: &str) -> Option<u64> {
    id.strip_prefix('h')?.parse().ok()
}
