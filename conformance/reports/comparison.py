"""The report model of checks: the results of one or several implementations, by component, by dtype and by clause."""

from __future__ import annotations

import contextlib
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from goldformer.adapters import Adapter, AdapterError, find_adapter
from goldformer.adapters.process import TIMEOUT
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.reports.pictures import Picture, make_pictures
from goldformer.conformance.reports.text import nothing_was_checked, stands_on, summary
from goldformer.conformance.run import Numerics, Selection, checks
from goldformer.spec import Spec, load_spec

#: Everything that was checked holds, something fails, or nothing could be checked.
Outcome = Literal["conforms", "fails", "unusable"]


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of checks by their end, of skipped ones by reason, and the worst ratio."""

    passed: int
    failed: int
    errored: int
    skipped: Mapping[str, int]
    worst: float | None

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Counts:
        """Count verdicts; one that a fault of goldformer lost counts as skipped."""
        listed = list(verdicts)
        count = Counter(v.status for v in listed)
        skipped = Counter(str(v.reason) for v in listed if not v.is_judged)
        worst = max((v.ratio for v in listed if v.ratio is not None), default=None)
        faults = skipped["fault"]
        return cls(count[Status.PASSED], count[Status.FAILED], count[Status.ERRORED] - faults, dict(skipped), worst)

    @property
    def bad(self) -> int:
        """The number of checks that failed or errored."""
        return self.failed + self.errored

    @property
    def number_judged(self) -> int:
        """The number of checks that were not skipped."""
        return self.passed + self.bad

    @property
    def stands_on(self) -> str:
        """The number of checks that were judged, in words; "" if all were or none."""
        return stands_on(self.number_judged, self.number_judged + sum(self.skipped.values()))


@dataclass(frozen=True, slots=True)
class ComponentResult:
    """One component of one implementation: its state, as in a summary, and its counts, also by dtype."""

    component: str
    state: str
    counts: Counts
    dtypes: Mapping[str, Counts]


@dataclass(frozen=True, slots=True)
class Implementation:
    """The results of one implementation.

    `given` is the name by which it was asked for, `libraries` has the version of its array library, `problem` says why
    no verdict on it is possible. `pictures` show its output, `implemented` are its components.
    """

    given: str
    name: str
    version: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    seconds: float = 0.0
    problem: str = ""
    pictures: tuple[Picture, ...] = ()
    implemented: frozenset[str] = frozenset()

    @classmethod
    def of(
        cls, bench: Bench, verdicts: Iterable[Verdict], seconds: float, *, with_pictures: bool = False
    ) -> Implementation:
        """Collect the results of a run on a bench; pictures take a few more calls."""
        found, adapter = tuple(verdicts), bench.adapter
        return cls(
            adapter.origin, adapter.name, adapter.version, list_libraries(adapter), adapter.conventions, adapter.hints,
            found, seconds, _find_problem(found), make_pictures(bench) if with_pictures else (),
            frozenset(adapter.functions),
        )  # fmt: skip

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}".strip()

    @property
    def bad(self) -> tuple[Verdict, ...]:
        """The verdicts that failed or errored."""
        return tuple(v for v in self.verdicts if v.bad)

    @property
    def outcome(self) -> Outcome:
        """The outcome as a whole."""
        return "unusable" if self.problem else "fails" if self.bad else "conforms"

    def results(self, spec: Spec) -> dict[str, ComponentResult]:
        """Return the components that were run, in the order of the spec."""
        results = {}
        for row in summary(self.verdicts, spec, self.implemented):
            mine = [v for v in self.verdicts if v.component == row.component]
            dtypes = {d: Counts.of(v for v in mine if v.dtype == d) for d in dict.fromkeys(v.dtype for v in mine)}
            results[row.component] = ComponentResult(row.component, row.state, Counts.of(mine), dtypes)
        return results

    def clauses(self, spec: Spec) -> dict[str, Counts]:
        """Return the clauses that its checks are about, in the order of the spec."""
        about: dict[str, list[Verdict]] = {id_: [] for id_ in spec.clauses}
        for verdict in self.verdicts:
            for id_ in verdict.clauses:
                about[id_].append(verdict)
        return {id_: Counts.of(verdicts) for id_, verdicts in about.items() if verdicts}

    def documents(self, spec: Spec) -> dict[str, Counts]:
        """Return the documents that its golden cases come from, in the order of the spec."""
        about: dict[str, list[Verdict]] = {id_: [] for id_ in spec.documents}
        for verdict in self.verdicts:
            id_ = verdict.source.partition(" ")[0]
            if verdict.kind == "case" and id_ in about:
                about[id_].append(verdict)
        return {id_: Counts.of(verdicts) for id_, verdicts in about.items() if verdicts}


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """The checks to run on every implementation; no components means all of them.

    `timeout` is in seconds, for each call of those that are processes.
    """

    dtypes: tuple[str, ...]
    components: tuple[str, ...] = ()
    device: str = "cpu"
    threads: int = 1
    timeout: float = TIMEOUT


@dataclass(frozen=True, slots=True)
class Comparison:
    """Implementations on which the same checks were run, in the order in which they were named."""

    request: ComparisonRequest
    implementations: tuple[Implementation, ...]

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of all implementations."""
        outcomes = {i.outcome for i in self.implementations}
        return "unusable" if "unusable" in outcomes or not outcomes else "fails" if "fails" in outcomes else "conforms"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each implementation; if two have the same name, with the name by which they were asked for."""
        count = Counter(i.name for i in self.implementations)
        return tuple(i.name if count[i.name] == 1 else f"{i.name} ({i.given})" for i in self.implementations)

    def components(self, spec: Spec) -> list[str]:
        """Return the components that were run on some implementation."""
        run = {v.component for i in self.implementations for v in i.verdicts}
        return [name for name in spec.components if name in run]

    def clauses(self, spec: Spec) -> list[str]:
        """Return the clauses that were judged on some implementation."""
        judged = {
            id_ for i in self.implementations for v in i.verdicts if v.status is not Status.SKIPPED for id_ in v.clauses
        }
        return [id_ for id_ in spec.clauses if id_ in judged]


def list_libraries(adapter: Adapter) -> dict[str, str]:
    """Return the version of an adapter's array library; empty if nothing of that name is installed."""
    try:
        return {adapter.arrays: version(adapter.arrays)}
    except PackageNotFoundError:
        return {adapter.arrays: ""}


def _find_problem(verdicts: Sequence[Verdict]) -> str:
    """Return why no verdict on the implementation is possible, or "" if one is.

    A fault of goldformer leaves open whether the rest conforms; what fails, fails all the same.
    """
    faults = [v for v in verdicts if v.is_fault]
    if faults and not any(v.bad for v in verdicts):
        return f"{faults[0].check} ({faults[0].dtype}): {faults[0].message}"
    if not nothing_was_checked(verdicts):
        return ""
    reasons = Counter(v.message for v in verdicts) or Counter(["no check fits all of these options"])
    ((reason, _),) = reasons.most_common(1)
    return f"nothing was checked: {reason if len(reasons) == 1 else f'everything was skipped, most for: {reason}'}"


def describe_system() -> dict[str, str]:
    """Return goldformer, Python, system and processor, by name."""
    return {
        "goldformer": version("goldformer"),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": platform.platform(),
        "processor": _find_processor(),
    }


def _find_processor() -> str:
    """Return the model of the CPU; Linux has it only in a file."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


# ── running ──

#: Gets each Implementation as it is done and their number, and passes them on: a progress bar.
Watch = Callable[[Iterator[Implementation], int], Iterable[Implementation]]


def run_comparison(
    given: Sequence[str], request: ComparisonRequest, spec: Spec, jobs: int, watch: Watch = lambda found, _: found
) -> Comparison:
    """Run the same checks on every adapter, `jobs` at once.

    Each has a process of its own: modules next to an adapter are imported by their bare names, so two adapters would
    share modules of one name, and a crash would end all of them.
    """
    done = {found.given: found for found in watch(_check_all(given, request, spec, jobs), len(given))}
    return Comparison(request, tuple(done[name] for name in given))


def _check_all(given: Sequence[str], request: ComparisonRequest, spec: Spec, jobs: int) -> Iterator[Implementation]:
    from concurrent.futures import ThreadPoolExecutor, as_completed  # one implementation needs no pool

    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(_check_in_process, name, request, spec.root) for name in given]
        yield from (future.result() for future in as_completed(running))


def _check_in_process(given: str, request: ComparisonRequest, root: Path) -> Implementation:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(_load_and_check, given, request, root).result()
    except BrokenProcessPool:
        return Implementation(given, given, problem="its process ended in the middle of a check")


def _load_and_check(given: str, request: ComparisonRequest, root: Path) -> Implementation:
    return check_implementation(given, request, load_spec(root))


def check_implementation(given: str, request: ComparisonRequest, spec: Spec) -> Implementation:
    """Run the checks on one adapter, in this process."""
    try:
        adapter = find_adapter(given, spec, request.timeout)
    except AdapterError as error:
        # The name is printed next to the problem anyway.
        return Implementation(given, given, problem=str(error).removeprefix(given).lstrip(": "))
    with contextlib.closing(adapter):
        Numerics(threads=request.threads).apply(adapter.arrays)
        bench = Bench(spec, adapter, request.dtypes[0], request.device)
        start = time.perf_counter()
        judgements = (check() for check in checks(bench, Selection(request.dtypes, request.components)))
        verdicts = Diagnosis(spec).explain_all(judgements)
        return Implementation.of(bench, verdicts, time.perf_counter() - start, with_pictures=True)
