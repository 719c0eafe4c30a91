"""float32 inside, where a half type outside would not do."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """Widen float16 and bfloat16 to float32; the wider types stay as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
