//! The file of an SQLite database that is removed or replaced while locks in it are held and waited for.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::LostReason;

use crate::support::{Db, TTL, connect, lock_holder, soon, take, wait_as};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::sqlite::DatabaseFile;

/// Much longer than the time between two renewals on a busy machine: what ends the hold is a renewal.
const LONG: Duration = TTL.saturating_mul(4);

/// The file, and what SQLite keeps beside it.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// How an operator takes the file away.
#[derive(Clone, Copy, Debug)]
enum Removal {
    /// With what lies beside it.
    Whole,
    /// Only the file itself.
    Alone,
    /// Another database takes its place, in one step.
    ByAnother,
}

impl Removal {
    const ALL: [Self; 3] = [Self::Whole, Self::Alone, Self::ByAnother];

    async fn act(self, path: &Path) {
        let remove = |suffix: &str| match std::fs::remove_file(with_suffix(path, suffix)) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => panic!("{err}"),
            _ => {}
        };
        match self {
            Self::Whole => SUFFIXES.into_iter().for_each(remove),
            Self::Alone => remove(""),
            Self::ByAnother => {
                let other = path.with_extension("other");
                let client = connect(&format!("sqlite:{}", other.display())).await;
                soon(client.init()).await.unwrap();
                client.close().await;
                ["-wal", "-shm"].into_iter().for_each(remove);
                std::fs::rename(&other, path).unwrap();
            }
        }
    }
}

/// Others lock the new file at once; the holder in the old one learns of it by its next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_loses_the_lock_when_the_file_is_removed_or_replaced() {
    let lose = |removal: Removal| async move {
        let db = Db::File(Box::new(DatabaseFile::new()));
        let Db::File(file) = &db else { unreachable!() };
        db.init().await;
        let first = connect(&db.url()).await;
        let guard = take(&first, "held", LONG).await;
        let unheard = take(&first, "unheard", LONG).await;
        removal.act(&file.path()).await;
        let mut second = lock_holder(&db.url(), "held");
        let token = soon(second.held()).await.unwrap();
        assert!(token > u64::from(guard.token()), "{removal:?}");
        let reason = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await;
        assert_eq!(reason, Ok(Some(LostReason::TakenOver)), "{removal:?}");
        assert_eq!(soon(unheard.lost()).await, Some(LostReason::TakenOver));
        // The one that lost the lock ends nothing in the new file.
        assert!(soon(guard.release()).await.unwrap_err().is_lost());
        assert!(soon(first.inspect("held")).await.unwrap().is_held());
        let lock = first.lock("held").ttl(TTL);
        assert!(soon(lock.try_acquire()).await.unwrap().is_none());
        second.say("release").unwrap();
        let next = tokio::time::timeout(TTL + TEST_TIMEOUT, lock.acquire()).await;
        soon(next.unwrap().unwrap().release()).await.unwrap();
    };
    for losing in Removal::ALL.map(|removal| tokio::spawn(lose(removal))) {
        losing.await.unwrap();
    }
}

/// No other client comes; still no other client would respect the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_loses_the_lock_when_the_file_and_its_directory_are_gone() {
    let db = Db::File(Box::new(DatabaseFile::new()));
    let Db::File(file) = &db else { unreachable!() };
    db.init().await;
    let client = connect(&db.url()).await;
    let guard = take(&client, "held", LONG).await;
    std::fs::remove_dir_all(file.path().parent().unwrap()).unwrap();
    let reason = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await;
    assert_eq!(reason, Ok(Some(LostReason::TakenOver)));
    assert!(soon(guard.release()).await.unwrap_err().is_lost());
}

/// The lock in the removed file is never released.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_goes_on_in_the_new_file() {
    for removal in Removal::ALL {
        let db = Db::File(Box::new(DatabaseFile::new()));
        let Db::File(file) = &db else { unreachable!() };
        db.init().await;
        let mut holder = lock_holder(&db.url(), "held");
        let token = soon(holder.held()).await.unwrap();
        let client = connect(&db.url()).await;
        let waiting = wait_as(&db, &client, "held", 1).await;
        // It renews no more, and cannot release the lock in the old file.
        holder.stop().unwrap();
        removal.act(&file.path()).await;
        let next = soon(waiting).await.unwrap().unwrap();
        assert!(u64::from(next.token()) > token, "{removal:?}");
        // Whom others see in the new file.
        let other = connect(&db.url()).await;
        assert!(soon(other.inspect("held")).await.unwrap().is_held());
        soon(next.release()).await.unwrap();
    }
}
