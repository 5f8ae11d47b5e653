-- Each connection runs this once: it sets up the session, creates {table} if there is none, and prepares the statements.

-- No plan may depend on how many rows the table had when it was made.
SET enable_seqscan = off;
SET jit = off;
SET default_transaction_isolation = 'read committed';

-- A call that waits for a locked table, as by VACUUM FULL, has left its connection, and each later call opens another.
SET lock_timeout = '1s';

DO $$ BEGIN
    IF to_regclass('{table}') IS NULL THEN
        CREATE UNLOGGED TABLE {table} (
            key bytea PRIMARY KEY, data bytea, version bigint NOT NULL, expires bigint NOT NULL
        ) WITH (fillfactor = 50);
        ALTER TABLE {table} ALTER COLUMN data SET STORAGE EXTERNAL;
        CREATE INDEX ON {table} (expires);
    END IF;
EXCEPTION WHEN duplicate_table OR duplicate_object OR unique_violation THEN -- another process has just created it
END $$;

PREPARE load (bytea[]) AS
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, s.key, s.data, s.version
FROM (SELECT) one LEFT JOIN {table} s ON s.key = ANY ($1);

-- The version of a new row is negative.
PREPARE swap (bytea[], bytea[], bigint[], bigint[]) AS
WITH written AS (
    INSERT INTO {table} AS s (key, data, version, expires)
    SELECT key, data, abs(before) + 1, expires FROM unnest($1, $2, $3, $4) given (key, data, before, expires)
    ON CONFLICT (key) DO UPDATE SET data = excluded.data, version = excluded.version, expires = excluded.expires
    WHERE s.version = excluded.version - 1
    RETURNING 1
)
SELECT count(*) FROM written;

-- It writes nothing if a row has changed. A row that another client creates meanwhile shows only when it is written:
-- then the division by zero undoes the statement.
PREPARE swap_all (bytea[], bytea[], bigint[], bigint[]) AS
WITH given AS (
    SELECT * FROM unnest($1, $2, $3, $4) given (key, data, before, expires)
), known AS MATERIALIZED (
    SELECT key, version FROM {table} WHERE key = ANY ($1) ORDER BY key FOR UPDATE
), changed AS MATERIALIZED (
    SELECT FROM given LEFT JOIN known USING (key)
    WHERE CASE WHEN before < 0 THEN version IS NOT NULL ELSE version IS DISTINCT FROM before END
), written AS (
    INSERT INTO {table} AS s (key, data, version, expires)
    SELECT key, data, abs(before) + 1, expires FROM given WHERE NOT EXISTS (SELECT FROM changed) ORDER BY key
    ON CONFLICT (key) DO UPDATE SET data = excluded.data, version = excluded.version, expires = excluded.expires
    WHERE s.version = excluded.version - 1
    RETURNING 1
)
SELECT count(*), 1 / (count(*) IN (0, cardinality($1)))::int FROM written;

PREPARE sweep (bigint, bigint) AS
DELETE FROM {table} WHERE key IN (
    SELECT key FROM {table} WHERE expires <= $1 ORDER BY expires LIMIT $2 FOR UPDATE SKIP LOCKED
);

PREPARE list (bytea, bytea, bigint) AS
SELECT key FROM {table} WHERE key >= $1 AND key > $2 AND key < $1 || '\xff'::bytea AND data IS NOT NULL
ORDER BY key LIMIT $3
