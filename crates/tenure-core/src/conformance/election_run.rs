//! Elections: `run`, and the end of a client.

use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::rt::lock;
use crate::{Election, Error, ErrorKind, LostReason, Term};

use super::case::{Case, expect_error};
use super::election_case::{ElectionCase, OBSERVED};
use super::failure::{Failure, Verdict, check};

/// The longest pause of `run`, and more.
const RETURNS: Duration = Duration::from_secs(60);

/// How many bodies of `run` are running, and the terms in which one has begun.
#[derive(Default)]
struct Bodies {
    running: AtomicU32,
    most: AtomicU32,
    terms: Mutex<Vec<u64>>,
}

/// A body that runs, until it ends or is dropped.
struct Running(Arc<Bodies>);

impl Bodies {
    fn begin(self: &Arc<Self>, term: &Term) -> Running {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        lock(&self.terms).push(term.token().get());
        Running(self.clone())
    }

    fn terms(&self) -> Vec<u64> {
        lock(&self.terms).clone()
    }

    fn running(&self) -> u32 {
        self.running.load(Ordering::SeqCst)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs a body that does not end, in a task.
async fn start_run(
    case: &Case,
    election: Election,
    bodies: &Arc<Bodies>,
) -> JoinHandle<Result<(), Error>> {
    let bodies = bodies.clone();
    case.start(async move {
        let run = election.run_boxed(move |term| {
            let running = bodies.begin(term);
            Box::pin(async move {
                let _running = running;
                pending::<Result<(), Infallible>>().await
            })
        });
        run.await
    })
    .await
}

/// Waits until the body has begun so many times.
async fn until_begun(case: &Case, bodies: &Bodies, count: usize) -> Verdict {
    // The pause after a short term, and the turn.
    let limit = case.ttl() + RETURNS;
    case.in_time(limit, "the body runs", async {
        while bodies.terms().len() < count {
            case.look_again().await;
        }
    })
    .await
}

/// Rule 6: `run` ends the body when the term is lost, goes back to the queue, and never runs two bodies at once.
pub(super) async fn run_returns_to_the_queue_after_a_loss(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "run");
    let (first, other) = (
        election.short_candidate().await?,
        election.candidate().await?,
    );
    let bodies = Arc::new(Bodies::default());
    let run = start_run(&case, first.election("runs"), &bodies).await;
    until_begun(&case, &bodies, 1).await?;
    for turn in 0..2 {
        let campaign = other.start_campaign(&case, &format!("other {turn}")).await;
        case.until_waiting(&election.name, 1).await?;
        // Where waiters cannot be counted.
        case.pass(case.ttl() / 4).await;
        let Some(token) = bodies.terms().last().copied() else {
            return Err(Failure::new("no body has run"));
        };
        case.until_broken(&other.client, &election.name, token)
            .await?;
        let leading = case.in_time(case.ttl(), "the next term", campaign);
        let leading = leading.await???;
        check!(
            leading.token() > token,
            "{} follows {token}",
            leading.token()
        );
        case.in_time(case.ttl(), "the body is cancelled", async {
            while bodies.running() > 0 {
                case.look_again().await;
            }
        })
        .await?;
        check!(!run.is_finished(), "`run` has ended with a loss");
        let begun = bodies.terms().len();
        case.pass(case.ttl() / 2).await;
        check!(
            bodies.terms().len() == begun,
            "a body runs while another client leads"
        );
        leading.resign().await?;
        until_begun(&case, &bodies, begun + 1).await?;
    }
    let (terms, most) = (bodies.terms(), bodies.most.load(Ordering::SeqCst));
    check!(most == 1, "{most} bodies at once");
    check!(terms.is_sorted_by(|a, b| a < b), "terms {terms:?}");
    run.abort();
    let _ = run.await;
    check!(bodies.running() == 0, "a dropped `run` has a body");
    case.until_idle(&election.name).await
}

/// A body that fails leaves the leadership to another candidate; a body that is done ends `run` and the term.
pub(super) async fn run_ends_with_its_body_and_not_with_its_failure(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "work");
    let (first, other) = (election.candidate().await?, election.candidate().await?);
    let runs = first.election("runs");
    let mut attempts = 0;
    let run = case.start(async move {
        let run = runs.run_boxed(move |term| {
            attempts += 1;
            let (attempt, token) = (attempts, term.token());
            Box::pin(async move {
                match attempt {
                    1 => Err("out of order"),
                    _ => Ok(token),
                }
            })
        });
        run.await
    });
    let run = run.await;
    // It leads while the other one pauses, or after it.
    let campaign = other.campaign("other");
    let leading = case.in_time(case.long(), "the other one leads", campaign);
    leading.await??.resign().await?;
    let limit = case.ttl() + RETURNS;
    let token = case.in_time(limit, "the end of the work", run).await???;
    check!(token.get() > 0, "{token} is no term");
    case.until_idle(&election.name).await
}

/// Rule 12: closing a client ends its terms, its campaigns and its observers.
pub(super) async fn closing_a_client_ends_its_elections(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "closed");
    let (first, other) = (
        election.candidate().await?,
        election.short_candidate().await?,
    );
    let leading = other.campaign("leader").await?;
    let client = first.client.clone();
    let campaign = first.start_campaign(&case, "waits").await;
    let mut observer = client.election(&election.name).observe();
    let shown = case.in_time(OBSERVED, "the leader", observer.next());
    check!(matches!(shown.await?, Some(Ok(Some(_)))), "nobody leads");
    let observing = case
        .start(async move { observer.next().await.is_none() })
        .await;
    case.until_waiting(&election.name, 1).await?;
    case.soon("the client closes", client.close()).await?;
    let outcome = case.soon("the end of the campaign", campaign).await??;
    expect_error(outcome.map(drop), ErrorKind::Closed)?;
    let is_end = case.soon("the end of the observer", observing).await??;
    check!(is_end, "the observer goes on");
    let closed = client.election(&election.name);
    expect_error(closed.leader().await, ErrorKind::Closed)?;
    expect_error(closed.ask_to_resign().await, ErrorKind::Closed)?;
    expect_error(closed.campaign().await.map(drop), ErrorKind::Closed)?;
    let lost = leading.term.lost();
    case.soon("the leader closes", other.client.close()).await?;
    let reason = case.soon("the end of the term", lost).await?;
    check!(reason == Some(LostReason::SessionGone), "{reason:?}");
    check!(!leading.term.is_leader(), "a leader without a client");
    drop(leading);
    // A store may keep the hold until its lease ends.
    case.pass(case.ttl()).await;
    case.until_idle(&election.name).await
}
