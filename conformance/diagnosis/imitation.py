"""The search for known mistakes and other options that reproduce a failing output on the same inputs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from typing import Final

from goldformer.conformance.diagnosis.candidates import Candidate, Imitations, Textbooks, count_roundoffs
from goldformer.conformance.diagnosis.catalogue import Catalogue, combine_with
from goldformer.conformance.diagnosis.causes import Causes, find_cause
from goldformer.conformance.diagnosis.edits.changes import SOLVED
from goldformer.conformance.diagnosis.edits.edit import Edit
from goldformer.conformance.diagnosis.edits.generate import list_edits, name_axes
from goldformer.conformance.diagnosis.edits.solve import solve_constants, solve_factors
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.failure import (
    BY_CHANCE,
    CLEAR,
    LARGE,
    ROUNDINGS,
    FailingCase,
    Options,
    estimate_cost,
    is_decoding,
)
from goldformer.conformance.diagnosis.generated import find_made
from goldformer.conformance.diagnosis.matches import KnownMatches
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.invoke import BadResult, Result
from goldformer.spec import Case, Spec
from goldformer.spec.oracle.rounding import is_half

#: The number of failing cases of a component in a dtype for which the catalogue is searched: in all, and in vain.
#: A search that finds something adds what later cases are compared with.
_SEARCHES: Final = 8
_SEARCHES_IN_VAIN: Final = 2

#: The numbers of all imitations of a large case: a few seconds.
_LISTED: Final = 80_000_000

#: The number of combinations, and of places, that are tried for a case, times the numbers of the case: half a second.
_TRIED: Final = 500_000
#: How many times as many pairs of mistakes are tried, once for a component: no fewer hold most of an attention's.
_PAIRED: Final = 4

#: How many tolerances an option moves a result whose rounding it is no longer taken for.
_VISIBLE: Final = 3.0

#: How far an imitation that loses digits may be from the result that it explains, in tolerances.
_LOST: Final = 1000.0
#: Careful code stays below 0.4 of the tolerance: an imitation whose own rounding is larger loses digits.
_LOSSY: Final = 0.5

#: The work of the edits of one component, in operations on small arrays: about three seconds.
_EDITED: Final = 1_200_000
#: The work of what surrounds the operations of an edit: it is made and compared.
_EDIT: Final = 8
#: How many times as many candidates are tried on top of what is known as others.
_MORE: Final = 4

#: After so many numbers of imitations in all, more than a second, the least likely candidates are not tried, nor is a
#: second failing case searched where the first was searched in vain.
_LATER: Final = 5_000_000

#: The components that code for decoding often has in a second version, such as one with a cache.
_DECODES: Final = ("beam_search", "greedy_decode", "decoder")

#: The number of passing cases of a component that are compared with a neighbour, and of one that decodes.
_PASSED: Final = 6
_PASSED_WORDS: Final = 24
#: The number of those that they are chosen of.
_CHOSEN_OF: Final = 60

#: The time of a gradient, in forward passes.
_SWEEP: Final = 4


@dataclass(frozen=True, slots=True)
class _Kind:
    """Some candidates of one kind, and how many of them are tried."""

    candidates: Iterable[Candidate]
    most: int


class Imitator:
    """Finds the causes of failing outputs; it remembers its matches, so that later cases are quick.

    `left_out` are mistakes that it must not know. `imitations` is a cache for one spec. Several imitators may share
    it, one after the other, and their findings do not depend on it. Without `solves`, no number is solved for: numbers
    fit by chance if they are not compared with other cases.
    """

    def __init__(
        self,
        spec: Spec,
        left_out: Collection[str] = (),
        imitations: Imitations | None = None,
        *,
        solves: bool = True,
    ) -> None:
        self.spec = spec
        self._solves = solves
        self._catalogue = Catalogue(spec, left_out)
        self._textbooks = Textbooks(spec, imitations)
        self._known = KnownMatches(spec)
        self._searched: Counter[tuple[str, str]] = Counter()
        self._in_vain: Counter[tuple[str, str]] = Counter()
        self._tried: dict[str, set[Candidate]] = defaultdict(set)
        #: Those that explain a case but for the digits that they lose.
        self._lossy: set[Candidate] = set()
        #: The candidates of matches, by the causes of these.
        self._matched: dict[Causes, Candidate] = {}
        #: The dtypes in which a match explains some failing case.
        self._explained_in: defaultdict[Causes, set[str]] = defaultdict(set)
        #: The candidates that each failing case was compared with.
        self._compared: defaultdict[tuple[str, str], set[Candidate]] = defaultdict(set)
        #: The components with a failing case without a cotangent.
        self._fails_forward: set[str] = set()
        #: The work of the edits of each component.
        self._edited: Counter[str] = Counter()
        #: Some cases of each component that passed.
        self._passed: defaultdict[str, list[FailingCase]] = defaultdict(list)

    def find_matches(self, failure: FailingCase) -> tuple[Match, ...] | None:
        """Return the mistakes and options whose output matches the actual one; None if the search was skipped."""
        case, actual = failure.case, failure.actual
        if case.full_size or (isinstance(actual, BadResult) and (actual.reason == "raised" or case.size > LARGE)):
            return None
        known = self._choose_known_matches(case)
        found = self._match_candidates(known, failure)
        # Many mistakes give NaN alone, so that it tells one of them from the others only where nothing else is wrong.
        if not (failure.is_nan and self._known.was_searched(case.component)):
            found = found or self._search(failure)
        if case.cotangent is None:
            self._fails_forward.add(case.component)
        self._known.note_search(case.component, found)
        return _describe_matches(found)

    def _note_found(self, found: dict[Candidate, float], failure: FailingCase) -> dict[Candidate, float]:
        """Note what a search found, and return it."""
        self._known.add(failure.case.component, found)
        return found

    def find_late_matches(self, failure: FailingCase) -> tuple[Match, ...]:
        """Return the matches among candidates that were found only after the search for this case."""
        compared = self._compared[failure.case.id, failure.dtype]
        late = [candidate for candidate in self._choose_known_matches(failure.case) if candidate not in compared]
        return _describe_matches(self._match_candidates(late, failure))

    def would_fail(self, causes: Causes, passing: FailingCase) -> bool:
        """Return True if the causes of a match would clearly fail a case in which the actual result is right."""
        candidate = self._matched.get(causes)
        return candidate is not None and self._is_excluded(candidate, passing)

    def _is_excluded(self, candidate: Candidate, passing: FailingCase) -> bool:
        """Return True if a candidate is wrong, or raises, in a case that passes.

        An option that permits to refuse the case lets the textbook raise as well, which says nothing of the candidate.
        Nor does a mistake of one dtype that explains failures in it: who squares in float16 is right in float32.
        """
        dtypes = self._explained_in[candidate.causes]
        known = [implementations()[id_] for id_ in candidate.mistakes if id_ in implementations()]
        if dtypes and passing.dtype not in dtypes and not all(mistake.shows(passing.dtype) for mistake in known):
            return False
        made = self._textbooks.imitate(candidate, passing)
        if isinstance(made, BadResult) and isinstance(self._textbooks.imitate(Candidate(), passing), BadResult):
            return False
        return passing.excludes(made)

    def imitate(self, causes: Causes, failure: FailingCase) -> Result | BadResult | None:
        """Return what the causes of a match give for a case, or right code without any; None if that is nothing."""
        candidate = self._matched.get(causes) if causes else Candidate()
        return None if candidate is None else self._textbooks.imitate(candidate, failure)

    def are_by_hand(self, causes: Causes) -> bool:
        """Return True if the causes of a match are all made in backward passes written by hand."""
        return self._matched.get(causes, Candidate()).is_by_hand

    def _may_be_rounded(self, candidate: Candidate, failure: FailingCase) -> bool:
        """Return True if rounding may be all that keeps a candidate from explaining a failure."""
        near = failure.measure_near(self._textbooks.imitate(candidate, failure)) is not None
        return (near and is_half(failure.dtype)) or self.misses_by_rounding(candidate.causes, failure)

    def match_near(self, causes: Causes, failure: FailingCase) -> tuple[Match, ...]:
        """Return the causes of a match for a failing case that they explain but for rounding, if they do."""
        made = self.imitate(causes, failure)
        apart = failure.measure_apart(made)
        near = min(apart, failure.measure_seen(made))
        if near < CLEAR:
            return (Match(causes, near),)
        bound = self._bound_rounding(causes, failure)
        return (Match(causes, apart / bound),) if apart <= bound else ()

    def misses_by_rounding(self, causes: Causes, failure: FailingCase) -> bool:
        """Return True if the causes of a match lose digits, and rounding may be all that they miss in a case."""
        made = self.imitate(causes, failure)
        if failure.measure_seen(made) < CLEAR:
            return True
        apart = failure.measure_apart(made)
        loses = self._matched.get(causes) in self._lossy
        return (loses and apart < CLEAR) or apart <= self._bound_rounding(causes, failure)

    def _bound_rounding(self, causes: Causes, failure: FailingCase) -> float:
        """Return how far, ÷ tolerance, rounding may move the result of a match; 0 if its causes lose no digits."""
        candidate = self._matched.get(causes)
        own = self._measure_rounding(candidate, failure) if candidate and failure.case.cotangent is None else 0.0
        return CLEAR * ROUNDINGS * own if _LOSSY <= own < math.inf else 0.0

    def search_second(self, causes: Causes, failure: FailingCase) -> tuple[Match, ...]:
        """Return the causes of a match with one more, for a failing case that refutes them by themselves.

        What is found is a late match of the other failing cases.
        """
        case, component, base = failure.case, failure.case.component, self._matched.get(causes)
        if base is None or base.place or case.full_size or case.size > LARGE:
            return ()
        found = self._note_found(self._match_possible(self._list_second(base, failure), failure), failure)
        # What explains one case more comes before it where only the first few are compared.
        self._known.count_above(base, component, found)
        return _describe_matches(found)

    def search_options(self, causes: Causes, failure: FailingCase) -> tuple[Match, ...]:
        """Return the causes of a match with one more option, whose effect shows in a failing case and explains it."""
        case, base = failure.case, self._matched.get(causes)
        if base is None or base.place or case.cotangent is not None or case.full_size or case.size > LARGE:
            return ()
        options = [one for one in self._catalogue.list_near(case.component, failure.options) if one.options]
        before = self._textbooks.imitate(base, failure)
        shown = [c for c in combine_with([base], options) if self._is_visible(c, before, failure)]
        found = self._note_found(self._match_candidates(shown, failure), failure)
        self._known.count_above(base, case.component, found)
        return _describe_matches(found)

    def _is_visible(self, candidate: Candidate, before: Result | BadResult | None, failure: FailingCase) -> bool:
        """Return True if a candidate moves the result by more than rounding moves a right one."""
        made = self._textbooks.imitate(candidate, failure)
        return isinstance(made, Result) and _VISIBLE < replace(failure, actual=made).measure_apart(before) < math.inf

    def _list_second(self, base: Candidate, failure: FailingCase) -> Iterator[Candidate]:
        """Yield a base with each mistake, option and edit, as many as there is time for."""
        case, component = failure.case, failure.case.component
        backward = case.cotangent is not None
        most = _TRIED // estimate_cost(case)
        mistakes: Iterable[Candidate] = self._catalogue.list_known(component, failure.options)
        if backward:
            # A forward pass that is wrong has shown in the cases without a cotangent, which are quick.
            listed = self._catalogue.make_candidates(case.kills)
            mistakes = (c for c in listed if find_made(c.mistakes[0]).by_hand)
        yield from islice(combine_with([base], mistakes), most)
        if not backward:
            yield from self._list_edits(failure, [base])

    def _search(self, failure: FailingCase) -> dict[Candidate, float]:
        """Search the catalogue and the edits; return nothing if the search would take too long."""
        case, component, dtype = failure.case, failure.case.component, failure.dtype
        backward = case.cotangent is not None
        if backward and component in self._fails_forward:
            # What no forward pass showed, no gradient of it shows.
            return {}
        if backward or case.size > LARGE:
            return self._match_listed(failure)
        if self._has_searched_enough(component, dtype):
            return {}
        self._searched[component, dtype] += 1
        found = self._search_forward(failure)
        self._in_vain[component, dtype] += not found
        return self._note_found(found, failure)

    def _match_listed(self, failure: FailingCase) -> dict[Candidate, float]:
        """Return the mistakes that a case lists and that explain it, by themselves or on bases."""
        case, component = failure.case, failure.case.component
        listed = list(self._catalogue.make_candidates(case.kills))
        if case.cotangent is not None and self._passed[component]:
            # The forward pass is right: what would show in it is not the cause.
            made = {c: find_made(c.mistakes[0]) for c in listed}
            listed = [
                c for c in listed if made[c].by_hand or not self._catalogue.shows_in_one_call(made[c].id, component)
            ]
        tried = chain(listed, combine_with(self._known.list_bases(component), listed))
        return self._match_candidates(islice(tried, _LISTED // estimate_cost(case)), failure)

    def _search_forward(self, failure: FailingCase) -> dict[Candidate, float]:
        """Search options and mistakes, then edits and pairs, as many as there is time for."""
        case, component = failure.case, failure.case.component
        bases = self._known.list_bases(component)
        near = list(self._catalogue.list_near(component, failure.options))
        # Decoding takes long, and with two mistakes at once it need not end.
        decides = is_decoding(case)
        some = [one for one in near if one.options] if decides else near
        most = _TRIED // estimate_cost(case)
        joined = [*bases, *self._known.list_halves(component)]
        found = self._match_candidates(near, failure) or self._match_candidates(joined, failure)
        if not found and failure.is_close:
            found = self._match_candidates(self._catalogue.list_losing_digits(), failure)
        if not found and any(self._may_be_rounded(base, failure) for base in bases):
            return {}
        # A passing case may rule out all that fits, such as a mask without effect where one of two masks is lost.
        if found and not decides and all(self._is_unlikely(candidate, failure) for candidate in found):
            # It may be made in one half of a model only, as where one stack shares its layers.
            placed = self._match_possible(self._catalogue.place_in_halves(component, found), failure)
            others = placed or self._search_edits(component, failure)
            likelier = {c: distance for c, distance in others.items() if not self._is_unlikely(c, failure)}
            return likelier or found | others
        # On top of bases that explain the failure, whatever does nothing in this case would explain it too.
        if not found:
            some = self._drop_idle_options(some, bases, failure)
            known = self._known.list_matches(component)
            combined = (c for c in self._catalogue.combine_near(component, bases, some) if c not in known)
            found = self._match_candidates(islice(combined, most), failure)
        if not found and not decides and not self._in_vain[component, failure.dtype]:
            far = list(self._catalogue.list_far(component))
            found = self._match_candidates(chain(far, islice(combine_with(bases, far), most)), failure)
        found = found or self._search_further(failure, near, bases)
        found |= self._match_simpler(found, failure)
        # Words fit by chance: what a passing case rules out ends no search.
        unknown = self._in_vain[component, failure.dtype] or self._known.has_unknown_part(component)
        if decides and not unknown and all(self._is_refuted(c, component) for c in found):
            found = self._search_model(component, bases, failure) or found
        return found

    def _search_further(
        self, failure: FailingCase, near: list[Candidate], bases: list[Candidate]
    ) -> dict[Candidate, float]:
        """Search one kind of candidates after the other, until one explains a failure."""
        component, most = failure.case.component, _TRIED // estimate_cost(failure.case)
        for kind in () if is_decoding(failure.case) else self._list_kinds(failure, near, bases, most):
            tried = list(islice(self._filter_untried(component, kind.candidates), kind.most))
            if found := self._match_possible(tried, failure):
                return found
        return {}

    def _list_kinds(
        self, failure: FailingCase, near: list[Candidate], bases: list[Candidate], most: int
    ) -> Iterator[_Kind]:
        """Yield places, edits and pairs."""
        component = failure.case.component
        # What one case did not show of the less likely, the next one hardly shows either.
        once = 0 if self._in_vain[component, failure.dtype] else most
        yield _Kind(self._catalogue.place_mistakes(component, near, bases), most)
        for edits in self._list_tiers(failure, Candidate()) if once else ():
            yield _Kind(edits, most)
        seen = [c for c in self._known.list_matches(component) if len(c.causes) == 1 and c not in bases]
        yield _Kind(self._catalogue.pair_candidates(component, near, bases, seen), most)
        yield _Kind(self._catalogue.pair_mistakes(component, near), _PAIRED * once)
        yield _Kind(self._catalogue.add_to_purpose(component, near), 0 if self._is_late else once)
        yield _Kind(self._list_edits(failure, bases), once)

    def _is_unlikely(self, candidate: Candidate, failure: FailingCase) -> bool:
        """Return True if a passing case, or what the failing one does not compare, contradicts a candidate."""
        made = self._textbooks.imitate(candidate, failure)
        return failure.differs_unseen(made) or self._is_refuted(candidate, failure.case.component)

    def _search_edits(self, component: str, failure: FailingCase) -> dict[Candidate, float]:
        """Return the likeliest edits that explain a failure and that no passing case rules out."""
        for edits in self._list_tiers(failure, Candidate()):
            if found := self._match_possible(self._filter_untried(component, edits), failure):
                return found
        return {}

    def _match_simpler(self, found: Mapping[Candidate, float], failure: FailingCase) -> dict[Candidate, float]:
        """Return what explains a failure with fewer causes than what was found: the same without one of them."""
        fewer = dict.fromkeys(one for c in found for one in c.leave_one_out() if one not in found)
        return self._match_possible(fewer, failure)

    def _search_model(self, component: str, bases: list[Candidate], failure: FailingCase) -> dict[Candidate, float]:
        """Search what is wrong only while a model decodes: in the decoder first, then in its other outer parts."""
        # A search here takes ten times as long as one of a layer.
        most = 2 * (_TRIED // estimate_cost(failure.case))
        homes = (*_DECODES, *reversed(list(self.spec.components)))
        changed = list(self._catalogue.list_far(component))
        places = {c: homes.index(find_cause(c.mistakes[0], self.spec).component or component) for c in changed}
        outer = sorted(changed, key=places.__getitem__)
        untried = self._filter_untried(component, chain(outer, combine_with(bases, outer)))
        return self._match_possible(islice(untried, most), failure)

    def _list_edits(self, failure: FailingCase, bases: Iterable[Candidate]) -> Iterator[Candidate]:
        """Yield the edits of each base that give a failing result, all kinds."""
        return chain.from_iterable(chain.from_iterable(self._list_tiers(failure, base) for base in bases))

    def _list_tiers(self, failure: FailingCase, base: Candidate) -> Iterator[Iterator[Candidate]]:
        """Yield the edits of the formula, on top of a base, that give a failing result: the likelier kinds first."""
        component = failure.case.component
        graph = None
        if isinstance(failure.actual, Result) and not failure.case.random and self._edited[component] < _EDITED:
            graph = self._textbooks.record(base, failure)
        if graph is None:
            return

        def give(edit: Edit) -> Result | None:
            before = graph.work
            made = edit.give_outputs(graph, failure.output_names, failure.wrong)
            self._edited[component] += graph.work - before + _EDIT
            return None if made is None else Result(made, 0.0)

        def measure(edit: Edit) -> float:
            return failure.find_residual(give(edit))

        def fits(edit: Edit) -> bool:
            made = give(edit) if self._edited[component] < _EDITED else None
            return made is not None and failure.distance(made) is not None

        def combine(edits: Iterable[Edit]) -> Iterator[Candidate]:
            return filter(None, (base.combine(Candidate((edit.id,))) for edit in edits))

        listed = groupby(list_edits(graph, name_axes(failure.case, failure.contract)), key=lambda edit: edit.rank[0])
        solves = {0: solve_constants, SOLVED: solve_factors} if self._solves and base == Candidate() else {}
        for tier, edits in listed:
            # A number that is solved for fits the case that it is solved from; a size of the call fits the others too.
            solved = solves[tier](graph, measure, fits) if tier in solves else ()
            yield combine(chain(filter(fits, list(edits)), solved))

    def _match_possible(self, candidates: Iterable[Candidate], failure: FailingCase) -> dict[Candidate, float]:
        """Return the candidates that explain a failure and that no passing case rules out, each with its distance.

        A mistake of the catalogue lists the cases that reveal it; an edit, and a mistake in one place, is run on some
        that passed.
        """
        return {
            candidate: distance
            for candidate, distance in self._match_candidates(candidates, failure).items()
            if not (candidate.place or candidate.is_generated)
            or not self._is_refuted(candidate, failure.case.component)
        }

    def is_refuted(self, mistake: str, component: str) -> bool:
        """Return True if some passing case of a component contradicts a mistake of the catalogue."""
        return mistake in implementations() and self._is_refuted(Candidate((mistake,)), component)

    def _is_refuted(self, candidate: Candidate, component: str) -> bool:
        """Return True if some passing case of a component rules a candidate out.

        The cases that list its mistakes, though they are made in one place, come first, and small ones before others.
        """
        mistakes = set(candidate.mistakes)
        chosen = sorted(self._passed[component], key=lambda passing: mistakes.isdisjoint(passing.case.kills))
        # Words fit by chance, so more of them must not.
        decodes = "bos_id" in self.spec.contracts[component].attributes
        most = _PASSED_WORDS if decodes else _PASSED
        return any(self._is_excluded(candidate, passing) for passing in chosen[:most])

    def note_passed(self, passing: FailingCase) -> None:
        """Note a case that can refute what would have failed it: some of each component, the smallest."""
        passed = self._passed[passing.case.component]
        passed.append(passing)
        passed.sort(key=lambda other: other.case.size)
        del passed[_CHOSEN_OF:]

    def _drop_idle_options(
        self, near: Iterable[Candidate], bases: Sequence[Candidate], failure: FailingCase
    ) -> list[Candidate]:
        """Return the candidates without options that change nothing in this case, or the same as an earlier one.

        There are hundreds of combinations of options, and most options show in few cases. One may show on the likeliest
        base only: a softmax over the queries leaves a hidden key without a weight, as right code does an empty row.
        """
        grounds = (Candidate(), *bases[:1])
        seen = [[self._textbooks.imitate(ground, failure)] for ground in grounds]
        kept = []
        for candidate in near:
            # All are imitated: what shows on one of them is not to be kept again for the other.
            shows = [
                self._note_new(ground.combine(candidate), failure, before)
                for ground, before in (zip(grounds, seen, strict=True) if candidate.options else ())
            ]
            if any(shows) or not candidate.options:
                kept.append(candidate)
        return kept

    def _note_new(
        self, candidate: Candidate | None, failure: FailingCase, seen: list[Result | BadResult | None]
    ) -> bool:
        """Note what a candidate gives for a case; return True if nothing before it gave the same."""
        made = self._textbooks.imitate(candidate, failure) if candidate else None
        if made is None or any(_are_equal(made, other) for other in seen):
            return False
        seen.append(made)
        return True

    @property
    def _is_late(self) -> bool:
        return self._textbooks.spent > _LATER

    def _has_searched_enough(self, component: str, dtype: str) -> bool:
        """Return True if a further search would take too long for what it is likely to find: a whole model is slow.

        A component that was searched in one dtype is not searched in another: there, what was found is compared only.
        In a coarser dtype more fits by chance.
        """
        if any(name == component and other != dtype for name, other in self._searched):
            return True
        deep = len(self.spec.contracts[component].layers) > 1
        most = 1 if deep or self._is_late or self._known.has_unknown_part(component) else _SEARCHES_IN_VAIN
        return self._in_vain[component, dtype] >= most or self._searched[component, dtype] >= _SEARCHES

    def run_textbook(self, case: Case, options: Options) -> Result | None:
        """Return the textbook's result for a case in float64 under these options; None if it has none."""
        given = FailingCase(case, self.spec.contracts[case.component], Result({}, 0.0), {}, "float64", options)
        made = self._textbooks.imitate(Candidate(), given)
        return made if isinstance(made, Result) else None

    def find_accepting_mistakes(self, case: Case, dtype: str, options: Options) -> tuple[Match, ...] | None:
        """Return the mistakes that the case lists and that also accept its call; None if it lists none."""
        listed = list(self._catalogue.make_candidates(case.kills))
        accepting = [one for one in listed if self._textbooks.accepts(one, case, dtype, options)]
        return tuple(Match(one.causes, 0.0) for one in accepting) if listed else None

    def _choose_known_matches(self, case: Case) -> list[Candidate]:
        """Return the known matches that are compared with a case.

        Of forward passes those are compared with a gradient that explain most, with the fewest causes among equals.
        """
        known = self._known.list_matches(case.component)
        if case.cotangent is None:
            # What explains two parts may explain the whole only together.
            joined = (base for base in self._known.list_bases(case.component) if len(base.causes) > 1)
            return list(dict.fromkeys([*known, *joined]))
        ranked = self._known.rank(case.component, known)
        by_hand = [c for c in ranked if c.is_by_hand]
        others = [c for c in ranked if c not in by_hand]
        most = _TRIED // (_SWEEP * estimate_cost(case))
        return [*by_hand, *others[: max(0, most - len(by_hand))]]

    def _filter_untried(self, component: str, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """Yield the candidates that were not tried for this component yet, and mark them as tried."""
        for candidate in candidates:
            if candidate not in self._tried[component]:
                self._tried[component].add(candidate)
                yield candidate

    def _measure_by_own_rounding(
        self, candidate: Candidate, made: Result | BadResult | None, failure: FailingCase, apart: float
    ) -> float | None:
        """Return the distance of an imitation ÷ what rounding may do to it; None if it is further away.

        `apart` is that distance ÷ tolerance. A mistake may lose digits that the right formula keeps, such as a division
        by the variance of two tokens. How many shows where it is computed in float64.
        """
        if failure.case.cotangent is not None or not 1 < apart < _LOST or not isinstance(made, Result):
            return None
        own = self._measure_rounding(candidate, failure)
        # One that loses no digits is known as well as what it explains.
        if not 1.0 <= own < math.inf or not failure.wrong <= replace(failure, actual=made).wrong:
            return None
        return apart / (ROUNDINGS * own) if apart <= ROUNDINGS * own else None

    def _measure_rounding(self, candidate: Candidate, failure: FailingCase) -> float:
        """Return the distance ÷ tolerance of an imitation from the same one in float64; inf if it has no result."""
        made = self._textbooks.imitate(candidate, failure)
        exact = self._textbooks.imitate(candidate, replace(failure, dtype="float64"))
        apart = replace(failure, actual=made).measure_apart(exact) if isinstance(made, Result) else math.inf
        return apart * count_roundoffs(failure.case, failure.dtype)

    def _fits_right_code(self, failure: FailingCase) -> bool:
        """Return True if rounding to a half type may explain the result of a call that is no case of the spec."""
        if not (is_half(failure.dtype) and failure.case.id not in self.spec.cases):
            return False
        return failure.measure_apart(self._textbooks.imitate(Candidate(), failure)) <= 1.0

    def _match_candidates(self, candidates: Iterable[Candidate], failure: FailingCase) -> dict[Candidate, float]:
        """Return the candidates that explain a failure, each with its distance."""
        found = {}
        for candidate in candidates:
            self._compared[failure.case.id, failure.dtype].add(candidate)
            unreached = isinstance(failure.actual, BadResult) and failure.actual.unreached
            right = self._textbooks.imitate(Candidate(), failure) if unreached else None
            made = self._textbooks.imitate(candidate, failure)
            apart = failure.measure_apart(made, _LOST)
            too_far = apart > 1.0 and failure.needs_tolerance(made)
            explains = not too_far and failure.is_near(made)
            distance = failure.distance(made, right) if explains else None
            if distance is None:
                if failure.is_near(made, 1.0 if is_half(failure.dtype) else BY_CHANCE):
                    distance = self._measure_by_own_rounding(candidate, made, failure, apart)
                if distance is not None:
                    self._lossy.add(candidate)
                if apart < CLEAR:
                    # Rounding may hide it in this case, and not in the next one.
                    self._tried[failure.case.component].discard(candidate)
            # Of hundreds of generated changes some fit by chance where right code does: another failure must show one.
            by_chance = candidate.is_generated and candidate.causes not in self._matched
            if distance is not None and not (by_chance and self._fits_right_code(failure)):
                found[candidate] = distance
        self._matched.update({candidate.causes: candidate for candidate in found})
        for candidate in found:
            self._explained_in[candidate.causes].add(failure.dtype)
        return found


def _describe_matches(found: Mapping[Candidate, float]) -> tuple[Match, ...]:
    """Return the matches of candidates and their distances."""
    return tuple(Match(candidate.causes, distance) for candidate, distance in found.items())


def _are_equal(one: Result | BadResult | None, other: Result | BadResult | None) -> bool:
    if not (isinstance(one, Result) and isinstance(other, Result)):
        return type(one) is type(other) and str(one) == str(other)
    return one.is_identical(other)
