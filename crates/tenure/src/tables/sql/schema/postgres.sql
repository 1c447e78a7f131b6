-- Who holds: one row for each name that was ever locked.
CREATE TABLE IF NOT EXISTS {locks} (
    name     text COLLATE "C" PRIMARY KEY,  -- as docs/stores/table.md says
    owner    text   NOT NULL,               -- of the acquisition that holds; '' without a holder, '*' when several may hold
    token    bigint NOT NULL,               -- fencing token of the last grant
    until    bigint NOT NULL,               -- the name is taken until then
    since    bigint NOT NULL,               -- when it was granted
    min_hold bigint NOT NULL,               -- the name stays taken for so long after that
    delay    bigint NOT NULL,               -- part of `until` that is no lease but lock_delay
    holder   text   NOT NULL,               -- JSON, for people
    queued   bigint NOT NULL                -- there is a waiter until then
) WITH (fillfactor = 70);
-- Who waits: one row for each waiter.
CREATE TABLE IF NOT EXISTS {waiters} (
    place  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in the order of arrival
    name   text COLLATE "C" NOT NULL,
    owner  text   NOT NULL UNIQUE,
    until  bigint NOT NULL,                 -- without another request of the waiter, the row counts as gone then
    holder text   NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS {index} ON {waiters} (name, place);
-- Who holds beside others, or waits for that: one row for each shared or upgradable hold and each permit.
CREATE TABLE IF NOT EXISTS {modes} (
    name     text COLLATE "C" NOT NULL,
    owner    text   NOT NULL,               -- '-' and a number: the hold has ended, and its place stays reserved
    mode     text   NOT NULL,               -- s: shared, u: upgradable, w: waits to become exclusive, p3: one of 3 permits
    token    bigint NOT NULL,               -- fencing token of the hold; 0: waits, or reserved
    until    bigint NOT NULL,               -- from here on as in the table of locks
    since    bigint NOT NULL,
    min_hold bigint NOT NULL,
    delay    bigint NOT NULL,
    holder   text   NOT NULL,
    PRIMARY KEY (name, owner)
) WITH (fillfactor = 70);
