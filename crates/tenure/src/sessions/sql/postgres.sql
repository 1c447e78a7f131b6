-- Who holds session locks, for people to read (tenure list, status, break). Nothing is decided by it.
CREATE UNLOGGED TABLE IF NOT EXISTS tenure_holders (
    connection BIGINT NOT NULL,
    lock_key   TEXT COLLATE "C" NOT NULL,
    token      BIGINT NOT NULL,
    name       BYTEA NOT NULL,
    mode       TEXT NOT NULL,
    holder     BYTEA NOT NULL,
    since      BIGINT NOT NULL,
    ttl        BIGINT NOT NULL,
    wanted     SMALLINT NOT NULL DEFAULT 0,
    PRIMARY KEY (connection, lock_key, token)
)
