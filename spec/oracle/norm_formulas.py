"""The formulas of normalisation in the edition decoder-only, written as formulas.py explains."""

from __future__ import annotations

from typing import Final

import numpy as np

from goldformer.spec.oracle.formulas import Number, Objects, scalar

#: RMS-4: the values of eps as a fraction; 1.19e-7 as float32 has it is 2⁻²³.
_EPS: Final = {"1e-6": (1, 10**6), "1e-5": (1, 10**5), "float32_eps": (1, 2**23)}


def rms_norm(
    number: Number,
    x: Objects,
    *,
    gamma: Objects,
    rms_norm_eps: str = "1e-6",
    rms_norm_eps_place: str = "inside",
    rms_norm_weight: str = "w",
) -> dict[str, Objects]:
    """RMS-1 … RMS-5: x/√(mean square + eps)·gamma, the sum of the squares divided by d_model."""
    above, below = _EPS[rms_norm_eps]
    eps = scalar(number(above) / number(below))
    mean_square = (x * x).sum(-1, keepdims=True) / scalar(number(x.shape[-1]))
    root = np.sqrt(mean_square) + eps if rms_norm_eps_place == "outside" else np.sqrt(mean_square + eps)
    weight = gamma + scalar(number(1)) if rms_norm_weight == "one_plus_w" else gamma
    return {"output": x / root * weight}
