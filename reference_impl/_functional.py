"""The computations without parameters, each written once, in the order in which the data flows.

Nothing is checked here. The public function of the same name checks its arguments, calls the one here, and documents
formula, shapes, errors and source. The modules call these functions after they have checked their own arguments.
"""

import math

import torch
from torch import Tensor

from goldformer.reference_impl._random import Dropping, skip_dropout


def widen(x: Tensor) -> Tensor:
    """Widen float16 and bfloat16 to float32; leave wider types as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Map row vectors: y = x·W + b, with W of (in, out).

    Shapes:   x (..., in), w (in, out), b (out,) → (..., out)
    """
    y = x @ w  # (..., out)
    return y if b is None else y + b


def activate(x: Tensor, activation: str) -> Tensor:
    """Apply the function between the two maps of a feed-forward network: ReLU, GELU in two forms, or SiLU."""
    if activation == "gelu":
        return x * (1 + (x / math.sqrt(2)).erf()) / 2
    if activation == "gelu_tanh":
        return x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2
    return x * x.sigmoid() if activation == "silu" else x.relu()


# From ids to vectors


def token_embedding(ids: Tensor, table: Tensor, fixed_id: int | None = None) -> Tensor:
    """Look up the row of each id; the places of ``fixed_id`` add nothing to the gradient of the table."""
    rows = table[ids]  # (batch, seq, d_model)
    if fixed_id is None:
        return rows
    # Not padding_idx of nn.functional.embedding: it must be a row of the table, and a pad_id need not be.
    return rows.detach().where((ids == fixed_id)[..., None], rows)  # (batch, seq, d_model)


def sinusoid_table(seq: int, d_model: int, *, dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """Encode the positions as sines and cosines."""
    # A sine forgets whole turns but not the error of its angle, and an angle near 5000 is rounded in steps of
    # 0.0005 by float32, 4 by float16 and 32 by bfloat16: five turns. So angles, sines and cosines are computed in
    # float64, and the result is rounded to the dtype asked for.
    channel = torch.arange(d_model, device=device)  # (d_model,)
    widest = choose_angle_dtype(channel.device)
    position = torch.arange(seq, dtype=widest, device=device)[:, None]  # (seq, 1)
    two_i = (channel - channel % 2).to(widest)  # (d_model,): 0 0 2 2 4 4 …, a pair shares its angle
    angle = position / 10000.0 ** (two_i / d_model)  # (seq, d_model)
    table = torch.where(channel % 2 == 0, angle.sin(), angle.cos())  # (seq, d_model)
    return table.to(dtype)


def choose_angle_dtype(device: torch.device) -> torch.dtype:
    """Return the widest dtype of a device: float64, but float32 on mps, which has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def positional_encoding(x: Tensor) -> Tensor:
    """Add the row of its position to each vector."""
    _, seq, d_model = x.shape
    return x + sinusoid_table(seq, d_model, dtype=x.dtype, device=x.device)  # (batch, seq, d_model)


# Masks, True = may attend


def causal_mask(q_seq: int, kv_seq: int, *, device: torch.device | str | None) -> Tensor:
    """Let query i see keys 0 … i."""
    query_position = torch.arange(q_seq, device=device)[:, None]  # (q_seq, 1)
    key_position = torch.arange(kv_seq, device=device)  # (kv_seq,)
    return key_position <= query_position  # (q_seq, kv_seq)


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Hide the positions that hold the padding id, as keys."""
    return (ids != pad_id)[:, None, None, :]  # (batch, 1, 1, seq)


# Attention


def attention_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compute QKᵀ."""
    return query @ key.transpose(-2, -1)  # (..., q_seq, kv_seq)


def scaled_scores(query: Tensor, key: Tensor) -> Tensor:
    """Compute QKᵀ / √d_k."""
    # √d_k stays a Python number. A tensor made here would sit on the CPU and fail against CUDA scores: the code of
    # n9 and illustrated has that fault.
    return attention_scores(query, key) / math.sqrt(query.shape[-1])  # (..., q_seq, kv_seq)


def softmax(scores: Tensor) -> Tensor:
    """Compute exp(s_j) / Σ_k exp(s_k) over the last axis."""
    # exp overflows from 89 on in float32 and from 12 on in float16. Adding one number to a whole row changes
    # nothing in the formula, so the largest score is moved to 0: every exp lies in [0, 1], and the sum is at
    # least 1, never the 0 of a row that underflowed. The shift cancels in the formula and in its
    # derivative, hence detach: the gradient through the maximum would be pure rounding.
    largest = scores.amax(dim=-1, keepdim=True).detach()  # (..., 1)
    exponentials = (scores - largest).exp()  # (..., n)
    total = exponentials.sum(dim=-1, keepdim=True)  # (..., 1)
    return exponentials / total  # (..., n)


def log_softmax(scores: Tensor) -> Tensor:
    """Compute s_j − log Σ_k exp(s_k) over the last axis."""
    # As in softmax the largest score is moved to 0. The logarithm of the quotient would be −inf where the quotient
    # is rounded to 0; the difference of the logarithms is right there too. float32 for the half types: the sum
    # of a vocabulary of 65505 words is beyond float16.
    rows = widen(scores)  # (..., n)
    moved = rows - rows.amax(dim=-1, keepdim=True).detach()  # (..., n)
    total = moved.exp().sum(dim=-1, keepdim=True)  # (..., 1)
    return (moved - total.log()).to(scores.dtype)  # (..., n)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: Dropping = skip_dropout,
) -> tuple[Tensor, Tensor]:
    """Compute softmax(QKᵀ / √d_k) V, and return it with the weights."""
    scores = scaled_scores(query, key)  # (..., q_seq, kv_seq)
    if mask is not None:
        # Masked scores become the most negative finite number of their dtype.
        #   Not −1e9 (java), −1e10 (n9) or −9e15 (walkthrough): float16 ends at −65504 and cannot hold them.
        #   Not −1e4 either, which float16 has: a kept score of −1.2e4 would lose to the masked ones.
        #   Not −inf: in a row without a key the maximum would be −inf, −inf − (−inf) is NaN, and so would be
        #   every gradient after it. A finite fill makes all weights of that row equal: the documents' 1/kv_seq.
        # Next to a kept score exp makes exactly 0 of the fill, in every dtype, unless that score is the most
        # negative number itself: its next neighbour in float16 is already 32 away, and exp(−32) rounds to 0.
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = softmax(scores)  # (..., q_seq, kv_seq)
    # Not normalised again: with dropout the rows sum to 1 on average only.
    output = dropout(weights) @ value  # (..., q_seq, d_v)
    return output, weights


# Heads


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Cut the channels into one contiguous block per head, and put the heads before the positions."""
    # Two steps. Reshaping (batch, seq, heads·d) to (batch, heads, seq, d) at once has the right shape and
    # mixes positions with heads.
    batch, seq, width = x.shape
    blocks = x.reshape(batch, seq, num_heads, width // num_heads)  # (batch, seq, heads, d)
    return blocks.transpose(1, 2)  # (batch, heads, seq, d)


def merge_heads(x: Tensor) -> Tensor:
    """Lay the heads side by side again."""
    return x.transpose(1, 2).flatten(-2)  # (batch, seq, heads·d)


def project_heads(x: Tensor, w: Tensor, b: Tensor | None, num_heads: int) -> Tensor:
    """Project every position to the queries, the keys or the values of all heads."""
    return split_heads(affine(x, w, b), num_heads)  # (batch, heads, seq, d)


def cut_fused(qkv: Tensor, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cut a fused projection into the queries, keys and values of every head."""
    # Heads first, then q, k and v within each: the order of the columns.
    q, k, v = split_heads(qkv, num_heads).chunk(3, dim=-1)  # 3 × (batch, heads, seq, d_k)
    return q, k, v
