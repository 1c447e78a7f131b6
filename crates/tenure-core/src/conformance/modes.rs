//! Shared holders and permits: part of rules 1, 8 and 10.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::case::{Case, expect_greater};
use super::failure::{Failure, Verdict, check};

/// Rule 1: shared holders of several clients hold together, and no exclusive holder at the same time.
pub(super) async fn shared_holders_go_together(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("shared").await?;
    let shared = |client: &crate::Client| client.lock(&name).ttl(case.long()).shared();
    let mut guards = Vec::new();
    for client in [&first, &first, &second] {
        let guard = shared(client).try_acquire().await?;
        guards.push(guard.ok_or(Failure::new("a shared holder was refused"))?);
    }
    check!(
        case.count_contenders(&name).await?.holders == 3,
        "{:?}",
        case.count_contenders(&name).await?
    );
    let status = second.inspect(&name).await?;
    check!(
        status.holds.len() == 3,
        "three hold, and {} are shown",
        status.holds.len()
    );
    while let Some(guard) = guards.pop() {
        for client in [&first, &second] {
            let alone = client.lock(&name).try_acquire().await?;
            check!(
                alone.is_none(),
                "somebody holds alone beside {} others",
                guards.len() + 1
            );
        }
        guard.release().await?;
    }
    let alone = case.take(&first, &name).await?;
    for client in [&first, &second] {
        let beside = shared(client).try_acquire().await?;
        check!(
            beside.is_none(),
            "a shared holder beside one that holds alone"
        );
    }
    Ok(alone.release().await?)
}

/// Rule 1: among many readers and writers, a writer never holds together with another holder.
pub(super) async fn readers_and_a_writer_never_meet(case: Arc<Case>) -> Verdict {
    const WRITER: u64 = 1 << 32;
    let name = case.name("crowd");
    let inside = Arc::new(AtomicU64::new(0));
    let mut crowd = Vec::new();
    for i in 0..6 {
        let client = case.client().await?;
        let writes = i % 3 == 0;
        let lock = client.lock(&name).ttl(case.ttl() * 100);
        let lock = if writes { lock } else { lock.shared() };
        let inside = inside.clone();
        crowd.push(tokio::spawn(async move {
            for _ in 0..15 {
                let guard = lock.acquire().await?;
                let weight = if writes { WRITER } else { 1 };
                let others = inside.fetch_add(weight, Ordering::SeqCst);
                let alone = others == 0 || !writes && others < WRITER;
                check!(alone, "writer: {writes}, and {others:#x} are inside");
                tokio::time::sleep(Duration::from_micros(200)).await;
                inside.fetch_sub(weight, Ordering::SeqCst);
                guard.release().await?;
            }
            Ok(())
        }));
    }
    for one in crowd {
        case.soon("everybody has their turns", one).await???;
    }
    Ok(())
}

/// Rule 10: readers that follow each other without a gap do not keep a writer out.
pub(super) async fn a_writer_is_not_starved(case: Arc<Case>) -> Verdict {
    let (client, name) = (case.client().await?, case.name("starve"));
    let written = Arc::new(AtomicBool::new(false));
    let mut readers = Vec::new();
    for _ in 0..3 {
        let client = case.client().await?;
        let lock = client.lock(&name).ttl(case.ttl() * 100).shared();
        let mut held = lock.acquire().await?;
        let written = written.clone();
        readers.push(tokio::spawn(async move {
            // Takes the next hold before it lets go of this one, for as long as that is possible.
            while !written.load(Ordering::SeqCst) {
                match lock.clone().wait(Duration::from_millis(1)).acquire().await {
                    Ok(next) => held = next,
                    Err(_) => break,
                }
                tokio::task::yield_now().await;
            }
            held.release().await
        }));
    }
    let lock = client.lock(&name).ttl(case.ttl());
    let writer = case
        .in_time(case.ttl(), "the writer's turn", lock.acquire())
        .await??;
    written.store(true, Ordering::SeqCst);
    writer.release().await?;
    for reader in readers {
        case.soon("the reader ends", reader).await???;
    }
    Ok(())
}

/// Rule 10: a reader that could go with the holder waits behind a writer that came before it, and comes in when that writer
/// is done or has left the queue.
pub(super) async fn a_reader_does_not_overtake_a_waiting_writer(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("overtaken").await?;
    let third = case.client().await?;
    let lock = |client: &crate::Client| client.lock(&name).ttl(case.long());
    for writer_leaves in [false, true] {
        let acquire = lock(&first).shared();
        let reader = case.soon("the reader", acquire.acquire()).await??;
        let mut last = reader.token().get();
        let writer = case.start_acquire(lock(&second)).await;
        case.until_waiting(&name, 1).await?;
        for client in [&first, &third] {
            let tried = lock(client).shared().try_acquire().await?;
            check!(tried.is_none(), "a reader overtook the writer");
        }
        let late = case.start_acquire(lock(&third).shared()).await;
        case.until_waiting(&name, 2).await?;
        let mut holder = Some(reader);
        if writer_leaves {
            writer.abort();
        } else if let Some(reader) = holder.take() {
            reader.release().await?;
            let writer = case.soon("the writer's turn", writer).await???;
            check!(!late.is_finished(), "a reader beside a writer");
            last = expect_greater(&writer, last)?;
            writer.release().await?;
        }
        let late = case.soon("the reader's turn", late).await???;
        expect_greater(&late, last)?;
        late.release().await?;
        if let Some(reader) = holder {
            check!(reader.is_held(), "the first reader lost its hold");
            reader.release().await?;
        }
    }
    Ok(())
}

/// Rule 1: of twenty contenders no more than three hold one of three permits.
pub(super) async fn permits_never_exceed_their_limit(case: Arc<Case>) -> Verdict {
    const LIMIT: u32 = 3;
    let name = case.name("permits");
    let inside = Arc::new(AtomicU64::new(0));
    let mut crowd = Vec::new();
    for _ in 0..4 {
        let client = case.client().await?;
        for _ in 0..5 {
            let lock = client.lock(&name).ttl(case.ttl() * 100).permits(LIMIT);
            let inside = inside.clone();
            crowd.push(tokio::spawn(async move {
                for _ in 0..5 {
                    let guard = lock.acquire().await?;
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    check!(others < u64::from(LIMIT), "{} hold a permit", others + 1);
                    tokio::time::sleep(Duration::from_micros(200)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await?;
                }
                Ok(())
            }));
        }
    }
    for one in crowd {
        case.soon("everybody has their turns", one).await???;
    }
    Ok(())
}

/// Rule 8: all permits can be held at a time, and a released permit goes to a waiter.
pub(super) async fn a_permit_goes_to_the_next_waiter(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("next").await?;
    let lock = first.lock(&name).ttl(case.ttl() * 10).permits(3);
    let mut guards = Vec::new();
    for _ in 0..3 {
        let guard = lock.try_acquire().await?;
        guards.push(guard.ok_or(Failure::new("fewer permits than the limit"))?);
    }
    let theirs = second.lock(&name).ttl(case.ttl() * 10).permits(3);
    check!(
        theirs.try_acquire().await?.is_none(),
        "four of three permits"
    );
    let waiting = case.start(async move { theirs.acquire().await }).await;
    guards.remove(1).release().await?;
    let next = case
        .in_time(case.ttl(), "the waiter's turn", waiting)
        .await???;
    check!(
        guards.iter().all(|guard| guard.token() < next.token()),
        "the token did not grow"
    );
    check!(lock.try_acquire().await?.is_none(), "four of three permits");
    guards.push(next);
    for guard in guards {
        check!(guard.is_held(), "a permit was lost");
        guard.release().await?;
    }
    Ok(())
}

/// Rule 1: a permit is not held together with an exclusive hold.
pub(super) async fn permits_and_exclusive_never_meet(case: Arc<Case>) -> Verdict {
    let (first, second, name) = case.two_clients("mixed").await?;
    let permit = first
        .lock(&name)
        .ttl(case.ttl() * 10)
        .permits(2)
        .acquire()
        .await?;
    let alone = second.lock(&name).ttl(case.ttl() * 10);
    check!(
        alone.try_acquire().await?.is_none(),
        "alone beside a permit"
    );
    permit.release().await?;
    let guard = alone
        .try_acquire()
        .await?
        .ok_or(Failure::new("not free after the permit"))?;
    let tried = first.lock(&name).permits(2).try_acquire().await?;
    check!(tried.is_none(), "a permit beside one who holds alone");
    Ok(guard.release().await?)
}
