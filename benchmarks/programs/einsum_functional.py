# deserves: correct
# declares: biases=none
"""Research code that writes each tensor operation as an einsum over raw parameter tensors, without biases."""

import math

import torch

ARRAYS = "torch"
NAME = "einsum over raw tensors"


def project_heads(x, w, heads):
    """x (b, t, m) times w (m, h, k)."""
    return torch.einsum("btm,mhk->bhtk", x, w.unflatten(1, (heads, -1)))


def attend(q, k, v, allowed=None):
    logits = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(q.shape[-1])
    if allowed is not None:
        logits = torch.where(allowed, logits, torch.finfo(logits.dtype).min)
    probs = torch.softmax(logits, dim=-1)
    return torch.einsum("...qk,...kd->...qd", probs, v), probs


def merge_heads(x, w):
    """x (b, h, t, k) times w (h*k, m)."""
    return torch.einsum("bhtk,hkm->btm", x, w.unflatten(0, (x.shape[1], -1)))


def attention_block(x_q, x_kv, w_q, w_k, w_v, w_o, heads, allowed=None):
    q = project_heads(x_q, w_q, heads)
    k = project_heads(x_kv, w_k, heads)
    v = project_heads(x_kv, w_v, heads)
    out, probs = attend(q, k, v, allowed)
    return merge_heads(out, w_o), probs


def mlp(x, w_1, w_2):
    return torch.einsum("btf,fm->btm", torch.einsum("btm,mf->btf", x, w_1).clamp(min=0), w_2)


def normalise(x, gain, shift):
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = torch.einsum("...m,...m->...", centred, centred)[..., None] / x.shape[-1]
    return centred * torch.rsqrt(variance + 1e-5) * gain + shift


# The adapter.


def _no_biases(params):
    if any(name.rpartition(".")[2].startswith("b_") for name in params):
        raise NotImplementedError("there are no biases")


def scaled_dot_product_attention(query, key, value, mask=None):
    return attend(query, key, value, mask)


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    _no_biases(params)
    if mask is not None:
        mask = mask.broadcast_to(query.size(0), num_heads, query.size(1), key.size(1))
    q = project_heads(query, params["w_q"], num_heads)
    k = project_heads(key, params["w_k"], num_heads)
    v = project_heads(value, params["w_v"], num_heads)
    heads, weights = attend(q, k, v, mask)
    output = merge_heads(heads, params["w_o"])
    return {"output": output, "weights": weights, "q": q, "k": k, "v": v, "heads": heads}


def feed_forward(x, *, params):
    _no_biases(params)
    return mlp(x, params["w_1"], params["w_2"])


def layer_norm(x, *, params):
    return normalise(x, params["gamma"], params["beta"])


def _norm(x, params, number):
    return normalise(x, params[f"norm_{number}.gamma"], params[f"norm_{number}.beta"])


def _attention(x, other, params, name, heads, mask):
    weights = [params[f"{name}.w_{role}"] for role in "qkvo"]
    return attention_block(x, other, *weights, heads, mask)


def encoder_layer(x, mask=None, *, num_heads, params):
    _no_biases(params)
    out, weights = _attention(x, x, params, "self_attention", num_heads, mask)
    attended = _norm(x + out, params, 1)
    out = mlp(attended, params["feed_forward.w_1"], params["feed_forward.w_2"])
    return _norm(attended + out, params, 2), attended, weights


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    _no_biases(params)
    out, weights = _attention(x, x, params, "self_attention", num_heads, self_mask)
    attended = _norm(x + out, params, 1)
    out, cross_weights = _attention(attended, memory, params, "cross_attention", num_heads, memory_mask)
    crossed = _norm(attended + out, params, 2)
    out = mlp(crossed, params["feed_forward.w_1"], params["feed_forward.w_2"])
    return _norm(crossed + out, params, 3), attended, crossed, weights, cross_weights


MISTAKES = {
    "heads-interleaved": (
        'torch.einsum("btm,mhk->bhtk", x, w.unflatten(1, (heads, -1)))',
        'torch.einsum("btm,mkh->bhtk", x, w.unflatten(1, (-1, heads)))',
        "The columns of a projection are dealt out to the heads in turn and not in blocks.",
        ("head-interleaved",),
    ),
    "output-rows-interleaved": (
        'torch.einsum("bhtk,hkm->btm", x, w.unflatten(0, (x.shape[1], -1)))',
        'torch.einsum("bhtk,khm->btm", x, w.unflatten(0, (-1, x.shape[1])))',
        "The rows of the output projection are read in another order than the heads' columns.",
        ("multi_head_attention.edit@merge_heads/heads@laid:0231:0213",),
    ),
    "values-from-queries-input": (
        "v = project_heads(x_kv, w_v, heads)",
        "v = project_heads(x_q, w_v, heads)",
        "The values are made of what the queries are made of.",
        (),
    ),
    "keys-transposed": (
        '"...qd,...kd->...qk", q, k)',
        '"...qd,...kd->...qk", k, q)',
        "The scores are transposed, as keys and queries change places in the product.",
        (
            "scaled_dot_product_attention.edit@scaled_dot_product_attention/query@exchange:scaled_dot_product_attention/key",
        ),
    ),
    "variance-too-small": (
        "centred, centred)[..., None] / x.shape[-1]",
        "centred, centred)[..., None] / (x.shape[-1] - 1)",
        "The variance is divided by one less than the width.",
        ("ln-unbiased",),
    ),
    "eps-outside-root": (
        "torch.rsqrt(variance + 1e-5)",
        "1 / (variance.sqrt() + 1e-5)",
        "The small number is added to the standard deviation and not to the variance.",
        ("ln-eps-outside",),
    ),
    "clamp-from-above": (
        ".clamp(min=0)",
        ".abs()",
        "The rectifier turns negative numbers around and does not cut them off.",
        (),
    ),
    "cross-mask-of-self": (
        '"cross_attention", num_heads, memory_mask)',
        '"cross_attention", num_heads, None)',
        "The cross-attention is given no mask.",
        ("cross-mask-absent",),
    ),
}
