"""Read a Jupyter notebook as Python source: its imports, definitions and constants, without running the rest.

A cell that is tagged `goldformer`, or begins with `# EXPORT`, is taken whole; if there is one, no other is taken.
"""

from __future__ import annotations
import __future__

import ast
import re
import types
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.untrusted_text import clip_text, printable

#: The suffix of a notebook's file.
SUFFIX: Final = ".ipynb"
#: The tag of a cell, in its metadata, and the first words of a cell that mark it.
TAG: Final = "goldformer"
MARK: Final = "# EXPORT"

#: The cell magics whose cells are Python; a cell of any other magic is dropped.
_OF_PYTHON: Final = frozenset({"capture", "prun", "time", "timeit"})
#: A line of IPython: a magic, a command of the shell, a question for help, or one of them assigned to a name.
_MAGIC: Final = re.compile(r"^([%!?].*|[\w., ]+=\s*[%!].*|[\w.*]+\?+\s*)$")
#: The most characters of the code of a notebook: its syntax tree takes several hundred times as much memory.
_LONGEST: Final = 256 << 10
#: The characters that no source of Python may have: NUL, and half a surrogate pair.
_NO_SOURCE: Final = re.compile("[\0\ud800-\udfff]")
#: The most characters of a line that a message quotes.
_QUOTED: Final = 200
#: An end of a line of Python. Form feeds and the separators of Unicode, which str.splitlines knows, end no line.
_NEWLINE: Final = re.compile(r"\r\n?|\n")
_FUTURE: Final = "__future__"
#: The line before each cell of the source.
_HEADING: Final = re.compile(r"^# code cell (\d+)$")
#: A line of the source in a traceback or in a message: File "submission.py", line 3, and submission.py:3.
_PLACE: Final = r'{file}(?:\\?", line |:)(\d{{1,9}})(?!\d)'


class NotebookError(Exception):
    """A notebook that cannot be read; the message names the cell and the line."""


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell: its number among the code cells, from 1, and what is kept of it, every line in its place."""

    number: int
    text: str

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"code cell {self.number}"


def read_notebook(raw: bytes, name: str) -> tuple[CodeCell, ...]:
    """Return the kept part of each code cell, in order; NotebookError if the file is no notebook, or no Python."""
    from nbformat import reader  # few files are notebooks

    try:
        # nbformat.reads also validates outputs, which are not read here, and keeps 50 KiB for each invalid output.
        notebook = reader.reads(raw.decode("utf-8-sig"))
        old = notebook.nbformat < 4
        listed = [cell for sheet in notebook.worksheets for cell in sheet.cells] if old else notebook.cells
        cells = [cell for cell in listed if cell.cell_type == "code"]
        sources = [str(cell["input" if old else "source"]) for cell in cells]
        marked = [_is_marked(cell, source) for cell, source in zip(cells, sources, strict=True)]
    except Exception as error:
        # nbformat raises errors of many kinds for a file that is no notebook, or has an unknown version.
        raise NotebookError(printable(f"{name} is no notebook: {type(error).__name__}: {str(error)[:200]}")) from error
    if sum(map(len, sources)) > _LONGEST:
        raise NotebookError(f"{name} has more than {_LONGEST} characters of code: put what it needs into fewer cells")
    whole = any(marked)
    return tuple(
        _read_cell(number, source, name, whole=whole)
        for number, (source, chosen) in enumerate(zip(sources, marked, strict=True), 1)
        if chosen or not whole
    )


def write_source(cells: Sequence[CodeCell]) -> bytes:
    """Return the cells as one Python file, each under a heading; `CellNames` finds the cell of its lines."""
    futures = sorted({name for cell in cells for name in _list_futures(cell.text)})
    first = [f"from __future__ import {', '.join(futures)}"] if futures else []
    parts = [f"# {cell.name}\n{_blank_futures(cell.text)}" for cell in cells]
    return ("\n".join([*first, *parts]) + "\n").encode()


def read_source(path: Path) -> bytes:
    """Return the source of a Python file, or of a notebook what is kept of it; NotebookError if it cannot be read."""
    raw = path.read_bytes()
    return write_source(read_notebook(raw, path.name)) if path.suffix == SUFFIX else raw


def split_lines(source: str) -> list[str]:
    """Return the lines of Python source, as tracebacks and syntax trees count them."""
    lines = _NEWLINE.split(source)
    return lines if lines[-1] else lines[:-1]


def find_first_line(node: ast.stmt) -> int:
    """Return the line of a statement, or of the first decorator above it."""
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


class CellNames:
    """The cells of the lines of a source that `write_source` wrote; another source has no cells."""

    def __init__(self, source: str) -> None:
        lines = enumerate(split_lines(source), 1)
        #: The lines of the headings, and the number of the cell below each.
        self._headings = [(line, heading[1]) for line, text in lines if (heading := _HEADING.match(text))]
        self._lines = [line for line, _ in self._headings]

    def find(self, line: int) -> str:
        """Return the cell of a line and the line in it; "" if no cell has it."""
        before = bisect_left(self._lines, line) - 1
        if before < 0 or line in self._lines[before + 1 : before + 2]:
            return ""
        heading, cell = self._headings[before]
        return f"code cell {cell}, line {line - heading}"

    def add(self, text: str, file: str) -> str:
        """Return a message or a traceback with the cell after each place in the file."""
        return re.sub(_PLACE.format(file=re.escape(file)), self._add, text) if self._headings else text

    def _add(self, place: re.Match[str]) -> str:
        cell = self.find(int(place[1]))
        return f"{place[0]} ({cell})" if cell else place[0]


def run_cells(cells: Sequence[CodeCell], name: str) -> types.ModuleType:
    """Run what is kept of the cells, in one module; tracebacks have the name of the notebook and of the cell."""
    module = types.ModuleType(name)
    flags = 0
    for cell in cells:
        for feature in _list_futures(cell.text):
            flags |= getattr(__future__, feature).compiler_flag
        code = compile(cell.text, f"{name}, {cell.name}", "exec", flags=flags, dont_inherit=True)
        exec(code, vars(module))
    return module


def _is_marked(cell: Mapping[str, Any], source: str) -> bool:
    return TAG in cell.get("metadata", {}).get("tags", ()) or source.lstrip().startswith(MARK)


def _read_cell(number: int, source: str, name: str, *, whole: bool) -> CodeCell:
    tree = _parse(source)
    if tree is None:
        source = _drop_magics(source)
        try:
            tree = _compile(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line, what = (error.lineno, error.msg) if isinstance(error, SyntaxError) else (None, str(error))
            # Python refuses these characters without a line.
            line = line or _find_line(source, _NO_SOURCE)
            text = clip_text("".join(split_lines(source)[line - 1 : line]).strip(), _QUOTED)
            raise NotebookError(printable(f"{name}, code cell {number}, line {line}: {what}: {text}")) from error
    kept = tree.body if whole else [node for node in tree.body if _is_kept(node)]
    return CodeCell(number, _cut(source, kept))


def _compile(source: str) -> ast.Module:
    """Return the syntax tree of a cell, in which IPython allows `await` at the top; SyntaxError for a bad cell."""
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree: ast.Module = compile(source, "cell", "exec", flags=flags, dont_inherit=True)
    return tree


def _parse(source: str) -> ast.Module | None:
    try:
        return _compile(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _find_line(source: str, pattern: re.Pattern[str]) -> int:
    """Return the line of the first match of a pattern, or 1."""
    return next((number for number, line in enumerate(split_lines(source), 1) if pattern.search(line)), 1)


def _drop_magics(source: str) -> str:
    """Return a cell without the lines of IPython, with every other line in its place."""
    lines = split_lines(source)
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        if (lines[first][2:].split() or [""])[0] not in _OF_PYTHON:
            return ""
        lines[first] = ""
    # A block that has nothing else must not become empty.
    return "\n".join(
        f"{line[: len(line) - len(line.lstrip())]}pass" if _MAGIC.match(line.lstrip()) else line for line in lines
    )


def _is_kept(node: ast.stmt) -> bool:
    """Return True for an import, a definition, a constant, and a condition around nothing else."""
    waiting = [node]  # no recursion: a condition may have any number of branches
    while waiting:
        match waiting.pop():
            case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                kept = True
            case ast.Assign(targets=targets, value=value):
                kept = all(map(_is_name, targets)) and _is_constant(value)
            case ast.AnnAssign(target=target, value=value):
                kept = _is_name(target) and value is not None and _is_constant(value)
            case ast.If(test=test, body=body, orelse=orelse):
                kept = _is_constant(test)
                waiting += [*body, *orelse]
            case ast.Try(body=body, handlers=handlers, orelse=orelse):
                inner = [*body, *(statement for handler in handlers for statement in handler.body), *orelse]
                kept = True
                waiting += [statement for statement in inner if not isinstance(statement, ast.Pass)]
            case _:
                kept = False
        if not kept:
            return False
    return True


def _is_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) or (isinstance(target, ast.Tuple) and all(map(_is_name, target.elts)))


def _is_constant(value: ast.expr) -> bool:
    """Return True for a value that calls nothing: literals, names, and what operators make of them."""
    if isinstance(value, ast.Lambda):
        return True
    called = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
    return not any(isinstance(inner, called) for inner in ast.walk(value))


def _cut(source: str, kept: Sequence[ast.stmt]) -> str:
    """Return the text of some statements of a cell, each in its own line, and empty lines for the others."""
    # Columns count bytes.
    lines = [line.encode() for line in split_lines(source)]
    cut: list[list[bytes]] = [[] for _ in lines]
    for node in kept:
        first = find_first_line(node)
        last = node.end_lineno or node.lineno
        for number in range(first, last + 1):
            start = node.col_offset if number == first == node.lineno else 0
            end = node.end_col_offset if number == last else None
            cut[number - 1].append(lines[number - 1][start:end])
    return "\n".join(b"; ".join(parts).decode() for parts in cut)


def _list_futures(text: str) -> Iterator[str]:
    for node in _compile(text).body if _FUTURE in text else ():
        if isinstance(node, ast.ImportFrom) and node.module == _FUTURE:
            yield from (alias.name for alias in node.names)


def _blank_futures(text: str) -> str:
    """Return a cell without its imports from __future__, which must come first in a file."""
    if _FUTURE not in text:
        return text  # parsing a cell takes up to a second
    kept = [node for node in _compile(text).body if not (isinstance(node, ast.ImportFrom) and node.module == _FUTURE)]
    return _cut(text, kept)
