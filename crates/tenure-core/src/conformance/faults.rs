//! Killed and stopped processes, cut connections, silent and restarted stores: what the guarantee table promises.
//!
//! The matrix runs those alone that disturb the whole store.

use std::sync::Arc;
use std::time::Duration;

use crate::ErrorKind;
use crate::LostReason;
use crate::guarantees::Fault;
use crate::options::Mode;

use super::case::{Case, expect_greater};
use super::failure::{Failure, Verdict, check};
use super::history::may_be_together;
use super::lock_holder::LockHolder;
use super::mode_matrix::{in_mode, modes_of};

/// How long a vanished holder's name may stay taken beyond its ttl (rule 16).
pub(super) const GRACE: Duration = Duration::from_secs(1);

/// Rule 16: after `kill -9` of the holding process the waiter has the name within ttl + 1 s; where no
/// lease runs, at once, whatever the ttl is.
pub(super) async fn a_killed_holder_frees_the_lock(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("killed"));
    let lease = case.harness().leases();
    let options: &[&str] = if lease { &[] } else { &["--ttl", "3600s"] };
    for waits in [true, false] {
        let mut helper = LockHolder::start(&case, &name, options)?;
        let token = case.soon("the helper holds", helper.held()).await??;
        let lock = client.lock(&name).ttl(case.ttl());
        check!(lock.try_acquire().await?.is_none(), "two hold it");
        let waiting = match waits {
            true => {
                let lock = lock.clone();
                let waiting = case.start_acquire(lock).await;
                case.until_waiting(&name, 1).await?;
                Some(waiting)
            }
            false => None,
        };
        helper.kill()?;
        let limit = if lease {
            case.ttl() + GRACE
        } else {
            Duration::ZERO
        };
        let guard = match waiting {
            Some(waiting) => {
                case.in_time(limit, "the waiter's turn", waiting)
                    .await???
            }
            None => case.acquire_within(limit, &lock).await??,
        };
        expect_greater(&guard, token)?;
        guard.release().await?;
    }
    Ok(())
}

/// The option of the helper program for that mode.
pub(super) fn mode_option(mode: Mode) -> Option<String> {
    match mode {
        Mode::Exclusive => None,
        Mode::Shared => Some("shared".into()),
        Mode::Upgradable => Some("upgradable".into()),
        Mode::Permits { limit } => Some(format!("permits={limit}")),
    }
}

/// Starts the helper program in that mode, with the ttl of the case, or with one that does not matter where no lease runs.
fn start_in_mode(case: &Case, name: &str, mode: Mode) -> Result<LockHolder, Failure> {
    let mode = mode_option(mode);
    let mut options = mode.as_deref().map_or(vec![], |mode| vec!["--mode", mode]);
    if !case.harness().leases() {
        options.extend(["--ttl", "3600s"]);
    }
    LockHolder::start(case, name, &options)
}

/// Rule 16: the place of a killed holder is free within ttl + 1 s, whatever its mode was, and a holder that held at the same
/// time keeps its hold.
pub(super) async fn a_killed_holder_in_each_mode_frees_its_place(case: Arc<Case>) -> Verdict {
    let (client, other, name) = case.two_clients("killed-mode").await?;
    let limit = case.ttl() + GRACE;
    let modes = modes_of(&case.guarantees());
    for mode in &modes {
        let mut helper = start_in_mode(&case, &name, *mode)?;
        let token = case.soon("the helper holds", helper.held()).await??;
        let beside = modes.iter().find(|it| may_be_together(**it, *mode));
        let beside = match beside {
            Some(beside) => {
                let lock = in_mode(other.lock(&name).ttl(case.ttl()), *beside);
                let refused = Failure::new(format_args!("{beside} is refused beside {mode}"));
                Some(lock.try_acquire().await?.ok_or(refused)?)
            }
            None => None,
        };
        let lock = client.lock(&name).ttl(case.ttl());
        let waiting = case.start_acquire(lock).await;
        case.until_waiting(&name, 1).await?;
        helper.kill()?;
        if let Some(beside) = beside {
            case.in_time(limit, "one holder is left", async {
                while other.inspect(&name).await?.holds.len() > 1 {
                    case.look_again().await;
                }
                Ok::<_, Failure>(())
            })
            .await??;
            check!(!waiting.is_finished(), "exclusive beside {}", beside.mode());
            check!(beside.is_held(), "lost by the end of a {mode} holder");
            beside.release().await?;
        }
        let guard = case
            .in_time(limit, "the waiter's turn", waiting)
            .await???;
        expect_greater(&guard, token)?;
        guard.release().await?;
    }
    Ok(())
}

/// Rule 7: tokens grow over crashes of holders and of waiters, one process after the other.
pub(super) async fn tokens_grow_over_crashes(case: Arc<Case>) -> Verdict {
    let name = case.name("crashes");
    let mut last = 0;
    for _ in 0..4 {
        let mut helper = LockHolder::start(&case, &name, &[])?;
        let limit = case.ttl() + GRACE;
        let token = case
            .in_time(limit, "the helper holds", helper.held())
            .await??;
        check!(token > last, "{token} follows {last}");
        last = token;
        helper.kill()?;
    }
    let client = case.client().await?;
    let lock = client.lock(&name).ttl(case.ttl());
    let limit = case.ttl() + GRACE;
    let guard = case.acquire_within(limit, &lock).await??;
    expect_greater(&guard, last)?;
    Ok(guard.release().await?)
}

/// Rule 16a: a crash is an unclean end.
pub(super) async fn lock_delay_reserves_after_a_crash(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("crash-delay"));
    let delay = case.ttl() * 2;
    let millis = format!("{}ms", delay.as_millis());
    let mut helper = LockHolder::start(&case, &name, &["--lock-delay", &millis])?;
    case.soon("the helper holds", helper.held()).await??;
    let start = case.now();
    helper.kill()?;
    let lock = client.lock(&name).ttl(case.ttl());
    let limit = case.ttl() + delay + GRACE;
    let guard = case.acquire_within(limit, &lock).await??;
    let passed = case.now().since(start);
    check!(
        passed >= delay,
        "taken {passed:?} after the crash, {delay:?} were asked for"
    );
    Ok(guard.release().await?)
}

/// Rule 16a: `min_hold` counts from the grant, whatever becomes of the holder.
pub(super) async fn min_hold_outlives_its_holder(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("crash-every"));
    let every = case.ttl() * 2;
    let millis = format!("{}ms", every.as_millis());
    let start = case.now();
    let mut helper = LockHolder::start(&case, &name, &["--min-hold", &millis])?;
    case.soon("the helper holds", helper.held()).await??;
    helper.kill()?;
    let lock = client.lock(&name).ttl(case.ttl());
    let limit = case.ttl() + every + GRACE;
    let guard = case.acquire_within(limit, &lock).await??;
    let passed = case.now().since(start);
    check!(
        passed >= every,
        "taken {passed:?} after the grant, `min_hold` was {every:?}"
    );
    Ok(guard.release().await?)
}

/// Rule 11: a killed waiter delays the waiters behind it by a bounded time at most.
pub(super) async fn a_killed_waiter_does_not_block_the_queue(case: Arc<Case>) -> Verdict {
    let (client, other, name) = case.two_clients("dead").await?;
    let holder = case.lease(&client, &name).await?;
    let mut helper = LockHolder::start(&case, &name, &[])?;
    case.soon("the helper starts", helper.expect("waiting"))
        .await??;
    case.until_waiting(&name, 1).await?;
    let lock = other.lock(&name).ttl(case.ttl());
    let waiting = case.start_acquire(lock).await;
    case.until_waiting(&name, 2).await?;
    helper.kill()?;
    holder.release().await?;
    let limit = case.ttl() + GRACE;
    let guard = case
        .in_time(limit, "the turn of the one behind", waiting)
        .await???;
    Ok(guard.release().await?)
}

/// Rule 11: a killed waiter delays the waiter behind it by a bounded time at most, whatever its mode was.
pub(super) async fn a_killed_waiter_in_each_mode_is_skipped(case: Arc<Case>) -> Verdict {
    let (client, other, name) = case.two_clients("dead-mode").await?;
    let limit = case.ttl() + GRACE;
    for mode in modes_of(&case.guarantees()) {
        // The place of the last dead waiter may be behind the other one.
        let lock = client.lock(&name).ttl(case.ttl());
        let holder = case.acquire_within(limit, &lock).await??;
        let mut helper = start_in_mode(&case, &name, mode)?;
        case.soon("the helper starts", helper.expect("waiting"))
            .await??;
        case.until_waiting(&name, 1).await?;
        let lock = other.lock(&name).ttl(case.ttl());
        let waiting = case.start_acquire(lock).await;
        case.until_waiting(&name, 2).await?;
        helper.kill()?;
        holder.release().await?;
        let guard = case
            .in_time(limit, "the turn of the one behind", waiting)
            .await???;
        guard.release().await?;
    }
    Ok(())
}

/// Rule 11: a waiter that was stopped may be granted its turn; where leases run that ends, and where
/// none runs, those who wait have the name as soon as it goes on, or ends.
pub(super) async fn a_stopped_waiter_does_not_keep_the_lock_from_others(
    case: Arc<Case>,
) -> Verdict {
    let (client, other, name) = case.two_clients("stopped").await?;
    let holder = case.lease(&client, &name).await?;
    let mut helper = LockHolder::start(&case, &name, &[])?;
    case.soon("the helper starts", helper.expect("waiting"))
        .await??;
    case.until_waiting(&name, 1).await?;
    helper.stop()?;
    holder.release().await?;
    let lock = other.lock(&name).ttl(case.ttl());
    let waiting = case.start_acquire(lock).await;
    let guard = if case.harness().leases() {
        let limit = case.ttl() * 2 + GRACE;
        case.in_time(limit, "the turn of the one behind", waiting)
            .await???
    } else {
        helper.go_on()?;
        helper.hang_up();
        case.soon("the turn of the one behind", waiting).await???
    };
    check!(guard.is_held(), "granted and lost");
    helper.kill()?;
    check!(
        guard.is_held(),
        "the end of the other process ended the hold"
    );
    Ok(guard.release().await?)
}

/// Rule 5: a holder that is stopped for longer than its ttl and goes on either still holds, or knows
/// that it does not: what the cell of the guarantee table says.
pub(super) async fn a_paused_holder_behaves_as_promised(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("paused"));
    let mut helper = LockHolder::start(&case, &name, &[])?;
    let token = case.soon("the helper holds", helper.held()).await??;
    helper.stop()?;
    let lock = client.lock(&name).ttl(case.ttl());
    if case.harness().leases() {
        let limit = case.ttl() + GRACE;
        let guard = case
            .in_time(limit, "the takeover", lock.acquire())
            .await??;
        expect_greater(&guard, token)?;
        helper.go_on()?;
        // What it says first after it woke up must not be that it holds.
        helper.say("status")?;
        let word = case.soon("the helper wakes up", helper.line()).await?;
        let lost = word
            .as_deref()
            .is_some_and(|word| word.starts_with("lost") || word.starts_with("status lost"));
        check!(lost, "the woken holder says {word:?}");
        check!(guard.is_held(), "the woken holder ended the next hold");
        helper.say("release")?;
        helper.hang_up();
        helper.wait()?;
        check!(
            guard.is_held() && case.count_contenders(&name).await?.holders == 1,
            "the release of the woken holder ended the next hold"
        );
        // A renewal would tell.
        let mut last = guard.remaining();
        case.in_time(case.ttl(), "the next hold is renewed", async {
            while guard.remaining() <= last {
                last = guard.remaining();
                case.look_again().await;
            }
        })
        .await?;
        check!(guard.is_held(), "the next hold was ended in the store");
        guard.release().await?;
        return Ok(());
    }
    case.pass(case.ttl() * 2).await;
    check!(
        lock.try_acquire().await?.is_none(),
        "taken from a paused holder"
    );
    helper.go_on()?;
    helper.say("status")?;
    let status = case
        .soon("the helper wakes up", helper.expect("status"))
        .await??;
    // Its renewals are overdue, and it may know that already.
    let holds = status.starts_with("held") || status.starts_with("at-risk");
    check!(holds, "the woken holder says {status}");
    helper.say("release")?;
    case.soon("the helper releases", helper.expect("released"))
        .await??;
    Ok(case.lease(&client, &name).await?.release().await?)
}

/// Rule 1: between processes, in both directions, with waiting.
pub(super) async fn processes_exclude_each_other(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("processes"));
    let holder = case.lease(&client, &name).await?;
    let mut one = LockHolder::start(&case, &name, &["--wait", "0s"])?;
    case.soon("the helper starts", one.expect("waiting"))
        .await??;
    case.soon("the helper finds it busy", one.expect("busy"))
        .await??;
    let mut two = LockHolder::start(&case, &name, &[])?;
    case.soon("the helper starts", two.expect("waiting"))
        .await??;
    case.until_waiting(&name, 1).await?;
    let token = holder.token().get();
    holder.release().await?;
    let held: u64 = case
        .soon("the helper's turn", two.expect("held"))
        .await??
        .parse()
        .map_err(Failure::new)?;
    check!(held > token, "{held} follows {token}");
    check!(
        client.lock(&name).try_acquire().await?.is_none(),
        "two hold it"
    );
    // It is broken from here, and told there.
    case.until_broken(&client, &name, held).await?;
    case.in_time(case.ttl(), "the other process is told", two.expect("lost"))
        .await??;
    Ok(case.lease(&client, &name).await?.release().await?)
}

/// Rule 18: `inspect` shows the process of the holder.
pub(super) async fn a_holder_in_another_process_is_visible(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("seen"));
    let mut helper = LockHolder::start(&case, &name, &["--label", "a helper"])?;
    let token = case.soon("the helper holds", helper.held()).await??;
    let status = client.inspect(&name).await?;
    let shown: Vec<_> = status
        .holds
        .iter()
        .map(|hold| {
            (
                hold.holder.pid,
                hold.holder.label.as_str(),
                hold.token.map(u64::from),
            )
        })
        .collect();
    check!(
        shown == [(helper.pid(), "a helper", Some(token))],
        "shown is {shown:?}"
    );
    helper.say("release")?;
    case.soon("the helper releases", helper.expect("released"))
        .await??;
    check!(
        !client.inspect(&name).await?.is_held(),
        "shown as held after the release"
    );
    Ok(())
}

/// Rule 5: with a store that has fallen silent the claim ends at the deadline, and stays over when the store is back.
pub(super) async fn lost_fires_by_the_deadline_of_a_silent_store(case: Arc<Case>) -> Verdict {
    let (client, other, name) = case.two_clients("silent").await?;
    let start = case.now();
    let guard = case.lease(&client, &name).await?;
    let token = guard.token().get();
    let lost = case.start(guard.lost()).await;
    case.pause_store().await?;
    let reason = case
        .in_time(case.ttl(), "the end of the claim", lost)
        .await??;
    let took = case.now().since(start);
    check!(
        reason == Some(LostReason::Expired),
        "lost because {reason:?}"
    );
    check!(
        !guard.is_held() && guard.remaining().is_zero(),
        "{:?} remain",
        guard.remaining()
    );
    let least = case.ttl().saturating_sub(case.margin());
    check!(took >= least, "gave up after {took:?} of {least:?}");
    case.resume_store().await?;
    case.pass(case.ttl()).await;
    check!(!guard.is_held(), "resurrected by a late answer");
    check!(
        guard.release().await.is_err(),
        "the release looks like success"
    );
    let lock = other.lock(&name).ttl(case.ttl());
    let limit = case.ttl() + GRACE;
    let next = case.acquire_within(limit, &lock).await??;
    expect_greater(&next, token)?;
    let counts = case.count_contenders(&name).await?;
    check!(counts.holders == 1, "after the next grant: {counts:?}");
    next.release().await?;
    case.acquire_and_release(&client, &name).await
}

/// Rule 12: a store that does not answer grants nothing, and a wait still ends in time.
pub(super) async fn a_silent_store_never_grants(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("mute"));
    case.pause_store().await?;
    let wait = case.ttl() / 4;
    let lock = client.lock(&name).ttl(case.ttl()).wait(wait);
    let answer = case
        .in_time(wait + GRACE, "the end of the wait", lock.acquire())
        .await?;
    let granted = answer.is_ok();
    case.resume_store().await?;
    check!(!granted, "granted by a store that does not answer");
    case.until_idle(&name).await?;
    // What was on its way to the silent store may be granted now, until it is given back at once.
    let lock = client.lock(&name).ttl(case.ttl());
    let next = case.acquire_within(case.ttl(), &lock).await??;
    Ok(next.release().await?)
}

/// Rule 12: a wait in which the store did not answer says so. No error says that a free name is held.
pub(super) async fn a_silent_store_is_not_called_busy(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("silence"));
    let other = case.name("silence-too");
    case.pause_store().await?;
    // Shorter than the limit of a request: the wait ends first.
    let wait = Duration::from_millis(200);
    let locks = [
        client.lock(&name),
        // This one waits behind the request of the first one.
        client.lock(&name),
        client.lock_all([&name, &other]),
        client.lock_any([&name, &other]),
    ];
    let mut waits = Vec::new();
    for lock in locks {
        let lock = lock.ttl(case.ttl()).wait(wait);
        waits.push(case.start_acquire(lock).await);
    }
    let mut answers = Vec::new();
    for waiting in waits {
        let ended = case.in_time(wait + GRACE, "the end of the wait", waiting);
        answers.push(ended.await);
    }
    case.resume_store().await?;
    for answer in answers {
        let Err(err) = answer?? else {
            return Err(Failure::new("granted by a store that does not answer"));
        };
        // A database that another process writes to still answers those who read: then nothing is held, and the error of
        // the wait behind the first request says that.
        let is_known_free =
            err.kind() == ErrorKind::WaitElapsed && !format!("{err:#}").contains("held");
        check!(
            err.kind() == ErrorKind::Unreachable || is_known_free,
            "{err:?} of a silent store"
        );
    }
    Ok(())
}

/// Rule 5: a broken connection does not end the lease: the hold goes on over another connection.
pub(super) async fn a_broken_connection_does_not_end_a_lease(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("cut"));
    let guard = case.lease(&client, &name).await?;
    for _ in 0..3 {
        case.break_connection().await?;
        case.pass(case.ttl()).await;
        check!(
            guard.is_held(),
            "lost by a cut connection: {:?}",
            guard.state()
        );
    }
    Ok(guard.release().await?)
}

/// Rule 5: whatever a cut connection means to the store, the client never believes more than is true, and
/// both of them recover.
pub(super) async fn a_broken_connection_is_noticed(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("cut-off").await?;
    let old = case.lease(&first, &name).await?;
    let lock = second.lock(&name).ttl(case.ttl());
    let waiting = case.start_acquire(lock).await;
    case.until_waiting(&name, 1).await?;
    case.break_connection().await?;
    case.pass(case.ttl()).await;
    // In this order: a holder that is granted the lock after the first look does not overlap with one that has lost it.
    let (is_over, is_held) = (waiting.is_finished(), old.is_held());
    if is_held {
        old.release().await?;
    } else {
        drop(old);
    }
    let limit = case.ttl() + GRACE;
    // The waiter may have been told that its request got lost; it must not hang, nor be in the way.
    let waited = case
        .in_time(limit, "the end of the wait", waiting)
        .await??;
    check!(
        !(is_held && is_over && waited.is_ok()),
        "both claim to hold it"
    );
    drop(waited);
    let lock = first.lock(&name).ttl(case.ttl());
    let next = case.acquire_within(limit, &lock).await??;
    Ok(next.release().await?)
}

/// Rule 7: a store that has forgotten everything takes its holds along; their holders are told, and the next
/// grants have greater tokens all the same.
pub(super) async fn a_wiped_store_is_noticed_and_tokens_grow(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("wiped").await?;
    let mut last = 0;
    for _ in 0..3 {
        let old = case.lease(&first, &name).await?;
        expect_greater(&old, last)?;
        case.wipe_store().await?;
        let lock = second.lock(&name).ttl(case.ttl());
        let limit = case.ttl() + GRACE;
        let next = case.acquire_within(limit, &lock).await??;
        expect_greater(&next, old.token().get())?;
        case.in_time(case.ttl(), "the loss is noticed", old.lost())
            .await?;
        let late = old.release().await.map_err(|err| err.is_lost());
        check!(late == Err(true), "the late release looks like success");
        check!(next.is_held(), "the late release ended the next hold");
        last = next.token().get();
        next.release().await?;
    }
    Ok(())
}

/// Rule 7a: after a restart of the store no client is granted a name that another one still claims, as far as the table
/// says so, and tokens go on growing unless it says otherwise.
pub(super) async fn a_restarted_store_keeps_its_promise(case: Arc<Case>) -> Verdict {
    let (first, name) = (case.client().await?, case.name("restart"));
    let guarantees = case.guarantees();
    let old = case.lease(&first, &name).await?;
    case.restart_store().await?;
    let second = case.client().await?;
    let lock = second.lock(&name).ttl(case.ttl()).wait(case.ttl() * 3);
    let limit = case.ttl() * 4 + GRACE;
    let answer = case.in_time(limit, "an answer", lock.acquire()).await?;
    let next = match answer {
        Ok(next) => {
            let overlap = old.is_held();
            check!(
                !overlap || !guarantees.survives(Fault::StoreRestart),
                "both claim to hold it"
            );
            drop(old);
            next
        }
        Err(_) => {
            check!(old.is_held(), "nobody holds it, and nobody is granted it");
            old.release().await?;
            let lock = second.lock(&name).ttl(case.ttl());
            case.acquire_within(limit, &lock).await??
        }
    };
    let first_token = next.token();
    next.release().await?;
    let again = case.lease(&first, &name).await?;
    check!(
        again.token() > first_token,
        "{} follows {first_token}",
        again.token()
    );
    Ok(again.release().await?)
}
