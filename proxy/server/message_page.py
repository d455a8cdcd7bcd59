"""The pages of a queue's messages and of one message, as HTML."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from engine.model import NS_PER_S, TableId
from proxy.server.acting import action_links, choosing
from proxy.server.actions import statements_of
from proxy.server.inspection import Inspected, MessageDetails
from proxy.server.markup import box, choice, duration, facts, field, hidden, link, number, or_dash, sql_list, table
from proxy.server.message_list import STATES, MessageList, MessageQuery

NO_QUEUE = "There is no such queue, or ackstream's own account may not see it."

NONE = {
    "ready": "No message is due.",
    "scheduled": "No message is scheduled.",
    "in flight": "No message is in flight.",
    "dead": "There is no dead letter.",
}


def search_form(name: TableId) -> str:
    """Find a message by its id."""
    return (
        f'<form method="get" action="/message" role="search">{hidden(db=name.db, name=name.name)}'
        f"{field('id', 'Message with the id')}<button>Show</button></form>"
    )


def list_form(found: Inspected, name: TableId, wanted: MessageQuery) -> str:
    """Find messages by their reason or group, as far as the queue has any."""
    listed = found.details
    fields = ""
    if isinstance(listed, MessageList) and listed.has_reason:
        fields += field("reason", "Reason contains", wanted.reason)
    if isinstance(listed, MessageList):
        values = wanted.group or ("",) * len(listed.group_columns)
        fields += "".join(
            field("group", column, value) for column, value in zip(listed.group_columns, values, strict=False)
        )
    if isinstance(listed, MessageList) and listed.columns:
        fields += choice("column", "Column", listed.columns, wanted.column) + field("value", "has", wanted.value)
    if not fields:
        return search_form(name)
    return (
        f'{search_form(name)}<form method="get" action="/messages" role="search">'
        f"{hidden(db=name.db, name=name.name)}{hidden(state=wanted.state)}{fields}<button>Find</button></form>"
    )


def list_content(inspected: Inspected, name: TableId, *, may_act: bool) -> str:
    """The page of messages. `may_act`: somebody has signed in."""
    head = f"<h1>Messages of {queue_link(name)}</h1>"
    listed = inspected.details
    if not isinstance(listed, MessageList):
        reason = inspected.problem or NO_QUEUE
        return f"{head}<p class=late>{escape(reason)}</p>"
    problem = f"<p class=late>{escape(listed.problem)}</p>" if listed.problem else ""
    return "\n".join([head, _states(listed), problem, _rows(listed, may_act=may_act), _pages(listed)])


def message_content(inspected: Inspected, name: TableId, number_shown: str, *, may_act: bool) -> str:
    """The page of a message. `may_act`: somebody has signed in."""
    head = f"<h1>Message {escape(number_shown)}</h1><p>of {queue_link(name)}</p>"
    details = inspected.details
    if not isinstance(details, MessageDetails):
        reason = inspected.problem or "The queue has no message with this id: it was purged, deleted or moved."
        return f"{head}<p class=late>{escape(reason)}</p>"
    (message, *_), now_ns = details.messages, details.now_ns
    pairs = [
        ("State", "dead" if details.sources and message.time_acked_ns is None else details.state),
        ("Deliveries", number(message.epoch)),
        ("Priority", number(message.priority)),
        ("Due", when(message.time_next_ns, now_ns)),
        ("Acknowledged", when(message.time_acked_ns, now_ns)),
    ]
    if message.lease_ns is not None:
        pairs.append(("Last lease ends", when(message.lease_ns, now_ns)))
    if message.reason is not None:
        pairs.append(("Last reason", escape(message.reason)))
    if message.reason_at is not None:
        pairs.append(("Given back at", escape(message.reason_at)))
    statements = statements_of(details)
    actions = action_links(statements, name, number_shown) if may_act else ""
    return "\n".join([head, actions, facts(pairs), _payload(details), "<h2>SQL</h2>", sql_list(statements)])


def queue_link(name: TableId) -> str:
    """A link to the page of a queue."""
    return link("/queue", {"db": name.db, "name": name.name}, str(name))


def messages_link(name: TableId, wanted: MessageQuery, text: str, *, current: bool = False) -> str:
    """A link to a list of messages. `current`: it is the one that is shown."""
    query = [("db", name.db), ("name", name.name), ("state", wanted.state)]
    query += [("reason", wanted.reason)] if wanted.reason else []
    query += [("group", value) for value in wanted.group]
    query += [("column", wanted.column), ("value", wanted.value)] if wanted.column else []
    query += [("after", str(wanted.after))] if wanted.after else []
    return link("/messages", query, text, current=current)


def when(time_ns: int | None, now_ns: int) -> str:
    """A time relative to the server's clock."""
    if time_ns is None:
        return "–"
    if time_ns <= 0:
        return "at once"
    past_s = (now_ns - time_ns) / NS_PER_S
    return f"{duration(past_s)} ago" if past_s >= 0 else f"in {duration(-past_s)}"


def _states(listed: MessageList) -> str:
    """Links to the lists of the other states."""
    wanted, links = listed.wanted, list[str]()
    for state in STATES:
        same = replace(wanted, state=state, after=None)
        if state != "dead" or listed.sources:
            links.append(messages_link(listed.table, same, state.capitalize(), current=state == wanted.state))
        elif listed.dead_letter is not None:
            links.append(messages_link(listed.dead_letter, MessageQuery("dead"), "Dead"))
    return f'<nav aria-label="States">{" ".join(links)}</nav>'


def _rows(listed: MessageList, *, may_act: bool) -> str:
    """The messages, with a box each if somebody `may_act` on those that are chosen."""
    group_heads = listed.group_columns
    heads = ["Id", "Priority", "Deliveries", "Due", *group_heads, *(["Reason"] if listed.has_reason else [])]
    rows = [
        [
            (box("id", message.id) if may_act and message.literal is not None else "")
            + link("/message", {"db": listed.table.db, "name": listed.table.name, "id": message.id}, message.id),
            number(message.priority),
            number(message.epoch),
            when(message.time_next_ns, listed.now_ns),
            *(map(or_dash, message.group) if group_heads else ()),
            *([or_dash(message.reason)] if listed.has_reason else []),
        ]
        for message in listed.messages
    ]
    none = NONE[listed.wanted.state] if listed.next is None else "None among these."
    title = (
        listed.wanted.state.capitalize() if listed.wanted.after is None else f"{listed.wanted.state.capitalize()}, on"
    )
    shown = table("messages", title, heads, rows, none, numbers=("Priority", "Deliveries"))
    statements = statements_of(listed) if may_act else ()
    return choosing(statements, listed.table, listed.wanted.state, shown) if statements else shown


def _pages(listed: MessageList) -> str:
    """Links to the first page and to the next one."""
    wanted, links = listed.wanted, list[str]()
    if wanted.after is not None:
        first = replace(wanted, after=None)
        links.append(messages_link(listed.table, first, "First page"))
    if listed.next is not None:
        behind = replace(wanted, after=listed.next)
        links.append(messages_link(listed.table, behind, "Next page"))
    searched = (
        f"<p>{number(listed.read)} messages were looked at.</p>" if listed.read > len(listed.messages) + 1 else ""
    )
    return f'{searched}<nav aria-label="Further messages">{" ".join(links)}</nav>' if links else searched


def _payload(details: MessageDetails) -> str:
    if details.payload is None:
        return "<h2>Payload</h2><p>It is shown with admin_show_payload = true.</p>"
    rows = [[escape(name), or_dash(value)] for name, value in details.payload]
    return table("payload", "Payload", ["Column", "Value"], rows, "It has no columns of its own.")
