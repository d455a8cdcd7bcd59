"""What `ackstream-report` says about queues, held against what was put into them, and the page in a real browser."""

from __future__ import annotations

import html
import math
import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pymysql.cursors import DictCursor
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline.archive import archive
from pipeline.common.connection import LazyConnection
from pipeline.common.directives import Directives
from pipeline.common.progress import Progress
from pipeline.common.ranges import condition, cut
from pipeline.common.statements import NOW, Statements, fetching
from pipeline.common.table import describe
from pipeline.endpoint import Endpoint
from pipeline.errors import JobError, PipelineError, ProblemsError
from pipeline.report import Report, measures, plots, report
from pipeline.report.archived import Archive
from pipeline.report.command import cli
from pipeline.report.history import Queue, Reading, _bounded, _fill
from pipeline.report.page import Part, duration, durations, rates, value
from tests.support.browser import look
from tests.support.proxies import RunningProxy
from tests.support.queues import create_queue, rows, run
from tests.support.servers import connect

pytestmark = pytest.mark.either_server

S = 10**9
HOUR = 3_600 * S
OWN = "tenant VARCHAR(90) CHARACTER SET utf8mb4, made DATETIME(6)"
EVIL = ("<script>alert(1)</script>", "'\"><img src=http://elsewhere.example/x.png onerror=nonsense()>", "{{ 7 * 7 }}")
TENANTS = ("acme", "Acme", "", None, "$x^2$ \\ % ünï 日本 🚀", *EVIL)
Group = tuple[str | None, str | None]
SMALL = Reading(max_connections=2, range_rows=100)


@dataclass(frozen=True)
class Message:
    """What was put into a queue. Times in nanoseconds; `made` in whole microseconds."""

    id: int
    epoch: int
    time_next: int | None
    time_acked: int | None
    tenant: str | None
    made: int


def server_now(connection: Any) -> int:
    return int(rows(connection, f"SELECT {NOW}")[0][0])


def messages(now: int, count: int) -> list[Message]:
    """Of every state, over half a day, with ids that leap."""
    chance = random.Random(1)
    found: list[Message] = []
    key = -50
    for number in range(count):
        key += 1 if number % 97 else 10**15
        made = (now - round(chance.random() ** 2 * 12 * HOUR)) // 1_000 * 1_000
        tenant = TENANTS[min(int(chance.expovariate(0.4)), len(TENANTS) - 1)]
        took = round(chance.lognormvariate(2, 2) * S)
        kind = chance.random()
        if kind < 0.7 and made + took < now:
            found.append(Message(key, chance.choice((0, 1, 1, 1, 2, 3)), None, made + took, tenant, made))
        elif kind < 0.85:
            found.append(Message(key, 0, made, None, tenant, made))
        elif kind < 0.9:
            found.append(Message(key, chance.randint(1, 3), made + took, None, tenant, made))
        elif kind < 0.95:
            made = (now - round(chance.random() * 40 * S)) // 1_000 * 1_000
            found.append(Message(key, 1, now + round(chance.random() * 30 * S), None, tenant, made))
        else:
            later = None if kind > 0.99 else now + HOUR + round(chance.random() * 9 * HOUR)
            found.append(Message(key, 0, later, None, tenant, made))
    return found


def put(connection: Any, table: str, found: Iterable[Message]) -> None:
    values = [(m.id, m.epoch, m.time_next, m.time_acked, m.tenant, m.made // 1_000) for m in found]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table} (id, epoch, time_next, time_acked, tenant, made)"
            " VALUES (%s, %s, %s, %s, %s, TIMESTAMPADD(MICROSECOND, %s, '1970-01-01'))",
            values,
        )


def told(made: Report, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The rows of an aggregate, by column and value (and the measure, or what else tells them apart)."""
    keys = {"times": ["measure"], "attempts": ["outcome", "attempts"], "over_time": ["start"]}.get(name, [])
    frame = made.frames[name]
    frame = frame.withColumn("start", f.unix_micros("start")) if name == "over_time" else frame
    found = [row.asDict() for row in frame.collect()]
    assert len({tuple(row[key] for key in ("queue", "by", "value", *keys)) for row in found}) == len(found)
    return {(row["by"], row["value"], *(row[key] for key in keys)): row for row in found}


def nearest_rank(values: list[int], percentile: float) -> float:
    rank = math.ceil(Fraction(str(percentile)) * len(values) / 100)
    return sorted(values)[max(rank, 1) - 1] / S


def state(message: Message, now: int) -> str:
    if message.time_acked is not None:
        return "acknowledged"
    if message.time_next is None:
        return "never_due"
    if message.time_next <= now:
        return "ready_again" if message.epoch else "ready"
    return "in_flight" if message.epoch else "scheduled"


def waits(found: list[Message], now: int) -> dict[str, list[int]]:
    """Each measure's values."""
    all_of_them: dict[str, list[int]] = {
        measures.CREATED: [m.time_acked - m.made for m in found if m.time_acked],
        measures.WAITING: [now - m.time_next for m in found if state(m, now) == "ready" and m.time_next],
        measures.FIRST: [
            m.time_next - 30 * S - m.made
            for m in found
            if m.time_next and m.epoch == 1 and state(m, now) == "in_flight" and m.made <= m.time_next - 30 * S <= now
        ],
    }
    return {name: values for name, values in all_of_them.items() if values}


@dataclass(frozen=True)
class Filled:
    """A queue that has been reported on, what was put into it, and its dead messages that are still unacknowledged."""

    report: Report
    messages: list[Message]
    dead: list[Message]
    now: int

    @property
    def groups(self) -> dict[Group, tuple[list[Message], list[Message]]]:
        """Messages and dead ones."""
        found: dict[Group, tuple[list[Message], list[Message]]] = defaultdict(lambda: ([], []))
        for place, those in enumerate((self.messages, self.dead)):
            for message in those:
                found[None, None][place].append(message)
                found["tenant", message.tenant][place].append(message)
        return found


@pytest.fixture
def filled(spark: SparkSession, endpoint: Endpoint, connection: Any) -> Iterator[Filled]:
    create_queue(connection, "m_dead", OWN)
    create_queue(connection, "m", OWN, max_attempts="5", dead_letter="m_dead", vt_purge_after="9999999")
    began = server_now(connection)
    found = messages(began, 1_500)
    dead = [Message(number, 5, began - number * 600 * S, None, "acme", began - HOUR) for number in range(1, 11)]
    put(connection, "m", found)
    put(connection, "m_dead", [*dead, Message(99, 5, None, began, "acme", began - 99 * HOUR)])
    told: list[Progress] = []
    made = report(spark, endpoint, ["m"], by=["tenant"], created="made", reading=SMALL, on_progress=told.append)
    assert told[0] == Progress("reading", 0, 0)
    assert told[-1] == Progress("reading", told[-1].total, told[-1].total)
    assert began <= made.history.now_ns < began + 60 * S
    yield Filled(made, found, dead, made.history.now_ns)
    made.close()


def test_every_number_is_the_one_that_the_rows_give(filled: Filled) -> None:
    volumes_are_right(filled)
    forecasts_are_right(filled)
    times_are_right(filled)
    attempts_are_right(filled)
    history_is_right(filled)


def recently(at: int | None, now: int) -> bool:
    return now - HOUR <= (at or 0) < now


def volumes_are_right(filled: Filled) -> None:
    volumes, now = told(filled.report, "volumes"), filled.now
    assert volumes.keys() == filled.groups.keys()
    for group, (those, dead) in filled.groups.items():
        row, states = volumes[group], Counter(state(message, now) for message in those)
        assert {name: row[name] for name in measures.STATES} == {name: states[name] for name in measures.STATES}
        died = sum(recently(message.time_next, now) for message in dead)
        assert (row["dead"], row["dead_settled"], row["died_recently"]) == (len(dead), len(dead) // 10, died)
        acked = [message.time_acked for message in those if message.time_acked]
        assert row["acknowledged_recently"] == sum(recently(message, now) for message in acked)
        assert row["created_recently"] == sum(recently(message.made, now) for message in (*those, *dead))
        assert (row["first_acknowledged"], row["last_acknowledged"]) == (min(acked), max(acked))
        assert row["deliveries"] == sum(message.epoch for message in those if message.time_acked)


def approximately(number: float | None) -> Any:
    return None if number is None else pytest.approx(number)


def forecasts_are_right(filled: Filled) -> None:
    forecast, now = told(filled.report, "forecast"), filled.now
    for group, (those, dead) in filled.groups.items():
        row, backlog = forecast[group], sum(message.time_acked is None for message in those)
        came = sum(recently(message.made, now) for message in (*those, *dead))
        went = sum(recently(message.time_acked, now) for message in those)
        every = [*those, *dead]
        known = [at for message in every for at in (message.made, message.time_acked, message.time_next) if at]
        settled = [now - 99 * HOUR] if group in {(None, None), ("tenant", "acme")} else []
        age_s = (now - min(at for at in (*known, *settled) if at < now)) / S
        growth = (came - went - sum(recently(message.time_next, now) for message in dead)) / min(3_600, age_s)
        assert row["unacknowledged"] == backlog
        assert row["horizon_s"] == pytest.approx(min(age_s, 86_400))
        assert row["growth_per_s"] == pytest.approx(growth)
        after = {
            hours: max(0, backlog + growth * hours * 3_600) if age_s >= hours * 3_600 else None for hours in (1, 24)
        }
        assert (row["in_an_hour"], row["in_a_day"]) == (approximately(after[1]), approximately(after[24]))
        empty_s = None if growth >= 0 else backlog / -growth
        assert row["empty_in_s"] == approximately(None if empty_s is None or empty_s > age_s else empty_s)


def times_are_right(filled: Filled) -> None:
    times = told(filled.report, "times")
    expected = {
        (*group, name): values
        for group, (those, _) in filled.groups.items()
        for name, values in waits(those, filled.now).items()
    }
    assert times.keys() == expected.keys()
    assert len(expected[None, None, measures.FIRST]) > 10
    for key, values in expected.items():
        row = times[key]
        assert (row["messages"], row["least"], row["greatest"]) == (len(values), min(values) / S, max(values) / S)
        assert row["mean"] == pytest.approx(sum(values) / len(values) / S)
        for percentile in measures.PERCENTILES:
            assert row[measures.percentile_name(percentile)] == nearest_rank(values, percentile), (key, percentile)


def test_percentiles_are_exact_for_ten_thousand_values(spark: SparkSession) -> None:
    """In any order, from any number of tasks."""
    frame = spark.range(0, 10_000, 1, 7).select((f.col("id") * 7_919 % 10_000).alias("n"))
    found = frame.agg(measures.percentiles("n")).collect()[0][0]
    assert found == [round(percentile * 100) - 1 for percentile in measures.PERCENTILES]


def attempts_are_right(filled: Filled) -> None:
    counted: Counter[Any] = Counter()
    for group, (those, dead) in filled.groups.items():
        counted.update((*group, "acknowledged", message.epoch) for message in those if message.time_acked)
        counted.update((*group, "dead", message.epoch) for message in dead)
    assert {key: row["messages"] for key, row in told(filled.report, "attempts").items()} == dict(counted)


def history_is_right(filled: Filled) -> None:
    width = filled.report.width_s * S
    first = min(message.time_acked for message in filled.messages if message.time_acked) // width
    counted: Counter[Any] = Counter()
    for group, (those, dead) in filled.groups.items():
        times = {
            "acknowledged": [message.time_acked for message in those if message.time_acked],
            "created": [message.made for message in (*those, *dead)],
            "died": [message.time_next for message in dead if message.time_next],
        }
        counted.update(
            (*group, at // width, what)
            for what, several in times.items()
            for at in several
            if first <= at // width and at < filled.now
        )
    found = {
        (*key[:2], key[2] * 1_000 // width, what): row[what]
        for key, row in told(filled.report, "over_time").items()
        for what in ("acknowledged", "created", "died")
        if row[what]
    }
    assert found == dict(counted)
    assert len({key[2] for key in found}) <= measures.BUCKETS_MAX + 1


def test_the_page_and_the_parquet_say_what_the_aggregates_say(
    spark: SparkSession, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    """And in a real browser it runs nothing, asks for nothing, and shows evil names as text."""
    create_queue(connection, "empty_one", OWN)
    create_queue(connection, "m", OWN, dead_letter="nowhere", max_attempts="5", vt_purge_after="9999999")
    found = messages(server_now(connection), 400)
    put(connection, "m", found)
    arguments = ["--url", f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}", "--out", str(tmp_path)]
    arguments += ["--table", "m", "--table", "empty_one", "--by", "tenant", "--created-column", "made"]
    result = CliRunner().invoke(cli, arguments, obj=spark)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path}/report.html\n"

    written = spark.read.parquet(f"{tmp_path}/volumes")
    (whole,) = written.where("by IS NULL").collect()
    assert whole["acknowledged"] == sum(message.time_acked is not None for message in found)
    assert {row["value"] for row in written.where("by = 'tenant'").collect()} == {message.tenant for message in found}
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        *("attempts", "forecast", "over_time", "times", "volumes")
    }

    seen = look(tmp_path / "report.html", tmp_path / "profile")
    assert (seen.complaints, seen.requests) == ([], [])
    assert not re.search(r"<(script|img|iframe|object)\b", seen.dom)
    text = html.unescape(re.sub(r"<[^>]*>", " ", seen.dom))
    for name in EVIL:
        assert name in text
    assert f"{whole['acknowledged']} acknowledged, kept" in re.sub(r"\s+", " ", text)
    assert "NULL" in text
    assert "(empty)" in text
    assert "This queue is empty:" in text
    assert "dead-letter table nowhere is none, or this account may not look at it" in re.sub(r"\s+", " ", text)
    assert seen.dom.count("<svg") == 5
    # On a phone a plot keeps the size of its text, and is moved sideways.
    assert len(re.findall(r'<div class="wide"><svg [^>]*style="--width: (?:504|828)"', seen.dom)) == 5
    assert "@media screen { svg { min-width: calc(var(--width) * 1px); } }" in seen.dom


def stable(made: Report) -> dict[str, Any]:
    """What does not depend on the moment, nor, as a mean does, on the order of rows."""
    volumes = {
        key: (row["acknowledged"], row["unacknowledged"], row["deliveries"], row["first_acknowledged"])
        for key, row in told(made, "volumes").items()
    }
    times = {
        key: {name: row[name] for name in row.keys() - {"mean"}}
        for key, row in told(made, "times").items()
        if key[2] in {measures.CREATED, measures.DUE}
    }
    return {"volumes": volumes, "times": times, "attempts": told(made, "attempts")}


def test_what_was_archived_counts_as_if_it_were_still_in_the_queue(
    spark: SparkSession, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    create_queue(
        connection, "m", f"{OWN}, raw BINARY(2) DEFAULT x'00ff', due TIMESTAMP(6) NULL", vt_purge_after="9999999"
    )
    put(connection, "m", messages(server_now(connection), 600))
    run(connection, "UPDATE m SET due = TIMESTAMPADD(SECOND, 1, made)")
    named: Any = {"created": "made", "due": "due", "reading": SMALL}
    made = report(spark, endpoint, ["m"], by=["tenant", "raw"], **named)
    before = stable(made)
    made.close()

    # In two runs, so that the older one is without a column that was added since.
    archive(spark, endpoint, "m", str(tmp_path), keep_s=3 * 3_600)
    run(connection, "ALTER TABLE m ADD region VARCHAR(9)")
    archive(spark, endpoint, "m", str(tmp_path), keep_s=3_600)
    assert 0 < rows(connection, "SELECT COUNT(time_acked) FROM m")[0][0] < before["volumes"][None, None][0] / 2
    archives = {"m": str(tmp_path)}
    made = report(spark, endpoint, ["m"], by=["tenant", "raw", "region"], archives=archives, **named)
    after = stable(made)
    assert after["volumes"]["region", None] == before["volumes"][None, None]
    assert {
        name: {key: row for key, row in found.items() if key[0] != "region"} for name, found in after.items()
    } == before
    assert made.history.incomplete == frozenset()
    made.close()
    with pytest.raises(ProblemsError, match=r"made is datetime\(6\), whose values are not written alike"):
        report(spark, endpoint, ["m"], archives=archives, by=["made"])

    found = Archive.at(spark, str(tmp_path), describe(connection, str(endpoint.database), "m"))
    assert (len(found.chunks), found.has_changed) == (2, False)
    shutil.copy(tmp_path / "runs/000002.json", tmp_path / "runs/000003.json")
    assert found.has_changed
    with pytest.raises(PipelineError, match="is under way, or was stopped"):
        report(spark, endpoint, ["m"], archives=archives)


def test_the_browser_of_these_tests_notices_scripts_and_requests(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("<body><img src='https://a.example/x.png'><script>nonsense()</script></body>")
    seen = look(page, tmp_path / "profile")
    assert seen.requests == ["https://a.example/x.png"]
    assert "nonsense is not defined" in "".join(seen.complaints)


def test_what_cannot_be_known_is_said_to_be_unknown(
    spark: SparkSession, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    create_queue(connection, "m", OWN, vt_purge_after="600")
    now = server_now(connection)
    put(connection, "m", [Message(1, 1, None, now - 5 * S, "a", now), Message(2, 1, now + 20 * S, None, "a", now)])
    made = report(spark, endpoint, ["m"], window_s=7_200)
    assert made.window_s == 600  # What was acknowledged before is gone, and is no part of a rate.
    assert told(made, "times") == {}
    row = told(made, "forecast")[None, None]
    assert (row["created_per_s"], row["growth_per_s"], row["in_a_day"]) == (None, None, None)
    assert row["acknowledged_per_s"] == pytest.approx(1 / 600)
    text = Path(made.write(str(tmp_path))).read_text()
    assert "Where it goes is not known" in text
    assert "No time is known" in text
    made.close()


def test_a_column_for_when_messages_were_due_counts_before_the_one_for_when_they_were_made(
    spark: SparkSession, endpoint: Endpoint, connection: Any
) -> None:
    create_queue(connection, "m", "`made, `` ?` TIMESTAMP(6) NULL, due BIGINT")
    now = server_now(connection)
    run(
        connection,
        "INSERT INTO m (epoch, time_next, time_acked, `made, `` ?`, due) VALUES"
        f" (1, NULL, {now - S}, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, {now - 4 * S}),"
        f" (1, {now + 25 * S}, NULL, UTC_TIMESTAMP(6) - INTERVAL 1 HOUR, {now - 7 * S})",
    )
    made = report(spark, endpoint, ["m"], by=["made, ` ?"], created="made, ` ?", due="due")
    times = {key[2]: row["p50"] for key, row in told(made, "times").items() if key[0] is None}
    assert times.pop(measures.CREATED) == pytest.approx(3_599, abs=30)
    assert times == {measures.DUE: 3.0, measures.FIRST: 2.0}
    made.close()


IDS = {
    "BIGINT UNSIGNED": [*range(900), *range(2**64 - 400, 2**64 - 1)],
    "INT": [*range(-2_000, -1_500), 2**31 - 1],
    "VARCHAR(20)": [f"k'\\{number:x}" for number in range(700)],
    "BINARY(3)": [number.to_bytes(3, "big") for number in range(0, 7_000, 10)],
    "DECIMAL(30,5)": [f"{number}.00{number:03d}" for number in range(500)],
}


@pytest.mark.parametrize("kind", IDS)
def test_ranges_of_any_kind_of_id_have_each_row_once(endpoint: Endpoint, connection: Any, kind: str) -> None:
    table = "m (id %s PRIMARY KEY, priority INT, epoch BIGINT, time_next BIGINT, time_acked BIGINT, KEY (time_acked))"
    run(connection, f"CREATE TABLE {table % kind} COMMENT 'vitess_message'")
    with connection.cursor() as cursor:
        cursor.executemany("INSERT INTO m (id) VALUES (%s)", [(key,) for key in IDS[kind]])
        cursor.execute("ANALYZE TABLE m")
    statements = Statements(describe(connection, str(endpoint.database), "m"))
    lazy, queries = LazyConnection(endpoint), []

    def fetched(statement: str) -> Any:
        queries.append(statement)
        return lazy.run(fetching(statement))

    found = cut(statements, fetched, 100)
    counts = [
        rows(connection, f"SELECT COUNT(*) FROM m WHERE {condition(statements, bounds)}")[0][0] for bounds in found
    ]
    assert sum(counts) == len(IDS[kind])
    assert max(counts) <= 250  # The server's estimates are no counts.
    assert len(found) <= len(IDS[kind]) / 100 + 20
    assert len(queries) < 300
    lazy.close()


def test_a_queue_that_keeps_its_acknowledged_messages_in_partitions(
    spark: SparkSession, endpoint: Endpoint, connection: Any
) -> None:
    run(connection, f"CREATE QUEUE m ({OWN}) RETENTION BY PARTITION PURGE_AFTER = 999999")
    now = server_now(connection)
    put(connection, "m", [Message(number, 1, None, now - number * S, "a", now) for number in range(1, 900)])
    made = report(spark, endpoint, ["m"], reading=SMALL)
    assert told(made, "volumes")[None, None]["acknowledged"] == 899
    made.close()


def test_a_queue_with_semaphores_a_limit_of_groups_and_batches(
    spark: SparkSession, endpoint: Endpoint, connection: Any
) -> None:
    """By group and by semaphore. A message that waits for a place is due, and so ready. One that waits for its batch is
    ready until a proxy has set it aside, and scheduled then."""
    run(connection, "CREATE SEMAPHORE mail CAPACITY 1")
    run(connection, "CREATE QUEUE m (tenant INT, body INT) GROUP_BY = (tenant) GROUP_LIMIT = 2 BATCHES")
    run(connection, "CREATE QUEUE s (needs VARCHAR(40), batch BIGINT) SEMAPHORES = (needs) ACK_WAIT = 3600")
    run(connection, "INSERT INTO m (tenant, batch, after_batch) VALUES (1, 7, NULL), (1, 7, NULL), (2, NULL, 7)")
    run(connection, "INSERT INTO s (needs) VALUES ('mail'), ('mail'), ('mail'), (NULL)")
    run(connection, "STREAM id FROM s LIMIT 3 NOWAIT")
    made = report(spark, endpoint, ["m"], reading=SMALL)
    volumes = told(made, "volumes")
    assert {key: row["ready"] + row["scheduled"] for key, row in volumes.items()} == {
        (None, None): 3,
        ("tenant", "1"): 2,
        ("tenant", "2"): 1,
    }
    assert volumes["tenant", "1"]["ready"] == 2
    made.close()
    made = report(spark, endpoint, ["s"], by=["needs"], reading=SMALL)
    found = {key: (row["ready"], row["in_flight"]) for key, row in told(made, "volumes").items()}
    assert found == {(None, None): (2, 2), ("needs", "mail"): (2, 1), ("needs", None): (0, 1)}
    made.close()


def test_ids_that_are_text_travel_as_they_are(spark: SparkSession, endpoint: Endpoint, connection: Any) -> None:
    run(connection, "CREATE QUEUE m (id VARCHAR(20) PRIMARY KEY, raw BINARY(2), flag BIT(3))")
    with connection.cursor() as cursor:
        ids = [(f"? '{{fn \\{number}",) for number in range(500)]
        cursor.executemany("INSERT INTO m (id, raw, flag) VALUES (%s, x'00ff', b'101')", ids)
    made = report(spark, endpoint, ["m"], by=["raw", "flag"], reading=SMALL)
    ready = {key: row["ready"] for key, row in told(made, "volumes").items()}
    assert ready == {(None, None): 500, ("raw", "00FF"): 500, ("flag", "5"): 500}
    made.close()


@pytest.mark.parametrize(("allowed", "partitions"), [(1, 1), (5, 8)])
def test_no_more_tasks_run_at_once_than_there_may_be_connections(
    spark: SparkSession, allowed: int, partitions: int
) -> None:
    """Two run at once here."""
    assert _bounded(spark.range(0, 100, 1, 8), allowed).rdd.getNumPartitions() == partitions


def test_the_server_sorts_nothing_and_has_no_more_connections_than_allowed(
    spark: SparkSession, private_server: Any, private_proxy: RunningProxy
) -> None:
    with connect(private_server) as root:
        run(root, "CREATE DATABASE d")
        run(root, "USE d")
        create_queue(root, "m", OWN, vt_purge_after="9999999")
        now = server_now(root)
        put(root, "m", [Message(number, 1, None, now - number, "a", now) for number in range(1, 4_001)])
        run(root, "ANALYZE TABLE m")
        run(root, "CREATE USER reporter@localhost")
        run(root, "GRANT SELECT ON d.m TO reporter@localhost")
        run(root, "SET GLOBAL log_output = 'TABLE'")
        run(root, "SET GLOBAL general_log = ON")
        endpoint = Endpoint(private_proxy.host, private_proxy.port, "reporter", database="d")
        made = report(spark, endpoint, ["m"], by=["tenant"], created="made", reading=Reading(2, 200))
        run(root, "SET GLOBAL general_log = OFF")
        assert told(made, "volumes")[None, None]["acknowledged"] == 4_000
        made.close()
        columns = "thread_id, command_type, CONVERT(argument USING utf8mb4)"
        log = rows(root, f"SELECT {columns} FROM mysql.general_log ORDER BY event_time")
        its_own = {thread for thread, command, text in log if command == "Connect" and text.startswith("reporter@")}
        open_ones, most = set(), 0
        for thread, command, _ in log:
            if thread in its_own:
                open_ones.discard(thread) if command == "Quit" else open_ones.add(thread)
                most = max(most, len(open_ones))
        assert len(its_own) > 10
        assert most <= 2

        said = [text for thread, command, text in log if thread in its_own and command in {"Query", "Execute"}]
        reading = [text for text in said if re.search(r"\bFROM\b.*`m`", text) and not text.startswith("EXPLAIN")]
        assert sum("ORDER BY id LIMIT" in text for text in reading) > 10
        for text in reading:
            _reads_along_the_key(root, text)


def _reads_along_the_key(root: Any, statement: str) -> None:
    with root.cursor(DictCursor) as cursor:
        cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL {statement}")
        (plan,) = cursor.fetchall()
    extra = plan["Extra"] or ""
    assert "filesort" not in extra, statement
    assert "temporary" not in extra, statement
    # Without a table: answered from the ends of the key, or empty by its condition (Spark asks for the columns so).
    assert plan["table"] is None or (plan["key"], plan["type"]) == ("PRIMARY", "range"), (statement, plan)


def test_ranges_that_could_not_be_read_are_read_in_another_round(
    spark: SparkSession, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Spark tries a task three times; those that have succeeded are not repeated."""
    place = str(tmp_path)

    @f.udf("bigint", useArrow=False)
    def fragile(number: int) -> int:
        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()
        tries = len(list(Path(place).glob(f"{part}-*")))
        (Path(place) / f"{part}-{tries}").touch()
        if part == 1 and tries < 4:
            raise OSError
        return number

    frame = spark.range(0, 2, 1, 2).select(fragile("id").alias("n")).persist()
    with pytest.raises(JobError, match="the queues could not be read"):
        _fill(frame, endpoint, 1)
    _fill(frame, endpoint, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "1-0", "1-1", "1-2", "1-3", "1-4"]
    frame.unpersist()


def test_all_that_is_wrong_is_said_at_once(spark: SparkSession, endpoint: Endpoint, connection: Any) -> None:
    create_queue(connection, "m", OWN)
    run(connection, "CREATE TABLE plain (id INT PRIMARY KEY, tenant INT, made DATE)")
    with pytest.raises(ProblemsError) as caught:
        report(spark, endpoint, ["m", "plain"], by=["tenant", "region"], created="made", due="tenant")
    assert [re.sub(r"^\S+: ", "", problem)[:24] for problem in caught.value.problems] == [
        "has no column region; it",
        "tenant is varchar(90), w",
        "is no message table (CRE",
        "has no column region; it",
        "made is date, which is n",
        next(text for text in ("tenant is int, which is ", "tenant is int(11), which") if text in str(caught.value)),
    ]
    url = f"mysql://root@{endpoint.host}:{endpoint.port}/{endpoint.database}"
    result = CliRunner().invoke(cli, ["--url", url, "--table", "nowhere", "--out", "x"], obj=spark)
    assert (result.exit_code, result.stderr.splitlines()[-1][:41]) == (
        2,
        "ackstream-report: there is no table `" + "test",
    )


def test_durations_rates_and_values_as_people_read_them() -> None:
    said = [duration(seconds) for seconds in (None, 0, 0.0000042, 0.0123, 1.5, 59.99, 60, 3_599.7, 86_400, 187_200, -3)]
    assert said == ["–", "0 s", "0.004 ms", "12.3 ms", "1.5 s", "60 s", "1 min", "1 h", "1 d", "2 d 4 h", "−3 s"]
    assert [value(cell) for cell in (None, "", "x")] == ["NULL", "(empty)", "x"]


def test_a_column_has_one_unit_by_its_median() -> None:
    seconds = durations([0.2, 90.0, 4_000.0])
    assert (seconds.name, seconds(0.2), seconds(90.0), seconds(None)) == ("min", "0.003", "1.5", "–")
    assert [durations(values).name for values in ([0.02], [30], [7_200], [200_000], [], [None, 0])] == [
        *("ms", "s", "h", "d", "s", "s"),
    ]
    per = rates([0.5, 0.001, -2.0])
    assert (per.name, per(0.5), per(-2.0), per(0)) == ("/min", "30", "-120", "0")
    assert rates([None]).name == "/h"


def test_what_a_table_of_values_leaves_out_is_said() -> None:
    rows = [{"messages": 10} for _ in range(20)]
    part = Part(Queue(None), {}, {"tenant": rows, "few": rows[:3]}, {"tenant": (50, 260), "few": (3, 30)})  # type: ignore[arg-type]
    assert part.left_out("tenant") == (
        "The plot has the first 12 rows of the table. 30 more values with 60 messages are in Parquet alone."
    )
    assert part.left_out("few") == ""


def test_a_meaning_has_one_colour_of_its_own() -> None:
    page = (Path(plots.__file__).with_name("page.html.jinja")).read_text()
    assert len({*plots.COLOURS.values()}) == len(plots.COLOURS)
    for variable in [name for name in plots._VARIABLES.values() if name.startswith("var(--") and name != "var(--line)"]:
        assert page.count(f"{variable[4:-1]}: #") == 2  # light, and dark


def test_six_minutes_of_load_are_no_forecast_for_tomorrow(
    spark: SparkSession, endpoint: Endpoint, connection: Any, tmp_path: Path
) -> None:
    """And a queue whose messages have groups is reported on by group without being told."""
    create_queue(connection, "m", OWN, vt_purge_after="9999999", group_by="tenant")
    now = server_now(connection)
    made = [now - (360 - number) * S for number in range(360)]
    put(connection, "m", [Message(n, 0, at, None, "ab"[n % 2], at) for n, at in enumerate(made, 1)])
    with_created = report(spark, endpoint, ["m"], created="made")
    row = told(with_created, "forecast")[None, None]
    assert row["horizon_s"] == pytest.approx(360, abs=60)
    assert row["created_per_s"] == pytest.approx(1, rel=0.2)
    assert (row["in_an_hour"], row["in_a_day"]) == (None, None)
    assert {key for key in told(with_created, "volumes") if key[0]} == {("tenant", "a"), ("tenant", "b")}
    text = Path(with_created.write(str(tmp_path))).read_text()
    assert "unacknowledged in a day" not in text
    assert re.search(r"It reaches [67] min( \d+ s)? ahead, as far as the data reaches back", text)
    with_created.close()


@pytest.mark.parametrize(
    ("comment", "wait_s"),
    [
        ("vitess_message,vt_ack_wait=30", 30),
        ("a queue, vitess_message , vt_ack_wait = 1.5 ,x", 1.5),
        ("vitess_message,vt_ack_wait=5,vt_min_backoff=10,vt_max_backoff=20", 10),
        ("vitess_message,vt_ack_wait=50,vt_max_backoff=20", 20),
        ("vitess_message,vt_ack_wait=soon", None),
        ("vitess_message", None),
    ],
)
def test_the_wait_of_a_first_delivery_is_what_the_comment_says(comment: str, wait_s: float | None) -> None:
    queue = Queue(None, None, Directives(comment))  # type: ignore[arg-type]  # the comment is enough
    assert queue.first_wait_ns == (None if wait_s is None else wait_s * S)


def test_a_plot_over_time_has_no_more_points_than_can_be_seen() -> None:
    for span_s in (0, 1, 100, 3_600, 86_400, 10**7, 10**10):
        assert span_s / measures.width_for(span_s) <= measures.BUCKETS_MAX
