# deserves: correct
"""A sequence-first encoder and decoder as in many translation repositories, with padding masks where True means hidden."""

import math

import torch
from torch import nn
from torch.func import functional_call

from goldformer.adapters.layouts import batch_first, linear_weight, part, sequence_first


class Attention(nn.Module):
    """Inputs are (time, batch, channels)."""

    def __init__(self, embed_dim, num_heads, dropout=0.1):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        assert self.head_dim * num_heads == embed_dim, "embed_dim must be divisible by num_heads"
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None, need_weights=True):
        tgt_len, bsz, embed_dim = query.size()
        src_len = key.size(0)
        q = self.q_proj(query) * self.scaling
        k = self.k_proj(key)
        v = self.v_proj(value)
        q = q.contiguous().view(tgt_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        k = k.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        v = v.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)
        weights = torch.bmm(q, k.transpose(1, 2))
        if attn_mask is not None:
            weights = weights + attn_mask.unsqueeze(0)
        if key_padding_mask is not None:
            weights = weights.view(bsz, self.num_heads, tgt_len, src_len)
            weights = weights.masked_fill(key_padding_mask.unsqueeze(1).unsqueeze(2), float("-inf"))
            weights = weights.view(bsz * self.num_heads, tgt_len, src_len)
        weights = torch.softmax(weights, dim=-1)
        attn = torch.bmm(self.dropout(weights), v)
        attn = attn.transpose(0, 1).contiguous().view(tgt_len, bsz, embed_dim)
        attn = self.out_proj(attn)
        if need_weights:
            weights = weights.view(bsz, self.num_heads, tgt_len, src_len)
            return attn, weights.mean(dim=1)
        return attn, None


class EncoderLayer(nn.Module):
    def __init__(self, embed_dim, ffn_dim, num_heads, dropout=0.1):
        super().__init__()
        self.self_attn = Attention(embed_dim, num_heads, dropout)
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.fc1 = nn.Linear(embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, encoder_padding_mask=None, attn_mask=None):
        residual = x
        x, _ = self.self_attn(x, x, x, key_padding_mask=encoder_padding_mask, attn_mask=attn_mask)
        x = residual + self.dropout(x)
        x = self.self_attn_layer_norm(x)
        residual = x
        x = torch.relu(self.fc1(x))
        x = self.fc2(self.dropout(x))
        x = residual + self.dropout(x)
        return self.final_layer_norm(x)


class DecoderLayer(nn.Module):
    def __init__(self, embed_dim, ffn_dim, num_heads, dropout=0.1):
        super().__init__()
        self.self_attn = Attention(embed_dim, num_heads, dropout)
        self.self_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.encoder_attn = Attention(embed_dim, num_heads, dropout)
        self.encoder_attn_layer_norm = nn.LayerNorm(embed_dim)
        self.fc1 = nn.Linear(embed_dim, ffn_dim)
        self.fc2 = nn.Linear(ffn_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, encoder_out, encoder_padding_mask=None, self_attn_mask=None, self_padding_mask=None):
        residual = x
        x, _ = self.self_attn(x, x, x, key_padding_mask=self_padding_mask, attn_mask=self_attn_mask)
        x = self.self_attn_layer_norm(residual + self.dropout(x))
        residual = x
        x, attn = self.encoder_attn(x, encoder_out, encoder_out, key_padding_mask=encoder_padding_mask)
        x = self.encoder_attn_layer_norm(residual + self.dropout(x))
        residual = x
        x = self.fc2(self.dropout(torch.relu(self.fc1(x))))
        x = self.final_layer_norm(residual + self.dropout(x))
        return x, attn


class Model(nn.Module):
    def __init__(self, vocab, embed_dim, ffn_dim, num_heads, enc_layers, dec_layers, padding_idx):
        super().__init__()
        self.padding_idx = padding_idx
        self.embed_tokens = nn.Embedding(vocab, embed_dim)
        self.encoder = nn.ModuleList([EncoderLayer(embed_dim, ffn_dim, num_heads) for _ in range(enc_layers)])
        self.decoder = nn.ModuleList([DecoderLayer(embed_dim, ffn_dim, num_heads) for _ in range(dec_layers)])
        self.output_projection = nn.Linear(embed_dim, vocab)

    @staticmethod
    def positions(length, dim, like):
        rate = torch.exp(torch.arange(0, dim, 2, dtype=torch.float) * -(math.log(10000.0) / dim))
        angle = torch.arange(length, dtype=torch.float).unsqueeze(1) * rate.unsqueeze(0)
        return torch.stack([angle.sin(), angle.cos()], dim=2).view(length, -1)[:, :dim].to(like)

    def embed(self, tokens):
        x = self.embed_tokens(tokens)
        x = x + self.positions(x.size(1), x.size(2), x)
        return x.transpose(0, 1)

    def forward(self, src_tokens, prev_output_tokens):
        src_padding = src_tokens.eq(self.padding_idx)
        tgt_padding = prev_output_tokens.eq(self.padding_idx)
        x = self.embed(src_tokens)
        for layer in self.encoder:
            x = layer(x, src_padding)
        memory = x
        x = self.embed(prev_output_tokens)
        future = torch.triu(x.new_full((x.size(0), x.size(0)), float("-inf")), 1)
        for layer in self.decoder:
            x, _ = layer(x, memory, src_padding, future, tgt_padding)
        return self.output_projection(x.transpose(0, 1)), memory.transpose(0, 1)


# The adapter.

ARRAYS = "torch"
NAME = "sequence first"
CONVENTIONS = {"empty_row": "nan"}


def _linear(params, weight, bias):
    w = params[weight]
    return linear_weight(w), params.get(bias, w.new_zeros(w.shape[1]))


def _attention_state(params, prefix, d_model):
    state = {}
    for role, name in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}.items():
        if tuple(params[f"w_{role}"].shape) != (d_model, d_model):
            raise NotImplementedError("one width for all projections")
        state[f"{prefix}{name}.weight"], state[f"{prefix}{name}.bias"] = _linear(params, f"w_{role}", f"b_{role}")
    return state


def _layer_state(params, prefix, d_model, decoder):
    state = _attention_state(part(params, "self_attention"), prefix + "self_attn.", d_model)
    norms = ["self_attn_layer_norm", "final_layer_norm"]
    if decoder:
        state |= _attention_state(part(params, "cross_attention"), prefix + "encoder_attn.", d_model)
        norms.insert(1, "encoder_attn_layer_norm")
    for i, name in enumerate(norms, 1):
        state[f"{prefix}{name}.weight"] = params[f"norm_{i}.gamma"]
        state[f"{prefix}{name}.bias"] = params[f"norm_{i}.beta"]
    for i in "12":
        w, b = _linear(params, f"feed_forward.w_{i}", f"feed_forward.b_{i}")
        state[f"{prefix}fc{i}.weight"], state[f"{prefix}fc{i}.bias"] = w, b
    return state


def _masks(mask, batch, q_seq, kv_seq, dtype):
    """Split what can be split into a padding mask (batch, kv_seq) and an added mask (q_seq, kv_seq)."""
    if mask is None:
        return None, None
    if mask.dim() == 4 and tuple(mask.shape[1:3]) == (1, 1):
        return ~mask[:, 0, 0].expand(batch, kv_seq), None
    if mask.dim() == 2 or (mask.dim() == 4 and tuple(mask.shape[:2]) == (1, 1)):
        flat = mask.reshape(mask.shape[-2:]).expand(q_seq, kv_seq)
        return None, torch.zeros(q_seq, kv_seq, dtype=dtype, device=mask.device).masked_fill(~flat, float("-inf"))
    if mask.dim() == 4 and mask.size(1) == 1:
        padding = ~mask.any(dim=-2)[:, 0].expand(batch, kv_seq)
        causal = torch.ones(q_seq, kv_seq, dtype=torch.bool, device=mask.device).tril()
        if torch.equal(mask[:, 0].expand(batch, q_seq, kv_seq), causal & ~padding[:, None, :]):
            return padding, torch.zeros(q_seq, kv_seq, dtype=dtype, device=mask.device).masked_fill(
                ~causal, float("-inf")
            )
    raise NotImplementedError("a padding mask and a mask of (q_seq, kv_seq)")


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    if not query.size(-1) == key.size(-1) == value.size(-1) == params["w_q"].size(0):
        raise NotImplementedError("one width")
    state = _attention_state(params, "", query.size(-1))
    module = Attention(query.size(-1), num_heads).to(query).eval()
    padding, added = _masks(mask, query.size(0), query.size(1), key.size(1), query.dtype)
    inputs = [sequence_first(x) for x in (query, key, value)]
    output, _ = functional_call(module, state, (*inputs, padding, added))
    return batch_first(output)


def encoder_layer(x, mask=None, *, num_heads, params):
    d_model = x.size(-1)
    state = _layer_state(params, "", d_model, decoder=False)
    module = EncoderLayer(d_model, params["feed_forward.w_1"].size(1), num_heads).to(x).eval()
    masks = _masks(mask, x.size(0), x.size(1), x.size(1), x.dtype)
    return batch_first(functional_call(module, state, (sequence_first(x), *masks)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    d_model = x.size(-1)
    state = _layer_state(params, "", d_model, decoder=True)
    module = DecoderLayer(d_model, params["feed_forward.w_1"].size(1), num_heads).to(x).eval()
    padding, added = _masks(self_mask, x.size(0), x.size(1), x.size(1), x.dtype)
    memory_padding, rest = _masks(memory_mask, x.size(0), x.size(1), memory.size(1), x.dtype)
    if rest is not None:
        raise NotImplementedError("the memory has a padding mask alone")
    args = (sequence_first(x), sequence_first(memory), memory_padding, added, padding)
    return batch_first(functional_call(module, state, args)[0])


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    vocab, d_model = params["table"].shape
    d_ff = params["encoder.0.feed_forward.w_1"].size(1)
    model = Model(vocab, d_model, d_ff, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    state = {"embed_tokens.weight": params["table"]}
    for name, n in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        for i in range(n):
            state |= _layer_state(part(params, f"{name}.{i}"), f"{name}.{i}.", d_model, decoder=name == "decoder")
    weight, bias = _linear(params, "w_vocab", "b_vocab")
    state["output_projection.weight"], state["output_projection.bias"] = weight, bias
    return functional_call(model.to(params["table"]).eval(), state, (source, target))


MISTAKES = {
    "heads-split-over-batch": (
        "v = v.contiguous().view(src_len, bsz * self.num_heads, self.head_dim).transpose(0, 1)",
        "v = v.contiguous().view(bsz * self.num_heads, src_len, self.head_dim)",
        "The values are cut as if the batch came first, so that tokens and samples mix.",
        ("head-split-view", "multi_head_attention.edit@project_heads#2/result@laid:2013:0123"),
    ),
    "cross-padding-of-target": (
        "key_padding_mask=self_padding_mask, attn_mask=self_attn_mask",
        "attn_mask=self_attn_mask",
        "The decoder's self-attention forgets the padding mask of the target.",
        (
            "target_mask: causal_only",
            "mask-not-inplace",
            "decoder_layer.edit@run_sublayer#0/weigh_keys/mask@mask:without-padding",
        ),
    ),
    "memory-of-first-layer": (
        "        for layer in self.encoder:\n            x = layer(x, src_padding)\n        memory = x",
        "        for layer in self.encoder:\n            memory = x\n            x = layer(x, src_padding)",
        "The memory is what the last encoder layer reads and not what it gives.",
        ("layer-skipped",),
    ),
    "residual-from-start": (
        "        residual = x\n        x = torch.relu(self.fc1(x))\n        x = self.fc2",
        "        x = torch.relu(self.fc1(x))\n        x = self.fc2",
        "The second residual of the encoder layer starts from the layer's input.",
        ("residual-wrong-x",),
    ),
    "scaled-twice": (
        "k = self.k_proj(key)",
        "k = self.k_proj(key) * self.scaling",
        "Queries and keys are both scaled, so the scores are divided by the width of a head.",
        ("scale-twice", "scale-no-root"),
    ),
    "future-includes-present": (
        'float("-inf")), 1)',
        'float("-inf")), 0)',
        "The causal mask hides the token's own position too.",
        ("causal-strict",),
    ),
    "positions-from-one": (
        "torch.arange(length, dtype=torch.float).unsqueeze(1)",
        "torch.arange(1, length + 1, dtype=torch.float).unsqueeze(1)",
        "Positions are counted from one.",
        ("pe-start-one",),
    ),
    "padding-over-queries": (
        "key_padding_mask.unsqueeze(1).unsqueeze(2)",
        "key_padding_mask.unsqueeze(1).unsqueeze(3)",
        "The padding mask hides rows of queries and not columns of keys.",
        ("pad-on-query",),
    ),
}
