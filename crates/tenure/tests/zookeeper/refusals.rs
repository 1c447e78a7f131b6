//! What is refused, each with one line that names the cause and the cure.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::store::Severity;

use crate::support::{
    ROOT, SHARED, TTL, assert_says, client_of, connect, nodes, soon, start_acquire, take,
    take_and_release, unique, until, url,
};
use tenure_testkit::needs;

use tenure_testkit::redis::Certificates;
use tenure_testkit::zookeeper::{self, PASSWORD, USER, Zookeeper};

#[tokio::test(flavor = "multi_thread")]
async fn another_password() {
    needs!(zookeeper);
    let client = client_of(&SHARED).await;
    let name = unique("access");
    let guard = take(&client, &name, Duration::from_secs(5)).await;
    let login = format!("{USER}:{PASSWORD}@");
    for other in ["tenure:wrong@", "somebody:else@", ""] {
        let url = url(SHARED.port(), "").replace(&login, other);
        let refused = soon(tenure::connect(&url)).await;
        assert_says(refused, ErrorKind::Denied, &["belongs to another user"]);
    }
    // Only our user has access to our nodes.
    let mut wire = SHARED.session();
    let dir = format!("{ROOT}/{name}");
    let node = wire.children(&dir).remove(0);
    for path in [ROOT, &dir, &format!("{dir}/{node}")] {
        for entry in wire.access(path) {
            assert!(entry.starts_with("digest:tenure:"), "{path}: {entry}");
        }
    }
    soon(guard.release()).await.unwrap();
}

/// Without a user every client can change our nodes, and `check` says so.
#[tokio::test(flavor = "multi_thread")]
async fn what_check_finds() {
    needs!(zookeeper);
    let url = format!("zookeeper://127.0.0.1:{}/open?ttl=2s", SHARED.port());
    let client = connect(&url).await;
    let found = soon(client.check()).await.unwrap();
    let text = |severity| {
        let all = found.iter().filter(|it| it.severity == severity);
        all.map(|it| it.text.as_str())
            .collect::<Vec<_>>()
            .join("\n")
    };
    let (good, warnings) = (text(Severity::Good), text(Severity::Warning));
    assert!(good.contains("runs ZooKeeper 3."), "{good}");
    assert!(
        warnings.contains("one server and no ensemble"),
        "{warnings}"
    );
    assert!(warnings.contains("can delete our locks"), "{warnings}");
    assert_eq!(text(Severity::Bad), "");
    assert!(client.guarantees().setting.contains("one server"));
}

/// `ZooDefs.Perms`.
const READ: i32 = 1;
const CREATE: i32 = 4;
const ADMIN: i32 = 16;

const ANYONE: (&str, &str) = ("world", "anyone");

/// A check tries what a lock needs, and leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_finds_a_node_under_which_this_user_may_create_nothing() {
    needs!(zookeeper);
    let mut wire = SHARED.session();
    let top = format!("/{}", unique("closed"));
    wire.create(&top, b"", 0).unwrap();
    let url_of = |root: &str| url(SHARED.port(), "").replace(ROOT, root);
    let client = connect(&url_of(&top)).await;
    for (rights, is_refused) in [(READ | ADMIN, true), (READ | ADMIN | CREATE, false)] {
        wire.restrict(&top, rights, ANYONE);
        let found = soon(client.check()).await.unwrap();
        let mut bad = found.iter().filter(|it| it.severity == Severity::Bad);
        let is_said =
            |it: &tenure::store::Finding| it.text.contains(&top) && it.text.contains("create");
        assert_eq!(bad.any(is_said), is_refused, "{found:?}");
        wire.sync("/");
        assert_eq!(wire.children(&top), [""; 0]);
        if is_refused {
            // A client makes the node of its locks when it connects.
            let refused = soon(tenure::connect(&url_of(&format!("{top}/locks")))).await;
            assert_says(refused, ErrorKind::Denied, &["this user may not"]);
        }
    }
    // The right to delete is not needed there.
    take_and_release(&client, "x", Duration::from_secs(5)).await;
}

/// Its rights are taken away while it waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_may_not_leave_the_queue_says_so() {
    needs!(zookeeper);
    let (first, second) = (client_of(&SHARED).await, client_of(&SHARED).await);
    let name = unique("kept");
    let guard = take(&first, &name, TTL).await;
    let waiting = start_acquire(second.lock(&name).ttl(TTL));
    until("it waits", || nodes(&SHARED, &name).len() == 2).await;
    let dir = format!("{ROOT}/{name}");
    SHARED.session().restrict(&dir, 0, ANYONE);
    let outcome = soon(waiting).await.unwrap();
    assert_says(
        outcome,
        ErrorKind::Indeterminate,
        &["refused the request to leave"],
    );
    drop(guard);
}

/// A server that is cut off and still serves reads.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server() {
    needs!(zookeeper);
    let settings = ["-Dreadonlymode.enabled=true"];
    let ensemble = zookeeper::Ensemble::start_with(&settings, &[]);
    let client = connect(&url(ensemble.nodes[0].port(), "")).await;
    ensemble.nodes[1].kill();
    ensemble.nodes[2].kill();
    until("it is read-only", || {
        ensemble.nodes[0].mode().as_deref() == Some("read-only")
    })
    .await;
    let refused = soon(tenure::connect(&url(ensemble.nodes[0].port(), ""))).await;
    assert_says(refused, ErrorKind::Unreachable, &["read-only", "majority"]);
    let tried = soon(client.lock("x").ttl(Duration::from_secs(1)).try_acquire()).await;
    assert!(!matches!(tried, Ok(Some(_))));
}

/// The servers grant session timeouts within bounds; a fixed lease that is longer is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_beyond_the_servers_bounds() {
    needs!(zookeeper);
    let server = Zookeeper::start(&["maxSessionTimeout=5000"]);
    let client = client_of(&server).await;
    let lock = client.lock("long").ttl(Duration::from_secs(30));
    let guard = soon(lock.acquire()).await.unwrap();
    assert!(guard.remaining() <= Duration::from_secs(5));
    soon(guard.release()).await.unwrap();
    // More milliseconds than the protocol can express.
    let month = Duration::from_secs(30 * 24 * 3600);
    let guard = soon(client.lock("month").ttl(month).acquire())
        .await
        .unwrap();
    let shortest = Duration::from_millis(2 * tenure_testkit::zookeeper::TICK);
    assert!(
        guard.remaining() > shortest,
        "a session of the shortest length"
    );
    soon(guard.release()).await.unwrap();
    let fixed = lock.renew(tenure::Renew::Never);
    assert_says(
        soon(fixed.acquire()).await,
        ErrorKind::Invalid,
        &["maxSessionTimeout", "lower `ttl`"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates() {
    needs!(zookeeper, "openssl");
    let certificates = Certificates::make();
    let file = |name: &str| certificates.file(name).display().to_string();
    let server = Zookeeper::start_tls(&certificates, "server");
    let by = |port, ca: &str| url(port, &format!("&tls=on&ca={}", file(ca)));
    let client = connect(&by(server.tls_port(), "ca.crt")).await;
    take_and_release(&client, "tls", Duration::from_secs(2)).await;
    let refused = soon(tenure::connect(&by(server.tls_port(), "foreign.crt"))).await;
    assert_says(refused, ErrorKind::Unreachable, &["ca=FILE"]);
    let refused = soon(tenure::connect(&by(server.port(), "ca.crt"))).await;
    assert_says(refused, ErrorKind::Unreachable, &["TLS"]);
    let refused = soon(tenure::connect(&url(server.tls_port(), ""))).await;
    assert_says(refused, ErrorKind::Unreachable, &["tls=on"]);
}

/// A hold ends with its session, so none goes on without its client.
#[tokio::test(flavor = "multi_thread")]
async fn detached_holds() {
    needs!(zookeeper);
    let client = client_of(&SHARED).await;
    let says = [
        "zookeeper has no detached holds",
        "`etcd:`",
        "ends with its session",
    ];
    let required = client.require(tenure::guarantees::Capability::Detach);
    assert_says(required, ErrorKind::Unsupported, &says);
    let name = unique("detached");
    let guard = take(&client, &name, TTL).await;
    let refused = soon(guard.detach()).await;
    assert_says(refused, ErrorKind::Unsupported, &says);
    until("the guard is dropped", || nodes(&SHARED, &name).is_empty()).await;
}
