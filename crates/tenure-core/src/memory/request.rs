//! Performs requests: at once, or disturbed as a test has scripted it.

use std::future::{pending, ready};
use std::sync::Arc;

use super::disturbance::{Disturbance, reply_lost};
use super::store::Shared;
use crate::error::{Error, ErrorKind, Step};
use crate::rt::{Flag, lock};
use crate::store::{BoxFuture, Request};

/// Applies a request to the store. `request` is the acquisition that can be stopped while it hangs;
/// `stopped` is the answer then, if nothing was applied.
pub(super) fn perform<T: Send + 'static>(
    store: &Arc<Shared>,
    step: Step,
    request: Option<Arc<Request>>,
    apply: impl FnOnce(&Arc<Shared>) -> T + Send + 'static,
    stopped: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> BoxFuture<Result<T, Error>> {
    let (disturbance, paused) = {
        let mut state = lock(&store.state);
        state.requests += 1;
        if state.is_undisturbed() {
            drop(state);
            return Box::pin(ready(Ok(apply(store))));
        }
        let mut script = state.script.iter();
        let at = script.position(|(scripted, _)| *scripted == step);
        let disturbance = at.and_then(|at| state.script.remove(at));
        (
            disturbance.map(|(_, disturbance)| disturbance),
            state.resumed.clone(),
        )
    };
    let store = store.clone();
    Box::pin(async move {
        let stop = async {
            match &request {
                Some(request) => request.stop.raised().await,
                None => pending().await,
            }
        };
        match paused {
            Some(resumed) => tokio::select! {
                biased;
                () = resumed.raised() => Ok(apply(&store)),
                () = stop => stopped(),
            },
            None => perform_disturbed(&store, disturbance, stop, apply, stopped).await,
        }
    })
}

async fn perform_disturbed<T>(
    store: &Arc<Shared>,
    disturbance: Option<Disturbance>,
    stop: impl Future<Output = ()>,
    apply: impl FnOnce(&Arc<Shared>) -> T,
    stopped: impl FnOnce() -> Result<T, Error>,
) -> Result<T, Error> {
    match disturbance {
        None => Ok(apply(store)),
        Some(Disturbance::RequestLost) => Err(Error::new(
            ErrorKind::Unreachable,
            "the request was lost, as scripted",
        )),
        Some(Disturbance::ReplyLost) => {
            drop(apply(store));
            Err(reply_lost())
        }
        Some(Disturbance::ReplyNever) => {
            drop(apply(store));
            let resumed: Arc<Flag> = lock(&store.state).resumed.get_or_insert_default().clone();
            tokio::select! {
                biased;
                () = resumed.raised() => {}
                () = stop => {}
            }
            Err(reply_lost())
        }
        Some(Disturbance::Late(by)) => {
            let at = store.clock.now().after(by);
            tokio::select! {
                biased;
                () = store.clock.sleep_until(at) => Ok(apply(store)),
                () = stop => stopped(),
            }
        }
    }
}
