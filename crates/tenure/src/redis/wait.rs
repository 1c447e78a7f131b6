//! Waiting for a lock: a place in the server's queue, kept alive until our turn comes.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use tenure_core::backend::{Answer, Grant, Hold, Renewal, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::fence::OwnerId;
use tenure_core::logic::pace;
use tenure_core::rt::lock;
use tenure_core::time::Time;

use super::hold::{Asked, Busy, Ending, Kept, PLACE, Store, place};
use super::inbox::News;
use super::link::Session;
use super::names::Keys;
use super::settings::Dialect;

/// The next thing that happens to a waiter.
enum Next {
    /// Nobody wants the lock any more.
    Stop,
    News(News),
    /// It is time to ask again, or the connection broke.
    Ask,
}

/// A channel that is listened to for one waiter, until it is dropped.
struct Listening {
    store: Arc<Store>,
    session: Arc<Session>,
    channel: String,
}

impl Listening {
    /// `None`: the connection is broken; the next one is tried.
    async fn start(
        store: &Arc<Store>,
        session: &Arc<Session>,
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

    fn is_on(&self, session: &Arc<Session>) -> bool {
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
            self.store.spawner.spawn(pending);
        }
    }
}

/// Dropped by the runtime when that shuts down: then nothing that reads a socket may be polled any more.
struct LastBreath(Option<Weak<Store>>);

impl LastBreath {
    /// The task ended by itself.
    fn lives(mut self) {
        self.0 = None;
    }
}

impl Drop for LastBreath {
    fn drop(&mut self) {
        if let Some(store) = self.0.take().and_then(|store| store.upgrade()) {
            store.is_stranded.store(true, Ordering::SeqCst);
        }
    }
}

impl Store {
    /// One acquisition, from the first request to the answer.
    pub(super) async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        let _busy = self.inbox.enter();
        let keys = self.keys(&request.name);
        match self.ask_trusted(&request, &keys, true).await? {
            Asked::Held(grant) => Ok(self.granted(&request, grant)),
            Asked::Busy(_) if !request.wait => Ok(Answer::Busy),
            Asked::Busy(busy) => {
                let mut news = self.inbox.expect(request.owner);
                // In a box, as in `Link::session`.
                let answer = Box::pin(self.wait(&request, &keys, busy, &mut news)).await;
                self.inbox.forget(request.owner);
                answer
            }
        }
    }

    fn granted(self: &Arc<Self>, request: &Request, grant: Grant) -> Answer {
        self.keep(request);
        self.watch();
        Answer::Granted(grant)
    }

    /// Waits until the server can be trusted to know who holds what.
    async fn trust(&self, request: &Request, keys: &Keys) -> Result<(), Error> {
        let mut said = false;
        loop {
            let session = self.nodes.session(keys.lock()).await?;
            let Some(until) = self.distrusted(&session, request.ttl) else {
                return Ok(());
            };
            let guard = self.restart_guard(&session);
            let why = guard.as_ref();
            let why = why.map_or_else(String::new, |guard| guard.describe(request.ttl));
            if !said && request.wait {
                said = true;
                tracing::warn!(name = %request.name, "waiting: {why}");
            }
            let err = Error::new(ErrorKind::Unreachable, why);
            let distrust = Err(err.with_restart_guard(guard));
            if !request.wait {
                return distrust;
            }
            tokio::select! {
                biased;
                () = request.stop.raised() => return distrust,
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
    ) -> Result<Asked, Error> {
        loop {
            self.trust(request, keys).await?;
            let (asked, session) = self.ask(request, keys, is_first).await?;
            if self.distrusted(&session, request.ttl).is_none() {
                return Ok(asked);
            }
            // What it granted does not count: who held the name before may believe so still.
            Box::pin(self.give_back(keys, request.owner, Ending::UNKNOWN)).await?;
        }
    }

    async fn wait(
        self: &Arc<Self>,
        request: &Request,
        keys: &Keys,
        mut busy: Busy,
        news: &mut UnboundedReceiver<News>,
    ) -> Result<Answer, Error> {
        let _listening = self.nodes.listen(keys.lock(), request.owner, busy.sent);
        let mut tries = 0;
        let mut listening: Option<Listening> = None;
        // Until when a server that does not answer is asked again.
        let mut patience = busy.sent.after(request.ttl);
        loop {
            let session = self.nodes.session(keys.lock()).await;
            if let Ok(session) = &session
                && self.settings.dialect == Dialect::Redisson
                && !listening.as_ref().is_some_and(|it| it.is_on(session))
            {
                // Heard from now on; what was said before, the next answer tells.
                drop(listening.take());
                listening = Listening::start(self, session, keys.channel(), request.owner).await;
                if listening.is_some() {
                    busy.left = Some(Duration::ZERO);
                }
            }
            let pause = self.pause(request, &busy, tries);
            let broken = async {
                match &session {
                    Ok(session) => session.ended.raised().await,
                    // The next try finds out.
                    Err(_) => std::future::pending().await,
                }
            };
            let next = tokio::select! {
                biased;
                Some(news) = news.recv() => Next::News(news),
                () = request.stop.raised() => Next::Stop,
                () = broken => Next::Ask,
                () = self.clock.sleep_until(pause) => Next::Ask,
            };
            match next {
                Next::Stop => return self.leave(request, keys).await,
                Next::News(News::Granted(token)) => {
                    let is_trusted = session.is_ok_and(|session| {
                        !session.ended.is_raised()
                            && self.distrusted(&session, request.ttl).is_none()
                    });
                    if is_trusted && let Some(grant) = self.handed_over(request, &busy, token) {
                        return Ok(self.granted(request, grant));
                    }
                }
                Next::News(News::Left(sent)) => {
                    // What was asked after the release, or has no answer, may have got a place again.
                    let is_over = !busy.is_stranger && busy.sent.after(busy.round_trip) <= sent;
                    return match is_over {
                        true => Ok(Answer::Busy),
                        false => self.leave(request, keys).await,
                    };
                }
                Next::News(News::Look) | Next::Ask => {}
            }
            match self.ask_trusted(request, keys, false).await {
                Ok(Asked::Held(grant)) => return Ok(self.granted(request, grant)),
                Ok(Asked::Busy(now)) => {
                    // A stranger that holds on: look less and less often.
                    tries = if now.is_stranger && now.ahead == 0 {
                        tries + 1
                    } else {
                        0
                    };
                    patience = now.sent.after(request.ttl);
                    busy = now;
                }
                Err(err) => {
                    let is_passing = matches!(
                        err.kind(),
                        ErrorKind::Unreachable | ErrorKind::Indeterminate
                    );
                    if !is_passing || self.clock.now() >= patience {
                        return self.give_up(request, keys, err).await;
                    }
                    tries += 1;
                    // As behind a stranger: nobody will tell us when the server is back.
                    busy = Busy {
                        left: None,
                        is_stranger: true,
                        ahead: 0,
                        ..busy
                    };
                }
            }
        }
    }

    /// When to ask again, if nothing happens before.
    fn pause(&self, request: &Request, busy: &Busy, tries: u32) -> Time {
        let sign_of_life = match self.settings.dialect {
            Dialect::Token => busy.sent.after(place(request.ttl) / 3),
            // There is no place to be kept; in case a message is lost.
            Dialect::Redisson => busy.sent.after(PLACE),
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
            pace::next(tries, random, left, None)
        } else {
            let jitter = pace::FIRST * (random % 4);
            left.map(|left| left + pace::FIRST + jitter)
        };
        pause.map_or(sign_of_life, |pause| now.after(pause).min(sign_of_life))
    }

    /// The hold that was handed over, if there is enough left of it.
    fn handed_over(&self, request: &Request, busy: &Busy, token: u64) -> Option<Grant> {
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
        match self.give_back(keys, request.owner, Ending::UNKNOWN).await {
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

    /// Starts the task that looks after the holds when a connection broke, unless it runs.
    fn watch(self: &Arc<Self>) {
        if self.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let (weak, inbox) = (Arc::downgrade(self), self.inbox.clone());
        let runtime = LastBreath(Some(weak.clone()));
        self.spawner.spawn(async move {
            loop {
                inbox.broken.notified().await;
                match weak.upgrade() {
                    Some(store) if !store.closing.is_raised() => store.verify().await,
                    _ => break,
                }
            }
            runtime.lives();
        });
    }

    /// Asks whether all holds are still ours: a server that was restarted may have forgotten them,
    /// and the next renewal may be far.
    async fn verify(&self) {
        for attempt in 0_u32.. {
            let holds: Vec<_> = {
                let kept = lock(&self.holds);
                let hold = |(owner, kept): (&OwnerId, &Kept)| {
                    Hold::new(&Request::new(kept.name.clone(), *owner, Duration::ZERO), 0)
                };
                kept.iter().map(hold).collect()
            };
            let mut unknown = false;
            for (hold, answer) in holds.iter().zip(self.renew(&holds, true).await) {
                match answer {
                    Renewal::Lost(reason) => self.inbox.lost(hold.owner, reason),
                    Renewal::Unknown(_) => unknown = true,
                    _ => {}
                }
            }
            if !unknown || self.closing.is_raised() {
                return;
            }
            let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
            self.clock.sleep_until(self.clock.now().after(pause)).await;
        }
    }
}
