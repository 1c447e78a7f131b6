//! One lock API for Redis, PostgreSQL, MySQL, etcd, ZooKeeper, SQLite and local files: change the store by changing a URL.
//!
//! Every lock has a time limit, a known holder and a *fencing token*: a number that grows with each grant.
//! The holder always learns when it loses the lock.
//!
//! ```
//! #[tokio::main]
//! async fn main() -> Result<(), tenure::Error> {
//!     let client = tenure::connect("memory:").await?;
//!     let guard = client.lock("orders/42").acquire().await?; // waits its turn
//!     println!("we hold the lock, token {}", guard.token());
//!     guard.release().await // an error if the lock was lost before
//! }
//! ```
//!
//! # Which store
//!
//! The scheme of the URL selects the store; nothing else in your code changes.
//!
//! | URL | Who excludes each other | Fit for | Feature |
//! | --- | --- | --- | --- |
//! | `memory:` | tasks of one process | tests, also on a clock that you move ([`memory`]) | always there |
//! | `file:/DIR`, or `file:` for a directory of the user | processes on one host | correctness, on a local disk; no server needed | `file` (default) |
//! | `redis://HOST` | all clients of that Redis or Valkey server | services that have one; correctness with a fencing token | `redis` |
//! | `rediss://HOST` | the same, over TLS | the same | `redis` |
//! | `redis+unix:///PATH` | the same, by a socket of this machine | the same | `redis` |
//! | `redis+sentinel://HOST,HOST/SERVICE` | the same, on the primary that these sentinels name | the same; after a failover only the token protects | `redis` |
//! | `redis+cluster://HOST,HOST` | the same, on the nodes of a cluster | the same | `redis` |
//! | `redlock://HOST,HOST,HOST` | all clients of the same independent Redis servers | the same, while a minority of the servers may fail | `redlock` |
//! | `etcd://HOST,HOST,HOST` | all clients of that cluster | correctness with a fencing token, also when machines fail | `etcd` |
//! | `etcds://HOST,HOST,HOST` | the same, over TLS | the same | `etcd` |
//! | `zookeeper://HOST,HOST,HOST` | all clients of that ensemble | the same | `zookeeper` |
//! | `mysql://HOST/DATABASE` | all clients of that MySQL or MariaDB server; with `?mode=table` those of one table | services that have this database | `mysql` |
//! | `postgres://HOST/DATABASE` | all clients of that PostgreSQL database; with `?mode=table` those of one table | services that have this database | `postgres` |
//! | `sqlite:/FILE` | processes on one host that share that file | leases, queues and tokens without a server | `sqlite` |
//!
//! [`connect`](connect()) lists what each URL takes, [Guarantees](#guarantees) what each store promises.
//! Threads without async use the same locks through `tenure::blocking` (feature `blocking`).
//!
//! # Concepts
//!
//! **Name.** A lock has a name: any UTF-8 text of 1 to 1,000 bytes.
//! The name stands for a file, an account or a job, and all programs that use that thing must use the same name.
//! [`Client::lock`] makes a [`Lock`], which is a name with [options](Options), and sends nothing.
//!
//! **Owner and holder.** Each acquisition has a random identity, the [`OwnerId`]. The store compares it before it frees a lock, so no client can release the lock of another one.
//! The acquisition that has the lock is its holder. [`Client::inspect`] shows the holder's host and process, its [label](Lock::label), and since when it holds the lock.
//! Locks are not re-entrant, except with an [`Owner`].
//!
//! **Lease and deadline.** A store on a network grants a lock for a limited time, the [ttl](Lock::ttl), so that a holder that vanishes does not block the name for ever.
//! The client renews this lease every third of the ttl, and keeps a *deadline* of its own: the ttl counted from before the last successful request was sent, less a margin, on a clock that continues while the machine sleeps.
//! After the deadline the client never believes that it holds the lock, whatever the network does.
//! `memory:` and `file:` need no lease: there, the hold ends with the process.
//!
//! **Guard and loss.** A [`Guard`] is the only proof that the lock is held.
//! The hold ends by [`release`](Guard::release), by dropping the guard, or by *loss*: [`Guard::lost`] resolves with the reason, at the deadline at the latest.
//! [`Lock::run`] and the attribute `#[tenure::locked]` (feature `macros`) stop the work at that moment, and then return an error.
//!
//! **Fencing token.** Every guard has a [number](Guard::token) that strictly grows with each grant of its name.
//! Send it with every write, and let the resource refuse a number below the highest one that it has seen.
//! [`Fenced`] does that in databases, etcd and ZooKeeper; for single writes in the store that keeps the lock, guards of Redis,
//! etcd and ZooKeeper have `put` and `delete` (the trait `KeyValueGuard` in the modules of these stores).
//!
//! # Leader election
//!
//! Several instances of a service stand by, one works, and all know which one.
//! [`Client::election`] makes an [`Election`], which is a layer on the lock of its name: the leader holds the lock, and the
//! candidates wait for it. So all that is said here of locks is true of the leader as well.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), tenure::Error> {
//! let client = tenure::connect("memory:").await?;
//! let election = client.election("scheduler").value("http://10.0.0.7:8080");
//! // Waits until elected, runs the body, and drops it when the term is lost; then it stands again.
//! let jobs = election.run(async |term| {
//!     let leader = client.election("scheduler").leader().await?.expect("this instance leads");
//!     assert_eq!(leader.value(), Some("http://10.0.0.7:8080"));
//!     assert_eq!(leader.token, Some(term.token())); // send it with each write
//!     Ok::<_, tenure::Error>(42) // `Ok`: the work is done. An error: another instance shall try
//! });
//! assert_eq!(jobs.await?, 42);
//! # Ok(()) }
//! ```
//!
//! A [`Term`] is one leadership: a [`Guard`] with its number. [`Election::observe`] is a stream of leaders for those that are
//! no candidates; [`Election::ask_to_resign`] asks the leader politely to hand over, and [`Term::asked_to_resign`] tells it so.
//! `docs/election.md` in the repository has a whole service, systemd, Kubernetes, and what can go wrong.
//!
//! # Detached holds
//!
//! A guard ends with its process. [`Guard::detach`] leaves the hold in the store instead, and returns a [`Receipt`]: one line of
//! text. [`Client::attach`] makes a guard of it again, in another process or on another machine. Between the two no process is
//! needed, and the hold ends when its lease does.
//!
//! ```
//! # #[tokio::main]
//! # async fn main() -> Result<(), tenure::Error> {
//! # let store = tenure::memory::Store::new();
//! # let (client, later) = (tenure::Client::from_store(store.clone())?, tenure::Client::from_store(store)?);
//! use std::time::Duration;
//!
//! let lock = client.lock("staging").label("build 77").ttl(Duration::from_secs(3600)); // an hour without a process
//! let receipt = lock.acquire().await?.detach().await?;
//! // `later` is the client of another process. The text is a secret of the holder.
//! let receipt: tenure::Receipt = receipt.to_string().parse()?;
//! let guard = later.attach(&receipt).await?; // `Lost` if the hold is over; never takes a lock
//! println!("fencing token {}", guard.token()); // the same as before
//! guard.release().await
//! # }
//! ```
//!
//! Not every store has them: [`Client::require`] says it before a lock is acquired.
//! `docs/detached-holds.md` in the repository has CI jobs, GPU pools, serverless functions, and what can go wrong.
//!
//! # Exclusion and late writes
//!
//! Two promises must not be confused.
//! *Exclusion*: no two clients believe at the same time that they hold the name.
//! The local deadline ensures this.
//! *No late writes*: no write of a former holder takes effect.
//! No lock with a lease can promise this by itself: a process can check that it holds the lock, stop for a minute, and then write.
//! Only the resource can refuse that write, by the fencing token, or because the store that keeps the lock applies the write.
//!
//! # Guarantees
//!
//! Each store declares as data what it promises under which fault ([`Client::guarantees`]); [`Client::check`] checks the settings of the actual store.
//!
//! | Store | kill | pause | partition | restart | power | failover | clock-forward | clock-back | client-clock | suspend |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | `memory:` | S | S L | - | - | - | - | S | S | S | S |
//! | `file:` | E | S L | - | - | S | - | S | S | S | S L |
//! | `redis:` no append-only file | S L | E | E | E L | E L | - | X | E L | S | E |
//! | `redis:` no append-only file, restart_guard=off | S L | E | E | X | X | - | X | E L | S | E |
//! | `redis:` appendfsync everysec | S L | E | E | E L | E L | - | X | E L | S | E |
//! | `redis:` appendfsync always | S L | E | E | E | E | - | X | E L | S | E |
//! | `redis:` no append-only file, a replica may take over | S L | E | E | E L | E L | X | X | E L | S | E |
//! | `redis:` no append-only file, dialect=redisson | S L | E | E | E L | E L | - | X | E L | S | E |
//! | `redis:` no append-only file, dialect=redisson, lock=rw | S L | E | E | E L | E L | - | X | E L | S | E |
//! | `redis:` no append-only file, dialect=redisson, lock=fair | S L | E | E | E L | E L | - | X | E L | S | E |
//! | `redis:` no append-only file, dialect=redisson, lock=semaphore | S L | E | E | E L | E L | - | X | E L | X | E |
//! | `redlock:` no append-only file | S L | E L | E L | E L | E L | - | X | E L | S | E L |
//! | `redlock:` no append-only file, restart_guard=off | S L | E L | E L | X r | X r | - | X | E L | S | E L |
//! | `redlock:` appendfsync always | S L | E L | E L | E L | E L | - | X | E L | S | E L |
//! | `etcd:` one member | S L | E | E | E L | E L | - | E | E | S | E |
//! | `etcd:` three members or more | S L | E | E | E L | E L | E L | E | E | S | E |
//! | `zookeeper:` | S L | E | E | E L | E L | E L | E | E | S | E |
//! | `zookeeper:` one server | S L | E | E | E L | E L | - | E | E | S | E |
//! | `zookeeper:` dialect=curator-readwrite | S L | E | E | E L | E L | E L | E | E | S | E |
//! | `zookeeper:` dialect=curator-semaphore | S L | E | E | E L | E L | E L | E | E | S | E |
//! | `zookeeper:` dialect=session-prefix | S L | E | E | E L | E L | E L | E | E | S | E |
//! | `zookeeper:` dialect=curator-selector | S L | E | E | E L | E L | E L | E | E | S | E |
//! | `zookeeper:` dialect=curator-latch | S L | E | E | E L | E L | E L | E | E | S | E |
//! | `mysql:` | E L | E | X | E L | E L | X r | E | E r | S | E |
//! | `mysql:` restart_guard=off | E L | E | X | X | X | X r | E | E r | S | E |
//! | `mysql:` connections of a pool | E L | E | X | E L | E L | X r | E | E r | S | E |
//! | `postgres:` | E L | E | X | E L | E L | X r | X | E L r | S | E |
//! | `postgres:` restart_guard=off | E L | E | X | X | X | X r | X | E L r | S | E |
//! | `postgres:` connections of a pool | E L | E | X | E L | E L | X r | X | E L r | S | E |
//! | `mysql:` mode=table | S L | E | E | E | E | - | X | E L | S | E |
//! | `postgres:` mode=table | S L | E | E | E | E | - | X | E L | S | E |
//! | `postgres:` mode=table, commits may be lost with the power | S L | E | E | E | X | - | X | E L | S | E |
//! | `postgres:` mode=table, commits may be lost | S L | E | E | X | X | - | X | E L | S | E |
//! | `postgres:` mode=table, a replica may take over | S L | E | E | E | E | X | X | E L | S | E |
//! | `postgres:` mode=table, dialect=shedlock | S L | E | E | E | E | - | X | E L | S | E |
//! | `postgres:` mode=table, connections of a pool | S L | E | E | E | E | - | X | E L | S | E |
//! | `sqlite:` | S L | E | - | - | S | - | X | E L | X | E |
//!
//! **S**: exclusion holds, and late writes are impossible.
//! **E**: exclusion holds; only the fencing token stops a late write.
//! **X**: exclusion may fail.
//! **-**: the fault cannot happen.
//! **L**: the next holder may have to wait.
//! **r**: tokens may go backward.
//! [`guarantees::Fault`] says what each column means, [`guarantees::Cell::note`] gives the reason.
//!
//! # When not to use a distributed lock
//!
//! - The data is in one database: a transaction, a unique index or `SELECT .. FOR UPDATE` is simpler and safe.
//!   Where there is no row to lock, `tenure::sql::lock_in_tx` (feature `sqlx`) locks a name in that transaction.
//! - The write can be conditional (a version column, an ETag, compare-and-swap): then no lock is needed.
//! - The work may be done twice: make it idempotent and leave out the lock, or use the lock only to save double work.
//! - Only tasks of one process are concerned: a mutex needs no store.
//! - The resource cannot check a token and must never see a late write: no lock can prevent that.
//!
//! # Features
//!
//! `file` and `tls-ring` are on by default; `tls-ring` alone brings nothing.
//! `memory:` is always there.
//!
//! | Feature | Adds | Brings |
//! | --- | --- | --- |
//! | `file` | the store `file:`, kernel file locks for the processes of one host | `serde`, `serde_json`, `sha2` |
//! | `redis` | the stores `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://` and `redis+cluster://` | `redis`, `rustls`, `futures-util`, `serde`, `serde_json` |
//! | `etcd` | the stores `etcd://` and `etcds://` | `tonic`, `prost`, `rustls`, `futures-util`, `serde`, `serde_json` |
//! | `mysql` | the store `mysql://` | `sqlx`, `rustls`, `futures-util`, `serde`, `serde_json`, `sha1_smol`, `sha2` |
//! | `postgres` | the store `postgres://` | `sqlx`, `rustls`, `futures-util`, `serde`, `serde_json`, `sha1_smol`, `sha2` |
//! | `zookeeper` | the store `zookeeper://`, without TLS | `zookeeper-client`, `serde`, `serde_json` |
//! | `zookeeper-tls` | TLS for `zookeeper://` (`?tls=on`); with all of `tls-aws-lc`, which the client library needs | `rustls` with `aws-lc-rs` |
//! | `tls-ring` | TLS with `ring` for `redis`, `etcd`, `mysql`, `postgres` and what is built on them | `ring` beside each of them, built from C |
//! | `tls-aws-lc` | the same with `aws-lc-rs`; for that switch the default features off, because `ring` is used where both are on | `aws-lc-rs` beside each of them, built from C, which takes most of a minute |
//! | `sqlite` | the store `sqlite:` | `sqlx` with an SQLite of its own, `serde`, `serde_json`, `sha2` |
//! | `sqlx` | `tenure::sql`, locks and fences inside transactions of your own, [`Lock`]`::transaction` and `tenure::migrate`; with `mysql`, `postgres` or `sqlite` for the driver. For sqlx 0.9: with 0.8 or another client leave the feature out, and use [`Guard::after`] and [`sql::fence_statements`] | `sqlx` 0.9 |
//! | `redlock` | the store `redlock://`, a majority of independent Redis servers; with all of `redis` | as `redis` |
//! | `majority` | `tenure::majority`, which holds a name on a majority of several independent stores of any kind; part of `redlock` | |
//! | `macros` | the attribute `#[tenure::locked]` | `tenure-macros` (`syn`, `quote`) |
//! | `metrics` | counters, gauges and histograms of locks, for the recorder that the program installs | `metrics` |
//! | `blocking` | `tenure::blocking`, the same API without async | the multi-thread part of `tokio` |
//! | `serde` | `Serialize` for [`LockStatus`], [`Holder`], [`HoldInfo`], [`LockName`], [`FencingToken`] and [`Guarantees`](guarantees::Guarantees), in the form that `tenure --json` prints, and for [`Receipt`], as text; `Deserialize` for all but `Guarantees` | `serde` |
//! | `tokio-util` | [`Guard`]`::cancellation_token` | `tokio-util` |
//! | `tower` | `tenure::tower`, a layer that runs each request under the lock of its key | `http`, `tower-layer`, `tower-service` |
//! | `conformance` | `tenure::conformance`, the behaviours that every store must show, for authors of stores | the multi-thread part of `tokio` |
//!
//! TLS is `rustls`. The features above choose its provider of cryptography and pass it to each connection.
//! The provider that `rustls` keeps for the whole process (`CryptoProvider::install_default`) belongs to the program:
//! no store reads or sets it, save ZooKeeper with TLS, whose client library takes no other.
//! ZooKeeper sets it if the program has not set one before it connects.
//! Without `tls-ring` and `tls-aws-lc`, a URL that asks for TLS is refused, and servers of databases on other machines
//! need `tls=off`.
//! sqlx, under `mysql` and `postgres`, has one provider for the whole program: `ring`, if any crate of the program asks
//! sqlx for it.
//!
//! # Errors
//!
//! There is one [`Error`]; branch on its [kind](ErrorKind), which says what to do.
//! Its text is one line for people: what was attempted, why it failed, and what to do next. It never contains a password.
//! Busy is not an error for [`Lock::try_acquire`].
//!
//! ```
//! use std::time::Duration;
//! use tenure::{Client, Error, ErrorKind};
//!
//! async fn report(client: &Client) -> Result<bool, Error> {
//!     let lock = client.lock("report").wait(Duration::from_secs(5));
//!     match lock.run(async |_| println!("working")).await {
//!         Ok(()) => Ok(true),
//!         // Another client holds the lock; `err.holder()` names it.
//!         Err(err) if err.kind() == ErrorKind::WaitElapsed => Ok(false),
//!         // Do not retry blindly: the work may have overlapped with that of the next holder.
//!         Err(err) if err.is_lost() => Err(err),
//!         // Unreachable, indeterminate: the same call may succeed later.
//!         Err(err) if err.is_retryable() => Ok(false),
//!         Err(err) => Err(err),
//!     }
//! }
//! # let runtime = tokio::runtime::Runtime::new().unwrap();
//! # runtime.block_on(async {
//! #     let client = tenure::connect("memory:").await.unwrap();
//! #     assert!(report(&client).await.unwrap());
//! # });
//! ```
//!
//! # Writing a store
//!
//! Implement [`store::Store`]; the [module](store) has the contract, and `docs/writing-a-store.md` in the
//! repository shows a complete store.
//! The driver does the hard parts: deadlines, renewal, cancellation, and queues within the process.
//! A store takes, renews and frees a name, and declares its [`Guarantees`](guarantees::Guarantees).
//! [`memory`] is the smallest example.
//! A store of your own needs no registration: pass it to [`Client::from_store`].

// docs.rs shows at each item which feature it needs. Only a nightly compiler can do that.
#![cfg_attr(docsrs, feature(doc_cfg))]

// The stores, and what several of them share.
mod capabilities;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod database;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(all(feature = "file", unix))]
pub mod file;
#[cfg(feature = "majority")]
pub mod majority;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub mod sessions;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub mod tables;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres"
))]
mod tls;
#[cfg(any(
    feature = "redis",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
mod waiting;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

// The public API that tenure-core does not have.
mod address;
#[cfg(feature = "blocking")]
pub mod blocking;
mod connect;
mod fenced;
mod lazy;
mod redacted;
mod scheme;
pub mod sql;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
mod store_url;
#[cfg(feature = "tower")]
pub mod tower;

// For our own tests.
#[cfg(feature = "_fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use capabilities::SCHEMES;
pub use connect::{connect, connect_lazy};
pub use fenced::Fenced;
pub use redacted::redacted_url;
#[cfg(all(
    feature = "sqlx",
    any(feature = "mysql", feature = "postgres", feature = "sqlite")
))]
pub use sql::migrate;
#[cfg(any(
    feature = "redis",
    feature = "etcd",
    feature = "zookeeper",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
pub use store_url::StoreSettings;

#[cfg(all(feature = "conformance", unix))]
#[doc(inline)]
pub use tenure_core::conformance;
#[doc(inline)]
pub use tenure_core::{
    Buckets, CallbackHandle, Client, ClientBuilder, Election, Error, ErrorKind, Fairness,
    FencingToken, Guard, HoldInfo, HoldState, Holder, Leader, Lock, LockName, LockStatus, Loss,
    LostReason, Mode, Observer, Options, Owner, OwnerId, Receipt, Renew, RestartGuard, Term,
    WaitReport, bucket_of, fence, guarantees, holder, leader, lost, memory, name, options, store,
    time,
};

/// One error for the whole crate: a kind to branch on, and one line that says what, why and what next.
pub mod error {
    #[doc(inline)]
    pub use tenure_core::error::{Error, ErrorKind, Step};
}

/// Runs the function under a lock: acquires, runs the body, releases.
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// #[tenure::locked(client = locks, name = "order:{id}", wait = "5s")]
/// async fn ship(locks: &tenure::Client, id: u64) -> Result<String, tenure::Error> {
///     Ok(format!("order {id} is on its way"))
/// }
///
/// let locks = tenure::connect("memory:").await?;
/// assert_eq!(ship(&locks, 42).await?, "order 42 is on its way");
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
///
/// The function is this, and nothing more:
///
/// ```text
/// let lock = locks.lock(format!("order:{id}")).wait(Duration::from_secs(5));
/// lock.run(async move |_| { .. }).await?
/// ```
///
/// So the promises of [`Lock::run`] hold here: the body may enter the same lock again, and it is dropped at
/// its current await when the lock is lost. The future is `Send` when the body is.
///
/// An ordinary `fn` is locked too, when `client` is a `tenure::blocking::Client`. Its body cannot be
/// stopped from outside, so it should check `guard.is_held()` from time to time.
///
/// # Arguments
///
/// | argument | value | meaning |
/// | --- | --- | --- |
/// | `client` | expression | the client; required. In a method: `client = self.locks` |
/// | `name` | string, or expression | what to lock; required. `{..}` in a string stands for arguments, as in `format!` |
/// | `names` | `[a, b]`, each as `name` | instead of `name`: all of them or none |
/// | `wait` | duration | how long to wait; without it, for ever |
/// | `ttl` | duration | the lease |
/// | `min_lease` | duration | the shortest lease that the body may begin with |
/// | `drift` | duration | the deadline is this much earlier, for a store whose clock may run at another speed than ours |
/// | `renew` | `"never"`, or expression | a fixed lease: the hold is lost when the ttl is over; a [`Renew`] |
/// | `max_hold` | duration | end the hold after this long |
/// | `min_hold` | duration | keep the name taken for this long, even past the end |
/// | `lock_delay` | duration | keep the name reserved for this long after an unclean end |
/// | `shared` | | hold together with other shared holders |
/// | `permits` | expression | be one of that many holders |
/// | `fair` | | first come, first served, or be refused; `fair = false` allows barging |
/// | `local_hand_overs` | expression | how often the lock may pass on inside the process; 0: never |
/// | `label` | string or expression | why the lock is held, for people who inspect it |
/// | `owner` | expression | the [`Owner`] that may enter the lock again; in a method: `owner = self.owner` |
/// | `guard` | identifier | what the body calls its guard, a [`&Guard`](Guard) |
/// | `skip` | | one try: where the lock is busy, the body does not run and the function returns `Ok(None)` |
/// | `transaction` | expression | the pool: the body runs in a transaction, which is committed before the release (feature `sqlx`) |
/// | `tx` | identifier | what the body calls its transaction, a `&mut sqlx::Transaction` |
///
/// # Skip the work of others
/// With `skip` the function calls [`Lock::try_run`] and returns a `Result<Option<T>, E>`:
///
/// ```
/// # async fn example() -> Result<(), tenure::Error> {
/// #[tenure::locked(client = locks, name = "report", skip)]
/// async fn report(locks: &tenure::Client) -> Result<Option<u32>, tenure::Error> {
///     Ok(Some(42)) // pages written
/// }
///
/// let locks = tenure::connect("memory:").await?;
/// assert_eq!(report(&locks).await?, Some(42));
/// let _another_instance = locks.lock("report").acquire().await?;
/// assert_eq!(report(&locks).await?, None);
/// # Ok(()) }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
/// ```
///
/// # In a transaction
/// With `transaction` and `tx` the function calls `Lock::transaction` (feature `sqlx`): COMMIT comes before the release, and
/// an error of the body is a ROLLBACK.
#[cfg_attr(all(feature = "sqlx", feature = "sqlite"), doc = "```")]
#[cfg_attr(not(all(feature = "sqlx", feature = "sqlite")), doc = "```text")]
/// #[tenure::locked(client = locks, name = "account:{id}", transaction = pool, tx = tx)]
/// async fn deposit(locks: &tenure::Client, pool: &sqlx::SqlitePool, id: i64) -> Result<(), tenure::Error> {
///     sqlx::query("UPDATE account SET balance = balance + 1 WHERE id = ?")
///         .bind(id)
///         .execute(&mut **tx)
///         .await?;
///     Ok(())
/// }
/// ```
///
/// # Names and durations
/// A name in braces that is no variable where the function begins does not compile, as in `format!`:
///
/// ```compile_fail,E0425
/// #[tenure::locked(client = locks, name = "order:{number}")]
/// async fn ship(locks: &tenure::Client, id: u64) -> Result<(), tenure::Error> {
///     Ok(())
/// }
/// ```
///
/// A duration is a string with a unit, `"500ms"`, `"5s"`, `"2m"` or `"1h30m"`, which the compiler reads by the same
/// rules as [`parse_duration`](time::parse_duration); or an expression that is a [`Duration`](std::time::Duration).
/// A string that is none does not compile:
///
/// ```compile_fail,E0080
/// #[tenure::locked(client = locks, name = "order:{id}", wait = "5 seconds")]
/// async fn ship(locks: &tenure::Client, id: u64) -> Result<(), tenure::Error> {
///     Ok(())
/// }
/// ```
///
/// # Errors
///
/// The function returns `Result<T, E>` where `E: From<tenure::Error>`. Errors of the lock are converted:
/// those of [`Lock::run`], above all [`WaitElapsed`](ErrorKind::WaitElapsed) and [`Lost`](ErrorKind::Lost).
/// After `Lost` the outcome of the body is dropped: work may have overlapped with that of the next holder.
#[cfg(feature = "macros")]
pub use tenure_macros::locked;

/// The examples of the README; one of them needs a database driver.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// The examples of the page about leader election; one of them needs a database driver.
#[cfg(all(doctest, feature = "blocking", feature = "sqlx", feature = "postgres"))]
#[doc = include_str!("../../../docs/election.md")]
mod election {}

/// The examples of the page about detached holds.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/detached-holds.md")]
mod detached_holds {}

/// The examples of the page about tasks; some of them need a database driver, the store Redis or the layer.
#[cfg(all(
    doctest,
    feature = "sqlx",
    feature = "postgres",
    feature = "redis",
    feature = "tower"
))]
#[doc = include_str!("../../../docs/tasks.md")]
mod tasks {}
