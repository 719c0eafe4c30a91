# deserves: variant embedding_scale=sqrt_d_model, layer_norm_eps=1e-6, pe_layout=concatenated, empty_row=unspecified
"""Layers in the manner of a high-level framework's tutorial, on NumPy: call(inputs, training=False), masks added as −1e9."""

import numpy as np


class Layer:
    def __init__(self):
        self.built = False

    def __call__(self, *args, **kwargs):
        return self.call(*args, **kwargs)


class Dense(Layer):
    def __init__(self, units, activation=None):
        super().__init__()
        self.units = units
        self.activation = activation

    def set_weights(self, weights):
        self.kernel, self.bias = weights
        assert self.kernel.shape[1] == self.units and self.bias.shape == (self.units,)

    def call(self, inputs):
        outputs = np.dot(inputs, self.kernel) + self.bias
        return np.maximum(outputs, 0) if self.activation == "relu" else outputs


class Dropout(Layer):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def call(self, inputs, training=False):
        if not training:
            return inputs
        keep = np.random.random(inputs.shape) >= self.rate
        return inputs * keep / (1 - self.rate)


class LayerNormalization(Layer):
    def __init__(self, epsilon=1e-3):
        super().__init__()
        self.epsilon = epsilon

    def set_weights(self, weights):
        self.gamma, self.beta = weights

    def call(self, inputs):
        mean = inputs.mean(axis=-1, keepdims=True)
        variance = inputs.var(axis=-1, keepdims=True)
        inv = self.gamma / np.sqrt(variance + inputs.dtype.type(self.epsilon))
        return inputs * inv + (self.beta - mean * inv)


def scaled_dot_product(q, k, v, mask):
    matmul_qk = np.matmul(q, np.swapaxes(k, -1, -2))
    dk = np.asarray(k.shape[-1], dtype=q.dtype)
    scaled_attention_logits = matmul_qk / np.sqrt(dk)
    if mask is not None:
        scaled_attention_logits = scaled_attention_logits + mask * q.dtype.type(-1e9)
    e = np.exp(scaled_attention_logits - scaled_attention_logits.max(-1, keepdims=True))
    attention_weights = e / e.sum(-1, keepdims=True)
    return np.matmul(attention_weights, v), attention_weights


def create_padding_mask(seq, pad=0):
    return (seq == pad)[:, np.newaxis, np.newaxis, :]


def create_look_ahead_mask(size):
    return np.triu(np.ones((size, size)), k=1)


def positional_table(length, depth):
    depth = depth / 2
    positions = np.arange(length)[:, np.newaxis]
    depths = np.arange(depth)[np.newaxis, :] / depth
    angle_rads = positions * (1 / (10000**depths))
    return np.concatenate([np.sin(angle_rads), np.cos(angle_rads)], axis=-1)


class MultiHeadAttention(Layer):
    def __init__(self, d_model, num_heads):
        super().__init__()
        assert d_model % num_heads == 0
        self.num_heads, self.d_model, self.depth = num_heads, d_model, d_model // num_heads
        self.wq, self.wk, self.wv, self.dense = (Dense(d_model) for _ in range(4))

    def split_heads(self, x, batch_size):
        x = np.reshape(x, (batch_size, -1, self.num_heads, self.depth))
        return np.transpose(x, (0, 2, 1, 3))

    def call(self, v, k, q, mask=None):
        batch_size = q.shape[0]
        q = self.split_heads(self.wq(q), batch_size)
        k = self.split_heads(self.wk(k), batch_size)
        v = self.split_heads(self.wv(v), batch_size)
        scaled_attention, attention_weights = scaled_dot_product(q, k, v, mask)
        scaled_attention = np.transpose(scaled_attention, (0, 2, 1, 3))
        return self.dense(np.reshape(scaled_attention, (batch_size, -1, self.d_model))), attention_weights


class EncoderLayer(Layer):
    def __init__(self, d_model, num_heads, dff, rate=0.1):
        super().__init__()
        self.mha = MultiHeadAttention(d_model, num_heads)
        self.ffn1, self.ffn2 = Dense(dff, activation="relu"), Dense(d_model)
        self.layernorm1, self.layernorm2 = LayerNormalization(epsilon=1e-6), LayerNormalization(epsilon=1e-6)
        self.dropout1, self.dropout2 = Dropout(rate), Dropout(rate)

    def call(self, x, training, mask):
        attn_output, _ = self.mha(x, x, x, mask)
        out1 = self.layernorm1(x + self.dropout1(attn_output, training=training))
        ffn_output = self.ffn2(self.ffn1(out1))
        return self.layernorm2(out1 + self.dropout2(ffn_output, training=training))


class DecoderLayer(Layer):
    def __init__(self, d_model, num_heads, dff, rate=0.1):
        super().__init__()
        self.mha1, self.mha2 = MultiHeadAttention(d_model, num_heads), MultiHeadAttention(d_model, num_heads)
        self.ffn1, self.ffn2 = Dense(dff, activation="relu"), Dense(d_model)
        self.layernorm1 = LayerNormalization(epsilon=1e-6)
        self.layernorm2 = LayerNormalization(epsilon=1e-6)
        self.layernorm3 = LayerNormalization(epsilon=1e-6)
        self.dropout1, self.dropout2, self.dropout3 = Dropout(rate), Dropout(rate), Dropout(rate)

    def call(self, x, enc_output, training, look_ahead_mask, padding_mask):
        attn1, attn_weights_block1 = self.mha1(x, x, x, look_ahead_mask)
        out1 = self.layernorm1(self.dropout1(attn1, training=training) + x)
        attn2, attn_weights_block2 = self.mha2(enc_output, enc_output, out1, padding_mask)
        out2 = self.layernorm2(self.dropout2(attn2, training=training) + out1)
        ffn_output = self.dropout3(self.ffn2(self.ffn1(out2)), training=training)
        return self.layernorm3(ffn_output + out2), attn_weights_block1, attn_weights_block2


class Transformer(Layer):
    def __init__(self, num_enc, num_dec, d_model, num_heads, dff, vocab_size, pad):
        super().__init__()
        self.d_model, self.pad = d_model, pad
        self.enc_layers = [EncoderLayer(d_model, num_heads, dff) for _ in range(num_enc)]
        self.dec_layers = [DecoderLayer(d_model, num_heads, dff) for _ in range(num_dec)]
        self.pos_encoding = positional_table(2048, d_model)
        self.dropout = Dropout(0.1)
        self.final_layer = Dense(vocab_size)

    def embed(self, ids, training):
        if (ids >= len(self.embeddings)).any() or (ids < 0).any():
            raise IndexError("an id is not in the vocabulary")
        x = self.embeddings[ids]
        x = x * np.sqrt(np.asarray(self.d_model, dtype=x.dtype))
        x = x + self.pos_encoding[np.newaxis, : ids.shape[1], :].astype(x.dtype)
        return self.dropout(x, training=training)

    def call(self, inputs, training=False):
        inp, tar = inputs
        enc_mask = create_padding_mask(inp, self.pad)
        look_ahead = np.maximum(create_look_ahead_mask(tar.shape[1]), create_padding_mask(tar, self.pad))
        x = self.embed(inp, training)
        for layer in self.enc_layers:
            x = layer(x, training, enc_mask)
        enc_output = x
        x = self.embed(tar, training)
        for layer in self.dec_layers:
            x, _, _ = layer(x, enc_output, training, look_ahead.astype(x.dtype), enc_mask)
        return self.final_layer(x)


# The adapter.

ARRAYS = "numpy"
NAME = "framework-like layers"


def _hidden(mask):
    return None if mask is None else ~mask


def _dense(layer, params, name):
    kernel = params[name]
    bias = params.get(name.replace("w_", "b_"))
    layer.set_weights([kernel, np.zeros(kernel.shape[1], kernel.dtype) if bias is None else bias])


def _attention(mha, params, prefix):
    for role, dense in zip("qkvo", (mha.wq, mha.wk, mha.wv, mha.dense)):
        if params[f"{prefix}w_{role}"].shape != (mha.d_model, mha.d_model):
            raise NotImplementedError("square projections")
        _dense(dense, params, f"{prefix}w_{role}")


def _fill(layer, params, prefix=""):
    cross = isinstance(layer, DecoderLayer)
    _attention(layer.mha1 if cross else layer.mha, params, f"{prefix}self_attention.")
    if cross:
        _attention(layer.mha2, params, f"{prefix}cross_attention.")
    _dense(layer.ffn1, params, f"{prefix}feed_forward.w_1")
    _dense(layer.ffn2, params, f"{prefix}feed_forward.w_2")
    for i in range(1, 4 if cross else 3):
        norm = getattr(layer, f"layernorm{i}")
        norm.set_weights([params[f"{prefix}norm_{i}.gamma"], params[f"{prefix}norm_{i}.beta"]])
    return layer


def scaled_dot_product_attention(query, key, value, mask=None):
    return scaled_dot_product(query, key, value, _hidden(mask))


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    if params["w_q"].shape[1] != query.shape[-1]:
        raise NotImplementedError("heads divide the width")
    mha = MultiHeadAttention(query.shape[-1], num_heads)
    _attention(mha, params, "")
    return mha(value, key, query, _hidden(mask))


def layer_norm(x, *, params):
    norm = LayerNormalization(epsilon=1e-6)
    norm.set_weights([params["gamma"], params["beta"]])
    return norm(x)


def encoder_layer(x, mask=None, *, num_heads, params):
    if params["self_attention.w_q"].shape[1] != x.shape[-1]:
        raise NotImplementedError("heads divide the width")
    layer = _fill(EncoderLayer(x.shape[-1], num_heads, params["feed_forward.w_1"].shape[1]), params)
    return layer(x, False, _hidden(mask))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    if params["self_attention.w_q"].shape[1] != x.shape[-1]:
        raise NotImplementedError("heads divide the width")
    layer = _fill(DecoderLayer(x.shape[-1], num_heads, params["feed_forward.w_1"].shape[1]), params)
    output, weights, cross = layer(x, memory, False, _hidden(self_mask), _hidden(memory_mask))
    return {"output": output, "weights": weights, "cross_weights": cross}


def positional_encoding(x):
    if x.shape[-1] % 2:
        raise NotImplementedError("even widths")
    return x + positional_table(x.shape[1], x.shape[2]).astype(x.dtype)


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    vocab, d_model = params["table"].shape
    if params["encoder.0.self_attention.w_q"].shape[1] != d_model:
        raise NotImplementedError("heads divide the width")
    dff = params["encoder.0.feed_forward.w_1"].shape[1]
    model = Transformer(num_encoder_layers, num_decoder_layers, d_model, num_heads, dff, vocab, pad_id)
    model.embeddings = params["table"]
    for i, layer in enumerate(model.enc_layers):
        _fill(layer, params, f"encoder.{i}.")
    for i, layer in enumerate(model.dec_layers):
        _fill(layer, params, f"decoder.{i}.")
    _dense(model.final_layer, params, "w_vocab")
    return model((source, target))


MISTAKES = {
    "value-key-query-order": (
        "self.mha2(enc_output, enc_output, out1, padding_mask)",
        "self.mha2(out1, enc_output, enc_output, padding_mask)",
        "The arguments of the cross-attention are in another order than the layer takes them.",
        (),
    ),
    "residual-around-nothing": (
        "out2 = self.layernorm2(self.dropout2(attn2, training=training) + out1)",
        "out2 = self.layernorm2(self.dropout2(attn2, training=training) + x)",
        "The second residual starts from the layer's input.",
        ("residual-wrong-x", "decoder_layer.edit@run_sublayer#1/add_residual/x@read:add_residual/x"),
    ),
    "transpose-missing": (
        "scaled_attention = np.transpose(scaled_attention, (0, 2, 1, 3))",
        "scaled_attention = np.transpose(scaled_attention, (0, 1, 2, 3))",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "padding-of-target-forgotten": (
        "np.maximum(create_look_ahead_mask(tar.shape[1]), create_padding_mask(tar, self.pad))",
        "create_look_ahead_mask(tar.shape[1])",
        "The padding of the target is not hidden.",
        ("target_mask: causal_only",),
    ),
    "mask-sign": (
        "q.dtype.type(-1e9)",
        "q.dtype.type(-1e1)",
        "The number that is added to masked scores is far too small.",
        ("fill-dampens",),
    ),
    "depth-of-model": (
        "dk = np.asarray(k.shape[-1], dtype=q.dtype)",
        "dk = np.asarray(k.shape[-2], dtype=q.dtype)",
        "The scores are divided by the root of the number of keys.",
        ("scale-seq-len",),
    ),
    "training-always": (
        "attn_output, _ = self.mha(x, x, x, mask)\n        out1 = self.layernorm1(x + self.dropout1(attn_output, training=training))",
        "attn_output, _ = self.mha(x, x, x, mask)\n        out1 = self.layernorm1(x + self.dropout1(attn_output, training=True))",
        "The first dropout drops in evaluation as well.",
        ("dropout-in-evaluation", "nondeterminism"),
    ),
    "positions-not-scaled-apart": (
        "        x = x * np.sqrt(np.asarray(self.d_model, dtype=x.dtype))\n        x = x + self.pos_encoding[np.newaxis, : ids.shape[1], :].astype(x.dtype)\n",
        "        x = x + self.pos_encoding[np.newaxis, : ids.shape[1], :].astype(x.dtype)\n        x = x * np.sqrt(np.asarray(self.d_model, dtype=x.dtype))\n",
        "The positional encoding is multiplied by the factor of the embedding.",
        ("emb-scale-after-pe",),
    ),
}
