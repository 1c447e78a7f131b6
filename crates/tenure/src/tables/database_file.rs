//! The file of an SQLite database: its identity, and how it is made.
//!
//! SQLite says nothing when its file is removed or replaced: open connections go on in the old one, while other
//! processes lock the new one. Therefore each connection remembers which file it opened, and an answer counts only
//! while the path still leads to that file.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::Escaped;
use tenure_core::rt::{Clock, lock};
use tenure_core::support::RetryBudget;

use crate::database::{self, RequestError};

use super::connection::Connection;
use super::file_access::require_write_access;
use super::file_id::FileId;
use super::sql::schema;

/// The files that SQLite keeps beside a database. If a removed database left them behind, SQLite would read them as part
/// of the new one.
const SIDE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Why there is no connection.
pub(super) enum OpenError {
    /// The file was removed or replaced meanwhile.
    Replaced,
    Failed(RequestError),
}

impl From<Error> for OpenError {
    fn from(err: Error) -> Self {
        Self::Failed(RequestError::Explained(err))
    }
}

impl From<sqlx::Error> for OpenError {
    fn from(err: sqlx::Error) -> Self {
        Self::Failed(err.into())
    }
}

/// The database file of a client.
pub(super) struct DatabaseFile {
    path: PathBuf,
    /// The table of locks.
    table: String,
    clock: Clock,
    /// Limit of an attempt to open the file.
    timeout: Duration,
    /// The file that is known to have the tables.
    prepared: Mutex<Option<FileId>>,
}

impl DatabaseFile {
    pub(super) fn new(path: &Path, table: &str, clock: Clock, timeout: Duration) -> Self {
        Self {
            path: path.to_owned(),
            table: table.to_owned(),
            clock,
            timeout,
            prepared: Mutex::default(),
        }
    }

    /// The file that lies at the path now. `None`: there is none.
    pub(super) fn id(&self) -> Result<Option<FileId>, Error> {
        FileId::at(&self.path)
    }

    /// Whether the path still leads to that file.
    pub(super) fn is_current(&self, id: FileId) -> Result<bool, Error> {
        Ok(self.id()? == Some(id))
    }

    /// Looks for the tables again at the next opening.
    pub(super) fn look_for_tables_again(&self) {
        *lock(&self.prepared) = None;
    }

    /// Opens the file; makes what is missing of file and tables, and adds that to `made`.
    pub(super) async fn open(&self, made: &mut Vec<String>) -> Result<Connection, OpenError> {
        let limit = self.clock.now().after(self.timeout);
        tokio::select! {
            biased;
            opened = self.open_unlimited(made) => opened,
            () = self.clock.sleep_until(limit) => {
                let (shown, limit) = (self.path.display().to_string(), self.timeout);
                let text = format!("{} could not be opened within {limit:?}", Escaped(&shown));
                Err(Error::new(ErrorKind::Unreachable, text).with_timeout().into())
            }
        }
    }

    async fn open_unlimited(&self, made: &mut Vec<String>) -> Result<Connection, OpenError> {
        let mut connection = match self.id()? {
            Some(id) => self.connect(Some(id)).await?,
            None => {
                let _alone = self.lock_directory().await?;
                match self.id()? {
                    Some(id) => self.connect(Some(id)).await?,
                    None => {
                        self.remove_side_files()?;
                        let connection = self.connect(None).await?;
                        let shown = self.path.display().to_string();
                        made.push(format!("file {}", Escaped(&shown)));
                        connection
                    }
                }
            }
        };
        self.use_write_ahead_log(&mut connection.database).await?;
        let is_prepared = *lock(&self.prepared) == connection.file;
        if !is_prepared {
            self.make_tables(&mut connection.database, made).await?;
            *lock(&self.prepared) = connection.file;
        }
        Ok(connection)
    }

    /// Opens the file `before`, or makes one.
    async fn connect(&self, before: Option<FileId>) -> Result<Connection, OpenError> {
        require_write_access(&self.path, &self.side_files())?;
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(before.is_none())
            // We wait ourselves, because our wait can be cancelled.
            .busy_timeout(Duration::ZERO)
            // With a write-ahead log, a loss of power damages nothing. The last holds may be lost, but their processes are
            // gone as well.
            .synchronous(SqliteSynchronous::Normal)
            .disable_statement_logging();
        let connection = SqliteConnection::connect_with(&options).await;
        // The file was the same before and after it was opened, so that is the file which was opened.
        match (connection, self.id()?) {
            (Ok(connection), Some(id)) if before.is_none_or(|before| before == id) => {
                let database = database::Connection::from(connection);
                Ok(Connection::of(database, Some(id)))
            }
            (Err(err), now) if now == before => Err(err.into()),
            _ => Err(OpenError::Replaced),
        }
    }

    /// The file may have got another journal since its tables were made: it was restored, or another program has set it.
    /// With another journal readers and writers block each other, and COMMIT can be refused.
    async fn use_write_ahead_log(
        &self,
        database: &mut database::Connection,
    ) -> Result<(), OpenError> {
        let rows = database.rows("PRAGMA journal_mode=WAL".to_owned()).await?;
        let journal = rows.first().and_then(|row| row.first());
        let journal = journal.and_then(Option::as_deref).unwrap_or_default();
        if journal == "wal" {
            return Ok(());
        }
        let shown = self.path.display().to_string();
        let text = format!(
            "{} cannot have a write-ahead log (its journal is \"{}\"); the file has to lie in a local file system",
            Escaped(&shown),
            Escaped(journal)
        );
        Err(Error::new(ErrorKind::Denied, text).into())
    }

    /// Keeps other processes from making the file at the same time. Before a process makes a file, it removes the side
    /// files that an earlier database left behind, and they must not be those of a database that another process just made.
    /// On Windows no directory can be locked, and no database that is in use can be removed.
    async fn lock_directory(&self) -> Result<Option<DirectoryLock>, Error> {
        if !cfg!(unix) {
            return Ok(None);
        }
        let directory = match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let directory = File::open(directory).map_err(|err| self.not_made(err))?;
        let mut pauses = RetryBudget::without_limit();
        loop {
            match directory.try_lock() {
                Ok(()) => return Ok(Some(DirectoryLock(directory))),
                Err(TryLockError::WouldBlock) => pauses.pause(&self.clock).await,
                Err(TryLockError::Error(err)) => return Err(self.not_made(err)),
            }
        }
    }

    fn side_files(&self) -> [PathBuf; 3] {
        SIDE_FILES.map(|suffix| {
            let mut path = self.path.as_os_str().to_owned();
            path.push(suffix);
            path.into()
        })
    }

    fn remove_side_files(&self) -> Result<(), Error> {
        for path in self.side_files() {
            match fs::remove_file(&path) {
                Err(err) if err.kind() != io::ErrorKind::NotFound => {
                    return Err(self.not_made(err));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn not_made(&self, err: io::Error) -> Error {
        let shown = self.path.display().to_string();
        let text = format!(
            "the file {} cannot be made; its directory has to exist, and this user must be able to write there",
            Escaped(&shown)
        );
        Error::new(ErrorKind::Denied, text).with_source(err)
    }

    /// Runs the published statements, unless all tables are there.
    pub(super) async fn make_tables(
        &self,
        database: &mut database::Connection,
        made: &mut Vec<String>,
    ) -> Result<(), OpenError> {
        let steps = schema::steps_of_file(&self.table);
        let mut missing = Vec::new();
        for table in steps.iter().filter_map(|step| step.table.as_ref()) {
            if database
                .rows(schema::looks_for_table(table))
                .await?
                .is_empty()
            {
                missing.push(table);
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        for step in &steps {
            database.rows(step.sql.clone()).await?;
            if let Some(table) = &step.table
                && missing.contains(&table)
            {
                made.push(format!("table {table}"));
            }
        }
        Ok(())
    }
}

/// Unlocks the directory when dropped. Closing alone is not enough: a child between fork and exec shares the open
/// directory.
struct DirectoryLock(File);

impl Drop for DirectoryLock {
    fn drop(&mut self) {
        // If that fails, closing the directory unlocks it.
        let _ = self.0.unlock();
    }
}
