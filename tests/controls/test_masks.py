"""Masks, ids and sequences made otherwise, exact in every element: no case and no property may accuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from controls import NUMPY, controls_of, in_each_dtype

BOTTOM_RIGHT = {"causal_corner": "bottom_right"}


# Causal masks, from the top left corner


def lower_triangle(*, q_seq, kv_seq):
    return torch.ones(q_seq, kv_seq).tril().bool()


def no_upper_triangle(*, q_seq, kv_seq):
    return ~torch.triu(torch.ones(q_seq, kv_seq, dtype=torch.bool), diagonal=1)


def upper_triangle_equal_to_zero(*, q_seq, kv_seq):
    """As the Annotated Transformer has it."""
    return torch.from_numpy(np.triu(np.ones((q_seq, kv_seq)), k=1).astype("uint8")) == 0


def positions_compared(*, q_seq, kv_seq):
    return torch.arange(q_seq).unsqueeze(1) >= torch.arange(kv_seq).unsqueeze(0)


def filled_with_minus_infinity(*, q_seq, kv_seq):
    """As nn.Transformer has it, but for any lengths."""
    return torch.full((q_seq, kv_seq), float("-inf")).triu(1) == 0


def counted_ones(*, q_seq, kv_seq):
    """A key is seen once the diagonal has passed it."""
    return torch.eye(max(q_seq, kv_seq), dtype=torch.long)[:q_seq, :kv_seq].cumsum(0) > 0


def sliced_from_a_buffer(*, q_seq, kv_seq):
    """As minGPT keeps it, for a longest sequence."""
    return torch.tril(torch.ones(2048, 2048)).view(1, 1, 2048, 2048)[0, 0, :q_seq, :kv_seq] != 0


def written_in_a_loop(*, q_seq, kv_seq):
    mask = torch.zeros(q_seq, kv_seq, dtype=torch.bool)
    for i in range(q_seq):
        mask[i, : i + 1] = True
    return mask


def numpy_triangle(*, q_seq, kv_seq):
    return np.tri(q_seq, kv_seq, dtype=bool)


def numpy_outer_comparison(*, q_seq, kv_seq):
    return np.greater_equal.outer(np.arange(q_seq), np.arange(kv_seq))


def shifted_triangle(*, q_seq, kv_seq):
    """As flash attention has it: the last query sees every key."""
    return torch.ones(q_seq, kv_seq, dtype=torch.bool).tril(diagonal=kv_seq - q_seq)


def last_rows_of_the_square(*, q_seq, kv_seq):
    """As a cache of keys wants it, for queries that may outnumber the keys."""
    longest = max(q_seq, kv_seq)
    return torch.ones(longest, longest).tril().bool()[longest - q_seq :, longest - kv_seq :]


# Padding masks


def not_padding(ids, *, pad_id):
    return (ids != pad_id).unsqueeze(1).unsqueeze(2)


def neither_below_nor_above(ids, *, pad_id):
    return ~torch.eq(ids, pad_id)[:, None, None]


def viewed(ids, *, pad_id):
    return ids.ne(pad_id).view(ids.shape[0], 1, 1, -1)


def expanded_but_for_two_axes(ids, *, pad_id):
    return torch.where(ids == pad_id, 0, 1).bool()[:, None, None, :]


def from_lists(ids, *, pad_id):
    return torch.tensor([[[[word != pad_id for word in row]]] for row in ids.tolist()], device=ids.device)


def numpy_not_padding(ids, *, pad_id):
    return np.expand_dims(ids != pad_id, (1, 2))


# Sequences


def pad_or_cut(x, *, length):
    return F.pad(x, (0, 0, 0, length - x.shape[1]))


def copied_into_zeros(x, *, length):
    out = x.new_zeros(x.shape[0], length, x.shape[2])
    kept = min(length, x.shape[1])
    out[:, :kept] = x[:, :kept]
    return out


def zeros_appended_and_cut(x, *, length):
    return torch.cat([x, torch.zeros_like(x[:, :1]).expand(-1, length, -1)], dim=1)[:, :length]


def packed_and_unpacked(x, *, length):
    rows = [row[:length] for row in x] + [x.new_zeros(length, x.shape[2])]
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)[:-1]


def numpy_resized(x, *, length):
    out = np.pad(x, ((0, 0), (0, length), (0, 0)))
    return np.ascontiguousarray(out[:, :length])


def rolled(ids, *, bos_id):
    """As Hugging Face has it."""
    shifted = ids.new_zeros(ids.shape)
    shifted[:, 1:] = ids[:, :-1].clone()
    shifted[:, 0] = bos_id
    return shifted


def concatenated(ids, *, bos_id):
    return torch.cat([torch.full_like(ids[:, :1], bos_id), ids[:, :-1]], dim=1)


def padded_in_front(ids, *, bos_id):
    return F.pad(ids, (1, 0), value=bos_id)[:, :-1]


def torch_roll(ids, *, bos_id):
    return ids.roll(1, dims=1).index_fill(1, ids.new_zeros(1), bos_id)


def numpy_inserted(ids, *, bos_id):
    return np.insert(ids, 0, bos_id, axis=1)[:, :-1]


# One-hot rows and embeddings


def torchs_one_hot(ids, *, vocab):
    return F.one_hot(ids, vocab)


def compared_with_every_word(ids, *, vocab):
    return (ids[..., None] == torch.arange(vocab, device=ids.device)).long()


def scattered(ids, *, vocab):
    return torch.zeros(*ids.shape, vocab, dtype=torch.long, device=ids.device).scatter_(-1, ids[..., None], 1)


def rows_of_the_identity(ids, *, vocab):
    return torch.eye(vocab, dtype=torch.int64, device=ids.device)[ids]


def numpy_identity(ids, *, vocab):
    return np.eye(vocab, dtype=np.int64)[ids]


def embedding_module(ids, *, params):
    vocab, d_model = params["table"].shape
    layer = nn.Embedding(vocab, d_model, device="meta")
    return torch.func.functional_call(layer, {"weight": params["table"]}, (ids,))


def indexed(ids, *, params):
    return params["table"][ids]


def gathered(ids, *, params):
    table = params["table"]
    return table.gather(0, ids.reshape(-1, 1).expand(-1, table.shape[1])).view(*ids.shape, -1)


def selected_and_viewed(ids, *, params):
    return params["table"].index_select(0, ids.flatten()).unflatten(0, ids.shape)


def one_hot_times_the_table(ids, *, params):
    """Products with 0 and 1 and sums with 0 are exact."""
    return F.one_hot(ids, len(params["table"])).to(params["table"].dtype) @ params["table"]


def numpy_taken(ids, *, params):
    return np.take(params["table"], ids, axis=0)


def numpy_one_hot_einsum(ids, *, params):
    table = params["table"]
    return np.einsum("btv,vd->btd", np.eye(len(table), dtype=table.dtype)[ids], table)


def scaled_embedding(ids, *, params):
    """As the Annotated Transformer has it."""
    return F.embedding(ids, params["table"]) * params["table"].shape[1] ** 0.5


def table_scaled_beforehand(ids, *, params):
    return F.embedding(ids, params["table"].mul(params["table"].shape[1] ** 0.5))


Written = tuple[Callable[..., Any], ...]
WITHOUT_FLOATS: dict[str, Written] = {
    "causal_mask": (
        lower_triangle, no_upper_triangle, upper_triangle_equal_to_zero, positions_compared,
        filled_with_minus_infinity, counted_ones, sliced_from_a_buffer, written_in_a_loop,
    ),
    "padding_mask": (not_padding, neither_below_nor_above, viewed, expanded_but_for_two_axes, from_lists),
    "shift_right": (rolled, concatenated, padded_in_front, torch_roll),
    "one_hot": (torchs_one_hot, compared_with_every_word, scattered, rows_of_the_identity),
}  # fmt: skip
NUMPY_WITHOUT_FLOATS: dict[str, Written] = {
    "causal_mask": (numpy_triangle, numpy_outer_comparison),
    "padding_mask": (numpy_not_padding,),
    "shift_right": (numpy_inserted,),
    "one_hot": (numpy_identity,),
}
BROUGHT = (pad_or_cut, copied_into_zeros, zeros_appended_and_cut, packed_and_unpacked)
LOOKED_UP = (embedding_module, indexed, gathered, selected_and_viewed, one_hot_times_the_table)
SCALED = (scaled_embedding, table_scaled_beforehand)
#: Where there are no floats one dtype is as good as all.
ONE = ("float32",)
IN_NUMPY = {"dtypes": NUMPY, "arrays": "numpy"}
CONTROLS = [
    *(c for name, written in WITHOUT_FLOATS.items() for c in controls_of(name, written, dtypes=ONE)),
    *(
        c
        for name, written in NUMPY_WITHOUT_FLOATS.items()
        for c in controls_of(name, written, dtypes=ONE, arrays="numpy")
    ),
    *controls_of("causal_mask", (shifted_triangle, last_rows_of_the_square), conventions=BOTTOM_RIGHT, dtypes=ONE),
    *controls_of("pad_or_truncate", BROUGHT),
    *controls_of("pad_or_truncate", (numpy_resized,), **IN_NUMPY),
    *controls_of("token_embedding", LOOKED_UP),
    *controls_of("token_embedding", (numpy_taken, numpy_one_hot_einsum), **IN_NUMPY),
    *controls_of("token_embedding", SCALED, conventions={"embedding_scale": "sqrt_d_model"}),
]


@pytest.mark.sample(30)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_what_is_exact_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)
