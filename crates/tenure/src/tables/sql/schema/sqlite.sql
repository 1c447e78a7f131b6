-- Readers and one writer do not wait for each other. Stays with the file.
PRAGMA journal_mode = WAL;
-- Who holds: one row for each name that was ever locked.
CREATE TABLE IF NOT EXISTS {locks} (
    name     TEXT NOT NULL PRIMARY KEY,  -- as docs/stores/table.md says
    owner    TEXT NOT NULL,              -- of the acquisition that holds; '' without a holder, '*' when several may hold
    token    INTEGER NOT NULL,           -- fencing token of the last grant
    until    INTEGER NOT NULL,           -- the name is taken until then
    since    INTEGER NOT NULL,           -- when it was granted
    min_hold INTEGER NOT NULL,           -- the name stays taken for so long after that
    delay    INTEGER NOT NULL,           -- part of `until` that is no lease but lock_delay
    holder   TEXT NOT NULL,              -- JSON, for people
    queued   INTEGER NOT NULL            -- there is a waiter until then
) WITHOUT ROWID;
-- Who waits: one row for each waiter.
CREATE TABLE IF NOT EXISTS {waiters} (
    place  INTEGER PRIMARY KEY AUTOINCREMENT,  -- in the order of arrival
    name   TEXT NOT NULL,
    owner  TEXT NOT NULL UNIQUE,
    until  INTEGER NOT NULL,                   -- without another request of the waiter, the row counts as gone then
    holder TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS {index} ON {waiters} (name, place);
-- Who holds beside others, or waits for that: one row for each shared or upgradable hold and each permit.
CREATE TABLE IF NOT EXISTS {modes} (
    name     TEXT NOT NULL,
    owner    TEXT NOT NULL,              -- '-' and a number: the hold has ended, and its place stays reserved
    mode     TEXT NOT NULL,              -- s: shared, u: upgradable, w: waits to become exclusive, p3: one of 3 permits
    token    INTEGER NOT NULL,           -- fencing token of the hold; 0: waits, or reserved
    until    INTEGER NOT NULL,           -- from here on as in the table of locks
    since    INTEGER NOT NULL,
    min_hold INTEGER NOT NULL,
    delay    INTEGER NOT NULL,
    holder   TEXT NOT NULL,
    PRIMARY KEY (name, owner)
) WITHOUT ROWID;
