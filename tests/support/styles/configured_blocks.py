"""Blocks whose constructors take a config or numbers of their norms, next to models that only their docstrings name."""

from separate_attention import CourseAttention
from torch import nn


class ConfiguredBlock(nn.Module):
    """One of the blocks of a Model, without a mask."""

    def __init__(self, config):
        super().__init__()
        self.attention = CourseAttention(config.n_embd, config.n_head)
        self.norm_1, self.norm_2 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)
        self.mlp = nn.ModuleDict(
            {
                "up": nn.Linear(config.n_embd, 4 * config.n_embd),
                "down": nn.Linear(4 * config.n_embd, config.n_embd),
                "dropout": nn.Dropout(config.resid_pdrop),
            }
        )

    def forward(self, x):
        normed = self.norm_1(x)
        x = x + self.attention(normed, normed, normed, None)
        return x + self.mlp["dropout"](self.mlp["down"](self.mlp["up"](self.norm_2(x)).relu()))


class BlockOfNumbers(nn.Module):
    """The eps of its norms and the dropout of its attention are required, and are no modules."""

    def __init__(self, embed_dim, heads, mlp_dim, layer_norm_eps, attn_dropout):
        super().__init__()
        self.attention = CourseAttention(embed_dim, heads)
        self.norm_1 = nn.LayerNorm(embed_dim, eps=layer_norm_eps)
        self.norm_2 = nn.LayerNorm(embed_dim, eps=layer_norm_eps)
        self.up, self.down = nn.Linear(embed_dim, mlp_dim), nn.Linear(mlp_dim, embed_dim)
        self.dropout = nn.Dropout(attn_dropout)

    def forward(self, x, mask=None):
        x = self.norm_1(x + self.dropout(self.attention(x, x, x, mask)))
        return self.norm_2(x + self.down(self.up(x).relu()))


class TakesNorm(nn.Module):
    """It takes a ready norm, and so does the class next to it."""

    def __init__(self, dim, norm):
        super().__init__()
        self.norm, self.linear = norm, nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.linear(self.norm(x))


class TakesNormToo(TakesNorm):
    """A class that could be a part of that one, by its arguments."""


class Model(nn.Module):
    """A configured model of another kind."""

    def __init__(self, config):
        super().__init__()
        self.name, self.table = config.model_type, nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList([ConfiguredBlock(config) for _ in range(config.n_layer)])

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return x
