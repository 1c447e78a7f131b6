//! The Java client of Hazelcast and this library exclude each other and wake each other.
//!
//! Members and client have the same version: that of `TENURE_HAZELCAST`, or the older one of the two that are supported.

use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use tenure_core::conformance::lock_holder::LockHolder;
use tenure_core::{Client, LostReason};
use tenure_testkit::hazelcast::{Hazelcast, SESSION_TTL, java};
use tenure_testkit::{TEST_TIMEOUT, needs, until};

mod common;

use common::{name, runtime};

static MEMBERS: LazyLock<Hazelcast> = LazyLock::new(Hazelcast::start);

const TTL: Duration = Duration::from_secs(SESSION_TTL);

/// How much later than the ttl of its session a dead holder's lock may be free: the members look once a second, and a busy
/// machine adds to it.
const LATE: Duration = Duration::from_secs(10);

/// The Java client, told what to do on stdin.
struct Java(LockHolder);

impl Java {
    async fn start() -> Self {
        let mut command = Command::new(java());
        let port = MEMBERS.port(0).to_string();
        command.args(["Driver", "127.0.0.1", &port]);
        let mut java = Self(LockHolder::spawn(command).unwrap());
        let ready = java.answer().await;
        assert!(ready.starts_with("ready\t"), "{ready}");
        java
    }

    fn tell(&mut self, order: &[&str]) {
        self.0.say(&order.join("\t")).unwrap();
    }

    async fn answer(&mut self) -> String {
        let line = tokio::time::timeout(TEST_TIMEOUT, self.0.line()).await;
        line.expect("Java answers").expect("the Java program ended")
    }

    async fn ask(&mut self, order: &[&str]) -> String {
        self.tell(order);
        self.answer().await
    }

    /// The fence of a lock that Java should get.
    async fn held(&mut self) -> u64 {
        let answer = self.answer().await;
        let bytes = answer
            .strip_prefix("held\t")
            .unwrap_or_else(|| panic!("{answer}"));
        let digit = |at: usize| u8::from_str_radix(&bytes[at..at + 2], 16).unwrap();
        let text: Vec<_> = (0..bytes.len()).step_by(2).map(digit).collect();
        String::from_utf8(text).unwrap().parse().unwrap()
    }

    async fn take(&mut self, name: &str) -> u64 {
        self.tell(&["try", name, "0"]);
        self.held().await
    }
}

async fn connect() -> Client {
    tenure_hazelcast::connect(&(MEMBERS.url() + "?timeout=5s"))
        .await
        .unwrap()
}

#[test]
fn both_exclude_each_other_under_one_row_of_tokens() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (client, mut java) = (connect().await, Java::start().await);
        // In Java, the last one is written as this library encodes it.
        for (ours, theirs) in [
            (name("job"), None),
            (name("Größe 🦀"), None),
            (name("a@b"), Some("%40")),
        ] {
            let theirs = theirs.map_or_else(|| ours.clone(), |with| ours.replace('@', with));
            let guard = client.lock(&ours).ttl(TTL).acquire().await.unwrap();
            assert_eq!(java.ask(&["try", &theirs, "0"]).await, "busy");
            assert_eq!(java.ask(&["locked", &theirs]).await, "yes");
            let token = guard.token().get();
            guard.release().await.unwrap();
            let fence = java.take(&theirs).await;
            assert!(fence > token, "{fence} follows {token}");
            assert!(client.lock(&ours).try_acquire().await.unwrap().is_none());
            let status = client.inspect(&ours).await.unwrap();
            assert_eq!(status.holds[0].token.map(u64::from), Some(fence));
            assert!(status.holds[0].holder.label.contains("thread"));
            let err = client.break_lock(&ours, fence).await.unwrap_err();
            assert!(err.to_string().contains("forceCloseSession"), "{err:#}");
            assert_eq!(java.ask(&["unlock", &theirs]).await, "released");
            let guard = client.lock(&ours).ttl(TTL).acquire().await.unwrap();
            assert!(guard.token().get() > fence);
            guard.release().await.unwrap();
        }
        client.close().await;
    });
}

#[test]
fn a_release_wakes_a_waiter_of_the_other() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (client, mut java, name) = (connect().await, Java::start().await, name("wake"));
        for _ in 0..3 {
            let guard = client.lock(&name).ttl(TTL).acquire().await.unwrap();
            java.tell(&["lock", &name, "60000", "0"]);
            until("Java waits", || MEMBERS.look(&name).waiters == 1);
            guard.release().await.unwrap();
            java.held().await;
            let lock = client.lock(&name).ttl(TTL);
            let waiting = tokio::spawn(async move { lock.acquire().await });
            until("we wait", || MEMBERS.look(&name).waiters == 1);
            assert_eq!(java.ask(&["unlock", &name]).await, "released");
            let guard = tokio::time::timeout(TEST_TIMEOUT, waiting).await;
            guard.unwrap().unwrap().unwrap().release().await.unwrap();
        }
        client.close().await;
    });
}

#[test]
fn a_reentrant_holder_in_java_holds_until_its_last_unlock() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (client, mut java, name) = (connect().await, Java::start().await, name("twice"));
        let first = java.take(&name).await;
        assert_eq!(java.take(&name).await, first);
        assert_eq!(java.ask(&["entries", &name]).await, "entries\t2");
        assert_eq!(java.ask(&["unlock", &name]).await, "released");
        assert!(client.lock(&name).try_acquire().await.unwrap().is_none());
        assert!(client.inspect(&name).await.unwrap().is_held());
        assert_eq!(java.ask(&["unlock", &name]).await, "released");
        assert!(!client.inspect(&name).await.unwrap().is_held());
        let guard = client.lock(&name).try_acquire().await.unwrap().unwrap();
        guard.release().await.unwrap();
        client.close().await;
    });
}

#[test]
fn a_killed_java_program_frees_us_within_its_session() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (client, mut java, name) = (connect().await, Java::start().await, name("killed"));
        let fence = java.take(&name).await;
        let lock = client.lock(&name).ttl(TTL);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        until("we wait", || MEMBERS.look(&name).waiters == 1);
        java.0.kill().unwrap();
        let killed = Instant::now();
        let guard = tokio::time::timeout(TTL + LATE, waiting).await;
        let guard = guard.expect("free within the session").unwrap().unwrap();
        println!("free {:?} after the kill", killed.elapsed());
        assert!(guard.token().get() > fence);
        guard.release().await.unwrap();
        client.close().await;
    });
}

#[cfg(feature = "conformance")]
#[test]
fn a_killed_holder_of_ours_frees_java_within_its_session() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (mut java, name) = (Java::start().await, name("ours"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_hazelcast-lock-holder"));
        command.args([&MEMBERS.url(), &name, "--ttl", "2s"]);
        let mut ours = LockHolder::spawn(command).unwrap();
        until("we hold", || MEMBERS.look(&name).holders == 1);
        java.tell(&["lock", &name, "60000", "0"]);
        until("Java waits", || MEMBERS.look(&name).waiters == 1);
        ours.kill().unwrap();
        let held = tokio::time::timeout(TTL + LATE, java.held()).await;
        assert!(held.expect("free within the session") > 0);
        assert_eq!(java.ask(&["unlock", &name]).await, "released");
    });
}

#[test]
fn a_lock_that_java_destroyed_is_an_error_that_says_so() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (client, mut java, name) = (connect().await, Java::start().await, name("destroyed"));
        let guard = client.lock(&name).ttl(TTL).acquire().await.unwrap();
        assert_eq!(java.ask(&["destroy", &name]).await, "destroyed");
        let lost = tokio::time::timeout(TEST_TIMEOUT, guard.lost()).await;
        // At a renewal, and not only when the lease is over.
        assert_eq!(lost.unwrap(), Some(LostReason::StoreSaysNo));
        let err = client.lock(&name).acquire().await.unwrap_err();
        assert!(err.to_string().contains("FencedLock.destroy"), "{err:#}");
        client.close().await;
    });
}

/// Four tasks of ours and four threads of Java add to one number, which loses counts unless each is alone.
#[test]
fn eight_contenders_of_both_never_overlap() {
    needs!(hazelcast);
    runtime().block_on(async {
        let (mut java, name) = (Java::start().await, name("count"));
        let directory = tenure_testkit::process::Directory::new("hazelcast-count");
        let file = directory.path().join("number");
        std::fs::write(&file, format!("{:020} rust\n", 0)).unwrap();
        let path = file.display().to_string();
        java.tell(&["count", &name, "4", "15", &path, "0"]);
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let (client, name, file) = (connect().await, name.clone(), file.clone());
            tasks.push(tokio::spawn(async move {
                for _ in 0..15 {
                    let guard = client.lock(&name).ttl(TTL).acquire().await.unwrap();
                    let text = std::fs::read_to_string(&file).unwrap();
                    let number: u64 = text.split(' ').next().unwrap().parse().unwrap();
                    tokio::task::yield_now().await;
                    std::fs::write(&file, format!("{:020} rust\n", number + 1)).unwrap();
                    guard.release().await.unwrap();
                }
                client.close().await;
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(java.answer().await, "counted");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(text.starts_with(&format!("{:020}", 120)), "{text}");
    });
}
