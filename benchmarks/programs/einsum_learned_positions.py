# deserves: variant positions=learned
"""A whole model as in video courses: einsum attention, blocks of blocks, word and position tables that are both learnt."""

import torch
import torch.nn as nn


class SelfAttention(nn.Module):
    def __init__(self, embed_size, heads):
        super().__init__()
        self.embed_size = embed_size
        self.heads = heads
        self.head_dim = embed_size // heads
        assert self.head_dim * heads == embed_size, "Embedding size needs to be divisible by heads"
        self.values = nn.Linear(embed_size, embed_size)
        self.keys = nn.Linear(embed_size, embed_size)
        self.queries = nn.Linear(embed_size, embed_size)
        self.fc_out = nn.Linear(embed_size, embed_size)

    def forward(self, values, keys, query, mask):
        N = query.shape[0]
        value_len, key_len, query_len = values.shape[1], keys.shape[1], query.shape[1]
        values = self.values(values).reshape(N, value_len, self.heads, self.head_dim)
        keys = self.keys(keys).reshape(N, key_len, self.heads, self.head_dim)
        queries = self.queries(query).reshape(N, query_len, self.heads, self.head_dim)
        energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        if mask is not None:
            energy = energy.masked_fill(mask == 0, float("-1e20"))
        attention = torch.softmax(energy / (self.head_dim ** (1 / 2)), dim=3)
        out = torch.einsum("nhql,nlhd->nqhd", [attention, values]).reshape(N, query_len, self.heads * self.head_dim)
        return self.fc_out(out)


class TransformerBlock(nn.Module):
    def __init__(self, embed_size, heads, dropout, hidden):
        super().__init__()
        self.attention = SelfAttention(embed_size, heads)
        self.norm1 = nn.LayerNorm(embed_size)
        self.norm2 = nn.LayerNorm(embed_size)
        self.feed_forward = nn.Sequential(
            nn.Linear(embed_size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, embed_size),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, value, key, query, mask):
        attention = self.attention(value, key, query, mask)
        x = self.dropout(self.norm1(attention + query))
        forward = self.feed_forward(x)
        return self.dropout(self.norm2(forward + x))


class Encoder(nn.Module):
    def __init__(self, vocab, embed_size, num_layers, heads, hidden, dropout, max_length):
        super().__init__()
        self.word_embedding = nn.Embedding(vocab, embed_size)
        self.position_embedding = nn.Embedding(max_length, embed_size)
        self.layers = nn.ModuleList([TransformerBlock(embed_size, heads, dropout, hidden) for _ in range(num_layers)])
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        N, seq_length = x.shape
        positions = torch.arange(0, seq_length).expand(N, seq_length).to(x.device)
        out = self.dropout(self.word_embedding(x) + self.position_embedding(positions))
        for layer in self.layers:
            out = layer(out, out, out, mask)
        return out


class DecoderBlock(nn.Module):
    def __init__(self, embed_size, heads, hidden, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(embed_size)
        self.attention = SelfAttention(embed_size, heads)
        self.transformer_block = TransformerBlock(embed_size, heads, dropout, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, value, key, src_mask, trg_mask):
        attention = self.attention(x, x, x, trg_mask)
        query = self.dropout(self.norm(attention + x))
        return self.transformer_block(value, key, query, src_mask)


class Decoder(nn.Module):
    def __init__(self, vocab, embed_size, num_layers, heads, hidden, dropout, max_length):
        super().__init__()
        self.word_embedding = nn.Embedding(vocab, embed_size)
        self.position_embedding = nn.Embedding(max_length, embed_size)
        self.layers = nn.ModuleList([DecoderBlock(embed_size, heads, hidden, dropout) for _ in range(num_layers)])
        self.fc_out = nn.Linear(embed_size, vocab)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, enc_out, src_mask, trg_mask):
        N, seq_length = x.shape
        positions = torch.arange(0, seq_length).expand(N, seq_length).to(x.device)
        x = self.dropout(self.word_embedding(x) + self.position_embedding(positions))
        for layer in self.layers:
            x = layer(x, enc_out, enc_out, src_mask, trg_mask)
        return self.fc_out(x)


class Transformer(nn.Module):
    def __init__(self, vocab, pad_idx, embed_size, n_enc, n_dec, hidden, heads, dropout=0.0, max_length=5000):
        super().__init__()
        self.encoder = Encoder(vocab, embed_size, n_enc, heads, hidden, dropout, max_length)
        self.decoder = Decoder(vocab, embed_size, n_dec, heads, hidden, dropout, max_length)
        self.pad_idx = pad_idx

    def make_src_mask(self, src):
        return (src != self.pad_idx).unsqueeze(1).unsqueeze(2)

    def make_trg_mask(self, trg):
        N, trg_len = trg.shape
        causal = torch.tril(torch.ones((trg_len, trg_len), device=trg.device)).expand(N, 1, trg_len, trg_len)
        return causal.bool() & (trg != self.pad_idx)[:, None, None, :]

    def forward(self, src, trg):
        src_mask = self.make_src_mask(src)
        trg_mask = self.make_trg_mask(trg)
        enc_src = self.encoder(src, src_mask)
        return self.decoder(trg, enc_src, src_mask, trg_mask)


# The adapter.

ARRAYS = "torch"
NAME = "einsum model with learnt positions"


def _linear(params, weight, at):
    w = params[weight]
    head, _, tail = weight.rpartition("w_")
    bias = params.get(f"{head}b_{tail}")
    return {f"{at}.weight": w.T, f"{at}.bias": torch.zeros_like(w[0]) if bias is None else bias}


def _attention(params, ours, theirs):
    state = {}
    for role, linear in {"q": "queries", "k": "keys", "v": "values", "o": "fc_out"}.items():
        if params[f"{ours}w_{role}"].shape[0] != params[f"{ours}w_{role}"].shape[1]:
            raise NotImplementedError("square projections")
        state |= _linear(params, f"{ours}w_{role}", f"{theirs}{linear}")
    return state


def _norm(params, ours, at):
    return {f"{at}.weight": params[f"{ours}.gamma"], f"{at}.bias": params[f"{ours}.beta"]}


def _block(params, ours, theirs, attention="self_attention", first=1):
    state = _attention(params, f"{ours}{attention}.", f"{theirs}attention.")
    state |= _norm(params, f"{ours}norm_{first}", f"{theirs}norm1")
    state |= _norm(params, f"{ours}norm_{first + 1}", f"{theirs}norm2")
    for i, place in ((1, 0), (2, 2)):
        state |= _linear(params, f"{ours}feed_forward.w_{i}", f"{theirs}feed_forward.{place}")
    return state


def _decoder_block(params, ours, theirs):
    state = _attention(params, f"{ours}self_attention.", f"{theirs}attention.")
    state |= _norm(params, f"{ours}norm_1", f"{theirs}norm")
    return state | _block(params, ours, f"{theirs}transformer_block.", "cross_attention", 2)


def _mask(mask):
    return mask[None] if mask is not None and mask.dim() == 3 else mask


def _call(module, like, state, args):
    return torch.func.functional_call(module.to(like).eval(), state, args, strict=True)


def encoder_layer(x, mask=None, *, num_heads, params):
    if params["self_attention.w_q"].size(1) != x.size(-1):
        raise NotImplementedError("heads divide the width")
    block = TransformerBlock(x.size(-1), num_heads, 0.1, params["feed_forward.w_1"].size(1))
    return _call(block, x, _block(params, "", ""), (x, x, x, _mask(mask)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    if params["self_attention.w_q"].size(1) != x.size(-1):
        raise NotImplementedError("heads divide the width")
    block = DecoderBlock(x.size(-1), num_heads, params["feed_forward.w_1"].size(1), 0.1)
    masks = _mask(memory_mask), _mask(self_mask)
    return _call(block, x, _decoder_block(params, "", ""), (x, memory, memory, *masks))


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    table = params["table"]
    hidden = params["encoder.0.feed_forward.w_1"].size(1)
    model = Transformer(len(table), pad_id, table.size(1), num_encoder_layers, num_decoder_layers, hidden, num_heads)
    state = _linear(params, "w_vocab", "decoder.fc_out")
    for half in ("encoder", "decoder"):
        state[f"{half}.word_embedding.weight"] = table
        # Where a call has no learnt positions, a table of noughts leaves them out.
        state[f"{half}.position_embedding.weight"] = params.get("position_table", table.new_zeros(5000, table.size(1)))
    for i in range(num_encoder_layers):
        state |= _block(params, f"encoder.{i}.", f"encoder.layers.{i}.")
    for i in range(num_decoder_layers):
        state |= _decoder_block(params, f"decoder.{i}.", f"decoder.layers.{i}.")
    return _call(model, table, state, (source, target))


MISTAKES = {
    "keys-summed-with-values": (
        '"nhql,nlhd->nqhd"',
        '"nhlq,nlhd->nqhd"',
        "The weights are summed over the queries' axis, as the letters of the einsum are swapped.",
        ("encoder_layer.edit@encoder_layer/result.weights@transposed:-2:-1",),
    ),
    "value-and-query-swapped": (
        "return self.transformer_block(value, key, query, src_mask)",
        "return self.transformer_block(query, key, value, src_mask)",
        "The cross-attention's arguments are given in another order, so queries come from the memory.",
        (),
    ),
    "query-not-normalised": (
        "x = self.dropout(self.norm1(attention + query))",
        "x = self.dropout(self.norm1(attention) + query)",
        "The attention is normalised before the residual is added.",
        ("norm-before-add",),
    ),
    "masks-swapped": (
        "return self.decoder(trg, enc_src, src_mask, trg_mask)",
        "return self.decoder(trg, enc_src, None, trg_mask)",
        "The decoder reads the padding of the source.",
        ("cross-mask-absent",),
    ),
    "scale-by-embed-size": (
        "energy / (self.head_dim ** (1 / 2))",
        "energy / (self.embed_size ** (1 / 2))",
        "The scores are divided by the root of the width of the model.",
        ("scale-d-model",),
    ),
    "softmax-over-heads": (
        "(1 / 2)), dim=3)",
        "(1 / 2)), dim=1)",
        "The softmax runs over the heads.",
        ("softmax-head-axis",),
    ),
    "causal-upper": (
        "torch.tril(torch.ones((trg_len, trg_len)",
        "torch.triu(torch.ones((trg_len, trg_len)",
        "The causal mask shows the later positions and hides the earlier ones.",
        ("causal-flipped",),
    ),
}
