"""Files into a queue: cut along the files where that makes good slices, and cut the same way when it is run again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline.common.ledger import WITHHELD_NS
from pipeline.endpoint import Endpoint
from pipeline.enqueue import Mode, Outcome, enqueue
from pipeline.enqueue.checking import Facts
from pipeline.enqueue.cut import PIECES_MAX, Piece, by_files
from pipeline.enqueue.direct import Direct
from pipeline.enqueue.fingerprint import Sums
from pipeline.enqueue.load import Settings, serves
from pipeline.enqueue.mapping import Mapped
from pipeline.enqueue.staged import Staged
from pipeline.errors import JobError, PipelineError
from tests.support.queues import rows, run

pytestmark = pytest.mark.either_server

MESSAGES = 4000
FILES = 20
SETTINGS = Settings(slice_rows=100, look_s=0.05)
OTHERWISE = Settings(slice_rows=1000, slice_octets=1 << 30, max_connections=2, look_s=0.05)
"""By which files would be cut otherwise, if the ledger did not say how."""

CREATE = "CREATE QUEUE m (payload VARCHAR(100) NOT NULL)"
IN_2030 = 1_893_456_000 * 1_000_000_000

Save = Callable[..., DataFrame]
Fill = Callable[..., Outcome]


def messages(spark: SparkSession, count: int = MESSAGES) -> DataFrame:
    return spark.range(count).select("id", f.format_string("message %d", "id").alias("payload"))


@pytest.fixture
def save(spark: SparkSession, tmp_path: Path) -> Save:
    """Write a frame as files, and what reads them."""

    def call(frame: DataFrame, kind: str = "parquet", files: int = FILES, name: str = "source") -> DataFrame:
        path = str(tmp_path / name)
        frame.repartition(files).write.format(kind).mode("overwrite").save(path)
        return read(spark, path, frame, kind)

    return call


def read(spark: SparkSession, path: str, like: DataFrame, kind: str = "parquet") -> DataFrame:
    return spark.read.schema(like.schema).format(kind).load(path)


@pytest.fixture(params=["streaming", "atomic"])
def mode(request: pytest.FixtureRequest) -> Mode:
    chosen: Mode = request.param
    return chosen


@pytest.fixture
def fill(endpoint: Endpoint, mode: Mode) -> Fill:
    def call(frame: DataFrame, **options: Any) -> Outcome:
        return enqueue(frame, endpoint, "m", **{"batch": "b", "mode": mode, "settings": SETTINGS, **options})

    return call


@pytest.fixture
def fill_in_part(fill: Fill, mode: Mode) -> Fill:
    """A run that ends when three slices are written."""
    way = Direct if mode == "streaming" else Staged
    write = way.write

    def some(self: Any, wanted: Sequence[int]) -> None:
        write(self, wanted[1:7:2])

    def call(frame: DataFrame, **options: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(way, "write", some)
            with pytest.raises(JobError, match="messages could not be written"):
                fill(frame, **{"settings": Settings(slice_rows=100, look_s=0.05, rounds=1), **options})

    return call  # type: ignore[return-value]


def cut(connection: Any) -> tuple[int | None, int]:
    """What the ledger says: into pieces of how many bytes files were cut, and how many slices there are."""
    ((file_octets, slices),) = rows(connection, "SELECT file_octets, slices FROM ackstream_batches")
    return file_octets, slices


def each_is_there_once(connection: Any, count: int = MESSAGES) -> bool:
    """The payloads are all there, once, and none is held back."""
    found = sorted(payload for (payload,) in rows(connection, "SELECT payload FROM m"))
    held = rows(connection, f"SELECT COUNT(*) FROM m WHERE time_next >= {WITHHELD_NS}")
    return (found, held) == (sorted(f"message {number}" for number in range(count)), [(0,)])


@pytest.fixture
def other_settings(spark: SparkSession) -> Any:
    """The session cuts files otherwise, until the test ends."""
    changed = {"maxPartitionBytes": "1000", "openCostInBytes": "1", "minPartitionNum": "50"}

    def call() -> dict[str, str]:
        for name, value in changed.items():
            spark.conf.set(f"spark.sql.files.{name}", value)
        return spark.conf.getAll

    yield call
    for name in changed:
        spark.conf.unset(f"spark.sql.files.{name}")


# --- which way ---


@pytest.mark.parametrize(("kind", "files"), [("parquet", FILES), ("orc", FILES), ("json", FILES), ("csv", 1)])
def test_rows_as_they_come_from_files_are_cut_along_them_and_so_again_with_other_settings(
    endpoint: Endpoint, connection: Any, spark: SparkSession, save: Save, kind: str, files: int, other_settings: Any
) -> None:
    run(connection, CREATE)
    frame = save(messages(spark), kind, files).where("id >= 0").select("payload")
    assert enqueue(frame, endpoint, "m", batch="b", settings=SETTINGS).added
    assert each_is_there_once(connection)
    file_octets, slices = cut(connection)
    assert file_octets == 12_800
    assert 4 <= slices <= FILES
    before = other_settings()
    assert not enqueue(frame, endpoint, "m", batch="b", settings=OTHERWISE).added
    assert spark.conf.getAll == before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda frame: frame.repartition(9), id="shuffled"),
        pytest.param(lambda frame: frame.coalesce(9), id="put-together"),
        pytest.param(lambda frame: frame.distinct(), id="aggregated"),
        pytest.param(lambda frame: frame.join(frame.select("id"), "id"), id="joined"),
        pytest.param(lambda frame: frame.where("id < 0").union(frame), id="of-two-scans"),
        pytest.param(lambda frame: frame.limit(MESSAGES), id="limited"),
        pytest.param(lambda frame: frame.cache(), id="cached"),
        pytest.param(lambda frame: frame.sparkSession.range(MESSAGES), id="of-no-files"),
    ],
)
def test_rows_that_came_in_any_other_way_are_not(
    spark: SparkSession, save: Save, change: Callable[[DataFrame], DataFrame]
) -> None:
    frame = save(messages(spark)).select("id", "payload")
    assert by_files(Mapped(frame, ()), 12_800, Sums()) is not None
    assert by_files(Mapped(change(frame), ()), 12_800, Sums()) is None


def test_very_many_files_are_put_together_so_that_there_are_not_too_many_slices(
    spark: SparkSession, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = Mapped(save(messages(spark)), ())
    apart = by_files(mapped, 1_000, Sums())
    monkeypatch.setattr("pipeline.enqueue.cut.PIECES_MAX", 8)
    together = by_files(mapped, 1_000, Sums())
    assert apart is not None
    assert apart.partitions > FILES
    assert together is not None
    assert 4 <= together.partitions <= 8


def test_files_whose_pieces_are_too_large_for_a_transaction_are_cut_by_hash(
    fill: Fill, connection: Any, spark: SparkSession, save: Save
) -> None:
    """A row group of a Parquet file is always in one piece."""
    run(connection, CREATE)
    frame = save(messages(spark), files=1).select("payload")
    assert fill(frame).added
    assert cut(connection) == (None, 64)
    assert each_is_there_once(connection)
    assert not fill(frame, settings=OTHERWISE).added


def of(*sizes: int, octets: int = 100) -> Facts:
    return Facts(tuple(Piece(size, (), size * octets) for size in sizes))


@pytest.mark.parametrize(
    ("facts", "cores", "serves_well"),
    [
        pytest.param(of(0, 500_000, 0, 500_000), 2, True, id="row-groups"),
        pytest.param(of(0, 500_000, 0, 500_000), 8, False, id="row-groups-and-six-idle-cores"),
        pytest.param(of(5000), 8, True, id="too-little-for-more-than-one"),
        pytest.param(of(), 8, True, id="nothing"),
        pytest.param(of(*[100_000] * 9, 1_000_001, octets=10), 2, False, id="a-piece-of-too-many-rows"),
        pytest.param(of(*[100_000] * 9, 101_000, octets=1000), 2, False, id="a-piece-of-too-many-octets"),
        pytest.param(of(*[500_000] * PIECES_MAX, octets=200), 2, True, id="more-than-ever-fits-into-so-many-slices"),
    ],
)
def test_pieces_of_files_are_slices_if_none_is_too_large_and_they_are_not_too_few(
    facts: Facts, cores: int, *, serves_well: bool
) -> None:
    tasks = sum(piece.rows > 0 for piece in facts.pieces)
    assert serves(facts, tasks, Settings(), cores) is serves_well


def test_pieces_that_few_tasks_can_write_do_not_serve() -> None:
    assert serves(of(*[100_000] * 9), 1, Settings(), 2)
    assert not serves(of(*[100_000] * 9), 1, Settings(), 4)


@pytest.fixture
def chunks_of_300(monkeypatch: pytest.MonkeyPatch) -> None:
    """New batches have slices of so many rows at most."""
    monkeypatch.setattr("pipeline.enqueue.job.Sums", partial(Sums, chunk_rows=300))


@pytest.mark.usefixtures("chunks_of_300")
@pytest.mark.parametrize("spread_s", [None, 60.0])
def test_a_part_of_a_file_that_only_one_task_can_read_is_several_slices(
    fill: Fill, connection: Any, spark: SparkSession, save: Save, spread_s: float | None
) -> None:
    """A row group of a Parquet file is always in one partition."""
    run(connection, CREATE)
    frame = save(messages(spark), files=1).select("payload")
    assert fill(frame, spread_s=spread_s).added
    file_octets, slices = cut(connection)
    assert file_octets is not None
    assert slices >= -(-MESSAGES // 300)  # Partitions without rows have one, too.
    assert each_is_there_once(connection)
    assert not fill(frame, settings=OTHERWISE, spread_s=spread_s).added
    with pytest.raises(PipelineError, match="other data"):
        fill(save(messages(spark, MESSAGES + 1), files=1).select("payload"))


@pytest.mark.usefixtures("chunks_of_300")
def test_neighbouring_pieces_are_one_slice_if_there_would_be_too_many(
    fill: Fill, connection: Any, spark: SparkSession, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(connection, CREATE)
    frame = save(messages(spark), files=1).select("payload")
    monkeypatch.setattr("pipeline.enqueue.cut.PIECES_MAX", 8)
    assert fill(frame, settings=OTHERWISE).added
    assert cut(connection)[1] <= 8
    assert each_is_there_once(connection)
    assert not fill(frame, settings=OTHERWISE).added


@pytest.mark.usefixtures("chunks_of_300")
def test_of_such_a_part_what_is_missing_is_written_by_a_rerun(
    fill: Fill, fill_in_part: Fill, connection: Any, spark: SparkSession, save: Save
) -> None:
    run(connection, CREATE)
    frame = save(messages(spark), files=2).select("payload")
    fill_in_part(frame)
    assert cut(connection)[1] > 2
    assert fill(frame, settings=OTHERWISE).added
    assert each_is_there_once(connection)


# --- once, whatever happens in between ---


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", ["plain", "ids", "times", "spread", "by-hash"])
def test_a_rerun_with_other_settings_adds_what_is_missing(
    fill: Fill,
    fill_in_part: Fill,
    mode: Mode,
    connection: Any,
    spark: SparkSession,
    save: Save,
    other_settings: Any,
    way: str,
) -> None:
    own_id = "id VARBINARY(16) NOT NULL PRIMARY KEY, " if way == "ids" else ""
    run(connection, f"CREATE QUEUE m ({own_id}payload VARCHAR(100) NOT NULL)")
    frame = save(messages(spark)).repartition(3) if way == "by-hash" else save(messages(spark))
    options: dict[str, Any] = {"mapping": {"payload": "payload"}}
    if way == "ids":
        options["mapping"]["id"] = "unhex(md5(CAST(id AS STRING)))"
    if way == "times":
        options["mapping"]["time_next"] = f"{IN_2030} + id"
    if way == "spread":
        options["spread_s"] = 1000.0
    fill_in_part(frame, **options)
    there = rows(connection, "SELECT COUNT(*) FROM m")[0][0]
    assert 0 < there < MESSAGES if mode == "streaming" else there == 0
    begun_with = cut(connection)
    assert (begun_with[0] is None) == (way == "by-hash")
    other_settings()
    assert fill(frame, **options, settings=OTHERWISE).messages == MESSAGES
    assert cut(connection) == begun_with
    assert each_is_there_once(connection)
    if way == "times":
        assert rows(
            connection, f"SELECT COUNT(*) FROM m WHERE payload = CONCAT('message ', time_next - {IN_2030})"
        ) == [(MESSAGES,)]
    if way == "spread":
        first, last, different = rows(
            connection, "SELECT MIN(time_next), MAX(time_next), COUNT(DISTINCT time_next) FROM m"
        )[0]
        assert 990e9 < last - first < 1000e9
        assert different > 0.9 * MESSAGES


def test_more_pieces_than_connections(fill: Fill, connection: Any, spark: SparkSession, save: Save) -> None:
    """With two connections one task writes them all, in one transaction."""
    run(connection, CREATE)
    frame = save(messages(spark)).select("payload")
    fill(frame, settings=Settings(slice_rows=100, max_connections=2, look_s=0.05))
    assert cut(connection)[0] is not None
    assert cut(connection)[1] > 3
    assert each_is_there_once(connection)


@pytest.mark.parametrize("change", ["another row", "another order"])
def test_files_that_changed_since_the_batch_was_begun_are_refused(
    fill: Fill, fill_in_part: Fill, connection: Any, spark: SparkSession, tmp_path: Path, change: str
) -> None:
    run(connection, CREATE)
    path = tmp_path / "source"
    path.mkdir()
    lines = [f"message {number}\n" for number in range(MESSAGES)]
    for number in range(FILES):
        (path / f"{number}.txt").write_text("".join(lines[number::FILES]))

    def frame() -> DataFrame:
        return spark.read.text(str(path)).withColumnRenamed("value", "payload")

    fill_in_part(frame())
    changed = path / "7.txt"
    before = changed.read_text()
    others = before.replace("message 7\n", "message X\n") if change == "another row" else "".join(lines[-13::-FILES])
    assert (others != before, len(others)) == (True, len(before))
    changed.write_text(others)
    with pytest.raises(
        PipelineError,
        match=r"was begun with other data \(4,000 messages\), or with files that Spark lists or cuts otherwise",
    ):
        fill(frame())
    changed.write_text(before)
    assert fill(frame()).added
    assert each_is_there_once(connection)


def test_a_batch_begun_with_files_is_refused_in_any_other_form(
    fill: Fill, fill_in_part: Fill, connection: Any, spark: SparkSession, save: Save
) -> None:
    run(connection, CREATE)
    frame = save(messages(spark)).select("payload")
    fill_in_part(frame)
    with pytest.raises(PipelineError, match="was begun with rows as they came from files"):
        fill(frame.repartition(3))
    assert fill(frame).added
    assert each_is_there_once(connection)
