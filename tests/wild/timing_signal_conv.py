# deserves: variant norm_placement=pre, layer_norm_eps=1e-6, pe_layout=tensor2tensor, embedding_scale=sqrt_d_model
# declares: final_norm=after_stack
"""A port of a large graph library's model: timing signal in halves, normalisation first, convolutions of width one, bias masks."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    def __init__(self, filters, epsilon=1e-6):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(filters))
        self.bias = nn.Parameter(torch.zeros(filters))
        self.epsilon = epsilon

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        variance = (x - mean).pow(2).mean(dim=-1, keepdim=True)
        norm_x = (x - mean) * torch.rsqrt(variance + self.epsilon)
        return norm_x * self.scale + self.bias


def get_timing_signal(length, channels, min_timescale=1.0, max_timescale=1.0e4):
    position = torch.arange(length, dtype=torch.float32)
    num_timescales = channels // 2
    log_increment = math.log(max_timescale / min_timescale) / max(num_timescales - 1, 1)
    inv_timescales = min_timescale * torch.exp(torch.arange(num_timescales, dtype=torch.float32) * -log_increment)
    scaled_time = position[:, None] * inv_timescales[None, :]
    return torch.cat([torch.sin(scaled_time), torch.cos(scaled_time)], dim=1)


def attention_bias(memory_padding):
    """(batch, length), true at padding, as a bias to add."""
    return memory_padding.float()[:, None, None, :] * -1e9


def attention_bias_lower_triangle(length):
    lower = torch.tril(torch.ones(length, length))
    return (-1e9 * (1.0 - lower))[None, None]


class MultiheadAttention(nn.Module):
    def __init__(self, depth, heads, dropout):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Conv1d(depth, depth, 1) for _ in range(4))
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        b, c, t = x.shape
        return x.view(b, self.heads, c // self.heads, t).transpose(2, 3)

    def forward(self, query_antecedent, memory_antecedent, bias):
        x = query_antecedent.transpose(1, 2)
        m = memory_antecedent.transpose(1, 2)
        q, k, v = self.split(self.q(x)), self.split(self.k(m)), self.split(self.v(m))
        q = q * (q.shape[-1] ** -0.5)
        logits = q @ k.transpose(2, 3)
        if bias is not None:
            logits = logits + bias.to(logits.dtype)
        weights = F.softmax(logits, dim=-1)
        out = self.dropout(weights) @ v
        out = out.transpose(2, 3).reshape(x.shape[0], -1, x.shape[2])
        return self.o(out).transpose(1, 2)


class ConvHiddenRelu(nn.Module):
    def __init__(self, depth, filters, dropout):
        super().__init__()
        self.conv1 = nn.Conv1d(depth, filters, kernel_size=1)
        self.conv2 = nn.Conv1d(filters, depth, kernel_size=1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = F.relu(self.conv1(x.transpose(1, 2)))
        return self.conv2(self.dropout(h)).transpose(1, 2)


class EncoderLayer(nn.Module):
    def __init__(self, depth, heads, filters, dropout=0.1):
        super().__init__()
        self.norm_att, self.norm_ffn = LayerNorm(depth), LayerNorm(depth)
        self.att = MultiheadAttention(depth, heads, dropout)
        self.ffn = ConvHiddenRelu(depth, filters, dropout)
        self.postprocess = nn.Dropout(dropout)

    def forward(self, x, bias=None):
        y = self.norm_att(x)
        x = x + self.postprocess(self.att(y, y, bias))
        return x + self.postprocess(self.ffn(self.norm_ffn(x)))


class DecoderLayer(nn.Module):
    def __init__(self, depth, heads, filters, dropout=0.1):
        super().__init__()
        self.norm_att, self.norm_mem, self.norm_ffn = LayerNorm(depth), LayerNorm(depth), LayerNorm(depth)
        self.att = MultiheadAttention(depth, heads, dropout)
        self.mem = MultiheadAttention(depth, heads, dropout)
        self.ffn = ConvHiddenRelu(depth, filters, dropout)
        self.postprocess = nn.Dropout(dropout)

    def forward(self, x, memory, bias=None, memory_bias=None):
        y = self.norm_att(x)
        x = x + self.postprocess(self.att(y, y, bias))
        x = x + self.postprocess(self.mem(self.norm_mem(x), memory, memory_bias))
        return x + self.postprocess(self.ffn(self.norm_ffn(x)))


class Model(nn.Module):
    def __init__(self, vocab, depth, heads, filters, n_enc, n_dec, pad):
        super().__init__()
        self.pad, self.depth = pad, depth
        self.symbols = nn.Embedding(vocab, depth)
        self.enc = nn.ModuleList([EncoderLayer(depth, heads, filters) for _ in range(n_enc)])
        self.dec = nn.ModuleList([DecoderLayer(depth, heads, filters) for _ in range(n_dec)])
        self.enc_norm, self.dec_norm = LayerNorm(depth), LayerNorm(depth)
        self.top = nn.Linear(depth, vocab)

    def bottom(self, ids):
        x = self.symbols(ids) * self.depth**0.5
        return x + get_timing_signal(ids.shape[1], self.depth).to(x)

    def forward(self, inputs, targets):
        padding = inputs == self.pad
        memory = self.bottom(inputs)
        for layer in self.enc:
            memory = layer(memory, attention_bias(padding))
        memory = self.enc_norm(memory)
        x = self.bottom(targets)
        lower = attention_bias_lower_triangle(targets.shape[1]).to(x)
        bias = torch.minimum(lower, attention_bias(targets == self.pad).to(x))
        for layer in self.dec:
            x = layer(x, memory, bias, attention_bias(padding))
        return self.top(self.dec_norm(x))


# The adapter. Where the stacks of a call end without a normalisation, those of the model are replaced by nothing.

ARRAYS = "torch"
NAME = "timing signal and convolutions"


def _conv(params, weight, at):
    w = params[weight]
    bias = params.get(weight.replace("w_", "b_"))
    return {f"{at}.weight": w.T[..., None], f"{at}.bias": w.new_zeros(w.shape[1]) if bias is None else bias}


def _layer(params, ours="", theirs=""):
    state = {}
    names = {"self_attention": "att", "cross_attention": "mem"}
    if f"{ours}cross_attention.w_q" not in params:
        del names["cross_attention"]
    for name, at in names.items():
        for role in "qkvo":
            if params[f"{ours}{name}.w_{role}"].shape[0] != params[f"{ours}{name}.w_{role}"].shape[1]:
                raise NotImplementedError("one depth")
            state |= _conv(params, f"{ours}{name}.w_{role}", f"{theirs}{at}.{role}")
    for i in (1, 2):
        state |= _conv(params, f"{ours}feed_forward.w_{i}", f"{theirs}ffn.conv{i}")
    norms = ["norm_att", "norm_ffn"] if len(names) == 1 else ["norm_att", "norm_mem", "norm_ffn"]
    for i, norm in enumerate(norms, 1):
        state[f"{theirs}{norm}.scale"] = params[f"{ours}norm_{i}.gamma"]
        state[f"{theirs}{norm}.bias"] = params[f"{ours}norm_{i}.beta"]
    return state


def _bias(mask):
    return None if mask is None else (~mask).float() * -1e9


def layer_norm(x, *, params):
    state = {"scale": params["gamma"], "bias": params["beta"]}
    return torch.func.functional_call(LayerNorm(x.shape[-1]).to(x), state, (x,))


def feed_forward(x, *, params):
    state = _conv(params, "w_1", "conv1") | _conv(params, "w_2", "conv2")
    module = ConvHiddenRelu(*params["w_1"].shape, 0.1).to(x).eval()
    return torch.func.functional_call(module, state, (x,))


def positional_encoding(x):
    if x.shape[2] % 2:
        raise NotImplementedError("even widths")
    return x + get_timing_signal(x.shape[1], x.shape[2]).to(x)


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _layer(params)
    module = EncoderLayer(x.shape[-1], num_heads, params["feed_forward.w_1"].shape[1]).to(x).eval()
    return torch.func.functional_call(module, state, (x, _bias(mask)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _layer(params)
    module = DecoderLayer(x.shape[-1], num_heads, params["feed_forward.w_1"].shape[1]).to(x).eval()
    return torch.func.functional_call(module, state, (x, memory, _bias(self_mask), _bias(memory_mask)))


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    table = params["table"]
    if table.shape[1] % 2:
        raise NotImplementedError("even widths")
    state = {"symbols.weight": table, "top.weight": params["w_vocab"].T}
    state["top.bias"] = params.get("b_vocab", table.new_zeros(len(table)))
    for i in range(num_encoder_layers):
        state |= _layer(params, f"encoder.{i}.", f"enc.{i}.")
    for i in range(num_decoder_layers):
        state |= _layer(params, f"decoder.{i}.", f"dec.{i}.")
    filters = params["encoder.0.feed_forward.w_1"].shape[1]
    model = Model(*table.shape, num_heads, filters, num_encoder_layers, num_decoder_layers, pad_id)
    for side, end in {"encoder": "enc_norm", "decoder": "dec_norm"}.items():
        if f"{side}_norm.gamma" in params:
            state[f"{end}.scale"], state[f"{end}.bias"] = params[f"{side}_norm.gamma"], params[f"{side}_norm.beta"]
        else:
            setattr(model, end, nn.Identity())
    return torch.func.functional_call(model.to(table).eval(), state, (source, target))


MISTAKES = {
    "split-of-channels": (
        "return x.view(b, self.heads, c // self.heads, t).transpose(2, 3)",
        "return x.view(b, c // self.heads, self.heads, t).permute(0, 2, 3, 1)",
        "The channels are dealt out to the heads in turn and not in blocks.",
        ("head-interleaved",),
    ),
    "reshape-instead-of-transpose": (
        "out = out.transpose(2, 3).reshape(x.shape[0], -1, x.shape[2])",
        "out = out.reshape(x.shape[0], -1, x.shape[2])",
        "The heads are joined without moving their channels before the tokens.",
        (
            "head-merge-view",
            "scaled_dot_product_attention.edit@scaled_dot_product_attention/result.output@unread:-2:-1",
        ),
    ),
    "memory-normalised": (
        "self.mem(self.norm_mem(x), memory, memory_bias)",
        "self.mem(x, self.norm_mem(memory), memory_bias)",
        "The memory is normalised and the queries are not.",
        (),
    ),
    "biases-added-up": (
        "self.norm_att(x)\n        x = x + self.postprocess(self.att(y, y, bias))\n        x = x + self.postprocess(self.mem",
        "self.norm_att(x)\n        x = y + self.postprocess(self.att(y, y, bias))\n        x = x + self.postprocess(self.mem",
        "The decoder's first residual starts from the normalised input.",
        ("residual-normed",),
    ),
    "timescales-of-all-channels": (
        "max(num_timescales - 1, 1)",
        "max(channels - 1, 1)",
        "The timescales are spread over twice as many channels as there are.",
        # With the base 100: 10000^(i/(d_model − 1)) is 100^(2i/(d_model − 1)).
        (),
    ),
    "epsilon-outside": (
        "torch.rsqrt(variance + self.epsilon)",
        "1 / (variance.sqrt() + self.epsilon)",
        "The small number is added to the standard deviation.",
        ("ln-eps-outside",),
    ),
    "upper-triangle": (
        "(-1e9 * (1.0 - lower))[None, None]",
        "(-1e9 * lower)[None, None]",
        "The causal bias hides the earlier positions and the position itself.",
        (
            "mask-inverted",
            "causal-flipped",
        ),
    ),
}
