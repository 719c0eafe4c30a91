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
    drop_padding,
    keep_causal,
    keep_padding,
    mirror_causal,
    reverse_heads,
    reverse_last_axis,
    reverse_samples,
    shift_last_axis,
    turn_last_axes,
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


def _reorder(mask: Array, axes: int) -> Array:
    """Read the leading axes, samples and heads, in the other order: tiled instead of repeated."""
    lead, rest = mask.shape[:axes], mask.shape[axes:]
    return mask.reshape(-1, *rest).reshape(*lead[::-1], *rest).swapaxes(0, 1) if axes == 2 else mask


def _reorder_back(mask: Array, axes: int) -> Array:
    """Lay masks out by heads and then samples, and read them by samples and then heads."""
    return mask.swapaxes(0, 1).reshape(mask.shape) if axes == 2 else mask


def _keep_one(mask: Array, changed: Array) -> Array:
    """Return a changed mask, with the original row of each query that it leaves without a key."""
    return np.where(changed.any(-1, keepdims=True), changed, mask)


def _hide_last(mask: Array) -> Array:
    """Hide the last key that each query may see."""
    return np.concatenate([mask[..., :-1] & mask[..., 1:], mask[..., -1:]], axis=-1)


def _hide_self(mask: Array) -> Array:
    return mask & ~np.eye(mask.shape[-2], mask.shape[-1], dtype=np.bool_)


#: What becomes of a mask that is broadcast to the scores, (…, q_seq, kv_seq).
_CHANGES: Final[tuple[tuple[str, str, Change], ...]] = (
    ("transposed", "the mask is transposed, so that keys are hidden as queries", turn_last_axes),
    ("reversed", "the mask is reversed along the keys", reverse_last_axis),
    ("queries-reversed", "the mask is reversed along the queries", lambda m: m[..., ::-1, :]),
    ("first-query", "the first query's row of the mask is used for all queries", lambda m: m[..., :1, :]),
    ("last-query", "the last query's row of the mask is used for all queries", lambda m: m[..., -1:, :]),
    ("first-key", "the first key's column of the mask is used for all keys", lambda m: m[..., :1]),
    ("last-sample", "the last sample's mask is used for all samples", lambda m: m[-1:]),
    ("samples-reversed", "the samples have one another's masks, in the reverse order", reverse_samples),
    ("samples-shifted", "each sample has the mask of the one before", lambda m: np.roll(m, 1, axis=0)),
    ("last-head", "the last head's mask is used for all heads", lambda m: m[:, -1:] if m.ndim > 3 else m),
    ("heads-reversed", "the heads have one another's masks", reverse_heads),
    ("tiled", "the mask is repeated for heads and samples in the other order", lambda m: _reorder(m, m.ndim - 2)),
    ("laid-out-by-heads", "the masks are laid out head by head, and the scores sample by sample",
     lambda m: _reorder_back(m, m.ndim - 2)),
    ("shifted", "the mask is shifted by one key", shift_last_axis),
    ("one-more", "one key after the last one that may be seen is seen too",
     lambda m: np.concatenate([m[..., :1], m[..., 1:] | m[..., :-1]], axis=-1)),
    ("one-less", "the last key that may be seen is hidden too", _hide_last),
    ("one-less-if-more", "the last key that may be seen is hidden too, unless it is the only one",
     lambda m: _keep_one(m, _hide_last(m))),
    ("any-query", "a key is hidden only where every query's row hides it", keep_padding),
    ("only-causal", "of the mask only what is causal is used, so padding is seen", keep_causal),
    ("causal-mirrored", "earlier keys are hidden instead of later ones, and padding as it should be", mirror_causal),
    ("all-queries", "a key is hidden where any query's row hides it", lambda m: m.all(-2, keepdims=True)),
    ("all-heads", "a key is hidden where any head's mask hides it",
     lambda m: m.all(1, keepdims=True) if m.ndim > 3 else m),
    ("all-samples", "a key is hidden where any sample's mask hides it", lambda m: m.all(0, keepdims=True)),
    ("self-always", "each position sees itself whatever the mask says",
     lambda m: m | np.eye(m.shape[-2], m.shape[-1], dtype=np.bool_)),
    ("self-never", "each position is hidden from itself, whatever the mask says", _hide_self),
    ("self-if-alone", "each position is hidden from itself, unless it sees nothing else",
     lambda m: _keep_one(m, _hide_self(m))),
    ("first-always", "every position sees the first key whatever the mask says",
     lambda m: m | (np.arange(m.shape[-1]) == 0)),
    ("and-causal", "later keys are hidden besides those that the mask hides",
     lambda m: m & causal_mask(q_seq=m.shape[-2], kv_seq=m.shape[-1])),
    ("instead-causal", "a causal mask is used whatever mask is given",
     lambda m: np.broadcast_to(causal_mask(q_seq=m.shape[-2], kv_seq=m.shape[-1]), m.shape)),
)  # fmt: skip


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


def _lose_in_layers() -> Iterator[Neighbour]:
    """Yield layers in which one of two masks that were joined is lost on its way to an attention."""
    masks = (
        (encoder_layer, "mask", "x", "self-attention"),
        (decoder_layer, "self_mask", "x", "self-attention"),
        (decoder_layer, "memory_mask", "memory", "cross-attention"),
    )
    ways: tuple[tuple[str, str, Change], ...] = (
        ("only-causal", "hides only later keys, and no padding", keep_causal),
        ("without-padding", "hides no padding, and all else that it should", drop_padding),
        ("only-padding", "hides only padding, and no later keys", keep_padding),
    )
    for (layer, argument, keys, attention), (word, says, change) in product(masks, ways):

        def lose(
            mask: Array | None, given: Given, layer: Step = layer, keys: str = keys, change: Change = change
        ) -> Array | None:
            if mask is None:
                return None
            scores = (read_argument(layer, "x", given).shape[1], read_argument(layer, keys, given).shape[1])
            shape = np.broadcast_shapes(mask.shape, scores)
            return np.array(np.broadcast_to(change(np.broadcast_to(mask, shape)), shape))

        name = layer.__name__
        yield Neighbour(
            f"{name}.{argument}.{word}", f"the mask of the {attention} {says}, in the {name.replace('_', ' ')}",
            f"Hand the whole mask on to the {attention}.", {layer: change_argument(layer, argument, lose)},
        )  # fmt: skip


def _change_masks() -> Iterator[Neighbour]:
    """Yield attentions that read their mask in another way."""
    hint = "Use the mask as it is given, True where a query may see a key, broadcast to the shape of the scores."
    for word, title, change in _CHANGES:

        def replace(mask: Array | None, _: Given, change: Change = change) -> Array | None:
            return None if mask is None else np.array(np.broadcast_to(change(mask), mask.shape))

        yield Neighbour(
            f"scaled_dot_product_attention.mask.{word}", title, hint,
            {weigh_keys: change_argument(weigh_keys, "mask", replace)},
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
    yield from _lose_in_layers()
    yield from _change_masks()
    yield from _hide_future_always()
    yield from _hide_future_in_decoder()
    yield from _change_filled()
    yield from _change_causal_masks()
