//! PgBouncer between the client and the server.

use tenure::ErrorKind;

use crate::support::{
    Database, OPTIONS, POSTGRES, assert_says, connect, name, soon, take, until, wait_as,
};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use tenure_testkit::needs;
use tenure_testkit::pgbouncer::Pooler;
use tenure_testkit::sql_client::SqlClient;

fn url(pooler: &Pooler) -> String {
    format!("{}?{OPTIONS}", POSTGRES.url_at(pooler.port()))
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_share_sessions_are_refused() {
    needs!(pgbouncer);
    for mode in ["transaction", "statement"] {
        let pooler = Pooler::start(&POSTGRES, mode, 20);
        let outcome = soon(tenure::connect(&url(&pooler))).await;
        assert_says(
            outcome,
            ErrorKind::Unsupported,
            &[
                "gives the sessions of the server to other clients",
                "session mode",
                "mode=table",
            ],
        );
        // The sessions are those of other programs, so nothing may have been set in them.
        let options: PgConnectOptions = POSTGRES.url_at(pooler.port()).parse().unwrap();
        // The pooler refuses a parameter that the client library sends otherwise.
        let options = options
            .ssl_mode(PgSslMode::Disable)
            .extra_float_digits(None);
        for setting in ["lock_timeout", "synchronous_commit", "idle_session_timeout"] {
            let show = format!("SHOW {setting}");
            let shared = SqlClient::postgres(options.clone()).value(&show);
            assert_eq!(shared, POSTGRES.admin().value(&show), "{setting}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_of_our_own_are_as_good_as_the_server_itself() {
    needs!(pgbouncer);
    let pooler = Pooler::start(&POSTGRES, "session", 20);
    let (client, direct) = (
        connect(&url(&pooler)).await,
        connect(&Database::url(&*POSTGRES)).await,
    );
    let name = name("pooled");
    let guard = take(&client, &name).await;
    let waiting = wait_as(&*POSTGRES, &direct, &name, 1).await;
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    let waiting = wait_as(&*POSTGRES, &client, &name, 1).await;
    soon(next.release()).await.unwrap();
    let last = soon(waiting).await.unwrap().unwrap();
    drop(last);
    until("nothing is left", || POSTGRES.holders(&name).is_empty()).await;
    client.close().await;
}
