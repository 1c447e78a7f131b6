//! The layer for services: what a request is answered when its lock is free, busy, lost, or cannot be asked for.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, Response, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use tenure::memory;
use tenure::tower::LockLayer;
use tenure::{Client, FencingToken};
use tower_layer::Layer as _;
use tower_service::Service;

fn layer(client: &Client) -> LockLayer<Body> {
    let client = client.clone();
    LockLayer::new(move |request: &Request<Body>| {
        let lock = client.lock(request.uri().path()).wait(Duration::ZERO);
        (request.method() != Method::GET).then_some(lock)
    })
}

/// A service that answers with the token of its request, or "no lock".
fn app(client: &Client) -> Router {
    async fn token(token: Option<Extension<FencingToken>>) -> String {
        token.map_or("no lock".into(), |Extension(token)| token.to_string())
    }
    let route = post(token).get(token);
    Router::new().route("/{id}", route).layer(layer(client))
}

async fn ask(service: &mut Router, method: Method, path: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(Body::empty()).unwrap();
    let response = service.call(request).await.unwrap();
    let status = response.status();
    let body = to_bytes(response.into_body(), 10_000).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn client(store: &memory::Store) -> Client {
    Client::from_store(store.clone()).unwrap()
}

#[tokio::test]
async fn a_request_runs_under_the_lock_of_its_key() {
    let store = memory::Store::new();
    let mut app = app(&client(&store));
    let other = client(&store);
    let guard = other.lock("/7").label("by hand").acquire().await.unwrap();
    let (status, text) = ask(&mut app, Method::POST, "/7").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(text.contains("by hand"), "{text}");
    // Another key, and a request that needs no lock.
    let (status, _) = ask(&mut app, Method::POST, "/8").await;
    assert_eq!(status, StatusCode::OK);
    let no_lock = ask(&mut app, Method::GET, "/7").await;
    assert_eq!(no_lock, (StatusCode::OK, "no lock".into()));
    let held = guard.token();
    guard.release().await.unwrap();
    let (status, token) = ask(&mut app, Method::POST, "/7").await;
    assert_eq!(status, StatusCode::OK);
    assert!(token.parse::<u64>().unwrap() > held.get());
    // Released with the response.
    assert!(other.lock("/7").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_closed_client_is_no_error_of_the_service() {
    let client = client(&memory::Store::new());
    let mut app = app(&client);
    client.close().await;
    let (status, text) = ask(&mut app, Method::POST, "/7").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("not available"), "{text}");
}

#[tokio::test]
async fn a_store_that_is_down_is_503() {
    let store = memory::Store::new();
    let mut app = app(&client(&store));
    store.disturb(
        tenure::error::Step::Acquire,
        memory::Disturbance::RequestLost,
    );
    let (status, text) = ask(&mut app, Method::POST, "/7").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{text}");
}

/// A service whose requests never end.
#[derive(Clone)]
struct Endless;

impl Service<Request<Body>> for Endless {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        Box::pin(std::future::pending())
    }
}

#[tokio::test]
async fn a_loss_ends_the_request() {
    let store = memory::Store::with_virtual_clock();
    let client = client(&store);
    let mut service = layer(&client).layer(Endless);
    let request = Request::post("/7").body(Body::empty()).unwrap();
    let answer = tokio::spawn(service.call(request));
    while !client.is_held_here("/7") {
        tokio::task::yield_now().await;
    }
    store.pause();
    store.advance(Duration::from_secs(600));
    let response = answer.await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

/// A service that may be called only after it was ready, as `tower` allows.
struct Once {
    is_ready: bool,
}

impl Clone for Once {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl Service<Request<Body>> for Once {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        assert!(self.is_ready);
        ready(Ok(Response::new(Body::empty())))
    }
}

#[tokio::test]
async fn the_service_that_is_ready_is_called() {
    let client = client(&memory::Store::new());
    let mut service = layer(&client).layer(Once { is_ready: false });
    for _ in 0..2 {
        std::future::poll_fn(|cx| service.poll_ready(cx))
            .await
            .unwrap();
        let request = Request::post("/7").body(Body::empty()).unwrap();
        let response = service.call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
}
