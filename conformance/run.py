"""Runs a selection of checks in order, for the command line; pytest runs the same checks by itself."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from threadpoolctl import threadpool_limits

from goldformer.conformance.judging.cases import Bench, Judgement, judge_case, plan
from goldformer.conformance.properties.held import components_of, judge_property


@dataclass(frozen=True, slots=True)
class Selection:
    """The checks to run; an empty filter means everything."""

    dtypes: tuple[str, ...]
    components: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    properties: tuple[str, ...] = ()


Check = Callable[[], Judgement]


def load_properties() -> None:
    """Import all test modules, which register properties; a later import would cost a check time."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(f"goldformer.conformance.{path.stem}")


def checks(bench: Bench, selection: Selection) -> list[Check]:
    """Return every check of a selection: golden cases first, then properties, each by dependency, dtype by dtype."""
    listed: list[Check] = []
    for dtype in selection.dtypes:
        at = replace(bench, dtype=dtype)
        if not selection.properties:
            listed += [
                lambda case=case, at=at: judge_case(case, at)  # type: ignore[misc]
                for case in plan(bench.spec, selection.components, selection.cases)
            ]
        if not selection.cases:
            listed += _property_checks(at, selection)
    return listed


def _property_checks(bench: Bench, selection: Selection) -> Iterator[Check]:
    for name in bench.spec.components:
        if selection.components and name not in selection.components:
            continue
        for prop in bench.spec.properties.values():
            if selection.properties and prop.id not in selection.properties:
                continue
            if name in components_of(prop, bench.spec):
                yield lambda prop=prop, name=name: judge_property(prop, name, bench)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Numerics:
    """Settings of the array libraries for a run."""

    tf32: bool = False
    threads: int = 1

    def apply(self, arrays: str) -> None:
        """Apply the settings. TF32 keeps ten bits of a float32: it is off by default, since the suite judges float32.

        The default is one thread: the cases are small, and several threads cost time, on busy cores a hundredfold.
        """
        threadpool_limits(self.threads)
        if arrays == "torch":
            import torch  # only an adapter that speaks torch gets here

            torch.backends.cuda.matmul.allow_tf32 = self.tf32
            torch.backends.cudnn.allow_tf32 = self.tf32
            torch.set_num_threads(self.threads)
