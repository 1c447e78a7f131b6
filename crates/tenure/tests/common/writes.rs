//! Writes that count only while the lock is held, on each store that takes them.

use std::time::Duration;

use tenure::{Client, Error, ErrorKind, Guard};
use tenure_core::guard_traits::KeyValueGuard as _;
use tokio::task::JoinHandle;

use super::{assert_says, soon, take};

/// Far above what a server and two busy cores need, short enough to wait for its end.
const TTL: Duration = Duration::from_secs(8);

/// A server, by its own means and not by the library's.
pub(crate) trait Server {
    /// What stands under a key; empty where there is no such key.
    fn read(&self, key: &str) -> String;
    /// Ends the hold of a name behind the back of its holder.
    fn evict(&self, name: &str);
}

/// A key in which only the holder of a lock may write.
pub(crate) struct Data<'a, S> {
    pub(crate) server: &'a S,
    pub(crate) key: String,
}

/// A write under way: its outcome, and the guard that wrote.
pub(crate) type Writing = JoinHandle<(Result<(), Error>, Guard)>;

impl<S: Server> Data<'_, S> {
    fn read(&self) -> String {
        self.server.read(&self.key)
    }

    /// Begins to write, by way of a proxy that holds up the request.
    pub(crate) fn write_late(&self, guard: Guard) -> Writing {
        let key = self.key.clone();
        tokio::spawn(async move { (guard.put(&key, "late").await, guard) })
    }

    /// A former holder can neither write nor delete, and the data stays as it is.
    pub(crate) async fn assert_refused(&self, guard: &Guard) {
        let before = self.read();
        for outcome in [
            soon(guard.put(&self.key, "late")).await,
            soon(guard.delete(&self.key)).await,
        ] {
            assert_says(outcome, ErrorKind::Lost, &["nothing was written"]);
        }
        assert_eq!(self.read(), before);
    }

    pub(crate) async fn takes_writes_of_the_holder(&self, holder: &Guard) {
        soon(holder.put(&self.key, "one")).await.unwrap();
        assert_eq!(self.read(), "one");
        soon(holder.put(&self.key, b"\x00\xff")).await.unwrap();
        assert_eq!(self.read(), "\0\u{fffd}", "bytes, shown as text");
        soon(holder.delete(&self.key)).await.unwrap();
        soon(holder.delete(&self.key)).await.unwrap();
        assert_eq!(self.read(), "");
    }

    pub(crate) async fn refuses_a_former_holder(&self, [first, second]: [Client; 2], name: &str) {
        let old = take(&first, name, TTL).await;
        self.takes_writes_of_the_holder(&old).await;
        // The first client does not know yet that its hold has ended, and the second one is next.
        self.server.evict(name);
        self.assert_refused(&old).await;
        let next = take(&second, name, TTL).await;
        soon(next.put(&self.key, "two")).await.unwrap();
        self.assert_refused(&old).await;
        soon(next.release()).await.unwrap();
    }

    /// A holder checks that it holds, stops for a minute, and writes: the one case that no lease can prevent.
    /// The request arrives when `arrive` is called.
    pub(crate) async fn refuses_a_late_write(
        &self,
        writing: Writing,
        (other, name): (Client, &str),
        arrive: impl AsyncFnOnce(),
    ) {
        // No renewal is mistaken for the write that arrives late.
        let next = other.lock(name).ttl(TTL * 10);
        let next = tokio::time::timeout(TTL * 4, next.acquire()).await;
        let next = next.expect("the lease of the first one ends").unwrap();
        soon(next.put(&self.key, "two")).await.unwrap();
        let (outcome, old) = soon(writing).await.unwrap();
        assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
        arrive().await;
        self.assert_refused(&old).await;
        assert_eq!(self.read(), "two");
        soon(next.release()).await.unwrap();
    }

    /// `faults` break the connection at the next write: before the request arrives, and after it was applied.
    pub(crate) async fn loses_an_answer<F>(&self, guard: Guard, faults: [F; 2], plan: impl Fn(F)) {
        for (fault, written) in faults.into_iter().zip(["", "one"]) {
            plan(fault);
            let outcome = soon(guard.put(&self.key, "one")).await;
            assert_says(outcome, ErrorKind::Indeterminate, &["cannot be told"]);
            assert_eq!(self.read(), written);
        }
        soon(guard.release()).await.unwrap();
    }

    /// A write under several names wants all of them to be held.
    pub(crate) async fn wants_all_names(&self, client: Client, names: [String; 3]) {
        let guard = soon(client.lock_all(&names).ttl(TTL).acquire()).await;
        let guard = guard.unwrap();
        soon(guard.put(&self.key, "one")).await.unwrap();
        self.server.evict(&names[1]);
        self.assert_refused(&guard).await;
        assert_eq!(self.read(), "one");
    }
}
