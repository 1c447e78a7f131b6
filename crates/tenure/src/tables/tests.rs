//! Requests that meet each other, or the end of a client, in a certain order.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::fence::OwnerId;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::{Clock, poll_now};
use tenure_core::store::{Answer, Hold, Release, Renewal, Request};
use tenure_testkit::postgres::Postgres;
use tenure_testkit::sql_client::SqlClient;
use tenure_testkit::{needs, until};

use super::acquire::{acquire, downgrade};
use super::detach::detach;
use super::release::{close, release};
use super::renew::renew;
use super::settings::Settings;
use super::store::Store;
use crate::database::Server;

/// Longer than a test takes by any clock.
const TTL: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3_600);

async fn store(postgres: &Postgres, clock: Clock) -> Arc<Store> {
    let url = format!("{}?mode=table&tls=off&timeout=60s", postgres.url());
    let (server, _, url) = Server::parse(&url).unwrap();
    let settings = Settings::of_server(server, url).unwrap();
    let store = Store::with(settings, clock).await.unwrap();
    super::init::init(&store).await.unwrap();
    store
}

async fn held(store: &Store, name: &str, options: impl FnOnce(&mut Request)) -> Hold {
    let name = LockName::new(name).unwrap();
    let mut request = Request::new(name, OwnerId::random(), TTL);
    options(&mut request);
    let answer = acquire(store, &request).await.unwrap();
    let Answer::Granted(grant) = answer else {
        panic!("{answer:?}");
    };
    Hold::new(&request, grant.token)
}

/// A transaction that has locked the row of a name.
fn row_lock(postgres: &Postgres, name: &str) -> SqlClient {
    let blocker = postgres.database_admin();
    let row = format!("SELECT 1 FROM tenure_locks WHERE name='{name}'");
    blocker.rows(&format!("BEGIN;{row} FOR UPDATE"));
    blocker
}

fn until_one_waits(postgres: &Postgres) {
    until("a request waits for a row", || {
        let waits = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type='Lock'";
        postgres.admin().value(waits) == "1"
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_a_downgrade_overtakes_is_no_loss() {
    needs!(postgres);
    let postgres = Postgres::start(&[]);
    let store = store(&postgres, Clock::system()).await;
    let first = held(&store, "a", |_| ()).await;
    let second = held(&store, "b", |_| ()).await;
    // The renewal waits at the first row, and has seen the mode of the second hold already.
    let blocker = row_lock(&postgres, "a");
    let renewing = tokio::spawn({
        let (store, holds) = (store.clone(), vec![first, second.clone()]);
        async move { renew(&store, holds).await }
    });
    until_one_waits(&postgres);
    assert!(downgrade(&store, &second, Mode::Shared).await.unwrap());
    blocker.rows("COMMIT");
    let renewals = renewing.await.unwrap();
    let is_renewed = |it: &Renewal| matches!(it, Renewal::Renewed { .. });
    assert!(renewals.iter().all(is_renewed), "{renewals:?}");
}

/// A request for several names locks the rows in the order of the names. The two must not wait for each other.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_locks_rows_in_the_order_of_their_names() {
    needs!(postgres);
    let postgres = Postgres::start(&[]);
    let store = store(&postgres, Clock::system()).await;
    // In the table the rows lie in the order of their insertion.
    let holds = vec![
        held(&store, "z", |_| ()).await,
        held(&store, "a", |_| ()).await,
    ];
    let blocker = row_lock(&postgres, "a");
    let renewing = tokio::spawn({
        let store = store.clone();
        async move { renew(&store, holds).await }
    });
    until_one_waits(&postgres);
    blocker.rows("SELECT 1 FROM tenure_locks WHERE name='z' FOR UPDATE NOWAIT");
    blocker.rows("COMMIT");
    let renewals = renewing.await.unwrap();
    let is_renewed = |it: &Renewal| matches!(it, Renewal::Renewed { .. });
    assert!(renewals.iter().all(is_renewed), "{renewals:?}");
}

/// A network may deliver a request twice, and the second time after later requests of the same owner.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_request_makes_no_lease_shorter() {
    needs!(postgres);
    let postgres = Postgres::start(&[]);
    let store = store(&postgres, Clock::system()).await;
    let rows = postgres.database_admin();
    let name = LockName::new("n").unwrap();
    let request = Request::new(name, OwnerId::random(), TTL);
    let _ = acquire(&store, &request).await.unwrap();
    let renewed = "UPDATE tenure_locks SET until=until+3600000000 RETURNING until::text";
    let renewed = rows.value(renewed);
    let is_longer = || rows.value("SELECT until::text FROM tenure_locks") >= renewed;
    let _ = acquire(&store, &request).await.unwrap();
    assert!(is_longer());
    store.requests.enqueue(&request, TTL).await.unwrap();
    assert!(is_longer());
}

/// The clock of the client stands still, so `close` cannot give up.
#[tokio::test(flavor = "multi_thread")]
async fn close_releases_all_holds_though_the_row_of_one_is_locked() {
    needs!(postgres);
    let postgres = Postgres::start(&[]);
    let store = store(&postgres, Clock::virtual_clock().0).await;
    for at in 0..8 {
        held(&store, &format!("n{at}"), |_| ()).await;
    }
    let blocker = row_lock(&postgres, "n0");
    let watcher = postgres.database_admin();
    let count = || watcher.value("SELECT COUNT(*) FROM tenure_locks WHERE owner<>''");
    let closing = tokio::spawn(async move { close(&store).await });
    until("the other holds are released", || count() == "1");
    blocker.rows("COMMIT");
    closing.await.unwrap();
    assert_eq!(count(), "0");
}

/// A receipt may be written for the hold when `close` has begun.
#[tokio::test(flavor = "multi_thread")]
async fn close_does_not_release_what_is_being_detached() {
    needs!(postgres);
    let postgres = Postgres::start(&[]);
    let store = store(&postgres, Clock::system()).await;
    let hold = held(&store, "n", |_| ()).await;
    let blocker = row_lock(&postgres, "n");
    let detaching = tokio::spawn({
        let (store, hold) = (store.clone(), hold.clone());
        async move { detach(&store, &hold).await }
    });
    until_one_waits(&postgres);
    let closing = poll_now(Box::pin(close(&store)));
    blocker.rows("COMMIT");
    let renewal = detaching.await.unwrap();
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    closing.expect_err("a request is under way").await;
    let owner = postgres.database_admin();
    let owner = owner.value("SELECT owner FROM tenure_locks");
    assert_eq!(owner, hold.owner.to_hex());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_that_was_never_used_leaves_no_reservation() {
    needs!(postgres);
    let postgres = Postgres::start(&[]);
    let store = store(&postgres, Clock::system()).await;
    let rows = postgres.database_admin();
    let until = |name: &str| {
        let until = format!("SELECT until FROM tenure_locks WHERE name='{name}'");
        rows.value(&until)
    };
    for is_unused in [false, true] {
        for case in ["held", "unknown", "shared"] {
            let name = format!("{case}-{is_unused}");
            let hold = held(&store, &name, |request| {
                (request.min_hold, request.lock_delay) = (HOUR, HOUR);
                if case == "shared" {
                    request.mode = Mode::Shared;
                }
            });
            let mut hold = hold.await;
            if case == "unknown" {
                store.requests.holds.remove(hold.owner);
            }
            hold.unused = is_unused;
            let outcome = release(&store, &hold).await.unwrap();
            assert_eq!(outcome, Release::Released, "{name}");
            assert_eq!(until(&name) == "0", is_unused, "{name}");
        }
    }
}

/// The guard of such a hold may still be there, and so its end is not clean.
#[tokio::test(flavor = "multi_thread")]
async fn close_keeps_the_lock_delay_of_a_hold_that_has_run_out() {
    needs!(postgres);
    let postgres = Postgres::start(&[]);
    let (clock, time) = Clock::virtual_clock();
    let store = store(&postgres, clock).await;
    let delayed = |request: &mut Request| request.lock_delay = HOUR;
    held(&store, "lost", delayed).await;
    let renewed = held(&store, "renewed", delayed).await;
    time.advance(TTL / 2);
    let renewals = renew(&store, vec![renewed]).await;
    assert!(matches!(renewals[..], [Renewal::Renewed { .. }]));
    time.advance(TTL * 3 / 4);
    close(&store).await;
    let free = postgres
        .database_admin()
        .rows("SELECT name,(until=0)::text FROM tenure_locks ORDER BY name");
    let row = |name: &str, is_free: &str| vec![Some(name.to_owned()), Some(is_free.to_owned())];
    assert_eq!(free, [row("lost", "false"), row("renewed", "true")]);
}
