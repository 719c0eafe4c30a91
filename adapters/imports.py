"""Imports of a user's own files, undone: the next one reads them again from disk."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

#: The folders of what is installed, of Python and of Debian.
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_FOREIGN: Final = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]))


@contextmanager
def forget_modules(folder: Path, *, unless_done: bool = False) -> Iterator[None]:
    """Forget, on leaving, the modules of a folder that were imported, and every change of the search path.

    With `unless_done` they are forgotten only if an exception ends the context.
    """
    path, before, place = list(sys.path), set(sys.modules), folder.resolve()
    done = False
    try:
        yield
        done = True
    finally:
        if not (done and unless_done):
            sys.path[:] = path
            # List all before removing one: a folder without __init__.py asks its parents for its place.
            for name in [name for name in set(sys.modules) - before if _is_own(name, sys.modules[name], place)]:
                del sys.modules[name]


#: How NumPy handles errors in somebody's code, which may choose that when it is imported.
_errors: Final[dict[str, Any]] = {}
#: The choice that stands before any of it is imported, in Python and in a notebook.
_before: Final[dict[str, Any]] = {}


@contextmanager
def use_own_errors() -> Iterator[None]:
    """Let NumPy handle errors as somebody's code has chosen it; goldformer computes without that choice."""
    before = np.seterr(**_errors)
    try:
        yield
    finally:
        _errors.update(np.seterr(**before))


@contextmanager
def set_errors_aside() -> Iterator[None]:
    """Let NumPy handle errors by its defaults; the choice that stands is that of the code which will be called."""
    _before.update(np.geterr())
    _errors.update(_before)
    try:
        with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
            yield
    finally:
        _before.clear()


@contextmanager
def run_as_program(path: Path) -> Iterator[None]:
    """Let code run as if by itself: the arguments of the command line are those of goldformer."""
    before, sys.argv = sys.argv, [str(path)]
    _errors.clear()
    _errors.update(_before)
    try:
        with use_own_errors():
            yield
    finally:
        sys.argv = before


@contextmanager
def import_again(folder: Path) -> Iterator[None]:
    """Let modules of a folder be imported as for the first time; those that are there now are back on leaving."""
    place = folder.resolve()
    # To resolve the paths of all modules takes a tenth of a second.
    near = [(name, m) for name, m in sys.modules.items() if str(getattr(m, "__file__", "")).startswith(str(place))]
    # Python's own modules lie below a folder such as /usr.
    theirs = {"__main__", *sys.stdlib_module_names}
    kept = {n: module for n, module in near if n.partition(".")[0] not in theirs and _is_own(n, module, place)}
    for name in kept:
        del sys.modules[name]
    try:
        with forget_modules(place):
            yield
    finally:
        sys.modules.update(kept)


def _is_own(name: str, module: ModuleType, folder: Path) -> bool:
    """Return True for a module of a folder, unless it is installed there, or part of goldformer."""
    if name.partition(".")[0] == "goldformer":
        return False
    # Some modules of libraries claim to have every attribute.
    known = vars(module)
    places = [Path(place) for place in (known.get("__file__"), *known.get("__path__", ())) if place is not None]
    return any(p.resolve().is_relative_to(folder) and not INSTALLED.intersection(p.parts) for p in places)


@cache
def is_own_file(name: str) -> bool:
    """Return True for a file, a notebook's cell included, outside Python, its libraries and goldformer."""
    if name.startswith("<"):  # code without a file, but for what is typed into IPython
        return name.startswith("<ipython-input-")
    return not (name.startswith(_FOREIGN) or INSTALLED.intersection(Path(name).parts))
