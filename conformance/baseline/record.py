"""Record an implementation: every output of golden cases, bit for bit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from goldformer.adapters import Adapter
from goldformer.conformance.baseline.array_files import StoredArray
from goldformer.conformance.baseline.environment import describe_run
from goldformer.conformance.baseline.model import Baseline, BaselineError, BaselineRequest, Ended, Entry, Key, Output
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.expected import expect
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.measure import find_tolerance
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.selection import CheckCall, Numerics, Selection, checks
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.draw import Argument

#: Gets the checks as they run and their number, and passes them on: a progress bar.
Watch = Callable[[Iterable[CheckCall], int], Iterable[CheckCall]]

#: The place in a file at which an implementation raised: it changes with every edit and every machine.
_PLACE: Final = re.compile(r" \([^()]*:\d+, [^()]*\)$")

_DIGEST_LENGTH: Final = 16


def record(
    adapter: Adapter,
    spec: Spec,
    request: BaselineRequest,
    watch: Watch = lambda todo, _: todo,
    only: Collection[str] = (),
) -> Baseline:
    """Record the calls of a request, or only the cases `only`; BaselineError if no call gives a result.

    Random outputs are stored if a second call repeats them bit for bit.
    """
    Numerics(request.tf32, request.threads).apply(adapter.arrays)
    require_components(spec, request)
    cases = [case for case in list_recordable(spec, adapter, request) if not only or case.id in only]
    collector = ResultCollector()
    bench = Bench(spec, adapter, request.dtypes[0], request.devices[0])
    todo = []
    for at in (replace(bench, device=device) for device in request.devices):
        todo += _list_checks(at, cases, request)
    absent: dict[Key, str] = {}
    for check in watch(todo, len(todo)):
        judgement = check()
        collector.add(judgement)
        note_end(judgement.verdict, collector, absent)
    _drop_unrepeatable(collector, spec, bench, absent)
    order = {case.id: place for place, case in enumerate(cases)}
    entries = dict(sorted(collector.entries.items(), key=lambda item: order.get(item[0].case, len(order))))
    if not entries and not only:
        whys = set(absent.values()) or {"no case fits all of these options"}
        why = whys.pop() if len(whys) == 1 else "every case was skipped"
        raise BaselineError(f"{adapter.origin}: nothing was given that could be recorded: {why}")
    return Baseline(
        version("goldformer"), digest_spec(spec), request, (describe_run(adapter, request),), entries, absent
    )


def find_unrepeatable(adapter: Adapter, spec: Spec, baseline: Baseline) -> list[Key]:
    """Return the calls that give other bits when they are repeated; one call of each component, dtype and device is.

    It is the one with the most numbers, except full-size models: randomness and the order of threads show there first.
    """
    cases = spec.cases
    results = {
        key: entry
        for key, entry in baseline.entries.items()
        if entry.outputs
        if not cases[key.case].random and not cases[key.case].full_size
    }
    by_size = sorted(
        results, key=lambda key: sum(output.stored.values.size for output in results[key].outputs.values())
    )
    largest = {(results[key].component, key.dtype, key.device): key for key in by_size}
    if not largest:
        return []
    again = record(adapter, spec, baseline.request, only={key.case for key in largest.values()})
    return [key for key in largest.values() if not _gave_same(results[key], again.entries.get(key))]


def require_components(spec: Spec, request: BaselineRequest) -> None:
    """Raise BaselineError if the spec has no component of a name in a request."""
    if unknown := [name for name in request.components if name not in spec.contracts]:
        raise BaselineError(
            f"request.components: {unknown[0]!r} is no component of this spec: record the baseline again, or use the "
            "goldformer that wrote it"
        )


def list_recordable(spec: Spec, adapter: Adapter, request: BaselineRequest) -> list[Case]:
    """Return the cases of a request that give a result to store."""
    has = adapter.functions.keys() | adapter.gradients.keys()
    # The files of other components are not read: all of them take seconds.
    present = [name for name in request.components or spec.components if name in has]
    return [case for case in plan(spec, present) if is_recordable(case)] if present else []


def is_recordable(case: Case) -> bool:
    """Return True if the result of a case belongs into a baseline.

    A refusal gives no result. A full-size model whose case checks only shapes gives tens of megabytes, in which nothing
    tells rounding from a mistake.
    """
    return case.error is None and not (case.full_size and case.shape_only)


def _list_checks(bench: Bench, cases: list[Case], request: BaselineRequest) -> list[CheckCall]:
    # No cases at all would mean every one, and the properties.
    return checks(bench, Selection(request.dtypes, cases=tuple(case.id for case in cases))) if cases else []


@dataclass
class ResultCollector:
    """Collects the result of each case."""

    entries: dict[Key, Entry] = field(default_factory=dict)

    def add(self, judgement: Judgement) -> None:
        """Add the outputs of one call, if it has any."""
        case, bench, result = judgement.case, judgement.bench, judgement.outcome
        if case is None or not isinstance(result, Result):
            return
        contract = bench.spec.contracts[case.component]
        outputs = {
            name: Output(StoredArray.of(values, _find_dtype(name, values, case, contract, bench.dtype)), tol)
            for name, values in result.outputs.items()
            for tol in [_find_own_tolerance(case, name, bench)]
            if not case.random or tol is not None
        }
        if outputs:
            key = Key(case.id, bench.dtype, bench.device)
            self.entries[key] = Entry(case.component, digest_inputs(case), outputs)


def _find_dtype(name: str, values: Any, case: Case, contract: Contract, dtype: str) -> str:
    """Return the dtype of an output: floats, which are widened when they are read, had the bench's."""
    return dtype if contract.results_of(case)[name].kind == "float" else str(values.dtype)


def _find_own_tolerance(case: Case, output: str, bench: Bench) -> float | None:
    """Return the case's own tolerance for all elements of an output; None if it has none, or for some places only."""
    if case.golden is None:
        return None
    contract = bench.spec.contracts[case.component]
    golden = (expect(case, bench.options(case), contract, bench.dtype) or {}).get(output)
    if golden is None or golden.indices is not None:
        return None
    return find_tolerance(golden, contract, bench.dtype).largest


def note_end(verdict: Verdict, collector: ResultCollector, absent: dict[Key, str]) -> None:
    """Note the end of a case without a result."""
    key = Key(verdict.check, verdict.dtype, verdict.device)
    if key in collector.entries:
        return
    if verdict.bad or verdict.reason == "not-implemented":
        # A message may hold half a surrogate pair, which no file can.
        message = _PLACE.sub("", verdict.message).encode("utf-8", "backslashreplace").decode("utf-8")
        case = Ended(reason=verdict.reason, message=message)
        collector.entries[key] = Entry(verdict.component, "", ended=case)
    elif not verdict.is_judged:
        absent[key] = verdict.message


def _drop_unrepeatable(collector: ResultCollector, spec: Spec, bench: Bench, absent: dict[Key, str]) -> None:
    """Repeat every random case, and drop the results that differ."""
    first = {key: entry for key, entry in collector.entries.items() if entry.outputs and spec.cases[key.case].random}
    for key, entry in first.items():
        again = ResultCollector()
        selection = Selection((key.dtype,), cases=(key.case,))
        for check in checks(replace(bench, device=key.device), selection):
            again.add(check())
        if not _gave_same(entry, again.entries.get(key)):
            del collector.entries[key]
            absent[key] = "it is drawn at random, and a second call gives other numbers"


def _gave_same(entry: Entry, other: Entry | None) -> bool:
    """Return True if a second call gave the same bits."""
    return other is not None and all(
        name in other.outputs and output.stored.equals(other.outputs[name].stored)
        for name, output in entry.outputs.items()
    )


# ── digests ──


def digest_inputs(case: Case) -> str:
    """Return the digest of a call: its component, its attributes, and the recipes of its arrays."""
    digest = hashlib.sha256(f"{case.component} {sorted(case.attributes.items())}".encode())
    arguments: Mapping[str, Argument] = {**case.inputs, **case.params}
    for name, argument in [*arguments.items(), *([("cotangent", case.cotangent)] if case.cotangent else [])]:
        digest.update(f"\n{name} {_describe_argument(argument)}".encode())
    return digest.hexdigest()[:_DIGEST_LENGTH]


def _describe_argument(argument: Argument) -> str:
    if argument.written is None:
        return str(argument)
    array = np.ascontiguousarray(argument.written)
    return f"{array.dtype} {argument} {hashlib.sha256(array.tobytes()).hexdigest()}"


def digest_spec(spec: Spec) -> str:
    """Return the SHA-256 of the spec's files: their names and contents."""
    digest = hashlib.sha256()
    for path in sorted(p for suffix in ("md", "yaml") for p in spec.root.rglob(f"*.{suffix}")):
        digest.update(f"{path.relative_to(spec.root).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
