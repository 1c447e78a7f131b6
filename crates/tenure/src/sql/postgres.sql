-- What tenure::sql keeps in PostgreSQL. tenure::sql::init runs this; a role that may not create tables can have
-- them made by somebody else, and needs SELECT, INSERT and UPDATE on both.
-- Names are the bytes of their UTF-8: convert_from(name, 'UTF8') shows them. No row may ever be deleted or set
-- back: the greatest number seen is what it is there for.

CREATE TABLE IF NOT EXISTS tenure_tx_locks (
    name BYTEA PRIMARY KEY,
    token BIGINT NOT NULL
);

CREATE TABLE IF NOT EXISTS tenure_fences (
    resource BYTEA PRIMARY KEY,
    token BIGINT NOT NULL
);
