"""Grouped-query attention as functions in several styles, right ones and wrong ones."""

import math

import numpy as np
import torch
import torch.nn.functional as F


def repeat_kv(hidden_states, n_rep):
    """Return each head of keys or values n_rep times."""
    b, n_kv, seq, head_dim = hidden_states.shape
    expanded = hidden_states[:, :, None].expand(b, n_kv, n_rep, seq, head_dim)
    return expanded.reshape(b, n_kv * n_rep, seq, head_dim)


def eager(q, k, v, mask=None):
    """Repeat the heads, as in Llama."""
    n_rep = q.shape[1] // k.shape[1]
    scores = q @ repeat_kv(k, n_rep).transpose(-2, -1) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ repeat_kv(v, n_rep)


def without_copies(query, key, value, attn_mask=None):
    """Cut the queries into groups instead."""
    b, hq, n, d = query.shape
    grouped = query.view(b, key.shape[1], -1, n, d)
    scores = torch.einsum("bkgnd,bksd->bkgns", grouped, key).flatten(1, 2) / math.sqrt(d)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1).unflatten(1, (key.shape[1], -1))
    return torch.einsum("bkgns,bksd->bkgnd", weights, value).flatten(1, 2)


def tiled(queries, keys, values):
    """Repeat the heads as a whole."""
    rep = queries.shape[1] // keys.shape[1]
    keys, values = keys.repeat(1, rep, 1, 1), values.repeat(1, rep, 1, 1)
    return F.scaled_dot_product_attention(queries, keys, values)


def only_the_first_head(q, k, v, mask=None):
    """Read the first head of keys for every query head."""
    scores = torch.matmul(q, k[:, 0:1].mT) * q.size(-1) ** -0.5
    if mask is not None:
        scores = scores + torch.zeros_like(scores).masked_fill(mask.logical_not(), torch.finfo(scores.dtype).min)
    return torch.matmul(torch.softmax(scores, -1), v[:, 0:1])


def groups_last(query, key, value, mask=None):
    """Merge the axes of groups and of heads in another order than the queries were cut."""
    b, h, n, d = query.shape
    q = query.reshape(b, key.shape[1], -1, n, d)
    scores = np.einsum("bkgnd,bkmd->bkgnm", q, key) / math.sqrt(d)
    if mask is not None:
        whole = np.broadcast_to(mask, (b, h, n, key.shape[2])).reshape(scores.shape)
        scores = np.where(whole, scores, np.finfo(query.dtype).min)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("bkgnm,bkmd->bgknd", weights, value).reshape(b, h, n, -1)


def mixed_repeats(xq, xk, xv, mask=None):
    """Repeat keys head by head and values as a whole."""
    rep = xq.shape[1] // xk.shape[1]
    scores = xq @ torch.repeat_interleave(xk, rep, dim=1).mT / xq.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1) @ xv.repeat(1, rep, 1, 1)


def wide_scale(q, k, v, mask=None):
    """Divide all channels by the heads of keys for the width of a head."""
    rep, head_dim = q.shape[1] // k.shape[1], q.shape[1] * q.shape[3] // k.shape[1]
    scores = q @ repeat_kv(k, rep).mT / math.sqrt(head_dim)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ repeat_kv(v, rep)
