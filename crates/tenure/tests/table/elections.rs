//! Elections: the value and the request to let go in the row of a name, and what observers cost.

use std::time::Duration;

use tenure::{Client, ErrorKind, Observer, Renew, Term};

use crate::support::{
    Db, OPTIONS, SHORT, TTL, assert_says, connect, name, shared, soon, take, until, until_renewed,
};
use tenure_testkit::mariadb::{DATABASE, USER};
use tenure_testkit::needs;
use tenure_testkit::pgbouncer::Pooler;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::{Fault, Proxy};

impl Db {
    /// What the row of the name says about its holder.
    fn holder(&self, name: &str) -> String {
        self.value(&format!(
            "SELECT holder FROM tenure_locks WHERE name='{name}'"
        ))
    }

    /// Connections that listen.
    fn listeners(&self) -> i64 {
        self.number(&format!(
            "SELECT COUNT(*) FROM pg_stat_activity WHERE usename='{USER}' AND query LIKE '%LISTEN %'"
        ))
    }
}

async fn campaign(client: &Client, name: &str, value: &str, ttl: Duration) -> Term {
    let election = client.election(name).value(value).ttl(ttl);
    soon(election.campaign()).await.unwrap()
}

/// Waits until the observer shows this value; `None`: nobody leads.
async fn until_seen(observer: &mut Observer, value: Option<&str>) {
    loop {
        let item = soon(observer.next()).await.unwrap();
        // An error is an outage, after which the observer goes on.
        if let Ok(leader) = item
            && leader.as_ref().and_then(|leader| leader.value()) == value
        {
            return;
        }
    }
}

/// The published fields. A lock has none of them.
#[tokio::test(flavor = "multi_thread")]
async fn value_and_request_are_fields_of_the_row() {
    for db in shared().await {
        let (client, name) = (connect(&db.url()).await, name("fields"));
        let guard = take(&client, &name, TTL).await;
        let lock = db.holder(&name);
        assert!(
            !lock.contains("value") && !lock.contains("number"),
            "{lock}"
        );
        soon(guard.release()).await.unwrap();
        let term = campaign(&client, &name, "a \"b\" \\ 'c' ü", SHORT).await;
        let fields = |number: u32, asked: &str| {
            let start = lock.trim_end_matches('}');
            let value = match number {
                1 | 2 => "x",
                _ => r#"a \"b\" \\ 'c' ü"#,
            };
            format!(r#"{start},"value":"{value}","number":{number}{asked}}}"#)
        };
        assert_eq!(db.holder(&name), fields(0, ""));
        until_renewed(term.guard()).await;
        assert_eq!(db.holder(&name), fields(0, ""), "after a renewal");
        soon(term.proclaim("x")).await.unwrap();
        assert_eq!(db.holder(&name), fields(1, ""));
        let other = connect(&db.url()).await;
        for _ in 0..2 {
            let asked = soon(other.election(&name).ask_to_resign()).await.unwrap();
            assert_eq!(asked.unwrap().token, Some(term.token()));
            assert_eq!(db.holder(&name), fields(1, r#","asked":true"#));
        }
        // The request is for the term, and a value does not replace it.
        soon(term.proclaim("x")).await.unwrap();
        assert_eq!(db.holder(&name), fields(2, r#","asked":true"#));
        assert!(soon(term.asked_to_resign()).await);
        soon(term.resign()).await.unwrap();
        assert_eq!(db.holder(&name), "");
        let term = campaign(&client, &name, "a \"b\" \\ 'c' ü", TTL).await;
        assert_eq!(
            db.holder(&name),
            fields(3, ""),
            "numbers go on in the next term"
        );
        soon(term.resign()).await.unwrap();
        client.close().await;
    }
}

/// A request that was sent before, and comes late.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_value_replaces_no_newer_one() {
    for db in shared().await {
        let (client, name) = (connect(&db.url()).await, name("late"));
        let term = campaign(&client, &name, "first", TTL).await;
        let newer = db.holder(&name).replace(r#""number":0"#, r#""number":7"#);
        db.rows(&format!(
            "UPDATE tenure_locks SET holder='{newer}' WHERE name='{name}'"
        ));
        soon(term.proclaim("late")).await.unwrap();
        assert_eq!(db.holder(&name), newer);
        // Another owner has the name: that of the next term.
        db.rows(&format!(
            "UPDATE tenure_locks SET owner='00000000000000000000000000000001' WHERE name='{name}'"
        ));
        let late = soon(term.proclaim("later")).await;
        assert_says(late, ErrorKind::Lost, &["nothing was published"]);
        assert_eq!(db.holder(&name), newer);
        drop(term);
        client.close().await;
    }
}

/// The request is written under the text that was read: a value that the leader publishes meanwhile stays.
#[tokio::test(flavor = "multi_thread")]
async fn requests_and_values_do_not_replace_each_other() {
    for db in shared().await {
        let name = name("both");
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        let term = campaign(&client, &name, "a", TTL).await;
        let asking = tokio::spawn({
            let election = other.election(&name);
            async move {
                for _ in 0..20 {
                    // The leader may publish each time between read and write.
                    let _ = election.ask_to_resign().await;
                }
            }
        });
        // Texts that differ by case are equal in a column of MySQL.
        for number in 0..60 {
            let value = if number % 2 == 0 { "A" } else { "a" };
            soon(term.proclaim(value)).await.unwrap();
        }
        soon(term.proclaim("last")).await.unwrap();
        soon(asking).await.unwrap();
        soon(other.election(&name).ask_to_resign()).await.unwrap();
        let holder = db.holder(&name);
        assert!(
            holder.ends_with(r#""value":"last","number":61,"asked":true}"#),
            "{holder}"
        );
        soon(term.resign()).await.unwrap();
    }
}

/// An old leader that is cut off replaces nothing of the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_cut_off_publishes_nothing() {
    for db in Db::servers() {
        db.init().await;
        let (proxy, url) = db.proxied();
        let (cut_off, other) = (connect(&url).await, connect(&db.url()).await);
        let old = campaign(&cut_off, "cut", "old", SHORT).await;
        let mut observer = other.election("cut").observe();
        until_seen(&mut observer, Some("old")).await;
        proxy.hold_both(true);
        let late = tokio::spawn(async move {
            let proclaimed = old.proclaim("late").await;
            (old, proclaimed)
        });
        let next = campaign(&other, "cut", "next", TTL).await;
        until_seen(&mut observer, Some("next")).await;
        proxy.hold_both(false);
        let (old, proclaimed) = soon(late).await.unwrap();
        // The request timed out, or came to the server after the next grant.
        proclaimed.unwrap_err();
        assert!(!old.is_leader(), "two lead");
        let again = soon(old.proclaim("late")).await;
        assert_says(again, ErrorKind::Lost, &["nothing was published"]);
        let leader = soon(other.election("cut").leader()).await.unwrap().unwrap();
        assert_eq!(
            (leader.token, leader.value()),
            (Some(next.token()), Some("next"))
        );
        soon(next.resign()).await.unwrap();
        until_seen(&mut observer, None).await;
    }
}

/// A hold that is not renewed cannot learn of a request by its renewals.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_asked_whether_it_is_renewed_or_not() {
    for db in shared().await {
        let name = name("lock");
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        for renew in [Renew::Automatic, Renew::Never] {
            let lock = client.lock(&name).ttl(TTL).renew(renew);
            let guard = soon(lock.acquire()).await.unwrap();
            let asked = tokio::spawn(guard.asked_to_release());
            let holder = soon(other.election(&name).ask_to_resign()).await.unwrap();
            assert_eq!(holder.unwrap().token, Some(guard.token()));
            assert!(soon(asked).await.unwrap(), "{renew:?}");
            assert!(guard.is_held());
            soon(guard.release()).await.unwrap();
        }
        let nobody = soon(other.election(&name).ask_to_resign()).await.unwrap();
        assert!(nobody.is_none(), "{nobody:?}");
        client.close().await;
    }
}

/// What happens to a leader in other ways than by a resignation is pushed too.
#[tokio::test(flavor = "multi_thread")]
async fn observers_see_the_end_of_a_term_however_it_ends() {
    for db in shared().await {
        let name = name("ends");
        let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
        let mut observer = other.election(&name).observe();
        until_seen(&mut observer, None).await;
        // The lease is much longer than the test waits.
        let long = TTL * 100;
        for end in ["dropped", "broken", "closed"] {
            let leader = connect(&db.url()).await;
            let term = campaign(&leader, &name, end, long).await;
            until_seen(&mut observer, Some(end)).await;
            match end {
                "dropped" => drop(term),
                "broken" => {
                    let broken = soon(client.break_lock(&name, term.token())).await;
                    assert!(broken.unwrap());
                    until_seen(&mut observer, None).await;
                    drop(term);
                    continue;
                }
                _ => soon(leader.close()).await,
            }
            until_seen(&mut observer, None).await;
        }
    }
}

/// Each process with an observer has one connection that listens, and one read for all of its observers.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_observers_of_a_client_read_as_often_as_one() {
    let Some(db) = Db::postgres(&[]) else {
        return;
    };
    db.init().await;
    let (proxy, url) = db.proxied();
    let (watching, leading) = (connect(&url).await, connect(&db.url()).await);
    let mut observers: Vec<_> = (0..1_000)
        .map(|_| watching.election("many").observe())
        .collect();
    for observer in &mut observers {
        until_seen(observer, None).await;
    }
    until("it listens", || db.listeners() == 1).await;
    let reads = || {
        let seen = proxy.take_seen();
        seen.iter().filter(|kind| *kind == "leader").count()
    };
    let tasks: Vec<_> = observers
        .into_iter()
        .map(|mut observer| {
            tokio::spawn(async move {
                for value in ["a", "b"] {
                    until_seen(&mut observer, Some(value)).await;
                }
                observer
            })
        })
        .collect();
    reads();
    let term = campaign(&leading, "many", "a", SHORT).await;
    let seen_by_one = watching.election("many").observe();
    drop(seen_by_one);
    until_renewed(term.guard()).await;
    soon(term.proclaim("b")).await.unwrap();
    let mut observers = Vec::new();
    for task in tasks {
        observers.push(soon(task).await.unwrap());
    }
    let count = reads();
    assert!(count < 20, "{count} reads for two changes");
    // At rest: three leases.
    let polling: Vec<_> = observers
        .into_iter()
        .map(|mut observer| {
            tokio::spawn(async move {
                let next = observer.next().await;
                panic!("nothing changes, but {next:?}");
            })
        })
        .collect();
    tokio::time::sleep(SHORT * 3).await;
    let count = reads();
    assert!((1..40).contains(&count), "{count} reads in three leases");
    for task in &polling {
        assert!(!task.is_finished(), "an observer has seen something");
        task.abort();
    }
    for task in polling {
        let _ = task.await;
    }
    until("nobody listens any more", || db.listeners() == 0).await;
    soon(term.resign()).await.unwrap();
}

/// A message may get lost with its connection: the next one reads again.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_while_the_listening_connection_is_cut_is_seen() {
    let Some(db) = Db::postgres(&[]) else {
        return;
    };
    db.init().await;
    let (proxy, url) = db.proxied();
    let (watching, leading) = (connect(&url).await, connect(&db.url()).await);
    let mut observer = watching.election("cut").observe();
    until_seen(&mut observer, None).await;
    for turn in 0..3 {
        until("it listens", || db.listeners() == 1).await;
        proxy.cut();
        let value = format!("turn {turn}");
        // The lease is longer than the test waits, so only the new connection can show it.
        let term = campaign(&leading, "cut", &value, TTL * 100).await;
        until_seen(&mut observer, Some(&value)).await;
        soon(term.resign()).await.unwrap();
        until_seen(&mut observer, None).await;
    }
}

/// A waiter and an observer of one client share the connection that listens.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_and_observers_share_a_connection() {
    let Some(db) = Db::postgres(&[]) else {
        return;
    };
    db.init().await;
    let (client, other) = (connect(&db.url()).await, connect(&db.url()).await);
    let mut observer = client.election("e").observe();
    until_seen(&mut observer, None).await;
    let guard = take(&other, "lock", TTL * 10).await;
    let waiting = crate::support::wait_as(&db, &client, "lock", 1).await;
    until("it listens", || db.listeners() == 1).await;
    let term = campaign(&other, "e", "v", TTL * 10).await;
    until_seen(&mut observer, Some("v")).await;
    soon(guard.release()).await.unwrap();
    let next = soon(waiting).await.unwrap().unwrap();
    assert_eq!(db.listeners(), 1);
    soon(next.release()).await.unwrap();
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
    drop(observer);
    until("nobody listens any more", || db.listeners() == 0).await;
}

/// A pooler would send the messages to other clients, so observers read.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_observers_read() {
    needs!(pgbouncer);
    let server = Postgres::start(&[]);
    let pooler = Pooler::start(&server, "transaction", 2);
    let direct = connect(&(server.url() + OPTIONS)).await;
    soon(direct.init()).await.unwrap();
    let pooled = connect(&(server.url_at(pooler.port()) + OPTIONS)).await;
    let mut observer = pooled.election("e").observe();
    until_seen(&mut observer, None).await;
    for turn in 0..3 {
        let value = format!("turn {turn}");
        let leader = if turn == 1 { &pooled } else { &direct };
        let term = campaign(leader, "e", &value, TTL * 100).await;
        until_seen(&mut observer, Some(&value)).await;
        let asked = soon(pooled.election("e").ask_to_resign()).await.unwrap();
        assert_eq!(asked.unwrap().token, Some(term.token()));
        soon(term.resign()).await.unwrap();
        until_seen(&mut observer, None).await;
    }
    let listens = "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    assert_eq!(server.admin().value(listens), "0");
}

/// The rights that the page names are enough, and fewer are enough to observe.
#[tokio::test(flavor = "multi_thread")]
async fn the_published_rights_are_enough() {
    for db in Db::servers() {
        db.init().await;
        for user in ["jobs", "reader"] {
            db.introduce(user);
        }
        assert_eq!(db.grant_as_published("tenure_locks"), 3);
        let is_mysql = matches!(db, Db::MySql(_));
        db.rows(match is_mysql {
            true => "GRANT SELECT ON tenure_locks TO 'reader'@'%'",
            false => "GRANT SELECT ON tenure_locks TO reader",
        });
        let as_user = |user: &str| {
            db.url()
                .replacen(&format!("{USER}:"), &format!("{user}:"), 1)
        };
        let (jobs, reader) = (
            connect(&as_user("jobs")).await,
            connect(&as_user("reader")).await,
        );
        let mut observer = reader.election("e").observe();
        until_seen(&mut observer, None).await;
        let term = campaign(&jobs, "e", "v", TTL).await;
        until_seen(&mut observer, Some("v")).await;
        let denied = soon(reader.election("e").campaign()).await;
        assert_says(denied, ErrorKind::Denied, &["reader"]);
        let denied = soon(reader.election("e").ask_to_resign()).await;
        assert_says(denied, ErrorKind::Denied, &["reader"]);
        soon(term.proclaim("w")).await.unwrap();
        until_seen(&mut observer, Some("w")).await;
        assert!(
            soon(jobs.election("e").ask_to_resign())
                .await
                .unwrap()
                .is_some()
        );
        assert!(soon(term.asked_to_resign()).await);
        soon(term.resign()).await.unwrap();
        until_seen(&mut observer, None).await;
    }
}

/// The table of a Java library has no room for a value.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_shedlock_has_no_elections() {
    for db in Db::servers() {
        let client = connect(&format!("{}&dialect=shedlock", db.url())).await;
        soon(client.init()).await.unwrap();
        let says = ["elections", "mode=table"];
        let refused = soon(client.election("e").campaign()).await;
        assert_says(refused, ErrorKind::Unsupported, &says);
        let refused = soon(client.election("e").leader()).await;
        assert_says(refused, ErrorKind::Unsupported, &says);
        let mut observer = client.election("e").observe();
        let refused = soon(observer.next()).await.unwrap();
        assert_says(refused, ErrorKind::Unsupported, &says);
        let guard = take(&client, "e", TTL).await;
        let asked = tokio::spawn(guard.asked_to_release());
        soon(guard.release()).await.unwrap();
        assert!(!soon(asked).await.unwrap());
    }
}

/// Candidates whose requests get lost, and observers beside them.
#[tokio::test(flavor = "multi_thread")]
async fn a_proclamation_without_an_answer_may_be_repeated() {
    for db in Db::servers() {
        db.init().await;
        let (proxy, url): (Proxy, String) = db.proxied();
        let (leading, watching) = (connect(&url).await, connect(&db.url()).await);
        let term = campaign(&leading, "e", "a", TTL).await;
        let mut observer = watching.election("e").observe();
        until_seen(&mut observer, Some("a")).await;
        for (turn, fault) in [Fault::CutBefore, Fault::CutAfter].into_iter().enumerate() {
            let value = format!("value {turn}");
            proxy.plan("publish", fault);
            // The statement may be repeated, so it is sent again over another connection.
            let mut proclaimed = soon(term.proclaim(value.as_str())).await;
            while let Err(err) = proclaimed {
                assert!(!err.is_lost(), "{err}");
                proclaimed = soon(term.proclaim(value.as_str())).await;
            }
            assert!(proxy.is_done());
            until_seen(&mut observer, Some(&value)).await;
        }
        soon(term.resign()).await.unwrap();
    }
}

/// The answer to a candidate is lost: the candidate asks again. One that has left by then gives the lock back, and
/// observers are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_without_an_answer_leads_or_gives_the_lock_back() {
    let Some(db) = Db::postgres(&[]) else {
        return;
    };
    db.init().await;
    let (proxy, url) = db.proxied();
    let (client, other) = (connect(&url).await, connect(&db.url()).await);
    let mut observer = other.election("e").observe();
    until_seen(&mut observer, None).await;
    until("it listens", || db.listeners() == 1).await;
    // The request is sent once more over another connection, before it counts as one without an answer.
    for _ in 0..2 {
        proxy.plan("acquire", Fault::CutAfter);
    }
    let term = campaign(&client, "e", "recovered", TTL * 100).await;
    assert!(proxy.is_done());
    until_seen(&mut observer, Some("recovered")).await;
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
    proxy.plan("acquire", Fault::NoReply);
    let election = client.election("e").value("gone").ttl(TTL * 100);
    let campaigning = tokio::spawn(async move { election.campaign().await });
    until_seen(&mut observer, Some("gone")).await;
    campaigning.abort();
    until_seen(&mut observer, None).await;
    proxy.resume();
}

/// A server that is replaced takes no writes for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_candidate_may_try_again_while_the_server_takes_no_writes() {
    for db in Db::servers() {
        db.init().await;
        let client = connect(&db.url()).await;
        let term = campaign(&client, "e", "v", TTL).await;
        soon(term.resign()).await.unwrap();
        let set_read_only = |word: &str| {
            db.rows(&match &db {
                Db::MySql(_) => format!("SET GLOBAL read_only = {word}"),
                _ => {
                    format!("ALTER DATABASE {DATABASE} SET default_transaction_read_only = {word}")
                }
            });
            db.kill_connections();
        };
        set_read_only("on");
        // The first request may meet a connection that was ended.
        let failed = soon(client.election("e").campaign()).await;
        assert!(failed.unwrap_err().is_retryable());
        let failed = soon(client.election("e").campaign()).await;
        let says = ["takes no writes", "read-only"];
        assert_says(failed, ErrorKind::Unreachable, &says);
        set_read_only("off");
        let term = campaign(&client, "e", "v", TTL).await;
        soon(term.resign()).await.unwrap();
    }
}
