"""Arguments of another type or order, and those of other functions: F.scaled_dot_product_attention, and masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from goldformer.adapters.untrusted_text import abbreviate
from goldformer.spec import Contract
from goldformer.spec.model import Array
from goldformer.spec.shapes import ContractViolation

#: What to pass in place of an argument of F.scaled_dot_product_attention.
_OF_TORCH: Final[Mapping[str, str]] = {
    "attn_mask": "pass a boolean mask=, where True means may attend (for a float mask: attn_mask == 0)",
    "is_causal": "pass mask=torch.ones(q_seq, kv_seq, dtype=torch.bool).tril()",
    "dropout_p": "leave it out if it is 0; dropout is random, so it has no expected values",
    "scale": "leave it out if it is 1/√d_k; no other scale is judged",
    "enable_gqa": "pass key and value with as many heads as query: key.repeat_interleave(groups, dim=-3)",
}


def require_component(component: Any, first: Any = None, call: str = "") -> None:
    """Raise TypeError unless a component is given by its name; `call` is in which order, if `first` is the name."""
    if not isinstance(component, str):
        order = f"; the name comes second: {call}" if isinstance(first, str) else ""
        what = f"component is {type(component).__name__}"
        raise TypeError(f'{what}: give the name of a component as text, such as "softmax"{order}')


def require_type(name: str, value: Any, kind: type | tuple[type, ...], advice: str) -> None:
    """Raise TypeError unless an argument has a type."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {abbreviate(value)}: {advice}")


def read_words(name: str, words: Any) -> tuple[str, ...]:
    """Return one word, or several, as a tuple without repeats; TypeError for anything else."""
    listed = [words] if isinstance(words, str) or not isinstance(words, Iterable) else list(words)
    for word in listed:
        require_type(name, word, str, "give a name as text, or several in a list")
    return tuple(dict.fromkeys(listed))


def explain_foreign(names: Mapping[str, Any], contract: Contract) -> str | None:
    """Return what to pass in place of the first argument that only F.scaled_dot_product_attention has, or None."""
    for name in names if {"query", "mask"} <= contract.inputs.keys() else ():
        if name in _OF_TORCH and name not in contract.attributes:
            return f"{contract.component}() has no argument {name}: {_OF_TORCH[name]}"
    return None


def read_mask(values: Array) -> Array:
    """Return the boolean mask that a float mask of 0 and −∞ means; itself if it may mean anything else."""
    if values.dtype.kind != "f":
        return values
    hidden = np.isneginf(values)
    return values == 0 if hidden.any() and np.all(hidden | (values == 0)) else values


def advise(violation: ContractViolation, arrays: Mapping[str, Array], contract: Contract) -> str:
    """Return how to pass what contradicts a contract, or ""."""
    name, *others = violation.arguments
    spec, array = contract.inputs.get(name), arrays.get(name)
    if spec is None or array is None:
        return ""
    if spec.kind == "bool" and array.dtype.kind != "b":
        added = f"pass {name} == 0 if it is added to the scores, " if array.dtype.kind == "f" else "pass "
        return f": True means may attend; {added}{name} != 0 if 1 means may attend"
    other = arrays.get(others[0]) if others else None
    if "kv_seq" not in spec.shape.symbols or other is None or min(array.ndim, other.ndim) < 4:
        return ""
    heads, more = array.shape[-3], other.shape[-3]
    if heads < more and more % heads == 0:
        return f": give them as many heads; {name}.repeat_interleave({more // heads}, dim=-3) repeats each"
    # What stands for the heads are the tokens, of which there may be any number.
    swap = f"{name}.swapaxes(1, 2) moves them, and so the others and the result"
    return f": give all as {spec.shape}, heads before tokens; {swap}"


def swap_heads(actual: Any, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]] | None:
    """Return the result and the arguments of an attention with tokens and heads swapped; None without such axes."""
    arrays = {"actual": actual, **{name: arguments.get(name) for name in ("query", "key", "value")}}
    if any(getattr(array, "ndim", 0) < 4 for array in arrays.values()):
        return None
    swapped = {name: array.swapaxes(-3, -2) for name, array in arrays.items()}
    return swapped.pop("actual"), {**arguments, **swapped}
