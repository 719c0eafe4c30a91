"""Layers of decoder-only models that take their rotary tables from the model, in the forms that models have."""

import torch
import torch.nn.functional as F
from torch import nn


def turn_halves(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def turn_neighbours(x, cos, sin):
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)


class Layer(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx, self.n_heads, self.n_kv_heads = layer_idx, config["n_heads"], config["n_kv_heads"]
        width, inner = config["d_model"], config["d_ff"]
        head = width // self.n_heads
        self.attention_norm, self.ffn_norm = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.wq, self.wo = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.wk, self.wv = (nn.Linear(width, self.n_kv_heads * head, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)

    def run(self, x, turn, mask):
        y = self.attention_norm(x)
        q, k, v = (
            project(y).unflatten(-1, (-1, x.shape[-1] // self.n_heads)) for project in (self.wq, self.wk, self.wv)
        )
        q, k, v = turn(q).transpose(1, 2), turn(k).transpose(1, 2), v.transpose(1, 2)
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
        x = x + self.wo(heads.transpose(1, 2).flatten(2))
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class CosinesOfHeads(Layer):
    """A pair of (1, seq, 1, width / 2), as it is added to (batch, seq, heads, width)."""

    def forward(self, x, cos_sin):
        cos, sin = cos_sin
        return self.run(x, lambda y: turn_neighbours(y, cos, sin), None)


class StackedTables(Layer):
    """One array (seq, width / 2, 2), the position of the first token, and a mask where True may attend."""

    def forward(self, x, start_pos, freqs_cis, mask):
        freqs_cis = freqs_cis[start_pos : start_pos + x.shape[1], None]
        return self.run(x, lambda y: turn_neighbours(y, *freqs_cis.unbind(-1)), mask)


class TablesOfBatches(Layer):
    """As in transformers: arguments that it does not need, a pair (batch, seq, width) and one result of several."""

    def forward(
        self, hidden_states, attention_mask=None, position_ids=None, past_key_value=None, use_cache=False,
        position_embeddings=None,
    ):  # fmt: skip
        cos, sin = position_embeddings
        hidden = self.run(hidden_states, lambda y: turn_halves(y, cos[:, :, None], sin[:, :, None]), attention_mask)
        return (hidden,)


class TablesOfPositions(Layer):
    """It looks the rows of its own table up by the positions that it is given."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        width = config["d_model"] // self.n_heads
        rates = config["rope_theta"] ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.arange(64)[:, None] * rates
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, hidden_states, position_ids):
        cos, sin = (table[position_ids].unsqueeze(2).to(hidden_states) for table in (self.cos, self.sin))
        return self.run(hidden_states, lambda y: turn_neighbours(y, cos, sin), None)


class OnlyQueriesTurn(CosinesOfHeads):
    """The keys do not turn, which is a mistake."""

    def forward(self, x, cos_sin):
        cos, sin = cos_sin
        calls = []

        def turn(y):
            calls.append(y)
            return turn_neighbours(y, cos, sin) if len(calls) == 1 else y

        return self.run(x, turn, None)
