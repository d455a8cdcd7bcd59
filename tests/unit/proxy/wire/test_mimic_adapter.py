"""What ackstream needs of mysql-mimic: a release whose numbers are not the protocol's fails here."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from types import ModuleType

import pytest
from pymysql.constants import CLIENT, COMMAND, FIELD_TYPE, SERVER_STATUS

from proxy.wire import mimic_adapter
from proxy.wire.mimic_adapter import (
    Capabilities,
    ColumnType,
    Commands,
    IncompatibleVersionError,
    ServerStatus,
    uint_len,
)

KINDS: list[tuple[type[IntEnum | IntFlag], ModuleType, str]] = [
    (Capabilities, CLIENT, "CLIENT_"),
    (Commands, COMMAND, ""),
    (ColumnType, FIELD_TYPE, ""),
    (ServerStatus, SERVER_STATUS, ""),
]
"""Enumerations of mysql-mimic's, and the modules in which PyMySQL has the same numbers."""


def test_the_installed_release_fits() -> None:
    mimic_adapter.check()


def test_its_numbers_are_those_that_another_library_has() -> None:
    pairs = [
        (f"{ours.__name__}.{prefix}{name}", int(ours[prefix + name]), value)
        for ours, theirs, prefix in KINDS
        for name, value in vars(theirs).items()
        if prefix + name in ours.__members__
    ]
    assert len(pairs) > 60
    assert [(name, ours) for name, ours, theirs in pairs if ours != theirs] == []


def test_a_release_with_another_number_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mimic_adapter, "uint_len", lambda number: uint_len(number + (number == 251)))
    with pytest.raises(IncompatibleVersionError, match=r"^mysql-mimic [\d.]+ does not fit .*: uint_len\(251\) is"):
        mimic_adapter.check()
