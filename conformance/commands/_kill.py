"""The kill matrix: each known mistake, made on purpose, against every case that could reveal it.

A case claims a mistake by listing it in `meant_for` or in `kills`. A claim is true if the case fails for code that
makes the mistake. The margin is the error ÷ tolerance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Literal

from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.failure import CLEAR
from goldformer.conformance.diagnosis.mistakes import Mistaken, all_implementations
from goldformer.conformance.diagnosis.suspects import ACCEPTED
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Reason, Status, Verdict
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.selection import Numerics
from goldformer.spec import Case, Mistake, Spec, load_spec
from goldformer.spec.processes import make_pool


@dataclass(frozen=True, slots=True)
class KillCheck:
    """The result of one check on one mistake.

    `margin` is error ÷ tolerance: infinite where the check fails without a number to compare, or where numbers must
    be exact; 0 where it passes without one.
    """

    check: str
    kind: Literal["case", "property"]
    component: str
    listed: bool
    killed: bool
    margin: float
    reason: Reason


@dataclass(frozen=True)
class Kill:
    """The results of all checks on one mistake, in one dtype.

    `unmeasured` are the cases that list it and cannot be judged on its implementation: something they need is
    missing there, or the dtype is too coarse for them.
    """

    mistake: Mistake
    dtype: str
    cells: tuple[KillCheck, ...]
    unmeasured: tuple[str, ...] = ()

    @cached_property
    def claims(self) -> tuple[KillCheck, ...]:
        """The checks that list it."""
        return tuple(cell for cell in self.cells if cell.listed)

    @cached_property
    def by(self) -> tuple[KillCheck, ...]:
        """The checks that list it and fail, the widest margin first."""
        return tuple(sorted((cell for cell in self.claims if cell.killed), key=lambda cell: -cell.margin))

    @property
    def is_caught(self) -> bool:
        """Return True if a check that lists it fails."""
        return bool(self.by)

    @property
    def margin(self) -> float:
        """The largest margin of a check that lists it; 0 when none fails."""
        return self.by[0].margin if self.by else 0.0

    @property
    def false_claims(self) -> tuple[KillCheck, ...]:
        """The checks that list it, and pass."""
        return tuple(cell for cell in self.claims if not cell.killed)


def measure(mistaken: Mistaken, dtype: str, cases: Iterable[Case], spec: Spec) -> Kill:
    """Judge a mistake by some cases, or by the properties that list it if no case of the spec does.

    A dtype in which the mistake does not show is replaced by one in which it does.
    """
    mistake, dtype = spec.mistakes[mistaken.id], mistaken.find_dtype(dtype)
    adapter = Adapter.from_object(mistaken.make(), mistaken.id, spec)
    Numerics().apply(adapter.arrays)
    # Strict, because a case that is only advised may list it too.
    bench = Bench(spec, adapter, dtype, "cpu", Policy(strict=True))
    cells: list[KillCheck] = []
    unmeasured: list[str] = []
    for case in cases:
        cell = _read_check(check_case(case, bench), listed=claims(case, mistake.id))
        if cell is not None:
            cells.append(cell)
        elif claims(case, mistake.id):
            unmeasured.append(case.id)
    if not find_claiming_cases(mistake, spec):
        cells += _check_properties(mistake, bench)
    return Kill(mistake, dtype, tuple(cells), tuple(unmeasured))


def _read_check(verdict: Verdict, *, listed: bool) -> KillCheck | None:
    """Read the result of a verdict; None if nothing was judged."""
    if verdict.status is Status.SKIPPED or verdict.reason == "not-implemented":
        return None
    margin = (math.inf if verdict.bad else 0.0) if verdict.ratio is None else verdict.ratio
    return KillCheck(verdict.check, verdict.kind, verdict.component, listed, verdict.bad, margin, verdict.reason)


def _check_properties(mistake: Mistake, bench: Bench) -> Iterator[KillCheck]:
    """Yield the results of the properties that list a mistake; those of every component are run on its own."""
    listing = [prop for prop in bench.spec.properties.values() if mistake.id in prop.catches]
    for prop in listing:
        component = mistake.component if prop.component == "*" else prop.component
        cell = _read_check(check_property(prop, component, bench), listed=True)
        if cell is not None:
            yield cell


def claims(case: Case, mistake: str) -> bool:
    """Return True if a case says that it reveals a mistake: it was designed or once measured to do so."""
    return mistake in case.kills or mistake in case.meant_for


def find_claiming_cases(mistake: Mistake, spec: Spec) -> list[Case]:
    """Return the cases that list a mistake."""
    return [case for case in spec.cases.values() if claims(case, mistake.id)]


def select_cases_for(mistake: Mistake, spec: Spec) -> list[Case]:
    """Return the cases of a mistake's component and of all that is built of it, and every other one that lists it.

    A full-size model takes seconds, so its cases are among them only if they list the mistake.
    """
    touched = {name for name in spec.components if mistake.component in (name, *spec.list_dependencies(name))}
    return [
        case
        for case in spec.cases.values()
        if claims(case, mistake.id) or (case.component in touched and not case.full_size)
    ]


def measure_all(spec: Spec, ids: Sequence[str], dtype: str, jobs: int) -> Iterator[Kill]:
    """Measure mistakes in `jobs` processes, and yield their kills in the order of their ids."""
    if min(jobs, len(ids)) <= 1:
        yield from (_measure_one(id_, dtype, spec) for id_ in ids)
        return
    with make_pool(min(jobs, len(ids))) as pool:
        yield from pool.map(_measure_in_worker, ids, repeat(dtype), repeat(spec.root))


def _measure_one(id_: str, dtype: str, spec: Spec) -> Kill:
    return measure(all_implementations()[id_], dtype, select_cases_for(spec.mistakes[id_], spec), spec)


def _measure_in_worker(id_: str, dtype: str, root: Path) -> Kill:
    """Measure a mistake in a worker, which reads the spec once: load_spec caches it."""
    return _measure_one(id_, dtype, load_spec(root))


def collect_kills(kills: Iterable[Kill], spec: Spec) -> dict[str, tuple[str, ...]]:
    """Return the mistakes that each measured case kills: the claims that are true.

    A new mistake, which no case kills and no property catches yet, is added to every case that fails for it far beyond
    rounding, and to a bad input only if it is accepted: what also fails without the fault says nothing. So is a mistake
    that another case of the component kills to a new case, which kills none yet; not to a bad input, which a mistake
    may accept or refuse by chance. Other lists do not grow, because the diagnosis tries listed mistakes first and would
    change with each run.
    A claim that was not measured stays.
    """
    claimed: dict[str, set[str]] = defaultdict(set)
    for case in spec.cases.values():
        claimed[case.component].update(case.kills)
    new_cases = {case.id for case in spec.cases.values() if not case.kills and case.error is None}
    found = {case.id: list(case.kills) for case in spec.cases.values()}
    known = {id_ for killed in found.values() for id_ in killed}
    known |= {id_ for prop in spec.properties.values() for id_ in prop.catches}
    measured: set[str] = set()
    for kill in kills:
        mistake = kill.mistake.id
        for cell in (cell for cell in kill.cells if cell.kind == "case"):
            measured.add(cell.check)
            listed = found[cell.check]
            is_new = mistake not in known and (spec.cases[cell.check].error is None or cell.reason == ACCEPTED)
            counts = cell.listed or is_new or (cell.check in new_cases and mistake in claimed[cell.component])
            if cell.killed and (cell.listed or (counts and cell.margin >= CLEAR)):
                found[cell.check] = listed if mistake in listed else [*listed, mistake]
            else:
                found[cell.check] = [id_ for id_ in listed if id_ != mistake]
    return {id_: tuple(found[id_]) for id_ in spec.cases if id_ in measured}
