"""Right backward passes by hand in NumPy, which named.yaml edits."""

import numpy as np

ARRAYS = "numpy"


def normalise(x):
    inverse = 1 / np.sqrt(np.var(x, axis=-1, keepdims=True) + x.dtype.type(1e-5))
    return (x - np.mean(x, axis=-1, keepdims=True)) * inverse, inverse


def layer_norm(x, *, params):
    return params["gamma"] * normalise(x)[0] + params["beta"]


def layer_norm_gradient(x, cotangent, *, params):
    normal, inverse = normalise(x)
    scaled = cotangent * params["gamma"]
    along = (scaled * normal).mean(-1, keepdims=True)
    axes = tuple(range(x.ndim - 1))
    return {
        "x": inverse * (scaled - scaled.mean(-1, keepdims=True) - normal * along),
        "gamma": (cotangent * normal).sum(axes),
        "beta": cotangent.sum(axes),
    }


def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def softmax_gradient(scores, cotangent):
    p = softmax(scores)
    return {"scores": p * (cotangent - (cotangent * p).sum(-1, keepdims=True))}


def feed_forward(x, *, params):
    hidden = np.maximum(x @ params["w_1"] + params.get("b_1", 0), 0).astype(x.dtype)
    return {"output": (hidden @ params["w_2"] + params.get("b_2", 0)).astype(x.dtype), "hidden": hidden}


def feed_forward_gradient(x, cotangent, *, params):
    hidden = feed_forward(x, params=params)["hidden"]
    back = (cotangent @ params["w_2"].T) * (hidden > 0)
    flat = {"x": x, "hidden": hidden, "back": back, "cotangent": cotangent}
    x2, hidden2, back2, cotangent2 = (array.reshape(-1, array.shape[-1]) for array in flat.values())
    found = {"x": back @ params["w_1"].T, "w_1": x2.T @ back2, "w_2": hidden2.T @ cotangent2}
    return found | {f"b_{i}": a.sum(0) for i, a in ((1, back2), (2, cotangent2)) if f"b_{i}" in params}
