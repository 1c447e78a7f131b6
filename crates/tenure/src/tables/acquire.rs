//! One acquisition, from the first request to the answer.

use std::sync::Arc;

use tenure_core::backend::{Answer, Request};
use tenure_core::error::Error;

use super::names::Format;
use super::store::Store;
use super::wait;

pub(super) async fn acquire(store: &Arc<Store>, request: &Request) -> Result<Answer, Error> {
    let _acquisition = store.acquisitions.enter();
    if let Some(granted) = store.requests.acquire(request).await? {
        return Ok(store.remember(request, granted));
    }
    if !request.wait || request.stop.is_raised() {
        return Ok(Answer::Busy);
    }
    match store.settings.format {
        Format::Tenure => wait::in_queue(store, request).await,
        Format::ShedLock => wait::by_polling(store, request).await,
    }
}
