//! `#[tenure::locked]` over the memory store.

#[path = "common/memory.rs"]
mod memory_store;

use std::cell::Cell;
use std::fmt::Display;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::memory;
use tenure::{Client, Error, ErrorKind, Mode, Owner, Renew};

use memory_store::{settle, store};

/// An error type as users write it.
#[derive(Debug)]
enum AppError {
    Lock(Error),
    Parse(std::num::ParseIntError),
}

impl From<Error> for AppError {
    fn from(err: Error) -> Self {
        Self::Lock(err)
    }
}

impl From<std::num::ParseIntError> for AppError {
    fn from(err: std::num::ParseIntError) -> Self {
        Self::Parse(err)
    }
}

type AppResult<T> = Result<T, AppError>;

#[tenure::locked(client = locks, name = "order:{id}", guard = guard)]
async fn held(locks: &Client, id: u64) -> Result<(String, u64), Error> {
    Ok((guard.name().as_str().to_owned(), guard.token().get()))
}

#[tokio::test]
async fn the_body_runs_under_the_named_lock_which_is_free_afterwards() {
    let (store, client) = store();
    let (name, first) = held(&client, 42).await.unwrap();
    let (_, second) = held(&client, 42).await.unwrap();
    assert_eq!(name, "order:42");
    assert!(second > first);
    assert!(store.is_idle());
}

/// Reads, waits and writes: two calls at the same time would lose an update.
#[tenure::locked(client = locks, name = "counter")]
async fn count(locks: Client, counter: &AtomicU32) -> Result<(), Error> {
    let before = counter.load(Ordering::SeqCst);
    tokio::task::yield_now().await;
    counter.store(before + 1, Ordering::SeqCst);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_exclude_each_other_and_their_futures_can_be_spawned() {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let client = tenure::connect("memory:").await.unwrap();
    let tasks: Vec<_> = (0..100)
        .map(|_| tokio::spawn(count(client.clone(), &COUNTER)))
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(COUNTER.load(Ordering::SeqCst), 100);
}

#[tenure::locked(client = locks, name = "report", skip, guard = guard)]
async fn report(locks: &Client, pages: Option<u32>) -> Result<Option<(u32, bool)>, Error> {
    let Some(pages) = pages else {
        return Ok(None);
    };
    tokio::task::yield_now().await;
    Ok(Some((pages, guard.is_held())))
}

#[tokio::test]
async fn a_body_is_skipped_where_the_lock_is_busy() {
    let (store, client) = store();
    assert_eq!(report(&client, Some(2)).await.unwrap(), Some((2, true)));
    assert_eq!(report(&client, None).await.unwrap(), None);
    let other = client.lock("report").acquire().await.unwrap();
    assert_eq!(report(&client, Some(2)).await.unwrap(), None);
    other.release().await.unwrap();
    let task = tokio::spawn(async move { report(&client, Some(3)).await });
    assert_eq!(task.await.unwrap().unwrap(), Some((3, true)));
    assert!(store.is_idle());
}

#[cfg(all(feature = "sqlx", feature = "sqlite"))]
mod transactions {
    use super::*;

    #[tenure::locked(client = locks, name = "row:{id}", transaction = pool, tx = tx, guard = guard)]
    async fn insert(
        locks: &Client,
        pool: &sqlx::SqlitePool,
        id: i64,
        fails: bool,
    ) -> Result<bool, Error> {
        let insert = sqlx::query("INSERT INTO rows VALUES (?)").bind(id);
        insert.execute(&mut **tx).await?;
        if fails {
            return Err(Error::new(ErrorKind::Store, "the body fails"));
        }
        Ok(guard.is_held())
    }

    #[tokio::test]
    async fn a_body_in_a_transaction_is_committed_or_rolled_back() {
        let (store, client) = store();
        // One connection: each one has a database of its own.
        let options = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
        let pool = options.connect("sqlite::memory:").await.unwrap();
        let table = sqlx::query("CREATE TABLE rows (id INTEGER)");
        table.execute(&pool).await.unwrap();
        let count = async || {
            let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM rows");
            count.fetch_one(&pool).await.unwrap()
        };
        assert!(insert(&client, &pool, 1, false).await.unwrap());
        assert_eq!(count().await, 1);
        let err = insert(&client, &pool, 2, true).await.unwrap_err();
        assert_eq!(err.to_string(), "the body fails");
        assert_eq!(count().await, 1, "rolled back");
        let (spawned, task_pool) = (client.clone(), pool.clone());
        let task = tokio::spawn(async move { insert(&spawned, &task_pool, 3, false).await });
        assert!(task.await.unwrap().unwrap());
        assert_eq!(count().await, 2);
        assert!(store.is_idle());
    }
}

#[tenure::locked(client = locks, name = "a")]
async fn parse(locks: &Client, text: &str) -> AppResult<i32> {
    if text.is_empty() {
        return Ok(0);
    }
    let number: i32 = text.trim().parse()?;
    Ok(number * 2)
}

#[tokio::test]
async fn return_and_the_question_mark_leave_the_body_and_release() {
    let (store, client) = store();
    assert_eq!(parse(&client, "").await.unwrap(), 0);
    assert_eq!(parse(&client, " 21").await.unwrap(), 42);
    let err = parse(&client, "x").await.unwrap_err();
    assert!(matches!(err, AppError::Parse(_)), "{err:?}");
    assert!(store.is_idle());
}

#[tenure::locked(client = locks, name = "a", wait = "5s", label = "for {who}", ttl = "1m")]
async fn waits(locks: &Client, who: &str) -> AppResult<()> {
    Ok(())
}

#[tokio::test]
async fn an_error_of_the_lock_is_converted_and_options_reach_the_lock() {
    let (store, client) = store();
    let other = Client::from_store(store.clone()).unwrap();
    let guard = other.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { waits(&client, "ann").await });
    settle().await;
    let queue = other.inspect("a").await.unwrap().queue.unwrap();
    assert_eq!(queue[0].label, "for ann");
    store.advance(Duration::from_millis(4_999));
    settle().await;
    assert!(!waiting.is_finished());
    store.advance(Duration::from_millis(1));
    match waiting.await.unwrap().unwrap_err() {
        AppError::Lock(err) => assert_eq!(err.kind(), ErrorKind::WaitElapsed),
        AppError::Parse(err) => panic!("{err}"),
    }
    guard.release().await.unwrap();
    assert!(store.is_idle());
}

#[tenure::locked(client = locks, name = "a", guard = guard)]
async fn stuck(locks: Client, started: tokio::sync::oneshot::Sender<u64>) -> AppResult<()> {
    started.send(guard.token().get()).unwrap();
    std::future::pending().await
}

#[tokio::test]
async fn a_body_is_cancelled_when_the_lock_is_lost() {
    let (store, client) = store();
    let (started, has_started) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(stuck(client.clone(), started));
    let token = has_started.await.unwrap();
    assert!(client.break_lock("a", token).await.unwrap());
    match running.await.unwrap().unwrap_err() {
        AppError::Lock(err) => assert!(err.is_lost(), "{err}"),
        AppError::Parse(err) => panic!("{err}"),
    }
    assert!(store.is_idle());
}

#[tenure::locked(client = locks, name = "a", wait = "0", guard = guard)]
async fn inner(locks: &Client) -> Result<u64, Error> {
    Ok(guard.token().get())
}

#[tenure::locked(client = locks, name = "a", guard = guard)]
async fn outer(locks: &Client) -> Result<(u64, u64), Error> {
    Ok((guard.token().get(), inner(locks).await?))
}

#[tokio::test]
async fn a_locked_function_may_call_one_with_the_same_lock() {
    let (store, client) = store();
    let (first, again) = outer(&client).await.unwrap();
    assert_eq!(first, again);
    assert!(store.is_idle());
}

struct Warehouse {
    locks: Client,
    wait_limit: Duration,
    stock: u32,
    place: String,
}

impl Warehouse {
    const NAME: &str = "warehouse";

    /// `self` by value; the methods below take it by unique and by shared reference.
    #[tenure::locked(client = self.locks, name = Self::NAME)]
    async fn close(self) -> Result<String, Error> {
        Ok(self.place)
    }

    #[tenure::locked(client = self.locks, name = format!("{}/{item}", Self::NAME), wait = self.wait_limit)]
    pub(crate) async fn take(&mut self, item: &str, n: u32) -> Result<&u32, AppError> {
        self.stock -= n;
        Ok(&self.stock)
    }

    #[tenure::locked(client = self.locks, name = &self.place, shared)]
    async fn place(&self) -> Result<&str, AppError> {
        Ok(&self.place)
    }
}

#[tokio::test]
async fn methods_lock_through_self_and_may_return_borrows_of_it() {
    let (store, locks) = store();
    let mut warehouse = Warehouse {
        locks,
        wait_limit: Duration::from_secs(1),
        stock: 3,
        place: "Ulm".into(),
    };
    assert_eq!(*warehouse.take("nail", 2).await.unwrap(), 1);
    assert_eq!(warehouse.place().await.unwrap(), "Ulm");
    assert_eq!(warehouse.close().await.unwrap(), "Ulm");
    assert!(store.is_idle());
}

/// A signature with everything that a signature can have.
#[tenure::locked(client = locks, name = "{prefix}/{{x}}/{N}", guard = guard)]
#[must_use]
async fn generic<'a, T, F, const N: usize>(
    locks: &Client,
    prefix: &'a str,
    mut items: [T; N],
    (first, _second): (u8, u8),
    seen: &mut Vec<T>,
    cell: Cell<u8>,
    show: F,
) -> Result<(&'a str, impl Display + use<'a, T, F, N>), AppError>
where
    T: Clone + Send + 'a,
    F: Fn(&T) -> String + Send,
{
    items.reverse();
    cell.set(first + 1);
    tokio::task::yield_now().await;
    seen.extend(items.iter().cloned());
    let text = items.iter().map(show).collect::<String>();
    Ok((prefix, format!("{text}{}{}", cell.get(), guard.name())))
}

#[tokio::test]
async fn generics_lifetimes_patterns_and_impl_trait_are_kept() {
    let (_store, client) = store();
    let task = tokio::spawn(async move {
        let prefix = String::from("p");
        let mut seen = Vec::new();
        let arguments = ([1, 2, 3], (7, 8), Cell::new(0));
        let (items, pair, cell) = arguments;
        let (prefix, text) = generic(
            &client,
            &prefix,
            items,
            pair,
            &mut seen,
            cell,
            i32::to_string,
        )
        .await
        .unwrap();
        assert_eq!(seen, [3, 2, 1]);
        format!("{prefix} {text}")
    });
    assert_eq!(task.await.unwrap(), "p 3218\"p/{x}/3\"");
}

#[tenure::locked(client = locks, names = ["from:{from}", to], guard = guard, wait = "0")]
async fn transfer(locks: &Client, from: u32, to: &str) -> Result<Vec<String>, Error> {
    Ok(guard
        .tokens()
        .map(|(name, _)| name.as_str().into())
        .collect())
}

#[tokio::test]
async fn several_names_are_taken_together() {
    let (store, client) = store();
    assert_eq!(transfer(&client, 1, "a").await.unwrap(), ["a", "from:1"]);
    let _guard = client.lock("a").acquire().await.unwrap();
    assert_eq!(
        transfer(&client, 1, "a").await.unwrap_err().kind(),
        ErrorKind::WaitElapsed
    );
    assert!(!client.inspect("from:1").await.unwrap().is_held());
    drop(_guard);
    assert!(store.is_idle());
}

#[tenure::locked(client = locks, name = "pool", permits = limit, fair, max_hold = "1h", min_hold = "2m",
    local_hand_overs = 0, lock_delay = "1.5s", guard = guard)]
async fn every_option(locks: &Client, limit: u32) -> Result<Mode, Error> {
    Ok(guard.mode())
}

#[tokio::test]
async fn every_option_can_be_given() {
    let (store, client) = store();
    let mode = every_option(&client, 3).await.unwrap();
    assert_eq!(mode.to_string(), "1 of 3 permits");
    assert_eq!(
        every_option(&client, 0).await.unwrap_err().kind(),
        ErrorKind::Invalid
    );
    let reserved = client.inspect("pool").await.unwrap().reserved;
    assert_eq!(reserved, Some(Duration::from_secs(120)));
    store.advance(Duration::from_secs(120));
    assert!(store.is_idle());
}

struct Clerk {
    locks: Client,
    owner: Owner,
}

impl Clerk {
    /// The lock borrows the owner, so the argument is the field itself.
    #[tenure::locked(client = self.locks, name = "desk", owner = self.owner, wait = "0", guard = guard)]
    async fn serve(&self) -> Result<u64, Error> {
        Ok(guard.token().get())
    }
}

#[tokio::test]
async fn the_owner_that_is_given_enters_what_it_holds() {
    let (store, locks) = store();
    let (clerk, other) = (Owner::new(), Owner::new());
    let guard = locks.lock("desk").owner(&clerk).acquire().await.unwrap();
    let of = |owner: &Owner| Clerk {
        locks: locks.clone(),
        owner: owner.clone(),
    };
    assert_eq!(of(&clerk).serve().await.unwrap(), guard.token().get());
    assert_eq!(
        of(&other).serve().await.unwrap_err().kind(),
        ErrorKind::WaitElapsed
    );
    guard.release().await.unwrap();
    assert!(store.is_idle());
}

#[tenure::locked(client = locks, name = "x", ttl = "10s", min_lease = "10s", drift = drift, renew = renew, guard = guard)]
async fn left_after_four_seconds(
    locks: &Client,
    store: &memory::Store,
    drift: Duration,
    renew: Renew,
) -> Result<Duration, Error> {
    store.advance(Duration::from_secs(4));
    settle().await;
    Ok(guard.remaining())
}

#[tenure::locked(client = locks, name = "x", ttl = "10s", drift = "1s", renew = "never", guard = guard)]
async fn of_a_fixed_lease(locks: &Client, store: &memory::Store) -> Result<Duration, Error> {
    store.advance(Duration::from_secs(4));
    settle().await;
    Ok(guard.remaining())
}

#[tokio::test]
async fn renew_and_drift_are_options_of_the_lock() {
    let (store, client) = store();
    let second = Duration::from_secs(1);
    let left = async |drift, renew| left_after_four_seconds(&client, &store, drift, renew).await;
    // The deadline is earlier by a margin of 1 % of the ttl and by the drift.
    let renewed = left(second, Renew::Automatic).await.unwrap();
    assert_eq!(renewed, Duration::from_millis(8_900));
    let fixed = left(second, Renew::Never).await.unwrap();
    assert_eq!(fixed, Duration::from_millis(4_900));
    assert_eq!(of_a_fixed_lease(&client, &store).await.unwrap(), fixed);
    let too_much = left(6 * second, Renew::Automatic).await.unwrap_err();
    assert_eq!(too_much.kind(), ErrorKind::Invalid);
    assert!(too_much.to_string().contains("`drift`"), "{too_much}");
    assert!(store.is_idle());
}

#[test]
fn an_ordinary_function_uses_the_blocking_client() {
    use tenure::blocking;

    struct Job {
        locks: blocking::Client,
    }

    impl Job {
        #[tenure::locked(client = self.locks, name = "job:{id}", wait = "0", guard = guard)]
        fn run<'a>(&self, id: u32, text: &'a str) -> Result<(&'a str, u64), AppError> {
            if text.is_empty() {
                return Ok(("nothing", 0));
            }
            let token = guard.token().get();
            let _: i32 = text.parse()?;
            // A thread enters its own lock again.
            let (_, again) = self.run(id, "")?;
            assert_eq!(again, 0);
            Ok((text, token))
        }
    }

    let store = memory::Store::new();
    let locks = blocking::Client::from_store(store.clone()).unwrap();
    let job = Job {
        locks: locks.clone(),
    };
    assert_eq!(job.run(1, "42").unwrap(), ("42", 1));
    assert!(matches!(job.run(1, "x"), Err(AppError::Parse(_))));
    let guard = std::thread::scope(|scope| {
        scope
            .spawn(|| locks.lock("job:1").acquire().unwrap())
            .join()
            .unwrap()
    });
    match job.run(1, "42").unwrap_err() {
        AppError::Lock(err) => assert_eq!(err.kind(), ErrorKind::WaitElapsed),
        AppError::Parse(err) => panic!("{err}"),
    }
    guard.release().unwrap();
    assert!(store.is_idle());
}
