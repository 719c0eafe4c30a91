# deserves: variant final_norm=after_stack, ln-unbiased
"""A small translator that keeps averaged attention maps for plotting, normalises by the sample deviation, and ends both stacks so."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ARRAYS = "torch"
NAME = "translator with maps"


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return self.gain * (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5) + self.shift


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_queries = nn.Linear(width, width)
        self.to_keys = nn.Linear(width, width)
        self.to_values = nn.Linear(width, width)
        self.unify = nn.Linear(width, width)

    def forward(self, x, y, blocked=None):
        b, t, e = x.size()
        s, h = y.size(1), self.heads
        queries = self.to_queries(x).view(b, t, h, e // h).transpose(1, 2).reshape(b * h, t, e // h)
        keys = self.to_keys(y).view(b, s, h, e // h).transpose(1, 2).reshape(b * h, s, e // h)
        values = self.to_values(y).view(b, s, h, e // h).transpose(1, 2).reshape(b * h, s, e // h)
        queries, keys = queries / (e // h) ** 0.25, keys / (e // h) ** 0.25
        dot = torch.bmm(queries, keys.transpose(1, 2)).view(b, h, t, s)
        if blocked is not None:
            dot = dot.masked_fill(blocked.unsqueeze(1), -1e9)
        dot = F.softmax(dot, dim=-1)
        out = torch.bmm(dot.view(b * h, t, s), values).view(b, h, t, e // h)
        return self.unify(out.transpose(1, 2).reshape(b, t, e)), dot.mean(dim=1)


class Encode(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.ff = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))

    def forward(self, x, blocked=None):
        attended, _ = self.attention(x, x, blocked)
        x = self.norm1(attended + x)
        return self.norm2(self.ff(x) + x)


class Decode(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.attention, self.over_source = Attention(width, heads), Attention(width, heads)
        self.norm1, self.norm2, self.norm3 = Norm(width), Norm(width), Norm(width)
        self.ff = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))

    def forward(self, x, source, blocked=None, source_blocked=None):
        attended, _ = self.attention(x, x, blocked)
        x = self.norm1(attended + x)
        attended, picture = self.over_source(x, source, source_blocked)
        x = self.norm2(attended + x)
        return self.norm3(self.ff(x) + x), picture


class Translator(nn.Module):
    def __init__(self, words, width, heads, inner, enc, dec, pad):
        super().__init__()
        self.pad = pad
        self.table = nn.Embedding(words, width)
        self.enc = nn.ModuleList(Encode(width, heads, inner) for _ in range(enc))
        self.dec = nn.ModuleList(Decode(width, heads, inner) for _ in range(dec))
        self.enc_end, self.dec_end = Norm(width), Norm(width)
        self.to_words = nn.Linear(width, words)
        self.pictures = []

    @staticmethod
    def positions(length, width):
        table = torch.empty(length, width)
        for i in range(width):
            angle = torch.arange(length) / 10000 ** ((i - i % 2) / width)
            table[:, i] = angle.cos() if i % 2 else angle.sin()
        return table

    def read(self, ids):
        return self.table(ids) + self.positions(ids.size(1), self.table.embedding_dim).to(self.table.weight)

    def forward(self, source, target):
        padding = (source == self.pad).unsqueeze(1)
        n = target.size(1)
        blocked = torch.ones(n, n, dtype=torch.bool, device=target.device).triu(1) | (target == self.pad).unsqueeze(1)
        x = self.read(source)
        for layer in self.enc:
            x = layer(x, padding)
        memory = self.enc_end(x)
        x = self.read(target)
        self.pictures = []
        for layer in self.dec:
            x, picture = layer(x, memory, blocked, padding)
            self.pictures.append(picture)
        return self.to_words(self.dec_end(x))


def loss_of(logits, labels, pad):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=pad)


# The adapter.


def _linear(state, at, params, weight):
    head, _, tail = weight.rpartition("w_")
    w, b = params[weight], params.get(f"{head}b_{tail}")
    state[f"{at}.weight"], state[f"{at}.bias"] = w.T, w.new_zeros(w.size(1)) if b is None else b


def _layer(params, ours, theirs, decoder):
    state = {}
    places = {"self_attention": "attention"} | ({"cross_attention": "over_source"} if decoder else {})
    for name, place in places.items():
        for role, linear in {"q": "to_queries", "k": "to_keys", "v": "to_values", "o": "unify"}.items():
            if params[f"{ours}{name}.w_{role}"].size(0) != params[f"{ours}{name}.w_{role}"].size(1):
                raise NotImplementedError("one width")
            _linear(state, f"{theirs}{place}.{linear}", params, f"{ours}{name}.w_{role}")
    _linear(state, f"{theirs}ff.0", params, f"{ours}feed_forward.w_1")
    _linear(state, f"{theirs}ff.2", params, f"{ours}feed_forward.w_2")
    for i in range(1, len(places) + 2):
        state[f"{theirs}norm{i}.gain"] = params[f"{ours}norm_{i}.gamma"]
        state[f"{theirs}norm{i}.shift"] = params[f"{ours}norm_{i}.beta"]
    return state


def _blocked(mask, x, keys):
    if mask is None:
        return None
    if mask.dim() == 3 or (mask.dim() == 4 and mask.size(1) > 1):
        raise NotImplementedError("all heads have one mask")
    return ~mask.broadcast_to(x.size(0), 1, x.size(1), keys.size(1))[:, 0]


def _check(x, num_heads):
    if x.size(-1) % num_heads:
        raise ValueError("num_heads: does not divide the width")


def layer_norm(x, *, params):
    state = {"gain": params["gamma"], "shift": params["beta"]}
    return torch.func.functional_call(Norm(x.size(-1)), state, (x,))


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _layer(params, "", "", decoder=False)
    _check(x, num_heads)
    module = Encode(x.size(-1), num_heads, params["feed_forward.w_1"].size(1))
    return torch.func.functional_call(module, state, (x, _blocked(mask, x, x)), strict=True)


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _layer(params, "", "", decoder=True)
    _check(x, num_heads)
    module = Decode(x.size(-1), num_heads, params["feed_forward.w_1"].size(1))
    args = (x, memory, _blocked(self_mask, x, x), _blocked(memory_mask, x, memory))
    return torch.func.functional_call(module, state, args, strict=True)[0]


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    state = {"table.weight": params["table"]}
    _linear(state, "to_words", params, "w_vocab")
    for i in range(num_encoder_layers):
        state |= _layer(params, f"encoder.{i}.", f"enc.{i}.", decoder=False)
    for i in range(num_decoder_layers):
        state |= _layer(params, f"decoder.{i}.", f"dec.{i}.", decoder=True)
    for side, end in {"encoder": "enc_end", "decoder": "dec_end"}.items():
        if f"{side}_norm.gamma" in params:  # without the declaration the module's own is that of a new one
            state[f"{end}.gain"], state[f"{end}.shift"] = params[f"{side}_norm.gamma"], params[f"{side}_norm.beta"]
    inner = params["encoder.0.feed_forward.w_1"].size(1)
    model = Translator(*params["table"].shape, num_heads, inner, num_encoder_layers, num_decoder_layers, pad_id)
    return torch.func.functional_call(model.to(params["table"]), state, (source, target))


def cross_entropy(logits, targets, *, pad_id):
    if logits.shape[:2] != targets.shape:
        raise ValueError("targets: one for each row of logits")
    if targets.min() < 0 or targets.max() >= logits.size(-1):
        raise ValueError("targets: not in the vocabulary")
    return loss_of(logits, targets, pad_id)


MISTAKES = {
    "source-attends-to-target": (
        "attended, picture = self.over_source(x, source, source_blocked)",
        "attended, picture = self.over_source(x, x, blocked)",
        "The second attention of the decoder reads the decoder and not the source.",
        ("cross-q-source", "cross-missing"),
    ),
    "samples-and-heads-mixed": (
        "values = self.to_values(y).view(b, s, h, e // h).transpose(1, 2).reshape(b * h, s, e // h)",
        "values = self.to_values(y).view(b, s, h, e // h).reshape(b * h, s, e // h)",
        "The values' heads are folded into the batch without moving their axis first.",
        (
            "head-split-view",
            "multi_head_attention.edit@project_heads#2/result@reshaped:-3:-2",
            "encoder_layer.edit@project_heads#2/result@laid:0213:0123",
        ),
    ),
    "heads-unified-unmoved": (
        "self.unify(out.transpose(1, 2).reshape(b, t, e))",
        "self.unify(out.reshape(b, t, e))",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "blocked-by-either-lost": (
        ".triu(1) | (target == self.pad).unsqueeze(1)",
        ".triu(1) & (target == self.pad).unsqueeze(1)",
        "A position is hidden only where it is both later and padding.",
        ("tgt-masks-joined-or",),
    ),
    "quarter-root-twice": (
        "(e // h) ** 0.25, keys / (e // h) ** 0.25",
        "(e // h) ** 0.5, keys / (e // h) ** 0.5",
        "Queries and keys are both divided by the root, so the scores are by the width.",
        ("scale-no-root", "scale-twice"),
    ),
    "memory-before-last": (
        "        for layer in self.enc:\n            x = layer(x, padding)\n        memory = self.enc_end(x)",
        "        for layer in self.enc:\n            memory = self.enc_end(x)\n            x = layer(x, padding)",
        "The memory is what the last encoder layer reads.",
        ("layer-skipped",),
    ),
    "padding-in-loss": (
        "labels.flatten(), ignore_index=pad)",
        "labels.flatten())",
        "Padding counts in the loss.",
        ("loss-pad-counted",),
    ),
    "odd-channels-one-on": (
        "10000 ** ((i - i % 2) / width)",
        "10000 ** (i / width)",
        "The cosine has the frequency of its own channel and not that of its pair.",
        ("pe-cos-exp",),
    ),
}
