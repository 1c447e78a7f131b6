//! Elections: what is refused before any request.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use crate::holder::PublishedValue;
use crate::{Election, ErrorKind};

use super::case::{Case, expect_error};
use super::failure::{Failure, Verdict, check};

/// Rule 20: a wrong name and a value that is too long are refused without a request.
pub(super) async fn what_is_wrong_is_refused_before_any_request(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("refused"));
    let before = case.harness().requests();
    let too_long = "v".repeat(PublishedValue::MAX_LEN + 1);
    for election in [client.election(""), client.election("x".repeat(1_001))] {
        refused(&election, ErrorKind::Invalid).await?;
    }
    let campaign = client.election(&name).value(too_long).campaign().await;
    expect_error(campaign.map(drop), ErrorKind::Invalid)?;
    let campaign = client.election(&name).ttl(Duration::ZERO).campaign().await;
    expect_error(campaign.map(drop), ErrorKind::Invalid)?;
    let after = case.harness().requests();
    check!(before == after, "{before:?} requests became {after:?}");
    Ok(())
}

/// Rule 20: a store that has no elections refuses each part of them without a request, and names a store that has them.
pub(super) async fn a_store_without_elections_refuses_before_any_request(
    case: Arc<Case>,
) -> Verdict {
    let (client, name) = (case.client().await?, case.name("none"));
    let before = case.harness().requests();
    let election = client.election(&name).value("x");
    refused(&election, ErrorKind::Unsupported).await?;
    let text = election.leader().await.err().map(|err| format!("{err:#}"));
    let names_one = text.as_ref().is_some_and(|text| text.contains("memory"));
    check!(names_one, "{text:?} names no store that can");
    let after = case.harness().requests();
    check!(before == after, "{before:?} requests became {after:?}");
    case.acquire_and_release(&client, &name).await
}

async fn refused(election: &Election, expected: ErrorKind) -> Verdict {
    expect_error(election.campaign().await.map(drop), expected)?;
    let run = election.run_boxed(|_| Box::pin(ready(Ok::<_, Infallible>(()))));
    expect_error(run.await, expected)?;
    expect_error(election.leader().await.map(drop), expected)?;
    expect_error(election.ask_to_resign().await.map(drop), expected)?;
    let mut observer = election.observe();
    let Some(first) = observer.next().await else {
        return Err(Failure::new("the observer has ended without an error"));
    };
    expect_error(first.map(drop), expected)?;
    let second = observer.next().await;
    check!(
        second.is_none(),
        "after its error the observer says {second:?}"
    );
    Ok(())
}
