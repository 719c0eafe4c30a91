"""Advice to declare another option of a case's convention, if the result is right under that option."""

from __future__ import annotations

from goldformer.conformance.diagnosis.causes import make_option_cause, write_declaration
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import BadResult, Result
from goldformer.conformance.judging.measure import measure
from goldformer.spec import Case, Spec
from goldformer.spec.model import UNSPECIFIED


def advise_option(judgement: Judgement) -> str:
    """Return the advice to declare the option of the case's convention that a failure fits best, or ""."""
    case, outcome = judgement.case, judgement.outcome
    if case is None or case.convention is None or case.golden is None:
        return ""
    if isinstance(outcome, BadResult) and outcome.reason == "raised":
        return _refusing_option(case, case.convention, judgement.bench.spec)
    if isinstance(outcome, Result):
        return _fitting_option(judgement, case, case.convention, outcome) or _leave_open(
            judgement, case, case.convention, outcome
        )
    return ""


def _fitting_option(judgement: Judgement, case: Case, name: str, result: Result) -> str:
    """Return the advice to declare the option whose golden values are nearest to a result, or ""."""
    bench = judgement.bench
    assert case.golden is not None, "an option has golden values"
    declared = bench.adapter.convention(name, case.component, bench.spec)
    fitting: dict[str, float] = {}
    for option, outputs in case.golden.options.items():
        if option == declared or not outputs:
            continue
        differences = measure(result, outputs, case, bench.spec.contracts[case.component], bench.dtype)
        if differences and not any(d.wrong for d in differences):
            fitting[option] = max(d.ratio for d in differences)
    return _declare(name, min(fitting, key=lambda option: fitting[option]), bench.spec) if fitting else ""


def _leave_open(judgement: Judgement, case: Case, name: str, result: Result) -> str:
    """Return the advice to leave a convention open if only values that depend on it are wrong, or ""."""
    bench = judgement.bench
    convention = bench.spec.conventions[name]
    if case.golden is None or not convention.left_open or bench.adapter.leaves_open(name, case.component):
        return ""
    contract = bench.spec.contracts[case.component]
    differences = measure(result, case.golden.select_agreed(), case, contract, bench.dtype)
    if not differences or any(d.wrong for d in differences):
        return ""
    said = f'declare CONVENTIONS = {{"{name}": "{UNSPECIFIED}"}}, and {convention.left_open}'
    return f"only what depends on {name} is wrong, and it is none of the options; {said}"


def _refusing_option(case: Case, name: str, spec: Spec) -> str:
    """Return the advice to declare the option that permits to refuse the call, or ""."""
    assert case.golden is not None, "an option has golden values"
    refusing = (option for option, outputs in case.golden.options.items() if outputs is None)
    return next((_declare(name, option, spec) for option in refusing), "")


def _declare(convention: str, option: str, spec: Spec) -> str:
    cause = make_option_cause(convention, option, spec)
    return f"this is {cause.title}; {write_declaration((cause,))}, or fix it"
