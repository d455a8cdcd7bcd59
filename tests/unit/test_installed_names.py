"""The installed package: which imports are written anew, and what ends the build."""

from __future__ import annotations

import pytest

from hatch_build import UnclearImportError, installed_text

MODULES = {"engine.model", "proxy.__main__"}


@pytest.mark.parametrize(
    ("written", "installed"),
    [
        ("from engine.model import Key, Row", "from ackstream.engine.model import Key, Row"),
        ("from engine import model", "from ackstream.engine import model"),
        ("import engine.model as m", "import ackstream.engine.model as m"),
        ("import os, proxy.wire as w, engine as k", "import os, ackstream.proxy.wire as w, ackstream.engine as k"),
        ("if x:\n  from proxy.wire import (\n    a,\n  )", "if x:\n  from ackstream.proxy.wire import (\n    a,\n  )"),
        ("é = 1; from engine.model import Key", "é = 1; from ackstream.engine.model import Key"),
        # Not ours.
        ("from engines import x", "from engines import x"),
        ("from .engine import x", "from .engine import x"),
        ('"""\nfrom engine.model import Key\n"""', '"""\nfrom engine.model import Key\n"""'),
        ("# from engine.model import Key", "# from engine.model import Key"),
        ("x = 'from engine.model import Key'", "x = 'from engine.model import Key'"),
        ("engine = proxy.start(engine)", "engine = proxy.start(engine)"),
    ],
)  # fmt: skip
def test_an_import_of_ours_is_written_anew_and_nothing_else(written: str, installed: str) -> None:
    assert installed_text(written, MODULES) == installed


@pytest.mark.parametrize(
    "unclear",
    [
        "import engine.model",
        "import_module('engine.model')",
        "run(['-m', 'proxy.__main__'])",
        "from \\\n    engine.model import Key",
    ],
)
def test_what_would_differ_when_it_is_installed_ends_the_build(unclear: str) -> None:
    with pytest.raises(UnclearImportError, match=r"line [12]"):
        installed_text(unclear, MODULES)
