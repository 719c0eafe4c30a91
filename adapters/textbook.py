"""The Transformer a second time, in plain NumPy, one small method per step of the textbook.

Written from the clauses alone and in other ways than the reference: heads are cut out and put back one
by one, the positional encoding is written channel by channel. A known mistake is one step done
differently, so an override of one or two methods of `Textbook` is that mistake.

Results keep the dtype of the inputs: every constant is a Python float, which promotes nothing, and what is
formed in a wider dtype, positional encoding and layer normalisation, is rounded to it.

TextbookRandom                           Xavier-uniform weights and dropout
└── TextbookAttention                    softmax, attention, masks, embedding and positional encoding
    └── TextbookLayers                   feed-forward network, layer normalisation, encoder and decoder
        └── TextbookBackward             backward passes by hand, and the training steps of the java class
            └── TextbookLayersBackward   those of multi-head attention and of the layers
                └── TextbookModel        the whole model and its output layer
                    └── TextbookDecoding greedy decoding and beam search
                        └── Textbook     lengths and targets, and the losses: all of it
"""

from typing import Final

import numpy as np

from goldformer.adapters.textbook_attention import EMBEDDING
from goldformer.adapters.textbook_checks import Array, at_least_one, axis_sizes, check_ids, check_integers
from goldformer.adapters.textbook_decoding import TextbookDecoding
from goldformer.adapters.textbook_layers import TOKENS

# The axes of arguments, as axis_sizes reads them.
CROSS_ENTROPY: Final = {"logits": "batch seq vocab", "targets": "batch seq"}
KL_DIVERGENCE: Final = {"target": "... n", "logits": "... n"}


class Textbook(TextbookDecoding):
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

    # The losses

    def cross_entropy(self, logits: Array, targets: Array, *, pad_id: int) -> dict[str, Array]:
        """Return loss (), the mean over the targets that are not padding, and token_losses (batch, seq)."""
        sizes = axis_sizes(CROSS_ENTROPY, logits=logits, targets=targets)
        check_ids("targets", targets, sizes["vocab"], "the columns of logits")
        logits, targets = self.paired(logits, targets)
        counted = self.counted(targets, pad_id)
        token_losses = np.where(counted, -self.picked(self.predictions(logits), targets), 0)
        # The mean over no target at all is 0/0: NaN, as silently as the frameworks give it.
        with np.errstate(invalid="ignore"):
            loss = token_losses.sum() / self.number_counted(counted)
        return {"loss": np.asarray(loss), "token_losses": token_losses}

    def paired(self, logits: Array, targets: Array) -> tuple[Array, Array]:
        """Return the logits and the targets that they are judged by: as given, position by position."""
        return logits, targets

    def predictions(self, logits: Array) -> Array:
        """Return what the loss of each target is picked from, log softmax(logits), (batch, seq, vocab)."""
        return self.log_probabilities(logits)

    def counted(self, targets: Array, pad_id: int) -> Array:
        """Return which targets count: those that are not padding."""
        return np.asarray(targets != pad_id)

    def number_counted(self, counted: Array) -> int:
        """Return how many count: what the sum is divided by."""
        return int(counted.sum())

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

    def picked(self, predictions: Array, targets: Array) -> Array:
        """Return the entry of each target, (batch, seq)."""
        return np.take_along_axis(predictions, targets[..., None], axis=-1)[..., 0]

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

    def kl_divergence_gradient(self, target: Array, logits: Array, cotangent: Array) -> dict[str, Array]:
        """Return the gradients of target, log p + 1 − log q, and of logits, q·Σp − p; 0 of a target that is 0."""
        there = target > 0
        of_target = np.zeros_like(target)
        of_target[there] = np.log(target[there]) + 1 - self.log_probabilities(logits)[there]
        of_logits = self.softmax(logits) * target.sum(axis=-1, keepdims=True) - target
        rows = cotangent[..., None]
        return {"target": of_target * rows, "logits": of_logits * rows}
