"""State between calls: a case that fails in a run, and is right when it is called first.

What is kept from call to call, such as a cache by shape, a buffer or a counter, is gone in an implementation that is
loaded again. An object in memory cannot be: then only the sizes of the calls hint at it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from goldformer.adapters.protocol import AdapterError
from goldformer.conformance.diagnosis.causes import SHOWN_BY_PROPERTY
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun, KeptState
from goldformer.conformance.diagnosis.suspects import ACCEPTED
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.judging.host import find_host, follow_host
from goldformer.conformance.judging.repeat import repeat_cases, write_command
from goldformer.conformance.judging.verdict import WITHHELD, Status, Verdict
from goldformer.spec import Case, Spec

#: The failing cases of a component that are called first in vain, and how often its adapter is loaded.
_IN_VAIN: Final = 3
_MOST_LOADS: Final = 48
#: The earlier cases that are tried as the only one before a failing case.
_NEAREST: Final = 8
#: The most cases that a command names: more are the whole component.
_MOST_NAMED: Final = 4
#: The fewest failing cases whose sizes hint at state.
_FEWEST: Final = 2


def note_state(judgements: Sequence[Judgement], run: DiagnosedRun, components: Iterable[str], spec: Spec) -> None:
    """Note of failing cases of some components that they are right when they are called first."""
    judged = {judgement.verdict.key: judgement for judgement in judgements}
    for component in components:
        mine = {i: v for i, v in enumerate(run) if v.component == component}
        cases = {i: spec.cases[v.check] for i, v in mine.items() if v.kind == "case" and v.is_judged}
        cases = {index: case for index, case in cases.items() if case.error is None}
        failing = {
            i: j for i in cases if (j := judged.get(mine[i].key)) is not None and _may_depend_on_calls(mine[i], j.bench)
        }
        passing = [index for index in cases if mine[index].status is Status.PASSED]
        known = any(v.bad and v.catches in SHOWN_BY_PROPERTY for v in mine.values())
        if known or not failing or not passing or min(passing) > max(failing):
            continue
        calls = _Calls(cases, {index: mine[index].dtype for index in cases})
        bench = failing[max(failing)].bench
        if bench.adapter.reload is None:
            if calls.depends_on_sizes(failing):
                run.note(mine[min(failing)].key, state=KeptState((), is_proven=False))
            continue
        # Standard output may be for JSON. What a module prints when it is loaded was printed.
        with contextlib.redirect_stdout(io.StringIO()):
            found = dict(calls.find_all({index: judgement.bench for index, judgement in failing.items()}))
        for index, after in found.items():
            # What was not tried is shown by the whole component too.
            command = _write_command(after or (), cases[index], failing[index].bench, calls)
            state = None if after is None else KeptState(tuple(case.id for case in after), is_proven=True)
            run.note(mine[index].key, state=state, reproduce=command)


def _may_depend_on_calls(verdict: Verdict, bench: Bench) -> bool:
    # Which call ended the device is known, and each new attempt would take another process, which is seconds.
    if verdict.reason == "crashed" and find_host(bench.adapter).is_apart:
        return False
    return verdict.bad and verdict.reason not in (ACCEPTED, WITHHELD, "not-implemented", "way") and not bench.wrapper


def _write_command(after: Sequence[Case], case: Case, bench: Bench, calls: _Calls) -> str:
    """Return the command that shows a failure after some cases, or after all cases of the component."""
    if after:
        return repeat_cases(bench, bench.policy, (*after, case))
    every = replace(bench, dtype=",".join(dict.fromkeys(calls.dtypes.values())))
    return write_command(every, every.policy, "--component", case.component)


@dataclass
class _Calls:
    """The cases of a component in the order in which they were called, and their dtypes."""

    cases: Mapping[int, Case]
    dtypes: Mapping[int, str]
    #: How often an adapter was loaded again.
    loads: int = 0

    def find_all(self, failing: Mapping[int, Bench]) -> Iterator[tuple[int, Sequence[Case] | None]]:
        """Yield the failing cases that are right when called first, with the cases after which they are wrong.

        If there is one, those that were not tried are yielded with None.
        """
        found, in_vain, after = False, 0, None
        seen = [index for index in failing if self._is_size_seen(index)]
        for index in (*seen, *(index for index in failing if index not in seen)):
            if self.loads > _MOST_LOADS or (not found and in_vain == _IN_VAIN):
                if found:
                    yield index, None
            elif self._is_wrong((), index, failing[index]):
                in_vain += 1
            else:
                # If many calls made the last one wrong, so they do the next.
                many, found = found and not after, True
                after = () if many else self._find_cause(index, failing[index])
                yield index, after

    def _find_cause(self, index: int, bench: Bench) -> Sequence[Case]:
        """Return the fewest earlier cases after which a case is wrong; nothing if they are many."""
        earlier = [i for i in self.cases if i < index and self.dtypes[i] == self.dtypes[index]]
        # The nearest call of the same sizes is the likeliest to have left something.
        nearest = sorted(earlier, key=lambda i: (not self._has_same_sizes(i, index), -i))
        for i in nearest[:_NEAREST]:
            if self.loads > _MOST_LOADS:
                return ()
            if self._is_wrong((i,), index, bench):
                return (self.cases[i],)
        left = earlier if self._is_wrong(earlier, index, bench) else []
        while len(left) > 1 and self.loads <= _MOST_LOADS:
            halves = (left[len(left) // 2 :], left[: len(left) // 2])
            shorter = next((half for half in halves if self._is_wrong(half, index, bench)), None)
            if shorter is None:
                break
            left = shorter
        return [self.cases[i] for i in left] if len(left) < _MOST_NAMED else ()

    def _is_wrong(self, before: Iterable[int], index: int, bench: Bench) -> bool:
        """Return True if a case fails after others in an adapter that is loaded again, or if that cannot be loaded."""
        assert bench.adapter.reload is not None, "an object in memory is not loaded again"
        self.loads += 1
        try:
            adapter = follow_host(bench.adapter, bench.adapter.reload())
        except AdapterError:
            return True
        with contextlib.closing(adapter):
            at = replace(bench, adapter=replace(adapter, conventions=bench.adapter.conventions))
            for i in before:
                judge_case(self.cases[i], at)
            return judge_case(self.cases[index], at).verdict.bad

    def depends_on_sizes(self, failing: Collection[int]) -> bool:
        """Return True if the calls that fail had the sizes of an earlier one, and most of such calls fail."""
        seen = [index for index in self.cases if self._is_size_seen(index)]
        return len(failing) >= _FEWEST and {*failing} <= {*seen} and 2 * len(failing) >= len(seen)

    def _is_size_seen(self, index: int) -> bool:
        return any(self._has_same_sizes(i, index) for i in self.cases if i < index)

    def _has_same_sizes(self, one: int, other: int) -> bool:
        first, second = self.cases[one], self.cases[other]
        return (first.lead, first.sizes, first.inputs.keys()) == (second.lead, second.sizes, second.inputs.keys())
