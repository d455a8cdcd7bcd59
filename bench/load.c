/* The client of bench/wire.py: it keeps connections and carries out orders.
 *
 *   load HOST PORT USER CONNECTIONS
 *
 * When all are logged in, it writes a line. Each line of its input is an order, answered by a line:
 *   points N SECONDS   The first N connections, a thread each, read rows by primary key, one after
 *                      another. Answer: statements, seconds, and the median and 99th percentile of
 *                      one statement in µs.
 *   inserts N SECONDS  The same; each statement inserts a row and commits it.
 *   rows TABLE         One connection reads a table. Answer: rows, and seconds from the statement to
 *                      the last row.
 * It ends with its input. It is in C, because a client in Python would dominate the measurement. */
#include <mysql.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POINTS = 10000 };

typedef struct {
    MYSQL *db;
    pthread_t thread;
    unsigned seed;
    float *took_us;
    size_t count, room;
} Connection;

static double stop_at_s;
static int inserting;

static void fail(const char *text) {
    fprintf(stderr, "load: %s\n", text);
    exit(1);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Runs a statement, reads its rows and keeps none; returns how many it returned or changed. */
static size_t run(MYSQL *db, const char *statement) {
    if (mysql_query(db, statement))
        fail(mysql_error(db));
    MYSQL_RES *result = mysql_use_result(db);
    size_t rows = 0;
    if (!result)
        return mysql_affected_rows(db);
    while (mysql_fetch_row(result))
        rows++;
    if (mysql_errno(db))
        fail(mysql_error(db));
    mysql_free_result(result);
    return rows;
}

static void *work(void *argument) {
    Connection *mine = argument;
    double before_s = now_s();
    while (before_s < stop_at_s) {
        char statement[64];
        const char *form = inserting ? "INSERT INTO sink (n) VALUES (%d)" : "SELECT c FROM points WHERE id = %d";
        snprintf(statement, sizeof statement, form, rand_r(&mine->seed) % POINTS + 1);
        if (run(mine->db, statement) != 1)
            fail("a row is missing");
        double after_s = now_s();
        if (mine->count == mine->room) {
            mine->room = mine->room ? 2 * mine->room : 65536;
            mine->took_us = realloc(mine->took_us, mine->room * sizeof *mine->took_us);
            if (!mine->took_us)
                fail("no memory");
        }
        mine->took_us[mine->count++] = (float)(1e6 * (after_s - before_s));
        before_s = after_s;
    }
    return NULL;
}

static int ascending(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a > b) - (a < b);
}

static void all_work(Connection *connections, int number, double seconds) {
    double begin_s = now_s();
    size_t total = 0;
    stop_at_s = begin_s + seconds;
    for (int i = 0; i < number; i++) {
        connections[i].count = 0;
        if (pthread_create(&connections[i].thread, NULL, work, &connections[i]))
            fail("no thread");
    }
    for (int i = 0; i < number; i++) {
        pthread_join(connections[i].thread, NULL);
        total += connections[i].count;
    }
    double took_s = now_s() - begin_s;
    float *all = malloc(total * sizeof *all);
    if (!all)
        fail("no memory");
    for (int i = 0, at = 0; i < number; at += (int)connections[i++].count)
        memcpy(all + at, connections[i].took_us, connections[i].count * sizeof *all);
    qsort(all, total, sizeof *all, ascending);
    printf("%zu %f %f %f\n", total, took_s, all[total / 2], all[total - 1 - total / 100]);
    free(all);
}

static void rows(MYSQL *db, const char *table) {
    char statement[64];
    snprintf(statement, sizeof statement, "SELECT id, c FROM %s", table);
    double begin_s = now_s();
    size_t count = run(db, statement);
    printf("%zu %f\n", count, now_s() - begin_s);
}

int main(int count, char **arguments) {
    if (count < 5)
        fail("HOST PORT USER CONNECTIONS");
    int number = atoi(arguments[4]), wanted;
    double seconds;
    char order[64], name[17];
    Connection *connections = calloc((size_t)number, sizeof *connections);
    for (int i = 0; i < number; i++) {
        MYSQL *db = connections[i].db = mysql_init(NULL);
        connections[i].seed = (unsigned)i;
        if (!mysql_real_connect(db, arguments[1], arguments[3], "", "bench", (unsigned)atoi(arguments[2]), NULL, 0))
            fail(mysql_error(db));
    }
    puts("ready");
    fflush(stdout);
    while (fgets(order, sizeof order, stdin)) {
        inserting = strncmp(order, "inserts", 7) == 0;
        if (sscanf(order, "%*s %d %lf", &wanted, &seconds) == 2 && wanted > 0 && wanted <= number)
            all_work(connections, wanted, seconds);
        else if (sscanf(order, "rows %16s", name) == 1)
            rows(connections[0].db, name);
        else
            fail("no such order");
        fflush(stdout);
    }
    for (int i = 0; i < number; i++)
        mysql_close(connections[i].db);
    return 0;
}
