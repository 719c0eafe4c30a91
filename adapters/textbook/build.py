"""The textbook with steps replaced, as an adapter object."""

from types import SimpleNamespace
from typing import Any

from goldformer.adapters.textbook import CHECKED
from goldformer.adapters.textbook.differentiation import differentiate_attention
from goldformer.spec.formulas.backward import attention_backward
from goldformer.spec.formulas.steps import Replacements, bind_replacements, instead, stack_replacements


def build_textbook(*layers: Replacements, only: str = "", **declarations: Any) -> SimpleNamespace:
    """Return an adapter object: the components with steps replaced, later layers last, and its declarations.

    With `only` it has that component and its gradient and no other.
    """
    # A mistake in a gradient is one in the training step that is made of it.
    replaced = stack_replacements(({attention_backward: instead(differentiate_attention)}, *layers), {})
    chosen = (name for name in CHECKED if not only or name.removesuffix("_gradient") == only)
    components = {name: bind_replacements(CHECKED[name], replaced) for name in chosen}
    return SimpleNamespace(**{"ARRAYS": "numpy"} | declarations | components)
