"""Each way in which an application can write a message into the queue `m` with plain SQL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.queues import run

NOW_NS = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) * 1000"

Way = Callable[[Any, Path], None]
"""Writes one message whose payload is 'x', with that connection and, if need be, a file in that folder."""


def insert_select(connection: Any, folder: Path) -> None:
    run(connection, "CREATE TABLE source (p TEXT)")
    run(connection, "INSERT INTO source VALUES ('x')")
    run(connection, "INSERT INTO m (payload) SELECT p FROM source")


def replace(connection: Any, folder: Path) -> None:
    run(connection, "REPLACE INTO m (id, payload) VALUES (5, 'x')")


def upsert(connection: Any, folder: Path) -> None:
    run(connection, f"INSERT INTO m (id, payload, time_next) VALUES (5, 'x', {NOW_NS} + 3600000000000)")
    run(connection, "INSERT INTO m (id, payload) VALUES (5, 'y') ON DUPLICATE KEY UPDATE time_next = 0")


def load_data(connection: Any, folder: Path) -> None:
    file = folder / "rows"
    file.write_text("x\n")
    run(connection, f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE m (payload)")


def procedure(connection: Any, folder: Path) -> None:
    run(connection, "CREATE PROCEDURE put() INSERT INTO m (payload) VALUES ('x')")
    run(connection, "CALL put()")


def trigger(connection: Any, folder: Path) -> None:
    run(connection, "CREATE TABLE orders (p TEXT)")
    run(connection, "CREATE TRIGGER t AFTER INSERT ON orders FOR EACH ROW INSERT INTO m (payload) VALUES (NEW.p)")
    run(connection, "INSERT INTO orders VALUES ('x')")


def view(connection: Any, folder: Path) -> None:
    run(connection, "CREATE VIEW seen AS SELECT id, payload FROM m")
    run(connection, "INSERT INTO seen (payload) VALUES ('x')")


def prepared_by_xa(connection: Any, folder: Path) -> None:
    for statement in (
        "XA START 'x'",
        "INSERT INTO m (payload) VALUES ('x')",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA COMMIT 'x'",
    ):
        run(connection, statement)


def prepared_as_text(connection: Any, folder: Path) -> None:
    run(connection, "PREPARE p FROM 'INSERT INTO m (payload) VALUES (?)'")
    run(connection, "SET @x = 'x'")
    run(connection, "EXECUTE p USING @x")


WAYS: tuple[Way, ...] = (
    insert_select,
    replace,
    upsert,
    load_data,
    procedure,
    trigger,
    view,
    prepared_by_xa,
    prepared_as_text,
)
