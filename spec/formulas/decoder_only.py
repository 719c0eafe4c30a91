"""The layer of today's decoder-only models, and the model that is made of such layers."""

from functools import partial
from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import Array, as_array, number
from goldformer.spec.formulas.attention import cap_scores, causal_mask, padding_mask
from goldformer.spec.formulas.embedding import token_embedding
from goldformer.spec.formulas.gated import gated_feed_forward
from goldformer.spec.formulas.grouped import Scores, attend_to_seen, normalise_heads
from goldformer.spec.formulas.heads import Params, merge_heads, project_attention, project_heads
from goldformer.spec.formulas.layers import SubLayer, add_residual, layer_params, norm_params, run_stack
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.rms import rms_norm
from goldformer.spec.formulas.rope import rotary_embedding
from goldformer.spec.formulas.steps import step
from goldformer.spec.formulas.transformer import output_logits

# The layer


@step
def decoder_only_layer(
    x: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    base: float | None = None,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    params: Params,
) -> dict[str, Array]:
    """Return output and attended (batch, seq, d_model), and weights (batch, heads, seq, seq)."""
    sums = [x]
    heads: dict[str, Any] = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "base": base}
    scores = Scores(window, scale, softcap)
    attend = partial(attend_to_earlier, mask=mask, **heads, scores=scores, params=params)
    attended, weights = run_block(x, attend, number=1, sums=sums, params=params)
    output, _ = run_block(attended, partial(feed_through_gate, params=params), number=2, sums=sums, params=params)
    return {"output": output, "attended": attended, "weights": weights}


@step
def run_block(x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params) -> tuple[Array, Array]:
    """Return x + f(RMSNorm(x)) and the second result of f; `sums` begins with the input of the layer."""
    output, second = function(normalise_block(x, number=number, sums=sums, params=params))
    sums.append(add_residual(x, finish_block(output, number=number, params=params), sums))
    return sums[-1], second


@step
def normalise_block(x: Array, *, number: int, sums: list[Array], params: Params) -> Array:
    """Return what a block reads, the normalised sum before it; blocks are counted from 1."""
    del sums
    return rms_norm(x, params=norm_params(params, number))


@step
def finish_block(output: Array, *, number: int, params: Params) -> Array:
    """Return what a block adds to the residual: its output."""
    del number, params
    return output


@step
def attend_to_earlier(
    x: Array,
    mask: Array | None,
    *,
    num_heads: int,
    num_kv_heads: int,
    base: float | None,
    scores: Scores,
    params: Params,
) -> tuple[Array, Array]:
    """Return the output of the attention of x to itself and to earlier tokens, and its weights."""
    query, key, value = make_heads(x, num_heads=num_heads, num_kv_heads=num_kv_heads, base=base, params=params)
    attended = attend_to_seen(query, key, value, hide_later(mask, x.shape[1]), scores)
    return project_attention(merge_heads(attended["output"]), params, "o"), attended["weights"]


@step
def make_heads(
    x: Array, *, num_heads: int, num_kv_heads: int, base: float | None, start: int = 0, params: Params
) -> tuple[Array, Array, Array]:
    """Return the heads of queries, keys and values, projected, then normalised where there are gains, then turned."""
    query, key = project_heads(x, params, "q", num_heads), project_heads(x, params, "k", num_kv_heads)
    value = project_heads(x, params, "v", num_kv_heads)
    return place_heads(query, key, value, base, start, params=params)


@step
def place_heads(
    query: Array, key: Array, value: Array, base: float | None, start: int, *, params: Params
) -> tuple[Array, Array, Array]:
    """Return the heads with queries and keys normalised where there are gains, then turned (QKN-3)."""
    query, key, value = normalise_heads(query, key, value, params.get("gamma_q"), params.get("gamma_k"))
    return turn_queries(query, base, start), turn_keys(key, base, start), value


@step
def turn_queries(query: Array, base: float | None, start: int = 0) -> Array:
    """Return the heads of queries with the tokens turned by their positions."""
    return turn_heads(query, base, start)


@step
def turn_keys(key: Array, base: float | None, start: int = 0) -> Array:
    """Return the heads of keys with the tokens turned by their positions."""
    return turn_heads(key, base, start)


@step
def turn_heads(x: Array, base: float | None, start: int = 0) -> Array:
    """Return heads whose tokens are turned by their positions, from `start` on, each head alike."""
    return rotary_embedding(x, np.arange(start, start + x.shape[-2]), base=base)


@step
def hide_later(mask: Array | None, seq: int) -> Array:
    """Return the causal mask, and what the mask of the call hides besides."""
    causal = causal_mask(q_seq=seq, kv_seq=seq)
    return causal if mask is None else as_array(mask & causal)


@step
def feed_through_gate(x: Array, *, params: Params) -> tuple[Array, Array]:
    """Return output and hidden of the layer's gated feed-forward network."""
    fed = gated_feed_forward(x, params=part(params, "feed_forward"))
    return fed["output"], fed["hidden"]


# The model


@step
def decoder_only_model(
    ids: Array,
    *,
    num_layers: int,
    logit_softcap: float | None = None,
    pad_id: int | None = None,
    params: Params,
    **settings: Any,
) -> dict[str, Array]:
    """Return logits (batch, seq, vocab), and decoded and embedded (batch, seq, d_model); settings go to the layers."""
    embedded = token_embedding(ids, params={"table": params["table"]})
    layer = partial(run_decoder_only_layer, mask=hide_padding(ids, pad_id), params=params, **settings)
    decoded = finish_layers(run_stack(embedded, layer, num_layers)["output"], params)
    return {"logits": make_logits(decoded, logit_softcap, params), "decoded": decoded, "embedded": embedded}


@step
def hide_padding(ids: Array, pad_id: int | None) -> Array | None:
    """Return the mask that hides pad_id as keys, (batch, 1, 1, seq); None without a pad_id."""
    return None if pad_id is None else padding_mask(ids, pad_id=pad_id)


@step
def run_decoder_only_layer(x: Array, *, index: int, mask: Array | None, params: Params, **settings: Any) -> Array:
    """Return the output of one layer, with parameters of its own and the mask of all, (batch, seq, d_model)."""
    mine = layer_params(params, "layers", index)
    return decoder_only_layer(x, mask, **fit_layer(index, **settings), params=mine)["output"]


@step
def fit_layer(
    index: int, *, base: float | None = None, local_base: float | None = None, window: int | None = None, **rest: Any
) -> dict[str, Any]:
    """Return the settings of one layer, which has the window and the local base if it is local (LM-5, LM-6)."""
    if is_local(index):
        return {**rest, "base": base if local_base is None else local_base, "window": window}
    return {**rest, "base": base, "window": None}


@step
def is_local(index: int) -> bool:
    """Return True: each layer is local (LM-7)."""
    del index
    return True


@step
def finish_layers(x: Array, params: Params) -> Array:
    """Return the output of the last layer, normalised."""
    return rms_norm(x, params=part(params, "norm"))


@step
def make_logits(x: Array, softcap: float | None, params: Params) -> Array:
    """Return the logits of the normalised output of the last layer, capped if the call says so (LM-8)."""
    logits = output_logits(x, params)
    return logits if softcap is None else cap_logits(logits, softcap)


@step
def cap_logits(logits: Array, softcap: float) -> Array:
    """Return softcap·tanh(logits/softcap)."""
    return cap_scores(logits, number(softcap))
