"""Named steps, which a context replaces without changing the textbook.

A step is a function with the decorator `step`, which looks up a replacement at every call. Replacements come in layers:
each receives the step as the layers below left it, and may call it.

    with replacing({score_divisor: instead(lambda sizes: 1.0)}):
        scaled_dot_product_attention(query, key, value)  # the scores are not divided

A context variable holds the replacements, so another thread, which starts with its own context, sees no replacement.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial, wraps
from inspect import Signature, signature
from typing import Any, Final, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

Step = Callable[..., Any]
#: Maps a step, as the layers below left it, to the function that replaces it.
Replacement = Callable[[Step], Step]
Replacements = Mapping[Step, Replacement]

#: The textbook's own function of each step.
_ORIGINALS: Final[dict[Step, Step]] = {}

_replaced: Final[ContextVar[Mapping[Step, Step]]] = ContextVar("replaced", default={})  # noqa: B039 - never changed


def step(function: Callable[P, R]) -> Callable[P, R]:
    """Make the function a step, which can be replaced."""
    current = _replaced.get

    @wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        result: R = current().get(run, function)(*args, **named)
        return result

    _ORIGINALS[run] = function
    return run


@dataclass(frozen=True, slots=True)
class Instead:
    """A replacement that does not call the step, so that replacements of the step below it have no effect."""

    function: Step

    def __call__(self, original: Step) -> Step:
        """Return the function and ignore the step."""
        del original
        return self.function


def instead(function: Step) -> Instead:
    """Return the replacement by a function with the step's parameters."""
    return Instead(function)


def around(function: Step) -> Replacement:
    """Return the replacement by a function that takes the step and then the step's parameters."""
    return lambda original: partial(function, original)


def stack_replacements(layers: Iterable[Replacements], below: Mapping[Step, Step]) -> dict[Step, Step]:
    """Return the function for each replaced step; later layers replace what earlier ones left."""
    replaced = dict(below)
    for layer in layers:
        for key, replacement in layer.items():
            if key not in _ORIGINALS:
                raise ValueError(f"{getattr(key, '__name__', key)} is not a step of the textbook")
            replaced[key] = replacement(replaced.get(key, _ORIGINALS[key]))
    return replaced


class _Held(Generic[R]):
    """A context; as a class it takes a third of the time of a generator, and an imitation enters hundreds."""

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[R], value: R) -> None:
        self._variable, self._value = variable, value

    def __enter__(self) -> None:
        self._token = self._variable.set(self._value)

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._token)


def hold(variable: ContextVar[R], value: R) -> AbstractContextManager[None]:
    """Give a context variable a value inside the context."""
    return _Held(variable, value)


@contextmanager
def replacing(*layers: Replacements) -> Iterator[None]:
    """Replace steps in the calls inside the context, on top of existing replacements."""
    with hold(_replaced, stack_replacements(layers, _replaced.get())):
        yield


def list_steps() -> tuple[Step, ...]:
    """Return all steps of the modules that are loaded."""
    return tuple(_ORIGINALS)


def bind_replacements(function: Callable[P, R], replaced: Mapping[Step, Step]) -> Callable[P, R]:
    """Return the function with exactly these steps replaced in every call."""

    @wraps(function)
    def run(*args: P.args, **named: P.kwargs) -> R:
        token = _replaced.set(replaced)
        try:
            return function(*args, **named)
        finally:
            _replaced.reset(token)

    # Found once for each step: every caller of the function asks for it, and there are thousands of such functions.
    # `inspect` reads the attribute; the type of a function does not list it.
    run.__signature__ = _find_signature(function)  # type: ignore[attr-defined]
    return run


@cache
def _find_signature(function: Callable[..., Any]) -> Signature:
    return signature(function)
