"""Judge a case twice, the function itself and what a transformation such as torch.compile makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from goldformer.adapters.untrusted_text import clip_text
from goldformer.conformance.judging.cases import Bench, Judgement, PreparedCase, judge_call
from goldformer.conformance.judging.decision import report_fault, skip_check
from goldformer.conformance.judging.invoke import BadResult, NotCheckable, NotImplementedHere, Result
from goldformer.conformance.judging.measure import measure
from goldformer.conformance.judging.verdict import NOT_WRAPPED, Agreement, Status, Wrapped
from goldformer.spec import Case
from goldformer.spec.model import GoldenArray

#: The most characters of the first line of PyTorch's message.
_LONGEST: Final = 300


def judge_wrapped(plain: Judgement) -> Judgement:
    """Judge the wrapped function by the case of a judgement on the function itself.

    A function that cannot be wrapped is skipped. The verdict notes how the wrapped function differs; a mistake of the
    function itself stays its own.
    """
    if plain.case is None or not isinstance(plain.outcome, Result):
        return plain
    try:
        return _judge_again(plain, plain.case, plain.outcome, plain.bench)
    except Exception as error:
        return replace(plain, verdict=report_fault(plain.verdict, error))


def _judge_again(plain: Judgement, case: Case, result: Result, bench: Bench) -> Judgement:
    assert bench.wrapped is not None, "a bench with a wrapper has the wrapped adapter"
    blank = replace(plain.verdict, status=Status.PASSED, reason="", message="", ratio=None, differences=())
    again = judge_call(PreparedCase(case, bench), replace(bench, adapter=bench.wrapped), blank)
    outcome = again.outcome
    raised = isinstance(outcome, BadResult) and outcome.reason == "raised"
    if raised or isinstance(outcome, NotImplementedHere | NotCheckable):
        # The function itself gave a result, so the transformation failed.
        message = f"{NOT_WRAPPED}{_take_first_line(str(outcome))}"
        return plain if plain.verdict.bad else Judgement(skip_check(blank, "not-wrapped", message), bench, case)
    if plain.verdict.bad:
        right: Agreement = "only wrapped is right" if again.verdict.status is Status.PASSED else "both wrong"
        return replace(plain, verdict=replace(plain.verdict, wrapped=Wrapped(bench.wrapper, right)))
    if again.verdict.bad:
        verdict = replace(again.verdict, reason="wrapper", wrapped=Wrapped(bench.wrapper, "wrapped is wrong"))
        message = f"{bench.wrapper} is wrong, the function itself is right: {again.verdict.message}"
        # Leave out the outcome, so that the diagnosis does not search the code of the function.
        return Judgement(replace(verdict, status=Status.FAILED, message=message), bench, case)
    assert isinstance(outcome, Result), "an outcome that is not bad is a result"
    compared = _compare(case, result, outcome, plain.expected, bench)
    return replace(again, verdict=replace(again.verdict, wrapped=compared))


def _take_first_line(message: str) -> str:
    first, *rest = [line for line in map(str.strip, message.splitlines()) if line]
    return clip_text(f"{first} {rest[0]}" if first.endswith(":") and rest else first, _LONGEST)


def _compare(case: Case, one: Result, other: Result, expected: Mapping[str, GoldenArray], bench: Bench) -> Wrapped:
    """Return how two right results of one call differ."""
    if one.is_identical(other):
        return Wrapped(bench.wrapper, "equal", 0.0)
    if case.random:
        return Wrapped(bench.wrapper, "both right")
    contract = bench.spec.contracts[case.component]
    bounds = {d.output: d.tolerance for d in measure(one, expected, case, contract, bench.dtype) if d.tolerance}
    distances = [
        float(np.fmax.reduce(np.abs(one.outputs[name] - other.outputs[name]), axis=None, initial=0.0)) / bounds[label]
        for name in expected
        for label in (name, f"gradient of {name}")
        if label in bounds and name in one.outputs and name in other.outputs
    ]
    return Wrapped(bench.wrapper, "both right", max(distances, default=None))
