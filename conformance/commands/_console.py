"""The two consoles of the command line, and the messages and files that several commands write."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from fnmatch import filter as filter_names
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

import click
from rich.console import Console
from rich.measure import Measurement
from rich.progress import track
from rich.table import Table
from rich.text import Text

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.did_you_mean import describe_unknown
from goldformer.conformance.reports.json_data import replace_nonfinite
from goldformer.spec.files import explain_os_error, write_named_file

if TYPE_CHECKING:
    from goldformer.conformance.reports.record import Outcome, RunRecord

#: Exit statuses, as --help documents them.
OK: Final = 0
FAILS: Final = 1
UNUSABLE: Final = 2
PARTIAL: Final = 3
#: The status that a shell reports for a command that Ctrl-C ended.
STOPPED: Final = 130

T = TypeVar("T")


class PrintableConsole(Console):
    """A console that escapes control characters: names and messages come from adapters, baselines and submissions."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; an OSError names the stream, which may be a file on a full disk."""
        try:
            super().print(*objects, **options)
        except OSError as error:
            error.filename = "standard error" if self.stderr else "standard output"
            raise

    def on_broken_pipe(self) -> None:
        """Go on without a reader, as `head` is after its lines: files are saved, and the status is the usual one."""
        del self._buffer[:]
        _discard_unwritten(self.file)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string: all strings that are printed come through here."""
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
#: Standard output for JSON, which `--json -` keeps from all other text.
_json_out = PrintableConsole(highlight=False, soft_wrap=True, emoji=False)

#: What makes a word a pattern.
_PATTERN: Final = re.compile(r"[*?\[]")

#: The name of standard output where a file is asked for.
DASH: Final = Path("-")


class CannotRun(click.ClickException):
    """Nothing could be done; the message says why, and what to do instead."""

    exit_code = UNUSABLE

    def show(self, file: IO[Any] | None = None) -> None:  # noqa: ARG002 - click passes it
        """Print the message on standard error."""
        print_error(self.message)


def print_error(message: str) -> None:
    """Print why something could not be done, unless standard error cannot be written either."""
    try:
        err.print(f"goldformer: {message}", style="red", markup=False, soft_wrap=not err.is_terminal)
    except OSError:
        _discard_unwritten(sys.stderr)


def refuse_os_error(error: OSError) -> CannotRun:
    """Return the refusal for a file, or a standard stream, that could not be read or written."""
    _discard_unwritten(sys.stdout)
    return CannotRun(explain_os_error(error))


def _discard_unwritten(stream: IO[str]) -> None:
    """Discard what a stream still holds if it cannot be written.

    Python flushes it at its end, and replaces the exit status if that fails.
    """
    try:
        stream.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def require_known(words: Iterable[str], known: Collection[str], option: str, *, every: bool = False) -> None:
    """Raise CannotRun for the first word that is unknown, with a guess; `every` lists all known words."""
    if message := describe_unknown(words, known, option, every=every):
        raise CannotRun(message)


def expand_patterns(words: Iterable[str], known: Collection[str], option: str) -> tuple[str, ...]:
    """Return the known words that patterns such as "sdpa-*" fit; CannotRun for a pattern or a word that fits none."""
    found: dict[str, None] = {}
    for word in words:
        if _PATTERN.search(word):
            fitting = filter_names(known, word)
            if not fitting:
                raise CannotRun(f"{option} {word}: nothing fits this pattern")
        else:
            require_known((word,), known, option)
            fitting = [word]
        found |= dict.fromkeys(fitting)
    return tuple(found)


def require_folders(saved: Mapping[str, Path | None]) -> None:
    """Raise CannotRun for the first option whose file cannot be written: before the work, not after it."""
    for option, path in saved.items():
        if path in (None, DASH) or (path.exists() and not path.is_file()):
            continue  # such as /dev/stdout: nothing is written into its folder
        if not path.parent.is_dir():
            raise CannotRun(f"{option} {path}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise CannotRun(f"{option} {path}: the folder {path.parent} cannot be written to: name another one")


def require_outputs(saved: Mapping[str, Path | None], *inputs: str | Path) -> None:
    """Raise CannotRun for the first option whose file is an input, another output, or not one of goldformer's."""
    require_folders(saved)
    # Without the name of a class or a function in it.
    read = {os.path.realpath(part) for name in map(str, inputs) for part in (name, name.rpartition(":")[0]) if part}
    written: dict[str, str] = {}
    for option, path in saved.items():
        if path in (None, DASH) or (path.exists() and not path.is_file()):
            continue
        place = os.path.realpath(path)
        if place in read:
            raise CannotRun(f"{option} {path}: that is what the command reads: name another file")
        if place in written:
            raise CannotRun(f"{option} {path}: {written[place]} writes that file too: name another one")
        content = path.read_bytes() if path.exists() else b""
        if content and b"goldformer" not in content:
            raise CannotRun(f"{option} {path}: goldformer did not write this file: name another one, or remove it")
        written[place] = option


def find_status(outcome: Outcome, records: Iterable[RunRecord], *, allow_partial: bool) -> int:
    """Return the exit status of an outcome; say of which components too little was judged."""
    if outcome == "partial" and not allow_partial:
        for found in records:
            if found.partial:
                print_error(f"{found.given} is partial: {found.explain_partial()}. --allow-partial accepts that")
    statuses = {"conforms": OK, "partial": OK if allow_partial else PARTIAL, "fails": FAILS, "unusable": UNUSABLE}
    return statuses[outcome]


def say(text: str, style: str | None = None) -> None:
    """Print a text as it is: brackets in it are no markup."""
    out.print(text, style=style, markup=False)


def save(path: Path, text: str) -> None:
    """Write a file, and say so."""
    write_named_file(path, text)
    say(f"- wrote {path}")


def save_json(path: Path, data: Any) -> None:
    """Write data, or a text that is JSON, as a file, and say so; print it if the file is "-"."""
    # A terminal may have no sign for a letter, and JSON can write it in ASCII.
    is_ascii = path == DASH and "utf" not in _json_out.encoding
    data = json.loads(data) if is_ascii and isinstance(data, str) else data
    text = data if isinstance(data, str) else json.dumps(replace_nonfinite(data), ensure_ascii=is_ascii) + "\n"
    if path == DASH:
        # JSON escapes control characters by itself.
        _json_out.print(Text(text), end="")
    else:
        save(path, text)


@contextmanager
def silence() -> Iterator[None]:
    """Print nothing but JSON on standard output inside; what somebody's code prints goes to standard error."""
    out.quiet, _json_out.file = True, _keep_stdout()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        out.quiet, _json_out.file = False, sys.stdout


def _keep_stdout() -> IO[str]:
    """Return standard output under another number if 1 is that of this process, which native code prints to."""
    with suppress(OSError, ValueError):
        if sys.stdout.fileno() == 1 and sys.stderr.fileno() == 2:
            kept = os.fdopen(os.dup(1), "w", encoding=sys.stdout.encoding, errors="replace")
            sys.stdout.flush()
            # It stays so: what is printed at the end of the process is no JSON either.
            os.dup2(2, 1)
            return kept
    return sys.stdout


def plain_table(*headings: str, right: Collection[str] = ()) -> PlainTable:
    """Return an empty table without lines, the columns named in `right` flush right."""
    table = PlainTable(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(_plain(heading), justify="right" if heading in right else "left", overflow="fold")
    return table


def print_table(table: Table) -> None:
    """Print a table as wide as the terminal; without a terminal, as wide as its longest line."""
    if out.is_terminal:
        out.print(table)
        return
    widest = Measurement.get(out, out.options.update(max_width=10_000), table).maximum
    PrintableConsole(file=out.file, width=widest, highlight=False, emoji=False).print(table)


def show_progress(items: Iterable[T], total: int, what: str) -> Iterable[T]:
    """Yield the items under a progress bar, if there is a terminal to draw it on."""
    return track(items, what, total=total, console=err, transient=True, disable=not err.is_terminal)
