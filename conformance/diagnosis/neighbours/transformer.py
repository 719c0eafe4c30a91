"""Wiring of whole models: their masks, embeddings, positions and output layer, and what one stack has of the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import (
    Given,
    change_argument,
    change_array,
    change_result,
)
from goldformer.conformance.diagnosis.neighbours.array_changes import (
    Change,
    repeat_first_sample,
    reverse_last_axis,
    reverse_samples,
    shift_last_axis,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.conformance.diagnosis.neighbours.stacks import PARTS_OF_LAYER, count_layers
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import causal_mask, softmax
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.embedding import token_embedding
from goldformer.spec.formulas.layers import (
    decoder,
    encoder,
    layer_norm,
    layer_params,
    run_decoder_layer,
    run_encoder_layer,
)
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import Step, around, hold, instead, replacing
from goldformer.spec.formulas.transformer import (
    add_learned_positions,
    embed,
    embed_source,
    embed_target,
    log_softmax,
    memory_mask,
    output_logits,
    select_memory,
    source_mask,
    target_mask,
    transformer,
    word_mask,
)

# The stacks


# The masks of a model

_MASKS: Final = {
    source_mask: "encoder's mask",
    target_mask: "decoder's own mask",
    memory_mask: "cross-attention's mask",
}
#: The masks that are made of the source.
_OF_SOURCE: Final = ((source_mask, memory_mask), "masks of the source")


def _add_causal(mask: Array) -> Array:
    """Join a mask of padding with a causal one."""
    seq = max(mask.shape[-2:])
    return as_array(mask & causal_mask(q_seq=seq, kv_seq=seq))


def _change_masks() -> Iterator[Neighbour]:
    hints = {
        source_mask: "The encoder's mask hides the padding of the source, and nothing else.",
        target_mask: "The decoder's own mask hides padding of the target and later words.",
        memory_mask: "The mask of the cross-attention hides the padding of the source, and nothing else.",
    }
    for step, words in _MASKS.items():
        changes: list[tuple[str, str, Change]] = [
            ("absent", f"the {words} is missing, so nothing is hidden", np.ones_like),
            ("inverted", f"the {words} is the wrong way round", np.logical_not),
            ("reversed", f"the {words} is reversed along the keys", reverse_last_axis),
            ("first-sample", f"the {words} is the first sample's for all", repeat_first_sample),
            ("samples-reversed", f"the {words} has the samples in the reverse order", reverse_samples),
            ("shifted", f"the {words} is shifted by one key", shift_last_axis),
        ]
        if step is source_mask:
            changes.append(("causal", "the encoder hides later words too", _add_causal))
            says = "the encoder's mask hides padding as queries and not as keys"
            changes.append(("as-queries", says, lambda m: m.swapaxes(-1, -2)))
        if step is target_mask:
            changes.append(("transposed", "the decoder's own mask is transposed", lambda m: m.swapaxes(-1, -2)))
            says = "the padding of the target is hidden as queries and not as keys"
            changes.append(("padding-as-queries", says, lambda m: _add_causal(m[..., -1:, :].swapaxes(-1, -2))))
        for word, title, change in changes:
            steps = {step: change_array(change)}
            yield Neighbour(f"transformer.{step.__name__}.{word}", title, hints[step], steps)
    of_source, words = _OF_SOURCE
    yield Neighbour(
        "transformer.source_mask-and-memory_mask.first-sample", f"the {words} are the first sample's for all",
        "Make the masks of the padding of each source.",
        {step: change_array(repeat_first_sample) for step in of_source},
    )  # fmt: skip
    readings: tuple[tuple[str, str, Callable[[Array, int], Array]], ...] = (
        ("ids-above", "padding is taken for every id up to pad_id", lambda ids, pad: ids > pad),
        ("ids-below", "padding is taken for every id from pad_id on", lambda ids, pad: ids < pad),
        ("zero", "padding is taken for the id 0 in the model, whatever pad_id is", lambda ids, _: ids != 0),
        ("inverted", "the model hides the words and shows the padding", lambda ids, pad: ids == pad),
    )
    for word, title, keep in readings:

        def see(ids: Array, pad_id: int, keep: Callable[[Array, int], Array] = keep) -> Array:
            return as_array(keep(ids, pad_id))[:, None, None, :]

        hint = "Compare the ids with pad_id for equality."
        yield Neighbour(f"transformer.padding.{word}", title, hint, {word_mask: instead(see)})
        for group, words in (*(((step,), what) for step, what in _MASKS.items()), _OF_SOURCE):

            def mask_by(original: Step, ids: Array, pad_id: int, see: Any = see) -> Any:
                with replacing({word_mask: instead(see)}):
                    return original(ids, pad_id)

            name = "-and-".join(step.__name__ for step in group)
            yield Neighbour(
                f"transformer.{name}.padding.{word}", f"{title}, only in the {words}", hint,
                {step: around(mask_by) for step in group},
            )  # fmt: skip


# What a model reads


def _change_model() -> Iterator[Neighbour]:
    def swap_ids(original: Step, source: Array, target: Array, **named: Any) -> Any:
        return original(target, source, **named)

    def embed_reversed(ids: Array, _: Any) -> Array:
        return ids[:, ::-1]

    yield Neighbour(
        "transformer.source-and-target-swapped", "source and target are swapped",
        "Give the source to the encoder and the target to the decoder.", {transformer: around(swap_ids)},
    )  # fmt: skip
    for step, words in ((embed_source, "source"), (embed_target, "target")):
        yield Neighbour(
            f"transformer.{words}.reversed", f"the words of the {words} are reversed",
            f"Embed the words of the {words} in their own order.", {step: change_argument(step, words, embed_reversed)},
        )  # fmt: skip
        yield Neighbour(
            f"transformer.{words}.positions-twice", f"the embedding of the {words} is doubled",
            f"Add words and positions of the {words} once.", {step: change_result(lambda x: x + x)},
        )  # fmt: skip

    memories: tuple[tuple[str, str, Callable[[dict[str, Array]], Array]], ...] = (
        ("first-layer", "the memory is the output of the first encoder layer", lambda e: e["layers"][0]),
        ("before-last", "the memory is what the last encoder layer reads", lambda e: [e["embedded"], *e["layers"]][-2]),
        ("mean", "the memory is the mean over the encoder's layers", lambda e: e["layers"].mean(axis=0)),
        ("last-token", "the memory is the last token of the source for every position",
         lambda e: np.broadcast_to(e["output"][:, -1:], e["output"].shape)),
        ("mean-token", "the memory is the mean over the source for every position",
         lambda e: np.broadcast_to(e["output"].mean(axis=1, keepdims=True), e["output"].shape)),
        ("with-embedding", "the embedded source is added to the memory", lambda e: e["output"] + e["embedded"]),
    )  # fmt: skip
    for word, title, choose in memories:
        yield Neighbour(
            f"transformer.memory.{word}", title, "The memory is the output of the last encoder layer.",
            {select_memory: instead(choose)},
        )  # fmt: skip

    def note_words(original: Step, source: Array, pad_id: int, params: Any) -> Array:
        _words.set(token_embedding(source, params={"table": params["table"]}, pad_id=pad_id))
        return as_array(original(source, pad_id, params))

    yield Neighbour(
        "transformer.memory.words", "the memory is the embedded source without positions",
        "The memory is the output of the last encoder layer.",
        {embed_source: around(note_words), select_memory: instead(lambda _: _words.get())},
    )  # fmt: skip


#: The embedded words of the source that is read.
_words: Final[ContextVar[Array]] = ContextVar("words")


def _embed_with_output_layer() -> Iterator[Neighbour]:
    """Yield models whose words are looked up in the transposed matrix of the output layer."""

    def look_up(original: Step, ids: Array, pad_id: int, params: Any) -> Any:
        return original(ids, pad_id, {**params, "table": params["w_vocab"].T} if "w_vocab" in params else params)

    for ending, side, at in _SIDES:
        yield Neighbour(
            f"transformer.embedding-of-output-layer{ending}",
            f"the words{side} are embedded with the matrix of the output layer, transposed",
            "Look up the words of source and target in the table.", {at: around(look_up)},
        )  # fmt: skip


def _change_final_norms() -> Iterator[Neighbour]:
    def norms(params: Any, stack: str) -> dict[str, Any]:
        return {n.partition(".")[2]: a for n, a in params.items() if n.startswith(f"{stack}_norm.")}

    for stack, other in (("encoder", "decoder"), ("decoder", "encoder")):

        def replace(
            original: Step, *args: Any, params: Any, stack: str = stack, other: str = other, **named: Any
        ) -> Any:
            theirs = {f"{stack}_norm.{name}": array for name, array in norms(params, other).items()}
            return original(*args, params={**params, **theirs}, **named)

        yield Neighbour(
            f"transformer.final-norm-of-{other}-in-{stack}",
            f"the final norm of the {stack} has gamma and beta of the {other}'s",
            f"Give the {stack} a final norm of its own.", {transformer: around(replace)},
        )  # fmt: skip


def _add_learned_positions_again() -> Iterator[Neighbour]:
    """Yield models that add learned positions to what every layer of a stack reads."""

    def run_model(original: Step, *args: Any, params: Any, **named: Any) -> Any:
        with hold(_learned, params if "position_table" in params else {}):
            return original(*args, params=params, **named)

    def run_layer(original: Step, x: Array, *, index: int, first: int, **named: Any) -> Any:
        learned = _learned.get()
        again = add_learned_positions(x, learned) if index >= first and learned else x
        return original(again, index=index, **named)

    ways = (("", "", 1), (".from-first", ", to what the first one reads a second time", 0))
    for (stack, layer), (ending, more, first) in product(
        ((encoder, run_encoder_layer), (decoder, run_decoder_layer)), ways
    ):
        yield Neighbour(
            f"transformer.positions-in-every-layer.{stack.__name__}{ending}",
            f"the learned positions are added to what every layer of the {stack.__name__} reads{more}",
            "Add the positions once, to what the first layer reads.",
            {transformer: around(run_model), layer: around(partial(run_layer, first=first))},
        )  # fmt: skip


#: The parameters of the model that runs, if its positions are learned.
_learned: Final[ContextVar[Mapping[str, Array]]] = ContextVar("learned", default=MappingProxyType({}))


#: The source of the model that runs, and the number of layers of each of its stacks.
_source: Final[ContextVar[Array]] = ContextVar("source")
_layers: Final[ContextVar[dict[str, int]]] = ContextVar("layers")


def _note_call(original: Step, source: Array, target: Array, **named: Any) -> Any:
    counts = {"encoder": named["num_encoder_layers"], "decoder": named["num_decoder_layers"]}
    with hold(_source, source), hold(_layers, counts):
        return original(source, target, **named)


def _confuse_stacks() -> Iterator[Neighbour]:
    """Yield models in which one stack has what is the other's: a number of layers, parameters, positions."""

    def go_on(original: Step, target: Array, pad_id: int, params: Any) -> Any:
        source = _source.get()
        last = len(params["position_table"]) if "position_table" in params else None
        if last is not None and source.shape[1] + target.shape[1] > last:
            return original(target, pad_id, params)
        return original(np.concatenate([source, target], axis=1), pad_id, params)[:, source.shape[1] :]

    yield Neighbour(
        "transformer.target-positions-after-source", "the positions of the target go on after those of the source",
        "Begin the positions of the target with 0.", {transformer: around(_note_call), embed_target: around(go_on)},
    )  # fmt: skip
    stacks: dict[str, Step] = {"encoder": encoder, "decoder": decoder}
    for (name, stack), other in zip(stacks.items(), reversed(stacks), strict=True):

        def run_as_many(original: Step, *args: Any, num_layers: int, other: str = other, **named: Any) -> Any:
            return original(*args, num_layers=min(num_layers, _layers.get()[other]), **named)

        yield Neighbour(
            f"transformer.{name}.as-many-layers-as-{other}",
            f"the {name} runs as many layers as the {other} has, if it has so many",
            f"Run all layers of the {name}.", {transformer: around(_note_call), stack: around(run_as_many)},
        )  # fmt: skip
        for piece in ("self_attention", "feed_forward"):

            def share(
                original: Step, params: Any, of: str, index: int, name: str = name, other: str = other,
                piece: str = piece,
            ) -> Any:  # fmt: skip
                mine, count = original(params, of, index), count_layers(params, other)
                if of != name or not count:
                    return mine
                theirs = original(params, other, min(index, count - 1))
                return {n: theirs.get(n, a) if n.startswith(f"{piece}.") else a for n, a in mine.items()}

            yield Neighbour(
                f"transformer.{name}.{piece}-of-{other}",
                f"the layers of the {name} have the {PARTS_OF_LAYER[piece]} of the {other}'s layers",
                f"Give the layers of the {name} a {PARTS_OF_LAYER[piece]} of their own.", {layer_params: around(share)},
            )  # fmt: skip


#: Factors of the embedding and of the positions where they are added: id, words, hint and the factor, of √d_model.
_EMBEDDING_FACTORS: Final[tuple[tuple[str, str, str, Callable[[float], float]], ...]] = (
    ("", "", "", lambda _: 1.0),
    ("embedding-scaled", "the embedding{} is multiplied by √d_model beyond what is declared",
     "Multiply the embedding by √d_model only as declared: once is embedding_scale: sqrt_d_model.", lambda root: root),
    ("embedding-divided", "the embedding{} is divided by √d_model", "Do not divide the embedding.",
     lambda root: 1 / root),
)  # fmt: skip
_POSITION_FACTORS: Final[tuple[tuple[str, str, str, Callable[[float], float]], ...]] = (
    ("", "", "", lambda _: 1.0),
    ("positions-scaled", "the positions{} are multiplied by √d_model, as only the embedding may be",
     "Add the positions as they are.", lambda root: root),
    ("positions-divided", "the positions{} are divided by √d_model", "Add the positions as they are.",
     lambda root: 1 / root),
    ("positions-missing", "no positions are added{}", "Add the positions; if they are learned, declare positions: "
     "learned.", lambda _: 0.0),
)  # fmt: skip


def _add_with_factors(
    original: Step,
    ids: Array,
    pad_id: int,
    params: Any,
    *,
    rows: Callable[[float], float],
    places: Callable[[float], float],
) -> Array:
    """Embed ids with factors of the embedding and of its positions, sinusoidal or learned."""
    table, root = params["table"], math.sqrt(params["table"].shape[-1])
    positions = original(ids, pad_id, {**params, "table": np.zeros_like(table)})
    scaled = original(ids, pad_id, {**params, "table": (table * rows(root)).astype(table.dtype)})
    return as_array(scaled + (places(root) - 1) * positions).astype(table.dtype)


def _normalise_embedded(original: Step, ids: Array, pad_id: int, params: Any) -> Array:
    """Embed ids and normalise the sum of embedding and positions, with a gamma of 1 and a beta of 0."""
    x = original(ids, pad_id, params)
    one = np.ones(x.shape[-1], x.dtype)
    return layer_norm(x, params={"gamma": one, "beta": 0 * one})


#: The step that embeds, on both sides or on one, with the end of an id and words.
_SIDES: Final = (
    ("", "", embed), ("-source", " of the source", embed_source), ("-target", " of the target", embed_target),
)  # fmt: skip


def _change_embedding() -> Iterator[Neighbour]:
    """Yield changes of what enters the first layer, on one side or both."""
    for ending, side, at in _SIDES:
        for (row, of_rows, fix_rows, rows), (place, of_places, fix_places, places) in product(
            _EMBEDDING_FACTORS, _POSITION_FACTORS
        ):
            # A factor of only the embedding, on both sides, is a change of token_embedding.
            if (row or place) and (place or ending):
                title = " and ".join(words.format(side) for words in (of_rows, of_places) if words)
                yield Neighbour(
                    f"transformer.{'-'.join(filter(None, (row, place)))}{ending}", title,
                    " ".join(filter(None, (fix_rows, fix_places))),
                    {at: around(partial(_add_with_factors, rows=rows, places=places))},
                )  # fmt: skip
        yield Neighbour(
            f"transformer.embedding-normed{ending}",
            f"the sum of embedding and positions{side} is normalised before the first layer, as in BERT",
            "If it is deliberate, leave it and read all else as right; or give the sum to the first layer.",
            {at: around(_normalise_embedded)},
        )  # fmt: skip


def _scale_logits() -> Iterator[Neighbour]:
    """Yield models that bring the factor √d_model to the output layer, as where the table is tied."""
    hint = "Map the output of the decoder to the vocabulary without another factor."
    for word, says, power in (("divided", "divided by √d_model", -1), ("multiplied", "multiplied by √d_model", 1)):

        def scale_input(x: Array, _: Given, power: int = power) -> Array:
            return (x * math.sqrt(x.shape[-1]) ** power).astype(x.dtype)

        def scale_result(original: Step, x: Array, params: Any, power: int = power) -> Array:
            logits = original(x, params)
            return as_array(logits * math.sqrt(x.shape[-1]) ** power).astype(logits.dtype)

        yield Neighbour(
            f"transformer.decoded.{word}", f"the decoder's output is {says} before the output layer",
            hint, {output_logits: change_argument(output_logits, "x", scale_input)},
        )  # fmt: skip
        yield Neighbour(
            f"transformer.logits.{word}", f"the logits are {says}", hint, {output_logits: around(scale_result)}
        )


def _return_probabilities() -> Iterator[Neighbour]:
    """Yield models that return what a loss or a search makes of logits."""
    ways: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
        ("log-softmax", "the model returns log-probabilities instead of logits", log_softmax),
        ("softmax", "the model returns probabilities instead of logits", softmax),
    )
    for word, title, change in ways:

        def run(original: Step, x: Array, params: Any, change: Callable[[Array], Array] = change) -> Array:
            return change(original(x, params))

        yield Neighbour(
            f"transformer.logits.{word}", title,
            "Return the logits; the loss takes their log-softmax. If it is deliberate, undo it in the adapter.",
            {output_logits: around(run)},
        )  # fmt: skip


def _activate_stacks() -> Iterator[Neighbour]:
    """Yield models one stack of which has another activation than the other: no option that a model can declare."""
    words = {"gelu": "GELU", "gelu_tanh": "GELU in its tanh form", "silu": "SiLU"}

    def run(original: Step, *args: Any, option: str, **named: Any) -> Any:
        with replacing(OPTIONS["activation", option]):
            return original(*args, **named)

    for (stack, step), option in product((("encoder", run_encoder_layer), ("decoder", run_decoder_layer)), words):
        yield Neighbour(
            f"transformer.{stack}-activation.{option}", f"only the layers of the {stack} have {words[option]}",
            "Use one activation in both stacks, and declare it if it is no ReLU.",
            {step: around(partial(run, option=option))},
        )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of models."""
    yield from _activate_stacks()
    yield from _change_final_norms()
    yield from _change_masks()
    yield from _change_model()
    yield from _change_embedding()
    yield from _embed_with_output_layer()
    yield from _confuse_stacks()
    yield from _add_learned_positions_again()
    yield Neighbour(
        "transformer.logits-of-embedding", "the decoder's output is doubled before the output layer",
        "Project the output of the decoder.", {output_logits: change_argument(output_logits, "x", lambda x, _: x + x)},
    )  # fmt: skip

    yield from _scale_logits()
    yield from _return_probabilities()

    def reverse(params: Any, _: Given) -> Any:
        return {**params, "position_table": params["position_table"][::-1]}

    yield Neighbour(
        "transformer.positions-reversed", "the learned positions are reversed",
        "Add row i of the position table to token i.",
        {add_learned_positions: change_argument(add_learned_positions, "params", reverse)},
    )  # fmt: skip
