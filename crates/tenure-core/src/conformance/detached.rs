//! Detached holds: rules 1, 2, 5, 8, 13, 16, 18 and 20 for a hold that outlives its client.

use std::sync::Arc;
use std::time::Duration;

use super::case::{Case, SOON, expect_error, expect_greater};
use super::failure::{Failure, Verdict, check};
use super::faults::GRACE;
use super::mode_matrix::{in_mode, modes_of};
use crate::fence::OwnerId;
use crate::guarantees::{Capability, Guarantees};
use crate::options::Mode;
use crate::receipt::{Receipt, ReceiptHold};
use crate::{Client, ErrorKind, FencingToken, Guard, LockName};

/// The lease of an attached client that shall renew: far above a pause of a busy machine, also in a store that has no leases
/// otherwise and therefore a shorter [`Case::ttl`].
pub(super) fn short(case: &Case) -> Duration {
    case.ttl().max(Duration::from_secs(2))
}

/// A lease that does not end in a behaviour, and that lasts longer than [`Case::soon`] waits: a hold that was forgotten is
/// noticed.
pub(super) fn long(case: &Case) -> Duration {
    (short(case) * 30).max(SOON * 2)
}

/// The modes in which the store detaches holds.
pub(super) fn detached_modes(guarantees: &Guarantees) -> Vec<Mode> {
    let mut modes = modes_of(guarantees);
    modes.retain(|mode| guarantees.detaches(*mode));
    modes
}

/// Acquires the name for a long time.
pub(super) async fn take(case: &Case, client: &Client, name: &str) -> Result<Guard, Failure> {
    let lock = client.lock(name).ttl(long(case));
    let acquired = case.soon("a hold", async move { lock.acquire().await });
    Ok(acquired.await??)
}

/// The receipt of a new hold with a long lease.
pub(super) async fn detached(case: &Case, client: &Client, name: &str) -> Result<Receipt, Failure> {
    Ok(take(case, client, name).await?.detach().await?)
}

/// Attaches the client to the hold.
pub(super) async fn attach(
    case: &Case,
    client: &Client,
    receipt: &Receipt,
) -> Result<Guard, Failure> {
    let attached = case.soon("an attached client", client.attach(receipt));
    let guard = attached.await??;
    let tokens: Vec<_> = guard.tokens().collect();
    let expected: Vec<_> = receipt.tokens().collect();
    check!(
        tokens == expected && guard.is_held(),
        "attached to {tokens:?} with a receipt of {expected:?}"
    );
    Ok(guard)
}

/// Ends the behaviour unless an exclusive request is refused.
pub(super) async fn expect_taken(case: &Case, client: &Client, name: &str) -> Verdict {
    let tried = client.lock(name).ttl(long(case)).try_acquire().await?;
    check!(tried.is_none(), "two hold {name}");
    Ok(())
}

/// Ends the behaviour unless the store shows one hold, the one with this token; returns what is left of its lease.
pub(super) async fn expect_shown(
    client: &Client,
    name: &str,
    token: FencingToken,
) -> Result<Duration, Failure> {
    let status = client.inspect(name).await?;
    let [hold] = status.holds.as_slice() else {
        let message = format_args!("{token} should be the only hold: {status:?}");
        return Err(Failure::new(message));
    };
    check!(
        hold.token == Some(token),
        "{:?} holds, and not {token}",
        hold.token
    );
    Ok(hold.ttl_left.unwrap_or_default())
}

/// Ends the behaviour unless the hold of the receipt is lost for this client.
async fn expect_over(client: &Client, receipt: &Receipt) -> Verdict {
    expect_error(client.attach(receipt).await, ErrorKind::Lost)
}

/// Rules 5 and 7: a detached hold is what it was, also when its client has ended. Another client attaches, has the same token,
/// and the next grant has a greater one.
pub(super) async fn a_hold_outlives_its_client(case: Arc<Case>) -> Verdict {
    let (other, name) = (case.client().await?, case.name("outlives"));
    let mut last = 0;
    for mode in detached_modes(&case.guarantees()) {
        let first = case.client().await?;
        let lock = in_mode(first.lock(&name).ttl(long(&case)), mode);
        let guard = case.soon("a hold", lock.acquire()).await??;
        last = expect_greater(&guard, last)?;
        let receipt = guard.detach().await?;
        check!(
            receipt.token().get() == last
                && receipt.mode() == mode
                && receipt.name().as_str() == name
                && receipt.ttl() == long(&case),
            "{receipt:?} of {mode} hold {last}"
        );
        check!(!first.is_held_here(&name), "its client holds it still");
        first.close().await;
        drop(first);
        expect_taken(&case, &other, &name).await?;
        let receipt: Receipt = receipt.to_string().parse()?;
        let second = case.client().await?;
        let guard = attach(&case, &second, &receipt).await?;
        check!(guard.mode() == mode, "attached as {}", guard.mode());
        expect_taken(&case, &other, &name).await?;
        let again = guard.detach().await?;
        check!(again == receipt, "{again:?} after {receipt:?}");
        second.close().await;
        expect_taken(&case, &other, &name).await?;
        expect_shown(&other, &name, receipt.token()).await?;
        attach(&case, &other, &again).await?.release().await?;
        let next = take(&case, &other, &name).await?;
        last = expect_greater(&next, last)?;
        next.release().await?;
    }
    Ok(())
}

/// Rules 2 and 16: the next waiter has the name when the lease of the detached hold is over, and not before. After that there is
/// nothing to attach to.
pub(super) async fn a_hold_that_is_not_attached_ends_with_its_lease(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("expires").await?;
    let third = case.client().await?;
    let guard = case.lease(&first, &name).await?;
    let lock = second.lock(&name).ttl(long(&case));
    let waiting = case.start_acquire(lock).await;
    case.until_waiting(&name, 1).await?;
    let start = case.now();
    let receipt = guard.detach().await?;
    let limit = case.ttl() + GRACE;
    let next = case
        .in_time(limit, "the waiter's turn", waiting)
        .await???;
    let passed = case.now().since(start) + case.margin();
    check!(
        passed >= case.ttl(),
        "granted {passed:?} after a detach for {:?}",
        case.ttl()
    );
    expect_greater(&next, receipt.token().get())?;
    for client in [&first, &third] {
        expect_over(client, &receipt).await?;
    }
    check!(next.is_held(), "lost by the attempt to attach");
    expect_shown(&third, &name, next.token()).await?;
    next.release().await?;
    expect_over(&first, &receipt).await?;
    case.acquire_and_release(&third, &name).await
}

/// Rule 2: the lease ends at the latest instant that was asked for, whatever is asked for later.
pub(super) async fn no_request_shortens_the_lease(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("lease").await?;
    let (short, long) = (short(&case), long(&case));
    let receipt = detached(&case, &first, &name).await?;
    let expect_left = async |least: Duration| {
        let left = expect_shown(&first, &name, receipt.token()).await?;
        check!(left >= least, "{left:?} left, at least {least:?} expected");
        Ok::<_, Failure>(())
    };
    let least = long / 2;
    expect_left(least).await?;
    let guard = attach(&case, &second, &receipt.clone().with_ttl(short)).await?;
    check!(guard.remaining() <= short, "{:?}", guard.remaining());
    expect_left(least).await?;
    // The guard is renewed for the short lease meanwhile.
    case.pass(short / 2).await;
    check!(guard.is_held(), "lost: {:?}", guard.state());
    expect_left(least).await?;
    let again = guard.detach().await?;
    check!(again.ttl() == short, "{again:?}");
    expect_left(least).await?;
    let longer = receipt.clone().with_ttl(long * 4);
    let guard = attach(&case, &second, &longer).await?;
    expect_left(long * 2).await?;
    Ok(guard.release().await?)
}

/// Rule 8: a waiter that waits since before the detach has its turn when the attached client releases.
pub(super) async fn a_release_wakes_the_next_waiter(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("wakes").await?;
    let third = case.client().await?;
    let guard = take(&case, &first, &name).await?;
    let lock = third.lock(&name).ttl(long(&case));
    let waiting = case.start_acquire(lock).await;
    case.until_waiting(&name, 1).await?;
    let receipt = guard.detach().await?;
    let guard = attach(&case, &second, &receipt).await?;
    check!(!waiting.is_finished(), "the waiter holds it too");
    guard.release().await?;
    let next = case.soon("the waiter's turn", waiting).await???;
    expect_greater(&next, receipt.token().get())?;
    Ok(next.release().await?)
}

/// The receipt with another owner.
fn with_another_owner(receipt: &Receipt) -> Result<Receipt, Failure> {
    let text = receipt.to_string();
    let (head, _) = text.rsplit_once("owner=").ok_or(Failure::new("no owner"))?;
    let other = OwnerId::random().to_hex();
    Ok(format!("{head}owner={other}").parse()?)
}

/// Rule 13: a receipt of the same name with another owner is lost, and the hold stays what it is.
pub(super) async fn a_wrong_receipt_touches_nothing(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("wrong").await?;
    let third = case.client().await?;
    let receipt = detached(&case, &first, &name).await?;
    let wrong = with_another_owner(&receipt)?;
    expect_over(&second, &wrong).await?;
    expect_over(&first, &wrong).await?;
    expect_shown(&third, &name, receipt.token()).await?;
    expect_taken(&case, &third, &name).await?;
    let guard = attach(&case, &second, &receipt).await?;
    expect_over(&third, &wrong).await?;
    expect_shown(&third, &name, receipt.token()).await?;
    check!(guard.is_held(), "lost by a wrong receipt");
    guard.release().await?;
    expect_over(&third, &wrong).await?;
    case.acquire_and_release(&third, &name).await
}

/// Rule 5: a hold that was released is over for every client, and an attempt to attach makes no other one.
pub(super) async fn what_was_released_cannot_be_attached(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("released").await?;
    let third = case.client().await?;
    let receipt = detached(&case, &first, &name).await?;
    attach(&case, &second, &receipt).await?.release().await?;
    for client in [&first, &second, &third] {
        expect_over(client, &receipt).await?;
        let status = third.inspect(&name).await?;
        check!(!status.is_held(), "an attempt to attach holds: {status:?}");
    }
    let next = take(&case, &third, &name).await?;
    expect_greater(&next, receipt.token().get())?;
    for client in [&first, &second, &third] {
        expect_over(client, &receipt).await?;
    }
    check!(next.is_held(), "lost by an attempt to attach");
    expect_shown(&first, &name, next.token()).await?;
    Ok(next.release().await?)
}

/// Rule 5: two attached clients are one holder. The release of one frees the name, and the other one learns of it and touches
/// the next hold no more.
pub(super) async fn a_release_by_one_ends_the_hold_for_all(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("both").await?;
    let third = case.client().await?;
    let receipt = detached(&case, &first, &name).await?;
    let receipt = receipt.with_ttl(short(&case));
    let one = attach(&case, &second, &receipt).await?;
    let other = attach(&case, &third, &receipt).await?;
    check!(one.is_held() && other.is_held(), "one of them has lost it");
    let lost = case.start(other.lost()).await;
    one.release().await?;
    let next = take(&case, &first, &name).await?;
    expect_greater(&next, receipt.token().get())?;
    let reason = case.in_time(short(&case), "the other one learns it", lost);
    check!(reason.await??.is_some(), "it ended without a loss");
    expect_error(other.release().await, ErrorKind::Lost)?;
    check!(next.is_held(), "lost by the release of a former holder");
    expect_shown(&third, &name, next.token()).await?;
    Ok(next.release().await?)
}

/// Rule 13: a client that was closed has lost the hold, and the hold goes on for the other one.
pub(super) async fn a_closed_client_leaves_the_hold_to_the_others(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("closed").await?;
    let third = case.client().await?;
    let receipt = detached(&case, &first, &name).await?;
    let receipt = receipt.with_ttl(short(&case));
    let one = attach(&case, &second, &receipt).await?;
    let other = attach(&case, &third, &receipt).await?;
    let lost = case.start(one.lost()).await;
    second.close().await;
    let reason = case.soon("the loss of the closed client", lost).await??;
    check!(reason.is_some(), "the closed client holds on");
    drop((one, second));
    // The other one renews meanwhile.
    case.pass(short(&case) / 2).await;
    check!(other.is_held(), "lost: {:?}", other.state());
    expect_taken(&case, &first, &name).await?;
    expect_shown(&first, &name, receipt.token()).await?;
    other.release().await?;
    case.acquire_and_release(&first, &name).await
}

/// Rule 18: a detached hold is shown and listed with its holder, and an attached client changes nothing about that.
pub(super) async fn the_holder_is_shown_without_its_client(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("shown").await?;
    let lock = first.lock(&name).ttl(long(&case)).label("by hand ü");
    let receipt = lock.acquire().await?.detach().await?;
    first.close().await;
    let mut guard = None;
    for _ in 0..2 {
        let status = second.inspect(&name).await?;
        let listed = case.list_with(&second, &name, &[&name]).await?;
        for status in [&status].into_iter().chain(&listed) {
            let [hold] = status.holds.as_slice() else {
                return Err(Failure::new(format_args!("not one hold: {status:?}")));
            };
            let holder = &hold.holder;
            check!(
                holder.label == "by hand ü" && holder.pid == std::process::id(),
                "the holder is {holder:?}"
            );
            check!(
                hold.token == Some(receipt.token()) && hold.mode == receipt.mode(),
                "{hold:?} instead of {receipt:?}"
            );
            let left = hold.ttl_left;
            check!(
                left.is_some_and(|left| !left.is_zero() && left <= long(&case) + case.margin()),
                "{left:?} left of {:?}",
                long(&case)
            );
        }
        if guard.is_none() {
            guard = Some(attach(&case, &second, &receipt).await?);
        }
    }
    let guard = guard.ok_or(Failure::new("not attached"))?;
    Ok(guard.release().await?)
}

/// Rule 13: `break_lock` ends a detached hold, and an attached client learns of it.
pub(super) async fn a_broken_hold_is_lost_for_all(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("broken").await?;
    let third = case.client().await?;
    for is_attached in [true, false] {
        let receipt = detached(&case, &first, &name).await?;
        let receipt = receipt.with_ttl(short(&case));
        let guard = match is_attached {
            true => Some(attach(&case, &second, &receipt).await?),
            false => None,
        };
        let token = receipt.token();
        let wrong = third.break_lock(&name, token.get() + 1).await?;
        check!(!wrong, "another token breaks it");
        expect_shown(&third, &name, token).await?;
        check!(third.break_lock(&name, token).await?, "nothing is broken");
        let next = take(&case, &third, &name).await?;
        expect_greater(&next, token.get())?;
        if let Some(guard) = guard {
            let reason = case.in_time(short(&case), "the holder learns it", guard.lost());
            check!(reason.await?.is_some(), "it ended without a loss");
        }
        expect_over(&first, &receipt).await?;
        check!(next.is_held(), "lost by a former holder");
        next.release().await?;
    }
    Ok(())
}

/// Rule 1: several names are one receipt, and if one of them is over, the client is attached to none and the others stay.
pub(super) async fn several_names_have_one_receipt(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let (a, b) = (case.name("a"), case.name("b"));
    let all = first.lock_all([&a, &b]).ttl(long(&case));
    let receipt = all.acquire().await?.detach().await?;
    for name in [&a, &b] {
        expect_taken(&case, &first, name).await?;
    }
    attach(&case, &second, &receipt).await?.release().await?;
    for name in [&a, &b] {
        case.acquire_and_release(&first, name).await?;
    }
    let receipt = all.acquire().await?.detach().await?;
    let tokens: Vec<_> = receipt.tokens().collect();
    check!(tokens.len() == 2, "the receipt is one of {tokens:?}");
    check!(first.break_lock(&b, tokens[1].1).await?, "nothing to break");
    expect_over(&second, &receipt).await?;
    check!(!second.is_held_here(&a), "one name is attached");
    expect_taken(&case, &first, &a).await?;
    case.acquire_and_release(&first, &b).await?;
    // What is left: the first name.
    let text = receipt.to_string();
    let (of_one, _) = text.rsplit_once("&name=").ok_or(Failure::new("one name"))?;
    let rest = attach(&case, &second, &of_one.parse()?).await?;
    rest.release().await?;
    case.acquire_and_release(&first, &a).await
}

/// Rule 16a: `min_hold` keeps the name from the grant on, also when a client releases that does not know it.
pub(super) async fn min_hold_counts_from_the_grant(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("min-hold").await?;
    let every = case.ttl() / 2;
    let start = case.now();
    let lock = first.lock(&name).ttl(long(&case)).min_hold(every);
    let receipt = lock.acquire().await?.detach().await?;
    attach(&case, &second, &receipt).await?.release().await?;
    let lock = second.lock(&name).ttl(long(&case));
    let next = case.acquire_within(every + GRACE, &lock).await??;
    let passed = case.now().since(start);
    check!(
        passed >= every,
        "taken {passed:?} after the grant, `min_hold` was {every:?}"
    );
    Ok(next.release().await?)
}

/// Rule 16a: the end of the lease is an unclean end, also when a client was attached that does not know `lock_delay`.
pub(super) async fn lock_delay_reserves_after_the_lease(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("delay").await?;
    let delay = case.ttl() / 5;
    let lock = first.lock(&name).ttl(case.ttl()).lock_delay(delay);
    let guard = lock.acquire().await?;
    let start = case.now();
    let receipt = guard.detach().await?;
    // Where the machine is too slow for a short lease, the hold is over by now.
    if let Ok(guard) = second.attach(&receipt).await {
        let detached = guard.detach().await;
        check!(
            detached.is_ok() || detached.is_err_and(|err| err.is_lost()),
            "not detached again"
        );
    }
    let lock = second.lock(&name).ttl(long(&case));
    let limit = case.ttl() + delay + GRACE;
    let next = case.acquire_within(limit, &lock).await??;
    let passed = case.now().since(start) + case.margin();
    check!(
        passed >= case.ttl() + delay,
        "taken {passed:?} after a detach for {:?} with `lock_delay` {delay:?}",
        case.ttl()
    );
    Ok(next.release().await?)
}

/// Rule 20: receipts of another store or another format, a ttl out of bounds and a second attachment are refused without a
/// request.
pub(super) async fn what_is_wrong_is_refused_before_any_request(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("refused").await?;
    let receipt = detached(&case, &first, &name).await?;
    let text = receipt.to_string();
    let (head, tail) = text.split_once("&ttl=").ok_or(Failure::new("no ttl"))?;
    let (format, _) = head.split_once(":store=").ok_or(Failure::new("no store"))?;
    let elsewhere: Receipt = format!("{format}:store=nosuch://elsewhere&ttl={tail}").parse()?;
    let other_format = text.replacen("receipt-1:", "receipt-2:", 1);
    let before = case.harness().requests();
    let refused = second.attach(&elsewhere).await.err();
    let message = refused.as_ref().map(ToString::to_string);
    check!(
        refused.is_some_and(|err| err.kind() == ErrorKind::Invalid)
            && message
                .as_ref()
                .is_some_and(|it| it.contains("nosuch://elsewhere")),
        "a receipt of another store: {message:?}"
    );
    let refused = other_format
        .parse::<Receipt>()
        .map_err(|err| err.to_string());
    check!(
        refused.as_ref().is_err_and(|it| it.contains("format 2")),
        "another format: {refused:?}"
    );
    let zero = receipt.clone().with_ttl(Duration::ZERO);
    expect_error(second.attach(zero).await, ErrorKind::Invalid)?;
    let after = case.harness().requests();
    check!(before == after, "{before:?} requests became {after:?}");
    let guard = attach(&case, &second, &receipt).await?;
    expect_error(second.attach(&receipt).await, ErrorKind::Invalid)?;
    check!(guard.is_held(), "lost by a second attempt to attach");
    guard.release().await?;
    case.acquire_and_release(&first, &name).await
}

/// Rule 20: a hold that the store cannot detach is released by the attempt, and a receipt of such a hold is refused without a
/// request. The message names a store that can.
pub(super) async fn what_cannot_be_detached_is_refused_and_released(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let guarantees = case.guarantees();
    let required = first.require(Capability::Detach).is_ok();
    check!(
        required == Capability::Detach.is_in(&guarantees),
        "`require` says {required}"
    );
    let mut modes = modes_of(&guarantees);
    modes.retain(|mode| !guarantees.detaches(*mode));
    for (number, mode) in modes.into_iter().enumerate() {
        let name = case.name(&format!("cannot-{number}"));
        let lock = in_mode(first.lock(&name).ttl(long(&case)), mode);
        let guard = case.soon("a hold", lock.acquire()).await??;
        let token = guard.token();
        let refused = guard.detach().await.err();
        let message = refused.as_ref().map(ToString::to_string);
        check!(
            refused.is_some_and(|err| err.kind() == ErrorKind::Unsupported)
                && message.as_ref().is_some_and(|it| it.contains("memory")),
            "{mode}: {message:?}"
        );
        case.acquire_and_release(&second, &name).await?;
        let hold = ReceiptHold {
            name: LockName::new(&name)?,
            token,
            owner: OwnerId::random(),
        };
        let address = second.store_address();
        let receipt = Receipt::new(address, mode, long(&case), vec![hold]);
        let before = case.harness().requests();
        expect_error(second.attach(receipt).await, ErrorKind::Unsupported)?;
        let after = case.harness().requests();
        check!(before == after, "{before:?} requests became {after:?}");
    }
    Ok(())
}
