//! All modes that a store has, mixed: part of rules 1, 5, 7, 10, 13 and 18.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::case::{Case, expect_error, expect_greater};
use super::failure::{Failure, Verdict, check};
use super::history::{History, may_be_together};
use crate::client::Client;
use crate::error::ErrorKind;
use crate::guarantees::Guarantees;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::options::Mode;

/// The limit of all permits in these behaviours.
const LIMIT: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);

/// The modes of the store, the exclusive one first.
pub(super) fn modes_of(guarantees: &Guarantees) -> Vec<Mode> {
    let optional = [
        (guarantees.shared, Mode::Shared),
        (guarantees.upgradable, Mode::Upgradable),
        (guarantees.permits, Mode::Permits { limit: LIMIT }),
    ];
    let had = optional.into_iter().filter(|(has, _)| *has);
    let had = had.map(|(_, mode)| mode);
    std::iter::once(Mode::Exclusive).chain(had).collect()
}

/// The lock in that mode.
pub(super) fn in_mode(lock: Lock, mode: Mode) -> Lock {
    match mode {
        Mode::Exclusive => lock,
        Mode::Shared => lock.shared(),
        Mode::Upgradable => lock.upgradable(),
        Mode::Permits { limit } => lock.permits(limit.get()),
    }
}

/// Rules 1 and 7: clients in all modes, which also change the mode of their holds, never conflict, and their tokens grow.
pub(super) async fn no_two_holders_conflict(case: Arc<Case>) -> Verdict {
    const CLIENTS: usize = 5;
    const TURNS: usize = 10;
    let name = case.name("mixed");
    let modes = modes_of(&case.guarantees());
    let history = Arc::new(History::default());
    let mut crowd = Vec::new();
    for first in 0..CLIENTS {
        let client = case.client().await?;
        let (case, name, modes) = (case.clone(), name.clone(), modes.clone());
        let history = history.clone();
        crowd.push(tokio::spawn(async move {
            for turn in 0..TURNS {
                // Each client goes through all modes, and each in another order.
                let mode = modes[(first + turn * (first + 1)) % modes.len()];
                let lock = in_mode(client.lock(&name).ttl(case.long()), mode);
                let asked = history.now();
                let guard = match (first + turn).is_multiple_of(3) {
                    true => lock.try_acquire().await?,
                    false => Some(lock.acquire().await?),
                };
                if let Some(guard) = guard {
                    hold(guard, &history, asked, turn).await?;
                }
            }
            Ok::<_, Failure>(())
        }));
    }
    for one in crowd {
        case.soon("all clients have their turns", one).await???;
    }
    history.check()?;
    let counted = history.count(|mode| modes.contains(&mode));
    // All but the tries, of which each may find the name taken.
    let least = CLIENTS * TURNS * 3 / 5;
    check!(counted >= least, "{counted} claims are recorded");
    Ok(())
}

/// Holds for a moment, in other modes as well where the guard can change its mode, and releases.
async fn hold(guard: Guard, history: &History, asked: u64, turn: usize) -> Verdict {
    let pause = || tokio::time::sleep(Duration::from_micros(300));
    let mut claim = history.granted(&guard, asked);
    pause().await;
    if guard.mode() == Mode::Upgradable && turn.is_multiple_of(2) {
        // The hold stays upgradable until the answer.
        let asked = history.now();
        guard.upgrade().await?;
        history.ends(claim);
        claim = history.granted(&guard, asked);
        pause().await;
        let asked = history.now();
        history.ends(claim);
        guard.downgrade().await?;
        claim = history.downgraded(&guard, asked);
        pause().await;
    }
    history.ends(claim);
    Ok(guard.release().await?)
}

/// Rule 10: waiters in all modes are served in the order of their arrival; those that may hold together come in together.
pub(super) async fn a_queue_of_all_modes_is_served_in_order(case: Arc<Case>) -> Verdict {
    let (holder, name) = (case.client().await?, case.name("line"));
    let modes = modes_of(&case.guarantees());
    let first = case.take(&holder, &name).await?;
    let history = Arc::new(History::default());
    let line = each_mode_after_each_other(&modes);
    let mut waiting = Vec::new();
    for (index, mode) in line.iter().enumerate() {
        let client = case.client().await?;
        let lock = in_mode(client.lock(&name).ttl(case.long()), *mode);
        let history = history.clone();
        let waits = async move {
            let guard = lock.acquire().await?;
            let granted = history.now();
            tokio::time::sleep(Duration::from_micros(300)).await;
            let released = history.now();
            guard.release().await?;
            Ok::<_, Failure>((granted, released))
        };
        waiting.push(case.start(waits).await);
        case.until_waiting(&name, index + 1).await?;
    }
    first.release().await?;
    let mut times = Vec::new();
    for one in waiting {
        times.push(case.soon("the turn of each waiter", one).await???);
    }
    for (later, mode) in line.iter().enumerate() {
        for earlier in 0..later {
            let in_turn = times[earlier].1 < times[later].0;
            check!(
                in_turn || may_be_together(line[earlier], *mode),
                "waiter {later} ({mode}) held before waiter {earlier} ({}) was done",
                line[earlier]
            );
        }
    }
    Ok(())
}

/// A line in which each mode follows each mode once: the shortest one, a de Bruijn sequence of order 2.
fn each_mode_after_each_other(modes: &[Mode]) -> Vec<Mode> {
    let mut line = Vec::new();
    for (index, mode) in modes.iter().enumerate() {
        line.push(*mode);
        for next in &modes[index + 1..] {
            line.extend([*mode, *next]);
        }
    }
    line.push(modes[0]);
    line
}

/// As many shared holders as the modes of the store allow, at most two of each mode, each of its own client.
async fn holders(case: &Case, name: &str, ttl: Duration) -> Result<Vec<(Client, Guard)>, Failure> {
    let mut modes = modes_of(&case.guarantees());
    if modes.len() > 1 {
        modes.retain(|mode| *mode != Mode::Exclusive);
    }
    let mut held: Vec<(Client, Guard)> = Vec::new();
    for mode in modes.iter().flat_map(|mode| [*mode, *mode]) {
        if !held.iter().all(|it| may_be_together(it.1.mode(), mode)) {
            continue;
        }
        let client = case.client().await?;
        let lock = in_mode(client.lock(name).ttl(ttl), mode);
        let lock = lock.label(format!("holder {}", held.len()));
        let guard = lock.try_acquire().await?;
        let refused = || Failure::new(format_args!("{mode} beside {} others", held.len()));
        held.push((client, guard.ok_or_else(refused)?));
    }
    Ok(held)
}

/// Rule 18: `inspect` and `list` show each of several holders, with its mode, its token and its label.
pub(super) async fn each_holder_is_shown_with_its_mode(case: Arc<Case>) -> Verdict {
    let (other, name) = (case.client().await?, case.name("shown"));
    let held = holders(&case, &name, case.long()).await?;
    let mut expected: Vec<_> = held
        .iter()
        .enumerate()
        .map(|(index, (_, guard))| {
            let label = format!("holder {index}");
            (Some(guard.token()), guard.mode(), label)
        })
        .collect();
    expected.sort_by_key(|it| it.0);
    let listed = case.list_with(&other, &name, &[&name]).await?;
    let [listed] = &listed[..] else {
        return Err(Failure::new(format_args!(
            "{} names are listed",
            listed.len()
        )));
    };
    for status in [&other.inspect(&name).await?, listed] {
        let mut shown: Vec<_> = status
            .holds
            .iter()
            .map(|hold| (hold.token, hold.mode, hold.holder.label.clone()))
            .collect();
        shown.sort_by_key(|it| it.0);
        check!(shown == expected, "shown are {shown:?}, not {expected:?}");
    }
    for (_, guard) in held {
        guard.release().await?;
    }
    let status = other.inspect(&name).await?;
    check!(!status.is_held(), "shown as held after the last release");
    Ok(())
}

/// Rules 5 and 13: `break_lock` ends the hold with that token, and no other one of the same name.
pub(super) async fn one_of_several_holders_is_broken(case: Arc<Case>) -> Verdict {
    let (other, name) = (case.client().await?, case.name("broken"));
    let mut held = holders(&case, &name, case.ttl()).await?;
    while !held.is_empty() {
        let (_, guard) = held.swap_remove(held.len() / 2);
        check!(
            other.break_lock(&name, guard.token()).await?,
            "nothing to break"
        );
        case.in_time(case.ttl(), "the holder is told", guard.lost())
            .await?;
        expect_error(guard.release().await, ErrorKind::Lost)?;
        for (_, rest) in &held {
            check!(
                rest.is_held(),
                "the hold of {} was broken, too",
                rest.mode()
            );
        }
        let exclusive = other.lock(&name).ttl(case.ttl());
        let is_free = exclusive.clone().try_acquire().await?;
        check!(
            is_free.is_none() || held.is_empty(),
            "exclusive beside {} holders",
            held.len()
        );
        if let Some(guard) = is_free {
            guard.release().await?;
        }
    }
    Ok(())
}

/// Rule 7: the token of a hold in any mode is greater than that of the hold before, whatever its mode was.
pub(super) async fn tokens_grow_from_mode_to_mode(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("tokens").await?;
    let modes = modes_of(&case.guarantees());
    let mut last = 0;
    for mode in &modes {
        for next in &modes {
            for (client, mode) in [(&first, mode), (&second, next)] {
                let lock = in_mode(client.lock(&name).ttl(case.long()), *mode);
                let guard = case.soon("the next holder", lock.acquire()).await??;
                last = expect_greater(&guard, last)?;
                guard.release().await?;
            }
        }
    }
    Ok(())
}
