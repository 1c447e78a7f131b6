//! `lock_all`, `lock_any` and `k_of`: rules 1, 5, 8, 12 and 15 for several names at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::error::Step;
use crate::{ErrorKind, Guard, Lock};

use super::case::{Case, SOON, expect_error};
use super::failure::{Failure, Verdict, check};
use super::harness::RequestFault;

/// Rule 1: every name or none, each with a token, a name given twice counted once.
pub(super) async fn lock_all_is_all_or_none(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let [a, b, c] = ["a", "b", "c"].map(|tail| case.name(tail));
    let all = first.lock_all([&c, &a, &b, &a]).ttl(case.long());
    let guard = all.acquire().await?;
    let held: Vec<_> = guard.tokens().map(|(name, _)| name.as_str()).collect();
    check!(held == [&a, &b, &c], "held are {held:?}");
    for name in [&a, &b, &c] {
        check!(
            second.lock(name).try_acquire().await?.is_none(),
            "two hold {name}"
        );
    }
    guard.release().await?;
    for busy in [&a, &b, &c] {
        let one = case.take(&second, busy).await?;
        check!(
            all.try_acquire().await?.is_none(),
            "all, though {busy} is taken"
        );
        for name in [&a, &b, &c] {
            let held = case.count_contenders(name).await?.holders == 1;
            check!(
                held == (name == busy),
                "{name} was kept by a failed attempt"
            );
        }
        one.release().await?;
    }
    if case.guarantees().shared {
        let reader = second.lock(&b).ttl(case.long()).shared().acquire().await?;
        check!(all.try_acquire().await?.is_none(), "all beside a reader");
        reader.release().await?;
    }
    Ok(all.acquire().await?.release().await?)
}

/// Rule 15: a name that the caller never got does not stay taken for `min_hold`.
pub(super) async fn names_that_are_given_back_are_not_reserved(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (a, b) = (case.name("a"), case.name("b"));
    let busy = case.take(&second, &b).await?;
    let all = first.lock_all([&a, &b]).ttl(case.long());
    let all = all.min_hold(case.long());
    check!(all.try_acquire().await?.is_none(), "two hold b");
    case.acquire_and_release(&second, &a).await?;
    case.wait_in_vain(all, case.ttl() / 4).await?;
    case.acquire_and_release(&second, &a).await?;
    Ok(busy.release().await?)
}

/// Rule 1: clients that name the same locks in different orders do not wait for each other in a circle.
pub(super) async fn lock_all_in_any_order_does_not_deadlock(case: Arc<Case>) -> Verdict {
    let names = ["x", "y", "z"].map(|tail| case.name(tail));
    let mut players = Vec::new();
    for turn in 0..3 {
        let client = case.client().await?;
        let mut names = names.clone();
        names.rotate_left(turn);
        let lock = client.lock_all(names).ttl(case.ttl() * 100);
        players.push(tokio::spawn(async move {
            for _ in 0..20 {
                let guard = lock.acquire().await?;
                tokio::task::yield_now().await;
                guard.release().await?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for player in players {
        case.soon("every player gets through", player).await???;
    }
    Ok(())
}

/// Rule 5: a guard of several names is lost when one of them is.
pub(super) async fn lock_all_is_lost_when_one_is(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (a, b) = (case.name("a"), case.name("b"));
    let guard = first.lock_all([&a, &b]).ttl(case.ttl()).acquire().await?;
    let token = guard.tokens().nth(1).map(|(_, token)| token);
    let token = token.ok_or(Failure::new("one token for two names"))?;
    check!(second.break_lock(&b, token).await?, "nothing to break");
    case.in_time(case.ttl(), "the loss is noticed", guard.lost())
        .await?;
    check!(!guard.is_held(), "still claimed");
    expect_error(guard.release().await, ErrorKind::Lost)?;
    // The other name was released all the same.
    Ok(case.lease(&second, &a).await?.release().await?)
}

/// Rule 3: `lock_all` fails if one of its locks is lost while it waits for the others.
pub(super) async fn lock_all_notices_a_loss_while_it_waits(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (a, b) = (case.name("a"), case.name("b"));
    let busy = case.lease(&second, &b).await?;
    let all = first.lock_all([&a, &b]).ttl(case.ttl());
    let waiting = case
        .start(async move { all.acquire().await.map(drop) })
        .await;
    case.until_held(&a).await?;
    case.until_waiting(&b, 1).await?;
    let held = second.inspect(&a).await?;
    let token = held.holds.first().and_then(|hold| hold.token);
    let token = token.ok_or(Failure::new("the first name is not held meanwhile"))?;
    check!(second.break_lock(&a, token).await?, "nothing to break");
    // Time for a renewal, by which the loss is noticed at the latest.
    case.pass(case.ttl()).await;
    busy.release().await?;
    let outcome = case.soon("an answer", waiting).await??;
    expect_error(outcome, ErrorKind::Lost)?;
    Ok(())
}

/// Rule 12: there is one `wait` for all names together, and at its end no lock is kept.
pub(super) async fn lock_all_keeps_one_wait_for_all(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (a, b) = (case.name("a"), case.name("b"));
    let busy = case.take(&second, &b).await?;
    let lock = first.lock_all([&a, &b]).ttl(case.long());
    let begin = Instant::now();
    loop {
        let err = case.wait_in_vain(lock.clone(), case.ttl() / 4).await?;
        if err.name().is_some_and(|name| name.as_str() == b) {
            break;
        }
        // On a busy machine the wait may be over before `a` is held.
        check!(begin.elapsed() <= SOON, "{err:?} names another lock");
    }
    case.until_idle(&a).await?;
    case.until_nobody_waits(&b).await?;
    Ok(busy.release().await?)
}

/// Rule 15: a cancelled `lock_all` releases the locks that it had.
pub(super) async fn a_dropped_lock_all_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (a, b) = (case.name("a"), case.name("b"));
    let busy = case.take(&second, &b).await?;
    let lock = first.lock_all([&a, &b]).ttl(case.long());
    let waiting = case.start_acquire(lock).await;
    case.until_held(&a).await?;
    case.until_waiting(&b, 1).await?;
    waiting.abort();
    let _ = waiting.await;
    case.until_idle(&a).await?;
    case.until_nobody_waits(&b).await?;
    busy.release().await?;
    first
        .lock_all([&a, &b])
        .ttl(case.long())
        .acquire()
        .await?
        .release()
        .await?;
    Ok(())
}

/// Rule 1: one of the names, and a free one if there is one.
pub(super) async fn lock_any_takes_whichever_is_free(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let any = first.lock_any(&names).ttl(case.ttl() * 10);
    let mut guards = Vec::new();
    for _ in &names {
        guards.push(
            any.try_acquire()
                .await?
                .ok_or(Failure::new("a free name was not taken"))?,
        );
    }
    let mut held: Vec<_> = guards.iter().map(|guard| guard.name().as_str()).collect();
    held.sort_unstable();
    check!(held == names, "held are {held:?}");
    let theirs = second.lock_any(&names);
    check!(
        theirs.try_acquire().await?.is_none(),
        "four hold three names"
    );
    expect_error(
        theirs.wait(Duration::ZERO).acquire().await,
        ErrorKind::WaitElapsed,
    )?;
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

/// Rule 8: `lock_any` waits for all names at once, takes the first that is free, and leaves the other queues.
pub(super) async fn lock_any_waits_for_whichever_comes_first(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let mut busy = Vec::new();
    for name in &names {
        busy.push(case.take(&first, name).await?);
    }
    let any = second.lock_any(&names).ttl(case.long());
    let waiting = case.start(async move { any.acquire().await }).await;
    for name in &names {
        case.until_waiting(name, 1).await?;
    }
    busy.remove(1).release().await?;
    let guard = case
        .soon("the turn of whoever waits for any", waiting)
        .await???;
    check!(
        guard.name().as_str() == names[1],
        "it took {}",
        guard.name()
    );
    case.until_nobody_waits(&names[0]).await?;
    case.until_nobody_waits(&names[2]).await?;
    for held in busy {
        check!(held.is_held(), "{} was lost", held.name());
        held.release().await?;
    }
    Ok(guard.release().await?)
}

/// Rule 15: a cancelled `lock_any` leaves no entry in any queue.
pub(super) async fn a_dropped_lock_any_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let names = ["a", "b"].map(|tail| case.name(tail));
    let busy = first.lock_all(&names).ttl(case.long()).acquire().await?;
    let any = second.lock_any(&names).ttl(case.long());
    let waiting = case
        .start(async move { any.acquire().await.map(drop) })
        .await;
    for name in &names {
        case.until_waiting(name, 1).await?;
    }
    waiting.abort();
    let _ = waiting.await;
    for name in &names {
        case.until_nobody_waits(name).await?;
    }
    busy.release().await?;
    for name in &names {
        // A try could come before the client has heard that its own place is gone.
        let free = second.lock(name).ttl(case.long());
        let guard = case.soon("a free name", free.acquire()).await??;
        guard.release().await?;
    }
    Ok(())
}

/// How many hold each of the names.
struct Holders {
    names: Vec<String>,
    counts: Vec<AtomicU32>,
}

impl Holders {
    fn new(names: &[String]) -> Arc<Self> {
        Arc::new(Self {
            names: names.to_vec(),
            counts: names.iter().map(|_| AtomicU32::new(0)).collect(),
        })
    }

    fn of<'a>(&'a self, guard: &'a Guard) -> impl Iterator<Item = &'a AtomicU32> {
        let position = |name: &str| self.names.iter().position(|it| it == name);
        let held = guard
            .names()
            .filter_map(move |name| position(name.as_str()));
        held.map(|at| &self.counts[at])
    }

    /// Holds the lock for a moment, and fails if another task holds one of the names at the same time.
    async fn hold_for_a_moment(&self, guard: Guard) -> Verdict {
        for count in self.of(&guard) {
            let others = count.fetch_add(1, Ordering::SeqCst);
            check!(others == 0, "two hold one name");
        }
        tokio::task::yield_now().await;
        for count in self.of(&guard) {
            count.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(guard.release().await?)
    }
}

/// Lets each of the locks be acquired again and again at the same time.
async fn compete(case: &Case, locks: Vec<Lock>, names: &[String], rounds: u32) -> Verdict {
    let holders = Holders::new(names);
    let mut players = Vec::new();
    for lock in locks {
        let holders = holders.clone();
        players.push(tokio::spawn(async move {
            for _ in 0..rounds {
                holders.hold_for_a_moment(lock.acquire().await?).await?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for player in players {
        case.soon("every player gets through", player).await???;
    }
    Ok(())
}

/// Rule 1: a client that takes free names with one request, and clients that wait for a name, exclude each other on
/// every name, and each gets on.
pub(super) async fn lock_all_at_once_and_one_by_one_exclude_each_other(case: Arc<Case>) -> Verdict {
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let mut locks = Vec::new();
    for player in 0..5 {
        let client = case.client().await?;
        let lock = match player {
            0 => client.lock(&names[1]),
            4 => client.lock("group").k_of(&names, 2),
            1 => client.lock_all(&names[..2]),
            2 => client.lock_all(&names[1..]),
            _ => client.lock_all(&names),
        };
        locks.push(lock.ttl(case.long()));
    }
    compete(&case, locks, &names, 15).await
}

/// Rule 10: a client that waits for one of the names is served before a client that asks for all of them later.
pub(super) async fn lock_all_does_not_overtake_a_waiter(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let third = case.client().await?;
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let held = case.take(&first, &names[1]).await?;
    let lock = second.lock(&names[1]).ttl(case.long());
    let waiting = case.start_acquire(lock).await;
    case.until_waiting(&names[1], 1).await?;
    let all = third.lock_all(&names).ttl(case.long());
    check!(
        all.try_acquire().await?.is_none(),
        "all, though one is held"
    );
    let all = case.start_acquire(all).await;
    case.until_held(&names[0]).await?;
    case.until_waiting(&names[1], 2).await?;
    held.release().await?;
    let next = case.soon("the waiter's turn", waiting).await???;
    check!(!all.is_finished(), "two hold one name");
    next.release().await?;
    let guard = case.soon("all names are free", all).await???;
    Ok(guard.release().await?)
}

/// Rule 15: when the answer to the request for several names is lost, no name stays behind.
pub(super) async fn lock_all_without_an_answer_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let all = first.lock_all(&names).ttl(case.long());
    // Whatever the store does at the first use is done.
    all.acquire().await?.release().await?;
    case.disturb(Step::Acquire, RequestFault::ReplyLost).await?;
    let outcome = all.try_acquire().await;
    if let Ok(Some(guard)) = outcome {
        // The store asked again, and found out.
        guard.release().await?;
    }
    for name in &names {
        case.until_idle(name).await?;
    }
    let all = second.lock_all(&names).ttl(case.long());
    let guard = case.soon("the names are free", all.acquire()).await??;
    Ok(guard.release().await?)
}

/// Rule 1: `k` of the names or none of them, each with a token.
pub(super) async fn k_of_takes_k_names_or_none(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let two = first.lock("group").k_of(&names, 2).ttl(case.long());
    let guard = two.acquire().await?;
    let held: Vec<_> = guard.names().map(|name| name.as_str().to_owned()).collect();
    check!(held.len() == 2 && held.is_sorted(), "held are {held:?}");
    check!(guard.tokens().count() == 2, "each name has a token");
    let group = first.inspect("group").await?;
    check!(!group.is_held(), "the group is a lock");
    let theirs = second.lock("group").k_of(&names, 2).ttl(case.long());
    check!(theirs.try_acquire().await?.is_none(), "four of three names");
    for name in &names {
        let is_held = case.count_contenders(name).await?.holders == 1;
        check!(is_held == held.contains(name), "{name} was kept or lost");
    }
    let rest = second.lock("group").k_of(&names, 1).ttl(case.long());
    let rest = rest.try_acquire().await?;
    let rest = rest.ok_or(Failure::new("a free name was not taken"))?;
    check!(
        !held.contains(&rest.name().as_str().to_owned()),
        "two hold {}",
        rest.name()
    );
    rest.release().await?;
    guard.release().await?;
    Ok(theirs.acquire().await?.release().await?)
}

/// Rule 8: the acquisition ends as soon as `k` names are free, whichever these are.
pub(super) async fn k_of_waits_until_k_names_are_free(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let names = ["a", "b", "c", "d"].map(|tail| case.name(tail));
    for freed in [[0, 2], [3, 1], [2, 3]] {
        let mut busy = Vec::new();
        for name in &names {
            // A request of the round before may still be on its way to the queue, and leaves it then.
            let lock = first.lock(name).ttl(case.long());
            busy.push(Some(case.soon("a free name", lock.acquire()).await??));
        }
        let two = second.lock("group").k_of(&names, 2).ttl(case.long());
        let waiting = case.start_acquire(two).await;
        // The client waits for these names whatever it has.
        case.until_waiting(&names[0], 1).await?;
        for at in freed {
            check!(!waiting.is_finished(), "two names are not free");
            if let Some(guard) = busy[at].take() {
                guard.release().await?;
            }
        }
        let guard = case.soon("two names are free", waiting).await???;
        let held: Vec<_> = guard.names().map(|name| name.as_str()).collect();
        for at in freed {
            check!(held.contains(&&*names[at]), "held are {held:?}");
        }
        guard.release().await?;
        for guard in busy.into_iter().flatten() {
            guard.release().await?;
        }
        // The client leaves the queues of the names that it does without in the background.
        for name in &names {
            case.until_idle(name).await?;
        }
    }
    Ok(())
}

/// Rule 1: clients that take some of the same names get on, whatever numbers they want of them.
pub(super) async fn k_of_in_many_clients_does_not_deadlock(case: Arc<Case>) -> Verdict {
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let mut locks = Vec::new();
    for player in 0..4 {
        let client = case.client().await?;
        let mut rotated = names.clone();
        rotated.rotate_left(player % 3);
        let lock = client.lock("group").k_of(rotated, 1 + player % 3);
        locks.push(lock.ttl(case.long()));
    }
    compete(&case, locks, &names, 10).await
}

/// Rule 8: names that a client has, and cannot use while the others stay taken, come to the waiters behind it. Without an
/// order of waiters the client may take the name again before a waiter asks.
pub(super) async fn k_of_does_not_block_others_with_what_it_cannot_use(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let third = case.client().await?;
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let busy = first
        .lock_all(&names[1..])
        .ttl(case.long())
        .acquire()
        .await?;
    let two = second.lock("group").k_of(&names, 2).ttl(case.long());
    let waiting = case.start_acquire(two).await;
    case.until_counts(&names[0], "the free name is taken", |it| it.holders == 1)
        .await?;
    let other = third.lock(&names[0]).ttl(case.long());
    let limit = Duration::from_secs(5);
    let guard = case.acquire_within(limit, &other).await??;
    guard.release().await?;
    check!(!waiting.is_finished(), "two of one name");
    busy.release().await?;
    let guard = case.soon("all names are free", waiting).await???;
    Ok(guard.release().await?)
}

/// Rule 15: a cancelled `k_of` releases what it had, and leaves the queues.
pub(super) async fn a_dropped_k_of_leaves_nothing(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let names = ["a", "b", "c"].map(|tail| case.name(tail));
    let busy = first
        .lock_all(&names[1..])
        .ttl(case.long())
        .acquire()
        .await?;
    let two = second.lock("group").k_of(&names, 2).ttl(case.long());
    let waiting = case.start_acquire(two).await;
    case.until_counts(&names[0], "the free name is taken", |it| it.holders == 1)
        .await?;
    waiting.abort();
    let _ = waiting.await;
    case.until_idle(&names[0]).await?;
    for name in &names[1..] {
        case.until_nobody_waits(name).await?;
    }
    busy.release().await?;
    let all = first.lock_all(&names).ttl(case.long());
    let guard = case.soon("the names are free", all.acquire()).await??;
    Ok(guard.release().await?)
}
