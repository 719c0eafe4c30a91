"""gamma is multiplied twice"""

import numpy as np

ARRAYS = "numpy"


def _kernel(row, weight):
    scale = 1.0 / np.sqrt(np.vdot(row, row) / row.size + 1e-6)
    return (row * scale * weight).astype(row.dtype)


def rms_norm(x, params):
    flat = x.reshape(-1, x.shape[-1])
    rows = [_kernel(row, params["gamma"]) for row in flat]
    return np.stack(rows).reshape(x.shape) * params["gamma"]
