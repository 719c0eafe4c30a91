"""The formulas of layers, stacks, the whole model and the loss, written as formulas.py explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.oracle.formulas import (
    Number,
    Objects,
    attend_in_heads,
    causal_mask,
    drop,
    padding_mask,
    positional_encoding,
    scalar,
    select_params,
    softmax,
    token_embedding,
)
from goldformer.spec.oracle.matrices import multiply
from goldformer.spec.oracle.special import erf, pi

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_] | None
Params = Mapping[str, Objects]
Sublayer = Callable[[Objects], dict[str, Objects]]

#: The conventions that the arguments of a call decide: a formula reads its parameters and its mask, and no option.
DECIDED_BY_ARGUMENTS: Final = frozenset({"biases", "final_norm", "later_tokens", "output_layer", "positions"})


def pad_or_truncate(number: Number, x: Objects, *, length: int) -> dict[str, Objects]:
    """SEQ-1: the first `length` rows, zero rows after the last."""
    batch, seq, d_model = x.shape
    missing = np.full_like(x, number(0), shape=(batch, max(length - seq, 0), d_model))
    return {"output": np.concatenate([x[:, :length], missing], axis=1)}


def feed_forward(
    number: Number,
    x: Objects,
    *,
    w_1: Objects,
    w_2: Objects,
    b_1: Objects | None = None,
    b_2: Objects | None = None,
    activation: str = "relu",
    dropout_rate: Any = 0,
    training: bool = True,
    seed: int = 0,
) -> dict[str, Objects]:
    """FFN-1, FFN-3, DROP-4: max(0, x·W_1 + b_1)·W_2 + b_2, or another function between the two maps."""
    del seed
    hidden = activate(number, multiply(x, w_1, b_1), activation)
    kept = drop(number, hidden, dropout_rate, training=training)
    return {"output": multiply(kept, w_2, b_2), "hidden": hidden}


def activate(number: Number, x: Objects, activation: str) -> Objects:
    """FFN-3: what stands between the two maps of a feed-forward network."""
    one, two = scalar(number(1)), scalar(number(2))
    if activation == "gelu":
        result: Objects = x * (one + erf(x / np.sqrt(two))) / two
    elif activation == "gelu_tanh":
        cubic = x * x * x * scalar(number(44715) / number(10**6))
        result = x * (one + np.tanh((x + cubic) * np.sqrt(scalar(number(2) / pi(number))))) / two
    elif activation == "silu":
        result = x / (one + np.exp(-x))
    else:
        result = np.where(x.astype(np.float64) > 0, x, scalar(number(0)))
    return result


def layer_norm(
    number: Number,
    x: Objects,
    *,
    gamma: Objects,
    beta: Objects,
    layer_norm_eps: str = "1e-5",
    norm_divisor: str = "variance_plus_eps",
) -> dict[str, Objects]:
    """LN-1, LN-2, LN-3, LN-6: (x − mean)/√(variance + eps)·gamma + beta, the variance divided by d_model."""
    count = scalar(number(x.shape[-1]))
    eps = number(1) / number(10 ** -int(layer_norm_eps.removeprefix("1e")))
    centred = x - x.sum(-1, keepdims=True) / count
    squares = (centred * centred).sum(-1, keepdims=True)
    if norm_divisor == "std_plus_eps":
        divisor = np.sqrt(squares / scalar(number(x.shape[-1] - 1))) + scalar(eps)
    else:
        divisor = np.sqrt(squares / count + scalar(eps))
    return {"output": centred / divisor * gamma + beta}


@dataclass(frozen=True, kw_only=True)
class Layer:
    """LAYER-1 … LAYER-3: the sub-layers of one layer, each with its residual and its normalisation."""

    number: Number
    num_heads: int
    params: Params
    norm_placement: str = "post"
    layer_norm_eps: str = "1e-5"
    norm_divisor: str = "variance_plus_eps"
    activation: str = "relu"
    empty_row: str = "uniform"
    dropout_rate: Any = 0
    training: bool = True
    seed: int = 0

    def attend(self, name: str, query: Objects, memory: Objects, mask: Mask) -> dict[str, Objects]:
        """Attend from `query` to `memory` with the parameters of one attention."""
        mine = select_params(self.params, name)
        projections = [(mine[f"w_{part}"], mine.get(f"b_{part}")) for part in "qkvo"]
        inputs = (query, memory, memory)
        return attend_in_heads(self.number, inputs, mask, projections, self.num_heads, self.empty_row)

    def feed(self, x: Objects) -> dict[str, Objects]:
        """Run the feed-forward network."""
        mine: dict[str, Any] = select_params(self.params, "feed_forward")
        return feed_forward(self.number, x, **mine, activation=self.activation)

    def add(self, norm: str, x: Objects, sublayer: Sublayer) -> tuple[Objects, dict[str, Objects]]:
        """LAYER-3: add a sub-layer to its residual, normalised after or before; return the sum and its outputs.

        DROP-6: what it adds is dropped. A law of what follows is not known, so no case asks for it at a rate
        between 0 and 1, and neither the weights nor the hidden channels need be dropped here.
        """

        def run(y: Objects) -> tuple[Objects, dict[str, Objects]]:
            outputs = sublayer(y)
            return drop(self.number, outputs["output"], self.dropout_rate, training=self.training), outputs

        def normalise(y: Objects) -> Objects:
            scale: dict[str, Any] = select_params(self.params, norm)
            scale |= {"layer_norm_eps": self.layer_norm_eps, "norm_divisor": self.norm_divisor}
            return layer_norm(self.number, y, **scale)["output"]

        if self.norm_placement == "pre":
            added, outputs = run(normalise(x))
            return x + added, outputs
        added, outputs = run(x)
        return normalise(x + added), outputs


def encoder_layer(number: Number, x: Objects, mask: Mask = None, **options: Any) -> dict[str, Objects]:
    """LAYER-1: self-attention, then the feed-forward network, each with residual and normalisation."""
    layer = Layer(number=number, **options)
    attended, own = layer.add("norm_1", x, lambda y: layer.attend("self_attention", y, y, mask))
    output, _ = layer.add("norm_2", attended, layer.feed)
    return {"output": output, "attended": attended, "weights": own["weights"]}


def decoder_layer(
    number: Number, x: Objects, memory: Objects, self_mask: Mask = None, memory_mask: Mask = None, **options: Any
) -> dict[str, Objects]:
    """LAYER-2: masked self-attention, attention over the encoder's output, the feed-forward network."""
    layer = Layer(number=number, **options)
    attended, own = layer.add("norm_1", x, lambda y: layer.attend("self_attention", y, y, self_mask))
    crossed, cross = layer.add("norm_2", attended, lambda y: layer.attend("cross_attention", y, memory, memory_mask))
    output, _ = layer.add("norm_3", crossed, layer.feed)
    weights = {"weights": own["weights"], "cross_weights": cross["weights"]}
    return {"output": output, "attended": attended, "crossed": crossed, **weights}


def _run_stack(
    name: str,
    layer: Callable[..., Mapping[str, Objects]],
    x: Objects,
    *,
    num_layers: int,
    params: Params,
    **options: Any,
) -> dict[str, Objects]:
    """STACK-1, STACK-3: each layer takes the output of the one before it; a final norm follows where it has params."""
    layers = []
    for index in range(num_layers):
        x = layer(x, params=select_params(params, f"{name}.{index}"), **options)["output"]
        layers.append(x)
    final_norm: dict[str, Any] = select_params(params, "norm")
    if final_norm:
        final_norm |= {name: options[name] for name in ("layer_norm_eps", "norm_divisor") if name in options}
        x = layer_norm(options["number"], x, **final_norm)["output"]
    return {"output": x, "layers": np.stack(layers)}


def encoder(number: Number, x: Objects, mask: Mask = None, **options: Any) -> dict[str, Objects]:
    """STACK-1: a stack of encoder layers under one mask."""
    return _run_stack("encoder", lambda x, **layer: encoder_layer(x=x, mask=mask, **layer), x, number=number, **options)


def decoder(
    number: Number, x: Objects, memory: Objects, self_mask: Mask = None, memory_mask: Mask = None, **options: Any
) -> dict[str, Objects]:
    """STACK-2: a stack of decoder layers; every layer attends to the same memory."""

    def run_layer(x: Objects, **layer: Any) -> dict[str, Objects]:
        return decoder_layer(x=x, memory=memory, self_mask=self_mask, memory_mask=memory_mask, **layer)

    return _run_stack("decoder", run_layer, x, number=number, **options)


@dataclass(frozen=True, kw_only=True)
class Model:
    """MODEL-1 … MODEL-4, in two halves: the memory of sources, and the logits of targets that read it."""

    number: Number
    params: Params
    num_heads: int
    num_encoder_layers: int
    num_decoder_layers: int
    pad_id: int
    embedding_scale: str = "none"
    pe_layout: str = "interleaved"
    norm_placement: str = "post"
    layer_norm_eps: str = "1e-5"
    norm_divisor: str = "variance_plus_eps"
    activation: str = "relu"
    empty_row: str = "uniform"
    pad_row: str = "learned"
    target_mask: str = "causal_and_padding"

    def encode(self, embedded: Objects, source: Ids) -> Objects:
        """Return the memory: the encoder's output."""
        mask = padding_mask(self.number, source, pad_id=self.pad_id)["mask"]
        options = self._make_options("encoder", self.num_encoder_layers)
        return encoder(self.number, embedded, mask, **options)["output"]

    def decode(self, embedded: Objects, target: Ids, memory: Objects, source: Ids) -> Objects:
        """Return the decoder's output."""
        seq = target.shape[1]
        source_mask, target_mask = (padding_mask(self.number, i, pad_id=self.pad_id)["mask"] for i in (source, target))
        causal = causal_mask(self.number, q_seq=seq, kv_seq=seq)["mask"]
        target_mask = causal if self.target_mask == "causal_only" else target_mask & causal
        given = (embedded, memory, target_mask, source_mask)
        return decoder(self.number, *given, **self._make_options("decoder", self.num_decoder_layers))["output"]

    def logits(self, decoded: Objects) -> Objects:
        """MODEL-4, MODEL-7: return one number for each word at each position of the target."""
        w_vocab = self.params["w_vocab"] if "w_vocab" in self.params else self.params["table"].T
        return multiply(decoded, w_vocab, self.params.get("b_vocab"))

    def embed(self, ids: Ids) -> Objects:
        """MODEL-2, MODEL-8: return rows of the table, with the encoding or the learned vector of their positions."""
        options: dict[str, Any] = {"pad_id": self.pad_id, "pad_row": self.pad_row}
        options["embedding_scale"] = self.embedding_scale
        rows = token_embedding(self.number, ids, table=self.params["table"], **options)["output"]
        if "position_table" in self.params:
            # As if the positions were ids: a large table gives its rows no other way.
            return rows + self.params["position_table"][np.arange(ids.shape[1])]
        return positional_encoding(self.number, rows, pe_layout=self.pe_layout)["output"]

    def _make_options(self, stack: str, num_layers: int) -> dict[str, Any]:
        """Return the options of a stack: the model names its final norm encoder_norm or decoder_norm."""
        norm = {f"norm.{name}": array for name, array in select_params(self.params, f"{stack}_norm").items()}
        names = ("num_heads", "norm_placement", "layer_norm_eps", "norm_divisor", "activation", "empty_row")
        common = {name: getattr(self, name) for name in names}
        return {**common, "params": {**self.params, **norm}, "num_layers": num_layers}


def transformer(
    number: Number,
    source: Ids,
    target: Ids,
    memory: Objects | None = None,
    decoded: Objects | None = None,
    **model: Any,
) -> dict[str, Objects]:
    """MODEL-1 … MODEL-4: one table, PE once, the two stacks, a linear map to the vocabulary.

    A `memory` that is known already, or what the decoder gives, is not computed again.
    """
    whole = Model(number=number, **model)
    source_embedded = whole.embed(source)
    memory = whole.encode(source_embedded, source) if memory is None else memory
    target_embedded = whole.embed(target)
    decoded = whole.decode(target_embedded, target, memory, source) if decoded is None else decoded
    embedded = {"source_embedded": source_embedded, "target_embedded": target_embedded}
    return {"logits": whole.logits(decoded), "memory": memory, "decoded": decoded, **embedded}


def output_probabilities(
    number: Number, x: Objects, *, w_vocab: Objects, b_vocab: Objects | None = None
) -> dict[str, Objects]:
    """OUT-1, OUT-2: logits, and their softmax over the vocabulary."""
    logits = multiply(x, w_vocab, b_vocab)
    return {"probabilities": softmax(number, logits)["output"], "logits": logits}


def one_hot(number: Number, ids: Ids, *, vocab: int) -> dict[str, Objects]:
    """LOSS-1: 1 at the id, 0 elsewhere."""
    del number
    return {"output": (ids[..., None] == np.arange(vocab)).astype(np.int64)}


def shift_right(number: Number, ids: Ids, *, bos_id: int) -> dict[str, Objects]:
    """SEQ-2: bos_id in front, the last id dropped."""
    del number
    first = np.full((len(ids), 1), bos_id, dtype=np.int64)
    return {"output": np.concatenate([first, ids[:, :-1]], axis=1)}


def label_smoothing(
    number: Number, target: Objects, *, smoothing: Any, smoothing_denominator: str = "vocab"
) -> dict[str, Objects]:
    """LOSS-5, LOSS-6: part of the mass shared among the words."""
    vocab = target.shape[-1]
    one, share = scalar(number(1)), scalar(smoothing if not isinstance(smoothing, int) else number(smoothing))
    kept = target * (one - share)
    if smoothing_denominator == "vocab":
        return {"output": kept + share / scalar(number(vocab))}
    return {"output": kept + (one - target) * (share / scalar(number(vocab - 1)))}


def cross_entropy(number: Number, logits: Objects, targets: Ids, *, pad_id: int) -> dict[str, Objects]:
    """LOSS-2, LOSS-3: −log softmax(logits)[target], averaged over the targets that are not padding."""
    losses = -np.take_along_axis(log_softmax(number, logits), targets[..., None], axis=-1)[..., 0]
    real = targets != pad_id
    token_losses = np.where(real, losses, scalar(number(0)))
    loss = token_losses[real].sum() / number(int(real.sum()))
    return {"loss": scalar(loss), "token_losses": token_losses}


def log_softmax(number: Number, logits: Objects) -> Objects:
    """LOSS-2: the logits minus log Σ exp(logits), which is as large as they are and rounds at their size."""
    del number
    # SM-4: taking one exact number off a row and adding it again changes nothing, and keeps exp within range.
    shift = logits.astype(np.float64).max(-1, keepdims=True).astype(logits.dtype)
    result: Objects = logits - (np.log(np.exp(logits - shift).sum(-1, keepdims=True)) + shift)
    return result


def kl_divergence(number: Number, target: Objects, logits: Objects) -> dict[str, Objects]:
    """LOSS-4: Σ p·(log p − log q) with q = softmax(logits); a word of probability 0 adds nothing."""
    zero, one = scalar(number(0)), scalar(number(1))
    there = target.astype(np.float64) > 0
    log_p = np.log(np.where(there, target, one))
    terms = np.where(there, target * (log_p - log_softmax(number, logits)), zero)
    summed = terms.sum(-1)
    return {"output": summed if terms.ndim > 1 else scalar(summed)}
