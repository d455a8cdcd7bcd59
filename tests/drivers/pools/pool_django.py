"""Django's connection, which is closed at the end of a request unless CONN_MAX_AGE is set."""

from __future__ import annotations

import sys

import django
from django.conf import settings
from django.core.signals import request_finished
from django.db import close_old_connections, connection

NEXT = "STREAM id FROM jobs LIMIT 1 WAIT 10"


def number(statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])


def main(port: str, database: str, max_age: str) -> None:
    address = {"HOST": "127.0.0.1", "PORT": port, "USER": "root", "NAME": database}
    age = None if max_age == "None" else int(max_age)
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.mysql", "CONN_MAX_AGE": age, **address}})
    django.setup()
    for line in sys.stdin:
        answer = 0
        match line.strip():
            case "query":
                answer = number(NEXT)
            case "finish":  # A request.
                request_finished.send(sender=None)
            case "close-old":
                close_old_connections()
            case "ack":
                with connection.cursor() as cursor:
                    answer = cursor.execute("ACK jobs WHERE id = 1 AND epoch = 1")
            case other:
                raise ValueError(other)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
