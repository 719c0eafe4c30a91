"""The cases of an implementation: those that apply to it, those that it runs, and those of a selection."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from goldformer.adapters.protocol import Adapter
from goldformer.conformance.judging.implementation import Implementation
from goldformer.conformance.judging.invoke import CallProblem, NotImplementedHere, read_arguments
from goldformer.conformance.judging.tolerance import LARGEST, find_smallest_normal, least_margin
from goldformer.conformance.judging.verdict import Reason
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.oracle.derive import GAPS
from goldformer.spec.oracle.rounding import SMALLEST, Rounding
from goldformer.spec.oracle.truth import find_margin, make_call

#: The most reasons that a message names.
_MOST_REASONS: Final = 3


def explain_inapplicable(case: Case, implementation: Implementation) -> tuple[Reason, str] | None:
    """Return the reason why a case does not apply to an implementation with these declarations, or None."""
    dtype = implementation.dtype
    options = implementation.options(case)
    if other := _explain_other_option(case, implementation.adapter, options):
        return "convention", other
    if case.error is not None and implementation.device != "cpu":
        # A bad id on CUDA trips an assertion that leaves the whole process without a device. PyTorch checks less there,
        # and on the pretend device too.
        return "device", "refusals are checked only on the CPU"
    if case.full_size and dtype != "float32" and implementation.computes_on_cpu:
        return "dtype", f"on a CPU a model of full size is run only in float32: in {dtype} it takes much longer"
    contract = implementation.spec.contracts[case.component]
    reach = explain_out_of_reach(case, dtype, contract.computed_in_at_least)
    why = reach or _explain_own_decisions(case, options, contract, dtype) or explain_lost_eps(case, options, dtype)
    return ("dtype", why) if why else None


def explain_out_of_reach(case: Case, dtype: str, at_least: str | None = None) -> str:
    """Return why a dtype cannot hold the numbers of a case, or cannot separate its candidates; or "".

    `at_least` is the dtype in which code computes in any case, and rounds to its own at the end.
    """
    if case.golden is not None and case.golden.peak > max(LARGEST[dtype], LARGEST[at_least or dtype]):
        return f"intermediate numbers up to {case.golden.peak:.3g} overflow {dtype}"
    return _explain_margin(case.golden.margin if case.golden is not None else None, dtype)


def _explain_own_decisions(case: Case, options: Mapping[str, str], contract: Contract, dtype: str) -> str:
    """Return why decisions under a number that was declared are too close for a dtype; golden margins have listed ones.

    Of a case without decisions it is "".
    """
    is_own = any(options[name] not in listed for name, listed in case.conventions.items())
    if not is_own or case.golden is None or case.golden.margin is None:
        return ""
    gaps = make_call(case.under(options), options, contract).evaluate(Rounding.of(dtype)).outputs[GAPS]
    return _explain_margin(find_margin(gaps, dtype), dtype)


def _explain_margin(margin: float | None, dtype: str) -> str:
    if margin is not None and margin <= (least := least_margin(dtype)):
        needed = f"(margin {margin:.3g}, {dtype} needs {least:.3g})"
        return f"the best candidates lie too close for {dtype} to separate them {needed}"
    return ""


def explain_lost_eps(case: Case, options: Mapping[str, str], dtype: str) -> str:
    """Return why LN-3 does not apply to a case of layer_norm: eps and variance are too small for the dtype; or ""."""
    if case.component != "layer_norm" or case.error is not None:
        return ""
    variance = float(case.input_arrays["x"].var(-1).min(initial=math.inf))
    eps, deviation = options["layer_norm_eps"], math.sqrt(variance)
    if options["norm_divisor"] == "std_plus_eps" and 0 < deviation < find_smallest_normal(dtype):
        return f"{dtype} cannot hold all digits of a deviation of {deviation:.3g}"
    if float(eps) > SMALLEST[dtype] / 2 or variance >= find_smallest_normal(dtype):
        return ""
    return f"an eps of {eps} is 0 in {dtype}, which cannot hold all digits of a variance of {variance:.3g}"


def _explain_other_option(case: Case, adapter: Adapter, options: Mapping[str, str]) -> str:
    """Return why a case does not apply under what the adapter declares, or ""."""
    for name, option in case.only_with.items():
        if adapter.leaves_open(name, case.component):
            return f"only for {name}: {option}; the adapter leaves {name} open"
    return case.explain_unfit(options)


def select_plain_cases(component: str, implementation: Implementation) -> Iterator[Case]:
    """Yield the cases of a component whose numbers are judged here, in the order of their file."""
    for case in _list_plain_cases(component, implementation.spec):
        if not explain_inapplicable(case, implementation):
            yield case.under(implementation.options(case))


def _list_plain_cases(component: str, spec: Spec) -> list[Case]:
    """Return the cases of a component whose numbers are judged under some options.

    Left out are those of a whole model of full size: each call of one takes a second and hundreds of megabytes.
    """
    cases = spec.cases_of(component)
    return [case for case in cases if case.error is None and not (case.shape_only or case.full_size)]


def find_working_case(component: str, implementation: Implementation, cases: Iterable[Case] | None = None) -> Case:
    """Return the first case, of these or of the component, that the implementation runs; else NotImplementedHere.

    Its message is that of the last call that was declined, or says why there was none. A call counts as declined too
    if an undeclared option permits it to raise.
    """
    last = None
    for case in select_plain_cases(component, implementation) if cases is None else cases:
        try:
            implementation.call(component, read_arguments(case))
        except CallProblem as problem:
            if not isinstance(problem, NotImplementedHere) and not implementation.find_permission(case, problem):
                raise
            last = problem
            continue
        return case
    raise last or NotImplementedHere(_explain_no_case(component, implementation))


def _explain_no_case(component: str, implementation: Implementation) -> str:
    """Return the message that the function is missing, or which declarations exclude the cases of its component."""
    if missing := implementation.explain_missing(component):
        return missing
    cases = _list_plain_cases(component, implementation.spec)
    reasons = Counter(why[1] for case in cases if (why := explain_inapplicable(case, implementation)))
    counted = "".join(f"; {count} of them: {why}" for why, count in reasons.most_common(_MOST_REASONS))
    return f"none of the {len(cases)} cases of {component} applies to {implementation.adapter.name}{counted}"


def plan(spec: Spec, components: Iterable[str] = (), cases: Iterable[str] = ()) -> list[Case]:
    """Return the cases to run, in the order of dependency; empty filters mean everything."""
    components, ids = set(components), set(cases)
    if ids:
        # Only the files of these cases are read. The cases keep the order of their file.
        homes = {spec.cases[id_].component for id_ in ids if id_ in spec.cases}
        components = homes & components if components else homes
    chosen = [name for name in spec.components if name in components] if components or ids else spec.components
    return [case for name in chosen for case in spec.cases_of(name) if not ids or case.id in ids]
