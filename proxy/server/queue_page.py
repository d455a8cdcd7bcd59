"""The pages of one queue and of the proxies, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from engine.model import NS_PER_S, TableId
from proxy.server.acting import action_links
from proxy.server.actions import statements_of
from proxy.server.held import held_of
from proxy.server.holding import REASONS
from proxy.server.inspection import GROUPS_MAX, Inspected, QueueDetails
from proxy.server.markup import bound, duration, facts, line, number, or_dash, rate, span_s, sql_list, table
from proxy.server.message_list import MessageQuery
from proxy.server.message_page import NO_QUEUE, messages_link
from proxy.server.overview import Overview, QueueState
from proxy.server.page import server_facts
from proxy.statements.batches import ShownBatch
from proxy.statements.semaphore_counts import ShownSemaphore
from proxy.statements.show import RunningStream

PLOT_WIDTH, PLOT_HEIGHT = 320, 80
EVENTS_SHOWN = 5
"""Lines of the log that a page shows: the last ones."""


def queue_content(
    overview: Overview,
    inspected: Inspected,
    streams: Sequence[RunningStream],
    name: TableId,
    *,
    show_payload: bool,
    may_act: bool,
) -> str:
    """The page of a queue. `may_act`: somebody has signed in."""
    state = next((queue for queue in overview.queues if queue.name == (name.db, name.name)), None)
    head = f"<h1>{escape(str(name))}</h1>"
    details = inspected.details
    if not isinstance(details, QueueDetails):
        reason = inspected.problem or NO_QUEUE
        is_known = state is not None and state.count("ready") is not None
        known = f"{_state(state, None)}{_plots(state)}" if is_known else ""
        return f"{head}<p class=late>{escape(reason)}</p>{known}{_events(inspected)}"
    statements = statements_of(details)
    return "\n".join(
        [
            head,
            action_links(statements, name) if may_act else "",
            _state(state, details),
            _problems(state, details),
            _events(inspected),
            held_of(name, details.in_flight),
            _plots(state),
            _reasons(details),
            _groups(details),
            _waiting(details),
            _streams(name, streams, show_payload=show_payload),
            f"<h2>SQL</h2>{sql_list(statements)}",
            _settings(details),
        ]
    )


def proxies_content(overview: Overview, inspected: Inspected, streams: Sequence[RunningStream]) -> str:
    """The page of the proxies on the server."""
    proxy = overview.proxy
    here = [
        ("Connections", f"{number(proxy.get('connections', 0))} of {number(proxy.get('connections_max', 0))}"),
        ("Streams", number(len(streams))),
        *server_facts(proxy),
        ("Delivered", number(proxy.get("delivered_total", 0))),
        ("Claims in vain", number(proxy.get("claimed_in_vain_total", 0))),
        ("Errors of the server", number(proxy.get("store_errors_total", 0))),
        ("Restarts of dispatchers", number(proxy.get("dispatcher_restarts_total", 0))),
        ("Memory", f"{proxy.get('process_resident_memory_bytes', 0) / 2**20:,.0f} MB"),
    ]
    rows = [
        [
            "–" if shown.slot is None else f"ackstream/{shown.slot}",
            or_dash(shown.name) + (' <span class="mark quiet">this proxy</span>' if shown.is_own else ""),
            or_dash(shown.version),
            "–" if shown.since_ns is None else duration((inspected.now_ns - shown.since_ns) / NS_PER_S),
            *(or_dash(value) for value in (shown.streams, shown.in_flight, shown.connection)),
        ]
        for shown in inspected.proxies
    ]
    heads = ["Slot", "Proxy", "Version", "Running for", "Streams", "In flight", "Connection"]
    numbers = ("Running for", "Streams", "In flight", "Connection")
    roster = table("proxies", "On this server", heads, rows, "The server has no roster of proxies.", numbers=numbers)
    problem = f"<p class=late>{escape(inspected.problem)}</p>" if inspected.problem else ""
    return f"<h1>Proxies</h1>{facts(here)}{problem}{roster}{_streams(None, streams, show_payload=False)}"


def _state(state: QueueState | None, details: QueueDetails | None) -> str:
    """The numbers of a queue; those of messages lead to them, unless the server is out of reach."""

    def counted(name: str) -> str:
        value = None if state is None else state.count(name)
        if name == "dead" and details is not None and details.sources and state is not None:
            value = sum(state.count(name) or 0.0 for name in ("ready", "scheduled", "leased"))
        return "–" if value is None else number(value)

    own = None if details is None else details.table
    dead = None if details is None else details.table if details.sources else details.dead_letter

    def listed(name: str, wanted: str, table: TableId | None = own) -> str:
        return counted(name) if table is None else messages_link(table, MessageQuery(wanted), counted(name))

    counted_s = None if state is None else state.count("counted_age_seconds")
    oldest_s = None if state is None else state.oldest_s
    pairs = [
        ("Ready", listed("ready", "ready")),
        ("Oldest ready", "–" if oldest_s is None else duration(oldest_s)),
        ("Scheduled", listed("scheduled", "scheduled")),
        ("In flight", listed("leased", "in flight")),
        ("Dead", listed("dead", "dead", dead)),
        ("Retained", counted("retained")),
        ("Streams", counted("subscribers")),
        ("Counted", "not yet" if counted_s is None else f"{duration(counted_s)} ago"),
    ]
    return facts(pairs)


def _problems(state: QueueState | None, details: QueueDetails) -> str:
    reasons = [] if state is None else [REASONS[reason] for reason in state.reasons]
    return "".join(
        f"<h2>{title}</h2><ul class=stuck>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"
        for title, texts in (("Problems", details.problems), ("What holds it back", reasons))
        if texts
    )


def _plots(state: QueueState | None) -> str:
    if state is None or len(state.samples) < 2:
        return "<h2>The last minutes</h2><p>The plots begin with the first request, and have no two points yet.</p>"
    plots = [
        _plot(state, "Ready", "ready", number),
        _plot(state, "Enqueued", "enqueued", rate),
        _plot(state, "Delivered", "delivered", rate),
        _plot(state, "Acknowledged", "acknowledged", rate),
        _plot(state, "Due to delivered, 99 %", "pickup_s", bound),
        _plot(state, "Delivered to acknowledged, 99 %", "work_s", bound),
    ]
    return f"<h2>The last {duration(span_s(state.past('ready')))}</h2><div class=plots>{''.join(plots)}</div>"


def _plot(state: QueueState, title: str, name: str, shown: Callable[[float], str]) -> str:
    """A line over the time of all samples, with its axis."""
    first_s, last_s = state.samples[0].at_s, state.samples[-1].at_s
    past, now = state.past(name), state.lately(name)
    known = [value for _, value in past if value is not None]
    text = f"{title}: now {'–' if now is None else shown(now)}, highest {shown(max(known))}" if known else f"{title}: –"
    points = [(first_s, None), *past, (last_s, None)]
    return (
        f"<figure><figcaption>{escape(text)}</figcaption>{line(points, text, PLOT_WIDTH, PLOT_HEIGHT)}"
        f"<p class=axis><span>{duration(last_s - first_s)} ago</span><span>now</span></p></figure>"
    )


def _streams(name: TableId | None, streams: Sequence[RunningStream], *, show_payload: bool) -> str:
    rows = []
    for stream in streams:
        host, program, queue, condition, delivered, in_flight, credit, since_s, idle_s = stream.row
        if name is not None and stream.table != name:
            continue
        cells = [str(stream.connection_id), or_dash(host), or_dash(program)]
        cells += [or_dash(queue)] if name is None else []
        cells += [or_dash(condition if show_payload or condition is None else "yes")]
        cells += [or_dash(delivered), or_dash(in_flight), or_dash(credit)]
        cells += [
            duration(float(str(since_s))),
            duration(float(str(idle_s))),
            escape(f"KILL QUERY {stream.connection_id}"),
        ]
        rows.append(cells)
    heads = ["Connection", "Host", "Program", *(["Queue"] if name is None else []), "Condition"]
    heads += ["Delivered", "In flight", "Credit", "Since", "Idle", "To end it"]
    numbers = ("Connection", "Delivered", "In flight", "Credit", "Since", "Idle")
    return table("streams", "Streams", heads, rows, "No stream runs here.", numbers=numbers)


def _reasons(details: QueueDetails) -> str:
    state = "dead" if details.sources else "ready"
    rows = [
        [messages_link(details.table, MessageQuery(state, reason=reason), reason), number(count.messages)]
        for count in details.reasons
        if (reason := count.values[0]) is not None
    ]
    return (
        table("reasons", "Reasons of the first messages", ["Reason", "Messages"], rows, "", numbers=("Messages",))
        if rows
        else ""
    )


def _groups(details: QueueDetails) -> str:
    """The greatest groups, unless all groups are shown anyway."""
    if 0 < len(details.waiting.groups) < GROUPS_MAX:
        return ""
    rows = [[*map(or_dash, count.values), number(count.messages)] for count in details.groups]
    heads = [*details.group_columns, "Messages"]
    return table("groups", "Greatest groups", heads, rows, "", numbers=("Messages",)) if rows else ""


GROUP_WAITS = {"order": "its first one", "limit": "GROUP_LIMIT", "rate": "GROUP_RATE"}
"""What the messages of a group wait for, in words."""


def _waiting(details: QueueDetails) -> str:
    """Groups, semaphores and batches, each with what it waits for."""
    waiting = details.waiting
    groups = [
        [
            or_dash(group.name),
            number(group.depth.ready),
            number(group.depth.scheduled),
            number(group.depth.in_flight),
            "–" if group.depth.oldest_ready_s is None else duration(group.depth.oldest_ready_s),
            or_dash(", ".join(GROUP_WAITS[reason] for reason in group.waits_for) or None),
        ]
        for group in waiting.groups
    ]
    semaphores = [
        [escape(one.name), or_dash(one.capacity), number(one.held), number(one.waiting), _semaphore_waits(one)]
        for one in waiting.semaphores
    ]
    batches = [
        [escape(one.name), *map(number, (one.parts, one.acknowledged, one.dead, one.waiting)), _batch_waits(one)]
        for one in waiting.batches
    ]
    heads = {
        "message-groups": ("Groups", ["Group", "Ready", "Scheduled", "In flight", "Oldest ready", "Waits for"], groups),
        "semaphores": ("Semaphores", ["Semaphore", "Capacity", "Held", "Waiting", "They wait for"], semaphores),
        "batches": ("Batches", ["Batch", "Parts", "Acknowledged", "Dead", "Follow-ups", "They wait for"], batches),
    }
    shown = [
        table(key, title, columns, rows, "", numbers=columns[1:-1])
        for key, (title, columns, rows) in heads.items()
        if rows
    ]
    problem = f"<p class=late>{escape(waiting.problem)}</p>" if waiting.problem else ""
    return problem + "".join(shown)


def _semaphore_waits(one: ShownSemaphore) -> str:
    if one.waiting and one.capacity is None:
        return "it does not exist: CREATE SEMAPHORE"
    return "a place" if one.waiting and one.held >= (one.capacity or 0) else "–"


def _batch_waits(one: ShownBatch) -> str:
    left = one.parts - one.acknowledged
    return f"{number(left)} parts" if one.waiting and left > 0 else "–"


def _events(inspected: Inspected) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in inspected.events[:EVENTS_SHOWN])
    return f"<h2>Recent errors</h2><ul class=listed>{items}</ul>" if items else ""


def _settings(details: QueueDetails) -> str:
    columns = ", ".join(details.columns)
    return (
        f"<h2>Settings</h2>{facts((name, escape(value)) for name, value in (*details.settings, ('Columns', columns)))}"
    )
