-- All SQL that the engine sends: each statement with its name, its purpose, and the reasons for its form.
--
-- The rules, all measured at 200,000 rows (tests/plans checks them on both servers):
--   * A scan reads one priority at a time, in the order of the index and without a bound on time_next.
--     With a bound and a descending index, MySQL sorts a quarter of the table. The caller stops at the
--     first row that is not due.
--   * All other statements find rows by sorted ids through a forced index. On a nearly empty table a
--     server may otherwise read all of it, and wait for rows that it does not need.
--   * time_acked is in every condition: it selects the partition of a table that is partitioned by it.
--   * Rows are locked with SKIP LOCKED, so an application's open transaction never delays its table.
--   * $portion is empty, or limits a scan to the messages of one share, or to all others, by the hash of
--     their ids. It is no condition on an index, so a scan reads past the entries of the other shares.
--   * $group is empty, or the columns of the message group behind the others.
--   * The clock is the server's, without time zones: microseconds since 1970 in UTC, times 1000.
--   * Each name of a table has an index hint. A view has no index, so the server refuses one that has taken
--     the place of a table (1176) before it evaluates anything of the view. With SQL SECURITY INVOKER, a view
--     and its functions would have all the engine's rights. `USE INDEX ()` stands where nothing is read, and
--     `IGNORE INDEX FOR GROUP BY` where the optimizer chooses the index: no such statement has a GROUP BY.
--     An INSERT takes no hint. It runs behind a statement that has one, in the same transaction: the lock on
--     the metadata keeps the name. ALTER TABLE refuses views by itself (1347).
--
-- engine/store/queries.py replaces $words: identifiers are quoted, values are literals without escapes.

-- name: session
-- All settings of a session of the engine that can change what its statements do, whatever the server's
-- defaults are: one statement, because each costs as much as a short read. Each setting costs a
-- microsecond, so what cannot change a result is left out: tests/fixtures/session_variables.txt has all
-- variables of the servers, and for each of the others the reason. Statements are UTF-8. READ COMMITTED
-- locks no gaps, and no rows that do not match. By default MariaDB turns a list of 1,000 ids into a
-- temporary table. The last three are the context.
SET NAMES utf8mb4,
    SESSION autocommit = 1,
    SESSION completion_type = 0,
    SESSION foreign_key_checks = 1,
    SESSION innodb_lock_wait_timeout = $lock_wait_s,
    SESSION lock_wait_timeout = $lock_wait_s,
    SESSION max_sort_length = 1024,
    SESSION sql_big_selects = 1,
    SESSION sql_notes = 1,
    SESSION sql_safe_updates = 0,
    SESSION sql_select_limit = 18446744073709551615,
    SESSION unique_checks = 1
    /*!80000 , SESSION max_execution_time = $statement_ms, SESSION transaction_isolation = 'READ-COMMITTED',
    SESSION transaction_read_only = 0, SESSION use_secondary_engine = OFF */
    /*M! , SESSION max_statement_time = $statement_s, SESSION in_predicate_conversion_threshold = 0,
    SESSION query_cache_type = OFF, SESSION system_versioning_asof = DEFAULT,
    SESSION tx_isolation = 'READ-COMMITTED', SESSION tx_read_only = 0 */,
    SESSION character_set_results = $charset,
    SESSION time_zone = $time_zone,
    SESSION sql_mode = $sql_mode

-- name: context
-- The settings that change the bytes of a row: the subscriber's for a fetch, otherwise the engine's
-- own.
SET SESSION character_set_results = $charset, time_zone = $time_zone, sql_mode = $sql_mode

-- name: now
-- The server's clock, as the same bytes under every character set: MariaDB converts numbers too.
SELECT CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 AS BINARY)

-- name: scan_first_priority
-- The most urgent priority with unacknowledged rows: one index entry.
SELECT /* ackstream scan */ MIN(priority)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL

-- name: scan_next_priority
-- The next priority after one: one index entry, however many rows lie between.
SELECT /* ackstream scan */ MIN(priority)
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority > $priority

-- name: scan_priority
-- The earliest rows of one priority, in the order of the index.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority $portion
ORDER BY $scan_order
LIMIT $limit

-- name: scan_ties
-- The rows of one time, by id. An index that descends in time_next returns them backwards, so a
-- limit would leave out the smallest ids. Where time_next is 0 by default, all new messages have
-- the same time.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, time_next $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next = $time_next $portion
ORDER BY id
LIMIT $limit

-- name: scan_without_priority
-- Rows whose priority is NULL. They come before all others, as NULL sorts. Costs nothing where the
-- column is NOT NULL.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), $lowest_priority, COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority IS NULL $portion
ORDER BY $scan_order
LIMIT $limit

-- name: scan_later_slowly
-- Without a scan index: the rows that come due next, by sorting the table.
SELECT /* ackstream scan without index */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), time_next $group
FROM $table IGNORE INDEX FOR GROUP BY ($id_index)
WHERE time_acked IS NULL AND time_next > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000
    AND ($condition) $portion
ORDER BY time_next, id
LIMIT $limit

-- name: scan_due_slowly
-- Without a scan index: the due rows, by sorting the table. Runs after scan_later_slowly, so no row
-- is missing in both.
SELECT /* ackstream scan without index */
    $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0) $group
FROM $table IGNORE INDEX FOR GROUP BY ($id_index)
WHERE time_acked IS NULL
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)
    AND ($condition) $portion
ORDER BY priority, time_next, id
LIMIT $limit

-- name: scan_greatest_id
-- The greatest id of a table with ascending ids, read before a range is. New rows have greater ids.
SELECT /* ackstream scan */ CAST(COALESCE(MAX(id), 0) + 0 AS BINARY)
FROM $table FORCE INDEX ($id_index)

-- name: scan_part_zero
-- With a condition: the rows of time 0 after an id, by id. Both servers know that the primary key
-- ends the index.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, time_next $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next = 0 AND $behind AND ($condition) $portion
ORDER BY id
LIMIT $limit

-- name: scan_part_timed
-- With a condition: the rows of later times, after a time. With both bounds, either kind of index
-- is read as a range.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, time_next $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next > $after_ns AND time_next <= $until_ns AND ($condition) $portion
ORDER BY $scan_order
LIMIT $limit

-- name: scan_part_odd
-- With a condition: rows without a time, or with one before 1970. There are hardly any.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), priority, COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND (time_next < 0 OR time_next IS NULL) AND ($condition) $portion
ORDER BY time_next, id
LIMIT $limit

-- name: scan_part_without_priority
-- With a condition: rows whose priority is NULL.
SELECT /* ackstream scan */ $id, COALESCE(epoch, 0), $lowest_priority, COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority IS NULL AND (time_next <= $until_ns OR time_next IS NULL) AND ($condition) $portion
ORDER BY $scan_order
LIMIT $limit

-- name: group_arrivals
-- By group: the messages that came due last, the latest first. With both bounds, either kind of index is
-- read as a range, from its end.
SELECT /* ackstream groups */ $id, COALESCE(epoch, 0), priority, time_next $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next > $after_ns AND time_next <= $until_ns $portion
ORDER BY $arrival_order
LIMIT $limit

-- name: group_arrivals_zero
-- By group: the messages of time 0 with the greatest ids.
SELECT /* ackstream groups */ $id, COALESCE(epoch, 0), priority, time_next $group
FROM $table FORCE INDEX ($scan_index)
WHERE time_acked IS NULL AND priority = $priority AND time_next = 0 AND id > $after_id $portion
ORDER BY id DESC
LIMIT $limit

-- name: group_first
-- The first messages of one group at one priority.
SELECT /* ackstream groups */ $id, COALESCE(epoch, 0), priority, COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($group_index)
WHERE time_acked IS NULL AND priority = $priority AND $in_group $portion
ORDER BY time_next, id
LIMIT $limit

-- name: group_rotation
-- The messages of the groups behind one, in the order of the group index: all of small groups, and the
-- first ones of the group at which the limit cuts it off. The bound is made of literals. With a
-- variable, or with a row constructor, both servers read the whole range.
SELECT /* ackstream groups */ $id, COALESCE(epoch, 0), priority, COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($group_index)
WHERE time_acked IS NULL AND priority = $priority AND ($behind) $portion
ORDER BY $group_order, time_next, id
LIMIT $limit

-- name: begin
-- Every transaction of the engine is this, one locking read, updates or deletes by id, and commit.
START TRANSACTION

-- name: commit
-- The end of a transaction.
COMMIT

-- name: rollback
-- The end of a transaction after an error.
ROLLBACK

-- name: claim_lock
-- Locks the rows that may be claimed and that the stream selects, except rows that others have
-- locked. The caller compares their epoch.
SELECT /* ackstream claim */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)
    AND ($condition)
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: claim_clock
-- The server's clock in microseconds, kept for an UPDATE in the same packet.
SET @ackstream_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- name: claim_now
-- The same in nanoseconds, as `now` returns it.
SELECT CAST(@ackstream_now * 1000 AS BINARY)

-- name: claim_lock_one
-- Locks a row as claim_lock does. If another transaction has locked it, this fails at once, and the
-- statements behind it in the packet do not run: an UPDATE would wait.
SELECT /* ackstream claim */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)
FOR UPDATE NOWAIT

-- name: batch_tables
-- The tables of a database whose comments name a column with batches, now: a new one may have parts of
-- the batch that a follow-up waits for. The caller reads the comments.
SELECT /* ackstream batches */ table_name, table_comment
FROM information_schema.tables
WHERE table_schema = $db AND table_type NOT IN ('VIEW', 'SYSTEM VIEW') AND table_comment LIKE '%batch\_by%'

-- name: batch_waits
-- Which of these locked messages are follow-ups that were never delivered, and whether their batches
-- have unacknowledged parts. A statement of its own behind the locking one: it shows everything that
-- was committed before a follow-up that it locked. A scalar subquery with a LIMIT is executed row by
-- row; both servers may turn EXISTS into a join that reads a whole table.
SELECT /* ackstream batches */ $id, $is_open
FROM $table AS follow_up FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL AND $after_batch IS NOT NULL AND COALESCE(epoch, 0) = 0

-- name: batch_part
-- A part of the batch of a follow-up that is not acknowledged: one entry of the index.
SELECT 1
FROM $parts AS part FORCE INDEX ($part_index)
WHERE part.$part_batch = $batch AND part.time_acked IS NULL
LIMIT 1

-- name: batch_rotation
-- The follow-ups behind one, by batch, whether they are due, and whether their batches are open.
SELECT /* ackstream batches */ $id, $batch_value, COALESCE(epoch, 0), COALESCE(time_next, 0), $is_open
FROM $table AS follow_up FORCE INDEX ($after_index)
WHERE time_acked IS NULL AND $behind
ORDER BY $after_batch, id
LIMIT $limit

-- name: batch_follow_ups
-- The same for the follow-ups of some batches.
SELECT /* ackstream batches */ $id, $batch_value, COALESCE(epoch, 0), COALESCE(time_next, 0), $is_open
FROM $table AS follow_up FORCE INDEX ($after_index)
WHERE time_acked IS NULL AND $after_batch IN ($batches)
ORDER BY $after_batch, id
LIMIT $limit

-- name: batch_by_ids
-- The same for the follow-ups among some messages.
SELECT /* ackstream batches */ $id, $batch_value, COALESCE(epoch, 0), COALESCE(time_next, 0), $is_open
FROM $table AS follow_up FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL AND $after_batch IS NOT NULL

-- name: batch_of_parts
-- The batches of parts that were reported as acknowledged, and whether that is visible.
SELECT /* ackstream batches */ $id, $batch_value, CAST(time_acked IS NULL AS BINARY)
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids)

-- name: batch_lock_waiting
-- Locks follow-ups that wait.
SELECT /* ackstream batches */ $id
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL AND time_next = $waiting_ns
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: batch_lock_due
-- Locks follow-ups that are due and were never delivered.
SELECT /* ackstream batches */ $id
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL AND COALESCE(epoch, 0) = 0
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: batch_set_time
-- Lets locked follow-ups wait, or lets them be due.
UPDATE /* ackstream batches */ $table FORCE INDEX ($id_index)
SET time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: claim_update
-- Claims locked rows: one more delivery, and the end of its lease. A lease column gets the new
-- time_next: both servers assign from left to right.
UPDATE /* ackstream claim */ $table FORCE INDEX ($id_index)
SET epoch = COALESCE(epoch, 0) + 1, time_next = $time_next $and_lease
WHERE id IN ($ids) AND time_acked IS NULL

-- name: claim_update_one
-- Claims that message if it has this epoch, until `wait_us` behind the clock of claim_clock.
UPDATE /* ackstream claim */ $table FORCE INDEX ($id_index)
SET epoch = COALESCE(epoch, 0) + 1, time_next = (@ackstream_now + $wait_us) * 1000 + $below_us $and_lease
WHERE id IN ($ids) AND time_acked IS NULL AND COALESCE(epoch, 0) = $epoch
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)

-- name: limit_session
-- The server ends this session if it is idle for so long, and rolls back its transaction.
SET SESSION wait_timeout = $idle_s

-- name: limit_lock
-- The first statement of a claim of a queue with a limit: the lock of all such claims, and when the queue has
-- its full rate again. It proves that the name is no view, which has no index.
SELECT /* ackstream lock */ CAST(full_ns AS BINARY)
FROM $limits FORCE INDEX (PRIMARY)
WHERE queue = $queue
FOR UPDATE

-- name: limit_write
-- One more claim of a queue with a rate: one row, however many messages. limit_lock has locked it.
UPDATE /* ackstream lock */ $limits FORCE INDEX (PRIMARY)
SET full_ns = $full_ns
WHERE queue = $queue

-- name: limit_add
-- The row of a queue, which has its full rate. Runs behind limit_lock in the same transaction.
INSERT /* ackstream lock */ IGNORE INTO $limits (queue, full_ns)
VALUES ($queue, 0)

-- name: limit_count
-- How many messages are in flight over all proxies, up to the limit, and when the first of their
-- leases ends. Reads their entries of the index, and those of messages that were given back before
-- the end of their leases. The order makes the first one that is read the first to end.
SELECT /* ackstream limit */ CAST(COUNT(*) AS BINARY), CAST(MIN(ends) AS BINARY)
FROM (
    SELECT $lease AS ends
    FROM $table FORCE INDEX ($lease_index)
    WHERE time_acked IS NULL AND $lease > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000
        AND $lease = time_next
    ORDER BY $lease
    LIMIT $most
) AS in_flight

-- name: group_count
-- How many messages of each message group are in flight over all proxies: for each message of a claim
-- the number of its group and the count; and the messages in flight of groups that may be full behind
-- the claim, with the ends of their leases. Runs behind claim_lock, so the groups of locked rows cannot
-- change. The server compares the groups: their collation decides which values are equal. Reads what is
-- in flight, however large the queue is.
SELECT /* ackstream limit */ id_read, CAST(number AS BINARY), CAST(held AS BINARY), CAST(ends AS BINARY)
FROM (
    SELECT id_read, ends, DENSE_RANK() OVER (ORDER BY $group_order) AS number,
        COUNT(ends) OVER (PARTITION BY $group_order) AS held, COUNT(*) OVER (PARTITION BY $group_order) AS all_of_it
    FROM (
        SELECT $id AS id_read, NULL AS ends, $group_order
        FROM $table FORCE INDEX ($id_index)
        WHERE id IN ($ids) AND time_acked IS NULL
        UNION ALL
        SELECT $id, $lease, $group_order
        FROM $table FORCE INDEX ($lease_index)
        WHERE time_acked IS NULL AND $lease > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000
            AND $lease = time_next
    ) AS concerned
) AS counted
WHERE all_of_it > held AND (ends IS NULL OR all_of_it >= $most)

-- name: group_holders
-- Strict order: the messages in flight, over all proxies, of the groups of these messages, with the ends
-- of their leases. Runs behind claim_lock, as group_count does. Reads what is in flight, however large
-- the queue is. LIMIT makes the inner result a temporary table, with an index by group.
SELECT /* ackstream limit */ $wanted_id, $held_id, CAST(held.$lease AS BINARY)
FROM $table AS held FORCE INDEX ($lease_index)
STRAIGHT_JOIN (
    SELECT id, $group_order
    FROM $table FORCE INDEX ($id_index)
    WHERE id IN ($ids) AND time_acked IS NULL
    LIMIT $count
) AS wanted ON $same_group_held
WHERE held.time_acked IS NULL AND held.$lease = held.time_next
    AND held.$lease > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000

-- name: group_heads
-- Strict order: which of these messages are not the first unacknowledged ones of their groups, or the
-- ones behind $place others, and which ones are instead. Runs behind claim_lock, as group_count does.
-- The innermost SELECT reads no more than these entries of the index: MySQL requires the whole order of
-- the index for that, and with it MariaDB would sort. LIMIT makes the result a temporary table: otherwise
-- MySQL would read these entries for each use of it.
SELECT /* ackstream order */ $wanted_id, $head_id, COALESCE(head.epoch, 0), COALESCE(head.priority, $lowest_priority),
    COALESCE(head.time_next, 0)
FROM (
    SELECT concerned.id, (
        SELECT first.id
        FROM $table AS first FORCE INDEX ($order_index)
        WHERE first.time_acked IS NULL AND $same_group
        ORDER BY /*!80000 $first_order, */ first.id
        LIMIT $place, 1
    ) AS first_id
    FROM $table AS concerned FORCE INDEX ($id_index)
    WHERE concerned.id IN ($ids) AND concerned.time_acked IS NULL
    LIMIT $count
) AS wanted
LEFT JOIN $table AS head FORCE INDEX ($id_index) ON head.id = wanted.first_id
WHERE wanted.first_id IS NULL OR wanted.first_id <> wanted.id

-- name: rights_limits_read
-- Whether there is a table of limits, and its rows may be locked.
SELECT queue, full_ns
FROM $own FORCE INDEX (PRIMARY)
WHERE FALSE
FOR UPDATE

-- name: rights_limits_write
-- Whether it may be written to. Runs behind the one that reads.
INSERT INTO $own (queue, full_ns)
SELECT '', 0
FROM DUAL
WHERE FALSE
ON DUPLICATE KEY UPDATE full_ns = 0

-- name: group_rates_read
-- The message group of each message of a claim, as a digest, and when it has its full rate again. Runs
-- behind claim_lock, as group_count does. The row of the queue is locked, so the times cannot change.
SELECT /* ackstream rates */ id_read, CAST(HEX(group_hash) AS BINARY), (
    SELECT CAST(kept.full_ns AS BINARY)
    FROM $rates AS kept FORCE INDEX (PRIMARY)
    WHERE kept.queue = $queue AND kept.group_hash = concerned.group_hash
)
FROM (
    SELECT $id AS id_read, $group_hash AS group_hash
    FROM $table FORCE INDEX ($id_index)
    WHERE id IN ($ids) AND time_acked IS NULL
) AS concerned

-- name: group_rates_write
-- One more claim: a row for each group of its messages, behind group_rates_read in the same transaction. MySQL
-- and MariaDB refer to the new values in different ways.
INSERT INTO $rates (queue, group_hash, full_ns)
VALUES $rows /*!80019 AS new */
ON DUPLICATE KEY UPDATE full_ns = /*!80019 new.full_ns */ /*M! VALUES(full_ns) */

-- name: group_rates_of
-- When some groups have their full rate again.
SELECT CAST(HEX(group_hash) AS BINARY), CAST(full_ns AS BINARY)
FROM $rates FORCE INDEX (PRIMARY)
WHERE queue = $queue AND group_hash IN ($groups)

-- name: group_rates_behind
-- The next groups of a queue, in the order of the primary key.
SELECT /* ackstream purge */ CAST(HEX(group_hash) AS BINARY), CAST(full_ns AS BINARY)
FROM $rates FORCE INDEX (PRIMARY)
WHERE queue = $queue AND group_hash > $behind
ORDER BY group_hash
LIMIT $limit

-- name: group_rates_delete
-- Groups that have had their full rate for a while. The condition is checked again, since a claim may
-- have used them since they were read.
DELETE /* ackstream purge */ FROM $rates USING $rates FORCE INDEX (PRIMARY)
WHERE queue = $queue AND group_hash IN ($groups) AND full_ns < $before_ns

-- name: rights_group_rates_read
-- Whether there is a table of the rates of message groups, and it may be read.
SELECT queue, group_hash, full_ns
FROM $own FORCE INDEX (PRIMARY)
WHERE FALSE

-- name: rights_group_rates_write
-- Whether it may be written to. Runs behind the one that reads.
INSERT INTO $own (queue, group_hash, full_ns)
SELECT '', '', 0
FROM DUAL
WHERE FALSE
ON DUPLICATE KEY UPDATE full_ns = 0

-- name: rights_group_rates_delete
-- Whether rows may be deleted.
DELETE FROM $own USING $own FORCE INDEX (PRIMARY)
WHERE FALSE

-- name: semaphore_lock
-- Locks the rows of the semaphores of a claim that exist, in the order of the primary key, and reads their
-- capacities. Among the first statements of the transaction. It proves that the name is no view.
SELECT /* ackstream limit */ CAST(name AS BINARY), CAST(capacity AS BINARY)
FROM $semaphores FORCE INDEX (PRIMARY)
WHERE name IN ($names)
ORDER BY name
FOR UPDATE

-- name: semaphore_tables
-- The tables of a database whose comments may name a column of semaphores, now: one that was created a
-- moment ago may have messages in flight. The caller reads the comments.
SELECT /* ackstream limit */ table_name, table_comment
FROM information_schema.tables
WHERE table_schema = $db AND table_type NOT IN ('VIEW', 'SYSTEM VIEW') AND table_comment LIKE '%semaphores%'

-- name: rights_semaphores_read
-- Whether the rows of the table of semaphores may be locked.
SELECT name, capacity
FROM $own FORCE INDEX (PRIMARY)
WHERE FALSE
FOR UPDATE

-- name: semaphore_holders
-- The messages in flight of a queue that hold some semaphores, and the ends of their leases. Reads the
-- entries of what is in flight, as limit_count does.
SELECT /* ackstream limit */ $id, $needs, CAST($lease AS BINARY)
FROM $table FORCE INDEX ($lease_index)
WHERE time_acked IS NULL AND $lease > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000
    AND $lease = time_next AND $column <> '' AND ($named)

-- name: ack_lock
-- Locks messages that clients acknowledge. If another transaction has locked one of them, this fails at
-- once, and the statements behind it in the packet do not run: an UPDATE would wait.
SELECT /* ackstream ack */ $id, epoch
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL
ORDER BY id
FOR UPDATE NOWAIT

-- name: ack_update
-- Acknowledges them as a client's ACK does.
UPDATE /* ackstream ack */ $table FORCE INDEX ($id_index)
SET time_acked = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000, time_next = NULL
WHERE id IN ($ids) AND time_acked IS NULL $fences

-- name: fetch
-- The rows to deliver, after one column with the epoch, the end of the lease and the id. That
-- column is a binary string, so its bytes are the same under every character set and in both
-- protocols.
SELECT /* ackstream fetch */ CONCAT(COALESCE(epoch, 0), ':', COALESCE(time_next, 0), ':', $id), $columns
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: lookup
-- The present state of messages.
SELECT /* ackstream lookup */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0) $group
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: unacknowledged
-- A row if the table has an unacknowledged message. UNION ALL joins those of several tables.
SELECT /* ackstream poll */ $number FROM $table FORCE INDEX ($scan_index) WHERE time_acked IS NULL LIMIT 1

-- name: lookup_unlocked
-- Those of them that are due and that no other transaction has locked for itself. The locks end with
-- the statement.
SELECT /* ackstream lookup */ $id
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL
    AND (time_next IS NULL OR time_next <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000)
/*!80000 FOR SHARE */ /*M! LOCK IN SHARE MODE */ SKIP LOCKED

-- name: release_lock
-- Locks claims to release, except rows that others have locked. The caller compares their epoch and
-- time_next.
SELECT /* ackstream release */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), COALESCE(time_next, 0)
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: count_failure
-- Counts a failed delivery of a message that was locked and not claimed. It has no lease.
UPDATE /* ackstream release */ $table FORCE INDEX ($id_index)
SET epoch = COALESCE(epoch, 0) + 1, time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: release_unsent
-- Undoes a claim whose message was not sent.
UPDATE /* ackstream release */ $table FORCE INDEX ($id_index)
SET epoch = epoch - 1, time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: release_sent
-- Ends the lease of a message that was sent. It may be delivered again.
UPDATE /* ackstream release */ $table FORCE INDEX ($id_index)
SET time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: find_abandoned
-- Messages in flight at proxies that are gone. A message that was acknowledged, released, scheduled
-- or dead-lettered since its claim has another time_next than lease. Reads every index entry without
-- acknowledgement, and all rows that are due later: only for proxies that are gone.
SELECT /* ackstream release */ $id, COALESCE(epoch, 0), COALESCE(priority, $lowest_priority), time_next
FROM $table $scan_hint
WHERE time_acked IS NULL AND time_next > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000
    AND $lease = time_next AND $gone
LIMIT $limit

-- name: dead_letter_hold
-- Locks the dead-letter table's metadata until the commit, so its comment and columns stay the
-- same. Runs before the savepoint: rolling back to it would release the lock.
SELECT /* ackstream dead letter */ 1
FROM $dead_letter USE INDEX ()
LIMIT 0

-- name: dead_letter_there
-- The dead messages whose id has an acknowledged row in the dead-letter table (lookup finds
-- unacknowledged ones). The condition on time_acked keeps both servers from reading all of an index
-- with it.
SELECT /* ackstream dead letter */ $id
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked < $before_ns

-- name: dead_letter_insert
-- Copies locked rows on the server, column by column, behind dead_letter_hold. No value passes through the
-- engine.
INSERT /* ackstream dead letter */ INTO $dead_letter ($columns, time_next, time_acked)
SELECT $columns, $now_ns, NULL
FROM $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: dead_letter_delete
-- Deletes the copied rows from their queue.
DELETE /* ackstream dead letter */ FROM $table USING $table FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked IS NULL

-- name: dead_letter_postpone
-- Postpones messages that could not be moved. This is not a delivery.
UPDATE /* ackstream dead letter */ $table FORCE INDEX ($id_index)
SET time_next = $time_next
WHERE id IN ($ids) AND time_acked IS NULL

-- name: mark
-- A savepoint.
SAVEPOINT mark

-- name: back_to_mark
-- Undoes everything since the savepoint, and keeps the locks from before.
ROLLBACK TO SAVEPOINT mark

-- name: warnings
-- The first warning of the last statement.
SHOW WARNINGS LIMIT 1

-- name: purge_find
-- Rows acknowledged long enough ago, the oldest first, in the order of the index. Each batch begins
-- where the last one ended: deleted entries stay in the index while any transaction has an older
-- view of the table, and would be read again.
SELECT /* ackstream purge */ $id, time_acked
FROM $table $partitions $scan_hint
WHERE time_acked >= $from_ns AND time_acked < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 - $age_ns
ORDER BY time_acked
LIMIT $limit

-- name: purge_lock
-- Locks these rows, with the condition again: they were found without a lock.
SELECT /* ackstream purge */ $id
FROM $table $partitions FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked < $before_ns
ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: purge_delete
-- Deletes locked rows. Without the index hint, which requires this form of DELETE, both servers
-- read all of a small table, and wait for rows in use.
DELETE /* ackstream purge */ FROM $table USING $table $partitions FORCE INDEX ($id_index)
WHERE id IN ($ids) AND time_acked < $before_ns

-- name: retention_partitions
-- The partitions of a table with acknowledged rows by time, in their order. Subpartitions repeat
-- them.
SELECT /* ackstream catalog */ table_schema, table_name, partition_name, partition_description
FROM information_schema.partitions
WHERE table_schema = $db AND table_name = $name
ORDER BY partition_ordinal_position

-- name: retention_drop
-- Drops millions of old rows without reading one. With MariaDB's NOWAIT, no statement waits behind
-- it. Without, none waits longer than lock_wait_timeout, which is at least a second.
ALTER /* ackstream purge */ TABLE $table $nowait
DROP PARTITION $names

-- name: retention_add
-- Makes partitions ahead of their time, in a table without a last partition for all later times.
ALTER /* ackstream purge */ TABLE $table $nowait
ADD PARTITION ($definitions)

-- name: retention_rest
-- Whether the last partition, for all later times, has a row.
SELECT /* ackstream purge */ 1
FROM $table $partitions IGNORE INDEX FOR GROUP BY ($id_index)
LIMIT 1

-- name: retention_split
-- Makes partitions ahead of their time from the last one. That must be empty: its rows would be
-- copied.
ALTER /* ackstream purge */ TABLE $table $nowait
REORGANIZE PARTITION $names INTO ($definitions)

-- name: catalog_listing
-- Tables that may be message tables, with values that change when they are altered; tables that ackstream
-- itself has made; and views, because a write to a view reaches another table. The servers' own tables and views are excluded
-- before they are opened. Every ALTER sets create_time to the current second. MariaDB opens a table
-- to read it, so there catalog_times reads it for marked tables only.
SELECT /* ackstream catalog */
    table_schema, table_name, table_type, table_comment, COALESCE(engine, ''),
    /*!80000 COALESCE(UNIX_TIMESTAMP(create_time), 0), create_time < NOW() - INTERVAL 2 SECOND */ /*M! '', '' */
FROM information_schema.tables
WHERE table_schema NOT IN ('sys', 'mysql', 'information_schema', 'performance_schema')
    AND (table_type = 'VIEW' OR table_comment LIKE '%vitess\_message%' OR table_comment LIKE 'ackstream:%')

-- name: catalog_times
-- When tables were made or altered, for MariaDB. It opens only the tables whose names are listed.
SELECT /* ackstream catalog */
    table_schema, table_name, COALESCE(UNIX_TIMESTAMP(create_time), 0), create_time < NOW() - INTERVAL 2 SECOND
FROM information_schema.tables
WHERE $tables

-- name: catalog_triggers
-- A write to a table with a trigger may reach other tables. Only tables on which the account has
-- TRIGGER are returned.
SELECT /* ackstream catalog */ DISTINCT event_object_schema, event_object_table
FROM information_schema.triggers
WHERE event_object_schema NOT IN ('sys', 'mysql', 'information_schema', 'performance_schema')

-- name: catalog_table
-- Tables by their names. MariaDB compares names without case, so the caller selects.
SELECT /* ackstream catalog */
    table_schema, table_name, table_comment, COALESCE(engine, ''), @@lower_case_table_names
FROM information_schema.tables
WHERE $tables AND table_type NOT IN ('VIEW', 'SYSTEM VIEW')

-- name: catalog_columns
-- Their columns, each table's in their order.
SELECT /* ackstream catalog */
    table_schema, table_name, column_name, data_type, is_nullable, COALESCE(character_maximum_length, 0), extra,
    column_type, COALESCE(collation_name, ''), COALESCE(column_default, '')
FROM information_schema.columns
WHERE $tables
ORDER BY ordinal_position

-- name: catalog_extras
-- Their partitioning; 'CHECK' for those with CHECK constraints, other than the ones with which MariaDB
-- implements JSON; and 'TRIGGER' for those with triggers.
SELECT /* ackstream catalog */ DISTINCT
    table_schema, table_name, COALESCE(partition_method, ''), COALESCE(partition_expression, '')
FROM information_schema.partitions
WHERE $tables
UNION ALL
SELECT
    /*!80000 table_schema, table_name, 'CHECK', ''
    FROM information_schema.table_constraints
    WHERE $tables AND constraint_type = 'CHECK' */
    /*M! constraint_schema, table_name, 'CHECK', ''
    FROM information_schema.check_constraints
    WHERE $constraints AND check_clause NOT REGEXP '^json_valid[(]`[^`]*`[)]$$' */
UNION ALL
SELECT event_object_schema, event_object_table, 'TRIGGER', ''
FROM information_schema.triggers
WHERE $triggers

-- name: catalog_indexes
-- Their indexes, one column a row. The attribute of an index that the optimizer ignores has another
-- name on each server.
SELECT /* ackstream catalog */
    table_schema, table_name, index_name, COALESCE(column_name, ''), non_unique, index_type,
    COALESCE(collation, ''), COALESCE(sub_part, 0)
    /*!80000 , is_visible = 'NO' */ /*M!100600 , ignored = 'YES' */
FROM information_schema.statistics
WHERE $tables
ORDER BY index_name, seq_in_index

-- name: rights_account
-- The account whose privileges SHOW GRANTS returns, and the kind of server.
SELECT /* ackstream rights */ CURRENT_USER(), VERSION()

-- name: rights_grants
-- The account's present privileges. (A session keeps the global privileges that it began with.)
SHOW GRANTS

-- name: rights_server
-- What may keep the server from carrying out any claim. Each server has some of these.
SHOW GLOBAL VARIABLES WHERE variable_name IN
    ('log_bin', 'binlog_format', 'innodb_read_only', 'innodb_force_recovery', 'wsrep_on', 'wsrep_forced_binlog_format')

-- name: rights_select
-- Whether the account may look for messages. The statements below run behind it. They read no row either,
-- and require no other privilege, and none on columns that the engine does not use.
SELECT /* ackstream rights */ id, priority, epoch, time_next, time_acked
FROM $table USE INDEX ()
WHERE FALSE

-- name: rights_update
-- Whether it may claim and release messages.
UPDATE /* ackstream rights */ $table USE INDEX ()
SET epoch = 0, time_next = 0 $and_lease
WHERE FALSE

-- name: rights_claim
-- Whether it may do both in one statement. MySQL denies this with UPDATE on the database and SELECT
-- on the table only.
UPDATE /* ackstream rights */ $table USE INDEX ()
SET epoch = epoch + 1, time_next = 0 $and_lease
WHERE id IS NULL AND time_acked IS NULL AND FALSE

-- name: rights_delete
-- Whether it may purge acknowledged messages.
DELETE /* ackstream rights */ FROM $table USING $table USE INDEX ()
WHERE FALSE

-- name: rights_insert
-- Whether it may move dead messages into the table. Runs behind rights_select.
INSERT /* ackstream rights */ INTO $table (id)
SELECT 0
FROM DUAL
WHERE FALSE

-- name: server_name
-- A value that differs between servers behind the same name or address, in the same bytes for every
-- character set. The proxy runs the same expression on clients' connections.
SELECT SHA2(CONVERT(CONCAT_WS(_utf8mb4 '/', @@hostname, @@port, @@datadir, @@server_id) USING utf8mb4), 256)

-- name: roster_session
-- The session that holds this proxy's locks. If the proxy or its machine is gone, the server ends the
-- session after this time and releases the locks.
SET SESSION wait_timeout = $idle_s

-- name: roster_read
-- The server's clock; which slots of the roster are held, a digit each; and which of the other proxies
-- have streams on which queues.
SELECT /* ackstream roster */
    CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000 AS BINARY),
    CAST(CONCAT($slots) AS BINARY), CAST(CONCAT($streams) AS BINARY)

-- name: roster_holder
-- The connection that holds a lock, and whether it also holds one of these.
SELECT /* ackstream roster */ CAST(IS_USED_LOCK($lock) AS BINARY), CAST(IS_USED_LOCK($lock) IN ($marks) AS BINARY)

-- name: roster_lock
-- Takes a lock, if it is free or comes free in this time.
SELECT /* ackstream roster */ CAST(GET_LOCK($lock, $wait_s) AS BINARY)

-- name: roster_stranger
-- Which connection holds a lock, and whether it is one of this account. A session always sees those.
SELECT /* ackstream roster */ CAST(IS_USED_LOCK($lock) AS BINARY), CAST(COUNT(*) AS BINARY)
FROM information_schema.processlist
WHERE id = IS_USED_LOCK($lock) AND user = SUBSTRING_INDEX(CURRENT_USER(), '@', 1)

-- name: roster_release
-- Releases a lock.
DO RELEASE_LOCK($lock)

-- name: roster_announce
-- Takes and releases the locks of queues: a digit each, 1 if that was done.
SELECT /* ackstream roster */ CAST(CONCAT($calls) AS BINARY)

-- name: kill
-- Ends a vanished client's connection, and its statement.
KILL CONNECTION $connection_id

-- name: writable
-- Fails (1242) if the server is read-only, and nothing behind it in the packet runs. The engine's
-- account may have a privilege that lets it write to a read-only server. (DO would not fail on
-- MariaDB.)
SET @ackstream_writable = IF(CONCAT(@@GLOBAL.read_only) IN ('0', 'OFF'), 1, (SELECT 1 UNION SELECT 2))

-- name: monitor_variables
-- What kind of server it is: only MySQL has super_read_only. Member of which cluster.
SHOW GLOBAL VARIABLES WHERE variable_name IN
    ('super_read_only', 'wsrep_on', 'group_replication_group_name', 'group_replication_single_primary_mode')

-- name: monitor_mysql
-- Why the server accepts no writes, a value each; all empty if it does.
SELECT
    IF(@@GLOBAL.read_only, 'read_only=1', ''),
    IF(@@GLOBAL.super_read_only, 'super_read_only=1', ''),
    IF(@@GLOBAL.offline_mode, 'offline_mode=1', '')

-- name: monitor_mariadb
-- The same for MariaDB. Its newest versions have words in place of 1.
SELECT IF(CONCAT(@@GLOBAL.read_only) IN ('0', 'OFF'), '', CONCAT('read_only=', @@GLOBAL.read_only))

-- name: monitor_galera
-- Whether this member of a Galera cluster can be used.
SHOW GLOBAL STATUS WHERE variable_name IN ('wsrep_ready', 'wsrep_cluster_status', 'wsrep_cluster_state_uuid')

-- name: monitor_group
-- The members of this server's replication group, and which of them it is.
SELECT member_id = @@GLOBAL.server_uuid, member_state
FROM performance_schema.replication_group_members

-- name: binlog_settings
-- Whether the server writes a binary log of rows (a server without these variables has only one
-- format), its id in there, and whether it is a node of a Galera cluster.
SHOW GLOBAL VARIABLES WHERE variable_name IN ('log_bin', 'binlog_format', 'server_id', 'wsrep_on')

-- name: binlog_end
-- The present end of the binary log: its file and the position in it.
SHOW BINARY LOG STATUS

-- name: binlog_end_formerly
-- The same before MySQL 8.2, and on MariaDB.
SHOW MASTER STATUS

-- name: binlog_own_connection
-- The number of this connection, if a connection to the same run of the same server holds the lock
-- (the reader of the binary log's). NULL otherwise.
SELECT CAST(IF(IS_USED_LOCK($lock), CONNECTION_ID(), NULL) AS BINARY)

-- name: binlog_columns
-- The properties of columns that the binary log does not contain: names, signs, character sets.
SELECT /* ackstream binlog */
    table_schema, table_name, column_name, data_type, column_type, COALESCE(character_set_name, '')
FROM information_schema.columns
WHERE table_schema = $db AND table_name = $name
ORDER BY ordinal_position
