//! Detached holds between processes, over broken connections and in silent stores.

use std::sync::Arc;

use super::case::Case;
use super::detached::{
    attach, detached, detached_modes, expect_shown, expect_taken, long, short, take,
};
use super::failure::{Failure, Verdict, check};
use super::faults::mode_option;
use super::lock_holder::LockHolder;
use crate::options::Mode;

/// How a process ends that has a hold or a receipt.
#[derive(Clone, Copy)]
enum ProcessEnd {
    Killed,
    Exits,
}

impl ProcessEnd {
    fn of(self, mut process: LockHolder) -> Verdict {
        match self {
            Self::Killed => process.kill()?,
            Self::Exits => {
                process.say("exit")?;
                process.wait()?;
            }
        }
        Ok(())
    }
}

/// A process that is attached to the hold, and the token that it says.
async fn start_attached(
    case: &Case,
    name: &str,
    receipt: &str,
) -> Result<(LockHolder, u64), Failure> {
    let mut process = LockHolder::start(case, name, &["--attach", receipt])?;
    let token = case
        .soon("the process is attached", process.held())
        .await??;
    Ok((process, token))
}

/// Rule 5: one process acquires and ends; the next one is attached and ends; the third one is attached and releases. Until then
/// the name is taken.
pub(super) async fn a_hold_goes_from_process_to_process(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("processes"));
    let ttl = format!("{}ms", long(&case).as_millis());
    let modes = detached_modes(&case.guarantees());
    let killed = modes.iter().map(|mode| (*mode, ProcessEnd::Killed));
    for (mode, end) in killed.chain([(Mode::Exclusive, ProcessEnd::Exits)]) {
        let mode = mode_option(mode);
        let mut options = vec!["--ttl", &ttl];
        options.extend(mode.iter().flat_map(|mode| ["--mode", mode]));
        let mut first = LockHolder::start(&case, &name, &options)?;
        let token = case.soon("the process holds", first.held()).await??;
        first.say("detach")?;
        let receipt = case.soon("a receipt", first.expect("receipt")).await??;
        end.of(first)?;
        expect_taken(&case, &client, &name).await?;
        let (second, attached) = start_attached(&case, &name, &receipt).await?;
        check!(attached == token, "{attached} is attached to {token}");
        end.of(second)?;
        expect_taken(&case, &client, &name).await?;
        let (mut third, attached) = start_attached(&case, &name, &receipt).await?;
        check!(attached == token, "{attached} is attached to {token}");
        let lock = client.lock(&name).ttl(long(&case));
        let waiting = case.start_acquire(lock).await;
        third.say("release")?;
        case.soon("the release", third.expect("released")).await??;
        let next = case.soon("the next holder", waiting).await???;
        check!(
            next.token().get() > token,
            "{} follows {token}",
            next.token()
        );
        let mut late = LockHolder::start(&case, &name, &["--attach", &receipt])?;
        case.soon("the process starts", late.expect("waiting"))
            .await??;
        case.soon("nothing to attach to", late.expect("error Lost"))
            .await??;
        check!(next.is_held(), "lost by a process that came too late");
        next.release().await?;
    }
    Ok(())
}

/// Rule 5: neither a detached nor an attached hold ends with a connection.
pub(super) async fn an_attached_hold_outlasts_a_broken_connection(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (name, alone) = (case.name("cut"), case.name("cut-alone"));
    let receipt = detached(&case, &first, &name).await?;
    let short_receipt = receipt.with_ttl(short(&case));
    let guard = attach(&case, &second, &short_receipt).await?;
    let receipt = detached(&case, &first, &alone).await?;
    case.break_connection().await?;
    case.pass(short(&case)).await;
    check!(
        guard.is_held(),
        "lost by a cut connection: {:?}",
        guard.state()
    );
    let third = case.client().await?;
    for (name, token) in [(&name, guard.token()), (&alone, receipt.token())] {
        expect_taken(&case, &third, name).await?;
        expect_shown(&third, name, token).await?;
    }
    guard.release().await?;
    attach(&case, &second, &receipt).await?.release().await?;
    for name in [&name, &alone] {
        case.acquire_and_release(&third, name).await?;
    }
    Ok(())
}

/// Rule 13: a client whose lease ended while the store was silent has lost the hold, and does not end it for another client with
/// a longer lease.
pub(super) async fn a_client_of_a_silent_store_leaves_the_hold_to_the_others(
    case: Arc<Case>,
) -> Verdict {
    let (first, second, name) = case.two_clients("left").await?;
    let third = case.client().await?;
    let receipt = detached(&case, &first, &name).await?;
    let other = attach(&case, &third, &receipt).await?;
    let one = attach(&case, &second, &receipt.with_ttl(short(&case))).await?;
    let lost = case.start(one.lost()).await;
    case.pause_store().await?;
    let reason = case
        .in_time(short(&case), "the end of its lease", lost)
        .await;
    case.resume_store().await?;
    check!(reason??.is_some(), "it ended without a loss");
    check!(other.is_held(), "both have lost it");
    drop(one);
    // A release that should not be sent would have arrived by then.
    case.pass(short(&case) / 4).await;
    expect_shown(&third, &name, other.token()).await?;
    expect_taken(&case, &first, &name).await?;
    check!(other.is_held(), "lost: {:?}", other.state());
    other.release().await?;
    case.acquire_and_release(&first, &name).await
}

/// Rule 15: a detach that is given up releases the hold, because nothing is written down. An attach that is given up leaves the
/// hold as it was, and the client may attach again.
pub(super) async fn what_is_given_up_in_a_silent_store_is_cleaned_up(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (name, kept) = (case.name("given-up"), case.name("kept"));
    let third = case.client().await?;
    let guard = take(&case, &first, &name).await?;
    let receipt = detached(&case, &first, &kept).await?;
    // Both have a connection.
    attach(&case, &second, &receipt).await?.detach().await?;
    case.pause_store().await?;
    let detaching = case.start(guard.detach()).await;
    let (client, written) = (second.clone(), receipt.clone());
    let attaching = case
        .start(async move { client.attach(written).await })
        .await;
    for is_over in [detaching.is_finished(), attaching.is_finished()] {
        check!(!is_over, "a silent store has answered");
    }
    detaching.abort();
    attaching.abort();
    let _ = (detaching.await, attaching.await);
    case.resume_store().await?;
    case.acquire_and_release(&third, &name).await?;
    expect_shown(&third, &kept, receipt.token()).await?;
    let guard = attach(&case, &third, &receipt).await?;
    let again = attach(&case, &second, &receipt).await?;
    again.detach().await?;
    guard.release().await?;
    case.acquire_and_release(&third, &kept).await
}
