"""What can be done to a queue and to messages: statements of ackstream, to copy or to run from the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.model import NS_PER_S, TableId
from engine.quoting import qualified, quoted
from proxy.server.inspection import Details, MessageDetails, QueueDetails
from proxy.server.message_list import MessageList
from proxy.server.message_rows import ShownMessage
from proxy.session.queries import sql
from sqlrewrite.definitions import NOW_NS

DELAY_S = 3600
"""What a message is rescheduled by, unless somebody says otherwise."""
DELAY_MAX_S = 10 * 365 * 86400
"""More is probably no number of seconds."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement with what it does."""

    what: str
    text: str
    name: str = ""
    """In the address of the page that runs it; empty: it only reads, and is only shown."""
    takes_delay: bool = False
    """Whether a number of seconds is part of it."""


def statements_of(details: Details | None, delay_s: int = DELAY_S) -> Sequence[Statement]:
    """The statements on a queue or on all of these messages; none on what is not there."""
    match details:
        case QueueDetails():
            return _of_queue(details)
        case MessageDetails() | MessageList():
            return _of_messages(details.table, details.messages, details.sources, delay_s)
        case _:
            return ()


def _of_queue(details: QueueDetails) -> Sequence[Statement]:
    name = qualified(details.table)
    pause = Statement("Resume: deliver again", f"RESUME QUEUE {name}", "resume")
    if not details.is_paused:
        pause = Statement("Pause: deliver nothing", f"PAUSE QUEUE {name}", "pause")
    redrives = [
        Statement(
            f"Redrive: bring all back to {source}", f"REDRIVE QUEUE {name} TO {qualified(source)}", f"redrive{at}"
        )
        for at, source in enumerate(details.sources)
    ]
    if details.dead_letter is not None:
        text = f"REDRIVE QUEUE {qualified(details.dead_letter)} TO {name}"
        redrives.append(Statement("Redrive: bring its dead messages back", text, "redrive"))
    return (
        pause,
        *redrives,
        Statement("Purge: delete what is acknowledged", f"PURGE QUEUE {name}", "purge"),
        Statement("What it is", f"SHOW CREATE QUEUE {name}"),
        Statement("All queues of its database", f"SHOW FULL QUEUES FROM {quoted(details.table.db)}"),
    )


def _of_messages(
    table: TableId, messages: Sequence[ShownMessage], sources: Sequence[TableId], delay_s: int
) -> Sequence[Statement]:
    """Those that are acknowledged are only read."""
    name = qualified(table)
    left = [message for message in messages if message.time_acked_ns is None]
    if not (own := _by_ids(left or messages)):
        return ()
    read = Statement("Read", sql("copied_select", table=name, own=own))
    if not left:
        return (read,)
    delete = Statement("Delete: for ever", sql("copied_delete", table=name, own=own), "delete")
    done = Statement("Acknowledge: never deliver again", f"ACK {name} WHERE {own}", "ack")
    if sources:
        redrives = [
            Statement(
                f"Redrive: bring back to {source}",
                f"REDRIVE QUEUE {name} TO {qualified(source)} WHERE {own}",
                f"redrive{at}",
            )
            for at, source in enumerate(sources)
        ]
        return (*redrives, done, delete, read)
    later = sql("copied_update", table=name, own=own, time_next=f"{NOW_NS} + {delay_s * NS_PER_S}")
    return (
        Statement("Give back: deliver at once", f"NACK {name} WHERE {own}", "nack"),
        Statement(f"Reschedule: deliver in {delay_s} s", later, "reschedule", takes_delay=True),
        done,
        delete,
        read,
    )


def _by_ids(messages: Sequence[ShownMessage]) -> str:
    """The condition that it is one of these messages; empty without one."""
    ids = [_literal(message.id, message.literal) for message in messages if message.literal is not None]
    return f"id = {ids[0]}" if len(ids) == 1 else f"id IN ({', '.join(ids)})" if ids else ""


def _literal(shown: str, literal: str) -> str:
    """The id for people, where that is safe in any sql_mode."""
    plain = shown.isascii() and shown.isprintable() and not set(shown) & {"'", '"', "\\"}
    return f"'{shown}'" if literal.startswith("_utf8mb4") and plain else literal
