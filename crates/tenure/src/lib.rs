//! Distributed locks.

// Vocabulary: plain data.
pub mod error;
pub mod fence;
pub mod guarantees;
pub mod holder;
pub mod lost;
pub mod name;
pub mod options;
pub mod time;

// Decisions.
pub mod kernel;

// The door to the stores, and the stores.
pub mod backend;

// The shell.
pub mod driver;
pub mod rt;

// What users touch.
#[cfg(feature = "blocking")]
pub mod blocking;
pub mod client;
mod guard;
mod lock;
mod owner;

pub use client::{Client, connect};
pub use error::{Error, ErrorKind};
pub use fence::{FencingToken, OwnerId};
pub use guard::Guard;
pub use holder::{HoldInfo, Holder, Status};
pub use kernel::lease::State;
pub use lock::Lock;
pub use lost::LostReason;
pub use name::LockName;
pub use options::{Mode, Options, Renew};
pub use owner::Owner;

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
/// So what [`Lock::run`] promises holds here: the body may enter the same lock again, and it is dropped at
/// its current await when the lock is lost. The future is `Send` when the body is.
///
/// An ordinary `fn` is locked too, when `client` is a [`tenure::blocking::Client`](crate::blocking::Client). Its body cannot be
/// stopped from outside; it should look at `guard.is_held()` now and then.
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
/// | `max_hold` | duration | end the hold after this long |
/// | `min_hold` | duration | keep the name taken for this long, even past the end |
/// | `lock_delay` | duration | keep the name reserved for this long after an unclean end |
/// | `shared` | | hold together with other shared holders |
/// | `permits` | expression | be one of that many holders |
/// | `fair` | | first come, first served, or be refused; `fair = false` allows barging |
/// | `label` | string or expression | why, for people who look at the lock |
/// | `guard` | identifier | what the body calls its guard, a [`&Guard`](Guard) |
///
/// A duration is a string with a unit, `"500ms"`, `"5s"`, `"2m"`, `"1h"` or `"1h30m"`, read by the compiler;
/// or an expression that is a [`Duration`](std::time::Duration).
///
/// # Errors
///
/// The function returns `Result<T, E>` where `E: From<tenure::Error>`. Errors of the lock are converted:
/// those of [`Lock::run`], above all [`WaitElapsed`](ErrorKind::WaitElapsed) and [`Lost`](ErrorKind::Lost). After `Lost` the value of the body is dropped:
/// work may have overlapped with that of the next holder.
#[cfg(feature = "macros")]
pub use tenure_macros::locked;
