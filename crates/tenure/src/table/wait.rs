//! Waiting for a lock: a place in the queue, kept alive until our turn comes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::backend::{Answer, Hold, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::time::Time;

use super::hold::{Line, Place, Store, place as place_of};
use super::names::Dialect;

#[cfg(feature = "postgres")]
use super::ears::{Listening, News};

/// The next thing that happens to a waiter.
enum Next {
    /// Nobody wants the lock any more.
    Stop,
    /// It is time for a sign of life, or our turn may have come.
    Ask,
    /// It is time to look, where nobody tells us.
    Look,
    /// Another one of those before us is gone; only the holder is left.
    #[cfg(feature = "postgres")]
    First,
}

/// Counts an acquisition that is under way.
struct Busy<'a>(&'a Store);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Store {
    /// One acquisition, from the first request to the answer.
    pub(super) async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        self.busy.fetch_add(1, Ordering::SeqCst);
        let _busy = Busy(&self);
        match self.ask(&request).await? {
            Some(grant) => Ok(Answer::Granted(grant)),
            None if !request.wait || request.stop.is_raised() => Ok(Answer::Busy),
            None if self.settings.dialect == Dialect::ShedLock => self.look_again(&request).await,
            None => self.wait(&request).await,
        }
    }

    async fn wait(self: &Arc<Self>, request: &Request) -> Result<Answer, Error> {
        #[cfg(feature = "postgres")]
        let mut listening = self.listen(request);
        let mut patience = self.clock.now().after(request.ttl);
        let mut tries = 0;
        let mut seen = (u64::MAX, 0);
        loop {
            let mut place = match self.line(request).await {
                Ok(Line::Held(grant)) => return Ok(Answer::Granted(grant)),
                Ok(Line::Place(place)) => {
                    patience = place.sent.after(request.ttl);
                    place
                }
                Err(err) => match self.pause_after(request, err, patience, &mut tries).await {
                    Ok(()) => continue,
                    Err(Some(err)) => return self.give_up(request, err).await,
                    Err(None) => return self.leave(request).await,
                },
            };
            // Nothing moves while somebody works; when something did, more may follow soon.
            if seen != (place.ahead, place.token) {
                seen = (place.ahead, place.token);
                tries = 0;
            }
            let sign_of_life = place.sent.after(place_of(request.ttl) / 3);
            loop {
                #[cfg(feature = "postgres")]
                let is_told = listening.as_ref().is_some_and(Listening::is_heard);
                #[cfg(not(feature = "postgres"))]
                let is_told = false;
                let (at, next) = self.pause(&place, sign_of_life, is_told, tries);
                #[cfg(feature = "postgres")]
                let news = Listening::next(listening.as_mut());
                #[cfg(not(feature = "postgres"))]
                let news = std::future::pending::<Next>();
                let next = tokio::select! {
                    biased;
                    () = request.stop.raised() => Next::Stop,
                    news = news => {
                        #[cfg(feature = "postgres")]
                        let news = match news {
                            News::First => Next::First,
                            News::Free if place.ahead == 0 => Next::Ask,
                            // What was said meanwhile was not heard.
                            News::Heard => Next::Ask,
                            News::Free | News::Deaf => continue,
                        };
                        news
                    }
                    () = self.clock.sleep_until(at) => next,
                };
                match next {
                    Next::Stop => return self.leave(request).await,
                    Next::Ask => break,
                    #[cfg(feature = "postgres")]
                    Next::First => place.ahead = 0,
                    Next::Look => {
                        tries += 1;
                        // An error is met again when a sign of life is due.
                        let Ok(Some(now)) = self.peek(request).await else {
                            break;
                        };
                        if now.left.is_zero() && now.ahead == 0 {
                            break;
                        }
                        if seen != (now.ahead, now.token) {
                            seen = (now.ahead, now.token);
                            tries = 0;
                        }
                        place = now;
                    }
                }
            }
        }
    }

    /// When to do something next, if nothing happens before, and what.
    fn pause(&self, place: &Place, sign_of_life: Time, is_told: bool, tries: u32) -> (Time, Next) {
        let now = self.clock.now();
        let left = place.left.saturating_sub(now.since(place.sent));
        let jitter = pace::FIRST * (rand::random::<u32>() % 4);
        let mut next = (sign_of_life, Next::Ask);
        // Only the first in the queue has to notice that a lease ran out.
        let end = now.after(left + pace::FIRST + jitter);
        if place.ahead == 0 && end < next.0 {
            next = (end, Next::Ask);
        }
        if !is_told {
            let pause = pace::next(tries, rand::random(), None, None).unwrap_or(pace::CAP);
            // Those behind look less often.
            let more = u32::try_from(place.ahead)
                .unwrap_or(u32::MAX)
                .saturating_add(1);
            let look = now.after(pause.saturating_mul(more));
            if look < next.0 {
                next = (look, Next::Look);
            }
        }
        next
    }

    /// Waits a little after an error that may pass. `Err`: there is nothing to wait for: it does not pass,
    /// or (`None`) nobody wants the lock any more.
    async fn pause_after(
        &self,
        request: &Request,
        err: Error,
        patience: Time,
        tries: &mut u32,
    ) -> Result<(), Option<Error>> {
        let is_passing = matches!(
            err.kind(),
            ErrorKind::Unreachable | ErrorKind::Indeterminate
        );
        if !is_passing || self.clock.now() >= patience {
            return Err(Some(err));
        }
        let pause = pace::next(*tries, rand::random(), None, None).unwrap_or(pace::CAP);
        *tries += 1;
        let at = self.clock.now().after(pause);
        tokio::select! {
            biased;
            () = request.stop.raised() => Err(None),
            () = self.clock.sleep_until(at) => Ok(()),
        }
    }

    /// In ShedLock's table there is no queue: whoever looks first after a release has it.
    async fn look_again(&self, request: &Request) -> Result<Answer, Error> {
        let mut patience = self.clock.now().after(request.ttl);
        let mut tries = 0;
        loop {
            let left = match self.peek(request).await {
                Ok(Some(place)) => {
                    patience = place.sent.after(request.ttl);
                    place.left
                }
                Ok(None) => Duration::ZERO,
                Err(err) => match self.pause_after(request, err, patience, &mut tries).await {
                    Ok(()) => continue,
                    Err(Some(err)) => return self.give_up(request, err).await,
                    Err(None) => return self.leave(request).await,
                },
            };
            if left.is_zero() {
                match self.ask(request).await {
                    Ok(Some(grant)) => return Ok(Answer::Granted(grant)),
                    Ok(None) => {}
                    Err(err) => return self.give_up(request, err).await,
                }
            }
            let pause = pace::next(
                tries,
                rand::random(),
                Some(left).filter(|left| !left.is_zero()),
                None,
            );
            tries += 1;
            let at = self.clock.now().after(pause.unwrap_or(pace::CAP));
            tokio::select! {
                biased;
                () = request.stop.raised() => return self.leave(request).await,
                () = self.clock.sleep_until(at) => {}
            }
        }
    }

    /// Leaves the queue; a lock that was granted meanwhile is given back.
    async fn leave(&self, request: &Request) -> Result<Answer, Error> {
        match self.release(Hold::new(request, 0)).await {
            Ok(_) => Ok(Answer::Busy),
            Err(err) => Err(Error::new(
                ErrorKind::Indeterminate,
                "no answer to the request to leave the queue",
            )
            .with_source(err)),
        }
    }

    /// Says why the wait ended, unless something may be left behind.
    async fn give_up(&self, request: &Request, err: Error) -> Result<Answer, Error> {
        self.leave(request).await.and(Err(err))
    }

    #[cfg(feature = "postgres")]
    fn listen(&self, request: &Request) -> Option<Listening> {
        self.ears
            .listen(self.ours.digest(request.name.as_str()), request.owner)
    }
}
