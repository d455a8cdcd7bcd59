"""Builds the wheel: one installed package, `ackstream`, of the top-level folders of this repository.

Names as common as `proxy` and `engine` belong to other distributions, too. So the wheel has the
folders below `ackstream`, and each import of them is written anew: `from engine.model import Key`
becomes `from ackstream.engine.model import Key`. The parser finds the imports, so no text is
mistaken for one. What the parser cannot decide ends the build: `import engine.model`, which binds
the name `engine`, and a literal with the name of a module.

An editable installation gets one file, `ackstream/__main__.py`. It starts the program from here.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = "ackstream"
FOLDERS = ("proxy", "sqlrewrite", "engine")

PROGRAM = '''"""The program `ackstream`."""

from proxy.__main__ import main

if __name__ == "__main__":
    main()
'''


class UnclearImportError(ValueError):
    """A module whose imports cannot be written anew."""


def installed_text(text: str, modules: Collection[str]) -> str:
    """The text of a module with the imports of our folders below PACKAGE; line numbers stay.

    `modules`: the dotted names of all modules. Raises UnclearImportError.
    """
    lines = text.encode().splitlines(keepends=True)  # the parser counts columns in bytes
    for node, name in _imports(ast.parse(text), modules):
        line = lines[node.lineno - 1]
        head, rest = line[: node.col_offset], line[node.col_offset :]
        written, keyword = name.encode(), b"from " if isinstance(node, ast.ImportFrom) else b""
        if not rest.startswith(keyword + written):
            raise UnclearImportError(f"line {node.lineno}: write `from {name} import …` on one line")
        lines[node.lineno - 1] = head + keyword + f"{PACKAGE}.".encode() + rest[len(keyword) :]
    return b"".join(lines).decode()


def _imports(tree: ast.Module, modules: Collection[str]) -> Iterator[tuple[ast.ImportFrom | ast.alias, str]]:
    """Each import of our folders, the last in a line first, with the module's name."""
    found: list[tuple[ast.ImportFrom | ast.alias, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and _ours(node.module):
            found.append((node, node.module))
        elif isinstance(node, ast.Import):
            for alias in filter(lambda alias: _ours(alias.name), node.names):
                if alias.asname is None:
                    raise UnclearImportError(f"line {node.lineno}: `import {alias.name}` binds a name of its own")
                found.append((alias, alias.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in modules:
            raise UnclearImportError(f"line {node.lineno}: {node.value!r} names a module: use __package__ or __name__")
    return iter(sorted(found, key=lambda one: (one[0].lineno, one[0].col_offset), reverse=True))


def _ours(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in FOLDERS


def write_package(root: Path, folder: Path) -> None:
    """Write the installed package to `folder`."""
    files = [
        path for top in FOLDERS for path in sorted((root / top).rglob("*")) if path.is_file() and path.suffix != ".pyc"
    ]
    places = [path.relative_to(root) for path in files]
    modules = {".".join(place.with_suffix("").parts) for place in places if place.suffix == ".py"}
    for path, place in zip(files, places, strict=True):
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".py":
            try:
                target.write_text(installed_text(path.read_text(), modules))
            except UnclearImportError as error:
                raise UnclearImportError(f"{place}, {error}") from None
        else:
            shutil.copyfile(path, target)
    (folder / "__init__.py").write_text('"""The proxy, as an application: nothing here is for other programs."""\n')
    (folder / "__main__.py").write_text(installed_text(PROGRAM, modules))
    (folder / "py.typed").touch()


class CustomBuildHook(BuildHookInterface[Any]):
    """What hatchling calls."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Prepare the files of a wheel, or those of an editable installation."""
        folder = Path(self.directory) / "installed" / PACKAGE
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        if version == "editable":
            (folder / "__init__.py").write_text('"""See the folder that is installed."""\n')
            (folder / "__main__.py").write_text(PROGRAM)
            build_data["force_include_editable"] = {str(folder): PACKAGE}
        else:
            write_package(Path(self.root), folder)
            build_data["force_include"][str(folder)] = PACKAGE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove them."""
        shutil.rmtree(Path(self.directory) / "installed")
