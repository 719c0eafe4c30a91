# deserves: variant norm_placement=pre, empty_row=unspecified
# declares: final_norm=after_stack
"""A recogniser's encoder from the framework's own layers with the normalisation first, a final one, and lengths for padding."""

import torch
from torch import nn


def lengths_to_padding_mask(lengths, longest):
    return torch.arange(longest, device=lengths.device)[None, :] >= lengths[:, None]


class AcousticEncoder(nn.Module):
    def __init__(self, d_model, nhead, d_ffn, num_layers, dropout=0.1):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(d_model, nhead, d_ffn, dropout, batch_first=True, norm_first=True)
                for _ in range(num_layers)
            ]
        )
        self.after_norm = nn.LayerNorm(d_model)

    def forward(self, xs, lengths=None, chunk_mask=None):
        padding = None if lengths is None else lengths_to_padding_mask(lengths, xs.size(1))
        states = []
        for layer in self.layers:
            xs = layer(xs, src_mask=chunk_mask, src_key_padding_mask=padding)
            states.append(xs)
        return self.after_norm(xs), states


class AcousticDecoder(nn.Module):
    def __init__(self, d_model, nhead, d_ffn, num_layers, dropout=0.1):
        super().__init__()
        layer = nn.TransformerDecoderLayer(d_model, nhead, d_ffn, dropout, batch_first=True, norm_first=True)
        self.decoder = nn.TransformerDecoder(layer, num_layers, norm=nn.LayerNorm(d_model))

    def forward(self, ys, memory, memory_lengths=None, future=None, lengths=None):
        memory_padding = None
        if memory_lengths is not None:
            memory_padding = lengths_to_padding_mask(memory_lengths, memory.size(1))
        padding = None if lengths is None else lengths_to_padding_mask(lengths, ys.size(1))
        return self.decoder(
            ys, memory, tgt_mask=future, tgt_key_padding_mask=padding, memory_key_padding_mask=memory_padding
        )


# The adapter. Where the stacks of a call have no final normalisation, that of the modules is taken out.

ARRAYS = "torch"
NAME = "library layers, normalisation first"
DEVICES = ("cpu",)


def _masks(mask, batch, q_seq, kv_seq):
    """A mask as (lengths, causal): padding at the end, and the one causal mask."""
    if mask is None:
        return None, None
    if mask.dim() == 3 or (mask.dim() == 4 and mask.size(1) > 1):
        raise NotImplementedError("one mask for all heads")
    full = mask.expand(batch, 1, q_seq, kv_seq)[:, 0]
    lengths = full.any(1).sum(-1)
    keys = torch.arange(kv_seq)[None, None, :] < lengths[:, None, None]
    causal = torch.ones(q_seq, kv_seq, dtype=torch.bool).tril()
    if torch.equal(full, keys.expand_as(full)):
        return lengths, None
    if torch.equal(full, keys & causal):
        return lengths, ~causal
    raise NotImplementedError("padding at the end, and causal masks")


def _linear(params, ours, at):
    w, b = params[ours], params.get(ours.replace("w_", "b_"))
    return {f"{at}.weight": w.mT, f"{at}.bias": w.new_zeros(w.size(1)) if b is None else b}


def _layer(params, ours, theirs):
    state = {}
    names = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}
    for name, at in names.items():
        if f"{ours}{name}.w_q" not in params:
            continue
        weights = [params[f"{ours}{name}.w_{role}"] for role in "qkv"]
        if any(w.shape[0] != w.shape[1] for w in weights):
            raise NotImplementedError("embed_dim is the width of all")
        biases = [params.get(f"{ours}{name}.b_{role}", weights[0].new_zeros(len(weights[0]))) for role in "qkv"]
        state[f"{theirs}{at}.in_proj_weight"] = torch.cat(weights, 1).mT
        state[f"{theirs}{at}.in_proj_bias"] = torch.cat(biases)
        state |= _linear(params, f"{ours}{name}.w_o", f"{theirs}{at}.out_proj")
    for i in "12":
        state |= _linear(params, f"{ours}feed_forward.w_{i}", f"{theirs}linear{i}")
    for i in "123":
        if f"{ours}norm_{i}.gamma" in params:
            state[f"{theirs}norm{i}.weight"] = params[f"{ours}norm_{i}.gamma"]
            state[f"{theirs}norm{i}.bias"] = params[f"{ours}norm_{i}.beta"]
    return state


def _final_norm(params, at):
    if "norm.gamma" not in params:
        return {}
    return {f"{at}.weight": params["norm.gamma"], f"{at}.bias": params["norm.beta"]}


def _encode(x, mask, num_heads, params, names):
    final = _final_norm(params, "after_norm")
    state = {**final}
    for i, name in enumerate(names):
        state |= _layer(params, name, f"layers.{i}.")
    if x.size(-1) % num_heads:
        raise ValueError("num_heads: does not divide d_model")
    module = AcousticEncoder(x.size(-1), num_heads, params[f"{names[0]}feed_forward.w_1"].size(1), len(names))
    module.after_norm = module.after_norm if final else nn.Identity()
    masks = _masks(mask, x.size(0), x.size(1), x.size(1))
    return torch.func.functional_call(module.to(x).eval(), state, (x, *masks), strict=True)


def encoder_layer(x, mask=None, *, num_heads, params):
    return _encode(x, mask, num_heads, params, [""])[0]


def encoder(x, mask=None, *, num_heads, num_layers, params):
    output, layers = _encode(x, mask, num_heads, params, [f"encoder.{i}." for i in range(num_layers)])
    return output, torch.stack(layers)


def _decode(x, memory, self_mask, memory_mask, num_heads, params, names):
    final = _final_norm(params, "decoder.norm")
    state = {**final}
    for i, name in enumerate(names):
        state |= _layer(params, name, f"decoder.layers.{i}.")
    module = AcousticDecoder(x.size(-1), num_heads, params[f"{names[0]}feed_forward.w_1"].size(1), len(names))
    module.decoder.norm = module.decoder.norm if final else None
    lengths, future = _masks(self_mask, x.size(0), x.size(1), x.size(1))
    memory_lengths, rest = _masks(memory_mask, x.size(0), x.size(1), memory.size(1))
    if rest is not None:
        raise NotImplementedError("the memory is padded and not causal")
    return torch.func.functional_call(
        module.to(x).eval(), state, (x, memory, memory_lengths, future, lengths), strict=True
    )


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    return _decode(x, memory, self_mask, memory_mask, num_heads, params, [""])


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    names = [f"decoder.{i}." for i in range(num_layers)]
    return _decode(x, memory, self_mask, memory_mask, num_heads, params, names)


MISTAKES = {
    "padding-of-other": (
        "tgt_key_padding_mask=padding, memory_key_padding_mask=memory_padding\n",
        "tgt_key_padding_mask=padding\n",
        "The memory's padding is not hidden.",
        ("cross-mask-absent",),
    ),
    "lengths-inclusive": (
        "[None, :] >= lengths[:, None]",
        "[None, :] > lengths[:, None]",
        "One place behind the end is seen.",
        (),
    ),
    "layers-not-chained": (
        "            xs = layer(xs, src_mask=chunk_mask, src_key_padding_mask=padding)\n            states.append(xs)",
        "            states.append(layer(xs, src_mask=chunk_mask, src_key_padding_mask=padding))\n        xs = states[-1]",
        "Every layer reads the input of the first.",
        (),
    ),
    "mask-and-padding": (
        "src_mask=chunk_mask, src_key_padding_mask=padding",
        "src_key_padding_mask=padding",
        "The layers are not given the mask between positions.",
        (
            "mask-not-inplace",
            "scaled_dot_product_attention.edit@weigh_keys/mask@mask:last-query",
            "encoder_layer.edit@weigh_keys/mask@mask:any-query",
        ),
    ),
    "decoder-norm-last": (
        "nn.TransformerDecoderLayer(d_model, nhead, d_ffn, dropout, batch_first=True, norm_first=True)",
        "nn.TransformerDecoderLayer(d_model, nhead, d_ffn, dropout, batch_first=True)",
        "The decoder normalises after its sub-layers where the encoder does before.",
        ("norm_placement: post",),
    ),
    "sequence-first": (
        "nn.TransformerEncoderLayer(d_model, nhead, d_ffn, dropout, batch_first=True, norm_first=True)",
        "nn.TransformerEncoderLayer(d_model, nhead, d_ffn, dropout, norm_first=True)",
        "The encoder's layers take the batch for the sequence.",
        ("seq-batch-swap",),
    ),
    "states-before": (
        "        return self.after_norm(xs), states",
        "        return self.after_norm(states[0]), states",
        "What the first layer gives is returned as the result of the stack.",
        ("layer-skipped",),
    ),
}
