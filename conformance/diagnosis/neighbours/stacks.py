"""Wiring of stacks: the order of their layers, what each layer reads, its masks, parameters and norms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.neighbours.arguments import (
    read_argument,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.embedding import positional_encoding
from goldformer.spec.formulas.layers import (
    decoder,
    encoder,
    final_norm,
    layer_norm,
    run_stack,
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
    yield from _move_final_norms()
    yield from _change_stacks()
