//! Elections: requests to resign, and to release a lock.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::case::Case;
use super::election_case::{ElectionCase, asked_within};
use super::failure::{Failure, Verdict, check};

/// A request to resign reaches the leader, which decides.
pub(super) async fn a_leader_is_asked_to_resign_and_decides(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "asked");
    let leading = election.short_candidate().await?.campaign("asked").await?;
    let outsider = election.outsider().await?;
    let asked = case.start(leading.term.asked_to_resign()).await;
    case.pass(case.ttl() * 2 / 3).await;
    check!(!asked.is_finished(), "asked by nobody");
    let leader = outsider.ask_to_resign().await?;
    let token = leader.and_then(|leader| leader.token);
    check!(token == Some(leading.term.token()), "{token:?} was asked");
    let limit = asked_within(case.ttl());
    let is_asked = case.in_time(limit, "the leader learns of it", asked);
    check!(is_asked.await??, "the term has ended");
    // Each later call is told at once, and to be asked twice is no fault.
    outsider.ask_to_resign().await?;
    let again = case.soon("the second call", leading.term.asked_to_resign());
    check!(again.await?, "the term has ended");
    case.pass(case.ttl() * 2 / 3).await;
    check!(leading.term.is_leader(), "a request has ended the term");
    let leader = election.leader().await?;
    check!(
        leader == Some((leading.token(), "asked".to_owned())),
        "{leader:?} leads"
    );
    leading.resign().await?;
    let asked = outsider.ask_to_resign().await?;
    check!(asked.is_none(), "{asked:?} was asked after its end");
    Ok(())
}

/// A request that came before the leader waited for requests counts too.
pub(super) async fn a_request_before_the_leader_waits_for_it_counts(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "early");
    let leading = election.short_candidate().await?.campaign("early").await?;
    let asked = election.outsider().await?.ask_to_resign().await?;
    check!(asked.is_some(), "nobody leads");
    case.pass(case.ttl()).await;
    let limit = asked_within(case.ttl());
    let is_asked = case.in_time(
        limit,
        "the leader learns of it",
        leading.term.asked_to_resign(),
    );
    check!(is_asked.await?, "the term has ended");
    Ok(leading.resign().await?)
}

/// A thread without a runtime asks at any time whether the leader was asked, and its question is enough for the store to look
/// for requests.
pub(super) async fn a_request_is_told_without_a_wait(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "told");
    let candidate = election.short_candidate().await?;
    let term = candidate.election("told").campaign().await?;
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || sender.send((term.is_asked_to_resign(), term)));
    let told = case.soon("the thread ends", receiver).await?;
    let (is_asked, term) = told.map_err(Failure::new)?;
    check!(!is_asked, "asked by nobody");
    election.outsider().await?.ask_to_resign().await?;
    let limit = asked_within(case.ttl());
    case.in_time(limit, "the leader learns of it", async {
        while !term.is_asked_to_resign() {
            case.look_again().await;
        }
    })
    .await?;
    check!(term.is_leader(), "a request has ended the term");
    Ok(term.resign().await?)
}

/// A request ends with the term that it is for: the next leader is not asked, also if both happen at once.
pub(super) async fn a_request_never_reaches_a_later_leader(case: Arc<Case>) -> Verdict {
    let election = ElectionCase::new(&case, "later");
    let candidates = [
        election.short_candidate().await?,
        election.short_candidate().await?,
    ];
    let outsider = election.outsider().await?;
    let mut leading = candidates[1].campaign("term 0").await?;
    for turn in 1..=3 {
        let (next, value) = (&candidates[turn % 2], format!("term {turn}"));
        let next = next.start_campaign(&case, &value).await;
        case.until_waiting(&election.name, 1).await?;
        let waits = leading.term.asked_to_resign();
        let old = leading.term.token();
        let asked = match turn % 3 {
            // Before the end of the term, at the same moment, and after it.
            0 => {
                let asked = outsider.ask_to_resign().await?;
                leading.resign().await?;
                asked
            }
            1 => {
                let (asked, resigned) = tokio::join!(outsider.ask_to_resign(), leading.resign());
                resigned?;
                asked?
            }
            _ => {
                drop(leading);
                outsider.ask_to_resign().await?
            }
        };
        // It was asked or has ended: that future ends in any case.
        case.soon("the end of the old term", waits).await?;
        leading = case.in_time(case.ttl(), "the next term", next).await???;
        let asked = asked.and_then(|leader| leader.token);
        let is_for_next = asked == Some(leading.term.token());
        check!(
            is_for_next || asked.is_none() || asked == Some(old),
            "{asked:?} was asked after {old}"
        );
        let waits = case.start(leading.term.asked_to_resign()).await;
        // The holder learns of a request with its next renewal, or when it looks, each second.
        case.pass(case.ttl() / 2).await;
        check!(
            is_for_next || !waits.is_finished(),
            "a request for {asked:?} has reached {}",
            leading.token()
        );
        waits.abort();
        let _ = waits.await;
    }
    Ok(leading.resign().await?)
}

/// The holder of any lock can be asked to let go, also the holder of several names.
pub(super) async fn the_holder_of_a_lock_is_asked_to_release(case: Arc<Case>) -> Verdict {
    let (client, other, name) = case.two_clients("lock").await?;
    let second = case.name("lock-second");
    let limit = asked_within(case.ttl());
    for names in [vec![&name], vec![&name, &second]] {
        let guard = client.lock_all(&names).ttl(case.ttl()).acquire().await?;
        let asked = case.start(guard.asked_to_release()).await;
        let Some(last) = names.last() else { continue };
        let holder = other.election(last).ask_to_resign().await?;
        let token = holder.and_then(|holder| holder.token);
        let held = guard.tokens().map(|(_, token)| token).last();
        check!(token == held, "{token:?} was asked, held is {held:?}");
        let is_asked = case.in_time(limit, "the holder learns of it", asked);
        check!(is_asked.await??, "the hold has ended");
        check!(guard.is_held(), "a request has ended the hold");
        guard.release().await?;
    }
    // The end of a hold ends what waits for a request.
    let guard = case.lease(&client, &name).await?;
    let asked = case.start(guard.asked_to_release()).await;
    guard.release().await?;
    check!(!case.soon("the end", asked).await??, "asked by nobody");
    Ok(())
}
