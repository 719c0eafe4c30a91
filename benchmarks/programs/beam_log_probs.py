# deserves: correct
"""A whole model and a batched beam search that keeps sums of log-probabilities, all samples and beams in one tensor."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MultiHeadAttentionLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, dropout, device):
        super().__init__()
        assert hid_dim % n_heads == 0
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
        Q, K, V = self.fc_q(query), self.fc_k(key), self.fc_v(value)
        Q = Q.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        K = K.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        V = V.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)
        energy = torch.matmul(Q, K.permute(0, 1, 3, 2)) / self.scale.to(Q.dtype)
        if mask is not None:
            energy = energy.masked_fill(mask == 0, -1e10)
        attention = torch.softmax(energy, dim=-1)
        x = torch.matmul(self.dropout(attention), V)
        x = x.permute(0, 2, 1, 3).contiguous().view(batch_size, -1, self.hid_dim)
        return self.fc_o(x), attention


class PositionwiseFeedforwardLayer(nn.Module):
    def __init__(self, hid_dim, pf_dim, dropout):
        super().__init__()
        self.fc_1 = nn.Linear(hid_dim, pf_dim)
        self.fc_2 = nn.Linear(pf_dim, hid_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.fc_2(self.dropout(torch.relu(self.fc_1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, pf_dim, dropout, device):
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.ff_layer_norm = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.positionwise_feedforward = PositionwiseFeedforwardLayer(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, src, src_mask):
        _src, _ = self.self_attention(src, src, src, src_mask)
        src = self.self_attn_layer_norm(src + self.dropout(_src))
        _src = self.positionwise_feedforward(src)
        return self.ff_layer_norm(src + self.dropout(_src))


class DecoderLayer(nn.Module):
    def __init__(self, hid_dim, n_heads, pf_dim, dropout, device):
        super().__init__()
        self.self_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.enc_attn_layer_norm = nn.LayerNorm(hid_dim)
        self.ff_layer_norm = nn.LayerNorm(hid_dim)
        self.self_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.encoder_attention = MultiHeadAttentionLayer(hid_dim, n_heads, dropout, device)
        self.positionwise_feedforward = PositionwiseFeedforwardLayer(hid_dim, pf_dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, trg, enc_src, trg_mask, src_mask):
        _trg, _ = self.self_attention(trg, trg, trg, trg_mask)
        trg = self.self_attn_layer_norm(trg + self.dropout(_trg))
        _trg, attention = self.encoder_attention(trg, enc_src, enc_src, src_mask)
        trg = self.enc_attn_layer_norm(trg + self.dropout(_trg))
        _trg = self.positionwise_feedforward(trg)
        return self.ff_layer_norm(trg + self.dropout(_trg)), attention


class Seq2Seq(nn.Module):
    def __init__(self, vocab, hid_dim, n_enc, n_dec, n_heads, pf_dim, pad_idx, dropout=0.1, device="cpu"):
        super().__init__()
        self.tok_embedding = nn.Embedding(vocab, hid_dim)
        sizes = hid_dim, n_heads, pf_dim, dropout, device
        self.enc_layers = nn.ModuleList([EncoderLayer(*sizes) for _ in range(n_enc)])
        self.dec_layers = nn.ModuleList([DecoderLayer(*sizes) for _ in range(n_dec)])
        self.fc_out = nn.Linear(hid_dim, vocab)
        self.dropout = nn.Dropout(dropout)
        self.pad_idx = pad_idx
        self.device = device
        angles = torch.arange(1000)[:, None] / 10000 ** (torch.arange(0, hid_dim, 2)[None] / hid_dim)
        self.pos = torch.zeros(1000, hid_dim, device=device)
        self.pos[:, 0::2] = angles.sin()
        self.pos[:, 1::2] = angles.cos()[:, : hid_dim // 2]

    def make_src_mask(self, src):
        return (src != self.pad_idx).unsqueeze(1).unsqueeze(2)

    def make_trg_mask(self, trg):
        trg_pad_mask = (trg != self.pad_idx).unsqueeze(1).unsqueeze(2)
        trg_len = trg.shape[1]
        trg_sub_mask = torch.tril(torch.ones((trg_len, trg_len), device=self.device)).bool()
        return trg_pad_mask & trg_sub_mask

    def embed(self, ids):
        x = self.tok_embedding(ids)
        return self.dropout(x + self.pos[: ids.shape[1]].to(x.dtype))

    def encode(self, src):
        src_mask = self.make_src_mask(src)
        x = self.embed(src)
        for layer in self.enc_layers:
            x = layer(x, src_mask)
        return x, src_mask

    def decode(self, trg, enc_src, src_mask):
        trg_mask = self.make_trg_mask(trg)
        x = self.embed(trg)
        for layer in self.dec_layers:
            x, _ = layer(x, enc_src, trg_mask, src_mask)
        return self.fc_out(x)

    def forward(self, src, trg):
        enc_src, src_mask = self.encode(src)
        return self.decode(trg, enc_src, src_mask)


@torch.no_grad()
def beam_decode(model, src, bos, eos, max_len, k):
    n = src.shape[0]
    enc_src, src_mask = model.encode(src)
    enc_src = enc_src.repeat_interleave(k, dim=0)
    src_mask = src_mask.repeat_interleave(k, dim=0)
    trg = torch.full((n * k, 1), bos, device=src.device)
    scores = torch.full((n, k), float("-inf"), dtype=enc_src.dtype, device=src.device)
    scores[:, 0] = 0
    finished = torch.zeros((n, k), dtype=torch.bool, device=src.device)
    for _ in range(max_len):
        log_probs = F.log_softmax(model.decode(trg, enc_src, src_mask)[:, -1], dim=-1).view(n, k, -1)
        vocab = log_probs.shape[-1]
        only_pad = torch.full_like(log_probs, float("-inf"))
        only_pad[..., model.pad_idx if 0 <= model.pad_idx < vocab else 0] = 0
        log_probs = torch.where(finished.unsqueeze(-1), only_pad, log_probs)
        total = (scores.unsqueeze(-1) + log_probs).view(n, -1)
        scores, best = total.topk(k, dim=-1)
        beam, word = best // vocab, best % vocab
        was_finished = finished.gather(1, beam)
        word = torch.where(was_finished, model.pad_idx, word)
        rows = (beam + torch.arange(n, device=src.device).unsqueeze(1) * k).view(-1)
        trg = torch.cat([trg[rows], word.view(-1, 1)], dim=1)
        finished = was_finished | (word == eos)
        if finished.all():
            break
    ids = trg[:, 1:].view(n, k, -1)
    return F.pad(ids, (0, max_len - ids.shape[-1]), value=model.pad_idx), scores


# The adapter.

ARRAYS = "torch"
NAME = "beams of log-probabilities"


def _put(state, name, params, weight):
    w = params[weight]
    bias = weight.replace("w_", "b_")
    state[f"{name}.weight"] = w.T
    state[f"{name}.bias"] = params.get(bias, w.new_zeros(w.shape[1]))


def _layers(state, params, side, count):
    start = {"encoder": "enc_layers", "decoder": "dec_layers"}[side]
    for i in range(count):
        attentions = {"self_attention": "self_attention"}
        norms = ["self_attn_layer_norm", "ff_layer_norm"]
        if side == "decoder":
            attentions["cross_attention"] = "encoder_attention"
            norms.insert(1, "enc_attn_layer_norm")
        for ours, theirs in attentions.items():
            for role in "qkvo":
                if len(set(params[f"{side}.{i}.{ours}.w_{role}"].shape)) > 1:
                    raise NotImplementedError("square projections")
                _put(state, f"{start}.{i}.{theirs}.fc_{role}", params, f"{side}.{i}.{ours}.w_{role}")
        for j, norm in enumerate(norms, 1):
            state[f"{start}.{i}.{norm}.weight"] = params[f"{side}.{i}.norm_{j}.gamma"]
            state[f"{start}.{i}.{norm}.bias"] = params[f"{side}.{i}.norm_{j}.beta"]
        for j in (1, 2):
            _put(state, f"{start}.{i}.positionwise_feedforward.fc_{j}", params, f"{side}.{i}.feed_forward.w_{j}")


def _loaded(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id):
    state = {"tok_embedding.weight": params["table"]}
    _put(state, "fc_out", params, "w_vocab")
    _layers(state, params, "encoder", num_encoder_layers)
    _layers(state, params, "decoder", num_decoder_layers)
    vocab, hid_dim = params["table"].shape
    pf_dim = params["encoder.0.feed_forward.w_1"].shape[1]
    sizes = num_encoder_layers, num_decoder_layers, num_heads, pf_dim, pad_id
    model = Seq2Seq(vocab, hid_dim, *sizes, device=params["table"].device).to(params["table"]).eval()
    return model, state


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    model, state = _loaded(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    return torch.func.functional_call(model, state, (source, target))


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
    vocab = len(params["table"])
    if min(max_length, top_beams) < 1 or top_beams > beam_size:
        raise ValueError("max_length, top_beams: out of range")
    if not (0 <= bos_id < vocab and 0 <= eos_id < vocab):
        raise ValueError("bos_id, eos_id: not in the vocabulary")
    model, state = _loaded(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    model.load_state_dict(state)
    ids, scores = beam_decode(model, source, bos_id, eos_id, max_length, beam_size)
    return ids[:, :top_beams], scores[:, :top_beams]


MISTAKES = {
    "beams-not-reordered": (
        "trg = torch.cat([trg[rows], word.view(-1, 1)], dim=1)",
        "trg = torch.cat([trg, word.view(-1, 1)], dim=1)",
        "The new words are put behind the sentences of other beams.",
        ("beam-parent-stale",),
    ),
    "memory-tiled-not-repeated": (
        "enc_src = enc_src.repeat_interleave(k, dim=0)",
        "enc_src = enc_src.repeat(k, 1, 1)",
        "The memory is repeated in another order than the beams, so samples read each other's sources.",
        ("beam-source-order",),
    ),
    "beams-all-alike": (
        "    scores[:, 0] = 0\n",
        "    scores[:] = 0\n",
        "All beams begin alike, so the same sentence fills the beam.",
        ("beam-first-step-duplicates",),
    ),
    "probabilities-summed": (
        "F.log_softmax(model.decode(trg, enc_src, src_mask)[:, -1], dim=-1)",
        "F.softmax(model.decode(trg, enc_src, src_mask)[:, -1], dim=-1)",
        "Probabilities are summed in place of their logarithms.",
        ("decode-score-probability",),
    ),
    "finished-extended": (
        "        log_probs = torch.where(finished.unsqueeze(-1), only_pad, log_probs)\n",
        "",
        "The scores of finished sentences go on falling.",
        ("beam-finished-expand",),
    ),
    "best-first-position": (
        "_trg, attention = self.encoder_attention(trg, enc_src, enc_src, src_mask)",
        "_trg, attention = self.encoder_attention(trg, enc_src, enc_src)",
        "The decoder attends to the padding of the source.",
        ("cross-mask-absent",),
    ),
    "scale-of-hidden": (
        "torch.sqrt(torch.FloatTensor([self.head_dim]))",
        "torch.sqrt(torch.FloatTensor([self.hid_dim]))",
        "The scores are divided by the root of the width of the model.",
        ("scale-d-model",),
    ),
    "keys-not-permuted": (
        "K = K.view(batch_size, -1, self.n_heads, self.head_dim).permute(0, 2, 1, 3)",
        "K = K.view(batch_size, self.n_heads, -1, self.head_dim)",
        "The keys are cut into heads without regard to the tokens.",
        ("head-split-view",),
    ),
}
