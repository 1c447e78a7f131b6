//! The fence as plain SQL, for any client of the database.

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};
use tenure_core::name::LockName;

/// Locks the row of the resource, raises it to this token unless it has a greater one, and returns the greatest.
pub(super) const POSTGRES_FENCE: &str = "INSERT INTO tenure_fences AS f (resource, token) VALUES ($1, $2) \
     ON CONFLICT (resource) DO UPDATE SET token = GREATEST(f.token, EXCLUDED.token) RETURNING token";
/// The same for SQLite.
pub(super) const SQLITE_FENCE: &str = "INSERT INTO tenure_fences (resource, token) VALUES (?1, ?2) \
     ON CONFLICT (resource) DO UPDATE SET token = MAX(token, excluded.token) RETURNING token";
/// The same for MySQL, and returns nothing: MySQL has no `RETURNING`.
const MYSQL_RAISE: &str = "INSERT INTO tenure_fences (resource, token) VALUES (?, ?) \
     ON DUPLICATE KEY UPDATE token = GREATEST(token, ?)";
/// `FOR UPDATE` reads the row as it is now, and not as it was when the transaction began.
const MYSQL_GREATEST: &str = "SELECT token FROM tenure_fences WHERE resource = ? FOR UPDATE";

/// A kind of database, for SQL as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL 9.5 and newer. Parameters are `$1`, `$2`.
    Postgres,
    /// MySQL and MariaDB. Parameters are `?`, in their order.
    MySql,
    /// SQLite 3.35 and newer. Parameters are `?1`, `?2`.
    Sqlite,
}

/// One statement of SQL with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The text.
    pub sql: &'static str,
    /// The parameters, in the order of their numbers.
    pub binds: Vec<Bind>,
}

/// One parameter of a [`Statement`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// Bytes: `BYTEA`, `VARBINARY`, `BLOB`.
    Bytes(Vec<u8>),
    /// A whole number of 64 bits with a sign: `BIGINT`, `INTEGER`.
    Integer(i64),
}

/// The fence of one resource for one token; made by [`fence_statements`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "nothing is fenced before the statements are executed"]
pub struct FenceStatements {
    statements: Vec<Statement>,
    resource: LockName,
    token: u64,
}

impl FenceStatements {
    /// What to run, in this order, in the transaction that writes, and before it writes. The last one answers with one
    /// row of one column, an integer: the greatest token that the fence has seen. Give it to
    /// [`check`](FenceStatements::check).
    pub fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// Whether the transaction may go on: `greatest` is what the last statement answered.
    ///
    /// # Errors
    /// [`Lost`](ErrorKind::Lost): a holder with a greater token has passed this fence; roll the transaction back.
    pub fn check(&self, greatest: i64) -> Result<(), Error> {
        match u64::try_from(greatest) {
            Ok(greatest) if greatest > self.token => {
                Err(stale(self.token, greatest).with_name(&self.resource))
            }
            _ => Ok(()),
        }
    }
}

/// The [fence](crate::Fenced) as text, for a client of the database other than `sqlx`: it refuses a `token` smaller than
/// the greatest one that it has seen for `resource`.
///
/// The row of the fence is locked until the transaction ends: no other holder can pass in between. It is the
/// row that `tenure::sql::fence` uses, so programs with `sqlx` and without exclude each other's late writes. The
/// tables have to be there, see [`create_tables`]. `resource` is any name of 1 to 1,000 bytes; all who write
/// must use the same one, and tokens of one lock.
///
/// ```
/// use tenure::sql::{Bind, Dialect, fence_statements};
///
/// let fence = fence_statements(Dialect::Postgres, "account/7", 42_u64)?;
/// for statement in fence.statements() {
///     println!("{}", statement.sql); // run it with these parameters:
///     assert_eq!(statement.binds, [Bind::Bytes(b"account/7".to_vec()), Bind::Integer(42)]);
/// }
/// let greatest = 42; // the column of the row that came back
/// fence.check(greatest)?;
/// # Ok::<(), tenure::Error>(())
/// ```
///
/// `examples/after_commit.rs` does it with `tokio-postgres`.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid): `resource` cannot be a name, or the token is above 2^63.
pub fn fence_statements(
    dialect: Dialect,
    resource: &str,
    token: impl Into<u64>,
) -> Result<FenceStatements, Error> {
    let resource = LockName::new(resource)?;
    let token = token.into();
    let signed = signed(token).map_err(|err| err.with_name(&resource))?;
    let name = || Bind::Bytes(resource.as_str().as_bytes().to_vec());
    let number = || Bind::Integer(signed);
    let statement = |sql, binds| Statement { sql, binds };
    let statements = match dialect {
        Dialect::Postgres => vec![statement(POSTGRES_FENCE, vec![name(), number()])],
        Dialect::Sqlite => vec![statement(SQLITE_FENCE, vec![name(), number()])],
        Dialect::MySql => vec![
            statement(MYSQL_RAISE, vec![name(), number(), number()]),
            statement(MYSQL_GREATEST, vec![name()]),
        ],
    };
    Ok(FenceStatements {
        statements,
        resource,
        token,
    })
}

/// The statements that create the tables of [`tenure::sql`](crate::sql) where they are not there: several, without
/// parameters, separated by `;`. What `tenure::sql::init` runs.
pub const fn create_tables(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Postgres => include_str!("postgres.sql"),
        Dialect::MySql => include_str!("mysql.sql"),
        Dialect::Sqlite => include_str!("sqlite.sql"),
    }
}

/// A token as the integer type that all databases have.
pub(super) fn signed(token: u64) -> Result<i64, Error> {
    i64::try_from(token).map_err(|_| {
        let message = format!("the token {token} is above 2^63, which no store hands out");
        Error::new(ErrorKind::Invalid, message)
    })
}

pub(super) fn stale(token: u64, newest: impl std::fmt::Display) -> Error {
    let message = format!(
        "the token {token} is stale: {newest} has written since, so the lock had ended; roll the transaction back"
    );
    Error::new(ErrorKind::Lost, message)
}
