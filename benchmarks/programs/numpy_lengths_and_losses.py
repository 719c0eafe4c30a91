# deserves: correct
"""Assignment code in NumPy: masks from lengths, a list of heads, losses with a column of padding set to nought."""

import numpy as np

ARRAYS = "numpy"
NAME = "assignment"


def softmax(scores):
    if scores.shape == () or scores.shape[-1] == 0:
        raise ValueError("scores: no elements in a row")
    top = np.amax(scores, axis=-1, keepdims=True)
    exponentials = np.exp(scores - top)
    return exponentials / np.sum(exponentials, axis=-1, keepdims=True)


def log_softmax(z):
    top = np.amax(z, axis=-1, keepdims=True)
    return z - top - np.log(np.sum(np.exp(z - top), axis=-1, keepdims=True))


def mask_from_lengths(lengths, longest):
    """(batch, longest), 1 for words and 0 for padding."""
    return (np.arange(longest)[None, :] < np.asarray(lengths)[:, None]).astype(np.int64)


class AttentionHead:
    def __init__(self, Wq, bq, Wk, bk, Wv, bv):
        self.Wq, self.bq, self.Wk, self.bk, self.Wv, self.bv = Wq, bq, Wk, bk, Wv, bv

    def __call__(self, x, y, lengths=None):
        Q = x @ self.Wq + self.bq
        K = y @ self.Wk + self.bk
        V = y @ self.Wv + self.bv
        scores = np.einsum("bid,bjd->bij", Q, K) / Q.dtype.type(np.sqrt(Q.shape[-1]))
        if lengths is not None:
            keep = mask_from_lengths(lengths, y.shape[1])[:, None, :]
            scores = np.where(keep == 1, scores, np.array(-1e9, dtype=scores.dtype))
        self.attention = softmax(scores)
        return np.einsum("bij,bjd->bid", self.attention, V)


class MultiHead:
    def __init__(self, heads, Wo, bo):
        self.heads, self.Wo, self.bo = heads, Wo, bo

    def __call__(self, x, y, lengths=None):
        return np.concatenate([head(x, y, lengths) for head in self.heads], axis=2) @ self.Wo + self.bo

    def maps(self):
        return np.stack([head.attention for head in self.heads], axis=1)


def cross_entropy_from_ids(logits, targets, pad):
    """Mean over the words; the rows of the one-hot targets that belong to padding are nought."""
    targets_one_hot = np.eye(logits.shape[-1], dtype=logits.dtype)[targets]
    targets_one_hot[targets == pad] = 0
    losses = -(targets_one_hot * log_softmax(logits)).sum(axis=-1)
    return losses.sum() / targets_one_hot.sum(), losses


def divergence(p, logits):
    log_p = np.log(np.where(p > 0, p, np.ones_like(p)))
    return np.sum(p * (log_p - log_softmax(logits)), axis=-1)


def smoothed(p, s):
    return p * p.dtype.type(1 - s) + p.dtype.type(s / p.shape[-1])


# The adapter.


def softmax_gradient(scores, cotangent):
    p = softmax(scores)
    return {"scores": p * (cotangent - (p * cotangent).sum(axis=-1, keepdims=True))}


def _lengths(mask, batch, kv_seq):
    if mask is None:
        return None
    if mask.ndim != 4 or mask.shape[1:3] != (1, 1):
        raise NotImplementedError("lengths of the keys")
    keys = np.broadcast_to(mask, (batch, 1, 1, kv_seq))[:, 0, 0]
    lengths = keys.sum(axis=1)
    if np.any(keys[:, 1:] & ~keys[:, :-1]):
        raise NotImplementedError("padding at the end")
    return lengths


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    if key is not value and not np.array_equal(key, value):
        raise NotImplementedError("keys and values are of one sequence")
    columns = {}
    for role in "qkv":
        weight = params[f"w_{role}"]
        bias = params.get(f"b_{role}", np.zeros(weight.shape[1], weight.dtype))
        if weight.shape[1] % num_heads:
            raise ValueError("num_heads: does not divide the width")
        columns[role] = list(zip(np.split(weight, num_heads, axis=1), np.split(bias, num_heads), strict=True))
    heads = [AttentionHead(*columns["q"][i], *columns["k"][i], *columns["v"][i]) for i in range(num_heads)]
    w_o = params["w_o"]
    module = MultiHead(heads, w_o, params.get("b_o", np.zeros(w_o.shape[1], w_o.dtype)))
    output = module(query, key, _lengths(mask, len(query), key.shape[1]))
    return output, module.maps()


def cross_entropy(logits, targets, *, pad_id):
    if logits.shape[:2] != targets.shape:
        raise ValueError("targets: the rows of logits")
    if targets.min() < 0 or targets.max() >= logits.shape[2]:
        raise ValueError("targets: below the number of words")
    return cross_entropy_from_ids(logits, targets, pad_id)


def kl_divergence(target, logits):
    if target.shape != logits.shape:
        raise ValueError("target: the shape of logits")
    return divergence(target, logits)


def label_smoothing(target, *, smoothing):
    if not 0 <= smoothing <= 1:
        raise ValueError("smoothing: from 0 to 1")
    return smoothed(target, smoothing)


def output_probabilities(x, *, params):
    w = params["w_vocab"]
    b = params.get("b_vocab", np.zeros(w.shape[1], w.dtype))
    if b.shape != w.shape[1:]:
        raise ValueError("b_vocab: one number for each word")
    logits = x @ w + b
    return np.exp(log_softmax(logits)), logits


MISTAKES = {
    "bias-of-keys-for-values": (
        "V = y @ self.Wv + self.bv",
        "V = y @ self.Wv + self.bk",
        "The values are given the keys' bias.",
        ("multi_head_attention.edit@multi_head_attention/b_v@read:multi_head_attention/b_k",),
    ),
    "heads-reversed": (
        "[head(x, y, lengths) for head in self.heads]",
        "[head(x, y, lengths) for head in self.heads[::-1]]",
        "The heads are joined in the opposite order.",
        (
            "multi_head_attention.edit@merge_heads/heads@reversed:-3",
            "multi_head_attention.edit@multi_head_attention/result.heads@reversed:-3",
        ),
    ),
    "lengths-of-first-sample": (
        "np.asarray(lengths)[:, None]",
        "np.asarray(lengths)[:1, None]",
        "All samples have the length of the first one.",
        ("mask-first-sample",),
    ),
    "keep-along-queries": (
        "mask_from_lengths(lengths, y.shape[1])[:, None, :]",
        "mask_from_lengths(lengths, x.shape[1])[:, :, None]",
        "The lengths hide rows of queries and not columns of keys.",
        ("pad-on-query",),
    ),
    "one-hot-of-padding-kept": (
        "    targets_one_hot[targets == pad] = 0\n",
        "",
        "Padding adds to the loss and to the number of words.",
        ("loss-pad-counted",),
    ),
    "mean-over-all-tokens": (
        "return losses.sum() / targets_one_hot.sum(), losses",
        "return losses.mean(), losses",
        "The loss is divided by the number of all tokens, padding included.",
        ("loss-pad-denominator",),
    ),
    "log-of-softmax": (
        "    top = np.amax(z, axis=-1, keepdims=True)\n    return z - top - np.log(np.sum(np.exp(z - top), axis=-1, keepdims=True))",
        "    return np.log(softmax(z))",
        "The logarithm is taken of probabilities that may have become nought.",
        (),
    ),
    "share-of-others": (
        "p.dtype.type(s / p.shape[-1])",
        "p.dtype.type(s / (p.shape[-1] - 1)) * (1 - p)",
        "The mass is shared among the other words alone.",
        ("smoothing_denominator: others",),
    ),
}
