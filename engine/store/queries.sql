-- All SQL that the engine sends, each statement with its name, what it is for, and why it looks as it does.
--
-- The rules behind them, all measured at 200,000 rows (tests/plans keeps them true on both servers):
--   * Scans read one priority at a time in the order of the index and without a bound on time_next: MySQL sorts a
--     quarter of the table when there is one and the index descends. The caller stops at the first row not yet due.
--   * Everything else goes by sorted id through a forced index: on a nearly empty table a server may choose to read
--     all of it, and then waits for rows it does not want.
--   * time_acked is named in every condition: where a table is partitioned by it, that says which partition to look into.
--   * Rows are locked with SKIP LOCKED, so an application's open transaction never stalls its table.
--   * The clock is the server's, computed free of time zones: microseconds since 1970 in UTC, times 1000.
--
-- $words are filled in by engine/store/queries.py: identifiers quoted, values as literals that need no escaping.

-- name: isolation
-- READ COMMITTED keeps no locks on gaps, nor on rows that do not match.
SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: names
-- A session that began anew may have the server's character set, and all statements here are UTF-8.
SET NAMES utf8mb4

-- name: session
-- What every connection of the engine has, whatever the server's defaults are. MariaDB turns a list of 1,000 ids into a
-- temporary table unless told not to.
SET SESSION autocommit = 1,
    innodb_lock_wait_timeout = $lock_wait_s,
    lock_wait_timeout = $lock_wait_s
    /*!80000 , max_execution_time = $statement_ms */
    /*M! , max_statement_time = $statement_s, in_predicate_conversion_threshold = 0 */

-- name: context
-- What changes the bytes of a row: set to the subscriber's for a fetch, to the engine's own for all else.
SET SESSION character_set_results = $charset, time_zone = $time_zone, sql_mode = $sql_mode

-- name: now
-- The server's clock, as the same bytes under every character set: MariaDB converts numbers too.
SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 AS BINARY)

-- name: scan_first_priority
-- The most urgent priority that has unacknowledged rows: one index entry.
SELECT /* ackstream scan */ MIN(priority)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL

-- name: scan_next_priority
-- The next one after a priority: one index entry, however many rows lie between.
SELECT /* ackstream scan */ MIN(priority)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority > $priority

-- name: scan_priority
-- The earliest rows of one priority, read in the order of the index.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, COALESCE(time_next, 0)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority
ORDER BY $scan_order
LIMIT $limit

-- name: scan_ties
-- The rows of one time, by id. An index that descends in time_next gives them backwards, so a limit would leave out the
-- smallest ids; and where time_next is 0 by default, all new messages are of one time.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, time_next
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next = $time_next
ORDER BY id
LIMIT $limit

-- name: scan_without_priority
-- Rows whose priority is NULL: before all others, as NULL sorts. Costs nothing where the column is NOT NULL.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), $lowest_priority, COALESCE(time_next, 0)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority IS NULL
ORDER BY $scan_order
LIMIT $limit

-- name: scan_later_slowly
-- Without a scan index: the rows that come due next, by sorting the table.
SELECT /* ackstream scan without index */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), time_next
FROM $table
WHERE time_acked IS NULL AND time_next > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000
    AND ($condition)
ORDER BY time_next, id
LIMIT $limit

-- name: scan_due_slowly
-- Without a scan index: the due rows, by sorting the table. After scan_later_slowly, so that no row falls between them.
SELECT /* ackstream scan without index */
    $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0)
FROM $table
WHERE time_acked IS NULL
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)
    AND ($condition)
ORDER BY priority, time_next, id
LIMIT $limit

-- name: scan_greatest_id
-- The greatest id of a table that gives out ascending ones, read before a range is: what is new lies behind it.
SELECT /* ackstream scan */ CAST(COALESCE(MAX(id), 0) + 0 AS BINARY)
FROM $table

-- name: scan_part_zero
-- For a condition: the rows of time 0 behind an id, by id. Both servers know that the primary key ends the index.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, time_next
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next = 0 AND $behind AND ($condition)
ORDER BY id
LIMIT $limit

-- name: scan_part_timed
-- For a condition: the rows of later times behind a time. With both bounds, a range of either kind of index.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, time_next
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next > $after_ns AND time_next <= $until_ns AND ($condition)
ORDER BY $scan_order
LIMIT $limit

-- name: scan_part_odd
-- For a condition: rows that have no time, or one before 1970. There hardly are any.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, COALESCE(time_next, 0)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND (time_next < 0 OR time_next IS NULL) AND ($condition)
ORDER BY time_next, id
LIMIT $limit

-- name: scan_part_without_priority
-- For a condition: rows whose priority is NULL.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), $lowest_priority, COALESCE(time_next, 0)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority IS NULL AND (time_next <= $until_ns OR time_next IS NULL) AND ($condition)
ORDER BY $scan_order
LIMIT $limit

-- name: begin
-- Every transaction of the engine is this, one locking read, updates or deletes by id, and commit.
START TRANSACTION

-- name: commit
-- The end of it.
COMMIT

-- name: rollback
-- Its end after an error.
ROLLBACK

-- name: claim_lock
-- Lock those rows that may be claimed and that the stream still wants, leaving out what others hold. Their epoch is
-- compared by the caller.
SELECT /* ackstream claim */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0)
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)
    AND ($condition)
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: claim_update
-- The claim of rows that are locked already: one more delivery, and its end.
UPDATE /* ackstream claim */ $table FORCE INDEX ($id_index)
SET epoch = COALESCE(epoch, 0) + 1, time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: fetch
-- The rows to deliver, behind one value that says which message each is, which delivery, and until when. That value is a binary
-- string, so that it comes as the same bytes under every character set and in both protocols.
SELECT /* ackstream fetch */ CONCAT(COALESCE(epoch, 0), ':', COALESCE(time_next, 0), ':', $id), $columns
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: lookup
-- What became of some messages.
SELECT /* ackstream lookup */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0)
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: release_lock
-- Lock claims to give back, leaving out what others hold. Their epoch and time_next are compared by the caller.
SELECT /* ackstream release */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0)
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: release_unsent
-- As if the claim had never been.
UPDATE /* ackstream release */ $table FORCE INDEX ($id_index)
SET epoch = epoch - 1, time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: release_sent
-- The delivery has been, and the next one may begin.
UPDATE /* ackstream release */ $table FORCE INDEX ($id_index)
SET time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: dead_letter_hold
-- The dead-letter table's metadata lock, kept until the commit: what its comment says then is what it says to the end. Before
-- the savepoint, with which it would go.
SELECT /* ackstream dead letter */ 1
FROM $dead_letter
LIMIT 0

-- name: dead_letter_there
-- Which of some dead messages have an acknowledged row in the dead-letter table (lookup finds the others). The condition
-- on time_acked keeps both servers from reading all of an index that holds it.
SELECT /* ackstream dead letter */ $id
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked < $before_ns

-- name: dead_letter_insert
-- Copy rows that are locked already, on the server and column by column: no value passes through the engine.
INSERT /* ackstream dead letter */ INTO $dead_letter ($columns, time_next, time_acked)
SELECT $columns, $now_ns, NULL
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: dead_letter_delete
-- And delete them where they were.
DELETE /* ackstream dead letter */ FROM $table USING $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: dead_letter_postpone
-- What could not be moved waits for another attempt, which is no delivery.
UPDATE /* ackstream dead letter */ $table FORCE INDEX ($id_index)
SET time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: mark
-- A place in a transaction to go back to.
SAVEPOINT mark

-- name: back_to_mark
-- All since then is undone, and the locks from before are kept.
ROLLBACK TO SAVEPOINT mark

-- name: warnings
-- What the server had to say about the last statement.
SHOW WARNINGS LIMIT 1

-- name: purge_find
-- Rows acknowledged long enough ago, the oldest first, in the order of the index; from where the last batch ended, as
-- entries that were deleted stay in the index, to be passed over, while anybody has an older view of the table.
SELECT /* ackstream purge */ $id, time_acked
FROM $table $partitions $scan_hint
WHERE time_acked >= $from_ns AND time_acked < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 - $age_ns
ORDER BY time_acked
LIMIT $limit

-- name: purge_lock
-- Lock them, looked at again: they were found without a lock.
SELECT /* ackstream purge */ $id
FROM $table $partitions FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked < $before_ns
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: purge_delete
-- Delete rows that are locked already. Without its hint for an index, for which a DELETE has to be written like this, both
-- servers read all of a small table, and wait for rows that somebody works on.
DELETE /* ackstream purge */ FROM $table USING $table $partitions FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked < $before_ns

-- name: retention_partitions
-- The partitions of a table that keeps acknowledged rows by time, in their order; subpartitions repeat them.
SELECT /* ackstream catalog */ table_schema, table_name, partition_name, partition_description
FROM information_schema.partitions
WHERE table_schema = $db AND table_name = $name
ORDER BY partition_ordinal_position

-- name: retention_drop
-- Old rows by the million, without reading one. Nobody waits behind it with MariaDB's NOWAIT, and nobody for longer than
-- lock_wait_timeout, whose least value is a second, without.
ALTER /* ackstream purge */ TABLE $table $nowait
DROP PARTITION $names

-- name: retention_add
-- Partitions ahead of their time, where the table has no last one for all the rest.
ALTER /* ackstream purge */ TABLE $table $nowait
ADD PARTITION ($definitions)

-- name: retention_rest
-- Whether the last partition, for all the rest, has a row.
SELECT /* ackstream purge */ 1
FROM $table $partitions
LIMIT 1

-- name: retention_split
-- Partitions ahead of their time, out of the last one, which is empty: otherwise its rows would be copied.
ALTER /* ackstream purge */ TABLE $table $nowait
REORGANIZE PARTITION $names INTO ($definitions)

-- name: catalog_listing
-- Tables that may be message tables, with what tells that one was changed; and views, as what is written to a view goes
-- to another table. The servers' own tables and views are left out before they are opened. Every ALTER sets create_time
-- to the current second. MariaDB opens each table to know it: there it is asked for marked tables only, afterwards.
SELECT /* ackstream catalog */
    table_schema, table_name, table_type, table_comment, COALESCE(engine, ''),
    /*!80000 COALESCE(UNIX_TIMESTAMP(create_time), 0), create_time < NOW() - INTERVAL 2 SECOND */ /*M! '', '' */
FROM information_schema.tables
WHERE table_schema NOT IN ('sys', 'mysql', 'information_schema', 'performance_schema')
    AND (table_type = 'VIEW' OR table_comment LIKE '%vitess\_message%')

-- name: catalog_times
-- When tables were made or altered, for MariaDB: it opens no others than those whose names are listed.
SELECT /* ackstream catalog */
    table_schema, table_name, COALESCE(UNIX_TIMESTAMP(create_time), 0), create_time < NOW() - INTERVAL 2 SECOND
FROM information_schema.tables
WHERE $tables

-- name: catalog_triggers
-- What is written to a table with a trigger may go to others, too. Those are shown that the account has TRIGGER on.
SELECT /* ackstream catalog */ DISTINCT event_object_table
FROM information_schema.triggers
WHERE event_object_schema NOT IN ('sys', 'mysql', 'information_schema', 'performance_schema')

-- name: catalog_table
-- Tables by their names. MariaDB compares names without regard to case: the caller picks.
SELECT /* ackstream catalog */
    table_schema, table_name, table_comment, COALESCE(engine, ''), @@lower_case_table_names
FROM information_schema.tables
WHERE $tables AND table_type NOT IN ('VIEW', 'SYSTEM VIEW')

-- name: catalog_columns
-- Their columns, each table's in their order.
SELECT /* ackstream catalog */
    table_schema, table_name, column_name, data_type, is_nullable, COALESCE(character_maximum_length, 0), extra,
    column_type
FROM information_schema.columns
WHERE $tables
ORDER BY ordinal_position

-- name: catalog_partitioning
-- How they are partitioned.
SELECT /* ackstream catalog */ DISTINCT
    table_schema, table_name, COALESCE(partition_method, ''), COALESCE(partition_expression, '')
FROM information_schema.partitions
WHERE $tables

-- name: catalog_indexes
-- Their indexes, a column a row. Whether an index is hidden from the optimizer has a name of its own on each server.
SELECT /* ackstream catalog */
    table_schema, table_name, index_name, COALESCE(column_name, ''), non_unique, index_type,
    COALESCE(collation, ''), COALESCE(sub_part, 0)
    /*!80000 , is_visible = 'NO' */ /*M!100600 , ignored = 'YES' */
FROM information_schema.statistics
WHERE $tables
ORDER BY index_name, seq_in_index

-- name: rights_account
-- Whose privileges SHOW GRANTS shows, and on what kind of server.
SELECT /* ackstream rights */ CURRENT_USER(), VERSION()

-- name: rights_grants
-- What the account may do by now. (A session goes by what it had on the server as a whole when it began.)
SHOW GRANTS

-- name: rights_select
-- Whether the account may look for messages. Like those below it reads no row, and takes no other privilege and none
-- on columns that the engine does not use.
SELECT /* ackstream rights */ id, priority, epoch, time_next, time_acked
FROM $table
WHERE FALSE

-- name: rights_update
-- Whether it may claim and release messages.
UPDATE /* ackstream rights */ $table
SET epoch = 0, time_next = 0
WHERE FALSE

-- name: rights_claim
-- Whether it may do both at once. MySQL denies this where it has UPDATE on the database and SELECT on the table only.
UPDATE /* ackstream rights */ $table
SET epoch = epoch + 1, time_next = 0
WHERE id IS NULL AND time_acked IS NULL AND FALSE

-- name: rights_delete
-- Whether it may purge acknowledged messages.
DELETE /* ackstream rights */ FROM $table
WHERE FALSE

-- name: rights_insert
-- Whether it may put dead messages here.
INSERT /* ackstream rights */ INTO $table (id)
SELECT 0
FROM DUAL
WHERE FALSE

-- name: server_name
-- What tells this server from others behind the same name or address, in one form for each character set. The proxy
-- asks the same on clients' connections.
SELECT SHA2(CONVERT(CONCAT_WS(_utf8mb4 '/', @@hostname, @@port, @@datadir, @@server_id) USING utf8mb4), 256)

-- name: kill
-- What a vanished client left running.
KILL CONNECTION $connection_id

-- name: binlog_settings
-- Whether the server keeps a binary log of rows. A server that has none of these variables has but one way.
SHOW GLOBAL VARIABLES WHERE variable_name IN ('log_bin', 'binlog_format')

-- name: binlog_end
-- Where the binary log ends now: its file and the position in it.
SHOW BINARY LOG STATUS

-- name: binlog_end_formerly
-- The same before MySQL 8.2, and on MariaDB.
SHOW MASTER STATUS

-- name: binlog_columns
-- What the log does not tell about a table's columns: names, signs, character sets.
SELECT /* ackstream binlog */
    table_schema, table_name, column_name, data_type, column_type, COALESCE(character_set_name, '')
FROM information_schema.columns
WHERE table_schema = $db AND table_name = $name
ORDER BY ordinal_position
