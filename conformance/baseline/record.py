"""Records what an implementation gives: every output of every golden case, and of drawn calls, as it was given."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np

from goldformer import __version__
from goldformer.adapters import Adapter
from goldformer.conformance.baseline.arrays import Kept
from goldformer.conformance.baseline.drawn import drawn_cases
from goldformer.conformance.baseline.environment import recorded
from goldformer.conformance.baseline.model import Baseline, BaselineError, Ended, Entry, Key, Output, Request
from goldformer.conformance.judging.cases import Bench, Judgement, plan
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.run import Check, Numerics, Selection, checks
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.draw import Recipe, Values

#: Is handed the checks as they run, and how many there are; hands them on.
Watch = Callable[[Iterable[Check], int], Iterable[Check]]

#: Where in a file an implementation raised: it moves with every edit, and the file's place is the machine's.
_PLACE: Final = re.compile(r" \([^()]*:\d+, [^()]*\)$")

_DIGEST_LENGTH: Final = 16


def record(
    adapter: Adapter,
    spec: Spec,
    request: Request,
    watch: Watch = lambda todo, _: todo,
    only: Collection[str] = (),
) -> Baseline:
    """What an adapter gives for all of a request, or for those cases `only`; BaselineError when that is nothing.

    Random outputs are kept where a second call repeats them bit for bit.
    """
    Numerics(request.tf32, request.threads).apply(adapter.arrays)
    spec = with_drawn(spec, request)
    cases = [case for case in recordable(spec, adapter, request) if not only or case.id in only]
    keeper = Keeper()
    bench = Bench(spec, adapter, request.dtypes[0], request.devices[0])
    todo = [check for device in request.devices for check in _checks(replace(bench, device=device), cases, request)]
    absent: dict[Key, str] = {}
    for check in watch(todo, len(todo)):
        judgement = check()
        keeper.keep(judgement)
        note_end(judgement.verdict, keeper, absent)
    _repeat(keeper, spec, bench, absent)
    order = {case.id: place for place, case in enumerate(cases)}
    entries = dict(sorted(keeper.entries.items(), key=lambda item: order[item[0].case]))
    if not entries and not only:
        whys = set(absent.values()) or {"no case fits all of these options"}
        why = whys.pop() if len(whys) == 1 else "every case was skipped"
        raise BaselineError(f"{adapter.origin}: nothing was given that could be recorded: {why}")
    return Baseline(__version__, spec_digest(spec), request, (recorded(adapter, request),), entries, absent)


def unrepeated(adapter: Adapter, spec: Spec, baseline: Baseline) -> list[Key]:
    """The calls that give other bits when they are made again, of one for each component, dtype and device.

    It is that with the most numbers, short of a model of full size: what depends on chance or on the order of threads
    shows there first.
    """
    cases = with_drawn(spec, baseline.request).cases
    kept = {
        key: entry
        for key, entry in baseline.entries.items()
        if entry.outputs and not cases[key.case].random and not cases[key.case].full_size
    }
    by_size = sorted(kept, key=lambda key: sum(output.kept.values.size for output in kept[key].outputs.values()))
    largest = {(kept[key].component, key.dtype, key.device): key for key in by_size}
    if not largest:
        return []
    again = record(adapter, spec, baseline.request, only={key.case for key in largest.values()})
    return [key for key in largest.values() if not _same(kept[key], again.entries.get(key))]


def with_drawn(spec: Spec, request: Request) -> Spec:
    """Return the spec with the drawn calls of a request among its cases; BaselineError if it has no such component."""
    components = request.components or spec.components
    if unknown := [name for name in components if name not in spec.contracts]:
        raise BaselineError(
            f"request.components: {unknown[0]!r} is no component of this spec: record the baseline again, or use the "
            "goldformer that wrote it"
        )
    return spec.with_cases({c.id: c for c in drawn_cases(spec, components, request.drawn)})


def recordable(spec: Spec, adapter: Adapter, request: Request) -> list[Case]:
    """The cases of a request that give something to keep."""
    has = adapter.functions.keys() | adapter.gradients.keys()
    return [case for case in plan(spec, request.components) if case.component in has and is_kept(case)]


def is_kept(case: Case) -> bool:
    """Whether a case has a place in a baseline.

    What is refused gives nothing. A model of full size that is asked for shapes alone gives tens of megabytes, of
    which nothing tells rounding from a mistake.
    """
    return case.error is None and not (case.full_size and case.shape_only)


def _checks(bench: Bench, cases: list[Case], request: Request) -> list[Check]:
    # No cases at all would mean every one, and the properties.
    return checks(bench, Selection(request.dtypes, cases=tuple(case.id for case in cases))) if cases else []


@dataclass
class Keeper:
    """Takes what each case gives."""

    entries: dict[Key, Entry] = field(default_factory=dict)

    def keep(self, judgement: Judgement) -> None:
        """Keep the outputs of one call, where it gave any."""
        case, bench, result = judgement.case, judgement.bench, judgement.outcome
        if case is None or not isinstance(result, Result):
            return
        contract = bench.spec.contracts[case.component]
        outputs = {
            name: Output(Kept.of(values, _dtype(name, values, case, contract, bench.dtype)), tol)
            for name, values in result.outputs.items()
            for tol in [derived_tolerance(case, name, bench)]
            if not case.random or tol is not None
        }
        if outputs:
            key = Key(case.id, bench.dtype, bench.device)
            self.entries[key] = Entry(case.component, inputs_digest(case), outputs)


def _dtype(name: str, values: Any, case: Case, contract: Contract, dtype: str) -> str:
    """The dtype in which an output was given: floats are widened when they are read, and were of the bench's."""
    return dtype if contract.results_of(case)[name].kind == "float" else str(values.dtype)


def derived_tolerance(case: Case, output: str, bench: Bench) -> float | None:
    """The case's own tolerance for all elements of an output; None where it derives none, or for some places alone."""
    if case.golden is None:
        return None
    declared = bench.adapter.options(case.component, bench.spec)
    golden = (case.golden.options.get(declared[case.convention] if case.convention else "") or {}).get(output)
    if golden is None or golden.indices is not None:
        return None
    at_least = bench.spec.contracts[case.component].computed_in_at_least
    return tolerance(bench.dtype, golden.error_scale, golden.magnitude, at_least)


def note_end(verdict: Verdict, keeper: Keeper, absent: dict[Key, str]) -> None:
    """Note how a case ended that gave nothing to keep."""
    key = Key(verdict.check, verdict.dtype, verdict.device)
    if key in keeper.entries:
        return
    if verdict.bad or verdict.reason == "not-implemented":
        # A message may hold half a surrogate pair, which no file can.
        message = _PLACE.sub("", verdict.message).encode("utf-8", "backslashreplace").decode("utf-8")
        case = Ended(verdict.reason, message)
        keeper.entries[key] = Entry(verdict.component, "", ended=case)
    elif not verdict.is_judged:
        absent[key] = verdict.message


def _repeat(keeper: Keeper, spec: Spec, bench: Bench, absent: dict[Key, str]) -> None:
    """Call every random case again, and leave out what does not come out as it did."""
    first = {key: entry for key, entry in keeper.entries.items() if spec.cases[key.case].random and entry.outputs}
    for key, entry in first.items():
        again = Keeper()
        selection = Selection((key.dtype,), cases=(key.case,))
        for check in checks(replace(bench, device=key.device), selection):
            again.keep(check())
        if not _same(entry, again.entries.get(key)):
            del keeper.entries[key]
            absent[key] = "it is drawn at random, and a second call gives other numbers"


def _same(entry: Entry, other: Entry | None) -> bool:
    """Whether a second call gave the same bits."""
    return other is not None and all(
        name in other.outputs and output.kept.same(other.outputs[name].kept) for name, output in entry.outputs.items()
    )


# ── digests ──


def inputs_digest(case: Case) -> str:
    """Tells one call from another: its component, its attributes, and the recipes of its arrays."""
    digest = hashlib.sha256(f"{case.component} {sorted(case.attributes.items())}".encode())
    recipes: Mapping[str, Recipe] = {**case.inputs, **case.params}
    for name, recipe in [*recipes.items(), *([("cotangent", case.cotangent)] if case.cotangent else [])]:
        digest.update(f"\n{name} {''.join(_words(recipe))}".encode())
    return digest.hexdigest()[:_DIGEST_LENGTH]


def _words(recipe: Recipe) -> Iterator[str]:
    yield type(recipe).__name__
    if isinstance(recipe, Values):
        array = np.ascontiguousarray(recipe.array)
        yield f" {array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    else:
        yield from (f" {part.name}={getattr(recipe, part.name)}" for part in fields(recipe))


def spec_digest(spec: Spec) -> str:
    """SHA-256 over the spec's files: their names and what they say."""
    digest = hashlib.sha256()
    for path in sorted(p for suffix in ("md", "yaml") for p in spec.root.rglob(f"*.{suffix}")):
        digest.update(f"{path.relative_to(spec.root).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
