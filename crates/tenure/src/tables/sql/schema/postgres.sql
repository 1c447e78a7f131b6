-- Who holds: one row for each name that was ever locked.
CREATE TABLE IF NOT EXISTS {locks} (
    name     text COLLATE "C" PRIMARY KEY,  -- as docs/stores/table.md says
    owner    text   NOT NULL,               -- of the acquisition that holds; '' when nobody does
    token    bigint NOT NULL,               -- fencing token of the last grant
    until    bigint NOT NULL,               -- the name is taken until then
    since    bigint NOT NULL,               -- when it was granted
    min_hold bigint NOT NULL,               -- the name stays taken for so long after that
    delay    bigint NOT NULL,               -- part of `until` that is no lease but lock_delay
    holder   text   NOT NULL,               -- JSON, for people
    queued   bigint NOT NULL                -- somebody waits until then
) WITH (fillfactor = 70);
-- Who waits: one row for each waiter.
CREATE TABLE IF NOT EXISTS {waiters} (
    place  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- in the order of arrival
    name   text COLLATE "C" NOT NULL,
    owner  text   NOT NULL UNIQUE,
    until  bigint NOT NULL,                 -- without a sign of life it is gone then
    holder text   NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX IF NOT EXISTS {index} ON {waiters} (name, place);
