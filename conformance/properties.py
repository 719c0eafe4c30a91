"""What the property tests stand on: drawn inputs, bounds for them, and the registry both runners read.

A property is a function `(subject, **drawn)` in conformance/test_<component>.py, decorated with `holds`.
It raises Violation when the relation does not hold. pytest collects what `holds` returns; the
command line runs the same object through `check_property`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.compare import compare
from goldformer.conformance.engine import Bench, broken, not_implemented, skipped
from goldformer.conformance.invoke import Arguments, BadResult, NotCheckable, NotImplementedHere
from goldformer.conformance.tolerance import least_margin, tolerance
from goldformer.conformance.verdict import UNANSWERED, Difference, Status, Verdict
from goldformer.spec import Property, Spec
from goldformer.spec.draw import Dyadic, build
from goldformer.spec.model import Attribute
from goldformer.spec.oracle.derive import measure

Array = NDArray[Any]

#: How many inputs each property draws, always the same ones.
EXAMPLES: Final = 10


#: The attribute of a collected test that names its property.
PROPERTY_ID: Final = "property_id"


class Violation(AssertionError):
    """A relation that does not hold, with the outputs that show it."""

    def __init__(self, message: str, difference: Difference | None = None) -> None:
        super().__init__(message)
        self.difference = difference


@dataclass
class Subject:
    """The implementation a property talks to, and the worst ratio seen so far."""

    bench: Bench
    component: str
    ratio: float | None = None
    seconds: float = 0.0

    def convention(self, component: str) -> dict[str, str]:
        """The options the adapter declares for a component."""
        names = self.bench.spec.contracts[component].conventions
        return {name: self.bench.adapter.convention(name, component, self.bench.spec) for name in names}

    def call(self, component: str, arguments: Arguments) -> Mapping[str, Array]:
        """The outputs of one call."""
        result = self.bench.call(component, arguments)
        self.seconds += result.seconds
        return result.outputs

    def bound(self, component: str, arguments: Arguments, output: str) -> float:
        """The tolerance of one output of one call, its error scale measured on just these inputs."""
        return self.bounds(component, arguments)[output]

    def bounds(self, component: str, arguments: Arguments) -> dict[str, float]:
        """The tolerance of every output of one call, measured together."""
        contract = self.bench.spec.contracts[component]
        options = self.convention(component)
        measured = measure(component, arguments.inputs, arguments.params, arguments.attributes, options)
        magnitude = 1.0 + float(np.abs(arguments.inputs["x"]).max()) if contract.computed_in_at_least else 0.0
        return {
            name: tolerance(self.bench.dtype, scale, magnitude, contract.computed_in_at_least)
            for name, scale in measured.scales.items()
        }

    def decided(self, component: str, arguments: Arguments, output: str) -> float:
        """The tolerance of an output of a call that decides; NotCheckable when rounding decides for it."""
        options = self.convention(component)
        measured = measure(component, arguments.inputs, arguments.params, arguments.attributes, options)
        if measured.margin <= least_margin(self.bench.dtype):
            raise NotCheckable(f"rounding to {self.bench.dtype} decides what {component} gives for the inputs drawn")
        return tolerance(self.bench.dtype, measured.scales[output], 0.0)

    def agree(self, output: str, got: Array, expected: Array, bound: float, claim: str) -> None:
        """Violation unless two results agree within twice a bound: both of them were rounded."""
        difference = compare(output, got, expected, 2 * bound)
        self.ratio = max(self.ratio or 0.0, difference.ratio)
        if difference.wrong:
            raise Violation(claim, difference)

    def differ(self, output: str, got: Array, other: Array, bound: float, claim: str) -> None:
        """Violation unless two results differ by more than rounding, where the dtype is fine enough to tell."""
        if 100 * bound > float(np.abs(other).max()):
            return
        if not compare(output, got, other, 2 * bound).wrong:
            raise Violation(claim)


Body = Callable[..., None]


@dataclass(frozen=True, slots=True)
class HeldProperty:
    """A property's function and the strategies that draw for it."""

    id: str
    body: Body
    strategies: Mapping[str, Any]

    def run(self, subject: Subject) -> None:
        """Try EXAMPLES drawn inputs, the same ones every time; raises for the smallest that fails."""
        import hypothesis  # a quarter of a second that golden cases do not need

        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink)
        settings = hypothesis.settings(
            max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, report_multiple_bugs=False,
            print_blob=False, suppress_health_check=list(hypothesis.HealthCheck), phases=phases,
        )  # fmt: skip
        declined: list[NotImplementedHere | NotCheckable] = []
        tried = 0
        unanswered: list[BadResult] = []

        def body(**drawn: Any) -> None:
            nonlocal tried
            if unanswered:
                return  # what does not answer is not asked again for a smaller example
            try:
                self.body(subject, **drawn)
                tried += 1
            except BadResult as bad:
                if bad.reason not in UNANSWERED:
                    raise
                unanswered.append(bad)
            except (NotImplementedHere, NotCheckable) as reason:
                # No failure, so nothing to look for a smaller example of.
                declined.append(reason)

        if self.strategies:
            hypothesis.given(**self.strategies)(settings(body))()
        else:
            body()
        if unanswered:
            raise unanswered[0]
        if declined and not tried:
            raise declined[0]


HELD: dict[str, HeldProperty] = {}


def holds(id_: str, **strategies: Any) -> Callable[[Body], Callable[..., None]]:
    """Register a property's function and give pytest a test to collect in its place."""

    def decorate(body: Body) -> Callable[..., None]:
        HELD[id_] = HeldProperty(id_, body, strategies)

        def test(bench: Bench, component: str, settle: Callable[[Verdict], None]) -> None:
            settle(check_property(bench.spec.properties[id_], component, bench))

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        # Tells the plugin which components to run it for.
        setattr(test, PROPERTY_ID, id_)
        return test

    return decorate


def components_of(prop: Property, spec: Spec) -> tuple[str, ...]:
    """The components a property is judged for: its own, or every one that takes arrays."""
    if prop.component != "*":
        return (prop.component,)
    return tuple(name for name, contract in spec.contracts.items() if contract.inputs)


def check_property(prop: Property, component: str, bench: Bench) -> Verdict:
    """Judge one property for one component."""
    command = bench.command("--property", prop.id, "--component", component)
    blank = Verdict(
        prop.id, "property", component, prop.title, Status.PASSED, "", "", bench.dtype, bench.device,
        prop.clauses, "property", reproduce=command,
    )  # fmt: skip
    if unusable := bench.unusable():
        return skipped(blank, *unusable)
    subject = Subject(bench, component)
    try:
        HELD[prop.id].run(subject)
    except NotImplementedHere as absent:
        return not_implemented(blank, str(absent), strict=bench.strict)
    except NotCheckable as unclear:
        return skipped(blank, "not-checkable", str(unclear))
    except BadResult as bad:
        return broken(blank, bad)
    except Violation as violation:
        # "Falsifying example: body(…" in some versions of Hypothesis, "Failing test case: body(…" in others.
        drawn = next((n for n in getattr(violation, "__notes__", []) if "body(" in n), "")
        differences = (violation.difference,) if violation.difference else ()
        ratio = violation.difference.ratio if violation.difference else None
        return replace(
            blank, status=Status.FAILED, reason="property", message=str(violation),
            differences=differences, ratio=ratio, detail=_example(drawn),
        )  # fmt: skip
    return replace(blank, ratio=subject.ratio, seconds=subject.seconds)


def _example(note: str) -> str:
    """Hypothesis's note about the smallest failing input, as one line."""
    if not note:
        return ""
    inside = note.partition("(")[2].rpartition(")")[0]
    return "smallest input: " + ", ".join(part.strip().rstrip(",") for part in inside.splitlines() if part.strip())


def drawn(component: str, bench: Bench, sizes: Mapping[str, int], seed: int, /, **attributes: Attribute) -> Arguments:
    """Arguments of the contract's shapes from the spec's generator; optional arrays are left out."""
    contract = bench.spec.contracts[component]
    inputs, params = (
        {
            name: build(
                Dyadic(
                    seed,
                    Fraction(-reach),
                    Fraction(reach),
                    Fraction(1, 64),
                    s.shape.sizes(sizes, _lead(sizes)),
                ),
                name,
            )
            for name, s in specs.items()
            if not s.broadcast and s.kind == "float"
        }
        for specs, reach in ((contract.inputs, 2), (contract.params_for(attributes), 1))
    )
    return Arguments(inputs, params, attributes)


def _lead(sizes: Mapping[str, int]) -> tuple[int, ...]:
    return (sizes["batch"],) if "batch" in sizes else ()


def with_inputs(arguments: Arguments, **changed: Array) -> Arguments:
    """The same call with some inputs replaced."""
    return replace(arguments, inputs={**arguments.inputs, **changed})
