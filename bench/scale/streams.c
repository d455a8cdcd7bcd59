/* The streams of bench/scale: thousands of endless STREAMs over many queues, their ACKs, and INSERTs.
 *
 *   streams QUEUES STREAMS PORT...
 *
 * Stream i reads the table q<i modulo QUEUES> of the database bench. Consecutive streams of one queue
 * use different ports. All messages are acknowledged: a few connections for each port collect the ids
 * of a queue into one ACK. When all streams are open, it writes the seconds that this took. Each line
 * of its input is an order, answered by a line:
 *   drained MESSAGES SECONDS   Waits until so many messages are finished since the start, or the time
 *                              is over. Answer: messages finished, and seconds since the start.
 *   latency SAMPLES            Inserts one message after another, each into another queue. Answer: the
 *                              median and the 99th percentile from before an INSERT to its row, and the
 *                              median of an INSERT alone, in µs.
 * It ends with its input. */
#include <mysql.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ACKERS = 4, ACK_MAX = 500, LOGINS = 32, PAUSE_US = 1000, PORTS_MAX = 16, STACK_BYTES = 256 << 10 };

typedef struct {
    int queue;
    long id;
} Message;

typedef struct {
    MYSQL *db;
    pthread_mutex_t lock; /* Guards what follows. */
    pthread_cond_t came;
    Message *messages;
    size_t count, room;
} Acker;

static int queues, streams, ports[PORTS_MAX], port_count;
static Acker ackers[PORTS_MAX][ACKERS];
static sem_t logins;
static long opened, finished, sampled; /* Changed atomically. */
static double *samples_s, start_s;

static void fail(const char *text) {
    fprintf(stderr, "streams: %s\n", text);
    exit(1);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static MYSQL *connected(int port) {
    MYSQL *db = mysql_init(NULL);
    sem_wait(&logins);
    if (!mysql_real_connect(db, "127.0.0.1", "root", "", "bench", (unsigned)port, NULL, 0))
        fail(mysql_error(db));
    sem_post(&logins);
    return db;
}

static void run(MYSQL *db, const char *statement) {
    if (mysql_query(db, statement))
        fail(mysql_error(db));
}

static void begin(void *(*work)(void *), void *argument) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    if (pthread_create(&thread, &attributes, work, argument))
        fail("no thread");
    pthread_detach(thread);
}

/* Hands a message over to be acknowledged. */
static void hand_over(Acker *acker, Message message) {
    pthread_mutex_lock(&acker->lock);
    if (acker->count == acker->room) {
        acker->room = acker->room ? 2 * acker->room : 1024;
        acker->messages = realloc(acker->messages, acker->room * sizeof *acker->messages);
        if (!acker->messages)
            fail("no memory");
    }
    acker->messages[acker->count++] = message;
    pthread_cond_signal(&acker->came);
    pthread_mutex_unlock(&acker->lock);
}

static int by_queue(const void *left, const void *right) {
    return ((const Message *)left)->queue - ((const Message *)right)->queue;
}

/* Acknowledges the first messages, which are all of one queue; returns how many. */
static size_t acknowledge(MYSQL *db, const Message *messages, size_t count) {
    char statement[64 + ACK_MAX * 21];
    char *end = statement + sprintf(statement, "ACK q%d WHERE id IN (", messages[0].queue);
    size_t taken = 0;
    for (; taken < count && taken < ACK_MAX && messages[taken].queue == messages[0].queue; taken++)
        end += sprintf(end, taken ? ",%ld" : "%ld", messages[taken].id);
    strcpy(end, ")");
    run(db, statement);
    __atomic_add_fetch(&finished, (long)mysql_affected_rows(db), __ATOMIC_SEQ_CST);
    return taken;
}

static void *acknowledges(void *argument) {
    Acker *mine = argument;
    for (;;) {
        pthread_mutex_lock(&mine->lock);
        while (!mine->count)
            pthread_cond_wait(&mine->came, &mine->lock);
        Message *messages = mine->messages;
        size_t count = mine->count;
        mine->messages = NULL;
        mine->count = mine->room = 0;
        pthread_mutex_unlock(&mine->lock);
        qsort(messages, count, sizeof *messages, by_queue);
        for (size_t at = 0; at < count;)
            at += acknowledge(mine->db, messages + at, count - at);
        free(messages);
    }
    return NULL;
}

static void *reads(void *argument) {
    long number = (long)argument;
    int queue = (int)(number % queues), way = (int)((number % queues + number / queues) % port_count);
    char statement[64];
    MYSQL_ROW row;
    MYSQL *db = connected(ports[way]);
    sprintf(statement, "STREAM id, payload FROM q%d", queue);
    run(db, statement);
    MYSQL_RES *result = mysql_use_result(db);
    __atomic_add_fetch(&opened, 1, __ATOMIC_SEQ_CST);
    while ((row = mysql_fetch_row(result))) {
        if (row[1][0] == 't') { /* A sample: its number, and when its INSERT began. */
            long sample = strtol(row[1] + 1, &row[1], 10);
            samples_s[sample] = now_s() - strtod(row[1], NULL);
            __atomic_add_fetch(&sampled, 1, __ATOMIC_SEQ_CST);
        }
        hand_over(&ackers[way][queue % ACKERS], (Message){queue, atol(row[0])});
    }
    fail(mysql_error(db));
    return NULL;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void latency(long count) {
    static MYSQL *db;
    char statement[128];
    double *inserts_s = calloc((size_t)count, sizeof *inserts_s);
    samples_s = calloc((size_t)count, sizeof *samples_s);
    if (!db)
        db = connected(ports[0]);
    sampled = 0;
    for (long i = 0; i < count; i++) {
        double begin_s = now_s();
        sprintf(statement, "INSERT INTO q%ld (payload) VALUES ('t%ld %.9f')", i % queues, i, begin_s);
        run(db, statement);
        inserts_s[i] = now_s() - begin_s;
        while (__atomic_load_n(&sampled, __ATOMIC_SEQ_CST) <= i)
            usleep(50);
        usleep(PAUSE_US);
    }
    qsort(samples_s, (size_t)count, sizeof *samples_s, ascending);
    qsort(inserts_s, (size_t)count, sizeof *inserts_s, ascending);
    printf("%f %f %f\n", 1e6 * samples_s[count / 2], 1e6 * samples_s[count - 1 - count / 100],
           1e6 * inserts_s[count / 2]);
    free(inserts_s);
}

static void drained(long wanted, double seconds) {
    double until_s = now_s() + seconds;
    while (__atomic_load_n(&finished, __ATOMIC_SEQ_CST) < wanted && now_s() < until_s)
        usleep(PAUSE_US);
    printf("%ld %f\n", __atomic_load_n(&finished, __ATOMIC_SEQ_CST), now_s() - start_s);
}

static void open_all(void) {
    sem_init(&logins, 0, LOGINS);
    for (int way = 0; way < port_count; way++)
        for (int i = 0; i < ACKERS; i++) {
            Acker *acker = &ackers[way][i];
            acker->db = connected(ports[way]);
            pthread_mutex_init(&acker->lock, NULL);
            pthread_cond_init(&acker->came, NULL);
            begin(acknowledges, acker);
        }
    start_s = now_s();
    for (long i = 0; i < streams; i++)
        begin(reads, (void *)i);
    while (__atomic_load_n(&opened, __ATOMIC_SEQ_CST) < streams)
        usleep(PAUSE_US);
    printf("%f\n", now_s() - start_s);
    fflush(stdout);
}

int main(int count, char **arguments) {
    char order[64];
    long number;
    double seconds;
    if (count < 4 || count - 3 > PORTS_MAX)
        fail("QUEUES STREAMS PORT...");
    queues = atoi(arguments[1]);
    streams = atoi(arguments[2]);
    for (int i = 3; i < count; i++)
        ports[port_count++] = atoi(arguments[i]);
    if (mysql_library_init(0, NULL, NULL))
        fail("no library");
    open_all();
    while (fgets(order, sizeof order, stdin)) {
        if (sscanf(order, "drained %ld %lf", &number, &seconds) == 2)
            drained(number, seconds);
        else if (sscanf(order, "latency %ld", &number) == 1 && number > 0)
            latency(number);
        else
            fail("no such order");
        fflush(stdout);
    }
    _exit(0); /* Streams do not end by themselves. */
}
