"""Mutants: small changes of product code, and those that the tests of its room let pass.

`python -m benchmarks.mutants conformance/judging` draws 12 changes of the code in that folder or file by a seed:
another comparison, `or` for `and`, a number one larger, two arguments swapped, a statement left out, a guard that
never holds. For each it runs the tests of the room, or those named by `--tests`, in a copy of the working tree, and
prints whether they fail. A survivor is a change without a test, or one that changes nothing.
"""

from __future__ import annotations

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).resolve().parents[1]
_COMPARISONS: Final = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
}  # fmt: skip
_OPERATORS: Final = {ast.Add: "+-", ast.Sub: "-+", ast.Mult: "*/", ast.Div: "/*"}


@dataclass(frozen=True)
class Mutant:
    """A change of the bytes of a file."""

    path: Path
    line: int
    start: int
    end: int
    new: str

    def apply(self, source: bytes) -> bytes:
        """Return the source with the change."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        old = (ROOT / self.path).read_bytes()[self.start : self.end].decode()
        return f"{self.path}:{self.line}  {' '.join(old.split())!r} → {self.new!r}"


def list_mutants(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of the functions of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(start: int, end: int) -> str:
        return source[start:end].decode()

    def edits(node: ast.AST) -> Iterator[tuple[int, int, str]]:
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
                yield span(left)[1], span(right)[0], f" {_COMPARISONS[type(op)]} "
            case ast.BoolOp(op=op, values=[first, second, *_]):
                between = span(first)[1], span(second)[0]
                words = ("and", "or") if isinstance(op, ast.And) else ("or", "and")
                yield *between, text(*between).replace(*words)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                between = span(left)[1], span(right)[0]
                yield *between, text(*between).replace(*_OPERATORS[type(op)])
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield span(node)[0], span(operand)[0], ""
            case ast.Constant(value=int(value)) if type(value) is int and value < 100:
                yield *span(node), str(value + 1)
            case ast.Call(args=[ast.expr() as first, ast.expr() as second, *rest]) if not any(
                isinstance(argument, ast.Starred) for argument in (first, second, *rest)
            ):
                (a, b), (c, d) = span(first), span(second)
                if text(a, b) != text(c, d):
                    yield a, d, text(c, d) + text(b, c) + text(a, b)
            case ast.Expr(value=ast.Call()) | ast.AugAssign():
                yield *span(node), "pass"
            case ast.If(test=test, body=[ast.Raise() | ast.Return() | ast.Continue()]):
                yield *span(test), "False"

    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    nodes = {id(node): node for function in functions for statement in function.body for node in ast.walk(statement)}
    for node in nodes.values():
        for start, end, new in edits(node):
            yield Mutant(path.relative_to(ROOT), source.count(b"\n", 0, start) + 1, start, end, new)


def find_tests(folder: Path) -> Path:
    """Return the tests of a room: the folder of the same name under tests, or else that of its nearest parent."""
    return next(tests for part in (folder, *folder.parents) if (tests := Path("tests") / part).exists())


def copy_tree(target: Path) -> None:
    """Copy the files of the working tree, without those that git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (source := ROOT / name).exists() or source.is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name, follow_symlinks=False)


def run_tests(tree: Path, tests: tuple[str, ...], seconds: float | None) -> bool | None:
    """Return True if the tests pass in a tree, None if they do not end in time."""
    command = [sys.executable, "-m", "pytest", *tests, "-x", "-q", "-p", "no:cacheprovider"]
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return (
            subprocess.run(command, cwd=tree, env=env, capture_output=True, check=False, timeout=seconds).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return None


@click.command(help=(__doc__ or "").split("\n\n")[0])
@click.argument("place", type=click.Path(exists=True, path_type=Path))
@click.option("--tests", multiple=True, help="files or folders of tests  [default: those of the room]")
@click.option("-n", "number", default=12, show_default=True, help="how many mutants are drawn")
@click.option("--seed", default=1, show_default=True, help="another seed draws others")
@click.option("--only", multiple=True, type=int, help="of those drawn, run these, by number")
def main(place: Path, tests: tuple[str, ...], number: int, seed: int, only: tuple[int, ...]) -> None:
    """Draw mutants, run the tests on each, and print the survivors last."""
    place = place.resolve().relative_to(ROOT)
    tests = tests or (str(find_tests(place)),)
    files = [ROOT / place] if place.suffix else sorted((ROOT / place).glob("*.py"))
    pool = [mutant for path in files for mutant in list_mutants(path)]
    drawn = dict(enumerate(random.Random(seed).sample(pool, min(number, len(pool))), 1))
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        start = time.monotonic()
        if not run_tests(tree, tests, None):
            raise click.ClickException(f"{' '.join(tests)} fails without a mutant")
        seconds = 60 + 5 * (time.monotonic() - start)
        for index, mutant in drawn.items():
            if only and index not in only:
                continue
            path = tree / mutant.path
            source = path.read_bytes()
            path.write_bytes(mutant.apply(source))
            passed = run_tests(tree, tests, seconds)
            path.write_bytes(source)
            survivors += [mutant] if passed else []
            outcome = {True: "SURVIVED", False: "caught", None: "no end"}[passed]
            print(f"{index:3}  {outcome:8}  {mutant}", flush=True)
    print(f"{len(survivors)} survive of {len(only or drawn)}")


if __name__ == "__main__":
    main()
