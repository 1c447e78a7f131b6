//! MySQL and MariaDB: `GET_LOCK`.
//!
//! Keys consist of characters that every server compares alike ([`names`](super::names)), so they are written into
//! statements as they are, in quotes: without quotes, a key of digits would be a number.

use std::fmt::Write as _;
use std::time::Duration;

use crate::database::{Row, hex, number_in_mysql};

use super::dialect::{ASKED, Dialect, HOLDER_COLUMNS, ask_in_table, label};
use super::holder_row::HolderRow;
use super::key::Key;
use super::mode::KeyMode;
use super::operations::SessionOperation;
use super::server_info::{ServerInfo, SessionId};

/// The time of the server's start (s since 1970) and a counter of 24 bits that carries into that time, without the
/// server's id: the number grows from call to call and from start to start.
const TOKEN: &str = "UUID_SHORT() & 72057594037927935";

/// The bits of such a token in `UUID_SHORT()`.
const TOKEN_BITS: u64 = 72_057_594_037_927_935;

/// When the server was started, in s since 1970: its clock minus the time that it has run. One statement reads both, so
/// all sessions see the same number, also after the clock was set. `UUID_SHORT()` has that number too, but its counter
/// carries into it after 2^24 calls; MySQL before 5.7.9 has no other source.
const SERVER_START: &str = "(/*!50709 (SELECT UNIX_TIMESTAMP() - CAST(VARIABLE_VALUE AS SIGNED) FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Uptime') + 0 * */ \
     /*M!100000 (SELECT UNIX_TIMESTAMP() - CAST(VARIABLE_VALUE AS SIGNED) FROM information_schema.global_status WHERE VARIABLE_NAME = 'Uptime') + 0 * */ \
     ((UUID_SHORT() >> 24) & 4294967295))";

/// How long one statement waits, in s. Our own clock ends waits: the server measures this limit on its wall clock,
/// which may jump. It must not be negative, because then MariaDB does not wait at all.
const WAIT_LIMIT_SECS: u32 = 3_600;

/// How long a statement waits for a lock on the table of holders, in s: other requests of the session wait as long.
/// `GET_LOCK` has its own limit.
const TABLE_LIMIT_SECS: u32 = 1;

/// How long one sleep of a session that keeps a lock takes.
const KEEP_CHUNK: Duration = Duration::from_secs(4);

/// The longest `wait_timeout` that every system accepts, in s.
const MAX_IDLE_SECS: u64 = 2_147_483;

pub(super) struct MySql;

impl Dialect for MySql {
    fn set_up(&self, idle: Duration, _: Option<u32>) -> String {
        let idle = idle.as_secs();
        format!(
            "SET SESSION wait_timeout = {idle}, interactive_timeout = {idle}, net_read_timeout = {idle}, net_write_timeout = {idle}, \
             autocommit = 1, innodb_lock_wait_timeout = 5, lock_wait_timeout = {TABLE_LIMIT_SECS} \
             /*M!100100 , max_statement_time = 0 */ /*!50708 , max_execution_time = 0 */;\
             SELECT CONNECTION_ID(), VERSION(), {SERVER_START};\
             SHOW GLOBAL STATUS WHERE Variable_name = 'Uptime';\
             SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode')"
        )
    }

    fn server_info(&self, rows: &[Row], _: Option<u32>) -> Option<ServerInfo> {
        let (first, pairs) = rows.split_first()?;
        let cell = |at: usize| first.get(at)?.as_deref();
        let (id, version, since) = (cell(0)?, cell(1)?, cell(2)?);
        let value = |name: &str| {
            let is_it = |row: &&Row| {
                row.first()
                    .and_then(Option::as_deref)
                    .is_some_and(|it| it.eq_ignore_ascii_case(name))
            };
            pairs.iter().find(is_it)?.get(1)?.as_deref()
        };
        let uptime: u64 = value("Uptime")?.parse().ok()?;
        Some(ServerInfo {
            session: SessionId {
                number: id.parse().ok()?,
                since: since.parse().ok()?,
            },
            capacity: capacity(version),
            objection: objection(value),
            version: version.to_owned(),
            // The server rounds the time of its start and the time of this request down to full seconds.
            uptime: Duration::from_secs(uptime.saturating_sub(1)),
            ends_idle: true,
        })
    }

    fn idle_limit(&self, ttl: Duration) -> Duration {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        Duration::from_secs(seconds.clamp(1, MAX_IDLE_SECS))
    }

    fn statement(&self, operations: &[SessionOperation]) -> String {
        let mut sql = format!("{} SELECT CONNECTION_ID()", label(operations));
        for operation in operations {
            match operation {
                // As short as possible: parsing is most of the server's work for a long statement. `IF` evaluates
                // `GET_LOCK` once, and the token only after that; for NULL, which means that nothing was taken, `IF`
                // returns 0 as well.
                SessionOperation::TryLock { key, .. } => {
                    let _ = write!(sql, ", IF(GET_LOCK('{key}', 0), UUID_SHORT(), 0)");
                }
                SessionOperation::Unlock { key, .. } => {
                    let _ = write!(sql, ", RELEASE_LOCK('{key}')");
                }
                // `IF` evaluates its condition first: the calls use up the tokens.
                SessionOperation::Reserve { first, last } => {
                    let calls = last.saturating_sub(*first);
                    let _ = write!(
                        sql,
                        ", IF(BENCHMARK({calls}, UUID_SHORT()) = 0, ({TOKEN}) >= {last}, 0)"
                    );
                }
                SessionOperation::Ping => sql += ", 1",
            }
        }
        sql
    }

    fn replies(&self, operations: &[SessionOperation], row: &Row) -> Vec<Option<u64>> {
        let number = |at: usize| row.get(at + 1)?.as_deref()?.parse::<u64>().ok();
        let column = |at| number(at).map(|number| number & TOKEN_BITS);
        (0..operations.len()).map(column).collect()
    }

    /// `ELT` evaluates `GET_LOCK` once, too: 0 is busy, NULL is an error.
    fn wait(&self, key: &Key, _: KeyMode, who: &str) -> String {
        format!(
            "/* tenure:wait {who} */ SELECT CONNECTION_ID(), ELT(GET_LOCK('{key}', {WAIT_LIMIT_SECS}) + 1, '0', {TOKEN})"
        )
    }

    /// During a sleep of 5 s or longer the server checks whether the client is still connected, and ends the statement if it
    /// is not. So each sleep is shorter.
    fn keep(&self, min_hold: Duration) -> String {
        let micros = min_hold.as_micros();
        let chunk = KEEP_CHUNK.as_micros();
        let rest = Duration::from_micros(u64::try_from(micros % chunk).unwrap_or(0));
        format!(
            "/* tenure:keep {micros} */ SELECT SLEEP({}), BENCHMARK({}, SLEEP({}))",
            rest.as_secs_f64(),
            micros / chunk,
            KEEP_CHUNK.as_secs()
        )
    }

    fn reaches(&self, from: SessionId, to: SessionId) -> bool {
        from.since == to.since
    }

    fn cancel_statement(&self, session: SessionId) -> String {
        format!("KILL QUERY {}", session.number)
    }

    fn end_session(&self, session: SessionId) -> String {
        format!("KILL CONNECTION {}", session.number)
    }

    fn end_by_hand(&self, connection: u64) -> String {
        format!("KILL {connection}")
    }

    /// Only for users who may read the performance schema, which is off in most servers.
    fn shows_all_locks(&self) -> bool {
        false
    }

    /// Numbers of connections begin again when the server is restarted.
    fn find_session(&self, session: SessionId) -> String {
        format!(
            "/* tenure:look */ SELECT id FROM information_schema.processlist WHERE id = {} AND {SERVER_START} = {}",
            session.number, session.since
        )
    }

    fn session_state(&self, session: SessionId) -> String {
        format!(
            "/* tenure:look */ SELECT info LIKE '/* tenure:keep %' FROM information_schema.processlist WHERE id = {} AND {SERVER_START} = {}",
            session.number, session.since
        )
    }

    /// The query was interrupted, by an administrator or by a limit.
    fn is_cancelled(&self, code: &str) -> bool {
        matches!(code, "1317" | "1969" | "3024")
    }

    fn hash_key(&self, _: &[u8]) -> String {
        "SELECT NULL".into()
    }

    /// Every user may call `GET_LOCK`.
    fn probe_lock(&self, _: &Key) -> String {
        "/* tenure:look */ SELECT 1".into()
    }

    fn create_holder_table(&self) -> String {
        include_str!("sql/mysql.sql").into()
    }

    fn bytes(&self, bytes: &str) -> String {
        format!("X'{}'", hex(bytes.as_bytes()))
    }

    fn holder_values(&self, row: &HolderRow) -> String {
        format!(
            "{}, '{}', {}, {}, '{}', {}, UNIX_TIMESTAMP(NOW(6)) * 1000000, {}, 0",
            row.session.number,
            row.key,
            row.token,
            self.bytes(row.name.as_str()),
            row.mode(),
            self.bytes(&row.holder()),
            row.ttl.as_micros()
        )
    }

    fn insert_holder_rows(&self, rows: &str) -> String {
        format!("INSERT IGNORE INTO tenure_holders ({HOLDER_COLUMNS}) VALUES {rows}")
    }

    fn publish(&self, row: &HolderRow) -> String {
        let number = number_in_mysql("CONVERT(tenure_holders.holder USING utf8mb4)");
        let has_lock = format!("IS_USED_LOCK('{}') = {}", row.key, row.session.number);
        format!(
            "/* tenure:publish */ INSERT INTO tenure_holders ({HOLDER_COLUMNS}) SELECT {} FROM DUAL WHERE {has_lock} \
             ON DUPLICATE KEY UPDATE holder = IF({number} > {}, tenure_holders.holder, {});\
             SELECT 1 FROM DUAL WHERE {has_lock}",
            self.holder_values(row),
            row.value_number().unwrap_or(0),
            self.bytes(&row.holder())
        )
    }

    /// The number is drawn before the next statement looks at the lock.
    fn last_token(&self) -> String {
        format!("SELECT {TOKEN}")
    }

    fn sweep_holder_table(&self) -> String {
        "/* tenure:board */ DELETE FROM tenure_holders WHERE since < (UNIX_TIMESTAMP(NOW(6)) - 60) * 1000000 AND NOT (IS_USED_LOCK(lock_key) <=> connection)".into()
    }

    fn requested_breaks(&self, session: SessionId) -> String {
        format!(
            "/* tenure:renew */ SELECT CONNECTION_ID(), (SELECT GROUP_CONCAT(token SEPARATOR ' ') FROM tenure_holders WHERE connection = {} AND wanted = 1)",
            session.number
        )
    }

    fn requests_to_holders(&self, session: SessionId) -> String {
        format!(
            "{}, (SELECT GROUP_CONCAT(token SEPARATOR ' ') FROM tenure_holders WHERE connection = {} AND wanted = {ASKED})",
            self.requested_breaks(session),
            session.number
        )
    }

    fn ask_to_release(&self, session: SessionId, token: u64) -> String {
        format!(
            "{}; SELECT 1 FROM tenure_holders WHERE connection = {} AND token = {token}",
            ask_in_table(session, token),
            session.number
        )
    }

    fn holders(&self, key: &Key, has_table: bool) -> String {
        let (columns, join) = match has_table {
            true => (
                "b.token, HEX(b.holder), b.mode, b.since, b.ttl",
                format!(
                    "LEFT JOIN (SELECT * FROM tenure_holders WHERE lock_key = '{key}' AND connection = IS_USED_LOCK('{key}') ORDER BY token DESC LIMIT 1) b ON b.connection = u.id"
                ),
            ),
            false => ("NULL, NULL, NULL, NULL, NULL", String::new()),
        };
        format!(
            "/* tenure:look */ SELECT u.id, {SERVER_START}, {columns}, p.user, p.host, IF(p.info LIKE '/* tenure:keep %', 0, p.time * 1000000), \
             IF(p.info LIKE '/* tenure:keep %', SUBSTRING_INDEX(SUBSTRING_INDEX(p.info, ' ', 3), ' ', -1) - p.time * 1000000, NULL) \
             FROM (SELECT IS_USED_LOCK('{key}') AS id) u {join} \
             LEFT JOIN information_schema.processlist p ON p.id = u.id WHERE u.id IS NOT NULL"
        )
    }

    fn waiters(&self, key: &Key) -> String {
        format!(
            "/* tenure:look */ SELECT info FROM information_schema.processlist WHERE state = 'User lock' AND INSTR(info, 'GET_LOCK(''{key}'', {WAIT_LIMIT_SECS})') > 0 ORDER BY time DESC, id"
        )
    }

    fn held_names(&self, prefix: &str) -> String {
        format!(
            "/* tenure:look */ SELECT DISTINCT HEX(name) FROM tenure_holders WHERE LEFT(name, {}) = {} AND IS_USED_LOCK(lock_key) = connection",
            prefix.len(),
            self.bytes(prefix)
        )
    }

    fn other_locks(&self, session: SessionId, _: &Key, token: u64) -> String {
        format!(
            "/* tenure:look */ SELECT COUNT(*) FROM tenure_holders WHERE connection = {} AND token <> {token} AND IS_USED_LOCK(lock_key) = connection",
            session.number
        )
    }
}

/// How many locks a session of that version can have: old versions release a lock when they take the next.
fn capacity(version: &str) -> usize {
    let mut numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let mut version_number = (next(), next(), next());
    let is_mariadb = version.to_ascii_lowercase().contains("mariadb");
    if is_mariadb && version_number == (5, 5, 5) {
        // The prefix 5.5.5 is for old replicas; the version comes after it.
        version_number = (next(), next(), next());
    }
    let since = if is_mariadb { (10, 0, 2) } else { (5, 7, 5) };
    if version_number >= since {
        usize::MAX
    } else {
        1
    }
}

/// Why locks in this server would not exclude all other clients.
fn objection<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Option<String> {
    let is_on = |name| value(name).is_some_and(|it| matches!(it, "ON" | "1" | "on"));
    if is_on("wsrep_on") {
        return Some(
            "is a node of a Galera cluster, and the other nodes would not know of its locks; use mode=table".into(),
        );
    }
    let is_member = value("group_replication_group_name").is_some_and(|it| !it.is_empty());
    if is_member && !is_on("group_replication_single_primary_mode") {
        return Some(
            "is one of several primaries of a group, and the others would not know of its locks; use mode=table".into(),
        );
    }
    is_on("read_only").then(|| {
        "is read-only: a replica, whose locks the primary does not know of; name the primary in the URL, or: SET GLOBAL read_only = 0".into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_have_one_lock_per_session() {
        for (version, many) in [
            ("5.5.68", false),
            ("5.6.51-log", false),
            ("5.7.4-m14", false),
            ("5.7.5-m15", true),
            ("5.7.44", true),
            ("8.0.36-0ubuntu0.22.04.1", true),
            ("9.1.0", true),
            ("5.5.68-MariaDB", false),
            ("10.0.1-MariaDB", false),
            ("10.0.2-MariaDB", true),
            ("10.11.19-MariaDB-0+deb12u1", true),
            ("5.5.5-10.0.1-MariaDB", false),
            ("5.5.5-10.6.12-MariaDB-log", true),
            ("11.4.2-MariaDB", true),
            ("nonsense", false),
        ] {
            assert_eq!(capacity(version) > 1, many, "{version}");
        }
    }

    #[test]
    fn servers_that_do_not_share_their_locks_are_refused() {
        let of = |pairs: &'static [(&str, &str)]| {
            objection(move |name| pairs.iter().find(|(it, _)| *it == name).map(|it| it.1))
        };
        for (pairs, says) in [
            (&[("wsrep_on", "ON")][..], Some("Galera")),
            (&[("wsrep_on", "OFF")], None),
            (&[("read_only", "ON")], Some("replica")),
            (&[("read_only", "OFF")], None),
            (
                &[
                    ("group_replication_group_name", "x"),
                    ("group_replication_single_primary_mode", "OFF"),
                ],
                Some("primaries"),
            ),
            (
                &[
                    ("group_replication_group_name", "x"),
                    ("group_replication_single_primary_mode", "ON"),
                ],
                None,
            ),
            (&[("group_replication_group_name", "")], None),
            (&[], None),
        ] {
            let said = of(pairs);
            assert_eq!(said.is_some(), says.is_some(), "{pairs:?}: {said:?}");
            assert!(
                said.unwrap_or_default().contains(says.unwrap_or_default()),
                "{pairs:?}"
            );
        }
    }

    #[test]
    fn limits_are_whole_seconds_and_never_less_than_asked_for() {
        for (ttl, idle) in [
            (20, 1_000),
            (1_000, 1_000),
            (1_001, 2_000),
            (30_000, 30_000),
        ] {
            let idle_limit = MySql.idle_limit(Duration::from_millis(ttl));
            assert_eq!(idle_limit, Duration::from_millis(idle), "{ttl}");
        }
        let month = Duration::from_secs(365 * 24 * 3_600);
        assert_eq!(MySql.idle_limit(month).as_secs(), MAX_IDLE_SECS);
    }
}
