"""The admin port's page: what it shows, of which queues, and that nothing in it comes from a name."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from engine.model import TableId
from proxy.server import markup
from proxy.server.inspection import Inspected
from proxy.server.overview import KEPT_S, SAMPLES_MAX, History, Overview
from proxy.server.page import COLUMNS, Request, content, document
from proxy.server.problems import Problem
from proxy.server.queue_page import queue_content
from proxy.statements.deliveries import HeldDelivery

LABELS = ["db", "queue"]


def families(ready: dict[str, float], acknowledged: float = 0.0, *, paused: str = "") -> list[Metric]:
    gauge = GaugeMetricFamily("ackstream_queue_ready", "Ready", labels=LABELS)
    counter = CounterMetricFamily("ackstream_queue_acknowledged", "Acknowledged", labels=LABELS)
    held = GaugeMetricFamily("ackstream_queue_held_back", "Held back", labels=[*LABELS, "reason"])
    for name, value in ready.items():
        gauge.add_metric(["shop", name], value)
        counter.add_metric(["shop", name], acknowledged)
        held.add_metric(["shop", name, "paused"], name == paused)
    return [gauge, counter, held, GaugeMetricFamily("ackstream_streams", "Streams", 2)]


def overview(**ready: float) -> Overview:
    return History().view(families(ready), 0.0)


def test_rates_and_the_plot_come_from_the_samples_of_an_hour() -> None:
    history, seen = History(), overview()
    for second in range(0, 7200, 20):
        seen = history.view(families({"m": second / 20}, acknowledged=2.0 * second), float(second))
    (queue,) = seen.queues
    assert queue.acknowledged_per_s == pytest.approx(2.0)
    assert len(queue.samples) <= SAMPLES_MAX
    assert queue.samples[-1].ready == 359
    assert queue.samples[0].ready >= 359 - KEPT_S / 20


def test_latencies_are_those_of_the_deliveries_since_the_sample_before() -> None:
    history, seen = History(), overview()
    bounds = ("0.01", "0.1", "+Inf")
    for second, counts in ((0, (5, 5, 5)), (10, (5, 5, 5)), (20, (105, 106, 106)), (30, (105, 105, 107))):
        family = HistogramMetricFamily("ackstream_queue_pickup_delay_seconds", "Pick-up", labels=LABELS)
        pairs = [(bound, float(count)) for bound, count in zip(bounds, counts, strict=True)]
        family.add_metric(["shop", "m"], pairs, 0.0)
        seen = history.view([*families({"m": 1}), family], float(second))
    (queue,) = seen.queues
    assert [sample.pickup_s for sample in queue.samples] == [0.01, None, 0.01, float("inf")]


def counted(ready: float, enqueued: float, age_s: float) -> list[Metric]:
    """The families of one queue that was counted so long ago."""
    found = families({"m": ready})
    for name, value in (("counted_age_seconds", age_s), ("oldest_ready_age_seconds", 0.0)):
        gauge = GaugeMetricFamily(f"ackstream_queue_{name}", name, labels=LABELS)
        gauge.add_metric(["shop", "m"], value)
        found.append(gauge)
    counter = CounterMetricFamily("ackstream_queue_enqueued", "Enqueued", labels=LABELS)
    counter.add_metric(["shop", "m"], enqueued)
    return [*found, counter]


def test_a_steady_rate_stays_steady_however_the_counts_fall_between_the_samples() -> None:
    """Six a second, counted every 13 s and sampled every 10 s."""
    history, seen = History(), overview()
    for second in range(0, 300, 10):
        last = second // 13 * 13
        seen = history.view(counted(5, 6.0 * last, second - last), float(second))
    (queue,) = seen.queues
    assert queue.rates("enqueued")[2:] == pytest.approx([6.0] * len(queue.rates("enqueued")[2:]))
    assert queue.enqueued_per_s == pytest.approx(6.0)


def test_counts_that_are_old_show_their_age() -> None:
    shown = content(History().view(counted(5, 0, 480.0), 0.0), Request())
    assert "<dt>Counted</dt><dd>8 min ago</dd>" in shown
    assert "5 <small>8 min ago</small>" in shown
    assert "<small>" not in content(History().view(counted(5, 0, 20.0), 0.0), Request())


def test_an_empty_queue_has_no_oldest_message() -> None:
    assert "0 s" not in content(History().view(counted(0, 0, 1.0), 0.0), Request())


def test_a_percentile_is_a_bound_and_ends_with_the_deliveries() -> None:
    history, shown = History(), ""
    for second in range(0, 130, 10):
        family = HistogramMetricFamily("ackstream_queue_pickup_delay_seconds", "Pick-up", labels=LABELS)
        late = float(min(second, 50))
        family.add_metric(["shop", "m"], [("300.0", 0.0), ("1800.0", late), ("+Inf", late)], 0.0)
        shown = content(history.view([*families({"m": 1}), family], float(second)), Request())
        assert ("≤ 30 min<svg" in shown) == (20 <= second <= 110), second
    assert "1800" not in shown
    assert markup.bound(float("inf")) == "> 1 h"


def test_all_times_have_one_form() -> None:
    seconds = (0, 0.0004, 0.025, 1, 1.26, 30, 59, 60, 90, 660, 3600, 86400, 1795806720, -90)
    shown = ["0 s", "0.4 ms", "25 ms", "1 s", "1.3 s", "30 s", "59 s", "1 min", "1.5 min", "11 min", "1 h", "1 d"]
    assert [markup.duration(value) for value in seconds] == [*shown, "20,785 d", "−1.5 min"]


def test_views_between_two_samples_add_none() -> None:
    history, seen = History(), overview()
    for second in range(9):
        seen = history.view(families({"m": 1}), float(second))
    assert len(seen.queues[0].samples) == 1


def test_the_queues_have_plots_of_depth_rate_and_latency() -> None:
    history, seen = History(), overview()
    for second in range(0, 600, 10):
        family = HistogramMetricFamily("ackstream_queue_pickup_delay_seconds", "Pick-up", labels=LABELS)
        family.add_metric(["shop", "m"], [("0.05", float(second)), ("+Inf", float(second))], 0.0)
        seen = history.view([*families({"m": second}, acknowledged=3.0 * second), family], float(second))
    shown = content(seen, Request())
    labels = ("Ready, last 9.8 min: highest 590", "Acknowledged, last 9.7 min: highest 3.0/s")
    for label in (*labels, "Pick-up, 99 %, last 9.8 min: highest ≤ 50 ms"):
        assert f'aria-label="{label}"' in shown
    assert shown.count("<svg") == 3
    assert "<svg" not in content(overview(m=1), Request())


def test_queues_are_sorted_and_searched() -> None:
    seen = overview(a=1, b=30, c=4)
    shown = content(seen, Request.of({"sort": "ready"}))
    assert shown.index("shop.b") < shown.index("shop.c") < shown.index("shop.a")
    assert 'aria-sort="descending"' in shown
    found = content(seen, Request.of({"search": "SHOP.C"}))
    assert "shop.c" in found
    assert "shop.a" not in found
    assert Request.of({"sort": "nonsense"}).sort == "name"


def test_without_a_queue_the_page_says_how_to_make_one() -> None:
    shown = content(overview(), Request())
    assert "CREATE QUEUE jobs (payload JSON);" in shown
    assert "<table" not in shown
    assert "no queue whose name contains &lt;x&gt;" in content(overview(m=1), Request.of({"search": "<x>"}))


def test_the_page_has_one_heading_queues_and_its_search_in_the_header() -> None:
    text = document(overview(m=1), Request())
    assert text.count(">Queues</h") == 1
    assert text.index('id="search"') < text.index("</header>") < text.index("class=facts")


def test_an_idle_queue_has_no_mark_but_that_it_is_paused() -> None:
    held = GaugeMetricFamily("ackstream_queue_held_back", "Held back", labels=[*LABELS, "reason"])
    for reason in ("no_consumer", "paused"):
        held.add_metric(["shop", "m", reason], 1)
    gauge, counter, _, streams = families({"m": 0})
    shown = content(History().view([gauge, counter, held, streams], 0.0), Request())
    assert "paused</span>" in shown
    assert "no consumer" not in shown
    gauge, counter, _, streams = families({"m": 1})
    assert "no consumer</span>" in content(History().view([gauge, counter, held, streams], 0.0), Request())


def test_what_is_held_back_and_due_is_named() -> None:
    seen = History().view(families({"m": 3, "empty": 0}, paused="m"), 0.0)
    assert ">shop.m</a>: 3 due; the queue is paused: RESUME QUEUE" in content(seen, Request())
    assert ">shop.empty</a>: " not in content(seen, Request())


def test_before_the_queues_are_counted_none_is_said_to_be_well() -> None:
    streams = GaugeMetricFamily("ackstream_queue_streams", "Streams", labels=LABELS)
    streams.add_metric(["shop", "m"], 0)
    shown = content(History().view([*families({"other": 1}), streams], 0.0), Request())
    assert "Some queues are not counted yet." in shown
    assert "No queue has messages" not in shown
    assert "No queue has messages" in content(overview(m=1), Request())


def test_what_is_wrong_with_the_proxy_stands_first_in_its_colour() -> None:
    reason = "the server takes no connection: (1040) Too many connections"
    shown = content(overview(m=1), Request(), [Problem(None, reason), Problem(TableId("shop", "m"), "an index")])
    assert f"<li class=late>{reason}</li>" in shown
    assert shown.index(reason) < shown.index("an index")


def test_what_is_held_for_long_is_named_with_its_holder() -> None:
    queue = TableId("shop", "m")
    held = [
        HeldDelivery(queue, b"\xff", 2, False, 90.0, 3, 17, "worker", "10.0.0.7:4711", "mailer <1>"),
        HeldDelivery(queue, 6, 1, False, 29.0, 3, 18, "worker", "10.0.0.7:4712", "mailer 2"),
        HeldDelivery(queue, 7, 1, False, None, 3, None, None, None, None),
        HeldDelivery(queue, 8, 1, False, 720.0, 3, 19, "worker", "10.0.0.7:4713", None),
    ]
    shown = content(overview(m=1), Request(), (), held)
    section = shown[shown.index("Held longest") : shown.index("No queue has messages")]
    assert section.index("12 min") < section.index("1.5 min")
    for text in ("shop.m", "id=ff", ">0xff</a>", ">17<", "worker", "10.0.0.7:4711", "mailer &lt;1&gt;", "KILL 17"):
        assert text in section
    assert "10.0.0.7:4712" not in section
    assert "Held longest" not in content(overview(m=1), Request(), (), held[1:3])


def test_a_broken_queue_stands_first_with_what_mends_it() -> None:
    broken = GaugeMetricFamily("ackstream_queue_broken", "Broken", labels=LABELS)
    broken.add_metric(["shop", "z"], 1)
    seen = History().view([*families({"a": 1}), broken], 0.0)
    problem = Problem(TableId("shop", "z"), "GRANT UPDATE ON shop.z TO <x>", is_broken=True)
    shown = content(seen, Request(), [problem])
    assert shown.index("shop.z</a> is broken: GRANT UPDATE ON shop.z TO &lt;x&gt;") < shown.index(
        "No queue has messages"
    )
    table = shown[shown.index("<tbody>") :]
    assert table.index("shop.z</a> <span class=mark>broken</span>") < table.index("shop.a")
    assert "Problems" not in content(seen, Request())


def test_a_queue_that_is_worked_on_is_behind_and_not_stuck() -> None:
    history, shown = History(), ""
    for second in range(0, 300, 10):
        oldest = GaugeMetricFamily("ackstream_queue_oldest_ready_age_seconds", "Oldest", labels=LABELS)
        oldest.add_metric(["shop", "m"], 90.0)
        done = min(second, 200)  # From then on, nothing is acknowledged.
        seen = history.view([*families({"m": 600 - done}, float(done), paused="m"), oldest], float(second))
        shown = content(seen, Request())
        if second == 200:
            assert "shop.m</a>: 400 due, 1.0/s acknowledged: done in 6.7 min" in shown
        if 10 <= second <= 260:
            assert "shop.m</a>: 4" not in shown[: shown.index("<h2>Behind")]
    assert ">shop.m</a>: 400 due; the queue is paused" in shown
    assert "Behind" not in shown


def test_a_queue_with_long_jobs_is_stuck_only_after_a_longer_time() -> None:
    history, seen = History(), overview()
    for second in range(0, 600, 10):
        work = HistogramMetricFamily("ackstream_queue_acknowledge_delay_seconds", "Work", labels=LABELS)
        work.add_metric(["shop", "m"], [("60.0", 0.0), ("300.0", 9.0), ("+Inf", 9.0)], 0.0)
        seen = history.view([*families({"m": 5}, float(second >= 100), paused="m"), work], float(second))
        (queue,) = seen.queues
        assert queue.is_stuck == (second < 100 or second > 400), second


def test_the_page_of_a_queue_shows_what_is_known_while_the_server_is_out_of_reach() -> None:
    def shown(name: str) -> str:
        gone = Inspected(None, "the server is gone")
        return queue_content(overview(m=3), gone, (), TableId("shop", name), show_payload=False, may_act=True)

    assert shown("m").index("the server is gone") < shown("m").index("<dt>Ready</dt><dd>3</dd>")
    assert "<dt>" not in shown("broken")


def test_no_name_and_no_search_becomes_markup() -> None:
    evil = '"><script>alert(1)</script>'
    text = document(overview(**{evil: 1}), Request.of({"search": evil[:3], "sort": evil}))
    tags: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)

    Parser().feed(text)
    assert tags.count("script") == 1
    assert "<script>alert" not in text


def test_five_hundred_queues_are_a_page_of_moderate_size() -> None:
    history, seen = History(), overview()
    for second in range(0, 1200, 10):
        seen = history.view(families({f"q{number}": second for number in range(500)}), float(second))
    text = content(seen, Request())
    assert text.count("<tr>") == 501
    assert len(text) < 600_000
    assert len(COLUMNS) == 9
