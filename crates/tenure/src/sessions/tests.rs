//! The store on real servers, at moments that only the store itself can see.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::poll_immediate;

use tenure_core::fence::OwnerId;
use tenure_core::name::LockName;
use tenure_core::options::Mode;
use tenure_core::rt::lock;
use tenure_core::store::{Answer, Hold, Release, Renewal, Request};
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::{Direction, Fault, Proxy};
use tenure_testkit::{TEST_TIMEOUT, needs, until};

use crate::database::Server;

use super::attempt::{self, AttemptOutcome};
use super::operations::{OperationError, OperationReply, OperationResult, SessionOperation};
use super::store::Store;
use super::{acquire, batch, release, renew, upgrade};

/// No lease ends during a test, and no request takes too long on a busy machine.
const OPTIONS: &str = "tls=off&timeout=30s&restart_guard=off&validate=30s";
const TTL: Duration = Duration::from_secs(90);

async fn connect(url: &str) -> Arc<Store> {
    let (server, _, url) = Server::parse(url).unwrap();
    soon(Store::connect(server, url)).await.unwrap()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TEST_TIMEOUT, future).await.unwrap()
}

fn request(mode: Mode) -> Request {
    let name = LockName::new("name").unwrap();
    let mut request = Request::new(name, OwnerId::random(), TTL);
    request.mode = mode;
    request
}

async fn take(store: &Arc<Store>, request: &Request) -> Hold {
    match soon(acquire::acquire(store, request)).await {
        Ok(Answer::Granted(grant)) => Hold::new(request, grant.token),
        other => panic!("{other:?}"),
    }
}

/// Three readers on two sessions: the first session carries the first reader and the third.
async fn readers(store: &Arc<Store>) -> [Hold; 3] {
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(take(store, &request(Mode::Shared)).await);
    }
    let [first, .., third] = [0, 1, 2].map(|at| store.holds.get(readers[at].owner).unwrap());
    assert!(Arc::ptr_eq(&first, &third));
    readers.try_into().unwrap()
}

/// The sessions that have an advisory lock.
fn holders(server: &Postgres) -> String {
    let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted";
    server.admin().value(sql)
}

/// A release without a reply is repeated. The server counts how often a session has a key, so two unlocks for one
/// reader would take the lock of another reader of the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_release_leaves_the_lock_of_another_reader() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let proxy = Proxy::postgres(server.port());
    let url = server.url_at(proxy.port());
    let store = connect(&format!("{url}?{OPTIONS}&connections=2")).await;
    let [first, ..] = readers(&store).await;
    let session = store.holds.get(first.owner).unwrap();
    proxy.hold(Direction::Down, true);
    let busy = session.clone();
    let ping =
        tokio::spawn(async move { batch::request(&busy, SessionOperation::Ping, None).await });
    until("the session is busy", || {
        session.operations.try_lock().is_none()
    });
    let mut releases = [(); 2].map(|()| Box::pin(release::release(&store, &first)));
    for release in &mut releases {
        assert!(poll_immediate(release).await.is_none());
    }
    assert_eq!(lock(&session.operations.queue).len(), 2);
    proxy.resume();
    assert!(soon(ping).await.unwrap().is_ok());
    let [one, two] = releases;
    assert_eq!(soon(one).await.unwrap(), Release::Released);
    assert_eq!(soon(two).await.unwrap(), Release::NotHeld);
    assert_eq!(holders(&server), "2");
}

/// The server may have refused the statement before or after it counted the key once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_reader_takes_nothing_from_another_reader() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let proxy = Proxy::postgres(server.port());
    let url = server.url_at(proxy.port());
    let store = connect(&format!("{url}?{OPTIONS}&connections=2")).await;
    let [first, _, third] = readers(&store).await;
    proxy.plan("acquire", Fault::Answer("57014 canceling statement"));
    let fourth = take(&store, &request(Mode::Shared)).await;
    let lost = renew::renew(&store, &[first, third]).await;
    assert!(
        matches!(lost[..], [Renewal::Lost(_), Renewal::Lost(_)]),
        "{lost:?}"
    );
    soon(release::release(&store, &fourth)).await.unwrap();
}

/// The caller of a downgrade gives up and releases: the server makes the lock shared before it sees the release.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_during_a_downgrade_leaves_no_lock() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let proxy = Proxy::postgres(server.port());
    let url = server.url_at(proxy.port());
    let store = connect(&format!("{url}?{OPTIONS}")).await;
    let hold = take(&store, &request(Mode::Exclusive)).await;
    let session = store.holds.get(hold.owner).unwrap();
    proxy.hold(Direction::Down, true);
    let task = (store.clone(), hold.clone());
    let downgrade =
        tokio::spawn(async move { upgrade::downgrade(&task.0, &task.1, Mode::Shared).await });
    until("the lock is shared", || {
        let shared =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'";
        server.admin().value(shared) == "1" && holders(&server) == "1"
    });
    let mut release = Box::pin(release::release(&store, &hold));
    assert!(poll_immediate(&mut release).await.is_none());
    proxy.resume();
    assert!(soon(downgrade).await.unwrap().unwrap());
    assert_eq!(soon(release).await.unwrap(), Release::Released);
    assert!(!session.is_ended(), "the lock would end with its session");
    assert_eq!(holders(&server), "0");
}

/// The check was about to be sent when the session began to keep its lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_behind_a_long_statement_has_its_limit() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let options = OPTIONS.replace("timeout=30s", "timeout=3s");
    let url = server.url_at(server.port());
    let store = connect(&format!("{url}?{options}")).await;
    let mut kept = request(Mode::Exclusive);
    kept.min_hold = TTL * 10;
    let hold = take(&store, &kept).await;
    let session = store.holds.get(hold.owner).unwrap();
    let answer = soon(renew::ping(&session)).await;
    assert!(
        matches!(answer, Err(OperationError::TimedOut)),
        "{answer:?}"
    );
    assert!(!session.is_ended());
}

/// The caller of the acquisition is gone when the grant arrives: the name does not stay reserved.
async fn an_unused_hold_reserves_nothing(url: &str) {
    let store = connect(&format!("{url}?{OPTIONS}")).await;
    let mut kept = request(Mode::Exclusive);
    kept.min_hold = TTL * 10;
    let mut hold = take(&store, &kept).await;
    let session = store.holds.get(hold.owner).unwrap();
    assert!(session.is_left_to_server());
    hold.unused = true;
    let released = soon(release::release(&store, &hold)).await;
    assert_eq!(released.unwrap(), Release::Released);
    assert!(store.holds.get(hold.owner).is_none());
    // One try, without waiting.
    let next = take(&store, &request(Mode::Exclusive)).await;
    soon(release::release(&store, &next)).await.unwrap();
    let released = soon(release::release(&store, &hold)).await;
    assert_eq!(released.unwrap(), Release::NotHeld);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_hold_reserves_nothing_in_mysql() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    an_unused_hold_reserves_nothing(&server.url_at(server.port())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unused_hold_reserves_nothing_in_postgres() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    an_unused_hold_reserves_nothing(&server.url_at(server.port())).await;
}

/// The wait has ended, and the command that cancels it has no answer: it may come later and cancel the next statement
/// of the session. So no other acquisition gets the session.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_without_an_answer_finds_no_other_acquisition() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let url = server.url_at(server.port());
    let holder = connect(&format!("{url}?{OPTIONS}")).await;
    let hold = take(&holder, &request(Mode::Exclusive)).await;
    let proxy = Proxy::postgres(server.port());
    let url = server.url_at(proxy.port());
    let options = OPTIONS.replace("timeout=30s", "timeout=6s");
    let store = connect(&format!("{url}?{options}")).await;
    let mut wanted = request(Mode::Exclusive);
    wanted.wait = true;
    let wanted = Arc::new(wanted);
    let task = (store.clone(), wanted.clone());
    let waiting = tokio::spawn(async move { acquire::acquire(&task.0, &task.1).await });
    let waiters = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
    until("it waits", || server.admin().rows(waiters).len() == 1);
    let session = store.holds.get(wanted.owner).unwrap();
    proxy.plan("look", Fault::NoReply);
    wanted.stop.raise();
    let answer = soon(waiting).await.unwrap();
    assert!(matches!(answer, Ok(Answer::Busy)), "{answer:?}");
    assert!(session.is_ended());
    proxy.resume();
    soon(release::release(&holder, &hold)).await.unwrap();
}

/// The session ends between the answer of the server and the grant: the driver would not learn of the loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_ended_grants_nothing() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let store = connect(&format!("{}?{OPTIONS}", server.url_at(server.port()))).await;
    let wanted = request(Mode::Exclusive);
    let hold = take(&store, &wanted).await;
    let session = store.holds.get(hold.owner).unwrap();
    session.end();
    let reply = OperationReply {
        result: OperationResult::Granted(hold.token),
        sent: session.lifetime.sent(),
        round_trip: Duration::ZERO,
    };
    let granted = attempt::granted(&store, &wanted, &session, hold.token, reply, None);
    let outcome = soon(granted).await;
    assert!(matches!(outcome, Ok(AttemptOutcome::SessionEnded(_))));
    assert!(store.holds.get(hold.owner).is_none());
}
