"""Read the Python files of a submission within bounds: a student's file may be written to keep its reader busy."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

#: The module that adapters import.
SUBMISSION: Final = "submission"
#: Its file.
MAIN: Final = f"{SUBMISSION}.py"
#: The file that makes a folder a package.
PACKAGE: Final = "__init__.py"
#: The most bytes of source that are parsed of a submission: its syntax tree takes several hundred times as much memory.
MOST_SOURCE: Final = 256 << 10


def read_python_files(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of a submission, submission.py first, cut where together they become too long."""
    left = MOST_SOURCE
    for file in sorted(files, key=lambda name: (name != MAIN, name)):
        if file.endswith(".py") and left:
            source = files[file][:left]
            left -= len(source)
            yield file, source


def parse(source: bytes) -> ast.Module | None:
    """Return the syntax tree of a file; None if there is none, and then the file cannot be imported either."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def has_code(source: bytes) -> bool:
    """Return True if a file has anything but comments and text, or if it cannot be parsed."""
    tree = parse(source)
    return tree is None or any(
        not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) for node in tree.body
    )


def list_imported_names(source: bytes) -> Iterator[tuple[str, int]]:
    """Yield the first name of each module that a file imports, with its level: 0 unless the import is relative."""
    for node in ast.walk(parse(source) or ast.Module([], [])):
        match node:
            case ast.Import(names=aliases):
                yield from ((alias.name.partition(".")[0], 0) for alias in aliases)
            case ast.ImportFrom(level=level, module=str(module)):
                yield module.partition(".")[0], level
            case ast.ImportFrom(level=level, names=aliases):
                yield from ((alias.name, level) for alias in aliases)
