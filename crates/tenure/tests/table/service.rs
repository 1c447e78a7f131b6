//! A web service with one pool for its queries and its locks.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::post;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

use tenure::{Client, tables};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;

use crate::common::soon;

/// The name that the service gives to its connections.
const SERVICE: &str = "billing";

const CONNECTIONS: u32 = 4;

/// What each request of the service can use.
#[derive(Clone)]
struct App {
    pool: PgPool,
    locks: Client,
}

impl App {
    async fn new(pool: PgPool) -> Result<Self, tenure::Error> {
        let locks = Client::builder(tables::Store::from_pool(&pool).await?).build()?;
        locks.init().await?;
        Ok(Self { pool, locks })
    }
}

/// Adds to the balance of an account, which is read and written by two statements.
async fn charge(State(app): State<App>, Path(id): Path<i32>) -> Result<String, StatusCode> {
    let failed = |err: sqlx::Error| {
        eprintln!("{err}");
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let guard = app.locks.lock(format!("account/{id}")).acquire().await;
    let guard = guard.map_err(|err| {
        eprintln!("{err:#}");
        StatusCode::SERVICE_UNAVAILABLE
    })?;
    let balance: i32 = sqlx::query_scalar("SELECT balance FROM accounts WHERE id = $1")
        .bind(id)
        .fetch_one(&app.pool)
        .await
        .map_err(failed)?;
    sqlx::query("UPDATE accounts SET balance = $1 WHERE id = $2")
        .bind(balance + 1)
        .bind(id)
        .execute(&app.pool)
        .await
        .map_err(failed)?;
    let released = guard.release().await;
    released.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    Ok((balance + 1).to_string())
}

/// The first line of the answer to a request without a body.
async fn post_to(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_opens_no_connection_beside_its_pool() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let options: PgConnectOptions = server.url().parse().unwrap();
    let options = options
        .ssl_mode(PgSslMode::Disable)
        .application_name(SERVICE);
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS)
        .connect_lazy_with(options);
    let inside = server.database_admin();
    inside.rows("CREATE TABLE accounts(id int PRIMARY KEY, balance int NOT NULL); INSERT INTO accounts VALUES (1, 0), (2, 0); GRANT ALL ON accounts TO PUBLIC");
    let app = soon(App::new(pool)).await.unwrap();
    let router = Router::new()
        .route("/charge/{id}", post(charge))
        .with_state(app.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serve = axum::serve(listener, router).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let serve = tokio::spawn(async move { serve.await });
    let requests = (0..40).map(|number| {
        let path = format!("/charge/{}", number % 2 + 1);
        tokio::spawn(async move { post_to(address, &path).await })
    });
    let user = tenure_testkit::USER;
    let others = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}' AND application_name <> '{SERVICE}'"
    );
    let all = format!("SELECT count(*) FROM pg_stat_activity WHERE usename = '{user}'");
    for request in requests.collect::<Vec<_>>() {
        assert_eq!(soon(request).await.unwrap(), "HTTP/1.1 200 OK");
        assert_eq!(server.admin().value(&others), "0");
        let all: u32 = server.admin().value(&all).parse().unwrap();
        assert!(all <= CONNECTIONS, "{all}");
    }
    // No increment is lost, so each request had the lock alone.
    let balances = "SELECT string_agg(balance::text, ',' ORDER BY id) FROM accounts";
    assert_eq!(inside.value(balances), "20,20");
    stop.send(()).unwrap();
    soon(serve).await.unwrap().unwrap();
    soon(app.locks.close()).await;
}
