"""A report as one HTML page without scripts and external files, in a light and a dark theme.

This module selects the contents, and page.html.jinja has the layout. The template escapes all
values, and the page's Content-Security-Policy forbids scripts and requests.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from . import measures, plots
from .history import Named, Queue

Rows = list[dict[str, Any]]

BARS_MAX: Final = 12
"""Values in a plot, at most: more cannot be told apart."""

ATTEMPTS_SHOWN: Final = 10
"""Bars for numbers of deliveries. Higher numbers have one bar together."""

SHOWN: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
"""Percentiles in a table; the plot and Parquet have more."""

POINTS_AHEAD: Final = 96
"""Points of a forecast."""


@dataclass(frozen=True)
class Part:
    """One queue: `whole` has the rows of each aggregate, `greatest` those of each column's most
    frequent values."""

    queue: Queue
    whole: Mapping[str, Rows]
    greatest: Mapping[str, Rows]
    values: Mapping[str, tuple[int, int]]
    """How many values each column has, and how many messages."""

    def left_out(self, name: str) -> str:
        """What the plot and the table of a column's values leave out, as a sentence; blank if
        nothing."""
        rows, (values, messages) = self.greatest[name], self.values[name]
        shown = sum(row["messages"] for row in rows)
        table = f"{count(values - len(rows))} more values with {count(messages - shown)} messages are in Parquet alone."
        plot = f"The plot has the first {BARS_MAX} rows of the table."
        return " ".join([plot] * (len(rows) > BARS_MAX) + [table] * (values > len(rows)))

    @property
    def volume(self) -> dict[str, Any]:
        """Its row of `volumes`; empty if there is none."""
        return self.whole["volumes"][0] if self.whole["volumes"] else {}

    @property
    def rates(self) -> dict[str, Any]:
        """Its row of `forecast`; empty if there is none."""
        return self.whole["forecast"][0] if self.whole["forecast"] else {}

    @property
    def purge_after_s(self) -> float | None:
        """For how many seconds acknowledged messages are kept."""
        return self.queue.directives.seconds("vt_purge_after")

    @property
    def dead_letter(self) -> str | None:
        """The name of the dead-letter table, as the comment has it."""
        return self.queue.directives.get("dead_letter")

    @property
    def times(self) -> Rows:
        """The rows of `times`, in the order of MEASURES."""
        order = {name: number for number, name in enumerate(measures.MEASURES)}
        return sorted(self.whole["times"], key=lambda row: order[row["measure"]])

    @cached_property
    def attempts(self) -> list[tuple[str, int, int]]:
        """Number of deliveries, acknowledged messages, dead messages."""
        counted: dict[int, list[int]] = {}
        for row in self.whole["attempts"]:
            number = min(row["attempts"], ATTEMPTS_SHOWN + 1)
            counted.setdefault(number, [0, 0])[row["outcome"] == "dead"] += row["messages"]
        return [
            (f"more than {ATTEMPTS_SHOWN}" if number > ATTEMPTS_SHOWN else str(number), acknowledged, dead)
            for number, (acknowledged, dead) in sorted(counted.items())
        ]

    @property
    def by_hand(self) -> int:
        """Messages that were acknowledged and never delivered."""
        return sum(
            row["messages"] for row in self.whole["attempts"] if row["attempts"] == 0 and row["outcome"] != "dead"
        )


@dataclass(frozen=True)
class Page:
    """The contents of the page."""

    now_ns: int
    window_s: float
    width_s: int
    named: Named
    top: int
    parts: tuple[Part, ...]
    incomplete: frozenset[str]
    """Queues of which more was archived while they were read."""

    @property
    def now(self) -> dt.datetime:
        """The server's time when the reading began."""
        return moment(self.now_ns)

    # --- plots ---

    def plot_over_time(self, part: Part) -> Markup | None:
        """The plot of messages over time; None if none were created or ended."""
        found = {moment(row["start"] * 1_000): {**row, "dead": row["died"]} for row in part.whole["over_time"]}
        if not found:
            return None
        step = dt.timedelta(seconds=self.width_s)
        starts = [min(found) + step * number for number in range((self.now - min(found)) // step + 1)]
        names = ["acknowledged", *(["created"] if self.named.created else []), *(["dead"] if part.dead_letter else [])]
        nothing = dict.fromkeys(names, 0)
        series = {name: [found.get(start, nothing)[name] for start in starts] for name in names}
        return plots.over_time(starts, self.width_s, series)

    def plot_times(self, part: Part) -> Markup | None:
        """The plot of times by percentile; None if no time is known."""
        names = [measures.percentile_name(percentile) for percentile in measures.PERCENTILES]
        series = {row["measure"]: [row[name] for name in names] for row in part.times}
        return plots.quantiles(measures.PERCENTILES, series, duration) if series else None

    def plot_attempts(self, part: Part) -> Markup | None:
        """The plot of deliveries; None if no message has ended."""
        if not part.attempts:
            return None
        labels, acknowledged, dead = zip(*part.attempts, strict=True)
        return plots.bars(labels, {"acknowledged": acknowledged, **({"dead": dead} if any(dead) else {})})

    def plot_values(self, rows: Rows) -> Markup | None:
        """The plot of a column's values; None if there are none."""
        shown = rows[:BARS_MAX]
        series = {name: [row[name] for row in shown] for name in ("acknowledged", "unacknowledged", "dead")}
        series = {name: values for name, values in series.items() if any(values)}
        return plots.lying_bars([value(row["value"]) for row in shown], series) if series else None

    def plot_ahead(self, part: Part) -> Markup | None:
        """The plot of the backlog's forecast; None if it is unknown."""
        growth = part.rates.get("growth_per_s")
        if growth is None or not (growth or part.rates["unacknowledged"]):
            return None
        hours = [part.rates["horizon_s"] / 3_600 * point / POINTS_AHEAD for point in range(POINTS_AHEAD + 1)]
        backlog = [max(0.0, part.rates["unacknowledged"] + growth * 3_600 * hour) for hour in hours]
        return plots.ahead(self.now, hours, backlog)


def page(content: Page) -> str:
    """The page's text."""
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(count=count, duration=duration, value=value, moment=said)
    environment.globals.update(durations=durations, rates=rates)
    shown = [(percentile, measures.percentile_name(percentile)) for percentile in SHOWN]
    return environment.get_template("page.html.jinja").render(page=content, shown=shown, measures=measures)


# --- values as text ---


def count(number: float | None) -> str:
    """A count with thousands separators."""
    return "–" if number is None else f"{number:,.0f}"


_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float | None) -> str:
    """Two units at most, three digits at most: 12.3 ms, 4.56 s, 3 min 20 s, 2 d 4 h."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"−{duration(-seconds)}"
    if seconds < 1:
        return f"{_digits(seconds * 1_000)} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{_digits(seconds)} s"
    for (large, name), (small, less) in pairwise(_UNITS):
        whole = round(seconds / small)
        if whole * small >= large:
            many, rest = divmod(whole, large // small)
            return f"{many:,} {name} {rest} {less}" if rest and many < 100 else f"{many:,} {name}"
    return f"{seconds:.0f} s"


@dataclass(frozen=True)
class Unit:
    """The unit of a column. Called with a value in seconds or per second, it returns the number."""

    name: str
    factor: float

    def __call__(self, number: float | None) -> str:
        """The number in this unit; a dash if it is unknown."""
        return "–" if number is None else _digits(number * self.factor)


def durations(values: Iterable[float | None]) -> Unit:
    """The unit for a column of seconds: the largest in which the median is at least 1."""
    units = (*((name, 1 / seconds) for seconds, name in _UNITS), ("ms", 1_000.0))
    return _unit(values, units, Unit("s", 1))


def rates(values: Iterable[float | None]) -> Unit:
    """The unit for a column of rates: the first of /s, /min and /h in which the median is at least
    1."""
    return _unit(values, (("/s", 1), ("/min", 60), ("/h", 3_600)), Unit("/h", 3_600))


def _unit(values: Iterable[float | None], units: Iterable[tuple[str, float]], default: Unit) -> Unit:
    known = [abs(number) for number in values if number]
    middle = median(known) if known else 0
    return next((Unit(name, factor) for name, factor in units if middle * factor >= 1), default)


def _digits(number: float) -> str:
    if abs(number) >= 100 or number == 0:
        return f"{number:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:.{min(decimals, 3)}f}".rstrip("0").rstrip(".") if decimals else f"{number:.0f}"


def value(text: str | None) -> str:
    """A value to group by, for people."""
    return "NULL" if text is None else text or "(empty)"


def moment(ns: int) -> dt.datetime:
    """A time of the queue, in nanoseconds, as a datetime."""
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=ns // 1_000)


def said(ns: int | None) -> str:
    """A time of the queue as text."""
    return "–" if ns is None else f"{moment(ns):%Y-%m-%d %H:%M:%S}"
