-- Who holds session locks, for people to read (tenure list, status, break). Nothing is decided by it.
CREATE TABLE IF NOT EXISTS tenure_holders (
    connection BIGINT UNSIGNED NOT NULL,
    lock_key   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    token      BIGINT UNSIGNED NOT NULL,
    name       VARBINARY(1000) NOT NULL,
    mode       VARCHAR(9) CHARACTER SET ascii NOT NULL,
    holder     BLOB NOT NULL,
    since      BIGINT UNSIGNED NOT NULL,
    ttl        BIGINT UNSIGNED NOT NULL,
    wanted     TINYINT NOT NULL DEFAULT 0,
    PRIMARY KEY (connection, lock_key, token),
    KEY (lock_key)
) ENGINE = InnoDB
