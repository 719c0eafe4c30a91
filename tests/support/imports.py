"""Imports of a test's own files, undone after it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType


@contextlib.contextmanager
def forget_modules(folder: Path) -> Iterator[None]:
    """Forget, on leaving, the modules of a folder that were imported, and every change of the search path."""
    path, before = list(sys.path), set(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [name for name in set(sys.modules) - before if _lies_in(sys.modules[name], folder)]:
            del sys.modules[name]


def _lies_in(module: ModuleType, folder: Path) -> bool:
    # Some modules of libraries answer for every attribute that they are asked for.
    known = vars(module)
    places = [known.get("__file__"), *known.get("__path__", ())]
    return any(str(place).startswith(str(folder)) for place in places)
