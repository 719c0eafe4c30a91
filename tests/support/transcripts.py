"""Transcripts: small text files with files, commands, and what the commands print. See tests/printed/README.md."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import runpy
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import click
import yaml
from click.testing import CliRunner

import goldformer
from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main
from repository import REPOSITORY
from small_spec import write_small_spec

PRINTED = REPOSITORY / "tests" / "printed"
PROGRAMS = PRINTED / "programs"
INDENT = "    "
#: A file: its name, and for an edited copy the name of another file.
FILE = re.compile(r"(\S+):(?: (\S+)( with)?)?")
#: What a transcript has of a command, in this order.
STDERR, STATUS = "stderr:", "status: "

#: What varies from one machine, version or run to another, and the fixed words for it.
VARYING = [
    (r"\d{4}/\d+\.\d+, cases [0-9a-f]{8,}", "<spec>"),
    (rf"\b{re.escape(goldformer.__version__)}(?=\W|$)", "<version>"),
    (r"\b((?:C?P|p)ython:?|numpy:?|torch|click) '?\d+\.\d+[\w.+]*'?", r"\1 <version>"),
    (r"system [\w.-]+-[\w.-]+ · processor [^·]*? ·", "system <system> · processor <processor> ·"),
    (r"(?<![.\d])(?=[0-9a-f]*[a-f])(?=[a-f]*\d)[0-9a-f]{16,64}\b", "<digest>"),
    (r"\b\d+(?:\.\d+)? s\b", "<time>"),
    (r"\b\d+\.\d [KM]iB", "<size>"),
    (r"\bseconds: [\d.e-]+", "seconds: <time>"),
    (r'\btime="[\d.]+"', 'time="<time>"'),
    # Counts that grow with the cases of the spec: two digits and more.
    (r"\b\d+(\s+)of \d{2,}\b", r"<n>\1of <n>"),
    (
        r"(?<![\w.])\d{2,}"
        r"(?= (?:of [a-z]|checks|cases|known|more|results|golden|outputs|calls|fail|equal|semantic|form))",
        "<n>",
    ),
    (r"\b(at least|Not judged:|in|others: \w+) \d{2,}\b(?!\.)", r"\1 <n>"),
    (r'\b(tests|failures|skipped)="\d{2,}"', r'\1="<n>"'),
    (r"\b(passed|failed|skipped|cases|judged|admitted|needed): \d{2,}\b", r"\1: <n>"),
    (r"\b(within|at most) 0\.\d+ of", r"\1 <ratio> of"),
    (r"(written in: \w+\.yaml):\d+", r"\1:<line>"),
    # Lists of ids, which grow too.
    (r"((?:(?<=: )|(?<=\()|(?<=are ))(?:[a-z][\w-]+, ){4})(?:[a-z][\w-]+,\s+(?:# )?){4,}[a-z][\w-]+", r"\1…"),
]
#: A number with more digits than any library and machine agree on.
LONG = re.compile(r"-?\d+\.\d{7,}(?:e[+-]\d+)?")
#: A row of the table of components.
ROW = re.compile(r"^( *[a-z_]+  +)((?:(?:[\d·,.e+-]+|inf|nan|\d+/\d+)  +)+)(?=\S|$)")


def normalize(text: str, folder: Path) -> list[str]:
    """Return the lines of `text`, with fixed words for what varies."""
    for place, word in ((folder, "<folder>"), (REPOSITORY, "<repository>"), (Path(sys.prefix), "<python>")):
        text = text.replace(str(place.resolve()), word).replace(str(place), word)
    for pattern, words in VARYING:
        text = re.sub(pattern, words, text)
    text = LONG.sub(lambda number: f"{float(number[0]):.4g}…", text)
    lines = [ROW.sub(_normalize_row, line).rstrip() for line in text.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _normalize_row(row: re.Match[str]) -> str:
    numbers = re.sub(r"(?<!\S)0\.\d+(?!\S)", "<ratio>", row[2])
    if re.search(r"(?<!\S)\d{2,}(?!\S)", numbers):
        numbers = re.sub(r"(?<!\S)\d+(?!\S)", "<n>", numbers)
    return re.sub(r" {2,}", "  ", row[1] + numbers)


def run_transcript(path: Path) -> str:
    """Run the commands of a transcript in a new folder; return it with what they printed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "work"
        folder.mkdir()
        with contextlib.chdir(folder), forget_modules(folder), mock.patch.dict(os.environ, COLUMNS="100"):
            return "\n".join(_run_lines(path.read_text(encoding="utf-8").splitlines(), folder)) + "\n"


def _run_lines(lines: list[str], folder: Path) -> Iterator[str]:
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if line.startswith("$ "):
            while place < len(lines) and (not lines[place] or lines[place].startswith((INDENT, STDERR, STATUS))):
                place += 1
            yield line
            yield from _format(*_run_command(line[2:]), folder)
            if place < len(lines) and not lines[place - 1]:
                yield ""
            continue
        yield line
        if header := FILE.fullmatch(line):
            end = place
            while end < len(lines) and (not lines[end] or lines[end].startswith(INDENT)):
                end += 1
            content = lines[place:end]
            yield from content
            place = end
            _write_file(header, [part.removeprefix(INDENT) for part in content])


def _format(stdout: str, stderr: str, status: int, folder: Path) -> Iterator[str]:
    yield from (f"{INDENT}{line}".rstrip() for line in normalize(stdout, folder))
    if said := normalize(stderr, folder):
        yield STDERR
        yield from (f"{INDENT}{line}".rstrip() for line in said)
    if status:
        yield f"{STATUS}{status}"


def _write_file(header: re.Match[str], content: list[str]) -> None:
    name, other, edited = header.groups()
    text = "\n".join(content).rstrip("\n") + "\n"
    if other:
        text = (Path(other) if Path(other).exists() else PROGRAMS / other).read_text(encoding="utf-8")
    if edited:
        for old, new in _read_edits(content):
            assert text.count(old) == 1, f"{other} has {old!r} {text.count(old)} times"
            text = text.replace(old, new)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")


def _read_edits(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (old, new) of lines that begin with - and +; several lines in a row are one text."""
    for match in re.finditer(r"((?:^-(?: .*)?\n)+)((?:^\+(?: .*)?\n)*)", "\n".join([*lines, ""]), re.MULTILINE):
        old, new = ("\n".join(line[2:] for line in part.splitlines()) for part in match.groups())
        yield old, new


def _run_command(line: str) -> tuple[str, str, int]:
    """Return the standard output, standard error and status of a command with its filters."""
    words = shlex.split(line)
    parts = [[]]
    for word in words:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    stdout, stderr, status = _COMMANDS[parts[0][0]](*parts[0][1:])
    for name, *options in parts[1:]:
        stdout = _FILTERS[name](stdout, *options)
    return stdout, stderr, status


def _goldformer(*words: str) -> tuple[str, str, int]:
    command: click.Command = main
    for word in words:
        if not isinstance(command, click.Group) or (inner := command.get_command(click.Context(main), word)) is None:
            break
        # click keeps the words for help of the first call, which may be that of a test without the group.
        command = inner
        vars(command)["_help_option"] = None
    result = CliRunner().invoke(main, words, prog_name="goldformer")
    return result.stdout, result.stderr, result.exit_code


def _python(path: str) -> tuple[str, str, int]:
    """Run a file in this process."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), mock.patch.object(sys, "path", [os.getcwd(), *sys.path]):
            runpy.run_path(path, run_name="__main__")
    except Exception as error:
        return printed.getvalue(), "".join(traceback.format_exception_only(error)), 1
    return printed.getvalue(), "", 0


def _silent(action):
    def run(*words):
        action(*words)
        return "", "", 0

    return run


def _ls(folder: str = ".") -> tuple[str, str, int]:
    names = (path.relative_to(folder).as_posix() for path in Path(folder).rglob("*") if path.is_file())
    return "\n".join(sorted(name for name in names if "__pycache__" not in name)), "", 0


def _edit(name: str, old: str, new: str) -> None:
    path = Path(name)
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{name} has no {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def _copy(source: str, target: str) -> None:
    if source == "SMALL_SPEC":
        write_small_spec(Path(target))
        return
    path = REPOSITORY / source.removeprefix("REPOSITORY/") if source.startswith("REPOSITORY/") else Path(source)
    (shutil.copytree if path.is_dir() else shutil.copy)(path, target)


_COMMANDS: dict[str, Callable[..., tuple[str, str, int]]] = {
    "goldformer": _goldformer,
    "python": _python,
    "cat": lambda *names: ("".join(Path(name).read_text(encoding="utf-8") for name in names), "", 0),
    "ls": _ls,
    "cp": _silent(_copy),
    "edit": _silent(_edit),
    "mkdir": _silent(lambda name: Path(name).mkdir(parents=True)),
    "rm": _silent(lambda name: shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()),
}


def _grep(text: str, pattern: str) -> str:
    return "\n".join(line for line in text.splitlines() if re.search(pattern, line))


def _select(text: str, *paths: str) -> str:
    """Return parts of JSON as YAML: a path is keys and indices with dots, and * takes all elements."""
    data = json.loads(text, parse_constant=_refuse_constant)
    found = {path: _follow(data, path.split(".")) for path in paths} if paths else data
    return yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)


def _refuse_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _follow(data, path):
    if not path or path == [""]:
        return data
    first, *rest = path
    if first == "*":
        return [_follow(item, rest) for item in (data.values() if isinstance(data, dict) else data)]
    if first == "keys":
        return list(data)
    if first == "unique":
        return sorted({str(_follow(item, rest)) for item in data})
    return _follow(data[int(first) if isinstance(data, list) else first], rest)


class _Text(HTMLParser):
    """The text of a page: a line for each block, a row of a table on one line, links and labels in brackets."""

    INLINE = frozenset(
        ("a", "abbr", "b", "code", "em", "i", "span", "strong", "small", "sup", "sub", "time", "br", "td", "th", "text")
    )
    HIDDEN = frozenset(("style", "script"))

    def __init__(self) -> None:
        super().__init__()
        self.parts, self.hidden = [], 0

    def handle_starttag(self, tag, attrs):
        self.hidden += tag in self.HIDDEN
        if tag in ("td", "th"):
            self.parts.append(" | ")
        else:
            self.parts.append(" " if tag in self.INLINE and self.parts and self.parts[-1][-1:].isalnum() else "")
        if tag not in self.INLINE:
            self.parts.append("\n")
        if label := dict(attrs).get("aria-label"):
            self.parts.append(f"[{label}] ")

    def handle_endtag(self, tag):
        self.hidden -= tag in self.HIDDEN
        if tag not in self.INLINE:
            self.parts.append("\n")

    def handle_data(self, data):
        if not self.hidden:
            self.parts.append(re.sub(r"\s+", " ", data))


def _text_of_page(text: str) -> str:
    page = _Text()
    page.feed(text)
    lines = (" ".join(line.split()).strip("| ") for line in "".join(page.parts).split("\n"))
    return html.unescape("\n".join(line for line in lines if line))


_FILTERS: dict[str, Callable[..., str]] = {
    "grep": _grep,
    "head": lambda text, count: "\n".join(text.splitlines()[: int(count)]),
    "tail": lambda text, count: "\n".join(text.splitlines()[-int(count) :]),
    "from": lambda text, start: text[text.index(start) :],
    "until": lambda text, end: text[: text.index(end)],
    "json": _select,
    "text": _text_of_page,
    "wc": lambda text: str(len(text.splitlines())),
}
