"""What the property tests stand on: drawn inputs, bounds for them, and the registry both runners read.

A property is a function `(subject, **drawn)` in conformance/test_<component>.py, decorated with `holds`.
It raises Violation when the relation does not hold. pytest collects what `holds` returns; the
command line runs the same object through `check_property`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.adapters.arrays import Layout
from goldformer.conformance.judging.cases import Bench, Judgement, as_advice, broken, fault, not_implemented, skipped
from goldformer.conformance.judging.compare import compare
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import Arguments, BadResult, NotCheckable, NotImplementedHere
from goldformer.conformance.judging.tolerance import least_margin, tolerance
from goldformer.conformance.judging.verdict import UNANSWERED, WITHHELD, Difference, Status, Verdict
from goldformer.conformance.properties.counterexample import Called, as_case, recipe
from goldformer.conformance.properties.measuring import bounds, measured
from goldformer.conformance.properties.search import search
from goldformer.spec import Property, Spec
from goldformer.spec.draw import build
from goldformer.spec.model import Attribute

Array = NDArray[Any]

#: The attribute of a collected test that names its property.
PROPERTY_ID: Final = "property_id"


class Violation(AssertionError):
    """A relation that does not hold, with the outputs that show it.

    `calls` are those of the property until then, for the input `drawn`.
    """

    def __init__(self, message: str, difference: Difference | None = None) -> None:
        super().__init__(message)
        self.difference = difference
        self.calls: tuple[Called, ...] = ()
        self.drawn: Mapping[str, Any] = {}


class NotAdvised(Violation):
    """What a clause only advises against: a failure when strictness is asked for, and otherwise skipped."""


@dataclass
class Subject:
    """The implementation a property talks to, and the worst ratio seen so far."""

    bench: Bench
    component: str
    ratio: float | None = None
    seconds: float = 0.0
    calls: list[Called] = field(default_factory=list)

    def convention(self, component: str) -> dict[str, str]:
        """The options the adapter declares for a component."""
        return self.bench.adapter.options(component, self.bench.spec)

    def call(self, component: str, arguments: Arguments, layout: Layout = "contiguous") -> Mapping[str, Array]:
        """Return the outputs of one call; BadResult if one is missing that the bench requires."""
        result = self.bench.call(component, arguments, layout=layout)
        outputs = self.bench.spec.contracts[component].outputs
        if component == self.component and (withheld := self.bench.withheld(component, result.outputs, outputs)):
            raise BadResult(WITHHELD, withheld)
        self.seconds += result.seconds
        self.calls.append(Called(component, arguments, result.outputs))
        return result.outputs

    def gradient(self, component: str, arguments: Arguments, cotangent: Array, *wanted: str) -> Mapping[str, Array]:
        """The gradients of some arguments for a gradient of the first output."""
        bench, contract = self.bench, self.bench.spec.contracts[component]
        specs = {**contract.inputs, **contract.params_for(arguments.attributes)}
        given = (cotangent, {name: specs[name] for name in wanted}, bench.dtype, bench.device)
        result = invoke_gradient(bench.adapter, contract, arguments, *given)
        self.seconds += result.seconds
        self.calls.append(Called(component, arguments, result.outputs, cotangent))
        return result.outputs

    def bound(self, component: str, arguments: Arguments, output: str) -> float:
        """The tolerance of one output of one call, its error scale measured on just these inputs."""
        return self.bounds(component, arguments)[output]

    def bounds(self, component: str, arguments: Arguments) -> dict[str, float]:
        """The tolerance of every output of one call, measured together."""
        return bounds(component, arguments, self.bench)

    def decided(self, component: str, arguments: Arguments, output: str) -> float:
        """The tolerance of an output of a call that decides; NotCheckable when rounding decides for it."""
        found = measured(component, arguments, self.convention(component))
        if found.margin <= least_margin(self.bench.dtype):
            raise NotCheckable(f"rounding to {self.bench.dtype} decides what {component} gives for the inputs drawn")
        return tolerance(self.bench.dtype, found.scales[output], 0.0)

    def agree(self, output: str, got: Array, expected: Array, bound: float, claim: str) -> None:
        """Violation unless two results are finite and agree within twice a bound: both of them were rounded."""
        difference = compare(output, got, expected, 2 * bound)
        if not np.isfinite(got).all():
            finite = np.where(np.isfinite(expected), expected, 0.0)
            raise Violation(f"{output} is not finite, for inputs that are", compare(output, got, finite, 2 * bound))
        self.ratio = max(self.ratio or 0.0, difference.ratio)
        if difference.wrong:
            raise Violation(claim, difference)

    def repeats(
        self, arguments: Arguments, got: Mapping[str, Array], expected: Mapping[str, Array], claim: str
    ) -> None:
        """Violation unless two calls of the component with equal arguments agree in their first output."""
        name = self.bench.spec.contracts[self.component].first_output
        exact = expected[name].dtype.kind != "f" or np.array_equal(got[name], expected[name], equal_nan=True)
        # What rounding may do takes long to measure, and mostly it does nothing.
        bound = 0.0 if exact else self.bound(self.component, arguments, name)
        self.agree(name, got[name], expected[name], bound, claim)

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
        attempt = _Attempt(self.body, subject)
        try:
            # What is drawn is remembered, since drawing takes longer than most calls.
            for example in self._examples():
                attempt(**example)
        except (Violation, BadResult) as first:
            # An output that is missing is missing for every input: none is smaller than the others.
            if not self.strategies or (isinstance(first, BadResult) and first.reason == WITHHELD):
                raise
            self._shrink(attempt, first)
        if attempt.unanswered is not None:
            raise attempt.unanswered
        if attempt.declined and not attempt.tried:
            raise attempt.declined[0]

    def _examples(self) -> Sequence[Mapping[str, Any]]:
        """The inputs that are drawn, which do not depend on what is made of them."""
        if not self.strategies:
            return [{}]
        if self.id not in _EXAMPLES:
            recorded: list[Mapping[str, Any]] = []
            search(self.strategies, lambda **drawn: recorded.append(drawn))
            _EXAMPLES[self.id] = recorded
        return _EXAMPLES[self.id]

    def _shrink(self, attempt: _Attempt, first: Violation | BadResult) -> None:
        """Raise for the smallest input that fails, or for the first one where it does not fail again."""
        import hypothesis

        again = _Attempt(self.body, attempt.subject)
        try:
            search(self.strategies, again)
        except hypothesis.errors.Flaky:
            pass
        except (Violation, BadResult):
            if again.failed == attempt.failed:
                raise
        attempt.unanswered = again.unanswered
        if attempt.unanswered is None:
            # What has a memory, or draws at random, need not fail twice in the same way.
            raise _only_at_times(first)


#: The inputs that each property has drawn.
_EXAMPLES: Final[dict[str, Sequence[Mapping[str, Any]]]] = {}


@dataclass
class _Attempt:
    """A property on one input after the other: raises for those that fail, and remembers why others say nothing."""

    body: Body
    subject: Subject
    tried: int = 0
    declined: list[NotImplementedHere | NotCheckable] = field(default_factory=list)
    #: The first input that failed.
    failed: Mapping[str, Any] | None = None
    unanswered: BadResult | None = None

    def __call__(self, **drawn: Any) -> None:
        if self.unanswered is not None:
            return  # what does not answer is not asked again for a smaller example
        self.subject.calls.clear()
        try:
            self.body(self.subject, **drawn)
            self.tried += 1
        except Violation as violation:
            violation.calls, violation.drawn = tuple(self.subject.calls), drawn
            self.failed = self.failed or drawn
            raise
        except BadResult as bad:
            if bad.reason not in UNANSWERED:
                self.failed = self.failed or drawn
                raise
            self.unanswered = bad
        except (NotImplementedHere, NotCheckable) as reason:
            # No failure, so nothing to look for a smaller example of.
            self.declined.append(reason)


def _only_at_times(first: Violation | BadResult) -> Violation | BadResult:
    """What went wrong once and not again with the same input, which is wrong too."""
    if isinstance(first, BadResult):
        return first
    return Violation(f"{first}, but not every time: the same call gives different results", first.difference)


HELD: dict[str, HeldProperty] = {}


def holds(id_: str, **strategies: Any) -> Callable[[Body], Callable[..., None]]:
    """Register a property's function and give pytest a test to collect in its place."""

    def decorate(body: Body) -> Callable[..., None]:
        HELD[id_] = HeldProperty(id_, body, strategies)

        def test(bench: Bench, component: str, settle: Callable[[Judgement], None]) -> None:
            settle(judge_property(bench.spec.properties[id_], component, bench))

        test.__name__, test.__doc__, test.__module__ = body.__name__, body.__doc__, body.__module__
        # Tells the plugin which components to run it for.
        setattr(test, PROPERTY_ID, id_)
        return test

    return decorate


def held_property(prop: Property) -> HeldProperty:
    """Return a property's function, from the module of the suite that holds it: that alone is imported, when needed."""
    if prop.id not in HELD:
        subject = "every_component" if prop.component == "*" else prop.component
        importlib.import_module(f"goldformer.conformance.test_{subject}")
    return HELD[prop.id]


def components_of(prop: Property, spec: Spec) -> tuple[str, ...]:
    """The components a property is judged for: its own, or every one that takes arrays."""
    if prop.component != "*":
        return (prop.component,)
    return tuple(name for name, contract in spec.contracts.items() if contract.inputs)


def judge_property(prop: Property, component: str, bench: Bench) -> Judgement:
    """Judge one property for one component, in the form of a golden case's judgement."""
    return Judgement(check_property(prop, component, bench), bench)


def check_property(prop: Property, component: str, bench: Bench) -> Verdict:
    """Return the verdict on one property for one component; a fault of goldformer becomes an errored verdict."""
    command = bench.command("--property", prop.id, "--component", component)
    blank = Verdict(
        prop.id, "property", component, prop.title, Status.PASSED, "", "", bench.dtype, bench.device,
        prop.clauses, "property", prop.catches, reproduce=command,
    )  # fmt: skip
    try:
        return _check_property(prop, component, bench, blank)
    except Exception as error:
        return fault(blank, error)


def _check_property(prop: Property, component: str, bench: Bench, blank: Verdict) -> Verdict:
    if unusable := bench.unusable():
        return skipped(blank, *unusable)
    subject = Subject(bench, component)
    try:
        held_property(prop).run(subject)
    except NotImplementedHere as absent:
        return not_implemented(blank, str(absent), strict=bench.strict)
    except NotCheckable as unclear:
        return skipped(blank, "not-checkable", str(unclear))
    except BadResult as bad:
        return broken(blank, bad)
    except Violation as violation:
        failed = _violated(prop, violation, blank, bench)
        return as_advice(failed) if isinstance(violation, NotAdvised) and not bench.strict else failed
    return replace(blank, ratio=subject.ratio, seconds=subject.seconds)


def _violated(prop: Property, violation: Violation, blank: Verdict, bench: Bench) -> Verdict:
    """What is said of a violation, with the smallest input that shows it."""
    # "Falsifying example: body(…" in some versions of Hypothesis, "Failing test case: body(…" in others.
    drawn = next((n for n in getattr(violation, "__notes__", []) if "body(" in n), "")
    differences = (violation.difference,) if violation.difference else ()
    ratio = violation.difference.ratio if violation.difference else None
    seed = int(violation.drawn.get("seed", 0))
    return replace(
        blank, status=Status.FAILED, reason="property", message=str(violation), differences=differences,
        ratio=ratio, detail=_example(drawn), example=as_case(prop, str(violation), violation.calls, seed, bench),
    )  # fmt: skip


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
            name: _drawn(name, group, seed, spec.shape.sizes(sizes, _lead(sizes)))
            for name, spec in specs.items()
            if not spec.broadcast and spec.kind == "float"
        }
        for group, specs in (("inputs", contract.inputs), ("params", contract.params_for(attributes)))
    )
    return Arguments(inputs, params, attributes)


@lru_cache(maxsize=1 << 13)
def _drawn(name: str, group: str, seed: int, shape: tuple[int, ...]) -> Array:
    """Kept, since every dtype and many a property ask for the same small arrays."""
    return build(recipe(group, seed, shape), name)


def _lead(sizes: Mapping[str, int]) -> tuple[int, ...]:
    return (sizes["batch"],) if "batch" in sizes else ()


def with_inputs(arguments: Arguments, **changed: Array) -> Arguments:
    """The same call with some inputs replaced."""
    return replace(arguments, inputs={**arguments.inputs, **changed})


def with_params(arguments: Arguments, **changed: Array) -> Arguments:
    """The same call with some parameters replaced."""
    return replace(arguments, params={**arguments.params, **changed})
