//! Elections: the value and the request to let go in the table of holders, and what observers are told.

use std::time::{Duration, Instant};

use tenure::{Client, ErrorKind, LostReason, Observer, Options, Term};

use crate::support::{
    Database, OPTIONS, TTL, assert_says, connect, name, on_both, on_both_alone, proxy, soon, take,
    until,
};
use tenure_testkit::TEST_TIMEOUT;
use tenure_testkit::mariadb::{DATABASE, MariaDb, PASSWORD, USER};
use tenure_testkit::needs;
use tenure_testkit::postgres::Postgres;
use tenure_testkit::proxy::{Direction, Fault, Proxy};

on_both!(without_the_table_an_election_is_refused);
on_both_alone!(what_others_want_reaches_a_holder_whose_session_is_never_idle value_and_request_are_in_the_row a_user_without_the_right_to_write_is_not_elected observers_see_the_end_of_a_term_however_it_ends a_leader_that_was_cut_off_publishes_nothing a_candidate_without_an_answer_asks_again a_row_that_was_not_deleted_is_deleted_later a_refused_login_forgets_no_leader);

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

/// The JSON of the row of a name and its column `wanted`; empty if there is no row. There may be one row at most.
fn row(database: &dyn Database, name: &str) -> [String; 2] {
    let is_postgres = database.url().starts_with("postgres");
    let (holder, table, is_name) = match is_postgres {
        true => (
            "convert_from(holder, 'UTF8')",
            "tenure_holders".to_owned(),
            format!("convert_from(name, 'UTF8') = '{name}'"),
        ),
        false => (
            "CONVERT(holder USING utf8mb4)",
            format!("{DATABASE}.tenure_holders"),
            format!("name = '{name}'"),
        ),
    };
    let client = database.foreign_client();
    let value = |column: &str| {
        client(&format!(
            "SELECT coalesce((SELECT {column} FROM {table} WHERE {is_name}), '')"
        ))
    };
    let wanted = match is_postgres {
        true => "wanted::text",
        false => "CAST(wanted AS CHAR)",
    };
    [value(holder), value(wanted)]
}

/// The session answers other requests all the time, which show that it is there, but not what others want.
async fn what_others_want_reaches_a_holder_whose_session_is_never_idle(database: &dyn Database) {
    let (client, other) = (
        connect(&database.url()).await,
        connect(&database.url()).await,
    );
    soon(client.init()).await.unwrap();
    let (led, held, busy) = (name("led"), name("held"), name("busy"));
    let term = campaign(&client, &led, "here", TTL).await;
    let guard = take(&client, &held).await;
    let lock = client.lock(&busy).ttl(TTL);
    let work = async {
        loop {
            let guard = soon(lock.acquire()).await.unwrap();
            soon(guard.release()).await.unwrap();
        }
    };
    let ask = async {
        let asked = soon(other.election(&led).ask_to_resign()).await.unwrap();
        assert!(asked.is_some());
        assert!(soon(term.asked_to_resign()).await, "the term has ended");
        let broken = other.break_lock(&held, guard.token());
        assert!(soon(broken).await.unwrap());
        assert_eq!(soon(guard.lost()).await, Some(LostReason::TakenOver));
    };
    tokio::select! {
        () = ask => {}
        () = work => {}
    }
    soon(term.resign()).await.unwrap();
}

async fn without_the_table_an_election_is_refused(database: &dyn Database) {
    let (client, name) = (connect(&database.url()).await, name("refused"));
    let says = [
        "elections",
        "tenure_holders",
        "check --init",
        "Client::init",
    ];
    let election = client.election(&name);
    let refused = soon(election.campaign()).await;
    assert_says(refused, ErrorKind::Unsupported, &says);
    let refused = soon(election.leader()).await;
    assert_says(refused, ErrorKind::Unsupported, &says);
    let refused = soon(election.ask_to_resign()).await;
    assert_says(refused, ErrorKind::Unsupported, &says);
    let mut observer = election.observe();
    let refused = soon(observer.next()).await.unwrap();
    assert_says(refused, ErrorKind::Unsupported, &says);
    assert!(soon(observer.next()).await.is_none());
    // Nothing was locked.
    assert!(database.holders(&name).is_empty());
    let guard = take(&client, &name).await;
    let asked = tokio::spawn(guard.asked_to_release());
    soon(guard.release()).await.unwrap();
    assert!(!soon(asked).await.unwrap());
}

async fn value_and_request_are_in_the_row(database: &dyn Database) {
    let client = connect(&database.url()).await;
    let other = connect(&database.url()).await;
    // The client finds the table that was made after it had connected.
    soon(connect(&database.url()).await.init()).await.unwrap();
    let term = campaign(&client, "e", "a \"b\" \\ 'c' ü", TTL).await;
    // The row is there when `campaign` returns.
    let [holder, wanted] = row(database, "e");
    let fields = r#","value":"a \"b\" \\ 'c' ü","number":0}"#;
    assert!(holder.ends_with(fields), "{holder}");
    assert_eq!(wanted, "0");
    soon(term.proclaim("x")).await.unwrap();
    let [holder, _] = row(database, "e");
    assert!(holder.ends_with(r#","value":"x","number":1}"#), "{holder}");
    for _ in 0..2 {
        let asked = soon(other.election("e").ask_to_resign()).await.unwrap();
        assert_eq!(asked.unwrap().token, Some(term.token()));
        assert_eq!(row(database, "e"), [holder.as_str(), "2"]);
    }
    assert!(soon(term.asked_to_resign()).await);
    soon(term.proclaim("y")).await.unwrap();
    let [holder, wanted] = row(database, "e");
    assert!(holder.ends_with(r#""value":"y","number":2}"#), "{holder}");
    assert_eq!(wanted, "2", "a value does not replace the request");
    // A request that was sent before, and comes late.
    let table = match database.url().starts_with("postgres") {
        true => "UPDATE tenure_holders SET holder = convert_to(replace(convert_from(holder, 'UTF8'), '\"number\":2', '\"number\":7'), 'UTF8')".to_owned(),
        false => format!("UPDATE {DATABASE}.tenure_holders SET holder = REPLACE(holder, '\"number\":2', '\"number\":7')"),
    };
    let returning = match database.url().starts_with("postgres") {
        true => "RETURNING 1",
        false => "; SELECT 1",
    };
    database.foreign_client()(&format!("{table} {returning}"));
    soon(term.proclaim("late")).await.unwrap();
    let [holder, _] = row(database, "e");
    assert!(holder.ends_with(r#""value":"y","number":7}"#), "{holder}");
    // A request to break comes before.
    assert!(soon(other.break_lock("e", term.token())).await.unwrap());
    let late = soon(term.proclaim("late")).await;
    assert_says(late, ErrorKind::Lost, &["nothing was published"]);
    until("the row is deleted", || row(database, "e")[0].is_empty()).await;
    // The row of a lock, of the same session perhaps, has no such fields.
    let guard = take(&client, "e").await;
    until("the row is there", || !row(database, "e")[0].is_empty()).await;
    let [holder, wanted] = row(database, "e");
    assert!(
        !holder.contains("value") && wanted == "0",
        "{holder} {wanted}"
    );
    let asked = tokio::spawn(guard.asked_to_release());
    let holder = soon(other.election("e").ask_to_resign()).await.unwrap();
    assert_eq!(holder.unwrap().token, Some(guard.token()));
    assert!(soon(asked).await.unwrap());
    soon(guard.release()).await.unwrap();
}

/// The lock is granted, and its row is refused: nothing may be left of that.
async fn a_user_without_the_right_to_write_is_not_elected(database: &dyn Database) {
    soon(connect(&database.url()).await.init()).await.unwrap();
    let is_postgres = database.url().starts_with("postgres");
    let sql = match is_postgres {
        true => format!(
            "CREATE ROLE reader LOGIN PASSWORD '{PASSWORD}'; GRANT SELECT ON tenure_holders TO reader; SELECT 1"
        ),
        false => format!(
            "CREATE USER reader@'%' IDENTIFIED BY '{PASSWORD}'; GRANT SELECT ON {DATABASE}.tenure_holders TO reader@'%'; SELECT 1"
        ),
    };
    database.foreign_client()(&sql);
    let url = database.url().replacen(&format!("{USER}:"), "reader:", 1);
    let (reader, leader) = (connect(&url).await, connect(&database.url()).await);
    let denied = soon(reader.election("e").ttl(TTL).campaign()).await;
    assert_says(denied, ErrorKind::Denied, &["tenure_holders", "GRANT"]);
    until("the lock is free", || database.holders("e").is_empty()).await;
    // A lock needs no such right, and reading is enough to observe.
    let mut observer = reader.election("e").observe();
    until_seen(&mut observer, None).await;
    let term = campaign(&leader, "e", "v", TTL).await;
    until_seen(&mut observer, Some("v")).await;
    let denied = soon(reader.election("e").ask_to_resign()).await;
    assert_says(denied, ErrorKind::Denied, &["tenure_holders", "GRANT"]);
    soon(term.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
}

async fn observers_see_the_end_of_a_term_however_it_ends(database: &dyn Database) {
    let (client, other) = (
        connect(&database.url()).await,
        connect(&database.url()).await,
    );
    soon(client.init()).await.unwrap();
    let mut observer = other.election("e").observe();
    until_seen(&mut observer, None).await;
    // The lease is much longer than the test waits.
    let long = TTL * 100;
    for end in ["resigned", "dropped", "broken", "kept", "closed"] {
        let options = Options::new().min_hold(match end {
            "kept" => Duration::from_secs(3),
            _ => Duration::ZERO,
        });
        let leader = connect(&database.url()).await.with_defaults(options);
        let term = campaign(&leader, "e", end, long).await;
        until_seen(&mut observer, Some(end)).await;
        let token = term.token();
        match end {
            "dropped" => drop(term),
            "broken" => assert!(soon(client.break_lock("e", token)).await.unwrap()),
            "closed" => soon(leader.close()).await,
            _ => soon(term.resign()).await.unwrap(),
        }
        until_seen(&mut observer, None).await;
    }
    // Another program has no row, and so neither token nor value.
    let foreign = database.foreign_client();
    let [lock, unlock] = database.lock_statements("e");
    until("the lock is free", || foreign(&lock) == "1").await;
    let leader = loop {
        // PostgreSQL says nothing about it, so it is read.
        match soon(client.election("e").leader()).await.unwrap() {
            Some(leader) => break leader,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!((leader.token, leader.value()), (None, None));
    let asked = soon(client.election("e").ask_to_resign()).await;
    assert_says(asked, ErrorKind::Unsupported, &["another library"]);
    assert_eq!(foreign(&unlock), "1");
}

/// The server ends the session of a leader that it does not hear of, and the next one is elected.
async fn a_leader_that_was_cut_off_publishes_nothing(database: &dyn Database) {
    const SHORT: Duration = Duration::from_secs(3);
    let other = connect(&database.url()).await;
    soon(other.init()).await.unwrap();
    let proxy = proxy(database);
    let options = database.url();
    let (_, options) = options.split_once('?').unwrap();
    let cut_off = connect(&format!("{}?{options}", database.url_at(proxy.port()))).await;
    let old = campaign(&cut_off, "e", "old", SHORT).await;
    let mut observer = other.election("e").observe();
    until_seen(&mut observer, Some("old")).await;
    proxy.hold(Direction::Up, true);
    proxy.hold(Direction::Down, true);
    let late = tokio::spawn(async move {
        let proclaimed = old.proclaim("late").await;
        (old, proclaimed)
    });
    let next = campaign(&other, "e", "next", TTL).await;
    until_seen(&mut observer, Some("next")).await;
    proxy.hold_both(false);
    let (old, proclaimed) = soon(late).await.unwrap();
    proclaimed.unwrap_err();
    assert!(!old.is_leader(), "two lead");
    let again = soon(old.proclaim("late")).await;
    assert_says(again, ErrorKind::Lost, &["nothing was published"]);
    let leader = soon(other.election("e").leader()).await.unwrap().unwrap();
    assert_eq!(
        (leader.token, leader.value()),
        (Some(next.token()), Some("next"))
    );
    soon(next.resign()).await.unwrap();
    until_seen(&mut observer, None).await;
}

/// A proxy, and a client behind it.
async fn proxied(database: &dyn Database) -> (Proxy, Client) {
    let proxy = proxy(database);
    let url = format!("{}?{OPTIONS}", database.url_at(proxy.port()));
    let client = connect(&url).await;
    (proxy, client)
}

/// The lock is granted, and the connection that writes its row breaks, twice.
async fn a_candidate_without_an_answer_asks_again(database: &dyn Database) {
    let (proxy, client) = proxied(database).await;
    soon(client.init()).await.unwrap();
    for _ in 0..2 {
        proxy.plan("publish", Fault::CutAfter);
    }
    let term = campaign(&client, "e", "v", TTL).await;
    assert!(proxy.is_done());
    let leader = soon(client.election("e").leader()).await.unwrap().unwrap();
    assert_eq!(
        (leader.token, leader.value()),
        (Some(term.token()), Some("v"))
    );
    soon(term.resign()).await.unwrap();
    until("the rows are deleted", || row(database, "e")[0].is_empty()).await;
}

/// The statement that deletes the row also tells observers.
async fn a_row_that_was_not_deleted_is_deleted_later(database: &dyn Database) {
    let (proxy, client) = proxied(database).await;
    soon(client.init()).await.unwrap();
    let term = campaign(&client, "e", "v", TTL * 100).await;
    proxy.plan(
        "board",
        Fault::Answer(match database.url().starts_with("postgres") {
            true => "55P03 canceling statement due to lock timeout",
            false => "1205 Lock wait timeout exceeded",
        }),
    );
    soon(term.resign()).await.unwrap();
    until("the row is deleted", || {
        proxy.is_done() && row(database, "e")[0].is_empty()
    })
    .await;
}

/// The password was changed. That says nothing about the table, and the leader still leads.
async fn a_refused_login_forgets_no_leader(database: &dyn Database) {
    let client = connect(&database.url()).await;
    soon(client.init()).await.unwrap();
    let term = campaign(&client, "e", "v", TTL).await;
    let set_password = |password: &str| {
        database.rows(&match database.url().starts_with("postgres") {
            true => format!("ALTER ROLE {USER} PASSWORD '{password}'"),
            false => format!("ALTER USER {USER}@'%' IDENTIFIED BY '{password}'"),
        });
    };
    set_password("another");
    let leading = database.holders("e");
    for session in database.sessions() {
        if !leading.contains(&session) {
            database.end(session);
        }
    }
    let denied = soon(client.election("e").leader()).await;
    assert_says(denied, ErrorKind::Denied, &[USER]);
    set_password(PASSWORD);
    let begin = Instant::now();
    let leader = loop {
        match soon(client.election("e").leader()).await {
            // A login that began before the password was changed back.
            Err(err) if err.kind() == ErrorKind::Denied && begin.elapsed() < TEST_TIMEOUT => {}
            leader => break leader.unwrap().unwrap(),
        }
    };
    assert_eq!(leader.token, Some(term.token()));
    soon(term.resign()).await.unwrap();
    until("the row is deleted", || row(database, "e")[0].is_empty()).await;
}

/// A server that is replaced takes no writes for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_found_later_ends_no_candidate_and_no_observer() {
    needs!(mariadb);
    let server = MariaDb::start(&[]);
    let client = connect(&Database::url(&server)).await;
    soon(client.init()).await.unwrap();
    let mut observer = client.election("e").observe();
    until_seen(&mut observer, None).await;
    server.admin().rows("SET GLOBAL read_only = 1");
    for session in server.sessions() {
        server.end(session);
    }
    let unknown = soon(observer.next()).await.unwrap();
    assert!(unknown.unwrap_err().is_retryable());
    let election = client.election("e").value("v").ttl(TTL * 10);
    let campaigning = tokio::spawn(async move { election.campaign().await });
    let unknown = soon(client.election("e").leader()).await;
    assert_says(unknown, ErrorKind::Unreachable, &["read-only"]);
    server.admin().rows("SET GLOBAL read_only = 0");
    let term = soon(campaigning).await.unwrap().unwrap();
    until_seen(&mut observer, Some("v")).await;
    soon(term.resign()).await.unwrap();
}

/// Each process with an observer has one connection that listens, and one read for all of its observers.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_observers_of_a_client_read_as_often_as_one() {
    needs!(postgres);
    let server = Postgres::start(&[]);
    let leading = connect(&Database::url(&server)).await;
    soon(leading.init()).await.unwrap();
    let proxy = proxy(&server);
    let url = Database::url(&server).replace(&server.port().to_string(), &proxy.port().to_string());
    let watching = connect(&url).await;
    let mut observers: Vec<_> = (0..1_000)
        .map(|_| watching.election("many").observe())
        .collect();
    for observer in &mut observers {
        until_seen(observer, None).await;
    }
    let listeners = || {
        server.admin().value(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE usename='{USER}' AND query LIKE '%LISTEN %'"
        ))
    };
    until("it listens", || listeners() == "1").await;
    let reads = || {
        let seen = proxy.take_seen();
        seen.iter().filter(|kind| *kind == "leader").count()
    };
    reads();
    let short = Duration::from_secs(3);
    let term = campaign(&leading, "many", "a", short).await;
    for observer in &mut observers {
        until_seen(observer, Some("a")).await;
    }
    let count = reads();
    assert!(count < 20, "{count} reads for one change");
    let tasks: Vec<_> = observers
        .into_iter()
        .map(|mut observer| {
            tokio::spawn(async move {
                until_seen(&mut observer, Some("b")).await;
                observer
            })
        })
        .collect();
    tokio::time::sleep(short * 3).await;
    let count = reads();
    assert!((1..40).contains(&count), "{count} reads in three leases");
    soon(term.proclaim("b")).await.unwrap();
    for task in tasks {
        drop(soon(task).await.unwrap());
    }
    until("nobody listens any more", || listeners() == "0").await;
    soon(term.resign()).await.unwrap();
    soon(watching.close()).await;
}
