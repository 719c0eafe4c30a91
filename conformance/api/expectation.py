"""Proven values for a caller's own inputs, and the assertion that a result agrees with them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.dtypes import round_to_dtype
from goldformer.adapters.find_arrays import find_library
from goldformer.adapters.protocol import DTYPES
from goldformer.adapters.untrusted_text import abbreviate
from goldformer.conformance.api.arguments import require_component, swap_heads
from goldformer.conformance.api.own_call import OwnCall
from goldformer.conformance.api.report import NonConformance
from goldformer.conformance.diagnosis.causes import declare_in_python
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import FIRST_SEEN, FIX_FIRST, Finding
from goldformer.conformance.diagnosis.findings import describe_faults, diagnose
from goldformer.conformance.judging.applicability import explain_out_of_reach
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.judging.comparator import find_ratio
from goldformer.conformance.judging.invoke import BadResult, name_outputs
from goldformer.conformance.judging.measure import find_tolerance
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.reports.text import format_difference, format_remarks
from goldformer.spec import Case, Contract, GoldenArray, Spec, load_spec
from goldformer.spec.oracle.rounding import is_half
from goldformer.spec.oracle.truth import Style
from goldformer.spec.sessions import STATE, read_script

_ATTENTION: Final = "scaled_dot_product_attention"
_SWAP: Final = "pass query.swapaxes(1, 2), and so key, value and the result"
#: The findings that say nothing of a single call.
_OF_A_RUN: Final = frozenset({FIX_FIRST, FIRST_SEEN})


@dataclass(frozen=True, slots=True)
class ExpectedArray:
    """The proven values of one output, in float64 (ids: int64, masks: bool), and how far a right result may lie off.

    `values` is an array of the library of the inputs. `tolerances` has every dtype that holds these inputs exactly;
    for any other one the inputs are rounded first, and their values are others. `tolerance` is that of the dtype of
    the inputs.
    """

    values: Any
    tolerance: float
    tolerances: Mapping[str, float]


def expected(
    component: str, *, conventions: Mapping[str, str] | None = None, **arguments: Any
) -> dict[str, ExpectedArray]:
    """Return the proven values of each output of a component for arguments of your own.

    The arguments are those of the component's contract (`goldformer explain COMPONENT`), by name: arrays of PyTorch,
    NumPy or JAX, all of one dtype, `params` as a mapping. Each number means exactly what the array holds. The values
    are derived now, in ball arithmetic. `conventions` are the options to follow instead of
    the documents' own, as in an adapter.

    ValueError or TypeError for arguments that contradict the contract, that are not finite, whose result is random or
    for which a decision lies within rounding.
    """
    spec = load_spec()
    with _keep_jax_settings(arguments):
        call = OwnCall.read(component, arguments, conventions, spec)
        case = call.derive()
        golden = _select_golden(case)
        contract, library = spec.contracts[component], LIBRARIES[call.adapter.arrays]
        held: list[str] = [dtype for dtype in DTYPES if _holds(case, contract, dtype)]
        if call.dtype not in held:
            raise ValueError(f"{component}: {explain_out_of_reach(case, call.dtype, contract.computed_in_at_least)}")
        found = {}
        for name in (name for name in contract.outputs if name in golden):
            tolerances: dict[str, float] = {
                dtype: find_tolerance(golden[name], contract, dtype).largest for dtype in held
            }
            shape = contract.outputs[name].shape.sizes(case.sizes, case.lead)
            values = library.make(_fill(golden[name], shape), "float64", call.device)
            found[name] = ExpectedArray(values, tolerances[call.dtype], tolerances)
        return found


def assert_correct(
    actual: Any,
    component: str,
    *,
    conventions: Mapping[str, str] | None = None,
    rounding: Literal["steps", "once"] = "steps",
    **arguments: Any,
) -> None:
    """Raise NonConformance, an AssertionError with the diagnosis, unless a result is right for its arguments.

    `actual` is what the component gave for `arguments`, as it may be returned by an adapter: its first output, a tuple
    of the first ones, or a mapping by name. It is judged as a golden case is: shape, dtype, device, and every value
    within the tolerance that is derived for these inputs in their dtype. The arguments and `conventions` are those of
    `expected`. With `rounding="once"`, a result in float16 or bfloat16 must be that of float32, rounded at the end.

    ValueError or TypeError as for `expected`, and if the tolerance is so wide that zeros would pass.
    """
    __tracebackhide__ = True
    require_component(component, actual, 'assert_correct(result, "softmax", scores=scores)')
    spec = load_spec()
    with _keep_jax_settings({**arguments, "actual": _take_first(actual)}):
        call = OwnCall.read(component, arguments, conventions, spec, _take_first(actual))
        call = replace(call, style=_read_style(rounding, call))
        run = _judge(actual, call)
        (verdict,) = run
        if verdict.bad and _is_right_swapped(actual, call, arguments):
            raise ValueError(f"{component}: this is right for axes (..., heads, tokens, d): {_SWAP}")
    if verdict.bad or verdict.is_tolerated:
        raise NonConformance(_describe(run, spec))
    if verdict.status is not Status.PASSED:
        raise ValueError(f"{component} in {call.dtype} cannot be judged: {verdict.message}")


def _read_style(rounding: str, call: OwnCall) -> Style:
    """Return the style of rounding; ValueError for an unknown one, and where results of float32 are not rounded."""
    if rounding == "steps":
        return "steps"
    if rounding != "once":
        raise ValueError(f'rounding is {abbreviate(rounding)}: give "steps" or "once"')
    if not is_half(call.dtype):
        what = f"the arguments are {call.dtype}"
        raise ValueError(f'rounding="once" is for code in float16 and bfloat16 that computes in float32, and {what}')
    return "once"


def _judge(actual: Any, call: OwnCall) -> DiagnosedRun:
    """Return the verdict on a result, with the mistakes that reproduce it."""
    component, spec = call.case.component, call.spec
    judgement = _judge_alone(actual, call)
    if judgement.verdict.status is Status.PASSED:
        _require_telling(judgement.expected, spec.contracts[component], call.dtype)
        return DiagnosedRun((judgement.verdict,))
    case = judgement.case
    assert case is not None, "a call is a case"
    # In a large call, the mistakes to look for are those that cases of the component list.
    listed = dict.fromkeys(id_ for other in spec.cases_of(component) if other.cotangent is None for id_ in other.kills)
    # There is one result and no implementation: called with other arguments, it would give the same numbers again.
    diagnosis = Diagnosis(spec, isolates=False)
    return diagnosis.explain_all([replace(judgement, case=replace(case, kills=tuple(listed)))])


def _judge_alone(actual: Any, call: OwnCall) -> Judgement:
    """Return the judgement of a result."""
    component, spec = call.case.component, call.spec
    adapter = replace(call.adapter, name="the result", functions={component: _answer_with(actual, call)})
    try:
        outputs = name_outputs(actual, spec.contracts[component]).keys()
    except BadResult:
        outputs = {spec.contracts[component].first_output: None}.keys()
    case = call.derive(outputs)
    bench = Bench(spec.with_cases({case.id: case}), adapter, call.dtype, call.device)
    return judge_case(case, bench)


def _answer_with(actual: Any, call: OwnCall) -> Callable[..., Any]:
    """Return a function that gives a result whatever it is asked; each call of a session gives its part of it."""
    contract, attributes = call.spec.contracts[call.case.component], call.case.attributes
    if contract.session is None:
        return lambda **_: actual
    session, calls = contract.session, cycle(read_script(attributes))

    def cut(**_: Any) -> Any:
        one = next(calls)
        named = name_outputs(actual, contract)
        parts = {
            name: array[session.index(contract.outputs[name].shape, one.start, one.stop)]
            for name, array in named.items()
        }
        return {**parts, STATE: one.number}

    return cut


def _is_right_swapped(actual: Any, call: OwnCall, arguments: Mapping[str, Any]) -> bool:
    """Return True if the result of an attention is right for other axes: heads before tokens."""
    swapped = swap_heads(actual, arguments) if call.case.component == _ATTENTION else None
    if swapped is None:
        return False
    with contextlib.suppress(TypeError, ValueError):
        result, given = swapped
        other = replace(OwnCall.read(_ATTENTION, given, call.adapter.conventions, call.spec, result), style=call.style)
        return _judge_alone(result, other).verdict.status is Status.PASSED
    return False


def _require_telling(golden: Mapping[str, GoldenArray], contract: Contract, dtype: str) -> None:
    """Raise ValueError if zeros would pass for an output that is not zero: the comparison says nothing."""
    for name, array in golden.items():
        bound = find_tolerance(array, contract, dtype)
        if array.magnitude and find_ratio(np.broadcast_to(0.0, array.values.shape), array.values, bound) <= 1.0:
            what = f"{name}: zeros would pass too, since no expected value exceeds {array.magnitude:.3g}"
            raise ValueError(
                f"{what} and the tolerance of {dtype} is {bound.largest:.3g} for these inputs: give inputs whose "
                "rounding errors are smaller, such as smaller weights, or a finer dtype"
            )


def _describe(run: DiagnosedRun, spec: Spec) -> str:
    """Return the message of a failed assertion: the first and the worst wrong number, and the mistake."""
    (verdict,) = run
    lines = [f"{verdict.component} is wrong in {verdict.dtype}: {verdict.message}"]
    for difference in verdict.differences:
        lines += [f"  {line}" for line in format_difference(difference)]
    found: list[Finding] = [f for f in diagnose(run, spec) if f.label not in _OF_A_RUN]
    found += describe_faults(run)
    lines += format_remarks(replace(finding, text=declare_in_python(finding.text)) for finding in found)
    return "\n".join(lines)


def _select_golden(case: Case) -> Mapping[str, GoldenArray]:
    """Return the golden values under the conventions of a call; of those left open, only what all options share."""
    assert case.golden is not None, "it was derived"
    keys = [case.key(options) for options in case.combine_options()]
    return (case.golden.options[keys[0]] or {}) if len(keys) == 1 else case.golden.select_agreed(keys)


def _fill(golden: GoldenArray, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the values of an output in its shape, NaN where a convention is left open."""
    if golden.indices is None:
        return golden.values
    whole = np.full(shape, np.nan)
    whole[tuple(np.array(golden.indices).T)] = golden.values
    return whole


def _holds(case: Case, contract: Contract, dtype: str) -> bool:
    """Return True if a dtype holds every number of a call, and those on the way."""
    if explain_out_of_reach(case, dtype, contract.computed_in_at_least):
        return False
    arrays = (*case.input_arrays.values(), *case.param_arrays.values())
    return all(np.array_equal(round_to_dtype(a, dtype), a) for a in arrays if a.dtype.kind == "f")


def _take_first(actual: Any) -> Any:
    """Return the first array of a result, which may be a tuple or a mapping."""
    values = list(actual.values()) if isinstance(actual, Mapping) else actual
    return values[0] if isinstance(values, list | tuple) and values else values


def _keep_jax_settings(arguments: Mapping[str, Any]) -> Any:
    """Return a context that keeps the 64 bits of JAX as they are, where an argument is an array of JAX."""
    params = arguments.get("params")
    values = [*arguments.values(), *(params.values() if isinstance(params, Mapping) else ())]
    found = next(filter(None, map(find_library, values)), LIBRARIES["numpy"])
    return found.keep_settings()
