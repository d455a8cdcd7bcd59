"""Enqueue, stream and acknowledge with mysql-connector-python.

python orders_connector.py HOST PORT USER PASSWORD DATABASE
"""

import sys

import mysql.connector

host, port, user, password, database = sys.argv[1:]


def enqueue(connection, *items):
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO orders (item) VALUES (%s)", [(item,) for item in items])


def acknowledge(connection, order, how, **kind_of_cursor):
    with connection.cursor(**kind_of_cursor) as cursor:
        cursor.execute("ACK FROM orders WHERE id = %s", (order,))
        print(f"acknowledged {order}, {how}: {cursor.rowcount}", flush=True)


# There is no read timeout unless you set one; it must be longer than any WAIT.
working = mysql.connector.connect(host=host, port=int(port), user=user, password=password, database=database)

# Enqueueing is an INSERT in a transaction of your own, which the driver begins by itself.
enqueue(working, "tea", "bread")
working.commit()
print("enqueued tea, bread", flush=True)

enqueue(working, "milk")
working.rollback()
print("rolled back milk", flush=True)

# No endless stream here: the driver's cursors read one row ahead, so a message would be returned
# only when the next one has come. A loop of long polls serves as well. Its rows are read at once,
# so the connection is not busy.
first = None
received = 0
while received < 3:
    with working.cursor() as cursor:
        cursor.execute("STREAM id, item FROM orders LIMIT 100 WAIT 20")
        orders = cursor.fetchall()
    for order, item in orders:
        print(f"received {order} {item}", flush=True)
        if item == "bread":
            acknowledge(working, order, "prepared", prepared=True)
        else:
            acknowledge(working, order, "text")
        working.commit()
        if item == "bread":
            enqueue(working, "jam")
            working.commit()
            print("enqueued jam", flush=True)
        first = first or order
        received += 1

acknowledge(working, first, "again")
working.commit()

try:
    working.cursor().execute("STREAM * FROM customers")
except mysql.connector.Error as error:
    print(f"refused {error.errno}: {error.msg}", flush=True)

# The work and its acknowledgement are one transaction.
# Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
enqueue(working, "salt")
working.commit()
print("enqueued salt", flush=True)
with working.cursor(prepared=True) as poll:
    poll.execute("STREAM id, item FROM orders LIMIT ? WAIT ?", (1, 20))
    for order, item in poll.fetchall():
        print(f"received {order} {item}", flush=True)
        acknowledge(working, order, "in the transaction", prepared=True)
    working.commit()

    poll.execute("STREAM id, item FROM orders LIMIT ? WAIT ?", (1, 0.5))
    if not poll.fetchall():
        print("nothing came", flush=True)
working.close()
