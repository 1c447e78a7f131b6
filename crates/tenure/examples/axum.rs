//! A web service that runs one request per account at a time, in all of its instances, and shuts down gracefully.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Path, Request};
use axum::{Router, routing::post};
use tenure::tower::LockLayer;
use tenure::{Client, FencingToken};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn app(locks: Client) -> Router {
    let one_per_account = LockLayer::new(move |request: &Request<Body>| {
        // The path is the key. A request that finds it busy waits for a moment and is then refused with 409.
        let lock = locks.lock(request.uri().path());
        Some(lock.wait(Duration::from_millis(200)).label("transfer"))
    });
    Router::new()
        .route("/accounts/{id}", post(transfer))
        .layer(one_per_account)
}

/// Sends the fencing token with its writes.
async fn transfer(Path(id): Path<u32>, Extension(token): Extension<FencingToken>) -> String {
    tokio::time::sleep(Duration::from_secs(1)).await;
    format!("account {id}, done with token {token}")
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let locks = tenure::connect("memory:").await?; // of a real service: a store that all instances share
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;

    // In a real service: `tokio::signal::ctrl_c()` or SIGTERM.
    let (stop, is_stopped) = oneshot::channel::<()>();
    let service = tokio::spawn({
        let app = app(locks.clone());
        async move {
            let stopped = async { drop(is_stopped.await) };
            axum::serve(listener, app)
                .with_graceful_shutdown(stopped)
                .await
        }
    });

    // Two requests for one account, and one for another account.
    let requests = ["/accounts/7", "/accounts/7", "/accounts/8"].map(|path| {
        tokio::spawn(async move {
            let mut connection = TcpStream::connect(address).await?;
            let request = format!("POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
            connection.write_all(request.as_bytes()).await?;
            let mut response = String::new();
            connection.read_to_string(&mut response).await?;
            Ok::<_, Failure>(response)
        })
    });
    let mut answers = Vec::new();
    for request in requests {
        let response = request.await??;
        let status = response.split(' ').nth(1).unwrap_or_default().to_owned();
        let text = response.lines().last().unwrap_or_default();
        println!("{status}: {text}");
        answers.push(status);
    }
    answers.sort();
    assert_eq!(answers, ["200", "200", "409"]);

    // Requests that are under way end first, with their locks; then the link to the store is closed.
    let _ = stop.send(());
    service.await??;
    locks.close().await;
    Ok(())
}
