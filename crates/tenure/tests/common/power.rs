//! A power failure: after it the server finds on its disk only what it has synced.

use std::path::Path;
use std::time::Duration;

use tenure::{FencingToken, Renew};

use super::{answered, connect};
use tenure_testkit::disk::Disk;

/// The tokens of the grants before and after the power failure.
pub(crate) struct Tokens {
    pub(crate) old: FencingToken,
    pub(crate) new: FencingToken,
}

/// A client holds a lock, the power fails, and another client tries to acquire. A server that `remembers` refuses the
/// try, and its tokens go on growing. `restart_after` kills the server, does that to its directory, and starts it again.
pub(crate) async fn lose_power(
    disk: &Disk,
    url: &str,
    ttl: Duration,
    remembers: bool,
    restart_after: impl Fn(&dyn Fn(&Path)),
) -> Tokens {
    restart_after(&|dir| disk.begin(dir));
    let (first, second) = (connect(url).await, connect(url).await);
    let lock = first.lock("power").ttl(ttl).renew(Renew::Never);
    let guard = answered(async || lock.acquire().await).await;
    let old = guard.token();
    restart_after(&|dir| disk.lose_power(dir));
    let lock = second.lock("power").ttl(ttl);
    let tried = answered(async || lock.try_acquire().await).await;
    assert_eq!(tried.is_none(), remembers);
    let next = match tried {
        Some(next) => next,
        None => {
            // Releases in the background, until the server has answered after its start.
            drop(guard);
            answered(async || lock.acquire().await).await
        }
    };
    let new = next.token();
    assert!(new > old || !remembers, "{new} after {old}");
    Tokens { old, new }
}
