//! Rules 13 to 16a: how holds and waits end.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::error::Step;
use crate::{Client, ErrorKind, LostReason, Renew};

use super::case::{Case, SOON, expect_error};
use super::failure::{Failure, Verdict, check};
use super::harness::RequestFault;

/// Rule 13: when `release` has answered, the name is free.
pub(super) async fn a_release_frees_at_once(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("free").await?;
    for _ in 0..10 {
        case.take(&first, &name).await?.release().await?;
        check!(
            case.count_contenders(&name).await?.holders == 0,
            "the store still shows a holder"
        );
        case.take(&second, &name).await?.release().await?;
    }
    Ok(())
}

/// Rule 13: a release compares the owner. The release of a former holder is an error and changes nothing.
pub(super) async fn a_stale_release_frees_nobody_else(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("stale").await?;
    let third = case.client().await?;
    for drops in [false, true] {
        let old = case.lease(&first, &name).await?;
        case.evict(&name).await?;
        let new = case.lease(&second, &name).await?;
        if drops {
            drop(old);
            case.pass(case.ttl() / 4).await;
        } else {
            expect_error(old.release().await, ErrorKind::Lost)?;
        }
        check!(new.is_held(), "the next hold was ended");
        check!(
            case.count_contenders(&name).await?.holders == 1,
            "the store let go of the next hold"
        );
        check!(
            third.lock(&name).try_acquire().await?.is_none(),
            "two hold it"
        );
        new.release().await?;
    }
    Ok(())
}

/// Rule 13: the release of a hold that has ended is an error, whatever has happened to the name since.
pub(super) async fn a_release_after_loss_is_an_error(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("late"));
    let lock = client.lock(&name).ttl(case.ttl()).renew(Renew::Never);
    let guard = lock.acquire().await?;
    case.in_time(case.ttl(), "the end", guard.lost()).await?;
    expect_error(guard.release().await, ErrorKind::Lost)?;
    case.until_idle(&name).await?;
    Ok(case.lease(&client, &name).await?.release().await?)
}

/// Rule 13: a release of unknown outcome has its own error, and is repeated until the name is free in the store.
pub(super) async fn a_release_without_an_answer_is_typed_and_repeated(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("unsure").await?;
    for (request_fault, expected) in [
        (RequestFault::RequestLost, ErrorKind::Unreachable),
        (RequestFault::ReplyLost, ErrorKind::Indeterminate),
    ] {
        for drops in [false, true] {
            let guard = case.lease(&first, &name).await?;
            case.disturb(Step::Release, request_fault).await?;
            if drops {
                drop(guard);
            } else {
                let kind = guard.release().await.map_err(|err| err.kind());
                let recovered = kind.is_ok() && case.harness().recovers();
                check!(
                    recovered || kind == Err(expected),
                    "{kind:?} instead of {expected:?}"
                );
            }
            case.until_idle(&name).await?;
            // A release that is repeated under its own owner id must not end the hold of the next holder.
            let next = case.lease(&second, &name).await?;
            case.pass(case.ttl()).await;
            check!(next.is_held(), "the repeated release ended the next hold");
            next.release().await?;
        }
    }
    Ok(())
}

/// Rule 13: `break_lock` ends the hold with that token, and its holder is told.
pub(super) async fn break_lock_ends_exactly_that_hold(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("break").await?;
    let other = case.name("break-not");
    let (guard, bystander) = (
        case.lease(&first, &name).await?,
        case.lease(&first, &other).await?,
    );
    let token = guard.token().get();
    for wrong in [0, token - 1, token + 1, u64::MAX] {
        let broken = second.break_lock(&name, wrong).await?;
        check!(!broken, "{wrong} was broken instead of {token}");
    }
    check!(guard.is_held(), "another token ended the hold");
    check!(
        second.break_lock(&name, token).await?,
        "{token} could not be broken"
    );
    let next = case.lease(&second, &name).await?;
    check!(next.token().get() > token, "the token did not grow");
    let reason = case
        .in_time(case.ttl(), "the holder is told", guard.lost())
        .await?;
    check!(
        matches!(
            reason,
            Some(LostReason::TakenOver | LostReason::StoreSaysNo)
        ),
        "lost because {reason:?}"
    );
    check!(
        !second.break_lock(&name, token).await?,
        "{token} was broken twice"
    );
    expect_error(guard.release().await, ErrorKind::Lost)?;
    check!(next.is_held(), "the next hold was ended, too");
    check!(bystander.is_held(), "a hold of another name was ended");
    bystander.release().await?;
    Ok(next.release().await?)
}

/// Rule 14: dropping the guard is enough.
pub(super) async fn a_dropped_guard_releases(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("drop").await?;
    for _ in 0..10 {
        drop(case.take(&first, &name).await?);
        case.acquire_and_release(&second, &name).await?;
    }
    Ok(())
}

/// Rule 14: dropping the guard releases in a thread without a runtime too, and does not panic.
pub(super) async fn a_guard_dropped_outside_the_runtime_releases(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("outside").await?;
    let guard = case.take(&first, &name).await?;
    let dropped = std::thread::spawn(move || drop(guard));
    check!(dropped.join().is_ok(), "the drop panicked");
    case.acquire_and_release(&second, &name).await
}

/// Rule 14: a program may end right after the drop: `close` waits for the releases under way.
pub(super) async fn a_dropped_guard_is_released_before_close_returns(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("last"));
    let (theirs, their_name) = (case.clone(), name.clone());
    let program = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let client = theirs.client().await?;
            drop(theirs.take(&client, &their_name).await?);
            client.close().await;
            Ok::<_, Failure>(())
        })
    });
    match program.join() {
        Ok(outcome) => outcome?,
        Err(_) => return Err(Failure::new("it panicked")),
    }
    case.acquire_and_release(&client, &name).await
}

/// Rule 14: a guard may be dropped after the runtime of its client; then the hold ends with its lease at the latest.
pub(super) async fn a_guard_may_outlive_its_runtime(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("orphan"));
    let (theirs, their_name) = (case.clone(), name.clone());
    let orphan = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let guard = runtime.block_on(async {
            let client = theirs.client().await?;
            theirs.lease(&client, &their_name).await
        })?;
        runtime.shutdown_background();
        drop(guard);
        Ok::<_, Failure>(())
    });
    match orphan.join() {
        Ok(outcome) => outcome?,
        Err(_) => return Err(Failure::new("the drop panicked")),
    }
    let lock = client.lock(&name).ttl(case.ttl());
    let limit = case.ttl() + Duration::from_secs(1);
    let next = case.acquire_within(limit, &lock).await??;
    Ok(next.release().await?)
}

/// Rule 14: a release that has begun is completed, even if its caller is cancelled.
pub(super) async fn a_dropped_release_goes_on(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("begun").await?;
    for polls in 0..3 {
        let guard = case.take(&first, &name).await?;
        {
            let mut release = pin!(guard.release());
            let mut cx = Context::from_waker(Waker::noop());
            for _ in 0..polls {
                if release.as_mut().poll(&mut cx).is_ready() {
                    break;
                }
            }
        }
        case.acquire_and_release(&second, &name).await?;
    }
    Ok(())
}

/// Rule 15: a cancelled wait leaves no entry in the queue and no hold.
pub(super) async fn a_dropped_acquire_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("gave-up").await?;
    let third = case.client().await?;
    let guard = case.take(&first, &name).await?;
    // A hold that was forgotten would last longer than `soon`.
    let lock = second.lock(&name).ttl(case.long().max(SOON * 2));
    let waiting = case.start_acquire(lock).await;
    case.until_waiting(&name, 1).await?;
    waiting.abort();
    let _ = waiting.await;
    case.until_nobody_waits(&name).await?;
    check!(guard.is_held(), "the holder lost it");
    guard.release().await?;
    case.until_idle(&name).await?;
    // The thread of a cancelled wait may still get the lock for a moment, and gives it back.
    case.acquire_and_release(&third, &name).await?;
    case.acquire_and_release(&second, &name).await
}

/// Rule 15: after an acquire was dropped, at whichever poll and on a free or a held name, the name can be acquired.
pub(super) async fn an_acquire_dropped_at_any_poll_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("poll").await?;
    for polls in 1..=12 {
        for taken in [false, true] {
            // The last one that was dropped may be on its way out yet.
            let lock = second.lock(&name).ttl(case.long());
            let holder = match taken {
                true => Some(case.soon("the holder", lock.acquire()).await??),
                false => None,
            };
            let lock = first.lock(&name).ttl(case.long());
            let mut acquire = Box::pin(async move { lock.acquire().await });
            for poll in 0..polls {
                // Polled with the task's own waker now and then, with none otherwise.
                let ready = std::future::poll_fn(|cx| {
                    let mut noop = Context::from_waker(Waker::noop());
                    let cx = if poll % 2 == 0 { cx } else { &mut noop };
                    Poll::Ready(acquire.as_mut().poll(cx))
                })
                .await;
                match ready {
                    Poll::Ready(guard) => {
                        drop(guard?);
                        break;
                    }
                    Poll::Pending => tokio::task::yield_now().await,
                }
            }
            drop(acquire);
            if let Some(holder) = holder {
                check!(holder.is_held(), "the holder lost it at poll {polls}");
                holder.release().await?;
            }
            case.acquire_and_release(&second, &name).await?;
        }
    }
    Ok(())
}

/// Rule 15: a grant to a waiter that is dropped at the same moment is released.
pub(super) async fn an_acquire_dropped_while_it_is_granted_leaves_nothing(
    case: Arc<Case>,
) -> Verdict {
    let (first, second, name) = case.two_clients("race").await?;
    let third = case.client().await?;
    let forgotten = case.long().max(SOON * 2);
    for round in 0..30 {
        // The waiter of the round before may have asked once more just before it was dropped. Such a request can reach
        // the store after all other requests, is granted then, and is given back as soon as its answer is there. So
        // this waits for the end of that moment. A hold that was forgotten would last longer than `soon`.
        let lock = first.lock(&name).ttl(case.long());
        let guard = case
            .soon("the name is free again", lock.acquire())
            .await??;
        let lock = second.lock(&name).ttl(forgotten);
        let waiting = case.start_acquire(lock).await;
        case.until_waiting(&name, 1).await?;
        let release = tokio::spawn(guard.release());
        for _ in 0..round % 5 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        let _ = waiting.await;
        release.await??;
        case.acquire_and_release(&third, &name).await?;
    }
    case.until_idle(&name).await
}

/// Rule 15: an acquisition of unknown outcome may have been granted, so the client removes what it may have left.
pub(super) async fn an_acquire_without_an_answer_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("ghost").await?;
    for (request_fault, expected) in [
        (RequestFault::RequestLost, ErrorKind::Unreachable),
        (RequestFault::ReplyLost, ErrorKind::Indeterminate),
    ] {
        case.disturb(Step::Acquire, request_fault).await?;
        let lock = first.lock(&name).ttl(case.ttl());
        let answer = case.soon("an answer", lock.acquire()).await?;
        match answer {
            Ok(guard) if case.harness().recovers() => {
                let counts = case.count_contenders(&name).await?;
                let one = counts.holders == 1 && counts.waiters.is_none_or(|waiters| waiters == 0);
                check!(one, "recovered, and the store has {counts:?}");
                guard.release().await?;
            }
            answer => {
                let kind = answer.map(drop).map_err(|err| err.kind());
                check!(kind == Err(expected), "{kind:?} instead of {expected:?}");
            }
        }
        let again = case.soon("the same client again", lock.acquire()).await??;
        again.release().await?;
        case.acquire_and_release(&second, &name).await?;
    }
    Ok(())
}

/// Rule 15: an acquisition that never gets a reply leaves nothing, whether its wait ends or its caller cancels it.
pub(super) async fn an_acquire_that_hangs_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("hang").await?;
    for drops in [false, true] {
        case.disturb(Step::Acquire, RequestFault::ReplyNever)
            .await?;
        // The wait of a caller that cancels must not end before the request is with the store.
        let wait = if drops { case.long() } else { case.ttl() / 4 };
        let lock = first.lock(&name).ttl(case.ttl()).wait(wait);
        if drops {
            let hanging = case.start_acquire(lock).await;
            // A caller that gave up before the store has its request might send none, and the fault would hit the request
            // of another client.
            case.until_counts(&name, "the request is with the store", |counts| {
                counts.holders == 1
            })
            .await?;
            hanging.abort();
            let _ = hanging.await;
        } else {
            let limit = case.ttl() / 4 + Duration::from_secs(1);
            let answer = case
                .in_time(limit, "the end of the wait", lock.acquire())
                .await?;
            check!(answer.is_err(), "granted by a store that does not answer");
        }
        case.resume_store().await?;
        case.until_idle(&name).await?;
        case.acquire_and_release(&second, &name).await?;
    }
    Ok(())
}

/// Rule 16: a hold that is not renewed ends within its ttl (+ 1 s), and a waiter gets the lock.
pub(super) async fn an_expired_hold_is_taken_over(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("over").await?;
    let old = first
        .lock(&name)
        .ttl(case.ttl())
        .renew(Renew::Never)
        .acquire()
        .await?;
    let lock = second.lock(&name).ttl(case.ttl());
    let waiting = case.start_acquire(lock).await;
    let limit = case.ttl() + Duration::from_secs(1);
    let new = case
        .in_time(limit, "the waiter's turn", waiting)
        .await???;
    check!(!old.is_held(), "both claim to hold it");
    check!(new.token() > old.token(), "the token did not grow");
    drop(old);
    Ok(new.release().await?)
}

/// Rule 16a: `min_hold` keeps the name taken past the release, for exactly that long.
pub(super) async fn min_hold_keeps_the_name_taken(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("every").await?;
    let every = case.ttl() * 2;
    let start = case.now();
    let lock = first.lock(&name).ttl(case.ttl()).min_hold(every);
    lock.acquire().await?.release().await?;
    // On a real clock a busy machine may need so long that `min_hold` is over before the store answers.
    let is_over = || case.now().since(start) >= every;
    if let Some(late) = second.lock(&name).try_acquire().await? {
        check!(is_over(), "free before `min_hold` was over");
        late.release().await?;
    }
    let reserved = second.inspect(&name).await?.reserved;
    check!(
        reserved.map_or_else(is_over, |left| left <= every),
        "reserved for {reserved:?} of {every:?}"
    );
    let lock = second.lock(&name).ttl(case.ttl());
    let limit = every + Duration::from_secs(1);
    let next = case.acquire_within(limit, &lock).await??;
    let passed = case.now().since(start);
    check!(passed >= every, "taken after {passed:?} of {every:?}");
    Ok(next.release().await?)
}

/// Rule 16a: after an unclean end the name stays reserved for `lock_delay`.
pub(super) async fn lock_delay_reserves_after_an_unclean_end(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("delay").await?;
    let delay = case.ttl();
    let lock = first
        .lock(&name)
        .ttl(case.ttl())
        .lock_delay(delay)
        .renew(Renew::Never);
    let start = case.now();
    let old = lock.acquire().await?;
    case.in_time(case.ttl(), "the end", old.lost()).await?;
    let lock = second.lock(&name).ttl(case.ttl());
    let limit = delay + case.margin() + Duration::from_secs(1);
    let next = case.acquire_within(limit, &lock).await??;
    let (passed, least) = (case.now().since(start), case.ttl() + delay);
    check!(
        passed >= least,
        "taken after {passed:?}; lease and delay are {least:?}"
    );
    drop(old);
    check!(
        next.is_held(),
        "the drop of the old guard ended the new hold"
    );
    Ok(next.release().await?)
}

/// What happens to a guard after its hold has ended.
#[derive(Clone, Copy)]
enum LateEnd {
    Dropped,
    Released,
    /// Its client is closed, and the guard is there still.
    ClientClosed,
}

/// Rule 16a: a guard that is dropped, or released, after its hold has ended does not end the reservation, and neither does
/// the end of its client.
pub(super) async fn a_late_release_keeps_the_lock_delay(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("late-delay").await?;
    let (closed, _, closing) = case.two_clients("closed-delay").await?;
    let other = case.name("later-delay");
    tokio::try_join!(
        ends_late(&case, &first, &second, &name, LateEnd::Dropped),
        ends_late(&case, &first, &second, &other, LateEnd::Released),
        ends_late(&case, &closed, &second, &closing, LateEnd::ClientClosed),
    )?;
    Ok(())
}

/// The first client loses the lock, which stays reserved for a ttl. Then its guard ends in that way.
async fn ends_late(
    case: &Case,
    first: &Client,
    second: &Client,
    name: &str,
    end: LateEnd,
) -> Verdict {
    let delay = case.ttl();
    let lock = first.lock(name).ttl(case.ttl()).lock_delay(delay);
    let start = case.now();
    let old = lock.renew(Renew::Never).acquire().await?;
    case.in_time(case.ttl(), "the end", old.lost()).await?;
    match end {
        // At once: the store may still have the hold.
        LateEnd::Dropped => drop(old),
        LateEnd::Released => {
            case.pass(delay / 2).await;
            expect_error(old.release().await, ErrorKind::Lost)?;
        }
        LateEnd::ClientClosed => {
            case.soon("the client closes", first.close()).await?;
            expect_error(old.release().await, ErrorKind::Lost)?;
        }
    }
    let lock = second.lock(name).ttl(case.ttl());
    let limit = delay + case.margin() + Duration::from_secs(1);
    let next = case.acquire_within(limit, &lock).await??;
    let passed = case.now().since(start);
    // The claim of the holder ends a margin before its lease.
    let least = (case.ttl() + delay).saturating_sub(case.margin());
    check!(
        passed >= least,
        "taken after {passed:?}; lease and delay are {least:?}"
    );
    Ok(next.release().await?)
}

/// Rule 16a: a clean end reserves nothing.
pub(super) async fn lock_delay_does_not_reserve_after_a_release(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("clean").await?;
    let lock = first
        .lock(&name)
        .ttl(case.ttl())
        .lock_delay(case.ttl() * 1_000);
    lock.acquire().await?.release().await?;
    case.lease(&second, &name).await?.release().await?;
    drop(lock.acquire().await?);
    case.acquire_and_release(&second, &name).await
}

/// Rule 5: closing a client ends its holds, and their guards know that before another client gets the lock.
pub(super) async fn closing_a_client_ends_its_holds(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("close").await?;
    let guard = case.lease(&first, &name).await?;
    let lost = guard.lost();
    case.soon("the client closes", first.close()).await?;
    check!(!guard.is_held(), "the holder still believes");
    let reason = case.soon("the loss is told", lost).await?;
    check!(
        reason == Some(crate::LostReason::SessionGone),
        "the reason is {reason:?}"
    );
    expect_error(guard.release().await, ErrorKind::Lost)?;
    let limit = case.ttl() + Duration::from_secs(1);
    let lock = second.lock(&name).ttl(case.ttl());
    let next = case.acquire_within(limit, &lock).await??;
    Ok(next.release().await?)
}
