"""Check before a class is graded that this machine has the packages that its assignment imports.

A package that is missing would cost every student all points. One that only a submission imports is its own matter.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from goldformer.adapters.find import is_installed, require_arrays
from goldformer.adapters.notebook import CellNames, NotebookError, read_source
from goldformer.conformance.commands._console import CannotRun
from goldformer.conformance.commands._grade_solution import Solution
from goldformer.conformance.grading.model import Assignment
from goldformer.conformance.grading.python_files import MAIN, SUBMISSION, parse
from goldformer.extras import name_package


def require_packages(assignment: Assignment, arrays: str, solution: Solution | None) -> None:
    """Raise AdapterError or CannotRun if a package is not installed that the assignment or its solution imports.

    Functions of the starter and of the solution may import what no check needs, such as a plot. All that the adapter
    imports is needed.
    """
    require_arrays(arrays, str(assignment.adapter))
    missing = list(_list_missing(assignment.adapter, assignment.adapter.read_bytes(), functions=True))
    if assignment.starter is not None:
        with suppress(NotebookError):  # nobody hands it in as it is, and `assignment check` reports it
            missing += _list_missing(assignment.starter, read_source(assignment.starter), functions=False)
    if solution is not None:
        missing += _list_missing(solution.path, solution.submission.files[MAIN], functions=False)
    if missing:
        uses = "".join(f"\n  {place} imports {module}" for place, module in missing)
        packages = " ".join(dict.fromkeys(name_package(module) for _, module in missing))
        raise CannotRun(
            f"nobody is graded: the assignment imports what this machine does not have:{uses}\n  pip install {packages}"
        )


def _list_missing(path: Path, source: bytes, *, functions: bool) -> Iterator[tuple[str, str]]:
    """Yield the place and the name of each module that a file imports and that is neither installed nor next to it."""
    tree, cells = parse(source), CellNames(source.decode("utf-8", "replace"))
    for line, module in _list_imports(tree.body if tree else (), functions=functions):
        name = module.partition(".")[0]
        near = (path.parent / name).is_dir() or (path.parent / f"{name}.py").is_file()
        if name != SUBMISSION and not near and not is_installed(name):
            yield f"{path}, {cells.find(line) or f'line {line}'}", module


def _list_imports(body: Sequence[ast.stmt], *, functions: bool) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each module that statements import. Blocks, as `try`, may go on without theirs."""
    for statement in body:
        match statement:
            case ast.Import(names=aliases):
                yield from ((statement.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=str(module), level=0):
                yield statement.lineno, module
            case ast.ClassDef(body=inner):
                yield from _list_imports(inner, functions=functions)
            case ast.FunctionDef(body=inner) if functions:
                yield from _list_imports(inner, functions=functions)
