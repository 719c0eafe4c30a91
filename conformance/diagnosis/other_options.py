"""Advice to declare another option of a case's convention, if the result is right under that option."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from goldformer.conformance.diagnosis.causes import make_option_cause, write_declaration
from goldformer.conformance.diagnosis.failure import CLEAR
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.expected import expect, select_agreed
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.measure import measure, measure_ratio
from goldformer.spec import Case, Spec
from goldformer.spec.model import REFUSED, UNSPECIFIED, GoldenArray
from goldformer.spec.oracle.truth import make_call

#: The most options besides the declared ones that are tried together.
_MOST_OPTIONS: Final = 2


def advise_option(judgement: Judgement) -> str:
    """Return the advice to declare the options of the case's conventions that a failure fits best, or ""."""
    case, outcome = judgement.case, judgement.outcome
    if case is None:
        return ""
    if name := judgement.bench.find_permission(case, outcome):
        return _declare({name: REFUSED}, judgement.bench.spec)
    if isinstance(outcome, Result) and case.conventions and case.golden is not None:
        left_open = (_advise_leaving_open(judgement, case, name, outcome) for name in case.conventions)
        return _advise_fitting(judgement, case, outcome) or next(filter(None, left_open), "")
    return ""


def _list_other_combinations(judgement: Judgement, case: Case) -> list[dict[str, str]]:
    """List the options that differ from the declared ones, of every combination that is derived."""
    declared = judgement.bench.options(case)
    every = case.combine_options()
    key = case.key(declared)
    # Two options that make the same call are no difference.
    now = next(options for options in every if case.key(options) == key)
    others = [{name: o for name, o in options.items() if o != now[name]} for options in every if options != now]
    # A model has hundreds of combinations; what deviates in more is found step by step.
    return [options for options in others if len(options) <= _MOST_OPTIONS]


def _advise_fitting(judgement: Judgement, case: Case, result: Result) -> str:
    """Return the advice to declare the fewest other options whose golden values a result has, the nearest; or ""."""
    bench = judgement.bench
    fitting: list[tuple[int, float, dict[str, str]]] = []
    for options in _list_other_combinations(judgement, case):
        chosen = bench.options(case) | options
        # Most options are far off: only near ones are worth their golden values, and the rounding of their call.
        if case.refuses(chosen) or not _may_fit(result, chosen, judgement, case):
            continue
        ratio = _measure_under(result, chosen, case, bench)
        # An option that leaves most of the error is as near as the declared one: rounding does not tell the two apart.
        if ratio is not None and ratio <= (judgement.verdict.ratio or math.inf) / 2:
            fitting.append((len(options), ratio, options))
    return _declare(min(fitting, key=lambda found: found[:2])[2], bench.spec) if fitting else ""


def is_wrong_under(judgement: Judgement, options: Mapping[str, str]) -> bool:
    """Return True if a result is wrong under other options too, judged as if they were declared.

    False also if nobody can tell: the call would have other parameters, or may be refused.
    """
    case, outcome, bench = judgement.case, judgement.outcome, judgement.bench
    if case is None or not isinstance(outcome, Result):
        return False
    chosen = {**bench.options(case), **options}
    if case.under(chosen).params.keys() != case.params.keys() or case.refuses(chosen):
        return False
    return _measure_under(outcome, chosen, case, bench) is None


def _measure_under(result: Result, chosen: Mapping[str, str], case: Case, bench: Bench) -> float | None:
    """Return the largest ratio of a result's differences under some options; None if one is above 1."""
    outputs = expect(case.under(chosen), chosen, bench.spec.contracts[case.component], bench.rounds_to) or {}
    return _measure_furthest(result, outputs, case, bench)


def _may_fit(result: Result, chosen: Mapping[str, str], judgement: Judgement, case: Case) -> bool:
    """Return False if a result is far off under some options: in what is stored, or in float64."""
    bench = judgement.bench
    if case.hiding:
        return True
    assert case.golden is not None, "the caller looked"
    if case.key(chosen) in case.golden.options:
        near = case.expects(chosen)
    elif case.cotangent is None:
        values = make_call(case.under(chosen), chosen, bench.spec.contracts[case.component]).plain
        shared = {n: g for n, g in judgement.expected.items() if n in values and g.within is None}
        near = {name: replace(golden, values=golden.select(values[name])) for name, golden in shared.items()}
    else:
        return False
    return near is not None and _measure_furthest(result, near, case, bench, CLEAR) is not None


def _measure_furthest(
    result: Result, outputs: Mapping[str, GoldenArray], case: Case, bench: Bench, limit: float = 1.0
) -> float | None:
    """Return the largest ratio of a result's differences; None if one is above a limit, or nothing is compared."""
    contract = bench.spec.contracts[case.component]
    names = [name for name in contract.results_of(case) if name in outputs and name in result.outputs]
    furthest = 0.0
    for name in names:
        furthest = max(furthest, measure_ratio(name, result.outputs[name], outputs[name], contract, bench.dtype))
        if furthest > limit:
            return None
    return furthest if names else None


def _advise_leaving_open(judgement: Judgement, case: Case, name: str, result: Result) -> str:
    """Return the advice to leave a convention open if only values that depend on it are wrong, or ""."""
    bench = judgement.bench
    convention = bench.spec.conventions[name]
    if case.golden is None or not convention.left_open or bench.adapter.leaves_open(name, case.component):
        return ""
    contract, declared = bench.spec.contracts[case.component], bench.options(case)
    every = [declared | {name: option} for option in convention.options]
    agreed = select_agreed(case, every, contract, bench.rounds_to)
    differences = measure(result, agreed, case, contract, bench.dtype)
    if not differences or any(d.wrong for d in differences):
        return ""
    said = f'declare CONVENTIONS = {{"{name}": "{UNSPECIFIED}"}}, and {convention.left_open}'
    return f"only what depends on {name} is wrong, and it is none of the options; {said}"


def _declare(options: Mapping[str, str], spec: Spec) -> str:
    causes = [make_option_cause(name, option, spec) for name, option in options.items()]
    return f"this is {' and '.join(c.title for c in causes)}; {write_declaration(causes)}, or fix it"
