//! Users, certificates, and servers that are not what the URL says.

use std::net::TcpListener;
use std::time::Duration;

use tenure::store::Severity;
use tenure::{ErrorKind, LostReason};

use crate::support::{
    TTL, assert_says, connect, soon, start_acquire, take, take_and_release, until, until_renewed,
    wait_behind,
};
use tenure_testkit::etcd::{Etcd, base64};
use tenure_testkit::needs;
use tenure_testkit::redis::{Certificates, PASSWORD, USER};

/// A login token is valid for one second, and a renewal comes every two seconds.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_has_expired_is_done_again() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&["--auth-token-ttl", "1"]);
    let (first, second) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let guard = take(&first, "x", Duration::from_secs(6)).await;
    let waiting = wait_behind(&etcd, &second, "x", 1).await;
    for _ in 0..2 {
        until_renewed(&guard).await;
    }
    soon(guard.release()).await.unwrap();
    soon(soon(waiting).await.unwrap().unwrap().release())
        .await
        .unwrap();
    until("the leases expire", || etcd.leases().is_empty()).await;
    // No request was sent for seconds.
    take_and_release(&first, "x", TTL).await;
}

/// Any change of users makes old logins invalid in some versions; a client logs in again.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_users_is_survived() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let client = connect(&etcd.url()).await;
    let guard = take(&client, "x", TTL).await;
    let user = serde_json::json!({ "name": "other", "password": "other" });
    etcd.order("auth/user/add", &user);
    until_renewed(&guard).await;
    take_and_release(&client, "y", TTL).await;
    soon(guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_login_is_one_clear_line() {
    needs!(etcd);
    let secured = Etcd::start_secured(&[]);
    let address = secured.members[0].address();
    let wrong = format!("etcd://{USER}:wrong@{address}");
    let denied = soon(tenure::connect(&wrong)).await;
    assert_says(denied, ErrorKind::Denied, &["refused user or password"]);
    let nobody = soon(tenure::connect(&format!("etcd://{address}"))).await;
    let nobody = match nobody {
        // The list of members needs no rights; locks do.
        Ok(client) => soon(client.lock("x").try_acquire()).await.map(|_| ()),
        Err(err) => Err(err),
    };
    assert_says(nobody, ErrorKind::Denied, &["wants a user and a password"]);
    let user = serde_json::json!({ "name": "guest", "password": PASSWORD });
    secured.order("auth/user/add", &user);
    let guest = connect(&format!("etcd://guest:{PASSWORD}@{address}")).await;
    let outcome = soon(guest.lock("x").try_acquire()).await;
    assert_says(
        outcome,
        ErrorKind::Denied,
        &["does not let this user", "docs/stores/etcd.md"],
    );
    let open = Etcd::start(1, &[]);
    let address = open.members[0].address();
    let outcome = soon(tenure::connect(&format!(
        "etcd://{USER}:{PASSWORD}@{address}"
    )))
    .await;
    assert_says(
        outcome,
        ErrorKind::Denied,
        &["has no users", "leave user and password out"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_address_is_one_clear_line() {
    needs!(etcd, "openssl");
    let connect = |url: String| async move { soon(tenure::connect(&url)).await };
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("etcds://127.0.0.1:{port}?timeout=200ms");
    assert_says(
        connect(url).await,
        ErrorKind::Unreachable,
        &["did not answer in time"],
    );
    let certificates = Certificates::make();
    let file = |name: &str| certificates.file(name).display().to_string();
    let etcd = Etcd::start_tls(&certificates, "server");
    let plain = etcd.members[0].address();
    let tls = etcd.members[0].tls_address();
    let outcome = connect(format!("etcd://{USER}:{PASSWORD}@{tls}")).await;
    assert_says(outcome, ErrorKind::Unreachable, &["etcds://"]);
    let ca = file("ca.crt");
    let outcome = connect(format!("etcds://{USER}:{PASSWORD}@{plain}?ca={ca}")).await;
    assert_says(
        outcome,
        ErrorKind::Unreachable,
        &["does the server speak TLS", "etcd://"],
    );
    let login = etcd.tls_url();
    let outcome = connect(login.clone()).await;
    assert_says(
        outcome,
        ErrorKind::Unreachable,
        &["signed by an authority that is not trusted"],
    );
    let outcome = connect(format!("{login}?ca={ca}")).await;
    // The server closes the connection, and its reason may be lost.
    let kind = match &outcome {
        Err(err) if err.kind() == ErrorKind::Denied => ErrorKind::Denied,
        _ => ErrorKind::Unreachable,
    };
    assert_says(outcome, kind, &["a certificate of ours", "cert=FILE"]);
    let (cert, key) = (file("server.crt"), file("server.key"));
    let client = connect(format!("{login}?ca={ca}&cert={cert}&key={key}"))
        .await
        .unwrap();
    take_and_release(&client, "x", TTL).await;
    let misnamed = Etcd::start_tls(&certificates, "misnamed");
    let url = format!("{}?ca={ca}&cert={cert}&key={key}", misnamed.tls_url());
    assert_says(
        connect(url).await,
        ErrorKind::Unreachable,
        &["is for another name"],
    );
}

/// A user with a role that has no rights yet, and the URL with it.
pub(crate) fn introduce_guest(etcd: &Etcd) -> String {
    let user = serde_json::json!({ "name": "guest", "password": PASSWORD });
    etcd.order("auth/user/add", &user);
    etcd.order("auth/role/add", &serde_json::json!({ "name": "jobs" }));
    let both = serde_json::json!({ "user": "guest", "role": "jobs" });
    etcd.order("auth/user/grant", &both);
    let address = etcd.members[0].address();
    format!("etcd://guest:{PASSWORD}@{address}?prefix=jobs/&timeout=3s")
}

/// Gives the role a right to the keys that begin with `jobs/`: 0 is to read, 1 to write, 2 both.
pub(crate) fn allow(etcd: &Etcd, right: u8) {
    let range = serde_json::json!({ "permType": right, "key": base64(b"jobs/"), "range_end": base64(b"jobs0") });
    let grant = serde_json::json!({ "name": "jobs", "perm": range });
    etcd.order("auth/role/grant", &grant);
}

/// A check tries what a lock needs, and changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_check_says_which_right_a_user_lacks() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let client = connect(&introduce_guest(&etcd)).await;
    let bad = async || {
        let findings = soon(client.check()).await.unwrap();
        let bad = findings
            .into_iter()
            .filter(|it| it.severity == Severity::Bad);
        bad.map(|it| it.text).collect::<Vec<_>>()
    };
    let found = bad().await;
    assert!(
        matches!(&found[..], [read, write] if read.contains("read") && write.contains("write")),
        "{found:?}"
    );
    for (right, word) in [(0, "write"), (1, "read")] {
        allow(&etcd, right);
        let found = bad().await;
        assert!(
            matches!(&found[..], [text] if text.contains(word) && text.contains("role grant-permission")),
            "{found:?}"
        );
    }
    allow(&etcd, 2);
    assert_eq!(bad().await, [""; 0]);
    assert!(etcd.keys("").is_empty());
}

/// Its rights are taken away while it waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_may_not_leave_the_queue_says_so() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let url = introduce_guest(&etcd);
    allow(&etcd, 2);
    let (first, second) = (connect(&url).await, connect(&url).await);
    let guard = take(&first, "x", TTL * 10).await;
    let waiting = start_acquire(second.lock("x").ttl(TTL));
    until("it waits", || etcd.keys("jobs/x/").len() == 2).await;
    let both = serde_json::json!({ "name": "guest", "role": "jobs" });
    etcd.order("auth/user/revoke", &both);
    let outcome = soon(waiting).await.unwrap();
    assert_says(
        outcome,
        ErrorKind::Indeterminate,
        &["refused the request to leave"],
    );
    drop(guard);
}

/// A hold is kept and can be released; a new lock is refused, with the reason.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_is_one_clear_line() {
    needs!(etcd);
    let etcd = Etcd::start(1, &["--quota-backend-bytes", "1048576"]);
    let client = connect(&etcd.url()).await;
    let guard = take(&client, "x", TTL).await;
    let full = "x".repeat(200_000);
    // The server checks its size ten times a second.
    let mut fills = 0..;
    until("the database is full", || {
        let fill = format!("fill-{}", fills.next().unwrap());
        etcd.try_put(&fill, &full).is_err()
    })
    .await;
    let outcome = soon(client.lock("y").ttl(TTL).try_acquire()).await;
    assert_says(outcome, ErrorKind::Store, &["NOSPACE"]);
    let findings = soon(client.check()).await.unwrap();
    let is_said = |severity, word: &str| {
        let mut all = findings.iter();
        all.any(|it| it.severity == severity && it.text.contains(word))
    };
    assert!(is_said(Severity::Bad, "NOSPACE"), "{findings:?}");
    assert!(is_said(Severity::Warning, "one member"), "{findings:?}");
    until_renewed(&guard).await;
    soon(guard.release()).await.unwrap();
    assert!(etcd.keys("x/").is_empty());
}

/// A holder that no member serves any more counts its hold as lost in time.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_that_is_taken_away_ends_the_hold_by_its_deadline() {
    needs!(etcd);
    let etcd = Etcd::start_secured(&[]);
    let client = connect(&etcd.url()).await;
    let guard = take(&client, "x", TTL).await;
    etcd.order("auth/user/delete", &serde_json::json!({ "name": USER }));
    let reason = soon(guard.lost()).await;
    assert_eq!(reason, Some(LostReason::Expired));
    assert_says(soon(guard.release()).await, ErrorKind::Lost, &["ran out"]);
}
