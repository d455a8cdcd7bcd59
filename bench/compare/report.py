"""The comparison as a Markdown page: pure text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.compare.figures import CompetitorFigures, Spread

DRAIN = "Drain: messages taken and finished a second"
LATENCY = "Latency: from before the message is enqueued to a waiting consumer, ms"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Return the median and, in brackets, least and greatest value; a dash where there is none."""
    if not values:
        return "–"
    seen = Spread.of(values)
    return f"{seen.median:{form}} ({seen.least:{form}}..{seen.most:{form}})"


def cpu(by_process: Mapping[str, Sequence[float]]) -> str:
    """Return the median µs of each process."""
    return ", ".join(f"{process} {Spread.of(values).median:,.0f}" for process, values in by_process.items())


def drain_rows(figures: Mapping[str, CompetitorFigures]) -> Iterable[Sequence[str]]:
    """Yield a row for each case that was measured."""
    for name, competitor in figures.items():
        for case, measured in competitor.cases.items():
            yield name, case, spread(measured.rates), cpu(measured.cpu_us)


def latency_rows(figures: Mapping[str, CompetitorFigures]) -> Iterable[Sequence[str]]:
    """Yield a row for each competitor whose latency was measured, and each kind of consumer."""
    for name, competitor in figures.items():
        for consumer, seen in competitor.latency.items():
            figures_of = (spread(values, ".2f") for values in (seen.p50, seen.p99, seen.enqueue_p50))
            yield name, consumer, *figures_of


def bystander_rows(figures: Mapping[str, CompetitorFigures]) -> Iterable[Sequence[str]]:
    """Yield a row for each case during which other clients were measured, and each way to connect."""
    for name, competitor in figures.items():
        for case, measured in competitor.cases.items():
            for way, seen in measured.bystanders.items():
                yield name, case, way, spread(seen.p50, ".2f"), spread(seen.p99, ".2f")


def polling(figures: Mapping[str, CompetitorFigures]) -> str:
    """Return a line about those without a latency; nothing if there is none."""
    names = ", ".join(name for name, item in figures.items() if item.cases and not item.latency)
    return f"Consumers poll at intervals, so no latency is measured: {names}.\n" if names else ""


def page(figures: Mapping[str, CompetitorFigures], conditions: Sequence[str], plots: Sequence[str]) -> str:
    """Return the page. `plots` are the names of pictures in the same folder."""
    present = {name: competitor for name, competitor in figures.items() if competitor.cases}
    parts = [
        "# Queues compared\n",
        "`make bench` wrote this page. Medians of all rounds; in brackets least and greatest.\n",
        "".join(f"- {condition}\n" for condition in conditions),
        f"## {DRAIN}\n",
        table(("queue", "consumers", "messages/s", "CPU a message, µs"), drain_rows(present)),
        f"## {LATENCY}\n",
        table(("queue", "consumer", "p50", "p99", "enqueueing alone, p50"), latency_rows(present)),
        polling(figures),
        "## Bystander: a SELECT of another client while a queue drains, ms\n",
        table(("queue", "consumers", "connected", "p50", "p99"), bystander_rows(present)),
        "## Durability and versions\n",
        table(
            ("queue", "version", "durability"),
            ((name, competitor.version, competitor.durability) for name, competitor in present.items()),
        ),
        "".join(
            f"- left out, or not measured in all rounds: {name}: {item.missing}\n"
            for name, item in figures.items()
            if item.missing
        ),
        "".join(f"![{plot.removesuffix('.png')}]({plot})\n" for plot in plots),
    ]
    return "\n".join(part for part in parts if part)
