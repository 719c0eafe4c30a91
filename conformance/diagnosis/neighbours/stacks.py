"""Wiring of stacks: the order of their layers, what each layer reads, its masks, parameters and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from itertools import product
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import (
    Given,
    change_argument,
    read_argument,
    replace_argument,
)
from goldformer.conformance.diagnosis.neighbours.array_changes import (
    drop_padding,
    keep_causal,
    keep_padding,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.embedding import positional_encoding
from goldformer.spec.formulas.heads import multi_head_attention
from goldformer.spec.formulas.layers import (
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
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.steps import Step, around, hold, instead, replacing

Layer = Callable[..., Array]


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


#: The id of a trait of right code, which shows only where something else is wrong.
NESTED: Final = "encoder.padded-rows.zero"
#: The rows of the memory that the encoder which runs leaves 0.
_left_out: Final[ContextVar[Array | None]] = ContextVar("left_out", default=None)


def make_nested() -> Neighbour:
    """Return the neighbour whose memory is 0 in rows of padding, as a stack of nested tensors leaves them.

    PyTorch nests where only the last tokens of each sample are padding, and the number of heads is even.
    """

    def run(original: Step, *args: Any, **named: Any) -> Any:
        x, mask, heads = (read_argument(encoder, name, (args, named)) for name in ("x", "mask", "num_heads"))
        is_nested = mask is not None and not heads % 2
        with hold(_left_out, _find_padding_behind(mask, x.shape[:2]) if is_nested else None):
            return original(*args, **named)

    def clear(original: Step, x: Array, stack: str, norm: Any) -> Any:
        rows = _left_out.get() if stack == "encoder" else None
        return original(x if rows is None else x * ~rows[..., None], stack, norm)

    return Neighbour(
        NESTED, "padded rows of the memory are 0, as nn.TransformerEncoder's nested tensors leave them",
        "Rows of padding may be 0; they show because of the mistake.",
        {encoder: around(run), final_norm: around(clear)},
    )  # fmt: skip


def _find_padding_behind(mask: Array, shape: tuple[int, ...]) -> Array | None:
    """Return which keys no query of a sample sees, (batch, seq); None if one stands before a key that is seen."""
    wide = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    seen = np.broadcast_to(wide.any((1, 2)), shape)
    return ~seen if (seen[:, :-1] | ~seen[:, 1:]).all() else None


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
     _run_from(_last, lambda arrays: as_array(arrays[0] + arrays[-1]))),
    ("residual-per-layer", "the input of every layer is added to its output once more",
     "Return only the output of each layer.",
     _run_around),
    ("residual-from-first", "the input of the stack is added to what every later layer reads",
     "Give each layer the output of the one before.",
     _run_from(lambda arrays: arrays[-1] if len(arrays) == 1 else as_array(arrays[-1] + arrays[0]), _last)),
    ("positions-per-layer", "the positional encoding is added to what every layer reads",
     "Add the positions once, to what the first layer reads.",
     _run_from(lambda arrays: as_array(positional_encoding(arrays[-1])), _last)),
    ("sum", "the outputs of all layers are added up", "Return only the output of the last layer.",
     _run_from(_last, lambda arrays: as_array(sum(arrays[1:])))),
    ("mean", "the outputs of all layers are averaged", "Return only the output of the last layer.",
     _run_from(_last, lambda arrays: as_array(sum(arrays[1:]) / (len(arrays) - 1)))),
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


def count_layers(params: Any, stack: str) -> int:
    """Return the number of layers of a stack by the names of its parameters."""
    return len({name.split(".")[1] for name in params if name.startswith(f"{stack}.")})


def _change_layer_params() -> Iterator[Neighbour]:
    def shift(original: Step, params: Any, stack: str, index: int) -> Any:
        return original(params, stack, (index + 1) % count_layers(params, stack))

    yield Neighbour(
        "encoder.parameters-shifted", "each layer uses the parameters of the next one",
        "Give each layer its own parameters.", {layer_params: around(shift)},
    )  # fmt: skip


#: The parts of a layer by the beginnings of their parameters, in words.
PARTS_OF_LAYER: Final = {
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
        for piece, words in PARTS_OF_LAYER.items():
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
                    theirs = original(params, of, layer % count_layers(params, stack))
                    return {name: theirs[name] if name.startswith(starts) else a for name, a in mine.items()}

                yield Neighbour(
                    f"{stack}.{'-'.join(starts)}.of-{which}",
                    f"every layer has the {words} of the {which}, in the {stack}",
                    f"Give each layer of the {stack} its own {words}.", {layer_params: around(share)},
                )  # fmt: skip


def _change_memory() -> Iterator[Neighbour]:
    """Yield decoders whose memory is changed on its way from one layer to the next, or before the first."""

    def add_positions(memory: Array, params: Any, index: int) -> Array:
        del params, index
        return as_array(positional_encoding(memory))

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


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of stacks."""
    yield from _share_parts()
    yield from _move_final_norms()
    yield from _change_memory()
    yield from _change_stacks()
    yield from _change_layer_params()
    yield from _read_input_of_stack()
    yield from _exchange_masks()
    yield from _share_projections()
    yield from _lose_masks()
