"""Mistakes made in one place only: in one sub-layer, in some layers, in one half of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final, Literal, NamedTuple

from goldformer.conformance.diagnosis.mistakes.registry import Mistaken
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.decoder_only import (
    decoder_only_layer,
    decoder_only_model,
    run_block,
    run_decoder_only_layer,
)
from goldformer.spec.formulas.heads import Params, project, project_attention, project_heads, split_heads
from goldformer.spec.formulas.layers import (
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    run_decoder_layer,
    run_encoder_layer,
    run_sublayer,
)
from goldformer.spec.formulas.steps import Replacement, Replacements, Step, around, hold
from goldformer.spec.formulas.transformer import embed_source, embed_target


class Position(NamedTuple):
    """The current position in the textbook: half, layer, sub-layer (counted from 1) and linear map.

    Outside of the layers of a stack the layer is −1. It is a tuple because an imitation makes a hundred of them.
    """

    half: str = ""
    layer: int = -1
    layers: int = 0
    sublayer: tuple[str, int] = ("", 0)
    role: str = ""


@dataclass(frozen=True, slots=True)
class MistakePlace:
    """A place where a mistake is made; an empty field allows any value. `words` describe the place.

    `parts` are the components whose mistakes can be made there; if empty, any mistake can.
    """

    words: str
    half: str = ""
    layers: Literal["", "first", "later", "last"] = ""
    sublayer: tuple[str, int] = ("", 0)
    role: str = ""
    parts: frozenset[str] = frozenset()

    def contains(self, at: Position) -> bool:
        """Return True if a position is in this place."""
        return (
            self.half in ("", at.half)
            and self.sublayer in (("", 0), at.sublayer)
            and self.role in ("", at.role)
            and self._has_layer(at.layer, at.layers)
        )

    def _has_layer(self, layer: int, layers: int) -> bool:
        """Return True if a layer is one of the place's; outside of a stack there are no layers."""
        if not self.layers:
            return True
        chosen = {"first": layer == 0, "later": layer > 0, "last": layer == layers - 1}
        return layers > 0 and chosen[self.layers]


_ATTENTION: Final = frozenset({"softmax", "scaled_dot_product_attention", "multi_head_attention", "layer_norm"})
_FEED_FORWARD: Final = frozenset({"feed_forward", "layer_norm"})
#: The components in which layers of one class can differ: each layer has a mask and parameters of its own.
_CALLED: Final = frozenset({"scaled_dot_product_attention", "encoder_layer", "decoder_layer", "encoder", "decoder"})


def _make_sublayer(layer: str, number: int, words: str, parts: frozenset[str]) -> MistakePlace:
    return MistakePlace(
        f"the {layer.replace('_', ' ')}'s {words}", sublayer=(layer, number), parts=parts | {"encoder_layer", layer}
    )


_ENCODER_LAYER: Final = (
    _make_sublayer("encoder_layer", 1, "self-attention", _ATTENTION),
    _make_sublayer("encoder_layer", 2, "feed-forward network", _FEED_FORWARD),
)
_DECODER_LAYER: Final = (
    _make_sublayer("decoder_layer", 1, "self-attention", _ATTENTION),
    _make_sublayer("decoder_layer", 2, "cross-attention", _ATTENTION),
    _make_sublayer("decoder_layer", 3, "feed-forward network", _FEED_FORWARD),
)
_BLOCKS: Final = (
    MistakePlace(
        "the attention of the layer", sublayer=("decoder_only_layer", 1),
        parts=frozenset({"decoder_only_layer", "rms_norm", "grouped_query_attention", "scaled_dot_product_attention"}),
    ),
    MistakePlace(
        "the feed-forward network of the layer", sublayer=("decoder_only_layer", 2),
        parts=frozenset({"decoder_only_layer", "rms_norm", "gated_feed_forward"}),
    ),
)  # fmt: skip


#: The steps of the textbook that take a role, and the one that cuts what such a step projects.
_MAPPED: Final[frozenset[Step]] = frozenset({project_attention, project, project_heads, split_heads})
#: Roles of parameters, in words.
_OF_ATTENTION: Final = {
    "o": "the projection of the output",
    "q": "the projection of the queries",
    "k": "the projection of the keys",
    "v": "the projection of the values",
}
_OF_GATED_FEED_FORWARD: Final = {"down": "the last map", "gate": "the map of the gate", "up": "the map of up"}
_OF_FEED_FORWARD: Final = {"2": "the second map", "1": "the first map"}


def _list_maps(
    component: str, roles: Mapping[str, str], of: MistakePlace = MistakePlace("")
) -> tuple[MistakePlace, ...]:
    """Return the places of a component's linear maps, everywhere or within one place."""
    where = f" in {of.words}" if of.words else ""
    parts = frozenset({component})
    return tuple(replace(of, words=words + where, role=role, parts=parts) for role, words in roles.items())


def _list_layer_maps(layer: tuple[MistakePlace, ...]) -> tuple[MistakePlace, ...]:
    """Return the linear maps of a layer: of its attentions, the last first, and of its feed-forward network."""
    *attentions, network = layer
    maps = [_list_maps("multi_head_attention", _OF_ATTENTION, place) for place in reversed(attentions)]
    return (*chain(*maps), *_list_maps("feed_forward", _OF_FEED_FORWARD, network))


def _list_layers(half: str, parts: frozenset[str] = frozenset()) -> tuple[MistakePlace, ...]:
    return (
        MistakePlace(f"every layer of the {half} but the first", half=half, layers="later", parts=parts),
        MistakePlace(f"the first layer of the {half}", half=half, layers="first", parts=parts),
        MistakePlace(f"the last layer of the {half}", half=half, layers="last", parts=parts),
    )


#: The halves of a model, by the names of their stacks.
HALVES: Final[Mapping[str, MistakePlace]] = {
    half: MistakePlace(f"the {half}'s half", half=half) for half in ("decoder", "encoder")
}
_OF_EVERY_ATTENTION: Final = _list_maps("multi_head_attention", _OF_ATTENTION)

#: The places inside each component, the likelier ones first.
PLACES: Final[Mapping[str, tuple[MistakePlace, ...]]] = {
    "multi_head_attention": _list_maps("multi_head_attention", _OF_ATTENTION),
    "feed_forward": _list_maps("feed_forward", _OF_FEED_FORWARD),
    "gated_feed_forward": _list_maps("gated_feed_forward", _OF_GATED_FEED_FORWARD),
    "decoder_only_layer": (
        *_BLOCKS,
        *_list_maps("multi_head_attention", _OF_ATTENTION, _BLOCKS[0]),
        *_list_maps("gated_feed_forward", _OF_GATED_FEED_FORWARD, _BLOCKS[1]),
    ),
    "encoder_layer": (*_ENCODER_LAYER, *_list_layer_maps(_ENCODER_LAYER)),
    "decoder_layer": (*_OF_EVERY_ATTENTION, *_DECODER_LAYER, *_list_layer_maps(_DECODER_LAYER)),
    "encoder": (*_OF_EVERY_ATTENTION, *_ENCODER_LAYER, *_list_layers("encoder")),
    "decoder": (*_OF_EVERY_ATTENTION, *_DECODER_LAYER, *_list_layers("decoder")),
    "transformer": (
        *_OF_EVERY_ATTENTION,
        *_DECODER_LAYER,
        *_ENCODER_LAYER,
        *HALVES.values(),
        *_list_layers("decoder", _CALLED),
        *_list_layers("encoder", _CALLED),
    ),
}


_NOWHERE: Final = Position()
_at: Final[ContextVar[Position]] = ContextVar("at", default=_NOWHERE)


def _track(move: Callable[..., Position]) -> Replacement:
    """Return a replacement that runs a step unchanged, at the position that `move` returns."""

    def run(original: Step, *args: Any, **named: Any) -> Any:
        with hold(_at, move(_at.get(), *args, **named)):
            return original(*args, **named)

    return around(run)


def _enter_layer(at: Position, *_: Any, index: int, **__: Any) -> Position:
    return at._replace(layer=index)


def _enter_sublayer(at: Position, *_: Any, number: int, **__: Any) -> Position:
    return at._replace(sublayer=(at.sublayer[0], number))


def _enter_map(at: Position, _x: Array, _params: Params, role: str, *_: int) -> Position:
    return at._replace(role=role)


#: Unchanged steps that note the current position in the textbook.
TRACKED: Final[Replacements] = {
    embed_source: _track(lambda *_, **__: Position("encoder")),
    embed_target: _track(lambda *_, **__: Position("decoder")),
    encoder: _track(lambda *_, num_layers, **__: Position("encoder", layers=num_layers)),
    decoder: _track(lambda *_, num_layers, **__: Position("decoder", layers=num_layers)),
    run_encoder_layer: _track(_enter_layer),
    run_decoder_layer: _track(_enter_layer),
    encoder_layer: _track(lambda at, *_, **__: at._replace(sublayer=("encoder_layer", 0))),
    decoder_layer: _track(lambda at, *_, **__: at._replace(sublayer=("decoder_layer", 0))),
    decoder_only_layer: _track(lambda at, *_, **__: at._replace(sublayer=("decoder_only_layer", 0))),
    decoder_only_model: _track(lambda *_, num_layers, **__: Position(layers=num_layers)),
    run_decoder_only_layer: _track(_enter_layer),
    run_sublayer: _track(_enter_sublayer),
    run_block: _track(_enter_sublayer),
    project_heads: _track(_enter_map),
    project_attention: _track(_enter_map),
    # Not through the step above: the maps of a feed-forward network are no projections of an attention.
    project: _track(_enter_map),
}


def can_be_made(place: MistakePlace, mistaken: Mistaken) -> bool:
    """Return True if the mistake can be made there only: in one linear map, only a mistake of maps can."""
    return not mistaken.by_hand and (not place.role or bool(_MAPPED & mistaken.steps.keys()))


def restrict_to(place: MistakePlace, steps: Replacements) -> Replacements:
    """Return the replacements made in one place only; `TRACKED` must be applied after them."""
    return {key: _restrict_replacement(place, replacement) for key, replacement in steps.items()}


def _restrict_replacement(place: MistakePlace, replacement: Replacement) -> Replacement:
    def restrict(original: Step) -> Step:
        replaced = replacement(original)

        def run(*args: Any, **named: Any) -> Any:
            return (replaced if place.contains(_at.get()) else original)(*args, **named)

        return run

    return restrict
