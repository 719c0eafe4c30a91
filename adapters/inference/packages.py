"""The import of a file that may be part of a package, where its imports work from a folder above only."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Final

from goldformer.adapters.find import explain_import_error, import_file
from goldformer.adapters.imports import forget_modules, run_as_program
from goldformer.adapters.protocol import AdapterError

#: The largest number of folders above its own that a file is imported from.
_MOST: Final = 4


@dataclass(frozen=True, slots=True)
class Imported:
    """A module, the name by which files in a folder import it, and that folder."""

    module: ModuleType
    name: str
    folder: Path


def import_target(path: Path) -> Imported:
    """Import a file from its own folder, or from the nearest folder above from which its imports work.

    AdapterError says why no folder works.
    """
    place = path.resolve()
    try:
        with forget_modules(place.parent, unless_done=True):
            return Imported(import_file(path), path.stem, place.parent)
    except AdapterError as error:
        if not isinstance(error.__cause__, ImportError):
            raise
        first = error
    reason, tried = first, [place.parent]
    for folder, name in _list_packages(place):
        try:
            with forget_modules(folder, unless_done=True):
                sys.path.insert(0, str(folder))
                with run_as_program(path):
                    return Imported(importlib.import_module(name), name, folder)
        except ImportError as error:
            # A package that is not installed is missing from everywhere, and says more than a relative import does. A
            # file next to this one is missing only from here.
            missing = str(error.name).partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
            if missing and missing not in name.split(".") and not any(_has_module(one, missing) for one in tried):
                reason = explain_import_error(str(path), error)
            tried.append(folder)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise explain_import_error(str(path), error) from error
    raise reason from first.__cause__


def _has_module(folder: Path, name: str) -> bool:
    """Return True if a folder has a file or a package of this name."""
    return (folder / f"{name}.py").is_file() or (folder / name).is_dir()


def _list_packages(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders above that of a file, the nearest first, and the dotted name of the file in each."""
    for folder in islice(place.parents, 1, 1 + _MOST):
        parts = place.relative_to(folder).with_suffix("").parts
        if not all(part.isidentifier() for part in parts):
            return
        named = parts[:-1] if parts[-1] == "__init__" else parts
        yield folder, ".".join(named)
