"""The Transformer a second time, in plain NumPy, one small method per step of the textbook.

Written from the clauses alone and in other ways than the reference: heads are cut out and put back one
by one, the positional encoding is written channel by channel. A known mistake is one step done
differently, so an override of one or two methods of `Textbook` is that mistake.

Results keep the dtype of the inputs: every constant is a Python float, which promotes nothing, and what is
formed in a wider dtype, positional encoding and layer normalisation, is rounded to it.

TextbookAttention           softmax, attention, masks, embedding and positional encoding
└── TextbookLayers          feed-forward network, layer normalisation, encoder and decoder
    └── TextbookBackward    backward passes by hand, and the training steps of the java class
        └── Textbook        lengths and targets, the whole model, the output layer and the losses: all of it
"""

from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook_attention import EMBEDDING
from goldformer.adapters.textbook_backward import TextbookBackward
from goldformer.adapters.textbook_checks import Array, at_least_one, axis_sizes, check_ids, check_integers
from goldformer.adapters.textbook_layers import TOKENS, Params

# The axes of arguments, as axis_sizes reads them.
OUTPUT_LAYER: Final = {"w_vocab": "d_model vocab", "b_vocab": "? vocab"}
TRANSFORMER: Final = {"source": "batch source_seq", "target": "batch seq", "table": "vocab d_model", **OUTPUT_LAYER}
CROSS_ENTROPY: Final = {"logits": "batch seq vocab", "targets": "batch seq"}
KL_DIVERGENCE: Final = {"target": "... n", "logits": "... n"}


class Textbook(TextbookBackward):
    """Every component as a method with the adapter's signature, every step of it as a method to override."""

    # Sequences and targets

    def pad_or_truncate(self, x: Array, *, length: int) -> Array:
        """Return (batch, length, d_model)."""
        axis_sizes({"x": TOKENS}, x=x)
        at_least_one("length", length, "a sequence has at least one row")
        return self.padded(self.truncated(x, length), length)

    def truncated(self, x: Array, length: int) -> Array:
        """Return the first `length` rows."""
        return x[:, :length]

    def padded(self, x: Array, length: int) -> Array:
        """Return rows of zeros after the last, up to `length`."""
        return np.pad(x, ((0, 0), (0, length - x.shape[1]), (0, 0)))

    def shift_right(self, ids: Array, *, bos_id: int) -> Array:
        """Return bos_id and then all ids but the last, (batch, seq)."""
        axis_sizes({"ids": EMBEDDING["ids"]}, ids=ids)
        check_integers("ids", ids)
        return np.insert(ids[:, :-1], 0, bos_id, axis=1)

    def one_hot(self, ids: Array, *, vocab: int) -> Array:
        """Return 1 at the id and 0 elsewhere, (batch, seq, vocab)."""
        axis_sizes({"ids": EMBEDDING["ids"]}, ids=ids)
        at_least_one("vocab", vocab, "a vocabulary has at least one word")
        check_ids("ids", ids, vocab, "the words of vocab")
        return np.eye(vocab, dtype=np.int64)[ids]

    def label_smoothing(self, target: Array, *, smoothing: float) -> Array:
        """Return (1 − s)·target + s/vocab, (batch, seq, vocab)."""
        axis_sizes({"target": "batch seq vocab"}, target=target)
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing: {smoothing} is not in 0 … 1")
        return self.kept(target, smoothing) + self.shared(target, smoothing)

    def kept(self, target: Array, smoothing: float) -> Array:
        """Return what the target keeps, (1 − s) of all."""
        return target * (1 - smoothing)

    def shared(self, target: Array, smoothing: float) -> Array | float:
        """Return what every word gets, the target's own included: s/vocab."""
        vocab: int = target.shape[-1]
        return smoothing / vocab

    # The whole model

    def transformer(
        self,
        source: Array,
        target: Array,
        *,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        pad_id: int,
        params: Params,
    ) -> dict[str, Array]:
        """Return logits (batch, seq, vocab), memory and source_embedded, decoded and target_embedded (…, d_model)."""
        sizes = axis_sizes(TRANSFORMER, source=source, target=target, **params)
        for name, ids in (("source", source), ("target", target)):
            check_ids(name, ids, sizes["vocab"], "the rows of table")
        common: dict[str, Any] = {"num_heads": num_heads, "params": params}
        embedded = self.embedded(source, "source", pad_id, params)
        encoded = self.encoder(embedded, self.source_mask(source, pad_id), num_layers=num_encoder_layers, **common)
        target_embedded = self.embedded(target, "target", pad_id, params)
        decoded = self.decoder(
            target_embedded,
            self.memory(embedded, encoded),
            self.target_mask(target, pad_id),
            self.memory_mask(source, target, pad_id),
            num_layers=num_decoder_layers,
            **common,
        )
        logits = self.output_layer(decoded["output"], params)
        steps = {"decoded": decoded["output"], "source_embedded": embedded, "target_embedded": target_embedded}
        return {"logits": logits, "memory": encoded["output"], **steps}

    def embedded(self, ids: Array, side: str, pad_id: int, params: Params) -> Array:
        """Return the rows of the table with their positions, for the side "source" or "target", padding as any word."""
        del pad_id
        return self.positional_encoding(self.token_embedding(ids, params={"table": self.table(params, side)}))

    def table(self, params: Params, side: str) -> Array:
        """Return the one table of both sides (MODEL-1)."""
        del side
        return params["table"]

    def source_mask(self, source: Array, pad_id: int) -> Array | None:
        """Return the mask of the encoder: padding."""
        return self.padding_mask(source, pad_id=pad_id)

    def target_mask(self, target: Array, pad_id: int) -> Array | None:
        """Return the mask of the decoder's self-attention: neither padding nor later positions (LAYER-5)."""
        seq = target.shape[1]
        return self.padding_mask(target, pad_id=pad_id) & self.causal_mask(q_seq=seq, kv_seq=seq)

    def memory_mask(self, source: Array, target: Array, pad_id: int) -> Array | None:
        """Return the mask of the cross-attention: the padding of the source, whose positions are the keys."""
        del target
        return self.padding_mask(source, pad_id=pad_id)

    def memory(self, embedded: Array, encoded: dict[str, Array]) -> Array:
        """Return what the decoder attends to: the last encoder layer's output (LAYER-4)."""
        del embedded
        return encoded["output"]

    # The output layer

    def output_layer(self, x: Array, params: Params) -> Array:
        """Return logits, x·W_vocab + b_vocab, with no softmax (MODEL-4)."""
        return self.project(x, params, "vocab")

    def output_probabilities(self, x: Array, *, params: Params) -> dict[str, Array]:
        """Return probabilities and logits, each (batch, seq, vocab)."""
        axis_sizes({"x": TOKENS, **OUTPUT_LAYER}, x=x, **params)
        logits = self.output_layer(x, params)
        return {"probabilities": self.softmax(logits), "logits": logits}

    # The losses

    def cross_entropy(self, logits: Array, targets: Array, *, pad_id: int) -> dict[str, Array]:
        """Return loss (), the mean over the targets that are not padding, and token_losses (batch, seq)."""
        sizes = axis_sizes(CROSS_ENTROPY, logits=logits, targets=targets)
        check_ids("targets", targets, sizes["vocab"], "the columns of logits")
        logits, targets = self.paired(logits, targets)
        counted = self.counted(targets, pad_id)
        token_losses = np.where(counted, -self.picked(self.log_probabilities(logits), targets), 0)
        # The mean over no target at all is 0/0: NaN, as silently as the frameworks give it.
        with np.errstate(invalid="ignore"):
            loss = token_losses.sum() / self.number_counted(counted)
        return {"loss": np.asarray(loss), "token_losses": token_losses}

    def paired(self, logits: Array, targets: Array) -> tuple[Array, Array]:
        """Return the logits and the targets that they are judged by: as given, position by position."""
        return logits, targets

    def counted(self, targets: Array, pad_id: int) -> Array:
        """Return which targets count: those that are not padding."""
        return np.asarray(targets != pad_id)

    def number_counted(self, counted: Array) -> int:
        """Return how many count: what the sum is divided by."""
        return int(counted.sum())

    def log_probabilities(self, logits: Array) -> Array:
        """Return log softmax(logits) over the last axis, as logits − max − log Σ exp(logits − max)."""
        with np.errstate(over="ignore"):
            shifted = logits - logits.max(axis=-1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))

    def cross_entropy_gradient(
        self, logits: Array, targets: Array, cotangent: Array, *, pad_id: int
    ) -> dict[str, Array]:
        """Return the gradient of logits, (softmax − one-hot)/number of targets that count, 0 where one is padding."""
        logits, targets = self.paired(logits, targets)
        counted = self.counted(targets, pad_id)
        beside = self.softmax(logits) - self.one_hot(targets, vocab=logits.shape[-1]).astype(logits.dtype)
        terms = np.where(counted[..., None], beside, np.zeros_like(beside))
        return {"logits": self.mean_gradient(terms * cotangent, counted)}

    def mean_gradient(self, gradient: Array, counted: Array) -> Array:
        """Return the gradient of the sum divided by how many count, as the loss is."""
        return gradient / self.number_counted(counted)

    def picked(self, log_probabilities: Array, targets: Array) -> Array:
        """Return the entry of each target, (batch, seq)."""
        return np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]

    def kl_divergence(self, target: Array, logits: Array) -> Array:
        """Return Σ p·(log p − log q) with q = softmax(logits), (...)."""
        axis_sizes(KL_DIVERGENCE, target=target, logits=logits)
        return np.asarray(self.kl_terms(target, self.log_probabilities(logits)).sum(axis=-1))

    def kl_terms(self, target: Array, log_q: Array) -> Array:
        """Return p·(log p − log q) of every word, and 0 where p is 0."""
        there = target > 0
        terms = np.zeros_like(target)
        terms[there] = target[there] * (np.log(target[there]) - log_q[there])
        return terms
