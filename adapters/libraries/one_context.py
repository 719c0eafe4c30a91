"""Keys and values of two inputs for attentions that take both from one: side by side, with zeros where they cross."""

from collections.abc import Mapping

import torch
from torch import Tensor


def one_context(key: Tensor, value: Tensor, params: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return key and value side by side, and the parameters with w_k and w_v of as many rows.

    The rows of w_k that meet the value, and those of w_v that meet the key, are zeros, so the projections are those
    of the two inputs. RuntimeError where key and value differ in batch or length.
    """
    w_k, w_v = params["w_k"], params["w_v"]
    if key.shape[-1] != len(w_k) or value.shape[-1] != len(w_v):
        raise ValueError(f"key and value have {key.shape[-1]} and {value.shape[-1]} channels: {len(w_k)}, {len(w_v)}")
    wide = {
        "w_k": torch.cat([w_k, w_k.new_zeros(len(w_v), w_k.shape[1])]),
        "w_v": torch.cat([w_v.new_zeros(len(w_k), w_v.shape[1]), w_v]),
    }
    return torch.cat([key, value], dim=-1), {**params, **wide}
