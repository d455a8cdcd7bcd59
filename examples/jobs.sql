-- The tables of the workers to copy (python/worker_pymysql.py, node/worker_mysql2.mjs), made through the proxy.
CREATE QUEUE jobs (task VARCHAR(100)) ACK_WAIT = 30 MAX_ATTEMPTS = 25 DEAD_LETTER = jobs_dead REASON = reason;
CREATE TABLE done (task VARCHAR(100));
