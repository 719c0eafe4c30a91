"""Checks of arguments, and the messages that refuse them.

TypeError    an argument of the wrong kind: not a tensor, not floating point, not boolean, mixed dtypes,
             a parameter that is missing or unknown
ValueError   a size, a shape, a number, a head count or a device that does not fit
IndexError   a token id outside the vocabulary

Shapes are written as in the contracts: one name per axis, the same name for the same size everywhere in a call,
a leading "..." for any further axes.
"""

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

# Arguments from the caller, which may not be tensors, with the names of their axes.
Named: TypeAlias = Mapping[str, tuple[Any, str]]
Size: TypeAlias = int | tuple[int, ...]


def check_tensors(required: Named, optional: Named | None = None) -> None:
    """Refuse tensors whose kinds, dtypes, devices or shapes do not fit together.

    The first tensor sets the dtype and the device, and the first use of an axis name sets its size.
    """
    present = {name: pair for name, pair in (optional or {}).items() if pair[0] is not None}
    first_name, (first, _) = next(iter(required.items()))
    bound: dict[str, tuple[Size, str]] = {}
    for name, (tensor, axes) in {**required, **present}.items():
        check_floating(name, tensor)
        check_same_dtype_and_device(name, tensor, first_name, first)
        check_axes(name, tensor, axes, bound)


def check_floating(name: str, tensor: Any) -> None:
    """Refuse anything but a floating-point tensor."""
    check_is_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype} and must be floating point: convert it with {name}.float()")


def check_is_tensor(name: str, tensor: Any) -> None:
    """Refuse anything but a tensor."""
    if not isinstance(tensor, Tensor):
        fix = "it cannot be left out" if tensor is None else f"convert it with torch.as_tensor({name})"
        raise TypeError(f"{name} is of type {type(tensor).__name__} and must be a torch.Tensor: {fix}")


def check_same_dtype_and_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors of different dtype or on different devices."""
    if tensor.dtype != other.dtype:
        raise TypeError(
            f"{name} has dtype {tensor.dtype} and must have that of {other_name}, {other.dtype}: "
            f"convert it with {name}.to({other.dtype})"
        )
    check_same_device(name, tensor, other_name, other)


def check_same_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors on different devices."""
    if tensor.device != other.device:
        raise ValueError(
            f"{name} is on {tensor.device} and must be on the device of {other_name}, {other.device}: "
            f"move it with {name}.to('{other.device}')"
        )


def check_axes(name: str, tensor: Tensor, axes: str, bound: dict[str, tuple[Size, str]]) -> None:
    """Refuse a shape that contradicts the sizes in ``bound``, and add the sizes that it names first.

    ``bound`` maps an axis name to its size and to the tensor that set it; "..." stands for a tuple.
    """
    names, shape = axes.split(), tuple(tensor.shape)
    form = f"({', '.join(names)})"
    trailing = [axis for axis in names if axis != "..."]
    leading = len(shape) - len(trailing)
    if leading < 0 or (leading > 0 and "..." not in names):
        count = f"at least {len(trailing)}" if "..." in names else f"{len(trailing)}"
        raise ValueError(
            f"{name} has shape {shape} and must be {form}: "
            f"reshape it to {count} {'axis' if len(trailing) == 1 else 'axes'}"
        )
    if 0 in shape:
        raise ValueError(
            f"{name} has shape {shape} and must be {form} without an empty axis: leave empty batches and sequences out"
        )

    # Pairs, not a dict: a square matrix has one name twice.
    sizes: list[tuple[str, Size]] = [("...", shape[:leading])] if "..." in names else []
    sizes += zip(trailing, shape[leading:], strict=True)
    for axis, size in sizes:
        first_size, owner = bound.setdefault(axis, (size, name))
        if size != first_size:
            # nn.Linear keeps (out, in), so this is the most frequent error in a weight.
            weight = name.rpartition(".")[2].startswith("w_")
            hint = " (weights are (in, out): transpose those of nn.Linear)" if weight else ""
            raise ValueError(
                f"{name} has shape {shape} and must be {form} with {axis}={first_size} as in {owner}: "
                f"make the two agree{hint}"
            )


def check_mask(name: str, mask: Any, axes: str, shape: tuple[int, ...], other_name: str, other: Tensor) -> None:
    """Refuse a mask that is not boolean, not on the device of ``other``, or does not broadcast to the scores.

    ``axes`` and ``shape`` are those of the scores.
    """
    check_is_tensor(name, mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} has dtype {mask.dtype} and must be torch.bool, True = may attend: "
            f"convert a mask of ones and zeros with {name} != 0, an additive mask of 0 and -inf with {name} == 0"
        )
    check_same_device(name, mask, other_name, other)
    own = tuple(mask.shape)
    tail = shape[len(shape) - len(own) :]
    if len(own) > len(shape) or any(size not in (1, full) for size, full in zip(own, tail, strict=True)):
        raise ValueError(
            f"{name} has shape {own} and must broadcast to the scores, ({', '.join(axes.split())}) = {shape}: "
            f"give it size 1 on the axes it repeats along, such as {name}[:, None] for all heads of a sample"
        )


def check_positive_int(name: str, value: Any) -> None:
    """Refuse a size that is not an int of at least 1."""
    check_int(name, value)
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1: pass a positive size")


def check_at_most(name: str, value: int, other_name: str, other: int) -> None:
    """Refuse a number that is larger than another argument."""
    if value > other:
        raise ValueError(f"{name}={value} must be at most {other_name}={other}: lower the one or raise the other")


def check_choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Refuse a value that is not among the options."""
    if value not in options:
        known = ", ".join(repr(option) for option in options)
        raise ValueError(f"{name}={value!r} must be one of {known}: pass one of these")


def check_int(name: str, value: Any) -> None:
    """Refuse anything but an int, and also True and False, which are ints in Python."""
    # A tracer with symbolic sizes passes torch.SymInt.
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be an int: pass int({name})")


def check_seed(name: str, value: Any) -> None:
    """Refuse a seed that is not an int of at least 0."""
    check_int(name, value)
    if value < 0:
        raise ValueError(f"{name}={value} must be at least 0: pass any number that is")


def check_bool(name: str, value: Any) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be a bool: pass True or False")


def check_heads_divide(num_heads: Any, width: int, of: str) -> None:
    """Refuse a head count that does not cut ``width`` into equal blocks."""
    check_positive_int("num_heads", num_heads)
    if width % num_heads != 0:
        raise ValueError(
            f"num_heads={num_heads} does not divide the width {width} of {of}: choose a divisor of {width}"
        )


def check_fraction(name: str, value: Any) -> None:
    """Refuse anything but a number from 0 to 1."""
    check_number(name, value)
    # Not value < 0 or value > 1, which lets NaN pass.
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent")


def check_positive_number(name: str, value: Any) -> None:
    """Refuse anything but a finite number above 0."""
    check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value} must be finite and above 0: pass a small number such as 1e-5")


def check_not_negative(name: str, value: Any) -> None:
    """Refuse anything but a finite number of at least 0."""
    check_number(name, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value} must be finite and at least 0: pass a small number such as 0.01")


def check_number(name: str, value: Any) -> None:
    """Refuse anything but a float or an int."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be a float: pass float({name})")


# Token ids


def check_ids(name: str, ids: Any, axes: str = "batch seq", bound: dict[str, tuple[Size, str]] | None = None) -> None:
    """Refuse ids that are not int64 or int32, or whose shape contradicts the sizes in ``bound``."""
    check_is_tensor(name, ids)
    # Not uint8: torch indexes with it as with a mask.
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(
            f"{name} has dtype {ids.dtype} and must be torch.int64 or torch.int32: convert it with {name}.long()"
        )
    check_axes(name, ids, axes, {} if bound is None else bound)


def check_special_id(id_name: str, value: Any, does: str, name: str, ids: Tensor) -> None:
    """Refuse a special id that the dtype of ids cannot hold, such as pad_id; ``does`` is "pads these ids"."""
    check_int(id_name, value)
    # Compared with an int32 tensor, 2**32 + 1 is cut to 1: a pad_id out of range would hide a real token.
    limits = torch.iinfo(ids.dtype)
    if not limits.min <= value <= limits.max:
        raise ValueError(
            f"{id_name}={value} must fit {name} of {ids.dtype}, {limits.min} … {limits.max}: "
            f"pass the id that {does}, or convert them with {name}.long()"
        )


def check_word_id(id_name: str, value: Any, does: str, vocab: int) -> None:
    """Refuse a special id outside a table of ``vocab`` rows, such as eos_id; ``does`` is "ends a sentence"."""
    check_int(id_name, value)
    if not 0 <= value < vocab:
        raise IndexError(f"{id_name}={value} must lie in 0 … {vocab - 1}, the rows of table: pass the id that {does}")


def can_read(tensor: Tensor) -> bool:
    """Return True if the tensor has values that can be read.

    It has no values while torch.compile traces, where a branch on them would break the graph, nor on the meta device.
    On CUDA reading costs a synchronisation, but an unchecked bad id would kill the context of the whole process.
    """
    return not (torch.compiler.is_compiling() or tensor.is_meta)


def check_ids_below(name: str, ids: Tensor, vocab: int, what: str, read: Tensor | None = None) -> None:
    """Refuse an id outside a vocabulary of ``vocab`` words; with ``read``, only where that is True.

    ``what`` ends the message: it names the words and, after a colon, the next step.
    """
    if not can_read(ids):
        return
    outside = (ids < 0) | (ids >= vocab)
    if read is not None:
        outside = outside & read
    if outside.any():
        position = outside.nonzero()[0].tolist()
        raise IndexError(f"{name}{position}={ids[tuple(position)].item()} must lie in 0 … {vocab - 1}, {what}")


def check_ids_in_table(name: str, ids: Tensor, vocab: int) -> None:
    """Refuse an id outside a table of ``vocab`` rows."""
    fix = "use the vocabulary that the table was made for, or a longer table"
    check_ids_below(name, ids, vocab, f"the rows of table: {fix}")


# Parameters in one mapping, named as in a state dict

# A block is a component inside another. The names of its parameters begin with its own name and a dot, as in
# "self_attention.w_q". An axis has the same size throughout a block; d_model has it throughout the mapping.


class Block(NamedTuple):
    """The axes of the parameters of a component, by their names within it."""

    required: Mapping[str, str]
    optional: Mapping[str, str]


ATTENTION: Final = Block(
    {"w_q": "d_model heads*d_k", "w_k": "d_model heads*d_k", "w_v": "d_model heads*d_v", "w_o": "heads*d_v d_model"},
    {"b_q": "heads*d_k", "b_k": "heads*d_k", "b_v": "heads*d_v", "b_o": "d_model"},
)
FEED_FORWARD: Final = Block({"w_1": "d_model d_ff", "w_2": "d_ff d_model"}, {"b_1": "d_ff", "b_2": "d_model"})
NORM: Final = Block({"gamma": "d_model", "beta": "d_model"}, {})
MODEL: Final = Block(
    {"table": "vocab d_model"},
    {"w_vocab": "d_model vocab", "b_vocab": "vocab", "position_table": "positions d_model"},
)
ENCODER_LAYER: Final = {"self_attention": ATTENTION, "norm_1": NORM, "feed_forward": FEED_FORWARD, "norm_2": NORM}
DECODER_LAYER: Final = {
    "self_attention": ATTENTION,
    "norm_1": NORM,
    "cross_attention": ATTENTION,
    "norm_2": NORM,
    "feed_forward": FEED_FORWARD,
    "norm_3": NORM,
}


def final_norms(params: Any, *names: str) -> dict[str, Block]:
    """Name the blocks of the final norms if ``params`` has a parameter of any of them; the others are then missing."""
    given = any(f"{name}.{part}" in params for name in names for part in NORM.required)
    return dict.fromkeys(names, NORM) if given else {}


def number_blocks(stack: str, layer: Mapping[str, Block], num_layers: int) -> dict[str, Block]:
    """Name the blocks of a stack: "encoder.0.norm_1" and so on."""
    return {f"{stack}.{i}.{name}": block for i in range(num_layers) for name, block in layer.items()}


def check_params(params: Any, blocks: Mapping[str, Block], num_heads: Any, first: Named | None = None) -> None:
    """Refuse parameters that are missing, unknown, or fit neither each other nor the tensor named in ``first``.

    A block named "" holds the parameters outside any block. Without ``first``, its table sets the dtype, the device
    and d_model.
    """
    check_names(params, blocks)
    first = {"table": (params.get("table"), "vocab d_model")} if first is None else first
    for prefix, block in blocks.items():
        # A missing parameter is None here, and check_tensors refuses None.
        check_tensors(
            {**first, **_pair_with_axes(params, prefix, block.required)},
            optional=_pair_with_axes(params, prefix, block.optional),
        )
        if block is ATTENTION:
            for name in (f"{prefix}.w_q", f"{prefix}.w_v"):
                check_heads_divide(num_heads, params[name].shape[-1], name)


def check_mapping(params: Any) -> None:
    """Refuse parameters that are not in a mapping."""
    if not isinstance(params, Mapping):
        raise TypeError(
            f"params is of type {type(params).__name__} and must map names to tensors: "
            f"pass a dict, such as the state_dict of the module"
        )


def check_names(params: Any, blocks: Mapping[str, Block]) -> None:
    """Refuse anything but a mapping, and unknown names."""
    check_mapping(params)
    known = {
        _join_name(prefix, name) for prefix, block in blocks.items() for name in (*block.required, *block.optional)
    }
    for name in params:
        if name not in known:
            raise TypeError(
                f"params has {name!r} and must hold nothing that is not read: "
                f"leave it out, or fix its spelling or the number of layers"
            )


def pick_params(params: Mapping[str, Tensor], prefix: str, block: Block) -> dict[str, Tensor | None]:
    """Return all parameters of a block by their names within it, None for an absent bias."""
    return {name: params.get(_join_name(prefix, name)) for name in (*block.required, *block.optional)}


def _pair_with_axes(params: Mapping[str, Any], prefix: str, axes: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {_join_name(prefix, name): (params.get(_join_name(prefix, name)), of) for name, of in axes.items()}


def _join_name(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
