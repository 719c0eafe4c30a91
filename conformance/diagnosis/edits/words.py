"""The sentence of an edit: what the code does instead, in the words of the steps' docstrings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from inspect import getdoc
from typing import Final

from goldformer.conformance.diagnosis.edits.changes import BLOCKS, MASKS, SHARED
from goldformer.conformance.diagnosis.edits.edit import Edit
from goldformer.spec.formulas import COMPONENTS
from goldformer.spec.formulas.steps import list_steps

#: Where the noun of a docstring ends: at a shape, a clause, and what explains it.
_END: Final = re.compile(
    r",? \((?:\.\.\.|batch|q_seq|seq|heads)[^)]*\)| \([A-Z]+-\d+(?:, [A-Z]+-\d+)*\)|[;:]"
    r"|, (?:so that|unless|for all|computed in|in the places)| where "
)
_NOUN: Final = "Return "

#: What the code does instead, by the kind of the change.
_SENTENCES: Final = {
    "read": "uses {other} instead of {own}",
    "give": "returns {other} instead of {own}",
    "read-part": "uses the parameters of {other} instead of those of {own}",
    "exchange": "exchanges {own} and {other}",
    "exchange-part": "exchanges the parameters of {own} and {other}",
    "share": "uses the parameters of the parts {own} in another order: {shared}",
    "mask": "uses its mask in another way: {masked}",
    "arguments-exchanged": "exchanges {other} where it computes {made}",
    "read-two": "computes {made} with {other} as {first} and {second}",
    "results-exchanged": "exchanges {own} and {other}",
    "skip": "leaves out {made}, and uses its input instead",
    "over": "computes {own} along {along} instead of the last",
    "over:all": "computes {own} over the whole array",
    "blocks": "reads the keys in {blocks}, and {wrong}",
    "one-over": "computes {own} along {along} instead of the last",
    "one-over:all": "computes {own} over the whole array",
    "keep": "leaves out {other} where it computes {own}",
    "size": "uses {size} instead of {own}",
    "operand": "computes {own} with {other} as the {first} operand",
    "ufunc": "{verb} instead where it computes {own}",
    "operands-exchanged": "exchanges the operands of {own}",
    "moved": "computes {made} from {other}, and not where it belongs",
    "also": "computes {made} from {other} as well",
    "plus": "adds {other} to {own}",
    "more": "adds {first} to {own}",
    "laid": "reshapes {own} as if it lay in memory as [{second}], but it lies as [{first}]",
    "number": "uses {other} in the place of {own}",
    "solved": "uses {other} in the place of {own}",
    "scaled": "multiplies {own} by {first}",
    "times": "uses {own} times {size}",
    "twice": "computes {made} twice, the second time from the first result",
    "doubled": "doubles {own}",
    "halved": "halves {own}",
    "negated": "uses {own} with the wrong sign",
    "inverse": "uses one divided by {own}",
    "square": "uses the square of {own}",
    "root": "uses the root of {own}",
    "zero": "uses 0 in the place of {own}",
    "plus-one": "uses {own} plus one",
    "minus-one": "uses {own} minus one",
    "absolute": "uses the absolute value of {own}",
    "exponential": "uses the exponential of {own}",
    "rounded": "uses {own} rounded to whole numbers",
    "reversed": "uses {own} in the reverse order along axis {first}",
    "next": "uses {own} shifted by one towards the start of axis {first}",
    "before": "uses {own} shifted by one towards the end of axis {first}",
    "first": "uses index 0 along axis {first} for every other index of {own}",
    "mean": "uses {own} averaged over axis {first}",
    "running": "uses the running sum of {own} along axis {first}",
    "first-zeroed": "uses {own} with 0 at index 0 of axis {first}",
    "last-zeroed": "uses {own} with 0 at the last index of axis {first}",
    "transposed": "uses {own} transposed over the axes {first} and {second}",
    "reshaped": "uses {own} with the axes {first} and {second} swapped and then reshaped",
    "unread": "uses {own} reshaped where the axes {first} and {second} should be swapped",
}
#: What the arguments of steps are called whose names are no words.
_ARGUMENTS: Final = {
    "x": "the input", "query": "the queries", "key": "the keys", "value": "the values", "kv_heads": "the heads",
    "log_q": "the log-probabilities", "like": "the array", "qkv": "the fused projection", "so_far": "the cached rows",
}  # fmt: skip
_VERBS: Final = {"add": "adds", "subtract": "subtracts", "multiply": "multiplies", "divide": "divides"}
_OPERATIONS: Final = {
    "add": "the sum", "subtract": "the difference", "multiply": "the product", "divide": "the quotient",
    "sum": "the sum",
    "max": "the maximum", "matmul": "the matrix product", "exp": "the exponential", "sqrt": "the root",
    "negative": "the sign", "where": "the choice", "number": "the constant", "log": "the logarithm",
    "cos": "the cosine", "swapaxes": "the transposed array",
    "sin": "the sine", "concatenate": "the joined array", "stack": "the stacked array", "part": "the part",
    "astype": "the rounded array", "power": "the power", "root": "the root", "square": "the square",
}  # fmt: skip
_POWERS: Final = {"1": "{}", "-1": "1/({})", "0.5": "the root of {}", "-0.5": "1/√({})", "2": "the square of {}",
                  "0.25": "the fourth root of {}"}  # fmt: skip
#: What steps are called whose docstrings say more than a name.
_NOUNS: Final = {
    "add_residual": "the residual sum", "apply_affine": "the linear map", "cross_attend": "the cross-attention",
    "self_attend": "the self-attention", "fill_masked": "the masked scores", "weigh_keys": "the weights",

    "layer_norm_eps": "eps", "rms_eps": "eps", "score_divisor": "the divisor of the scores, √d_k",
    "mask_fill": "the number that fills masked scores", "wavelength_base": "the base of the wavelengths, 10000",
    "rotary_base": "the base of the rotation",
}  # fmt: skip
#: What sizes are called that the contract has a formula for, or no symbol.
_SIZES: Final = {"kv_heads*group": "the number of query heads", "num_heads": "the number of heads"}
#: A shape before what a step gives.
_SHAPE: Final = re.compile(r"^\([^)]*\): ")
#: The calls of some steps in words.
_CALLS: Final[Mapping[str, Callable[[int], str]]] = {
    "run_sublayer": lambda k: f"sub-layer {k + 1}",
    "project_heads": lambda k: f"{('the queries', 'the keys', 'the values')[k % 3]} of attention {k // 3 + 1}",
    "run_encoder_layer": lambda k: f"encoder layer {k + 1}",
    "run_decoder_layer": lambda k: f"decoder layer {k + 1}",
}
#: What a step reads that reads what an earlier call of it read.
_ANOTHER: Final = "an earlier one"
#: What stands between the two details of a kind of change.
_JOINED: Final = {"number": " instead of "}
_AXES: Final = ("samples", "heads", "tokens", "channels")
#: The projections of an attention.
_ROLES: Final = {"q": "queries", "k": "keys", "v": "values", "o": "output"}
_ORDINALS: Final = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@cache
def _read_docstrings() -> dict[str, str]:
    return {step.__name__: (getdoc(step) or "").split("\n\n")[0].replace("\n", " ") for step in list_steps()}


@cache
def describe_step(name: str) -> str:
    """Return what a step gives, from its docstring: "the mean of the squares of each token's channels"."""
    if name in _NOUNS:
        return _NOUNS[name]
    text = _read_docstrings().get(name, "")
    noun = _END.split(_SHAPE.sub("", text.removeprefix(_NOUN)))[0].rstrip(".,")
    return noun if text.startswith(_NOUN) and noun else f"the result of “{noun[:1].lower()}{noun[1:]}”"


def _name_step(name: str) -> str:
    """Return what a step makes; a component has a name that users know."""
    return name if name in COMPONENTS else describe_step(name)


def _describe_place(place: str) -> str:
    """Return the words of a node: an argument by its name, a result by its step, an operation by its kind.

    The arguments of whole components are inputs and parameters, which have their names in every step.
    """
    path, _, role = place.rpartition("/")
    step = _read_step(path)
    if "*" in role:
        return _describe_part(role)
    if role == "result":
        return "the output" if step in COMPONENTS and "/" not in path else describe_step(step)
    if role.startswith("result."):
        name = role.removeprefix("result.")
        return f"the {_ORDINALS[int(name)]} part of {_name_step(step)}" if name.isdigit() else name
    kind, operation, number = role.partition("-")
    if kind == "number":
        return f"the constant in {_name_step(step)}"
    if not operation:
        return f"`{role}`" if step in COMPONENTS else f"{_name_argument(role)} of {describe_step(step)}"
    words = _OPERATIONS.get(kind, f"the {kind.replace('_', ' ')}").removeprefix("the ")
    index = int(number)
    which = f"{_ORDINALS[index] if index < len(_ORDINALS) else f'{index + 1}th'} " if index else ""
    return f"the {which}{words} in {_name_step(step)}"


def _name_argument(role: str) -> str:
    """Return what an argument of a step is called: those with names of their own are words."""
    return _ARGUMENTS.get(role, f"the {role.replace('_', ' ')}")


def _describe_part(part: str) -> str:
    """Return the parameters of a part in words: "*_q" and "self_attention.*_q" are those of a projection."""
    owner, star, role = part.rpartition("*_")
    words = f"the projection of the {_ROLES[role]}" if star else f"`{part}`"
    return f"{words} of `{owner.rstrip('.')}`" if owner else words


def _read_step(path: str) -> str:
    return path.rsplit("/", maxsplit=1)[-1].partition("#")[0]


def _locate(place: str) -> str:
    """Return the one call in which an edit is made, in words; "" for all."""
    calls = [part.partition("#") for part in place.split("/")[:-1] if "#" in part]
    words = [
        _CALLS[name](int(number)) if name in _CALLS else f"call {int(number) + 1} of what makes {_name_step(name)}"
        for name, _, number in calls
    ]
    return f", only in {', '.join(words)}" if words else ""


def write_title(edit: Edit) -> str:
    """Return what the code does instead, without a capital letter and a full stop."""
    word, _, detail = edit.change.partition(":")
    parts = detail.split(":")
    first, second, *_ = (*map(_write_axis, parts), "")
    if word in ("keep", "operand"):
        first, detail = _ORDINALS[int(first)], detail.partition(":")[2]
    if word == "read-two":
        detail, first, second = parts[2], *map(_name_argument, parts[:2])
    if word == "laid":
        first, second = (", ".join(_AXES[int(axis)] for axis in part) for part in parts)
    sentence = _SENTENCES.get(edit.change) or _SENTENCES[word]
    fields = {
        "own": _describe_place(edit.place),
        "shared": SHARED[detail][0] if word == "share" else "",
        "masked": MASKS[detail][0].format(_name_mask(edit.place)) if word == "mask" else "",
        "blocks": "two blocks" if parts[0] == "half" else f"blocks of {parts[0]}",
        "wrong": BLOCKS[parts[1]][0] if word == "blocks" else "",
        "made": _name_step(_read_step(edit.place.rpartition("/")[0])),
        "other": "the last operation"
        if word == "keep" and not detail
        else _ANOTHER
        if detail == edit.place
        else f"{_describe_place(detail)}{_locate(detail).removeprefix(', only')}"
        if "/" in detail
        else _describe_part(detail)
        if word.endswith("part")
        else " and ".join(map(_name_argument, parts))
        if word == "arguments-exchanged"
        else _JOINED.get(word, " and ").join(part.removeprefix("result.") for part in parts),
        "size": _describe_size(*parts) if word in ("size", "times") else "",
        "verb": _VERBS.get(detail, ""),
        "along": f"{'axes' if '*' in detail else 'axis'} {first}",
        "first": first,
        "second": second,
    }
    return f"the code {sentence.format_map(fields)}{_locate(edit.place)}"


def _name_mask(place: str) -> str:
    step, _, role = place.rpartition("/")
    return f"`{role}`" if step in COMPONENTS and role != "mask" else "the mask"


def _describe_size(leaf: str, axis: str, symbol: str, power: str, more: str = "") -> str:
    axes = " times ".join(f"the size of axis {_write_axis(one)} of {leaf}" for one in axis.split("*"))
    size = _SIZES.get(symbol, symbol) or axes
    if more.startswith("*"):
        size = f"{more[1:]} · {size}"
    elif more:
        size = f"{size} {'−' if more.startswith('-') else '+'} {more.strip('-')}"
    return _POWERS[power].format(size)


def write_hint(edit: Edit) -> str:
    """Return what is right."""
    if edit.change.startswith("blocks:"):
        return "Give what the whole row gives, whatever the number of keys and the order of their scores."
    if edit.change.startswith("mask:"):
        return "A mask is True where a query, its row, may see a key, its column."
    path, _, role = edit.place.rpartition("/")
    step = _read_step(path)
    if step in COMPONENTS:
        return f"goldformer explain {step} shows the formula."
    return f"Use {describe_step(step) if '-' in role or role.startswith('result') else _describe_place(edit.place)}."


def _write_axis(axis: str) -> str:
    return axis.replace("-", "−").replace("*", " and ")
