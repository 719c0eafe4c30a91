# deserves: variant layer_norm_eps=1e-12, empty_row=unspecified
"""Layer classes with add_weight, build and call as in a framework's examples, masks added as −10000, output tied to the table."""

import numpy as np

ARRAYS = "numpy"
NAME = "blocks with build and call"
DTYPES = ("float64", "float32")


class Layer:
    def __init__(self):
        self._weights = {}

    def add_weight(self, name, shape, dtype="float32"):
        self._weights[name] = np.zeros(shape, dtype)

    def set(self, **weights):
        for name, value in weights.items():
            if self._weights[name].shape != value.shape:
                raise ValueError(f"{name}: {self._weights[name].shape} is expected, not {value.shape}")
            self._weights[name] = value

    def __getattr__(self, name):
        weights = self.__dict__.get("_weights", {})
        if name in weights:
            return weights[name]
        raise AttributeError(name)

    def __call__(self, *args, **kwargs):
        return self.call(*args, **kwargs)


class Dense(Layer):
    def __init__(self, d_in, units):
        super().__init__()
        self.add_weight("kernel", (d_in, units))
        self.add_weight("bias", (units,))

    def call(self, x):
        return np.tensordot(x, self.kernel, axes=1) + self.bias


class LayerNorm(Layer):
    def __init__(self, width, eps=1e-12):
        super().__init__()
        self.eps = eps
        self.add_weight("gamma", (width,))
        self.add_weight("beta", (width,))

    def call(self, x):
        u = np.mean(x, axis=-1, keepdims=True)
        s = np.mean(np.square(x - u), axis=-1, keepdims=True)
        return self.gamma * ((x - u) / np.sqrt(s + np.asarray(self.eps, x.dtype))) + self.beta


class Attention(Layer):
    def __init__(self, width, n_head):
        super().__init__()
        if width % n_head:
            raise ValueError("num_heads: must divide the width")
        self.n_head = n_head
        self.c_attn = Dense(width, 3 * width)
        self.c_proj = Dense(width, width)

    def split_heads(self, x):
        x = x.reshape(x.shape[0], x.shape[1], self.n_head, x.shape[2] // self.n_head)
        return np.transpose(x, (0, 2, 1, 3))

    def merge_heads(self, x):
        x = np.transpose(x, (0, 2, 1, 3))
        return x.reshape(x.shape[0], x.shape[1], x.shape[2] * x.shape[3])

    def call(self, x, mask=None, training=False):
        q, k, v = (self.split_heads(t) for t in np.split(self.c_attn(x), 3, axis=2))
        w = np.matmul(q, np.transpose(k, (0, 1, 3, 2)))
        w = w / np.asarray(np.sqrt(v.shape[-1]), w.dtype)
        if mask is not None:
            w = w + (np.asarray(1, w.dtype) - mask.astype(w.dtype)) * np.asarray(-10000, w.dtype)
        w = w - w.max(axis=-1, keepdims=True)
        w = np.exp(w)
        w = w / w.sum(axis=-1, keepdims=True)
        if training:
            w = w * (np.random.random(w.shape) > 0.1) / 0.9
        return self.c_proj(self.merge_heads(np.matmul(w, v)))


class Block(Layer):
    def __init__(self, width, n_head, hidden):
        super().__init__()
        self.attn = Attention(width, n_head)
        self.ln_1 = LayerNorm(width)
        self.c_fc = Dense(width, hidden)
        self.c_out = Dense(hidden, width)
        self.ln_2 = LayerNorm(width)

    def call(self, x, mask=None, training=False):
        a = self.attn(x, mask=mask, training=training)
        n = self.ln_1(x + a)
        m = self.c_out(np.maximum(self.c_fc(n), 0))
        return self.ln_2(n + m)


class LanguageModel(Layer):
    """Words and positions in one table, as the output is the table again."""

    def __init__(self, vocab, places, width, n_head, hidden, n_layer):
        super().__init__()
        self.vocab = vocab
        self.add_weight("we", (vocab + places, width))
        self.blocks = [Block(width, n_head, hidden) for _ in range(n_layer)]

    def run(self, h, mask=None, training=False):
        for block in self.blocks:
            h = block(h, mask=mask, training=training)
        return h

    def call(self, ids, training=False):
        positions = np.arange(self.vocab, self.vocab + ids.shape[1])
        h = self.we[ids] + self.we[positions]
        causal = np.tril(np.ones((ids.shape[1], ids.shape[1])))
        h = self.run(h, causal[None, None], training)
        return np.matmul(h, self.we[: self.vocab].T)


# The adapter. Words, positions and output of the language model have no counterpart.


def _dense(layer, params, *weights):
    kernels = [params[name] for name in weights]
    biases = [
        params.get(name.replace("w_", "b_"), np.zeros(params[name].shape[1], params[name].dtype)) for name in weights
    ]
    layer.set(kernel=np.concatenate(kernels, axis=1), bias=np.concatenate(biases))


def _fill(block, params, prefix=""):
    _dense(block.attn.c_attn, params, *(f"{prefix}self_attention.w_{role}" for role in "qkv"))
    _dense(block.attn.c_proj, params, f"{prefix}self_attention.w_o")
    _dense(block.c_fc, params, f"{prefix}feed_forward.w_1")
    _dense(block.c_out, params, f"{prefix}feed_forward.w_2")
    for norm, i in ((block.ln_1, 1), (block.ln_2, 2)):
        norm.set(gamma=params[f"{prefix}norm_{i}.gamma"], beta=params[f"{prefix}norm_{i}.beta"])


def _sizes(params, x, num_heads, prefix=""):
    if any(params[f"{prefix}self_attention.w_{role}"].shape != (x.shape[2],) * 2 for role in "qkvo"):
        raise NotImplementedError("one width")
    return x.shape[2], num_heads, params[f"{prefix}feed_forward.w_1"].shape[1]


def layer_norm(x, *, params):
    layer = LayerNorm(x.shape[-1])
    layer.set(gamma=params["gamma"], beta=params["beta"])
    return layer(x)


def fused_multi_head_attention(x, mask=None, *, num_heads, params):
    width = x.shape[2]
    if params["w_o"].shape != (width, width):
        raise NotImplementedError("one width")
    layer = Attention(width, num_heads)

    def thirds(columns):
        return np.moveaxis(columns.reshape(*columns.shape[:-1], num_heads, 3, -1), -2, -3).reshape(columns.shape)

    zeros = np.zeros(3 * width, x.dtype)
    layer.c_attn.set(kernel=thirds(params["w_qkv"]), bias=thirds(params.get("b_qkv", zeros)))
    layer.c_proj.set(kernel=params["w_o"], bias=params.get("b_o", zeros[:width]))
    return layer(x, mask)


def encoder_layer(x, mask=None, *, num_heads, params):
    block = Block(*_sizes(params, x, num_heads))
    _fill(block, params)
    return block(x, mask, training=False)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    model = LanguageModel(3, 3, *_sizes(params, x, num_heads, "encoder.0."), num_layers)
    for i, block in enumerate(model.blocks):
        _fill(block, params, f"encoder.{i}.")
    return model.run(x, mask)


MISTAKES = {
    "split-along-wrong-axis": (
        "np.split(self.c_attn(x), 3, axis=2)",
        "np.split(self.c_attn(x)[..., ::-1], 3, axis=2)",
        "The thirds of the fused projection are read from the end.",
        ("fused_multi_head_attention.edit@fused_multi_head_attention/result.qkv@reversed:-1",),
    ),
    "heads-merged-unmoved": (
        "        x = np.transpose(x, (0, 2, 1, 3))\n        return x.reshape(x.shape[0], x.shape[1], x.shape[2] * x.shape[3])",
        "        return x.reshape(x.shape[0], x.shape[2], x.shape[1] * x.shape[3])",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "mask-negated": (
        "(np.asarray(1, w.dtype) - mask.astype(w.dtype))",
        "mask.astype(w.dtype)",
        "What may be seen is hidden.",
        ("mask-inverted",),
    ),
    "second-sum-of-input": (
        "return self.ln_2(n + m)",
        "return self.ln_2(x + m)",
        "The second residual starts from the block's input.",
        ("residual-wrong-x",),
    ),
    "scale-lost": (
        "        w = w / np.asarray(np.sqrt(v.shape[-1]), w.dtype)\n",
        "",
        "The scores are not divided by the root of the head's width.",
        ("scale-missing",),
    ),
    "eps-outside": (
        "np.sqrt(s + np.asarray(self.eps, x.dtype))",
        "(np.sqrt(s) + np.asarray(self.eps, x.dtype) * 1e9)",
        "A number that is far too large is added to the standard deviation.",
        ("ln-eps-outside",),
    ),
    "drops-in-evaluation": (
        "        if training:\n            w = ",
        "        if self.n_head:\n            w = ",
        "Weights are dropped in evaluation too.",
        ("dropout-in-evaluation", "nondeterminism"),
    ),
}
