"""The page at `/` of the admin port, as HTML. It works without scripts; with them it stays up to date.

Nothing is loaded from elsewhere. All values are escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib import resources
from types import MappingProxyType
from urllib.parse import urlencode

from engine.quoting import quoted
from proxy.server.holding import REASONS
from proxy.server.overview import Overview, QueueState

PLOT_POINTS_MAX = 40
PLOT_WIDTH, PLOT_HEIGHT = 120, 24


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table of queues."""

    title: str
    value: Callable[[QueueState], float | None]
    shown: Callable[[float], str]


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.1f}/s"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        "ready": Column("Ready", lambda queue: queue.count("ready"), _number),
        "oldest": Column("Oldest ready", lambda queue: queue.count("oldest_ready_age_seconds"), _age),
        "scheduled": Column("Scheduled", lambda queue: queue.count("scheduled"), _number),
        "in_flight": Column("In flight", lambda queue: queue.count("leased"), _number),
        "dead": Column("Dead", lambda queue: queue.count("dead"), _number),
        "enqueued": Column("Enqueued", lambda queue: queue.enqueued_per_s, _rate),
        "acknowledged": Column("Acknowledged", lambda queue: queue.acknowledged_per_s, _rate),
        "streams": Column("Streams", lambda queue: queue.count("subscribers"), _number),
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


def document(overview: Overview, request: Request) -> str:
    """The whole page."""
    search = escape(request.search, quote=True)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>ackstream: queues</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/page.css">
</head>
<body>
<header><h1>ackstream</h1><p id="state" role="status">Updated now</p></header>
<main>
<form method="get" role="search">
<label for="search">Queues whose name contains</label>
<input id="search" name="search" type="search" value="{search}" autocomplete="off">
<input name="sort" type="hidden" value="{request.sort}">
<button>Search</button>
</form>
<div id="content">
{content(overview, request)}
</div>
</main>
<script src="/page.js"></script>
</body>
</html>
"""


@cache
def asset(name: str) -> str:
    """A file of the page."""
    return resources.files(__package__ or "").joinpath(name).read_text("utf-8")


def content(overview: Overview, request: Request) -> str:
    """The part of the page that is replaced every few seconds."""
    shown = [queue for queue in overview.queues if request.search.casefold() in ".".join(queue.name).casefold()]
    if request.sort != "name":
        value = COLUMNS[request.sort].value
        shown.sort(key=lambda queue: -(value(queue) or 0.0))
    return "\n".join([_proxy(overview), _stuck(shown), _table(shown, request)])


def _proxy(overview: Overview) -> str:
    proxy = overview.proxy
    facts = [
        ("Server", "reachable" if proxy.get("server_reachable") else "out of reach"),
        ("Binary log", "followed" if proxy.get("binlog_following") else "not followed"),
        ("Connections", _number(proxy.get("connections", 0))),
        ("Streams", _number(proxy.get("streams", 0))),
        ("Queues", _number(len(overview.queues))),
        (
            "Counted",
            _age(proxy["queues_counted_age_seconds"]) + " ago" if "queues_counted_age_seconds" in proxy else "not yet",
        ),
    ]
    return (
        "<dl class=facts>" + "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts) + "</dl>"
    )


def _stuck(queues: list[QueueState]) -> str:
    stuck = [queue for queue in queues if queue.is_stuck]
    if not stuck:
        return "<h2>Stuck</h2><p>No queue has messages that are due and held back.</p>"
    items = "".join(
        f"<li><b>{escape('.'.join(queue.name))}</b>: {_number(queue.count('ready') or 0)} due;"
        f" {escape('; '.join(REASONS[reason][1] for reason in queue.reasons))}</li>"
        for queue in stuck
    )
    return f"<h2>Stuck</h2><ul class=stuck>{items}</ul>"


def _table(queues: list[QueueState], request: Request) -> str:
    heads = _head("name", "Queue", request)
    heads += "".join(_head(name, column.title, request) for name, column in COLUMNS.items())
    rows = "".join(map(_row, queues)) or f"<tr><td colspan={len(COLUMNS) + 3}>No queue.</td></tr>"
    return (
        '<h2 id="queues">Queues</h2><div class=scroll tabindex=0 role=region aria-labelledby=queues><table>'
        f"<thead><tr>{heads}<th scope=col>Ready, last hour</th><th scope=col>SQL</th></tr></thead>"
        f"<tbody>{rows}</tbody></table></div>"
    )


def _head(name: str, title: str, request: Request) -> str:
    order = "ascending" if name == "name" else "descending"
    sorted_by = f' aria-sort="{order}"' if request.sort == name else ""
    query = escape(urlencode({"sort": name, "search": request.search}), quote=True)
    return f'<th scope=col{sorted_by}><a href="/?{query}">{title}</a></th>'


def _row(queue: QueueState) -> str:
    name = escape(".".join(queue.name))
    cells = "".join(_cell(column, queue) for column in COLUMNS.values())
    marks = "".join(f" <span class=mark>{escape(reason.replace('_', ' '))}</span>" for reason in queue.reasons)
    return f"<tr><th scope=row>{name}{marks}</th>{cells}<td>{_plot(queue.ready)}</td><td>{_statements(queue)}</td></tr>"


def _cell(column: Column, queue: QueueState) -> str:
    value = column.value(queue)
    return f"<td>{'–' if value is None else column.shown(value)}</td>"


def _statements(queue: QueueState) -> str:
    table = ".".join(map(quoted, queue.name))
    lines = [f"SHOW FULL QUEUES FROM {quoted(queue.name[0])}", f"SHOW CREATE QUEUE {table}", f"PAUSE QUEUE {table}"]
    lines += [f"RESUME QUEUE {table}"]
    if queue.count("dead"):
        lines.append(f"-- from the dead-letter table of {table}: REDRIVE QUEUE")
    text = escape(";\n".join(lines) + ";")
    return f"<details><summary>SQL</summary><pre>{text}</pre></details>"


def _plot(values: tuple[float, ...]) -> str:
    """A line in an SVG, with its highest value in words."""
    step = -(-len(values) // PLOT_POINTS_MAX) or 1
    points = values[::-1][::step][::-1]
    if len(points) < 2:
        return "–"
    most = max(points)
    across, up = PLOT_WIDTH / (len(points) - 1), (PLOT_HEIGHT - 2) / (most or 1)
    line = " ".join(f"{at * across:.0f},{PLOT_HEIGHT - 1 - value * up:.0f}" for at, value in enumerate(points))
    text = f"at most {_number(most)}"
    return (
        f'<svg role=img aria-label="{text}" viewBox="0 0 {PLOT_WIDTH} {PLOT_HEIGHT}" width={PLOT_WIDTH}'
        f' height={PLOT_HEIGHT}><title>{text}</title><polyline points="{line}"/></svg>'
    )
