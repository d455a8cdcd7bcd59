/* The consumers of bench/compare on MySQL and MariaDB, direct or through the proxy.
 *
 *   consumers PORT drain FORM CONNECTIONS BATCH MESSAGES
 *   consumers PORT latency FORM SAMPLES
 *   consumers PORT bystander STATEMENT
 *
 * It logs in, writes a line, and begins when it reads one. All tables are in the database bench.
 *
 * drain takes and finishes MESSAGES messages of the table `queue`. FORM is one of
 *   streams   endless STREAMs; each has a second connection, which sends an ACK for BATCH messages
 *   bounded   STREAM ... LIMIT BATCH NOWAIT, then one ACK
 *   locked    one transaction: STREAM ... LIMIT BATCH NOWAIT FOR UPDATE, then one ACK
 *   locks     one transaction: SELECT ... LIMIT BATCH FOR UPDATE SKIP LOCKED, then one UPDATE; begun
 *             anew after a deadlock
 *   told      as `locks`, but each id is known, from a counter that all share: no queue at all
 *   claimed   two UPDATEs a message, each committed: of CLAIM ids from that counter, then of BATCH
 * Its answer: messages finished, seconds, and the CPU seconds of the consumers.
 *
 * latency inserts one message after the other for a consumer that waits. FORM: `streams` is an endless
 * stream, `locked` a transaction for each message, with STREAM ... LIMIT 1 WAIT 60 FOR UPDATE. Its
 * answer: a line for each: µs from before the INSERT to the end of the row or result, and µs of the
 * INSERT.
 *
 * bystander runs STATEMENT, with a pause of 1 ms after each answer, until its input ends. Its answer:
 * a line for each, the µs that it took.
 * It is in C, because a client in Python would take most of the time. */
#include <mysql.h>
#include <mysqld_error.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CLAIM = 1000, BATCH_MAX = 1000, ID_CHARS = 21, PAUSE_US = 1000, WAITS_AGAIN_US = 2000, SAMPLES_MAX = 1 << 20 };

static const char *TAKE = "SELECT id, payload FROM queue FORCE INDEX (due) WHERE time_acked IS NULL AND priority = 0"
                          " AND time_next <= 1 ORDER BY time_next, id LIMIT %d FOR UPDATE SKIP LOCKED";

static const char *FINISH = "UPDATE queue SET time_acked = 1, time_next = NULL";

typedef struct {
    MYSQL *db, *acks;
    pthread_t thread;
    pthread_mutex_t lock; /* Guards ids and acks. */
    char ids[BATCH_MAX][ID_CHARS];
    int count;
} Consumer;

static int port, batch;
static long wanted;
static long received, finished; /* Changed atomically. */
static long next_id;            /* For told and claimed; the same. */
static int done;

static void fail(const char *text) {
    fprintf(stderr, "consumers: %s\n", text);
    exit(1);
}

static double cpu_s(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static MYSQL *connected(void) {
    MYSQL *db = mysql_init(NULL);
    if (!mysql_real_connect(db, "127.0.0.1", "root", "", "bench", (unsigned)port, NULL, 0))
        fail(mysql_error(db));
    return db;
}

static void run(MYSQL *db, const char *statement) {
    if (mysql_query(db, statement))
        fail(mysql_error(db));
}

/* The same; returns 0 where the server has rolled the transaction back because of a deadlock. */
static int run_or_deadlock(MYSQL *db, const char *statement) {
    if (!mysql_query(db, statement))
        return 1;
    if (mysql_errno(db) != ER_LOCK_DEADLOCK)
        fail(mysql_error(db));
    return 0;
}

static _Thread_local char statement[128 + BATCH_MAX * (ID_CHARS + 1)];

/* Writes a statement about messages with known ids, that begins and ends like this. Returns the first of the ids. */
static long write_in_turn(const char *head, int count, const char *tail) {
    long first = __atomic_fetch_add(&next_id, count, __ATOMIC_SEQ_CST);
    char *end = statement + sprintf(statement, "%s WHERE id IN (%ld", head, first);
    for (long id = first + 1; id < first + count; id++)
        end += sprintf(end, ",%ld", id);
    sprintf(end, ") AND time_acked IS NULL%s", tail);
    return first;
}

/* Finishes the collected messages by one statement. After a deadlock none is finished. */
static void finish(Consumer *mine, MYSQL *db, const char *head) {
    char *end = statement + sprintf(statement, "%s WHERE id IN (", head);
    if (!mine->count)
        return;
    for (int i = 0; i < mine->count; i++)
        end += sprintf(end, i ? ",%s" : "%s", mine->ids[i]);
    strcpy(end, ")");
    mine->count = 0;
    if (run_or_deadlock(db, statement))
        __atomic_add_fetch(&finished, (long)mysql_affected_rows(db), __ATOMIC_SEQ_CST);
}

static void keep(Consumer *mine, MYSQL_ROW row) {
    if (strlen(row[0]) >= ID_CHARS || mine->count == BATCH_MAX)
        fail("an id too long, or too many of them");
    strcpy(mine->ids[mine->count++], row[0]);
}

static void *streams(void *argument) {
    Consumer *mine = argument;
    MYSQL_ROW row;
    run(mine->db, "STREAM id, payload FROM queue");
    MYSQL_RES *result = mysql_use_result(mine->db);
    while ((row = mysql_fetch_row(result))) {
        pthread_mutex_lock(&mine->lock);
        keep(mine, row);
        if (mine->count == batch)
            finish(mine, mine->acks, "ACK queue");
        pthread_mutex_unlock(&mine->lock);
        __atomic_add_fetch(&received, 1, __ATOMIC_SEQ_CST);
    }
    if (!done)
        fail(mysql_error(mine->db));
    return NULL;
}

/* Returns the number of messages; they are in mine. */
static int take(Consumer *mine, const char *select) {
    MYSQL_ROW row;
    if (!run_or_deadlock(mine->db, select))
        return 0;
    MYSQL_RES *result = mysql_use_result(mine->db);
    while ((row = mysql_fetch_row(result)))
        keep(mine, row);
    if (mysql_errno(mine->db) == ER_LOCK_DEADLOCK)
        mine->count = 0;
    else if (mysql_errno(mine->db))
        fail(mysql_error(mine->db));
    mysql_free_result(result);
    return mine->count;
}

static void *bounded(void *argument) {
    Consumer *mine = argument;
    char select[64];
    sprintf(select, "STREAM id, payload FROM queue LIMIT %d NOWAIT", batch);
    while (__atomic_load_n(&finished, __ATOMIC_SEQ_CST) < wanted) {
        if (take(mine, select))
            finish(mine, mine->db, "ACK queue");
        else
            usleep(PAUSE_US);
    }
    return NULL;
}

/* Sets the counter to the first message that is not finished. */
static void find_first(void) {
    MYSQL *db = connected();
    run(db, "SELECT MIN(id) FROM queue WHERE time_acked IS NULL");
    MYSQL_RES *result = mysql_store_result(db);
    const char *first = mysql_fetch_row(result)[0];
    if (first)
        __atomic_store_n(&next_id, atol(first), __ATOMIC_SEQ_CST);
    mysql_free_result(result);
    mysql_close(db);
}

/* Takes and finishes batches, each in one transaction. Without a statement, the next ids are taken. */
static void work_in_transactions(Consumer *mine, const char *select, const char *head) {
    run(mine->db, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    run(mine->db, "SET autocommit = 0");
    while (__atomic_load_n(&finished, __ATOMIC_SEQ_CST) < wanted) {
        if (!select)
            write_in_turn("SELECT id, payload FROM queue", batch, " FOR UPDATE SKIP LOCKED");
        int took = take(mine, select ? select : statement);
        if (took)
            finish(mine, mine->db, head);
        else
            usleep(PAUSE_US);
        run(mine->db, "COMMIT");
        if (!select && !took) /* Others finish the last messages, or one was locked a moment ago. */
            find_first();
    }
}

static void *locked(void *argument) {
    char select[96];
    sprintf(select, "STREAM id, payload FROM queue LIMIT %d NOWAIT FOR UPDATE", batch);
    work_in_transactions(argument, select, "ACK queue");
    return NULL;
}

static void *locks(void *argument) {
    char select[256];
    sprintf(select, TAKE, batch);
    work_in_transactions(argument, select, FINISH);
    return NULL;
}

static void *told(void *argument) {
    work_in_transactions(argument, NULL, FINISH);
    return NULL;
}

static void *claimed(void *argument) {
    Consumer *mine = argument;
    while (__atomic_load_n(&finished, __ATOMIC_SEQ_CST) < wanted) {
        long first = write_in_turn("UPDATE queue SET epoch = 1, time_next = 9223372036854775807", CLAIM, "");
        if (!run_or_deadlock(mine->db, statement))
            fail("a deadlock between claims of different messages");
        for (int i = 0; i < CLAIM; i++) {
            sprintf(mine->ids[mine->count++], "%ld", first + i);
            if (mine->count == batch)
                finish(mine, mine->db, FINISH);
        }
    }
    return NULL;
}

/* Waits until all is finished. Near the end the streams have fewer messages than an ACK takes. */
static void end_streams(Consumer *consumers, int number) {
    while (__atomic_load_n(&finished, __ATOMIC_SEQ_CST) < wanted) {
        usleep(PAUSE_US);
        if (__atomic_load_n(&received, __ATOMIC_SEQ_CST) < wanted)
            continue;
        for (int i = 0; i < number; i++) {
            pthread_mutex_lock(&consumers[i].lock);
            finish(&consumers[i], consumers[i].acks, "ACK queue");
            pthread_mutex_unlock(&consumers[i].lock);
        }
    }
}

static void begin(void) {
    char line[16];
    puts("ready");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin))
        fail("not begun");
}

static void drain(const char *form, int number) {
    int streaming = strcmp(form, "streams") == 0;
    void *(*work)(void *) = streaming                      ? streams
                            : strcmp(form, "bounded") == 0 ? bounded
                            : strcmp(form, "locked") == 0  ? locked
                            : strcmp(form, "told") == 0    ? told
                            : strcmp(form, "claimed") == 0 ? claimed
                                                           : locks;
    Consumer *consumers = calloc((size_t)number, sizeof *consumers);
    for (int i = 0; i < number; i++) {
        consumers[i].db = connected();
        consumers[i].acks = streaming ? connected() : NULL;
        pthread_mutex_init(&consumers[i].lock, NULL);
    }
    if (work == told || work == claimed)
        find_first();
    begin();
    double begin_s = now_s(), begin_cpu_s = cpu_s();
    for (int i = 0; i < number; i++)
        if (pthread_create(&consumers[i].thread, NULL, work, &consumers[i]))
            fail("no thread");
    if (streaming)
        end_streams(consumers, number);
    else
        for (int i = 0; i < number; i++)
            pthread_join(consumers[i].thread, NULL);
    printf("%ld %f %f\n", finished, now_s() - begin_s, cpu_s() - begin_cpu_s);
    done = 1;
    fflush(stdout);
    for (int i = 0; streaming && i < number; i++)
        shutdown(mysql_get_socket(consumers[i].db), SHUT_RDWR);
    _exit(0); /* Streams do not end by themselves. */
}

static void *insert(void *argument) {
    double *samples = argument;
    MYSQL *db = connected();
    for (long i = 0; i < wanted; i++) {
        samples[2 * i] = now_s();
        run(db, "INSERT INTO queue (payload) VALUES (REPEAT('x', 120))");
        samples[2 * i + 1] = now_s();
        while (__atomic_load_n(&received, __ATOMIC_SEQ_CST) <= i)
            usleep(50);
        usleep(WAITS_AGAIN_US);
    }
    return NULL;
}

/* Receives the messages of `insert`; notes when each came. */
static void receive(Consumer *mine, double *arrived) {
    MYSQL_ROW row;
    run(mine->db, "STREAM id, payload FROM queue");
    MYSQL_RES *result = mysql_use_result(mine->db);
    for (long i = 0; i < wanted; i++) {
        if (!(row = mysql_fetch_row(result)))
            fail(mysql_error(mine->db));
        arrived[i] = now_s();
        keep(mine, row);
        finish(mine, mine->acks, "ACK queue");
        __atomic_add_fetch(&received, 1, __ATOMIC_SEQ_CST);
    }
}

/* The same, each in a transaction that locks it. */
static void receive_in_transactions(Consumer *mine, double *arrived) {
    run(mine->db, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED");
    for (long i = 0; i < wanted; i++) {
        run(mine->db, "BEGIN");
        if (take(mine, "STREAM id, payload FROM queue LIMIT 1 WAIT 60 FOR UPDATE") != 1)
            fail("no message came");
        arrived[i] = now_s();
        finish(mine, mine->db, "ACK queue");
        run(mine->db, "COMMIT");
        __atomic_add_fetch(&received, 1, __ATOMIC_SEQ_CST);
    }
}

static void latency(const char *form) {
    double *samples = calloc((size_t)wanted, 2 * sizeof *samples), *arrived = calloc((size_t)wanted, sizeof *arrived);
    Consumer mine = {.db = connected(), .acks = connected()};
    pthread_t inserter;
    begin();
    pthread_create(&inserter, NULL, insert, samples);
    if (strcmp(form, "locked") == 0)
        receive_in_transactions(&mine, arrived);
    else
        receive(&mine, arrived);
    pthread_join(inserter, NULL);
    for (long i = 0; i < wanted; i++)
        printf("%f %f\n", 1e6 * (arrived[i] - samples[2 * i]), 1e6 * (samples[2 * i + 1] - samples[2 * i]));
    fflush(stdout);
    _exit(0);
}

static void bystander(const char *statement) {
    double *samples = calloc(SAMPLES_MAX, sizeof *samples);
    struct pollfd input = {.fd = 0, .events = POLLIN};
    MYSQL *db = connected();
    long number = 0;
    begin();
    while (number < SAMPLES_MAX && !poll(&input, 1, 0)) {
        double begin_s = now_s();
        run(db, statement);
        MYSQL_RES *result = mysql_store_result(db);
        samples[number++] = now_s() - begin_s;
        mysql_free_result(result);
        usleep(PAUSE_US);
    }
    for (long i = 0; i < number; i++)
        printf("%f\n", 1e6 * samples[i]);
    fflush(stdout);
    _exit(0);
}

int main(int count, char **arguments) {
    if (count < 4)
        fail("PORT drain FORM CONNECTIONS BATCH MESSAGES, PORT latency FORM SAMPLES, or PORT bystander STATEMENT");
    port = atoi(arguments[1]);
    if (strcmp(arguments[2], "latency") == 0 && count == 5) {
        wanted = atol(arguments[4]);
        latency(arguments[3]);
    } else if (strcmp(arguments[2], "bystander") == 0) {
        bystander(arguments[3]);
    } else if (count == 7) {
        batch = atoi(arguments[5]);
        wanted = atol(arguments[6]);
        if (batch < 1 || batch > BATCH_MAX)
            fail("BATCH is out of range");
        drain(arguments[3], atoi(arguments[4]));
    }
    fail("no such order");
}
