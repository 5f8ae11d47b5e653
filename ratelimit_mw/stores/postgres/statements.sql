-- The statements of the store, each after its name. {table} stands for its table.

-- setup
-- No plan may depend on how many rows the table had when it was made.
SET synchronous_commit = off;
SET enable_seqscan = off;
SET jit = off;
SET default_transaction_isolation = 'read committed'

-- find
SELECT to_regclass('{table}')

-- create
CREATE UNLOGGED TABLE {table} (
    key bytea PRIMARY KEY, data bytea, version bigint NOT NULL, expires bigint NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE {table} ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX ON {table} (expires)

-- load
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, s.key, s.data, s.version
FROM (SELECT) one LEFT JOIN {table} s ON s.key = ANY ($1::bytea[])

-- swap
-- The version of a new row is negative.
WITH written AS (
    INSERT INTO {table} AS s (key, data, version, expires)
    SELECT key, data, abs(before) + 1, expires
    FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[]) given (key, data, before, expires)
    ON CONFLICT (key) DO UPDATE SET data = excluded.data, version = excluded.version, expires = excluded.expires
    WHERE s.version = excluded.version - 1
    RETURNING 1
)
SELECT count(*) FROM written

-- swap_all
-- It writes nothing if a row has changed. A row that another client creates meanwhile shows only when it is written:
-- then the division by zero undoes the statement.
WITH given AS (
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::bigint[]) given (key, data, before, expires)
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
SELECT count(*), 1 / (count(*) IN (0, cardinality($1)))::int FROM written

-- sweep
DELETE FROM {table} WHERE key IN (
    SELECT key FROM {table} WHERE expires <= $1::bigint ORDER BY expires LIMIT $2::bigint FOR UPDATE SKIP LOCKED
)

-- list
SELECT key FROM {table}
WHERE key >= $1::bytea AND key > $2::bytea AND key < $1 || '\xff'::bytea AND data IS NOT NULL
ORDER BY key LIMIT $3::bigint

-- facts
SELECT
    current_setting('server_version'), pg_total_relation_size('{table}'), current_setting('max_connections'),
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    extract(epoch FROM clock_timestamp())::bigint
