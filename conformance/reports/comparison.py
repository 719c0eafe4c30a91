"""The report model of checks: the results of one or several implementations, by component, by dtype and by clause."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final, Literal

from goldformer.adapters import Adapter
from goldformer.adapters.executed import Executed
from goldformer.adapters.process import TIMEOUT
from goldformer.conformance.diagnosis.causes import declare_in_python
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.judging import running
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.invoke import describe_missing
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.reports.never_ran import NOTHING_MISSED, Cache, NeverRan, read_never_ran
from goldformer.conformance.reports.pictures import Picture, make_pictures
from goldformer.conformance.reports.remarks import make_remarks
from goldformer.conformance.reports.results import (
    NOT_IMPLEMENTED,
    PARTIAL,
    ComponentResult,
    Counts,
    list_partial,
    nothing_was_checked,
    summarize,
)
from goldformer.spec import Spec
from goldformer.spec.edition import Edition, join_editions

#: Everything that was checked holds, so it does and is too little, something fails, or nothing could be checked.
Outcome = Literal["conforms", "partial", "fails", "unusable"]

#: The outcomes of several implementations, the one first that decides.
_WORST_FIRST: Final[tuple[Outcome, ...]] = ("unusable", "fails", "partial")


@dataclass(frozen=True, slots=True)
class Implementation:
    """The results of one implementation.

    `given` is the name by which it was asked for, `libraries` has the version of its array library, `problem` says why
    no verdict on it is possible, `stopped` that the run was interrupted. `pictures` show its output, `implemented` are
    its components, and `absent` those that were asked for and that it does not have. With `chosen`, the user chose
    single checks, so nothing is partial for being few. `unmatched` are its classes that no call fits, and `never_ran`
    is what no golden case ran of its code. With `in_python`, a call of Python asked for it, whose arguments declare
    what an adapter would.
    """

    given: str
    name: str
    version: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    run: DiagnosedRun = field(default_factory=DiagnosedRun)
    seconds: float = 0.0
    problem: str = ""
    pictures: tuple[Picture, ...] = ()
    implemented: frozenset[str] = frozenset()
    absent: tuple[str, ...] = ()
    stopped: bool = False
    chosen: bool = False
    unmatched: tuple[str, ...] = ()
    never_ran: NeverRan = NOTHING_MISSED
    in_python: bool = False

    @classmethod
    def of(
        cls,
        bench: Bench,
        run: DiagnosedRun,
        seconds: float,
        absent: Iterable[str] = (),
        executed: Executed | None = None,
        *,
        stopped: str = "",
        with_pictures: bool = False,
        chosen: bool = False,
    ) -> Implementation:
        """Collect the results of a run on a bench; pictures take a few more calls. `stopped` says where it ended."""
        missing, adapter = tuple(absent), bench.adapter
        return cls(
            adapter.origin, adapter.name, adapter.version, list_libraries(adapter), adapter.conventions, adapter.hints,
            run, seconds, stopped or _find_problem(run.verdicts, missing, adapter),
            make_pictures(bench) if with_pictures else (),
            frozenset(name for name in bench.spec.components if bench.has(name)), missing, bool(stopped), chosen,
            adapter.unmatched, read_never_ran(executed, bench.spec) if executed else NOTHING_MISSED,
        )  # fmt: skip

    @property
    def title(self) -> str:
        """Its name and version."""
        return f"{self.name} {self.version}".strip()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on all checks."""
        return self.run.verdicts

    @property
    def bad(self) -> tuple[Verdict, ...]:
        """The verdicts that failed or errored."""
        return tuple(v for v in self.verdicts if v.bad)

    @property
    def outcome(self) -> Outcome:
        """The outcome as a whole."""
        if self.problem or self.bad:
            return "unusable" if self.problem else "fails"
        return "partial" if self.partial else "conforms"

    @property
    def partial(self) -> tuple[str, ...]:
        """The components that conform only in part, and the classes that were not judged; none if something fails.

        Too few cases were judged of such a component, or no case used its cache.
        """
        few = list_partial(self.verdicts, self.implemented, chosen=self.chosen)
        return few if self.chosen or self.bad else tuple(dict.fromkeys((*few, *self.unmatched, *self.unused_caches)))

    @property
    def unused_caches(self) -> Mapping[str, Cache]:
        """The caches that no golden case used, by component; none if the user chose single checks."""
        judged = {verdict.component for verdict in self.verdicts if verdict.is_judged}
        return {} if self.chosen else {name: c for name, c in self.never_ran.caches.items() if name in judged}

    def explain_partial(self) -> str:
        """Return why it conforms only in part, in words."""
        cached = [name for name in self.partial if name in self.unused_caches]
        few = [name for name in self.partial if name not in cached]
        words = [f"too few cases were judged of {', '.join(few)}"] if few else []
        words += [f"no golden case used the cache of {', '.join(cached)}"] if cached else []
        return ", and ".join(words)

    def results(self, spec: Spec) -> dict[str, ComponentResult]:
        """Return the components that were asked for, in the order of the spec."""
        found = {row.component: row for row in summarize(self.run, spec, self.implemented, chosen=self.chosen)}
        found |= {name: ComponentResult(name, NOT_IMPLEMENTED) for name in self.absent if name not in found}
        for name, cache in self.unused_caches.items():
            if found[name].conforms or found[name].state == PARTIAL:
                found[name] = replace(found[name], state=PARTIAL, unused_cache=str(cache))
        return {name: found[name] for name in spec.components if name in found}

    def editions(self, spec: Spec) -> tuple[Edition, ...]:
        """Return the editions of the components that it has and that were asked for."""
        return spec.editions_of(name for name, row in self.results(spec).items() if row.state != NOT_IMPLEMENTED)

    def remarks(self, spec: Spec, *, whole: bool = False, more: str = "-v") -> list[Finding]:
        """Return the remarks below its table, as `make_remarks` does."""
        results = [*self.results(spec).values()]
        found = make_remarks(self.run, results, spec, self.conventions, self.never_ran, whole=whole, more=more)
        return (
            [replace(finding, text=declare_in_python(finding.text)) for finding in found] if self.in_python else found
        )

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
        return next((o for o in _WORST_FIRST if o in outcomes), "conforms") if outcomes else "unusable"

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each implementation; if two have the same name, with the name by which they were asked for."""
        count = Counter(i.name for i in self.implementations)
        return tuple(i.name if count[i.name] == 1 else f"{i.name} ({i.given})" for i in self.implementations)

    def components(self, spec: Spec) -> list[str]:
        """Return the components that were run on some implementation."""
        run = {v.component for i in self.implementations for v in i.verdicts}
        return [name for name in spec.components if name in run]

    def editions(self, spec: Spec) -> tuple[Edition, ...]:
        """Return the editions of the components that some implementation has."""
        found = {edition for i in self.implementations for edition in i.editions(spec)}
        return tuple(edition for edition in spec.editions.values() if edition in found) or (spec.default_edition,)

    def environment(self, spec: Spec) -> dict[str, str]:
        """Return goldformer, the editions of the spec that it is about, Python, system and processor, by name."""
        words = {"goldformer": version("goldformer"), "spec": join_editions(self.editions(spec))}
        return words | describe_system()

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


def _find_problem(verdicts: Sequence[Verdict], absent: Sequence[str], adapter: Adapter) -> str:
    """Return why no verdict on the implementation is possible, or "" if one is.

    A fault of goldformer leaves open whether the rest conforms; failures still count.
    """
    if running.ended and not any(verdict.reason == "crashed" for verdict in verdicts):
        return f"{running.ended}; no check did so a second time"
    faults = [v for v in verdicts if v.is_fault]
    if faults and not any(v.bad for v in verdicts):
        return f"{faults[0].check} ({faults[0].dtype}): {faults[0].message}"
    if not nothing_was_checked(verdicts):
        return ""
    missing = describe_missing(adapter, ", ".join(absent)) if absent else "no check fits all of these options"
    reasons = Counter(v.message for v in verdicts) or Counter([missing])
    ((reason, _),) = reasons.most_common(1)
    # One line: in the log of a build server, a further line could be a command to the server.
    reason = " ".join(reason.split())
    return f"nothing was checked: {reason if len(reasons) == 1 else f'everything was skipped, most for: {reason}'}"


def describe_system() -> dict[str, str]:
    """Return Python, system and processor, by name."""
    return {
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
