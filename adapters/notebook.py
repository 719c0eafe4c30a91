"""Read a Jupyter notebook as Python source: its definitions, its constants, and the imports that these use.

Nothing else is run. What is left out is noted, and an error that follows from it says so. A cell that is tagged
`goldformer`, or begins with `# EXPORT`, is taken whole; if there is one, no other is taken.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import re
import types
import warnings
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.notebook_statements import (
    FUTURE,
    StatementChoice,
    guess_names,
    list_bound,
    select_imports,
)
from goldformer.adapters.protocol import HINTS
from goldformer.adapters.untrusted_text import clip_text, join_lines, printable
from goldformer.spec import load_spec

#: The suffix of a notebook's file.
SUFFIX: Final = ".ipynb"
#: The tag of a cell, in its metadata, and the first words of a cell that mark it.
TAG: Final = "goldformer"
MARK: Final = "# EXPORT"

#: The cell magics whose cells are Python; a cell of any other magic is dropped.
_OF_PYTHON: Final = frozenset({"capture", "prun", "time", "timeit"})
#: The cell magic that writes the file to hand in: its cell is Python too.
_WRITES: Final = re.compile(r"%%(?:write)?file\s(?:.*[\s/])?[\"']?submission\.py[\"']?\s*$")
#: The mark of a cell, which may stand below a cell magic.
_MARKED: Final = re.compile(rf"\s*(?:%%.*\n\s*)?{MARK}")
#: The spaces before the first line of a cell, which IPython takes off every line.
_INDENT: Final = re.compile(r"(?:[ \t]*(?:\r\n?|\n))*([ \t]+)")
#: A line of IPython: a magic, a command of the shell, a question for help, or one of them assigned to a name.
_MAGIC: Final = re.compile(r"^([%!?].*|([\w., ]+=)\s*[%!].*|[\w.*]+\?+\s*)$")
#: The most characters of the code of a notebook: its syntax tree takes several hundred times as much memory.
_LONGEST: Final = 256 << 10
#: The characters that no source of Python may have: NUL, and half a surrogate pair.
_NO_SOURCE: Final = re.compile("[\0\ud800-\udfff]")
#: The most characters of a line that a message quotes.
_QUOTED: Final = 200
#: An end of a line of Python. Form feeds and the separators of Unicode, which str.splitlines knows, end no line.
_NEWLINE: Final = re.compile(r"\r\n?|\n")
#: The line before each cell of the source.
_HEADING: Final = re.compile(r"^# code cell (\d+)$")
#: A line of the source in a traceback or in a message: File "submission.py", line 3, and submission.py:3.
_PLACE: Final = r'{file}(?:\\?", line |:)(\d{{1,9}})(?!\d)'
#: An error for a name that is missing in a module.
_MISSING: Final = (
    r"(?:name '(\w+)' is not defined|module '{module}' has no attribute '(\w+)'|"
    r"cannot import name '(\w+)' from '{module}')(?! \(code cell)"
)
#: The line of the source for what is left out of a cell.
_LEFT_OUT: Final = re.compile(
    r"^# (not read|not read, but used|not valid Python): code cell (\d+), line (\d+)"
    r"(?: \(([\w., ]+)\))?: (.*)$"
)


class NotebookError(Exception):
    """A notebook that cannot be read; the message names the cell and the line."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a cell that is left out: a statement, the names that it binds or changes, its first line as `text`.

    With `fault`, it is a whole cell that is not valid Python: `line` is the line at fault. `missing` are those of the
    names that something kept uses, or that are components, and that nothing kept binds later.
    """

    cell: int
    line: int
    names: tuple[str, ...]
    text: str
    fault: str = ""
    missing: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """The line of the source about it."""
        names = f" ({', '.join(self.names)})" if self.names else ""
        place = f"code cell {self.cell}, line {self.line}{names}"
        used = ", but used" if self.missing else ""
        return f"not valid Python: {place}: {self.fault}" if self.fault else f"not read{used}: {place}: {self.text}"

    @property
    def reason(self) -> str:
        """Why the code may lack something, and what to do; "" if nothing kept needs it."""
        return self.describe(self.missing) if self.fault or self.missing else ""

    def describe(self, names: Sequence[str]) -> str:
        """Say why some of its names are missing or not as they should be, and what to do."""
        defines = f"defines {', '.join(names)}"
        if self.fault:
            which = f", which {defines}," if names else ""
            # The sentence may stand inside a string of JSON.
            fault = self.fault.replace('"', "'").replace("\\", "/")
            return f"code cell {self.cell}{which} is left out: its line {self.line} is not valid Python: {fault}"
        how = f"begin every cell that your code needs with {MARK}"
        return f"code cell {self.cell}, line {self.line} {defines}, but a notebook is read and not run: {how}"


@dataclass(frozen=True, slots=True)
class CodeCell:
    """A code cell: its number among the code cells, from 1, and what is kept of it, every line in its place."""

    number: int
    text: str
    left_out: tuple[LeftOut, ...] = ()

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
    parsed = [
        _parse_cell(number, source)
        for number, (source, chosen) in enumerate(zip(sources, marked, strict=True), 1)
        if chosen or not whole
    ]
    read = tuple(map(_keep_whole, parsed)) if whole else _choose(parsed)
    faults = [out for cell in read for out in cell.left_out if out.fault]
    if faults and not any(cell.text.strip() for cell in read):
        raise _make_error(name, faults[0])
    return read


def write_source(cells: Sequence[CodeCell]) -> bytes:
    """Return the cells as one Python file, each under a heading; `CellNames` finds the cell of its lines."""
    futures = sorted({name for cell in cells for name in _list_futures(cell.text)})
    first = [f"from __future__ import {', '.join(futures)}"] if futures else []
    parts = [f"# {cell.name}\n{_blank_futures(cell.text)}" for cell in cells]
    # At the end: readers of a long source stop somewhere.
    last = [f"# {out.note}" for cell in cells for out in cell.left_out]
    return ("\n".join([*first, *parts, *last]) + "\n").encode()


def read_source(path: Path) -> bytes:
    """Return the source of a Python file, or of a notebook what is kept of it.

    NotebookError if it cannot be read, or if a cell is not valid Python.
    """
    raw = path.read_bytes()
    if path.suffix != SUFFIX:
        return raw
    cells = read_notebook(raw, path.name)
    for fault in (out for cell in cells for out in cell.left_out if out.fault):
        raise _make_error(path.name, fault)
    return write_source(cells)


def explain_missing(text: str, cells: Iterable[CodeCell], module: str) -> str:
    """Return a message with the reason after each name that is missing because it was left out."""
    return _explain_missing(text, {name: out for cell in cells for out in cell.left_out for name in out.names}, module)


def split_lines(source: str) -> list[str]:
    """Return the lines of Python source, as tracebacks and syntax trees count them."""
    lines = _NEWLINE.split(source)
    return lines if lines[-1] else lines[:-1]


def find_first_line(node: ast.stmt) -> int:
    """Return the line of a statement, or of the first decorator above it."""
    decorators: Sequence[ast.expr] = getattr(node, "decorator_list", ())
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


class CellNames:
    """The cells of a source that `write_source` wrote, and what is left out of it; another source has no cells."""

    def __init__(self, source: str) -> None:
        lines = list(enumerate(split_lines(source), 1))
        #: The lines of the headings, and the number of the cell below each.
        self._headings = [(line, heading[1]) for line, text in lines if (heading := _HEADING.match(text))]
        self._left_out: dict[str, LeftOut] = {}
        reasons = []
        for found in filter(None, (_LEFT_OUT.match(text) for _, text in lines)):
            kind, cell, line, listed, text = found.groups()
            names = tuple(listed.split(", ")) if listed else ()
            fault = text if kind == "not valid Python" else ""
            out = LeftOut(int(cell), int(line), names, "", fault, () if kind == "not read" else names)
            self._left_out |= dict.fromkeys(out.names, out)
            reasons.append(out.reason)
        #: Why the code may lack something: what is left out of the cells and would be needed.
        self.reasons = tuple(filter(None, reasons)) if self._headings else ()
        self._lines = [line for line, _ in self._headings]

    def find(self, line: int) -> str:
        """Return the cell of a line and the line in it; "" if no cell has it."""
        before = bisect_left(self._lines, line) - 1
        if before < 0 or line in self._lines[before + 1 : before + 2]:
            return ""
        heading, cell = self._headings[before]
        return f"code cell {cell}, line {line - heading}"

    def add(self, text: str, file: str) -> str:
        """Return a message or a traceback with the cell after each place in the file, and why names are missing."""
        if not self._headings:
            return text
        named = re.sub(_PLACE.format(file=re.escape(file)), self._add, text)
        return _explain_missing(named, self._left_out, file.removesuffix(".py"))

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
        place = f"{name}, {cell.name}"
        # Without a time, an entry is not compared with a file: inspect finds the source of what a cell defines.
        linecache.cache[place] = (len(cell.text), None, cell.text.splitlines(keepends=True), place)
        code = compile(cell.text, place, "exec", flags=flags, dont_inherit=True)
        exec(code, vars(module))
    left_out = [out for cell in cells for out in cell.left_out]
    vars(module)[HINTS] = tuple(filter(None, (out.reason for out in left_out)))
    return module


def _is_marked(cell: Mapping[str, Any], source: str) -> bool:
    return TAG in cell.get("metadata", {}).get("tags", ()) or bool(_MARKED.match(source))


@dataclass(frozen=True, slots=True)
class _ParsedCell:
    """A cell, its lines and its statements; of one that is not valid Python, none."""

    number: int
    lines: Sequence[bytes]
    body: Sequence[ast.stmt]
    left_out: LeftOut | None = None


def _parse_cell(number: int, source: str) -> _ParsedCell:
    source = _dedent(source)
    if tree := _parse(source):
        return _ParsedCell(number, _encode_lines(source), tree.body)
    source = _drop_magics(source)
    try:
        return _ParsedCell(number, _encode_lines(source), _compile(source).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line, what = (error.lineno, error.msg) if isinstance(error, SyntaxError) else (None, str(error))
        # Python refuses these characters without a line.
        line = line or _find_line(source, _NO_SOURCE)
        text = clip_text("".join(split_lines(source)[line - 1 : line]).strip(), _QUOTED)
        out = LeftOut(number, line, guess_names(source), text, join_lines(what))
        return _ParsedCell(number, (), (), out)


def _make_error(name: str, out: LeftOut) -> NotebookError:
    return NotebookError(printable(f"{name}, code cell {out.cell}, line {out.line}: {out.fault}: {out.text}"))


def _keep_whole(cell: _ParsedCell) -> CodeCell:
    return CodeCell(cell.number, _cut(cell.lines, cell.body), (cell.left_out,) if cell.left_out else ())


def _choose(cells: Sequence[_ParsedCell]) -> tuple[CodeCell, ...]:
    """Keep definitions and constants, and then of the imports those that these use, or that import a component."""
    nodes = [node for cell in cells for node in cell.body]
    futures = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module == FUTURE]
    choice = StatementChoice(any(alias.name == "annotations" for node in futures for alias in node.names))
    chosen = [_choose_statements(cell, choice) for cell in cells]
    components = load_spec().contracts
    wanted = choice.used.union(components, (f"{name}_gradient" for name in components))
    return tuple(_finish_cell(cell, kept, out, choice, wanted) for cell, (kept, out) in zip(cells, chosen, strict=True))


def _choose_statements(cell: _ParsedCell, choice: StatementChoice) -> tuple[list[ast.stmt], list[LeftOut]]:
    if cell.left_out:
        choice.lost |= {*cell.left_out.names} - choice.bound
        return [], [cell.left_out]
    kept: list[ast.stmt] = []
    left_out: list[LeftOut] = []
    for node in cell.body:
        names = choice.add(node, b"\n".join(_slice(node, cell.lines)).decode())
        if names is None:
            kept.append(node)
        elif names or isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            left_out.append(_leave_out(cell, node, names))
    return kept, left_out


def _finish_cell(
    cell: _ParsedCell, kept: Sequence[ast.stmt], left_out: Iterable[LeftOut], choice: StatementChoice, wanted: set[str]
) -> CodeCell:
    """Return a cell without the imports that nobody wants, and what is left out with the names that are missing."""
    imports = [(node, select_imports(node, wanted)) for node in kept]
    dropped = [_leave_out(cell, node, list_bound(node)) for node, selected in imports if selected is None]
    noted = [
        replace(out, names=names, missing=tuple(name for name in names if choice.is_needed(name, wanted)))
        for out in left_out
        for names in [tuple(name for name in out.names if name in choice.lost)]
        if names or out.fault or not out.names
    ]
    text = _cut(cell.lines, [selected for _, selected in imports if selected is not None])
    return CodeCell(cell.number, text, tuple(sorted([*noted, *dropped], key=lambda out: out.line)))


def _leave_out(cell: _ParsedCell, node: ast.stmt, names: Iterable[str]) -> LeftOut:
    text = join_lines(clip_text(_slice(node, cell.lines)[0].decode(), _QUOTED))
    return LeftOut(cell.number, find_first_line(node), tuple(sorted(names)), text)


def _compile(source: str) -> ast.Module:
    """Return the syntax tree of a cell, in which IPython allows `await` at the top; SyntaxError for a bad cell."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Some errors, such as a `break` outside a loop, are found only after the tree.
        compile(source, "cell", "exec", flags=flags, dont_inherit=True)
        tree: ast.Module = compile(source, "cell", "exec", flags=flags | ast.PyCF_ONLY_AST, dont_inherit=True)
    return tree


def _parse(source: str) -> ast.Module | None:
    try:
        return _compile(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _find_line(source: str, pattern: re.Pattern[str]) -> int:
    """Return the line of the first match of a pattern, or 1."""
    return next((number for number, line in enumerate(split_lines(source), 1) if pattern.search(line)), 1)


def _dedent(source: str) -> str:
    """Return a cell without the spaces before its first line, which IPython takes off every line that has them."""
    indent = _INDENT.match(source)
    return "\n".join(line.removeprefix(indent[1]) for line in split_lines(source)) if indent else source


def _drop_magics(source: str) -> str:
    """Return a cell without the lines of IPython, with every other line in its place."""
    lines = split_lines(source)
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        if (lines[first][2:].split() or [""])[0] not in _OF_PYTHON and not _WRITES.match(lines[first]):
            return ""
        lines[first] = ""
    return "\n".join(map(_drop_magic, lines))


def _drop_magic(line: str) -> str:
    code = line.lstrip()
    magic = _MAGIC.match(code)
    if not magic:
        return line
    if magic[2] and code == line:
        return f"{magic[2]} get_ipython()"  # a call, which is left out with its name
    # A block that has nothing else must not become empty.
    return f"{line[: len(line) - len(code)]}pass"


def _encode_lines(source: str) -> list[bytes]:
    """Return the lines as bytes, which the columns of a syntax tree count."""
    return [line.encode() for line in split_lines(source)]


def _cut(lines: Sequence[bytes], kept: Iterable[ast.stmt]) -> str:
    """Return the text of some statements of a cell, each in its own line, and empty lines for the others."""
    cut: list[list[bytes]] = [[] for _ in lines]
    for node in kept:
        # Of an import, only some names may be kept.
        own = [ast.unparse(node).encode()] if isinstance(node, ast.Import) else _slice(node, lines)
        for number, line in enumerate(own, find_first_line(node)):
            cut[number - 1].append(line)
    return "\n".join(b"; ".join(parts).decode() for parts in cut)


def _slice(node: ast.stmt, lines: Sequence[bytes]) -> list[bytes]:
    """Return the lines of a statement, without what else is in the first and the last of them."""
    first = find_first_line(node)
    own = list(lines[first - 1 : node.end_lineno])
    own[-1] = own[-1][: node.end_col_offset]
    if first == node.lineno:
        own[0] = own[0][node.col_offset :]
    return own


def _explain_missing(text: str, left_out: Mapping[str, LeftOut], module: str) -> str:
    def explain(found: re.Match[str]) -> str:
        name = next(filter(None, found.groups()))
        return f"{found[0]} ({left_out[name].describe([name])})" if name in left_out else found[0]

    return re.sub(_MISSING.format(module=re.escape(module)), explain, text) if left_out else text


def _list_futures(text: str) -> Iterator[str]:
    for node in _compile(text).body if FUTURE in text else ():
        if isinstance(node, ast.ImportFrom) and node.module == FUTURE:
            yield from (alias.name for alias in node.names)


def _blank_futures(text: str) -> str:
    """Return a cell without its imports from __future__, which must come first in a file."""
    if FUTURE not in text:
        return text  # parsing a cell takes up to a second
    kept = [node for node in _compile(text).body if not (isinstance(node, ast.ImportFrom) and node.module == FUTURE)]
    return _cut(_encode_lines(text), kept)
