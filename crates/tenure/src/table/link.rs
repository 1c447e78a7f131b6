//! One connection to a database, and the few that a client has.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
#[cfg(feature = "postgres")]
use std::time::Duration;

#[cfg(feature = "mysql")]
use sqlx::mysql::MySqlConnection;
#[cfg(feature = "postgres")]
use sqlx::postgres::PgConnection;
use sqlx::{AssertSqlSafe, Connection as _, Database, ValueRef as _};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use tenure_core::error::{Error, ErrorKind};
use tenure_core::logic::pace;
use tenure_core::rt::{Clock, Flag, Spawner, lock};
use tenure_core::time::Time;

#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::database::Kind;
use crate::database::Trouble;

#[cfg(feature = "sqlite")]
use super::file::{DatabaseFile, FileId, FileLink, NotOpened};
use super::outcome;
use super::settings::{Place, Settings};
use super::statements::{Packet, Wants};

/// What a database answers, as text.
pub(super) type Row = Vec<Option<String>>;

/// How often the pause grows before a statement is sent again that lost against another one.
const GROWS: u32 = 4;

/// How many times as long as for an answer a request waits for a connection: those before it may all be slow.
const QUEUE: u32 = 10;

/// The answer to one packet.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) rows: Vec<Row>,
    /// Read before it was sent.
    pub(super) sent: Time,
    /// A connection broke over it, and it was sent once more: it may have been done twice.
    pub(super) is_repeated: bool,
    /// The file that answered.
    #[cfg(feature = "sqlite")]
    pub(super) file: Option<FileId>,
}

enum Link {
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
    #[cfg(feature = "sqlite")]
    Sqlite(FileLink),
}

/// Sends it by the simple protocol: no statement is prepared, so a proxy may give each transaction to another
/// connection of its own.
macro_rules! run {
    ($link:expr, $packet:expr) => {{
        let statement = sqlx::raw_sql(AssertSqlSafe($packet.sql.clone()));
        match $packet.wants {
            Wants::Rows => texts(statement.fetch_all($link).await?),
            Wants::Count => {
                let count = statement.execute($link).await?.rows_affected();
                Ok(vec![vec![Some(count.to_string())]])
            }
        }
    }};
}

impl Link {
    async fn run(&mut self, packet: &Packet) -> Result<Vec<Row>, sqlx::Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => run!(link, packet),
            #[cfg(feature = "mysql")]
            Self::MySql(link) => run!(link, packet),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => run!(&mut file.link, packet),
        }
    }

    /// Says goodbye, which spares the server a line in its log.
    async fn close(self) {
        let _ = match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(link) => link.close().await,
            #[cfg(feature = "mysql")]
            Self::MySql(link) => link.close().await,
            #[cfg(feature = "sqlite")]
            Self::Sqlite(file) => file.link.close().await,
        };
    }

    /// The file that it opened.
    #[cfg(feature = "sqlite")]
    fn file(&self) -> Option<FileId> {
        match self {
            Self::Sqlite(file) => Some(file.id),
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            _ => None,
        }
    }
}

/// All values as text, which is how they travel in the simple protocol.
fn texts<R: sqlx::Row>(rows: Vec<R>) -> Result<Vec<Row>, sqlx::Error>
where
    R::Database: Database,
    for<'a> &'a str: sqlx::Decode<'a, R::Database>,
    usize: sqlx::ColumnIndex<R>,
{
    let text = |row: &R, at: usize| {
        let raw = row.try_get_raw(at)?;
        if raw.is_null() {
            return Ok(None);
        }
        let text: &str = sqlx::Decode::decode(raw).map_err(sqlx::Error::Decode)?;
        Ok(Some(text.to_owned()))
    };
    rows.iter()
        .map(|row| (0..row.len()).map(|at| text(row, at)).collect())
        .collect()
}

/// Connections that nobody uses at the moment, and the right to open more.
pub(super) struct Pool {
    settings: Settings,
    clock: Clock,
    spawner: Spawner,
    idle: Mutex<Vec<Link>>,
    permits: Semaphore,
    /// Who is not urgent needs one of these as well: there is one less, so that what is urgent never waits
    /// behind all the others.
    calm: Semaphore,
    is_closed: AtomicBool,
    /// `None`: it is a server.
    #[cfg(feature = "sqlite")]
    file: Option<DatabaseFile>,
}

impl Pool {
    pub(super) fn new(
        settings: &Settings,
        connections: usize,
        clock: Clock,
        spawner: Spawner,
    ) -> Self {
        Self {
            settings: settings.clone(),
            spawner,
            idle: Mutex::default(),
            permits: Semaphore::new(connections),
            calm: Semaphore::new(connections.saturating_sub(1).max(1)),
            is_closed: AtomicBool::new(false),
            #[cfg(feature = "sqlite")]
            file: match &settings.place {
                Place::File(path) => {
                    let (table, timeout) = (settings.table(), settings.timeout);
                    Some(DatabaseFile::new(path, table, clock.clone(), timeout))
                }
                #[cfg(any(feature = "mysql", feature = "postgres"))]
                Place::Server(_) => None,
            },
            clock,
        }
    }

    /// Makes the file and its tables where they are missing, and says what was made.
    #[cfg(feature = "sqlite")]
    pub(super) async fn make_file(&self) -> Result<Vec<String>, Error> {
        let retry_until = self.clock.now().after(self.settings.timeout);
        let mut made = Vec::new();
        for attempt in 0.. {
            let Some(file) = &self.file else { break };
            file.look_for_tables_again();
            let trouble = match file.open(&mut made).await {
                Ok(link) => {
                    lock(&self.idle).push(Link::Sqlite(link));
                    break;
                }
                Err(NotOpened::Replaced) => None,
                Err(NotOpened::Trouble(trouble)) => Some(trouble),
            };
            let may_pass = trouble.as_ref().is_none_or(outcome::is_conflict);
            if !may_pass || self.clock.now() >= retry_until {
                return Err(match trouble {
                    Some(trouble) => outcome::no_connection(trouble, &self.settings),
                    None => outcome::replaced(),
                });
            }
            self.pause(attempt, &Flag::new()).await;
        }
        Ok(made)
    }

    /// Waits a little before the next attempt. `false`: `stop` was raised.
    async fn pause(&self, attempt: u32, stop: &Flag) -> bool {
        let pause = pace::next(attempt.min(GROWS), rand::random(), None, None);
        let at = self.clock.now().after(pause.unwrap_or(pace::FIRST));
        tokio::select! {
            biased;
            () = stop.raised() => false,
            () = self.clock.sleep_until(at) => true,
        }
    }

    /// Opens a connection, so that the first request finds one; whether that works is the answer.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(super) async fn warm_up(&self) -> Result<(), Error> {
        let link = self.connect().await;
        let link = link.map_err(|trouble| outcome::no_connection(trouble, &self.settings))?;
        lock(&self.idle).push(link);
        Ok(())
    }

    /// Sends it, again if a connection broke that had lain idle (its server may have been started again
    /// since), and again when another transaction was in its way.
    pub(super) async fn ask(&self, packet: Packet) -> Result<Reply, Error> {
        self.ask_unless(packet, &Flag::new()).await
    }

    /// The same, but it is not sent again when `stop` is raised.
    pub(super) async fn ask_unless(&self, packet: Packet, stop: &Flag) -> Result<Reply, Error> {
        let patience = self.clock.now().after(self.settings.timeout);
        let mut broken = None;
        for attempt in 0.. {
            let (trouble, is_fresh) = match self.ask_once(&packet, stop).await {
                Ok(reply) => {
                    return Ok(Reply {
                        is_repeated: broken.is_some(),
                        ..reply
                    });
                }
                Err(Refused::Nothing(err)) => {
                    // What was sent before may have been done.
                    return Err(broken.unwrap_or(err));
                }
                Err(Refused::Trouble { trouble, is_fresh }) => (trouble, is_fresh),
                // What was done in a file that is gone was not done.
                #[cfg(feature = "sqlite")]
                Err(Refused::Replaced) if self.clock.now() < patience => {
                    broken = None;
                    continue;
                }
                #[cfg(feature = "sqlite")]
                Err(Refused::Replaced) => return Err(outcome::replaced()),
            };
            let may_repeat = self.clock.now() < patience && !stop.is_raised();
            if outcome::is_conflict(&trouble) && may_repeat && self.pause(attempt, stop).await {
                continue;
            }
            let is_silent = matches!(trouble, Trouble::Silence(_));
            let is_broken = trouble.is_fatal() && !is_silent;
            let err = outcome::explain(trouble, &self.settings);
            if is_broken {
                // What happened to one has probably happened to the others.
                lock(&self.idle).clear();
            }
            if !is_broken || !packet.is_repeatable || is_fresh || broken.is_some() {
                return Err(broken.unwrap_or(err));
            }
            broken = Some(err);
        }
        Err(outcome::nonsense())
    }

    async fn ask_once(&self, packet: &Packet, stop: &Flag) -> Result<Reply, Refused> {
        if self.spawner.is_shut_down() {
            return Err(Refused::Nothing(Error::new(
                ErrorKind::Closed,
                "the runtime of this client is gone; the lease runs out by itself",
            )));
        }
        let _permit = self.permit(packet, stop).await?;
        let idle = self.take_idle()?;
        let is_fresh = idle.is_none();
        let mut link = match idle {
            Some(link) => link,
            None => self.open_link().await?,
        };
        let sent = self.clock.now();
        let limit = sent.after(self.settings.timeout);
        let answer = tokio::select! {
            biased;
            answer = link.run(packet) => answer.map_err(Trouble::from),
            () = self.clock.sleep_until(limit) => Err(Trouble::Silence(self.settings.timeout)),
        };
        #[cfg(feature = "sqlite")]
        let file = link.file();
        #[cfg(feature = "sqlite")]
        if !self.is_current(&link).map_err(Refused::Nothing)? {
            lock(&self.idle).clear();
            return Err(Refused::Replaced);
        }
        match answer {
            Ok(rows) => {
                if !self.is_closed.load(Ordering::SeqCst) {
                    lock(&self.idle).push(link);
                }
                Ok(Reply {
                    rows,
                    sent,
                    is_repeated: false,
                    #[cfg(feature = "sqlite")]
                    file,
                })
            }
            Err(trouble) => {
                // In doubt it is closed. After a refusal it is as good as before, unless a transaction is open.
                let is_open = packet.is_transaction && !outcome::is_locked_file(&trouble);
                if matches!(trouble, Trouble::Said(_)) && !trouble.is_fatal() && !is_open {
                    lock(&self.idle).push(link);
                }
                Err(Refused::Trouble { trouble, is_fresh })
            }
        }
    }

    /// The right to use a connection, or to open one.
    async fn permit(
        &self,
        packet: &Packet,
        stop: &Flag,
    ) -> Result<(Option<SemaphorePermit<'_>>, SemaphorePermit<'_>), Refused> {
        let patience = self.settings.timeout * QUEUE;
        let limit = self.clock.now().after(patience);
        let permit = async {
            let calm = match packet.is_urgent {
                true => None,
                false => Some(self.calm.acquire().await?),
            };
            Ok::<_, AcquireError>((calm, self.permits.acquire().await?))
        };
        let busy = |what: String| Err(Refused::Nothing(Error::new(ErrorKind::Unreachable, what)));
        let permit = tokio::select! {
            biased;
            permit = permit => permit,
            () = stop.raised() => {
                return busy("all connections were busy until the wait was over (connections=)".into());
            }
            () = self.clock.sleep_until(limit) => {
                return busy(format!("all connections were busy for {patience:?} (connections=)"));
            }
        };
        match permit {
            Ok(permit) if !self.is_closed.load(Ordering::SeqCst) => Ok(permit),
            _ => Err(Refused::Nothing(outcome::closed())),
        }
    }

    /// An idle connection. Connections to a file that was removed or replaced are closed.
    fn take_idle(&self) -> Result<Option<Link>, Refused> {
        let idle = lock(&self.idle).pop();
        #[cfg(feature = "sqlite")]
        if let Some(link) = &idle
            && !self.is_current(link).map_err(Refused::Nothing)?
        {
            lock(&self.idle).clear();
            return Ok(None);
        }
        Ok(idle)
    }

    /// Whether the path still leads to the file of that connection.
    #[cfg(feature = "sqlite")]
    fn is_current(&self, link: &Link) -> Result<bool, Error> {
        match (&self.file, link.file()) {
            (Some(file), Some(id)) => file.is_current(id),
            _ => Ok(true),
        }
    }

    async fn open_link(&self) -> Result<Link, Refused> {
        #[cfg(feature = "sqlite")]
        if let Some(file) = &self.file {
            let mut made = Vec::new();
            let opened = file.open(&mut made).await;
            if !made.is_empty() {
                tracing::info!("made {}", made.join(", "));
            }
            return match opened {
                Ok(link) => Ok(Link::Sqlite(link)),
                Err(NotOpened::Replaced) => Err(Refused::Replaced),
                // Others open, close or make the file at this moment.
                Err(NotOpened::Trouble(trouble)) if outcome::is_conflict(&trouble) => {
                    let is_fresh = true;
                    Err(Refused::Trouble { trouble, is_fresh })
                }
                Err(NotOpened::Trouble(trouble)) => {
                    let err = outcome::no_connection(trouble, &self.settings);
                    Err(Refused::Nothing(err))
                }
            };
        }
        let link = self.connect().await;
        link.map_err(|trouble| Refused::Nothing(outcome::no_connection(trouble, &self.settings)))
    }

    async fn connect(&self) -> Result<Link, Trouble> {
        match &self.settings.place {
            #[cfg(any(feature = "mysql", feature = "postgres"))]
            Place::Server(server) => match server.kind {
                #[cfg(feature = "postgres")]
                Kind::Postgres => Ok(Link::Postgres(server.postgres(&self.clock).await?)),
                #[cfg(feature = "mysql")]
                Kind::MySql => {
                    let mut link = server.mysql(&self.clock).await?;
                    let set_up = Packet::rows(MYSQL_SESSION[self.settings.dialect as usize].into());
                    let run = async { run!(&mut link, set_up) };
                    server.limited(&self.clock, run).await?;
                    Ok(Link::MySql(link))
                }
                #[cfg(not(all(feature = "mysql", feature = "postgres")))]
                _ => Err(Trouble::Settings(outcome::nonsense())),
            },
            #[cfg(feature = "sqlite")]
            Place::File(_) => Err(Trouble::Settings(outcome::nonsense())),
        }
    }

    /// Limit of each request.
    #[cfg(feature = "postgres")]
    pub(super) fn timeout(&self) -> Duration {
        self.settings.timeout
    }

    /// Ends all connections that nobody uses; the others end when they have their answer.
    pub(super) async fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.permits.close();
        self.calm.close();
        let idle = std::mem::take(&mut *lock(&self.idle));
        for link in idle {
            link.close().await;
        }
    }
}

/// Sets what may be set otherwise in the server, by dialect. ShedLock's columns hold what its session took for
/// UTC, so ours has to have the same time zone as those of Java, which is the server's.
#[cfg(feature = "mysql")]
const MYSQL_SESSION: [&str; 2] = [
    "SET autocommit=1;SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET autocommit=1;SET time_zone=@@global.time_zone",
];

enum Refused {
    /// This time, nothing was sent.
    Nothing(Error),
    Trouble {
        trouble: Trouble,
        /// The connection had just been opened.
        is_fresh: bool,
    },
    /// The file was removed or replaced meanwhile.
    #[cfg(feature = "sqlite")]
    Replaced,
}
