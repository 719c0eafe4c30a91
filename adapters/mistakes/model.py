"""Mistakes of the whole model, of its output layer, and of the target that it reads."""

import math

import numpy as np

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_checks import Array
from goldformer.adapters.textbook_layers import Params

# Masks and positions


@mistake("tgt-pad-replaces-causal")
class PaddingReplacesCausal(Textbook):
    """The decoder's self-attention hides padding alone."""

    def target_mask(self, target: Array, pad_id: int) -> Array | None:
        return self.words_mask(target, pad_id)


@mistake("tgt-pad-missing")
class TargetPaddingSeen(Textbook):
    """The decoder's self-attention hides later words alone."""

    def target_mask(self, target: Array, pad_id: int) -> Array | None:
        seq = target.shape[1]
        return self.causal_mask(q_seq=seq, kv_seq=seq)


@mistake("pad-from-embedding-sum")
class PaddingFromEmbeddings(Textbook):
    """Padding is looked for among rows to which positions were added: none is 0, so every token is a word."""

    def words_mask(self, ids: Array, pad_id: int) -> Array:
        return np.ones_like(super().words_mask(ids, pad_id))


@mistake("pe-missing")
class PositionsMissing(Textbook):
    """The model reads the rows of the table as they are."""

    def embedded(self, ids: Array, side: str, pad_id: int, params: Params) -> Array:
        return self.rows(ids, side, params)


@mistake("pad-mask-zeroes-positions")
class PaddingAloneHasPositions(Textbook):
    """The positional encoding is added to padding alone."""

    def embedded(self, ids: Array, side: str, pad_id: int, params: Params) -> Array:
        with_positions = super().embedded(ids, side, pad_id, params)
        return np.where((ids == pad_id)[..., None], with_positions, self.rows(ids, side, params))


# Memory and result


@mistake("cross-raw-src")
class MemoryOfEmbeddings(Textbook):
    """The decoder attends to the embedded source."""

    def memory(self, embedded: Array, encoded: dict[str, Array]) -> Array:
        return embedded


@mistake("memory-per-layer")
class MemoryPerLayer(Textbook):
    """Decoder layer i attends to the output of encoder layer i, and those beyond to the last."""

    def memory(self, embedded: Array, encoded: dict[str, Array]) -> Array:
        return encoded["layers"]

    def layer_memory(self, memory: Array, index: int) -> Array:
        # A decoder called by itself has one memory for all.
        return memory if memory.ndim == 3 else memory[min(index, len(memory) - 1)]


@mistake("softmax-in-model")
class ModelGivesProbabilities(Textbook):
    """The model returns the softmax of its logits."""

    def returned_logits(self, logits: Array) -> Array:
        return self.softmax(super().returned_logits(logits))


# The output layer


@mistake("softmax-before-linear")
class SoftmaxBeforeLinear(Textbook):
    """The linear map of the softmax is given as probabilities."""

    def output_probabilities(self, x: Array, *, params: Params) -> dict[str, Array]:
        return {"probabilities": super().output_probabilities(self.softmax(x), params=params)["logits"]}


@mistake("tied-logit-scale")
class LogitsScaled(Textbook):
    """The logits are divided by √d_model."""

    def output_layer(self, x: Array, params: Params) -> Array:
        return super().output_layer(x, params) / math.sqrt(x.shape[-1])


# The target


@mistake("shift-missing")
class ShiftMissing(Textbook):
    """The target is left as it is."""

    def shift_right(self, ids: Array, *, bos_id: int) -> Array:
        return ids.copy()


@mistake("shift-double")
class ShiftTwice(Textbook):
    """The target is shifted twice."""

    def shift_right(self, ids: Array, *, bos_id: int) -> Array:
        return super().shift_right(super().shift_right(ids, bos_id=bos_id), bos_id=bos_id)


@mistake("eos-fed-in")
class LastIdKept(Textbook):
    """The shifted target keeps its last id and is one longer."""

    def shift_right(self, ids: Array, *, bos_id: int) -> Array:
        return np.concatenate([super().shift_right(ids, bos_id=bos_id), ids[:, -1:]], axis=1)
