"""Mistakes in the decoder-only model: its order of layers, its last norm, and its output weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.decoder_only import (
    cap_logits,
    decoder_only_model,
    finish_layers,
    fit_layer,
    hide_padding,
    is_local,
    run_decoder_only_layer,
)
from goldformer.spec.formulas.embedding import token_embedding
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.options import scale_embedding, select_read
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.rms import rms_norm
from goldformer.spec.formulas.steps import around, replacing

Model = Callable[..., dict[str, Array]]

SCALED: Final = {"embedding_scale": "sqrt_d_model"}
EVERY_SECOND: Final = {"local_layers": "every_second"}


@mistake("lm-final-norm-missing", instead_of=finish_layers)
def leave_last_output(x: Array, params: Params) -> Array:
    """Return the output of the last layer as it is."""
    return x


@mistake("lm-final-norm-each-layer", instead_of=finish_layers)
def leave_normalised_output(x: Array, params: Params) -> Array:
    """Return the output of the last layer, which is normalised already."""
    return x


@mistake("lm-final-norm-each-layer", around=run_decoder_only_layer)
def normalise_each_layer(original: Callable[..., Array], /, x: Array, *, params: Params, **rest: Any) -> Array:
    """Return the output of a layer, normalised as only that of the last should be."""
    return rms_norm(original(x, params=params, **rest), params=part(params, "norm"))


@mistake("lm-layers-reversed", around=decoder_only_model)
def reverse_layers(original: Model, /, ids: Array, *, num_layers: int, params: Params, **rest: Any) -> dict[str, Array]:
    """Return the model whose layers run from the last to the first."""

    def run(layer: Callable[..., Array], x: Array, *, index: int, **given: Any) -> Array:
        return layer(x, index=num_layers - 1 - index, **given)

    with replacing({run_decoder_only_layer: around(run)}):
        return original(ids, num_layers=num_layers, params=params, **rest)


@mistake("lm-output-tied-anyway", around=decoder_only_model)
def ignore_output_weight(original: Model, /, ids: Array, *, params: Params, **rest: Any) -> dict[str, Array]:
    """Return the model whose table maps to the vocabulary, whatever w_vocab is."""
    return original(ids, params=select_read(params, ("w_vocab",)), **rest)


@mistake("lm-padding-ignored", instead_of=hide_padding)
def hide_nothing(ids: Array, pad_id: int | None) -> None:
    """Return no mask."""


@mistake("lm-embedding-scaled-twice", around=decoder_only_model, conventions=SCALED)
def scale_embedding_twice(original: Model, /, *ids: Array, **rest: Any) -> dict[str, Array]:
    """Return the model whose embedding is multiplied by √d_model twice."""
    once = {token_embedding: around(scale_embedding)}
    with replacing(once, once):
        return original(*ids, **rest)


@mistake("lm-softmax-in-model", around=decoder_only_model)
def return_probabilities(original: Model, /, *ids: Array, **rest: Any) -> dict[str, Array]:
    """Return the softmax of the logits in their place."""
    given = original(*ids, **rest)
    return given | {"logits": softmax(given["logits"])}


# Local layers, and the cap of the logits


@mistake("lm-local-layers-shifted", around=is_local, conventions=EVERY_SECOND)
def count_from_one(original: Callable[[int], bool], index: int) -> bool:
    """Return True if the next layer is local."""
    return original(index + 1)


@mistake("lm-window-in-all-layers", around=fit_layer, conventions=EVERY_SECOND)
def keep_window(
    original: Callable[..., dict[str, Any]], /, index: int, *, window: int | None = None, **rest: Any
) -> dict[str, Any]:
    """Return the settings of a layer that has the window, local or not."""
    return original(index, window=window, **rest) | {"window": window}


@mistake("lm-one-base", around=fit_layer)
def ignore_local_base(
    original: Callable[..., dict[str, Any]], /, index: int, *, local_base: float | None = None, **rest: Any
) -> dict[str, Any]:
    """Return the settings of a layer that has the base of the others."""
    return original(index, **rest)


@mistake("lm-bases-swapped", around=fit_layer)
def swap_bases(
    original: Callable[..., dict[str, Any]],
    /,
    index: int,
    *,
    base: float | None = None,
    local_base: float | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """Return the settings of a layer that has the local base if it is not local."""
    swapped = {"base": base} if local_base is None else {"base": local_base, "local_base": base}
    return original(index, **swapped, **rest)


@mistake("lm-logit-cap-missing", instead_of=cap_logits)
def leave_logits(logits: Array, softcap: float) -> Array:
    """Return the logits as they are."""
    return logits
