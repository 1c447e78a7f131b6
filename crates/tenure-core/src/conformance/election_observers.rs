//! Elections: what observers see.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::options::{Options, Renew};

use super::case::Case;
use super::election_case::{ElectionCase, OBSERVED};
use super::election_history::Seen;
use super::failure::{Verdict, check};

/// The first thing that an observer sees is who leads at that time, or that nobody does.
pub(super) async fn an_observer_begins_with_who_leads_now(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "first");
    election.observe(1).await?;
    election.until_nobody_is_seen(OBSERVED).await?;
    let leading = election.candidate().await?.campaign("a").await?;
    leading.proclaim("b").await?;
    // An observer that comes late.
    election.observe(1).await?;
    election.until_seen("b").await?;
    let seen = election.history.seen();
    let (first, late) = (seen[0].first(), seen[1].first());
    check!(first == Some(&Seen::Nobody), "{seen:?}");
    let expected = Seen::Leader {
        token: leading.token(),
        value: "b".to_owned(),
    };
    check!(late == Some(&expected), "{seen:?}");
    leading.resign().await?;
    election.check()
}

/// Observers see each value, in the order in which the leader has published it.
pub(super) async fn observers_see_each_value_in_order(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "order");
    election.observe(3).await?;
    let leading = election.candidate().await?.campaign("value 0").await?;
    election.until_seen("value 0").await?;
    for number in 1..=5 {
        let value = format!("value {number}");
        leading.proclaim(&value).await?;
        election.until_seen(&value).await?;
    }
    // Those that follow each other at once may be left out, but the last one is seen.
    for number in 6..=30 {
        leading.proclaim(&format!("value {number}")).await?;
    }
    let (one, other) = tokio::join!(leading.proclaim("one"), leading.proclaim("other"));
    one?;
    other?;
    leading.proclaim("last").await?;
    election.until_seen("last").await?;
    leading.resign().await?;
    election.until_nobody_is_seen(OBSERVED).await?;
    election.check()
}

/// Observers learn that nobody leads any more, however the term ended, and also when no candidate waits.
pub(super) async fn observers_see_that_nobody_leads(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "nobody");
    election.observe(2).await?;
    let candidate = election.candidate().await?;
    for end in ["resigned", "dropped", "broken"] {
        let leading = candidate.campaign(end).await?;
        election.until_seen(end).await?;
        match end {
            "resigned" => leading.resign().await?,
            "dropped" => drop(leading),
            _ => {
                let client = case.client().await?;
                let broken = client.break_lock(&election.name, leading.token()).await?;
                check!(broken, "nothing to break");
            }
        }
        election.until_nobody_is_seen(OBSERVED).await?;
    }
    case.until_idle(&election.name).await?;
    // A leader whose lease is not renewed, as that of a process that has vanished. It leads long enough to be seen.
    let ttl = case.ttl().max(OBSERVED);
    let options = Options::new().renew(Renew::Never);
    let client = case.client().await?.with_defaults(options);
    let leading = election.candidate_of(client, ttl).campaign("vanishes");
    let leading = leading.await?;
    election.until_seen("vanishes").await?;
    let limit = ttl + OBSERVED;
    election.until_nobody_is_seen(limit).await?;
    check!(!leading.term.is_leader(), "a leader whom nobody sees");
    drop(leading);
    election.check()
}

/// Rule 15: an observer whose futures are dropped at any poll misses nothing.
pub(super) async fn a_dropped_wait_for_the_next_leader_misses_nothing(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "polls");
    let mut observer = election.outsider().await?.observe();
    let candidate = election.candidate().await?;
    let mut leading = None;
    for turn in 0..6 {
        let expected = match turn % 2 {
            0 => {
                drop(leading.take());
                case.until_idle(&election.name).await?;
                None
            }
            _ => {
                let value = format!("term {turn}");
                leading = Some(candidate.campaign(&value).await?);
                Some(value)
            }
        };
        let next = case.in_time(OBSERVED, "the next leader", async {
            loop {
                let polled = std::future::poll_fn(|cx| {
                    let next = pin!(observer.next());
                    Poll::Ready(next.poll(cx))
                });
                match polled.await {
                    Poll::Ready(item) => return item,
                    Poll::Pending => case.look_again().await,
                }
            }
        });
        let item = next.await?.transpose()?.flatten();
        let value = item.and_then(|leader| leader.value().map(str::to_owned));
        check!(value == expected, "{value:?} instead of {expected:?}");
    }
    drop(leading);
    Ok(())
}

/// An observer that was not polled for many terms goes on forward, up to the leader of now.
pub(super) async fn an_observer_that_is_slow_goes_forward(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "slow");
    let mut observer = election.outsider().await?.observe();
    let first = case.in_time(OBSERVED, "the first item", observer.next());
    check!(matches!(first.await?, Some(Ok(None))), "somebody leads");
    let candidate = election.candidate().await?;
    for turn in 0..100 {
        let leading = candidate.campaign(&format!("term {turn}")).await?;
        leading.resign().await?;
    }
    let last = candidate.campaign("last").await?;
    let mut before = 0;
    while before < last.token() {
        let next = case.in_time(OBSERVED, "the next leader", observer.next());
        let item = next.await?.transpose()?.flatten();
        let token = item.and_then(|leader| leader.token).map(u64::from);
        if let Some(token) = token {
            check!(token > before, "{token} after {before}");
            before = token;
        }
    }
    check!(
        before == last.token(),
        "{before} is later than the last term"
    );
    Ok(last.resign().await?)
}
