"""Functions and classes whose call has a switch that hides later tokens."""

import math

import torch
from defective_parts import BlockOfNoMask
from torch import nn
from torch.nn import functional


def flash(q, k, v, causal=False):
    """Take no mask, only the switch."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1) @ v


def flash_from_the_end(q, k, v, causal):
    """With fewer queries than keys, let the last query see every key, as kernels do."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        later = torch.ones_like(scores, dtype=torch.bool).triu(1 + k.shape[-2] - q.shape[-2])
        scores = scores.masked_fill(later, -math.inf)
    return scores.softmax(-1) @ v


def attend_with_both(q, k, v, mask=None, is_causal: bool = True):
    """Hide later tokens unless the call says otherwise, and take a mask too."""
    return functional.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal)


def flash_one_too_far(q, k, v, causal=False):
    """See the next token too: a mistake that only the switch shows."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(2), -math.inf)
    return scores.softmax(-1) @ v


def attend_with_both_one_too_far(q, k, v, mask=None, is_causal=False):
    """Make the same mistake next to a mask that is right."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        mask = torch.ones_like(scores, dtype=torch.bool).tril(1)
    return functional.scaled_dot_product_attention(q, k, v, mask)


class SwitchedLayer(nn.Module):
    """A layer that hands the switch on to its attention."""

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.heads, self.qkv, self.proj = num_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.fc1, self.fc2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, is_causal=False):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        x = self.norm1(x + self.proj(flash(q, k, v, is_causal).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.fc2(self.fc1(x).relu()))


def attend_with_hint(q, k, v, mask=None, is_causal=False):
    """Take the switch as a hint on the mask, which comes all the same."""
    if is_causal and mask is None:
        raise ValueError("is_causal needs the mask")
    return functional.scaled_dot_product_attention(q, k, v, mask)


class ChoosesItsMask(BlockOfNoMask):
    """It makes a causal mask for the calls in which it is a decoder, which it is not here."""

    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__(n_embd, n_head, block_size)
        self.is_decoder = False

    def hide(self, scores):
        return super().hide(scores) if self.is_decoder else scores


class SeesABand(BlockOfNoMask):
    """It hides what is far away, and no golden case is as long as that."""

    def hide(self, scores):
        near = torch.ones_like(scores, dtype=torch.bool).tril(500).triu(-500)
        return scores.masked_fill(~near, -1e9)


def kernel_of_one_width(query, key, value, causal=True):
    """A kernel of four axes: its output is allocated as the query is, so values must be as wide as keys."""
    _batch, _heads, rows, width = query.shape
    scores = query @ key.mT / math.sqrt(width)
    if causal:
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = scores.masked_fill(columns > torch.arange(rows, device=query.device)[:, None], -math.inf)
    output = torch.empty_like(query)
    output[:] = scores.softmax(-1) @ value
    return output


def attend_with_bias(q, k, v, mask=None, causal=False, attn_bias=None):
    """Attention of four axes with a mask, a switch, and a bias that nobody passes."""
    _batch, _heads, rows, width = q.shape
    scores = q @ k.mT * width**-0.5
    scores = scores if attn_bias is None else scores + attn_bias
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.finfo(scores.dtype).max)
    if causal:
        columns = torch.arange(k.shape[-2], device=q.device)
        scores = scores.masked_fill(
            columns > torch.arange(rows, device=q.device)[:, None], -torch.finfo(scores.dtype).max
        )
    return scores.softmax(-1) @ v
