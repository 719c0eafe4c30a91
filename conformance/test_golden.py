"""Every golden case against the adapter, in every dtype asked for."""

from __future__ import annotations

from collections.abc import Callable

from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.spec import Case


def test_golden(bench: Bench, golden_case: Case, settle: Callable[[Judgement], None]) -> None:
    """Judge one case: its values, its shape, or its refusal."""
    settle(judge_case(golden_case, bench))
