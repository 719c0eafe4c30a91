"""Show the source of a submission to the staff: all of it, and of each component the function that the adapter calls.

Reading is a help for people: what cannot be parsed is shown without a place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from goldformer.adapters.notebook import find_first_line, split_lines
from goldformer.conformance.grading.model import Grade
from goldformer.conformance.grading.python_files import SUBMISSION, parse, read_python_files
from goldformer.conformance.grading.results.words import shorten

#: The most lines of a submission that a page shows, and the most characters of a line.
_MOST_LINES: Final = 3000
_WIDEST: Final = 300

#: A line of a traceback in a file of the submission, whose folder is hidden.
_FRAME: Final = re.compile(r'File "([^"]+\.py)", line (\d+)')


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file; `marked` if an error or a forbidden use stands there."""

    number: int
    text: str
    marked: bool


@dataclass(frozen=True, slots=True)
class Snippet:
    """Successive lines of a file of a submission; `left_out` are those that the page has no room for."""

    file: str
    lines: tuple[SourceLine, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """The first and the last line of a function or class in a file."""

    file: str
    first: int
    last: int


class SubmissionSource:
    """The Python files of a submission as text, and the place of what each component calls."""

    def __init__(self, files: Mapping[str, bytes], adapter: bytes, grade: Grade) -> None:
        self._lines = {
            name: split_lines(data.decode("utf-8", "replace"))
            for name, data in sorted(files.items())
            if name.endswith(".py")
        }
        self._defined = _find_definitions(files)
        self._called = _find_calls(adapter)
        self._marked = {(use.file, use.line) for use in grade.forbidden}
        for check in grade.checks:
            if check.is_shown:
                self._marked |= {(file, int(line)) for file, line in _FRAME.findall(check.verdict.detail)}

    def list_files(self) -> Iterator[Snippet]:
        """Yield the whole files, as far as the page has room."""
        left = _MOST_LINES
        for name, lines in self._lines.items():
            shown = lines[:left]
            left -= len(shown)
            yield Snippet(name, self._cut(name, shown, 1), len(lines) - len(shown))

    def list_snippets(self, component: str) -> Iterator[Snippet]:
        """Yield the functions and classes of the submission that the adapter calls for a component."""
        for name in self._called.get(component, ()):
            for place in self._defined.get(name, ())[:1]:
                lines = self._lines[place.file][place.first - 1 : place.last][:_MOST_LINES]
                yield Snippet(place.file, self._cut(place.file, lines, place.first))

    def _cut(self, file: str, lines: Sequence[str], first: int) -> tuple[SourceLine, ...]:
        numbered = enumerate(lines, first)
        return tuple(SourceLine(n, shorten(text, _WIDEST), (file, n) in self._marked) for n, text in numbered)


def _find_definitions(files: Mapping[str, bytes]) -> dict[str, list[_Place]]:
    """Return the functions and classes at the top of each file by their names, those of submission.py first."""
    found: dict[str, list[_Place]] = {}
    for file, source in read_python_files(files):
        tree = parse(source)
        for node in tree.body if tree else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                place = _Place(file, find_first_line(node), node.end_lineno or node.lineno)
                found.setdefault(node.name, []).append(place)
    return found


@lru_cache(maxsize=1)
def _find_calls(adapter: bytes) -> Mapping[str, tuple[str, ...]]:
    """Return the names of `submission` that each function of an adapter uses, and those that its helpers use."""
    tree = parse(adapter)
    functions = {node.name: node for node in (tree.body if tree else ()) if isinstance(node, ast.FunctionDef)}
    used = {name: tuple(_list_names(node)) for name, node in functions.items()}

    def follow(name: str, seen: Collection[str]) -> Iterable[str]:
        for own, other in used.get(name, ()):
            if own:
                yield own
            elif other not in seen:
                yield from follow(other, {*seen, other})

    return {name: tuple(dict.fromkeys(follow(name, {name}))) for name in functions}


def _list_names(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Yield what a function uses: a name of `submission`, or another name that may be a helper."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == SUBMISSION:
                yield name, ""
            case ast.Name(id=name) if name != SUBMISSION:
                yield "", name
