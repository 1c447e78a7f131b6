//! One session in the server: its connection, what it holds, and until when it lasts.
//!
//! Whoever has something to ask puts it into the queue of the session and waits for the connection. Who gets it asks
//! for everybody who stands there then, in one statement. A connection whose answer is missing is closed: with it
//! the session ends, and with the session its locks.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::TryRecvError};
use tokio::sync::{Notify, OwnedMutexGuard};

use tenure_core::fence::OwnerId;
use tenure_core::rt::{Clock, Flag, lock};
use tenure_core::time::Time;

use crate::database::Trouble;

use super::connection::Connection;
use super::dialect::{Ask, Dialect, Facts, Row};
use super::entries::{Entries, Stage};
use super::hold::Store;
use super::job::{Answer, Failure, Job, Outcome, Said, Turn, turn, undo};
use super::names::Key;

/// Requests in one statement.
pub(super) const BATCH: usize = 32;

/// A session.
pub(super) struct Link {
    pub(super) facts: Facts,
    /// The server ends it when nothing was heard from it for so long: the lease.
    pub(super) ttl: Duration,
    /// Before the connection was made.
    opened: Time,
    /// When the last request was sent that was answered, in ns.
    sent: AtomicU64,
    /// When anybody wanted something last, in ns.
    used: AtomicU64,
    connection: Arc<tokio::sync::Mutex<Option<Connection>>>,
    queue: Mutex<VecDeque<Job>>,
    pub(super) entries: Mutex<Entries>,
    /// Wakes those who wait for an entry to change.
    pub(super) changed: Notify,
    /// Requests without an answer.
    asked: AtomicUsize,
    /// One waits on it, so it can carry nothing else.
    pub(super) is_waiting: std::sync::atomic::AtomicBool,
    /// The keeper has a request under way.
    pub(super) is_checked: std::sync::atomic::AtomicBool,
    /// It is over for us.
    pub(super) gone: Flag,
    /// And for the server.
    pub(super) buried: Flag,
    store: Weak<Store>,
    clock: Clock,
    dialect: Arc<dyn Dialect>,
    timeout: Duration,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.facts.session).finish()
    }
}

impl Link {
    /// A session whose set-up was sent at `sent`.
    pub(super) fn new(
        store: &Arc<Store>,
        connection: Connection,
        facts: Facts,
        ttl: Duration,
        opened: Time,
        sent: Time,
    ) -> Arc<Self> {
        Arc::new(Self {
            facts,
            ttl,
            opened,
            sent: sent.as_nanos().into(),
            used: sent.as_nanos().into(),
            connection: Arc::new(tokio::sync::Mutex::new(Some(connection))),
            queue: Mutex::default(),
            entries: Mutex::default(),
            changed: Notify::new(),
            asked: AtomicUsize::new(0),
            is_waiting: false.into(),
            is_checked: false.into(),
            gone: Flag::new(),
            buried: Flag::new(),
            store: Arc::downgrade(store),
            clock: store.clock.clone(),
            dialect: store.dialect.clone(),
            timeout: store.settings.server.timeout,
        })
    }

    /// It lasts for the whole ttl from then on.
    pub(super) fn sent(&self) -> Time {
        Time::from_nanos(self.sent.load(Ordering::SeqCst))
    }

    /// When it was last good for something.
    pub(super) fn used(&self) -> Time {
        Time::from_nanos(self.used.load(Ordering::SeqCst))
    }

    /// Until when it lasts, if nothing more is heard.
    pub(super) fn lasts_until(&self) -> Time {
        self.sent().after(self.ttl)
    }

    /// Somebody wants something of it.
    pub(super) fn use_at(&self, now: Time) {
        self.used.fetch_max(now.as_nanos(), Ordering::SeqCst);
    }

    /// When the server will have run for that long; in the past if it has.
    pub(super) fn trusted_from(&self, guard: Duration) -> Time {
        self.opened.after(guard.saturating_sub(self.facts.uptime))
    }

    /// How long the server has run.
    pub(super) fn uptime(&self, now: Time) -> Duration {
        self.facts.uptime + now.since(self.opened)
    }

    /// How many requests have no answer yet.
    pub(super) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn answered(&self, sent: Time) {
        self.sent.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    /// Asks, together with whoever else has something to ask. Waits for as long as a request may take; whoever has the
    /// connection looks at the clock for all.
    pub(super) async fn ask(self: &Arc<Self>, ask: Ask, owner: Option<OwnerId>) -> Outcome {
        let _asked = Asked::new(&self.asked);
        let (answer, mut answered) = oneshot::channel();
        lock(&self.queue).push_back(Job {
            ask,
            owner,
            limit: self.clock.now().after(self.timeout),
            answer: Some(answer),
        });
        loop {
            // Most often it is free, and who says our answer is this very task: it need not wake itself for that.
            let connection = match self.connection.clone().try_lock_owned() {
                Ok(connection) => connection,
                Err(_) => tokio::select! {
                    biased;
                    answer = &mut answered => return answer.unwrap_or(Err(Failure::GoneToo)),
                    connection = self.connection.clone().lock_owned() => connection,
                },
            };
            let jobs: Vec<_> = {
                let mut queue = lock(&self.queue);
                let count = queue.len().min(BATCH);
                queue.drain(..count).collect()
            };
            let mut asking = Box::pin(self.clone().run(connection, jobs));
            let said = poll_fn(|context| {
                let is_over = asking.as_mut().poll(context).is_ready();
                match answered.try_recv() {
                    Ok(answer) => Poll::Ready(Some((answer, is_over))),
                    Err(TryRecvError::Closed) => {
                        Poll::Ready(Some((Err(Failure::GoneToo), is_over)))
                    }
                    // There were more requests than go into one statement.
                    Err(TryRecvError::Empty) if is_over => Poll::Ready(None),
                    Err(TryRecvError::Empty) => Poll::Pending,
                }
            });
            if let Some((answer, is_over)) = said.await {
                // Too late. Others may depend on the answer, and so does the connection.
                if !is_over && let Some(store) = self.store.upgrade() {
                    store.spawner.spawn(asking);
                }
                return answer;
            }
        }
    }

    /// Asks for all of these in one statement.
    async fn run(
        self: Arc<Self>,
        mut connection: OwnedMutexGuard<Option<Connection>>,
        mut jobs: Vec<Job>,
    ) {
        jobs.retain_mut(|job| {
            let turn = turn(&mut lock(&self.entries), job);
            if turn == Turn::Ended {
                job.say(self.ended(self.gone.is_raised()));
            }
            turn == Turn::Send
        });
        if jobs.is_empty() {
            return;
        }
        // Taken out: if this is dropped half-way, nobody finds a connection with an answer under way.
        let Some(mut open) = connection.take() else {
            self.end();
            for job in &mut jobs {
                job.say(Err(Failure::GoneToo));
            }
            return;
        };
        let asks: Vec<_> = jobs.iter().map(|job| job.ask.clone()).collect();
        let sent = self.clock.now();
        let batch = self.dialect.batch(&asks);
        match self.statement(&mut open, batch, &mut jobs).await {
            Ok(rows) => {
                *connection = Some(open);
                self.answered(sent);
                let round_trip = self.clock.now().since(sent);
                let row = rows.into_iter().next().unwrap_or_default();
                self.settle(jobs, &asks, &row, sent, round_trip);
            }
            Err(trouble) if trouble.is_fatal() => {
                drop(open);
                self.end();
                let mut trouble = Some(trouble);
                for job in &mut jobs {
                    let why = trouble.take().map_or(Failure::GoneToo, Failure::Gone);
                    job.say(Err(why));
                }
            }
            // Refused as a whole; what came before the word that was refused may have been done.
            Err(trouble) => {
                let undo: Vec<_> = asks.iter().filter_map(undo).collect();
                let undone = match undo.is_empty() {
                    true => Ok(Vec::new()),
                    false => {
                        let batch = self.dialect.batch(&undo);
                        self.statement(&mut open, batch, &mut jobs).await
                    }
                };
                match undone {
                    Ok(_) => {
                        *connection = Some(open);
                        self.answered(sent);
                    }
                    Err(_) => self.end(),
                }
                self.refuse(jobs, trouble);
            }
        }
        if self.gone.is_raised() {
            *connection = None;
        }
        drop(connection);
        self.changed.notify_waiters();
        // What was granted to nobody goes back.
        self.give_back_unwanted();
    }

    /// The answer to a request to give back a key whose acquisition has ended.
    ///
    /// `is_gone`: with the session. Then only a look at the server can tell whether the server has ended it too.
    fn ended(&self, is_gone: bool) -> Outcome {
        match is_gone {
            true => Err(Failure::GoneToo),
            false => Ok(Answer {
                said: Said::Given(false),
                sent: self.sent(),
                round_trip: Duration::ZERO,
            }),
        }
    }

    /// One statement, for as long as anybody's lease hangs on it.
    async fn statement(
        &self,
        open: &mut Connection,
        sql: String,
        jobs: &mut [Job],
    ) -> Result<Vec<Row>, Trouble> {
        let limit = self.clock.now().after(self.timeout).max(self.lasts_until());
        self.heard(open.rows(sql), limit, jobs).await
    }

    /// What the server says by then. Meanwhile those hear whose time is over, of `jobs`, which are under way, and in the
    /// queue; there they stay, because what has become of them has to be seen to.
    async fn heard(
        &self,
        rows: impl Future<Output = Result<Vec<Row>, sqlx::Error>>,
        limit: Time,
        jobs: &mut [Job],
    ) -> Result<Vec<Row>, Trouble> {
        let mut rows = pin!(rows);
        loop {
            let wanted = jobs.iter().find_map(Job::is_wanted_until);
            let queued = lock(&self.queue).iter().find_map(Job::is_wanted_until);
            // Nobody who comes later gives up before then.
            let next = self.clock.now().after(self.timeout);
            let next = [wanted, queued].into_iter().flatten().fold(next, Time::min);
            tokio::select! {
                biased;
                rows = &mut rows => return rows.map_err(Trouble::from),
                () = self.gone.raised() => break,
                () = self.clock.sleep_until(next.min(limit)) => {}
            }
            let now = self.clock.now();
            if now >= limit {
                break;
            }
            let mut queue = lock(&self.queue);
            for job in jobs.iter_mut().chain(queue.iter_mut()) {
                if job.limit <= now {
                    job.say(Err(Failure::Late));
                }
            }
        }
        Err(Trouble::Silence(self.timeout))
    }

    fn settle(
        self: &Arc<Self>,
        jobs: Vec<Job>,
        asks: &[Ask],
        row: &Row,
        sent: Time,
        round_trip: Duration,
    ) {
        let is_ours = row.first().and_then(Option::as_deref)
            == Some(self.facts.session.id.to_string().as_str());
        if !is_ours {
            // Somebody between us and the server passes our words to whatever session is free.
            tracing::warn!(
                "another session answers than the one that was asked: something between us and the server shares sessions out; use mode=table"
            );
            self.end();
        }
        let answers = self.dialect.answers(asks, row);
        for (mut job, answer) in jobs.into_iter().zip(answers) {
            let said = if is_ours {
                self.settle_one(&job, answer, sent)
            } else {
                None
            };
            job.say(match said {
                Some(said) => Ok(Answer {
                    said,
                    sent,
                    round_trip,
                }),
                None => Err(Failure::Refused(Trouble::Settings(super::outcome::null()))),
            });
        }
    }

    /// `None`: the server says that it cannot tell.
    fn settle_one(&self, job: &Job, answer: Option<u64>, sent: Time) -> Option<Said> {
        let forget = || {
            if let Some(owner) = job.owner {
                lock(&self.entries).remove(&owner);
            }
        };
        match job.ask {
            Ask::Ping => answer.map(|_| Said::Alive),
            Ask::Give { .. } => {
                forget();
                Some(Said::Given(answer == Some(1)))
            }
            Ask::Take { .. } => match answer {
                None => {
                    forget();
                    None
                }
                Some(0) => {
                    forget();
                    Some(Said::Busy)
                }
                Some(token) => {
                    let until = sent.after(self.ttl);
                    if let Some(owner) = job.owner {
                        self.granted(owner, token, until);
                    }
                    Some(Said::Granted(token))
                }
            },
        }
    }

    /// That acquisition has it now, if anybody wants it.
    pub(super) fn granted(&self, owner: OwnerId, token: u64, until: Time) {
        let mut entries = lock(&self.entries);
        let stage = entries.get(&owner).map(|it| it.stage);
        if matches!(stage, Some(Stage::Asking | Stage::Held { .. })) {
            entries.set(&owner, Stage::Held { token, until });
        }
    }

    fn refuse(&self, jobs: Vec<Job>, trouble: Trouble) {
        let mut trouble = Some(trouble);
        for mut job in jobs {
            // What was to be given back is ours still, as far as anybody knows; the keeper asks again.
            if let (Ask::Take { .. }, Some(owner)) = (&job.ask, job.owner) {
                lock(&self.entries).remove(&owner);
            }
            let why = trouble.take().map_or(Failure::RefusedToo, Failure::Refused);
            job.say(Err(why));
        }
    }

    /// Gives back what was granted after its request was given up.
    fn give_back_unwanted(self: &Arc<Self>) {
        let again = self.clock.now().after(self.ttl / 3);
        let unwanted: Vec<_> = {
            let queue = lock(&self.queue);
            let mut entries = lock(&self.entries);
            let mut unwanted = entries.unwanted();
            unwanted.retain(|owner| !queue.iter().any(|job| job.owner == Some(*owner)));
            let give = |owner: OwnerId| {
                entries.set(&owner, Stage::Giving { again });
                let entry = entries.get(&owner)?;
                Some((owner, entry.key.clone(), entry.is_shared))
            };
            unwanted.into_iter().filter_map(give).collect()
        };
        let Some(store) = self.store.upgrade() else {
            return;
        };
        if !unwanted.is_empty() {
            store.due_at(again);
        }
        for (owner, key, is_shared) in unwanted {
            let link = self.clone();
            store.spawner.spawn(async move {
                let _ = link.ask(Ask::Give { key, is_shared }, Some(owner)).await;
            });
        }
    }

    /// Waits in the server's queue, for as long as it takes. Nothing else may be under way on this session, and it
    /// holds nothing.
    pub(super) async fn wait(
        self: Arc<Self>,
        owner: OwnerId,
        key: Key,
        is_shared: bool,
        who: String,
    ) -> Waited {
        let mut connection = self.connection.clone().lock_owned().await;
        let Some(mut open) = connection.take() else {
            self.end();
            return Waited::Gone(Trouble::Silence(self.timeout));
        };
        let sql = self.dialect.wait(&key, is_shared, &who);
        let sent = self.clock.now();
        let rows = tokio::select! {
            biased;
            rows = open.rows(sql) => rows.map_err(Trouble::from),
            () = self.gone.raised() => Err(Trouble::Silence(self.timeout)),
        };
        match rows {
            Ok(rows) => {
                *connection = Some(open);
                self.answered(sent);
                let row = rows.into_iter().next().unwrap_or_default();
                let token = row.get(1).and_then(Option::as_deref);
                match token.map(str::parse) {
                    // The server has passed on which session it is meant for.
                    Some(Ok(token)) if token > 0 => {
                        self.granted(owner, token, self.clock.now().after(self.ttl));
                        Waited::Granted(token)
                    }
                    Some(Ok(_)) => Waited::CalledOff,
                    // MariaDB says so when it was told to stop.
                    _ => Waited::CalledOff,
                }
            }
            Err(trouble) if trouble.is_fatal() => {
                drop(open);
                self.end();
                Waited::Gone(trouble)
            }
            Err(trouble) => {
                *connection = Some(open);
                let code = trouble.code().unwrap_or_default();
                match self.dialect.is_called_off(&code) {
                    true => Waited::CalledOff,
                    false => Waited::Refused(trouble),
                }
            }
        }
    }

    /// Asks something that is no lock's business. The session is in doubt if there is no answer.
    pub(super) async fn look(
        self: &Arc<Self>,
        sql: String,
        limit: Time,
    ) -> Result<Vec<Row>, Trouble> {
        let mut connection = tokio::select! {
            biased;
            connection = self.connection.clone().lock_owned() => connection,
            () = self.clock.sleep_until(limit) => return Err(Trouble::Silence(self.timeout)),
        };
        // Whoever had it before us got no answer in time.
        let Some(mut open) = connection.take() else {
            self.end();
            return Err(Trouble::Silence(self.timeout));
        };
        let sent = self.clock.now();
        let rows = self.heard(open.rows(sql), limit, &mut []).await;
        match &rows {
            Err(trouble) if trouble.is_fatal() => {
                drop(open);
                self.end();
            }
            _ => {
                *connection = Some(open);
                self.answered(sent);
                self.use_at(sent);
            }
        }
        rows
    }

    /// It is over: its connection is closed, whoever holds something on it is told, and the server is told to end
    /// it too, by another one.
    pub(super) fn end(self: &Arc<Self>) {
        if self.gone.is_raised() {
            return;
        }
        self.gone.raise();
        drop(lock(&self.queue).drain(..).collect::<Vec<_>>());
        // Whoever has the connection closes it.
        if let Ok(mut connection) = self.connection.try_lock() {
            *connection = None;
        }
        self.changed.notify_waiters();
        match self.store.upgrade() {
            Some(store) => store.is_over(self),
            None => self.buried.raise(),
        }
    }

    /// Gives up the connection of a session that nothing hangs on, for a session of another kind.
    pub(super) async fn take_connection(&self) -> Option<Connection> {
        self.gone.raise();
        self.buried.raise();
        self.connection.lock().await.take()
    }

    /// Closes the connection of a session that nothing hangs on, with a word.
    pub(super) async fn close(self: &Arc<Self>) {
        self.gone.raise();
        let open = self.connection.lock().await.take();
        if let Some(open) = open {
            let limit = self.clock.now().after(self.timeout);
            tokio::select! {
                _ = open.close() => {}
                () = self.clock.sleep_until(limit) => {}
            }
        }
        self.buried.raise();
    }
}

/// A request counts as long as somebody wants its answer.
struct Asked<'a>(&'a AtomicUsize);

impl<'a> Asked<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What came of a wait.
#[derive(Debug)]
pub(super) enum Waited {
    Granted(u64),
    /// By us, by an administrator, or by a limit of the server.
    CalledOff,
    Refused(Trouble),
    Gone(Trouble),
}
