"""Values that a call of a case has to give under some options, and what rounding may add to them.

Golden values are proven. Every other output of a call has values too, computed on the spot: those that a case does not
ask for, and all of a call that code has otherwise which always hides later tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from goldformer.conformance.judging.implementation import Implementation
from goldformer.spec import Case, Contract
from goldformer.spec.laws import law_of
from goldformer.spec.model import REFUSED, UNSPECIFIED, GoldenArray
from goldformer.spec.oracle.derive import GAPS
from goldformer.spec.oracle.rounding import Rounding, is_half
from goldformer.spec.oracle.truth import Call, OutputRounding, Style, find_scale, make_call

#: A gap below this is one of equals: the margins of all others are far above it.
_TIE: Final = 1e-12
#: The length of an axis from which on sums that run in a half type are told from wrong ones.
LONG: Final = 256


def expect(case: Case, options: Mapping[str, str], contract: Contract, dtype: str) -> Mapping[str, GoldenArray] | None:
    """Return what each output has to be under a combination of options; None if one of them refuses the call.

    `dtype` is the one in which the call is judged first.
    """
    if case.hiding and case.golden is not None:
        asked = [name for name, wanted in case.expect.items() if wanted.form != "shape"]
        return compute_outputs(case, make_call(case, options, contract), asked, dtype)
    outputs = case.expects(options)
    if outputs is None or case.golden is None or not case.has_roundings or _are_computed(outputs):
        return outputs
    call = make_call(case, options, contract)
    computed = [name for name, wanted in case.expect.items() if wanted.form == "computed"]
    others = _list_others(case, contract)
    if others and _has_ties(call, dtype):
        others = []
    found = compute_outputs(case, call, [*computed, *others], dtype)
    return found | {
        name: _insert_proven(found[name], golden) if name in computed else golden
        for name, golden in add_rounding(outputs, case, call).items()
    }


def select_agreed(
    case: Case, choices: Iterable[Mapping[str, str]], contract: Contract, dtype: str
) -> dict[str, GoldenArray]:
    """Return the values that a case has under several choices of options alike, as probes."""
    assert case.golden is not None, "it has values"
    found = {case.key(options): options for options in choices}
    golden = case.golden
    if case.is_computed:
        golden = replace(golden, options={k: expect(case, o, contract, dtype) for k, o in found.items()})
    return golden.select_agreed(found)


def _insert_proven(computed: GoldenArray, proven: GoldenArray) -> GoldenArray:
    """Return values computed on the spot, with the proven ones at their places."""
    if computed.indices is not None:
        return computed  # all that depends on rows without a key is left open
    assert proven.indices is not None, "only some places of it are stored"
    values = computed.values.copy()
    values[tuple(np.array(proven.indices).T)] = proven.values
    rounding = computed.rounding
    if isinstance(rounding, OutputRounding):
        rounding = replace(rounding, proven=proven.indices)
    return replace(computed, values=values, rounding=rounding)


def add_rounding(outputs: Mapping[str, GoldenArray], case: Case, call: Call) -> dict[str, GoldenArray]:
    """Return golden values with the rounding errors of their call, where it has any."""
    if not case.has_roundings or _are_computed(outputs):
        return dict(outputs)
    is_judged = {name: g.within is None and g.values.dtype.kind == "f" for name, g in outputs.items()}
    return {
        name: replace(golden, rounding=OutputRounding(call, name)) if is_judged[name] else golden
        for name, golden in outputs.items()
    }


def round_like(outputs: Mapping[str, GoldenArray], style: Style, dtype: str) -> dict[str, GoldenArray]:
    """Return what is expected of code that rounds in another style; outputs without roundings stay."""
    found = {}
    for name, golden in outputs.items():
        if isinstance(golden.rounding, OutputRounding):
            rounding = replace(golden.rounding, style=style)
            scale = find_scale(rounding(dtype), dtype)
            found[name] = replace(golden, rounding=rounding, error_scale=scale)
        else:
            found[name] = golden
    return found


def list_rougher(
    case: Case, outputs: Mapping[str, GoldenArray], dtype: str
) -> Iterator[tuple[str, dict[str, GoldenArray]]]:
    """Yield what is expected of code in a half type that rounds in rougher styles, with words for each."""
    roundings = [golden.rounding for golden in outputs.values() if isinstance(golden.rounding, OutputRounding)]
    styles = {rounding.style for rounding in roundings}
    if not is_half(dtype) or not styles:
        return
    if "once" in styles:
        words = f"if the result of each operation is rounded to {dtype}, not if only the last one is"
        yield words, round_like(outputs, "steps", dtype)
    if any(
        rounding.call.contract is not None and rounding.call.contract.computed_in_at_least for rounding in roundings
    ):
        return  # its sums run in float32, as a clause says
    # Sums of fewer terms differ little, and mistakes of small cases would hide in what they may lose.
    if max((*case.sizes.values(), *case.lead), default=0) >= LONG:
        yield f"only if sums run in {dtype}, not in float32", round_like(outputs, "coarse", dtype)


def _are_computed(outputs: Mapping[str, GoldenArray]) -> bool:
    """Return True if outputs were computed on the spot, with their roundings: all that the caller wants."""
    return any(golden.rounding is not None for golden in outputs.values())


def compute_outputs(case: Case, call: Call, names: Iterable[str], dtype: str) -> dict[str, GoldenArray]:
    """Return some outputs of a call as computed on the spot.

    Where `empty_row` is left open, all that depends on rows without a key is NaN, and left out.
    """
    outputs = call.evaluate(Rounding.of(dtype)).outputs
    found = {}
    for name in names:
        values = outputs[name].values
        rounding = OutputRounding(call, name, unproven=True) if values.dtype.kind == "f" else None
        scale = call.find_scale(name, dtype)
        wanted = case.expect.get(name)
        if wanted is not None and wanted.form == "probes":
            values = values[tuple(np.array(wanted.indices).T)]
            found[name] = GoldenArray(values, scale, wanted.indices, rounding=rounding)
        else:
            found[name] = GoldenArray(values, scale, rounding=rounding)
        if call.has_marks:
            found[name] = found[name].select_finite()
    return found


def _list_others(case: Case, contract: Contract) -> list[str]:
    """List the outputs that a case does not ask for, if they are certain.

    Rows of padding are left to the implementation, which a case with padding says by what it asks for. Where elements
    are dropped, an output on the way may be that before or after.
    """
    names = [name for name in contract.flow if name not in case.expect]
    if not names or case.attributes.get("dropout_rate") or _has_padding(case):
        return []
    return [name for name in names if _is_certain(case, name)]


def _has_ties(call: Call, dtype: str) -> bool:
    """Return True if a decision is between equals: what other outputs are depends on which of them is chosen."""
    gaps = call.evaluate(Rounding.of(dtype)).outputs.get(GAPS)
    return gaps is not None and bool(np.any(np.abs(gaps.values) < _TIE))


def _is_certain(case: Case, output: str) -> bool:
    try:
        return law_of(case, output) is None
    except ValueError:
        return False


def _has_padding(case: Case) -> bool:
    """Return True if some ids are padding, or a mask hides a key from every query, and not all values are asked for."""
    if all(wanted.form in ("all", "computed") for wanted in case.expect.values()):
        return False
    arrays = case.input_arrays.values()
    pad = case.attributes.get("pad_id")
    padded = pad is not None and any(np.any(array == pad) for array in arrays if array.dtype.kind == "i")
    return padded or any(np.any(~array.any(-2)) for array in arrays if array.dtype.kind == "b" and array.ndim > 1)


def select_expected(case: Case, implementation: Implementation, dtype: str) -> dict[str, GoldenArray]:
    """Return the golden values under the adapter's convention; `dtype` is the one to which results are judged.

    An option that permits a refusal has no values of its own: a result is compared with those of the default option.
    """
    if case.golden is None:
        return {}
    options, conventions = implementation.options(case), implementation.spec.conventions
    contract, adapter = implementation.spec.contracts[case.component], implementation.adapter
    left_open = {name for name in case.conventions if adapter.leaves_open(name, case.component)}
    if left_open and not case.hiding:
        decided = {name: (options[name],) for name in case.conventions if name not in left_open}
        combined = [options | combination for combination in case.combine_options(decided)]
        agreed = select_agreed(case, combined, contract, dtype)
        return add_rounding(agreed, case, make_call(case, combined[0], contract))
    if case.hiding and adapter.leaves_open("empty_row", case.component):
        options |= {"empty_row": UNSPECIFIED}
    elif case.refuses(options):
        options |= {name: conventions[name].default for name in case.conventions if options[name] == REFUSED}
    outputs = expect(case, options, contract, dtype)
    assert outputs is not None, "the documents' own option refuses nothing"
    return dict(outputs)
