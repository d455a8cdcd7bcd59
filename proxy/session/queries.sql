-- All SQL that the proxy itself sends on a client's backing connection, unseen by the client.
--
-- The rules behind it:
--   * It runs with the client's rights, and under the client's settings: sql_mode, character set, time zone.
--   * A SELECT that returns rows has a LIMIT of its own, because the session's sql_select_limit may be 0.
--   * $select and $insert are SELECT and INSERT for reading a table, whatever the session's max_join_size
--     is: `mysql --safe-updates` sets it to a million, which the optimizer expects of a large queue. What
--     reads rows by their ids, or has LIMIT 0, does without.
--   * Text is read as HEX(CONVERT(… USING utf8mb4)), so that the character set of the client's
--     results does not matter.
--   * What runs on the engine's connection says so. There each name of a table has an index hint, for
--     the reason that engine/store/queries.sql gives: with it, the server refuses a view.
--
-- $words are filled in by proxy/session/queries.py: identifiers quoted, values as literals that
-- need no escaping.

-- name: context
-- What decides how names and conditions are read, and the bytes of rows. DATABASE() is read in
-- hexadecimal, because it may be in any character set. Whether a backslash escapes in LIKE is
-- tested, because the servers disagree on when it does. The last column is the server's name for
-- Origin, or NULL once the connection's server is known.
SELECT HEX(DATABASE()), @@character_set_client, @@character_set_results, @@time_zone, @@sql_mode,
    _utf8mb4 x'25' LIKE _utf8mb4 x'5c25', $server_name
LIMIT 1

-- name: server_name
-- For the query above. The same expression as in the engine's `server_name`.
SHA2(CONVERT(CONCAT_WS(_utf8mb4 '/', @@hostname, @@port, @@datadir, @@server_id) USING utf8mb4), 256)

-- name: select
-- What $select stands for. Each server has a way of its own to set a variable for one statement.
/*M! SET STATEMENT sql_big_selects = 1 FOR */ SELECT /*+ SET_VAR(sql_big_selects = 1) */

-- name: insert
-- What $insert stands for, in INSERT … SELECT.
/*M! SET STATEMENT sql_big_selects = 1 FOR */ INSERT /*+ SET_VAR(sql_big_selects = 1) */

-- name: begin
-- A transaction of the proxy's own: one batch of a purge or a redrive.
START TRANSACTION

-- name: read_committed
-- For the next transaction alone: no locks on gaps.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: commit
-- Ends a transaction of the proxy's own. A plain COMMIT does what the session's completion_type
-- says: it may begin another transaction, or close the connection.
COMMIT AND NO CHAIN NO RELEASE

-- name: rollback
-- The same for one that failed.
ROLLBACK AND NO CHAIN NO RELEASE

-- name: mark
-- A savepoint, before rows that the server may refuse to change.
SAVEPOINT ackstream_mark

-- name: back_to_mark
-- Undoes what was done since, and keeps the locks from before.
ROLLBACK TO SAVEPOINT ackstream_mark

-- name: killed_connection
-- The connection that a KILL by an expression means. KILL converts its value in the same way.
SELECT CAST(($expression) AS SIGNED) LIMIT 1

-- name: idle_timeout
-- The seconds after which the server ends the session if it is idle. 0 is no timeout for MariaDB's
-- transactions.
SELECT LEAST(@@wait_timeout, @@wait_timeout /*M! ,
    COALESCE(NULLIF(@@idle_transaction_timeout, 0), @@wait_timeout),
    COALESCE(NULLIF(@@idle_readonly_transaction_timeout, 0), @@wait_timeout),
    COALESCE(NULLIF(@@idle_write_transaction_timeout, 0), @@wait_timeout) */) LIMIT 1

-- name: set_variable
-- One of the session's variables, for a statement that depends on it, and back.
SET $variable = $value

-- name: server_time
-- The server's clock in nanoseconds since 1970. Also on the engine's connection.
SELECT $now_ns LIMIT 1

-- name: show_create_table
-- A table's definition, as the client may see it.
SHOW CREATE TABLE $table

-- name: quotes_names
-- Whether names are quoted there.
SELECT @@sql_quote_show_create LIMIT 1

-- name: right_to_see
-- Fails as the server does for a client that may not see the table.
SELECT 1 FROM $table LIMIT 0

-- name: right_to_stream
-- Changes no row. The server denies it to a client that may not settle messages of the table, or
-- may not read the columns that the condition names. A lock of the table, or of all tables, delays it
-- ($within).
$within $table SET epoch = 0, time_next = NULL, time_acked = NULL WHERE $condition LIMIT 0

-- name: update
-- Waits for locks of tables as long as the session's lock_wait_timeout says.
UPDATE

-- name: update_within
-- Waits for locks of tables this many seconds, and fails then (1205). Each server reads one of the two
-- settings, and skips the other one as a comment.
/*M! SET STATEMENT lock_wait_timeout = $seconds FOR */ UPDATE /*+ SET_VAR(lock_wait_timeout = $seconds) */

-- name: right_to_ack
-- Changes no row. The server denies it to a client that may not acknowledge messages of the table by
-- their ids.
UPDATE $table SET time_acked = NULL, time_next = NULL WHERE time_acked IS NULL AND id IS NULL $fence LIMIT 0

-- name: tracks_transactions
-- Whether the server's answers in this session show the numbers of transactions.
SELECT /*!80000 @@session_track_gtids <> 'OFF' */
    /*M! @@session_track_system_variables LIKE '%last_gtid%' OR @@session_track_system_variables = '*' */
LIMIT 1

-- name: right_to_redrive
-- Copies no row. The server denies it to a client that may not move messages between these tables.
-- IGNORE: MariaDB refuses to leave out a column without a default, even for no row.
INSERT IGNORE INTO $into (id) SELECT id FROM $source LIMIT 0

-- name: account_exists
-- One row. An account may always read its own, and an account that was dropped has none.
SHOW CREATE USER CURRENT_USER()

-- name: stream_columns
-- Returns no row. Its column packets begin the result of a STREAM.
SELECT $columns FROM $table WHERE $condition LIMIT 0

-- name: lock_messages
-- Locks the messages of a STREAM … FOR UPDATE in the client's transaction, and returns their rows
-- behind one column: the id, or what a scan would have shown. Rows that others have locked are left
-- out. Where the order of delivery is that of the ids, it costs no sort. MariaDB may not refuse it
-- because a row has changed since the transaction began to read: the lock is on the row as it is. The
-- wait for a lock of the table has an end, as in update_within.
/*M! SET STATEMENT lock_wait_timeout = $seconds */ /*M!110602 , innodb_snapshot_isolation = OFF */ /*M! FOR */
SELECT /*+ SET_VAR(lock_wait_timeout = $seconds) */ /* ackstream lock */ $first, $columns
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL AND (time_next IS NULL OR time_next <= $now_ns)
    AND ($alive) AND ($condition)
ORDER BY $order
LIMIT $limit
FOR UPDATE SKIP LOCKED

-- name: result
-- Rows that the proxy computed, as JSON, with the types that the columns have. The server encodes
-- them for the client.
$select $columns FROM JSON_TABLE($document, '$$[*]' COLUMNS (n FOR ORDINALITY, $paths)) AS q
WHERE $condition
ORDER BY n
LIMIT $limit

-- name: collation
-- The character set and the order of literals that name none.
SELECT @@collation_connection LIMIT 1

-- name: nothing
-- Returns no row: what the server prepares for a queue statement that has an OK packet for an
-- answer.
DO $values

-- name: table_comment
-- The comment of a table. Names that differ in case alone may match as well.
$select HEX(CONVERT(table_schema USING utf8mb4)), HEX(CONVERT(table_name USING utf8mb4)),
    HEX(CONVERT(table_comment USING utf8mb4)), @@lower_case_table_names
FROM information_schema.tables
WHERE table_schema = $db AND table_name = $name
LIMIT 100

-- name: table_columns
-- The columns of a table, what is said of each besides its type, and its type.
$select HEX(CONVERT(column_name USING utf8mb4)), HEX(extra), HEX(data_type)
FROM information_schema.columns
WHERE table_schema = $db AND table_name = $name
ORDER BY ordinal_position
LIMIT $limit

-- name: visible_queues
-- The message tables that the client may see.
$select HEX(CONVERT(table_schema USING utf8mb4)), HEX(CONVERT(table_name USING utf8mb4))
FROM information_schema.tables
WHERE table_comment LIKE _utf8mb4'%vitess_message%'
    AND table_schema NOT IN ('sys', 'mysql', 'information_schema', 'performance_schema')
    AND table_type NOT IN ('VIEW', 'SYSTEM VIEW')$narrowed
ORDER BY table_schema, table_name
LIMIT $limit

-- name: visible_connections
-- The connections that the client may see: without the privilege PROCESS, those of its own account.
$select id, HEX(CONVERT(user USING utf8mb4)) FROM information_schema.processlist LIMIT $limit

-- name: slot_holders
-- The connections that hold the slots of proxies; NULL for a slot that is free. Also on the engine's connection.
SELECT $locks LIMIT 1

-- name: published
-- What proxies publish of themselves. On a connection of the engine's account, which sees the attributes
-- of its own connections. Empty with performance_schema=OFF, MariaDB's default.
SELECT processlist_id, HEX(CONVERT(attr_value USING utf8mb4))
FROM performance_schema.session_account_connect_attrs
WHERE attr_name = 'program_name' AND processlist_id IN ($connections) LIMIT $limit

-- name: deliveries_by_lease
-- Messages in flight, by the index on the lease column. It also has entries of messages that were
-- rescheduled since their claim, until the wait of that delivery is over.
$select $id, COALESCE(r.epoch, 0), r.time_next, $lease FROM $table AS r FORCE INDEX ($lease_index)
WHERE r.time_acked IS NULL AND $lease > $now_ns AND r.time_next = $lease
ORDER BY $lease LIMIT $limit

-- name: deliveries_by_time
-- Messages in flight of one priority, of those that are due next. Only the rows hold the lease, so the
-- inner SELECT reads the index alone, as in count_delivered.
$select $id, COALESCE(r.epoch, 0), r.time_next, $lease
FROM (SELECT id FROM $index
    WHERE time_acked IS NULL AND priority = $priority AND time_next > $now_ns $order LIMIT $read_max) AS q
STRAIGHT_JOIN $table AS r FORCE INDEX ($id_index) ON r.id = q.id AND r.time_acked IS NULL
WHERE r.time_next = $lease LIMIT $limit

-- name: deliveries_by_id
-- Messages that this proxy holds.
$select $id, COALESCE(r.epoch, 0), COALESCE(r.time_next, 0), $lease FROM $table AS r FORCE INDEX ($id_index)
WHERE r.id IN ($ids) AND r.time_acked IS NULL LIMIT $limit

-- name: groups_behind
-- The entries of one priority in the order of their message groups, behind a group: the values of the
-- group, how they are shown, and whether the pattern matches. Also on the engine's connection.
$select $columns, $liked FROM $index
WHERE time_acked IS NULL AND priority = $priority AND ($behind)
ORDER BY $group_order LIMIT $limit

-- name: batches_named
-- The batches that unacknowledged messages name, of the first ones in an index. Also on the engine's connection.
$select $value FROM (SELECT $column FROM $index WHERE time_acked IS NULL AND $named LIMIT $read_max) AS q
WHERE $column IS NOT NULL GROUP BY $column ORDER BY $column LIMIT $limit

-- name: batches_counted
-- Of one batch: its parts, those that are acknowledged, dead ones, and follow-ups that wait for it. Also on the
-- engine's connection.
$select $parts, $acknowledged, $dead, $waiting

-- name: count_of_batch
-- Counts messages of one table, up to a bound. Also on the engine's connection.
SELECT COUNT(*) FROM (SELECT 1 FROM $index WHERE $column = $batch $state LIMIT $limit) AS q

-- name: may_read
-- Whether the client may read a column. Returns nothing.
SELECT $column FROM $table LIMIT 0

-- name: storage_engine
-- The storage engine of a table whose definition names none.
SELECT @@default_storage_engine LIMIT 1

-- name: create_table
-- A queue or a dead-letter table: the client's definitions, with those that a queue needs besides.
CREATE TABLE $if_not_exists$table (
$definitions) COMMENT = $comment $options $partitions

-- name: change_comment
-- Writes the directives of a queue.
ALTER TABLE $table COMMENT = $comment

-- name: create_limits
-- A row for each queue of a database that has a limit: the lock of its claims, and when it has the full
-- MAX_RATE again, by the server's clock in nanoseconds since 1970.
CREATE TABLE IF NOT EXISTS $table (
    queue VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    full_ns BIGINT NOT NULL
) ENGINE = InnoDB COMMENT $comment

-- name: create_group_rates
-- The state of GROUP_RATE of the message groups of all queues of a database. A group is a digest of its
-- values, which is the same for values that their collation treats as equal.
CREATE TABLE IF NOT EXISTS $table (
    queue VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    group_hash BINARY(32) NOT NULL,
    full_ns BIGINT NOT NULL,
    PRIMARY KEY (queue, group_hash)
) ENGINE = InnoDB COMMENT $comment

-- name: create_semaphores
-- The semaphores of a database.
CREATE TABLE IF NOT EXISTS $table (
    name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    capacity INT UNSIGNED NOT NULL
) ENGINE = InnoDB COMMENT $comment

-- name: create_semaphore
-- A new semaphore.
INSERT INTO $semaphores (name, capacity)
VALUES ($name, $capacity)

-- name: alter_semaphore
-- Another capacity.
UPDATE $semaphores
SET capacity = $capacity
WHERE name = $name

-- name: drop_semaphore
-- A semaphore goes.
DELETE FROM $semaphores
WHERE name = $name

-- name: semaphore
-- Whether a semaphore exists.
$select capacity
FROM $semaphores
WHERE name = $name
LIMIT 1

-- name: semaphores
-- All of a database. Also on the engine's connection.
$select HEX(name), capacity
FROM $semaphores FORCE INDEX (PRIMARY)
ORDER BY name
LIMIT $limit

-- name: semaphores_held
-- How many messages in flight need the same semaphores. Reads what is in flight. Also on the engine's connection.
$select $needs AS needs, COUNT(*)
FROM $table FORCE INDEX ($lease_index)
WHERE time_acked IS NULL AND $lease > $now_ns AND $lease = time_next
GROUP BY needs
LIMIT $limit

-- name: semaphores_waiting
-- How many due messages need the same semaphores, among the first ones of a queue. Also on the engine's connection.
$select needs, COUNT(*)
FROM (
    SELECT $needs AS needs, COALESCE(time_next, 0) AS due_ns
    FROM $index
    WHERE time_acked IS NULL
    LIMIT $limit
) AS first_ones
WHERE due_ns <= $now_ns
GROUP BY needs
LIMIT $limit

-- name: semaphores_liked
-- Which names match a pattern: a digit for each.
SELECT CONCAT($tests)
LIMIT 1

-- name: add_to_table
-- ALTER QUEUE, for a table without a column or an index that an option requires.
ALTER TABLE $table $changes

-- name: add_key
-- ALTER QUEUE … GROUP_BY, for a table without that key. Both servers make it while the table is used.
ALTER TABLE $table ADD $key

-- name: default_time_next
-- ALTER QUEUE … DELAY_BY.
ALTER TABLE $table ALTER COLUMN time_next SET DEFAULT $default

-- name: drop_table
-- DROP QUEUE.
DROP TABLE $if_exists$table

-- name: next_priority
-- The most urgent priority that has unacknowledged messages, of those that the condition leaves.
-- Also on the engine's connection.
$select MIN(priority) FROM $index WHERE $condition LIMIT 1

-- name: counts
-- All counts of a queue in one statement. Without the outer SELECT, the LIMIT would be that of the
-- last one. Also on the engine's connection.
$select * FROM ($counts) AS every_one LIMIT $limit

-- name: count_entries
-- Counts the index entries of a range, up to a limit. Also on the engine's connection.
SELECT $place AS place, COUNT(*), 0 FROM (SELECT 1 FROM $index WHERE $range LIMIT $limit) AS q

-- name: count_delivered
-- The same with the number of messages in flight, which only the rows hold. MySQL
-- reads thousands of rows ahead of an inner SELECT in spite of its LIMIT, so the inner one reads
-- the index alone. Also on the engine's connection.
SELECT $place AS place, COUNT(*), COALESCE(SUM($in_flight), 0)
FROM (SELECT id FROM $index WHERE $range LIMIT $limit) AS q
STRAIGHT_JOIN $table AS r FORCE INDEX ($id_index) ON r.id = q.id AND r.time_acked IS NULL

-- name: earliest
-- When the first message of a range is due. Also on the engine's connection.
SELECT $place AS place, MIN(time_next), 0 FROM $index WHERE $range

-- name: newest_id
-- The greatest id. With an id of FLOAT and no CAST, all numbers of the union would be FLOAT.
-- Also on the engine's connection.
SELECT $place AS place, CAST(MAX(id) AS DECIMAL(30)), 0 FROM $table FORCE INDEX ($id_index)

-- name: estimates
-- How many rows the optimizer expects of each SELECT. Also on the engine's connection.
EXPLAIN FORMAT=TRADITIONAL $counts

-- name: count_range
-- Is not run, but estimated: a range of the index. Also on the engine's connection.
SELECT COUNT(*) FROM $index WHERE $range

-- name: count_table
-- Is not run, but estimated: the whole table. Also on the engine's connection.
SELECT COUNT(*) FROM $index

-- name: find_acknowledged
-- A batch of messages that were acknowledged before the purge began. Locked ones are passed over, and those
-- that the server has refused to delete ($more).
$select $id FROM $table $index_hint WHERE time_acked <= $before_ns $more
ORDER BY time_acked LIMIT $limit FOR UPDATE SKIP LOCKED

-- name: delete_acknowledged
-- Deletes such a batch.
DELETE FROM $table WHERE id IN ($ids) AND time_acked IS NOT NULL ORDER BY id

-- name: find_dead
-- A batch of dead messages, in the order of their ids. Locked ones are passed over.
$select $id FROM $table FORCE INDEX ($id_index) WHERE $condition
ORDER BY id LIMIT $limit FOR UPDATE SKIP LOCKED

-- name: copy_dead
-- Inserts such a batch into the queue as new messages.
$insert INTO $into ($columns) SELECT $values FROM $table WHERE id IN ($ids) AND time_acked IS NULL ORDER BY id

-- name: delete_dead
-- Deletes what was copied.
DELETE FROM $table WHERE id IN ($ids) AND time_acked IS NULL ORDER BY id

-- name: read_only
-- Whether the server refuses the writes of ordinary accounts. On the engine's connection.
SELECT CONCAT(@@global.read_only) IN ('1', 'ON') OR @@global.innodb_read_only LIMIT 1

-- name: enqueue
-- Messages from `ackstream enqueue`; the values are parameters of the driver.
INSERT INTO $table ($columns) VALUES $rows

-- name: columns_of
-- All columns, invisible ones too.
SHOW COLUMNS FROM $table

-- name: create_queue_of
-- Refused for a table that is no queue.
SHOW CREATE QUEUE $table

-- name: peek
-- The next messages, for people.
SELECT $columns FROM $table WHERE time_acked IS NULL ORDER BY priority, time_next, id LIMIT $limit

-- name: export
-- All messages, for people.
SELECT $columns FROM $table WHERE $condition

-- name: doctor
-- What `ackstream doctor` and the start of `serve` check of the server. On a connection of the engine's account.
SELECT HEX(VERSION()), @@global.log_bin, @@global.binlog_format, @@global.binlog_row_image,
    @@global.max_connections, CONCAT(@@global.read_only),
    CONVERT_TZ('2000-01-01 00:00:00', 'UTC', 'Europe/Berlin') IS NOT NULL
LIMIT 1

-- name: doctor_tls
-- The cipher of the connection, empty without TLS. On a connection of the engine's account.
SHOW SESSION STATUS LIKE 'Ssl_cipher'

-- name: doctor_snapshot_isolation
-- No row where the server does not have this variable. On a connection of the engine's account.
SHOW GLOBAL VARIABLES LIKE 'innodb_snapshot_isolation'

-- name: listed_messages
-- The messages of one range of an index, for the admin port's page. The condition fixes all columns before
-- the time. On the engine's connection.
SELECT /* ackstream page */ $columns FROM $index WHERE $range ORDER BY $order LIMIT $limit

-- name: trace_contexts
-- The trace contexts that messages carry in their column `traceparent`. On the engine's connection.
SELECT /* ackstream trace */ $id, HEX(LEFT(traceparent, 55)) FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND traceparent IS NOT NULL LIMIT $limit

-- name: shown_groups
-- How the first unacknowledged messages are divided by the values of some columns. On the engine's connection.
SELECT COUNT(*) AS messages, $values
FROM (SELECT $columns FROM $index WHERE time_acked IS NULL LIMIT $read) AS first_ones
WHERE $condition GROUP BY $columns ORDER BY messages DESC LIMIT $limit

-- name: shown_messages
-- Messages by their ids, for the same page. On the engine's connection.
SELECT $columns FROM $table FORCE INDEX ($id_index) WHERE id IN ($ids) LIMIT $limit

-- name: copied_update
-- To copy from the page, or to run there. The other statements that are shown there are ackstream's own.
UPDATE $table SET time_next = $time_next WHERE $own AND time_acked IS NULL

-- name: copied_select
-- To copy from the page.
SELECT * FROM $table WHERE $own

-- name: copied_delete
-- To copy from the page, or to run there.
DELETE FROM $table WHERE $own AND time_acked IS NULL
