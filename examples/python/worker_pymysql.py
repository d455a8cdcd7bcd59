"""A worker to copy: python worker_pymysql.py HOST PORT USER PASSWORD DATABASE.

It takes messages of the queue `jobs` (examples/jobs.sql) one by one. The effect of a message and its
acknowledgement are one transaction, which is committed only if the ACK affected the message.
SIGTERM and SIGINT end it within GRACE_S.
"""

import contextlib
import random
import signal
import sys
import threading
import time

import pymysql

POLL_S = 20  # How long a STREAM waits for a message.
ACK_WAIT_S = 30  # ACK_WAIT of the queue, whole seconds. A message that takes longer is kept by EXTEND.
GRACE_S = 5.0  # For the message under way when a signal comes. After it the message goes to another worker.
RECONNECT_S = 1.0
DELAY_MAX_S = 3600  # The longest delay after an error.


def handle(cursor, task):
    """The work. What it does on `cursor` is committed together with the ACK."""
    cursor.execute("INSERT INTO done (task) VALUES (%s)", (task,))


class Stopped(BaseException):
    """Raised by a signal. It is no Exception, so that the handler of errors in the work does not catch it."""


class Worker:
    """One connection, one message at a time."""

    def __init__(self, connect, work=handle, ack_wait_s=ACK_WAIT_S, grace_s=GRACE_S):
        self.connect, self.handle, self.ack_wait_s, self.grace_s = connect, work, ack_wait_s, grace_s
        self.busy = self.stopping = False

    def run(self):
        """Work until a signal comes. Each lost connection is replaced."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)
        signal.signal(signal.SIGALRM, self.out_of_time)
        with contextlib.suppress(Stopped):
            while not self.stopping:
                try:
                    with self.connect() as connection:
                        while not self.stopping:
                            self.work(connection)
                except pymysql.MySQLError as error:  # The server or the proxy is being restarted.
                    print(f"connecting again in {RECONNECT_S} s: {error!r}", file=sys.stderr)
                    time.sleep(RECONNECT_S)

    def stop(self, *_):
        """A signal. While the worker waits, the exception interrupts the STREAM; else the message has its grace."""
        self.stopping = True
        if not self.busy:
            raise Stopped
        signal.setitimer(signal.ITIMER_REAL, self.grace_s)

    def out_of_time(self, *_):
        """The grace is over. The connection is closed: the effect is rolled back, and the message is free at once."""
        raise Stopped

    def work(self, connection):
        """Wait for one message and handle it."""
        with connection.cursor() as cursor:
            cursor.execute("STREAM id, epoch, task FROM jobs LIMIT 1 WAIT %s", (POLL_S,))
            for message, epoch, task in cursor.fetchall():
                self.busy, finished = True, threading.Event()
                threading.Thread(target=self.keep, args=(message, epoch, finished), daemon=True).start()
                try:
                    self.handle(cursor, task)
                    if cursor.execute("ACK jobs WHERE id = %s AND epoch = %s", (message, epoch)):
                        connection.commit()
                    else:  # It took longer than its wait, and was delivered to another worker.
                        connection.rollback()
                except Exception as error:
                    print(f"{task}, delivery {epoch}: {error!r}", file=sys.stderr)
                    connection.rollback()
                    back = "NACK jobs WHERE id = %s AND epoch = %s DELAY %s REASON %s"
                    delay_s = min(2**epoch, DELAY_MAX_S) * random.uniform(1, 1.25)
                    cursor.execute(back, (message, epoch, delay_s, repr(error)))
                    connection.commit()
                finally:
                    finished.set()
                    self.busy = False

    def keep(self, message, epoch, finished):
        """Extend the wait of a message until it is finished, on a second connection."""
        if finished.wait(self.ack_wait_s / 3):
            return  # The usual case: no second connection is made.
        try:
            with self.connect() as connection, connection.cursor() as cursor:
                connection.autocommit(True)
                extend = "EXTEND jobs WHERE id = %s AND epoch = %s BY %s"
                while cursor.execute(extend, (message, epoch, self.ack_wait_s)):
                    if finished.wait(self.ack_wait_s / 3):
                        return
        except pymysql.MySQLError as error:  # The ACK shows what has become of the message.
            print(f"message {message} is not kept: {error!r}", file=sys.stderr)


if __name__ == "__main__":
    host, port, user, password, database = sys.argv[1:]
    Worker(lambda: pymysql.connect(host=host, port=int(port), user=user, password=password, database=database)).run()
