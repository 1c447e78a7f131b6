//! Elections under faults: killed and stopped leaders, cut connections, lost requests, silent and restarted stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::error::Step;
use crate::guarantees::Fault;

use super::case::{Case, SOON};
use super::election_case::{Candidate, ElectionCase, Leading, OBSERVED, asked_within};
use super::election_history::Seen;
use super::failure::{Failure, Verdict, check};
use super::harness::RequestFault;
use super::lock_holder::LockHolder;

/// How long a vanished leader may lead beyond its ttl (rule 16).
const GRACE: Duration = Duration::from_secs(1);

/// A leader in another process, with the token of its term.
async fn start_leader(
    case: &Case,
    election: &ElectionCase,
    value: &str,
) -> Result<(LockHolder, u64), Failure> {
    let mut options = vec!["--value", value];
    if !case.harness().leases() {
        // No lease runs: the ttl makes no difference.
        options.extend(["--ttl", "3600s"]);
    }
    let attempt = election.history.campaigns(value);
    let mut leader = LockHolder::start(case, &election.name, &options)?;
    let token = case.soon("the helper leads", leader.held()).await??;
    election.history.elected(attempt, token);
    Ok((leader, token))
}

/// How long a leader that was killed leads at most.
fn killed_within(case: &Case) -> Duration {
    match case.harness().leases() {
        true => case.ttl() + GRACE,
        false => Duration::ZERO,
    }
}

/// Rule 16: after `kill -9` of the leader the next candidate leads within ttl + 1 s, and without a candidate observers see that
/// nobody leads.
pub(super) async fn a_killed_leader_is_followed(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "killed");
    election.observe(2).await?;
    let candidate = election.short_candidate().await?;
    let (mut leader, token) = start_leader(&case, &election, "killed").await?;
    election.until_seen("killed").await?;
    let next = candidate.start_campaign(&case, "next").await;
    case.until_waiting(&election.name, 1).await?;
    leader.kill()?;
    let limit = killed_within(&case);
    let leading = case.in_time(limit, "the next term", next).await???;
    check!(
        leading.token() > token,
        "{} follows {token}",
        leading.token()
    );
    election.until_seen("next").await?;
    leading.resign().await?;
    let (mut leader, _) = start_leader(&case, &election, "the last").await?;
    election.until_seen("the last").await?;
    leader.kill()?;
    let limit = killed_within(&case) + OBSERVED;
    election.until_nobody_is_seen(limit).await?;
    let now = election.leader().await?;
    check!(now.is_none(), "{now:?} leads after its end");
    election.check()
}

/// A leader in another process publishes its values, and learns that it is asked to resign.
pub(super) async fn a_leader_in_another_process_is_seen_and_asked(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "process");
    election.observe(1).await?;
    let attempt = election.history.campaigns("begin");
    let mut leader = LockHolder::start(&case, &election.name, &["--value", "begin"])?;
    let token = case.soon("the helper leads", leader.held()).await??;
    election.history.elected(attempt, token);
    election.until_seen("begin").await?;
    let shown = election.outsider().await?.leader().await?;
    let pid = shown.map(|leader| leader.holder.pid);
    check!(pid == Some(leader.pid()), "{pid:?} leads");
    election.history.proclaims(attempt, "later");
    leader.say("proclaim later")?;
    case.soon("the helper proclaims", leader.expect("proclaimed"))
        .await??;
    election.until_seen("later").await?;
    let asked = election.outsider().await?.ask_to_resign().await?;
    check!(asked.is_some(), "nobody leads");
    let limit = asked_within(case.ttl());
    case.in_time(limit, "the helper is asked", leader.expect("asked"))
        .await??;
    leader.say("release")?;
    case.soon("the helper resigns", leader.expect("released"))
        .await??;
    election.until_nobody_is_seen(OBSERVED).await?;
    election.check()
}

/// Rule 5: a leader that is stopped for longer than its ttl is followed, and leads no more when it goes on.
pub(super) async fn a_stopped_leader_is_followed_and_leads_no_more(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "stopped");
    election.observe(2).await?;
    let (mut leader, token) = start_leader(&case, &election, "stopped").await?;
    election.until_seen("stopped").await?;
    leader.stop()?;
    let next = election.candidate().await?.campaign("next");
    let limit = case.ttl() + GRACE;
    let leading = case.in_time(limit, "the next term", next).await??;
    check!(
        leading.token() > token,
        "{} follows {token}",
        leading.token()
    );
    election.until_seen("next").await?;
    leader.go_on()?;
    // What the old leader says first must not be that it leads, and it replaces no value.
    leader.say("status")?;
    let word = case.soon("the old leader wakes up", leader.line()).await?;
    let is_lost = word
        .as_deref()
        .is_some_and(|word| word.starts_with("lost") || word.starts_with("status lost"));
    check!(is_lost, "the old leader says {word:?}");
    leader.say("proclaim late")?;
    leader.hang_up();
    leader.wait()?;
    case.pass(case.ttl()).await;
    let now = election.leader().await?;
    check!(
        now == Some((leading.token(), "next".to_owned())),
        "{now:?} leads"
    );
    check!(
        leading.term.is_leader(),
        "the old leader ended the next term"
    );
    leading.resign().await?;
    election.check()
}

/// Clients that campaign, proclaim and resign again and again, whatever errors they meet.
struct Contest {
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
}

impl Contest {
    async fn start(election: &ElectionCase, clients: usize) -> Result<Self, Failure> {
        let is_over = Arc::<AtomicBool>::default();
        let mut tasks = Vec::new();
        for number in 0..clients {
            let candidate = election.short_candidate().await?;
            let (case, is_over) = (election.case.clone(), is_over.clone());
            tasks.push(tokio::spawn(async move {
                let (mut turn, mut terms) = (0, 0);
                while !is_over.load(Ordering::SeqCst) {
                    turn += 1;
                    let value = format!("{number}-{turn}");
                    match candidate.campaign(&value).await {
                        Ok(leading) => {
                            terms += 1;
                            lead(&case, leading, &value).await;
                        }
                        Err(_) => case.look_again().await,
                    }
                }
                terms
            }));
        }
        Ok(Self { is_over, tasks })
    }

    /// Ends the contest; returns how many terms there were.
    async fn end(self, case: &Case) -> Result<u64, Failure> {
        self.is_over.store(true, Ordering::SeqCst);
        let mut terms = 0;
        for task in self.tasks {
            terms += case
                .in_time(case.long(), "the end of a candidate", task)
                .await??;
        }
        Ok(terms)
    }
}

/// One term. Any of its requests may fail.
async fn lead(case: &Case, leading: Leading, value: &str) {
    for number in 0..2 {
        let _ = leading.proclaim(&format!("{value}-{number}")).await;
        case.look_again().await;
    }
    let _ = leading.resign().await;
}

/// The last term of an election: each observer sees it, and has gone forward only.
async fn until_last_is_seen(election: &ElectionCase, candidate: &Candidate) -> Verdict {
    let case = &election.case;
    let begin = std::time::Instant::now();
    let mut turn = 0;
    let leading = loop {
        turn += 1;
        let campaign = candidate.campaign(&format!("last {turn}"));
        let limit = case.ttl() * 4 + GRACE;
        match case.in_time(limit, "the last term", campaign).await? {
            Err(_) if begin.elapsed() < SOON => case.look_again().await,
            elected => break elected?,
        }
    };
    // After an outage an observer tries again after two seconds at most.
    let limit = case.ttl() + OBSERVED;
    let value = format!("last {turn}");
    let shown = |seen: &[Seen]| {
        let is_shown =
            |it: &Seen| matches!(it, Seen::Leader { value: shown, .. } if *shown == value);
        seen.iter().any(is_shown)
    };
    election
        .until_each(limit, "the last one leads", shown)
        .await?;
    leading.resign().await?;
    election.check()
}

/// Observers see leaders in order while requests of candidates get lost, and answers come late or not at all.
pub(super) async fn observers_see_the_order_though_requests_get_lost(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "lost");
    election.observe(2).await?;
    let contest = Contest::start(&election, 3).await?;
    for step in [Step::Acquire, Step::Release] {
        for fault in [
            RequestFault::RequestLost,
            RequestFault::ReplyLost,
            RequestFault::Late(case.ttl() / 8),
        ] {
            case.disturb(step, fault).await?;
            case.pass(case.ttl() / 4).await;
        }
    }
    let terms = contest.end(&case).await?;
    check!(terms > 0, "nobody has led");
    let candidate = election.short_candidate().await?;
    until_last_is_seen(&election, &candidate).await
}

/// Observers see leaders in order while connections break.
pub(super) async fn observers_see_the_order_though_connections_break(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "cut");
    election.observe(3).await?;
    let contest = Contest::start(&election, 3).await?;
    for _ in 0..3 {
        case.pass(case.ttl() / 3).await;
        case.break_connection().await?;
    }
    case.pass(case.ttl() / 2).await;
    let terms = contest.end(&case).await?;
    check!(terms > 0, "nobody has led");
    let candidate = election.short_candidate().await?;
    until_last_is_seen(&election, &candidate).await
}

/// A term and its value outlast a broken connection where a hold does.
pub(super) async fn a_value_outlasts_a_broken_connection(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "kept");
    election.observe(1).await?;
    let leading = election.short_candidate().await?.campaign("first").await?;
    election.until_seen("first").await?;
    let waits = case.start(leading.term.asked_to_resign()).await;
    case.break_connection().await?;
    case.pass(case.ttl()).await;
    check!(leading.term.is_leader(), "lost by a cut connection");
    let expected = Some((leading.token(), "first".to_owned()));
    let leader = leader_again(&election).await?;
    check!(leader == expected, "{leader:?} instead of {expected:?}");
    proclaim_again(&case, &leading, "second").await?;
    // The observer hears of it over its new connection, or has read it.
    let limit = case.ttl() + OBSERVED;
    let shown = |seen: &[Seen]| {
        let is_shown =
            |it: &Seen| matches!(it, Seen::Leader { value, .. } if value.starts_with("second"));
        seen.iter().any(is_shown)
    };
    election
        .until_each(limit, "the value changes", shown)
        .await?;
    election.outsider().await?.ask_to_resign().await?;
    let is_asked = case.in_time(asked_within(case.ttl()), "the leader is asked", waits);
    check!(is_asked.await??, "the term has ended");
    leading.resign().await?;
    election.check()
}

/// Asks who leads until there is an answer.
async fn leader_again(election: &ElectionCase) -> Result<Option<(u64, String)>, Failure> {
    let begin = std::time::Instant::now();
    loop {
        match election.leader().await {
            Err(_) if begin.elapsed() < SOON => election.case.look_again().await,
            answer => return answer,
        }
    }
}

/// Proclaims until the store has confirmed it.
async fn proclaim_again(case: &Case, leading: &Leading, value: &str) -> Verdict {
    let begin = std::time::Instant::now();
    let mut turn = 0;
    loop {
        turn += 1;
        match leading.proclaim(&format!("{value} {turn}")).await {
            Err(err) if !err.is_lost() && begin.elapsed() < SOON => case.look_again().await,
            proclaimed => return Ok(proclaimed?),
        }
    }
}

/// Rule 5: a leader whose store has fallen silent leads no longer than its lease, and observers see the next leader when the
/// store is back.
pub(super) async fn a_leader_of_a_silent_store_is_followed(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "silent");
    election.observe(2).await?;
    let leading = election.short_candidate().await?.campaign("silent").await?;
    election.until_seen("silent").await?;
    let lost = case.start(leading.term.lost()).await;
    case.pause_store().await?;
    let reason = case.in_time(case.ttl(), "the end of the term", lost).await;
    case.resume_store().await?;
    check!(reason??.is_some(), "resigned without a call");
    check!(!leading.term.is_leader(), "a lost term is held");
    drop(leading);
    let candidate = election.short_candidate().await?;
    until_last_is_seen(&election, &candidate).await
}

/// Rule 7a: after a restart of the store observers see the next leader and no older one. Where the store may lose its tokens,
/// they may end with an error instead.
pub(super) async fn observers_outlast_a_restart_of_the_store(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "restart");
    election.observe(2).await?;
    let leading = election.short_candidate().await?.campaign("before").await?;
    election.until_seen("before").await?;
    case.restart_store().await?;
    drop(leading);
    let guarantees = case.guarantees();
    let cell = guarantees.cell(Fault::StoreRestart);
    if cell.is_some_and(|cell| cell.token_regress) {
        return election.check();
    }
    let candidate = election.short_candidate().await?;
    until_last_is_seen(&election, &candidate).await
}
