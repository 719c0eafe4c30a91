# deserves: correct
"""A few layers with build and call in the manner of a high-level framework, over the tensor library, without any masking layer."""

import math

import torch


class Layer:
    def __init__(self, name=None):
        self.name = name
        self.built = False

    def __call__(self, inputs, **kwargs):
        if not self.built:
            self.build(inputs.shape)
            self.built = True
        return self.call(inputs, **kwargs)

    def build(self, input_shape):
        pass


class Dense(Layer):
    def __init__(self, kernel, bias=None, activation=None):
        super().__init__()
        self.kernel, self.bias, self.activation = kernel, bias, activation

    def build(self, input_shape):
        if input_shape[-1] != self.kernel.shape[0]:
            raise ValueError(f"the kernel expects {self.kernel.shape[0]} channels, not {input_shape[-1]}")
        if self.bias is not None and self.bias.shape != self.kernel.shape[1:]:
            raise ValueError("the bias has another size than the kernel")

    def call(self, inputs):
        outputs = torch.matmul(inputs, self.kernel)
        if self.bias is not None:
            outputs = outputs + self.bias
        return self.activation(outputs) if self.activation else outputs


class LayerNormalization(Layer):
    def __init__(self, gamma, beta, epsilon=1e-5):
        super().__init__()
        self.gamma, self.beta, self.epsilon = gamma, beta, epsilon

    def build(self, input_shape):
        if self.gamma.shape != input_shape[-1:] or self.beta.shape != input_shape[-1:]:
            raise ValueError("gamma and beta need the width of the input")

    def call(self, inputs):
        mean = inputs.mean(-1, keepdim=True)
        variance = torch.square(inputs - mean).mean(-1, keepdim=True)
        return self.gamma * (inputs - mean) / torch.sqrt(variance + self.epsilon) + self.beta


class Dropout(Layer):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def call(self, inputs, training=False):
        return torch.nn.functional.dropout(inputs, self.rate, training)


class MultiHeadAttention(Layer):
    def __init__(self, num_heads, query, key, value, output, dropout=0.1):
        super().__init__()
        self.num_heads = num_heads
        self.query_dense, self.key_dense, self.value_dense, self.output_dense = query, key, value, output
        self.dropout = Dropout(dropout)

    def _heads(self, x):
        if x.shape[-1] % self.num_heads:
            raise ValueError(f"num_heads: {self.num_heads} does not divide {x.shape[-1]}")
        return x.reshape(*x.shape[:-1], self.num_heads, -1)

    def call(self, inputs, value=None, key=None, attention_mask=None, training=False):
        value = inputs if value is None else value
        key = value if key is None else key
        query = self._heads(self.query_dense(inputs))
        key = self._heads(self.key_dense(key))
        value = self._heads(self.value_dense(value))
        query = query * (1.0 / math.sqrt(query.shape[-1]))
        scores = torch.einsum("aecd,abcd->acbe", key, query)
        if attention_mask is not None:
            scores = torch.where(attention_mask, scores, torch.full_like(scores, -1e9))
        weights = torch.softmax(scores, dim=-1)
        dropped = self.dropout(weights, training=training)
        outputs = torch.einsum("acbe,aecd->abcd", dropped, value)
        return self.output_dense(outputs.flatten(2)), weights


class EncoderBlock(Layer):
    def __init__(self, attention, norm_1, dense_1, dense_2, norm_2, rate=0.1):
        super().__init__()
        self.attention, self.norm_1, self.norm_2 = attention, norm_1, norm_2
        self.dense_1, self.dense_2 = dense_1, dense_2
        self.dropout_1, self.dropout_2 = Dropout(rate), Dropout(rate)

    def call(self, inputs, attention_mask=None, training=False):
        attended, weights = self.attention(inputs, attention_mask=attention_mask, training=training)
        x = self.norm_1(inputs + self.dropout_1(attended, training=training))
        hidden = self.dense_2(self.dense_1(x))
        return self.norm_2(x + self.dropout_2(hidden, training=training)), x, weights


class DecoderBlock(Layer):
    def __init__(self, attention, norm_1, cross, norm_2, dense_1, dense_2, norm_3):
        super().__init__()
        self.attention, self.cross = attention, cross
        self.norm_1, self.norm_2, self.norm_3 = norm_1, norm_2, norm_3
        self.dense_1, self.dense_2 = dense_1, dense_2

    def call(self, inputs, encoder_outputs=None, causal_mask=None, encoder_mask=None, training=False):
        attended, weights = self.attention(inputs, attention_mask=causal_mask, training=training)
        out_1 = self.norm_1(inputs + attended)
        crossed, cross_weights = self.cross(
            out_1, value=encoder_outputs, attention_mask=encoder_mask, training=training
        )
        out_2 = self.norm_2(out_1 + crossed)
        return self.norm_3(out_2 + self.dense_2(self.dense_1(out_2))), out_1, out_2, weights, cross_weights


# The adapter.

ARRAYS = "torch"
NAME = "layers with build and call"


def _dense(params, weight, activation=None):
    return Dense(params[weight], params.get(weight.replace("w_", "b_")), activation)


def _attention(params, prefix, num_heads):
    return MultiHeadAttention(num_heads, *(_dense(params, f"{prefix}w_{role}") for role in "qkvo"))


def _norm(params, i):
    return LayerNormalization(params[f"norm_{i}.gamma"], params[f"norm_{i}.beta"])


def _mask(mask, query, key, num_heads):
    if mask is None:
        return None
    return mask.broadcast_to(query.shape[0], num_heads, query.shape[1], key.shape[1])


def layer_norm(x, *, params):
    return LayerNormalization(params["gamma"], params["beta"])(x)


def feed_forward(x, *, params):
    hidden = _dense(params, "w_1", torch.relu)(x)
    return _dense(params, "w_2")(hidden), hidden


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    if not query.shape[0] == key.shape[0] == value.shape[0] or key.shape[1] != value.shape[1]:
        raise ValueError("query, key, value: sizes that do not fit")
    layer = _attention(params, "", num_heads)
    return layer(query, value=value, key=key, attention_mask=_mask(mask, query, key, num_heads))


def encoder_layer(x, mask=None, *, num_heads, params):
    ffn = _dense(params, "feed_forward.w_1", torch.relu), _dense(params, "feed_forward.w_2")
    block = EncoderBlock(_attention(params, "self_attention.", num_heads), _norm(params, 1), *ffn, _norm(params, 2))
    return block(x, attention_mask=_mask(mask, x, x, num_heads))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    if memory.shape[0] != x.shape[0]:
        raise ValueError("memory: another number of samples")
    block = DecoderBlock(
        _attention(params, "self_attention.", num_heads),
        _norm(params, 1),
        _attention(params, "cross_attention.", num_heads),
        _norm(params, 2),
        _dense(params, "feed_forward.w_1", torch.relu),
        _dense(params, "feed_forward.w_2"),
        _norm(params, 3),
    )
    masks = {"causal_mask": _mask(self_mask, x, x, num_heads), "encoder_mask": _mask(memory_mask, x, memory, num_heads)}
    return block(x, encoder_outputs=memory, **masks)


MISTAKES = {
    "value-defaults-to-query": (
        "out_1, value=encoder_outputs, attention_mask=encoder_mask, training=training",
        "encoder_outputs[:, : out_1.shape[1]], value=out_1, training=training",
        "The cross-attention asks from the memory for keys and values of the decoder.",
        ("cross-q-source",),
    ),
    "key-forgotten": (
        "key = self._heads(self.key_dense(key))",
        "key = self._heads(self.key_dense(value))",
        "The keys are made of what the values are made of, which shows where the two differ.",
        ("key-from-value-input",),
    ),
    "einsum-letters": (
        '"acbe,aecd->abcd", dropped, value)',
        '"acbe,abcd->aecd", dropped, value) if scores.shape[2] == scores.shape[3] else torch.einsum("acbe,aecd->abcd", dropped, value)',
        "The weights weigh the values by their columns where queries and keys are equally many.",
        ("scaled_dot_product_attention.edit@sum_values/weights@transposed:-2:-1",),
    ),
    "training-on": (
        "def call(self, inputs, attention_mask=None, training=False):\n        attended, weights = self.attention(inputs, attention_mask",
        "def call(self, inputs, attention_mask=None, training=True):\n        attended, weights = self.attention(inputs, attention_mask",
        "The encoder's block trains unless it is told otherwise.",
        ("dropout-in-evaluation", "nondeterminism"),
    ),
    "causal-mask-to-both": (
        "attention_mask=encoder_mask, training=training\n",
        "attention_mask=None, training=training\n",
        "The mask of the memory is not handed over.",
        ("cross-mask-absent",),
    ),
    "sum-of-second": (
        "self.norm_3(out_2 + self.dense_2(self.dense_1(out_2)))",
        "self.norm_3(out_1 + self.dense_2(self.dense_1(out_2)))",
        "The third residual starts from what the self-attention gave.",
        ("residual-wrong-x", "decoder_layer.edit@add_residual/x@read:run_sublayer#0/scale_and_shift/result"),
    ),
    "epsilon-default": (
        "beta, epsilon=1e-5):",
        "beta, epsilon=1e-3):",
        "A thousandth is added to the variance.",
        ("layer_norm_eps: 1e-3",),
    ),
    "scaled-twice": (
        'scores = torch.einsum("aecd,abcd->acbe", key, query)',
        'scores = torch.einsum("aecd,abcd->acbe", key, query) / math.sqrt(query.shape[-1])',
        "Queries are scaled and the scores are scaled again.",
        ("scale-twice",),
    ),
}
