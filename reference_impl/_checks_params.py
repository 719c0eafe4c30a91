"""Checks of parameters that come as one mapping, named as in a state dict.

A block is a component inside another. The names of its parameters begin with its own name and a dot, as in
"self_attention.w_q". Axes have the same size throughout a block; d_model has it throughout the mapping.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from torch import Tensor

from goldformer.reference_impl._checks import Named, check_heads_divide, check_tensors


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
MODEL: Final = Block({"table": "vocab d_model", "w_vocab": "d_model vocab"}, {"b_vocab": "vocab"})
ENCODER_LAYER: Final = {"self_attention": ATTENTION, "norm_1": NORM, "feed_forward": FEED_FORWARD, "norm_2": NORM}
DECODER_LAYER: Final = {
    "self_attention": ATTENTION,
    "norm_1": NORM,
    "cross_attention": ATTENTION,
    "norm_2": NORM,
    "feed_forward": FEED_FORWARD,
    "norm_3": NORM,
}


def numbered(stack: str, layer: Mapping[str, Block], num_layers: int) -> dict[str, Block]:
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
        # A parameter that is missing is None here, and refused as None is everywhere.
        check_tensors(
            {**first, **_named(params, prefix, block.required)}, optional=_named(params, prefix, block.optional)
        )
        if block is ATTENTION:
            for name in (f"{prefix}.w_q", f"{prefix}.w_v"):
                check_heads_divide(num_heads, params[name].shape[-1], name)


def check_names(params: Any, blocks: Mapping[str, Block]) -> None:
    """Refuse anything but a mapping, and names that nothing would read."""
    if not isinstance(params, Mapping):
        raise TypeError(
            f"params is of type {type(params).__name__} and must map names to tensors: "
            f"pass a dict, such as the state_dict of the module"
        )
    known = {_dotted(prefix, name) for prefix, block in blocks.items() for name in (*block.required, *block.optional)}
    for name in params:
        if name not in known:
            raise TypeError(
                f"params has {name!r} and must hold nothing that is not read: "
                f"leave it out, or mend its spelling or the number of layers"
            )


def pick(params: Mapping[str, Tensor], prefix: str, block: Block) -> dict[str, Tensor | None]:
    """Return all parameters of a block by their names within it, None for a bias that is left out."""
    return {name: params.get(_dotted(prefix, name)) for name in (*block.required, *block.optional)}


def _named(params: Mapping[str, Any], prefix: str, axes: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
    return {_dotted(prefix, name): (params.get(_dotted(prefix, name)), of) for name, of in axes.items()}


def _dotted(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
