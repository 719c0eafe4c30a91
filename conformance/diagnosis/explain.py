"""The explanation of failed checks, after judging: matches and advice are added to their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from goldformer.adapters.identifiers import list_identifiers
from goldformer.conformance.diagnosis.causes import VARYING, Causes, find_cause
from goldformer.conformance.diagnosis.confirmation import confirm_causes
from goldformer.conformance.diagnosis.distinguish import is_idle, tell_apart
from goldformer.conformance.diagnosis.failure import FailingCase, is_decoding
from goldformer.conformance.diagnosis.findings import list_unexplained, list_unknown, list_unsettled
from goldformer.conformance.diagnosis.other_options import advise_option, is_wrong_under
from goldformer.conformance.diagnosis.refutation import can_refute, rule_out_causes
from goldformer.conformance.diagnosis.state import note_state
from goldformer.conformance.diagnosis.suspects import (
    is_by_hand,
    list_explained,
    rank_best,
    rank_explanations,
    select_judgements,
)
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.collector import sparing_collector
from goldformer.conformance.judging.decision import report_fault
from goldformer.conformance.judging.verdict import WITHHELD, Match, Verdict
from goldformer.spec import Spec
from goldformer.spec.oracle.rounding import is_half
from goldformer.spec.scope import explain_scope

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.candidates import Imitations
    from goldformer.conformance.diagnosis.imitation import Imitator

#: An explanation may miss one failing case in this many by rounding, and still hold for all.
_RARE: Final = 10

#: The number of failing cases of a component that are searched under other options.
_MOST_UNDER_OPTIONS: Final = 2


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
        #: The options that calls with silent parts show, by the component that was searched under them.
        self._options: dict[str, dict[str, str]] = {}
        #: The explanations of components that were compared with new calls.
        self._confirmed: set[tuple[str, Causes]] = set()

    @cached_property
    def _imitator(self) -> Imitator:
        # A run that conforms needs no catalogue of mistakes.
        from goldformer.conformance.diagnosis.imitation import Imitator

        return Imitator(self._spec, self._left_out, self._imitations)

    @sparing_collector()
    def explain_all(self, judgements: Iterable[Judgement]) -> list[Verdict]:
        """Return the verdicts of a whole run with what explains each failure."""
        listed = list(judgements)
        explained = {index: self.explain(listed[index]) for index in _order_by_cost(listed)}
        return self.complete_all(listed, [explained[index] for index in range(len(listed))])

    def complete_all(self, judgements: Sequence[Judgement | None], verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return explained verdicts with what is known only at the end of a run.

        A mistake that was found late is compared with the failures before it too, and with the cases that pass. The
        judgement of a verdict is None if another process made it.
        """
        completed = self._settle(judgements, [self._leave_out_refuted(verdict) for verdict in verdicts])
        if self._isolates:
            completed = _note_dropout(judgements, completed)
            note_state(judgements, completed, list_unexplained(completed, self._spec), self._spec)
            # What explains a layer lets the stack above it be searched.
            while self._search_under_options(judgements, completed):
                completed = self._settle(judgements, completed)
            self._isolate_unknown(judgements, completed)
            self._note_scope(judgements, completed)
        return _drop_disproven(_drop_single_fits(completed, self._spec), self._spec)

    def _settle(self, judgements: Sequence[Judgement | None], verdicts: Sequence[Verdict]) -> list[Verdict]:
        """Return verdicts with what all failures together say of their explanations, and the cases that pass."""
        settled = self._add_all_late(judgements, verdicts)
        self._add_near(judgements, settled)
        if self._search_second(judgements, settled):
            settled = self._add_all_late(judgements, settled)
        if any(v.bad and v.matches for v in settled):
            before = list(settled)
            self._refute(judgements, settled)
            # A twin of what is refuted may hold.
            if self._imitator.release_twins(_list_refuted(before, settled)):
                settled = self._add_all_late(judgements, settled)
                self._refute(judgements, settled)
        return settled

    def _refute(self, judgements: Sequence[Judgement | None], verdicts: list[Verdict]) -> None:
        """Note in the verdicts which of the best explanations other cases and new calls refute."""
        rule_out_causes(judgements, verdicts, self._imitator, self._spec)
        tell_apart(judgements, verdicts, self._imitator, self._spec, calls=self._isolates)
        if self._isolates:
            confirm_causes(judgements, verdicts, self._imitator, self._spec, self._confirmed)

    def _add_all_late(self, judgements: Sequence[Judgement | None], verdicts: Sequence[Verdict]) -> list[Verdict]:
        judged = zip(judgements, verdicts, strict=True)
        return [
            _add_matches(j, v, self._imitator.find_late_matches) if j and v.bad and v.matches is not None else v
            for j, v in judged
        ]

    def _add_near(self, judgements: Sequence[Judgement | None], verdicts: list[Verdict]) -> None:
        """Let the best explanation of a component, or a part of it, explain the cases that it misses by rounding.

        If these are many, something small is wrong as well, such as eps; unless that changes nothing in float64, as a
        bias that a normalisation takes away. In a coarse dtype rounding does as much, and so it does where the
        explanation itself loses digits, as a division by the variance of two tokens.
        """
        for component in list_explained(verdicts):
            ranked = rank_explanations(verdicts, component, self._spec)
            for e in (e for e in ranked if {*e.ids} <= {*ranked[0].ids}):
                missed = _select_failing(judgements, e.refuting)
                by_rounding = _RARE * len(missed) <= e.case_count or any(
                    self._misses_by_rounding(e.ids, judgement) for judgement in missed.values()
                )
                near = partial(self._imitator.match_near, e.ids)
                more = partial(self._imitator.search_options, e.ids)
                options = {c.convention: c.option for c in e.causes}
                for index, judgement in missed.items():
                    before, in_half = verdicts[index], is_half(judgement.bench.dtype)
                    if in_half and e is ranked[0]:
                        # A half type hides an option in most cases, and then it looks like rounding in the others.
                        verdicts[index] = _add_matches(judgement, before, more)
                    if verdicts[index] != before or (in_half and all(options) and is_wrong_under(judgement, options)):
                        continue
                    idle = partial(is_idle, ranked[0].ids, e.ids, FailingCase.of(judgement), self._imitator)
                    if by_rounding or in_half or idle():
                        verdicts[index] = _add_matches(judgement, verdicts[index], near)

    def _leave_out_refuted(self, verdict: Verdict) -> Verdict:
        """Return a failing property without the mistakes that would fail a case which passes."""
        if verdict.kind != "property" or not verdict.bad or not verdict.catches:
            return verdict
        self._note_passed()
        kept = tuple(id_ for id_ in verdict.catches if not self._imitator.is_refuted(id_, verdict.component))
        return replace(verdict, catches=kept)

    def _search_second(self, judgements: Sequence[Judgement | None], verdicts: list[Verdict]) -> bool:
        """Search a second cause where the best explanation of a component reproduces most failing cases, but not all.

        The search is made at the cheapest case that refutes it, or else at one of whose backward pass it says nothing;
        what is found is noted in its verdict. Return True if something is found.
        """
        before = list(verdicts)
        for component in list_explained(verdicts):
            best = rank_explanations(verdicts, component, self._spec)[0]
            if 2 * best.equals < best.case_count:
                continue
            refuting = _select_failing(judgements, best.refuting or best.backward)
            refuting = {i: j for i, j in refuting.items() if not self._misses_by_rounding(best.ids, j)}
            if refuting:
                index = min(refuting, key=lambda index: _rank_case(refuting[index]))
                search = partial(self._imitator.search_second, best.ids)
                verdicts[index] = _add_matches(refuting[index], verdicts[index], search)
        return verdicts != before

    def _misses_by_rounding(self, ids: Causes, judgement: Judgement) -> bool:
        failure = FailingCase.of(judgement)
        return failure is not None and self._imitator.misses_by_rounding(ids, failure)

    def _search_under_options(self, judgements: Sequence[Judgement | None], verdicts: list[Verdict]) -> bool:
        """Search again the failures that nothing explains, under the options that a call with silent parts shows.

        Return True if something is found.
        """
        before = list(verdicts)
        for component in list_unknown(verdicts, self._spec):
            if component in self._options:
                continue
            from goldformer.conformance.diagnosis.isolation import find_options  # few runs need it

            mine = select_judgements(judgements, component)
            options = self._options[component] = find_options(mine, self._spec)
            failing = [i for i, j in mine.items() if j.verdict.bad and verdicts[i].matches is not None]
            ranked = sorted(failing, key=lambda index: _rank_case(mine[index]))
            for index in ranked[:_MOST_UNDER_OPTIONS] if options else ():
                search = partial(self._imitator.search_under, options)
                verdicts[index] = _add_matches(mine[index], verdicts[index], search)
                if verdicts[index].matches:
                    break
        return verdicts != before

    def _isolate_unknown(self, judgements: Sequence[Judgement | None], verdicts: list[Verdict]) -> None:
        """Note the place of the mistake of each component whose failures nothing explains for certain.

        Parameters that change no output are noted too.
        """
        for component, options in list_unsettled(verdicts, self._spec).items():
            from goldformer.conformance.diagnosis.isolation import find_idle, isolate  # few runs need it

            mine = select_judgements(judgements, component)
            try:
                idle = find_idle(mine, self._spec)
                found = isolate(mine, self._spec, self._options.get(component, options))
            except Exception as error:
                first = next(index for index in mine if verdicts[index].bad)
                verdicts[first] = report_fault(verdicts[first], error)
            else:
                for index, names in idle.items():
                    verdicts[index] = replace(verdicts[index], idle=names)
                for index, (isolated, example) in found.items():
                    verdicts[index] = replace(verdicts[index], isolated=isolated, example=example)

    def _note_scope(self, judgements: Sequence[Judgement | None], verdicts: list[Verdict]) -> None:
        """Note in the first failure of each component that nothing explains what goldformer does not judge of it."""
        for component in list_unknown(verdicts, self._spec):
            mine = select_judgements(judgements, component)
            first = next((index for index in mine if verdicts[index].bad), None)
            if first is not None:
                function = mine[first].bench.adapter.functions.get(component)
                verdicts[first] = replace(
                    verdicts[first], beyond=explain_scope(list_identifiers(function), (component,))
                )

    def explain(self, judgement: Judgement) -> Verdict:
        """Return a verdict with the mistakes and options that explain its failure, as far as they are known by now."""
        verdict = judgement.verdict
        if can_refute(judgement) and judgement.case is not None and judgement.case.cotangent is None:
            self._passed.append(judgement)
        if not verdict.bad or judgement.case is None:
            return verdict
        try:
            self._note_passed()
            return replace(verdict, matches=self._find_matches(judgement), advice=advise_option(judgement))
        except Exception as error:
            return report_fault(verdict, error)

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


def _list_refuted(before: Sequence[Verdict], after: Sequence[Verdict]) -> set[tuple[str, Causes]]:
    """Return the causes that verdicts refute now and did not before, each with its component."""
    refuted = set()
    for old, new in zip(before, after, strict=True):
        lost = {m.causes for m in old.matches or ()} - {m.causes for m in new.matches or ()}
        noted = {*new.rules_out, *new.refutes} - {*old.rules_out, *old.refutes}
        refuted |= {(new.component, causes) for causes in lost | noted}
    return refuted


def _select_failing(judgements: Sequence[Judgement | None], checks: Collection[str]) -> dict[int, Judgement]:
    """Return the judgements of some checks that fail, by their indices."""
    return {i: j for i, j in enumerate(judgements) if j is not None and j.verdict.bad and j.verdict.check in checks}


def _note_dropout(judgements: Sequence[Judgement | None], verdicts: list[Verdict]) -> list[Verdict]:
    if not any(v.bad and v.catches in VARYING for v in verdicts):
        return verdicts
    from goldformer.conformance.diagnosis.dropping import note_dropout  # few runs need it

    return note_dropout(judgements, verdicts)


def _drop_single_fits(verdicts: Sequence[Verdict], spec: Spec) -> list[Verdict]:
    """Return verdicts without the matches of solved numbers that fit one case only, by chance, and no new call."""
    confirmed = {(v.component, causes) for v in verdicts for causes in v.confirms}
    fits = Counter((v.component, match.causes) for v in verdicts for match in v.matches or ())
    single = {
        (component, causes)
        for (component, causes), count in fits.items()
        if count == 1 and (component, causes) not in confirmed and any(find_cause(id_, spec).solved for id_ in causes)
    }
    return [
        replace(v, matches=tuple(m for m in v.matches if (v.component, m.causes) not in single)) if v.matches else v
        for v in verdicts
    ]


def _drop_disproven(verdicts: Sequence[Verdict], spec: Spec) -> list[Verdict]:
    """Return verdicts without the matches that fit some cases, where another explanation fits all of them."""
    kept: dict[str, set[Causes]] = {}
    for component in list_explained(verdicts):
        best = rank_best(verdicts, component, spec)
        if best[0].certain:
            kept[component] = {causes for e in best for causes in (e.ids, *e.twins)}
            # A case without gradients says nothing of a backward pass.
            kept[component] |= {tuple(id_ for id_ in ids if not _is_by_hand(id_, spec)) for ids in kept[component]}
    found = []
    for verdict in verdicts:
        told = kept.get(verdict.component)
        left = tuple(m for m in verdict.matches or () if told is None or m.causes in told)
        found.append(replace(verdict, matches=left) if left else verdict)
    return found


def _is_by_hand(id_: str, spec: Spec) -> bool:
    """Return True for a cause in a backward pass that is written by hand."""
    cause = find_cause(id_, spec)
    return not cause.option and is_by_hand(cause.id)


def _add_matches(judgement: Judgement, verdict: Verdict, search: Callable[[FailingCase], tuple[Match, ...]]) -> Verdict:
    """Return an explained verdict with what a further search finds for its case."""
    if verdict.matches is None:
        return verdict
    try:
        failure = FailingCase.of(judgement)
        return replace(verdict, matches=(*verdict.matches, *search(failure))) if failure else verdict
    except Exception as error:
        return report_fault(verdict, error)


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

    A small case is quick, so that a search gets far in it.
    """
    components = {judgement.verdict.component: None for judgement in judgements}
    ranks = {component: rank for rank, component in enumerate(components)}

    def cost(index: int) -> tuple[int, bool, bool, bool, int]:
        judgement = judgements[index]
        imitated = judgement.case is not None and judgement.verdict.bad
        return (ranks[judgement.verdict.component], *(_rank_case(judgement) if imitated else (False, False, False, 0)))

    return sorted(range(len(judgements)), key=cost)
