"""Named steps, and how one is replaced: in the calls under a context, without touching the textbook.

A step is a plain function under the decorator `step`, which looks up a replacement at every call. Replacements come
in layers: each is given the step as the layers below have it, and may call it or not.

    with replacing({score_divisor: instead(lambda sizes: 1.0)}):
        scaled_dot_product_attention(query, key, value)  # the scores are not divided

A context variable holds the replacements, so another thread, which begins with a context of its own, sees none.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Step = Callable[..., Any]
#: Returns what is done instead of a step, given the step as it is below.
Replacement = Callable[[Step], Step]
Replacements = Mapping[Step, Replacement]

#: Each step as the textbook has it.
_ORIGINALS: Final[dict[Step, Step]] = {}

_replaced: Final[ContextVar[Mapping[Step, Step]]] = ContextVar("replaced", default={})  # noqa: B039 - never changed


def step(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as a step, which can be replaced."""
    current = _replaced.get

    @wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        result: R = current().get(run, function)(*args, **named)
        return result

    _ORIGINALS[run] = function
    return run


@dataclass(frozen=True, slots=True)
class Instead:
    """The replacement by a function that does not call the step: what else replaces the step below it is lost."""

    function: Step

    def __call__(self, original: Step) -> Step:
        """Return the function, whatever the step is below."""
        del original
        return self.function


def instead(function: Step) -> Instead:
    """Return the replacement by a function with the step's parameters."""
    return Instead(function)


def around(function: Step) -> Replacement:
    """Return the replacement by a function that takes the step as it is below, and then the step's parameters."""
    return lambda original: partial(function, original)


def stack_replacements(layers: Iterable[Replacements], below: Mapping[Step, Step]) -> dict[Step, Step]:
    """Return what is done instead of each replaced step, later layers over earlier ones."""
    replaced = dict(below)
    for layer in layers:
        for key, replacement in layer.items():
            if key not in _ORIGINALS:
                raise ValueError(f"{getattr(key, '__name__', key)} is not a step of the textbook")
            replaced[key] = replacement(replaced.get(key, _ORIGINALS[key]))
    return replaced


@contextmanager
def replacing(*layers: Replacements) -> Iterator[None]:
    """Replace steps in the calls inside, over what is replaced already."""
    token = _replaced.set(stack_replacements(layers, _replaced.get()))
    try:
        yield
    finally:
        _replaced.reset(token)


def bind_replacements(function: Callable[P, R], replaced: Mapping[Step, Step]) -> Callable[P, R]:
    """Return the function with these steps replaced in every call, and no other."""

    @wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        token = _replaced.set(replaced)
        try:
            return function(*args, **named)
        finally:
            _replaced.reset(token)

    return run
