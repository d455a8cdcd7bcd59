-- The tables of the programs in this folder: a queue, and a table that is not a queue.
CREATE TABLE orders (
  id         BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  priority   INT    NOT NULL DEFAULT 0,
  epoch      BIGINT NOT NULL DEFAULT 0,
  time_next  BIGINT DEFAULT 0,
  time_acked BIGINT DEFAULT NULL,
  item       VARCHAR(100),
  KEY next_idx (time_acked, priority, time_next)
) COMMENT 'vitess_message,vt_ack_wait=30,vt_purge_after=86400,vt_batch_size=100,vt_cache_size=10000,vt_poller_interval=30';

CREATE TABLE customers (
  id   BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  name VARCHAR(100)
);
