//! Waiting for a lock: a place in the server's queue, kept alive until our turn comes.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::backend::{Answer, Grant, Hold, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::support::{RetryBudget, Subscription, not_trusted_yet};
use tenure_core::time::Time;

use super::connection::Connection;
use super::events::WakeUp;
use super::hold::{AcquireReply, HeldEntry, QueuePosition, ReleaseKind, Store, WAITER_TTL, place};
use super::names::Keys;
use super::settings::Format;

/// The next thing that happens to a waiter.
enum Next {
    /// Nobody wants the lock any more.
    Stop,
    WakeUp(WakeUp),
    /// It is time to ask again, or the connection broke.
    Ask,
}

/// A channel that is listened to for one waiter, until it is dropped.
struct Listening {
    store: Arc<Store>,
    session: Arc<Connection>,
    channel: String,
}

impl Listening {
    /// `None`: the connection is broken; the next one is tried.
    async fn start(
        store: &Arc<Store>,
        session: &Arc<Connection>,
        channel: &str,
        owner: OwnerId,
    ) -> Option<Self> {
        store.inbox.listen(channel, owner);
        let listening = Self {
            store: store.clone(),
            session: session.clone(),
            channel: channel.to_owned(),
        };
        session
            .subscribe(channel)
            .await
            .is_ok()
            .then_some(listening)
    }

    fn is_on(&self, session: &Arc<Connection>) -> bool {
        Arc::ptr_eq(&self.session, session)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.store.inbox.stop_listening(&self.channel);
        let (session, channel) = (self.session.clone(), std::mem::take(&mut self.channel));
        let farewell = Box::pin(async move {
            // A broken connection listens to nothing.
            let _ = session.unsubscribe(&channel).await;
        });
        // On its way now: the next waiter for this name may listen to the same channel in a moment.
        if let Err(Some(pending)) = self.store.spawner.poll_anywhere(farewell) {
            let store = &self.store;
            store.operations.spawn(&store.spawner, pending);
        }
    }
}

impl Store {
    /// One acquisition, from the first request to the answer.
    pub(super) async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        let _operation = self.operations.enter();
        let keys = self.keys(&request.name);
        match self.ask_trusted(&request, &keys, true).await? {
            AcquireReply::Granted(grant) => Ok(self.granted(&request, grant)),
            AcquireReply::Queued(_) if !request.wait => Ok(Answer::Busy),
            AcquireReply::Queued(busy) => {
                let wake_ups = self.inbox.subscribe(request.owner);
                // In a box, as in `Server::session`.
                Box::pin(self.wait(&request, &keys, busy, wake_ups)).await
            }
        }
    }

    fn granted(self: &Arc<Self>, request: &Request, grant: Grant) -> Answer {
        self.keep(request);
        self.maintenance
            .start(&self.spawner, &self.clock, self, Self::verify_holds);
        Answer::Granted(grant)
    }

    /// Waits until the server can be trusted to know who holds what.
    async fn trust(&self, request: &Request, keys: &Keys) -> Result<(), Error> {
        let mut is_reported = false;
        loop {
            let session = self.nodes.connection(keys.lock()).await?;
            let now = self.clock.now();
            let (Some(until), Some(guard)) = (
                session.untrusted_until(now, request.ttl),
                session.restart_guard(now),
            ) else {
                return Ok(());
            };
            let err = not_trusted_yet(guard, request.ttl);
            if !request.wait {
                return Err(err);
            }
            if !std::mem::replace(&mut is_reported, true) {
                tracing::warn!(name = %request.name, "waiting: {err}");
            }
            tokio::select! {
                biased;
                () = request.stop.raised() => return Err(err),
                () = session.ended.raised() => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    /// Asks a server that can be trusted to know who holds what. It may have been restarted at any moment, also
    /// while we waited, so the one that answered is looked at as well as the one that was to be asked.
    async fn ask_trusted(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
        is_first: bool,
    ) -> Result<AcquireReply, Error> {
        loop {
            self.trust(request, keys).await?;
            let (asked, session) = self.ask(request, keys, is_first).await?;
            let now = self.clock.now();
            if session.untrusted_until(now, request.ttl).is_none() {
                return Ok(asked);
            }
            // What it granted does not count: who held the name before may believe so still.
            Box::pin(self.give_back(keys, request.owner, ReleaseKind::UNKNOWN)).await?;
        }
    }

    async fn wait(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
        mut busy: QueuePosition,
        mut wake_ups: Subscription<WakeUp>,
    ) -> Result<Answer, Error> {
        let _listening = self.nodes.subscribe(keys.lock(), request.owner, busy.sent);
        // How often a foreign holder was found without a change.
        let mut polls = 0;
        let mut listening: Option<Listening> = None;
        // Until when a server that does not answer is asked again.
        let mut budget = RetryBudget::until(busy.sent.after(request.ttl));
        let mut retry_at = None;
        loop {
            let session = self.nodes.connection(keys.lock()).await;
            if let Ok(session) = &session
                && self.settings.format == Format::Redisson
                && !listening.as_ref().is_some_and(|it| it.is_on(session))
            {
                // Heard from now on; what was said before, the next answer tells.
                drop(listening.take());
                listening = Listening::start(self, session, keys.channel(), request.owner).await;
                if listening.is_some() {
                    busy.left = Some(Duration::ZERO);
                }
            }
            let pause = retry_at.take();
            let pause = pause.unwrap_or_else(|| self.pause(request, &busy, polls));
            let broken = async {
                match &session {
                    Ok(session) => session.ended.raised().await,
                    // The next try finds out.
                    Err(_) => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                biased;
                wake_up = wake_ups.next() => Next::WakeUp(wake_up),
                () = request.stop.raised() => Next::Stop,
                () = broken => Next::Ask,
                () = self.clock.sleep_until(pause) => Next::Ask,
            };
            match next {
                Next::Stop => return self.leave(request, keys).await,
                Next::WakeUp(WakeUp::HandedOver(token)) => {
                    let is_trusted = session.is_ok_and(|session| {
                        budget.failures() == 0
                            && !session.ended.is_raised()
                            && session
                                .untrusted_until(self.clock.now(), request.ttl)
                                .is_none()
                    });
                    if is_trusted && let Some(grant) = self.handed_over(request, &busy, token) {
                        return Ok(self.granted(request, grant));
                    }
                }
                Next::WakeUp(WakeUp::Released(sent)) => {
                    // What was asked after the release, or has no answer, may have got a place again.
                    let is_over =
                        budget.failures() == 0 && busy.sent.after(busy.round_trip) <= sent;
                    return match is_over {
                        true => Ok(Answer::Busy),
                        false => self.leave(request, keys).await,
                    };
                }
                Next::WakeUp(WakeUp::AskAgain) | Next::Ask => {}
            }
            match self.ask_trusted(request, keys, false).await {
                Ok(AcquireReply::Granted(grant)) => return Ok(self.granted(request, grant)),
                Ok(AcquireReply::Queued(now)) => {
                    // A stranger that holds on: look less and less often.
                    polls = if now.is_stranger && now.ahead == 0 {
                        polls + 1
                    } else {
                        0
                    };
                    budget.restart(now.sent.after(request.ttl));
                    busy = now;
                }
                Err(err) => {
                    let is_passing = matches!(
                        err.kind(),
                        ErrorKind::Unreachable | ErrorKind::Indeterminate
                    );
                    if !is_passing || budget.is_spent(&self.clock) {
                        return self.give_up(request, keys, err).await;
                    }
                    retry_at = Some(budget.next_attempt(&self.clock));
                }
            }
        }
    }

    /// When to ask again, if nothing happens before.
    fn pause(&self, request: &Request, busy: &QueuePosition, polls: u32) -> Time {
        let sign_of_life = match self.settings.format {
            Format::Token => busy.sent.after(place(request.ttl) / 3),
            // There is no place to be kept; in case a message is lost.
            Format::Redisson => busy.sent.after(WAITER_TTL),
        };
        if busy.ahead > 0 {
            return sign_of_life;
        }
        // First in the queue: nobody but us will notice that the lease ran out.
        let now = self.clock.now();
        let random: u32 = rand::random();
        let left = busy
            .left
            .map(|left| left.saturating_sub(now.since(busy.sent)));
        let pause = if busy.is_stranger {
            pace::next(polls, random, left, None)
        } else {
            let jitter = pace::FIRST * (random % 4);
            left.map(|left| left + pace::FIRST + jitter)
        };
        pause.map_or(sign_of_life, |pause| now.after(pause).min(sign_of_life))
    }

    /// The hold that was handed over, if there is enough left of it.
    fn handed_over(&self, request: &Request, busy: &QueuePosition, token: u64) -> Option<Grant> {
        let lease = place(request.ttl);
        let is_fresh = self.clock.now().since(busy.sent) <= lease / 2;
        // Else asking once more makes a whole lease of it.
        let is_enough = is_fresh && lease >= request.min_lease && self.settings.wait_replicas == 0;
        // The place was good from before that request on, and so is the lock.
        // The message may have lain here while the lock ran out and went to somebody else, as the answer to
        // a later request says.
        // (A stranger's hold has no token, so then the message says nothing.)
        let is_news = token > busy.token && !busy.is_stranger;
        (is_enough && is_news).then(|| Grant::new(token, busy.sent, busy.round_trip, Some(lease)))
    }

    /// Leaves the queue; a lock that was granted meanwhile is given back.
    async fn leave(self: &Arc<Self>, request: &Request, keys: &Keys) -> Result<Answer, Error> {
        match self
            .give_back(keys, request.owner, ReleaseKind::UNKNOWN)
            .await
        {
            Ok(_) => Ok(Answer::Busy),
            Err(err) => Err(Error::new(
                ErrorKind::Indeterminate,
                "no answer to the request to leave the queue",
            )
            .with_source(err)),
        }
    }

    /// Says why the wait ended, unless something may be left behind.
    async fn give_up(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
        err: Error,
    ) -> Result<Answer, Error> {
        self.leave(request, keys).await.and(Err(err))
    }

    /// Asks whether all holds are still ours after a connection was lost: a server that was restarted may have
    /// forgotten them, and the next renewal may be far.
    async fn verify_holds(self: Arc<Self>) -> Time {
        let mut budget = RetryBudget::without_limit();
        while self.inbox.take_connection_loss() {
            while !self.verify().await {
                budget.pause(&self.clock).await;
            }
        }
        Time::MAX
    }

    /// Asks once. Whether there was an answer for each hold.
    async fn verify(&self) -> bool {
        let hold = |owner, kept: &HeldEntry| Some(Hold::of(kept.name.clone(), owner));
        let holds = self.holds.select(hold);
        let mut is_complete = true;
        for (hold, answer) in holds.iter().zip(self.renew(&holds, true).await) {
            match answer {
                Renewal::Lost(reason) => {
                    let is_released = self.holds.read(hold.owner, |kept| kept.is_released);
                    match is_released {
                        // The lease ended, and so the driver sends no release any more.
                        Some(true) => drop(self.holds.remove(hold.owner)),
                        _ => self.inbox.lost(hold.owner, reason),
                    }
                }
                Renewal::Unknown(_) => is_complete = false,
                _ => {}
            }
        }
        is_complete
    }
}
