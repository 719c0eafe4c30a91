"""Whether a failure would be none under another option of the case's convention, and how to declare that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldformer.conformance.causes import declaration, option_cause
from goldformer.conformance.invoke import Result
from goldformer.conformance.judge import measure
from goldformer.spec import Case, Contract
from goldformer.spec.model import UNSPECIFIED, Golden

if TYPE_CHECKING:
    from goldformer.conformance.engine import Bench


def other_convention(case: Case, bench: Bench, result: Result, contract: Contract) -> str:
    """Return the advice to declare the option that a failure fits best, or "" if it fits none."""
    if case.convention is None or case.golden is None:
        return ""
    declared = bench.adapter.convention(case.convention, case.component, bench.spec)
    fitting: dict[str, float] = {}
    for option, outputs in case.golden.options.items():
        if option == declared or not outputs:
            continue
        differences = measure(result, outputs, case, contract, bench.dtype)
        if differences and not any(d.wrong for d in differences):
            fitting[option] = max(d.ratio for d in differences)
    if fitting:
        return _declare(case.convention, min(fitting, key=lambda option: fitting[option]), bench)
    return _leave_open(case.convention, case.golden, case, bench, result, contract)


def _leave_open(name: str, golden: Golden, case: Case, bench: Bench, result: Result, contract: Contract) -> str:
    """Whether only what depends on a convention is wrong, which an adapter may leave open."""
    convention = bench.spec.conventions[name]
    if not convention.left_open or bench.adapter.leaves_open(name, case.component):
        return ""
    differences = measure(result, golden.whatever_the_option(), case, contract, bench.dtype)
    if not differences or any(d.wrong for d in differences):
        return ""
    said = f'declare CONVENTIONS = {{"{name}": "{UNSPECIFIED}"}}, and {convention.left_open}'
    return f"only what depends on {name} is wrong, and it is none of the options; {said}"


def refusing_convention(case: Case, bench: Bench) -> str:
    """Whether an option of the case's convention allows the implementation to refuse the call."""
    for option, outputs in (case.golden.options if case.golden else {}).items():
        if outputs is None and case.convention is not None:
            return _declare(case.convention, option, bench)
    return ""


def _declare(convention: str, option: str, bench: Bench) -> str:
    cause = option_cause(convention, option, bench.spec)
    return f"this is {cause.title}; {declaration((cause,))}, or fix it"
