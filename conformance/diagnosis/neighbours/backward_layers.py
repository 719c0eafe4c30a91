"""Slips in the backward passes of layers and models: a way of a gradient is lost, doubled or taken in another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Any, Final

from goldformer.conformance.diagnosis.mistakes.derivatives import change_cotangent, cut_off, read_numbers
from goldformer.conformance.diagnosis.neighbours.backward import make_backward
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import detach
from goldformer.spec.formulas.backward import Gradients, input_gradient, take_step, weight_gradients
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import Params, project_attention
from goldformer.spec.formulas.layers import SubLayer, add_residual, cross_attend, run_sublayer, self_attend
from goldformer.spec.formulas.steps import Replacement, Step, around, hold
from goldformer.spec.formulas.transformer import embed, embed_source, embed_target, tied_weight

#: The sub-layers of each layer, in words.
_SUBLAYERS: Final = {
    "encoder_layer": ("self-attention", "feed-forward network"),
    "decoder_layer": ("self-attention", "cross-attention", "feed-forward network"),
}
#: What the gradients around and through a sub-layer are multiplied by.
_RESIDUALS: Final = (
    ("residual-forgotten", "forgets the residual around the {}", 0, 1),
    ("result-forgotten", "goes around the {} only, and not through it", 1, 0),
    ("residual-twice", "adds the residual around the {} twice", 2, 1),
    ("subtracted", "subtracts what comes through the {}", 1, -1),
)
#: The factor of the gradient around the sub-layer that runs.
_around: Final[ContextVar[int]] = ContextVar("around", default=1)


def _change_residuals() -> Iterator[Neighbour]:
    """Yield sub-layers through which, or around which, no gradient flows, or twice as much of it."""

    def run(
        original: Step, x: Array, function: SubLayer, *, number: int, mine: int, factors: tuple[int, ...], **named: Any
    ) -> Any:
        beside, through = factors if number == mine else (1, 1)
        with hold(_around, beside):
            return original(x, lambda y: function(change_cotangent(y, lambda g: g * through)), number=number, **named)

    def add(original: Step, x: Array, *rest: Any) -> Any:
        factor = _around.get()
        return original(change_cotangent(x, lambda g: g * factor), *rest)

    for layer, sublayers in _SUBLAYERS.items():
        for (number, what), (word, says, *factors) in product(enumerate(sublayers, 1), _RESIDUALS):
            yield make_backward(
                f"{what.replace(' ', '-')}.{word}", layer, f"the backward pass {says.format(what)}",
                "The gradient of the input is that around the sub-layer plus that through it.",
                {run_sublayer: around(partial(run, mine=number, factors=tuple(factors))), add_residual: around(add)},
            )  # fmt: skip


_WORDS: Final = {"q": "queries", "k": "keys", "v": "values"}
#: The role whose input nothing flows back to, in the attention that runs.
_lost: Final[ContextVar[str]] = ContextVar("lost", default="")


def _cut_role(original: Step, x: Array, params: Params, role: str) -> Any:
    return (partial(cut_off, original) if role in _lost.get() else original)(x, params, role)


def _lose_ways() -> Iterator[Neighbour]:
    """Yield layers in which no gradient flows back through the queries, keys or values of an attention."""

    def attend(original: Step, *args: Any, lost: str, **named: Any) -> Any:
        with hold(_lost, lost):
            return original(*args, **named)

    places = (
        ("encoder_layer", "self-attention", "input", self_attend, "qkv"),
        ("decoder_layer", "self-attention", "input", self_attend, "qkv"),
        ("decoder_layer", "cross-attention", "memory", cross_attend, "kv"),
        ("decoder_layer", "cross-attention", "input", cross_attend, "q"),
    )
    for layer, attention, target, step, roles in places:
        for role, words in ((role, _WORDS[role]) for role in roles):
            yield make_backward(
                f"{attention}.{target}-without-{words}", layer,
                f"the way back through the {words} of the {attention} is missing in the gradient of the {target}",
                "Add up what flows back through queries, keys and values.",
                {step: around(partial(attend, lost=role)), project_attention: around(_cut_role)},
            )  # fmt: skip


def _change_single_head() -> Iterator[Neighbour]:
    """Yield gradients of one head, and steps against them, that treat one of the three roles in another way."""
    component, hint = "single_head_attention", "dX is dQ·W_Qᵀ + dK·W_Kᵀ + dV·W_Vᵀ, and dW_Q is Xᵀ·dQ."

    def cut(original: Step, x: Array, params: Params, role: str, *, roles: str) -> Any:
        return original(read_numbers(x) if role in roles else x, params, role)

    def leave_out(original: Step, projected: Gradients, params: Params, *, roles: str) -> Any:
        return original({n: g * (n.removeprefix("w_") not in roles) for n, g in projected.items()}, params)

    def turn(original: Step, x: Array, params: Params, role: str, *, own: str) -> Any:
        turned = {n: change_cotangent(w, lambda g: g.T) if n == own else w for n, w in params.items()}
        return original(x, turned, role)

    def turn_step(original: Step, x: Array, projected: Gradients, *, own: str) -> Gradients:
        return {n: g.T if n == own else g for n, g in original(x, projected).items()}

    def move(original: Step, weights: Params, *args: Any, own: str, times: float) -> Any:
        gradient, moved = original(weights, *args)
        return gradient, {**moved, own: weights[own] + times * (moved[own] - weights[own])}

    for role, words in _WORDS.items():
        others = "qkv".replace(role, "")
        for id_, title, roles in (
            (f"x-without-{words}", f"the way through the {words} is missing in the gradient of the input", role),
            (f"x-of-{words}", f"the gradient of the input has only the way through the {words}", others),
        ):
            steps: dict[Step, Replacement] = {
                project_attention: around(partial(cut, roles=roles)),
                input_gradient: around(partial(leave_out, roles=roles)),
            }
            yield make_backward(id_, component, title, hint, steps)
        own = f"w_{role}"
        steps = {
            project_attention: around(partial(turn, own=own)),
            weight_gradients: around(partial(turn_step, own=own)),
        }
        yield make_backward(f"{own}.transposed", component, f"the gradient of {own} is transposed", hint, steps)
        for word, says, times in (
            ("ascent", "moves along its gradient instead of against it", -1.0), ("kept", "is not moved", 0.0),
            ("twice", "moves twice as far", 2.0),
        ):  # fmt: skip
            yield Neighbour(
                f"single_head_attention_step.{own}.{word}", f"the matrix of the {words} {says}",
                "A step is W − lr·dW, for each of the three matrices.",
                {take_step: around(partial(move, own=own, times=times))},
            )  # fmt: skip


def _lose_table() -> Iterator[Neighbour]:
    """Yield models whose table gets the gradient of some of its uses only."""

    def cut(original: Step, ids: Array, pad_id: int, params: Params, *, tied: bool = False) -> Any:
        lost = {} if tied and "w_vocab" in params else {"table": read_numbers(params["table"])}
        return original(ids, pad_id, {**params, **lost})

    tied, table = (
        "what reaches the tied table through the {} is missing",
        "what reaches the table through the {} is missing",
    )
    uses: tuple[tuple[str, str, Step, Callable[..., Any]], ...] = (
        ("logits", tied, tied_weight, detach), ("words", tied, embed, partial(cut, tied=True)),
        ("source", table, embed_source, cut), ("target", table, embed_target, cut),
    )  # fmt: skip
    for word, says, step, way in uses:
        yield make_backward(
            f"table.without-{word}", "transformer", f"{says.format(word)} in its gradient",
            "Add up the gradients of all uses of the table: source, target and, if it is tied, logits.",
            {step: around(way)},
        )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of the backward passes of layers and models."""
    yield from _lose_table()
    yield from _change_residuals()
    yield from _lose_ways()
    yield from _change_single_head()
