"""KILL of a connection that an expression names: `KILL QUERY @n`, `KILL 12 + 0`.

The server evaluates the expression and says nothing of the result, so the client's session evaluates
it first. The server then gets the number in its place: a second evaluation could mean another
connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from proxy.session.commit_notices import Killed
from proxy.session.internal_queries import end_own_transaction, text_rows
from proxy.session.queries import sql
from proxy.wire.params import make_query
from sqlrewrite.classify import KillByExpression

if TYPE_CHECKING:
    from proxy.session.ports import ClientSession


async def kill(session: ClientSession, statement: KillByExpression, command: bytes) -> None:
    """Carry out the KILL. `command` is the client's own. The server gets it if the expression has no number that a
    connection can have, and so returns its own error."""
    was_in_transaction = session.in_transaction
    # The expression is the client's text, in the character set of the session.
    query = sql("killed_connection", expression=statement.expression.decode("latin-1")).encode("latin-1")
    answer = await session.internal_query(query)
    await end_own_transaction(session, was_in_transaction=was_in_transaction)
    session.check_interrupted()
    ((number,),) = text_rows(session, answer) if answer.outcome.ok else [[None]]
    if number is None or not number.isdigit():
        session.forward(command, None)
        return
    text = statement.numbered(number.encode())
    session.forward(make_query(text, attributes=session.classifier.attributes), Killed(statement.kill(int(number))))
