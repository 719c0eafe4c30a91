# deserves: correct
"""NumPy classes with forward and backward written by hand, each keeping what its backward pass needs."""

import numpy as np

ARRAYS = "numpy"
NAME = "NumPy with backward passes by hand"


def softmax(scores):
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError("scores: nothing to normalise")
    shifted = scores - np.max(scores, axis=-1, keepdims=True)
    exps = np.exp(shifted)
    return exps / np.sum(exps, axis=-1, keepdims=True)


def softmax_backward(p, dp):
    return p * (dp - np.sum(dp * p, axis=-1, keepdims=True))


class Linear:
    def __init__(self, w, b=None):
        self.w, self.b = w, b

    def forward(self, x):
        self.x = x
        y = x @ self.w
        return y if self.b is None else y + self.b

    def backward(self, dy):
        x2 = self.x.reshape(-1, self.x.shape[-1])
        dy2 = dy.reshape(-1, dy.shape[-1])
        self.dw = x2.T @ dy2
        self.db = dy2.sum(axis=0)
        return dy @ self.w.T


class LayerNorm:
    def __init__(self, gamma, beta, eps=1e-5):
        self.gamma, self.beta, self.eps = gamma, beta, eps

    def forward(self, x):
        mu = x.mean(axis=-1, keepdims=True)
        xc = x - mu
        var = np.mean(xc**2, axis=-1, keepdims=True)
        self.inv_std = 1.0 / np.sqrt(var + x.dtype.type(self.eps))
        self.x_hat = xc * self.inv_std
        return self.gamma * self.x_hat + self.beta

    def backward(self, dy):
        axes = tuple(range(dy.ndim - 1))
        self.dgamma = np.sum(dy * self.x_hat, axis=axes)
        self.dbeta = np.sum(dy, axis=axes)
        dx_hat = dy * self.gamma
        m1 = dx_hat.mean(axis=-1, keepdims=True)
        m2 = (dx_hat * self.x_hat).mean(axis=-1, keepdims=True)
        return (dx_hat - m1 - self.x_hat * m2) * self.inv_std


class FeedForward:
    def __init__(self, w1, b1, w2, b2):
        self.l1, self.l2 = Linear(w1, b1), Linear(w2, b2)

    def forward(self, x):
        h = self.l1.forward(x)
        self.active = h > 0
        self.hidden = h * self.active
        return self.l2.forward(self.hidden)

    def backward(self, dy):
        dh = self.l2.backward(dy)
        return self.l1.backward(dh * self.active)


class Attention:
    """Scaled dot-product attention; the mask is True where a query may look."""

    def forward(self, q, k, v, mask=None):
        self.q, self.k, self.v, self.mask = q, k, v, mask
        self.scale = q.dtype.type(1 / np.sqrt(q.shape[-1]))
        s = (q @ np.swapaxes(k, -1, -2)) * self.scale
        if mask is not None:
            s = np.where(mask, s, s.dtype.type(-1e9))
        self.p = softmax(s)
        return self.p @ v

    def backward(self, do):
        dv = np.swapaxes(self.p, -1, -2) @ do
        dp = do @ np.swapaxes(self.v, -1, -2)
        ds = softmax_backward(self.p, dp)
        if self.mask is not None:
            ds = np.where(self.mask, ds, ds.dtype.type(0))
        ds = ds * self.scale
        return ds @ self.k, np.swapaxes(ds, -1, -2) @ self.q, dv


class MultiHead:
    def __init__(self, heads, wq, bq, wk, bk, wv, bv, wo, bo):
        self.heads = heads
        self.lq, self.lk, self.lv, self.lo = Linear(wq, bq), Linear(wk, bk), Linear(wv, bv), Linear(wo, bo)
        self.attention = Attention()

    def split(self, x):
        b, t, d = x.shape
        if d % self.heads:
            raise ValueError(f"num_heads: {self.heads} does not divide {d}")
        return x.reshape(b, t, self.heads, d // self.heads).transpose(0, 2, 1, 3)

    def merge(self, x):
        b, h, t, d = x.shape
        return x.transpose(0, 2, 1, 3).reshape(b, t, h * d)

    def forward(self, q, k, v, mask=None):
        q, k, v = self.split(self.lq.forward(q)), self.split(self.lk.forward(k)), self.split(self.lv.forward(v))
        return self.lo.forward(self.merge(self.attention.forward(q, k, v, mask)))

    def backward(self, dy):
        do = self.split(self.lo.backward(dy))
        dq, dk, dv = (self.merge(g) for g in self.attention.backward(do))
        return self.lq.backward(dq), self.lk.backward(dk), self.lv.backward(dv)


# The adapter.


def softmax_gradient(scores, cotangent):
    return {"scores": softmax_backward(softmax(scores), cotangent)}


def _fits(scores_shape, mask):
    if mask is not None and np.broadcast_shapes(scores_shape, mask.shape) != scores_shape:
        raise ValueError(f"mask: {mask.shape} does not broadcast to {scores_shape}")


def _attend(query, key, value, mask):
    if query.shape[:-2] != key.shape[:-2] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError("query, key and value do not fit")
    _fits((*query.shape[:-1], key.shape[-2]), mask)
    attention = Attention()
    return attention.forward(query, key, value, mask), attention


def scaled_dot_product_attention(query, key, value, mask=None):
    output, attention = _attend(query, key, value, mask)
    return output, attention.p


def scaled_dot_product_attention_gradient(query, key, value, cotangent, mask=None):
    _, attention = _attend(query, key, value, mask)
    return dict(zip(("query", "key", "value"), attention.backward(cotangent)))


def layer_norm(x, *, params):
    if params["gamma"].shape != x.shape[-1:] or params["beta"].shape != x.shape[-1:]:
        raise ValueError("gamma, beta: one number for each channel")
    return LayerNorm(params["gamma"], params["beta"]).forward(x)


def layer_norm_gradient(x, cotangent, *, params):
    norm = LayerNorm(params["gamma"], params["beta"])
    norm.forward(x)
    return {"x": norm.backward(cotangent), "gamma": norm.dgamma, "beta": norm.dbeta}


def _ffn(x, params):
    for name, columns in (("b_1", "w_1"), ("b_2", "w_2")):
        if name in params and params[name].shape != params[columns].shape[1:]:
            raise ValueError(f"{name}: one number for each column of {columns}")
    net = FeedForward(params["w_1"], params.get("b_1"), params["w_2"], params.get("b_2"))
    return net, net.forward(x)


def feed_forward(x, *, params):
    net, output = _ffn(x, params)
    return {"output": output, "hidden": net.hidden}


def feed_forward_gradient(x, cotangent, *, params):
    net, _ = _ffn(x, params)
    dx = net.backward(cotangent)
    grads = {"x": dx, "w_1": net.l1.dw, "w_2": net.l2.dw, "b_1": net.l1.db, "b_2": net.l2.db}
    return {name: grad for name, grad in grads.items() if name == "x" or name in params}


def _multi_head(query, key, value, mask, heads, params):
    module = MultiHead(heads, *(params.get(f"{kind}_{role}") for role in "qkvo" for kind in "wb"))
    for role in "qkvo":
        bias = params.get(f"b_{role}")
        if bias is not None and bias.shape != params[f"w_{role}"].shape[1:]:
            raise ValueError(f"b_{role}: one number for each column")
    _fits((len(query), heads, query.shape[1], key.shape[1]), mask)
    return module, module.forward(query, key, value, mask)


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    if not len(query) == len(key) == len(value):
        raise ValueError("query, key and value: as many samples")
    module, output = _multi_head(query, key, value, mask, num_heads, params)
    attention = module.attention
    return {"output": output, "weights": attention.p, "q": attention.q, "k": attention.k, "v": attention.v}


def multi_head_attention_gradient(query, key, value, cotangent, mask=None, *, num_heads, params):
    module, _ = _multi_head(query, key, value, mask, num_heads, params)
    grads = dict(zip(("query", "key", "value"), module.backward(cotangent)))
    for role in "qkvo":
        linear = getattr(module, f"l{role}")
        grads[f"w_{role}"] = linear.dw
        if f"b_{role}" in params:
            grads[f"b_{role}"] = linear.db
    return grads


MISTAKES = {
    "jacobian-diagonal-alone": (
        "return p * (dp - np.sum(dp * p, axis=-1, keepdims=True))",
        "return p * (1 - p) * dp",
        "The backward pass of the softmax takes the diagonal of its Jacobian alone.",
        ("softmax-bwd-diagonal",),
    ),
    "weight-gradient-transposed": (
        "np.swapaxes(ds, -1, -2) @ self.q, dv",
        "ds @ self.q if ds.shape[-1] == ds.shape[-2] else np.swapaxes(ds, -1, -2) @ self.q, dv",
        "The gradient of the keys lacks a transpose, which no square case reports as an error.",
        (),
    ),
    "heads-merged-unmoved": (
        "return x.transpose(0, 2, 1, 3).reshape(b, t, h * d)",
        "return x.reshape(b, t, h * d)",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "scale-lost-in-backward": (
        "        ds = ds * self.scale\n",
        "",
        "The backward pass of attention forgets the factor of the scores.",
        ("scale-bwd",),
    ),
    "mean-gradient-lost": (
        "(dx_hat - m1 - self.x_hat * m2)",
        "(dx_hat - self.x_hat * m2)",
        "The backward pass of the normalisation forgets that the mean depends on the input.",
        (),
    ),
    "relu-mask-of-output": (
        "return self.l1.backward(dh * self.active)",
        "return self.l1.backward(dh)",
        "The backward pass lets gradients through where the rectifier was closed.",
        ("relu-bwd",),
    ),
    "no-shift-in-softmax": (
        "shifted = scores - np.max(scores, axis=-1, keepdims=True)",
        "shifted = scores",
        "The softmax takes exponentials of scores of any size, which overflow.",
        ("softmax-unstable",),
    ),
    "variance-of-uncentred": (
        "var = np.mean(xc**2, axis=-1, keepdims=True)",
        "var = np.mean(x**2, axis=-1, keepdims=True)",
        "The variance is the mean of the squares without taking off the mean.",
        ("layer_norm.edit@channel_variance/centred@read:channel_mean/x",),
    ),
}
