"""The mistakes and options that may explain a component, in the order in which they are tried."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, combinations, product
from typing import Final

from goldformer.conformance.diagnosis.candidates import Candidate
from goldformer.conformance.diagnosis.failure import Options
from goldformer.conformance.diagnosis.mistakes import ON_PURPOSE, implementations
from goldformer.conformance.diagnosis.mistakes.places import HALVES, PLACES, can_be_made
from goldformer.spec import Spec
from goldformer.spec.formulas.options import OPTIONS

#: The options of a part that code chooses on purpose, often without a part that can be judged by itself.
_OF_PARTS: Final = ("activation", "norm_divisor")
#: From this many combinations of options on, no wider ones are made.
_MOST_COMBINED: Final = 200


class Catalogue:
    """Lists candidates of a component; `left_out` are mistakes that it must not know."""

    def __init__(self, spec: Spec, left_out: Collection[str] = ()) -> None:
        self._spec = spec
        self._left_out = frozenset(left_out)
        self._in_one_call: dict[str, bool] = {}

    def list_near(self, component: str, options: Options) -> Iterator[Candidate]:
        """Yield the options that were not declared, the component's own mistakes, and those that its cases list."""
        for name, declared in options.items():
            others = (
                option
                for option in self._spec.conventions[name].options
                # An option that only leaves parameters out of the call changes no step of the textbook.
                if option != declared and {(name, option), (name, declared)} & OPTIONS.keys()
            )
            yield from (Candidate(options=((name, option),)) for option in others)
        listed, mistakes = self._list_claimed(component), self._spec.mistakes
        formulas = [id_ for id_, made in implementations().items() if not made.loses_digits]
        own = [id_ for id_ in formulas if mistakes[id_].component == component]
        of_others = [id_ for id_ in formulas if id_ in listed and mistakes[id_].component != component]
        yield from self.make_candidates(id_ for id_ in (*own, *of_others) if self.shows_in_one_call(id_, component))

    def list_far(self, component: str) -> Iterator[Candidate]:
        """Yield the mistakes of a component's parts that no case of the component lists."""
        listed = self._list_claimed(component)
        parts = self._spec.list_dependencies(component)
        others = (id_ for id_, made in implementations().items() if id_ not in listed and not made.loses_digits)
        homes = {id_: self._spec.mistakes[id_].component for id_ in others}
        far = (id_ for id_, home in homes.items() if home in parts and self.shows_in_one_call(id_, home))
        yield from self.make_candidates(far)

    def list_losing_digits(self) -> Iterator[Candidate]:
        """Yield the mistakes that only lose digits, in whichever component."""
        yield from self.make_candidates(id_ for id_, made in implementations().items() if made.loses_digits)

    def list_known(self, component: str, options: Options) -> Iterator[Candidate]:
        """Yield all options and mistakes, near ones first."""
        yield from self.list_near(component, options)
        yield from self.list_far(component)

    def make_candidates(self, ids: Iterable[str]) -> Iterator[Candidate]:
        """Yield a candidate for each mistake that has an implementation and is not left out."""
        return (Candidate((id_,)) for id_ in ids if id_ in implementations() and id_ not in self._left_out)

    def shows_in_one_call(self, mistake: str, component: str) -> bool:
        """Return True unless a mistake shows only in gradients, or only after other calls.

        The cases of the component mostly decide, and then no other component's files are read.
        """
        if mistake not in self._in_one_call:
            killing = self._spec.cases_killing(mistake, component)
            self._in_one_call[mistake] = any(case.cotangent is None for case in killing)
        return self._in_one_call[mistake]

    def _list_claimed(self, component: str) -> set[str]:
        """Return the ids of the mistakes that cases of a component list."""
        return {id_ for case in self._spec.cases_of(component) for id_ in case.kills}

    def place_mistakes(self, component: str, near: list[Candidate], bases: list[Candidate]) -> Iterator[Candidate]:
        """Yield mistakes in only one place, near ones first: by themselves, under options, and on bases."""
        placed = list(self._list_placed(component, near))
        yield from placed
        own = self.select_own(component, placed)
        for some in (*(one for one in near if one.options), *combine_options(near)):
            yield from filter(None, map(some.add_placed, own))
        for base in (*bases, *(one for one in near if one.options)):
            yield from filter(None, map(base.add_placed, placed))

    def _list_placed(self, component: str, near: list[Candidate]) -> Iterator[Candidate]:
        """Yield each mistake in each place where it can be made; those of whole components before those of parts.

        What a component runs itself comes before the parts of its parts: the halves of a model often have code of their
        own for positions, and seldom for an attention.
        """
        parts = self._spec.list_dependencies(component)
        inner = {name for part in parts for name in self._spec.list_dependencies(part)}
        order = {name: place for place, name in enumerate(self._spec.components)}
        for some in (near, list(self.list_far(component))):
            homes: defaultdict[str, list[str]] = defaultdict(list)
            for id_ in (id_ for c in some for id_ in c.mistakes):
                homes[self._spec.mistakes[id_].component].append(id_)
            for home in sorted(homes, key=lambda home: (home in inner, -order[home])):
                for place, id_ in product(PLACES.get(component, ()), homes[home]):
                    # What a stack does with its layers is not done in one of them.
                    if place.layers and home in HALVES:
                        continue
                    if (not place.parts or home in place.parts) and can_be_made(place, implementations()[id_]):
                        yield Candidate((id_,), place=place)

    def place_in_halves(self, component: str, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """Yield those candidates that are one mistake of the catalogue in each half of a model only."""
        places = [place for place in HALVES.values() if place in PLACES.get(component, ())]
        single = (c for c in candidates if len(c.causes) == 1 and not c.is_generated)
        for candidate, place in product(single, places):
            if not candidate.place and can_be_made(place, implementations()[candidate.mistakes[0]]):
                yield replace(candidate, place=place)

    def combine_near(self, component: str, bases: list[Candidate], near: list[Candidate]) -> Iterator[Candidate]:
        """Yield several options at once, and these and single candidates on top of each base.

        What is done on purpose comes with several options, and two such things with any number, or with none.
        """
        options, several = [one for one in near if one.options], combine_options(near)
        # If all candidates are options, as for decoding, nothing else comes with them.
        parts = self._spec.list_dependencies(component) if len(options) < len(near) else ()
        on_purpose = [list(self._list_on_purpose([part])) for part in parts]
        pairs = list(chain.from_iterable(combine_with(one, other) for one, other in combinations(on_purpose, 2)))
        yield from several
        yield from combine_with(bases, [*near, *several])
        yield from combine_with(chain.from_iterable(on_purpose), several)
        yield from pairs
        yield from combine_with(pairs, [*options, *several])

    def pair_candidates(
        self, component: str, near: list[Candidate], bases: list[Candidate], seen: list[Candidate]
    ) -> Iterator[Candidate]:
        """Yield pairs: what was seen and another, an option and a mistake, two of the component's own.

        Mistakes of the component come under several options at once too, and all on top of a base and an option, or of
        what is done on purpose in a part.
        """
        options = [c for c in near if c.options]
        on_purpose = list(self._list_on_purpose(self._spec.list_dependencies(component)))
        own = self.select_own(component, near)
        under = [both for base in bases for option in options if (both := base.combine(option))]
        chosen = chain(
            ((one, other) for one in seen for other in near),
            ((one, other) for other in near if other.mistakes for one in under),
            ((option, other) for other in near if other.mistakes for option in options),
            ((one, other) for other in near if other.mistakes for one in on_purpose),
            combinations(own, 2),
            ((one, other) for one in combine_options(near) for other in own),
        )
        yield from filter(None, (one.combine(other) for one, other in chosen))

    def pair_mistakes(self, component: str, near: list[Candidate]) -> Iterator[Candidate]:
        """Yield pairs of mistakes of which at least one is made in a part of a component, its own first."""
        own = self.select_own(component, near)
        parts = [one for one in near if one.mistakes and one not in own]
        yield from filter(
            None, (one.combine(other) for one, other in chain(product(own, parts), combinations(parts, 2)))
        )

    def add_to_purpose(self, component: str, near: list[Candidate]) -> Iterator[Candidate]:
        """Yield what code does on purpose in a part, with each mistake of the component in one place.

        Layers with GELU often have no network that can be judged by itself.
        """
        placed = self.select_own(component, list(self._list_placed(component, near)))
        chosen = (one for one in near if one.options and one.options[0][0] in _OF_PARTS)
        for one in chain(self._list_on_purpose(self._spec.list_dependencies(component)), chosen):
            yield from filter(None, map(one.add_placed, placed))

    def _list_on_purpose(self, components: Collection[str]) -> Iterator[Candidate]:
        """Yield what code does on purpose in some components."""
        return self.make_candidates(id_ for id_ in ON_PURPOSE if self._spec.mistakes[id_].component in components)

    def select_own(self, component: str, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates that begin with a mistake of the catalogue in the component itself."""
        return [c for c in candidates if c.mistakes and self._spec.mistakes[c.mistakes[0]].component == component]


def combine_with(bases: Iterable[Candidate], others: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield each base with each other candidate, where both can be made."""
    listed = list(others)
    for base in bases:
        yield from filter(None, (base.combine(other) for other in listed))


def combine_options(near: list[Candidate]) -> list[Candidate]:
    """Return the combinations of two or more options of different conventions, the fewest options first."""
    singles = [one for one in near if one.options]
    found: dict[Candidate, None] = dict.fromkeys(singles)
    wider = singles
    while wider and len(found) < _MOST_COMBINED:
        wider = list(filter(None, (one.combine(other) for one in wider for other in singles)))
        wider = [one for one in dict.fromkeys(wider) if one not in found]
        found.update(dict.fromkeys(wider))
    return list(found)[len(singles) :]
