//! Waiting: one plain thread per contended name, blocked in the kernel's lock call.
//!
//! Polling would starve waiters (an eager process takes the lock back before anybody looks again), and a
//! runtime's blocking pool would keep the program from ending while one of them waits.
//!
//! A blocked lock call cannot be called off. So a waiter who gives up leaves its thread where it is:
//! a later waiter for the same name takes the free seat, and a thread that wins with an empty seat
//! unlocks at once. A thread that has delivered stays for [`LINGER`], ready to wait for the same name again.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_core::backend::Request;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{self, Clock, lock};

use super::Inner;
use super::dir::{Id, Locked, Opened, Spot};
use super::hold::{self, Held, Kind, Taken};

/// How long a thread without work is kept: longer than the gap between two waits for a busy name,
/// short enough that nobody finds idle threads in a quiet program.
const LINGER: Duration = Duration::from_secs(1);
/// How often a waiter looks whether the file its thread is blocked on is still the right one. It is not after
/// `break` or when somebody replaced it by hand, and the kernel does not wake those who wait for the old one.
const REPLACED_CHECK: Duration = Duration::from_secs(1);
/// How late a free permit is noticed at most: permits are the one thing that cannot be waited for in the kernel.
const PERMIT_PAUSE: Duration = Duration::from_millis(20);

/// All threads of a client that wait or have waited.
#[derive(Debug, Default)]
pub(super) struct Posts(Mutex<HashMap<(String, Kind), Arc<Post>>>);

/// One thread's post: the seat in front of it and the bell that wakes it when it is not blocked in the kernel.
#[derive(Debug, Default)]
struct Post {
    desk: Mutex<Desk>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Desk {
    seat: Option<Seat>,
    /// Number of the next waiter.
    next: u64,
    /// The file that the thread is blocked on.
    blocked_on: Option<Id>,
    /// The thread has ended or is about to; no seat here.
    closed: bool,
}

#[derive(Debug)]
struct Seat {
    number: u64,
    request: Arc<Request>,
    outcome: Option<Result<Box<Held>, Error>>,
    waker: Option<Waker>,
}

/// Somebody who sits at a post. Leaves it when dropped; what was delivered and not taken is given back.
struct Waiter {
    post: Arc<Post>,
    number: u64,
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let left = {
            let mut desk = lock(&self.post.desk);
            desk.seat.take_if(|seat| seat.number == self.number)
        };
        self.post.bell.notify_one();
        if let Some(Ok(held)) = left.and_then(|seat| seat.outcome) {
            held.give_back(false);
        }
    }
}

/// Waits until `request` is granted. `None` once it was stopped.
pub(super) async fn wait(
    inner: &Arc<Inner>,
    request: &Arc<Request>,
    spot: &Spot,
) -> Result<Option<Box<Held>>, Error> {
    let mut stopped = pin!(request.stop.raised());
    loop {
        let waiter = sit_down(inner, request, spot)?;
        let mut check = pin!(check_later());
        let granted = std::future::poll_fn(|cx| {
            if let Poll::Ready(outcome) = waiter.poll(cx) {
                return Poll::Ready(Some(outcome.map(Some)));
            }
            if stopped.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Some(Ok(None)));
            }
            while check.as_mut().poll(cx).is_ready() {
                if waiter.is_misplaced(spot) {
                    return Poll::Ready(None);
                }
                check.set(check_later());
            }
            Poll::Pending
        });
        if let Some(outcome) = granted.await {
            return outcome;
        }
        // The thread stays behind, blocked on a file that no path leads to; a new one takes its place.
        inner
            .posts
            .forget(spot, Kind::of(request.mode), &waiter.post);
        drop(waiter);
    }
}

async fn check_later() {
    // Without a runtime there is no timer. The kernel wakes us all the same, save for replaced files.
    if rt::Spawner::current().is_none() {
        std::future::pending::<()>().await;
    }
    let clock = Clock::system();
    clock.sleep_until(clock.now().after(REPLACED_CHECK)).await;
}

fn sit_down(inner: &Arc<Inner>, request: &Arc<Request>, spot: &Spot) -> Result<Waiter, Error> {
    let key = (spot.file.clone(), Kind::of(request.mode));
    let mut posts = lock(&inner.posts.0);
    if let Some(post) = posts.get(&key)
        && let Some(number) = post.take_seat(request)
    {
        let waiter = Waiter {
            post: post.clone(),
            number,
        };
        post.bell.notify_one();
        return Ok(waiter);
    }
    let post = Arc::new(Post::default());
    // A new post has a free seat.
    let number = post.take_seat(request).unwrap_or_default();
    let waiter = Waiter {
        post: post.clone(),
        number,
    };
    let thread = std::thread::Builder::new().name("tenure-file-wait".into());
    // The stack holds a few hundred bytes of record and some frames.
    let thread = thread.stack_size(128 * 1024);
    let (owner, place, kind, theirs) = (inner.clone(), spot.clone(), key.1, post.clone());
    thread
        .spawn(move || attend(&owner, &theirs, &place, kind))
        .map_err(|err| {
            Error::new(
            ErrorKind::Backend,
            "could not start a thread to wait for the lock: raise `ulimit -u`, or the memory limit",
        )
        .with_source(err)
        })?;
    posts.insert(key, post);
    Ok(waiter)
}

impl Posts {
    /// Takes `post` out of the list, so that nobody sits down there any more.
    fn forget(&self, spot: &Spot, kind: Kind, post: &Arc<Post>) {
        let mut posts = lock(&self.0);
        let key = (spot.file.clone(), kind);
        if posts
            .get(&key)
            .is_some_and(|there| Arc::ptr_eq(there, post))
        {
            posts.remove(&key);
        }
        lock(&post.desk).closed = true;
    }

    /// Fails all waiters, and ends all threads that are not blocked in the kernel.
    pub(super) fn close(&self) {
        let posts = std::mem::take(&mut *lock(&self.0));
        for post in posts.into_values() {
            lock(&post.desk).closed = true;
            post.answer_any(|| Err(super::closed()));
            post.bell.notify_one();
        }
    }
}

impl Waiter {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Result<Box<Held>, Error>> {
        let mut desk = lock(&self.post.desk);
        let Some(seat) = desk.seat.as_mut().filter(|seat| seat.number == self.number) else {
            return Poll::Pending;
        };
        match seat.outcome.take() {
            Some(outcome) => {
                desk.seat = None;
                Poll::Ready(outcome)
            }
            None => {
                // Cloning a waker counts references; skipped when it is the one we have.
                if !seat
                    .waker
                    .as_ref()
                    .is_some_and(|waker| waker.will_wake(cx.waker()))
                {
                    seat.waker = Some(cx.waker().clone());
                }
                Poll::Pending
            }
        }
    }

    /// Whether the thread is blocked on a file that is not the one at the path.
    fn is_misplaced(&self, spot: &Spot) -> bool {
        let blocked_on = lock(&self.post.desk).blocked_on;
        blocked_on.is_some_and(|id| Id::at(&spot.path).map_or(true, |there| there != id))
    }
}

impl Post {
    fn take_seat(&self, request: &Arc<Request>) -> Option<u64> {
        let mut desk = lock(&self.desk);
        if desk.closed || desk.seat.is_some() {
            return None;
        }
        desk.next += 1;
        let number = desk.next;
        desk.seat = Some(Seat {
            number,
            request: request.clone(),
            outcome: None,
            waker: None,
        });
        Some(number)
    }

    /// Who sits here and waits.
    fn waiting(&self) -> Option<(u64, Arc<Request>)> {
        lock(&self.desk)
            .waiting()
            .map(|seat| (seat.number, seat.request.clone()))
    }

    /// Sleeps until somebody sits here; `None` when nobody came or the post is closed.
    fn next_waiter(&self) -> Option<(u64, Arc<Request>)> {
        let clock = Clock::system();
        let until = clock.now().after(LINGER);
        let mut desk = lock(&self.desk);
        loop {
            if let Some(seat) = desk.waiting() {
                return Some((seat.number, seat.request.clone()));
            }
            let left = until.since(clock.now());
            if left.is_zero() || desk.closed {
                // Decided under the desk's lock: nobody can sit down in between.
                desk.closed = true;
                return None;
            }
            desk = self
                .bell
                .wait_timeout(desk, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Sleeps for `pause`, or until the waiter `number` has left. Returns whether it is still there.
    fn pause(&self, number: u64, pause: Duration) -> bool {
        let clock = Clock::system();
        let until = clock.now().after(pause);
        let mut desk = lock(&self.desk);
        loop {
            if desk.waiting().is_none_or(|seat| seat.number != number) {
                return false;
            }
            let left = until.since(clock.now());
            if left.is_zero() {
                return true;
            }
            desk = self
                .bell
                .wait_timeout(desk, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Hands `outcome` to the waiter `number`, or back when that one has left.
    fn answer(&self, number: u64, outcome: Result<Box<Held>, Error>) -> Result<(), Box<Held>> {
        let mut desk = lock(&self.desk);
        match desk.waiting().filter(|seat| seat.number == number) {
            Some(seat) => {
                seat.outcome = Some(outcome);
                let waker = seat.waker.take();
                // Woken without the lock: it would be the first thing the waiter asks for.
                drop(desk);
                waker.into_iter().for_each(Waker::wake);
                Ok(())
            }
            None => outcome.map_or(Ok(()), Err),
        }
    }

    fn answer_any(&self, outcome: impl FnOnce() -> Result<Box<Held>, Error>) {
        if let Some((number, _)) = self.waiting()
            && let Err(held) = self.answer(number, outcome())
        {
            held.give_back(false);
        }
    }
}

impl Desk {
    fn waiting(&mut self) -> Option<&mut Seat> {
        self.seat.as_mut().filter(|seat| seat.outcome.is_none())
    }
}

/// The thread: waits for whoever sits at the post, until nobody came for a while.
fn attend(inner: &Arc<Inner>, post: &Arc<Post>, spot: &Spot, kind: Kind) {
    while let Some((number, _)) = post.next_waiter() {
        if let Err(err) = attend_one(inner, post, spot, kind) {
            // Whoever has left does not want to know.
            let _ = post.answer(number, Err(err));
        }
    }
    inner.posts.forget(spot, kind, post);
    // Somebody may have sat down before the post was closed for good.
    post.answer_any(|| Err(super::closed()));
}

/// Blocks for the lock and delivers it. Returns when there is nobody to wait for any more.
fn attend_one(inner: &Arc<Inner>, post: &Post, spot: &Spot, kind: Kind) -> Result<(), Error> {
    let mut tries = 0;
    let mut permit_tries = 0;
    loop {
        let dir = inner.dir();
        let Opened::File(file, id) = dir.open_lock(spot, inner.hold_count())? else {
            inner.again(&mut tries, spot)?;
            continue;
        };
        lock(&post.desk).blocked_on = Some(id);
        let won = kind.lock(&file);
        let mut desk = lock(&post.desk);
        desk.blocked_on = None;
        won.map_err(|err| dir.trouble("lock", &spot.file, err, inner.hold_count()))?;
        let mut locked = Locked::new(file);
        if kind == Kind::Exclusive
            && let Some(seat) = desk.waiting()
        {
            // Waking a task takes longer than recording its grant, so it is woken first, and finds the
            // desk locked for the moment that is left.
            seat.waker.take().into_iter().for_each(Waker::wake);
            let request = seat.request.clone();
            match hold::take(inner, &dir, &request, spot, locked, id)? {
                Taken::Held(held) => {
                    seat.outcome = Some(Ok(held));
                    return Ok(());
                }
                Taken::Again | Taken::NoPermit { .. } => {
                    drop(desk);
                    inner.again(&mut tries, spot)?;
                    continue;
                }
                Taken::Reserved(still, _) => locked = still,
            }
        }
        drop(desk);
        loop {
            let Some((number, request)) = post.waiting() else {
                return Ok(());
            };
            match hold::take(inner, &dir, &request, spot, locked, id)? {
                Taken::Held(held) => match post.answer(number, Ok(held)) {
                    Ok(()) => return Ok(()),
                    Err(held) => {
                        held.give_back(false);
                        break;
                    }
                },
                Taken::Again => {
                    inner.again(&mut tries, spot)?;
                    break;
                }
                Taken::Reserved(still, left) => {
                    locked = still;
                    post.pause(number, left);
                }
                Taken::NoPermit { .. } => {
                    // The shared lock is not ours while we pause, or waiting for a permit would
                    // keep out those who want the name alone.
                    let pause = pace::next(permit_tries, rand::random(), Some(PERMIT_PAUSE), None);
                    post.pause(number, pause.unwrap_or(PERMIT_PAUSE));
                    permit_tries += 1;
                    break;
                }
            }
        }
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}
