"""The textbook with steps replaced, as an adapter object."""

from types import SimpleNamespace
from typing import Any, Final

from goldformer.adapters import textbook
from goldformer.spec.formulas.steps import Replacements, Step, bind_replacements, stack_replacements

#: All components and hand-written backward passes.
COMPONENTS: Final[tuple[Step, ...]] = tuple(getattr(textbook, name) for name in textbook.__all__)


def build_textbook(*layers: Replacements, only: str = "", **declarations: Any) -> SimpleNamespace:
    """Return an adapter object: the components with steps replaced, later layers last, and its declarations.

    With `only` it has that component and its gradient and no other.
    """
    replaced = stack_replacements(layers, {})
    chosen = [c for c in COMPONENTS if not only or c.__name__.removesuffix("_gradient") == only]
    components = {component.__name__: bind_replacements(component, replaced) for component in chosen}
    return SimpleNamespace(**{"ARRAYS": "numpy"} | declarations | components)
