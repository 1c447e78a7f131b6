-- What tenure::sql keeps in MySQL and MariaDB. tenure::sql::init runs this; a user who may not create tables can
-- have them made by somebody else, and needs SELECT, INSERT and UPDATE on both.
-- No row may ever be deleted or set back: the greatest number seen is what it is there for.
-- InnoDB, because no other engine locks rows.

CREATE TABLE IF NOT EXISTS tenure_tx_locks (
    name VARBINARY(1000) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
) ENGINE = InnoDB;

CREATE TABLE IF NOT EXISTS tenure_fences (
    resource VARBINARY(1000) NOT NULL PRIMARY KEY,
    token BIGINT NOT NULL
) ENGINE = InnoDB;
