"""Prepared statements that a session tracks: queue statements, and statements that change rows or
kill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from proxy.session.commit_notices import Prepared
from proxy.wire.mimic_adapter import ColumnType
from proxy.wire.params import Execute, ParamType, parse_execute, python_value, rearranged

DECIMALS = (int(ColumnType.DECIMAL), int(ColumnType.NEWDECIMAL))


@dataclass(slots=True, eq=False)
class TrackedStatement:
    """A prepared statement, and what the client has sent for its executions."""

    statement: Prepared
    types: Sequence[ParamType] = ()
    """The types of the last execution, which apply to the next one if it sends none."""
    long_data: frozenset[int] = frozenset()
    """The parameters that COM_STMT_SEND_LONG_DATA has sent for the next execution."""

    def read_execution(self, payload: bytes, param_count: int, *, attributes: bool) -> Execute:
        """The parameters of an execution; their types are remembered. Raises WireError."""
        execution = parse_execute(
            payload, param_count, types=self.types, long_data=self.long_data, attributes=attributes
        )
        self.types = execution.types
        return execution

    def read_values(self, payload: bytes, param_count: int, *, attributes: bool) -> list[object]:
        """The parameters of an execution in the form of the engine's ids, where only strings are
        bytes; their types are remembered. Raises WireError."""
        execution = self.read_execution(payload, param_count, attributes=attributes)
        return [_as_read(value, kind) for value, kind in zip(execution.values, execution.types, strict=False)]

    def rearranged(self, payload: bytes, order: Sequence[int], *, attributes: bool) -> bytes:
        """An execution with its parameters in this order, and its query attributes behind them.

        Forgets the long data, which is for one execution. Returns the payload itself if there are
        no parameters.
        """
        if order:
            payload = rearranged(payload, order, types=self.types, long_data=self.long_data, attributes=attributes)
        self.long_data = frozenset()
        return payload


def python_values(execution: Execute, codec: str | None) -> list[object]:
    """The parameters of an execution as Python's values; `codec` is that of the client's character
    set, None if its strings are bytes."""
    values = zip(execution.values, execution.types, strict=False)  # Query attributes have types as well.
    return [python_value(value, kind, codec) for value, kind in values]


def _as_read(value: object, kind: ParamType) -> object:
    """A parameter in the form of the engine's ids, where only strings are bytes."""
    if isinstance(value, bytes) and kind.type in DECIMALS:
        return Decimal(value.decode()) if value.isdigit() else None
    return value
