"""The diagnosis of a run: each failing case is searched for causes, then what they say is compared with all others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from goldformer.adapters.identifiers import list_identifiers
from goldformer.conformance.diagnosis.causes import VARYING, Causes
from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis, DiagnosedRun, Explained
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.failure import FailingCase, is_decoding
from goldformer.conformance.diagnosis.findings import list_unexplained, list_unknown, list_unsettled
from goldformer.conformance.diagnosis.other_options import advise_option, is_wrong_under
from goldformer.conformance.diagnosis.recheck import can_refute, is_idle, recheck_causes
from goldformer.conformance.diagnosis.state import note_state
from goldformer.conformance.diagnosis.suspects import list_explained, rank_explanations, select_judgements
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.collector import sparing_collector
from goldformer.conformance.judging.verdict import WITHHELD
from goldformer.spec import Spec
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF, is_half
from goldformer.spec.scope import explain_scope

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.candidates import Imitations
    from goldformer.conformance.diagnosis.imitation import Imitator

#: An explanation may miss one failing case in this many by rounding, and still hold for all.
_RARE: Final = 10


class Diagnosis:
    """Explains failures by mistakes and options that reproduce them; a match of one is tried first on all others.

    `left_out` are mistakes that it must not know. With `isolates`, the implementation is called again, to tell
    explanations apart and to find the place of a mistake that nothing known explains. Several diagnoses may share
    `imitations`, one after the other.
    """

    def __init__(
        self, spec: Spec, left_out: Collection[str] = (), imitations: Imitations | None = None, *, isolates: bool = True
    ) -> None:
        self._spec, self._left_out, self._imitations, self._isolates = spec, left_out, imitations, isolates
        self._passed: list[Judgement] = []
        #: The explanations of components that were compared with new calls.
        self._compared: set[tuple[str, Causes]] = set()

    @cached_property
    def _imitator(self) -> Imitator:
        # A run that conforms needs no catalogue of mistakes.
        from goldformer.conformance.diagnosis.imitation import Imitator

        return Imitator(self._spec, self._left_out, self._imitations)

    @sparing_collector()
    def explain_all(self, judgements: Iterable[Judgement]) -> DiagnosedRun:
        """Return the verdicts of a whole run with what explains each failure."""
        listed = list(judgements)
        explained = {index: self.explain(listed[index]) for index in _order_by_cost(listed)}
        return self.complete_all(listed, [explained[index] for index in range(len(listed))])

    def explain(self, judgement: Judgement) -> Explained:
        """Return the verdict with the mistakes and options that explain its failure, as far as they are known."""
        verdict = judgement.verdict
        if can_refute(judgement) and judgement.case is not None and judgement.case.cotangent is None:
            self._passed.append(judgement)
        if not verdict.bad or judgement.case is None:
            return Explained(verdict, CheckDiagnosis())
        run = DiagnosedRun((verdict,))
        with run.keep_verdicts(verdict):
            self._note_passed()
            run.note(verdict.key, matches=self._find_matches(judgement), advice=advise_option(judgement))
        return Explained(verdict, run.get_note(verdict))

    def complete_all(self, judgements: Sequence[Judgement | None], explained: Sequence[Explained]) -> DiagnosedRun:
        """Return explained verdicts with what is known only at the end of a run.

        A mistake that was found late is compared with the failures before it too, and with the cases that pass. The
        judgement of a verdict is None if another process made it.
        """
        run = DiagnosedRun.of(explained)
        if self._isolates:
            with run.keep_verdicts():
                run = DiagnosedRun.of(_name_dropout(judgements, explained))
        made = [judgement for judgement in judgements if judgement is not None]
        more = (self._note_state, self._note_places, self._note_scope)
        for extend in (self._exclude_mistakes, self._settle, *(more if self._isolates else ())):
            with run.keep_verdicts():
                extend(made, run)
        return run

    def _note_state(self, judgements: Sequence[Judgement], run: DiagnosedRun) -> None:
        note_state(judgements, run, list_unexplained(run, self._spec), self._spec)

    def _settle(self, judgements: Sequence[Judgement], run: DiagnosedRun) -> None:
        """Add what all failures together say of their explanations, and the cases that pass."""
        self._add_all_late(judgements, run)
        self._add_near(judgements, run)
        if self._search_second(judgements, run):
            self._add_all_late(judgements, run)
        if list_explained(run):
            recheck_causes(judgements, run, self._imitator, self._spec, self._compared, calls=self._isolates)

    def _add_all_late(self, judgements: Iterable[Judgement], run: DiagnosedRun) -> None:
        for judgement in judgements:
            _add_matches(judgement, run, self._imitator.find_late_matches)

    def _add_near(self, judgements: Sequence[Judgement], run: DiagnosedRun) -> None:
        """Let the best explanation of a component, or a part of it, explain the cases that it misses by rounding.

        If these are many, something small is wrong as well, such as eps; unless that changes nothing in float64, as a
        bias that a normalisation takes away. In a coarse dtype rounding does as much, and so it does where the
        explanation itself loses digits, as a division by the variance of two tokens.
        """
        for component in list_explained(run):
            ranked = rank_explanations(run, component, self._spec)
            for e in (e for e in ranked if {*e.ids} <= {*ranked[0].ids}):
                missed = _select_failing(judgements, e.refuting)
                by_rounding = _RARE * len(missed) <= e.case_count or any(
                    self._misses_by_rounding(e.ids, judgement) for judgement in missed
                )
                near = partial(self._imitator.match_near, e.ids)
                more = partial(self._imitator.search_options, e.ids)
                options = {c.convention: c.option for c in e.causes}
                for judgement in missed:
                    in_half = is_half(judgement.bench.dtype)
                    # A half type hides an option in most cases, and then it looks like rounding in the others.
                    if in_half and e is ranked[0] and _add_matches(judgement, run, more):
                        continue
                    if in_half and all(options) and is_wrong_under(judgement, options):
                        continue
                    idle = partial(is_idle, ranked[0].ids, e.ids, FailingCase.of(judgement), self._imitator)
                    if by_rounding or in_half or idle():
                        _add_matches(judgement, run, near)

    def _exclude_mistakes(self, judgements: Sequence[Judgement], run: DiagnosedRun) -> None:
        """Note which mistakes that a failing property is known to show a passing case contradicts."""
        del judgements  # those that passed are noted
        for verdict in run:
            if verdict.kind == "property" and verdict.bad and verdict.catches:
                self._note_passed()
                refuted = (id_ for id_ in verdict.catches if self._imitator.is_refuted(id_, verdict.component))
                run.note(verdict.key, excluded=tuple(refuted))

    def _search_second(self, judgements: Sequence[Judgement], run: DiagnosedRun) -> bool:
        """Search a second cause where the best explanation of a component reproduces most failing cases, but not all.

        The search is made at the cheapest case that refutes it, or else at one of whose backward pass it says nothing.
        Return True if something is found.
        """
        found = False
        for component in list_explained(run):
            best = rank_explanations(run, component, self._spec)[0]
            if 2 * best.equals < best.case_count:
                continue
            refuting = _select_failing(judgements, best.refuting or best.backward)
            refuting = [j for j in refuting if not self._misses_by_rounding(best.ids, j)]
            if refuting:
                search = partial(self._imitator.search_second, best.ids)
                found |= _add_matches(min(refuting, key=_rank_case), run, search)
        return found

    def _misses_by_rounding(self, ids: Causes, judgement: Judgement) -> bool:
        failure = FailingCase.of(judgement)
        return failure is not None and self._imitator.misses_by_rounding(ids, failure)

    def _note_places(self, judgements: Sequence[Judgement], run: DiagnosedRun) -> None:
        """Note the place of the mistake of each component whose failures nothing explains for certain.

        Parameters that change no output are noted too.
        """
        for component in list_unsettled(run, self._spec):
            from goldformer.conformance.diagnosis.idle import find_idle  # few runs need it
            from goldformer.conformance.diagnosis.place import locate_mistake

            mine = select_judgements(judgements, component)
            with run.keep_verdicts(next(j.verdict for j in mine if j.verdict.bad)):
                if found := find_idle(mine, self._spec):
                    run.note(found[0].verdict.key, idle=found[1])
                if located := locate_mistake(mine, self._spec):
                    run.note(located[0].verdict.key, place=located[1])

    def _note_scope(self, judgements: Sequence[Judgement], run: DiagnosedRun) -> None:
        """Note in the first failure of each component that nothing explains what goldformer does not judge of it."""
        for component in list_unknown(run, self._spec):
            first = next((j for j in select_judgements(judgements, component) if j.verdict.bad), None)
            if first is not None:
                function = first.bench.adapter.functions.get(component)
                names = list_identifiers(function, switched_off=False)
                run.note(first.verdict.key, beyond=explain_scope(names, (component,)))

    def _note_passed(self) -> None:
        """Tell the imitator of the cases that passed since the last failure."""
        for judgement in self._passed:
            passing = FailingCase.of(judgement)
            assert passing is not None, "only cases with a result refute"
            self._imitator.note_passed(passing)
        self._passed.clear()

    def _find_matches(self, judgement: Judgement) -> tuple[Match, ...] | None:
        case, bench = judgement.case, judgement.bench
        assert case is not None, "only cases are imitated"
        if judgement.verdict.reason == "no-error":
            declared = bench.adapter.options(case.component, bench.spec)
            return self._imitator.find_accepting_mistakes(case, bench.dtype, declared)
        failure = FailingCase.of(judgement)
        if failure is None or judgement.verdict.reason == WITHHELD:
            return None
        return self._imitator.find_matches(failure)


def _select_failing(judgements: Iterable[Judgement], checks: Collection[str]) -> list[Judgement]:
    """Return the judgements of some checks that fail."""
    return [j for j in judgements if j.verdict.bad and j.verdict.check in checks]


def _name_dropout(judgements: Sequence[Judgement | None], explained: Sequence[Explained]) -> Sequence[Explained]:
    if not any(v.bad and v.catches in VARYING for v, _ in explained):
        return explained
    from goldformer.conformance.diagnosis.dropping import name_dropout  # few runs need it

    verdicts = name_dropout(judgements, [verdict for verdict, _ in explained])
    return [Explained(verdict, about) for verdict, (_, about) in zip(verdicts, explained, strict=True)]


def _add_matches(judgement: Judgement, run: DiagnosedRun, search: Callable[[FailingCase], tuple[Match, ...]]) -> bool:
    """Add what a further search finds for a case that was searched; return True if it is new."""
    verdict = judgement.verdict
    if not verdict.bad or not run.evidence.is_searched(verdict.key):
        return False
    matches: tuple[Match, ...] = ()
    with run.keep_verdicts(verdict):
        failure = FailingCase.of(judgement)
        matches = search(failure) if failure is not None else ()
    return run.evidence.add_matches(verdict.key, matches)


def _rank_case(judgement: Judgement) -> tuple[bool, bool, bool, int]:
    """Order cases by how plainly they show a mistake, and by the cost of an imitation.

    Many mistakes give NaN. Gradients are differences of many calls. Where conventions matter, an option that is not
    declared hides what else is wrong, but seldom in the words that a model writes.
    """
    case = judgement.case
    assert case is not None, "only cases are imitated"
    failure = FailingCase.of(judgement) if judgement.verdict.reason == "not-finite" else None
    is_nan = failure is not None and failure.is_nan
    return is_nan, case.cotangent is not None, bool(case.conventions) and not is_decoding(case), case.size


def _order_by_cost(judgements: Sequence[Judgement]) -> list[int]:
    """Return the indices of the judgements: components as they come, in each the plainest cases to imitate first.

    The widest dtype comes first. A small case is quick, so that a search gets far in it.
    """
    components = {judgement.verdict.component: None for judgement in judgements}
    ranks = {component: rank for rank, component in enumerate(components)}

    def cost(index: int) -> tuple[int, float, bool, bool, bool, int]:
        judgement = judgements[index]
        imitated = judgement.case is not None and judgement.verdict.bad
        width = UNIT_ROUNDOFF[judgement.bench.dtype] if imitated else 0.0
        rank = _rank_case(judgement) if imitated else (False, False, False, 0)
        return (ranks[judgement.verdict.component], width, *rank)

    return sorted(range(len(judgements)), key=cost)
