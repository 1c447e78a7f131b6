//! The task that sees that sessions are there, ends what nobody renews, and closes what nobody needs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tenure_core::error::ErrorKind;
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::lost::LostReason;
use tenure_core::rt::{NextWakeup, lock};
use tenure_core::time::Time;

use super::dialect::Ask;
use super::entries::{Entry, Stage};
use super::hold::Store;
use super::link::Link;

/// Starts it, if it does not run yet.
pub(super) fn start(store: &Arc<Store>) {
    if store.maintenance.claim_start() {
        let (weak, wakeup) = (Arc::downgrade(store), store.maintenance.clone());
        store.spawner.spawn(keep(weak, wakeup));
    }
}

/// Keeps nothing alive while it sleeps.
async fn keep(store: Weak<Store>, wakeup: Arc<NextWakeup>) {
    loop {
        let (clock, next) = {
            let Some(store) = store.upgrade().filter(|it| !it.closing.is_raised()) else {
                return;
            };
            let (planned, now) = (wakeup.begin(), store.clock.now());
            let next = wakeup.plan(pace::look(planned, tend(&store, now), now));
            (store.clock.clone(), next)
        };
        wakeup.sleep(&clock, next).await;
    }
}

/// Does what is due, and says when the next thing will be.
fn tend(store: &Arc<Store>, now: Time) -> Time {
    let links: Vec<_> = lock(&store.links).clone();
    let mut next = Time::MAX;
    for link in &links {
        next = next.min(tend_one(store, link, now));
    }
    // Neither a storm of wake-ups nor a long sleep in which a connection is left open.
    next.max(now.after(Duration::from_millis(1)))
}

fn tend_one(store: &Arc<Store>, link: &Arc<Link>, now: Time) -> Time {
    if link.is_waiting.load(Ordering::SeqCst) {
        return Time::MAX;
    }
    let (over, is_empty, has_holds, ends) = {
        let mut entries = lock(&link.entries);
        let mut over: Vec<(OwnerId, Entry)> = Vec::new();
        let mut ends = Time::MAX;
        let mut has_holds = false;
        for (owner, entry) in entries.iter() {
            match entry.stage {
                Stage::Held { until: end, .. } | Stage::Giving { again: end } if end <= now => {
                    over.push((*owner, entry.clone()));
                }
                Stage::Held { until, .. } => {
                    has_holds = true;
                    ends = ends.min(until);
                }
                Stage::Giving { again } => ends = ends.min(again),
                Stage::Asking | Stage::Unwanted => {}
            }
        }
        for (owner, _) in &over {
            let again = now.after(link.ttl / 3);
            entries.set(owner, Stage::Giving { again });
            ends = ends.min(again);
        }
        (over, entries.is_empty(), has_holds, ends)
    };
    for (owner, entry) in over {
        let (store, link) = (store.clone(), link.clone());
        store.clone().spawner.spawn(async move {
            // Asked for again if there is no answer.
            let _ = store.give(&link, owner, entry).await;
        });
    }
    if is_empty {
        // Before the server does it: then the next request would find that out.
        let closes = link.used().max(link.sent()).after(link.ttl / 2);
        if closes > now {
            return closes;
        }
        retire(store, link);
        return Time::MAX;
    }
    if !has_holds {
        return ends;
    }
    let due = store.check_of(link);
    if due > now {
        return due.min(ends);
    }
    if !link.is_checked.swap(true, Ordering::SeqCst) {
        let (store, link) = (store.clone(), link.clone());
        store.clone().spawner.spawn(async move {
            check(&store, &link).await;
            link.is_checked.store(false, Ordering::SeqCst);
            store.maintenance.wake();
        });
    }
    ends
}

/// Closes a session that nothing hangs on.
fn retire(store: &Arc<Store>, link: &Arc<Link>) {
    {
        // Under the lock that `pick` takes: nobody can be about to use it.
        let mut links = lock(&store.links);
        if !lock(&link.entries).is_empty() {
            return;
        }
        links.retain(|it| !Arc::ptr_eq(it, link));
    }
    let link = link.clone();
    store.spawner.spawn(async move { link.close().await });
}

/// Sees whether the session is there, and whether somebody wants a hold of it to end.
async fn check(store: &Arc<Store>, link: &Arc<Link>) {
    if !store.board.is_there() {
        // Its end is told by whoever notices it.
        let _ = link.ask(Ask::Ping, None).await;
        return;
    }
    // As long as anybody's lease hangs on it.
    let limit = store
        .clock
        .now()
        .after(store.settings.server.timeout)
        .max(link.lasts_until());
    let wanted = store.dialect.wanted(link.facts.session);
    let rows = match link.look(wanted, limit).await {
        Ok(rows) => rows,
        Err(trouble) if trouble.is_fatal() => return,
        Err(trouble) => {
            let err = super::outcome::explain(trouble, &store.settings.server);
            // Else somebody has called it off.
            if err.kind() == ErrorKind::Denied {
                store.board.is_gone();
            }
            return;
        }
    };
    let tokens = rows.first().and_then(|row| row.get(1)?.as_deref());
    let tokens: Vec<u64> = tokens
        .unwrap_or_default()
        .split(' ')
        .filter_map(|token| token.parse().ok())
        .collect();
    if tokens.is_empty() {
        return;
    }
    let broken: Vec<_> = {
        let mut entries = lock(&link.entries);
        let is_wanted = |entry: &Entry| matches!(entry.stage, Stage::Held { token, .. } if tokens.contains(&token));
        let broken = entries.iter().filter(|(_, entry)| is_wanted(entry));
        let broken: Vec<_> = broken
            .map(|(owner, entry)| (*owner, entry.clone()))
            .collect();
        for (owner, _) in &broken {
            let again = store.clock.now().after(link.ttl / 3);
            entries.set(owner, Stage::Giving { again });
        }
        broken
    };
    for (owner, entry) in broken {
        // First the holder, then the lock: nobody may believe longer than that.
        if let Some(alarm) = store.alarm.get() {
            alarm.lost(owner, LostReason::TakenOver);
        }
        let _ = store.give(link, owner, entry).await;
    }
}
