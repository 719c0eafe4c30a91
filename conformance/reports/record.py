"""The record of a run on one implementation: everything that reports say of it, as data, counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Final, Literal

from goldformer.adapters import Adapter
from goldformer.adapters.executed import Executed
from goldformer.conformance.diagnosis.causes import declare_in_python
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.judging import running
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.invoke import describe_missing
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.never_ran import NOTHING_MISSED, NeverRan, read_never_ran
from goldformer.conformance.reports.pictures import Picture, make_pictures
from goldformer.conformance.reports.remarks import make_remarks
from goldformer.conformance.reports.results import (
    NOT_IMPLEMENTED,
    PARTIAL,
    ComponentResult,
    Counts,
    nothing_was_checked,
    summarize,
)
from goldformer.spec import Spec
from goldformer.spec.edition import Edition

#: Everything that was checked holds, so it does and is too little, something fails, or nothing could be checked.
Outcome = Literal["conforms", "partial", "fails", "unusable"]

#: What shows all remarks to who asked for a run by a call of Python.
IN_PYTHON: Final = "report.findings"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of a run on one implementation.

    `given` is the name by which it was asked for, `libraries` has the version of its array library, `problem` says why
    no verdict on it is possible, `stopped` that the run was interrupted. `partial` are the components that conform only
    in part, and the classes that no call fits; there are none if something fails. `results` are the components that
    were asked for, `clauses` and `documents` those that its checks are about, `editions` those of the components that
    it has, all in the order of the spec. `findings` are the sentences of the diagnosis and all other remarks, `brief`
    the same for a screen. `pictures` show its output.
    """

    given: str
    name: str
    version: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    device: str = ""
    seconds: float = 0.0
    outcome: Outcome = "unusable"
    problem: str = ""
    stopped: bool = False
    partial: tuple[str, ...] = ()
    results: Mapping[str, ComponentResult] = field(default_factory=dict)
    clauses: Mapping[str, Counts] = field(default_factory=dict)
    documents: Mapping[str, Counts] = field(default_factory=dict)
    editions: tuple[Edition, ...] = ()
    findings: tuple[Finding, ...] = ()
    brief: tuple[Finding, ...] = ()
    run: DiagnosedRun = field(default_factory=DiagnosedRun)
    pictures: tuple[Picture, ...] = ()

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
    def rows(self) -> list[ComponentResult]:
        """The rows of the summary: what the adapter does not have is one line below it."""
        return [result for result in self.results.values() if result.state != NOT_IMPLEMENTED]

    @property
    def not_implemented(self) -> list[str]:
        """The components that were asked for and that it does not have."""
        return [name for name, result in self.results.items() if result.state == NOT_IMPLEMENTED]

    def explain_partial(self) -> str:
        """Return why it conforms only in part, in words."""
        cached = [name for name in self.partial if name in self.results and self.results[name].unused_cache]
        few = [name for name in self.partial if name not in cached]
        words = [f"too few cases were judged of {', '.join(few)}"] if few else []
        words += [f"no golden case used the cache of {', '.join(cached)}"] if cached else []
        return ", and ".join(words)


def record_run(
    bench: Bench,
    run: DiagnosedRun,
    seconds: float,
    absent: Sequence[str] = (),
    executed: Executed | None = None,
    *,
    stopped: str = "",
    with_pictures: bool = False,
    chosen: bool = False,
    more: str = "-v",
) -> RunRecord:
    """Record a run on a bench; pictures take a few more calls.

    `absent` are the components that were asked for and that the adapter does not have, `executed` is what ran of its
    code, and `stopped` says where the run ended. With `chosen`, the user chose single checks. `more` is what shows the
    reader all remarks.
    """
    adapter, spec = bench.adapter, bench.spec
    facts = RunRecord(
        adapter.origin, adapter.name, adapter.version, list_libraries(adapter), adapter.conventions, adapter.hints,
        bench.device, seconds, problem=stopped or _find_problem(run.verdicts, absent, adapter), stopped=bool(stopped),
        run=run, pictures=make_pictures(bench) if with_pictures else (),
    )  # fmt: skip
    never_ran = read_never_ran(executed, spec) if executed else NOTHING_MISSED
    implemented = frozenset(name for name in spec.components if bench.has(name))
    judged = {verdict.component for verdict in run.verdicts}
    doubled = (name for name, owned in adapter.doubled.items() if judged.intersection(owned))
    unjudged = (*adapter.unmatched, *doubled)
    return complete_record(facts, spec, implemented, absent, unjudged, never_ran, chosen=chosen, more=more)


def complete_record(
    facts: RunRecord,
    spec: Spec,
    implemented: frozenset[str],
    absent: Iterable[str] = (),
    unmatched: Iterable[str] = (),
    never_ran: NeverRan = NOTHING_MISSED,
    *,
    chosen: bool = False,
    more: str = "-v",
) -> RunRecord:
    """Return the record of a run with all that follows from its verdicts: results, remarks, outcome and counts.

    `implemented` are the components that the adapter has, and `unmatched` its classes that no call fits.
    """
    run = facts.run
    caches = {} if chosen else never_ran.caches
    results = summarize(run, spec, implemented, absent, caches, chosen=chosen)
    few = () if chosen else (r.component for r in results.values() if r.state == PARTIAL or r.unused_cache)
    partial = () if chosen or any(v.bad for v in run) else tuple(dict.fromkeys((*few, *unmatched)))
    remarks = [
        make_remarks(run, results, spec, facts.conventions, never_ran, whole=whole, more=more)
        for whole in (True, False)
    ]
    if more == IN_PYTHON:
        remarks = [[replace(found, text=declare_in_python(found.text)) for found in listed] for listed in remarks]
    outcome: Outcome = "fails" if any(v.bad for v in run) else "partial" if partial else "conforms"
    has = (name for name, result in results.items() if result.state != NOT_IMPLEMENTED)
    return replace(
        facts,
        outcome="unusable" if facts.problem else outcome,
        partial=partial,
        results=results,
        clauses=_count_by(spec.clauses, ((id_, v) for v in run for id_ in v.clauses)),
        documents=_count_by(spec.documents, ((v.source.partition(" ")[0], v) for v in run if v.kind == "case")),
        editions=spec.editions_of(has),
        findings=tuple(remarks[0]),
        brief=tuple(remarks[1]),
    )


def _count_by(ids: Iterable[str], pairs: Iterable[tuple[str, Verdict]]) -> dict[str, Counts]:
    """Count the verdicts that are about each of some ids, in the order of the ids."""
    about: dict[str, list[Verdict]] = {id_: [] for id_ in ids}
    for id_, verdict in pairs:
        if id_ in about:
            about[id_].append(verdict)
    return {id_: Counts.of(verdicts) for id_, verdicts in about.items() if verdicts}


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
