"""The quality of the diagnosis: known mistakes, hidden ones, unknown ones, and two at once.

Run with `make diagnosis`. Mistakes are made on the textbook, or stand in programs. The golden cases and properties of
the suite are run on them in float32:

- catalogue: each mistake that NumPy can express, its component there and those that it is built of;
- hidden: only the smallest component that contains it is there, as in an implementation that exposes whole layers;
- unknown: one mistake of the catalogue in five, drawn at random, is left out of the diagnosis;
- pairs: two mistakes of the catalogue at once, in one component, or one of them in a part of it;
- programs: the programs of the table of named mistakes, with what was said of them when it was written;
- bugs: programs in many styles, each with a mistake or two that its first line says, in the same form.

Each bench is drawn in a random order, and ends after `--cpu` seconds. A finding is right if it is what
was made, or if the code with it instead gives the same results for arguments that no case has. With `--outside` the
code runs in another process, and seconds are those of the wall clock.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final

import click
from tests.support.named import PROGRAMS, Entry, judge, read_entries

from benchmarks.truth import Claim, build_mistaken, is_true
from goldformer.adapters import find_adapter
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import (
    CLOSEST,
    FIX_FIRST,
    FIX_TOO,
    MISTAKE_FOUND,
    OPTION_FOUND,
    POSSIBLE_CAUSES,
    Finding,
)
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.suspects import rank_explanations
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.selection import Numerics, Selection, checks
from goldformer.spec import Spec, load_spec

#: One mistake in this many is left out.
FOLDS: Final = 5
#: The benches, in the order in which they are printed.
BENCHES: Final = ("catalogue", "hidden", "unknown", "pairs", "programs", "bugs")
_ROOT: Final = Path(__file__).resolve().parents[1]
#: Tables of programs with the folder of their files.
TABLES: Final = {
    "programs": (_ROOT / "tests" / "conformance" / "diagnosis" / "named.yaml", PROGRAMS),
    "bugs": (_ROOT / "benchmarks" / "bugs.yaml", _ROOT / "benchmarks" / "bugs"),
}


@dataclass(frozen=True, slots=True)
class DiagnosisTask:
    """The mistakes to make at once, and those that the diagnosis must not know."""

    made: tuple[str, ...]
    left_out: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class DiagnosisOutcome:
    """The findings about some mistakes, and the seconds of the diagnosis.

    `wrong` are the claims that are not true. `has_place` says that a place was found by calls, and `is_placed` that a
    mistake is in a component to fix first.
    """

    task: DiagnosisTask
    is_caught: bool
    is_named: bool
    is_placed: bool
    has_place: bool
    wrong: tuple[Claim, ...]
    findings: str
    seconds: float


@cache
def spec_() -> Spec:
    """Load the spec once in each process."""
    Numerics().apply("numpy")
    return load_spec()


@cache
def find_component(id_: str) -> str:
    """Return the component in which a mistake is made."""
    return spec_().mistakes[id_].component


#: An adapter that another process serves; the ids are filled in.
SERVED: Final = """\
from benchmarks.truth import build_mistaken
from goldformer.spec import load_spec

ARRAYS = "numpy"
_made = build_mistaken({ids!r}, load_spec())
globals().update(_made.functions)
globals().update({{f"{{name}}_gradient": gradient for name, gradient in _made.gradients.items()}})
"""


def examine(task: DiagnosisTask, *, is_hidden: bool, is_outside: bool = False) -> DiagnosisOutcome | None:
    """Run the suite on the textbook with some mistakes; None if they are to be hidden and no component can."""
    spec = spec_()
    component = max((find_component(id_) for id_ in task.made), key=list(spec.components).index)
    code = build_mistaken(task.made, spec)
    parts = spec.list_dependencies(component)
    listing = {case.component for case in spec.cases.values() if not {*task.made}.isdisjoint(case.kills)}
    seen = {component, *parts, *(() if parts else listing)}
    if is_hidden:
        holders = [name for name in spec.components if component in spec.list_dependencies(name)]
        if not holders:
            return None
        seen = {min(holders, key=lambda name: len(spec.list_dependencies(name)))}
    selection = Selection(("float32",), tuple(name for name in spec.components if name in seen))
    with ExitStack() as stack:
        called, clock = code, time.process_time
        if is_outside:
            file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "mistaken.py"
            file.write_text(SERVED.format(ids=task.made), encoding="utf-8")
            serving = f"cmd: {sys.executable} -m goldformer serve {file}"
            called, clock = stack.enter_context(closing(find_adapter(serving, spec))), time.perf_counter
        judgements = [check() for check in checks(Bench(spec, called, "float32", "cpu"), selection)]
        start = clock()
        run = Diagnosis(spec, task.left_out).explain_all(judgements)
        remarks = list(diagnose(run, spec))
        seconds = clock() - start
    return assess(task, code, component, run, remarks, seconds)


def assess(
    task: DiagnosisTask, code: Adapter, component: str, run: DiagnosedRun, remarks: list[Finding], seconds: float
) -> DiagnosisOutcome:
    """Return what the findings of a run are worth; all the mistakes show in the component."""
    spec, made = spec_(), {*task.made}
    claims = list(list_claims(run, remarks, spec))
    true = {c for c in claims if is_true(c, code, task.made, spec)}
    # Two mistakes may be found one after the other, each in the component where it is.
    right = true | {c for c in claims if c.is_of_mistakes and made >= {*c.causes}}
    by_label = (list_claims(run, remarks, spec, label) for label in (MISTAKE_FOUND, CLOSEST, POSSIBLE_CAUSES))
    first = next((claim for listed in by_label for claim in listed), None)
    named = {id_ for c in right for id_ in c.causes}
    if first and first not in true and is_true(first, code, task.made, spec):
        true.add(first)
    whole = {c for c in true if c.component not in spec.list_dependencies(component)}
    # One mistake that sits in two halves of a model may be found in a part of each.
    to_fix = {r.text for r in remarks if r.label in (FIX_FIRST, FIX_TOO)}
    in_parts = len(made) == 1 and bool(to_fix) and to_fix <= {c.component for c in true}
    homes = {find_component(id_) for id_ in made}
    return DiagnosisOutcome(
        task,
        is_caught=any(v.bad for v in run),
        is_named=made <= named or (first is not None and made <= {*first.causes}) or bool(whole) or in_parts,
        is_placed=any(r.label == FIX_FIRST and r.text in homes for r in remarks),
        has_place=any(run.about(v).place for v in run),
        wrong=tuple(c for c in claims if c not in right),
        findings="\n".join(f"{r.label}: {r.text}" for r in remarks),
        seconds=seconds,
    )


def list_claims(run: DiagnosedRun, remarks: list[Finding], spec: Spec, *labels: str) -> Iterator[Claim]:
    """Yield the claims under some labels, by component; without labels, the claims of what was found."""
    component = ""
    for remark in remarks:
        component = component if remark.inner else remark.text
        if remark.label in (labels or (MISTAKE_FOUND, OPTION_FOUND)):
            ranked = rank_explanations(run, component, spec)
            matching = (e for e in ranked if remark.mistakes == tuple(c.id for c in e.causes if not c.option))
            same = (e for e in matching if e.certain or labels)
            found = next(same, None)
            # A result that changes from call to call is found without an imitation.
            yield Claim(component, remark.mistakes if found is None else found.ids)


def list_tasks(bench: str, seed: int) -> Iterator[DiagnosisTask]:
    """Yield the tasks of a bench in a random order."""
    rng = random.Random(seed)
    known = list(implementations())
    drawn = rng.sample(known, len(known))
    if bench == "pairs":
        yield from draw_pairs(rng)
    elif bench == "unknown":
        left_out = frozenset(drawn[: len(drawn) // FOLDS])
        yield from (DiagnosisTask((id_,), left_out) for id_ in drawn[: len(drawn) // FOLDS])
    else:
        yield from (DiagnosisTask((id_,)) for id_ in drawn)


def draw_pairs(rng: random.Random) -> Iterator[DiagnosisTask]:
    """Yield two mistakes that can show at once, the second one in the component of the first or in a part of it."""
    made = implementations()
    ids = list(made)
    while True:
        first = rng.choice(ids)
        home = find_component(first)
        homes = {home, *spec_().list_dependencies(home)}
        second = rng.choice([id_ for id_ in ids if find_component(id_) in homes])
        if first != second and made[first].can_be_made_with(made[second]):
            yield DiagnosisTask((first, second))


def examine_program(entry: Entry) -> DiagnosisOutcome:
    """Judge a program, and compare what is said of it with what its table says."""
    start = time.process_time()
    said = judge(entry, spec_())
    seconds = time.process_time() - start
    expected, found = (set(_list_names(finds)) for finds in (entry.finds or (), said.finds))
    return DiagnosisOutcome(
        DiagnosisTask((entry.id,)),
        is_caught=bool(said.failing),
        is_named=bool(expected) and expected <= found,
        is_placed=bool(entry.place) and entry.place in said.whole,
        has_place="Place" in said.finds,
        wrong=tuple(Claim(entry.components[-1], ids) for ids in sorted(found - expected)),
        findings="\n".join(map(": ".join, zip(said.finds, said.texts, strict=True))),
        seconds=seconds,
    )


def _list_names(finds: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield the ids of each mistake or option that was found; an option's is its label."""
    for find in finds:
        label, _, ids = find.partition(": ")
        if label in (MISTAKE_FOUND, OPTION_FOUND):
            yield tuple(ids.split(" + ")) if ids else (label,)


def run_bench(bench: str, seed: int, cpu: float, most: int, *, is_outside: bool) -> list[DiagnosisOutcome]:
    """Return the outcomes of a bench's first tasks: at most `most`, begun within `cpu` seconds of CPU time."""
    outcomes = []
    start = time.process_time()
    for task in islice(_list_examined(bench, seed), most):
        if time.process_time() - start > cpu:
            break
        if isinstance(task, Entry):
            outcomes.append(examine_program(task))
        elif outcome := examine(task, is_hidden=bench == "hidden", is_outside=is_outside):
            outcomes.append(outcome)
    return outcomes


def _list_examined(bench: str, seed: int) -> Iterator[DiagnosisTask | Entry]:
    if bench in TABLES:
        yield from (entry for entry in read_entries(*TABLES[bench]) if entry.finds)
    else:
        yield from list_tasks(bench, seed)


def describe(bench: str, outcomes: list[DiagnosisOutcome]) -> str:
    """Return the line of a bench in the table."""
    caught = [o for o in outcomes if o.is_caught]
    unnamed = [o for o in caught if not o.is_named]
    counts = (
        len(caught),
        sum(o.is_placed or o.is_named for o in caught),
        sum(o.is_named for o in caught),
        sum(bool(o.wrong) for o in outcomes),
        len(unnamed),
        sum(o.has_place for o in unnamed),
    )
    seconds = [o.seconds for o in outcomes] or [0.0]
    shares = "".join(f"{count:>10}" for count in counts)
    return f"{bench:<12}{len(outcomes):>6}{shares}{median(seconds):>9.2f}{max(seconds):>9.2f}"


def describe_wrong(outcomes: list[DiagnosisOutcome]) -> Iterator[str]:
    """Yield the mistakes that were called by other names, and those that nothing caught."""
    for o in outcomes:
        yield from (f"  {' + '.join(o.task.made)}: said of {c.component}: {' + '.join(c.causes)}" for c in o.wrong)
        if not o.is_caught:
            yield f"  not caught: {' + '.join(o.task.made)}"


@click.command()
@click.option("--jobs", type=int, default=None, help="Processes, a bench in each.  [default: all cores]")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws mistakes, and which are left out.")
@click.option("--cpu", type=float, default=150.0, show_default=True, help="Seconds of CPU time for each bench.")
@click.option("--most", type=int, default=1000, show_default=True, help="The most tasks of a bench.")
@click.option("--bench", "benches", type=click.Choice(BENCHES), multiple=True, default=BENCHES, help="Only this one.")
@click.option("--outside", is_flag=True, help="Call the code in another process; seconds are those of the wall clock.")
@click.option("--verbose", "-v", is_flag=True, help="Print the findings about mistakes that are misnamed or not named.")
def main(
    jobs: int | None, seed: int, cpu: float, most: int, benches: tuple[str, ...], *, outside: bool, verbose: bool
) -> None:
    """Print how many are caught, placed and named, how many are called by a wrong name, and the time of it."""
    titles = ("caught", "placed", "named", "misnamed", "unnamed", "place")
    unit = "wall s" if outside else "CPU s"
    print(f"{'bench':<12}{'made':>6}" + "".join(f"{t:>10}" for t in titles) + f"{unit:>9}{'worst':>9}")
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [(bench, pool.submit(run_bench, bench, seed, cpu, most, is_outside=outside)) for bench in benches]
        for bench, future in waiting:
            outcomes = future.result()
            print(describe(bench, outcomes), *describe_wrong(outcomes), sep="\n", flush=True)
            if verbose:
                for o in (o for o in outcomes if o.wrong or not o.is_named):
                    print(f"── {' + '.join(o.task.made)}, {o.seconds:.1f} s\n{o.findings}")


if __name__ == "__main__":
    main()
