# deserves: correct
"""A NumPy project that trains an encoder: each layer has forward, backward and a list of parameters and gradients."""

import numpy as np

ARRAYS = "numpy"
NAME = "an encoder trained in NumPy"


class Affine:
    def __init__(self, W, b):
        self.params = [W, b]
        self.grads = [np.zeros_like(W), np.zeros_like(b)]

    def forward(self, x):
        W, b = self.params
        if b.shape != W.shape[1:]:
            raise ValueError("b: one number for each column of W")
        self.x = x
        return np.matmul(x, W) + b

    def backward(self, dout):
        W, _ = self.params
        flat_x, flat_d = self.x.reshape(-1, W.shape[0]), dout.reshape(-1, W.shape[1])
        self.grads[0][...] = flat_x.T @ flat_d
        self.grads[1][...] = flat_d.sum(axis=0)
        return np.matmul(dout, W.T)


class Normalise:
    def __init__(self, gamma, beta):
        self.params = [gamma, beta]
        self.grads = [np.zeros_like(gamma), np.zeros_like(beta)]

    def forward(self, x):
        gamma, beta = self.params
        if gamma.shape != x.shape[-1:] or beta.shape != x.shape[-1:]:
            raise ValueError("gamma, beta: one number for each channel")
        d = x - x.mean(-1, keepdims=True)
        self.std = np.sqrt((d * d).mean(-1, keepdims=True) + x.dtype.type(1e-5))
        self.xn = d / self.std
        return gamma * self.xn + beta

    def backward(self, dout):
        gamma, _ = self.params
        self.grads[0][...] = (dout * self.xn).reshape(-1, len(gamma)).sum(0)
        self.grads[1][...] = dout.reshape(-1, len(gamma)).sum(0)
        dxn = dout * gamma
        width = dout.dtype.type(len(gamma))
        inner = dxn.sum(-1, keepdims=True) + self.xn * (dxn * self.xn).sum(-1, keepdims=True)
        return (dxn - inner / width) / self.std


class Relu:
    def forward(self, x):
        self.mask = x <= 0
        out = x.copy()
        out[self.mask] = 0
        return out

    def backward(self, dout):
        dx = dout.copy()
        dx[self.mask] = 0
        return dx


class SelfAttention:
    def __init__(self, heads, affines):
        self.heads = heads
        self.q, self.k, self.v, self.o = affines

    def cut(self, x):
        if x.shape[2] % self.heads:
            raise ValueError("num_heads: does not divide the width")
        return np.moveaxis(x.reshape(*x.shape[:2], self.heads, -1), 2, 1)

    def join(self, x):
        return np.moveaxis(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)

    def forward(self, x, look=None):
        self.Q, self.K, self.V = (self.cut(layer.forward(x)) for layer in (self.q, self.k, self.v))
        self.root = x.dtype.type(self.Q.shape[-1] ** 0.5)
        S = self.Q @ self.K.transpose(0, 1, 3, 2) / self.root
        self.look = np.ones(S.shape, bool) if look is None else np.broadcast_to(look, S.shape)
        S = np.where(self.look, S, np.finfo(S.dtype).min)
        E = np.exp(S - S.max(-1, keepdims=True))
        self.A = E / E.sum(-1, keepdims=True)
        return self.o.forward(self.join(self.A @ self.V))

    def backward(self, dout):
        dC = self.cut(self.o.backward(dout))
        dA = dC @ self.V.transpose(0, 1, 3, 2)
        dV = self.A.transpose(0, 1, 3, 2) @ dC
        dS = self.A * (dA - (dA * self.A).sum(-1, keepdims=True))
        dS = np.where(self.look, dS, 0).astype(dS.dtype) / self.root
        dQ = dS @ self.K
        dK = dS.transpose(0, 1, 3, 2) @ self.Q
        return self.q.backward(self.join(dQ)) + self.k.backward(self.join(dK)) + self.v.backward(self.join(dV))


class EncoderLayer:
    def __init__(self, heads, attention, norm1, affine1, affine2, norm2):
        self.attention = SelfAttention(heads, attention)
        self.norm1, self.affine1, self.relu, self.affine2, self.norm2 = norm1, affine1, Relu(), affine2, norm2

    def forward(self, x, look=None):
        self.mid = self.norm1.forward(x + self.attention.forward(x, look))
        hidden = self.relu.forward(self.affine1.forward(self.mid))
        return self.norm2.forward(self.mid + self.affine2.forward(hidden))

    def backward(self, dout):
        dsum = self.norm2.backward(dout)
        dmid = dsum + self.affine1.backward(self.relu.backward(self.affine2.backward(dsum)))
        dsum = self.norm1.backward(dmid)
        return dsum + self.attention.backward(dsum)


class SoftmaxWithLoss:
    def __init__(self, ignore_label):
        self.ignore_label = ignore_label

    def forward(self, xs, ts):
        self.keep = ts != self.ignore_label
        shifted = xs - xs.max(-1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        self.p, self.ts = np.exp(log_p), ts
        each = -np.take_along_axis(log_p, ts[..., None], -1)[..., 0] * self.keep
        return each.sum() / self.keep.sum(dtype=xs.dtype), each

    def backward(self, dout=1):
        dx = self.p.copy()
        rows = np.take_along_axis(dx, self.ts[..., None], -1) - 1
        np.put_along_axis(dx, self.ts[..., None], rows, -1)
        return dx * self.keep[..., None] * dout / self.keep.sum(dtype=dx.dtype)


# The adapter.


def _affine(params, weight):
    W = params[weight]
    head, _, tail = weight.rpartition("w_")
    b = params.get(f"{head}b_{tail}")
    return Affine(W, np.zeros(W.shape[1], W.dtype) if b is None else b)


def _layer(num_heads, params):
    return EncoderLayer(
        num_heads,
        [_affine(params, f"self_attention.w_{role}") for role in "qkvo"],
        Normalise(params["norm_1.gamma"], params["norm_1.beta"]),
        _affine(params, "feed_forward.w_1"),
        _affine(params, "feed_forward.w_2"),
        Normalise(params["norm_2.gamma"], params["norm_2.beta"]),
    )


def _grads(layer, params):
    attention = layer.attention
    places = {f"self_attention.{{}}_{role}": getattr(attention, role) for role in "qkvo"}
    places |= {"feed_forward.{}_1": layer.affine1, "feed_forward.{}_2": layer.affine2}
    found = {}
    for name, affine in places.items():
        found[name.format("w")], found[name.format("b")] = affine.grads
    for i, norm in ((1, layer.norm1), (2, layer.norm2)):
        found[f"norm_{i}.gamma"], found[f"norm_{i}.beta"] = norm.grads
    return {name: grad for name, grad in found.items() if name in params}


def encoder_layer(x, mask=None, *, num_heads, params):
    layer = _layer(num_heads, params)
    output = layer.forward(x, mask)
    return {"output": output, "attended": layer.mid, "weights": layer.attention.A}


def encoder_layer_gradient(x, cotangent, mask=None, *, num_heads, params):
    layer = _layer(num_heads, params)
    layer.forward(x, mask)
    return {"x": layer.backward(cotangent)} | _grads(layer, params)


def layer_norm(x, *, params):
    return Normalise(params["gamma"], params["beta"]).forward(x)


def layer_norm_gradient(x, cotangent, *, params):
    norm = Normalise(params["gamma"], params["beta"])
    norm.forward(x)
    return {"x": norm.backward(cotangent), "gamma": norm.grads[0], "beta": norm.grads[1]}


def cross_entropy(logits, targets, *, pad_id):
    if logits.shape[:2] != targets.shape:
        raise ValueError("targets: one for each row")
    if targets.min() < 0 or targets.max() >= logits.shape[2]:
        raise ValueError("targets: ids below the size of the vocabulary")
    return SoftmaxWithLoss(pad_id).forward(logits, targets)


def cross_entropy_gradient(logits, targets, cotangent, *, pad_id):
    loss = SoftmaxWithLoss(pad_id)
    loss.forward(logits, targets)
    return {"logits": loss.backward(cotangent)}


MISTAKES = {
    "residual-gradient-lost": (
        "        return dsum + self.attention.backward(dsum)",
        "        return self.attention.backward(dsum)",
        "The backward pass forgets the residual around the attention.",
        ("residual-bwd",),
    ),
    "mid-gradient-lost": (
        "dmid = dsum + self.affine1.backward(",
        "dmid = self.affine1.backward(",
        "The backward pass forgets the residual around the feed-forward network.",
        ("residual-bwd",),
    ),
    "feed-forward-of-input": (
        "hidden = self.relu.forward(self.affine1.forward(self.mid))",
        "hidden = self.relu.forward(self.affine1.forward(x))",
        "The feed-forward network reads the layer's input.",
        ("encoder_layer.edit@feed_through/x@read:add_residual/x",),
    ),
    "joined-without-moving": (
        "return np.moveaxis(x, 1, 2).reshape(x.shape[0], x.shape[2], -1)",
        "return x.reshape(x.shape[0], x.shape[2], -1)",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "value-gradient-transposed": (
        "dV = self.A.transpose(0, 1, 3, 2) @ dC",
        "dV = self.A @ dC",
        "The gradient of the values lacks a transpose of the weights.",
        (),
    ),
    "unbiased-variance": (
        "np.sqrt((d * d).mean(-1, keepdims=True) + x.dtype.type(1e-5))",
        "np.sqrt((d * d).sum(-1, keepdims=True) / (d.shape[-1] - 1) + x.dtype.type(1e-5))",
        "The variance is divided by one less than the width.",
        ("ln-unbiased",),
    ),
    "loss-over-all": (
        "return each.sum() / self.keep.sum(dtype=xs.dtype), each",
        "return each.mean(), each",
        "The loss is divided by the number of all tokens, padding included.",
        ("loss-pad-denominator",),
    ),
    "loss-gradient-of-padding": (
        "return dx * self.keep[..., None] * dout",
        "return dx * dout",
        "Padding has a gradient in the loss.",
        (),
    ),
}
