import numpy as np

ARRAYS = "numpy"


def layer_norm(x, params):
    if x.ndim > 1:
        raise NotImplementedError("only one row")
    return (x - x.mean()) / np.sqrt(x.var() + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]
