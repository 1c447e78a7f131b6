//! The locks without async: threads, interrupts, loss.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tenure::blocking::{Client, Interrupt};
use tenure::guarantees::Capability;
use tenure::memory;
use tenure::{ErrorKind, LostReason, Owner, Receipt};

fn store() -> (memory::Store, Client) {
    let store = memory::Store::new();
    let client = Client::from_store(store.clone()).unwrap();
    (store, client)
}

#[test]
fn threads_exclude_each_other_and_lose_no_count() {
    let (store, client) = store();
    let count = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let guard = client.lock("a").acquire().unwrap();
                    let seen = count.load(std::sync::atomic::Ordering::Relaxed);
                    std::thread::yield_now();
                    count.store(seen + 1, std::sync::atomic::Ordering::Relaxed);
                    guard.release().unwrap();
                }
            });
        }
    });
    assert_eq!(count.into_inner(), 800);
    assert!(store.is_idle());
}

/// A listener that would stay after a release would keep what it owns, one for each hold.
#[test]
fn listeners_for_a_loss_end_with_the_hold() {
    let (_store, client) = store();
    let alive = Arc::new(());
    for round in 0..1_000 {
        let guard = client.lock("a").acquire().unwrap();
        let own = alive.clone();
        guard.on_lost(move |_| drop(own));
        match round % 2 {
            0 => guard.release().unwrap(),
            _ => drop(guard),
        }
    }
    let end = Instant::now() + Duration::from_secs(60);
    while Arc::strong_count(&alive) > 1 {
        assert!(Instant::now() < end, "{}", Arc::strong_count(&alive));
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_enters_again_and_another_does_not() {
    let (store, client) = store();
    let outer = client.lock("a").acquire().unwrap();
    let inner = client.lock("a").try_acquire().unwrap().unwrap();
    assert_eq!(outer.token(), inner.token());
    outer.release().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| client.lock("a").try_acquire().unwrap().is_some());
        assert!(!other.join().unwrap());
    });
    inner.release().unwrap();
    assert!(store.is_idle());
}

#[test]
fn an_explicit_owner_takes_the_place_of_the_thread() {
    let (_store, client) = store();
    let owner = Owner::new();
    let _guard = client.lock("a").owner(&owner).acquire().unwrap();
    assert!(client.lock("a").try_acquire().unwrap().is_none());
    std::thread::scope(|scope| {
        let same = scope.spawn(|| {
            client
                .lock("a")
                .owner(&owner)
                .try_acquire()
                .unwrap()
                .is_some()
        });
        assert!(same.join().unwrap());
    });
}

#[test]
fn a_wait_can_be_interrupted_and_leaves_nothing() {
    let (store, client) = store();
    let guard = client.lock("a").acquire().unwrap();
    let interrupt = Interrupt::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            client
                .lock("a")
                .interrupted_by(&interrupt)
                .acquire()
                .map(drop)
        });
        while client
            .inspect("a")
            .unwrap()
            .queue
            .is_none_or(|queue| queue.is_empty())
        {
            std::thread::yield_now();
        }
        interrupt.raise();
        assert_eq!(
            waiting.join().unwrap().unwrap_err().kind(),
            ErrorKind::Interrupted
        );
    });
    guard.release().unwrap();
    assert!(store.is_idle());
}

#[test]
fn a_wait_that_is_over_names_the_holder() {
    let (_store, client) = store();
    let _guard = client.lock("a").label("why").acquire().unwrap();
    std::thread::scope(|scope| {
        let lock = client.lock("a").wait(Duration::from_millis(20));
        let err = scope
            .spawn(move || lock.acquire().unwrap_err())
            .join()
            .unwrap();
        assert_eq!(err.kind(), ErrorKind::WaitElapsed);
        assert_eq!(err.holder().unwrap().label, "why");
    });
}

#[test]
fn the_listener_hears_of_a_loss_and_run_cannot_look_like_success() {
    let (store, client) = store();
    let (told, hears) = mpsc::channel();
    let err = client
        .lock("a")
        .run(|guard| {
            guard.on_lost(move |reason| told.send(reason).unwrap());
            assert!(client.break_lock("a", guard.token()).unwrap());
            assert_eq!(hears.recv().unwrap(), LostReason::TakenOver);
            assert!(!guard.is_held());
        })
        .unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Lost);
    assert!(store.is_idle());
}

#[test]
fn several_names_and_all_options_are_there() {
    let (store, client) = store();
    let guard = client
        .lock_all(["b", "a"])
        .ttl(Duration::from_secs(5))
        .acquire()
        .unwrap();
    assert_eq!(guard.tokens().count(), 2);
    let lock = client.lock_any(["a", "c"]);
    std::thread::scope(|scope| {
        let any = scope.spawn(|| lock.acquire().unwrap().name().as_str().to_owned());
        assert_eq!(any.join().unwrap(), "c");
    });
    drop(guard);
    assert!(store.is_idle());
}

#[tokio::test]
async fn inside_async_code_it_is_refused_instead_of_blocking_the_runtime() {
    let err = tenure::blocking::connect("memory:").unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Closed);
    assert!(format!("{err:#}").contains("async"), "{err}");
}

#[test]
fn a_client_may_be_dropped_inside_async_code() {
    let (_store, client) = store();
    let guard = client.lock("a").acquire().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async move { drop((client, guard)) });
}

#[test]
fn try_run_skips_what_is_busy_and_threads_count_their_entries() {
    let (store, client) = store();
    let lock = client.lock("a");
    let owner = Owner::new();
    let ran = lock.try_run(|outer| {
        let inner = lock.acquire().unwrap();
        assert_eq!(client.holds("a"), 2);
        assert_eq!(outer.token(), inner.token());
        let busy = client.lock("a").owner(&owner);
        assert_eq!(busy.try_run(|_| 7).unwrap(), None);
        assert_eq!(client.holds_by(&owner, "a"), 0);
        inner.release().unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| client.holds("a"));
            assert_eq!(other.join().unwrap(), 0);
        });
        client.holds("a")
    });
    assert_eq!(ran.unwrap(), Some(1));
    assert_eq!(client.holds("a"), 0);
    let guard = client.lock("a").owner(&owner).acquire().unwrap();
    assert_eq!(client.holds_by(&owner, "a"), 1);
    guard.release().unwrap();
    assert!(store.is_idle());
}

#[test]
fn a_client_is_made_of_a_builder_or_of_a_store_behind_a_pointer() {
    let store = memory::Store::new();
    let builder = tenure::Client::builder(store.clone()).prefix("app/");
    let client = Client::from_builder(builder).unwrap();
    let guard = client.lock("a").acquire().unwrap();
    assert_eq!(guard.name().as_str(), "app/a");
    assert_eq!(guard.owner_ids().collect::<Vec<_>>(), [guard.owner_id()]);
    let other = Client::from_dyn_store(std::sync::Arc::new(store)).unwrap();
    assert!(other.lock("app/a").try_acquire().unwrap().is_none());
    guard.release().unwrap();
}

#[test]
fn a_client_tells_of_every_loss() {
    let (_store, client) = store();
    let (tell, told) = mpsc::channel();
    let callback = client.on_lost(move |loss| tell.send(loss.clone()).unwrap());
    let guard = client.lock("a").acquire().unwrap();
    assert!(client.break_lock("a", guard.token()).unwrap());
    let loss = told.recv_timeout(Duration::from_secs(60)).unwrap();
    assert_eq!(loss.token, guard.token());
    assert_eq!(loss.reason, LostReason::TakenOver);
    callback.unregister();
    assert!(told.recv().is_err());
}

#[test]
fn after_the_end_of_a_transaction_the_lock_goes_or_is_kept() {
    let store = memory::Store::with_virtual_clock();
    let client = Client::from_store(store.clone()).unwrap();
    let take = || client.lock("a").owner(&Owner::new()).try_acquire().unwrap();
    let guard = take().unwrap();
    let done = guard.after(|| {
        assert!(take().is_none());
        Ok::<_, std::io::Error>(42)
    });
    assert_eq!(done.unwrap(), 42);
    assert!(store.is_idle());
    let unknown = take()
        .unwrap()
        .after(|| Err::<(), _>("the connection broke"));
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::Indeterminate);
    assert!(take().is_none(), "kept");
    store.advance(Duration::from_secs(30));
    let guard = take().unwrap();
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _: Result<(), _> =
            guard.after(|| -> Result<(), std::io::Error> { panic!("a test panics") });
    }));
    assert!(panics.is_err());
    assert!(take().is_none(), "kept");
    // In async code the transaction's end is not started, and the lock is released.
    store.advance(Duration::from_secs(30));
    let guard = take().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let refused = runtime
        .block_on(async { guard.after(|| -> Result<(), std::io::Error> { panic!("begun") }) });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Closed);
    assert!(take().is_some());
}

#[test]
fn threads_lead_one_after_the_other_and_observers_see_each_leader() {
    let (store, client) = store();
    let mut observer = client.election("e").observe();
    assert!(observer.next().unwrap().unwrap().is_none());
    let election = client.election("e").ttl(Duration::from_secs(30));
    for value in ["a", "b"] {
        let term = election.clone().value(value).campaign().unwrap();
        let leader = observer.next().unwrap().unwrap().unwrap();
        assert_eq!(leader.value(), Some(value));
        assert_eq!(leader.token, Some(term.token()));
        assert_eq!(election.leader().unwrap().unwrap().token, leader.token);
        // The same thread, which is no owner here, waits as any other.
        let interrupt = Interrupt::new();
        interrupt.raise();
        let second = election.clone().interrupted_by(&interrupt).campaign();
        assert_eq!(second.unwrap_err().kind(), ErrorKind::Interrupted);
        term.proclaim(format!("{value}2")).unwrap();
        let leader = observer.next().unwrap().unwrap().unwrap();
        assert_eq!(leader.value(), Some(&*format!("{value}2")));
        let unchanged = observer.next_timeout(Duration::from_millis(5)).unwrap();
        assert_eq!(unchanged.unwrap_err().kind(), ErrorKind::WaitElapsed);
        term.resign().unwrap();
        let next = observer.next_timeout(Duration::from_secs(60)).unwrap();
        assert!(next.unwrap().is_none());
    }
    assert!(store.is_idle());
    client.close().unwrap();
    assert!(observer.next().is_none());
    assert!(observer.next_timeout(Duration::from_secs(60)).is_none());
}

#[test]
fn an_interrupt_ends_the_waits_of_an_election() {
    let (store, client) = store();
    let term = client.election("e").campaign().unwrap();
    let interrupt = Interrupt::new();
    let election = client.election("e").interrupted_by(&interrupt);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| election.run(|_| Ok::<_, &str>(())));
        let mut observer = election.observe();
        assert!(observer.next().unwrap().unwrap().is_some());
        let observing = scope.spawn(move || observer.next().unwrap().map(drop));
        while client.inspect("e").unwrap().queue.unwrap().is_empty() {
            std::thread::yield_now();
        }
        interrupt.raise();
        for outcome in [run.join().unwrap(), observing.join().unwrap()] {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Interrupted);
        }
    });
    term.resign().unwrap();
    assert!(store.is_idle());
}

#[test]
fn a_leader_in_a_thread_is_asked_to_resign_and_stands_again_after_a_failure() {
    let (store, client) = store();
    let election = client.election("e").value("v");
    let mut terms = Vec::new();
    let done = std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            loop {
                // A request of another client, in the second term.
                match election.leader().unwrap().and_then(|leader| leader.token) {
                    Some(token) if token.get() > 1 => break election.ask_to_resign().unwrap(),
                    _ => std::thread::yield_now(),
                }
            }
        });
        let done = election.run(|term| {
            terms.push(term.token().get());
            if terms.len() == 1 {
                return Err("out of order");
            }
            assert!(term.asked_to_resign().unwrap());
            assert!(term.is_asked_to_resign());
            assert!(term.guard().is_asked_to_release());
            Ok(terms.len())
        });
        assert!(asking.join().unwrap().is_some());
        done
    });
    assert_eq!(done.unwrap(), 2);
    assert_eq!(terms, [1, 2]);
    let guard = client.lock("e").acquire().unwrap();
    assert!(!guard.is_asked_to_release());
    client.election("e").ask_to_resign().unwrap();
    assert!(guard.asked_to_release().unwrap() && guard.is_asked_to_release());
    guard.release().unwrap();
    assert!(store.is_idle());
}

#[test]
fn a_term_that_was_lost_is_no_success_of_run() {
    let (_store, client) = store();
    let election = client.election("e");
    let (told, hears) = mpsc::channel();
    let run = election.run(|term| {
        let told = told.clone();
        term.on_lost(move |reason| told.send(reason).unwrap());
        assert!(client.break_lock("e", term.token()).unwrap());
        assert_eq!(hears.recv().unwrap(), LostReason::TakenOver);
        assert!(!term.is_leader());
        assert!(!term.asked_to_resign().unwrap());
        Ok::<_, &str>(())
    });
    assert_eq!(run.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn a_hold_is_detached_in_one_client_and_released_in_another() {
    let store = memory::Store::new();
    let [one, other] = [(); 2].map(|()| Client::from_store(store.clone()).unwrap());
    assert_eq!(one.address(), other.address());
    one.require(Capability::Detach).unwrap();
    let guard = one.lock("a").acquire().unwrap();
    let token = guard.token();
    let receipt = guard.detach().unwrap();
    assert_eq!(receipt.store(), one.address());
    one.close().unwrap();
    let receipt: Receipt = receipt.to_string().parse().unwrap();
    let guard = other.attach(&receipt).unwrap();
    assert_eq!(guard.token(), token);
    assert!(
        other
            .lock("a")
            .owner(&Owner::new())
            .try_acquire()
            .unwrap()
            .is_none()
    );
    let again = guard.detach().unwrap();
    assert_eq!(again, receipt);
    other.attach(again).unwrap().release().unwrap();
    let lost = other.attach(receipt).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(store.is_idle());
}

/// A thread that has entered a lock twice counts on the guard that is left.
#[test]
fn a_thread_that_has_entered_twice_detaches_nothing() {
    let (_store, client) = store();
    let outer = client.lock("a").acquire().unwrap();
    let inner = client.lock("a").acquire().unwrap();
    assert_eq!(inner.detach().unwrap_err().kind(), ErrorKind::Invalid);
    assert!(outer.is_held());
    outer.detach().unwrap();
    assert!(client.lock("a").try_acquire().unwrap().is_none());
}
