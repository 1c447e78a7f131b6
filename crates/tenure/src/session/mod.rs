//! `mysql:` and `postgres:`: locks that the server keeps for a session, `GET_LOCK` and advisory locks, so that whoever
//! else takes them excludes us and we them.
//!
//! A session carries any number of locks; requests that come while one is under way are gathered into the next
//! statement. Who waits does so in the server's own queue, on a session of its own. The server ends a session that
//! is silent for a ttl: that is the lease. Nothing lies in a table but who holds, for people to read.
//! The published format is in `docs/stores/mysql.md` and `docs/stores/postgres.md`.
//!
//! # Reading order
//! `names` and `mappings` (keys) · `dialect` with `mysql` and `postgres` (words of either server) ·
//! `connection`, `entries` and `link` (one session) · `pool` (which session) · `hold` (one request each) · `wait` (the waiter's side) · `keeper` (the task
//! that sees to sessions) · `board` and `look` (what people see) · `outcome` (what errors mean).

mod board;
mod connection;
mod contended;
mod dialect;
mod entries;
mod guarantees;
mod hold;
mod job;
mod keeper;
mod link;
mod look;
mod mappings;
#[cfg(feature = "mysql")]
mod mysql;
mod names;
mod outcome;
mod pool;
#[cfg(feature = "postgres")]
mod postgres;
mod settings;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use tenure_core::backend::{
    Alarm, Answer, Backend as Door, BoxFuture, Finding, Hold, Release, Renewal, Request,
};
use tenure_core::error::{Error, ErrorKind};
use tenure_core::guarantees::{Capability, Guarantees};
use tenure_core::holder::Status;
use tenure_core::name::LockName;
use tenure_core::rt::{Clock, Spawner, lock};
use tenure_core::url::Url;

use crate::capabilities::stores_with;
use crate::database::{Kind, Server, no_connection};

pub use self::guarantees::{Configuration, guarantees};
use self::hold::Store;
use self::settings::Settings;

/// How long [`Door::close`] may take: the server may be away, and it ends sessions by itself.
const FAREWELL: Duration = Duration::from_secs(1);

/// Locks of sessions in a database.
pub struct Backend(Arc<Store>);

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Backend")
            .field(&self.0.settings.server.host)
            .finish()
    }
}

impl Backend {
    /// Connects to a server; `url` is what [`Server::parse`] has left of the URL.
    ///
    /// # Errors
    /// `Invalid`: the URL is wrong. `Unreachable`, `Denied`: the server is not there, or would not have us.
    /// `Unsupported`: its sessions' locks would not exclude everybody, the message says why.
    pub(crate) async fn connect(server: Server, url: Url) -> Result<Self, Error> {
        let settings = Settings::new(server, url)?;
        let Some(spawner) = Spawner::current() else {
            return Err(Error::new(
                ErrorKind::Closed,
                "connect was called outside a tokio runtime; use `tenure::blocking` there",
            ));
        };
        let promised = guarantees(Configuration {
            is_postgres: settings.server.kind == Kind::Postgres,
            is_guarded: settings.restart_guard.is_some(),
        });
        let dialect = dialect::of(&settings)?.into();
        let store = Arc::new(Store::new(settings, promised, dialect, spawner));
        store.find_fault().await?;
        store.find_board().await;
        Ok(Self(store))
    }
}

impl Door for Backend {
    fn guarantees(&self) -> &Guarantees {
        &self.0.guarantees
    }

    fn stores_with(&self, capability: Capability) -> String {
        stores_with(capability)
    }

    fn clock(&self) -> Clock {
        self.0.clock.clone()
    }

    fn attach(&self, alarm: Alarm) {
        // Called once.
        let _ = self.0.alarm.set(alarm);
    }

    fn acquire(&self, request: Arc<Request>) -> BoxFuture<Result<Answer, Error>> {
        Box::pin(self.0.clone().acquire(request))
    }

    fn renew(&self, holds: Vec<Hold>) -> BoxFuture<Vec<Renewal>> {
        Box::pin(self.0.clone().renew(holds))
    }

    fn release(&self, hold: Hold) -> BoxFuture<Result<Release, Error>> {
        Box::pin(self.0.clone().release(hold))
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<Status, Error>> {
        Box::pin(self.0.clone().inspect(name))
    }

    fn list(&self, prefix: String) -> BoxFuture<Result<Vec<Status>, Error>> {
        Box::pin(self.0.clone().list(prefix))
    }

    fn break_lock(&self, name: LockName, token: u64) -> BoxFuture<Result<bool, Error>> {
        Box::pin(self.0.clone().break_lock(name, token))
    }

    fn check(&self) -> BoxFuture<Result<Vec<Finding>, Error>> {
        Box::pin(self.0.clone().check())
    }

    fn init(&self) -> BoxFuture<Result<Vec<String>, Error>> {
        Box::pin(self.0.clone().init())
    }

    fn close(&self) -> BoxFuture<()> {
        let store = self.0.clone();
        Box::pin(async move { store.close().await })
    }
}

impl Store {
    /// Two sessions that turn out to be one, or others each time, are shared out by something between us and the
    /// server.
    async fn find_fault(self: &Arc<Self>) -> Result<(), Error> {
        let server = &self.settings.server;
        let desk = self.desk().await?;
        let other = self.open(Duration::from_secs(60)).await?;
        let mut is_shared = desk.facts.session == other.facts.session;
        for link in [&desk, &other, &desk] {
            let limit = self.clock.now().after(server.timeout);
            let ping = self.dialect.batch(&[dialect::Ask::Ping]);
            let rows = link.look(ping, limit).await;
            let rows = rows.map_err(|trouble| no_connection(trouble, server))?;
            let said = rows.first().and_then(|row| row.first()?.clone());
            is_shared |= said != Some(link.facts.session.id.to_string());
        }
        if is_shared {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "something between us and {server} shares its sessions out by transaction, so a lock would be anybody's; use its session mode, name the server itself, or use mode=table"
                ),
            ));
        }
        *self.spare.lock().await = Some(other);
        Ok(())
    }

    /// Ends all sessions, and with them whatever they hold and wait for.
    async fn close(self: &Arc<Self>) {
        self.closing.raise();
        // Wakes the keeper, which ends.
        self.maintenance.wake();
        let limit = self.clock.now().after(FAREWELL);
        let waiting = wait::waiting(self);
        let farewell = async {
            // A server does not notice that somebody who waits in its queue has hung up.
            let gone = waiting.iter().map(|link| link.gone.raised());
            join_all(gone).await;
            let links: Vec<_> = lock(&self.links).drain(..).collect();
            join_all(links.iter().map(|link| link.close())).await;
            // Asked on the desk, hence before that is closed.
            self.board.clear(self).await;
            let desk = self.desk.lock().await.take();
            let spare = self.spare.lock().await.take();
            for link in [desk, spare].into_iter().flatten() {
                link.close().await;
            }
        };
        tokio::select! {
            biased;
            // What cannot be told ends with its connection.
            () = farewell => {}
            () = self.clock.sleep_until(limit) => {}
        }
        let links: Vec<_> = lock(&self.links).drain(..).collect();
        for link in links {
            link.gone.raise();
        }
    }
}
