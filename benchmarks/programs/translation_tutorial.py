# deserves: variant embedding_scale=sqrt_d_model, odd_d_model=refused, final_norm=after_stack
"""A translation tutorial: the framework's whole model, sequence first, float masks of −inf, embeddings times the root of the width."""

import math

import torch
import torch.nn as nn
from torch import Tensor


class PositionalEncoding(nn.Module):
    def __init__(self, emb_size: int, dropout: float, maxlen: int = 5000):
        super().__init__()
        den = torch.exp(-torch.arange(0, emb_size, 2) * math.log(10000) / emb_size)
        pos = torch.arange(0, maxlen).reshape(maxlen, 1)
        pos_embedding = torch.zeros((maxlen, emb_size))
        pos_embedding[:, 0::2] = torch.sin(pos * den)
        pos_embedding[:, 1::2] = torch.cos(pos * den)
        pos_embedding = pos_embedding.unsqueeze(-2)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("pos_embedding", pos_embedding)

    def forward(self, token_embedding: Tensor):
        return self.dropout(token_embedding + self.pos_embedding[: token_embedding.size(0), :])


class TokenEmbedding(nn.Module):
    def __init__(self, vocab_size: int, emb_size):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.emb_size = emb_size

    def forward(self, tokens: Tensor):
        return self.embedding(tokens.long()) * math.sqrt(self.emb_size)


class Seq2SeqTransformer(nn.Module):
    def __init__(
        self, num_encoder_layers, num_decoder_layers, emb_size, nhead, vocab_size, dim_feedforward, dropout=0.1
    ):
        super().__init__()
        self.transformer = nn.Transformer(
            d_model=emb_size,
            nhead=nhead,
            num_encoder_layers=num_encoder_layers,
            num_decoder_layers=num_decoder_layers,
            dim_feedforward=dim_feedforward,
            dropout=dropout,
        )
        self.generator = nn.Linear(emb_size, vocab_size)
        self.src_tok_emb = TokenEmbedding(vocab_size, emb_size)
        self.tgt_tok_emb = TokenEmbedding(vocab_size, emb_size)
        self.positional_encoding = PositionalEncoding(emb_size, dropout=dropout)

    def forward(self, src, trg, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, memory_key_padding_mask):
        src_emb = self.positional_encoding(self.src_tok_emb(src))
        tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))
        outs = self.transformer(
            src_emb, tgt_emb, src_mask, tgt_mask, None, src_padding_mask, tgt_padding_mask, memory_key_padding_mask
        )
        return self.generator(outs)


def generate_square_subsequent_mask(sz, device):
    mask = (torch.triu(torch.ones((sz, sz), device=device)) == 1).transpose(0, 1)
    return mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, float(0.0))


def create_mask(src, tgt, pad_idx):
    src_seq_len = src.shape[0]
    tgt_seq_len = tgt.shape[0]
    tgt_mask = generate_square_subsequent_mask(tgt_seq_len, src.device)
    src_mask = torch.zeros((src_seq_len, src_seq_len), device=src.device).type(torch.bool)
    src_padding_mask = (src == pad_idx).transpose(0, 1)
    tgt_padding_mask = (tgt == pad_idx).transpose(0, 1)
    return src_mask, tgt_mask, src_padding_mask, tgt_padding_mask


# The adapter.

ARRAYS = "torch"
NAME = "translation tutorial"
DTYPES = ("float32",)


def causal_mask(*, q_seq, kv_seq):
    if q_seq != kv_seq:
        raise NotImplementedError("square")
    return generate_square_subsequent_mask(q_seq, "cpu") == 0


def token_embedding(ids, *, params):
    module = TokenEmbedding(*params["table"].shape)
    return torch.func.functional_call(module, {"embedding.weight": params["table"]}, (ids,))


def positional_encoding(x):
    return PositionalEncoding(x.size(-1), 0.1).to(x).eval()(x.transpose(0, 1)).transpose(0, 1)


def _attention(params, ours, theirs):
    weights = {role: params[f"{ours}.w_{role}"] for role in "qkvo"}
    if any(weight.shape[0] != weight.shape[1] for weight in weights.values()):
        raise NotImplementedError("square projections")
    biases = {role: params.get(f"{ours}.b_{role}", torch.zeros_like(weight[0])) for role, weight in weights.items()}
    return {
        f"{theirs}.in_proj_weight": torch.cat([weights[role].T for role in "qkv"]),
        f"{theirs}.in_proj_bias": torch.cat([biases[role] for role in "qkv"]),
        f"{theirs}.out_proj.weight": weights["o"].T,
        f"{theirs}.out_proj.bias": biases["o"],
    }


def _layer(params, ours, theirs, decoder):
    state = _attention(params, f"{ours}.self_attention", f"{theirs}.self_attn")
    if decoder:
        state |= _attention(params, f"{ours}.cross_attention", f"{theirs}.multihead_attn")
    for i in "123"[: 3 if decoder else 2]:
        state[f"{theirs}.norm{i}.weight"] = params[f"{ours}.norm_{i}.gamma"]
        state[f"{theirs}.norm{i}.bias"] = params[f"{ours}.norm_{i}.beta"]
    for i in "12":
        weight = params[f"{ours}.feed_forward.w_{i}"]
        state[f"{theirs}.linear{i}.weight"] = weight.T
        state[f"{theirs}.linear{i}.bias"] = params.get(f"{ours}.feed_forward.b_{i}", torch.zeros_like(weight[0]))
    return state


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    vocab, d_model = params["table"].shape
    state = {f"{side}_tok_emb.embedding.weight": params["table"] for side in ("src", "tgt")}
    state["generator.weight"] = params["w_vocab"].T
    state["generator.bias"] = params.get("b_vocab", torch.zeros_like(params["w_vocab"][0]))
    for i in range(num_encoder_layers):
        state |= _layer(params, f"encoder.{i}", f"transformer.encoder.layers.{i}", decoder=False)
    for i in range(num_decoder_layers):
        state |= _layer(params, f"decoder.{i}", f"transformer.decoder.layers.{i}", decoder=True)
    for side in ("encoder", "decoder"):
        if f"{side}_norm.gamma" in params:  # without the declaration nn.Transformer has a new norm after each stack
            state[f"transformer.{side}.norm.weight"] = params[f"{side}_norm.gamma"]
            state[f"transformer.{side}.norm.bias"] = params[f"{side}_norm.beta"]
    d_ff = params["encoder.0.feed_forward.w_1"].shape[1]
    model = Seq2SeqTransformer(num_encoder_layers, num_decoder_layers, d_model, num_heads, vocab, d_ff).to(
        state["generator.weight"]
    )
    src, tgt = source.T, target.T
    src_mask, tgt_mask, src_padding, tgt_padding = create_mask(src, tgt, pad_id)
    args = (src, tgt, src_mask, tgt_mask, src_padding, tgt_padding, src_padding)
    return torch.func.functional_call(model.eval(), state, args).transpose(0, 1)


MISTAKES = {
    "padding-masks-swapped": (
        "src_emb, tgt_emb, src_mask, tgt_mask, None, src_padding_mask, tgt_padding_mask, memory_key_padding_mask\n",
        "src_emb, tgt_emb, src_mask, tgt_mask, None, src_padding_mask, tgt_padding_mask, None\n",
        "The memory's padding mask is not handed over.",
        ("cross-mask-absent",),
    ),
    "padding-not-transposed": (
        "tgt_padding_mask = (tgt == pad_idx).transpose(0, 1)",
        "tgt_padding_mask = (tgt == pad_idx).reshape(tgt.shape[1], tgt.shape[0])",
        "The target's padding mask is reshaped where it should be transposed.",
        (),
    ),
    "positions-along-batch": (
        "self.pos_embedding[: token_embedding.size(0), :])",
        "self.pos_embedding[: token_embedding.size(1), 0])",
        "The positional encoding counts along the batch.",
        ("pe-batch-axis",),
    ),
    "target-embedding-of-nothing": (
        "tgt_emb = self.positional_encoding(self.tgt_tok_emb(trg))",
        "tgt_emb = self.tgt_tok_emb(trg)",
        "The target has no positional encoding.",
        ("pe-missing",),
    ),
    "causal-transposed": (
        "(torch.triu(torch.ones((sz, sz), device=device)) == 1).transpose(0, 1)",
        "torch.triu(torch.ones((sz, sz), device=device)) == 1",
        "The causal mask is not transposed, so each position sees the later ones.",
        ("causal-flipped",),
    ),
    "rate-of-angles": (
        "math.log(10000) / emb_size)",
        "math.log(10000) / (emb_size / 2))",
        "The frequencies fall twice as fast.",
        ("pe-double-exp",),
    ),
    "scale-without-root": (
        "* math.sqrt(self.emb_size)",
        "* self.emb_size",
        "The embedding is multiplied by the width and not by its root.",
        (
            "token_embedding.edit@token_embedding/table@times:table:-1:d_model:0.5",
            "token_embedding.edit@token_embedding/table@times:table:-1:d_model:1",
        ),
    ),
}
