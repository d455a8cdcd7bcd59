/* The consumers of bench/compare for beanstalkd, Redis Streams, NATS JetStream and RabbitMQ.
 *
 *   brokers PROTOCOL PORT CONSUMERS BATCH MESSAGES
 *
 * PROTOCOL is beanstalkd, redis, nats or amqp. The consumers connect; it writes a line, and begins when
 * it reads one. They share the messages, and each takes and finishes BATCH at a time, as the server's
 * documentation has a worker do it; protocols.py makes and fills the queue. The answer: seconds until the last
 * has finished its share, and the CPU seconds of all.
 *
 * Each does no more for a message than the protocol needs. It is in C, because the consumers share the
 * cores with the server, and in Python they would take more of them than the server does. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER = 1 << 18, BATCH_MAX = 1000, ID_CHARS = 128, FRAME_MAX = 131072, PREFETCH_MIN = 100 };
enum { PAUSE_US = 1000, SETTLE_US = 200000 };

typedef struct {
    int number, fd;
    long share;
    pthread_t thread;
    char *buffer, *out; /* What was received and not used yet, from begin to end; what is to be sent. */
    size_t begin, end, out_size;
} Consumer;

static int port, batch;

static void fail(const char *text, const char *what) {
    fprintf(stderr, "brokers: %s: %s\n", text, what);
    exit(1);
}

static double seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static long least(long a, long b) { return a < b ? a : b; }

/* Receiving and sending. */

static void receive(Consumer *mine) {
    if (mine->end == BUFFER) {
        memmove(mine->buffer, mine->buffer + mine->begin, mine->end -= mine->begin);
        mine->begin = 0;
    }
    ssize_t count = recv(mine->fd, mine->buffer + mine->end, BUFFER - mine->end, 0);
    if (count <= 0)
        fail("receiving", "the server has closed the connection");
    mine->end += (size_t)count;
}

/* So many bytes. They are valid until the next call. */
static char *exactly(Consumer *mine, size_t size) {
    if (size > BUFFER)
        fail("receiving", "too much at once");
    while (mine->end - mine->begin < size)
        receive(mine);
    char *found = mine->buffer + mine->begin;
    mine->begin += size;
    return found;
}

/* The next line without its end, likewise. */
static char *line(Consumer *mine) {
    size_t seen = 0;
    char *end;
    while (!(end = memchr(mine->buffer + mine->begin + seen, '\n', mine->end - mine->begin - seen))) {
        seen = mine->end - mine->begin;
        receive(mine);
    }
    char *found = mine->buffer + mine->begin;
    mine->begin = (size_t)(end + 1 - mine->buffer);
    end[-1] = 0; /* "\r\n" */
    return found;
}

/* The same, which must begin with a word. */
static char *answer(Consumer *mine, const char *word) {
    char *found = line(mine);
    if (strncmp(found, word, strlen(word)) != 0)
        fail(word, found);
    return found;
}

static void put(Consumer *mine, const void *data, size_t size) {
    if (mine->out_size + size > BUFFER)
        fail("sending", "too much at once");
    memcpy(mine->out + mine->out_size, data, size);
    mine->out_size += size;
}

static void put_text(Consumer *mine, const char *text) { put(mine, text, strlen(text)); }

static void flush(Consumer *mine) {
    for (size_t at = 0; at < mine->out_size;) {
        ssize_t count = send(mine->fd, mine->out + at, mine->out_size - at, 0);
        if (count <= 0)
            fail("sending", "the server has closed the connection");
        at += (size_t)count;
    }
    mine->out_size = 0;
}

/* beanstalkd: reserve, then delete; one message at a time. */

static void open_plain(Consumer *mine) { (void)mine; }

static void consume_beanstalkd(Consumer *mine) {
    char text[64];
    unsigned long id, size;
    for (long i = 0; i < mine->share; i++) {
        put_text(mine, "reserve\r\n");
        flush(mine);
        if (sscanf(answer(mine, "RESERVED"), "RESERVED %lu %lu", &id, &size) != 2)
            fail("reserve", "no message");
        exactly(mine, size + 2);
        sprintf(text, "delete %lu\r\n", id);
        put_text(mine, text);
        flush(mine);
        answer(mine, "DELETED");
    }
}

/* Redis: XREADGROUP with COUNT, then one XACK. */

static char *bulk(Consumer *mine, size_t *size) {
    *size = (size_t)atol(answer(mine, "$") + 1);
    return exactly(mine, *size + 2);
}

static void put_word(Consumer *mine, const char *word, size_t size) {
    char head[32];
    sprintf(head, "$%zu\r\n", size);
    put_text(mine, head);
    put(mine, word, size);
    put_text(mine, "\r\n");
}

/* Reads the entries of one stream, and puts their ids behind each other; returns how many. */
static long read_entries(Consumer *mine, char ids[][ID_CHARS]) {
    size_t size;
    char *head = answer(mine, "*");
    if (head[1] == '-')
        return 0;
    answer(mine, "*2");
    bulk(mine, &size);
    long count = atol(answer(mine, "*") + 1);
    for (long i = 0; i < count; i++) {
        answer(mine, "*2");
        char *id = bulk(mine, &size);
        if (i >= BATCH_MAX || size >= ID_CHARS)
            fail("an entry", "too many of them, or an id too long");
        memcpy(ids[i], id, size);
        ids[i][size] = 0;
        for (long fields = atol(answer(mine, "*") + 1); fields; fields--)
            bulk(mine, &size);
    }
    return count;
}

static void consume_redis(Consumer *mine) {
    static _Thread_local char ids[BATCH_MAX][ID_CHARS];
    char name[32], number[32], head[64];
    sprintf(name, "consumer%d", mine->number);
    while (mine->share > 0) {
        sprintf(number, "%ld", least(batch, mine->share));
        put_text(mine, "*11\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$7\r\nworkers\r\n");
        put_word(mine, name, strlen(name));
        put_text(mine, "$5\r\nCOUNT\r\n");
        put_word(mine, number, strlen(number));
        put_text(mine, "$5\r\nBLOCK\r\n$4\r\n1000\r\n$7\r\nSTREAMS\r\n$5\r\nqueue\r\n$1\r\n>\r\n");
        flush(mine);
        long count = read_entries(mine, ids);
        if (!count)
            continue;
        sprintf(head, "*%ld\r\n$4\r\nXACK\r\n$5\r\nqueue\r\n$7\r\nworkers\r\n", 3 + count);
        put_text(mine, head);
        for (long i = 0; i < count; i++)
            put_word(mine, ids[i], strlen(ids[i]));
        flush(mine);
        answer(mine, ":");
        mine->share -= count;
    }
}

/* NATS: a request for a batch to a durable pull consumer, and an acknowledgement of each message. */

static void open_nats(Consumer *mine) {
    char text[64];
    answer(mine, "INFO");
    put_text(mine, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,\"lang\":\"c\","
                   "\"version\":\"1\"}\r\n");
    sprintf(text, "SUB inbox.consumer%d 1\r\n", mine->number);
    put_text(mine, text);
    flush(mine);
}

static void request(Consumer *mine, const char *subject, const char *body) {
    char head[256];
    sprintf(head, "PUB %s inbox.consumer%d %zu\r\n", subject, mine->number, strlen(body));
    put_text(mine, head);
    put_text(mine, body);
    put_text(mine, "\r\n");
    flush(mine);
}

/* Reads the next message: its subject to acknowledge it ("" without one), and its body. */
static char *message(Consumer *mine, char *reply, size_t *size) {
    for (;;) {
        char *words[6], *found = line(mine), *rest = found;
        int count = 0;
        for (char *word; count < 6 && (word = strsep(&rest, " "));)
            words[count++] = word;
        int headed = strcmp(words[0], "HMSG") == 0;
        if (strcmp(words[0], "PING") == 0) {
            put_text(mine, "PONG\r\n");
            flush(mine);
        } else if (headed || strcmp(words[0], "MSG") == 0) {
            snprintf(reply, ID_CHARS, "%s", count == 5 + headed ? words[3] : "");
            *size = (size_t)atol(words[count - 1]);
            return exactly(mine, *size + 2);
        } else {
            fail("a message", found);
        }
    }
}

/* Waits until the server has no message of this queue in flight: acknowledgements have no answer. */
static void await_acknowledged(Consumer *mine) {
    char reply[ID_CHARS], *body, *pending;
    size_t size;
    for (;;) {
        request(mine, "$JS.API.CONSUMER.INFO.queue.workers", "{}");
        body = message(mine, reply, &size);
        body[size] = 0;
        if (!(pending = strstr(body, "\"num_ack_pending\":")))
            fail("the consumer", body);
        if (!atol(pending + strlen("\"num_ack_pending\":")))
            return;
        usleep(PAUSE_US);
    }
}

static void consume_nats(Consumer *mine) {
    char body[64], reply[ID_CHARS], text[ID_CHARS + 32];
    size_t size;
    while (mine->share > 0) {
        long count = least(batch, mine->share), taken = 0;
        sprintf(body, "{\"batch\":%ld,\"expires\":1000000000}", count);
        request(mine, "$JS.API.CONSUMER.MSG.NEXT.queue.workers", body);
        for (; taken < count; taken++) {
            message(mine, reply, &size);
            if (strncmp(reply, "$JS.ACK.", 8) != 0)
                break; /* The request has expired. */
            sprintf(text, "PUB %s 4\r\n+ACK\r\n", reply);
            put_text(mine, text);
        }
        flush(mine);
        mine->share -= taken;
    }
    await_acknowledged(mine);
}

/* RabbitMQ: a prefetch limit, and one acknowledgement for a batch. */

enum { METHOD = 1, END = 0xCE };

static uint32_t number_at(const char *data) {
    uint32_t found;
    memcpy(&found, data, 4);
    return ntohl(found);
}

static void method(Consumer *mine, int channel, int class, int name, const void *arguments, size_t size) {
    uint32_t length = htonl((uint32_t)size + 4);
    unsigned char head[11] = {METHOD, 0, (unsigned char)channel, 0, 0, 0, 0, 0, (unsigned char)class, 0, (unsigned char)name};
    unsigned char end = END;
    memcpy(head + 3, &length, 4);
    put(mine, head, sizeof head);
    put(mine, arguments, size);
    put(mine, &end, 1);
}

/* Reads a frame; returns its payload, and whether it is this method in is_it. */
static char *frame(Consumer *mine, int class, int name, int *is_it) {
    char *head = exactly(mine, 7);
    int kind = head[0];
    char *payload = exactly(mine, number_at(head + 3) + 1);
    *is_it = kind == METHOD && number_at(payload) == ((uint32_t)class << 16 | (uint32_t)name);
    return payload;
}

static char *expect(Consumer *mine, int class, int name) {
    int is_it;
    char *payload = frame(mine, class, name, &is_it);
    if (!is_it)
        fail("RabbitMQ", "an unexpected method");
    return payload + 4;
}

/* Reads frames up to this method. */
static void skip_to(Consumer *mine, int class, int name) {
    int is_it;
    do
        frame(mine, class, name, &is_it);
    while (!is_it);
}

#define ARGUMENTS(text) (text), sizeof(text) - 1

static void open_amqp(Consumer *mine) {
    long most = 3 * batch > PREFETCH_MIN ? 3 * batch : PREFETCH_MIN;
    char tune[8] = {0, 10, FRAME_MAX >> 24, FRAME_MAX >> 16 & 0xFF, FRAME_MAX >> 8 & 0xFF, FRAME_MAX & 0xFF, 0, 0};
    char limit[7] = {0, 0, 0, 0, (char)(most >> 8), (char)most, 0};
    put(mine, "AMQP\0\0\x09\x01", 8);
    flush(mine);
    expect(mine, 10, 10);
    method(mine, 0, 10, 11, ARGUMENTS("\0\0\0\0\x05PLAIN\0\0\0\x0c\0guest\0guest\x05" "en_US"));
    flush(mine);
    expect(mine, 10, 30);
    method(mine, 0, 10, 31, tune, sizeof tune);
    method(mine, 0, 10, 40, ARGUMENTS("\x01/\0\0"));
    flush(mine);
    expect(mine, 10, 41);
    method(mine, 1, 20, 10, ARGUMENTS("\0"));
    flush(mine);
    expect(mine, 20, 11);
    method(mine, 1, 60, 10, limit, sizeof limit);
    flush(mine);
    expect(mine, 60, 11);
}

static void consume_amqp(Consumer *mine) {
    int is_it;
    char acknowledgement[9];
    method(mine, 1, 60, 20, ARGUMENTS("\0\0\x05queue\x06worker\0\0\0\0\0"));
    flush(mine);
    expect(mine, 60, 21);
    while (mine->share > 0) {
        long count = least(batch, mine->share);
        for (long i = 0; i < count; i++) {
            char *arguments = expect(mine, 60, 60);
            memcpy(acknowledgement, arguments + 1 + (unsigned char)arguments[0], 8);
            frame(mine, 0, 0, &is_it);
            frame(mine, 0, 0, &is_it);
        }
        acknowledgement[8] = count > 1;
        method(mine, 1, 60, 80, acknowledgement, sizeof acknowledgement);
        flush(mine);
        mine->share -= count;
    }
    /* What was delivered beyond the share goes back to the others. The connection stays open: when it
     * closes, the server may deliver messages again whose acknowledgement it has not applied yet. */
    method(mine, 1, 60, 30, ARGUMENTS("\x06worker\0"));
    flush(mine);
    skip_to(mine, 60, 31);
    method(mine, 1, 60, 120, ARGUMENTS("\0\0\0\0\0\0\0\0\x03"));
    method(mine, 1, 50, 10, ARGUMENTS("\0\0\x05queue\x01\0\0\0\0"));
    flush(mine);
    skip_to(mine, 50, 11); /* An acknowledgement has no answer; this method has one. */
}

/* The consumers. */

static const struct Protocol {
    const char *name;
    void (*open)(Consumer *), (*consume)(Consumer *);
} PROTOCOLS[] = {
    {"beanstalkd", open_plain, consume_beanstalkd},
    {"redis", open_plain, consume_redis},
    {"nats", open_nats, consume_nats},
    {"amqp", open_amqp, consume_amqp},
};

static const struct Protocol *protocol;

static void connect_to_server(Consumer *mine) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int on = 1;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    mine->fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(mine->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(mine->fd, (struct sockaddr *)&address, sizeof address))
        fail("connecting", "the server does not listen");
    mine->buffer = malloc(BUFFER + 1);
    mine->out = malloc(BUFFER);
    protocol->open(mine);
}

static void *work(void *argument) {
    protocol->consume(argument);
    return NULL;
}

int main(int count, char **arguments) {
    char input[16];
    if (count != 6)
        fail("PROTOCOL PORT CONSUMERS BATCH MESSAGES", "expected");
    for (size_t i = 0; i < sizeof PROTOCOLS / sizeof *PROTOCOLS; i++)
        if (strcmp(arguments[1], PROTOCOLS[i].name) == 0)
            protocol = &PROTOCOLS[i];
    port = atoi(arguments[2]);
    batch = atoi(arguments[4]);
    int number = atoi(arguments[3]);
    long messages = atol(arguments[5]);
    if (!protocol || number < 1 || batch < 1 || batch > BATCH_MAX)
        fail("an argument", "out of range");
    Consumer *consumers = calloc((size_t)number, sizeof *consumers);
    for (int i = 0; i < number; i++) {
        consumers[i].number = i;
        consumers[i].share = messages / number + (i < messages % number);
        connect_to_server(&consumers[i]);
    }
    puts("ready");
    fflush(stdout);
    if (!fgets(input, sizeof input, stdin))
        fail("begin", "not begun");
    double begin_s = seconds(CLOCK_MONOTONIC), begin_cpu_s = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < number; i++)
        if (pthread_create(&consumers[i].thread, NULL, work, &consumers[i]))
            fail("a thread", "none");
    for (int i = 0; i < number; i++)
        pthread_join(consumers[i].thread, NULL);
    printf("%f %f\n", seconds(CLOCK_MONOTONIC) - begin_s, seconds(CLOCK_PROCESS_CPUTIME_ID) - begin_cpu_s);
    fflush(stdout);
    usleep(SETTLE_US); /* RabbitMQ applies the last acknowledgements. */
    return 0;
}
