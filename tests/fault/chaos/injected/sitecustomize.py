"""Breaks a program on purpose: Python runs this file at its start if the folder is in PYTHONPATH.

`CHAOS_BREAK` is a JSON list of edits `[module, old, new]`. Each is made in the source text of the
module when it is imported. A module without the old text cannot be imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections import defaultdict
from collections.abc import Sequence

Edits = dict[str, list[tuple[str, str]]]


class BrokenLoader(importlib.machinery.SourceFileLoader):
    """Compiles edited source, and leaves no bytecode behind."""

    edits: Sequence[tuple[str, str]] = ()

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path).decode()
        for old, new in self.edits:
            if source.count(old) != 1:
                raise ImportError(f"{fullname} does not have exactly once: {old}")
            source = source.replace(old, new)
        return compile(source, path, "exec", dont_inherit=True)


class BrokenFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that are edited."""

    def __init__(self, edits: Edits) -> None:
        self._edits = edits

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._edits:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        loader = BrokenLoader(fullname, spec.origin)
        loader.edits = self._edits[fullname]
        spec.loader = loader
        return spec


def install() -> None:
    edits: Edits = defaultdict(list)
    for module, old, new in json.loads(os.environ.get("CHAOS_BREAK", "[]")):
        edits[module].append((old, new))
    if edits:
        sys.meta_path.insert(0, BrokenFinder(edits))


install()
