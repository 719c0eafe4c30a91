"""The cause of each move, environment or code, by a third run in which only one of the two is as it was.

If old code in the new environment gives the new numbers, the environment caused the move; if it gives the old numbers,
the code did. If it gives neither, both have a part in it. New code in the old environment shows the same with the roles
exchanged.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

import goldformer
from goldformer.conformance.baseline.environment import list_differences
from goldformer.conformance.baseline.model import Baseline, BaselineError, BaselineRequest, Key, Recording
from goldformer.conformance.baseline.moves import Kind, Move
from goldformer.conformance.baseline.store import load
from goldformer.extras import install_hint

#: A recording of the whole suite takes seconds; this is for slow implementations on busy machines.
_SECONDS: Final = 3600

_LINES: Final = 12


class Origin(Enum):
    """The cause of a move."""

    ENVIRONMENT = "by the environment"
    CODE = "by the code"
    BOTH = "by both"
    UNTOLD = "not shown by this run"


@dataclass(frozen=True, slots=True)
class Attribution:
    """The third run, in words, and the cause of each move."""

    run: str
    environment: str
    origins: Mapping[tuple[Key, str], Origin]

    def counts(self, moves: Iterable[Move]) -> dict[Kind, dict[Origin, int]]:
        """Count the causes of the moves of each class."""
        found: dict[Kind, dict[Origin, int]] = {}
        for move in moves:
            if move.place in self.origins:
                origin = self.origins[move.place]
                mine = found.setdefault(move.kind, {})
                mine[origin] = mine.get(origin, 0) + 1
        return dict(sorted(found.items()))

    def as_json(self, moves: Iterable[Move]) -> dict[str, object]:
        """Return it as plain data."""
        counts = {str(kind): {o.name.lower(): n for o, n in mine.items()} for kind, mine in self.counts(moves).items()}
        return {"run": self.run, "environment": self.environment, "counts": counts}


def attribute(old: Baseline, new: Baseline, third: Baseline, moves: Iterable[Move], *, old_code: bool) -> Attribution:
    """Find the cause of each move from the old to the new baseline by a third run.

    `old_code` says that the third run had the old adapter. Without it, a run in the new environment must have had other
    code, or it would show nothing.
    """
    before, now, there = old.recordings[0], new.recordings[-1], third.recordings[-1]

    def compare(one: Recording, other: Recording) -> list[str]:
        """Return the parts of the environment that differ."""
        return [name for name, _, _ in list_differences(one, other) if name in now.environment]

    ran = {name: there.environment.get(name, "none") for name in (*compare(before, now), *compare(there, now))}
    as_now, as_then = not compare(there, now), not compare(there, before)
    if as_now:
        run, same_as_new, same_as_old = "old code in the new environment", Origin.ENVIRONMENT, Origin.CODE
    elif as_then and not old_code:
        run, same_as_new, same_as_old = "new code in the old environment", Origin.CODE, Origin.ENVIRONMENT
    elif as_then:
        run, same_as_new, same_as_old = "old code in the old environment", Origin.UNTOLD, Origin.UNTOLD
    else:
        run, same_as_new, same_as_old = "an environment that is neither the old nor the new one", *[Origin.UNTOLD] * 2
    origins = {}
    for move in moves:
        if move.kind is Kind.IDENTICAL:
            continue
        equals_new, equals_old = _equal(third, new, move), _equal(third, old, move)
        origin = same_as_new if equals_new else same_as_old if equals_old else Origin.BOTH
        origins[move.place] = Origin.UNTOLD if same_as_new is Origin.UNTOLD else origin
    words = ", ".join(f"{name} {value}" for name, value in ran.items())
    return Attribution(run, words or "which is as it was when the baseline was recorded", origins)


def _equal(one: Baseline, other: Baseline, move: Move) -> bool:
    """Return True if two runs gave the same output, bit for bit, or ended in the same way."""
    mine, theirs = one.entries.get(move.key), other.entries.get(move.key)
    if mine is None or theirs is None:
        return mine is theirs
    if mine.ended is not None or theirs.ended is not None:
        return mine.ended is not None and theirs.ended is not None and mine.ended.reason == theirs.ended.reason
    names = [move.output] if move.output else list({**mine.outputs, **theirs.outputs})
    for name in names:
        first, second = mine.outputs.get(name), theirs.outputs.get(name)
        if first is None or second is None:
            if first is not second:
                return False
        elif not first.stored.equals(second.stored):
            return False
    return True


# ── the third run ──


def record_elsewhere(python: Path | None, adapter: str, request: BaselineRequest) -> Baseline:
    """Record an adapter under another interpreter; BaselineError says why that fails.

    `python` is an interpreter or the folder of a virtual environment; None means this interpreter. This goldformer runs
    there, with the libraries of that interpreter.
    """
    interpreter = _find_interpreter(python) if python is not None else Path(sys.executable)
    with tempfile.TemporaryDirectory(prefix="goldformer-") as name:
        place = Path(name)
        # A path entry that holds goldformer and nothing else of the folder in which it is installed.
        (place / "path").mkdir()
        (place / "path" / "goldformer").symlink_to(Path(goldformer.__file__).resolve().parent)
        words = [str(interpreter), "-c", _PROGRAM, str(place / "path"), goldformer.__version__, "baseline", "record"]
        words += [adapter, "--out", str(place / "there"), "--dtype", ",".join(request.dtypes)]
        words += ["--device", ",".join(request.devices), "--threads", str(request.threads)]
        words += ["--drawn", str(request.drawn), *(["--tf32"] if request.tf32 else [])]
        words += ["--settings"] if request.settings else []
        words += ["--component", ",".join(request.components)] if request.components else []
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BaselineError(f"{interpreter}: cannot be run: {error}") from error
        if done.returncode:
            stderr = "".join(f"\n    {line}" for line in done.stderr.splitlines()[-_LINES:])
            hint = f"it needs what goldformer needs: {install_hint('', f'{interpreter} -m pip')}"
            missing = f"\n  {hint}" if "ModuleNotFoundError" in done.stderr else ""
            raise BaselineError(f"{interpreter}: could not record {adapter}:{stderr}{missing}")
        return load(place / "there")


#: goldformer need not be installed there: only the version of its package is read.
_PROGRAM: Final = """
import importlib.metadata, sys
path, version, *sys.argv[1:] = sys.argv[1:]
sys.path.insert(0, path)
known = importlib.metadata.version
importlib.metadata.version = lambda name: version if name == "goldformer" else known(name)
from goldformer.conformance.cli import main
main(prog_name="goldformer")
"""


def is_this_interpreter(python: Path) -> bool:
    """Return True if a path means the interpreter that runs this, with its libraries."""
    return _find_interpreter(python).parent.resolve() == Path(sys.executable).parent.resolve()


def _find_interpreter(python: Path) -> Path:
    """Return the interpreter that a path means; BaselineError if there is none."""
    if not python.is_dir():
        if not python.exists():
            raise BaselineError(f"--attribute {python}: there is no such interpreter or virtual environment")
        return python
    for inside in ("bin/python", "Scripts/python.exe"):
        if (python / inside).exists():
            return python / inside
    raise BaselineError(f"--attribute {python}: has no bin/python: name an interpreter, or a virtual environment")
