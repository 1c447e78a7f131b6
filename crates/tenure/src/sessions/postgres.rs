//! PostgreSQL: advisory locks of the session.

use std::time::Duration;

use crate::database::{Row, channel, hex, number_in_postgres};

use super::dialect::{ASKED, Dialect, HOLDER_COLUMNS, ask_in_table, label};
use super::holder_row::HolderRow;
use super::key::Key;
use super::mode::KeyMode;
use super::operations::{MAX_BATCH, SessionOperation};
use super::postgres_locks::{PreparedStatement, call, try_lock, unlock, wait_for};
use super::server_info::{ServerInfo, SessionId};

/// When this run of the server began, the same for every client: after a crash of one process all others start over
/// without a new start of the server, and then its counters are set back.
const START: &str = "greatest(pg_postmaster_start_time(), pg_stat_get_bgwriter_stat_reset_time())";

/// The longest `idle_session_timeout`, in ms.
const MAX_IDLE_MILLIS: u64 = 2_147_483_647;

/// From this version on the server ends idle sessions, and checks whether the client of a busy session is there.
const IDLE_LIMIT_VERSION: u32 = 140_000;

/// From this version on the server has a limit for transactions, and a wait for a lock is one.
const TRANSACTION_LIMIT_VERSION: u32 = 170_000;

/// How long a statement on the control connection waits for a lock on the table of holders, in ms: the connection has
/// more to do.
const TABLE_LIMIT_MILLIS: u32 = 1_000;

/// How long a session that has locks waits for a lock on that table, in ms: releases of its locks wait as long.
const RENEWAL_LIMIT_MILLIS: u32 = 100;

pub(super) struct Postgres;

impl Dialect for Postgres {
    fn set_up(&self, idle: Duration, version: Option<u32>) -> String {
        let (millis, version) = (idle.as_millis(), version.unwrap_or(0));
        let third = (idle.as_secs() / 3).max(1).to_string();
        let mut settings = vec![
            ("statement_timeout", "0".to_owned()),
            ("lock_timeout", TABLE_LIMIT_MILLIS.to_string()),
            ("idle_in_transaction_session_timeout", "0".into()),
            ("synchronous_commit", "off".into()),
            ("tcp_keepalives_idle", third.clone()),
            ("tcp_keepalives_interval", third),
            ("tcp_keepalives_count", "2".into()),
        ];
        if version >= 120_000 {
            settings.push(("tcp_user_timeout", millis.to_string()));
        }
        if version >= TRANSACTION_LIMIT_VERSION {
            settings.push(("transaction_timeout", "0".into()));
        }
        if version >= IDLE_LIMIT_VERSION {
            settings.push(("idle_session_timeout", millis.to_string()));
            settings.push(("client_connection_check_interval", "1s".into()));
        }
        let settings: Vec<_> = settings
            .iter()
            .map(|(name, value)| format!("set_config('{name}', '{value}', false)"))
            .collect();
        // A user who may see the checkpointer knows the exact start. The other source also moves when statistics are
        // reset; then nothing is granted for the time of the restart guard.
        let start = format!(
            "coalesce((SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer'), {START})"
        );
        format!(
            "SELECT pg_backend_pid(), (SELECT {} FROM pg_stat_get_activity(pg_backend_pid())), pg_is_in_recovery(), {}, current_setting('server_version'), {}",
            micros("backend_start"),
            micros(&format!("clock_timestamp() - {start}")),
            settings.join(", ")
        )
    }

    fn server_info(&self, rows: &[Row], version: Option<u32>) -> Option<ServerInfo> {
        let row = rows.first()?;
        let cell = |at: usize| row.get(at)?.as_deref();
        let uptime: i64 = cell(3)?.parse().ok()?;
        let objection = (cell(2)? == "t").then(|| {
            "is a standby, whose locks the primary does not know of; name the primary in the URL"
                .to_owned()
        });
        Some(ServerInfo {
            session: SessionId {
                number: cell(0)?.parse().ok()?,
                since: cell(1)?.parse().ok()?,
            },
            version: cell(4)?.to_owned(),
            uptime: Duration::from_micros(u64::try_from(uptime).unwrap_or(0)),
            capacity: usize::MAX,
            ends_idle: version.is_none_or(|version| version >= IDLE_LIMIT_VERSION),
            objection,
        })
    }

    fn counts_own_locks(&self) -> Option<String> {
        let sql =
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
        Some(sql.to_owned())
    }

    fn idle_limit(&self, ttl: Duration) -> Duration {
        let nanos = ttl.as_nanos();
        let millis = u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX);
        Duration::from_millis(millis.clamp(1, MAX_IDLE_MILLIS))
    }

    fn prepare(&self) -> String {
        // Arrays, so that one prepared statement fits any number of locks. OFFSET keeps the planner from moving the
        // calls out.
        let each = |function: &str, keys: &str| {
            format!(
                "array_to_string(ARRAY(SELECT {function}(key)::int FROM unnest({keys}) AS key), '')"
            )
        };
        let wait = wait_in("pg_advisory_lock($1)");
        // `lock_timeout` would end waits for advisory locks too.
        format!(
            "; SET lock_timeout = 0\
             ; PREPARE tenure_wait (bigint) AS {wait}\
             ; PREPARE tenure_take (bigint) AS SELECT pg_backend_pid(), CASE WHEN t THEN {} ELSE 0 END FROM (SELECT pg_try_advisory_lock($1) AS t OFFSET 0) AS taken\
             ; PREPARE tenure_give (bigint) AS SELECT pg_backend_pid(), pg_advisory_unlock($1)::int\
             ; PREPARE tenure_many (bigint[], bigint[]) AS SELECT pg_backend_pid(), t, CASE WHEN t LIKE '%1%' THEN {} ELSE 0 END, {} FROM (SELECT {} AS t OFFSET 0) AS taken",
            token(0),
            token(0),
            each("pg_advisory_unlock", "$2"),
            each("pg_try_advisory_lock", "$1"),
        )
    }

    fn statement(&self, operations: &[SessionOperation]) -> String {
        if let Some(prepared) = PreparedStatement::of(operations) {
            return format!("{} EXECUTE {prepared}", label(operations));
        }
        let mut sql = format!("{} SELECT pg_backend_pid()", label(operations));
        let mut taken = Vec::new();
        for (at, operation) in operations.iter().enumerate() {
            match operation {
                SessionOperation::TryLock { key, mode } => {
                    taken.push(format!("{} AS t{at}", try_lock(*mode, key)));
                    sql += &format!(", CASE WHEN t{at} THEN {} ELSE 0 END", token(at));
                }
                SessionOperation::Unlock { key, mode } => {
                    sql += &format!(", {}", unlock(*mode, key));
                }
                // Later grants have a later transaction. The statement uses up the tokens of its own.
                SessionOperation::Reserve { last, .. } => {
                    sql += &format!(", ({} >= {last})::int", token(MAX_BATCH - 1));
                }
                SessionOperation::Ping => sql += ", 1",
            }
        }
        // All locks first, and only then the number of the transaction, which is assigned when it is first asked for.
        // Otherwise another session could have had a later key of the list, under a greater number, between the two.
        if !taken.is_empty() {
            sql += &format!(" FROM (SELECT {} OFFSET 0) AS taken", taken.join(", "));
        }
        sql
    }

    fn replies(&self, operations: &[SessionOperation], row: &Row) -> Vec<Option<u64>> {
        let column = |at: usize| row.get(at)?.as_deref();
        if !matches!(
            PreparedStatement::of(operations),
            Some(PreparedStatement::Many { .. })
        ) {
            let one = |at: usize| column(at + 1)?.parse().ok();
            return (0..operations.len()).map(one).collect();
        }
        let first: Option<u64> = column(2).and_then(|token| token.parse().ok());
        let digits = |at: usize| column(at).unwrap_or_default().bytes();
        let (mut taken, mut given) = (digits(1).zip(0..), digits(3));
        let answer = |operation: &SessionOperation| match operation {
            SessionOperation::TryLock { .. } => match taken.next()? {
                (b'1', at) => Some(first? + at),
                _ => Some(0),
            },
            SessionOperation::Unlock { .. } => Some(u64::from(given.next()? == b'1')),
            SessionOperation::Ping => Some(1),
            // Not in this statement.
            SessionOperation::Reserve { .. } => None,
        };
        operations.iter().map(answer).collect()
    }

    fn wait(&self, key: &Key, mode: KeyMode, who: &str) -> String {
        let wait = match key {
            Key::One(key) if mode == KeyMode::Exclusive => format!("EXECUTE tenure_wait({key})"),
            key => wait_in(&wait_for(mode, key)),
        };
        format!("/* tenure:wait {who} */ {wait}")
    }

    /// The transaction ends every second, so that the statement keeps no old snapshot. Meanwhile the server does not check
    /// whether the client is connected. After the statement it checks again, for the waits of the session.
    fn keep(&self, min_hold: Duration) -> String {
        let micros = min_hold.as_micros();
        let check = |interval: &str| {
            format!(
                "IF current_setting('client_connection_check_interval', true) IS NOT NULL THEN \
                 PERFORM set_config('client_connection_check_interval', '{interval}', false); END IF;"
            )
        };
        format!(
            "/* tenure:keep {micros} */ DO $$DECLARE ends timestamptz := clock_timestamp() + {micros} * interval '1 microsecond'; \
             BEGIN {} LOOP COMMIT; EXIT WHEN clock_timestamp() >= ends; \
             PERFORM pg_sleep(least(1, extract(epoch FROM ends - clock_timestamp()))); END LOOP; {} END$$",
            check("0"),
            check("1s"),
        )
    }

    /// Before a wait of no time the server is asked whether other sessions have the key: if not, the session gets the key
    /// before all waiters, because it has the key shared. `pg_try_advisory_lock` fails if any session waits.
    fn try_upgrade(&self, key: &Key) -> String {
        format!(
            "/* tenure:upgrade */ SELECT pg_backend_pid(), CASE WHEN {} THEN {token} \
             WHEN EXISTS (SELECT FROM pg_locks l WHERE l.granted AND l.pid <> pg_backend_pid() AND {}) THEN 0 \
             WHEN set_config('lock_timeout', '1', true) IS NULL THEN 0 \
             WHEN {}::text IS NOT NULL THEN {token} END",
            call("pg_try_advisory_lock", key),
            in_pg_locks(key),
            call("pg_advisory_lock", key),
            token = token(0),
        )
    }

    /// The server puts this request before all that wait, because the session has the key shared. The shared lock is kept.
    fn wait_for_upgrade(&self, key: &Key) -> String {
        format!(
            "/* tenure:upgrade */ {}",
            wait_in(&call("pg_advisory_lock", key))
        )
    }

    /// The shared lock is taken before the exclusive one is released, so that no other session comes in between. The
    /// session waits for nothing then. What the session has is read first: locks are counted.
    fn downgrade(&self, key: &Key, to: KeyMode) -> String {
        let upgradable = key.upgradable();
        let gives_up = match to {
            KeyMode::Shared => format!(
                "WHEN CASE WHEN gate THEN NOT {} ELSE false END THEN 0 ",
                call("pg_advisory_unlock", &upgradable)
            ),
            _ => String::new(),
        };
        format!(
            "/* tenure:downgrade */ SELECT pg_backend_pid(), CASE WHEN NOT (alone OR shares) THEN 0 \
             WHEN CASE WHEN shares THEN false ELSE {}::text IS NULL END THEN 0 \
             WHEN CASE WHEN alone THEN NOT {} ELSE false END THEN 0 \
             {gives_up}ELSE 1 END \
             FROM (SELECT coalesce(bool_or({held} AND l.mode <> 'ShareLock'), false) AS alone, \
             coalesce(bool_or({held} AND l.mode = 'ShareLock'), false) AS shares, \
             coalesce(bool_or({}), false) AS gate \
             FROM pg_locks l WHERE l.granted AND l.pid = pg_backend_pid() OFFSET 0) AS has",
            call("pg_advisory_lock_shared", key),
            call("pg_advisory_unlock", key),
            in_pg_locks(&upgradable),
            held = in_pg_locks(key),
        )
    }

    /// The commands themselves name the start of their session.
    fn reaches(&self, _: SessionId, _: SessionId) -> bool {
        true
    }

    fn cancel_statement(&self, session: SessionId) -> String {
        command("pg_cancel_backend", session)
    }

    fn end_session(&self, session: SessionId) -> String {
        command("pg_terminate_backend", session)
    }

    fn end_by_hand(&self, connection: u64) -> String {
        format!("SELECT pg_terminate_backend({connection})")
    }

    fn shows_all_locks(&self) -> bool {
        true
    }

    fn find_session(&self, session: SessionId) -> String {
        format!("/* tenure:look */ SELECT pid FROM {}", process(session))
    }

    fn session_state(&self, session: SessionId) -> String {
        format!(
            "/* tenure:look */ SELECT (state = 'active' AND (query LIKE '/* tenure:keep %' OR query LIKE '/* tenure:upgrade %'))::int FROM {}",
            process(session)
        )
    }

    /// Cancelled by an administrator or by a limit; a limit on waits for locks.
    fn is_cancelled(&self, code: &str) -> bool {
        matches!(code, "57014" | "55P03")
    }

    fn hash_key(&self, bytes: &[u8]) -> String {
        format!(
            "/* tenure:look */ SELECT hashtext(convert_from(decode('{}', 'hex'), 'UTF8'))",
            hex(bytes)
        )
    }

    /// The server checks the right to call each function before it finds that there is no row.
    fn probe_lock(&self, key: &Key) -> String {
        let mode = KeyMode::Exclusive;
        format!(
            "/* tenure:look */ SELECT {}, {}, {}, {} WHERE false",
            try_lock(mode, key),
            wait_for(mode, key),
            unlock(mode, key),
            token(0)
        )
    }

    fn create_holder_table(&self) -> String {
        include_str!("sql/postgres.sql").into()
    }

    fn bytes(&self, bytes: &str) -> String {
        format!("decode('{}', 'hex')", hex(bytes.as_bytes()))
    }

    fn holder_values(&self, row: &HolderRow) -> String {
        format!(
            "{}, '{}', {}, {}, '{}', {}, {}, {}, 0",
            row.session.number,
            row.key,
            row.token,
            self.bytes(row.name.as_str()),
            row.mode(),
            self.bytes(&row.holder()),
            micros("clock_timestamp()"),
            row.ttl.as_micros()
        )
    }

    fn insert_holder_rows(&self, rows: &str) -> String {
        format!(
            "INSERT INTO tenure_holders ({HOLDER_COLUMNS}) VALUES {rows} ON CONFLICT DO NOTHING"
        )
    }

    fn publish(&self, row: &HolderRow) -> String {
        let has_lock = format!(
            "WHERE EXISTS (SELECT FROM pg_locks l WHERE l.granted AND l.pid = {} AND {})",
            row.session.number,
            in_pg_locks(&row.key)
        );
        let tell = format!("pg_notify('{}', '')", channel_of(&row.key));
        self.write_leader(row, &has_lock, &tell)
    }

    fn publish_grant(&self, row: &HolderRow) -> String {
        self.write_leader(row, "", "1")
    }

    fn tell_observers(&self, key: &Key) -> Option<String> {
        Some(format!("SELECT pg_notify('{}', '')", channel_of(key)))
    }

    /// The snapshot of the statement is older than what `pg_locks` says in the next one. The transaction of a grant that was
    /// over by then has a smaller number than `xmax`, and one that is later has no smaller number.
    fn last_token(&self) -> String {
        format!(
            "SELECT {} + txid_snapshot_xmax(txid_current_snapshot()) * {MAX_BATCH} - 1",
            micros(START)
        )
    }

    fn sweep_holder_table(&self) -> String {
        format!(
            "/* tenure:board */ DELETE FROM tenure_holders h WHERE since < {} - 60000000 AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = h.connection AND {})",
            micros("clock_timestamp()"),
            matches_row()
        )
    }

    fn requested_breaks(&self, session: SessionId) -> String {
        format!(
            "/* tenure:renew */ SET LOCAL lock_timeout = {RENEWAL_LIMIT_MILLIS}; SELECT pg_backend_pid(), (SELECT string_agg(token::text, ' ') FROM tenure_holders WHERE connection = {} AND wanted = 1)",
            session.number
        )
    }

    fn requests_to_holders(&self, session: SessionId) -> String {
        format!(
            "{}, (SELECT string_agg(token::text, ' ') FROM tenure_holders WHERE connection = {} AND wanted = {ASKED})",
            self.requested_breaks(session),
            session.number
        )
    }

    fn ask_to_release(&self, session: SessionId, token: u64) -> String {
        format!("{} RETURNING 1", ask_in_table(session, token))
    }

    fn holders(&self, key: &Key, has_table: bool) -> String {
        let (token, holder, since, ttl, order, join) = match has_table {
            true => (
                "b.token",
                "encode(b.holder, 'hex')",
                "b.since",
                "b.ttl",
                "b.token, ",
                format!(
                    "LEFT JOIN LATERAL (SELECT * FROM tenure_holders WHERE lock_key = '{key}' AND connection = l.pid ORDER BY token DESC LIMIT 1) b ON true"
                ),
            ),
            false => ("NULL", "NULL", "NULL", "NULL", "", String::new()),
        };
        format!(
            "/* tenure:look */ SELECT l.pid, coalesce({}, 0), {token}, {holder}, \
             CASE WHEN l.alone THEN 'exclusive' WHEN l.gate THEN 'upgradable' ELSE 'shared' END, \
             {since}, {ttl}, a.usename, host(a.client_addr), CASE a.state WHEN 'active' THEN 0 ELSE {} END, \
             CASE WHEN a.state = 'active' THEN substring(a.query FROM '^/\\* tenure:keep ([0-9]+)')::bigint - {} END, a.application_name \
             FROM (SELECT l.pid, bool_or({held} AND l.mode <> 'ShareLock') AS alone, bool_or({gate}) AS gate \
             FROM pg_locks l WHERE l.granted AND ({held} OR {gate}) GROUP BY l.pid HAVING bool_or({held})) l \
             LEFT JOIN pg_stat_activity a ON a.pid = l.pid {join} ORDER BY {order}l.pid",
            micros("a.backend_start"),
            micros("clock_timestamp() - a.state_change"),
            micros("clock_timestamp() - a.query_start"),
            held = in_pg_locks(key),
            gate = in_pg_locks(&key.upgradable()),
        )
    }

    fn waiters(&self, key: &Key) -> String {
        format!(
            "/* tenure:look */ SELECT a.query FROM (SELECT l.pid FROM pg_locks l WHERE {held} OR {} \
             GROUP BY l.pid HAVING bool_or(NOT l.granted) AND NOT bool_or(l.granted AND {held})) l \
             LEFT JOIN pg_stat_activity a ON a.pid = l.pid ORDER BY a.query_start, l.pid",
            in_pg_locks(&key.upgradable()),
            held = in_pg_locks(key),
        )
    }

    fn held_names(&self, prefix: &str) -> String {
        format!(
            "/* tenure:look */ SELECT DISTINCT encode(name, 'hex') FROM tenure_holders h WHERE substring(name FROM 1 FOR {}) = {} AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = h.connection AND {})",
            prefix.len(),
            self.bytes(prefix),
            matches_row()
        )
    }

    fn other_locks(&self, session: SessionId, key: &Key, _: u64) -> String {
        format!(
            "/* tenure:look */ SELECT count(*) FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted AND l.pid = {} AND NOT ({} OR {})",
            session.number,
            in_pg_locks(key),
            in_pg_locks(&key.upgradable()),
        )
    }
}

/// An instant or a span, in µs.
fn micros(time: &str) -> String {
    format!("(extract(epoch FROM {time}) * 1000000)::bigint")
}

/// A statement that waits in `call`, and then reads the token.
fn wait_in(call: &str) -> String {
    format!(
        "SELECT pg_backend_pid(), CASE WHEN {call}::text IS NOT NULL THEN {} END",
        token(0)
    )
}

/// The token of the lock at that index of a statement. The token is read after the lock was granted. It is the start of
/// this run of the server plus the number of the transaction: the number grows within a run, and the start from run to run.
/// All locks of a statement have the number of its transaction, so the index makes their tokens differ.
fn token(at: usize) -> String {
    format!("{} + txid_current() * {MAX_BATCH} + {at}", micros(START))
}

/// Calls a function on that session, and on no later session whose process has the same number.
fn command(function: &str, session: SessionId) -> String {
    format!(
        "/* tenure:look */ SELECT {function}(pid) FROM {}",
        process(session)
    )
}

fn process(session: SessionId) -> String {
    format!(
        "pg_stat_activity WHERE pid = {} AND {} = {}",
        session.number,
        micros("backend_start"),
        session.since
    )
}

/// Where the observers of the election of that key listen.
pub(super) fn channel_of(key: &Key) -> String {
    channel("tenure_holders", &key.to_string())
}

/// That key, in `pg_locks l`.
fn in_pg_locks(key: &Key) -> String {
    let (class, object, kind) = match key {
        Key::One(number) => {
            let bits = number.cast_unsigned();
            (bits >> 32, bits & 0xffff_ffff, 1)
        }
        Key::Two(class, object) => (
            u64::from(class.cast_unsigned()),
            u64::from(object.cast_unsigned()),
            2,
        ),
        Key::Text(_) => (0, 0, 0),
    };
    format!("{ADVISORY} AND l.classid = {class} AND l.objid = {object} AND l.objsubid = {kind}")
}

/// Locks of this database: the keys of another are other locks.
const ADVISORY: &str = "l.locktype = 'advisory' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())";

impl Postgres {
    /// Writes the row of a leader under that condition, unless a newer value is there. `told` is what the row of the answer has.
    fn write_leader(&self, row: &HolderRow, condition: &str, told: &str) -> String {
        let number = number_in_postgres("convert_from(h.holder, 'UTF8')");
        format!(
            "/* tenure:publish */ WITH p AS (INSERT INTO tenure_holders AS h ({HOLDER_COLUMNS}) SELECT {} {condition} \
             ON CONFLICT (connection, lock_key, token) DO UPDATE SET holder = CASE WHEN {number} > {} THEN h.holder ELSE excluded.holder END \
             RETURNING 1) SELECT {told} FROM p",
            self.holder_values(row),
            row.value_number().unwrap_or(0),
        )
    }
}

/// The key of `tenure_holders h`, in `pg_locks l`.
fn matches_row() -> String {
    format!(
        "l.granted AND {ADVISORY} AND h.lock_key = CASE l.objsubid WHEN 1 THEN ((l.classid::bigint << 32) | l.objid::bigint)::text \
         ELSE l.classid::bigint::bit(32)::int || ',' || l.objid::bigint::bit(32)::int END"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A setting that a server does not know is an error.
    #[test]
    fn no_limit_of_the_server_ends_a_wait() {
        let idle = Duration::from_secs(9);
        for (version, knows) in [(None, false), (Some(160_009), false), (Some(170_000), true)] {
            let sql = Postgres.set_up(idle, version);
            assert!(sql.contains("set_config('statement_timeout', '0', false)"));
            let is_set = sql.contains("set_config('transaction_timeout', '0', false)");
            assert_eq!(is_set, knows, "{sql}");
        }
        let prepared = Postgres.prepare();
        assert!(prepared.contains("SET lock_timeout = 0;"), "{prepared}");
    }

    /// Otherwise another session could have had a key, under a greater number, after our number was drawn.
    #[test]
    fn numbers_are_drawn_when_all_locks_are_there() {
        let take = |number, mode| SessionOperation::TryLock {
            key: Key::One(number),
            mode,
        };
        let give = SessionOperation::Unlock {
            key: Key::One(8),
            mode: KeyMode::Exclusive,
        };
        let sql =
            Postgres.statement(&[take(7, KeyMode::Exclusive), give, take(9, KeyMode::Shared)]);
        assert!(sql.ends_with("(9) AS t2 OFFSET 0) AS taken"), "{sql}");
        let prepared = Postgres.prepare();
        let that_take = prepared
            .split("; ")
            .filter(|it| it.contains("try_advisory"));
        for sql in that_take.chain([&sql[..]]) {
            let (drawn, taken) = sql.rsplit_once(" FROM (SELECT ").unwrap();
            assert!(!drawn.contains("pg_try_advisory_lock"), "{drawn}");
            assert!(!taken.contains("txid_current"), "{taken}");
            assert!(taken.ends_with(" OFFSET 0) AS taken"), "{taken}");
        }
    }

    /// Each reply is that of its operation.
    #[test]
    fn answers_of_many_are_told_apart() {
        let key = |number| (Key::One(number), KeyMode::Exclusive);
        let take = |number| {
            let (key, mode) = key(number);
            SessionOperation::TryLock { key, mode }
        };
        let give = |number| {
            let (key, mode) = key(number);
            SessionOperation::Unlock { key, mode }
        };
        let operations = [
            take(-1),
            give(2),
            SessionOperation::Ping,
            take(3),
            give(4),
            take(5),
        ];
        assert_eq!(
            Postgres.statement(&operations),
            "/* tenure:acquire */ EXECUTE tenure_many('{-1,3,5}', '{2,4}')"
        );
        let row = ["17", "101", "6400", "10"].map(|it| Some(it.to_owned()));
        let answers = [6400, 1, 1, 0, 0, 6402].map(Some);
        assert_eq!(Postgres.replies(&operations, &row.to_vec()), answers);
        for (operation, sql) in [
            (take(7), "/* tenure:acquire */ EXECUTE tenure_take(7)"),
            (give(7), "/* tenure:release */ EXECUTE tenure_give(7)"),
        ] {
            assert_eq!(Postgres.statement(std::slice::from_ref(&operation)), sql);
            let row = ["17", "9"].map(|it| Some(it.to_owned()));
            assert_eq!(Postgres.replies(&[operation], &row.to_vec()), [Some(9)]);
        }
        // A row without columns has no replies.
        assert_eq!(
            Postgres.replies(&operations[..2], &Vec::new()),
            [None, None]
        );
    }
}
