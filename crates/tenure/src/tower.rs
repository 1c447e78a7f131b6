//! A layer of `tower` that runs each request under a lock: one request per key, in all instances of a service (feature
//! `tower`). It fits services over the types of the crate `http`, such as those of axum, hyper and tonic.
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, body::Body, extract::Request, routing::post};
//! use tenure::tower::LockLayer;
//!
//! # async fn example() -> Result<(), tenure::Error> {
//! let locks = tenure::connect("memory:").await?;
//! let layer = LockLayer::new(move |request: &Request<Body>| {
//!     // GET needs no lock; another request for the same path is refused after 200 ms.
//!     let is_write = request.method() != axum::http::Method::GET;
//!     is_write.then(|| locks.lock(request.uri().path()).wait(Duration::from_millis(200)))
//! });
//! let app: Router = Router::new()
//!     .route("/accounts/{id}/transfers", post(async || "done"))
//!     .layer(layer);
//! # Ok(()) }
//! ```
//!
//! | The lock | The answer |
//! | --- | --- |
//! | granted | that of the inner service, which finds the [`FencingToken`] in the extensions of the request |
//! | busy until `wait` was over | 409, with the text of the error, which names the holder |
//! | the store is down, or the client is closed (a graceful shutdown) | 503 |
//! | lost while the inner service worked | 500: the service was dropped at its current await, and part of its work may be done |
//! | refused: wrong name, missing rights | 500 |
//!
//! The text of a 409 has the host, the process and the label of the holder: do not show it to clients that must not know
//! them. The errors behind 500 and 503 are events of `tracing` with the level `WARN`; their text is not sent.
//!
//! The lock is released when the inner service has returned the head of its response. A body that is streamed after that is
//! not under the lock.

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Request, Response, StatusCode, header};
use tower_layer::Layer;
use tower_service::Service;

use tenure_core::error::{Error, ErrorKind};
use tenure_core::{FencingToken, Guard, Lock};

/// Runs each request under the lock that a function chooses for it. See the [module](self).
pub struct LockLayer<B> {
    choose: Arc<ChooseLock<B>>,
}

type ChooseLock<B> = dyn Fn(&Request<B>) -> Option<Lock> + Send + Sync;

impl<B> LockLayer<B> {
    /// `choose` returns the lock of a request, with its options, above all [`wait`](Lock::wait): without that option a request
    /// waits for its turn as long as its client does. `None`: the request needs no lock.
    pub fn new(choose: impl Fn(&Request<B>) -> Option<Lock> + Send + Sync + 'static) -> Self {
        Self {
            choose: Arc::new(choose),
        }
    }
}

impl<B, S> Layer<S> for LockLayer<B> {
    type Service = LockService<B, S>;

    fn layer(&self, inner: S) -> Self::Service {
        LockService {
            choose: self.choose.clone(),
            inner,
        }
    }
}

/// A service whose requests run under locks. Made by [`LockLayer`].
pub struct LockService<B, S> {
    choose: Arc<ChooseLock<B>>,
    inner: S,
}

impl<B, R, S> Service<Request<B>> for LockService<B, S>
where
    B: Send + 'static,
    R: From<String> + Send + 'static,
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Send,
    S::Future: Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The service that was polled until it is ready is the one that is called.
        let next = self.inner.clone();
        let inner = mem::replace(&mut self.inner, next);
        let lock = (self.choose)(&request);
        Box::pin(serve(lock, inner, request))
    }
}

async fn serve<B, R, S>(
    lock: Option<Lock>,
    mut inner: S,
    mut request: Request<B>,
) -> Result<Response<R>, S::Error>
where
    R: From<String>,
    S: Service<Request<B>, Response = Response<R>>,
{
    let Some(lock) = lock else {
        return inner.call(request).await;
    };
    let under_lock = lock.run(async move |guard: &Guard| {
        let token: FencingToken = guard.token();
        request.extensions_mut().insert(token);
        inner.call(request).await
    });
    under_lock.await.unwrap_or_else(|err| Ok(refusal(&err)))
}

/// The response to a request that did not run to its end under its lock.
fn refusal<R: From<String>>(err: &Error) -> Response<R> {
    let (status, text) = match err.kind() {
        ErrorKind::WaitElapsed => (StatusCode::CONFLICT, err.to_string()),
        ErrorKind::Unreachable | ErrorKind::Indeterminate | ErrorKind::Closed => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the store of the locks is not available".to_owned(),
        ),
        ErrorKind::Lost => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the lock of this request was lost, and part of the work may be done".to_owned(),
        ),
        _ => (
            StatusCode::INTERNAL_SERVER_ERROR,
            "the request cannot be locked".to_owned(),
        ),
    };
    if status != StatusCode::CONFLICT {
        tracing::warn!(error = %format_args!("{err:#}"), "a request did not run under its lock");
    }
    let mut response = Response::new(R::from(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

impl<B> Clone for LockLayer<B> {
    fn clone(&self) -> Self {
        Self {
            choose: self.choose.clone(),
        }
    }
}

impl<B, S: Clone> Clone for LockService<B, S> {
    fn clone(&self) -> Self {
        Self {
            choose: self.choose.clone(),
            inner: self.inner.clone(),
        }
    }
}

impl<B> fmt::Debug for LockLayer<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockLayer").finish_non_exhaustive()
    }
}

impl<B, S> fmt::Debug for LockService<B, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockService").finish_non_exhaustive()
    }
}
