//! The common part of the harnesses of real servers.

#![allow(dead_code, reason = "with few features not all of it is used")]

use std::sync::Arc;

use tenure::conformance::{Failure, Harness, RequestFault, Verdict};
use tenure::error::Step;
use tenure::guarantees::Guarantees;
use tenure::store::BoxFuture;
use tenure::{Client, Error};

use tenure_testkit::proxy::{Fault, Planner};

use super::callers::Connect;

pub(crate) type Opened = BoxFuture<Result<Arc<dyn Harness>, Failure>>;

/// The URL and the guarantees of a store.
pub(crate) struct Store {
    pub(crate) url: String,
    pub(crate) guarantees: Guarantees,
    connect: Connect,
}

impl Store {
    pub(crate) fn client(&self) -> BoxFuture<Result<Client, Error>> {
        let (connect, url) = (self.connect, self.url.clone());
        Box::pin(async move { retried(connect, &url).await })
    }
}

pub(crate) fn by_url(url: String) -> BoxFuture<Result<Client, Error>> {
    Box::pin(async move {
        #[cfg(feature = "redlock")]
        if url.starts_with("redlock:") {
            return client_of_a_majority(&url).await;
        }
        tenure::connect(&url).await
    })
}

/// As `connect` makes it, but each server has as long as for a renewal. The usual limit of a tenth of the ttl would
/// measure how busy this machine is.
#[cfg(feature = "redlock")]
async fn client_of_a_majority(url: &str) -> Result<Client, Error> {
    use tenure::{majority, redis};
    let settings = majority::Settings::default();
    let settings = settings.with_node_timeout(std::time::Duration::from_millis(1_300));
    let nodes = redis::Store::connect_independent(url).await?;
    Client::from_dyn_store(majority::Store::new(nodes, settings)?)
}

/// A server on a busy machine may not answer within the limit of one attempt.
async fn retried(connect: Connect, url: &str) -> Result<Client, Error> {
    for _ in 0..10 {
        match connect(url.to_owned()).await {
            Err(err) if err.is_retryable() => {}
            connected => return connected,
        }
    }
    connect(url.to_owned()).await
}

/// Creates the tables that the store needs, asks for its guarantees, and opens a harness with them.
pub(crate) fn open_at<H: Harness>(
    url: String,
    harness: impl FnOnce(Store) -> H + Send + 'static,
) -> Opened {
    open_by(by_url, url, harness)
}

/// The same, with clients that are made in that way.
pub(crate) fn open_by<H: Harness>(
    connect: Connect,
    url: String,
    harness: impl FnOnce(Store) -> H + Send + 'static,
) -> Opened {
    Box::pin(async move {
        let client = retried(connect, &url).await?;
        client.init().await?;
        let guarantees = client.guarantees().clone();
        client.close().await;
        let store = Store {
            url,
            guarantees,
            connect,
        };
        Ok(Arc::new(harness(store)) as _)
    })
}

/// Methods of a [`Harness`] that are the same for every server. `self.store` is a [`Store`].
macro_rules! methods_of_stores {
    () => {
        fn client(&self) -> BoxFuture<Result<tenure::Client, tenure::Error>> {
            self.store.client()
        }

        fn guarantees(&self) -> tenure::guarantees::Guarantees {
            self.store.guarantees.clone()
        }

        fn leases(&self) -> bool {
            true
        }

        fn url(&self) -> Option<String> {
            Some(self.store.url.clone())
        }

        fn connect(&self, url: String) -> Option<BoxFuture<Result<tenure::Client, tenure::Error>>> {
            Some(Box::pin(async move { tenure::connect(&url).await }))
        }

        fn lock_holder(&self) -> Option<std::path::PathBuf> {
            Some(env!("CARGO_BIN_EXE_tenure-lock-holder").into())
        }
    };
}
pub(crate) use methods_of_stores;

/// A capability that waits for no other task. It blocks its thread until the action is done.
pub(crate) fn at_once(action: impl FnOnce() + Send + 'static) -> Option<BoxFuture<Verdict>> {
    Some(Box::pin(async move {
        action();
        Ok(())
    }))
}

/// What a proxy calls the requests of a step.
pub(crate) fn requests_of(step: Step) -> &'static str {
    match step {
        Step::Acquire => "acquire",
        Step::Renew => "renew",
        Step::Release => "release",
        Step::Upgrade => "upgrade",
        _ => "look",
    }
}

/// Plans what happens to the next of these requests. One that is lost is answered with `refusal`.
pub(crate) fn disturb(
    planner: Planner,
    requests: &'static str,
    request_fault: RequestFault,
    refusal: &'static str,
) -> Option<BoxFuture<Verdict>> {
    let fault = match request_fault {
        RequestFault::RequestLost => Fault::Answer(refusal),
        RequestFault::ReplyLost => Fault::CutAfter,
        RequestFault::ReplyNever => Fault::NoReply,
        RequestFault::Late(by) => Fault::Late(by),
        _ => return None,
    };
    at_once(move || planner.plan(requests, fault))
}
