//! Waiting for a lock: whose turn it is, and a watch on whoever is before us.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use zookeeper_client::{Error as Said, WatchedEvent};

use tenure_core::backend::{Answer, Grant, Hold, Request};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::logic::queue::{Contender, Turn, decide};
use tenure_core::options::Mode;
use tenure_core::time::Time;

use super::contact::Lease;
use super::hold::{Place, Store};
use super::names::{self, Child};
use super::outcome::Failed;
use super::session::Session;
use super::settings::Dialect;
use super::warm::{Known, Watch};

/// How often a waiter looks without having been told to, at least; in case a watch is lost.
const LOOK: Duration = Duration::from_secs(5);

/// How long whoever waits goes on asking servers that do not answer, if three ttl are less: an election takes
/// some seconds, and a session that expired meanwhile is known for certain only when they answer again.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a look at the list says.
enum Seen {
    Held,
    /// These are before us and have to go.
    Behind(Vec<String>),
    /// Our own node is not there.
    Gone,
}

/// Something that happens once.
type Watching = Pin<Box<dyn Future<Output = WatchedEvent> + Send>>;

/// The next thing that happens to a waiter.
enum Next {
    /// Nobody wants the lock any more.
    Stop,
    /// Somebody before us has gone, perhaps.
    Look,
    /// Nothing has happened for a while.
    Quiet,
}

/// Why a wait goes no further.
enum Stuck {
    /// The servers said no, or nothing.
    Failed(Failed),
    /// What was answered is the answer.
    Over(Error),
}

impl From<Failed> for Stuck {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed)
    }
}

impl Store {
    /// One acquisition, from the first request to the answer.
    pub(super) async fn acquire(self: Arc<Self>, request: Arc<Request>) -> Result<Answer, Error> {
        self.check_mode(request.mode)?;
        let dir = self.dir(&request.name)?;
        let mut patience = self.clock.now().after(request.ttl);
        for attempt in 0_u32.. {
            let mut session = None;
            let trying = self.acquire_once(&request, &dir, &mut patience, &mut session);
            let err = match trying.await {
                Ok(answer) => return Ok(answer),
                Err(err) => err,
            };
            // A session that ended while nobody looked is no reason to fail: there is a new one.
            let is_stale = attempt == 0 && session.is_some_and(|session| session.is_over());
            if request.stop.is_raised() && err.kind() != ErrorKind::Indeterminate {
                return Ok(Answer::Busy);
            }
            let is_passing = matches!(
                err.kind(),
                ErrorKind::Unreachable | ErrorKind::Indeterminate
            );
            let goes_on = is_passing
                && (request.wait || is_stale)
                && !request.stop.is_raised()
                && self.clock.now() < patience;
            if !goes_on {
                return Err(err);
            }
            // What may be there is deleted before the next one is made: one node at a time.
            self.leave_patiently(&request, patience).await?;
            tracing::warn!(name = %request.name, %err, "once more, from the end of the queue");
            let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
            tokio::select! {
                biased;
                () = request.stop.raised() => return Ok(Answer::Busy),
                () = self.clock.sleep_until(self.clock.now().after(pause)) => {}
            }
        }
        unreachable!("BUG: the loop ends by its patience")
    }

    /// In the dialect of ZooKeeper's own recipes there is no room for a mode.
    fn check_mode(&self, mode: Mode) -> Result<(), Error> {
        if self.settings.dialect == Dialect::SessionPrefix && mode != Mode::Exclusive {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "dialect=session-prefix has exclusive locks only; leave that option out",
            ));
        }
        Ok(())
    }

    async fn acquire_once(
        self: &Arc<Self>,
        request: &Request,
        dir: &Arc<str>,
        patience: &mut Time,
        used: &mut Option<Arc<Session>>,
    ) -> Result<Answer, Error> {
        let session = self.session(request.ttl, Some(dir)).await?;
        *used = Some(session.clone());
        let lease = self.whole_lease(session.timeout);
        if lease < request.min_lease {
            session.give_back(dir);
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "the servers keep a silent session for {:?} (maxSessionTimeout), which makes leases of {lease:?}, and {:?} was asked for; lower `ttl`",
                    session.timeout, request.min_lease
                ),
            ));
        }
        let place = self.enter(request, &session, dir).await?;
        let (holds, is_watched) = self.take_known(&place);
        if holds && request.mode == Mode::Exclusive {
            return Ok(self.granted(request, &place, place.lease));
        }
        let first = async {
            // One that is alone holds, and the watch tells us next time that it is the same directory.
            if !is_watched && self.is_alone(&place).await? {
                return Ok(Seen::Held);
            }
            self.look(&place).await
        };
        let seen = match first.await {
            Err(failed) if request.wait && failed.is_unclear() => {
                *patience = self.patience(request);
                self.look_patiently(request, &place, false, *patience).await
            }
            seen => seen,
        };
        match seen {
            // With less than half of it left, a lease is begun anew, where there is time for that.
            Ok(Seen::Held) if !request.wait || self.is_enough(request, &place, place.lease) => {
                Ok(self.granted(request, &place, place.lease))
            }
            Ok(_) if !request.wait => self.leave(request).await.map(|()| Answer::Busy),
            Ok(seen) => match self.wait(request, &place, seen, patience).await {
                Ok(answer) => Ok(answer),
                Err(Stuck::Over(err)) => Err(err),
                Err(Stuck::Failed(failed)) => self.give_up(request, failed).await,
            },
            Err(failed) => self.give_up(request, failed).await,
        }
    }

    /// Until when servers that do not answer are asked again, by whoever has a place in the queue.
    fn patience(&self, request: &Request) -> Time {
        self.clock.now().after(PATIENCE.max(request.ttl * 3))
    }

    /// Says why, unless something may be left behind.
    async fn give_up(self: &Arc<Self>, request: &Request, failed: Failed) -> Result<Answer, Error> {
        self.leave(request).await?;
        let err = self.explain(failed);
        // Our own node is gone, so nothing is in doubt.
        let kind = match err.kind() {
            ErrorKind::Indeterminate => ErrorKind::Unreachable,
            kind => kind,
        };
        Err(Error::new(kind, "the queue could not be looked at").with_source(err))
    }

    /// Deletes our node, whatever it was for.
    async fn leave(self: &Arc<Self>, request: &Request) -> Result<(), Error> {
        match self.release(Hold::new(request, 0)).await {
            Ok(_) => Ok(()),
            Err(err) => Err(Error::new(
                ErrorKind::Indeterminate,
                "no answer to the request to leave the queue",
            )
            .with_source(err)),
        }
    }

    async fn leave_patiently(
        self: &Arc<Self>,
        request: &Request,
        patience: Time,
    ) -> Result<(), Error> {
        for attempt in 0_u32.. {
            let left = self.leave(request).await;
            let now = self.clock.now();
            if left.is_ok() || request.stop.is_raised() || now >= patience {
                return left;
            }
            let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
            self.clock.sleep_until(now.after(pause)).await;
        }
        unreachable!("BUG: the loop ends by its patience")
    }

    fn granted(self: &Arc<Self>, request: &Request, place: &Place, lease: Lease) -> Answer {
        let ttl = Some(self.keep(request, lease));
        Answer::Granted(Grant::new(place.token, lease.sent, place.round_trip, ttl))
    }

    /// Whether our node is the only one. Lays a watch on the directory, see [`warm`](super::warm).
    async fn is_alone(&self, place: &Place) -> Result<bool, Failed> {
        let client = &place.session.client;
        match self.ask(client.get_and_watch_data(&place.dir)).await {
            Ok((_, stat, watcher)) => {
                self.put_known(place, Known::watched(Watch::new(watcher)));
                // More may come at any time, behind us.
                Ok(stat.num_children == 1)
            }
            // Not ours to read; the list says whether that one is.
            Err(failed) if failed.is(&Said::NoAuth) || failed.is(&Said::NoNode) => Ok(false),
            Err(failed) => Err(failed),
        }
    }

    /// Whose turn it is.
    async fn look(&self, place: &Place) -> Result<Seen, Failed> {
        let client = &place.session.client;
        let children = match self.ask(client.list_children(&place.dir)).await {
            Ok(children) => children,
            Err(failed) if failed.is(&Said::NoNode) => return Ok(Seen::Gone),
            Err(failed) => return Err(failed),
        };
        let queue = self.in_order(&place.session, &place.dir, &children).await?;
        let Some(me) = queue.iter().position(|child| child.name == place.name) else {
            return Ok(Seen::Gone);
        };
        let contenders: Vec<_> = queue
            .iter()
            .map(|child| Contender { mode: child.mode })
            .collect();
        let ahead = match decide(&contenders, me) {
            Turn::Held => return Ok(Seen::Held),
            Turn::WatchOne(at) => at..at + 1,
            Turn::WatchAll(range) => range,
        };
        let path = |child: &Child| format!("{}/{}", place.dir, child.name);
        Ok(Seen::Behind(queue[ahead].iter().map(path).collect()))
    }

    /// The contenders, first come first. Two of the same number (a counter that has overflowed, a foreign
    /// client that names its nodes itself) are told apart by when they were made.
    pub(super) async fn in_order(
        &self,
        session: &Session,
        dir: &str,
        children: &[String],
    ) -> Result<Vec<Child>, Failed> {
        let queue = names::contenders(children);
        if !queue.windows(2).any(|two| two[0].number == two[1].number) {
            return Ok(queue);
        }
        let base = queue.first().map_or(0, |first| first.number);
        let paths: Vec<_> = queue
            .iter()
            .map(|it| format!("{dir}/{}", it.name))
            .collect();
        let asked: Vec<_> = paths
            .iter()
            .map(|path| session.client.check_stat(path))
            .collect();
        let mut dated = Vec::with_capacity(queue.len());
        for (child, stat) in queue.into_iter().zip(asked) {
            // One that is gone is in nobody's way.
            if let Some(stat) = self.ask(stat).await? {
                dated.push((child.number.wrapping_sub(base), stat.czxid, child));
            }
        }
        dated.sort_by_key(|(distance, made, _)| (*distance, *made));
        Ok(dated.into_iter().map(|(_, _, child)| child).collect())
    }

    async fn wait(
        self: &Arc<Self>,
        request: &Request,
        place: &Place,
        mut seen: Seen,
        patience: &mut Time,
    ) -> Result<Answer, Stuck> {
        let over = |what: &str| Stuck::Over(Error::new(ErrorKind::Unreachable, what));
        loop {
            let ahead = match seen {
                Seen::Held => match self.turn(request, place).await? {
                    Some(lease) => return Ok(self.granted(request, place, lease)),
                    None => Vec::new(),
                },
                Seen::Behind(ahead) => ahead,
                Seen::Gone => {
                    // Nothing is left: the node was deleted by somebody, or went with its session.
                    let _ = self.leave(request).await;
                    return Err(over("our place in the queue was deleted; retry"));
                }
            };
            *patience = self.patience(request);
            let next = match self.watch(place, &ahead).await? {
                Some(watching) => self.next(request, place, watching).await,
                None => Next::Look,
            };
            if let Next::Stop = next {
                let left = self.leave(request).await;
                return left.map(|()| Answer::Busy).map_err(Stuck::Over);
            }
            let confirms = matches!(next, Next::Quiet);
            seen = self
                .look_patiently(request, place, confirms, *patience)
                .await?;
        }
    }

    /// The lease that comes with our turn; `None`: it is not our turn any more.
    async fn turn(&self, request: &Request, place: &Place) -> Result<Option<Lease>, Failed> {
        let lease = place.session.confirmed();
        let is_long = self.left(request, lease) >= request.min_lease;
        if is_long && self.is_enough(request, place, lease) {
            return Ok(Some(lease));
        }
        loop {
            tokio::select! {
                biased;
                () = request.stop.raised() => {}
                () = self.clock.sleep_until(place.session.settled()) => {}
            }
            let lease = match self.confirm(&place.session, &[&*place.path]).await {
                Ok(lease) => lease,
                Err(failed) if failed.is(&Said::NoNode) => return Ok(None),
                Err(failed) => return Err(failed),
            };
            let is_whole = lease.length() >= self.whole_lease(place.session.timeout);
            if is_whole || request.stop.is_raised() {
                return Ok(Some(lease));
            }
        }
    }

    /// How much of a lease is left for that request.
    fn left(&self, request: &Request, lease: Lease) -> Duration {
        let age = self.clock.now().since(lease.sent);
        lease.length().min(request.ttl).saturating_sub(age)
    }

    /// Whether a lease is as long as it has to be, and no more than half of what a whole one has is gone.
    fn is_enough(&self, request: &Request, place: &Place, lease: Lease) -> bool {
        let whole = self.whole_lease(place.session.timeout).min(request.ttl);
        lease.length() >= request.min_lease && self.left(request, lease) >= whole / 2
    }

    /// Watches these; `None` when one of them is gone already.
    async fn watch(
        &self,
        place: &Place,
        ahead: &[String],
    ) -> Result<Option<Vec<Watching>>, Failed> {
        let client = &place.session.client;
        let asked: Vec<_> = ahead
            .iter()
            .map(|path| client.get_and_watch_data(path))
            .collect();
        let mut watching: Vec<Watching> = Vec::with_capacity(asked.len());
        for (path, asked) in ahead.iter().zip(asked) {
            match self.ask(asked).await {
                Ok((_, _, watcher)) => watching.push(Box::pin(watcher.changed())),
                Err(failed) if failed.is(&Said::NoNode) => return Ok(None),
                // Somebody else's, whose data we may not read: that it is there we may know.
                Err(failed) if failed.is(&Said::NoAuth) => {
                    match self.ask(client.check_and_watch_stat(path)).await? {
                        (Some(_), watcher) => watching.push(Box::pin(watcher.changed())),
                        (None, _) => return Ok(None),
                    }
                }
                Err(failed) => return Err(failed),
            }
        }
        Ok((!watching.is_empty()).then_some(watching))
    }

    async fn next(&self, request: &Request, place: &Place, mut watching: Vec<Watching>) -> Next {
        let gone = std::future::poll_fn(|cx| {
            let mut watching = watching.iter_mut();
            match watching.any(|it| it.as_mut().poll(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        });
        let pause = (request.ttl.min(place.session.timeout) / 3).min(LOOK);
        // Not all of them at the same moment.
        let pause = pause - pace::fraction(pause / 4, rand::random());
        tokio::select! {
            biased;
            () = request.stop.raised() => Next::Stop,
            () = gone => Next::Look,
            () = place.session.ended.raised() => Next::Look,
            () = self.clock.sleep_until(self.clock.now().after(pause)) => Next::Quiet,
        }
    }

    /// Looks until there is an answer, or nobody wants it any more. `confirms`: our node is still there, and
    /// the session with it, is asked first.
    async fn look_patiently(
        &self,
        request: &Request,
        place: &Place,
        confirms: bool,
        patience: Time,
    ) -> Result<Seen, Failed> {
        for attempt in 0_u32.. {
            let confirmed = match confirms {
                true => self
                    .confirm(&place.session, &[&*place.path])
                    .await
                    .map(drop),
                false => Ok(()),
            };
            let seen = match confirmed {
                // The list will say so.
                Err(failed) if !failed.is(&Said::NoNode) => Err(failed),
                _ => self.look(place).await,
            };
            let failed = match seen {
                Ok(seen) => return Ok(seen),
                Err(failed) => failed,
            };
            let now = self.clock.now();
            if !failed.is_unclear() || request.stop.is_raised() || now >= patience {
                return Err(failed);
            }
            let pause = pace::next(attempt, rand::random(), None, None).unwrap_or(pace::CAP);
            tokio::select! {
                biased;
                () = request.stop.raised() => {}
                () = self.clock.sleep_until(now.after(pause)) => {}
            }
        }
        unreachable!("BUG: the loop ends by its patience")
    }
}
