"""The search for inputs that break a property, with Hypothesis: it draws the same inputs in every process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

#: The number of inputs that each property draws.
EXAMPLES: Final = 10

#: The seed. Without it Hypothesis would take one from the text of `body` below, which changes.
_SEED: Final = 0


def search(strategies: Mapping[str, Any], attempt: Callable[..., object]) -> None:
    """Draw EXAMPLES inputs; if one fails, raise for the smallest input that fails."""
    import hypothesis  # a quarter of a second that golden cases do not need

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate, hypothesis.Phase.shrink)
    settings = hypothesis.settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, report_multiple_bugs=False,
        print_blob=False, suppress_health_check=list(hypothesis.HealthCheck), phases=phases,
    )  # fmt: skip

    def body(**drawn: Any) -> None:
        attempt(**drawn)

    with _no_constants_of_modules():
        hypothesis.seed(_SEED)(hypothesis.given(**strategies)(settings(body)))()


@contextlib.contextmanager
def _no_constants_of_modules() -> Iterator[None]:
    """Stop Hypothesis from drawing the constants of modules that happen to be imported."""
    from hypothesis.internal.conjecture import providers

    module: Any = providers
    find = getattr(module, "_get_local_constants", None)
    if find is None:  # a version that does not look at modules
        yield
        return
    module.CONSTANTS_CACHE.cache.clear()
    module._get_local_constants = type(module.GLOBAL_CONSTANTS)
    try:
        yield
    finally:
        module._get_local_constants = find
        module.CONSTANTS_CACHE.cache.clear()
