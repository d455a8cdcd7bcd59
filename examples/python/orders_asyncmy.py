"""Enqueue, stream and acknowledge with asyncmy: python orders_asyncmy.py HOST PORT USER PASSWORD DATABASE."""

import asyncio
import sys

import asyncmy
from asyncmy.cursors import SSCursor
from asyncmy.errors import MySQLError

host, port, user, password, database = sys.argv[1:]


async def connect():
    # read_timeout is off by default, and must stay off: an idle stream is silent.
    return await asyncmy.connect(host=host, port=int(port), user=user, password=password, database=database)


async def enqueue(connection, *items):
    async with connection.cursor() as cursor:
        await cursor.executemany("INSERT INTO orders (item) VALUES (%s)", [(item,) for item in items])
    await connection.commit()  # asyncmy has begun the transaction by itself


async def acknowledge(connection, order, how):
    async with connection.cursor() as cursor:
        count = await cursor.execute("ACK FROM orders WHERE id = %s", (order,))
    print(f"acknowledged {order}, {how}: {count}", flush=True)


async def stream(streaming, working):
    # SSCursor returns each row as it comes; the plain Cursor waits for the end of the result.
    # Closing it reads the rest of the result, so LIMIT gives the result an end.
    cursor = streaming.cursor(SSCursor)
    await cursor.execute("STREAM id, item FROM orders LIMIT 3")
    first = None
    async for order, item in cursor:
        print(f"received {order} {item}", flush=True)
        await acknowledge(working, order, "text")
        await working.commit()
        if item == "bread":
            await enqueue(working, "jam")  # reaches the open stream as soon as it is committed
            print("enqueued jam", flush=True)
        first = first or order
    await cursor.close()
    await acknowledge(working, first, "again")
    await working.commit()


async def poll(working):
    # A long poll is an ordinary result, so an ordinary cursor is enough. The work and its
    # acknowledgement are one transaction. Commit work only if its ACK, with AND epoch = n, affected
    # the message: docs/recipes.md shows why.
    async with working.cursor() as cursor:
        await cursor.execute("STREAM id, item FROM orders LIMIT %s WAIT %s", (1, 20))
        for order, item in await cursor.fetchall():
            print(f"received {order} {item}", flush=True)
            await acknowledge(working, order, "in the transaction")
        await working.commit()

        if await cursor.execute("STREAM id, item FROM orders LIMIT %s WAIT %s", (1, 0.5)) == 0:
            print("nothing came", flush=True)


async def main():
    # A stream keeps its connection busy, so everything else uses another one.
    streaming, working = await connect(), await connect()

    await enqueue(working, "tea", "bread")
    print("enqueued tea, bread", flush=True)

    async with working.cursor() as cursor:
        await cursor.execute("INSERT INTO orders (item) VALUES ('milk')")
    await working.rollback()
    print("rolled back milk", flush=True)

    await stream(streaming, working)
    await streaming.ensure_closed()

    try:
        async with working.cursor() as cursor:
            await cursor.execute("STREAM * FROM customers")
    except MySQLError as error:
        number, text = error.args
        print(f"refused {number}: {text}", flush=True)

    await enqueue(working, "salt")
    print("enqueued salt", flush=True)
    await poll(working)
    await working.ensure_closed()


asyncio.run(main())
