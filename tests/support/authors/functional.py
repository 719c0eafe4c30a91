"""Pure functions over nested dictionaries, as JAX libraries are written; with a cache of keys and values."""

from __future__ import annotations

from typing import Any

import torch


def nest(flat):
    """{"a.b": x} → {"a": {"b": x}}."""
    tree = {}
    for name, leaf in flat.items():
        *path, last = name.split(".")
        here = tree
        for word in path:
            here = here.setdefault(word, {})
        here[last] = leaf
    return tree


def dense(p, x, role):
    y = torch.einsum("...i,io->...o", x, p[f"w_{role}"])
    return y if p.get(f"b_{role}") is None else y + p[f"b_{role}"]


def norm(p, x):
    variance, mean = torch.var_mean(x, dim=-1, keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * p["gamma"] + p["beta"]


def keys_and_values(p, x, heads):
    return tuple(dense(p, x, role).unflatten(-1, (heads, -1)) for role in "kv")


def attend(p, x, kv, mask, heads):
    """Heads stay behind the tokens; the mask chooses where the scores stay."""
    q = dense(p, x, "q").unflatten(-1, (heads, -1))
    scores = torch.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, kv[0])
    if mask is not None:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    return dense(p, torch.einsum("bhqk,bkhd->bqhd", weights, kv[1]).flatten(2), "o"), weights


def feed(p, x):
    return dense(p, torch.maximum(dense(p, x, "1"), torch.zeros((), dtype=x.dtype, device=x.device)), "2")


def encoder_step(p, x, mask, heads):
    change, weights = attend(p["self_attention"], x, keys_and_values(p["self_attention"], x, heads), mask, heads)
    attended = norm(p["norm_1"], x + change)
    return {
        "output": norm(p["norm_2"], attended + feed(p["feed_forward"], attended)),
        "attended": attended,
        "weights": weights,
    }


def decoder_step(p, x, own, memory_kv, self_mask, memory_mask, heads):
    change, weights = attend(p["self_attention"], x, own, self_mask, heads)
    attended = norm(p["norm_1"], x + change)
    change, cross_weights = attend(p["cross_attention"], attended, memory_kv, memory_mask, heads)
    crossed = norm(p["norm_2"], attended + change)
    output = norm(p["norm_3"], crossed + feed(p["feed_forward"], crossed))
    return {
        "output": output,
        "attended": attended,
        "crossed": crossed,
        "weights": weights,
        "cross_weights": cross_weights,
    }


def encoder_layer(x, mask=None, *, num_heads, params):
    return encoder_step(nest(params), x, mask, num_heads)


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    p = nest(params)
    own, theirs = (
        keys_and_values(p["self_attention"], x, num_heads),
        keys_and_values(p["cross_attention"], memory, num_heads),
    )
    return decoder_step(p, x, own, theirs, self_mask, memory_mask, num_heads)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    p, outputs = nest(params)["encoder"], []
    for i in range(num_layers):
        x = encoder_step(p[str(i)], x, mask, num_heads)["output"]
        outputs.append(x)
    return {"output": x, "layers": torch.stack(outputs)}


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    p, outputs = nest(params)["decoder"], []
    for i in range(num_layers):
        layer = p[str(i)]
        own = keys_and_values(layer["self_attention"], x, num_heads)
        theirs = keys_and_values(layer["cross_attention"], memory, num_heads)
        x = decoder_step(layer, x, own, theirs, self_mask, memory_mask, num_heads)["output"]
        outputs.append(x)
    return {"layers": torch.stack(outputs), "output": x}


def embed(table, ids, first=0):
    """The rows of the ids with their positions, from the position `first` on."""
    wide = torch.promote_types(table.dtype, torch.float32)
    width = table.shape[1]
    position = torch.arange(first, first + ids.shape[1], dtype=wide, device=ids.device)
    rate = torch.pow(10000.0, -torch.arange(0, width, 2, dtype=wide, device=ids.device) / width)
    angle = torch.outer(position, rate)
    pairs = torch.stack([torch.sin(angle), torch.cos(angle)], dim=-1).flatten(1)[:, :width]
    return table[ids] + pairs.to(table.dtype)


def logits_of(p, x):
    return dense({"w_vocab": p["w_vocab"], "b_vocab": p.get("b_vocab")}, x, "vocab")


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    p = nest(params)
    hidden = (source != pad_id)[:, None, None, :]
    sees = (target != pad_id)[:, None, None, :] & torch.ones(
        target.shape[1], target.shape[1], device=target.device
    ).tril().bool()
    source_embedded, target_embedded = embed(p["table"], source), embed(p["table"], target)
    memory, x = source_embedded, target_embedded
    for i in range(num_encoder_layers):
        memory = encoder_step(p["encoder"][str(i)], memory, hidden, num_heads)["output"]
    for i in range(num_decoder_layers):
        layer = p["decoder"][str(i)]
        own = keys_and_values(layer["self_attention"], x, num_heads)
        theirs = keys_and_values(layer["cross_attention"], memory, num_heads)
        x = decoder_step(layer, x, own, theirs, sees, hidden, num_heads)["output"]
    return {
        "logits": logits_of(p, x), "memory": memory, "decoded": x,
        "source_embedded": source_embedded, "target_embedded": target_embedded,
    }  # fmt: skip


class Cache:
    """The memory's keys and values of every layer, and those of the words so far, a row for each hypothesis."""

    def __init__(self, source, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
        self.p, self.heads, self.pad = nest(params), num_heads, pad_id
        self.hidden = (source != pad_id)[:, None, None, :]
        memory = embed(self.p["table"], source)
        for i in range(num_encoder_layers):
            memory = encoder_step(self.p["encoder"][str(i)], memory, self.hidden, num_heads)["output"]
        self.layers = [self.p["decoder"][str(i)] for i in range(num_decoder_layers)]
        self.theirs = [keys_and_values(layer["cross_attention"], memory, num_heads) for layer in self.layers]
        self.own: list[Any] = [None] * num_decoder_layers
        self.read = source[:, :0]

    def step(self, words):
        """The logits after one more word for each row."""
        x = embed(self.p["table"], words[:, None], self.read.shape[1])
        self.read = torch.cat([self.read, words[:, None]], dim=1)
        sees = (self.read != self.pad)[:, None, None, :]
        for i, layer in enumerate(self.layers):
            new = keys_and_values(layer["self_attention"], x, self.heads)
            old = self.own[i]
            self.own[i] = new if old is None else tuple(torch.cat(both, dim=1) for both in zip(old, new, strict=True))
            x = decoder_step(layer, x, self.own[i], self.theirs[i], sees, self.hidden, self.heads)["output"]
        return logits_of(self.p, x)[:, -1]

    def choose(self, rows):
        """Keep these rows, in this order, some of them perhaps twice."""
        self.read, self.hidden = self.read[rows], self.hidden[rows]
        self.own = [old and tuple(each[rows] for each in old) for old in self.own]
        self.theirs = [tuple(each[rows] for each in both) for both in self.theirs]


FUNCTIONS = {f.__name__: f for f in (encoder_layer, decoder_layer, encoder, decoder, transformer)}
