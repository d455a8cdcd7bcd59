"""The page at `/` of the admin port, as HTML. It works without scripts; with them it stays up to date.

Nothing is loaded from elsewhere. All values are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from urllib.parse import urlencode

from proxy.server import markup
from proxy.server.actions import Statement
from proxy.server.held import longest_held
from proxy.server.holding import REASONS
from proxy.server.markup import bound, duration, facts, line, link, number, rate, span_s, sql_list, state
from proxy.server.overview import Name, Overview, Points, QueueState
from proxy.server.problems import Problem
from proxy.statements.deliveries import HeldDelivery

PROBLEMS_MAX = 50
"""Problems that the page lists."""

LISTED_MAX = 10
"""Queues that are listed as stuck, or as behind: the table below has all."""

OLD_COUNT_S = 60.0
"""Older counts show their age in their row: a few rounds have failed, or nobody has asked for a while."""

FIRST = Statement("Run it at the proxy's port, in a database of yours.", "CREATE QUEUE jobs (payload JSON)")
"""What makes a first queue."""

PLOT_POINTS_MAX = 30
PLOT_WIDTH, PLOT_HEIGHT = 90, 20


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of queues."""

    title: str
    value: Callable[[QueueState], float | None]
    shown: Callable[[float], str]
    past: str | None = None
    """What of `QueueState.past` a plot below the value shows; None: there is no plot."""


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "ready": Column("Ready", lambda queue: queue.count("ready"), number, "ready"),
        "oldest": Column("Oldest ready", lambda queue: queue.oldest_s, duration),
        "scheduled": Column("Scheduled", lambda queue: queue.count("scheduled"), number),
        "in_flight": Column("In flight", lambda queue: queue.count("leased"), number),
        "dead": Column("Dead", lambda queue: queue.count("dead"), number),
        "enqueued": Column("Enqueued", lambda queue: queue.enqueued_per_s, rate),
        "acknowledged": Column("Acknowledged", lambda queue: queue.acknowledged_per_s, rate, "acknowledged"),
        "pickup": Column("Pick-up, 99 %", lambda queue: queue.lately("pickup_s"), bound, "pickup_s"),
        "streams": Column("Streams", lambda queue: queue.count("subscribers"), number),
    }
)


@dataclass(frozen=True, slots=True)
class Request:
    """What a visitor wants to see."""

    sort: str = "name"
    search: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Request:
        """The request of a query string; unknown values count as absent."""
        sort = query.get("sort", "name")
        return cls(sort if sort in COLUMNS else "name", query.get("search", "")[:200])


def document(
    overview: Overview,
    request: Request,
    problems: Sequence[Problem] = (),
    held: Iterable[HeldDelivery] = (),
    account: str = "",
) -> str:
    """The whole page; as `content`. `account`: who has signed in."""
    search = escape(request.search, quote=True)
    form = f"""<form method="get" role="search">
<label for="search">Queues whose name contains</label>
<input id="search" name="search" type="search" value="{search}" autocomplete="off">
<input name="sort" type="hidden" value="{request.sort}">
<button>Search</button>
</form>"""
    return markup.document("ackstream: queues", content(overview, request, problems, held), form, account)


def content(
    overview: Overview, request: Request, problems: Sequence[Problem] = (), held: Iterable[HeldDelivery] = ()
) -> str:
    """The part of the page that is replaced every few seconds. `problems`: of all queues, with those first that
    matter most. `held`: the first messages that clients of this proxy hold of each queue."""
    shown = [queue for queue in overview.queues if request.search.casefold() in ".".join(queue.name).casefold()]
    if request.sort != "name":
        value = COLUMNS[request.sort].value
        shown.sort(key=lambda queue: -(value(queue) or 0.0))
    queues = [_stuck(shown), _behind(shown), _table(shown, request)] if shown else [_none(request)]
    return "\n".join(["<h1 id=queues>Queues</h1>", _proxy(overview), _problems(problems), longest_held(held), *queues])


def server_facts(proxy: Mapping[str, float]) -> list[tuple[str, str]]:
    """Whether the server is there, and its binary log."""
    return [
        ("Server", state(well=bool(proxy.get("server_reachable")), yes="reachable", no="out of reach")),
        ("Binary log", state(well=bool(proxy.get("binlog_following")), yes="followed", no="not followed")),
    ]


def _none(request: Request) -> str:
    """In place of the table, where no queue is to be shown."""
    if request.search:
        return f"<p>There is no queue whose name contains {escape(request.search)}.</p>"
    return f"<h2>There is no queue yet</h2>{sql_list([FIRST])}"


def _proxy(overview: Overview) -> str:
    proxy = overview.proxy
    ages = [queue.count("counted_age_seconds") for queue in overview.queues]
    counted = [age_s for age_s in ages if age_s is not None]
    shown = [
        *server_facts(proxy),
        ("Connections", number(proxy.get("connections", 0))),
        ("Streams", number(proxy.get("streams", 0))),
        ("Queues", number(len(overview.queues))),
        ("Counted", f"{duration(max(counted))} ago" if counted else "not yet"),
    ]
    return facts(shown)


def _problems(problems: Sequence[Problem]) -> str:
    if not problems:
        return ""
    items = "".join(map(_problem, problems[:PROBLEMS_MAX]))
    more = len(problems) - PROBLEMS_MAX
    items += f"<li>and {number(more)} more: SHOW FULL QUEUES lists all</li>" if more > 0 else ""
    return f"<h2>Problems</h2><ul class=stuck>{items}</ul>"


def _problem(problem: Problem) -> str:
    if problem.queue is None:
        return f"<li class=late>{escape(problem.text)}</li>"
    queue = _link((problem.queue.db, problem.queue.name))
    return f"<li>{queue}{' is broken' if problem.is_broken else ''}: {escape(problem.text)}</li>"


def _behind(queues: list[QueueState]) -> str:
    items = [
        f"{_link(queue.name)}: {number(queue.count('ready') or 0)} due, {_progress(queue)}"
        for queue in queues
        if queue.is_behind
    ]
    return f"<h2>Behind</h2><ul class=listed>{_first(items)}</ul>" if items else ""


def _first(items: Sequence[str]) -> str:
    """The first ones of a list of queues, which is in the order of the table."""
    more = len(items) - LISTED_MAX
    shown = [*items[:LISTED_MAX], *([f"and {number(more)} more, in the order of the table"] if more > 0 else [])]
    return "".join(f"<li>{item}</li>" for item in shown)


def _progress(queue: QueueState) -> str:
    done = f"{rate(queue.acknowledged_per_s or 0.0)} acknowledged"
    return (
        f"{done}: they do not become fewer"
        if queue.done_in_s is None
        else f"{done}: done in {duration(queue.done_in_s)}"
    )


def _stuck(queues: list[QueueState]) -> str:
    stuck = [queue for queue in queues if queue.is_stuck]
    if not stuck:
        known = all(queue.count("ready") is not None or queue.is_broken for queue in queues)
        well = "<p class=done>No queue has messages that are due and held back.</p>"
        return well if known else "<p>Some queues are not counted yet.</p>"
    items = [
        f"{_link(queue.name)}: {number(queue.count('ready') or 0)} due;"
        f" {escape('; '.join(REASONS[reason] for reason in queue.reasons))}"
        for queue in stuck
    ]
    return f"<h2>Stuck</h2><ul class=stuck>{_first(items)}</ul>"


def _table(queues: list[QueueState], request: Request) -> str:
    heads = _head("name", "Queue", request)
    heads += "".join(_head(name, column.title, request) for name, column in COLUMNS.items())
    rows = "".join(map(_row, queues))
    return (
        "<div class=scroll tabindex=0 role=region aria-labelledby=queues>"
        "<table class=numbers>"
        f"<thead><tr>{heads}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _head(name: str, title: str, request: Request) -> str:
    order = "ascending" if name == "name" else "descending"
    sorted_by = f' aria-sort="{order}"' if request.sort == name else ""
    query = escape(urlencode({"sort": name, "search": request.search}), quote=True)
    return f'<th scope=col{sorted_by}><a href="/?{query}">{title}</a></th>'


def _row(queue: QueueState) -> str:
    name = _link(queue.name)
    cells = "".join(_cell(column, queue) for column in COLUMNS.values())
    reasons = queue.reasons if queue.count("ready") else [reason for reason in queue.reasons if reason == "paused"]
    names = [*(["broken"] if queue.is_broken else []), *(reason.replace("_", " ") for reason in reasons)]
    marks = "".join(f" <span class=mark>{escape(name)}</span>" for name in names)
    return f"<tr><th scope=row>{name}{marks}</th>{cells}</tr>"


def _link(queue: Name) -> str:
    db, name = queue
    return link("/queue", {"db": db, "name": name}, f"{db}.{name}")


def _cell(column: Column, queue: QueueState) -> str:
    value = column.value(queue)
    text = "–" if value is None else column.shown(value)
    counted_s = queue.count("counted_age_seconds") or 0.0
    if column.past == "ready" and counted_s > OLD_COUNT_S:
        text += f" <small>{duration(counted_s)} ago</small>"
    return f"<td>{text}{_plot(column, queue.past(column.past)) if column.past else ''}</td>"


def _plot(column: Column, past: Points) -> str:
    """A line in an SVG, with its highest value in words. Empty without two values, and if all are 0."""
    step = -(-len(past) // PLOT_POINTS_MAX) or 1
    points = past[::-1][::step][::-1]
    known = [value for _, value in points if value is not None]
    if len(known) < 2 or not any(known):
        return ""
    label = f"{column.title}, last {duration(span_s(past))}: highest {column.shown(max(known))}"
    return line(points, label, PLOT_WIDTH, PLOT_HEIGHT)
