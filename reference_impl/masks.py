"""The two masks of the Transformer, boolean, True = may attend.

``&`` combines two masks into one that keeps what both keep: ``causal_mask(seq, seq) & padding_mask(ids, pad_id)``
has the shape (batch, 1, seq, seq), and the size 1 serves every head.
"""

import torch
from torch import Tensor

from goldformer.reference_impl import _functional as functional
from goldformer.reference_impl._checks import check_ids, check_positive_int, check_special_id


def causal_mask(q_seq: int, kv_seq: int, *, device: torch.device | str | None = None) -> Tensor:
    """Let query i see keys 0 … i: itself and what comes before it.

    Formula:  mask[i, j] = (j ≤ i); where the lengths differ the diagonal starts in the top left corner
    Shapes:   → (q_seq, kv_seq), boolean
    Errors:   TypeError unless the lengths are ints; ValueError for one below 1
    Source:   primer 3.2, java "代码实现"; paper, section 3.2.3
    """
    check_positive_int("q_seq", q_seq)
    check_positive_int("kv_seq", kv_seq)
    return functional.causal_mask(q_seq, kv_seq, device=device)  # (q_seq, kv_seq)


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Hide the positions that hold the padding id, as keys, from every query of every head.

    Formula:  mask[b, 0, 0, j] = (ids[b, j] ≠ pad_id)
    Shapes:   ids (batch, seq) → (batch, 1, 1, seq), boolean
    Errors:   TypeError unless ids are int64 or int32 and pad_id is an int;
              ValueError for a shape that is not (batch, seq) or a pad_id that the dtype of ids cannot hold
    Source:   n9 "使用示例", where pad_id is 0
    """
    check_ids("ids", ids)
    check_special_id("pad_id", pad_id, "pads these ids", "ids", ids)
    return functional.padding_mask(ids, pad_id)  # (batch, 1, 1, seq)
