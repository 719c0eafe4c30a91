"""Masks that are read in another way: mirrored, of another sample or head, repeated in another order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.attention import add_to_masked
from goldformer.conformance.diagnosis.neighbours.arguments import (
    Given,
    change_argument,
    change_result,
    giving,
    read_argument,
    replace_argument,
    was_left_out,
)
from goldformer.conformance.diagnosis.neighbours.array_changes import (
    Change,
    reverse_last_axis,
)
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec import Case
from goldformer.spec.formulas.attention import (
    causal_mask,
    fill_masked,
    scaled_dot_product_attention,
    weigh_keys,
)
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import fused_multi_head_attention, multi_head_attention
from goldformer.spec.formulas.layers import decoder, decoder_layer, encoder, encoder_layer
from goldformer.spec.formulas.steps import Step, around, hold, instead


def _widen(diagonal: int) -> Change:
    return lambda m: np.tri(m.shape[0], m.shape[1], diagonal, dtype=np.bool_)


#: The mask of a call before the causal one was joined to it, and after.
_joined: Final[ContextVar[tuple[Array | None, Array] | None]] = ContextVar("joined", default=None)


def joining_causal(case: Case) -> AbstractContextManager[None]:
    """Let neighbours see the mask that code gets which joins the causal one itself, while the case runs."""
    whole, later = case.whole, case.later_tokens
    if case.hiding != "too" or whole is None or later is None:
        return hold(_joined, None)
    return hold(_joined, (whole.input_arrays.get(later.mask), case.input_arrays[later.mask]))


def _find_given(mask: Array | None) -> Array | None:
    """Return the mask that a call was given in the place of one to which the causal one was joined."""
    joined = _joined.get()
    if joined is None or mask is None:
        return mask
    given, hidden = joined
    same = hidden.ndim <= mask.ndim and np.array_equal(np.broadcast_to(hidden, mask.shape), mask)
    return given if same else mask


def _see_one_more(mask: Array | None, _: Given) -> Array | None:
    return None if mask is None else np.concatenate([mask[..., :1], mask[..., 1:] | mask[..., :-1]], axis=-1)


def _hide_future_always() -> Iterator[Neighbour]:
    """Yield attention with the causal mask built in, as models without an encoder have it."""

    def hide(mask: Array | None, given: Given, *, reads_mask: bool, ahead: int) -> Array:
        q_seq, kv_seq = read_argument(weigh_keys, "scaled", given).shape[-2:]
        causal = np.tri(q_seq, kv_seq, ahead, dtype=np.bool_)
        own = _find_given(mask) if reads_mask else mask
        if own is None:
            return causal
        return own & causal if reads_mask else np.array(np.broadcast_to(causal, own.shape))

    hint = (
        "Hide later keys only where the mask hides them. If it is deliberate, as in a model with only a decoder, "
        'declare CONVENTIONS = {"later_tokens": "hidden_only"}, or "hidden_too" if it hides what the mask hides too.'
    )
    ways = (
        ("always-causal", False, "whatever mask is given"),
        ("always-causal-too", True, "besides what the mask hides"),
    )
    for (word, reads_mask, says), ahead in product(ways, (0, 1)):
        keys = "all later keys but the next one" if ahead else "later keys"
        yield Neighbour(
            f"scaled_dot_product_attention.mask.{word}{'-but-one' if ahead else ''}",
            f"{keys} are hidden in every call, without a mask too, {says}",
            "Query i sees the keys 0 … i: hide the next one too." if ahead else hint,
            {weigh_keys: change_argument(weigh_keys, "mask", partial(hide, reads_mask=reads_mask, ahead=ahead))},
        )  # fmt: skip


def _hide_future_in_decoder() -> Iterator[Neighbour]:
    """Yield decoder layers that make the causal mask of their self-attention themselves."""

    def hide(mask: Array | None, given: Given, *, reads_mask: bool) -> Array:
        seq = read_argument(decoder_layer, "x", given).shape[1]
        causal = causal_mask(q_seq=seq, kv_seq=seq)
        return causal if mask is None or not reads_mask else mask & causal

    ways = (
        ("always-causal", False, "whatever mask it is given", "hidden_only"),
        ("always-causal-too", True, "besides what its mask hides", "hidden_too"),
    )
    for word, reads_mask, says, option in ways:
        yield Neighbour(
            f"decoder_layer.self_mask.{word}",
            f"the self-attention hides later keys in every call, {says}, in the decoder layer",
            f'If it is deliberate, declare CONVENTIONS = {{"decoder_layer.later_tokens": "{option}"}}, with the name '
            "of a stack in its place for a stack; or hide later keys only where the mask hides them.",
            {decoder_layer: change_argument(decoder_layer, "self_mask", partial(hide, reads_mask=reads_mask))},
        )  # fmt: skip


#: The id of code that hides later tokens in calls with a mask, although it declares to hide them in all calls.
ONLY_WHERE_MASKED: Final = "scaled_dot_product_attention.later-tokens.only-where-masked"
#: The mask to which code that always hides later tokens joins the causal one.
_JOINED_TO: Final[Mapping[Step, str]] = {
    scaled_dot_product_attention: "mask", multi_head_attention: "mask", fused_multi_head_attention: "mask",
    encoder_layer: "mask", decoder_layer: "self_mask", encoder: "mask", decoder: "self_mask",
}  # fmt: skip


def make_only_where_masked() -> Neighbour:
    """Return the neighbour that hides no later token where the implementation was given no mask."""

    def run(step: Step, joined: str, original: Step, *args: Any, **named: Any) -> Any:
        given: Given = (args, named)
        args, kept = replace_argument(step, joined, None, given) if was_left_out(joined) else given
        with giving(None):
            return original(*args, **kept)

    return Neighbour(
        ONLY_WHERE_MASKED, "later tokens are hidden only where a mask is given",
        "Join the causal mask in every call, also where no mask is given.",
        {step: around(partial(run, step, joined)) for step, joined in _JOINED_TO.items()},
    )  # fmt: skip


def _change_filled() -> Iterator[Neighbour]:
    """Yield attentions that give masked scores, or rows without a key, other numbers."""

    def zero_empty(original: Callable[..., Array], scaled: Array, mask: Array | None) -> Array:
        weights = original(scaled, mask)
        return weights if mask is None else np.where(mask.any(-1, keepdims=True), weights, weights * 0)

    yield Neighbour(
        "scaled_dot_product_attention.empty-row.zeros", "a query that sees no key gets zeros",
        "Give such a row what the declared option empty_row says.", {weigh_keys: around(zero_empty)},
    )  # fmt: skip
    for word, number in (("1e9", -1e9), ("1e4", -1e4)):
        yield Neighbour(
            f"scaled_dot_product_attention.mask.inverted-added-{word}",
            f"the mask is inverted: −{word} is added to the scores of keys that may be seen",
            "Add it where the mask is False.",
            {fill_masked: instead(lambda scaled, mask, number=number: add_to_masked(scaled, ~mask, number))},
        )  # fmt: skip
    for word, value in (("zero", 0.0), ("small", 1e-9), ("one", 1.0)):

        def fill(scaled: Array, mask: Array, value: float = value) -> Array:
            return np.where(mask, scaled, np.asarray(value, dtype=scaled.dtype))

        yield Neighbour(
            f"scaled_dot_product_attention.fill.{word}", f"masked scores become {value:g}",
            "Fill masked scores with −∞ or the lowest finite number.", {fill_masked: instead(fill)},
        )  # fmt: skip


def _change_causal_masks() -> Iterator[Neighbour]:
    inverses: tuple[tuple[str, str, Change], ...] = (
        ("inverted", "the causal mask is True where a key is later, and False where it may be seen", np.logical_not),
        ("reversed", "the causal mask is reversed along the keys", reverse_last_axis),
    )  # fmt: skip
    for word, title, change in inverses:
        yield Neighbour(
            f"causal_mask.{word}", title, "Query i sees the keys 0 … i.", {causal_mask: change_result(change)}
        )
    for corner, diagonal in (("two-before", -2), ("two-after", 2)):
        side = "two keys before it are hidden too" if diagonal < 0 else "two later keys are seen"
        yield Neighbour(
            f"causal_mask.{corner}", f"the causal mask is off by two, so that {side}", "Query i sees the keys 0 … i.",
            {causal_mask: change_result(_widen(diagonal))},
        )  # fmt: skip


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of masks."""
    # Where every mask is causal, it is told from a causal mask that is made in all calls by its place before that one.
    yield Neighbour(
        "scaled_dot_product_attention.mask.one-more", "one key after the last one that may be seen is seen too",
        "Use the mask as it is given, True where a query may see a key, broadcast to the shape of the scores.",
        {weigh_keys: change_argument(weigh_keys, "mask", _see_one_more)},
    )  # fmt: skip
    yield from _hide_future_always()
    yield from _hide_future_in_decoder()
    yield from _change_filled()
    yield from _change_causal_masks()
