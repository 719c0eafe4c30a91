"""The Transformer: replace every `raise NotImplementedError`, and hand in this file as submission.py.

Attention, masks and the positional encoding are given; your code uses them. Keep the names of parameters and of
modules: their values are set from outside. Masks are boolean, and True means: may attend. Results have the dtype of the
inputs. There is no dropout.
"""

import math

import torch
from torch import Tensor, nn

# ── given ──


def causal_mask(seq: int) -> Tensor:
    """Return the mask in which query i may attend to the keys 0, …, i: (seq, seq)."""
    return torch.ones(seq, seq, dtype=torch.bool).tril()


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """Return the mask of the tokens that are no padding: (batch, 1, 1, seq)."""
    return (ids != pad_id)[:, None, None, :]


def positional_encoding(seq: int, d_model: int, dtype: torch.dtype) -> Tensor:
    """Return sines in the even channels and cosines in the odd ones: (seq, d_model)."""
    position = torch.arange(seq, dtype=torch.float64)[:, None]
    angles = position / 10000 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    return torch.stack([torch.sin(angles), torch.cos(angles)], dim=-1).flatten(1)[:, :d_model].to(dtype)


class MultiHeadAttention(nn.Module):
    """Attention with several heads; returns the output and the weights."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """query: (batch, q_seq, d_model), key and value: (batch, kv_seq, d_model)."""
        q, k, v = (
            x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for x in (self.w_q(query), self.w_k(key), self.w_v(value))
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = torch.softmax(scores, dim=-1)
        return self.w_o((weights @ v).transpose(1, 2).flatten(2)), weights


# ── yours ──


class LayerNorm(nn.Module):
    """(x − mean) / √(variance + 10⁻⁵) · gamma + beta over the last axis; the variance divides by d_model."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d_model))
        self.beta = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, d_model). Returns (…, d_model). Do not call torch's own."""
        # BEGIN SOLUTION: raise NotImplementedError
        centred = x - x.mean(-1, keepdim=True)
        variance = (centred**2).mean(-1, keepdim=True)
        return centred / torch.sqrt(variance + 1e-5) * self.gamma + self.beta
        # END SOLUTION


class FeedForward(nn.Module):
    """Two linear maps with a ReLU between them, section 3.3."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(d_model, d_ff)
        self.linear_2 = nn.Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, seq, d_model). Returns (batch, seq, d_model)."""
        # BEGIN SOLUTION: raise NotImplementedError
        return self.linear_2(torch.relu(self.linear_1(x)))
        # END SOLUTION


class EncoderLayer(nn.Module):
    """Self-attention, then the feed-forward network; each is added to its input, and the sum is normalised."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.norm_1 = LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norm_2 = LayerNorm(d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: (batch, seq, d_model), mask: broadcasts to (batch, num_heads, seq, seq), or None.

        Returns (batch, seq, d_model).
        """
        # BEGIN SOLUTION: raise NotImplementedError
        attended = self.norm_1(x + self.self_attention(x, x, x, mask)[0])
        return self.norm_2(attended + self.feed_forward(attended))
        # END SOLUTION


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention to the memory, feed-forward network; each is added, and the sum is normalised."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(d_model, num_heads)
        self.norm_1 = LayerNorm(d_model)
        self.cross_attention = MultiHeadAttention(d_model, num_heads)
        self.norm_2 = LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff)
        self.norm_3 = LayerNorm(d_model)

    def forward(
        self, x: Tensor, memory: Tensor, self_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        """x: (batch, seq, d_model), memory, the encoder's output: (batch, source_seq, d_model).

        self_mask broadcasts to (batch, num_heads, seq, seq), memory_mask to (batch, num_heads, seq, source_seq); each
        may be None. Returns (batch, seq, d_model).
        """
        # BEGIN SOLUTION: raise NotImplementedError
        attended = self.norm_1(x + self.self_attention(x, x, x, self_mask)[0])
        crossed = self.norm_2(attended + self.cross_attention(attended, memory, memory, memory_mask)[0])
        return self.norm_3(crossed + self.feed_forward(crossed))
        # END SOLUTION


class Encoder(nn.Module):
    """Layers one after the other, and nothing after the last."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([EncoderLayer(d_model, num_heads, d_ff) for _ in range(num_layers)])

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x: (batch, seq, d_model). Returns (batch, seq, d_model)."""
        # BEGIN SOLUTION: raise NotImplementedError
        for layer in self.layers:
            x = layer(x, mask)
        return x
        # END SOLUTION


class Decoder(nn.Module):
    """Layers one after the other, all with the same memory, and nothing after the last."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([DecoderLayer(d_model, num_heads, d_ff) for _ in range(num_layers)])

    def forward(
        self, x: Tensor, memory: Tensor, self_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        """x: (batch, seq, d_model), memory: (batch, source_seq, d_model). Returns (batch, seq, d_model)."""
        # BEGIN SOLUTION: raise NotImplementedError
        for layer in self.layers:
            x = layer(x, memory, self_mask, memory_mask)
        return x
        # END SOLUTION


class OutputLayer(nn.Module):
    """A linear map to the vocabulary, and a softmax."""

    def __init__(self, d_model: int, vocab: int) -> None:
        super().__init__()
        self.w_vocab = nn.Linear(d_model, vocab)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, seq, d_model). Returns probabilities (batch, seq, vocab)."""
        # BEGIN SOLUTION: raise NotImplementedError
        return torch.softmax(self.w_vocab(x), dim=-1)
        # END SOLUTION


class Transformer(nn.Module):
    """From ids to logits. One table for source and target; its rows are not multiplied by anything."""

    def __init__(
        self,
        vocab: int,
        d_model: int,
        num_heads: int,
        d_ff: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        pad_id: int,
    ) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.table = nn.Parameter(torch.randn(vocab, d_model))
        self.encoder = Encoder(d_model, num_heads, d_ff, num_encoder_layers)
        self.decoder = Decoder(d_model, num_heads, d_ff, num_decoder_layers)
        self.w_vocab = nn.Linear(d_model, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Compute the logits of the word after each word of the target, before any softmax.

        source: ids (batch, source_seq), target, the input of the decoder: ids (batch, seq). No position attends to
        padding, and no position of the target attends to a later one. Returns (batch, seq, vocab).
        """
        # BEGIN SOLUTION: raise NotImplementedError
        source_mask = padding_mask(source, self.pad_id)
        target_mask = causal_mask(target.shape[1]) & padding_mask(target, self.pad_id)
        memory = self.encoder(self.embed(source), source_mask)
        return self.w_vocab(self.decoder(self.embed(target), memory, target_mask, source_mask))

    def embed(self, ids: Tensor) -> Tensor:
        """Return rows of the table plus their positions."""
        if (ids < 0).any():
            raise IndexError("ids: one is negative")
        rows = self.table[ids]
        return rows + positional_encoding(*rows.shape[1:], rows.dtype)
        # END SOLUTION


def greedy_decode(
    model: Transformer, source: Tensor, bos_id: int, eos_id: int, max_length: int
) -> tuple[Tensor, Tensor]:
    """Decode the sentence that begins with bos_id and takes the most probable word at each step.

    A sentence ends with eos_id, which is part of it; after it stands model.pad_id up to max_length. bos_id is not part
    of the sentence. model(source, target) returns the logits. It is an error if max_length is less than 1, or if bos_id
    or eos_id is no word of the vocabulary.
    source: ids (batch, source_seq). Returns the ids (batch, max_length), and the natural logarithm of the probability
    of each word at its step (batch, max_length), which is 0 after the end.
    """
    # BEGIN SOLUTION: raise NotImplementedError
    if max_length < 1 or not 0 <= bos_id < len(model.table) or not 0 <= eos_id < len(model.table):
        raise ValueError(f"max_length {max_length}, bos_id {bos_id} or eos_id {eos_id}: cannot be")
    batch = len(source)
    target = torch.full((batch, 1), bos_id)
    ended = torch.zeros(batch, dtype=torch.bool)
    words, scores = [], []
    for _ in range(max_length):
        log_probabilities = torch.log_softmax(model(source, target)[:, -1], dim=-1)
        score, word = log_probabilities.max(dim=-1)
        words.append(word.masked_fill(ended, model.pad_id))
        scores.append(score.masked_fill(ended, 0))
        # A sentence that has ended goes on reading, which does not change the others.
        target = torch.cat([target, word[:, None]], dim=1)
        ended = ended | (word == eos_id)
    return torch.stack(words, dim=1), torch.stack(scores, dim=1)
    # END SOLUTION
