//! A holder is paused for longer than its lease and writes afterwards. The lock cannot stop that write;
//! the resource can, because every guard carries a number that grows with each grant.

use std::time::Duration;

use tenure::memory;
use tenure::{Client, FencingToken};

/// The resource that the lock protects. It remembers the highest number that it has seen.
#[derive(Default)]
struct Account {
    newest: Option<FencingToken>,
    balance: i64,
}

impl Account {
    /// In a database: `UPDATE account SET balance = ?, fence = ? WHERE id = ? AND fence <= ?`.
    fn write(&mut self, balance: i64, token: FencingToken) -> Result<(), String> {
        if self.newest.is_some_and(|newest| token < newest) {
            return Err(format!("number {token} is stale"));
        }
        self.newest = Some(token);
        self.balance = balance;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), tenure::Error> {
    // A store with a clock that this program moves, shared by two clients as two machines would share a server.
    let store = memory::Store::with_virtual_clock();
    let [first, second] = [
        Client::from_store(store.clone())?,
        Client::from_store(store.clone())?,
    ];
    let mut account = Account::default();
    let ttl = Duration::from_secs(10);

    let paused = first.lock("account").ttl(ttl).acquire().await?;
    let balance = account.balance;
    // The process stops here (a full disk, a debugger, a closed laptop), and its lease ends.
    store.expire("account")?;

    let guard = second.lock("account").ttl(ttl).acquire().await?;
    assert!(account.write(balance + 100, guard.token()).is_ok());
    guard.release().await?;

    // The process continues where it stopped, and still believes that it holds the lock.
    let refused = account.write(balance + 1, paused.token());
    println!("late write: {refused:?}, balance: {}", account.balance);
    assert!(refused.is_err());
    assert_eq!(account.balance, 100);

    // The release reports that the lock was lost.
    let err = paused.release().await.expect_err("the lease had run out");
    assert!(err.is_lost());
    println!("{err:#}");
    Ok(())
}
