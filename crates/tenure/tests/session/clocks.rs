//! Wall clocks of servers that jump, while one client holds a lock and another one waits.

use std::time::{Duration, Instant};

use tenure::ErrorKind;

use crate::support::{Database, TTL, connect, name, soon, take, wait_as};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::clock::Clock;
use tenure_testkit::mariadb::MariaDb;
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;

const HOURS: i64 = 4 * 3_600;

/// A held lock stays held, and a wait ends by the client's clock and not by the server's.
async fn jumps(database: &dyn Database, clock: &Clock) {
    let (first, second) = (
        connect(&database.url()).await,
        connect(&database.url()).await,
    );
    let mut last = 0;
    for jump in [HOURS, -HOURS, 0] {
        let name = name("jump");
        let guard = take(&first, &name).await;
        let wait = Duration::from_secs(4);
        let lock = second.lock(&name).ttl(TTL).wait(wait);
        let start = Instant::now();
        let waiting = tokio::spawn(async move { lock.acquire().await });
        crate::support::until("it waits", || database.waiters(&name).len() == 1).await;
        clock.set(jump);
        let err = match soon(waiting).await.unwrap() {
            Err(err) => err,
            // PostgreSQL may take a silent session for overdue when its clock jumps forward. The guarantees say so.
            Ok(next) => {
                assert!(jump > last && database.url().starts_with("postgres"));
                soon(guard.lost()).await;
                soon(next.release()).await.unwrap();
                last = jump;
                continue;
            }
        };
        last = jump;
        let waited = start.elapsed();
        assert_eq!(err.kind(), ErrorKind::WaitElapsed, "{err}");
        assert!(
            waited >= wait && waited < wait + TEST_TIMEOUT,
            "waited {waited:?}"
        );
        assert!(guard.is_held(), "lost when the clock jumped by {jump} s");
        let waiting = wait_as(database, &second, &name, 1).await;
        let before = guard.token();
        soon(guard.release()).await.unwrap();
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(next.token() > before, "{} follows {before}", next.token());
        soon(next.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mysql() {
    needs!(mariadb, "cc");
    let clock = Clock::make();
    let server = MariaDb::start_with(&clock.command(), &[]);
    jumps(&server, &clock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres() {
    needs!(postgres, "cc");
    let clock = Clock::make();
    let server = Postgres::start_with(&clock.command(), &[]);
    jumps(&server, &clock).await;
}
