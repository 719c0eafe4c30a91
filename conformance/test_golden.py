"""Every golden case against the adapter, in every dtype asked for."""

from __future__ import annotations

from collections.abc import Callable

from goldformer.conformance.engine import Bench, check_case
from goldformer.conformance.verdict import Verdict
from goldformer.spec import Case


def test_golden(bench: Bench, golden_case: Case, settle: Callable[[Verdict], None]) -> None:
    """One case: its values, its shape, or its refusal."""
    settle(check_case(golden_case, bench))
