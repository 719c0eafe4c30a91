"""Every property of the spec against the adapter: for each of its components, in every dtype asked for."""

from __future__ import annotations

from collections.abc import Callable

from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.properties.judge import judge_property
from goldformer.spec import Property


def test_property(bench: Bench, component: str, prop: Property, settle: Callable[[Judgement], None]) -> None:
    """Judge one relation, on drawn inputs."""
    settle(judge_property(prop, component, bench))
