//! Elections: the keys of a candidate, what is left of them, and requests to resign.

use std::time::Duration;

use tenure::etcd::Store;
use tenure::{Client, ErrorKind, Observer, Options, Term};
use tokio::task::JoinHandle;

use crate::support::{
    TTL, assert_says, connect, name, soon, start_acquire, take, until, until_renewed,
};
use tenure_testkit::etcd::{Etcd, Key};
use tenure_testkit::needs;
use tenure_testkit::proxy::{Fault, Proxy};

/// No lease ends during a test.
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

/// How long nothing happens, where that is to be seen.
pub(crate) const MOMENT: Duration = Duration::from_millis(300);

pub(crate) async fn campaign(client: &Client, name: &str, value: &str) -> Term {
    let election = client.election(name).ttl(TTL).value(value);
    soon(election.campaign()).await.unwrap()
}

/// A candidate that waits until the term in front of it has ended.
pub(crate) async fn campaign_behind(
    etcd: &Etcd,
    client: &Client,
    name: &str,
    value: &str,
) -> JoinHandle<Term> {
    let keys = |etcd: &Etcd| etcd.keys(&format!("{name}/")).len();
    let before = keys(etcd);
    let election = client.election(name).ttl(TTL).value(value);
    let waiting = tokio::spawn(async move { election.campaign().await.unwrap() });
    until("the candidate waits", || keys(etcd) > before).await;
    waiting
}

/// Token and value of the next leader that the observer tells; `None`: nobody leads.
pub(crate) async fn next(observer: &mut Observer) -> Option<(u64, String)> {
    let leader = soon(observer.next()).await.unwrap().unwrap()?;
    let value = leader.value().unwrap_or_default().to_owned();
    Some((leader.token.unwrap().get(), value))
}

/// What the term looks like to observers.
pub(crate) fn seen(term: &Term, value: &str) -> Option<(u64, String)> {
    Some((term.token().get(), value.to_owned()))
}

/// The leader with this value, whatever the observer tells before.
pub(crate) async fn until_led_by(observer: &mut Observer, value: &str) {
    loop {
        // An outage is told, too.
        let told = soon(observer.next()).await.unwrap();
        if let Ok(Some(leader)) = told
            && leader.value() == Some(value)
        {
            return;
        }
    }
}

fn assert_pair(keys: &[Key], name: &str, value: &str) {
    assert_eq!(keys.len(), 2, "{keys:?}");
    let is_record = |key: &&Key| key.key.starts_with("%record:");
    let record = keys.iter().find(is_record).unwrap();
    let key = keys.iter().find(|key| !is_record(key)).unwrap();
    let tail = key.key.strip_prefix(&format!("{name}/")).unwrap();
    assert_eq!(record.key, format!("%record:{name}%:{tail}"));
    assert_eq!(key.value, value);
    assert_eq!((key.lease, key.created), (record.lease, record.created));
    let record: serde_json::Value = serde_json::from_str(&record.value).unwrap();
    assert_eq!(record["pid"], std::process::id());
    assert_eq!(record["owner"].as_str().unwrap().len(), 32);
}

/// The keys of a candidate are made, changed and deleted together.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_has_a_bare_value_and_a_record_beside_it() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let term = campaign(&client, "e", "http://h:1").await;
    assert_pair(&etcd.keys(""), "e", "http://h:1");
    assert_eq!(etcd.keys("")[0].created, term.token().get());
    soon(term.proclaim("http://h:2")).await.unwrap();
    assert_pair(&etcd.keys(""), "e", "http://h:2");
    // A waiting candidate has both keys as well, and its end leaves none.
    let waiting = campaign_behind(&etcd, &other, "e", "waits").await;
    assert_eq!(etcd.keys("").len(), 4);
    let status = soon(other.inspect("e")).await.unwrap();
    let holder = &status.holds[0].holder;
    assert_eq!(&*holder.value.as_ref().unwrap().text, "http://h:2");
    assert_eq!(holder.pid, std::process::id());
    let queue = status.queue.unwrap();
    assert_eq!(&*queue[0].value.as_ref().unwrap().text, "waits");
    let listed = soon(other.list("")).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    waiting.abort();
    until("the candidate has left", || etcd.keys("").len() == 2).await;
    soon(term.resign()).await.unwrap();
    assert!(etcd.keys("").is_empty(), "{:?}", etcd.keys(""));
    // A lock of the same client uses the same key again.
    let guard = take(&client, "e", TTL).await;
    assert_eq!(etcd.keys("").len(), 1);
    soon(guard.release()).await.unwrap();
    soon(client.close()).await;
    soon(other.close()).await;
    assert!(etcd.leases().is_empty() && etcd.keys("").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_however_a_term_ends() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let client = connect(&format!("{}?timeout=2s", etcd.url_by(&[proxy.address()]))).await;
    let other = connect(&etcd.url()).await;
    let is_empty = || etcd.keys("").is_empty();
    // Keeps the lease that is shared alive.
    let guard = take(&client, "kept", TTL).await;
    let kept = etcd.keys("").len();
    for end in ["dropped", "broken", "deleted", "asked"] {
        let term = campaign(&client, "e", end).await;
        let keys = etcd.keys("e/");
        match end {
            "dropped" => drop(term),
            "broken" => {
                assert!(soon(other.break_lock("e", term.token())).await.unwrap());
                assert_eq!(etcd.keys("").len(), kept, "the breaker has left something");
                soon(term.lost()).await.unwrap();
                drop(term);
            }
            // By another program, which knows nothing of our record.
            "deleted" => {
                etcd.delete(&keys[0].key);
                soon(term.lost()).await.unwrap();
                drop(term);
            }
            _ => {
                let asked = soon(other.election("e").ask_to_resign()).await.unwrap();
                assert!(asked.is_some());
                assert_eq!(etcd.keys("%asked:").len(), 1);
                assert_eq!(etcd.keys("%asked:")[0].lease, keys[0].lease);
                soon(term.resign()).await.unwrap();
            }
        }
        until(end, || etcd.keys("").len() == kept).await;
    }
    // Requests of unknown outcome: the reply to each of them gets lost.
    for (request, fault) in [
        ("acquire", Fault::CutAfter),
        ("acquire", Fault::NoReply),
        ("acquire", Fault::Late(Duration::from_secs(3))),
        ("release", Fault::CutAfter),
        ("release", Fault::NoReply),
        ("change", Fault::CutAfter),
        ("change", Fault::NoReply),
    ] {
        proxy.plan(request, fault);
        let election = client.election("e").ttl(TTL).value("v");
        if let Ok(term) = soon(election.campaign()).await {
            let _ = soon(term.proclaim("w")).await;
            let _ = soon(term.resign()).await;
        }
        until("the fault happened", || proxy.is_done()).await;
        proxy.resume();
        until(request, || etcd.keys("").len() == kept).await;
        let term = campaign(&client, "e", "next").await;
        assert_pair(&etcd.keys("")[kept..], "e", "next");
        soon(term.resign()).await.unwrap();
    }
    soon(guard.release()).await.unwrap();
    until("nothing is left", is_empty).await;
    soon(client.close()).await;
    soon(other.close()).await;
    assert!(etcd.leases().is_empty());
}

/// The reservations of a client's defaults are those of its terms.
#[tokio::test(flavor = "multi_thread")]
async fn a_term_with_lock_delay_or_min_hold_reserves_its_name() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let other = connect(&etcd.url()).await;
    // Long enough to be seen on a busy machine.
    let reserved = Duration::from_secs(10);
    let client = async |options: Options| {
        let store = soon(Store::connect(&etcd.url())).await.unwrap();
        Client::builder(store).options(options).build().unwrap()
    };
    let delayed = client(Options::default().lock_delay(reserved)).await;
    let term = campaign(&delayed, "e", "v").await;
    assert_pair(&etcd.keys(""), "e", "v");
    let mut observer = other.election("e").observe();
    assert_eq!(next(&mut observer).await, seen(&term, "v"));
    soon(term.proclaim("w")).await.unwrap();
    assert_eq!(next(&mut observer).await, seen(&term, "w"));
    assert_eq!(soon(other.list("")).await.unwrap().len(), 1);
    assert!(soon(other.break_lock("e", term.token())).await.unwrap());
    let keys = etcd.keys("");
    assert!(
        keys.len() == 1 && keys[0].value.contains("reserved"),
        "{keys:?}"
    );
    assert_eq!(next(&mut observer).await, None, "the name is reserved");
    soon(term.lost()).await.unwrap();
    drop(term);
    until("the reservation is over", || etcd.keys("").is_empty()).await;
    let reserving = client(Options::default().min_hold(reserved)).await;
    let term = campaign(&reserving, "e", "v").await;
    assert_eq!(etcd.keys("").len(), 3);
    assert_eq!(next(&mut observer).await, seen(&term, "v"));
    soon(term.resign()).await.unwrap();
    assert_eq!(etcd.keys("").len(), 1, "the reservation");
    assert_eq!(next(&mut observer).await, None);
    until("the reservation is over", || etcd.keys("").is_empty()).await;
}

/// A value that reads as the record of a lock would let readers in beside the leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_reads_as_a_record_is_refused() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let client = connect(&etcd.url()).await;
    let record = r#"{"mode":"shared","owner":"0123456789abcdef0123456789abcdef"}"#;
    let outcome = soon(client.election("e").value(record).campaign()).await;
    assert_says(outcome, ErrorKind::Invalid, &["reads as the record"]);
    assert!(etcd.keys("").is_empty());
    let term = campaign(&client, "e", "v").await;
    let outcome = soon(term.proclaim(record)).await;
    assert_says(outcome, ErrorKind::Invalid, &["reads as the record"]);
    soon(term.resign()).await.unwrap();
}

/// The first value got no reply and is applied after the second one, or would be.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_arrives_late_replaces_no_later_one() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let client = connect(&format!("{}?timeout=1s", etcd.url_by(&[proxy.address()]))).await;
    let term = campaign(&client, "e", "first").await;
    for (turn, fault) in [
        Fault::Late(Duration::from_secs(2)),
        Fault::NoReply,
        Fault::CutAfter,
    ]
    .into_iter()
    .enumerate()
    {
        proxy.plan("change", fault);
        let outcome = soon(term.proclaim("unknown")).await;
        assert_says(outcome, ErrorKind::Indeterminate, &[]);
        let later = format!("later {turn}");
        soon(term.proclaim(later.as_str())).await.unwrap();
        until("the fault happened", || proxy.is_done()).await;
        proxy.resume();
        assert_pair(&etcd.keys(""), "e", &later);
    }
    soon(term.resign()).await.unwrap();
    assert!(etcd.keys("").is_empty());
}

/// The holder hears of it by a push; what was asked before it listened counts, too.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_is_asked_to_let_go() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let proxy = Proxy::etcd(etcd.members[0].port());
    let url = format!("{}?timeout=2s", etcd.url_by(&[proxy.address()]));
    let (client, other) = (connect(&url).await, connect(&etcd.url()).await);
    // Far longer than the test: only a push comes in time.
    let lead = |name: String| {
        let election = client.election(name).ttl(HOUR);
        async move { soon(election.campaign()).await.unwrap() }
    };
    let (early, late) = (name("early"), name("late"));
    let early_term = lead(early.clone()).await;
    soon(other.election(&early).ask_to_resign()).await.unwrap();
    assert!(soon(early_term.asked_to_resign()).await);
    let late_term = lead(late.clone()).await;
    let mut asked = Box::pin(late_term.asked_to_resign());
    let is_asked = tokio::time::timeout(MOMENT, &mut asked).await;
    assert!(is_asked.is_err(), "asked by nobody");
    assert_eq!(etcd.watches(), 1, "one watch for both");
    // A request that comes while the connection is broken is read afterwards.
    proxy.cut();
    soon(other.election(&late).ask_to_resign()).await.unwrap();
    assert!(soon(asked).await);
    assert!(soon(late_term.asked_to_resign()).await, "it is still asked");
    soon(late_term.resign()).await.unwrap();
    soon(early_term.resign()).await.unwrap();
    until("no watch is left", || etcd.watches() == 0).await;
    // The holder of a lock hears of it, too.
    let guard = take(&client, "lock", HOUR).await;
    let asked = tokio::spawn(guard.asked_to_release());
    soon(other.election("lock").ask_to_resign()).await.unwrap();
    assert!(soon(asked).await.unwrap());
    assert_eq!(etcd.keys("%asked:").len(), 1);
    soon(guard.release()).await.unwrap();
    until("nothing is left", || etcd.keys("").is_empty()).await;
    assert!(
        soon(other.election("lock").ask_to_resign())
            .await
            .unwrap()
            .is_none()
    );
}

/// No request can reach a program of another library.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_leader_is_shown_and_cannot_be_asked() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let client = connect(&etcd.url()).await;
    let mut observer = client.election("e").observe();
    assert_eq!(next(&mut observer).await, None);
    etcd.try_put("e/7", "theirs").unwrap();
    let leader = soon(observer.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(leader.value(), Some("theirs"));
    assert_eq!((&*leader.holder.host, leader.holder.pid), ("", 0));
    // As `Proclaim` of the Go package writes it.
    for value in ["next", "", "last"] {
        etcd.try_put("e/7", value).unwrap();
        assert_eq!(next(&mut observer).await.unwrap().1, value);
    }
    assert_eq!(
        soon(client.election("e").leader())
            .await
            .unwrap()
            .unwrap()
            .token,
        leader.token
    );
    let outcome = soon(client.election("e").ask_to_resign()).await;
    assert_says(
        outcome,
        ErrorKind::Unsupported,
        &["another library", "`inspect`"],
    );
    assert_eq!(etcd.keys("").len(), 1);
    etcd.delete("e/7");
    assert_eq!(next(&mut observer).await, None);
}

/// A name that is written as it is may be the directory of another name: the records are in none.
#[tokio::test(flavor = "multi_thread")]
async fn elections_with_raw_names_share_no_record() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let url = format!("{}?names=raw", etcd.url());
    let (client, other) = (connect(&url).await, connect(&url).await);
    let inner = campaign(&client, "a/b", "inner").await;
    let waiting = campaign_behind(&etcd, &other, "a", "outer").await;
    assert!(
        !waiting.is_finished(),
        "a candidate of `a` waits for all under `a/`"
    );
    let keys = etcd.keys("%record:");
    let names = keys.iter().map(|key| key.key.split("%:").next().unwrap());
    let names: Vec<_> = names.collect();
    assert_eq!(names, ["%record:a%2Fb", "%record:a"]);
    soon(inner.resign()).await.unwrap();
    soon(soon(waiting).await.unwrap().resign()).await.unwrap();
    assert!(etcd.keys("").is_empty());
}

/// The key of a waiting candidate survives renewals of the client, and so does the value of the leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_waits_for_a_leader_and_a_candidate_for_a_lock() {
    needs!(etcd);
    let etcd = Etcd::start(1, &[]);
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let term = campaign(&client, "e", "v").await;
    let waiting = start_acquire(other.lock("e").ttl(TTL));
    until("the lock waits", || etcd.keys("e/").len() == 2).await;
    until_renewed(term.guard()).await;
    assert_pair(
        &[etcd.keys("e/")[0].clone(), etcd.keys("%record:")[0].clone()],
        "e",
        "v",
    );
    assert!(!waiting.is_finished());
    soon(term.resign()).await.unwrap();
    let guard = soon(waiting).await.unwrap().unwrap();
    let candidate = campaign_behind(&etcd, &client, "e", "next").await;
    soon(guard.release()).await.unwrap();
    soon(soon(candidate).await.unwrap().resign()).await.unwrap();
    assert!(etcd.keys("").is_empty());
}
