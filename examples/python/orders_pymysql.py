"""Enqueue, stream and acknowledge with PyMySQL: python orders_pymysql.py HOST PORT USER PASSWORD DATABASE."""

import sys

import pymysql
from pymysql.cursors import SSCursor

host, port, user, password, database = sys.argv[1:]


def connect():
    # read_timeout is off by default, and must stay off: an idle stream is silent.
    return pymysql.connect(host=host, port=int(port), user=user, password=password, database=database)


def enqueue(connection, *items):
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO orders (item) VALUES (%s)", [(item,) for item in items])


def acknowledge(connection, order, how):
    with connection.cursor() as cursor:
        count = cursor.execute("ACK FROM orders WHERE id = %s", (order,))
    print(f"acknowledged {order}, {how}: {count}", flush=True)


# A stream keeps its connection busy, so everything else uses another one.
streaming, working = connect(), connect()

# Enqueueing is an INSERT in a transaction of your own, which PyMySQL begins by itself.
enqueue(working, "tea", "bread")
working.commit()
print("enqueued tea, bread", flush=True)

enqueue(working, "milk")
working.rollback()
print("rolled back milk", flush=True)

# SSCursor returns each row as it comes; the plain Cursor waits for the end of the result. Closing
# it reads the rest of the result, so LIMIT gives the result an end.
cursor = SSCursor(streaming)
cursor.execute("STREAM id, item FROM orders LIMIT 3")
first = None
for order, item in cursor:
    print(f"received {order} {item}", flush=True)
    acknowledge(working, order, "text")
    working.commit()
    if item == "bread":
        enqueue(working, "jam")  # reaches the open stream as soon as it is committed
        working.commit()
        print("enqueued jam", flush=True)
    first = first or order
cursor.close()
streaming.close()

acknowledge(working, first, "again")
working.commit()

try:
    working.cursor().execute("STREAM * FROM customers")
except pymysql.MySQLError as error:
    number, text = error.args
    print(f"refused {number}: {text}", flush=True)

# A long poll is an ordinary result, so an ordinary cursor is enough. Work and acknowledgement are
# one transaction. Commit work only if its ACK, with AND epoch = n, affected the message:
# docs/recipes.md shows why.
enqueue(working, "salt")
working.commit()
print("enqueued salt", flush=True)
with working.cursor() as cursor:
    cursor.execute("STREAM id, item FROM orders LIMIT %s WAIT %s", (1, 20))
    for order, item in cursor.fetchall():
        print(f"received {order} {item}", flush=True)
        acknowledge(working, order, "in the transaction")
    working.commit()

    if cursor.execute("STREAM id, item FROM orders LIMIT %s WAIT %s", (1, 0.5)) == 0:
        print("nothing came", flush=True)
working.close()
