"""Layers whose constructors take ready modules, and a stack that takes a ready layer."""

import copy

from separate_attention import ClonedLinears
from small_parts import OwnNorm, Positionwise
from torch import nn


def clones(module, count):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(count)])


class Residual(nn.Module):
    """Its norm stands before the sub-layer."""

    def __init__(self, size, dropout):
        super().__init__()
        self.norm, self.dropout = OwnNorm(size), nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class ReadyLayer(nn.Module):
    """It has no place for the number of heads or the width inside."""

    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.feed_forward, self.size = self_attn, feed_forward, size
        self.sublayer = clones(Residual(size, dropout), 2)

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class ReadyDecoderLayer(nn.Module):
    """Two attentions of one class."""

    def __init__(self, size, self_attn, src_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = self_attn, src_attn, feed_forward
        self.sublayer = clones(Residual(size, dropout), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class ReadyEncoder(nn.Module):
    """It copies the layer that it is given."""

    def __init__(self, layer, N):
        super().__init__()
        self.layers, self.norm = clones(layer, N), OwnNorm(layer.size)

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


def make_encoder(count, width, heads, inner):
    """Return a stack, as its authors build it."""
    return ReadyEncoder(ReadyLayer(width, ClonedLinears(heads, width), Positionwise(width, inner), 0.1), count)
