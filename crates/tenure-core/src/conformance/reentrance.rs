//! Rule 21: who may enter again.

use std::sync::Arc;
use std::time::Duration;

use crate::{ErrorKind, Owner};

use super::case::{Case, expect_error};
use super::failure::{Failure, Verdict, check};

/// Rule 21: a second acquisition by the same client, task or thread finds the lock busy.
pub(super) async fn a_lock_is_not_reentrant_by_default(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("plain"));
    let guard = case.take(&client, &name).await?;
    let again = client.lock(&name).ttl(case.long());
    check!(
        again.try_acquire().await?.is_none(),
        "entered again without an owner"
    );
    check!(
        again.clone().try_acquire().await?.is_none(),
        "a clone entered again"
    );
    expect_error(
        again.wait(Duration::ZERO).acquire().await,
        ErrorKind::WaitElapsed,
    )?;
    Ok(guard.release().await?)
}

/// Rule 21: all entries of an owner share one hold, which ends with the last entry, in whichever order they end.
pub(super) async fn an_owner_enters_again_and_the_last_exit_releases(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("owner").await?;
    let owner = Owner::new();
    let lock = first.lock(&name).ttl(case.long()).owner(&owner);
    for order in [[0, 0, 0], [2, 1, 0], [1, 0, 0]] {
        let mut guards = vec![lock.acquire().await?, lock.acquire().await?];
        guards.push(
            lock.try_acquire()
                .await?
                .ok_or(Failure::new("not entered again"))?,
        );
        check!(
            guards
                .iter()
                .all(|guard| guard.token() == guards[0].token()),
            "entries of one hold have tokens of their own"
        );
        for (left, at) in (0..3).rev().zip(order) {
            check!(
                second.lock(&name).try_acquire().await?.is_none(),
                "two owners hold it"
            );
            let guard = guards.remove(at);
            if left == 1 {
                drop(guard);
            } else {
                guard.release().await?;
            }
        }
        case.acquire_and_release(&second, &name).await?;
    }
    Ok(())
}

/// Rule 21: entries are counted in the client, so a second entry sends no request.
pub(super) async fn entering_again_costs_no_request(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("cheap"));
    let owner = Owner::new();
    let lock = client.lock(&name).ttl(case.long()).owner(&owner);
    let outer = lock.acquire().await?;
    let before = case.harness().requests();
    for _ in 0..10 {
        let inner = lock.acquire().await?;
        drop(
            lock.try_acquire()
                .await?
                .ok_or(Failure::new("not entered again"))?,
        );
        inner.release().await?;
    }
    let after = case.harness().requests();
    check!(before == after, "{before:?} requests became {after:?}");
    Ok(outer.release().await?)
}

/// Rule 21: another owner is another holder, even in the same task.
pub(super) async fn two_owners_exclude_each_other(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("two"));
    let (one, two) = (Owner::new(), Owner::new());
    let guard = client
        .lock(&name)
        .ttl(case.long())
        .owner(&one)
        .acquire()
        .await?;
    let tried = client.lock(&name).owner(&two).try_acquire().await?;
    check!(tried.is_none(), "another owner entered");
    let other = case.client().await?;
    let tried = other.lock(&name).owner(&one).try_acquire().await?;
    check!(
        tried.is_none(),
        "the same owner entered through another client"
    );
    guard.release().await?;
    let guard = client
        .lock(&name)
        .ttl(case.long())
        .owner(&two)
        .acquire()
        .await?;
    Ok(guard.release().await?)
}

/// Rule 21: `Owner::scope` needs no argument, and a task that is spawned inside is outside of the scope.
pub(super) async fn a_scope_is_an_owner_and_a_spawned_task_is_outside(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("scope"));
    Owner::scope(async {
        let outer = client.lock(&name).ttl(case.long()).acquire().await?;
        let inner = client.lock(&name).try_acquire().await?;
        let inner = inner.ok_or(Failure::new("not entered again inside the scope"))?;
        let nested = Owner::scope(async { client.lock(&name).try_acquire().await }).await?;
        check!(nested.is_some(), "not entered again inside an inner scope");
        let lock = client.lock(&name);
        let spawned = tokio::spawn(async move { lock.try_acquire().await.map(|it| it.is_some()) });
        check!(!spawned.await??, "a spawned task entered");
        let (lock, owner) = (client.lock(&name), Owner::current());
        let owner = owner.ok_or(Failure::new("no owner inside the scope"))?;
        let given = tokio::spawn(async move {
            let tried = owner.enter_scope(lock.try_acquire()).await;
            tried.map(|it| it.is_some())
        });
        check!(given.await??, "a spawned task with the owner did not enter");
        drop((inner, nested));
        outer.release().await?;
        Ok(())
    })
    .await?;
    check!(Owner::current().is_none(), "the scope goes on");
    Ok(case.take(&client, &name).await?.release().await?)
}

/// Rule 21: tasks that come at the same time with one owner make one acquisition and share its hold.
pub(super) async fn tasks_of_one_owner_share_one_hold(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("tasks").await?;
    let holder = case.take(&second, &name).await?;
    let owner = Owner::new();
    let mut waiting = Vec::new();
    for _ in 0..20 {
        let lock = first.lock(&name).ttl(case.long()).owner(&owner);
        waiting.push(case.start_acquire(lock).await);
    }
    // One of those who wait in front of the others gives up.
    waiting.remove(0).abort();
    holder.release().await?;
    let mut guards = Vec::new();
    for task in waiting {
        guards.push(
            case.soon("every task of the owner enters", task)
                .await???,
        );
    }
    let token = guards[0].token();
    check!(
        guards.iter().all(|guard| guard.token() == token),
        "there are several holds"
    );
    while let Some(guard) = guards.pop() {
        check!(
            second.lock(&name).try_acquire().await?.is_none(),
            "two owners hold it"
        );
        guard.release().await?;
    }
    case.acquire_and_release(&second, &name).await
}

/// Rule 21: inside `run` the lock may be entered again, and nothing else becomes re-entrant.
pub(super) async fn a_run_may_be_nested(case: Arc<Case>) -> Verdict {
    let (client, name, other) = (case.client().await?, case.name("outer"), case.name("other"));
    let (outer_lock, inner_lock) = (client.lock(&name).ttl(case.long()), client.lock(&name));
    let run = outer_lock.run(async |outer| {
        let inner = inner_lock.run(async |inner| inner.token() == outer.token());
        check!(inner.await?, "the inner run has a hold of its own");
        client.lock_all([&name, &other]).run(async |_| ()).await?;
        let held = case.take(&client, &other).await?;
        let tried = client.lock(&other).try_acquire().await?;
        check!(tried.is_none(), "another name became re-entrant");
        held.release().await?;
        Ok(())
    });
    run.await??;
    let guard = case.take(&client, &name).await?;
    check!(
        client.lock(&name).try_acquire().await?.is_none(),
        "re-entrant after the run"
    );
    Ok(guard.release().await?)
}

/// Rule 21: an owner whose hold was lost must notice, not carry on.
pub(super) async fn a_lost_hold_is_not_entered_again(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("lost").await?;
    let owner = Owner::new();
    let lock = first.lock(&name).ttl(case.ttl()).owner(&owner);
    let guard = lock.acquire().await?;
    check!(
        second.break_lock(&name, guard.token()).await?,
        "nothing to break"
    );
    case.in_time(case.ttl(), "the loss is noticed", guard.lost())
        .await?;
    expect_error(lock.acquire().await, ErrorKind::Lost)?;
    drop(guard);
    let again = case.soon("a new hold", lock.acquire()).await??;
    Ok(again.release().await?)
}

/// Rule 21: two shared holders that both want to be exclusive would wait for each other.
pub(super) async fn a_shared_hold_is_not_upgraded(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("upgrade"));
    let owner = Owner::new();
    let shared = client
        .lock(&name)
        .ttl(case.long())
        .owner(&owner)
        .shared()
        .acquire()
        .await?;
    let lock = client.lock(&name).ttl(case.long()).owner(&owner);
    let upgrade = case.soon("an answer", lock.acquire()).await?;
    expect_error(upgrade, ErrorKind::Invalid)?;
    shared.release().await?;
    // The other way round is no upgrade: who is alone is so in every mode.
    let exclusive = lock.acquire().await?;
    let inner = client.lock(&name).owner(&owner).shared().acquire().await?;
    check!(inner.token() == exclusive.token(), "a hold of its own");
    drop(inner);
    Ok(exclusive.release().await?)
}
