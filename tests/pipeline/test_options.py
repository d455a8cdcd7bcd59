"""What `.option(…)` may say."""

from __future__ import annotations

import pytest

from pipeline.common.statements import Messages
from pipeline.errors import PipelineError
from pipeline.source.options import read_options, sink_options, stream_options

PLACE = {"url": "mysql://root@localhost:3310/shop", "table": "orders"}


def test_only_the_place_is_required() -> None:
    options = stream_options({**PLACE, "path": "", "checkpointLocation": "/somewhere"})
    assert (options.endpoint.port, options.database, options.table) == (3310, "shop", "orders")
    assert (options.rate, options.where, options.columns) == (None, None, None)
    assert sink_options({"url": "mysql://root@h", "table": "`a b`.t"}).database == "a b"


def test_options_are_read_whatever_their_case() -> None:
    options = stream_options(
        {
            **PLACE,
            "MAXMESSAGESPERBATCH": "500",
            "maxmessagespersecond": "0.5",
            "columns": "id, item,epoch",
            "where": "item <> 'x'",
        }
    )
    assert (options.batch_max, options.rate, options.columns) == (500, 0.5, ("id", "item", "epoch"))
    assert read_options({**PLACE, "messages": "All"}).messages is Messages.ALL


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {"url": "postgres://x", "maxMessagesPerBatch": "many", "connections": "0", "maxMesagesPerSecond": "5"}
    with pytest.raises(PipelineError) as caught:
        stream_options(wrong)
    text = str(caught.value)
    assert "url: the URL must look like mysql://" in text
    assert "table: is missing" in text
    assert "maxMessagesPerBatch: must be a whole number from 1 to 1,000,000, and is 'many'" in text
    assert "connections: must be a whole number from 1 to 1,000, and is '0'" in text
    assert "maxmesagespersecond: there is no such option here; there are url, table, passwordFile, where" in text


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"maxMessagesPerSecond": "nan"}, "maxMessagesPerSecond: must be a number from 0.001"),
        ({"messages": "all"}, "messages: there is no such option"),
        ({"table": "a.b.c"}, "table: 'a.b.c' names no table"),
        ({"url": "mysql://root@h"}, "table: 'orders' has no database"),
        ({"holdSeconds": "1"}, "holdSeconds: must be"),
        ({"passwordFile": "/nowhere"}, "url: the password file /nowhere cannot be read"),
    ],
)
def test_a_mistake_is_told_with_the_name_of_its_option(changed: dict[str, str], complaint: str) -> None:
    with pytest.raises(PipelineError) as caught:
        stream_options({**PLACE, **changed})
    assert complaint in str(caught.value)
