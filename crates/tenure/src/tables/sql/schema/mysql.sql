-- Who holds: one row for each name that was ever locked.
CREATE TABLE IF NOT EXISTS {locks} (
    name     VARBINARY(2000) NOT NULL PRIMARY KEY,  -- as docs/stores/table.md says
    owner    CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- of the acquisition that holds; '' without a holder, '*' when several may hold
    token    BIGINT NOT NULL,                       -- fencing token of the last grant
    until    BIGINT NOT NULL,                       -- the name is taken until then
    since    BIGINT NOT NULL,                       -- when it was granted
    min_hold BIGINT NOT NULL,                       -- the name stays taken for so long after that
    delay    BIGINT NOT NULL,                       -- part of `until` that is no lease but lock_delay
    holder   TEXT CHARACTER SET utf8mb4 NOT NULL,   -- JSON, for people
    queued   BIGINT NOT NULL                        -- there is a waiter until then
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
-- Who waits: one row for each waiter.
CREATE TABLE IF NOT EXISTS {waiters} (
    place  BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,  -- in the order of arrival
    name   VARBINARY(2000) NOT NULL,
    owner  CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    until  BIGINT NOT NULL,                             -- without another request of the waiter, the row counts as gone then
    holder TEXT CHARACTER SET utf8mb4 NOT NULL,
    UNIQUE KEY (owner),
    KEY (name, place)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
-- Who holds beside others, or waits for that: one row for each shared or upgradable hold and each permit.
CREATE TABLE IF NOT EXISTS {modes} (
    name     VARBINARY(2000) NOT NULL,
    owner    CHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- '-' and a number: the hold has ended, and its place stays reserved
    mode     VARCHAR(11) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,  -- s: shared, u: upgradable, w: waits to become exclusive, p3: one of 3 permits
    token    BIGINT NOT NULL,                       -- fencing token of the hold; 0: waits, or reserved
    until    BIGINT NOT NULL,                       -- from here on as in the table of locks
    since    BIGINT NOT NULL,
    min_hold BIGINT NOT NULL,
    delay    BIGINT NOT NULL,
    holder   TEXT CHARACTER SET utf8mb4 NOT NULL,
    PRIMARY KEY (name, owner)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
