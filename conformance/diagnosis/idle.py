"""The parameters that change no output of an implementation although they should: it does not read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.calls import Calls, Exhausted, compute
from goldformer.conformance.diagnosis.failure import LARGE, is_decoding
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Arguments, Array, Result, read_arguments
from goldformer.spec import Spec

#: What a changed parameter must move, ÷ the largest number of an output: rounding to any dtype moves less.
_CLEARLY: Final = 2.0**-6


def find_idle(judgements: Sequence[Judgement], spec: Spec) -> tuple[Judgement, tuple[str, ...]] | None:
    """Return the parameters that change no output, with the failing case that shows it; None if all change one.

    The judgements are those of one component. All parameters of a part that do nothing are told as one, "norm_1.*".
    """
    fitting = [judgement for judgement in judgements if _can_show(judgement)]
    first = max(fitting, key=_rank, default=None)
    if first is None or first.case is None:
        return None
    component, bench = first.case.component, first.bench
    search = _Search(Calls(bench, component), read_arguments(first.case), bench.adapter.options(component, spec))
    with suppress(Exhausted):
        search.find_all()
    return (first, tuple(search.found)) if search.found else None


def _can_show(judgement: Judgement) -> bool:
    case = judgement.case
    return (
        case is not None
        and judgement.verdict.bad
        and bool(judgement.verdict.differences)
        and isinstance(judgement.outcome, Result)
        and len(case.params) > 1
        and case.cotangent is None
        and not (case.random or case.full_size or case.hiding or case.size > LARGE or is_decoding(case))
    )


def _rank(judgement: Judgement) -> tuple[int, int]:
    """Order failing cases: those with most parameters last, and among these small ones."""
    assert judgement.case is not None, "only cases can show it"
    return len(judgement.case.params), -judgement.case.size


@dataclass
class _Search:
    """The calls of one search, each of which changes some parameters of the same call."""

    calls: Calls
    base: Arguments
    options: Mapping[str, str]
    found: list[str] = field(default_factory=list)
    #: The outputs of the call as it is.
    before: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def right(self) -> Mapping[str, Array]:
        """The right outputs of the call as it is."""
        return compute(self.calls.component, self.base, self.options)

    def find_all(self) -> None:
        """Find the parts whose parameters do nothing, and then single parameters of the others."""
        self.before = self.calls.call(self.base) or {}
        parts: dict[str, list[str]] = {}
        for name in self.base.params:
            parts.setdefault(name.rpartition(".")[0], []).append(name)
        idle = [part for part, names in parts.items() if len(names) > 1 and self._is_idle(names)]
        self.found += [f"{part}.*" if part else "every parameter" for part in idle]
        for name in (name for part, names in parts.items() if part not in idle for name in names):
            if self._is_idle([name]):
                self.found.append(name)

    def _is_idle(self, names: Collection[str]) -> bool:
        """Return True if these parameters change no output at all, and one of the right code clearly."""
        changed = {name: _change(self.base.params[name]) for name in names}
        arguments = replace(self.base, params={**self.base.params, **changed})
        moved = compute(self.calls.component, arguments, self.options)
        if not any(_is_moved(self.right[name], moved[name]) for name in moved.keys() & self.before.keys()):
            return False
        after = self.calls.call(arguments)
        return after is not None and all(np.array_equal(after[n], a) for n, a in self.before.items())


def _change(array: Array) -> Array:
    """Return other numbers, whose differences no normalisation takes away."""
    return array * 1.5 + 0.25 * np.cos(np.arange(array.size)).reshape(array.shape)


def _is_moved(one: Array, other: Array) -> bool:
    far = np.abs(np.asarray(one, dtype=float) - other).max(initial=0.0)
    return bool(far > _CLEARLY * np.abs(one).max(initial=0.0))
