"""The two consoles of the command line, and how it says that something is unusable."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from goldformer.adapters.process.faults import printable
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.json_data import finite
from goldformer.conformance.reports.text import closing
from goldformer.spec import Spec
from goldformer.spec.files import replace_file

#: Exit statuses, as --help documents them.
OK: Final = 0
FAILS: Final = 1
UNUSABLE: Final = 2
#: As a shell has it of what Ctrl-C ended.
STOPPED: Final = 130


class PrintableConsole(Console):
    """A console that escapes control characters: names and messages come from adapters, baselines and submissions."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string, which is what all strings that are printed go through."""
        return super().render_str(printable(text), **options)


class PlainTable(Table):
    """A table whose cells are shown as they are: brackets in them are no markup."""

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of strings or of texts with a style."""
        super().add_row(*(_plain(cell) if isinstance(cell, str) else cell for cell in cells), **options)


def _plain(text: str) -> Text:
    return Text(printable(text))


out = PrintableConsole(highlight=False, soft_wrap=True, emoji=False)
err = PrintableConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def unusable(message: str) -> int:
    """Say why nothing could be done."""
    err.print(f"goldformer: {message}", style="red", markup=False)
    return UNUSABLE


def say(text: str, style: str | None = None) -> None:
    """Print a text as it is: brackets in it are no markup."""
    out.print(text, style=style, markup=False)


def say_json(text: str, end: str = "\n") -> None:
    """Print JSON, which escapes control characters by itself and would be broken by other escapes."""
    out.print(Text(text), end=end)


def plain_table(*headings: str, right: Collection[str] = ()) -> PlainTable:
    """Return an empty table without lines, the columns named in `right` flush right."""
    table = PlainTable(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(_plain(heading), justify="right" if heading in right else "left", overflow="fold")
    return table


def say_diagnosis(
    verdicts: Sequence[Verdict], conventions: Mapping[str, str], hints: Iterable[str], spec: Spec
) -> None:
    """What to mend first, what an adapter declares, and what is to be said of it."""
    for line in closing(verdicts, spec):
        say(line)
    for name, option in conventions.items():
        say(f"Convention declared: {name}: {option}", "dim")
    for hint in hints:
        say(f"Note: {hint}")


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
        if path is not None and not os.access(path.parent, os.W_OK):
            return f"{option} {path}: the folder {path.parent} cannot be written to: name another one"
    return None


def save(path: Path, text: str) -> None:
    """Write a file, and say so."""
    replace_file(path, text)
    say(f"- wrote {path}")


def save_json(path: Path, data: Any) -> None:
    """Write data as a file of JSON, and say so."""
    save(path, json.dumps(finite(data), ensure_ascii=False) + "\n")


def words(given: tuple[str, ...]) -> tuple[str, ...]:
    """Options that may be repeated or comma-separated."""
    return tuple(word for text in given for word in text.split(",") if word)
