"""Read the Python files of a submission within bounds: a student's file may be written to keep its reader busy."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

#: The module that adapters import.
SUBMISSION: Final = "submission"
#: Its file.
MAIN: Final = f"{SUBMISSION}.py"
#: The most bytes of source that are read of a submission: its syntax tree takes several hundred times as much memory.
_LARGEST: Final = 256 << 10


def read_python_files(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of a submission, submission.py first, cut where together they become too long."""
    left = _LARGEST
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
