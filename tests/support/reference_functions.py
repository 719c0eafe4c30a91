"""The reference's modules as functions of their parameters, as its adapter makes them; one name for each module."""

from typing import Any, NamedTuple

from torch import Tensor

from goldformer import reference_impl
from goldformer.adapters.builtin import reference as adapter
from goldformer.adapters.builtin.reference import (
    beam_search,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    greedy_decode,
    output_probabilities,
    positional_encoding,
)

__all__ = [
    "beam_search", "cached_model", "decoder", "decoder_layer", "decoder_only_layer", "decoder_only_model", "encoder",
    "encoder_layer", "expert_feed_forward", "feed_forward", "fused_multi_head_attention", "gated_feed_forward",
    "generate", "greedy_decode", "grouped_query_attention", "layer_norm", "multi_head_attention",
    "output_probabilities", "positional_encoding", "rms_norm", "scaled_dot_product_attention", "single_head_attention",
    "single_head_attention_gradient", "single_head_attention_step", "transformer",
]  # fmt: skip


class GradientResult(NamedTuple):
    """The gradients of the input and of the three weights."""

    x: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor


class StepResult(NamedTuple):
    """The gradient of the input at the last training step, and the weights after it."""

    x_gradient: Tensor
    w_q: Tensor
    w_k: Tensor
    w_v: Tensor


def _keep(params: dict[str, Any]) -> dict[str, Tensor]:
    """Return the parameters that are given."""
    return {name: tensor for name, tensor in params.items() if tensor is not None}


def multi_head_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, num_heads: int, **params: Any
) -> Any:
    """Return output and weights."""
    kind = reference_impl.MultiHeadAttention
    return adapter.call_with_params(kind, (1, 1), _keep(params), query, key, value, mask, num_heads=num_heads)


def fused_multi_head_attention(x: Tensor, mask: Tensor | None = None, *, num_heads: int, **params: Any) -> Any:
    """Return output, weights and qkv."""
    kind = reference_impl.FusedMultiHeadAttention
    return adapter.call_with_params(kind, (1, 1, 1), _keep(params), x, mask, num_heads=num_heads)


def scaled_dot_product_attention(*args: Any, **keywords: Any) -> Any:
    """Return output and weights."""
    return adapter.scaled_dot_product_attention(*args, **keywords)[:2]


def grouped_query_attention(*args: Any, **keywords: Any) -> Any:
    """Return output and weights."""
    return adapter.grouped_query_attention(*args, **keywords)[:2]


def single_head_attention(x: Tensor, *, causal: bool, **params: Any) -> Any:
    """Return every matrix."""
    kind = reference_impl.SingleHeadAttention
    return adapter.call_with_params(kind, (1,), _keep(params), x, settings={"causal": causal})


def single_head_attention_gradient(x: Tensor, output_gradient: Tensor, *, causal: bool, **params: Any) -> Any:
    """Return the gradients of x and of the weights."""
    kind = reference_impl.SingleHeadAttention
    settings = {"causal": causal}
    gradient = adapter.call_with_params(kind, (1,), params, x, output_gradient, run=kind.gradient, settings=settings)
    return GradientResult(**gradient)


def single_head_attention_step(
    x: Tensor, output_gradient: Tensor, *, causal: bool, learning_rate: float, steps: int = 1, **params: Any
) -> Any:
    """Return the gradient of x and the weights."""
    result = adapter.single_head_attention_step(
        x, output_gradient, causal=causal, learning_rate=learning_rate, steps=steps, params=params
    )
    return StepResult(**result)


def feed_forward(x: Tensor, *, activation: str = "relu", **params: Any) -> Any:
    """Return output and hidden."""
    return adapter.feed_forward(x, activation=activation, params=_keep(params))


def layer_norm(x: Tensor, *, gamma: Tensor, beta: Tensor, eps: float = 1e-5) -> Tensor:
    """Return the normalised rows."""
    result: Tensor = adapter.layer_norm(x, params={"gamma": gamma, "beta": beta}, eps=eps)
    return result


def rms_norm(x: Tensor, *, gamma: Tensor, eps: float = 1e-6) -> Tensor:
    """Return the rows divided by their root mean square."""
    result: Tensor = adapter.rms_norm(x, params={"gamma": gamma}, eps=eps)
    return result


def gated_feed_forward(x: Tensor, *, activation: str = "silu", **params: Any) -> reference_impl.GatedResult:
    """Return output, hidden, gate and up."""
    result: reference_impl.GatedResult = adapter.gated_feed_forward(x, params=_keep(params), activation=activation)
    return result


def decoder_only_layer(
    x: Tensor, mask: Tensor | None = None, *, num_heads: int, num_kv_heads: int, **params: Any
) -> Any:
    """Return output, attended and weights."""
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads}
    return adapter.decoder_only_layer(x, mask, params=_keep(params), **sizes)


def expert_feed_forward(x: Tensor, *, num_experts: int, top_k: int, **params: Any) -> Any:
    """Return output, weights and logits."""
    return adapter.expert_feed_forward(x, num_experts=num_experts, top_k=top_k, params=_keep(params))


def decoder_only_model(
    ids: Tensor, *, num_heads: int, num_kv_heads: int, num_layers: int, pad_id: int | None = None, **params: Any
) -> Any:
    """Return logits, decoded and embedded."""
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "num_layers": num_layers}
    return adapter.decoder_only_model(ids, params=_keep(params), pad_id=pad_id, **sizes)


def cached_model(
    ids: Tensor, *, num_heads: int, num_kv_heads: int, num_layers: int, pad_id: int | None = None, **params: Any
) -> Any:
    """Return logits and the state of a first call."""
    sizes: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "num_layers": num_layers}
    return adapter.cached_model(ids, params=_keep(params), pad_id=pad_id, **sizes)


def generate(
    ids: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    num_layers: int,
    pad_id: int | None = None,
    eos_id: int,
    max_new_tokens: int,
    **params: Any,
) -> Tensor:
    """Return the new ids."""
    sizes: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "num_layers": num_layers}
    limits = {"eos_id": eos_id, "max_new_tokens": max_new_tokens}
    result: Tensor = adapter.generate(ids, params=_keep(params), pad_id=pad_id, **sizes, **limits)
    return result


def transformer(*args: Any, **keywords: Any) -> reference_impl.TransformerResult:
    """Return logits, memory and decoded."""
    result = adapter.transformer(*args, **keywords)
    return reference_impl.TransformerResult(*(result[name] for name in reference_impl.TransformerResult._fields))
