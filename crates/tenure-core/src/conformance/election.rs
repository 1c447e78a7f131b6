//! Elections: one leader at a time, its value, the end of a term, and what must not be left behind.

use std::sync::Arc;
use std::task::Poll;

use crate::holder::PublishedValue;
use crate::{Client, ErrorKind};

use super::case::{Case, expect_error};
use super::election_case::{ElectionCase, OBSERVED, asked_within};
use super::failure::{Failure, Verdict, check};
use super::history::History;
use super::hostile;
use super::names::each;

/// Rule 1: of several candidates one leads at a time, under tokens that grow.
pub(super) async fn one_leader_at_a_time(case: Arc<Case>) -> Verdict {
    const CANDIDATES: usize = 4;
    const TERMS: usize = 5;
    let election = ElectionCase::new(&case, "leaders");
    election.observe(2).await?;
    let claims = Arc::new(History::default());
    let mut tasks = Vec::new();
    for number in 0..CANDIDATES {
        let (candidate, claims) = (election.candidate().await?, claims.clone());
        tasks.push(tokio::spawn(async move {
            for turn in 0..TERMS {
                let asked = claims.now();
                let leading = candidate.campaign(&format!("{number}-{turn}")).await?;
                let claim = claims.granted(leading.term.guard(), asked);
                tokio::task::yield_now().await;
                let is_leader = leading.term.is_leader();
                claims.ends(claim);
                check!(is_leader, "lost a term without a fault");
                leading.resign().await?;
            }
            Ok::<_, Failure>(())
        }));
    }
    for task in tasks {
        case.in_time(case.long(), "the terms of a candidate", task)
            .await???;
    }
    claims.check()?;
    let count = claims.count(|_| true);
    check!(count == CANDIDATES * TERMS, "{count} terms");
    let leader = election.leader().await?;
    check!(leader.is_none(), "{leader:?} leads after the last term");
    election.check()
}

/// Rule 18: the value is there from the grant on, for `leader`, `inspect` and `list`, and a renewal does not end it.
pub(super) async fn a_value_is_there_from_the_grant_on_and_survives_renewals(
    case: Arc<Case>,
) -> Verdict {
    let election = ElectionCase::new(&case, "value");
    election.observe(1).await?;
    let candidate = election.short_candidate().await?;
    let leading = candidate.campaign("first").await?;
    let expected = Some((leading.token(), "first".to_owned()));
    let leader = election.leader().await?;
    check!(leader == expected, "{leader:?} instead of {expected:?}");
    shown_with_value(&case, &election.name, "first").await?;
    election.until_seen("first").await?;
    // Longer than the first lease.
    for _ in 0..2 {
        case.pass(case.ttl() * 2 / 3).await;
        let leader = election.leader().await?;
        check!(leader == expected, "{leader:?} instead of {expected:?}");
    }
    leading.proclaim("second").await?;
    // A renewal comes meanwhile.
    case.pass(case.ttl() * 2 / 3).await;
    let leader = election.leader().await?;
    let expected = Some((leading.token(), "second".to_owned()));
    check!(leader == expected, "{leader:?} instead of {expected:?}");
    shown_with_value(&case, &election.name, "second").await?;
    check!(leading.term.is_leader(), "lost it");
    leading.resign().await?;
    // The next term does not begin with the value of the last one.
    let leading = candidate.campaign("third").await?;
    let leader = election.leader().await?;
    let expected = Some((leading.token(), "third".to_owned()));
    check!(leader == expected, "{leader:?} instead of {expected:?}");
    leading.resign().await?;
    election.check()
}

/// `inspect` and `list` show the holder with this value.
async fn shown_with_value(case: &Case, name: &str, value: &str) -> Verdict {
    let client = case.client().await?;
    let inspected = client.inspect(name).await?;
    let listed = case.list_with(&client, name, &[name]).await?;
    for status in listed.iter().chain([&inspected]) {
        let values: Vec<_> = status
            .holds
            .iter()
            .map(|hold| hold.holder.value.as_ref().map(|value| &*value.text))
            .collect();
        check!(values == [Some(value)], "{values:?} instead of {value:?}");
    }
    Ok(())
}

/// Rule 18: each value comes back as it was published, whatever characters it has.
pub(super) async fn any_value_comes_back(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "values");
    election.observe(1).await?;
    let candidate = election.candidate().await?;
    let mut values: Vec<String> = [
        " ",
        "http://10.0.0.7:8080/?a=b&c=%20#d",
        "{\"value\":\"x\"}",
        "a\nb\tc\\d\"e'f`g",
        "\u{0}\u{1b}[2J\u{7f}",
        "\u{e9}\u{1f980}\u{10ffff}\u{202e}",
        "null",
        "asked",
    ]
    .map(str::to_owned)
    .into();
    values.push("v".repeat(PublishedValue::MAX_LEN));
    // Each of these has six bytes in JSON.
    values.push("\u{1}".repeat(PublishedValue::MAX_LEN));
    let leading = candidate.campaign("begin").await?;
    for value in &values {
        leading.proclaim(value).await?;
        let leader = election.leader().await?;
        let shown = leader.map(|(_, value)| value);
        check!(
            shown.as_ref() == Some(value),
            "{shown:?} instead of {value:?}"
        );
        election.until_seen(value).await?;
    }
    leading.resign().await?;
    for value in values {
        let term = candidate.election(&value).campaign().await?;
        let shown = election.leader().await?.map(|(_, value)| value);
        check!(
            shown.as_ref() == Some(&value),
            "{shown:?} instead of {value:?}"
        );
        term.resign().await?;
    }
    let term = candidate.election("").campaign().await?;
    let leader = election.leader().await?;
    let expected = Some((term.token().get(), String::new()));
    check!(leader == expected, "{leader:?} instead of {expected:?}");
    Ok(term.resign().await?)
}

/// Rule 10: a leader that resigns is followed by the next candidate, and leads no more.
pub(super) async fn a_resignation_hands_over_to_the_next_candidate(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "handover");
    election.observe(2).await?;
    let candidates = [election.candidate().await?, election.candidate().await?];
    let mut leading = candidates[0].campaign("term 0").await?;
    election.until_seen("term 0").await?;
    for turn in 1..=4 {
        let next = &candidates[turn % 2];
        let value = format!("term {turn}");
        let next = next.start_campaign(&case, &value).await;
        case.until_waiting(&election.name, 1).await?;
        check!(!next.is_finished(), "two lead");
        let token = leading.token();
        leading.resign().await?;
        leading = case.soon("the next term", next).await???;
        check!(
            leading.token() > token,
            "{} follows {token}",
            leading.token()
        );
        let leader = election.leader().await?;
        check!(
            leader == Some((leading.token(), value.clone())),
            "{leader:?} leads"
        );
        election.until_seen(&value).await?;
    }
    leading.resign().await?;
    election.until_nobody_is_seen(OBSERVED).await?;
    let leader = election.leader().await?;
    check!(leader.is_none(), "{leader:?} leads after the last term");
    election.check()
}

/// Rule 18: after the end of a term nobody leads, however the term ended.
pub(super) async fn nobody_leads_after_the_end_of_a_term(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "end");
    let leader = election.leader().await?;
    check!(leader.is_none(), "{leader:?} leads before any term");
    let candidate = election.short_candidate().await?;
    for end in ["resigned", "dropped", "broken"] {
        let leading = candidate.campaign(end).await?;
        let leader = election.leader().await?;
        check!(leader.is_some(), "nobody leads during the term");
        let token = leading.token();
        match end {
            "resigned" => leading.resign().await?,
            "dropped" => drop(leading),
            _ => {
                let client = case.client().await?;
                let broken = client.break_lock(&election.name, token).await?;
                check!(broken, "nothing to break");
                let lost = leading.term.lost();
                let reason = case.in_time(case.ttl(), "the loss", lost).await?;
                check!(reason.is_some(), "a term that was broken is not lost");
                expect_error(leading.proclaim("late").await, ErrorKind::Lost)?;
                expect_error(leading.resign().await, ErrorKind::Lost)?;
            }
        }
        case.until_idle(&election.name).await?;
        let leader = election.leader().await?;
        check!(leader.is_none(), "{leader:?} leads although it {end}");
    }
    Ok(())
}

/// Rule 13: a leader whose term has ended replaces no value of the next leader.
pub(super) async fn a_former_leader_publishes_nothing(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "former");
    let old = election.candidate().await?.campaign("old").await?;
    let next = election.candidate().await?;
    let client = case.client().await?;
    let broken = client.break_lock(&election.name, old.token()).await?;
    check!(broken, "nothing to break");
    let next = next.campaign("next").await?;
    // The old leader may not know yet that its term has ended.
    expect_error(old.proclaim("late").await, ErrorKind::Lost)?;
    let leader = election.leader().await?;
    check!(
        leader == Some((next.token(), "next".to_owned())),
        "{leader:?} leads"
    );
    expect_error(old.resign().await, ErrorKind::Lost)?;
    check!(next.term.is_leader(), "the old leader ended the next term");
    next.proclaim("next, later").await?;
    Ok(next.resign().await?)
}

/// Rule 1: a lock and an election of one name exclude each other.
pub(super) async fn a_lock_and_an_election_of_one_name_exclude_each_other(
    case: Arc<Case>,
) -> Verdict {
    let election = ElectionCase::new(&case, "both");
    let (candidate, client) = (election.candidate().await?, case.client().await?);
    let guard = case.take(&client, &election.name).await?;
    let campaign = candidate.start_campaign(&case, "leader").await;
    case.until_waiting(&election.name, 1).await?;
    check!(!campaign.is_finished(), "a lock and a leader at once");
    // The holder of a lock has no value.
    let leader = election.leader().await?;
    check!(
        leader == Some((guard.token().get(), String::new())),
        "{leader:?} is shown for a lock"
    );
    let token = guard.token().get();
    guard.release().await?;
    let leading = case.soon("the term", campaign).await???;
    check!(leading.token() > token, "the token does not grow");
    let tried = client.lock(&election.name).try_acquire().await?;
    check!(tried.is_none(), "a leader and a lock at once");
    let waiting = case
        .start_acquire(client.lock(&election.name).ttl(case.long()))
        .await;
    case.until_waiting(&election.name, 1).await?;
    leading.resign().await?;
    let guard = case.soon("the lock", waiting).await???;
    Ok(guard.release().await?)
}

/// Rule 15: a campaign that is dropped leaves no candidate, also when it is dropped at the moment of its election.
pub(super) async fn a_dropped_campaign_leaves_nothing(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "dropped");
    let candidates = [election.candidate().await?, election.candidate().await?];
    let leading = candidates[0].campaign("leader").await?;
    let campaign = candidates[1].start_campaign(&case, "dropped").await;
    case.until_waiting(&election.name, 1).await?;
    campaign.abort();
    let _ = campaign.await;
    case.until_nobody_waits(&election.name).await?;
    leading.resign().await?;
    case.until_idle(&election.name).await?;
    for polls in 1..=12 {
        let leading = candidates[0].campaign(&format!("leader {polls}")).await?;
        let mut campaign = Box::pin(candidates[1].campaign(&format!("dropped {polls}")));
        let mut resign = Box::pin(leading.resign());
        // The resignation begins somewhere on the way, so that some campaigns are dropped as they are granted.
        for poll in 0..polls {
            let both = std::future::poll_fn(|cx| {
                let is_over = poll >= polls / 2 && resign.as_mut().poll(cx).is_ready();
                Poll::Ready((is_over, campaign.as_mut().poll(cx).is_ready()))
            });
            let (is_over, is_elected) = both.await;
            if is_over || is_elected {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(campaign);
        drop(resign);
        // A request that was on its way may become a hold for a moment, before that is released.
        election.until_nobody_leads().await?;
        case.until_idle(&election.name).await?;
    }
    Ok(())
}

/// Rule 17: the elections of any two names have nothing to do with each other.
pub(super) async fn hostile_names_are_elections_of_their_own(case: Arc<Case>) -> Verdict {
    let (client, other) = (case.client().await?, case.client().await?);
    let names = hostile::names();
    names.iter().for_each(|name| case.note(name));
    // So short that a leader soon learns of a request with its renewal.
    let ttl = case.ttl() * 3;
    let of = |client: &Client, name: &String| client.election(name).ttl(ttl);
    let campaigns = names.iter().map(|name| of(&client, name).value(&**name));
    let elected = each(campaigns.collect(), |it| async move { it.campaign().await }).await?;
    let mut terms = Vec::new();
    for term in elected {
        terms.push(term?);
    }
    let looks: Vec<_> = names.iter().map(|name| of(&other, name)).collect();
    let leaders = each(looks, |it| async move { it.leader().await }).await?;
    for ((name, term), leader) in names.iter().zip(&terms).zip(leaders) {
        let leader = leader?.map(|it| (it.token, it.value().map(str::to_owned)));
        check!(
            leader == Some((Some(term.token()), Some(name.clone()))),
            "{leader:?} leads {name:?}"
        );
    }
    // With so long a ttl a request may take its time, so all of them are on their way before the first is waited for.
    for name in names.iter().step_by(8) {
        let asked = of(&other, name).ask_to_resign().await?;
        check!(asked.is_some(), "nobody leads {name:?}");
    }
    let limit = asked_within(ttl);
    for (name, term) in names.iter().zip(&terms).step_by(8) {
        let mut observer = of(&other, name).observe();
        let shown = case.in_time(OBSERVED, "the leader", observer.next());
        let shown = shown.await?.transpose()?.flatten();
        let value = shown.as_ref().and_then(|leader| leader.value());
        check!(value == Some(name), "{value:?} leads {name:?}");
        let is_asked = case.in_time(limit, "the leader is asked", term.asked_to_resign());
        check!(is_asked.await?, "the term of {name:?} has ended");
    }
    for (name, term) in names.iter().zip(&terms) {
        check!(term.is_leader(), "the term of {name:?} was lost");
    }
    for resigned in each(terms, |term| async move { term.resign().await }).await? {
        resigned?;
    }
    Ok(())
}
