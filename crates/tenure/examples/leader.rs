//! Leader election in a web service: several replicas run, one of them leads, and the others are standbys.
//!
//! - `cargo run -p tenure --features sqlite,sqlx --example leader` runs three replicas in this process. The first leader is
//!   stopped and the second one is asked to resign; each time the next replica takes over.
//! - `.. --example leader -- redis://127.0.0.1/ 127.0.0.1:8081 jobs.db` runs one replica, until SIGTERM or Ctrl-C. Start more
//!   of them, with other ports.
//!
//! [docs/election.md](../../../docs/election.md) explains the parts.

use std::io;
use std::path::Path;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::{Router, routing::get, routing::post};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use tenure::{Client, Election, Error, FencingToken, Leader, Observer, Term};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The name of the election, and of the fence in the database.
const ELECTION: &str = "scheduler";

/// How long a replica that was asked to resign is no candidate.
const HAND_OVER_PAUSE: Duration = Duration::from_secs(1);

/// What the web part of a replica knows.
#[derive(Clone)]
struct Replica {
    /// Where this replica answers; the value that it publishes while it leads.
    url: String,
    db: SqlitePool,
    /// The fencing token of the term of this replica. `None`: this replica does not lead.
    term: watch::Receiver<Option<FencingToken>>,
    /// The leader that the observer saw last. Good for a redirect, never for a decision: the leader may have changed since.
    leader: watch::Receiver<Option<Leader>>,
}

/// One replica: a web service, a candidate and an observer. Ends after `stop`.
async fn run_replica(
    client: Client,
    db: SqlitePool,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Failure> {
    // Of a real service: the address at which the others reach it, from its configuration.
    let url = format!("http://{}", listener.local_addr()?);
    // A leader that is killed is followed by the next one 10 s later at most.
    let ttl = Duration::from_secs(10);
    let election = client.election(ELECTION).value(url.as_str()).ttl(ttl);
    let (show_term, term) = watch::channel(None);
    let (show_leader, leader) = watch::channel(None);
    let replica = Replica {
        url,
        db: db.clone(),
        term,
        leader,
    };
    let service = axum::serve(listener, app(replica)).with_graceful_shutdown(stop);
    let ended = tokio::select! {
        // After `stop` the requests that are under way end first. Until then this replica still leads.
        served = service.into_future() => served.map_err(Failure::from),
        // An error that retrying does not end. The process ends too, and its supervisor starts it again.
        candidate = campaign(&election, &db, &show_term) => candidate.map_err(Failure::from),
        observer = follow(election.observe(), show_leader) => observer.map_err(Failure::from),
    };
    // `select!` has dropped the candidate, which ends its term. `close` waits until the store knows of that, so the next
    // replica leads at once, and not after the ttl.
    client.close().await;
    ended
}

/// Stands for election for as long as it is polled, and works while this replica leads.
async fn campaign(
    election: &Election,
    db: &SqlitePool,
    show_term: &watch::Sender<Option<FencingToken>>,
) -> Result<(), Error> {
    loop {
        // In a task that `tokio::spawn` runs, the closure owns what it uses: clones, and no references.
        let (db, show_term) = (db.clone(), show_term.clone());
        let leading = election.run(async move |term| lead(term, &db, &show_term).await);
        match leading.await {
            Err(err) if !err.is_lost() => return Err(err),
            // Asked to resign, and the term has ended: stand again, behind the others. The pause is for a store without an
            // order of waiters.
            _ => tokio::time::sleep(HAND_OVER_PAUSE).await,
        }
    }
}

/// The work of the leader. It is dropped at its current await when the term is lost.
///
/// An error ends the term, and after a pause this replica stands again.
async fn lead(
    term: &Term,
    db: &SqlitePool,
    show_term: &watch::Sender<Option<FencingToken>>,
) -> Result<(), Error> {
    let _shown = ShownTerm::new(show_term, term.token());
    println!("term {} begins", term.token());
    let mut pace = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            biased;
            // Between two jobs: a job that has begun is not cut off by a polite request.
            true = term.asked_to_resign() => return Ok(()),
            _ = pace.tick() => add_job(db, term.token()).await?,
        };
    }
}

/// Shows the web part that this replica leads, until it is dropped: with the body, however the body ends.
struct ShownTerm<'a>(&'a watch::Sender<Option<FencingToken>>);

impl<'a> ShownTerm<'a> {
    fn new(sender: &'a watch::Sender<Option<FencingToken>>, token: FencingToken) -> Self {
        sender.send_replace(Some(token));
        Self(sender)
    }
}

impl Drop for ShownTerm<'_> {
    fn drop(&mut self) {
        self.0.send_replace(None);
    }
}

/// One piece of work of the leader; returns how many there are. All or nothing, so it may be dropped at any await.
///
/// An error of kind `Lost`: a later leader has written already, so this process is an earlier leader that does not know it yet.
async fn add_job(db: &SqlitePool, token: FencingToken) -> Result<i64, Error> {
    let mut tx = db.begin().await?;
    tenure::sql::fence(&mut tx, ELECTION, token).await?;
    let add = sqlx::query_scalar("UPDATE jobs SET added = added + 1 RETURNING added");
    let added = add.fetch_one(&mut *tx).await?;
    tx.commit().await?;
    Ok(added)
}

/// Keeps the leader that the store has shown last.
async fn follow(
    mut observer: Observer,
    show_leader: watch::Sender<Option<Leader>>,
) -> Result<(), Error> {
    let mut last = Ok(());
    while let Some(seen) = observer.next().await {
        let seen = seen.inspect_err(|err| eprintln!("it is unknown who leads: {err:#}"));
        last = seen.map(|leader| drop(show_leader.send_replace(leader)));
        if last.is_err() {
            show_leader.send_replace(None);
        }
    }
    last
}

fn app(replica: Replica) -> Router {
    Router::new()
        .route("/ready", get(ready))
        .route("/leader", get(leader))
        .route("/jobs", post(jobs))
        .with_state(replica)
}

/// The probe for "this replica can take requests", standbys too: they redirect. A rolling update waits for this one.
async fn ready(State(replica): State<Replica>) -> StatusCode {
    match replica.term.borrow().is_some() || replica.leader.borrow().is_some() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// The probe for "this replica leads", for a load balancer that sends all requests to the leader.
async fn leader(State(replica): State<Replica>) -> StatusCode {
    match replica.term.borrow().is_some() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// A request for the leader. A standby sends the caller there.
async fn jobs(State(replica): State<Replica>) -> Response {
    let token = *replica.term.borrow();
    if let Some(token) = token {
        return match add_job(&replica.db, token).await {
            Ok(added) => format!("{added} jobs\n").into_response(),
            // The term ended meanwhile, and the database has refused the write.
            Err(err) if err.is_lost() => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            Err(err) => {
                eprintln!("{err:#}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        };
    }
    let leader = replica.leader.borrow().clone();
    match leader.as_ref().and_then(Leader::value) {
        // 307: the caller repeats the method and the body.
        Some(url) if url != replica.url => {
            Redirect::temporary(&format!("{url}/jobs")).into_response()
        }
        // Nobody leads, or the observer has not seen yet that this replica has stopped leading.
        _ => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "1")]).into_response(),
    }
}

/// The database of the jobs, with the table of fences.
async fn open(file: &Path) -> Result<SqlitePool, Error> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let db = SqlitePool::connect_with(options).await?;
    tenure::sql::init(&db).await?;
    let tables = "CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, added INTEGER NOT NULL); \
                  INSERT OR IGNORE INTO jobs VALUES (1, 0)";
    sqlx::raw_sql(tables).execute(&db).await?;
    Ok(db)
}

/// Ends with SIGTERM, which systemd and Kubernetes send, or with Ctrl-C.
async fn stop_signal() {
    let ctrl_c = async { drop(tokio::signal::ctrl_c().await) };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut signals) => drop(signals.recv().await),
            Err(err) => eprintln!("SIGTERM is not handled: {err}"),
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending();
    tokio::select! {
        () = ctrl_c => {}
        () = terminate => {}
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    if let [store, address, database] = &arguments[..] {
        // `connect_lazy`: the service starts while the store is down, and becomes ready later.
        let client = tenure::connect_lazy(store)?;
        let db = open(Path::new(database)).await?;
        let listener = TcpListener::bind(address).await?;
        return run_replica(client, db, listener, stop_signal()).await;
    }
    let dir = std::env::temp_dir().join(format!("tenure-leader-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let shown = demonstrate(&dir.join("jobs.db")).await;
    std::fs::remove_dir_all(dir)?;
    shown
}

/// A replica of the demonstration.
struct Running {
    url: String,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<(), Failure>>,
}

impl Running {
    async fn start(store: &str, db: SqlitePool) -> Result<Self, Failure> {
        let client = tenure::connect(store).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let (stop, is_stopped) = oneshot::channel();
        let is_stopped = async { drop(is_stopped.await) };
        let task = tokio::spawn(run_replica(client, db, listener, is_stopped));
        Ok(Self { url, stop, task })
    }

    /// As with SIGTERM: a leader ends its requests and resigns.
    async fn stop(self) -> Result<(), Failure> {
        let _ = self.stop.send(());
        self.task.await?
    }
}

/// Three replicas of one service, of which each leads once.
async fn demonstrate(database: &Path) -> Result<(), Failure> {
    // The clients of one process share the store of that name, as those of several machines share a server.
    let store = "memory:leader-example";
    let db = open(database).await?;
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Running::start(store, db.clone()).await?);
    }

    // This one is no candidate.
    let client = tenure::connect(store).await?;
    let election = client.election(ELECTION);
    let mut observer = election.observe();

    let first = next_leader(&mut observer).await?;
    let leads = |replica: &Running| Some(&*replica.url) == first.value();
    for replica in &replicas {
        let expected = if leads(replica) {
            ["200", "200"]
        } else {
            ["503", "307"]
        };
        wait_until(&replica.url, "GET /ready", "200").await?;
        wait_until(&replica.url, "GET /leader", expected[0]).await?;
        wait_until(&replica.url, "POST /jobs", expected[1]).await?;
        println!(
            "{}: {} from /leader, {} from /jobs",
            replica.url, expected[0], expected[1]
        );
    }

    let at = replicas.iter().position(leads);
    let leader = replicas.remove(at.expect("one of the replicas leads"));
    leader.stop().await?;
    let second = next_leader(&mut observer).await?;
    assert!(second.token > first.token && second.value() != first.value());
    let url = second.value().unwrap_or_default();
    wait_until(url, "POST /jobs", "200").await?;

    // A write of the first leader that arrives only now.
    let token = first.token.expect("each leader of this store has a token");
    let refused = add_job(&db, token).await.expect_err("a later leader wrote");
    assert!(refused.is_lost());
    println!("the late write of term {token} was refused");

    // A polite request: the leader ends its job, resigns, and stands again behind the third replica.
    let asked = election.ask_to_resign().await?;
    println!("asked to resign: {}", asked.is_some());
    let third = next_leader(&mut observer).await?;
    assert!(third.token > second.token && third.value() != second.value());

    for replica in replicas {
        replica.stop().await?;
    }
    client.close().await;
    db.close().await;
    Ok(())
}

/// Waits for the next leader.
async fn next_leader(observer: &mut Observer) -> Result<Leader, Failure> {
    while let Some(seen) = observer.next().await {
        if let Some(leader) = seen? {
            println!("the leader is {leader}");
            return Ok(leader);
        }
    }
    Err("the observer has ended".into())
}

/// Asks again and again, as the probes of a load balancer do.
async fn wait_until(url: &str, request: &str, expected: &str) -> Result<(), Failure> {
    while status(url, request).await? != expected {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Sends one request, such as `GET /ready`, and returns the status.
async fn status(url: &str, request: &str) -> Result<String, io::Error> {
    let address = url.trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).await?;
    let request = format!("{request} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    Ok(response.split(' ').nth(1).unwrap_or_default().to_owned())
}
