"""`ackstream top`: what fits on a screen, whatever its width."""

from __future__ import annotations

from typing import Any

import pymysql
import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from proxy.commands.connection import Address
from proxy.commands.top import queues_table, streams_table, top
from proxy.settings import Settings

QUEUE: dict[str, Any] = {
    "Database": "shop",
    "Name": "orders",
    "State": "running",
    "Ready": 12_345,
    "Scheduled": 3,
    "In_flight": 100,
    "Dead": 2,
    "Oldest_ready_s": 12.5,
    "Enqueued_per_s": 1_234.5,
    "Acked_per_s": 1_200.0,
    "Subscribers": 4,
    "Problem": None,
}
BROKEN = {**QUEUE, "Name": "mails", "State": "broken", "Ready": None, "Problem": "its COMMENT says vt_ack_wait=soon"}
STREAM: dict[str, Any] = {
    "Id": 12,
    "User": "app",
    "Host": "10.0.0.12:34567",
    "Program": "worker.py",
    "Queue": "shop.orders",
    "Delivered": 123_456,
    "In_flight": 10,
    "Idle_s": 3.0,
}


def printed(width: int, *tables: RenderableType) -> list[str]:
    console = Console(width=width, force_terminal=False, color_system=None)
    with console.capture() as capture:
        console.print(*tables, sep="\n")
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [50, 80, 100, 200])
def test_names_states_and_the_first_numbers_fit_on_every_screen(width: int) -> None:
    _, heads, first, second, problem, *_ = printed(width, queues_table([QUEUE, BROKEN], 9, width))
    assert heads.split()[:2] == ["Queue", "State"]
    assert first.split()[:3] == ["shop.orders", "running", "12,345"]
    assert second.split()[:2] == ["shop.mails", "broken"]
    assert problem.startswith("shop.mails: its COMMENT says")
    assert max(map(len, (heads, first, second))) <= width


def test_a_wide_screen_shows_every_column() -> None:
    _, heads, first, *_ = printed(200, queues_table([QUEUE], 9, 200))
    assert len(heads.split()) == 11  # "In flight" is two words.
    assert first.split() == [
        *("shop.orders", "running", "12,345", "12", "s", "1,200.0", "100", "2", "4", "3", "1,234.5"),
    ]


def test_one_is_not_many() -> None:
    assert printed(80, queues_table([QUEUE], 9, 80))[0].strip() == "1 queue"
    assert printed(80, streams_table([], 9, 80))[0].strip() == "0 streams"


def test_a_stream_names_its_queue_and_its_connection() -> None:
    first = printed(80, streams_table([STREAM], 9, 80))[2]
    assert first.split()[:3] == ["shop.orders", "12", "10"]


def test_without_an_url_it_is_the_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def connect(address: Address, _cursor: object) -> None:
        called.append(f"{address.user}@{address.host}:{address.port}")
        raise pymysql.err.OperationalError(2003, "Connection refused")

    monkeypatch.setattr(Address, "connect", connect)
    result = CliRunner().invoke(top, ["--once"], env={"ACKSTREAM_URL": None})
    assert called == [f"root@{Settings().listen}"]
    assert "is the proxy running" in result.output
