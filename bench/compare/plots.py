"""Plots of the comparison as PNG files. Without matplotlib there are none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.compare.figures import CompetitorFigures, Spread

Bar = tuple[str, Spread]
BAR_INCHES = 0.34
MARGIN_INCHES = 1.3
DRAIN, LATENCY = "compare-drain.png", "compare-latency.png"


def drain_bars(figures: Mapping[str, CompetitorFigures]) -> list[Bar]:
    """Return messages a second of each case."""
    return [
        (f"{name}: {case}", Spread.of(measured.rates))
        for name, competitor in figures.items()
        for case, measured in competitor.cases.items()
        if measured.rates
    ]


def latency_bars(figures: Mapping[str, CompetitorFigures]) -> list[Bar]:
    """Return the median latency of each competitor that has one, for each kind of consumer."""
    return [
        (": ".join(filter(None, (name, consumer))), Spread.of(seen.p50))
        for name, competitor in figures.items()
        for consumer, seen in competitor.latency.items()
    ]


def write_plots(figures: Mapping[str, CompetitorFigures], folder: Path) -> list[str]:
    """Write the plots into a folder; return their file names. Prints a line where matplotlib is missing."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - it is not part of the ordinary environment
    except ImportError:
        print("no plots: matplotlib is not installed (it comes with `make test-pipeline`)")
        return []
    mpl.use("Agg")
    drained, delivered = drain_bars(figures), latency_bars(figures)
    written = []
    if drained:
        _write(drained, "messages taken and finished a second", folder / DRAIN)
        written.append(DRAIN)
    if delivered:
        _write(delivered, "enqueue to consumer, p50, ms", folder / LATENCY)
        written.append(LATENCY)
    return written


def _write(bars: Sequence[Bar], title: str, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(10, MARGIN_INCHES + BAR_INCHES * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    medians = [spread.median for _, spread in bars]
    errors = [[s.median - s.least for _, s in bars], [s.most - s.median for _, s in bars]]
    colours = ["#1f6f8b" if name.startswith("ackstream") else "#b06a2c" for name, _ in bars]
    places = range(len(bars))
    axes.errorbar(medians, places, xerr=errors, fmt="none", ecolor="#808890", capsize=3)
    axes.scatter(medians, places, color=colours, zorder=3)
    for place, median in zip(places, medians, strict=True):
        text = f"{median:,.0f}" if median >= 100 else f"{median:.2f}"
        axes.annotate(text, (median, place), xytext=(0, 6), textcoords="offset points", ha="center", size=8)
    axes.set_yticks(places, [name for name, _ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.7)
    axes.set_xscale("log")
    axes.grid(axis="x", color="#e0e4e8")
    axes.margins(x=0.1)
    axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{title}; median, least and greatest of all rounds", size=11)
    figure.savefig(path, dpi=120)
