"""the sine of the first channel is added, not subtracted"""

import numpy as np

ARRAYS = "numpy"


def rotary_embedding(x, positions, base=None, rotary_width=None):
    w = x.shape[-1] if rotary_width is None else rotary_width
    theta = (10000.0 if base is None else base) ** (-2.0 * np.arange(w // 2) / w)
    angle = np.asarray(positions, dtype=np.float64)[..., np.newaxis] * theta
    c, s = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    out = x.copy()
    out[..., 0:w:2] = x[..., 0:w:2] * c + x[..., 1:w:2] * s
    out[..., 1:w:2] = x[..., 1:w:2] * c + x[..., 0:w:2] * s
    return out
