//! Which session takes a request, and when there has to be another one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::backend::Request;
use tenure_core::error::{Error, ErrorKind};
use tenure_core::rt::lock;
use tenure_core::time::Time;

use crate::database::no_connection;

use super::connection::Connection;
use super::dialect::{Row, SessionId};
use super::entries::{Entry, Has, Stage};
use super::hold::{Store, Wanted};
use super::link::Link;
use super::names::Key;
use super::outcome;

/// The ttl of the session that everything but locks is asked on.
const DESK: Duration = Duration::from_secs(60);

/// Free locks share so many sessions: while the server is busy with one, we can be with the other.
const TOGETHER: usize = 2;

/// So many requests without an answer are worth another session.
const CROWD: usize = 8;

/// How long it is until one more is made.
const GROWTH: Duration = Duration::from_secs(1);

/// One session, as far as the choice has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// It has the ttl that is wanted, is known to be there, and nobody waits on it.
    pub(super) is_fit: bool,
    /// It has room for another lock.
    pub(super) has_room: bool,
    /// It has, or may have, the key that is wanted.
    pub(super) has_key: Has,
    /// Requests that it has not answered yet.
    pub(super) asked: usize,
}

/// What to do about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Ask on that session.
    Use(usize),
    /// Another session of ours has it, so the server need not be asked.
    Busy,
    /// Make another session.
    Open,
}

/// A session that has a key would be granted it once more, whoever wants it: locks of a session count. So it is
/// never asked on that one. Nor is a shared one: it would pass by whoever waits.
pub(super) fn choose(candidates: &[Candidate], is_shared: bool, may_open: bool) -> Choice {
    let excludes = |has: Has| match has {
        Has::Not => false,
        Has::Shared => !is_shared,
        Has::Alone => true,
    };
    if candidates.iter().any(|it| excludes(it.has_key)) {
        return Choice::Busy;
    }
    let is_good = |it: &Candidate| it.is_fit && it.has_room && it.has_key == Has::Not;
    let good = candidates.iter().enumerate().filter(|(_, it)| is_good(it));
    // The first of them that are equal: the others fall asleep, and are closed.
    if let Some((at, _)) = good.min_by_key(|(_, it)| it.asked) {
        return Choice::Use(at);
    }
    // Better past those who wait than not at all.
    let shares = |it: &Candidate| it.is_fit && it.has_room && it.has_key == Has::Shared;
    match candidates.iter().position(shares) {
        Some(at) if !may_open => Choice::Use(at),
        _ => Choice::Open,
    }
}

/// A session for a request that takes what is free.
pub(super) enum Pick {
    Use(Arc<Link>),
    Busy,
    Open,
}

impl Store {
    fn candidate(link: &Link, wanted: &Wanted, now: Time) -> Candidate {
        let entries = lock(&link.entries);
        Candidate {
            is_fit: link.ttl == wanted.ttl
                && !link.gone.is_raised()
                && !link.is_waiting.load(Ordering::SeqCst)
                // The server may be about to end it.
                && now < link.sent().after(link.ttl * 2 / 3),
            has_room: entries.len() < link.facts.capacity,
            has_key: entries.has(&wanted.key),
            asked: link.asked(),
        }
    }

    /// Finds a session for the request, and notes the request on it.
    pub(super) fn pick(self: &Arc<Self>, request: &Request, wanted: &Wanted) -> Pick {
        let now = self.clock.now();
        let links = lock(&self.links);
        let candidates: Vec<_> = links
            .iter()
            .map(|link| Self::candidate(link, wanted, now))
            .collect();
        let may_open = links.len() < self.settings.connections;
        match choose(&candidates, wanted.is_shared, may_open) {
            Choice::Busy => Pick::Busy,
            Choice::Open => Pick::Open,
            Choice::Use(at) => {
                let link = links[at].clone();
                let fit = candidates.iter().filter(|it| it.is_fit).count();
                if candidates[at].asked >= CROWD && fit < TOGETHER && may_open {
                    self.grow(wanted, now);
                }
                self.enter(&link, request, wanted, now);
                Pick::Use(link)
            }
        }
    }

    /// Makes one more session for free locks, in the background. Not again for a while, whatever comes of it.
    fn grow(self: &Arc<Self>, wanted: &Wanted, now: Time) {
        let from = self.grows_from.load(Ordering::SeqCst);
        if now.as_nanos() < from {
            return;
        }
        let next = now.after(GROWTH).as_nanos();
        let order = Ordering::SeqCst;
        if self
            .grows_from
            .compare_exchange(from, next, order, order)
            .is_err()
        {
            return;
        }
        let (store, wanted) = (self.clone(), wanted.clone());
        self.spawner.spawn(async move {
            let is_enough = |links: &[Arc<Link>]| {
                let now = store.clock.now();
                let is_fit = |link: &&Arc<Link>| Self::candidate(link, &wanted, now).is_fit;
                let fit = links.iter().filter(is_fit).count();
                fit >= TOGETHER || links.len() >= store.settings.connections
            };
            if let Err(err) = store.open_unless(&wanted, is_enough).await {
                tracing::debug!(%err, "one session does for now");
            }
        });
    }

    /// The session on which the key is being given back, if that is what keeps us from taking it.
    pub(super) fn being_given(&self, key: &Key) -> Option<Arc<Link>> {
        let links = lock(&self.links);
        let is_given = |link: &&Arc<Link>| lock(&link.entries).is_given(key);
        links.iter().find(is_given).cloned()
    }

    /// Whether anything is being given back there.
    pub(super) fn is_in_flux(&self, link: &Link) -> bool {
        !link.gone.is_raised() && lock(&link.entries).are_in_flux()
    }

    fn enter(&self, link: &Arc<Link>, request: &Request, wanted: &Wanted, now: Time) {
        let entry = Entry {
            key: wanted.key.clone(),
            is_shared: wanted.is_shared,
            stage: Stage::Asking,
        };
        link.use_at(now);
        lock(&link.entries).insert(request.owner, entry);
        lock(&self.owners).insert(request.owner, link.clone());
    }

    /// A session of its own for one that waits: an empty one if there is one to spare, else a new one. `None`: there
    /// are as many as there may be.
    pub(super) async fn for_waiting(
        self: &Arc<Self>,
        request: &Request,
        wanted: &Wanted,
    ) -> Result<Option<Arc<Link>>, Error> {
        if let Some(link) = self.empty_one(request, wanted) {
            return Ok(Some(link));
        }
        let _opening = self.opening.lock().await;
        if self.is_over_for(request) || lock(&self.links).len() >= self.settings.connections {
            return Ok(None);
        }
        let link = self.make(wanted.ttl).await?;
        link.is_waiting.store(true, Ordering::SeqCst);
        self.enter(&link, request, wanted, self.clock.now());
        if let Err(err) = self.add(&link) {
            self.forget(request.owner);
            return Err(err);
        }
        Ok(Some(link))
    }

    /// A new session is there to be used, unless the client was closed meanwhile.
    fn add(self: &Arc<Self>, link: &Arc<Link>) -> Result<(), Error> {
        lock(&self.links).push(link.clone());
        self.due_at(Time::ZERO);
        // Looked at after it was put there, so that either side sees the other.
        if self.closing.is_raised() {
            lock(&self.links).retain(|it| !Arc::ptr_eq(it, link));
            let link = link.clone();
            self.spawner.spawn(async move { link.close().await });
            return Err(outcome::closed());
        }
        Ok(())
    }

    fn empty_one(&self, request: &Request, wanted: &Wanted) -> Option<Arc<Link>> {
        let now = self.clock.now();
        let links = lock(&self.links);
        let fit: Vec<_> = links
            .iter()
            .filter(|link| Self::candidate(link, wanted, now).is_fit)
            .collect();
        // One is kept for those who take what is free.
        let link = fit.iter().find(|link| lock(&link.entries).is_empty());
        let link = link.filter(|_| fit.len() > 1)?;
        link.is_waiting.store(true, Ordering::SeqCst);
        self.enter(link, request, wanted, now);
        Some((*link).clone())
    }

    /// Makes a session that a request could use, unless somebody else just has.
    pub(super) async fn open_another(self: &Arc<Self>, wanted: &Wanted) -> Result<(), Error> {
        let before: Vec<_> = lock(&self.links).clone();
        let is_new = |link: &Arc<Link>| !before.iter().any(|it| Arc::ptr_eq(it, link));
        self.open_unless(wanted, |links| {
            let now = self.clock.now();
            links.iter().filter(|link| is_new(link)).any(|link| {
                let candidate = Self::candidate(link, wanted, now);
                candidate.is_fit && candidate.has_room && candidate.has_key == Has::Not
            })
        })
        .await
    }

    /// Makes a session, unless none is needed when it is our turn to make one.
    async fn open_unless(
        self: &Arc<Self>,
        wanted: &Wanted,
        is_enough: impl Fn(&[Arc<Link>]) -> bool,
    ) -> Result<(), Error> {
        let _opening = self.opening.lock().await;
        if self.closing.is_raised() {
            return Err(outcome::closed());
        }
        if !is_enough(&lock(&self.links)) {
            let link = self.make(wanted.ttl).await?;
            self.add(&link)?;
        }
        Ok(())
    }

    /// A new session, on the connection that lies ready if there is one.
    async fn make(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Link>, Error> {
        let spare = self.spare.lock().await.take();
        if let Some(spare) = spare
            && let Some(link) = self.open_on(spare, ttl).await
        {
            return Ok(link);
        }
        let (open, opened) = self.connect().await?;
        let more = self.dialect.prepare();
        self.set_up(open, ttl, opened, &more).await
    }

    /// Makes a session that lasts for `ttl` without a word from us, and takes no locks.
    pub(super) async fn open(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Link>, Error> {
        let (open, opened) = self.connect().await?;
        self.set_up(open, ttl, opened, "").await
    }

    /// Also says when it began.
    async fn connect(&self) -> Result<(Connection, Time), Error> {
        let server = &self.settings.server;
        let opened = self.clock.now();
        let open = Connection::open(server, &self.clock).await;
        let open = open.map_err(|trouble| no_connection(trouble, server))?;
        Ok((open, opened))
    }

    /// A session that takes locks, on a connection that is there. `None`: it is not there any more.
    async fn open_on(self: &Arc<Self>, spare: Arc<Link>, ttl: Duration) -> Option<Arc<Link>> {
        let is_fresh = !self.is_past(spare.sent().after(spare.ttl / 2));
        let opened = self.clock.now();
        let open = spare.take_connection().await.filter(|_| is_fresh)?;
        let more = self.dialect.prepare();
        self.set_up(open, ttl, opened, &more).await.ok()
    }

    async fn set_up(
        self: &Arc<Self>,
        mut open: Connection,
        ttl: Duration,
        opened: Time,
        more: &str,
    ) -> Result<Arc<Link>, Error> {
        let server = &self.settings.server;
        let version = open.version();
        let sent = self.clock.now();
        let set_up = self.dialect.set_up(ttl, version) + more;
        let rows = server
            .limited(&self.clock, open.rows(set_up))
            .await
            .map_err(|trouble| no_connection(trouble, server))?;
        let facts = self
            .dialect
            .facts(&rows, version)
            .ok_or_else(outcome::nonsense)?;
        if let Some(objection) = &facts.objection {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{server} {objection}"),
            ));
        }
        Ok(Link::new(self, open, facts, ttl, opened, sent))
    }

    /// Asks something that is no lock's business, on a session that carries no locks. May be dropped.
    pub(super) async fn look(self: &Arc<Self>, sql: String) -> Result<Vec<Row>, Error> {
        let store = self.clone();
        self.to_the_end(async move { store.look_now(sql).await })
            .await
    }

    /// Tells the server to do something to that session, and to no other that has its number by now. May be dropped.
    pub(super) async fn order(
        self: &Arc<Self>,
        session: SessionId,
        sql: String,
    ) -> Result<(), Error> {
        let store = self.clone();
        self.to_the_end(async move { store.order_now(session, sql).await })
            .await
    }

    /// What is dropped half-way takes its connection along.
    async fn to_the_end<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = tokio::sync::oneshot::channel();
        self.spawner.spawn(async move {
            let _ = answer.send(future.await);
        });
        answered.await.unwrap_or_else(|_| Err(outcome::closed()))
    }

    async fn order_now(self: &Arc<Self>, session: SessionId, sql: String) -> Result<(), Error> {
        let desk = self.desk().await?;
        if !self.dialect.reaches(desk.facts.session, session) {
            return Ok(());
        }
        let limit = self.clock.now().after(self.settings.server.timeout);
        let told = desk.look(sql, limit).await;
        told.map(drop)
            .map_err(|trouble| outcome::explain(trouble, &self.settings.server))
    }

    async fn look_now(self: &Arc<Self>, sql: String) -> Result<Vec<Row>, Error> {
        let mut again = true;
        loop {
            let desk = self.desk().await?;
            let limit = self.clock.now().after(self.settings.server.timeout);
            match desk.look(sql.clone(), limit).await {
                Ok(rows) => return Ok(rows),
                // It had been idle, and may have been over for long.
                Err(trouble) if trouble.is_fatal() && std::mem::take(&mut again) => {}
                Err(trouble) => return Err(outcome::explain(trouble, &self.settings.server)),
            }
        }
    }

    pub(super) async fn desk(self: &Arc<Self>) -> Result<Arc<Link>, Error> {
        let mut desk = self.desk.lock().await;
        if let Some(desk) = &*desk
            && !desk.gone.is_raised()
            && !self.is_past(desk.sent().after(desk.ttl * 2 / 3))
        {
            return Ok(desk.clone());
        }
        if let Some(old) = desk.take() {
            self.spawner.spawn(async move { old.close().await });
        }
        let new = self.open(DESK).await?;
        *desk = Some(new.clone());
        Ok(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Candidate = Candidate {
        is_fit: true,
        has_room: true,
        has_key: Has::Not,
        asked: 0,
    };
    const UNFIT: Candidate = Candidate {
        is_fit: false,
        ..FREE
    };
    const FULL: Candidate = Candidate {
        has_room: false,
        ..FREE
    };

    fn has(has_key: Has, of: Candidate) -> Candidate {
        Candidate { has_key, ..of }
    }

    #[test]
    fn free_locks_share_the_first_session_that_is_fit() {
        assert_eq!(choose(&[], false, true), Choice::Open);
        assert_eq!(
            choose(&[UNFIT, FULL, FREE, FREE], false, true),
            Choice::Use(2)
        );
        assert_eq!(choose(&[UNFIT, FULL], false, true), Choice::Open);
        assert_eq!(choose(&[UNFIT, FULL], false, false), Choice::Open);
    }

    #[test]
    fn the_session_that_has_least_to_do_is_asked() {
        let busy = |asked| Candidate { asked, ..FREE };
        assert_eq!(
            choose(&[busy(2), busy(1), busy(1)], false, true),
            Choice::Use(1)
        );
    }

    /// The server would grant it once more to the session that has it.
    #[test]
    fn what_we_have_is_not_asked_for() {
        for of in [FREE, UNFIT, FULL] {
            let ours = has(Has::Alone, of);
            for shared in [true, false] {
                assert_eq!(choose(&[FREE, ours], shared, true), Choice::Busy);
            }
            let ours = has(Has::Shared, of);
            assert_eq!(choose(&[ours, FREE], false, true), Choice::Busy);
            assert_eq!(choose(&[ours, FREE], true, true), Choice::Use(1));
        }
    }

    #[test]
    fn shared_holds_go_to_sessions_of_their_own_as_long_as_there_may_be_more() {
        let ours = has(Has::Shared, FREE);
        assert_eq!(choose(&[ours], true, true), Choice::Open);
        assert_eq!(choose(&[UNFIT, ours], true, false), Choice::Use(1));
    }
}
