"""Plots as SVG elements of a page, drawn by matplotlib, coloured by the page's CSS.

Text stays text, in the page's font, and is never read as a formula. Colours are drawn as markers,
which are replaced by the page's CSS variables, so one drawing suits the light and the dark theme.
"""

from __future__ import annotations

import datetime as dt
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from .measures import MEASURES

TEXT: Final = "#0a0b01"
GRID: Final = "#0a0b02"
COLOURS: Final = {
    "acknowledged": "#0a0b11",
    "created": "#0a0b12",
    "unacknowledged": "#0a0b13",
    "dead": "#0a0b14",
    **{name: f"#0a0b2{number}" for number, name in enumerate(MEASURES)},
}
"""The marker of each meaning. A meaning has one colour in all plots and tiles."""
_VARIABLES: Final = {
    TEXT: "currentColor",
    GRID: "var(--line)",
    **{marker: f"var(--{name.replace(',', '').replace(' ', '-')})" for name, marker in COLOURS.items()},
}
SHAPES: Final = dict(zip(MEASURES, "osD^", strict=True))
"""Lines differ by their marks too, for print without colours."""

_STYLE: Final[Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": ["sans-serif"],
    "font.size": 10,
    "text.color": TEXT,
    "axes.edgecolor": GRID,
    "axes.labelcolor": TEXT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": GRID,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}

WIDE: Final = 11.5
NARROW: Final = 7.0
"""Inches, the width that the page has for a plot. So text in a plot is as large as the page's
text."""

MARKS_S: Final = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3_600, 21_600, 86_400, 864_000, 8_640_000)
"""Round times for a logarithmic scale."""

LABEL_LENGTH: Final = 28
"""Characters of a value beside its bar. The table has the whole value."""


def over_time(starts: Sequence[dt.datetime], width_s: int, series: Mapping[str, Sequence[int]]) -> Markup:
    """Messages in each interval, as bars side by side."""
    width = dt.timedelta(seconds=width_s) / len(series)

    def draw(axes: Axes) -> None:
        for place, (name, values) in enumerate(series.items()):
            at = _days([start + place * width for start in starts])
            days = width.total_seconds() / 86_400
            axes.bar(at, values, days, align="edge", color=COLOURS[name], label=name)
        _dates(axes)
        _counts(axes)

    return _svg("messages over time", draw, legend=len(series) > 1, size=(WIDE, 3.0))


def quantiles(
    percentiles: Sequence[float], series: Mapping[str, Sequence[float]], say: Callable[[float], str]
) -> Markup:
    """Seconds by percentile, one line a measure, on a logarithmic scale."""

    def draw(axes: Axes) -> None:
        least = min((value for values in series.values() for value in values if value > 0), default=0.001)
        for name, values in series.items():
            shown = [max(value, least / 2) for value in values]  # zero has no logarithm
            colour, mark = COLOURS[name], SHAPES[name]
            axes.plot(range(len(percentiles)), shown, color=colour, marker=mark, markersize=4, label=name)
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        axes.yaxis.set_major_locator(FixedLocator(MARKS_S))
        axes.yaxis.set_minor_locator(NullLocator())
        # Up to the next marks outside, so that there are always two.
        axes.set_ylim(
            max((mark for mark in MARKS_S if mark <= low), default=low),
            min((mark for mark in MARKS_S if mark >= high), default=high),
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: say(value)))
        axes.set_xticks(range(len(percentiles)), [f"{percentile:g} %" for percentile in percentiles])

    return _svg("time by percentile", draw, legend=len(series) > 1)


def bars(labels: Sequence[str], series: Mapping[str, Sequence[int]]) -> Markup:
    """Vertical bars, stacked."""

    def draw(axes: Axes) -> None:
        below = [0] * len(labels)
        for name, values in series.items():
            axes.bar(range(len(labels)), values, bottom=below, color=COLOURS[name], label=name, width=0.7)
            below = [low + value for low, value in zip(below, values, strict=True)]
        axes.set_xticks(range(len(labels)), list(labels))
        _counts(axes)

    return _svg("messages by number of deliveries", draw, legend=len(series) > 1)


def lying_bars(labels: Sequence[str], series: Mapping[str, Sequence[int]]) -> Markup:
    """Horizontal bars, the first on top."""

    def draw(axes: Axes) -> None:
        left = [0] * len(labels)
        for name, values in series.items():
            axes.barh(range(len(labels)), values, left=left, color=COLOURS[name], label=name, height=0.7)
            left = [low + value for low, value in zip(left, values, strict=True)]
        axes.set_yticks(range(len(labels)), [_short(label) for label in labels])
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.xaxis.set_major_formatter(FuncFormatter(_count))

    return _svg("messages by value", draw, legend=len(series) > 1, size=(WIDE, 0.7 + 0.28 * max(4, len(labels))))


def ahead(now: dt.datetime, hours: Sequence[float], backlog: Sequence[float]) -> Markup:
    """The forecast of the backlog."""

    def draw(axes: Axes) -> None:
        times = [now + dt.timedelta(hours=hour) for hour in hours]
        axes.plot(_days(times), backlog, color=COLOURS["unacknowledged"], linewidth=1.8, linestyle="--")
        axes.fill_between(_days(times), backlog, color=COLOURS["unacknowledged"], alpha=0.15)
        axes.set_ylim(bottom=0)
        _dates(axes)
        _counts(axes)

    return _svg("forecast of the backlog", draw, legend=False)


def _svg(
    title: str, draw: Callable[[Axes], None], *, legend: bool, size: tuple[float, float] = (NARROW, 2.8)
) -> Markup:
    with mpl.rc_context({**_STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        if legend:
            figure.legend(loc="outside upper left", ncols=4, fontsize=9)
        text = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        with warnings.catch_warnings():
            # matplotlib only measures the text here, and browsers have more fonts.
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _inline(text.getvalue(), title)


def _inline(text: str, title: str) -> Markup:
    """The SVG element without the head of a document, its size in points, and ids that other plots
    use too. Its width is a variable of the page's CSS: on a phone, a plot is no smaller."""
    text = text[text.index("<svg") :]
    view = re.search(r'viewBox="0 0 (\d+)[^"]*"', text)
    assert view is not None
    body = text[text.index(">") + 1 :]
    body = re.sub(r'<g id="[^"]*"', "<g", body)
    for marker, variable in _VARIABLES.items():
        body = body.replace(marker, variable)
    about = f'style="--width: {view[1]}" role="img" aria-label="{escape(title)}"'
    # matplotlib's output, in which data is escaped.
    return Markup(f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {view[0]} {about}>{body}')  # noqa: S704


def _days(times: Sequence[dt.datetime]) -> Any:
    return mpl.dates.date2num(times)


def _dates(axes: Axes) -> None:
    locator = AutoDateLocator(tz=dt.UTC, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=dt.UTC))


def _counts(axes: Axes) -> None:
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.yaxis.set_major_formatter(FuncFormatter(_count))


def _count(value: float, _position: object = None) -> str:
    return f"{value:,.0f}"


def _short(text: str) -> str:
    shown = "".join(character if character.isprintable() else "�" for character in text)
    return shown if len(shown) <= LABEL_LENGTH else f"{shown[: LABEL_LENGTH - 1]}…"
