"""Right code in small classes of torch, which named.yaml edits."""

import math

import torch
import torch.nn.functional as F

ARRAYS = "torch"


class Part:
    """A module whose weights are given."""

    def __init__(self, params, prefix=""):
        self.p, self.prefix = params, prefix

    def get(self, name):
        return self.p.get(self.prefix + name)

    def lin(self, x, role):
        return F.linear(x, self.get("w_" + role).t(), self.get("b_" + role))


class Attention(Part):
    def __init__(self, params, prefix, heads):
        super().__init__(params, prefix)
        self.heads = heads

    def __call__(self, query, key, value, mask=None):
        b = query.size(0)
        q = self.lin(query, "q").view(b, query.size(1), self.heads, -1).transpose(1, 2)
        k = self.lin(key, "k").view(b, key.size(1), self.heads, -1).transpose(1, 2)
        v = self.lin(value, "v").view(b, value.size(1), self.heads, -1).transpose(1, 2)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
        att = scores.softmax(dim=-1)
        out = torch.matmul(att, v)
        out = out.transpose(1, 2).contiguous().view(b, query.size(1), -1)
        return self.lin(out, "o")


class Network(Part):
    def __call__(self, x):
        return self.lin(torch.relu(self.lin(x, "1")), "2")


class Norm(Part):
    def __call__(self, x):
        return F.layer_norm(x, x.shape[-1:], self.get("gamma"), self.get("beta"))


class EncoderBlock:
    def __init__(self, params, heads, prefix=""):
        self.attention = Attention(params, prefix + "self_attention.", heads)
        self.network = Network(params, prefix + "feed_forward.")
        self.norms = [Norm(params, f"{prefix}norm_{i}.") for i in (1, 2)]

    def __call__(self, x, mask=None):
        x = self.norms[0](x + self.attention(x, x, x, mask))
        return self.norms[1](x + self.network(x))


class DecoderBlock:
    def __init__(self, params, heads, prefix=""):
        self.attention = Attention(params, prefix + "self_attention.", heads)
        self.cross = Attention(params, prefix + "cross_attention.", heads)
        self.network = Network(params, prefix + "feed_forward.")
        self.norms = [Norm(params, f"{prefix}norm_{i}.") for i in (1, 2, 3)]

    def __call__(self, x, memory, mask=None, memory_mask=None):
        x = self.norms[0](x + self.attention(x, x, x, mask))
        x = self.norms[1](x + self.cross(x, memory, memory, memory_mask))
        return self.norms[2](x + self.network(x))


class Model:
    def __init__(self, params, heads, encoders, decoders, pad):
        self.p, self.pad = params, pad
        self.encoder = [EncoderBlock(params, heads, f"encoder.{i}.") for i in range(encoders)]
        self.decoder = [DecoderBlock(params, heads, f"decoder.{i}.") for i in range(decoders)]

    def embed(self, ids):
        x = F.embedding(ids, self.p["table"])
        t, d = x.shape[1:]
        rates = torch.exp(torch.arange(0, d, 2, dtype=torch.float64) * (-math.log(10000.0) / d))
        angle = torch.arange(t, dtype=torch.float64)[:, None] * rates
        pe = torch.zeros(t, d, dtype=torch.float64)
        pe[:, 0::2] = torch.sin(angle)
        pe[:, 1::2] = torch.cos(angle)[:, : d // 2]
        return x + pe.to(x)

    def __call__(self, source, target):
        seen = (source != self.pad)[:, None, None, :]
        t = target.size(1)
        own = (target != self.pad)[:, None, None, :] & torch.ones(t, t, dtype=torch.bool).tril()
        x = self.embed(source)
        for block in self.encoder:
            x = block(x, seen)
        y = self.embed(target)
        for block in self.decoder:
            y = block(y, x, own, seen)
        return F.linear(y, self.p["w_vocab"].t(), self.p.get("b_vocab"))


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    return Attention(params, "", num_heads)(query, key, value, mask)


def feed_forward(x, *, params):
    return Network(params)(x)


def encoder_layer(x, mask=None, *, num_heads, params):
    return EncoderBlock(params, num_heads)(x, mask)


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    return DecoderBlock(params, num_heads)(x, memory, self_mask, memory_mask)


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    return Model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)(source, target)


def layer_norm(x, *, params):
    return Norm(params)(x)


def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, dim=-1)
    return weights @ value, weights


def token_embedding(ids, *, params):
    return F.embedding(ids, params["table"])
