# deserves: variant embedding_scale=sqrt_d_model, positions=learned
"""A course's translation model: a FloatTensor as scale, a device argument everywhere, learnt positions and scaled embeddings."""

import torch
import torch.nn as nn

ARRAYS = "torch"
NAME = "course model"
DEVICES = ("cpu",)


class MultiHeadAttentionLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, dropout, device):
        super().__init__()
        self.hid_dim = hid_dim
        self.n_heads = n_heads
        self.head_dim = hid_dim // n_heads
        self.fc_q = nn.Linear(hid_dim, hid_dim)
        self.fc_k = nn.Linear(hid_dim, hid_dim)
        self.fc_v = nn.Linear(hid_dim, hid_dim)
        self.fc_o = nn.Linear(hid_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)
        self.scale = torch.sqrt(torch.FloatTensor([self.head_dim])).to(device)

    def forward(self, query, key, value, mask=None):
        batch_size = query.shape[0]
        Q = self.fc_q(query).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = self.fc_k(key).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = self.fc_v(value).view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / self.scale
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V)
        x = x.permute(0, 2, 1, 3).contiguous()
        x = x.view(batch_size, -1, self.hid_dim)
        return self.fc_o(x), attention


class Feedforward(nn.Module):
    def __init__(self, hid_dim, pf_dim, dropout):
        super().__init__()
        self.fc_1 = nn.Linear(hid_dim, pf_dim)
        self.fc_2 = nn.Linear(pf_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.fc_2(self.dropout(torch.relu(self.fc_1(x))))


class DecoderLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, pf_dim, dropout, device):
        super().__init__()
        self.norm_1 = nn.LayerNorm(hid_dim)
        self.norm_2 = nn.LayerNorm(hid_dim)
        self.norm_3 = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.cross_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.feed_forward = Feedforward(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, trg, enc_src, trg_mask, src_mask):
        _trg, _ = self.self_attention(trg, trg, trg, trg_mask)
        trg = self.norm_1(trg + self.dropout(_trg))
        _trg, attention = self.cross_attention(trg, enc_src, enc_src, src_mask)
        trg = self.norm_2(trg + self.dropout(_trg))
        _trg = self.feed_forward(trg)
        return self.norm_3(trg + self.dropout(_trg)), attention


class EncoderLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, pf_dim, dropout, device):
        super().__init__()
        self.norm_1 = nn.LayerNorm(hid_dim)
        self.norm_2 = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.feed_forward = Feedforward(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_mask):
        _src, _ = self.self_attention(src, src, src, src_mask)
        src = self.norm_1(src + self.dropout(_src))
        _src = self.feed_forward(src)
        return self.norm_2(src + self.dropout(_src))


class Half(nn.Module):
    """Embedding and layers of the encoder or of the decoder."""

    def __init__(self, layer, vocab, hid_dim, n_layers, n_heads, pf_dim, dropout, device, max_length=100):
        super().__init__()
        self.device = device
        self.tok_embedding = nn.Embedding(vocab, hid_dim)
        self.pos_embedding = nn.Embedding(max_length, hid_dim)
        self.layers = nn.ModuleList([layer(hid_dim, n_heads, pf_dim, dropout, device) for _ in range(n_layers)])
        self.dropout = nn.Dropout(dropout)
        self.scale = torch.sqrt(torch.FloatTensor([hid_dim])).to(device)

    def embed(self, ids):
        batch_size, length = ids.shape
        pos = torch.arange(0, length).unsqueeze(0).repeat(batch_size, 1).to(self.device)
        return self.dropout((self.tok_embedding(ids) * self.scale) + self.pos_embedding(pos))


class Seq2Seq(nn.Module):
    def __init__(self, vocab, hid_dim, n_enc, n_dec, n_heads, pf_dim, pad_idx, device="cpu"):
        super().__init__()
        self.encoder = Half(EncoderLayer, vocab, hid_dim, n_enc, n_heads, pf_dim, 0.1, device)
        self.decoder = Half(DecoderLayer, vocab, hid_dim, n_dec, n_heads, pf_dim, 0.1, device)
        self.fc_out = nn.Linear(hid_dim, vocab)
        self.pad_idx = pad_idx
        self.device = device

    def forward(self, src, trg):
        src_mask = (src != self.pad_idx).unsqueeze(1).unsqueeze(2)
        trg_len = trg.shape[1]
        trg_sub_mask = torch.tril(torch.ones((trg_len, trg_len), device=self.device)).bool()
        trg_mask = (trg != self.pad_idx).unsqueeze(1).unsqueeze(2) & trg_sub_mask
        src = self.encoder.embed(src)
        for layer in self.encoder.layers:
            src = layer(src, src_mask)
        trg = self.decoder.embed(trg)
        for layer in self.decoder.layers:
            trg, _ = layer(trg, src, trg_mask, src_mask)
        return self.fc_out(trg)


# The adapter. Where a call has no learnt positions, a table of noughts leaves them out.


def _linear(params, weight, at):
    w = params[weight]
    bias = params.get(weight.replace("w_", "b_"))
    return {f"{at}.weight": w.T, f"{at}.bias": w.new_zeros(w.shape[1]) if bias is None else bias}


def _layer(params, ours, theirs):
    state = {}
    for name in ("self_attention", "cross_attention"):
        for role in "qkvo":
            if f"{ours}{name}.w_q" not in params:
                continue
            if params[f"{ours}{name}.w_{role}"].shape[0] != params[f"{ours}{name}.w_{role}"].shape[1]:
                raise NotImplementedError("one width")
            state |= _linear(params, f"{ours}{name}.w_{role}", f"{theirs}{name}.fc_{role}")
    for i in (1, 2):
        state |= _linear(params, f"{ours}feed_forward.w_{i}", f"{theirs}feed_forward.fc_{i}")
    for i in (1, 2, 3):
        if f"{ours}norm_{i}.gamma" in params:
            state[f"{theirs}norm_{i}.weight"] = params[f"{ours}norm_{i}.gamma"]
            state[f"{theirs}norm_{i}.bias"] = params[f"{ours}norm_{i}.beta"]
    return state


def _call(module, x, state, *args):
    return torch.func.functional_call(module.to(x).eval(), state, args, strict=True)


def _four(mask):
    return mask[None] if mask is not None and mask.dim() == 3 else mask


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    state = {}
    for role in "qkvo":
        if params[f"w_{role}"].shape != (query.size(-1), query.size(-1)):
            raise NotImplementedError("one width")
        state |= _linear(params, f"w_{role}", f"fc_{role}")
    module = MultiHeadAttentionLayer(query.size(-1), num_heads, 0.1, query.device)
    return _call(module, query, state, query, key, value, _four(mask))


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _layer(params, "", "")
    module = EncoderLayer(x.size(-1), num_heads, params["feed_forward.w_1"].size(1), 0.1, x.device)
    return _call(module, x, state, x, _four(mask))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _layer(params, "", "")
    module = DecoderLayer(x.size(-1), num_heads, params["feed_forward.w_1"].size(1), 0.1, x.device)
    output, weights = _call(module, x, state, x, memory, _four(self_mask), _four(memory_mask))
    return {"output": output, "cross_weights": weights}


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    table = params["table"]
    state = _linear(params, "w_vocab", "fc_out")
    for half, count in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        state[f"{half}.tok_embedding.weight"] = table
        state[f"{half}.pos_embedding.weight"] = params.get("position_table", table.new_zeros(100, table.size(1)))
        for i in range(count):
            state |= _layer(params, f"{half}.{i}.", f"{half}.layers.{i}.")
    pf_dim = params["encoder.0.feed_forward.w_1"].size(1)
    model = Seq2Seq(*table.shape, num_encoder_layers, num_decoder_layers, num_heads, pf_dim, pad_id)
    return _call(model, table, state, source, target)


MISTAKES = {
    "scale-after-positions": (
        "(self.tok_embedding(ids) * self.scale) + self.pos_embedding(pos)",
        "(self.tok_embedding(ids) + self.pos_embedding(pos)) / self.scale",
        "The embedding is divided by the root of the width where it should be multiplied.",
        # Without the declaration of learned positions, the adapter's table is zero.
        ("emb-scale-divide",),
    ),
    "cross-reads-itself": (
        "self.cross_attention(trg, enc_src, enc_src, src_mask)",
        "self.cross_attention(enc_src, trg, trg, None)[0][:, :1].expand_as(trg), None",
        "The cross-attention asks from the source for keys of the decoder.",
        ("cross-q-source",),
    ),
    "encoder-output-of-each-layer": (
        "            src = layer(src, src_mask)\n",
        "            src = src + layer(src, src_mask)\n",
        "A further residual goes around each encoder layer.",
        (),
    ),
    "target-mask-without-padding": (
        "trg_mask = (trg != self.pad_idx).unsqueeze(1).unsqueeze(2) & trg_sub_mask",
        "trg_mask = (trg != self.pad_idx).unsqueeze(1).unsqueeze(3) & trg_sub_mask",
        "The target's padding hides rows of queries and not columns of keys.",
        ("pad-on-query",),
    ),
    "permute-of-output": (
        "x = x.permute(0, 2, 1, 3).contiguous()",
        "x = x.permute(0, 2, 3, 1).contiguous()",
        "Channels and heads are interleaved when the heads are joined.",
        ("multi_head_attention.edit@merge_heads/heads@laid:0231:0213",),
    ),
    "scale-squared": (
        "K.permute(0, 1, 3, 2)) / self.scale",
        "K.permute(0, 1, 3, 2)) / self.scale**2",
        "The scores are divided by the width of a head and not by its root.",
        ("scale-no-root",),
    ),
    "dropout-before-relu": (
        "self.fc_2(self.dropout(torch.relu(self.fc_1(x))))",
        "torch.relu(self.fc_2(self.dropout(self.fc_1(x))))",
        "The rectifier comes after the second map.",
        ("ffn-no-relu", "ffn-output-relu"),
    ),
}
