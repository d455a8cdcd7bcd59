"""Results whose rows the proxy computes and the server encodes.

The rows are sent to the server as JSON inside a SELECT, and its answer is sent to the client. So
the server encodes types, character set, time zone and protocol as this client has set them. For a
prepared statement, a second one is prepared internally, and the answer to its execution is the
client's.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.packets import frame, prepare_ok_at
from engine.quoting import quoted, text_literal
from proxy.session.internal_queries import end_own_transaction, not_refused, rows, setting
from proxy.session.queries import sql
from proxy.wire.commands import COM_STMT_PREPARE
from proxy.wire.mimic_adapter import Commands
from proxy.wire.packets import make_end

if TYPE_CHECKING:
    from proxy.session.answers import ServerAnswer
    from proxy.session.ports import ClientSession

TEXT = "LONGTEXT CHARACTER SET utf8mb4"
NAME = "VARCHAR(64) CHARACTER SET utf8mb4"
WORDS = "VARCHAR(255) CHARACTER SET utf8mb4"
COUNT = "BIGINT UNSIGNED"
SECONDS = "DECIMAL(20,3)"
RATE = "DECIMAL(20,2)"


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result: its name, its SQL type, and the expression to show, in which `{}` is
    the column."""

    name: str
    type: str
    expression: str = "{}"


@dataclass(frozen=True, slots=True)
class ResultSet:
    """Rows to show. Their values can be written as JSON."""

    columns: Sequence[ResultColumn]
    rows: Sequence[Sequence[object]] = ()

    def select(self, param_count: int = 0) -> str:
        """The SELECT that returns the rows. It has `param_count` parameters without effect."""
        shown = ", ".join(
            f"{column.expression.format(f'c{at}')} AS {quoted(column.name)}" for at, column in _numbered(self)
        )
        paths = ", ".join(f"c{at} {column.type} PATH '$[{at}]'" for at, column in _numbered(self))
        document = text_literal(json.dumps(self.rows))
        places = " AND ".join(["TRUE", *["? IS NULL"] * param_count])
        limit = len(self.rows) + 1
        return sql("result", columns=shown, document=document, paths=paths, condition=places, limit=limit)


def _numbered(result: ResultSet) -> Sequence[tuple[int, ResultColumn]]:
    return list(enumerate(result.columns))


JSON_PATH = 4042
"""MariaDB takes a path of JSON_TABLE to be in the character set of collation_connection, whatever it
is written in, and refuses it if characters have two bytes or more there."""


async def answer_query(session: ClientSession, result: ResultSet, *, was_in_transaction: bool) -> None:
    """Answer the client's COM_QUERY."""
    select = result.select().encode("ascii")
    answer = await _carried_out(session, lambda: session.internal_query(select))
    await _pass_on(session, answer, was_in_transaction=was_in_transaction)


async def answer_execute(session: ClientSession, result: ResultSet, *, was_in_transaction: bool) -> None:
    """Answer the client's COM_STMT_EXECUTE."""
    select = result.select().encode("ascii")
    answer = await _carried_out(session, lambda: _executed(session, select))
    await _pass_on(session, answer, was_in_transaction=was_in_transaction)


async def _executed(session: ClientSession, select: bytes) -> ServerAnswer:
    """The answer in the binary protocol."""
    answer = await session.internal_command(bytes([COM_STMT_PREPARE]) + select)
    if answer.error is not None:
        return answer
    prepared = answer.packets[0].payload
    number = prepare_ok_at(prepared, 0, len(prepared)).statement_id.to_bytes(4, "little")
    answer = await session.internal_command(bytes([Commands.COM_STMT_EXECUTE]) + number + PLAIN_EXECUTION)
    session.forward(bytes([Commands.COM_STMT_CLOSE]) + number, None)
    return answer


async def _carried_out(session: ClientSession, run: Callable[[], Awaitable[ServerAnswer]]) -> ServerAnswer:
    """What `run` returns, with another collation_connection if MariaDB refuses the client's. Raises
    Refused."""
    answer = await run()
    if answer.error is None or answer.error.code != JSON_PATH:
        return not_refused(answer)
    ((collation,),) = await rows(session, sql("collation"))
    async with setting(session, "collation_connection", "utf8mb4_general_ci", str(collation)):
        return not_refused(await run())


PLAIN_EXECUTION = b"\0\1\0\0\0"
"""No cursor, one iteration."""


async def _pass_on(session: ClientSession, answer: ServerAnswer, *, was_in_transaction: bool) -> None:
    """Send the answer to the client. With autocommit off, the SELECT has begun a transaction, which
    is ended before the client sees its flag."""
    *packets, last = answer.packets
    await end_own_transaction(session, was_in_transaction=was_in_transaction)
    end = make_end(session.capabilities, session.status)
    session.send(b"".join(frame(packet.payload, packet.seq) for packet in packets) + frame(end, last.seq))
