"""Join keys and values for attentions that project both from one input."""

from collections.abc import Mapping

import torch
from torch import Tensor


def join_context(key: Tensor, value: Tensor, params: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Concatenate key and value, and pad w_k and w_v with rows of zeros, so that the projections stay the same.

    RuntimeError if key and value differ in batch or length.
    """
    w_k, w_v = params["w_k"], params["w_v"]
    if key.shape[-1] != len(w_k) or value.shape[-1] != len(w_v):
        raise ValueError(f"key and value have {key.shape[-1]} and {value.shape[-1]} channels: {len(w_k)}, {len(w_v)}")
    wide = {
        "w_k": torch.cat([w_k, w_k.new_zeros(len(w_v), w_k.shape[1])]),
        "w_v": torch.cat([w_v.new_zeros(len(w_k), w_v.shape[1]), w_v]),
    }
    return torch.cat([key, value], dim=-1), {**params, **wide}
