"""The judge of a diagnosis: does the code do what a finding says? Both are called with numbers that no case has."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.causes import IN
from goldformer.conformance.diagnosis.generated import find_made, list_layers
from goldformer.conformance.diagnosis.mistakes.places import PLACES, TRACKED, restrict_to
from goldformer.conformance.diagnosis.suspects import TO_FLOAT32
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import (
    Arguments,
    BadResult,
    NotImplementedHere,
    Result,
    invoke,
    read_arguments,
)
from goldformer.spec import Case, Spec
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import Replacements
from goldformer.spec.model import GoldenArray

#: In float64 two orders of the same sums agree within some 1e-13 at these sizes; two formulas differ by far more.
_SAME: Final = 1e-9
#: The same where what was made rounds to float32 on the way.
_SAME_ROUNDED: Final = 1e-5
#: A case of more numbers than this takes long and decides nothing that smaller ones do not.
_LARGE: Final = 20_000


@dataclass(frozen=True, slots=True)
class Claim:
    """The meaning of a diagnosis: the causes of a finding, of one component."""

    component: str
    causes: tuple[str, ...]

    @property
    def is_of_mistakes(self) -> bool:
        """Return True if it names no option and no place."""
        return not any(": " in cause or IN in cause for cause in self.causes)


def build_mistaken(ids: Sequence[str], spec: Spec) -> Adapter:
    """Return the textbook with these mistakes at once, the later ones on top of the earlier ones."""
    return _build(list_layers(ids), ids, spec)


def is_true(claim: Claim, code: Adapter, made: Sequence[str], spec: Spec) -> bool:
    """Return True if the code, in which the mistakes `made` are, computes what the claim says.

    Both are called in float64 with the arguments of the component's cases, moved at random. Values that no case
    compares, such as rows of padding that nothing reads, do not count: two mistakes that differ only there are one.
    A call that raises, such as at sizes that a missing projection does not fit, computes nothing; not all may.
    """
    declared = code.options(claim.component, spec)
    ids = [cause.partition(IN)[0] for cause in claim.causes if ": " not in cause]
    claimed = _build(list(_list_layers(claim)), ids, spec)
    parts = [cause.partition(": ") for cause in claim.causes]
    options = {**declared, **{name: option for name, _, option in parts if option}}
    # Forward passes that agree everywhere have the same gradients, unless these are written by hand.
    by_hand = any(find_made(id_).by_hand for id_ in {*ids, *made})
    same = _SAME if TO_FLOAT32.isdisjoint(made) else _SAME_ROUNDED
    bench = Bench(spec, code, "float64", "cpu")
    computes = raises = False
    for case in spec.cases_of(claim.component):
        if case.error is not None or case.explain_unfit(bench.options(case)):
            continue
        if not case.random and case.size <= _LARGE and (by_hand or case.cotangent is None):
            actual = _call(code, case.under(declared), spec)
            if isinstance(actual, BadResult) and actual.reason == "raised":
                raises = True
                continue
            computes = True
            said = _call(claimed, case.under(options), spec)
            if not _are_same(actual, said, _find_compared(case, bench), same):
                return False
    return computes or not raises


def _find_compared(case: Case, bench: Bench) -> Mapping[str, GoldenArray]:
    """Return what a case compares; nothing if it has no values under the adapter's options."""
    key = case.key(bench.options(case))
    return (case.golden.options.get(key) if case.golden is not None else None) or {}


def _build(layers: Sequence[Replacements], ids: Sequence[str], spec: Spec) -> Adapter:
    made = [find_made(id_) for id_ in ids]
    declared: dict[str, str] = {}
    for one in made:
        declared |= getattr(one.make(), "CONVENTIONS", {})
    book = build_textbook(*layers, CONVENTIONS=declared)
    return Adapter.from_object(book, "+".join(ids) or "textbook", spec)


def _list_layers(claim: Claim) -> Iterator[Replacements]:
    """Yield the replacements that make a claim's causes, those of options first."""
    for cause in claim.causes:
        name, _, option = cause.partition(": ")
        id_, _, words = cause.partition(IN)
        if option:
            yield OPTIONS.get((name, option), {})
        elif words:
            place = next(place for place in PLACES[claim.component] if place.words == words)
            yield from (restrict_to(place, find_made(id_).steps), TRACKED)
        else:
            yield find_made(id_).steps


def _call(adapter: Adapter, case: Case, spec: Spec) -> Result | BadResult | None:
    contract, arguments = spec.contracts[case.component], _move(read_arguments(case))
    try:
        with np.errstate(all="ignore"):
            if case.cotangent_array is None:
                return invoke(adapter, contract, arguments, "float64", "cpu")
            wanted = contract.results_of(case)
            return invoke_gradient(adapter, contract, arguments, case.cotangent_array, wanted, "float64", "cpu")
    except BadResult as bad:
        return bad
    except NotImplementedHere:
        return None


def _move(arguments: Arguments) -> Arguments:
    """Return the arguments with noise on every finite float: by its name, so that both calls get the same."""

    def move(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if array.dtype.kind != "f" or not array.size:
            return array
        random = np.random.default_rng(zlib.crc32(name.encode()))
        finite = np.isfinite(array)
        width = 0.1 * max(np.abs(array[finite]).max(initial=0.0), 1.0)
        return np.where(finite, array + width * random.standard_normal(array.shape), array)

    moved = [{name: move(name, a) for name, a in some.items()} for some in (arguments.inputs, arguments.params)]
    return replace(arguments, inputs=moved[0], params=moved[1])


def _are_same(
    one: Result | BadResult | None, other: Result | BadResult | None, compared: Mapping[str, GoldenArray], same: float
) -> bool:
    if not (isinstance(one, Result) and isinstance(other, Result)):
        return type(one) is type(other) and str(one) == str(other)
    return one.outputs.keys() == other.outputs.keys() and all(
        _are_near(one.outputs[name], other.outputs[name], compared.get(name), same)
        for name in one.outputs
        if not compared or name in compared
    )


def _are_near(
    one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], compared: GoldenArray | None, same: float
) -> bool:
    if compared is not None and one.shape == other.shape:
        one, other = compared.select(one), compared.select(other)
    largest = max(np.abs(other[np.isfinite(other)]).max(initial=0.0), 1.0) if other.dtype.kind == "f" else 0.0
    return one.shape == other.shape and np.allclose(one, other, rtol=same, atol=same * largest, equal_nan=True)
