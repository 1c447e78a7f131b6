//! Rules 18 to 20: who holds, what errors say, and what is refused.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::error::Step;
use crate::guarantees::Order;
use crate::{Error, ErrorKind, Lock, Mode, Renew};

use super::case::{Case, expect_error};
use super::failure::{Failure, Verdict, check};

/// Rule 18: host, process, label, client, since when, under which number, for how long.
pub(super) async fn the_holder_is_visible(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("who").await?;
    let before = SystemTime::now();
    let guard = first
        .lock(&name)
        .ttl(case.long())
        .label("nightly ü")
        .acquire()
        .await?;
    let lock = second.lock(&name).ttl(case.long()).label("the waiter");
    let waiting = case
        .start(async move { lock.acquire().await?.release().await })
        .await;
    case.until_waiting(&name, 1).await?;
    let status = second.inspect(&name).await?;
    let [hold] = status.holds.as_slice() else {
        return Err(Failure::new(format_args!(
            "{} holds: {status:?}",
            status.holds.len()
        )));
    };
    let holder = &hold.holder;
    check!(!holder.host.is_empty(), "no host");
    check!(holder.pid == std::process::id(), "pid {}", holder.pid);
    check!(holder.label == "nightly ü", "label {:?}", holder.label);
    check!(!holder.client.is_empty(), "no client");
    check!(hold.mode == Mode::Exclusive, "mode {}", hold.mode);
    check!(hold.token == Some(guard.token()), "token {:?}", hold.token);
    check!(
        hold.ttl_left.is_some() == case.harness().leases(),
        "{:?} left of a lease",
        hold.ttl_left
    );
    check!(
        hold.ttl_left.is_none_or(|left| left <= case.long()),
        "{:?} left",
        hold.ttl_left
    );
    // A minute for stores whose clock is not ours.
    let minute = Duration::from_secs(60);
    let since = holder
        .since
        .map(|since| since + minute >= before && since <= SystemTime::now() + minute);
    check!(since == Some(true), "since {:?}", holder.since);
    if let Some(queue) = &status.queue {
        let labels: Vec<_> = queue.iter().map(|waiter| waiter.label.as_str()).collect();
        check!(labels == ["the waiter"], "the queue is {labels:?}");
    }
    guard.release().await?;
    case.soon("the waiter's turn", waiting).await???;
    let free = second.inspect(&name).await?;
    check!(
        free.holds.is_empty(),
        "shown as held after the release: {free:?}"
    );
    Ok(())
}

/// Rule 18: two clients of one process have different ids, and the holds of one client have the same id.
pub(super) async fn each_client_has_its_own_id(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let mut ids = Vec::new();
    for (client, tail) in [(&first, "a"), (&first, "b"), (&second, "c")] {
        let name = case.name(tail);
        let guard = case.take(client, &name).await?;
        let status = first.inspect(&name).await?;
        ids.extend(status.holds.into_iter().map(|hold| hold.holder.client));
        guard.release().await?;
    }
    check!(
        ids.len() == 3 && ids[0] == ids[1] && ids[1] != ids[2],
        "client ids {ids:?}"
    );
    Ok(())
}

/// Rule 18: `list` shows the names that are held, in order, and no others.
pub(super) async fn list_shows_what_is_held(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let prefix = format!("{}/", case.id());
    let mut guards = Vec::new();
    for tail in ["c", "a", "b/d", "b"] {
        let name = format!("{prefix}{tail}");
        case.note(&name);
        guards.push(case.take(&first, &name).await?);
    }
    guards
        .pop()
        .ok_or(Failure::new("nothing held"))?
        .release()
        .await?;
    let expected = ["a", "b/d", "c"].map(|tail| format!("{prefix}{tail}"));
    let listed = case
        .list_with(&second, &prefix, &expected.each_ref().map(String::as_str))
        .await?;
    let names: Vec<_> = listed
        .iter()
        .filter_map(|status| status.name.as_str().strip_prefix(&prefix))
        .collect();
    check!(names == ["a", "b/d", "c"], "listed are {names:?}");
    for (status, guard) in listed.iter().zip([&guards[1], &guards[2], &guards[0]]) {
        let tokens: Vec<_> = status.holds.iter().map(|hold| hold.token).collect();
        check!(
            tokens == [Some(guard.token())],
            "{}: tokens {tokens:?}",
            status.name
        );
    }
    check!(
        second.list(format!("{prefix}x")).await?.is_empty(),
        "something begins with x"
    );
    for guard in guards {
        guard.release().await?;
    }
    let left = second.list(&prefix).await?;
    check!(left.is_empty(), "still listed after the release: {left:?}");
    Ok(())
}

/// Rule 19: an error names the lock, the store and the step, in one line.
pub(super) async fn errors_say_what_and_where(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("error").await?;
    let store = case.guarantees().scheme;
    let guard = case.lease(&first, &name).await?;
    let busy = second
        .lock(&name)
        .ttl(case.ttl())
        .wait(Duration::ZERO)
        .acquire()
        .await;
    describes(
        busy.map(drop),
        ErrorKind::WaitElapsed,
        &name,
        store,
        Step::Acquire,
    )?;
    check!(
        second.break_lock(&name, guard.token()).await?,
        "nothing to break"
    );
    case.in_time(case.ttl(), "the loss is noticed", guard.lost())
        .await?;
    describes(
        guard.release().await,
        ErrorKind::Lost,
        &name,
        store,
        Step::Release,
    )
}

fn describes(
    outcome: Result<(), Error>,
    kind: ErrorKind,
    name: &str,
    store: &str,
    step: Step,
) -> Verdict {
    let Err(err) = outcome else {
        return Err(Failure::new(format_args!(
            "no error, where {kind:?} was due"
        )));
    };
    check!(err.kind() == kind, "{err:?} instead of {kind:?}");
    check!(
        err.name().is_some_and(|it| it.as_str() == name),
        "{err:?} names another lock"
    );
    check!(err.scheme() == Some(store), "{err:?} names another store");
    check!(err.step() == Some(step), "{err:?} names another step");
    let text = format!("{err:#}");
    check!(text.contains(name), "\"{text}\" does not name the lock");
    check!(
        text.lines().count() == 1,
        "\"{text}\" has more than one line"
    );
    Ok(())
}

/// Rule 19: no error, however it came about, repeats the password of the URL.
pub(super) async fn no_error_holds_the_password(case: Arc<Case>) -> Verdict {
    let (Some(secret), Some(url)) = (case.harness().secret(), case.harness().url()) else {
        return Err(Failure::new("this harness has no secret"));
    };
    let client = case.client().await?;
    let mut errors = vec![client.lock("").acquire().await.err()];
    for wrong in [
        url.replacen(':', "", 1),
        format!("x{url}"),
        format!("{url}?nonsense=1"),
        format!("{url}%zz"),
        url.replacen(&secret, &format!("{secret}/@:%"), 1),
        url.replacen(&secret, &format!("{secret}wrong"), 1),
    ] {
        let Some(connected) = case.harness().connect(wrong) else {
            return Err(Failure::new("this harness connects to no URL"));
        };
        errors.push(connected.await.err());
    }
    for err in errors.into_iter().flatten() {
        let text = format!("{err:#} {err:?}");
        check!(!text.contains(&secret), "the password is in an error");
    }
    let debug = format!(
        "{client:?} {:?} {:?}",
        client.lock("x"),
        client.guarantees()
    );
    check!(
        !debug.contains(&secret),
        "the password is in a Debug output"
    );
    Ok(())
}

/// Rule 20: wrong names and options are refused without a request, by every way to acquire.
pub(super) async fn what_is_wrong_is_refused_before_any_request(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("wrong"));
    let before = case.harness().requests();
    for lock in [
        client.lock(""),
        client.lock("x".repeat(1_001)),
        client.lock("é".repeat(501)),
        client.lock(&name).ttl(Duration::ZERO),
        client.lock(&name).ttl(Duration::MAX),
        client.lock(&name).ttl(Duration::from_millis(19)),
        client.lock(&name).max_hold(Duration::ZERO),
        client.lock(&name).permits(0),
        client.lock(&name).label("l".repeat(201)),
        client.lock_all([""; 0]),
        client.lock_all([name.as_str(), ""]),
        client.lock_any([""; 0]),
        client.lock_any(["", name.as_str()]),
        client.lock("group").k_of([name.as_str()], 0),
        client.lock("group").k_of([name.as_str()], 2),
        client.lock("group").k_of([&name, &name], 1),
    ] {
        refused(&lock, ErrorKind::Invalid).await?;
    }
    expect_error(client.inspect("").await, ErrorKind::Invalid)?;
    expect_error(client.break_lock("", 1u64).await, ErrorKind::Invalid)?;
    let after = case.harness().requests();
    check!(before == after, "{before:?} requests became {after:?}");
    // The bounds themselves are fine.
    for lock in [
        client.lock(&name).ttl(Duration::from_secs(30 * 24 * 3600)),
        client
            .lock(&name)
            .renew(Renew::Never)
            .label("l".repeat(200)),
        client.lock(&name).max_hold(Duration::MAX),
    ] {
        lock.acquire().await?.release().await?;
    }
    Ok(())
}

async fn refused(lock: &Lock, expected: ErrorKind) -> Verdict {
    let acquire = lock.acquire().await.map(drop);
    let tried = lock.try_acquire().await.map(drop);
    let run = lock.run(async |_| ()).await;
    for outcome in [acquire, tried, run] {
        let Err(err) = outcome else {
            return Err(Failure::new(format_args!(
                "{expected:?} was due for {lock:?}"
            )));
        };
        check!(
            err.kind() == expected,
            "{err:?} instead of {expected:?} for {lock:?}"
        );
    }
    Ok(())
}

/// Rule 20: what the store does not support is refused without a request, and the error names a store that supports it.
pub(super) async fn what_is_unsupported_is_refused_before_any_request(case: Arc<Case>) -> Verdict {
    let (client, name, can) = (case.client().await?, case.name("cannot"), case.guarantees());
    let before = case.harness().requests();
    let mut cannot = Vec::new();
    if !can.shared {
        cannot.push(client.lock(&name).shared());
    }
    if !can.permits {
        cannot.push(client.lock(&name).permits(2));
    }
    if !can.min_hold {
        cannot.push(client.lock(&name).min_hold(Duration::from_secs(1)));
    }
    if !can.lock_delay {
        cannot.push(client.lock(&name).lock_delay(Duration::from_secs(1)));
    }
    if can.order != Order::Fair {
        cannot.push(client.lock(&name).fair(true));
    }
    if can.upgradable && !can.upgradable_in_turn {
        cannot.push(client.lock(&name).upgradable().fair(true));
    }
    check!(!cannot.is_empty(), "nothing is unsupported");
    for lock in cannot {
        refused(&lock, ErrorKind::Unsupported).await?;
        let text = lock.acquire().await.err().map(|err| format!("{err:#}"));
        let names_one = text.as_ref().is_some_and(|text| text.contains("memory"));
        check!(names_one, "{text:?} names no store that can");
    }
    let after = case.harness().requests();
    check!(before == after, "{before:?} requests became {after:?}");
    Ok(())
}

/// Rule 19: after `close`, each request fails because the client is closed, and its former holds are free.
pub(super) async fn a_closed_client_says_so(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("closed").await?;
    let guard = case.lease(&first, &name).await?;
    case.soon("the client closes", first.close()).await?;
    case.soon("a second close", first.close()).await?;
    for name in [&name, &case.name("closed-free")] {
        let waits = first.lock(name).acquire().await.map(drop);
        let tries = first.lock(name).try_acquire().await.map(drop);
        let run = first.lock(name).run(async |_| ()).await;
        for outcome in [waits, tries, run] {
            expect_error(outcome, ErrorKind::Closed)?;
        }
    }
    for outcome in [
        first.ping().await,
        first.inspect(&name).await.map(drop),
        first.list("").await.map(drop),
        first.break_lock(&name, guard.token()).await.map(drop),
        first.check().await.map(drop),
        first.init().await.map(drop),
    ] {
        expect_error(outcome, ErrorKind::Closed)?;
    }
    drop(guard);
    let lock = second.lock(&name).ttl(case.ttl());
    let limit = case.ttl() + Duration::from_secs(1);
    let next = case.acquire_within(limit, &lock).await??;
    Ok(next.release().await?)
}
