"""Classes that are called with more or less than a component: caches, ids, devices, names of several senses."""

import math

import torch
from torch import nn
from whole_layers import TranslationModel


class CachedAttention(nn.Module):
    """It takes the keys and values of earlier calls, and returns those of this one."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.expand, self.fc = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask, layer_past):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.expand(x).chunk(3, dim=-1))
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), dim=2), torch.cat((layer_past[1], v), dim=2)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e20)
        return self.fc((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), (k, v)


class SizeOfHeads(nn.Module):
    """The number of heads is called a size, and a cache is optional."""

    def __init__(self, hidden_size, dropout_rate, head_size=8):
        super().__init__()
        self.head_size, self.dropout = head_size, nn.Dropout(dropout_rate)
        self.linear_q, self.linear_k, self.linear_v, self.output_layer = (
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        )

    def forward(self, q, k, v, ignore_mask, cache=None):
        k, v = self.split(self.linear_k(k)), self.split(self.linear_v(v))
        if cache is not None:
            cache["k"], cache["v"] = k, v
        scores = self.split(self.linear_q(q)) @ k.mT / math.sqrt(k.shape[-1])
        weights = self.dropout(scores.masked_fill(ignore_mask.unsqueeze(1), -1e9).softmax(-1))
        return self.output_layer((weights @ v).transpose(1, 2).flatten(2))

    def split(self, x):
        return x.unflatten(-1, (self.head_size, -1)).transpose(1, 2)


class PlacesOfIds(nn.Module):
    """A table on a device that its caller names, of which the shape of ids takes the first rows."""

    def __init__(self, d_model, max_len, device):
        super().__init__()
        places = torch.arange(max_len, device=device, dtype=torch.float64)[:, None]
        waves = 10000 ** (-torch.arange(0, d_model, 2, device=device) / d_model)
        self.table = torch.zeros(max_len, d_model, device=device)
        self.table[:, 0::2], self.table[:, 1::2] = torch.sin(places * waves), torch.cos(places * waves)

    def forward(self, ids):
        _, length = ids.size()
        return self.table[:length]


class DoubledLayer(nn.Module):
    """Its linear maps stand in a sequence too, and a switch without a default turns its scale on."""

    def __init__(self, d_model: int, d_ff_inner: int, t_enc_heads: int, d_query_key_head: int, t_scale: bool):
        super().__init__()
        self.heads, self.scale = t_enc_heads, d_query_key_head**-0.5 if t_scale else 1.0
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(d_model, t_enc_heads * d_query_key_head, bias=False) for _ in range(3)
        )
        self.o_proj = nn.Linear(t_enc_heads * d_query_key_head, d_model, bias=False)
        self.wide, self.narrow = nn.Linear(d_model, d_ff_inner), nn.Linear(d_ff_inner, d_model)
        self.feed_forward = nn.Sequential(self.wide, nn.ReLU(), self.narrow)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        joined = ((q @ k.mT * self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.o_proj(joined))
        return self.norm2(x + self.feed_forward(x))


class FlatModel(TranslationModel):
    """Its logits are those of a loss, all words in a row, and its words have a width that must be the model's."""

    def __init__(self, n_src_vocab, n_trg_vocab, d_word_vec, d_model, d_inner, n_layers, n_head):
        if d_word_vec != d_model:
            raise ValueError("residual connections need one width")
        super().__init__(n_src_vocab, n_trg_vocab, d_model, n_head, n_layers, d_inner)

    def forward(self, src_seq, trg_seq, pad_id=0):
        return super().forward(src_seq, trg_seq, pad_id).flatten(0, 1)
