"""A possible cause of failures, and the textbook with it: what the cause gives for the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.batches import IN_BATCHES
from goldformer.conformance.diagnosis.causes import IN
from goldformer.conformance.diagnosis.edits.edit import is_edit, note_graph, read_edit
from goldformer.conformance.diagnosis.edits.graph import Graph
from goldformer.conformance.diagnosis.failure import RUNS_BACKWARD, FailingCase, Options, estimate_cost
from goldformer.conformance.diagnosis.generated import find_made, list_layers
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.mistakes.places import TRACKED, MistakePlace, restrict_to
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
from goldformer.spec.formulas import COMPONENTS
from goldformer.spec.formulas.options import find_steps
from goldformer.spec.formulas.steps import Instead, Replacements
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF

#: The number of textbooks with causes that are kept: each takes about 200 kB.
_MOST_ADAPTERS: Final = 500

#: The number of recorded formulas that are kept, on top of which edits are made.
_MOST_GRAPHS: Final = 4

#: The numbers of the results that one diagnosis keeps: some phases of it ask for the same ones.
_KEPT: Final = 1 << 20

#: The dtype in which an imitation computes where NumPy has none, or is slow. It holds all numbers of half types.
_WIDER: Final = "float32"
#: The most numbers of a call that is imitated in float16.
_MOST_IN_SOFTWARE: Final = 1 << 13


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

    @property
    def is_by_hand(self) -> bool:
        """Return True if it has mistakes, and all are made in backward passes written by hand."""
        return bool(self.mistakes) and self.mistakes == _list_by_hand(self)

    @property
    def is_generated(self) -> bool:
        """Return True if one of its mistakes is an edit: the catalogue does not list it."""
        return any(id_ not in implementations() for id_ in self.mistakes)

    def combine(self, other: Candidate) -> Candidate | None:
        """Return both candidates at once, without options that the mistakes hide.

        None if they exclude one another or have a place, or if one of them by itself is all that is left.
        """
        if self.place or other.place:
            return None
        # Sorted, so that no set of options comes twice.
        both = Candidate(self.mistakes + other.mistakes, tuple(sorted(self.options + other.options)))
        if len({name for name, _ in both.options}) < len(both.options):
            return None
        if len(set(map(_name_place, both.mistakes))) < len(both.mistakes):
            return None
        made = [find_made(id_) for id_ in both.mistakes]
        if not all(one.can_be_made_with(two) for one, two in combinations(made, 2)):
            return None
        # An option does nothing if a mistake replaces all of its steps, such as one of eps with another eps.
        replaced = {step for one in made for step, change in one.steps.items() if isinstance(change, Instead)}
        hidden = {item for item in both.options if (steps := find_steps(*item)) and steps.keys() <= replaced}
        left = replace(both, options=tuple(item for item in both.options if item not in hidden))
        return None if hidden and left in (self, other) else left

    def leave_one_out(self) -> list[Candidate]:
        """Return these causes without one of them, for each, if two are left at least."""
        if len(self.causes) < 3:
            return []
        last = len(self.mistakes) - 1
        fewer = [replace(self, options=self.options[:k] + self.options[k + 1 :]) for k in range(len(self.options))]
        # The place is that of the last mistake.
        return fewer + [
            replace(self, mistakes=self.mistakes[:k] + self.mistakes[k + 1 :], place=self.place if k < last else None)
            for k in range(len(self.mistakes))
        ]

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
        """Return the cached result of a key, or make and cache it."""
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
    """Runs the textbook with candidates; `imitations` caches their results, also for the next implementation."""

    def __init__(self, spec: Spec, imitations: Imitations | None) -> None:
        self._spec = spec
        self._imitations = Imitations(_KEPT) if imitations is None else imitations
        self._arguments: dict[tuple[str, frozenset[str], str], Arguments] = {}
        self._adapters = self._imitations.adapters
        #: The last recorded formulas.
        self._graphs: dict[tuple[Any, ...], Graph | None] = {}
        #: The cost of all imitations of forward passes, those in the cache too: what is found does not depend on it.
        self.spent = 0

    def imitate(self, candidate: Candidate, failure: FailingCase) -> Result | BadResult | None:
        """Return what a candidate gives for a case, from the cache if it is there; None if that is nothing."""
        self.spent += estimate_cost(failure.case) if failure.case.cotangent is None else 0
        candidate = _leave_out_backward(candidate, failure)
        options = tuple(failure.options.items())
        wanted = (failure.output_names, failure.gradient_names)
        key = (candidate, options, failure.case.id, failure.dtype, failure.has_changed_inputs, wanted)
        return self._imitations.get(key, lambda: self._edit(candidate, failure) or self.run(candidate, failure))

    def _edit(self, candidate: Candidate, failure: FailingCase) -> Result | None:
        """Return what a candidate gives that ends with an edit; None if it is none, or changes nothing.

        The formula is recorded once for all edits on top of the same causes.
        """
        *others, last = candidate.mistakes or ("",)
        edit = read_edit(last) if is_edit(last) else None
        if edit is None or candidate.place or failure.case.cotangent is not None:
            return None
        if edit.component != failure.case.component or failure.case.random:
            return None
        base = replace(candidate, mistakes=tuple(others))
        names = failure.output_names
        key = (base, tuple(failure.options.items()), failure.case.id, failure.dtype, failure.has_changed_inputs, names)
        if key not in self._graphs:
            if len(self._graphs) >= _MOST_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = self.record(base, failure)
        graph = self._graphs[key]
        made = None if graph is None else edit.give_outputs(graph, names)
        return None if made is None else Result(made, 0.0)

    def record(self, candidate: Candidate, failure: FailingCase) -> Graph | None:
        """Return the graph of a candidate's formula for a case without a cotangent; None if it cannot be recorded."""
        component, graphs = failure.case.component, list[Graph]()
        if component not in COMPONENTS:
            return None
        layers = [*self._list_layers(candidate, failure.options, component), note_graph(component, graphs)]
        adapter = Adapter.from_trusted(build_textbook(*layers, only=component), "recorded", self._spec)
        made = self.run(candidate, failure, adapter)
        return graphs[-1] if graphs and isinstance(made, Result) else None

    def run(
        self, candidate: Candidate, failure: FailingCase, adapter: Adapter | None = None
    ) -> Result | BadResult | None:
        """Return what a candidate gives for a case, without the cache; None if that is nothing.

        `adapter` is the textbook with the candidate; without it, it is built.
        """
        contract = failure.contract
        # The call had no parameters but those of the declared options, whatever the code does without them.
        case = failure.case.under(failure.options, {**failure.options, **dict(candidate.options)})
        adapter = adapter or self._build(candidate, failure.options, case.component)
        dtype = _choose_dtype(failure.case, failure.dtype)
        arguments, cotangent = self._read_arguments(case), case.cotangent_array
        try:
            with np.errstate(all="ignore"):
                if cotangent is not None:
                    names = failure.gradient_names
                    results = contract.results_of(case).items()
                    wanted = {name: result for name, result in results if names is None or name in names}
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
        key = (case.id, frozenset(case.params), case.hiding)
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
            made_of = build_textbook(*self._list_layers(candidate, declared, component), only=component)
            self._adapters[key] = Adapter.from_trusted(made_of, "+".join(candidate.causes), self._spec)
        return self._adapters[key]

    def _list_layers(self, candidate: Candidate, declared: Options, component: str) -> list[Replacements]:
        """Return the replacements of the declared options and of a candidate, those of later layers last."""
        chosen = {**declared, **dict(candidate.options)}
        layers = [IN_BATCHES] if component in ("greedy_decode", "beam_search") else []
        layers += [find_steps(*item) for item in chosen.items()]
        # A mistake is applied after the options.
        layers += list_layers(candidate.mistakes)
        if candidate.place:
            layers[-1] = restrict_to(candidate.place, layers[-1])
            layers.append(TRACKED)
        return layers

    def accepts(self, candidate: Candidate, case: Case, dtype: str, options: Options) -> bool:
        """Return True if the textbook with a candidate accepts a call that is to be refused."""
        adapter = self._build(candidate, options, case.component)
        contract, numpy = self._spec.contracts[case.component], LIBRARIES["numpy"]
        chosen, given = _choose_dtype(case, dtype), read_arguments(case)
        try:
            with np.errstate(all="ignore"):
                call(adapter, contract, convert_arguments(numpy, contract, given, chosen, "cpu"))
        except (BadResult, NotImplementedHere):
            return False
        return True


def _name_place(id_: str) -> str:
    """Return the place of an edit, so that one norm has one eps, or another id as it is."""
    return id_.rpartition("@")[0] if is_edit(id_) else id_


def _leave_out_backward(candidate: Candidate, failure: FailingCase) -> Candidate:
    """Return a candidate without the mistakes of backward passes if a case has none: they do nothing there."""
    if failure.case.cotangent is not None or failure.case.component in RUNS_BACKWARD:
        return candidate
    kept = tuple(id_ for id_ in candidate.mistakes if not find_made(id_).by_hand)
    return candidate if kept == candidate.mistakes else replace(candidate, mistakes=kept)


def _list_by_hand(candidate: Candidate) -> tuple[str, ...]:
    """Return the mistakes of a candidate that are made in backward passes written by hand."""
    return tuple(id_ for id_ in candidate.mistakes if find_made(id_).by_hand)


def _choose_dtype(case: Case, dtype: str) -> str:
    """Return the dtype in which an imitation computes: NumPy has no bfloat16, and float16 only in software."""
    is_slow = dtype == "float16" and case.size > _MOST_IN_SOFTWARE
    return _WIDER if is_slow or dtype not in LIBRARIES["numpy"].dtypes else dtype


def count_roundoffs(case: Case, dtype: str) -> float:
    """Return how many times the roundoff of an imitation fits into that of the dtype which it stands for."""
    return UNIT_ROUNDOFF[dtype] / UNIT_ROUNDOFF[_choose_dtype(case, dtype)]
