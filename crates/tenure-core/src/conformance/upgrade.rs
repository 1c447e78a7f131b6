//! Upgradable holders, and changing the mode of a hold: part of rules 1, 7, 10 and 15.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::case::{Case, expect_error, expect_greater};
use super::failure::{Failure, Verdict, check};
use super::harness::RequestFault;
use crate::LostReason;
use crate::client::Client;
use crate::error::{Error, ErrorKind, Step};
use crate::guard::Guard;
use crate::lock::Lock;
use crate::options::Mode;

/// The locks of one name, in each mode.
struct Locks<'a> {
    case: &'a Case,
    name: String,
}

impl<'a> Locks<'a> {
    fn new(case: &'a Case, name: &str) -> Self {
        let name = case.name(name);
        Self { case, name }
    }

    fn exclusive(&self, client: &Client) -> Lock {
        client.lock(&self.name).ttl(self.case.long())
    }

    fn shared(&self, client: &Client) -> Lock {
        self.exclusive(client).shared()
    }

    async fn upgradable(&self, client: &Client) -> Result<Guard, Failure> {
        let guard = self.exclusive(client).upgradable().try_acquire().await?;
        guard.ok_or(Failure::new("the upgradable holder was refused"))
    }

    async fn reader(&self, client: &Client) -> Result<Guard, Failure> {
        let guard = self.shared(client).try_acquire().await?;
        guard.ok_or(Failure::new("a shared holder was refused"))
    }
}

/// Ends the behaviour unless the lock is busy.
async fn expect_busy(lock: Lock, what: &'static str) -> Verdict {
    match lock.try_acquire().await? {
        None => Ok(()),
        Some(_) => Err(Failure::new(what)),
    }
}

/// Rule 1: an upgradable holder holds together with shared holders, and with no other upgradable and no exclusive holder.
pub(super) async fn an_upgradable_holder_goes_with_shared_holders(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let locks = Locks::new(&case, "beside");
    let before = locks.reader(&first).await?;
    let upgradable = locks.upgradable(&second).await?;
    let after = locks.reader(&first).await?;
    let other = locks.exclusive(&first).upgradable();
    expect_busy(other, "two upgradable holders").await?;
    expect_busy(locks.exclusive(&first), "an exclusive holder beside others").await?;
    let status = first.inspect(&locks.name).await?;
    let mut modes: Vec<_> = status.holds.iter().map(|hold| hold.mode).collect();
    modes.sort_by_key(|mode| *mode == Mode::Upgradable);
    let expected = [Mode::Shared, Mode::Shared, Mode::Upgradable];
    check!(modes == expected, "shown are {modes:?}");
    for guard in [before, after, upgradable] {
        check!(guard.is_held(), "a hold was lost");
        guard.release().await?;
    }
    case.acquire_and_release(&first, &locks.name).await
}

/// Rules 1, 7 and 10: an upgrade waits for the readers that hold, comes before all requests that wait, and has a greater
/// token.
pub(super) async fn an_upgrade_lets_no_writer_in_between(case: Arc<Case>) -> Verdict {
    let (first, second, third) = (
        case.client().await?,
        case.client().await?,
        case.client().await?,
    );
    let locks = Locks::new(&case, "between");
    let reader = locks.reader(&first).await?;
    let upgradable = Arc::new(locks.upgradable(&second).await?);
    let last = upgradable.token().get().max(reader.token().get());
    let waiting = case.start_acquire(locks.exclusive(&third)).await;
    case.until_waiting(&locks.name, 1).await?;
    let upgrading = {
        let guard = upgradable.clone();
        case.start(async move { guard.upgrade().await }).await
    };
    // From the arrival of that request on no reader comes in: each one that did before leaves again.
    case.soon("readers are refused", async {
        while let Some(reader) = locks.shared(&first).try_acquire().await? {
            reader.release().await?;
            case.look_again().await;
        }
        Ok::<_, Failure>(())
    })
    .await??;
    check!(!upgrading.is_finished(), "exclusive beside a reader");
    check!(upgradable.mode() == Mode::Upgradable, "exclusive too early");
    reader.release().await?;
    case.soon("the upgrade", upgrading).await???;
    check!(upgradable.mode() == Mode::Exclusive, "not exclusive");
    check!(!waiting.is_finished(), "a writer came in between");
    let token = expect_greater(&upgradable, last)?;
    expect_busy(locks.shared(&first), "a reader beside an exclusive holder").await?;
    let status = first.inspect(&locks.name).await?;
    let [hold] = &status.holds[..] else {
        return Err(Failure::new("not one holder after the upgrade"));
    };
    check!(hold.mode == Mode::Exclusive, "shown as {}", hold.mode);
    let guard = Arc::into_inner(upgradable).ok_or(Failure::new("the guard is in use"))?;
    guard.release().await?;
    let writer = case.soon("the writer's turn", waiting).await???;
    expect_greater(&writer, token)?;
    Ok(writer.release().await?)
}

/// Starts a task that sends the token of its grant while it holds.
async fn start_writer(
    case: &Case,
    lock: Lock,
    granted: &mpsc::UnboundedSender<u64>,
) -> JoinHandle<Result<(), Error>> {
    let granted = granted.clone();
    let write = async move {
        let guard = lock.acquire().await?;
        let _ = granted.send(guard.token().get());
        guard.release().await
    };
    case.start(write).await
}

/// Rule 7: all who waited before an upgrade or came after it have greater tokens than the upgrade, although their requests may
/// be older; so has the upgrade, compared with all who held before it.
pub(super) async fn tokens_grow_over_an_upgrade_for_all_who_waited(case: Arc<Case>) -> Verdict {
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(case.client().await?);
    }
    let locks = Locks::new(&case, "tokens");
    for (has_reader, early) in [(false, 3), (true, 0), (true, 1), (true, 4)] {
        let lock = locks.exclusive(&clients[0]).upgradable();
        let upgradable = Arc::new(case.soon("a holder", lock.acquire()).await??);
        let mut last = upgradable.token().get();
        let (granted, mut grants) = mpsc::unbounded_channel();
        let reader = match has_reader {
            true => Some(locks.reader(&clients[5]).await?),
            false => None,
        };
        last = last.max(reader.as_ref().map_or(0, |reader| reader.token().get()));
        let mut waiting = Vec::new();
        for client in &clients[1..=early] {
            let lock = locks.exclusive(client);
            waiting.push(start_writer(&case, lock, &granted).await);
            case.until_waiting(&locks.name, waiting.len()).await?;
        }
        let upgrading = {
            let guard = upgradable.clone();
            case.start(async move { guard.upgrade().await }).await
        };
        if let Some(reader) = reader {
            reader.release().await?;
        }
        case.soon("the upgrade", upgrading).await???;
        last = expect_greater(&upgradable, last)?;
        let lock = locks.exclusive(&clients[5]);
        waiting.push(start_writer(&case, lock, &granted).await);
        case.until_waiting(&locks.name, early + 1).await?;
        check!(
            grants.try_recv().is_err(),
            "a writer beside the upgraded holder"
        );
        let guard = Arc::into_inner(upgradable).ok_or(Failure::new("the guard is in use"))?;
        guard.release().await?;
        for waiter in waiting {
            case.soon("the turn of each writer", waiter).await???;
            let token = grants.recv().await.unwrap_or_default();
            check!(token > last, "{token} follows {last}");
            last = token;
        }
    }
    Ok(())
}

/// Rule 7: readers that waited for an upgraded holder come in at the same moment, each with a token of its own.
pub(super) async fn readers_who_waited_for_an_upgraded_holder_come_in_together(
    case: Arc<Case>,
) -> Verdict {
    const READERS: usize = 8;
    let (first, second) = (case.client().await?, case.client().await?);
    let locks = Locks::new(&case, "together");
    let upgradable = locks.upgradable(&first).await?;
    // The writer keeps the readers behind it, so that all of them are there before the upgrade.
    let writer = case.start_acquire(locks.exclusive(&second)).await;
    case.until_waiting(&locks.name, 1).await?;
    let mut readers = Vec::new();
    for count in 2..READERS + 2 {
        let client = case.client().await?;
        readers.push(case.start_acquire(locks.shared(&client)).await);
        case.until_waiting(&locks.name, count).await?;
    }
    case.soon("the upgrade", upgradable.upgrade()).await??;
    let last = upgradable.token().get();
    writer.abort();
    upgradable.release().await?;
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(case.soon("each reader comes in", reader).await???);
    }
    let mut tokens = Vec::new();
    for guard in guards {
        tokens.push(expect_greater(&guard, last)?);
        check!(guard.is_held(), "a reader was lost");
        guard.release().await?;
    }
    tokens.sort_unstable();
    tokens.dedup();
    check!(tokens.len() == READERS, "of {READERS} readers: {tokens:?}");
    Ok(())
}

/// Returns when the store shows the hold with its token, which may be a moment after the grant.
async fn until_shown(case: &Case, client: &Client, guard: &Guard) -> Verdict {
    let (name, token) = (guard.name().as_str(), guard.token());
    case.soon("the hold is shown with its token", async {
        loop {
            let holds = client.inspect(name).await?.holds;
            if holds.iter().any(|hold| hold.token == Some(token)) {
                return Ok(());
            }
            case.look_again().await;
        }
    })
    .await?
}

/// Breaks the hold of that guard by its token. A store that is about to upgrade another hold may refuse that for a moment.
async fn break_hold(case: &Case, client: &Client, guard: &Guard) -> Verdict {
    let (name, token) = (guard.name().as_str(), guard.token());
    case.until_broken(client, name, token.get()).await?;
    let again = client.break_lock(name, token).await?;
    check!(!again, "{token} was broken twice");
    Ok(())
}

/// Rule 13: `break_lock` ends a reader while an upgrade waits for two, and an upgraded hold by its new token and not by the
/// former one, also after a downgrade.
pub(super) async fn an_upgraded_hold_is_broken_by_its_new_token(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    for is_downgraded in [false, true] {
        let locks = Locks::new(&case, &format!("broken-{is_downgraded}"));
        let upgradable = locks.exclusive(&first).upgradable().ttl(case.ttl());
        let upgradable = Arc::new(upgradable.acquire().await?);
        let former = upgradable.token();
        let broken = locks.shared(&second).ttl(case.ttl()).acquire().await?;
        let reader = locks.reader(&second).await?;
        let upgrading = {
            let guard = upgradable.clone();
            case.start(async move { guard.upgrade().await }).await
        };
        break_hold(&case, &first, &broken).await?;
        // Each of the two is told in one of the rounds: that takes a part of the lease.
        if !is_downgraded {
            let told = case.in_time(case.ttl(), "the reader is told", broken.lost());
            let reason = told.await?;
            let is_due = matches!(
                reason,
                Some(LostReason::TakenOver | LostReason::StoreSaysNo)
            );
            check!(is_due, "lost because {reason:?}");
        }
        check!(reader.is_held(), "both readers were broken");
        check!(!upgrading.is_finished(), "exclusive beside a reader");
        let last = reader.token().get();
        reader.release().await?;
        case.soon("the upgrade", upgrading).await???;
        expect_greater(&upgradable, last)?;
        if is_downgraded {
            upgradable.downgrade().await?;
        }
        until_shown(&case, &second, &upgradable).await?;
        check!(
            !second.break_lock(&locks.name, former).await?,
            "the former token names the hold"
        );
        break_hold(&case, &second, &upgradable).await?;
        if is_downgraded {
            let told = case.in_time(case.ttl(), "the holder is told", upgradable.lost());
            told.await?;
        }
        case.until_idle(&locks.name).await?;
    }
    Ok(())
}

/// An upgrade that need not wait, one that may not wait, and one of a hold that is exclusive already.
pub(super) async fn an_upgrade_without_other_holders_is_immediate(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let locks = Locks::new(&case, "alone");
    let upgradable = locks.upgradable(&first).await?;
    let reader = locks.reader(&second).await?;
    check!(
        !upgradable.try_upgrade().await?,
        "exclusive beside a reader"
    );
    check!(reader.is_held() && upgradable.is_held(), "a hold was lost");
    let more = locks.reader(&second).await?;
    more.release().await?;
    reader.release().await?;
    let before = upgradable.token().get();
    check!(upgradable.try_upgrade().await?, "refused without others");
    let token = expect_greater(&upgradable, before)?;
    case.soon("nothing to do", upgradable.upgrade()).await??;
    check!(upgradable.token().get() == token, "the token changed");
    expect_busy(locks.shared(&second), "a reader beside an exclusive holder").await?;
    upgradable.release().await?;
    case.acquire_and_release(&second, &locks.name).await
}

/// Rule 15: an upgrade may be dropped at each await. Then the hold is upgradable, and readers come in again.
pub(super) async fn a_dropped_upgrade_leaves_an_upgradable_hold(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let locks = Locks::new(&case, "dropped");
    for is_contended in [true, false] {
        for polls in 1..=8 {
            let lock = locks.exclusive(&first).upgradable();
            let upgradable = case.soon("a holder", lock.acquire()).await??;
            let reader = match is_contended {
                true => Some(locks.reader(&second).await?),
                false => None,
            };
            poll_and_drop(upgradable.upgrade(), polls).await?;
            if upgradable.mode() == Mode::Exclusive {
                check!(!is_contended, "exclusive beside a reader");
                upgradable.release().await?;
                continue;
            }
            if let Some(reader) = reader {
                check!(reader.is_held(), "the reader lost its hold");
                reader.release().await?;
            }
            let lock = locks.shared(&second);
            let reader = case.soon("a reader after it", lock.acquire()).await??;
            check!(upgradable.is_held(), "the upgradable hold was lost");
            let other = locks.exclusive(&second).upgradable();
            expect_busy(other, "two upgradable holders").await?;
            reader.release().await?;
            case.soon("the upgrade", upgradable.upgrade()).await??;
            upgradable.release().await?;
        }
    }
    case.acquire_and_release(&second, &locks.name).await
}

/// Polls the future so many times, unless it is ready before, and drops it.
async fn poll_and_drop(future: impl Future<Output = Result<(), Error>>, polls: usize) -> Verdict {
    let mut future = pin!(future);
    for _ in 0..polls {
        match poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
            Poll::Ready(output) => return Ok(output?),
            Poll::Pending => tokio::task::yield_now().await,
        }
    }
    Ok(())
}

/// A downgrade waits for no other holder, keeps the token, lets readers in, and keeps writers out.
pub(super) async fn a_downgrade_lets_readers_in(case: Arc<Case>) -> Verdict {
    let (first, second, third) = (
        case.client().await?,
        case.client().await?,
        case.client().await?,
    );
    let locks = Locks::new(&case, "downgrade");
    for is_upgraded in [false, true] {
        let guard = match is_upgraded {
            false => locks.exclusive(&first).acquire().await?,
            true => {
                let guard = locks.upgradable(&first).await?;
                guard.upgrade().await?;
                guard
            }
        };
        let token = guard.token();
        let waiting = case.start_acquire(locks.shared(&second)).await;
        case.until_waiting(&locks.name, 1).await?;
        case.soon("the downgrade", guard.downgrade()).await??;
        check!(guard.mode() == Mode::Shared, "not shared");
        check!(guard.token() == token, "the token changed");
        let reader = case.soon("the reader's turn", waiting).await???;
        expect_busy(locks.exclusive(&third), "a writer beside two readers").await?;
        guard.downgrade().await?;
        expect_error(guard.upgrade().await, ErrorKind::Invalid)?;
        check!(guard.is_held() && reader.is_held(), "a hold was lost");
        guard.release().await?;
        reader.release().await?;
    }
    case.acquire_and_release(&third, &locks.name).await
}

/// A hold that is shared or a permit, several names, and a second entry of the same owner: refused, and told why.
pub(super) async fn a_change_of_mode_that_cannot_be_is_refused(case: Arc<Case>) -> Verdict {
    let client = case.client().await?;
    let locks = Locks::new(&case, "refused");
    let shared = locks.reader(&client).await?;
    let refused = shared.upgrade().await;
    let text = refused.as_ref().map_err(ToString::to_string).err();
    check!(
        text.is_some_and(|text| text.contains("upgradable()")),
        "the error does not name the remedy"
    );
    expect_error(refused, ErrorKind::Invalid)?;
    shared.release().await?;
    let names = [case.name("many-a"), case.name("many-b")];
    let many = client.lock_all(names).upgradable().acquire().await?;
    expect_error(many.upgrade().await, ErrorKind::Invalid)?;
    many.release().await?;
    let owner = crate::owner::Owner::new();
    let lock = locks.exclusive(&client).owner(&owner);
    let (outer, inner) = (lock.acquire().await?, lock.acquire().await?);
    expect_error(inner.downgrade().await, ErrorKind::Invalid)?;
    inner.release().await?;
    outer.downgrade().await?;
    Ok(outer.release().await?)
}

/// Rule 5: an upgrade whose hold ends while it waits says so, and leaves nothing.
pub(super) async fn an_upgrade_ends_with_its_hold(case: Arc<Case>) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let locks = Locks::new(&case, "ends");
    let reader = locks.reader(&second).await?;
    let upgradable = Arc::new(locks.upgradable(&first).await?);
    let token = upgradable.token().get();
    let upgrading = {
        let guard = upgradable.clone();
        case.start(async move { guard.upgrade().await }).await
    };
    case.soon("readers are refused", async {
        while let Some(reader) = locks.shared(&second).try_acquire().await? {
            reader.release().await?;
            case.look_again().await;
        }
        Ok::<_, Failure>(())
    })
    .await??;
    case.until_broken(&second, &locks.name, token).await?;
    let ended = case.in_time(case.long(), "the end", upgrading).await??;
    expect_error(ended, ErrorKind::Lost)?;
    let lock = locks.shared(&second);
    let beside = case
        .soon("a reader after the end", lock.acquire())
        .await??;
    beside.release().await?;
    check!(reader.is_held(), "the reader lost its hold");
    reader.release().await?;
    case.acquire_and_release(&second, &locks.name).await
}

/// Rule 15: when the answer to an upgrade is lost, the hold counts as upgradable, and the store agrees in the end.
pub(super) async fn an_upgrade_without_an_answer_leaves_an_upgradable_hold(
    case: Arc<Case>,
) -> Verdict {
    let (first, second) = (case.client().await?, case.client().await?);
    let locks = Locks::new(&case, "answer");
    for fault in [RequestFault::RequestLost, RequestFault::ReplyLost] {
        let upgradable = locks.upgradable(&first).await?;
        case.disturb(Step::Upgrade, fault).await?;
        if upgradable.upgrade().await.is_err() {
            check!(
                upgradable.mode() == Mode::Upgradable,
                "exclusive by an error"
            );
            let lock = locks.shared(&second);
            let reader = case.soon("a reader after it", lock.acquire()).await??;
            reader.release().await?;
            case.soon("the upgrade", upgradable.upgrade()).await??;
        }
        check!(upgradable.is_held(), "the hold was lost");
        upgradable.release().await?;
    }
    case.acquire_and_release(&second, &locks.name).await
}
