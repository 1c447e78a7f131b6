-- What tenure::sql keeps in SQLite. tenure::sql::init runs this.
-- No row may ever be deleted or set back: the greatest number seen is what it is there for.

CREATE TABLE IF NOT EXISTS tenure_tx_locks (
    name BLOB NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS tenure_fences (
    resource BLOB NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL
) WITHOUT ROWID;
