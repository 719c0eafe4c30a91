"""The registry of properties, with the strategies that draw inputs for each, and the loop that tries them.

A property is a function `(subject, **drawn)` of conformance/properties/<component>.py, decorated with `holds`.
It raises Violation for inputs on which the relation does not hold.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from goldformer.conformance.judging.invoke import BadResult, NotCheckable, NotImplementedHere
from goldformer.conformance.judging.verdict import UNANSWERED, WITHHELD
from goldformer.conformance.properties.hypothesis_search import search
from goldformer.conformance.properties.subject import Subject, Violation
from goldformer.spec import Property, Spec

Body = Callable[..., None]


@dataclass(frozen=True, slots=True)
class RegisteredProperty:
    """A property's function and the Hypothesis strategies that draw its arguments."""

    id: str
    body: Body
    strategies: Mapping[str, Any]

    def run(self, subject: Subject) -> None:
        """Try EXAMPLES random inputs, the same ones in every run; raise for the smallest that fails."""
        attempt = _Attempt(self.body, subject)
        try:
            for example in self.examples():
                attempt(**example)
        except (Violation, BadResult) as first:
            # A missing output is missing for every input: no smaller example exists.
            if not self.strategies or (isinstance(first, BadResult) and first.reason == WITHHELD):
                raise
            self._shrink(attempt, first)
        if attempt.unanswered is not None:
            raise attempt.unanswered
        if attempt.declined and not attempt.tried:
            raise attempt.declined[0]

    def examples(self) -> Sequence[Mapping[str, Any]]:
        """Return the drawn inputs. They are cached, because drawing takes longer than most calls."""
        if not self.strategies:
            return [{}]
        if self.id not in _EXAMPLES:
            recorded: list[Mapping[str, Any]] = []
            search(self.strategies, lambda **drawn: recorded.append(drawn))
            _EXAMPLES[self.id] = recorded
        return _EXAMPLES[self.id]

    def _shrink(self, attempt: _Attempt, first: Violation | BadResult) -> None:
        """Raise for the smallest input that fails, or for the first one if it does not fail again."""
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
            # Code with a memory, or with random numbers, may fail in another way the second time.
            raise _fails_sometimes(first)


#: The drawn inputs of each property.
_EXAMPLES: Final[dict[str, Sequence[Mapping[str, Any]]]] = {}


@dataclass
class _Attempt:
    """One run of a property: raises for an input that fails, and keeps the reasons of inputs that decide nothing."""

    body: Body
    subject: Subject
    tried: int = 0
    declined: list[NotImplementedHere | NotCheckable] = field(default_factory=list)
    #: The first input that failed.
    failed: Mapping[str, Any] | None = None
    unanswered: BadResult | None = None

    def __call__(self, **drawn: Any) -> None:
        if self.unanswered is not None:
            return  # an implementation that does not answer is not called again for a smaller example
        try:
            self.body(self.subject, **drawn)
            self.tried += 1
        except Violation as violation:
            violation.drawn = drawn
            self.failed = self.failed or drawn
            raise
        except BadResult as bad:
            if bad.reason not in UNANSWERED:
                self.failed = self.failed or drawn
                raise
            self.unanswered = bad
        except (NotImplementedHere, NotCheckable) as reason:
            # This is no failure, so Hypothesis must not shrink it.
            self.declined.append(reason)


def _fails_sometimes(first: Violation | BadResult) -> Violation | BadResult:
    """Return the problem of an input that failed once and passed when it was repeated."""
    if isinstance(first, BadResult):
        return first
    return Violation(f"{first}, but not every time: the same call gives different results", first.difference)


_REGISTRY: Final[dict[str, RegisteredProperty]] = {}


def holds(id_: str, **strategies: Any) -> Callable[[Body], Body]:
    """Register the decorated function as the property with this id, with the strategies that draw its arguments."""

    def register(body: Body) -> Body:
        _REGISTRY[id_] = RegisteredProperty(id_, body, strategies)
        return body

    return register


#: The modules of the properties that every component keeps.
_OF_EVERY_COMPONENT: Final = ("every_component", "memory")


def find_property(prop: Property) -> RegisteredProperty:
    """Return a property's function and strategies; only the modules of its component are imported."""
    if prop.id not in _REGISTRY:
        for module in _OF_EVERY_COMPONENT if prop.component == "*" else (prop.component,):
            importlib.import_module(f"goldformer.conformance.properties.{module}")
    return _REGISTRY[prop.id]


def components_of(prop: Property, spec: Spec) -> tuple[str, ...]:
    """Return the components that a property is judged for: its own, or every one that takes arrays."""
    if prop.component != "*":
        return (prop.component,)
    return tuple(name for name, contract in spec.contracts.items() if contract.inputs)


def load_properties(spec: Spec) -> None:
    """Import every property of the spec now, for processes that are forked later."""
    for prop in spec.properties.values():
        find_property(prop)
