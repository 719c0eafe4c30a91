"""A possible cause of failures, and the textbook with it: what the cause gives for the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.options import OPTIONS
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.causes import IN
from goldformer.conformance.diagnosis.failure import FailingCase, Options
from goldformer.conformance.diagnosis.mistakes.differentiation import DIFFERENTIATED
from goldformer.conformance.diagnosis.mistakes.places import TRACKED, MistakePlace, restrict_to
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import (
    Arguments,
    BadResult,
    NotImplementedHere,
    Result,
    call,
    convert_arguments,
    invoke,
    read_arguments,
)
from goldformer.spec import Case, Spec

#: The number of textbooks with causes that are kept: each takes about 200 kB.
_MOST_ADAPTERS: Final = 500

#: The memory of a cached imitation besides its own numbers, in numbers.
_ENTRY: Final = 100


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible cause: mistakes, and options that were not declared.

    The last mistake is made in `place` only, if there is one; the others are made everywhere.
    """

    mistakes: tuple[str, ...] = ()
    options: tuple[tuple[str, str], ...] = ()
    place: MistakePlace | None = None

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes of its `Match`: the options, and the mistakes' ids, the last one with its place if it has one."""
        names = [*(f"{name}: {option}" for name, option in self.options), *self.mistakes]
        return (*names[:-1], f"{names[-1]}{IN}{self.place.words}") if self.place else tuple(names)

    def combine(self, other: Candidate) -> Candidate | None:
        """Return both candidates at once; None if they exclude or hide one another, or have a place."""
        if self.place or other.place:
            return None
        # Sorted, so that no set of options comes twice.
        both = Candidate(self.mistakes + other.mistakes, tuple(sorted(self.options + other.options)))
        if len({name for name, _ in both.options}) < len(both.options):
            return None
        if len(set(both.mistakes)) < len(both.mistakes):
            return None
        made = [find_made(id_) for id_ in both.mistakes]
        return both if all(one.can_be_made_with(two) for one, two in combinations(made, 2)) else None

    def add_placed(self, placed: Candidate) -> Candidate | None:
        """Return these causes with a mistake in one place; None if one of these has a place or is the same mistake."""
        if self.place or set(self.mistakes) & set(placed.mistakes):
            return None
        return Candidate(self.mistakes + placed.mistakes, self.options, placed.place)

    def add(self, other: Candidate) -> Candidate:
        """Return these causes with those of another that can be made with them."""
        added = self
        for option in other.options:
            added = added.combine(Candidate(options=(option,))) or added
        for id_ in () if other.place else other.mistakes:
            added = added.combine(Candidate((id_,))) or added
        return added


class Imitations:
    """A cache of the results that mistakes and options give for cases, for the next implementation."""

    def __init__(self, most: int = 1 << 23) -> None:
        """Cache at most that many numbers; a full cache is cleared."""
        self._most = most
        self._size = 0
        self._results: dict[tuple[Any, ...], Result | BadResult | None] = {}
        #: Textbooks with a mistake or an option; they have no state.
        self.adapters: dict[tuple[Any, ...], Adapter] = {}

    def get(self, key: tuple[Any, ...], make: Callable[[], Result | BadResult | None]) -> Result | BadResult | None:
        """Return the cached result of a key, or make it."""
        if key not in self._results:
            made = make()
            size = _ENTRY + sum(a.size for a in made.outputs.values()) if isinstance(made, Result) else _ENTRY
            if self._size + size > self._most:
                self._results.clear()
                self._size = 0
            self._results[key] = made
            self._size += size
        return self._results[key]


class Textbooks:
    """Runs the textbook with candidates; `imitations` caches their results."""

    def __init__(self, spec: Spec, imitations: Imitations | None) -> None:
        self._spec = spec
        self._imitations = imitations
        self._arguments: dict[tuple[str, frozenset[str]], Arguments] = {}
        self._adapters: dict[tuple[Any, ...], Adapter] = {} if imitations is None else imitations.adapters

    def imitate(self, candidate: Candidate, failure: FailingCase) -> Result | BadResult | None:
        """Return what a candidate gives for a case, from the cache if there is one; None if that is nothing."""
        if self._imitations is None:
            return self.run(candidate, failure)
        options = tuple(failure.options.items())
        key = (candidate, options, failure.case.id, failure.dtype, failure.has_changed_inputs, failure.output_names)
        return self._imitations.get(key, lambda: self.run(candidate, failure))

    def run(self, candidate: Candidate, failure: FailingCase) -> Result | BadResult | None:
        """Return what a candidate gives for a case, calculated anew."""
        contract = failure.contract
        # The call had no parameters but those of the declared options, whatever the code does without them.
        case = failure.case.under(failure.options, {**failure.options, **dict(candidate.options)})
        adapter = self._build(candidate, failure.options, case.component)
        dtype = _choose_dtype(adapter, failure.dtype)
        arguments, cotangent = self._read_arguments(case), case.cotangent_array
        try:
            with np.errstate(all="ignore"):
                if cotangent is not None:
                    wanted = contract.results_of(case)
                    return invoke_gradient(adapter, contract, arguments, cotangent, wanted, dtype, "cpu")
                # An output that the implementation does not give may have any shape.
                return invoke(
                    adapter, contract, arguments, dtype, "cpu", check_inputs=failure.has_changed_inputs,
                    outputs=failure.output_names,
                )  # fmt: skip
        except BadResult as bad:
            return bad
        except NotImplementedHere:
            return None

    def _read_arguments(self, case: Case) -> Arguments:
        """Return the arguments of a case, the same object for each imitation: their sizes are solved once."""
        key = (case.id, frozenset(case.params))
        if key not in self._arguments:
            self._arguments[key] = read_arguments(case)
        return self._arguments[key]

    def _build(self, candidate: Candidate, declared: Options, component: str) -> Adapter:
        """Return one component of the textbook under the declared options, with the changes of the candidate."""
        chosen = {**declared, **dict(candidate.options)}
        key = (component, candidate.mistakes, candidate.place, tuple(chosen.items()))
        if key not in self._adapters:
            if len(self._adapters) >= _MOST_ADAPTERS:
                self._adapters.clear()
            made = [find_made(id_) for id_ in candidate.mistakes]
            layers = [OPTIONS[item] for item in chosen.items() if item in OPTIONS]
            # A mistake is applied after the options, and after the gradients of the forward pass in which it is made.
            if not all(one.by_hand for one in made):
                layers.append(DIFFERENTIATED)
            layers += [one.steps for one in made]
            if candidate.place:
                layers[-1] = restrict_to(candidate.place, made[-1].steps)
                layers.append(TRACKED)
            made_of = build_textbook(*layers, only=component)
            self._adapters[key] = Adapter.from_trusted(made_of, "+".join(candidate.causes), self._spec)
        return self._adapters[key]

    def accepts(self, candidate: Candidate, case: Case, dtype: str, options: Options) -> bool:
        """Return True if the textbook with a candidate accepts a call that is to be refused."""
        adapter = self._build(candidate, options, case.component)
        contract, numpy = self._spec.contracts[case.component], LIBRARIES["numpy"]
        chosen, given = _choose_dtype(adapter, dtype), read_arguments(case)
        try:
            with np.errstate(all="ignore"):
                call(adapter, contract, convert_arguments(numpy, contract, given, chosen, "cpu"))
        except (BadResult, NotImplementedHere):
            return False
        return True


def _choose_dtype(adapter: Adapter, dtype: str) -> str:
    """Return the dtype in which an imitation computes: NumPy has no bfloat16, and float32 holds all its numbers."""
    return dtype if dtype in adapter.dtypes else "float32"
