# deserves: variant layer_norm_eps=1e-12, empty_row=unspecified
"""An encoder in the style of masked language models: an extended mask added as −10000, outputs with their own normalisation."""

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, dropout_prob=0.1):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError("num_heads: the hidden size is not a multiple of the number of attention heads")
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout_prob)

    def transpose_for_scores(self, x):
        new_x_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(*new_x_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None):
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))
        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask
        attention_probs = nn.Softmax(dim=-1)(attention_scores)
        context_layer = torch.matmul(self.dropout(attention_probs), value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(*context_layer.size()[:-2], -1)
        return context_layer, attention_probs


class SelfOutput(nn.Module):
    def __init__(self, in_size, hidden_size, dropout_prob=0.1):
        super().__init__()
        self.dense = nn.Linear(in_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(dropout_prob)

    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dropout(self.dense(hidden_states))
        return self.LayerNorm(hidden_states + input_tensor)


class Intermediate(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.dense = nn.Linear(hidden_size, intermediate_size)

    def forward(self, hidden_states):
        return torch.relu(self.dense(hidden_states))


class Layer(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, intermediate_size):
        super().__init__()
        self.self_attention = SelfAttention(hidden_size, num_attention_heads)
        self.attention_output = SelfOutput(hidden_size, hidden_size)
        self.intermediate = Intermediate(hidden_size, intermediate_size)
        self.output = SelfOutput(intermediate_size, hidden_size)

    def forward(self, hidden_states, attention_mask=None):
        self_output, probs = self.self_attention(hidden_states, attention_mask)
        attention_output = self.attention_output(self_output, hidden_states)
        intermediate_output = self.intermediate(attention_output)
        return self.output(intermediate_output, attention_output), attention_output, probs


class Encoder(nn.Module):
    def __init__(self, num_hidden_layers, *sizes):
        super().__init__()
        self.layer = nn.ModuleList([Layer(*sizes) for _ in range(num_hidden_layers)])

    def forward(self, hidden_states, attention_mask=None):
        all_hidden_states = ()
        for layer_module in self.layer:
            hidden_states, _, _ = layer_module(hidden_states, attention_mask)
            all_hidden_states += (hidden_states,)
        return hidden_states, all_hidden_states


def extended_attention_mask(attention_mask, dtype):
    """(batch, seq) with 1 for words and 0 for padding, as something to add to the scores."""
    extended = attention_mask[:, None, None, :].to(dtype)
    return (1.0 - extended) * -10000.0


# The adapter.

ARRAYS = "torch"
NAME = "masked language model"


def _extended(mask, x):
    if mask is None:
        return None
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2] != 1:
        raise NotImplementedError("masks of (batch, seq)")
    return extended_attention_mask(mask[:, 0, 0].expand(x.size(0), x.size(1)), x.dtype)


def _layer(params, prefix=""):
    names = {
        "self_attention.query": "self_attention.w_q",
        "self_attention.key": "self_attention.w_k",
        "self_attention.value": "self_attention.w_v",
        "attention_output.dense": "self_attention.w_o",
        "intermediate.dense": "feed_forward.w_1",
        "output.dense": "feed_forward.w_2",
    }
    state = {}
    for theirs, ours in names.items():
        weight, bias = params[ours], params.get(ours.replace("w_", "b_"))
        if ours.startswith("self_attention") and weight.shape[0] != weight.shape[1]:
            raise NotImplementedError("hidden_size is the width of all projections")
        state[f"{prefix}{theirs}.weight"] = weight.T
        state[f"{prefix}{theirs}.bias"] = weight.new_zeros(weight.shape[1]) if bias is None else bias
    for theirs, ours in {"attention_output": "norm_1", "output": "norm_2"}.items():
        state[f"{prefix}{theirs}.LayerNorm.weight"] = params[f"{ours}.gamma"]
        state[f"{prefix}{theirs}.LayerNorm.bias"] = params[f"{ours}.beta"]
    return state


def layer_norm(x, *, params):
    module = nn.LayerNorm(x.shape[-1], eps=1e-12)
    return torch.func.functional_call(module, {"weight": params["gamma"], "bias": params["beta"]}, (x,))


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _layer(params)
    module = Layer(x.size(-1), num_heads, params["feed_forward.w_1"].size(1)).to(x).eval()
    return torch.func.functional_call(module, state, (x, _extended(mask, x)))


def encoder(x, mask=None, *, num_heads, num_layers, params):
    state = {}
    for i in range(num_layers):
        own = {name[len(f"encoder.{i}.") :]: p for name, p in params.items() if name.startswith(f"encoder.{i}.")}
        state |= _layer(own, f"layer.{i}.")
    module = Encoder(num_layers, x.size(-1), num_heads, params["encoder.0.feed_forward.w_1"].size(1)).to(x).eval()
    output, layers = torch.func.functional_call(module, state, (x, _extended(mask, x)))
    return output, torch.stack(layers)


MISTAKES = {
    "output-residual-from-input": (
        "return self.output(intermediate_output, attention_output), attention_output, probs",
        "return self.output(intermediate_output, hidden_states), attention_output, probs",
        "The second residual starts from the layer's input.",
        ("residual-wrong-x",),
    ),
    "intermediate-of-input": (
        "intermediate_output = self.intermediate(attention_output)",
        "intermediate_output = self.intermediate(self_output)",
        "The feed-forward network reads the heads and not the normalised result of the attention.",
        (
            "encoder_layer.edit@feed_through/x@read:apply_affine/x",
            "encoder_layer.edit@feed_forward/x@read:apply_affine/x",
        ),
    ),
    "mask-not-extended": (
        "attention_mask[:, None, None, :].to(dtype)",
        "attention_mask[:, None, :, None].to(dtype)",
        "The mask is added to rows of queries and not to columns of keys, and what a whole row gains changes nothing.",
        ("pad-on-query", "mask-not-inplace"),
    ),
    "context-not-permuted": (
        "context_layer = context_layer.permute(0, 2, 1, 3).contiguous()\n        context_layer = context_layer.view(*context_layer.size()[:-2], -1)",
        "context_layer = context_layer.reshape(*hidden_states.shape[:-1], -1)",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "mask-kept-positive": (
        "(1.0 - extended) * -10000.0",
        "extended * -10000.0",
        "Words are hidden and padding is kept.",
        ("mask-inverted",),
    ),
    "softmax-axis": (
        "nn.Softmax(dim=-1)(attention_scores)",
        "nn.Softmax(dim=-2)(attention_scores)",
        "The softmax runs over the queries.",
        ("softmax-query-axis",),
    ),
    "keys-from-values": (
        "key_layer = self.transpose_for_scores(self.key(hidden_states))",
        "key_layer = self.transpose_for_scores(self.value(hidden_states))",
        "The keys are made with the values' projection.",
        ("keys-by-w-v",),
    ),
    "eps-of-thousandth": (
        "self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-12)",
        "self.LayerNorm = nn.LayerNorm(hidden_size, eps=1e-3)",
        "A thousandth is added to the variance in the layers.",
        ("layer_norm_eps: 1e-3",),
    ),
}
