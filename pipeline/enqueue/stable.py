"""Finds expressions with which a frame has other rows at each reading, in its analyzed plan.

For each expression Spark reports whether it is deterministic within a query. Two kinds are, and
still differ from query to query: those that are replaced by the time at which a query is planned
(`current_timestamp()`), and texts that are (`CAST('now' AS TIMESTAMP)`). A tree lists the kinds of
its nodes, subqueries included, so it is walked only if it has such a node.

The fingerprint finds what no plan shows: a source whose data changes, a LIMIT without an order, a
Python function that is declared deterministic and is not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame

SAME_IN_A_SESSION: Final = frozenset(
    {"CurrentCatalog", "CurrentDatabase", "CurrentPath", "CurrentTimeZone", "CurrentUser"}
)
"""Expressions that are replaced when a query is planned, but not by the time."""

_CURRENT: Final = "CURRENT_LIKE"
_CASTING: Final = ("CAST", "RUNTIME_REPLACEABLE")
_CASTS: Final = frozenset({"Cast", "ParseToDate", "ParseToTimestamp"})
_TIMES: Final = re.compile(r"\s*(now|today|tomorrow|yesterday)\b", re.IGNORECASE)


def unstable(frame: DataFrame) -> tuple[str, ...]:
    """The expressions, in SQL, whose values may differ at the next reading."""
    walk = _Walk(frame)
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 (there is no other way to ask)
    return tuple(dict.fromkeys(walk.plan(plan)))


class _Walk:
    """Walks a plan in the JVM. Each step is a round trip, so it skips trees without such
    expressions."""

    def __init__(self, frame: DataFrame) -> None:
        context: Any = frame.sparkSession.sparkContext
        self._jvm = context._jvm  # noqa: SLF001
        patterns = self._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._patterns = {name: getattr(patterns, name)() for name in (_CURRENT, *_CASTING)}

    def plan(self, plan: Any) -> Iterator[str]:
        """The unstable expressions of a plan, its children and its subqueries."""
        if not self._suspicious(plan):
            return
        culprits = (
            *(culprit for expression in _items(plan.expressions()) for culprit in self._expression(expression)),
            *(culprit for child in _items(plan.children()) for culprit in self.plan(child)),
        )
        yield from culprits
        if not culprits and not plan.deterministic():
            yield str(plan.nodeName())

    def _expression(self, expression: Any) -> Iterator[str]:
        if not self._suspicious(expression):
            return
        children = _items(expression.children())
        if self._is_subquery(expression):
            yield from self.plan(expression.plan())
        elif self._is_culprit(expression, children):
            yield str(expression.sql())
        for child in children:
            yield from self._expression(child)

    def _is_culprit(self, expression: Any, children: Sequence[Any]) -> bool:
        """Whether the expression itself is unstable, not only one below it."""
        kind = expression.getClass().getSimpleName()
        if kind in _CASTS and expression.dataType().typeName().startswith(("date", "timestamp")):
            return self._is_time(children[0])
        current = self._patterns[_CURRENT]
        if expression.containsPattern(current) and not any(child.containsPattern(current) for child in children):
            return kind not in SAME_IN_A_SESSION
        return not expression.deterministic() and all(child.deterministic() for child in children)

    def _suspicious(self, node: Any) -> bool:
        return not node.deterministic() or any(map(node.containsPattern, self._patterns.values()))

    def _is_time(self, child: Any) -> bool:
        """Whether it is a constant text that means a present time."""
        if not child.foldable() or child.dataType().typeName() != "string":
            return False
        text = child.eval(None)
        return text is not None and _TIMES.match(str(text)) is not None

    def _is_subquery(self, expression: Any) -> bool:
        kind = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
        return bool(self._jvm.org.apache.spark.util.Utils.classForName(kind, True, False).isInstance(expression))


def _items(seq: Any) -> list[Any]:
    return [seq.apply(number) for number in range(seq.size())]
