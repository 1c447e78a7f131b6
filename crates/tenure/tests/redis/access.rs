//! Users who may do what docs/stores/redis.md says and nothing else: that is enough, and none of it is too much.

use std::path::Path;

use tenure::ErrorKind::{Denied, Store};
use tenure::{Client, Guard, Lock};

use crate::support::{
    TTL, assert_says, connect, soon, start_acquire, take, take_and_release, until, until_renewed,
};
use tenure_testkit::needs;
use tenure_testkit::redis::{Cluster, Redis, SentinelSetup};
use tenure_testkit::resp::Value;

/// Neither in an access list nor anywhere else.
const WORD: &str = "word-of-a-weak-user";

/// A server that is trusted at once, by a setting that is asked for.
const KEEPS: &[&str] = &["appendonly yes", "appendfsync always"];

/// The line of docs/stores/redis.md that begins so.
fn line_of_page(start: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/stores/redis.md");
    let page = std::fs::read_to_string(page).unwrap();
    let line = page.lines().find(|line| line.starts_with(start));
    line.unwrap().to_owned()
}

/// The published rules of this user.
fn rules(user: &str) -> Vec<String> {
    let line = line_of_page(&format!("ACL SETUSER {user} "));
    let line = line.replace("PASSWORD", WORD);
    line.split(' ').map(str::to_owned).collect()
}

/// What the user `jobs` needs in addition for holds that are not exclusive.
fn rules_of_modes() -> Vec<String> {
    let line = line_of_page("Shared and upgradable holds and permits need `+");
    let rules = line.split('`').nth(1).unwrap();
    rules.split(' ').map(str::to_owned).collect()
}

/// Introduces the user to the servers.
fn introduce<'a>(user: &str, servers: impl IntoIterator<Item = &'a Redis>) {
    for server in servers {
        server.order(&rules(user));
        server.order(&["ACL", "LOG", "RESET"]);
    }
}

/// Nothing was refused, also where a refusal does no harm. Clients introduce themselves since 7.2 only, so no list
/// that older servers understand can allow it.
fn assert_nothing_refused<'a>(servers: impl IntoIterator<Item = &'a Redis>) {
    for server in servers {
        for entry in server.ask(&["ACL", "LOG"]).items() {
            let entry = format!("{entry:?}");
            assert!(entry.contains("client|setinfo"), "{entry}");
        }
    }
}

/// Every allowed command is used, on one server or another; some of them a few seconds later.
async fn assert_all_used<'a>(
    rules: Vec<String>,
    servers: impl IntoIterator<Item = &'a Redis>,
    exceptions: &[&str],
) {
    let servers: Vec<_> = servers.into_iter().collect();
    for rule in rules {
        let Some(command) = rule.strip_prefix('+') else {
            continue;
        };
        if exceptions.contains(&command) {
            continue;
        }
        let line = format!("cmdstat_{command}:");
        let uses = |server: &&Redis| server.ask(&["INFO", "commandstats"]).text().contains(&line);
        until(&format!("a client runs {command}"), || {
            servers.iter().any(uses)
        })
        .await;
    }
}

/// All that two clients do with a lock.
async fn everything(first: &Client, second: &Client, name: &str) {
    let findings = soon(first.check()).await.unwrap();
    let is_denied = |text: &str| text.contains("may not");
    assert!(
        !findings.iter().any(|finding| is_denied(&finding.text)),
        "{findings:?}"
    );
    let guard = take(first, name, TTL).await;
    let waiter = start_acquire(second.lock(name).ttl(TTL));
    until_renewed(&guard).await;
    // Dropped in the queue.
    let lock = first.lock(name).ttl(TTL);
    let third = tokio::time::timeout(TTL / 4, lock.acquire());
    assert!(third.await.is_err());
    assert_eq!(soon(first.list("")).await.unwrap().len(), 1);
    assert_eq!(soon(second.inspect(name)).await.unwrap().holds.len(), 1);
    soon(guard.release()).await.unwrap();
    let guard = soon(waiter).await.unwrap().unwrap();
    assert!(
        soon(first.lock(name).try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        soon(first.break_lock(name, guard.token().get()))
            .await
            .unwrap()
    );
    soon(guard.lost()).await;
    assert!(soon(guard.release()).await.is_err());
    take_and_release(second, name, TTL).await;
}

/// All that two clients do with an election.
async fn elect(first: &Client, second: &Client, name: &str) {
    let findings = soon(first.check()).await.unwrap();
    assert!(
        !findings.iter().any(|it| it.text.contains("election")),
        "{findings:?}"
    );
    let mut observer = second.election(name).observe();
    let candidate = first.election(name).ttl(TTL).value("a");
    assert!(soon(observer.next()).await.unwrap().unwrap().is_none());
    let term = soon(candidate.campaign()).await.unwrap();
    let mut see = async |value: &str| {
        let seen = soon(observer.next()).await.unwrap().unwrap();
        assert_eq!(seen.unwrap().value(), Some(value));
    };
    see("a").await;
    soon(term.proclaim("b")).await.unwrap();
    see("b").await;
    let next = second.election(name).ttl(TTL).value("c");
    let asked = soon(next.ask_to_resign()).await.unwrap();
    assert!(asked.is_some() && soon(term.asked_to_resign()).await);
    let next = tokio::spawn(async move { next.campaign().await });
    until_renewed(term.guard()).await;
    soon(term.resign()).await.unwrap();
    see("c").await;
    soon(soon(next).await.unwrap().unwrap().resign())
        .await
        .unwrap();
    drop(observer);
}

/// A hold is detached from one client and attached to the other.
async fn hand_over(first: &Client, second: &Client, name: &str) {
    let receipt = soon(take(first, name, TTL).await.detach()).await.unwrap();
    let longer = receipt.with_ttl(TTL + TTL / 2);
    let guard = soon(second.attach(&longer)).await.unwrap();
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_one_server() {
    needs!(redis);
    for (user, options) in [
        ("jobs", ""),
        ("redisson", "&dialect=redisson"),
        ("redisson-rw", "&dialect=redisson&lock=rw"),
        ("redisson-fair", "&dialect=redisson&lock=fair"),
        ("redisson-semaphore", "&dialect=redisson&lock=semaphore"),
    ] {
        let server = Redis::start(KEEPS);
        introduce(user, [&server]);
        let at = server.address();
        let url = format!("redis://{user}:{WORD}@{at}/?prefix=jobs:&timeout=1s{options}")
            .replace("/?", "/1?");
        let (first, second) = (connect(&url).await, connect(&url).await);
        everything(&first, &second, "x").await;
        if user == "jobs" {
            elect(&first, &second, "x").await;
            hand_over(&first, &second, "x").await;
        }
        server.order(&["LPUSH", "jobs:odd", "x"]);
        server.order(&["MOVE", "jobs:odd", "1"]);
        let odd = soon(first.lock("odd").ttl(TTL).try_acquire()).await;
        assert_says(odd, Store, &["list"]);
        assert_nothing_refused([&server]);
        assert_all_used(rules(user), [&server], &[]).await;
        // A script that may not do all it does says what to read.
        server.order(&["ACL", "SETUSER", user, "-set"]);
        let refused = soon(first.lock("new").ttl(TTL).try_acquire()).await;
        assert_says(refused, Denied, &["docs/stores/redis.md"]);
        // Another prefix is none of its business.
        let url = url.replace("prefix=jobs:", "prefix=others:");
        let other = connect(&url).await;
        let refused = soon(other.lock("x").ttl(TTL).try_acquire()).await;
        assert_says(refused, Denied, &["docs/stores/redis.md"]);
        server.order(&["ACL", "SETUSER", user, "-select"]);
        let refused = soon(tenure::connect(&url)).await;
        assert_says(refused, Denied, &[&at, "docs/stores/redis.md"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_a_cluster() {
    needs!(redis);
    let cluster = Cluster::start(false);
    introduce("cluster", cluster.masters());
    for node in cluster.masters() {
        for [key, value] in [["appendonly", "yes"], ["appendfsync", "always"]] {
            assert_eq!(
                node.order(&["CONFIG", "SET", key, value]),
                Value::Text("OK".into())
            );
        }
    }
    let url = cluster.url().replace("://", &format!("://cluster:{WORD}@"));
    let url = format!("{url}/?prefix=jobs:&timeout=1s");
    let (first, second) = (connect(&url).await, connect(&url).await);
    for name in ["a", "b", "c", "d"] {
        everything(&first, &second, name).await;
        elect(&first, &second, name).await;
        hand_over(&first, &second, name).await;
    }
    assert_nothing_refused(cluster.masters());
    // What slots that move and strange keys need.
    let exceptions = ["asking", "type"];
    assert_all_used(rules("cluster"), cluster.masters(), &exceptions).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_sentinels() {
    needs!(redis);
    let watched = SentinelSetup::start(60_000);
    introduce("sentinel", &watched.sentinels);
    introduce("jobs", &watched.servers);
    let url = watched.url().replace("://", &format!("://jobs:{WORD}@"));
    let url = format!(
        "{url}?prefix=jobs:&timeout=1s&restart_guard=off&sentinel_user=sentinel&sentinel_password={WORD}"
    );
    let (first, second) = (connect(&url).await, connect(&url).await);
    everything(&first, &second, "x").await;
    assert_nothing_refused(watched.servers.iter().chain(&watched.sentinels));
}

/// All that two clients do with a lock that several hold.
async fn share(first: &Client, second: &Client, name: &str) {
    let readers = [
        take_lock(first.lock(name).shared()).await,
        take_lock(second.lock(name).shared()).await,
    ];
    let writer = start_acquire(first.lock(name).ttl(TTL));
    until_renewed(&readers[0]).await;
    assert_eq!(soon(first.inspect(name)).await.unwrap().holds.len(), 2);
    for reader in readers {
        soon(reader.release()).await.unwrap();
    }
    let writer = soon(writer).await.unwrap().unwrap();
    soon(writer.downgrade()).await.unwrap();
    soon(writer.release()).await.unwrap();
    let upgradable = take_lock(second.lock(name).upgradable()).await;
    soon(upgradable.upgrade()).await.unwrap();
    soon(upgradable.release()).await.unwrap();

    let permits = [
        take_lock(first.lock(name).permits(2)).await,
        take_lock(second.lock(name).permits(2)).await,
    ];
    let third = start_acquire(first.lock(name).ttl(TTL).permits(2));
    until_renewed(&permits[1]).await;
    let [one, other] = permits;
    soon(one.release()).await.unwrap();
    let third = soon(third).await.unwrap().unwrap();
    let token = third.token().get();
    assert!(soon(second.break_lock(name, token)).await.unwrap());
    assert!(soon(third.release()).await.is_err());
    soon(other.release()).await.unwrap();
}

async fn take_lock(lock: Lock) -> Guard {
    soon(lock.ttl(TTL).acquire()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_shared_holds_and_permits() {
    needs!(redis);
    let server = Redis::start(KEEPS);
    introduce("jobs", [&server]);
    for rule in rules_of_modes() {
        server.order(&["ACL", "SETUSER", "jobs", &rule]);
    }
    let at = server.address();
    let url = format!("redis://jobs:{WORD}@{at}/1?prefix=jobs:&timeout=1s");
    let (first, second) = (connect(&url).await, connect(&url).await);
    share(&first, &second, "x").await;
    assert_nothing_refused([&server]);
    assert_all_used(rules_of_modes(), [&server], &[]).await;
}

/// A user who may use exclusive locks only cannot hand the lock over to a reader, and leaves the reader in the queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_modes_leaves_a_waiting_reader_in_the_queue() {
    needs!(redis);
    let server = Redis::start(KEEPS);
    introduce("jobs", [&server]);
    let at = server.address();
    let weak = connect(&format!("redis://jobs:{WORD}@{at}/?prefix=jobs:")).await;
    let other = connect(&format!("{}?prefix=jobs:", server.url())).await;
    let ttl = TTL * 100;
    let guard = take(&weak, "x", ttl).await;
    let reader = start_acquire(other.lock("x").ttl(ttl).shared());
    let queue = ["LLEN", "tenure:{jobs:x}:queue"];
    until("it waits", || server.ask(&queue).int() == 2).await;
    assert_says(
        soon(guard.release()).await,
        Denied,
        &["docs/stores/redis.md"],
    );
    assert_eq!(server.ask(&queue).int(), 2);
    server.order(&["DEL", "jobs:x"]);
    let reader = soon(reader).await.unwrap().unwrap();
    soon(reader.release()).await.unwrap();
}
