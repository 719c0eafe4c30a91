"""Decoder layers that take padded keys apart from other masks, so that they have three masks or four."""

import math

import torch
from separate_attention import IgnoreMask
from torch import nn


class SplitAttention(nn.Module):
    """True hides: one mask of (q_seq, kv_seq), and one of (batch, kv_seq)."""

    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, q, k, v, attn_mask=None, key_padding_mask=None):
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (self.q(q), self.k(k), self.v(v)))
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if attn_mask is not None:
            length, keys = attn_mask.shape
            scores = scores.masked_fill(attn_mask.view(1, 1, length, keys), -math.inf)
        if key_padding_mask is not None:
            scores = scores.masked_fill(key_padding_mask[:, None, None, :], -math.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class DecoderLayerOfParts(nn.Module):
    """The parts that the layers here share."""

    def __init__(self, d_model, num_heads, d_ff, dropout):
        super().__init__()
        self.self_attention, self.cross_attention = (self.make_attention(d_model, num_heads) for _ in range(2))
        self.fc1, self.fc2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(d_model) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def make_attention(self, d_model, num_heads):
        return SplitAttention(d_model, num_heads)

    def run(self, x, memory, own, cross):
        x = self.norm1(x + self.dropout(self.self_attention(x, x, x, *own)))
        x = self.norm2(x + self.dropout(self.cross_attention(x, memory, memory, *cross)))
        return self.norm3(x + self.dropout(self.fc2(self.fc1(x).relu())))


class ThreeMasks(DecoderLayerOfParts):
    """Nothing of the memory is hidden but padding."""

    def forward(self, tgt, memory, tgt_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None):
        return self.run(tgt, memory, (tgt_mask, tgt_key_padding_mask), (None, memory_key_padding_mask))


class HidesTheFutureItself(DecoderLayerOfParts):
    """Its masks say only which keys are padding; its causal mask is its own."""

    def forward(self, x, encoder_output, src_pad_mask, tgt_pad_mask):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.run(x, encoder_output, (later, tgt_pad_mask), (None, src_pad_mask))


class HidesTheFutureAlone(DecoderLayerOfParts):
    """It takes no mask at all."""

    def forward(self, x, encoder_output):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        return self.run(x, encoder_output, (later,), ())


class PaddingOfTargetsLost(DecoderLayerOfParts):
    """It forgets one of them."""

    def forward(self, tgt, memory, tgt_mask=None, tgt_key_padding_mask=None, memory_key_padding_mask=None):
        return self.run(tgt, memory, (tgt_mask, None), (None, memory_key_padding_mask))


class JoinsMasks(DecoderLayerOfParts):
    """Masks of the size of the scores, True = ignore, of which it joins two."""

    def make_attention(self, d_model, num_heads):
        return IgnoreMask(d_model, num_heads)

    def forward(self, x, enc_output, tgt_mask=None, src_mask=None, tgt_padding_mask=None):
        if tgt_padding_mask is not None:
            tgt_mask = tgt_padding_mask if tgt_mask is None else tgt_mask | tgt_padding_mask
        return self.run(x, enc_output, (tgt_mask,), (src_mask,))
