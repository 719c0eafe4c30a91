"""The adapter of goldformer.reference_impl: every output its contract names, the default conventions."""

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from goldformer import __version__, reference_impl

NAME: Final = "reference"
VERSION: Final = __version__
ARRAYS: Final = "torch"

softmax = reference_impl.softmax
causal_mask = reference_impl.causal_mask
padding_mask = reference_impl.padding_mask
positional_encoding = reference_impl.positional_encoding
encoder_layer = reference_impl.encoder_layer
decoder_layer = reference_impl.decoder_layer
encoder = reference_impl.encoder
decoder = reference_impl.decoder
greedy_decode = reference_impl.greedy_decode
beam_search = reference_impl.beam_search
pad_or_truncate = reference_impl.pad_or_truncate
shift_right = reference_impl.shift_right
one_hot = reference_impl.one_hot
label_smoothing = reference_impl.label_smoothing
cross_entropy = reference_impl.cross_entropy
kl_divergence = reference_impl.kl_divergence
dropout = reference_impl.dropout


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float | None = None,
    seed: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return output, weights, scores and scaled_scores."""
    attention = reference_impl.scaled_dot_product_attention
    attended = attention(query, key, value, mask, dropout_rate=dropout_rate, seed=seed)
    return *attended, reference_impl.attention_scores(query, key), reference_impl.scaled_scores(query, key)


def xavier_uniform(like: Tensor, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return the weight, and the bias with which the modules start."""
    return reference_impl.xavier_uniform(like, seed), like.new_zeros(like.shape[1:])


def token_embedding(ids: Tensor, *, params: Mapping[str, Tensor], pad_id: int | None = None) -> Tensor:
    """Return the rows of the table."""
    return reference_impl.token_embedding(ids, **params, fixed_id=pad_id)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, ...]:
    """Return output, weights, q, k, v, scaled_scores, heads and average_weights, these three undropped."""
    attention = reference_impl.multi_head_attention
    output, weights = attention(
        query, key, value, mask, num_heads=num_heads, **params, dropout_rate=dropout_rate, training=training, seed=seed
    )
    q, k, v = (
        reference_impl.project_heads(x, params[f"w_{role}"], params.get(f"b_{role}"), num_heads=num_heads)
        for role, x in (("q", query), ("k", key), ("v", value))
    )
    return output, weights, *_steps(q, k, v, mask), weights.mean(dim=1)


def fused_multi_head_attention(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, ...]:
    """Return output, weights, qkv, q, k, v, scaled_scores, heads and average_weights, these three undropped."""
    attention = reference_impl.fused_multi_head_attention
    output, weights, qkv = attention(
        x, mask, num_heads=num_heads, **params, dropout_rate=dropout_rate, training=training, seed=seed
    )
    return output, weights, qkv, *_steps(*reference_impl.cut_fused(qkv, num_heads), mask), weights.mean(dim=1)


def _steps(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    """Return q, k, v, their scaled scores, and the heads."""
    heads, _ = reference_impl.scaled_dot_product_attention(q, k, v, mask)
    return q, k, v, reference_impl.scaled_scores(q, k), heads


def single_head_attention(x: Tensor, *, causal: bool, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return output, weights, query, key, value and scores."""
    return reference_impl.single_head_attention(x, causal=causal, **params)._asdict()


def single_head_attention_step(
    x: Tensor,
    output_gradient: Tensor,
    *,
    causal: bool,
    learning_rate: float,
    steps: int,
    params: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return x_gradient, w_q, w_k and w_v."""
    return reference_impl.single_head_attention_step(
        x, output_gradient, causal=causal, learning_rate=learning_rate, steps=steps, **params
    )._asdict()


def feed_forward(
    x: Tensor,
    *,
    params: Mapping[str, Tensor],
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return output and hidden."""
    given: dict[str, Any] = {**params, "dropout_rate": dropout_rate, "training": training, "seed": seed}
    return reference_impl.feed_forward(x, **given)


def layer_norm(x: Tensor, *, params: Mapping[str, Tensor]) -> Tensor:
    """Return the normalised rows, with the eps of nn.LayerNorm."""
    return reference_impl.layer_norm(x, gamma=params["gamma"], beta=params["beta"])


def output_probabilities(x: Tensor, *, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return probabilities and logits."""
    return reference_impl.output_probabilities(x, **params)


def transformer(
    source: Tensor,
    target: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    params: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Return logits, memory, decoded, source_embedded and target_embedded."""
    model = reference_impl.Transformer.from_params(
        params,
        num_heads=num_heads,
        num_encoder_layers=num_encoder_layers,
        num_decoder_layers=num_decoder_layers,
        pad_id=pad_id,
    )
    embedded = {"source_embedded": model.embed(source), "target_embedded": model.embed(target)}
    return {**model.forward(source, target)._asdict(), **embedded}
