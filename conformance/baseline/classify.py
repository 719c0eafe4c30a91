"""Compare new results with recorded ones, and put the move of every output in a class.

A move beyond rounding is compared with known mistakes and options first: they fit far more closely than a lower
precision, which explains every small move.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Final

import numpy as np

from goldformer.adapters.protocol import find_options
from goldformer.conformance.baseline.array_files import Array, StoredArray, draw_places
from goldformer.conformance.baseline.expected import (
    ExpectedResult,
    ExpectedResults,
    Precision,
    find_shown,
    list_coarser,
)
from goldformer.conformance.baseline.model import Baseline, Entry, Key
from goldformer.conformance.baseline.moves import Kind, Move, describe_end_change, describe_form_change
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.diagnosis.imitation import Imitator
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.measure import find_tolerance, measure
from goldformer.conformance.judging.verdict import Element
from goldformer.spec import Case, Spec
from goldformer.spec.model import GoldenArray

_NEW: Final = "is new: the baseline does not have it"
_NOT_KNOWN: Final = "no lower precision and no known mistake or option explains it"
_UNMEASURED: Final = "nothing says how far rounding moves it: in the class of the other outputs of the call"

Pairs = Mapping[str, tuple[StoredArray, StoredArray]]


class Classifier:
    """Classifies moves; it remembers what explained earlier ones."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.imitator = Imitator(spec, solves=False)
        self.expected = ExpectedResults(spec, self.imitator)
        #: The lower precision that a component looks like, by component, dtype and device.
        self.precisions: dict[tuple[str, str, str], Precision] = {}

    def moves(self, old: Baseline, new: Baseline, among: Collection[Key] | None = None) -> Iterator[Move]:
        """Yield a move for every output of every call, or only of the calls `among`; parts come before their wholes."""
        entries = {**old.entries, **new.entries}
        recorded = {entry.component for entry in entries.values()}
        cases = (case.id for name in self.spec.components if name in recorded for case in self.spec.cases_of(name))
        order = {case: place for place, case in enumerate(cases)}
        for key in sorted(entries, key=lambda key: order.get(key.case, len(order))):
            if among is None or key in among:
                yield from self.classify(key, old, new)

    def classify(self, key: Key, old: Baseline, new: Baseline) -> list[Move]:
        """Return the moves of the outputs of one call."""
        before, after = old.entries.get(key), new.entries.get(key)
        if before is None or after is None:
            entry = before or after
            assert entry is not None, "one of the two recorded it"
            if before is None and (why := self._explain_new(key, entry, old, new)):
                return [Move(key, entry.component, name, Kind.SEMANTIC, why) for name in entry.outputs]
            gone = f"is gone: {new.absent.get(key) or 'nothing returns it any more'}"
            return [Move(key, entry.component, "", Kind.FORM, _NEW if before is None else gone)]
        if before.ended is not None or after.ended is not None:
            why = describe_end_change(before.ended, after.ended)
            return [Move(key, before.component, "", Kind.FORM if why else Kind.IDENTICAL, why)]
        case = self.spec.cases.get(key.case)
        if case is None or before.inputs != after.inputs:
            return [Move(key, before.component, "", Kind.FORM, "the case has other arguments now")]
        moves, pairs = _compare_forms(key, before, after)
        call = _Call(key, case, before, after, old.conventions(before), new.conventions(after), self)
        return [*moves, *call.moves(pairs)]

    def _explain_new(self, key: Key, entry: Entry, old: Baseline, new: Baseline) -> str:
        """Return the options of which a new call is, if other ones were declared, under which no such call is made."""
        case, now = self.spec.cases.get(key.case), find_options(new.conventions(entry), entry.component, self.spec)
        former = next(
            (e for k, e in old.entries.items() if k.device == key.device and e.component == entry.component), None
        )
        if case is None or former is None:
            return ""
        then = find_options(old.conventions(former), entry.component, self.spec)
        if not case.explain_unfit(then) or case.explain_unfit(now):
            return ""
        right = self.expected.of(case, new.conventions(entry))
        result, wanted = _select_whole(entry, right, list(entry.outputs))
        dtypes = (key.dtype, *(p.name for p in list_coarser(key.dtype, key.device) if p.is_dtype))
        measured = (measure(result, wanted, right.case, right.contract, dtype) for dtype in dtypes[:2])
        return _describe_declared(then, now) if any(not any(d.wrong for d in m) for m in measured) else ""


def _describe_declared(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return in words which options are declared now instead of others."""
    changed = ", ".join(f"{n}: {o} instead of {then[n]}" for n, o in now.items() if o != then[n])
    return f"{changed} is declared now, and the result agrees"


def _compare_forms(key: Key, before: Entry, after: Entry) -> tuple[list[Move], Pairs]:
    """Return the moves of the outputs that changed their form, and the pairs whose values can be compared."""
    moves, pairs = [], {}
    for name in dict.fromkeys((*before.outputs, *after.outputs)):
        if name not in after.outputs:
            why = "is gone: it is not returned any more"
        elif name not in before.outputs:
            why = _NEW
        else:
            pair = before.outputs[name].stored, after.outputs[name].stored
            why = describe_form_change(*pair)
            if not why:
                pairs[name] = pair
                continue
        moves.append(Move(key, before.component, name, Kind.FORM, why))
    return moves, pairs


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why an output moved, and its class; the fields are those of a Move."""

    kind: Kind
    why: str
    matches: tuple[Match, ...] = ()
    was: bool = False
    precision: str = ""


@dataclass(frozen=True, slots=True)
class _Side:
    """One of the two results: `wrong` if the expected values refute it, and what matches it."""

    wrong: bool
    matches: tuple[Match, ...]


@dataclass(frozen=True)
class _Call:
    """One call that gave a result, then and now."""

    key: Key
    case: Case
    before: Entry
    after: Entry
    declared_then: Mapping[str, str]
    declared_now: Mapping[str, str]
    classifier: Classifier

    @cached_property
    def _expected(self) -> ExpectedResult:
        return self.classifier.expected.of(self.case, self.declared_now)

    def moves(self, pairs: Pairs) -> Iterator[Move]:
        """Yield the moves of the outputs whose values can be compared, in their order."""
        found = {name: self._measure_move(name, *pair) for name, pair in pairs.items()}
        beyond = [name for name, move in found.items() if move.kind is Kind.UNEXPLAINED]
        if beyond:
            for name, reason in self._explain(beyond, pairs):
                found[name] = replace(found[name], **{part.name: getattr(reason, part.name) for part in fields(reason)})
        yield from found.values()

    def _measure_move(self, output: str, old: StoredArray, new: StoredArray) -> Move:
        """Return how far an output moved; a move beyond rounding is not explained yet."""
        head = (self.key, self.before.component, output)
        if old.equals(new):
            return Move(*head, Kind.IDENTICAL, ratio=0.0, compared=old.values.size)
        # The tolerance of the later recording: this process made it, and the earlier one may come from anybody.
        bound = self.after.outputs[output].tolerance
        if bound is None:
            bound = self._expected.tolerance(output, self.key.dtype)
        found = compare(output, new.values, old.values, bound or 0.0)
        kind = Kind.ROUNDING if found.ratio <= 1.0 else Kind.UNEXPLAINED
        ratio = None if bound is None else found.ratio
        grid = found.grid if old.digest is None else None  # a large output is stored as samples
        return Move(*head, kind, "", ratio, _find_furthest(old, new), found.wrong, found.compared, bound, grid=grid)

    def _explain(self, beyond: list[str], pairs: Pairs) -> Iterator[tuple[str, _Reason]]:
        """Yield the class of each output that moved beyond rounding, and why."""
        shown = self._find_shown(beyond, pairs)
        # Numbers of a lower precision equal no mistake to the tolerance of the dtype: the slow search is in vain.
        reasons = self._find_precisions(beyond, pairs, shown) if shown else {}
        if not reasons or any(reason.kind is Kind.UNEXPLAINED for reason in reasons.values()):
            known = self._find_known(beyond)
            if known is not None:
                yield from ((name, _Reason(Kind.SEMANTIC, *known)) for name in beyond)
                return
            reasons = reasons or self._find_precisions(beyond, pairs, shown)
        yield from reasons.items()
        kinds = [Kind.ROUNDING, *(reason.kind for reason in reasons.values())]
        kind = max(kinds) if len(pairs) > len(beyond) - len(reasons) else Kind.UNEXPLAINED
        yield from ((name, _Reason(kind, _UNMEASURED)) for name in beyond if name not in reasons)

    # ── known mistakes and options ──

    def _find_known(self, beyond: list[str]) -> tuple[str, tuple[Match, ...], bool] | None:
        """Return what explains the move, in words if nothing matches, the matches, and if they match the old result."""
        expected_then = self.classifier.expected.of(self.case, self.declared_then)
        dtype = self._find_dtype(expected_then, beyond)
        now = self._find_side(self.after, self._expected, beyond, dtype)
        then = self._find_side(self.before, expected_then, beyond, dtype)
        if now.wrong:
            causes = {match.causes for match in then.matches}
            both = any(match.causes in causes for match in now.matches)
            return ("", now.matches, False) if now.matches and not both else None
        if then.wrong:
            return ("", then.matches, True) if then.matches else None
        was, declared = expected_then.options, self._expected.options
        if was != declared:
            return _describe_declared(was, declared), (), False
        if self.case.random:
            return "other random numbers are drawn; their statistics are right", (), False
        return None

    def _find_dtype(self, right: ExpectedResult, beyond: list[str]) -> str:
        """Return the dtype in which the recorded result is right, which may be coarser than that of the call.

        A norm that casts to float32 makes a result in float64 as coarse. Mistakes and options match it no closer.
        """
        names = (p.name for p in self._coarser if p.is_dtype)
        dtypes = (self.key.dtype, *names)
        return next((d for d in dtypes if not self._is_wrong(self.before, right, beyond, d)), self.key.dtype)

    def _is_wrong(self, entry: Entry, right: ExpectedResult, beyond: list[str], dtype: str) -> bool:
        """Return True if the expected values refute a result in a dtype."""
        result, expected = _select_whole(entry, right, beyond)
        return any(d.wrong for d in measure(result, expected, self.case, right.contract, dtype))

    def _find_side(self, entry: Entry, right: ExpectedResult, beyond: list[str], dtype: str) -> _Side:
        if not self._is_wrong(entry, right, beyond, dtype):
            return _Side(wrong=False, matches=())
        result, expected = _select_whole(entry, right, beyond)
        failure = FailingCase(self.case, right.contract, result, expected, dtype, right.options)
        # What only loses digits is a lower precision, and changes no meaning.
        made = implementations()
        found = self.classifier.imitator.find_matches(failure) or ()
        lost = {id_ for match in found for id_ in match.causes if id_ in made and made[id_].loses_digits}
        return _Side(wrong=True, matches=tuple(match for match in found if not lost.issuperset(match.causes)))

    # ── lower precision ──

    @cached_property
    def _coarser(self) -> tuple[Precision, ...]:
        return list_coarser(self.key.dtype, self.key.device)

    def _find_shown(self, beyond: list[str], pairs: Pairs) -> dict[str, Precision]:
        """Return the precision that outputs show: all their values are numbers of it now."""
        stored = {name: pairs[name] for name in beyond if pairs[name][1].values.dtype.kind == "f"}
        shown = {name: find_shown(old.values, new.values, self._coarser) for name, (old, new) in stored.items()}
        return {name: precision for name, precision in shown.items() if precision is not None}

    def _find_precisions(self, beyond: list[str], pairs: Pairs, shown: Mapping[str, Precision]) -> dict[str, _Reason]:
        """Return for each output with a measure of rounding the precision that explains its move, or that none does."""
        measured = [name for name in beyond if self._expected.whole(name) is not None]
        return {name: self._find_precision(name, *pairs[name], beyond, shown) for name in measured}

    def _find_precision(
        self, output: str, old: StoredArray, new: StoredArray, beyond: list[str], shown: Mapping[str, Precision]
    ) -> _Reason:
        """Return the precision that explains how far an output moved, or that none does."""
        whole, dtype = self._expected.whole(output), self.key.dtype
        finite = bool(np.isfinite(new.values).all())
        numbers = describe_numbers(shown, shown[output]) if output in shown and finite else ""
        unknown = _Reason(Kind.UNEXPLAINED, f"{_NOT_KNOWN}; {numbers}" if numbers else _NOT_KNOWN)
        if whole is None or self.case.random or not whole.error_scale:
            return unknown

        def fits(bound: float, precision: Precision | None) -> bool:
            return compare(output, new.values, old.values, bound).ratio <= 1.0 and self._is_near(precision, beyond)

        for precision, why in self._list_likely(shown):
            if fits(precision.tolerance(whole), precision):
                if shown:
                    place = self.case.component, self.key.dtype, self.key.device
                    self.classifier.precisions.setdefault(place, precision)
                return _Reason(Kind.PRECISION, f"looks like {precision.name}{why}", precision=precision.name)
        if fits(2 * (self._expected.tolerance(output, dtype) or 0.0), None):
            return _Reason(
                Kind.PRECISION, f"within twice the tolerance, and as near to the golden values as {dtype} has to be"
            )
        for precision in self._coarser:
            if fits(precision.tolerance(whole), precision):
                why = f"within what {precision.name} moves, and as near to the golden values as that comes"
                return _Reason(Kind.PRECISION, why)
        return unknown

    def _list_likely(self, shown: Mapping[str, Precision]) -> Iterator[tuple[Precision, str]]:
        """Yield what the outputs of this call show, of other calls, or of a part, the deepest first; and in what."""
        for precision in sorted(set(shown.values()), key=lambda precision: -precision.unit):
            yield precision, f": {describe_numbers(shown, precision)}"
        component, place = self.case.component, (self.key.dtype, self.key.device)
        for part in (component, *reversed(self.classifier.spec.list_dependencies(component))):
            if found := self.classifier.precisions.get((part, *place)):
                yield found, ", as in other calls" if part == component else f", as {part} does"

    def _is_near(self, precision: Precision | None, beyond: list[str]) -> bool:
        """Return True if all outputs are within the error of a precision; None is that of the dtype."""
        expected_result = self._expected
        for name, golden in expected_result.find_expected(beyond).items():
            if name not in self.after.outputs or golden.within is not None:
                continue
            stored = self.after.outputs[name].stored
            if stored.digest is not None and golden.indices is not None:
                continue
            actual = stored.values if stored.digest is not None else golden.select(stored.values)
            own = find_tolerance(golden, expected_result.contract, self.key.dtype)
            bound = own.largest if precision is None else max(own.largest, precision.tolerance(golden))
            if compare(name, actual, golden.values, bound).wrong:
                return False
        return True


def _select_whole(entry: Entry, right: ExpectedResult, beyond: list[str]) -> tuple[Result, dict[str, GoldenArray]]:
    """Return the outputs of a result that are stored in whole, and the values that are expected of them."""
    whole = {name: o.stored.values for name, o in entry.outputs.items() if o.stored.digest is None}
    return Result(whole, 0.0), right.find_expected(name for name in beyond if name in whole)


def describe_numbers(shown: Mapping[str, Precision], precision: Precision) -> str:
    """Return in words which outputs show a precision."""
    names = ", ".join(name for name, other in shown.items() if other is precision)
    return f"all values of {names} are {precision.name} numbers"


def _find_furthest(old: StoredArray, new: StoredArray) -> Element | None:
    """Return the element that moved furthest: one that became or was NaN, or the one with the largest difference."""
    before, after = old.values.ravel(), new.values.ravel()
    if not before.size:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(after.astype(np.float64) - before.astype(np.float64))
    differs = (before != after) & ~(_is_nan(before) & _is_nan(after))
    place = int(np.where(differs, np.where(np.isnan(apart), math.inf, apart), -1.0).argmax())
    flat = int(draw_places(old.shape)[place]) if old.digest is not None else place
    index = tuple(int(i) for i in np.unravel_index(flat, old.shape))
    return Element(index, before[place].item(), after[place].item())


def _is_nan(values: Array) -> Array:
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, dtype=bool)
