"""the variance is not rooted"""

import numpy as np

ARRAYS = "numpy"


def layer_norm(x, params):
    mu = np.einsum("...d->...", x)[..., None] / x.shape[-1]
    c = x - mu
    v = np.einsum("...d,...d->...", c, c)[..., None] / x.shape[-1]
    return (params["gamma"] * c / (v + np.float32(1e-5)) + params["beta"]).astype(x.dtype)
