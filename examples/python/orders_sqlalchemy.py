"""Enqueue, stream and acknowledge with SQLAlchemy: python orders_sqlalchemy.py HOST PORT USER PASSWORD DATABASE."""

import sys

from sqlalchemy import URL, create_engine, text
from sqlalchemy.exc import DBAPIError

host, port, user, password, database = sys.argv[1:]
# PyMySQL is underneath; mysqlclient (mysql+mysqldb) works in the same way.
engine = create_engine(URL.create("mysql+pymysql", user, password, host, int(port), database))

ENQUEUE = text("INSERT INTO orders (item) VALUES (:item)")
POLL = text("STREAM id, item FROM orders LIMIT :limit WAIT :wait")


def acknowledge(connection, order, how):
    count = connection.execute(text("ACK FROM orders WHERE id = :id"), {"id": order}).rowcount
    print(f"acknowledged {order}, {how}: {count}", flush=True)


# Enqueueing is an INSERT in a transaction of your own.
with engine.begin() as connection:
    connection.execute(ENQUEUE, [{"item": "tea"}, {"item": "bread"}])
print("enqueued tea, bread", flush=True)

with engine.connect() as connection, connection.begin() as transaction:
    connection.execute(ENQUEUE, {"item": "milk"})
    transaction.rollback()
print("rolled back milk", flush=True)

# yield_per=1 returns each row as it comes; otherwise SQLAlchemy gathers rows first. Closing the
# result reads the rest of it, so LIMIT gives it an end.
with engine.connect() as streaming:
    first = None
    orders = streaming.execution_options(yield_per=1).execute(text("STREAM id, item FROM orders LIMIT 3"))
    for order, item in orders:
        print(f"received {order} {item}", flush=True)
        with engine.begin() as working:  # another connection: the first one is busy with its stream
            acknowledge(working, order, "text")
        if item == "bread":
            with engine.begin() as working:
                working.execute(ENQUEUE, {"item": "jam"})  # reaches the open stream as soon as it is committed
            print("enqueued jam", flush=True)
        first = first or order

with engine.begin() as working:
    acknowledge(working, first, "again")

with engine.connect() as connection:
    try:
        connection.execute(text("STREAM * FROM customers"))
    except DBAPIError as error:
        number, reason = error.orig.args
        print(f"refused {number}: {reason}", flush=True)

with engine.begin() as connection:
    connection.execute(ENQUEUE, {"item": "salt"})
print("enqueued salt", flush=True)
# A long poll is an ordinary result. The work and its acknowledgement are one transaction.
# Commit work only if its ACK, with AND epoch = n, affected the message: docs/recipes.md shows why.
with engine.begin() as connection:
    for order, item in connection.execute(POLL, {"limit": 1, "wait": 20}).all():
        print(f"received {order} {item}", flush=True)
        acknowledge(connection, order, "in the transaction")

with engine.begin() as connection:
    if not connection.execute(POLL, {"limit": 1, "wait": 0.5}).all():
        print("nothing came", flush=True)
engine.dispose()
