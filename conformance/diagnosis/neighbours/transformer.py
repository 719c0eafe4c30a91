"""Wiring of stacks and whole models: what each layer, each stack and each mask is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from goldformer.adapters.layouts import part
from goldformer.adapters.textbook.attention import causal_mask, softmax
from goldformer.adapters.textbook.checks import Array
from goldformer.adapters.textbook.embedding import positional_encoding, token_embedding
from goldformer.adapters.textbook.heads import multi_head_attention
from goldformer.adapters.textbook.layers import (
    decoder,
    decoder_layer,
    encoder,
    final_norm,
    layer_norm,
    layer_params,
    norm_params,
    run_decoder_layer,
    run_encoder_layer,
    run_stack,
    self_attend,
)
from goldformer.adapters.textbook.steps import Step, around, hold, instead, replacing
from goldformer.adapters.textbook.transformer import (
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
from goldformer.conformance.diagnosis.neighbours.arguments import (
    Given,
    change_argument,
    change_array,
    change_result,
    read_argument,
    replace_argument,
)
from goldformer.conformance.diagnosis.neighbours.array_changes import (
    Change,
    drop_padding,
    keep_causal,
    keep_padding,
    repeat_first_sample,
    reverse_last_axis,
    reverse_samples,
    shift_last_axis,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour

Layer = Callable[..., Array]

# The stacks


def _run_in_order(choose: Callable[[int], list[int]]) -> Step:
    """Return a stack that runs the layers of these indices."""

    def run(x: Array, layer: Layer, num_layers: int) -> dict[str, Array]:
        outputs = []
        for index in choose(num_layers):
            x = layer(x, index=index)
            outputs.append(x)
        return {"output": x, "layers": np.stack(((outputs or [x]) * num_layers)[:num_layers])}

    return run


def _run_from(read: Callable[[list[Array]], Array], give: Callable[[list[Array]], Array]) -> Step:
    """Return a stack whose layers `read` one of the arrays so far, the input first, and that gives one of them."""

    def run(x: Array, layer: Layer, num_layers: int) -> dict[str, Array]:
        arrays = [x]
        for index in range(num_layers):
            arrays.append(layer(read(arrays), index=index))
        return {"output": give(arrays), "layers": np.stack(arrays[1:])}

    return run


def _run_around(x: Array, layer: Layer, num_layers: int) -> dict[str, Array]:
    """Run a stack with a residual around every layer."""
    outputs = []
    for index in range(num_layers):
        x = x + layer(x, index=index)
        outputs.append(x)
    return {"output": x, "layers": np.stack(outputs)}


def _last(arrays: list[Array]) -> Array:
    return arrays[-1]


_STACKS: Final = (
    ("reversed", "the layers run in the reverse order", "Run the layers from the first to the last.",
     _run_in_order(lambda n: list(range(n))[::-1])),
    ("first-left-out", "the first layer of the stack is left out", "Run every layer once.",
     _run_in_order(lambda n: list(range(1, n)))),
    ("first-twice", "the first layer runs twice", "Run every layer once.", _run_in_order(lambda n: [0, *range(n)])),
    ("last-twice", "the last layer runs twice", "Run every layer once.", _run_in_order(lambda n: [*range(n), n - 1])),
    ("all-but-last", "the last layer of the stack is left out, unless it is the only one", "Run every layer once.",
     _run_in_order(lambda n: list(range(max(1, n - 1))))),
    ("first-last", "the first layer runs after all others", "Run the layers from the first to the last.",
     _run_in_order(lambda n: [*range(1, n), 0])),
    ("each-twice", "every layer runs twice", "Run every layer once.",
     _run_in_order(lambda n: [index // 2 for index in range(2 * n)])),
    ("stack-twice", "all layers run a second time, one after the other", "Run every layer once.",
     _run_in_order(lambda n: [*range(n), *range(n)])),
    ("only-first", "only the first layer runs", "Run every layer once.", _run_in_order(lambda _: [0])),
    ("shared-in-pairs", "every second layer uses the weights of the one before it",
     "Give each layer its own parameters.", _run_in_order(lambda n: [index - index % 2 for index in range(n)])),
    ("shared-by-two", "every two layers in a row use the weights of one, so that those of the later half are unused",
     "Give each layer its own parameters.", _run_in_order(lambda n: [index // 2 for index in range(n)])),
    ("last-everywhere", "every layer uses the weights of the last", "Give each layer its own parameters.",
     _run_in_order(lambda n: [n - 1] * n)),
    ("from-input", "every layer reads the input of the stack", "Give each layer the output of the one before.",
     _run_from(lambda arrays: arrays[0], _last)),
    ("residual", "the input of the stack is added to its output", "Return only the output of the last layer.",
     _run_from(_last, lambda arrays: np.asarray(arrays[0] + arrays[-1]))),
    ("residual-per-layer", "the input of every layer is added to its output once more",
     "Return only the output of each layer.",
     _run_around),
    ("residual-from-first", "the input of the stack is added to what every later layer reads",
     "Give each layer the output of the one before.",
     _run_from(lambda arrays: arrays[-1] if len(arrays) == 1 else np.asarray(arrays[-1] + arrays[0]), _last)),
    ("positions-per-layer", "the positional encoding is added to what every layer reads",
     "Add the positions once, to what the first layer reads.",
     _run_from(lambda arrays: np.asarray(positional_encoding(arrays[-1])), _last)),
    ("sum", "the outputs of all layers are added up", "Return only the output of the last layer.",
     _run_from(_last, lambda arrays: np.asarray(sum(arrays[1:])))),
    ("mean", "the outputs of all layers are averaged", "Return only the output of the last layer.",
     _run_from(_last, lambda arrays: np.asarray(sum(arrays[1:]) / (len(arrays) - 1)))),
    ("first-returned", "the stack returns the output of its first layer", "Return the output of the last layer.",
     _run_from(_last, lambda arrays: arrays[1])),
    ("before-last-returned", "the stack returns what its last layer reads", "Return the output of the last layer.",
     _run_from(_last, lambda arrays: arrays[-2])),
)  # fmt: skip


def _change_stacks() -> Iterator[Neighbour]:
    for word, title, hint, run in _STACKS:

        def replace(original: Step, *args: Any, run: Step = run, **named: Any) -> Any:
            with replacing({run_stack: instead(run)}):
                return original(*args, **named)

        # Both stacks run through one step: the change holds while this stack runs.
        for stack in (encoder, decoder):
            name = stack.__name__
            yield Neighbour(f"{name}.{word}", f"{title}, in the {name}", hint, {stack: around(replace)})
        yield Neighbour(
            f"transformer.{word}", f"{title}, in the encoder and in the decoder", hint, {run_stack: instead(run)}
        )


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
    return np.asarray(mask & causal_mask(q_seq=seq, kv_seq=seq))


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
    readings: tuple[tuple[str, str, Callable[[Array, int], Array]], ...] = (
        ("ids-above", "padding is taken for every id up to pad_id", lambda ids, pad: ids > pad),
        ("ids-below", "padding is taken for every id from pad_id on", lambda ids, pad: ids < pad),
        ("zero", "padding is taken for the id 0 in the model, whatever pad_id is", lambda ids, _: ids != 0),
        ("inverted", "the model hides the words and shows the padding", lambda ids, pad: ids == pad),
    )
    for word, title, keep in readings:

        def see(ids: Array, pad_id: int, keep: Callable[[Array, int], Array] = keep) -> Array:
            return np.asarray(keep(ids, pad_id))[:, None, None, :]

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
        return np.asarray(original(source, pad_id, params))

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


def _count_layers(params: Any, stack: str) -> int:
    return len({name.split(".")[1] for name in params if name.startswith(f"{stack}.")})


def _change_layer_params() -> Iterator[Neighbour]:
    def shift(original: Step, params: Any, stack: str, index: int) -> Any:
        return original(params, stack, (index + 1) % _count_layers(params, stack))

    yield Neighbour(
        "encoder.parameters-shifted", "each layer uses the parameters of the next one",
        "Give each layer its own parameters.", {layer_params: around(shift)},
    )  # fmt: skip


#: The parts of a layer by the beginnings of their parameters, in words.
_PARTS: Final = {
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward network",
    " ".join(f"self_attention.{name}" for name in ("w_k", "b_k", "w_v", "b_v")): "keys and values of self-attention",
    " ".join(f"cross_attention.{name}" for name in ("w_k", "b_k", "w_v", "b_v")): "keys and values of cross-attention",
    "norm_1": "first norm",
    "norm_2": "second norm",
    "norm_3": "third norm",
}


def _share_parts() -> Iterator[Neighbour]:
    """Yield stacks in which a part of every layer has the parameters of the first or the last layer."""
    for stack, absent in (("encoder", ("cross_attention", "norm_3")), ("decoder", ("nothing",))):
        for piece, words in _PARTS.items():
            if piece.startswith(absent):
                continue
            starts = tuple(piece.split())
            for which, layer in (("first", 0), ("last", -1)):

                def share(
                    original: Step, params: Any, of: str, index: int,
                    stack: str = stack, starts: tuple[str, ...] = starts, layer: int = layer,
                ) -> Any:  # fmt: skip
                    mine = original(params, of, index)
                    if of != stack:
                        return mine
                    theirs = original(params, of, layer % _count_layers(params, stack))
                    return {name: theirs[name] if name.startswith(starts) else a for name, a in mine.items()}

                yield Neighbour(
                    f"{stack}.{'-'.join(starts)}.of-{which}",
                    f"every layer has the {words} of the {which}, in the {stack}",
                    f"Give each layer of the {stack} its own {words}.", {layer_params: around(share)},
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


def _change_memory() -> Iterator[Neighbour]:
    """Yield decoders whose memory is changed on its way from one layer to the next, or before the first."""

    def add_positions(memory: Array, params: Any, index: int) -> Array:
        del params, index
        return np.asarray(positional_encoding(memory))

    changes: list[tuple[str, str, Callable[[Array, Any, int], Array]]] = [
        ("positions-added", "gets positions added", add_positions)
    ]
    for number, which in ((1, "first"), (2, "second"), (3, "third")):

        def normalise(memory: Array, params: Any, index: int, number: int = number) -> Array:
            return layer_norm(memory, params=norm_params(layer_params(params, "decoder", index), number))

        changes.append((f"normed-by-norm_{number}", f"is normalised by the layer's {which} norm", normalise))

    def normalise_at_end(memory: Array, params: Any, index: int) -> Array:
        del index
        return final_norm(memory, "decoder", part(params, "norm"))

    changes.append(("normed-by-final-norm", "is normalised by the decoder's final norm", normalise_at_end))

    for word, says, change in changes:

        def change_each(
            original: Step, x: Array, *, index: int, memory: Array, change: Any = change, **named: Any
        ) -> Any:
            for before in range(index):
                memory = change(memory, named["params"], before)
            return original(x, index=index, memory=memory, **named)

        def change_once(
            original: Step, x: Array, *, index: int, memory: Array, change: Any = change, **named: Any
        ) -> Any:
            return original(x, index=index, memory=change(memory, named["params"], 0), **named)

        hint = "Give every layer of the decoder the same memory, as the encoder returns it."
        yield Neighbour(
            f"decoder.memory.{word}.after-each",
            f"the memory {says} after every layer of the decoder, for those that follow", hint,
            {run_decoder_layer: around(change_each)},
        )  # fmt: skip
        yield Neighbour(
            f"decoder.memory.{word}.once",
            f"the memory {says.replace('the layer', 'the first layer')} before the first layer of the decoder", hint,
            {run_decoder_layer: around(change_once)},
        )  # fmt: skip


def _read_input_of_stack() -> Iterator[Neighbour]:
    """Yield stacks whose self-attentions make queries, keys or values of what the first layer reads."""
    groups = (("query", "queries"), ("key", "keys"), ("value", "values"), ("key value", "keys and values"))
    for (stack, run_layer), (names, words) in product(
        ((encoder, run_encoder_layer), (decoder, run_decoder_layer)), groups
    ):

        def note(original: Step, x: Array, *args: Any, **named: Any) -> Any:
            with hold(_stack_input, x):
                return original(x, *args, **named)

        def attend(original: Step, x: Array, *args: Any, names: str = names, **named: Any) -> Any:
            first = _stack_input.get()

            def read(own: Array, _: Given) -> Array:
                return first if own is x else own

            changed = [{multi_head_attention: change_argument(multi_head_attention, n, read)} for n in names.split()]
            with replacing(*changed):
                return original(x, *args, **named)

        def run(original: Step, *args: Any, attend: Step = attend, **named: Any) -> Any:
            with replacing({self_attend: around(attend)}):
                return original(*args, **named)

        name = stack.__name__
        yield Neighbour(
            f"{name}.self_attention.{names.replace(' ', '-and-')}.from-input-of-stack",
            f"every layer's self-attention makes its {words} from the input of the {name}",
            "Make queries, keys and values of what the layer itself reads.",
            {stack: around(note), run_layer: around(run)},
        )  # fmt: skip


#: What the first layer of the stack that runs reads.
_stack_input: Final[ContextVar[Array]] = ContextVar("stack_input")


def _exchange_masks() -> Iterator[Neighbour]:
    """Yield decoders whose attentions have one another's masks, where these fit."""

    def exchange(original: Step, *args: Any, self_mask: Any, memory_mask: Any, **named: Any) -> Any:
        return original(*args, self_mask=memory_mask, memory_mask=self_mask, **named)

    yield Neighbour(
        "decoder.masks-exchanged", "the self-attentions have the mask of the memory, and the "
        "cross-attentions that of the target", "Give each attention the mask of its own keys.",
        {run_decoder_layer: around(exchange)},
    )  # fmt: skip

    def exchange_in_layer(original: Step, *args: Any, **named: Any) -> Any:
        given: Given = (args, named)
        own, other = (read_argument(decoder_layer, name, given) for name in ("self_mask", "memory_mask"))
        given = replace_argument(decoder_layer, "self_mask", other, given)
        args, named_ = replace_argument(decoder_layer, "memory_mask", own, given)
        return original(*args, **named_)

    yield Neighbour(
        "decoder_layer.masks-exchanged", "the self-attention has the mask of the memory, and the "
        "cross-attention that of the target", "Give each attention the mask of its own keys.",
        {decoder_layer: around(exchange_in_layer)},
    )  # fmt: skip


def _share_projections() -> Iterator[Neighbour]:
    """Yield decoder layers in which one attention projects with matrices of the other."""
    roles = {"q": "queries", "k": "keys", "v": "values", "kv": "keys and values", "qkv": "queries, keys and values"}
    roles["o"] = "result"
    for (own, other), (letters, words) in product(
        (("cross_attention", "self_attention"), ("self_attention", "cross_attention")), roles.items()
    ):

        def share(
            original: Step, *args: Any, params: Any, own: str = own, other: str = other, letters: str = letters,
            **named: Any,
        ) -> Any:  # fmt: skip
            names = [f"{kind}_{letter}" for kind in "wb" for letter in letters]
            theirs = {f"{own}.{name}": params.get(f"{other}.{name}") for name in names}
            fitting = {n: a for n, a in theirs.items() if a is not None and n in params and a.shape == params[n].shape}
            return original(*args, params={**params, **fitting}, **named)

        attention, of_other = (name.replace("_", "-") for name in (own, other))
        yield Neighbour(
            f"decoder_layer.{own}.{letters}-with-parameters-of-{other}",
            f"the {words} of the {attention} are projected with the parameters of the {of_other}"
            if letters != "o" else f"the result of the {attention} is projected with the parameters of the {of_other}",
            "Give each attention parameters of its own.", {decoder_layer: around(share)},
        )  # fmt: skip


def _lose_masks() -> Iterator[Neighbour]:
    """Yield stacks that hand a mask to some of their layers only."""
    masks = (
        (encoder, run_encoder_layer, "mask", "mask"),
        (decoder, run_decoder_layer, "self_mask", "mask of the self-attention"),
        (decoder, run_decoder_layer, "memory_mask", "mask of the memory"),
    )
    only_first, not_first = (lambda index: index == 0), (lambda index: index > 0)
    ways: tuple[tuple[str, str, Callable[[int], bool], Callable[[Array], Array | None]], ...] = (
        ("only-first", "only the first layer gets the {}", only_first, lambda _: None),
        ("not-first", "every layer but the first gets the {}", not_first, lambda _: None),
        (
            "only-causal-not-first",
            "every layer but the first hides only later keys, whatever its {} hides",
            only_first,
            keep_causal,
        ),
        ("only-causal-first", "the first layer hides only later keys, whatever its {} hides", not_first, keep_causal),
        ("padding-only-first", "only the first layer hides the padding in its {}", only_first, drop_padding),
        ("causal-only-first", "only the first layer hides the later keys in its {}", only_first, keep_padding),
        ("padding-not-first", "only the first layer does not hide the padding in its {}", not_first, drop_padding),
        ("causal-not-first", "only the first layer does not hide the later keys in its {}", not_first, keep_padding),
    )
    for (stack, run_layer, argument, words), (word, says, has, change) in product(masks, ways):
        if argument == "memory_mask" and change in (keep_padding, keep_causal):
            continue  # it hides no later keys

        def run(
            original: Step, *args: Any, index: int, argument: str = argument, has: Any = has, change: Any = change,
            **named: Any,
        ) -> Any:  # fmt: skip
            mask = named[argument]
            given = mask if mask is None or has(index) else change(mask)
            return original(*args, index=index, **{**named, argument: given})

        name = stack.__name__
        yield Neighbour(
            f"{name}.{argument}.{word}", f"{says.format(words)}, in the {name}",
            f"Hand the {words} to every layer.", {run_layer: around(run)},
        )  # fmt: skip


def _add_learned_positions_again() -> Iterator[Neighbour]:
    """Yield models that add learned positions to what every layer of a stack reads."""

    def run_model(original: Step, *args: Any, params: Any, **named: Any) -> Any:
        with hold(_learned, params if "position_table" in params else {}):
            return original(*args, params=params, **named)

    def run_layer(original: Step, x: Array, *, index: int, **named: Any) -> Any:
        learned = _learned.get()
        again = add_learned_positions(x, learned) if index and learned else x
        return original(again, index=index, **named)

    for stack, layer in ((encoder, run_encoder_layer), (decoder, run_decoder_layer)):
        yield Neighbour(
            f"transformer.positions-in-every-layer.{stack.__name__}",
            f"the learned positions are added to what every layer of the {stack.__name__} reads",
            "Add the positions once, to what the first layer reads.",
            {transformer: around(run_model), layer: around(run_layer)},
        )  # fmt: skip


#: The parameters of the model that runs, if its positions are learned.
_learned: Final[ContextVar[Any]] = ContextVar("learned")


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
                mine, count = original(params, of, index), _count_layers(params, other)
                if of != name or not count:
                    return mine
                theirs = original(params, other, min(index, count - 1))
                return {n: theirs.get(n, a) if n.startswith(f"{piece}.") else a for n, a in mine.items()}

            yield Neighbour(
                f"transformer.{name}.{piece}-of-{other}",
                f"the layers of the {name} have the {_PARTS[piece]} of the {other}'s layers",
                f"Give the layers of the {name} a {_PARTS[piece]} of their own.", {layer_params: around(share)},
            )  # fmt: skip


def _normalise_first(original: Step, x: Array, *args: Any, params: Any, **named: Any) -> Any:
    """Run a stack on its normalised input, and leave its output as it is."""
    if not (norm := part(params, "norm")):
        return original(x, *args, params=params, **named)
    with replacing({final_norm: instead(lambda x, *_: x)}):
        return original(layer_norm(x, params=norm), *args, params=params, **named)


def _normalise_each(original: Step, *args: Any, params: Any, **named: Any) -> Any:
    """Run a stack with its final norm after every layer."""
    norm = part(params, "norm")

    def run(below: Step, x: Array, layer: Layer, num_layers: int) -> Any:
        # The last layer's output is normalised where it always is.
        def then_normalise(x: Array, *, index: int) -> Array:
            y = layer(x, index=index)
            return layer_norm(y, params=norm) if norm and index < num_layers - 1 else y

        return below(x, then_normalise, num_layers)

    with replacing({run_stack: around(run)}):
        return original(*args, params=params, **named)


def _normalise_twice(original: Step, *args: Any, **named: Any) -> Any:
    """Run a stack with its final norm applied to its own result once more."""

    def run(norm_once: Step, x: Array, stack: str, norm: Any) -> Any:
        return norm_once(norm_once(x, stack, norm), stack, norm)

    with replacing({final_norm: around(run)}):
        return original(*args, **named)


def _move_final_norms() -> Iterator[Neighbour]:
    """Yield final norms in another place, or at two, in one stack and in both."""
    moves: tuple[tuple[str, str, Step], ...] = (
        ("first", "stands before the first layer instead of after the last", _normalise_first),
        ("each", "stands after every layer instead of after the last only", _normalise_each),
        ("twice", "is applied to the output twice", _normalise_twice),
    )
    for word, says, move in moves:
        for stack in (encoder, decoder):
            name = stack.__name__
            yield Neighbour(
                f"{name}.final-norm-{word}", f"the final norm {says}, in the {name}",
                "Normalise the output of the last layer, once.", {stack: around(move)},
            )  # fmt: skip
        yield Neighbour(
            f"transformer.final-norms-{word}", f"the final norm {says}, in the encoder and the decoder",
            "Normalise the output of the last layer, once.", {encoder: around(move), decoder: around(move)},
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
    return np.asarray(scaled + (places(root) - 1) * positions).astype(table.dtype)


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
            return np.asarray(logits * math.sqrt(x.shape[-1]) ** power).astype(logits.dtype)

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


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of stacks and models."""
    yield from _share_parts()
    yield from _change_final_norms()
    yield from _move_final_norms()
    yield from _change_memory()
    yield from _change_stacks()
    yield from _change_masks()
    yield from _change_model()
    yield from _change_layer_params()
    yield from _change_embedding()
    yield from _embed_with_output_layer()
    yield from _read_input_of_stack()
    yield from _exchange_masks()
    yield from _share_projections()
    yield from _lose_masks()
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
