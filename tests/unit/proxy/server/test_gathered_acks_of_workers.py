"""ACKs that a worker's engine has gathered: the other workers get a notice unless the binary log shows them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.model import NS_PER_S, TableId
from engine.runtime.executor import EngineSettings
from engine.runtime.gathered_acks import AckResult
from engine.service import Engine
from engine.store.memory import MemoryStore
from engine.store.port import AckUnknownError, Origin
from proxy.server import messages
from proxy.server.shared_engine import SharedEngine

TABLE = TableId("shop", "orders")
ORIGIN = Origin(("127.0.0.1", 3306), "here")

Given = list[Callable[[AckResult], object]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """What the engine is given to answer with."""
    answers: Given = []

    def gather(_engine: Engine, *ack: object) -> bool:
        answers.append(ack[-1])  # type: ignore[arg-type]
        return True

    monkeypatch.setattr(Engine, "gather_ack", gather)
    return answers


def engine_of(notify: Callable[[object], None]) -> SharedEngine:
    store = MemoryStore(now_ns=1_000_000 * NS_PER_S)
    return SharedEngine(store, EngineSettings(), notify, lambda _: None, lambda total: total)


@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("result", [1, 0, None, AckUnknownError("the connection broke")])
def test_a_message_that_is_acknowledged_is_reported_before_its_client_is_answered(
    given: Given, result: AckResult, *, followed: bool
) -> None:
    order: list[object] = []
    engine = engine_of(order.append)
    engine.log_followed = followed
    assert engine.gather_ack(TABLE, 7, None, ORIGIN, order.append)
    given[0](result)
    reported = [messages.Acknowledged(TABLE, [7])] if result == 1 and not followed else []
    assert order == [*reported, result]


def test_a_client_is_answered_though_the_notice_fails(given: Given) -> None:
    def fails(_notice: object) -> None:
        raise OSError

    answers: list[AckResult] = []
    engine_of(fails).gather_ack(TABLE, 7, None, ORIGIN, answers.append)
    with pytest.raises(OSError):
        given[0](1)
    assert answers == [1]
