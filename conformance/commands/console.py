"""The two consoles of the command line, and how it says that something is unusable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from goldformer.spec.files import replace_file

#: Exit statuses, as --help documents them.
OK: Final = 0
FAILS: Final = 1
UNUSABLE: Final = 2

out = Console(highlight=False, soft_wrap=True, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def unusable(message: str) -> int:
    """Say why nothing could be done."""
    err.print(f"goldformer: {message}", style="red", markup=False)
    return UNUSABLE


def print_table(table: Table) -> None:
    """A table as wide as the terminal; where there is none, as wide as its longest line."""
    if out.is_terminal:
        out.print(table)
        return
    widest = Measurement.get(out, out.options.update(max_width=10_000), table).maximum
    Console(file=out.file, width=widest, highlight=False, emoji=False).print(table)


def no_folder(saved: Mapping[str, Path | None]) -> str | None:
    """What to say of the first option whose file has no folder to go to, or None: before the work, not after it."""
    for option, path in saved.items():
        if path is not None and not path.parent.is_dir():
            return f"{option} {path}: there is no folder {path.parent}"
    return None


def save(path: Path, text: str) -> None:
    """Write a file, and say so."""
    replace_file(path, text)
    out.print(f"- wrote {path}", markup=False)


def save_json(path: Path, data: Any) -> None:
    """Write data as a file of JSON, and say so."""
    save(path, json.dumps(finite(data), ensure_ascii=False) + "\n")


def words(given: tuple[str, ...]) -> tuple[str, ...]:
    """Options that may be repeated or comma-separated."""
    return tuple(word for text in given for word in text.split(",") if word)


def unknown(given: tuple[str, ...], known: tuple[str, ...], option: str, *, every: bool = False) -> str | None:
    """What to say of the first word that is not known, or None; with `every` word that is, where they are few."""
    import difflib  # only on the way to an error

    for word in given:
        if word not in known:
            close = difflib.get_close_matches(word, known, n=1)
            guess = f"did you mean {close[0]}?" if close else ""
            listed = known if every else () if close else known[:12]
            there_are = f"known are {', '.join(listed)}" + ("…" * (len(known) > len(listed))) if listed else ""
            return f"{option} {word}: {' '.join(filter(None, (guess, there_are)))}"
    return None


def finite(value: Any) -> Any:
    """JSON has no infinity and no NaN: they become strings."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    return value
