# deserves: variant beam_finish=set_aside, length_penalty=mean
"""Beam search one sample at a time with a list of finished hypotheses, compared by their mean log-probability."""

import math

import torch
import torch.nn as nn

ARRAYS = "torch"
NAME = "hypotheses"


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q_lin = nn.Linear(dim, dim)
        self.kv_lin = nn.Linear(dim, 2 * dim)
        self.out_lin = nn.Linear(dim, dim)

    def forward(self, x, kv=None, allowed=None):
        bs, qlen, dim = x.size()
        kv = x if kv is None else kv
        shape = (bs, -1, self.heads, dim // self.heads)
        q = self.q_lin(x).view(shape).transpose(1, 2) / math.sqrt(dim // self.heads)
        k, v = (t.reshape(shape).transpose(1, 2) for t in self.kv_lin(kv).chunk(2, dim=-1))
        scores = torch.matmul(q, k.transpose(2, 3))
        if allowed is not None:
            scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        context = torch.matmul(scores.softmax(dim=-1), v)
        return self.out_lin(context.transpose(1, 2).reshape(bs, qlen, dim))


class Layer(nn.Module):
    def __init__(self, dim, heads, hidden, decoder):
        super().__init__()
        self.attention = Attention(dim, heads)
        self.norm1 = nn.LayerNorm(dim)
        if decoder:
            self.encoder_attention = Attention(dim, heads)
            self.norm15 = nn.LayerNorm(dim)
        self.lin1, self.lin2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.decoder = decoder

    def forward(self, x, allowed, src=None, src_allowed=None):
        x = self.norm1(x + self.attention(x, allowed=allowed))
        if self.decoder:
            x = self.norm15(x + self.encoder_attention(x, src, src_allowed))
        return self.norm2(x + self.lin2(torch.relu(self.lin1(x))))


class Model(nn.Module):
    def __init__(self, n_words, dim, heads, hidden, n_enc, n_dec, pad_index):
        super().__init__()
        self.pad_index, self.dim = pad_index, dim
        self.embeddings = nn.Embedding(n_words, dim)
        self.enc = nn.ModuleList([Layer(dim, heads, hidden, False) for _ in range(n_enc)])
        self.dec = nn.ModuleList([Layer(dim, heads, hidden, True) for _ in range(n_dec)])
        self.pred = nn.Linear(dim, n_words)

    def positions(self, n, like):
        pos = torch.arange(n, dtype=torch.float64).unsqueeze(1)
        angle = pos / torch.pow(10000, 2 * torch.div(torch.arange(self.dim), 2, rounding_mode="floor") / self.dim)
        out = torch.zeros_like(angle)
        out[:, 0::2], out[:, 1::2] = angle[:, 0::2].sin(), angle[:, 1::2].cos()
        return out.to(like)

    def embed(self, ids):
        x = self.embeddings(ids)
        return x + self.positions(ids.size(1), x)

    def encode(self, ids):
        allowed = (ids != self.pad_index)[:, None, None]
        x = self.embed(ids)
        for layer in self.enc:
            x = layer(x, allowed)
        return x, allowed

    def decode(self, ids, src, src_allowed):
        n = ids.size(1)
        allowed = (ids != self.pad_index)[:, None, None] & torch.ones(n, n, device=ids.device).tril().bool()
        x = self.embed(ids)
        for layer in self.dec:
            x = layer(x, allowed, src, src_allowed)
        return self.pred(x)


class Hypotheses:
    """Finished sentences with the sum of their log-probabilities, ordered by the mean."""

    def __init__(self):
        self.beams = []

    def add(self, words, total):
        self.beams.append((total / len(words), words))

    def best(self, n):
        return sorted(self.beams, key=lambda beam: beam[0], reverse=True)[:n]


def generate_one(model, src, src_allowed, bos, eos, max_len, beam_size):
    done = Hypotheses()
    beams = [([], torch.zeros((), dtype=src.dtype, device=src.device))]
    for _ in range(max_len):
        ids = torch.tensor([[bos, *words] for words, _ in beams], device=src.device)
        k = len(beams)
        logits = model.decode(ids, src.expand(k, -1, -1), src_allowed.expand(k, -1, -1, -1))
        log_probs = torch.log_softmax(logits[:, -1], dim=-1)
        totals = torch.stack([total for _, total in beams])[:, None] + log_probs
        order = totals.flatten().argsort(descending=True, stable=True).tolist()
        n_words = log_probs.size(-1)
        extensions = [(beams[i // n_words][0] + [i % n_words], totals[i // n_words, i % n_words]) for i in order]
        for words, total in extensions[:beam_size]:
            if words[-1] == eos:
                done.add(words, total)
        beams = [(words, total) for words, total in extensions if words[-1] != eos][:beam_size]
        if len(done.beams) >= beam_size or not beams:
            break
    else:
        for words, total in beams:
            done.add(words, total)
    return done


@torch.no_grad()
def generate_beam(model, source, bos, eos, max_len, beam_size, top):
    src, src_allowed = model.encode(source)
    ids = torch.full((len(source), top, max_len), model.pad_index, device=source.device)
    scores = torch.zeros((len(source), top), dtype=src.dtype, device=source.device)
    for i in range(len(source)):
        done = generate_one(model, src[i : i + 1], src_allowed[i : i + 1], bos, eos, max_len, beam_size)
        for j, (score, words) in enumerate(done.best(top)):
            ids[i, j, : len(words)] = torch.tensor(words, device=source.device)
            scores[i, j] = score
    return ids, scores


# The adapter.


def _linear(params, at, *weights):
    w = torch.cat([params[name] for name in weights], dim=1)
    biases = [params.get(name.replace("w_", "b_"), torch.zeros_like(params[name][0])) for name in weights]
    return {f"{at}.weight": w.T, f"{at}.bias": torch.cat(biases)}


def _layer(params, ours, theirs, decoder):
    state = {}
    attentions = {"self_attention": "attention"} | ({"cross_attention": "encoder_attention"} if decoder else {})
    for name, at in attentions.items():
        if len({size for role in "qkvo" for size in params[f"{ours}{name}.w_{role}"].shape}) > 1:
            raise NotImplementedError("one dim")
        state |= _linear(params, f"{theirs}{at}.q_lin", f"{ours}{name}.w_q")
        state |= _linear(params, f"{theirs}{at}.kv_lin", f"{ours}{name}.w_k", f"{ours}{name}.w_v")
        state |= _linear(params, f"{theirs}{at}.out_lin", f"{ours}{name}.w_o")
    for i, norm in enumerate(["norm1", "norm15", "norm2"] if decoder else ["norm1", "norm2"], 1):
        state[f"{theirs}{norm}.weight"] = params[f"{ours}norm_{i}.gamma"]
        state[f"{theirs}{norm}.bias"] = params[f"{ours}norm_{i}.beta"]
    for i in (1, 2):
        state |= _linear(params, f"{theirs}lin{i}", f"{ours}feed_forward.w_{i}")
    return state


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
    n_words, dim = params["table"].shape
    if max_length < 1 or beam_size < 1 or not 1 <= top_beams <= beam_size:
        raise ValueError("max_length, beam_size, top_beams")
    if not (0 <= bos_id < n_words and 0 <= eos_id < n_words):
        raise ValueError("bos_id, eos_id")
    state = {"embeddings.weight": params["table"]} | _linear(params, "pred", "w_vocab")
    for i in range(num_encoder_layers):
        state |= _layer(params, f"encoder.{i}.", f"enc.{i}.", False)
    for i in range(num_decoder_layers):
        state |= _layer(params, f"decoder.{i}.", f"dec.{i}.", True)
    hidden = params["encoder.0.feed_forward.w_1"].size(1)
    model = Model(n_words, dim, num_heads, hidden, num_encoder_layers, num_decoder_layers, pad_id)
    model.to(params["table"]).load_state_dict(state)
    return generate_beam(model, source, bos_id, eos_id, max_length, beam_size, top_beams)


MISTAKES = {
    "mean-with-first-word": (
        "self.beams.append((total / len(words), words))",
        "self.beams.append((total / (len(words) + 1), words))",
        "The word that begins the sentence is counted in its length.",
        ("beam-penalty-bos-counted",),
    ),
    "words-of-first-beam": (
        "(beams[i // n_words][0] + [i % n_words]",
        "(beams[0][0] + [i % n_words]",
        "Every extension is given the words of the best beam.",
        (),
    ),
    "last-score-alone": (
        "totals = torch.stack([total for _, total in beams])[:, None] + log_probs",
        "totals = log_probs",
        "The scores of the words before are forgotten.",
        ("beam-no-log-sum",),
    ),
    "worst-first": (
        "key=lambda beam: beam[0], reverse=True)",
        "key=lambda beam: beam[0])",
        "The worst hypotheses are returned first.",
        ("beam-unsorted", "beam-worst-kept"),
    ),
    "source-of-first-sample": (
        "generate_one(model, src[i : i + 1], src_allowed[i : i + 1]",
        "generate_one(model, src[:1], src_allowed[i : i + 1]",
        "All samples are translated from the first source.",
        (),
    ),
    "decoder-sees-padding": (
        "self.encoder_attention(x, src, src_allowed)",
        "self.encoder_attention(x, src)",
        "The decoder attends to the padding of the source.",
        ("cross-mask-absent",),
    ),
    "end-in-place": (
        "if words[-1] != eos][:beam_size]",
        "][:beam_size]",
        "Sentences that have ended go on being extended.",
        ("beam-finished-expand",),
    ),
    "first-row-scored": (
        "torch.log_softmax(logits[:, -1], dim=-1)",
        "torch.log_softmax(logits[:, 0], dim=-1)",
        "The logits of the first position choose every word.",
        # The first position sees bos_id alone.
        ("decode-no-feedback",),
    ),
}
