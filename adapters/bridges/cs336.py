"""The bridge to the first assignment of CS336 (Stanford): the functions run_… of its tests/adapters.py.

The names, parameters and shapes are those of the interface that the assignment hands out (stanford-cs336,
assignment1-basics, tests/adapters.py, since 2025). Weights are (out, in) there, and no linear map has a bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from goldformer.adapters.bridges.functions import Functions, load_functions, restore_shape
from goldformer.adapters.layouts import (
    Names,
    is_causal,
    linear_weight,
    map_state,
    nest_names,
    repeat_key_heads,
    require_square_projections,
)
from goldformer.adapters.protocol import TAKES_NO, AdapterError

Params = Mapping[str, Tensor]

#: The place of the functions in the folder of the assignment.
_FILE: Final = Path("tests", "adapters.py")

_PROJECTIONS: Final = ("q_proj_weight", "k_proj_weight", "v_proj_weight", "o_proj_weight")
_GATED: Final = ("w1_weight", "w2_weight", "w3_weight")

#: The state of a block. The assignment's w1 makes the gate.
_BLOCK: Final = {
    "w_q": "attn.q_proj.weight",
    "w_k": "attn.k_proj.weight",
    "w_v": "attn.v_proj.weight",
    "w_o": "attn.output_proj.weight",
    "norm_1.gamma": "ln1.weight",
    "norm_2.gamma": "ln2.weight",
    "feed_forward.w_gate": "ffn.w1.weight",
    "feed_forward.w_up": "ffn.w3.weight",
    "feed_forward.w_down": "ffn.w2.weight",
}
_LM: Final = {
    "table": "token_embeddings.weight",
    "w_vocab": "lm_head.weight",
    "norm.gamma": "ln_final.weight",
    **nest_names(_BLOCK, "layers.*", "layers.*"),
}

# No component is run_linear, run_silu, or run_multihead_self_attention_with_rope by itself.
_SIGNATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "run_softmax": ("in_features", "dim"),
    "run_cross_entropy": ("inputs", "targets"),
    "run_embedding": ("vocab_size", "d_model", "weights", "token_ids"),
    "run_rmsnorm": ("d_model", "eps", "weights", "in_features"),
    "run_rope": ("d_k", "theta", "max_seq_len", "in_query_or_key", "token_positions"),
    "run_swiglu": ("d_model", "d_ff", *_GATED, "in_features"),
    "run_scaled_dot_product_attention": ("Q", "K", "V", "mask"),
    "run_multihead_self_attention": ("d_model", "num_heads", *_PROJECTIONS, "in_features"),
    "run_transformer_block": ("d_model", "num_heads", "d_ff", "max_seq_len", "theta", "weights", "in_features"),
    "run_transformer_lm": (
        "vocab_size", "context_length", "d_model", "num_layers", "num_heads", "d_ff", "rope_theta", "weights",
        "in_indices",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Cs336:
    """The components that the assignment has, computed by its functions."""

    functions: Functions

    ARRAYS = "torch"
    # The modules of the assignment are made in float32 on the CPU, whatever the inputs are.
    DTYPES = ("float32",)
    DEVICES = ("cpu",)
    # A softmax over nothing but −∞ is NaN, over a finite fill uniform: the assignment accepts both.
    CONVENTIONS = {  # noqa: RUF012 - the protocol's name
        "empty_row": "unspecified",
        "multi_head_attention.later_tokens": "hidden_only",
        "biases": "none",
        "rms_norm_eps": "1e-5",
        "rope_pairing": "interleaved",
        "gate_activation": "silu",
    }

    def softmax(self, scores: Tensor) -> Any:
        """Call run_softmax over the last axis."""
        run = self.functions.find("run_softmax")
        return run(scores, -1)

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Any:
        """Call run_scaled_dot_product_attention with at least a batch, and with a mask for every score."""
        run = self.functions.find("run_scaled_dot_product_attention")
        lead = query.shape[:-2] or (1,)
        q, k, v = (x if x.ndim > 2 else x[None] for x in (query, key, value))
        if mask is not None:
            mask = mask.expand(*lead, query.shape[-2], key.shape[-2])
        return restore_shape(run(q, k, v, mask), (*query.shape[:-1], value.shape[-1]))

    def multi_head_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params
    ) -> Any:
        """Call run_multihead_self_attention, which takes one input and always hides later tokens."""
        run = self.functions.find("run_multihead_self_attention")
        if not (query.shape == key.shape == value.shape and torch.equal(query, key) and torch.equal(key, value)):
            raise NotImplementedError("run_multihead_self_attention takes queries, keys and values from one input")
        if query.requires_grad:
            raise NotImplementedError("one input has one gradient, which is none of query, key and value by itself")
        if not is_causal(mask, q_seq=query.shape[1], kv_seq=key.shape[1]):
            raise NotImplementedError("run_multihead_self_attention always hides later tokens, and nothing else")
        require_square_projections(params)
        weights = (_transpose(params[name]) for name in ("w_q", "w_k", "w_v", "w_o"))
        return run(query.shape[-1], num_heads, *weights, query)

    def token_embedding(self, ids: Tensor, *, params: Params) -> Any:
        """Call run_embedding."""
        run = self.functions.find("run_embedding")
        return run(*params["table"].shape, params["table"], ids)

    def rms_norm(self, x: Tensor, *, params: Params) -> Any:
        """Call run_rmsnorm on at least (batch, seq, d_model), with the eps of the assignment."""
        run = self.functions.find("run_rmsnorm")
        wide = x[(None,) * (3 - x.ndim)]
        return restore_shape(run(x.shape[-1], 1e-5, params["gamma"], wide), x.shape)

    def gated_feed_forward(self, x: Tensor, *, params: Params) -> Any:
        """Call run_swiglu: w1 makes the gate, w3 what it multiplies, and w2 maps back."""
        run = self.functions.find("run_swiglu")
        gate, down, up = (_transpose(params[name]) for name in ("w_gate", "w_down", "w_up"))
        return run(x.shape[-1], gate.shape[0], gate, down, up, x)

    def rotary_embedding(self, x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Any:
        """Call run_rope on at least (batch, seq, d_k), with room for the largest position."""
        run = self.functions.find("run_rope")
        wide = x if x.ndim > 2 else x[None]
        # One row of positions for all, as the assignment's test passes them, or one for each token.
        places = positions if positions.ndim == 1 else positions.expand(wide.shape[:-1])
        room = int(positions.max()) + 1 if positions.numel() else 1
        return restore_shape(run(x.shape[-1], base, room, wide, places), x.shape)

    def cross_entropy(self, logits: Tensor, targets: Tensor, *, pad_id: int) -> Any:
        """Call run_cross_entropy on the tokens that are no padding, which it does not know."""
        run = self.functions.find("run_cross_entropy")
        counted = targets != pad_id
        return run(logits[counted], targets[counted])

    def decoder_only_layer(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        num_heads: int,
        num_kv_heads: int,
        base: float = 10000.0,
        params: Params,
    ) -> Any:
        """Call run_transformer_block, whose query heads have keys of their own: shared heads are repeated for it."""
        run = self.functions.find("run_transformer_block")
        if mask is not None:
            raise NotImplementedError(f"run_transformer_block{TAKES_NO}mask")
        weights = _make_state(_BLOCK, params, num_heads, num_kv_heads)
        d_ff = weights["ffn.w1.weight"].shape[0]
        return run(x.shape[-1], num_heads, d_ff, x.shape[1], base, weights, x)

    def decoder_only_model(
        self,
        ids: Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        num_layers: int,
        base: float = 10000.0,
        pad_id: int | None = None,
        params: Params,
    ) -> Any:
        """Call run_transformer_lm with a context of the length of the ids."""
        run = self.functions.find("run_transformer_lm")
        if pad_id is not None:
            raise NotImplementedError(f"run_transformer_lm{TAKES_NO}pad_id")
        weights = _make_state(_LM, params, num_heads, num_kv_heads)
        vocab, d_model = weights["token_embeddings.weight"].shape
        d_ff = weights["layers.0.ffn.w1.weight"].shape[0] if num_layers else 0
        return run(vocab, ids.shape[1], d_model, num_layers, num_heads, d_ff, base, weights, ids)


def _make_state(names: Names, params: Params, num_heads: int, num_kv_heads: int) -> dict[str, Tensor]:
    """Return the state dict of the assignment, contiguous, with a head of keys for each query head."""
    repeated = repeat_key_heads(params, num_heads, num_kv_heads)
    require_square_projections(repeated)
    return {name: tensor.contiguous() for name, tensor in map_state(names, repeated).items()}


def _transpose(weight: Tensor) -> Tensor:
    """Return the weight as nn.Linear stores it, contiguous: the code may view it."""
    transposed: Tensor = linear_weight(weight).contiguous()
    return transposed


def connect(path: Path) -> Cs336:
    """Return the components of a solution: `path` is its folder, or the file with its functions.

    AdapterError if there is no such file, if it cannot be imported, or if it has none of the functions.
    """
    file = path / _FILE if path.is_dir() else path
    if not file.is_file():
        raise AdapterError(
            f"{file}: no such file. The bridge cs336 takes the folder of the assignment, which has {_FILE}, or that "
            "file"
        )
    by_position = frozenset({"run_softmax", "run_cross_entropy"})
    weights = frozenset({"weights", *_PROJECTIONS, *_GATED})
    return Cs336(load_functions(file, [file], _SIGNATURES, by_position, weights))
