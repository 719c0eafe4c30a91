"""Controls: code that is right, written by other hands. The suite must pass it, and every accusation is a false alarm.

A control calls neither the reference nor the textbook. It is judged by everything that the suite knows of its
components but refusals: which calls are refused says nothing of how the others are computed.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from goldformer.adapters import DTYPES, Adapter
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import components_of
from goldformer.spec import Spec

#: A correct implementation may come this near to the tolerance, and no nearer.
ROOM = 0.9

#: The name of the user property in which a test hands its tally on.
TALLY = "controls"

HALF = ("float16", "bfloat16")
#: The dtypes of code that adds many terms one by one, or rounds logarithms at their own size: half types lose too much.
FINE = ("float64", "float32")
NUMPY = tuple(dtype for dtype in DTYPES if dtype != "bfloat16")


@dataclass(frozen=True)
class Control:
    """Somebody's code: a function for each of some components, and the dtypes in which it is right."""

    name: str
    functions: Mapping[str, Callable[..., Any]]
    conventions: Mapping[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = DTYPES
    #: Whether automatic differentiation makes the gradients of it that GRAD-1 to GRAD-3 ask for.
    gradients: bool = True
    arrays: str = "torch"
    #: What its properties call besides, and what is judged with another control.
    besides: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def adapter(self, spec: Spec) -> Adapter:
        """The control as the suite sees it."""
        thing = SimpleNamespace(
            ARRAYS=self.arrays, CONVENTIONS=dict(self.conventions), **self.functions, **self.besides
        )
        return Adapter.from_object(thing, self.name, spec)


def controls_of(component: str, written: Iterable[Callable[..., Any]], **how: Any) -> list[Control]:
    """A control for each of several functions of one component, named as the function."""
    return [Control(function.__name__, {component: function}, **how) for function in written]


def in_each_dtype(controls: Iterable[Control]) -> dict[str, Any]:
    """Return the parameters of pytest.mark.parametrize for every control in every dtype in which it is right."""
    pairs = [(control, dtype) for control in controls for dtype in control.dtypes]
    return {
        "argnames": ("control", "dtype"),
        "argvalues": pairs,
        "ids": [f"{control.name}-{dtype}" for control, dtype in pairs],
    }


def judge(spec: Spec, control: Control, dtype: str) -> Iterator[Verdict]:
    """Judge a control in a dtype: every case but refusals, and in one dtype every property."""
    # Correct code is right to the dtype that it is run in, but for sums that run in a half type.
    bench = Bench(spec, control.adapter(spec), dtype, "cpu", Policy(require_precision=dtype not in HALF))
    # Properties and large calls take most of the time: a control has them in one of its dtypes, and among controls all
    # dtypes come up.
    drawn = dtype == control.dtypes[zlib.crc32(control.name.encode()) % len(control.dtypes)]
    for component in control.functions:
        if component not in spec.contracts:
            continue  # a backward function, which the cases of gradients call
        for case in spec.cases_of(component):
            # Large models take seconds, and no arithmetic that the small ones have not.
            elsewhere = (case.shape_only and dtype != control.dtypes[0]) or (case.is_computed and not drawn)
            if (
                case.error is None
                and not (case.full_size or elsewhere)
                and (control.gradients or case.cotangent is None)
            ):
                yield check_case(case, bench)
        for prop in spec.properties.values() if drawn else ():
            of_gradients = any(clause.startswith("GRAD-") for clause in prop.clauses)
            if component in components_of(prop, spec) and (control.gradients or not of_gradients):
                yield check_property(prop, component, bench)


@dataclass
class Tally:
    """The runs of a component in a dtype: their number, the accused ones, and the one nearest to the tolerance."""

    runs: int = 0
    alarms: int = 0
    largest: float = 0.0
    where: str = ""

    def add(self, other: Tally) -> None:
        """Count another tally's runs too."""
        self.runs, self.alarms = self.runs + other.runs, self.alarms + other.alarms
        if other.largest > self.largest:
            self.largest, self.where = other.largest, other.where


def tallies(control: Control, verdicts: Iterable[Verdict]) -> dict[tuple[str, str], Tally]:
    """By component and dtype; what was skipped is no run."""
    counted: dict[tuple[str, str], Tally] = defaultdict(Tally)
    for v in verdicts:
        if v.status is not Status.SKIPPED:
            ratio = v.ratio if v.ratio is not None and not v.bad else 0.0
            counted[v.component, v.dtype].add(Tally(1, int(v.bad), ratio, f"{v.check} by {control.name}"))
    return counted
