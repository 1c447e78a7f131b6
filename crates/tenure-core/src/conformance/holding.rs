//! Rules 1 to 7: who holds, until when, and under which number.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::error::Step;
use crate::{ErrorKind, HoldState, LostReason, Renew};

use super::case::{Case, SOON, expect_error, expect_greater};
use super::failure::{Failure, Verdict, check};
use super::harness::RequestFault;

/// Rule 1: a counter that 100 contenders increment by read, sleep, write ends at exactly 100.
pub(super) async fn one_holder_among_a_hundred_contenders(case: Arc<Case>) -> Verdict {
    let name = case.name("counter");
    let counter = Arc::new(AtomicU64::new(0));
    let inside = Arc::new(AtomicU64::new(0));
    let last_token = Arc::new(AtomicU64::new(0));
    let mut contenders = Vec::new();
    for client in 0..5 {
        let client = (client, case.client().await?);
        for _ in 0..20 {
            let lock = client.1.lock(&name).label(format!("client {}", client.0));
            let (counter, inside, last_token) =
                (counter.clone(), inside.clone(), last_token.clone());
            contenders.push(tokio::spawn(async move {
                let guard = lock.acquire().await?;
                check!(inside.fetch_add(1, Ordering::SeqCst) == 0, "two are inside");
                let before = last_token.swap(guard.token().get(), Ordering::SeqCst);
                check!(
                    before < guard.token().get(),
                    "token {} follows token {before}",
                    guard.token()
                );
                let value = counter.load(Ordering::SeqCst);
                tokio::time::sleep(Duration::from_micros(200)).await;
                counter.store(value + 1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await?;
                Ok(())
            }));
        }
    }
    for contender in contenders {
        case.soon("every contender has its turn", contender)
            .await???;
    }
    let counted = counter.load(Ordering::SeqCst);
    check!(counted == 100, "{counted} increments of 100 are left");
    Ok(())
}

/// Rule 1: when a client gets a name after a lease has run out, the former holder no longer claims it.
pub(super) async fn claims_never_overlap_when_a_lease_runs_out(case: Arc<Case>) -> Verdict {
    let name = case.name("lease");
    let (first, second) = (case.client().await?, case.client().await?);
    for round in 0..3 {
        let lock = first.lock(&name).ttl(case.ttl()).renew(Renew::Never);
        let old = lock.acquire().await?;
        let lock = second.lock(&name).ttl(case.ttl());
        let limit = case.ttl() + Duration::from_secs(1);
        let new = case.in_time(limit, "takeover", lock.acquire()).await??;
        check!(!old.is_held(), "both claim to hold it in round {round}");
        check!(
            old.remaining().is_zero(),
            "{:?} of nothing remain",
            old.remaining()
        );
        check!(new.token() > old.token(), "the token did not grow");
        drop(old);
        check!(
            new.is_held(),
            "the drop of the old guard ended the new hold"
        );
        new.release().await?;
    }
    Ok(())
}

/// Rule 2: deadline = sent + ttl - margin.
pub(super) async fn the_deadline_lies_a_margin_before_the_end_of_the_lease(
    case: Arc<Case>,
) -> Verdict {
    let (client, name) = (case.client().await?, case.name("deadline"));
    let guard = case.lease(&client, &name).await?;
    let most = case.ttl().saturating_sub(case.margin());
    check!(
        guard.remaining() <= most,
        "{:?} remain, at most {most:?} may",
        guard.remaining()
    );
    check!(guard.is_held(), "not held");
    Ok(guard.release().await?)
}

/// Rule 2: the time in which the request travels to the store is not part of the claim.
pub(super) async fn the_deadline_counts_from_before_the_request(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("late"));
    // Long compared with what a busy machine adds to a round trip.
    let ttl = case.ttl() * 4;
    let way = ttl / 20;
    case.disturb(Step::Acquire, RequestFault::Late(way)).await?;
    let lock = client.lock(&name).ttl(ttl);
    let guard = case.in_time(ttl, "a late grant", lock.acquire()).await??;
    let answered = case.now();
    let deadline = answered.after(guard.remaining());
    // The request was sent at least that long before its answer, however busy this machine is.
    let most = answered.after(ttl).before(way / 2 + case.margin());
    check!(
        deadline <= most,
        "the deadline lies {:?} after the end of the lease that was asked for",
        deadline.since(most)
    );
    Ok(guard.release().await?)
}

/// Rule 2: a grant that arrives after the end of its lease is no grant, and is released.
pub(super) async fn a_reply_after_the_deadline_is_no_grant(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("too-late"));
    case.disturb(Step::Acquire, RequestFault::Late(case.ttl()))
        .await?;
    let lock = client.lock(&name).ttl(case.ttl());
    let limit = case.ttl() * 2;
    let answer = case.in_time(limit, "an answer", lock.acquire()).await?;
    if let Ok(guard) = answer {
        // Asked for once more, it is a lease that has just begun.
        let is_fresh = case.harness().recovers() && guard.remaining() > case.ttl() / 2;
        check!(is_fresh, "held, though the lease was over");
        guard.release().await?;
    }
    case.until_idle(&name).await
}

/// Rule 2: a ttl of less than ten round trips is refused, because renewals at a third of it would come too late.
pub(super) async fn a_ttl_too_short_for_the_round_trip_is_refused(case: Arc<Case>) -> Verdict {
    let (client, once, name) = (case.client().await?, case.name("once"), case.name("short"));
    // Later than a tenth of the lease, which is as long as a busy machine may need for the other answers.
    let ttl = case.ttl() * 3;
    let late = RequestFault::Late(ttl / 8);
    let lock = client.lock(&once).ttl(ttl);
    let begin = Instant::now();
    let guard = loop {
        // One late answer is an accident.
        case.disturb(Step::Acquire, late).await?;
        match case.in_time(ttl, "a free lock", lock.acquire()).await? {
            // On a busy machine the second answer may be late, too.
            Err(err) if err.kind() == ErrorKind::Invalid && begin.elapsed() < SOON => {}
            answer => break answer?,
        }
    };
    check!(guard.is_held(), "lost at once");
    guard.release().await?;
    // A client may break a connection that is silent for so long, and ask again.
    for step in [Step::Acquire, Step::Inspect, Step::Inspect] {
        case.disturb(step, late).await?;
    }
    let lock = client.lock(&name).ttl(ttl);
    let answer = case.in_time(ttl, "an answer", lock.acquire()).await?;
    let kind = answer.as_ref().map(drop).map_err(|err| err.kind());
    check!(
        kind == Err(ErrorKind::Invalid),
        "{:?} instead of Invalid",
        answer.map(drop)
    );
    case.until_idle(&name).await
}

/// Rule 2: a renewal without a reply puts the hold at risk, and the next renewal makes it safe again.
pub(super) async fn an_error_on_renewal_is_neither_loss_nor_success(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("risk"));
    for request_fault in [RequestFault::RequestLost, RequestFault::ReplyLost] {
        // Room for several renewals.
        let ttl = case.ttl() * 2;
        let lock = client.lock(&name).ttl(ttl);
        let guard = case.soon("a free lock", lock.acquire()).await??;
        let seen = async {
            let mut planned = None;
            while guard.state() != HoldState::AtRisk {
                // A busy machine may not have looked in time, and then all of that happens once more.
                if planned.is_none_or(|planned| case.now().since(planned) > ttl) {
                    planned = Some(case.now());
                    // More than one, or it would be over before a busy machine has looked.
                    for _ in 0..2 {
                        case.disturb(Step::Renew, request_fault).await?;
                    }
                }
                case.look_again().await;
            }
            Ok::<_, Failure>(())
        };
        case.in_time(ttl, "the hold is at risk", seen).await??;
        let healed = async {
            loop {
                match guard.state() {
                    HoldState::AtRisk => case.look_again().await,
                    // Read only once: on a busy machine the hold may soon be at risk again.
                    state => break state,
                }
            }
        };
        let state = case.in_time(ttl, "the hold is safe again", healed).await?;
        check!(
            state == HoldState::Held,
            "{state:?} after {request_fault:?} and another renewal"
        );
        guard.release().await?;
    }
    Ok(())
}

/// Rule 3: a waiter's entry is kept alive while it waits, and a grant comes with a lease that has just begun.
pub(super) async fn a_lease_does_not_run_out_while_it_waits(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("long").await?;
    let holder = case.lease(&first, &name).await?;
    let lock = second.lock(&name).ttl(case.ttl());
    let waiting = case.start_acquire(lock).await;
    case.until_waiting(&name, 1).await?;
    case.pass(case.ttl() * 3).await;
    check!(holder.is_held(), "the holder lost it: {:?}", holder.state());
    check!(!waiting.is_finished(), "the wait is over too early");
    holder.release().await?;
    let guard = case.soon("the waiter's turn", waiting).await???;
    check!(
        guard.remaining() > case.ttl() / 3,
        "a lease with {:?} left was granted",
        guard.remaining()
    );
    case.pass(case.ttl()).await;
    check!(guard.is_held(), "the grant was not renewed");
    Ok(guard.release().await?)
}

/// Rule 4: an ordinary hold lasts as long as its guard.
pub(super) async fn a_hold_outlasts_many_leases(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("hold").await?;
    let guard = case.lease(&first, &name).await?;
    for lease in 1..=4 {
        case.pass(case.ttl()).await;
        check!(guard.is_held(), "lost after {lease} leases");
        let other = second.lock(&name).try_acquire().await?;
        check!(
            other.is_none(),
            "somebody else holds it after {lease} leases"
        );
    }
    check!(!guard.remaining().is_zero(), "nothing remains");
    check!(
        case.count_contenders(&name).await?.holders == 1,
        "the store knows nothing of it"
    );
    Ok(guard.release().await?)
}

/// Rule 4: renewals of one client share their requests.
pub(super) async fn many_holds_are_renewed_by_few_requests(case: Arc<Case>) -> Verdict {
    let client = case.client().await?;
    let mut guards = Vec::new();
    for i in 0..100 {
        guards.push(
            case.lease(&client, &case.name(&format!("batch{i}")))
                .await?,
        );
        case.pass(case.ttl() / 300).await;
    }
    let before = case.harness().requests();
    let start = case.now();
    // In steps that are shorter than what lies between two holds: the clock must not do the batching.
    for _ in 0..300 {
        case.pass(case.ttl() / 300).await;
    }
    let sent = case
        .harness()
        .requests()
        .zip(before)
        .map(|(now, before)| now - before);
    // A real clock takes longer for so many steps.
    let ttls = case.now().since(start).as_secs_f64() / case.ttl().as_secs_f64();
    check!(
        sent.is_some_and(|sent| sent as f64 <= 75.0 * ttls),
        "{sent:?} requests in {ttls:.2} ttl for 100 holds"
    );
    for guard in guards {
        check!(guard.is_held(), "lost {}", guard.name());
        guard.release().await?;
    }
    Ok(())
}

/// Rule 4: a hold that cannot be renewed does not affect the other holds of its client.
pub(super) async fn one_failing_hold_does_not_stop_the_others(case: Arc<Case>) -> Verdict {
    let client = case.client().await?;
    let mut guards = Vec::new();
    for i in 0..10 {
        guards.push(case.lease(&client, &case.name(&format!("many{i}"))).await?);
    }
    let gone = guards.remove(4);
    case.evict(gone.name().as_str()).await?;
    case.in_time(case.ttl(), "the loss is noticed", gone.lost())
        .await?;
    case.pass(case.ttl() * 2).await;
    check!(!gone.is_held(), "resurrected");
    drop(gone);
    for guard in guards {
        check!(guard.is_held(), "{} is {:?}", guard.name(), guard.state());
        guard.release().await?;
    }
    Ok(())
}

/// Rule 4: renewal ends with the guard and with the client.
pub(super) async fn renewal_ends_with_the_guard(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("gone"));
    case.lease(&client, &name).await?.release().await?;
    drop(case.lease(&client, &name).await?);
    case.until_idle(&name).await?;
    let before = case.harness().requests();
    case.pass(case.ttl() * 2).await;
    let after = case.harness().requests();
    check!(
        before == after,
        "{before:?} requests became {after:?} without a hold"
    );
    Ok(())
}

/// Rule 4: `renew(Never)` is a lease of one ttl, also where the store knows no leases.
pub(super) async fn a_fixed_lease_ends(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("fixed").await?;
    let lock = first.lock(&name).ttl(case.ttl()).renew(Renew::Never);
    let start = case.now();
    let guard = lock.acquire().await?;
    check!(
        guard.remaining() <= case.ttl(),
        "{:?} of {:?} remain",
        guard.remaining(),
        case.ttl()
    );
    let reason = case.in_time(case.ttl(), "the end", guard.lost()).await?;
    let held = case.now().since(start);
    check!(
        reason == Some(LostReason::Expired),
        "lost because {reason:?}"
    );
    check!(
        held + case.margin() * 2 >= case.ttl(),
        "ended after {held:?}"
    );
    let lock = second.lock(&name).ttl(case.ttl());
    let limit = case.margin() + Duration::from_secs(1);
    let next = case.acquire_within(limit, &lock).await??;
    check!(next.token() > guard.token(), "the token did not grow");
    expect_error(guard.release().await, ErrorKind::Lost)?;
    check!(next.is_held(), "the late release ended the next hold");
    Ok(next.release().await?)
}

/// Rule 4: `max_hold` caps renewal.
pub(super) async fn max_hold_ends_a_hold(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("max").await?;
    let max = case.ttl() + case.ttl() / 2;
    let start = case.now();
    let guard = first
        .lock(&name)
        .ttl(case.ttl())
        .max_hold(max)
        .acquire()
        .await?;
    let reason = case.in_time(max, "the end", guard.lost()).await?;
    let held = case.now().since(start);
    check!(
        reason == Some(LostReason::MaxHold),
        "lost because {reason:?}"
    );
    check!(
        held >= case.ttl(),
        "ended after {held:?}, before the first lease"
    );
    check!(!guard.is_held(), "still claimed");
    let lock = second.lock(&name).ttl(case.ttl());
    let limit = case.ttl() + Duration::from_secs(1);
    let next = case.acquire_within(limit, &lock).await??;
    drop(guard);
    check!(
        next.is_held(),
        "the drop of the old guard ended the new hold"
    );
    Ok(next.release().await?)
}

/// Rule 5: the state of a guard is read from the clock, so no task has to run for it to change.
pub(super) async fn a_claim_ends_in_time_though_the_runtime_is_stuck(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("stuck"));
    let lock = client.lock(&name).ttl(case.ttl()).renew(Renew::Never);
    let guard = lock.acquire().await?;
    if case.harness().advance(Duration::ZERO).is_some() {
        case.pass(case.ttl()).await;
    } else {
        // Blocks this thread, as a user's long computation would.
        std::thread::sleep(case.ttl());
    }
    check!(
        !guard.is_held(),
        "claimed after the lease: {:?}",
        guard.state()
    );
    check!(
        guard.remaining().is_zero(),
        "{:?} of nothing remain",
        guard.remaining()
    );
    drop(guard);
    case.acquire_and_release(&client, &name).await
}

/// Rule 5: `lost` resolves with a reason on a loss only; a release ends it without one.
pub(super) async fn lost_never_fires_on_release(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("quiet"));
    let released = case.lease(&client, &name).await?;
    let first = case.start(released.lost()).await;
    released.release().await?;
    let first = case.soon("the end of the hold is told", first).await??;
    check!(first.is_none(), "fired after a release: {first:?}");
    let dropped = case.lease(&client, &name).await?;
    let second = case.start(dropped.lost()).await;
    drop(dropped);
    let second = case.soon("the end of the hold is told", second).await??;
    check!(second.is_none(), "fired after a drop: {second:?}");
    Ok(())
}

/// Rule 5: what the store has given to another client is lost within a third of the ttl, stays lost, and
/// neither renewal nor release of the former holder touches the next one.
pub(super) async fn a_refused_renewal_is_a_loss_and_never_resurrects(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("refused").await?;
    let old = case.lease(&first, &name).await?;
    case.evict(&name).await?;
    let new = case.lease(&second, &name).await?;
    let reason = case
        .in_time(case.ttl(), "the loss is noticed", old.lost())
        .await?;
    check!(
        matches!(
            reason,
            Some(LostReason::StoreSaysNo | LostReason::TakenOver)
        ),
        "lost because {reason:?}"
    );
    case.pass(case.ttl() * 2).await;
    check!(!old.is_held(), "resurrected");
    check!(
        new.is_held(),
        "the next holder was harmed: {:?}",
        new.state()
    );
    expect_error(old.release().await, ErrorKind::Lost)?;
    check!(new.is_held(), "the late release ended the next hold");
    check!(
        case.count_contenders(&name).await?.holders == 1,
        "the store let go of the next hold"
    );
    Ok(new.release().await?)
}

/// Rule 6: `run` is acquire, body, release.
pub(super) async fn run_returns_the_value_and_releases(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("run"));
    let lock = client.lock(&name).ttl(case.long());
    let inner = case.clone();
    let value = lock
        .run(async |guard| {
            let counts = inner.count_contenders(guard.name().as_str()).await?;
            check!(counts.holders == 1, "{counts:?} during the run");
            Ok(7)
        })
        .await??;
    check!(value == 7, "{value} instead of 7");
    Ok(case.take(&client, &name).await?.release().await?)
}

/// Rule 6: on loss the body is dropped at its await, and the result is an error.
pub(super) async fn run_is_cancelled_when_the_lock_is_lost(case: Arc<Case>) -> Verdict {
    let (client, other, name) = case.two_clients("cancel").await?;
    let dropped = Arc::new(AtomicBool::new(false));
    let (started, has_started) = tokio::sync::oneshot::channel();
    let (lock, flag) = (client.lock(&name).ttl(case.ttl()), dropped.clone());
    let run = tokio::spawn(async move {
        lock.run(async move |guard| {
            let _on_drop = OnDrop(flag);
            let _ = started.send(guard.token());
            std::future::pending::<u32>().await
        })
        .await
    });
    let Ok(token) = case.soon("the body starts", has_started).await? else {
        return Err(Failure::new("the body never started"));
    };
    check!(
        other.break_lock(&name, token).await?,
        "there is nothing to break"
    );
    let outcome = case
        .in_time(case.ttl(), "the end of the run", run)
        .await??;
    expect_error(outcome, ErrorKind::Lost)?;
    check!(dropped.load(Ordering::SeqCst), "the body was not dropped");
    Ok(())
}

/// Rule 6: a body that ends after the lock was lost is an error, not a success.
pub(super) async fn a_lost_run_cannot_look_like_success(case: Arc<Case>) -> Verdict {
    let (client, other, name) = case.two_clients("lost").await?;
    let lock = client.lock(&name).ttl(case.ttl());
    let outcome = lock
        .run(async |guard| other.break_lock(guard.name(), guard.token()).await)
        .await;
    expect_error(outcome, ErrorKind::Lost)?;
    Ok(())
}

/// Rule 7: each grant has a greater token than the grant before, whichever client gets it.
pub(super) async fn tokens_grow_over_grants(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("token").await?;
    let clients = [first, second];
    let mut last = 0;
    for i in 0..50 {
        let guard = case.take(&clients[i % 2], &name).await?;
        last = expect_greater(&guard, last)?;
        let status = clients[1].inspect(&name).await?;
        let seen = status.holds.first().and_then(|hold| hold.token);
        check!(
            seen == Some(guard.token()),
            "the store says {seen:?}, the guard {last}"
        );
        guard.release().await?;
    }
    Ok(())
}

/// Rule 7: tokens grow if the lease of the former holder has run out.
pub(super) async fn tokens_grow_over_expiry(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("expiry"));
    let mut last = 0;
    for _ in 0..3 {
        let lock = client.lock(&name).ttl(case.ttl()).renew(Renew::Never);
        let limit = case.ttl() + Duration::from_secs(1);
        let guard = case
            .in_time(limit, "the next grant", lock.acquire())
            .await??;
        last = expect_greater(&guard, last)?;
        case.in_time(case.ttl(), "the end", guard.lost()).await?;
    }
    Ok(())
}

/// Rule 7: tokens grow if the hold was removed from the store by hand.
pub(super) async fn tokens_grow_over_eviction(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("evicted"));
    let mut last = 0;
    for _ in 0..5 {
        let guard = case.lease(&client, &name).await?;
        last = expect_greater(&guard, last)?;
        case.evict(&name).await?;
        drop(guard);
    }
    Ok(())
}

/// Rule 7: shared holders each have their own token.
pub(super) async fn no_two_holders_have_the_same_token(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("unique").await?;
    let clients = [first, second];
    let mut guards = Vec::new();
    for i in 0..10 {
        guards.push(clients[i % 2].lock(&name).shared().acquire().await?);
    }
    let mut tokens: Vec<_> = guards.iter().map(|guard| guard.token()).collect();
    check!(tokens.is_sorted(), "{tokens:?} do not grow");
    tokens.dedup();
    check!(
        tokens.len() == guards.len(),
        "{tokens:?} for {} holders",
        guards.len()
    );
    for guard in guards {
        guard.release().await?;
    }
    let guard = case.take(&clients[0], &name).await?;
    check!(
        tokens.iter().all(|token| *token < guard.token()),
        "a token came again"
    );
    Ok(guard.release().await?)
}

/// Raises a flag when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
