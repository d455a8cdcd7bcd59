/* Enqueue, stream and acknowledge with libmariadb (MySQL's own library has the same functions):
 * cc orders.c -o orders $(pkg-config --cflags --libs libmariadb) && ./orders HOST PORT USER PASSWORD DATABASE */
#include <mysql.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **arguments;

static void fail(const char *text) {
    fprintf(stderr, "%s\n", text);
    exit(1);
}

/* MYSQL_OPT_READ_TIMEOUT is off by default, and must stay off: an idle stream is silent. */
static MYSQL *connect_to_it(void) {
    MYSQL *db = mysql_init(NULL);
    if (!mysql_real_connect(db, arguments[1], arguments[3], arguments[4], arguments[5], atoi(arguments[2]), NULL, 0))
        fail(mysql_error(db));
    return db;
}

static void run(MYSQL *db, const char *statement) {
    if (mysql_query(db, statement))
        fail(mysql_error(db));
}

static void acknowledge_as_text(MYSQL *db, const char *order, const char *how) {
    char statement[100];
    snprintf(statement, sizeof statement, "ACK FROM orders WHERE id = %s", order);
    run(db, statement);
    printf("acknowledged %s, %s: %llu\n", order, how, (unsigned long long)mysql_affected_rows(db));
}

static MYSQL_STMT *prepare(MYSQL *db, const char *statement) {
    MYSQL_STMT *prepared = mysql_stmt_init(db);
    if (mysql_stmt_prepare(prepared, statement, strlen(statement)))
        fail(mysql_stmt_error(prepared));
    return prepared;
}

static void execute(MYSQL_STMT *prepared, MYSQL_BIND *values) {
    if (mysql_stmt_bind_param(prepared, values) || mysql_stmt_execute(prepared))
        fail(mysql_stmt_error(prepared));
}

static void acknowledge_prepared(MYSQL *db, long long order, const char *how) {
    MYSQL_STMT *ack = prepare(db, "ACK FROM orders WHERE id = ?");
    MYSQL_BIND value = {.buffer_type = MYSQL_TYPE_LONGLONG, .buffer = &order};
    execute(ack, &value);
    printf("acknowledged %lld, %s: %llu\n", order, how, (unsigned long long)mysql_stmt_affected_rows(ack));
    mysql_stmt_close(ack);
}

/* mysql_use_result returns each row as it comes; mysql_store_result waits for the end of the
 * result. Freeing it reads the rest of the result, so LIMIT gives the result an end.
 * Returns the id of the first message. */
static long long stream(MYSQL *streaming, MYSQL *working) {
    long long first = 0;
    MYSQL_ROW row;
    run(streaming, "STREAM id, item FROM orders LIMIT 3");
    MYSQL_RES *orders = mysql_use_result(streaming);
    while ((row = mysql_fetch_row(orders))) {
        printf("received %s %s\n", row[0], row[1]);
        if (strcmp(row[1], "bread") == 0) {
            acknowledge_prepared(working, atoll(row[0]), "prepared");
            run(working, "INSERT INTO orders (item) VALUES ('jam')"); /* reaches the open stream at once */
            printf("enqueued jam\n");
        } else {
            acknowledge_as_text(working, row[0], "text");
        }
        first = first ? first : atoll(row[0]);
    }
    if (mysql_errno(streaming))
        fail(mysql_error(streaming));
    mysql_free_result(orders);
    return first;
}

/* A long poll is an ordinary result. Returns the number of messages. */
static int poll_once(MYSQL *db, MYSQL_STMT *poll, double seconds) {
    int limit = 1, count = 0;
    long long order;
    char item[101];
    unsigned long length;
    MYSQL_BIND values[] = {{.buffer_type = MYSQL_TYPE_LONG, .buffer = &limit},
                           {.buffer_type = MYSQL_TYPE_DOUBLE, .buffer = &seconds}};
    MYSQL_BIND columns[] = {
        {.buffer_type = MYSQL_TYPE_LONGLONG, .buffer = &order},
        {.buffer_type = MYSQL_TYPE_STRING, .buffer = item, .buffer_length = sizeof item, .length = &length}};
    execute(poll, values);
    if (mysql_stmt_bind_result(poll, columns) || mysql_stmt_store_result(poll))
        fail(mysql_stmt_error(poll));
    while (mysql_stmt_fetch(poll) == 0) {
        printf("received %lld %.*s\n", order, (int)length, item);
        acknowledge_prepared(db, order, "in the transaction");
        count++;
    }
    mysql_stmt_free_result(poll);
    return count;
}

int main(int count, char **values) {
    if (count != 6)
        fail("orders HOST PORT USER PASSWORD DATABASE");
    arguments = values;
    setvbuf(stdout, NULL, _IOLBF, 0);

    /* A stream keeps its connection busy, so everything else uses another one. */
    MYSQL *streaming = connect_to_it(), *working = connect_to_it();

    /* Enqueueing is an INSERT in a transaction of your own. */
    run(working, "BEGIN");
    run(working, "INSERT INTO orders (item) VALUES ('tea'), ('bread')");
    run(working, "COMMIT");
    printf("enqueued tea, bread\n");

    run(working, "BEGIN");
    run(working, "INSERT INTO orders (item) VALUES ('milk')");
    run(working, "ROLLBACK");
    printf("rolled back milk\n");

    long long first = stream(streaming, working);
    mysql_close(streaming);
    acknowledge_prepared(working, first, "again");

    if (mysql_query(working, "STREAM * FROM customers"))
        printf("refused %u: %s\n", mysql_errno(working), mysql_error(working));

    run(working, "INSERT INTO orders (item) VALUES ('salt')");
    printf("enqueued salt\n");
    /* The work and its acknowledgement are one transaction.
     * Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows
     * why. */
    MYSQL_STMT *poll = prepare(working, "STREAM id, item FROM orders LIMIT ? WAIT ?");
    run(working, "BEGIN");
    poll_once(working, poll, 20);
    run(working, "COMMIT");
    if (poll_once(working, poll, 0.5) == 0)
        printf("nothing came\n");
    mysql_stmt_close(poll);
    mysql_close(working);
    return 0;
}
