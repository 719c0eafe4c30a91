# deserves: correct
"""A whole model whose heads have widths of their own, decoded with a cache of keys and values, greedily or with beams."""

import torch
from torch import nn
from torch.nn import functional as F


class MultiHeadAttention(nn.Module):
    def __init__(self, n_head, d_model, d_k, d_v):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_q = nn.Linear(d_model, n_head * d_k)
        self.w_k = nn.Linear(d_model, n_head * d_k)
        self.w_v = nn.Linear(d_model, n_head * d_v)
        self.fc = nn.Linear(n_head * d_v, d_model)
        self.temperature = d_k**0.5

    def keys_values(self, x):
        b, t, _ = x.shape
        k = self.w_k(x).view(b, t, self.n_head, self.d_k).transpose(1, 2)
        v = self.w_v(x).view(b, t, self.n_head, self.d_v).transpose(1, 2)
        return k, v

    def attend(self, x, k, v, mask=None):
        b, t, _ = x.shape
        q = self.w_q(x).view(b, t, self.n_head, self.d_k).transpose(1, 2)
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        out = torch.matmul(F.softmax(attn, dim=-1), v)
        return self.fc(out.transpose(1, 2).reshape(b, t, self.n_head * self.d_v))


class Block(nn.Module):
    def __init__(self, d_model, d_inner, n_head, d_k, d_v, decoder=False):
        super().__init__()
        self.slf = MultiHeadAttention(n_head, d_model, d_k, d_v)
        self.slf_norm = nn.LayerNorm(d_model)
        if decoder:
            self.enc = MultiHeadAttention(n_head, d_model, d_k, d_v)
            self.enc_norm = nn.LayerNorm(d_model)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_inner), nn.ReLU(), nn.Linear(d_inner, d_model))
        self.ffn_norm = nn.LayerNorm(d_model)

    def forward(self, x, mask, memory=None, memory_mask=None, past=None):
        k, v = self.slf.keys_values(x)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        x = self.slf_norm(x + self.slf.attend(x, k, v, mask))
        if memory is not None:
            x = self.enc_norm(x + self.enc.attend(x, *self.enc.keys_values(memory), memory_mask))
        return self.ffn_norm(x + self.ffn(x)), (k, v)


def position_table(n, d):
    pos = torch.arange(n, dtype=torch.float)[:, None]
    div = torch.pow(10000.0, torch.arange(0, d, 2, dtype=torch.float) / d)
    table = torch.zeros(n, d)
    table[:, 0::2] = torch.sin(pos / div)
    table[:, 1::2] = torch.cos(pos / div[: d // 2])
    return table


class Model(nn.Module):
    def __init__(self, n_vocab, d_model, d_inner, n_head, d_k, d_v, n_enc, n_dec, pad):
        super().__init__()
        self.pad = pad
        self.emb = nn.Embedding(n_vocab, d_model)
        self.register_buffer("pos", position_table(256, d_model), persistent=False)
        sizes = d_model, d_inner, n_head, d_k, d_v
        self.encoder = nn.ModuleList([Block(*sizes) for _ in range(n_enc)])
        self.decoder = nn.ModuleList([Block(*sizes, decoder=True) for _ in range(n_dec)])
        self.prj = nn.Linear(d_model, n_vocab)

    def encode(self, src):
        mask = (src != self.pad)[:, None, None, :]
        x = self.emb(src) + self.pos[: src.shape[1]]
        for block in self.encoder:
            x, _ = block(x, mask)
        return x, mask

    def step(self, words, prefix_mask, memory, memory_mask, pasts):
        """Logits after `words`, the words since the last call; `prefix_mask` is of all words so far."""
        total, new = prefix_mask.shape[1], words.shape[1]
        start = total - new
        mask = torch.tril(torch.ones(total, total, device=words.device))[start:].bool() & prefix_mask[:, None, None, :]
        x = self.emb(words) + self.pos[start:total]
        kept = []
        for block, past in zip(self.decoder, pasts or [None] * len(self.decoder), strict=True):
            x, present = block(x, mask, memory, memory_mask, past)
            kept.append(present)
        return self.prj(x), kept

    def forward(self, src, trg):
        memory, memory_mask = self.encode(src)
        return self.step(trg, trg != self.pad, memory, memory_mask, None)[0]


def search(model, src, bos, eos, max_len, beams):
    """Beam search over the sums of log-probabilities; one beam is greedy search. Also the terms of the best sums."""
    n, device = src.shape[0], src.device
    memory, memory_mask = model.encode(src)
    memory = memory.repeat_interleave(beams, 0)
    memory_mask = memory_mask.repeat_interleave(beams, 0)
    words = torch.full((n * beams, 1), bos, device=device)
    seen = words != model.pad
    pasts = None
    out = torch.full((n, beams, max_len), model.pad, device=device)
    terms = torch.zeros((n, beams, max_len), dtype=memory.dtype, device=device)
    sums = torch.full((n, beams), -torch.inf, dtype=memory.dtype, device=device)
    sums[:, 0] = 0
    ended = torch.zeros((n, beams), dtype=torch.bool, device=device)
    for t in range(max_len):
        logits, pasts = model.step(words, seen, memory, memory_mask, pasts)
        log_probs = logits[:, -1].log_softmax(-1).view(n, beams, -1)
        vocab = log_probs.shape[-1]
        frozen = torch.full_like(log_probs, -torch.inf)
        frozen[..., 0] = 0
        log_probs = torch.where(ended[..., None], frozen, log_probs)
        sums, flat = (sums[..., None] + log_probs).view(n, -1).topk(beams)
        source_beam, word = flat // vocab, flat % vocab
        term = log_probs.view(n, -1).gather(1, flat)
        out = out.gather(1, source_beam[..., None].expand_as(out))
        terms = terms.gather(1, source_beam[..., None].expand_as(terms))
        was_ended = ended.gather(1, source_beam)
        word = word.masked_fill(was_ended, model.pad)
        out[..., t] = word
        terms[..., t] = term
        ended = was_ended | (word == eos)
        if ended.all():
            break
        rows = (source_beam + beams * torch.arange(n, device=device)[:, None]).flatten()
        pasts = [(k[rows], v[rows]) for k, v in pasts]
        words = word.clamp(0, vocab - 1).view(-1, 1)
        seen = torch.cat([seen[rows], (word != model.pad).view(-1, 1)], dim=1)
    return out, sums, terms


# The adapter.

ARRAYS = "torch"
NAME = "free widths"


def _linear(state, name, weight, bias):
    state[f"{name}.weight"] = weight.T
    state[f"{name}.bias"] = torch.zeros_like(weight[0]) if bias is None else bias


def _block(state, params, ours, theirs):
    for attention, at in (("self_attention", "slf"), ("cross_attention", "enc")):
        if f"{ours}.{attention}.w_q" in params:
            for role, name in {"q": "w_q", "k": "w_k", "v": "w_v", "o": "fc"}.items():
                weight, bias = params[f"{ours}.{attention}.w_{role}"], params.get(f"{ours}.{attention}.b_{role}")
                _linear(state, f"{theirs}.{at}.{name}", weight, bias)
    norms = ["slf_norm", "enc_norm", "ffn_norm"] if ours.startswith("decoder") else ["slf_norm", "ffn_norm"]
    for i, norm in enumerate(norms, 1):
        state[f"{theirs}.{norm}.weight"], state[f"{theirs}.{norm}.bias"] = (
            params[f"{ours}.norm_{i}.gamma"],
            params[f"{ours}.norm_{i}.beta"],
        )
    for i, place in ((1, 0), (2, 2)):
        _linear(
            state,
            f"{theirs}.ffn.{place}",
            params[f"{ours}.feed_forward.w_{i}"],
            params.get(f"{ours}.feed_forward.b_{i}"),
        )


def _model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id):
    state = {"emb.weight": params["table"]}
    _linear(state, "prj", params["w_vocab"], params.get("b_vocab"))
    for side, count in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        for i in range(count):
            _block(state, params, f"{side}.{i}", f"{side}.{i}")
    d_inner = params["encoder.0.feed_forward.w_1"].shape[1]
    d_k, d_v = (params[f"encoder.0.self_attention.w_{role}"].shape[1] // num_heads for role in "qv")
    sizes = d_inner, num_heads, d_k, d_v, num_encoder_layers, num_decoder_layers, pad_id
    return Model(*params["table"].shape, *sizes).to(params["table"]), state


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    model, state = _model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    return torch.func.functional_call(model, state, (source, target))


def _search(source, params, sizes, bos_id, eos_id, max_length, beams):
    vocab = len(params["table"])
    if max_length < 1 or not 0 <= bos_id < vocab or not 0 <= eos_id < vocab:
        raise ValueError("max_length, bos_id, eos_id: out of range")
    model, state = _model(params, *sizes)
    model.load_state_dict(state)
    with torch.no_grad():
        return search(model, source, bos_id, eos_id, max_length, beams)


def greedy_decode(
    source, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, bos_id, eos_id, max_length, params
):
    sizes = num_heads, num_encoder_layers, num_decoder_layers, pad_id
    ids, sums, terms = _search(source, params, sizes, bos_id, eos_id, max_length, 1)
    return ids[:, 0], sums[:, 0], terms[:, 0]


def beam_search(
    source,
    *,
    num_heads,
    num_encoder_layers,
    num_decoder_layers,
    pad_id,
    bos_id,
    eos_id,
    max_length,
    beam_size,
    top_beams,
    params,
):
    if not 1 <= top_beams <= beam_size:
        raise ValueError("top_beams: from 1 to beam_size")
    sizes = num_heads, num_encoder_layers, num_decoder_layers, pad_id
    ids, sums, _ = _search(source, params, sizes, bos_id, eos_id, max_length, beam_size)
    return ids[:, :top_beams], sums[:, :top_beams]


MISTAKES = {
    "cache-not-reordered": (
        "pasts = [(k[rows], v[rows]) for k, v in pasts]",
        "pasts = list(pasts)",
        "The cache is not reordered with the beams.",
        ("beam-cache-stale",),
    ),
    "position-of-cache-forgotten": (
        "self.emb(words) + self.pos[start:total]",
        "self.emb(words) + self.pos[:new]",
        "With the cache every new word is given position nought.",
        ("decode-cache-offset",),
    ),
    "memory-tiled": (
        "memory = memory.repeat_interleave(beams, 0)",
        "memory = memory.repeat(beams, 1, 1)",
        "The memory is repeated in another order than the beams.",
        ("beam-source-order",),
    ),
    "beams-begin-alike": (
        "    sums[:, 0] = 0\n",
        "    sums[:] = 0\n",
        "All beams begin alike, so the same sentence fills the beam.",
        ("beam-first-step-duplicates",),
    ),
    "logits-summed": (
        "logits[:, -1].log_softmax(-1).view(n, beams, -1)",
        "logits[:, -1].view(n, beams, -1)",
        "Logits are summed in place of log-probabilities.",
        ("decode-score-logits",),
    ),
    "ended-not-carried": (
        "was_ended = ended.gather(1, source_beam)",
        "was_ended = ended",
        "Whether a sentence has ended is not carried along when the beams change places.",
        ("beam-end-flags-stale",),
    ),
    "values-cut-by-key-width": (
        "v = self.w_v(x).view(b, t, self.n_head, self.d_v).transpose(1, 2)",
        "v = self.w_v(x).view(b, t, self.d_v, self.n_head).permute(0, 3, 1, 2)",
        "The columns of the values are dealt out to the heads in turn and not in blocks.",
        ("head-interleaved",),
    ),
    "temperature-of-values": (
        "self.temperature = d_k**0.5",
        "self.temperature = d_v**0.5",
        "The scores are divided by the root of the values' width.",
        ("scale-dim-v",),
    ),
}
