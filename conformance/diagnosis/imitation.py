"""The search for known mistakes and other options that reproduce a failing output on the same inputs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import Final

from goldformer.conformance.diagnosis.candidates import Candidate, Imitations, Textbooks, count_roundoffs
from goldformer.conformance.diagnosis.catalogue import Catalogue, combine_with
from goldformer.conformance.diagnosis.causes import Causes, find_cause
from goldformer.conformance.diagnosis.edits.generate import list_edits
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
from goldformer.conformance.diagnosis.matches import KnownMatches
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.neighbours import find_made, neighbours
from goldformer.conformance.diagnosis.neighbours.backward import OF_RIGHT_CODE
from goldformer.conformance.diagnosis.neighbours.blocks import SHORTEST
from goldformer.conformance.diagnosis.neighbours.masks import ONLY_WHERE_MASKED
from goldformer.conformance.diagnosis.neighbours.results import Call, list_relations
from goldformer.conformance.diagnosis.neighbours.solved import TRIALS, families, fit_number, name_solved, trying
from goldformer.conformance.diagnosis.neighbours.stacks import NESTED
from goldformer.conformance.diagnosis.twins import Twins
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

#: How many tolerances an option moves a result whose rounding it is no longer taken for.
_VISIBLE: Final = 3.0

#: How far an imitation that loses digits may be from the result that it explains, in tolerances.
_LOST: Final = 1000.0
#: Careful code stays below 0.4 of the tolerance: an imitation whose own rounding is larger loses digits.
_LOSSY: Final = 0.5

#: How many times as many neighbours as other candidates are tried: there are hundreds, each as likely as the other.
_NEIGHBOURS: Final = 4

#: The same of edits of the formula: each computes only what lies after the change. A layer has 15,000, which take three
#: seconds, and how heads lie in memory, which people often mistake, is among the last.
_EDITS: Final = 30 * _NEIGHBOURS

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

#: The family of the eps of RMS normalisation, and the option with which the authors' code adds 1e-8.
_EPS: Final = "rms_norm.eps"
_OUTSIDE: Final = ("rms_norm_eps_place", "outside")

#: How far from a component a part is that was judged by itself.
_JUDGED: Final = 2


@dataclass(frozen=True, slots=True)
class _Kind:
    """Some candidates of one kind, and how many of them are tried."""

    candidates: Iterable[Candidate]
    most: int


class Imitator:
    """Finds the causes of failing outputs; it remembers its matches, so that later cases are quick.

    `left_out` are mistakes that it must not know. `imitations` is a cache for one spec. Several imitators may share
    it, one after the other, and their findings do not depend on it. Without `reads_off`, changes of whole results are
    not tried: they fit by chance if they are not compared with other cases.
    """

    def __init__(
        self,
        spec: Spec,
        left_out: Collection[str] = (),
        imitations: Imitations | None = None,
        *,
        reads_off: bool = True,
    ) -> None:
        self.spec = spec
        self._reads_off = reads_off
        self._catalogue = Catalogue(spec, left_out)
        self._textbooks = Textbooks(spec, imitations)
        self._known = KnownMatches(spec)
        self._twins = Twins(spec, self._textbooks)
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
        #: The components with a failing case that is no longer than one block, but for those that sum nothing there.
        self._fails_short: set[str] = set()
        #: Some cases of each component that passed.
        self._passed: defaultdict[str, list[FailingCase]] = defaultdict(list)

    def find_matches(self, failure: FailingCase) -> tuple[Match, ...] | None:
        """Return the mistakes and options whose output matches the actual one; None if the search was skipped."""
        case, actual = failure.case, failure.actual
        if case.full_size or (isinstance(actual, BadResult) and (actual.reason == "raised" or case.size > LARGE)):
            return None
        known = self._choose_known_matches(case)
        found = self._match_candidates(known, failure)
        found |= self._match_aside([c for c in known if c not in found], failure)
        # Many mistakes give NaN alone, so that it tells one of them from the others only where nothing else is wrong.
        if not (failure.is_nan and self._known.was_searched(case.component)):
            found = found or self._search(failure)
        if case.cotangent is None:
            self._fails_forward.add(case.component)
            if not _exceeds_block(case) and not failure.is_blank:
                self._fails_short.add(case.component)
        self._known.note_search(case.component, found)
        return _describe_matches(found)

    def _match_aside(self, missed: Iterable[Candidate], failure: FailingCase) -> dict[Candidate, float]:
        """Return the twins that explain a failure, of candidates that miss it."""
        found: dict[Candidate, float] = {}
        for candidate in missed:
            twins = self._match_candidates(self._twins.list_aside(candidate), failure)
            self._take_back(candidate, failure.case.component, twins)
            found |= twins
        return found

    def release_twins(self, refuted: Iterable[tuple[str, Causes]]) -> bool:
        """Let the twins of refuted causes explain their components too; return True if there are any."""
        released = False
        for component, causes in refuted:
            candidate = self._matched.get(causes, Candidate())
            twins = self._twins.list_aside(candidate)
            self._take_back(candidate, component, twins)
            released = released or bool(twins)
        return released

    def _take_back(self, candidate: Candidate, component: str, twins: Collection[Candidate]) -> None:
        """Let some twins of a candidate explain a component too: they come before it, as a case tells them apart."""
        self._twins.release(twins)
        self._known.add(component, twins)
        self._known.count_above(candidate, component, twins)

    def _note_found(self, found: Mapping[Candidate, float], failure: FailingCase) -> dict[Candidate, float]:
        """Note what a search found, and return it without twins."""
        kept = self._twins.set_aside(found, failure)
        # A twin that is released is compared with this case again.
        self._compared[failure.case.id, failure.dtype] -= found.keys() - kept.keys()
        self._known.add(failure.case.component, kept)
        return kept

    def find_late_matches(self, failure: FailingCase) -> tuple[Match, ...]:
        """Return the matches among candidates that were found only after the search for this case."""
        compared = self._compared[failure.case.id, failure.dtype]
        late = [candidate for candidate in self._choose_known_matches(failure.case) if candidate not in compared]
        found = self._match_candidates(late, failure)
        return _describe_matches(found | self._match_aside([c for c in late if c not in found], failure))

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
        apart = failure.measure_apart(self.imitate(causes, failure))
        if apart < CLEAR:
            return (Match(causes, apart),)
        bound = self._bound_rounding(causes, failure)
        return (Match(causes, apart / bound),) if apart <= bound else ()

    def misses_by_rounding(self, causes: Causes, failure: FailingCase) -> bool:
        """Return True if the causes of a match lose digits, and rounding may be all that they miss in a case."""
        apart = failure.measure_apart(self.imitate(causes, failure))
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

    def search_under(self, options: Options, failure: FailingCase) -> tuple[Match, ...]:
        """Return the causes of a failing case under some options: what is wrong on top of them.

        What is found is a late match of the other failing cases.
        """
        case, component = failure.case, failure.case.component
        if case.cotangent is not None or case.full_size or case.size > LARGE:
            return ()
        base = Candidate(options=tuple(sorted(options.items())))
        bases = [base, base.add(self._known.join_options(component))]
        bases = list(
            dict.fromkeys([*bases, *(base.add(part) for part in self._known.list_bases(component) if not part.place)])
        )
        known = self._catalogue.list_known(component, failure.options)
        others = chain(known, self._catalogue.select_neighbours(component))
        most = _NEIGHBOURS * (_TRIED // estimate_cost(case))
        edits = self._list_edits(failure, bases, most)
        tried = chain(bases, islice(combine_with(bases, others), most), edits)
        found = self._note_found(self._match_possible(tried, failure), failure)
        if found:
            self._known.assume(component, next(iter(found)))
        return _describe_matches(found)

    def _list_second(self, base: Candidate, failure: FailingCase) -> Iterator[Candidate]:
        """Yield a base with each mistake, option and neighbour, as many as there is time for."""
        case, component = failure.case, failure.case.component
        backward = case.cotangent is not None
        most = _TRIED // estimate_cost(case)
        mistakes: Iterable[Candidate] = self._catalogue.list_known(component, failure.options)
        if backward:
            # A forward pass that is wrong has shown in the cases without a cotangent, which are quick.
            listed = self._catalogue.make_candidates(case.kills)
            mistakes = (c for c in listed if find_made(c.mistakes[0]).by_hand)
            if not base.is_by_hand:
                mistakes = chain([Candidate((f"{component}{OF_RIGHT_CODE}",))], mistakes)
        others = chain(mistakes, self._catalogue.select_neighbours(component, backward=backward))
        yield from islice(combine_with([base], others), most)
        yield from self._list_edits(failure, [base], 0 if backward else _NEIGHBOURS * most)

    def _search(self, failure: FailingCase) -> dict[Candidate, float]:
        """Search the catalogue and the neighbours; return nothing if the search would take too long."""
        case, component, dtype = failure.case, failure.case.component, failure.dtype
        backward = case.cotangent is not None
        if backward and component in self._fails_forward:
            # What no forward pass showed, no gradient of it shows.
            return {}
        if _exceeds_block(case) and component not in self._fails_short and (not is_half(dtype) or failure.is_far):
            # What is right in small calls, or empty, goes wrong at the end of a block.
            found = self._match_candidates(self._catalogue.select_blocks(component), failure)
            if found:
                return self._note_found(found, failure)
        if backward or case.size > LARGE:
            found = self._match_listed(failure)
            if found or not backward:
                return found
        if self._has_searched_enough(component, dtype):
            return {}
        self._searched[component, dtype] += 1
        if backward:
            found = self._match_candidates(self._catalogue.select_neighbours(component, backward=True), failure)
            found = found or self._match_possible(self._read_off(failure, []), failure)
        else:
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
        """Search options and mistakes, then neighbours, numbers and pairs, as many as there is time for."""
        case, component = failure.case, failure.case.component
        bases = self._known.list_bases(component)
        near = list(self._catalogue.list_near(component, failure.options))
        # Decoding takes long, and with two mistakes at once it need not end.
        decides = is_decoding(case)
        some = [one for one in near if one.options] if decides else near
        most = _TRIED // estimate_cost(case)
        joined = [*bases, *self._known.list_halves(component)]
        hides = [Candidate((ONLY_WHERE_MASKED,))] if case.hiding == "too" else []
        found = self._match_candidates([*near, *hides], failure) or self._match_candidates(joined, failure)
        if not found and _has_padding(case):
            # Nested tensors leave rows of padding 0, which shows only through a mistake.
            shown = combine_with([*near, *self._catalogue.list_far(component), *bases], [Candidate((NESTED,))])
            found = self._match_candidates(shown, failure)
        if not found and failure.is_close:
            found = self._match_candidates(self._catalogue.list_losing_digits(), failure)
        if not found and any(self._may_be_rounded(base, failure) for base in bases):
            return {}
        # A passing case may rule out all that fits, such as a mask without effect where one of two masks is lost.
        if found and not decides and all(self._is_refuted(candidate, component) for candidate in found):
            # It may be made in one half of a model only, as where one stack shares its layers.
            placed = self._match_possible(self._catalogue.place_in_halves(component, found), failure)
            return found | (placed or self._search_neighbours(component, failure, most))
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
        list_kinds = self._list_short if is_decoding(failure.case) else self._list_kinds
        for kind in list_kinds(failure, near, bases, most):
            tried = list(islice(self._filter_untried(component, kind.candidates), kind.most))
            if found := self._match_possible(tried, failure):
                return found
        return {}

    def _list_kinds(
        self, failure: FailingCase, near: list[Candidate], bases: list[Candidate], most: int
    ) -> Iterator[_Kind]:
        """Yield places, neighbours, numbers and pairs."""
        component = failure.case.component
        # What one case did not show of the less likely, the next one hardly shows either.
        once = 0 if self._in_vain[component, failure.dtype] else most
        seldom = once if self.spec.contracts[component].layers else _NEIGHBOURS * once
        yield _Kind(self._catalogue.place_mistakes(component, near, bases), most)
        yield _Kind(self._list_neighbours(component, bases, 0), _NEIGHBOURS * most)
        yield _Kind(self._list_neighbours(component, bases, 1), _NEIGHBOURS * most)
        # A number that is solved for fits the case that it is solved from; a size of the call fits the others too.
        numbers = list(self._solve_numbers(failure, once // TRIALS))
        edits = self._list_edits(failure, [Candidate()], _EDITS * once)
        yield _Kind(chain(numbers, edits if numbers else ()), most)
        # The mistakes of a part that was judged have shown there, unless the component has its own code for it.
        unlikely = chain(self._list_neighbours(component, bases, _JUDGED), self._catalogue.place_neighbours(component))
        yield _Kind(unlikely, 0 if self._is_late else seldom)
        yield _Kind(edits, most)  # those that are left
        yield _Kind(self._read_off(failure, bases), most)
        seen = [c for c in self._known.list_matches(component) if len(c.causes) == 1 and c not in bases]
        yield _Kind(self._catalogue.pair_candidates(component, near, bases, seen), most)
        yield _Kind(self._catalogue.add_to_purpose(component, near), 0 if self._is_late else once)
        yield _Kind(self._catalogue.pair_neighbours(component, near), once)
        yield _Kind(self._list_edits(failure, bases, once), most)

    def _list_short(
        self, failure: FailingCase, near: list[Candidate], bases: list[Candidate], most: int
    ) -> Iterator[_Kind]:
        """Yield what is tried of decoding: the steps of the loop, and what is read off a result."""
        del near
        # What is read off a result says less than a step of the loop that does it.
        yield _Kind(self._list_neighbours(failure.case.component, [], 0), _NEIGHBOURS * most)
        yield _Kind(self._read_off(failure, bases), most)

    def _search_neighbours(self, component: str, failure: FailingCase, most: int) -> dict[Candidate, float]:
        """Return the neighbours that explain a failure and that no passing case rules out, the nearest ones first."""
        untried = self._filter_untried(component, self._catalogue.select_neighbours(component))
        return self._match_possible(islice(untried, _NEIGHBOURS * most), failure)

    def _match_simpler(self, found: Mapping[Candidate, float], failure: FailingCase) -> dict[Candidate, float]:
        """Return what explains a failure with fewer causes than what was found: the same without one of them.

        So do neighbours by themselves, made in the same parts as two known mistakes. Divided by √d_model and multiplied
        by √d_k: that is the root of the number of heads.
        """
        fewer = dict.fromkeys(one for c in found for one in c.leave_one_out() if one not in found)
        simpler = self._match_possible(fewer, failure)
        if simpler or not found or any(len(candidate.causes) < 2 for candidate in found):
            return simpler
        parts = {find_cause(id_, self.spec).component for candidate in found for id_ in candidate.mistakes}
        component = failure.case.component
        generated = self._catalogue.select_neighbours(component)
        single = [c for c in generated if neighbours()[c.mistakes[0]].component in parts]
        # What stands in the place of the last one may also stand in that of an option, as one eps in all norms does.
        least = min(len(candidate.causes) for candidate in found)
        bases = [replace(c, mistakes=c.mistakes[:-1]) for c in found if c.options and not c.place]
        fewer_causes = (c for c in combine_with(bases, generated) if len(c.causes) < least)
        return self._match_possible(self._filter_untried(component, chain(single, fewer_causes)), failure)

    def _search_model(self, component: str, bases: list[Candidate], failure: FailingCase) -> dict[Candidate, float]:
        """Search what is wrong only while a model decodes: in the decoder first, then in its other outer parts."""
        # A search here takes ten times as long as one of a layer.
        most = 2 * (_TRIED // estimate_cost(failure.case))
        homes = (*_DECODES, *reversed(list(self.spec.components)))
        found: dict[Candidate, float] = {}
        # A neighbour that equals a mistake of the catalogue takes its name, so the catalogue comes first.
        for changed in (list(self._catalogue.list_far(component)), self._catalogue.select_neighbours(component)):
            places = {c: homes.index(find_cause(c.mistakes[0], self.spec).component or component) for c in changed}
            outer = sorted(changed, key=places.__getitem__)
            untried = self._filter_untried(component, chain(outer, combine_with(bases, outer)))
            found |= self._match_possible(islice(untried, most), failure)
            if not all(self._is_refuted(candidate, component) for candidate in found):
                break
        return found

    def _list_neighbours(self, component: str, bases: list[Candidate], distance: int) -> Iterator[Candidate]:
        """Yield the neighbours at a distance from a component, by themselves and on bases."""
        known = [
            candidate
            for candidate in self._catalogue.select_neighbours(component)
            if self._find_distance(neighbours()[candidate.mistakes[0]].component, component) == distance
        ]
        yield from known
        yield from combine_with(bases, known)

    def _find_distance(self, part: str, component: str) -> int:
        """Return 0 for the component itself, 1 for a part, `_JUDGED` if cases of it passed or were searched."""
        if part == component:
            return 0
        return _JUDGED if self._passed[part] or self._known.was_searched(part) else 1

    def _solve_numbers(self, failure: FailingCase, most: int) -> Iterator[Candidate]:
        """Yield a neighbour with the number that fits a failure, of the families of the component and of its parts.

        Those that layers often choose for each sub-layer are also solved for in one of them.
        """
        component = failure.case.component
        homes = {component, *self.spec.list_dependencies(component)}
        mine = [family for family in families().values() if family.component in homes]
        # A part that was judged has shown its number there.
        mine.sort(key=lambda family: self._find_distance(family.component, component) == _JUDGED)
        trials = [Candidate((family.id,)) for family in mine[:most]]
        outside = [trial.combine(Candidate(options=(_OUTSIDE,))) for trial in trials if trial.mistakes == (_EPS,)]
        trials += [] if failure.options.get(_OUTSIDE[0]) == _OUTSIDE[1] else filter(None, outside)
        placed = self._catalogue.place_families(component) if most else ()
        for trial in (*trials, *placed):
            family = families()[trial.mistakes[0]]
            value = fit_number(partial(self._find_residual, trial, failure), family)
            # The fewest digits that fit are what was meant.
            rounded = (float(f"{value:.{digits}g}") for digits in range(1, 10)) if value is not None else ()
            solved = (replace(trial, mistakes=(name_solved(family, number),)) for number in rounded)
            fitting = (c for c in solved if failure.distance(self._textbooks.imitate(c, failure)) is not None)
            yield from islice(fitting, 1)

    def _list_edits(self, failure: FailingCase, bases: Iterable[Candidate], most: int) -> Iterator[Candidate]:
        """Yield the edits of the formula, at most that many of each base, that give a failing result."""
        if not isinstance(failure.actual, Result) or failure.case.random:
            return
        axes = Call.of(failure.case, failure.contract).axes
        for base in bases if most else ():
            graph = self._textbooks.record(base, failure)
            if graph is None:
                continue
            for edit in islice(list_edits(graph, axes), most):
                made = edit.give_outputs(graph, failure.output_names, failure.wrong)
                if made is not None and failure.distance(Result(made, 0.0)) is not None:
                    yield from filter(None, [base.combine(Candidate((edit.id,)))])

    def _read_off(self, failure: FailingCase, bases: list[Candidate]) -> Iterator[Candidate]:
        """Yield what became of the right result of a failing case, and of the result of each base."""
        if not self._reads_off or not isinstance(failure.actual, Result):
            return
        case, call = failure.case, Call.of(failure.case, failure.contract)
        backward = case.cotangent is not None
        for base in (Candidate(), *bases):
            right = self._textbooks.imitate(base, failure)
            if isinstance(right, Result):
                found = list_relations(
                    case.component, failure.wrong, failure.expected, failure.actual.outputs, right.outputs, call,
                    backward=backward,
                )  # fmt: skip
                yield from filter(None, (base.combine(Candidate((id_,))) for id_ in found))

    def _find_residual(self, trial: Candidate, failure: FailingCase, value: float) -> float:
        """Return how far the family of a trial is from a failing result with this number."""
        with trying(value):
            return failure.find_residual(self._textbooks.run(trial, failure))

    def _match_possible(self, candidates: Iterable[Candidate], failure: FailingCase) -> dict[Candidate, float]:
        """Return the candidates that explain a failure and that no passing case rules out, each with its distance.

        A mistake of the catalogue lists the cases that reveal it; a neighbour, and a mistake in one place, is run on
        some that passed.
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
        """Return True if a further search would take too long for what it is likely to find: a whole model is slow."""
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


def _exceeds_block(case: Case) -> bool:
    """Return True if an axis of a call is longer than the shortest block."""
    return max(case.sizes.values(), default=0) > SHORTEST


def _has_padding(case: Case) -> bool:
    """Return True for a case of a model whose source has padding."""
    source, pad_id = case.input_arrays.get("source"), case.attributes.get("pad_id")
    return source is not None and pad_id is not None and bool((source == pad_id).any())


def _describe_matches(found: Mapping[Candidate, float]) -> tuple[Match, ...]:
    """Return the matches of candidates and their distances."""
    return tuple(Match(candidate.causes, distance) for candidate, distance in found.items())


def _are_equal(one: Result | BadResult | None, other: Result | BadResult | None) -> bool:
    if not (isinstance(one, Result) and isinstance(other, Result)):
        return type(one) is type(other) and str(one) == str(other)
    return one.is_identical(other)
