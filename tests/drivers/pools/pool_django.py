"""Django's connection, which is closed at the end of a request unless CONN_MAX_AGE is set; a migration that makes a
queue, and the model of docs/workers.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.signals import request_finished
from django.db import close_old_connections, connection, models
from django.db.migrations import RunSQL
from django.db.migrations.state import ProjectState

NEXT = "STREAM id FROM jobs LIMIT 1 WAIT 10"
PAGE = Path(__file__).parents[3] / "docs" / "workers.md"


def number(statement: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0])


def migrate() -> None:
    with connection.schema_editor() as editor:
        made = RunSQL("CREATE QUEUE mails (address VARCHAR(100))")
        made.database_forwards("shop", editor, ProjectState(), ProjectState())


def enqueue(task: str) -> int:
    """By the model on the page. Returns the message's id."""
    (text,) = re.findall(r"^```python\n(class Job\(models.Model\).*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"models": models, "__name__": "shop"}
    exec(compile(text.replace("class Meta:", "class Meta:\n        app_label = 'shop'"), str(PAGE), "exec"), names)
    return int(names["Job"].objects.create(task=task).pk)


def main(port: str, database: str, max_age: str) -> None:
    address = {"HOST": "127.0.0.1", "PORT": port, "USER": "root", "NAME": database}
    age = None if max_age == "None" else int(max_age)
    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.mysql", "CONN_MAX_AGE": age, **address}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
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
            case "migrate":
                migrate()
            case "enqueue":
                answer = enqueue("tea")
            case other:
                raise ValueError(other)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
