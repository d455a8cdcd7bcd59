"""Sessions at a prompt in the documents: read from a page, played again, printed nearly as `mysql` prints them.

A block of a page that is marked as `sql` is a session: statements behind `> `, their answers below. A block without a
prompt is not run. A statement
behind `elsewhere> ` runs on another connection in the background, for the rest of the page. One that ends in a
backslash and G is shown a column a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql

BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^(elsewhere)?> (.*?(?:;|\\G))$\n?", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One statement of a page and the answer that the page shows."""

    statement: str
    answer: str
    elsewhere: bool
    page: Path
    line: int

    @property
    def vertical(self) -> bool:
        return self.statement.endswith("\\G")

    @property
    def sql(self) -> str:
        return self.statement.removesuffix("\\G").removesuffix(";")

    @property
    def written(self) -> str:
        """The step as the page has it."""
        return f"{'elsewhere' if self.elsewhere else ''}> {self.statement}\n{self.answer}"


def steps(page: Path) -> Iterator[Step]:
    """The statements of a page in their order."""
    text = page.read_text()
    for block in BLOCK.finditer(text):
        prompts = list(PROMPT.finditer(block[1]))
        ends = [prompt.start() for prompt in prompts[1:]] + [len(block[1])] * bool(prompts)
        for prompt, end in zip(prompts, ends, strict=True):
            line = text.count("\n", 0, block.start(1) + prompt.start()) + 1
            yield Step(prompt[2], block[1][prompt.end() : end], prompt[1] is not None, page, line)


def play(connection: Any, step: Step, value: Callable[[str], str] = str) -> str:
    """What the statement answers, as text; `value` is applied to each value and message."""
    with connection.cursor() as cursor:
        try:
            affected = cursor.execute(value(step.sql))
        except pymysql.MySQLError as error:
            number, text = error.args
            return f"ERROR {number}: {value(text)}\n"
        if cursor.description is None:
            return f"Query OK, {affected} row{'' if affected == 1 else 's'} affected\n"
        names = [column[0] for column in cursor.description]
        rows = [[_shown(cell, value) for cell in row] for row in cursor.fetchall()]
    if not rows:
        return "Empty set\n"
    return _vertical(names, rows) if step.vertical else _table(names, rows)


def _shown(cell: object, value: Callable[[str], str]) -> str:
    if cell is None:
        return "NULL"
    return value(cell.decode() if isinstance(cell, bytes) else f"{cell:f}" if isinstance(cell, Decimal) else str(cell))


def _vertical(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    width = max(map(len, names))
    lines: list[str] = []
    for number, row in enumerate(rows, 1):
        lines.append(f"{'*' * 27} {number}. row {'*' * 27}")
        lines += [f"{name:>{width}}: {cell}" for name, cell in zip(names, row, strict=True)]
    return "".join(f"{line}\n" for line in lines)


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    rule = "+" + "".join(f"{'-' * (width + 2)}+" for width in widths)
    lines = [
        "|" + "".join(f" {cell:<{width}} |" for cell, width in zip(row, widths, strict=True)) for row in (names, *rows)
    ]
    return "".join(f"{line}\n" for line in (rule, lines[0], rule, *lines[1:], rule))
