"""What `.option(…)` may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.common.statements import Messages
from pipeline.errors import PipelineError
from pipeline.source.options import read_options, sink_options, stream_options

PLACE = {"url": "mysql://root@localhost:3310/shop", "table": "orders"}


def test_only_the_place_is_required() -> None:
    options = stream_options({**PLACE, "path": "", "checkpointLocation": "/somewhere"})
    assert (options.endpoint.port, options.database, options.table) == (3310, "shop", "orders")
    assert (options.where, options.columns) == (None, None)
    assert sink_options({"url": "mysql://root@h", "table": "`a b`.t"}).database == "a b"


def test_options_are_read_whatever_their_case() -> None:
    options = stream_options(
        {
            **PLACE,
            "MAXMESSAGESPERBATCH": "500",
            "columns": "id, item,epoch",
            "where": "item <> 'x'",
        }
    )
    assert (options.batch_max, options.columns) == (500, ("id", "item", "epoch"))
    assert read_options({**PLACE, "messages": "All"}).messages is Messages.ALL


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {"url": "postgres://x", "maxMessagesPerBatch": "many", "connections": "0", "maxMesagesPerBatch": "5"}
    with pytest.raises(PipelineError) as caught:
        stream_options(wrong)
    text = str(caught.value)
    assert "url: the URL must look like mysql://" in text
    assert "table: is missing" in text
    assert "maxMessagesPerBatch: must be a whole number from 1 to 1,000,000, and is 'many'" in text
    assert "connections: must be a whole number from 1 to 1,000, and is '0'" in text
    assert (
        "maxmesagesperbatch: there is no such option here; there are url, table, password, passwordFile, where" in text
    )


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"maxMessagesPerBatch": "nan"}, "maxMessagesPerBatch: must be a whole number from 1"),
        ({"messages": "all"}, "messages: there is no such option"),
        ({"table": "a.b.c"}, "table: 'a.b.c' names no table"),
        ({"url": "mysql://root@h"}, "table: 'orders' has no database"),
        ({"holdSeconds": "1"}, "holdSeconds: must be"),
        ({"password": "x", "passwordFile": "/x"}, "password: give either it or passwordFile"),
        ({"passwordFile": "/nowhere"}, "url: the password file /nowhere cannot be read"),
    ],
)
def test_a_mistake_is_told_with_the_name_of_its_option(changed: dict[str, str], complaint: str) -> None:
    with pytest.raises(PipelineError) as caught:
        stream_options({**PLACE, **changed})
    assert complaint in str(caught.value)


def test_the_password_is_an_option_a_file_or_in_the_environment_when_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text("of the file\n")
    monkeypatch.setenv("ACKSTREAM_PASSWORD", "of the environment")
    assert stream_options(PLACE).endpoint.password == "of the environment"
    assert stream_options({**PLACE, "passwordFile": str(file)}).endpoint.password == "of the file"
    assert stream_options({**PLACE, "PASSWORD": "of the option"}).endpoint.password == "of the option"
    assert "of the" not in repr(stream_options({**PLACE, "password": "of the option"}))
    monkeypatch.setenv("ACKSTREAM_PASSWORD", "another one")
    assert sink_options(PLACE).endpoint.password == "another one"


@pytest.mark.parametrize(
    ("other", "hint"),
    [
        ("query", "query: a queue is no query: `where` and `columns` choose messages"),
        ("user", "user: it belongs into the URL"),
        ("maxOffsetsPerTrigger", "maxoffsetspertrigger: use maxMessagesPerBatch"),
        ("rowsPerSecond", "rowspersecond: use maxMessagesPerBatch with a trigger interval, or the queue's MAX_RATE"),
        ("provider", "a queue is no table of Spark's catalog"),
        ("startingOffsets", "startingoffsets: a queue delivers what is not acknowledged"),
        ("dbtable", "dbtable: use table"),
    ],
)
def test_an_option_of_other_sources_is_answered_with_ours(other: str, hint: str) -> None:
    with pytest.raises(PipelineError) as caught:
        stream_options({**PLACE, other: "5"})
    assert hint in str(caught.value)
    assert "written" not in str(caught.value)


def test_a_table_of_sparks_catalog_is_answered_with_what_to_write() -> None:
    for read in (stream_options, read_options, sink_options):
        with pytest.raises(PipelineError, match=r"table: is missing .*'table', 'shop\.orders'.*save\(\), start\(\)"):
            read({"url": PLACE["url"]})


def test_unsigned_integers_are_wide_unless_an_option_says_otherwise() -> None:
    assert not stream_options(PLACE).unsigned_as_long
    assert stream_options({**PLACE, "unsignedAsLong": "True"}).unsigned_as_long
    assert not read_options({**PLACE, "unsignedAsLong": "false"}).unsigned_as_long
    with pytest.raises(PipelineError, match="unsignedAsLong: must be true or false, and is 'yes'"):
        read_options({**PLACE, "unsignedAsLong": "yes"})
