"""The candidates that explained failing cases: what explains parts is tried first on the components built from them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from goldformer.conformance.diagnosis.candidates import Candidate
from goldformer.conformance.diagnosis.mistakes.places import HALVES, PLACES
from goldformer.spec import Spec


class KnownMatches:
    """Remembers the candidates that explain failing cases, and joins those of a component's parts."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        #: The candidates that searches found for each component, in their order.
        self._found: dict[str, dict[Candidate, None]] = defaultdict(dict)
        #: The number of failing cases of each component that were compared, and that something explains.
        self._searched: Counter[str] = Counter()
        self._explained: Counter[str] = Counter()
        #: The number of failing cases of each component that a candidate explains.
        self._counted: dict[str, Counter[Candidate]] = defaultdict(Counter)

    def add(self, component: str, found: Iterable[Candidate]) -> None:
        """Add the candidates that a search found for a component."""
        self._found[component].update(dict.fromkeys(found))

    def note_search(self, component: str, explaining: Collection[Candidate]) -> None:
        """Count a failing case of a component for the candidates that explain it."""
        self._searched[component] += 1
        self._explained[component] += bool(explaining)
        # Not the mapping itself: a counter would add its values.
        self._counted[component].update(list(explaining))

    def count_above(self, base: Candidate, component: str, found: Iterable[Candidate]) -> None:
        """Count one case more for these candidates than for a base."""
        self._counted[component].update(dict.fromkeys(found, self._counted[component][base] + 1))

    def was_searched(self, component: str) -> bool:
        """Return True if a failing case of a component was compared with candidates."""
        return self._searched[component] > 0

    def rank(self, component: str, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return candidates with those that explain most cases first, and with the fewest causes among equals."""
        counted = self._counted[component]
        return sorted(candidates, key=lambda c: (-counted[c], len(c.causes)))

    def has_unknown_part(self, component: str) -> bool:
        """Return True if nothing known explains most failing cases of a part."""
        return any(2 * self._explained[p] < self._searched[p] for p in self._spec.list_dependencies(component))

    def list_bases(self, component: str) -> list[Candidate]:
        """Return what explains the parts of a component, all of it together, and with what explains the component.

        An implementation that departs in a part departs in the whole as well, and a second cause comes on top of it. So
        it does with the options of other components.
        """
        parts = list(self._spec.list_dependencies(component))
        of_parts = self._join_matches(parts)
        own = self._find_best_match(component)
        if of_parts.place:
            # Which of two that exclude one another is made in its half only, and which everywhere, is not known.
            bases = [of_parts, own, self._join_matches(parts[::-1])]
        else:
            bases = [of_parts, own.add(of_parts), of_parts.add(self.join_options(component))]
        return [base for base in dict.fromkeys(bases) if base.causes and base.place in (None, *HALVES.values())]

    def join_options(self, component: str) -> Candidate:
        """Return the options that explain other components: an author seldom mixes two of one convention."""
        conventions = self._spec.contracts[component].conventions
        options: dict[str, str] = {}
        for other in self._counted if len(self._counted) > 1 else ():
            for name, option in self._find_best_match(other).options if other != component else ():
                if name in conventions:
                    options.setdefault(name, option)
        return Candidate(options=tuple(sorted(options.items())))

    def list_halves(self, component: str) -> Iterator[Candidate]:
        """Yield what explains the layers or the stack of one half of a model, made in that half only."""
        for half, place in HALVES.items():
            if place in PLACES.get(component, ()):
                best = [self._find_best_match(part) for part in (f"{half}_layer", half)]
                single = (c for c in dict.fromkeys(best) if len(c.mistakes) == 1 and not (c.options or c.place))
                yield from (replace(candidate, place=place) for candidate in single)

    def _join_matches(self, parts: Iterable[str]) -> Candidate:
        """Return what explains these parts; what excludes something before it is made in the half of its part only."""
        joined, apart = Candidate(), Candidate()
        for part in parts:
            best, half = self._find_best_match(part), HALVES.get(part.removesuffix("_layer"))
            added = joined.add(best)
            if half and not best.place and len(best.mistakes) == 1 and not {*best.mistakes} <= {*added.mistakes}:
                apart = Candidate(best.mistakes, place=half)
            joined = added
        return (joined.add_placed(apart) if apart.place else None) or joined

    def _find_best_match(self, component: str) -> Candidate:
        """Return the candidate that explains most failing cases of a component, with the fewest causes among equals."""
        counted = self._counted[component]
        best = max(counted, key=lambda c: (counted[c], -len(c.causes)), default=Candidate())
        return best if 2 * counted[best] >= self._searched[component] else Candidate()

    def list_matches(self, component: str) -> list[Candidate]:
        """Return the candidates that matched earlier cases of a component or of its parts: parts come first."""
        parts = (*reversed(self._spec.list_dependencies(component)), component)
        return list(dict.fromkeys(candidate for part in parts for candidate in self._found[part]))
