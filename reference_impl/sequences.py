"""Sequences of one length, and the target shifted to the right for the decoder."""

import torch
from torch import Tensor

from goldformer.reference_impl._checks import check_ids, check_positive_int, check_special_id, check_tensors


def pad_or_truncate(x: Tensor, length: int) -> Tensor:
    """Bring the sequences to one length: cut them off there, or append zero rows up to it.

    Formula:  output[b, t] = x[b, t] for t < seq, 0 for the rest up to length
    Shapes:   x (batch, seq, d_model) → (batch, length, d_model)
    Errors:   TypeError unless x is a floating-point tensor and length an int;
              ValueError unless x has three axes, all not empty, or for a length below 1
    Source:   illustrated, on the list of vectors that enters the encoder
    """
    check_tensors({"x": (x, "batch seq d_model")})
    check_positive_int("length", length)

    batch, seq, d_model = x.shape
    missing = x.new_zeros(batch, max(length - seq, 0), d_model)  # (batch, length − seq, d_model)
    return torch.cat((x[:, :length], missing), dim=1)  # (batch, length, d_model)


def shift_right(ids: Tensor, bos_id: int) -> Tensor:
    """Shift a target to the right: before each word the decoder reads the word before it, and bos_id before the first.

    Formula:  output[b, 0] = bos_id,  output[b, t] = ids[b, t − 1]; the last id is dropped
    Shapes:   ids (batch, seq) → (batch, seq), in the dtype of ids
    Errors:   TypeError unless ids are int64 or int32 and bos_id is an int;
              ValueError for a shape that is not (batch, seq) or a bos_id that the dtype of ids cannot hold
    Source:   illustrated, on the decoder's self-attention; paper, section 3.1 and figure 1
    """
    check_ids("ids", ids)
    check_special_id("bos_id", bos_id, "begins these ids", "ids", ids)

    first = torch.full_like(ids[:, :1], bos_id)  # (batch, 1)
    return torch.cat((first, ids[:, :-1]), dim=1)  # (batch, seq)
