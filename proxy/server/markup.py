"""What the pages of the admin port have in common: the document around the content, numbers for
people, plots, SQL to copy. All values are escaped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Protocol
from urllib.parse import urlencode

from engine.dispatch.measures import BUCKETS_S
from proxy.server.overview import Points

SQL_KEY_MAX = 200

UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms"))


@cache
def asset(name: str) -> str:
    """A file of the pages."""
    return resources.files(__package__ or "").joinpath(name).read_text("utf-8")


def document(title: str, content: str, search: str = "", account: str = "", *, is_live: bool = True) -> str:
    """A whole page. `content` is the part that is replaced every few seconds if it `is_live`; the form `search`, and
    who has signed in (`account`), are not."""
    live = " data-live" if is_live else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/pico.css">
<link rel="stylesheet" href="/page.css">
</head>
<body>
<header><p class=brand>ackstream</p><nav aria-label="Pages"><a href="/">Queues</a> <a href="/proxies">Proxies</a></nav>
{search}
<p id="state" role="status">{"Updated now" if is_live else ""}</p>
{account}</header>
<main>
<div id="content"{live}>
{content}
</div>
</main>
<script src="/page.js"></script>
</body>
</html>
"""


def number(value: float) -> str:
    """A count."""
    return f"{value:,.0f}"


def rate(value: float) -> str:
    """Something a second."""
    return f"{value:,.1f}/s" if value else "0/s"


def duration(seconds: float) -> str:
    """A time."""
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    size, unit = next((size, unit) for size, unit in UNITS if seconds >= size or unit == "ms")
    value = seconds / size
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f}".removesuffix(".0") + f" {unit}"


def bound(seconds: float) -> str:
    """The upper bound of a bucket of a histogram, which is all that is known of a percentile."""
    return f"≤ {duration(seconds)}" if seconds != float("inf") else f"> {duration(BUCKETS_S[-1])}"


def link(
    path: str, query: Mapping[str, str] | Sequence[tuple[str, str]], text: str, *, current: bool = False, kind: str = ""
) -> str:
    """A link to another page. `current`: it is the one that is shown. `kind`: its role."""
    asked = f"?{urlencode(query)}" if query else ""
    mark = " aria-current=page" if current else ""
    mark += f" role={kind}" if kind else ""
    return f'<a href="{escape(path + asked, quote=True)}"{mark}>{escape(text)}</a>'


def field(name: str, label: str, value: str = "", kind: str = "search", completed: str = "off") -> str:
    """A field of a form, inside its label. `completed`: what a browser may fill in."""
    return (
        f'<label>{escape(label)} <input name="{name}" type="{kind}" value="{escape(value, quote=True)}"'
        f' autocomplete="{completed}"></label>'
    )


def choice(name: str, label: str, values: Iterable[str], chosen: str) -> str:
    """A choice of a form, inside its label."""
    options = "".join(f"<option{' selected' if value == chosen else ''}>{escape(value)}</option>" for value in values)
    return f'<label>{escape(label)} <select name="{name}">{options}</select></label>'


def box(name: str, value: str) -> str:
    """A box to choose one of several."""
    text = escape(value, quote=True)
    return f'<input type=checkbox name="{name}" value="{text}" aria-label="Choose {text}">'


def hidden(**values: str) -> str:
    """Fields of a form that nobody sees."""
    return "".join(
        f'<input type="hidden" name="{name}" value="{escape(value, quote=True)}">' for name, value in values.items()
    )


def state(*, well: bool, yes: str, no: str) -> str:
    """Whether something is as it should be, as HTML."""
    return yes if well else f"<span class=late>{escape(no)}</span>"


def or_dash(value: object) -> str:
    """A value, or a dash for None."""
    return "–" if value is None else escape(str(value))


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values, as HTML."""
    inner = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f"<dl class=facts>{inner}</dl>"


def table(
    key: str,
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    without: str,
    *,
    numbers: Collection[str] = (),
) -> str:
    """A section with a table; the cells are HTML. `without`: the text if there are no rows. `numbers`: the heads
    of columns that are aligned right."""
    heading = f'<h2 id="{key}">{escape(title)}</h2>'
    if not rows:
        return f"{heading}<p>{escape(without)}</p>"
    kinds = ["", *(" class=n" if name in numbers else "" for name in heads[1:])]
    head = "".join(f"<th scope=col{kind}>{escape(name)}</th>" for kind, name in zip(kinds, heads, strict=True))
    body = "".join(f"<tr><th scope=row>{first}</th>{_cells(kinds[1:], rest)}</tr>" for first, *rest in rows)
    return (
        f"{heading}<div class=scroll tabindex=0 role=region aria-labelledby={key}><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(kinds: Sequence[str], cells: Sequence[str]) -> str:
    return "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(kinds, cells, strict=True))


class Described(Protocol):
    """A statement with what it does."""

    @property
    def what(self) -> str:
        """What it does, in words."""

    @property
    def text(self) -> str:
        """The statement."""


def sql_list(statements: Sequence[Described]) -> str:
    """Statements to copy, each with what it does."""
    items = "".join(
        f"<li>{escape(one.what)}<div class=sql><pre>{escape(one.text)};</pre>"
        f'<button class=copy type=button data-key="{escape(one.text[:SQL_KEY_MAX], quote=True)}"'
        f' aria-label="Copy: {escape(one.what, quote=True)}">Copy</button></div></li>'
        for one in statements
    )
    return f"<ul class=statements>{items}</ul>"


def span_s(points: Points) -> float:
    """The time from the first point to the last one."""
    return points[-1][0] - points[0][0] if points else 0.0


def line(points: Points, label: str, width: int, height: int) -> str:
    """A line in an SVG. Where a value is None, the line is broken; an infinite one is at the top."""
    most = max((value for _, value in points if value is not None and value != float("inf")), default=0.0)
    across, up = width / (span_s(points) or 1), (height - 2) / (most or 1)
    pieces: list[list[str]] = [[]]
    for at_s, value in points:
        if value is None:
            pieces.append([])
        else:
            x, y = (at_s - points[0][0]) * across, height - 1 - min(value, most) * up
            pieces[-1].append(f"{x:.0f},{y:.0f}")
    pieces = [piece * 2 if len(piece) == 1 else piece for piece in pieces]  # A single value is a point.
    lines = "".join(f'<polyline points="{" ".join(piece)}"/>' for piece in pieces if piece)
    text = escape(label, quote=True)
    return (
        f'<svg role=img aria-label="{text}" viewBox="0 0 {width} {height}" width={width} height={height}>'
        f"<title>{text}</title>{lines}</svg>"
    )
