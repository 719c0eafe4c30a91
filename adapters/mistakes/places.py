"""A mistake made in one place alone, and all else right: in one sub-layer, in some layers, in one half of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import FunctionType
from typing import Any, Final, Literal, TypeVar

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook
from goldformer.adapters.textbook import Textbook
from goldformer.adapters.textbook_checks import Array
from goldformer.adapters.textbook_layers import Params, SubLayer

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class At:
    """Where a textbook is at work: in which half, layer, sub-layer (counted from 1) and linear map of it."""

    half: str = ""
    layer: int = 0
    layers: int = 0
    sublayer: tuple[str, int] = ("", 0)
    role: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a mistake is made; what is left open may be anything. `words` say it.

    Only mistakes of `parts`, which are components, can be made there; where there are none, any can.
    """

    words: str
    half: str = ""
    layers: Literal["", "first", "later", "last"] = ""
    sublayer: tuple[str, int] = ("", 0)
    role: str = ""
    parts: frozenset[str] = frozenset()

    def holds(self, at: At) -> bool:
        """Whether that is here."""
        return (
            self.half in ("", at.half)
            and self.sublayer in (("", 0), at.sublayer)
            and self.role in ("", at.role)
            and self._among(at.layer, at.layers)
        )

    def _among(self, layer: int, layers: int) -> bool:
        """Whether a layer is one of those; outside of a stack, which has no layers, there are none."""
        if not self.layers:
            return True
        chosen = {"first": layer == 0, "later": layer > 0, "last": layer == layers - 1}
        return layers > 0 and chosen[self.layers]


_ATTENTION: Final = frozenset({"softmax", "scaled_dot_product_attention", "multi_head_attention", "layer_norm"})
_FEED_FORWARD: Final = frozenset({"feed_forward", "layer_norm"})
#: What layers of one class can do differently: each is told what to hide and has parameters of its own.
_CALLED: Final = frozenset({"scaled_dot_product_attention", "encoder_layer", "decoder_layer", "encoder", "decoder"})


def _sublayer(layer: str, number: int, words: str, parts: frozenset[str]) -> Place:
    return Place(
        f"the {layer.replace('_', ' ')}'s {words}", sublayer=(layer, number), parts=parts | {"encoder_layer", layer}
    )


_ENCODER_LAYER: Final = (
    _sublayer("encoder_layer", 1, "self-attention", _ATTENTION),
    _sublayer("encoder_layer", 2, "feed-forward network", _FEED_FORWARD),
)
_DECODER_LAYER: Final = (
    _sublayer("decoder_layer", 1, "self-attention", _ATTENTION),
    _sublayer("decoder_layer", 2, "cross-attention", _ATTENTION),
    _sublayer("decoder_layer", 3, "feed-forward network", _FEED_FORWARD),
)


#: The steps of the textbook that a role is told.
_MAPPED: Final = frozenset({"projection", "project"})
#: Roles of parameters, in words.
_OF_ATTENTION: Final = {
    "o": "the projection of the output",
    "q": "the projection of the queries",
    "k": "the projection of the keys",
    "v": "the projection of the values",
}
_OF_FEED_FORWARD: Final = {"2": "the second map", "1": "the first map"}


def _maps(component: str, roles: Mapping[str, str], of: Place = Place("")) -> tuple[Place, ...]:
    """The linear maps of a component, of any or of that in one place."""
    where = f" in {of.words}" if of.words else ""
    parts = frozenset({component})
    return tuple(replace(of, words=words + where, role=role, parts=parts) for role, words in roles.items())


def _maps_of(layer: tuple[Place, ...]) -> tuple[Place, ...]:
    """Those of a layer: of its attentions, the last first, and of its feed-forward network."""
    *attentions, network = layer
    maps = [_maps("multi_head_attention", _OF_ATTENTION, place) for place in reversed(attentions)]
    return (*chain(*maps), *_maps("feed_forward", _OF_FEED_FORWARD, network))


def _layers_of(half: str, parts: frozenset[str] = frozenset()) -> tuple[Place, ...]:
    return (
        Place(f"every layer of the {half} but the first", half=half, layers="later", parts=parts),
        Place(f"the first layer of the {half}", half=half, layers="first", parts=parts),
        Place(f"the last layer of the {half}", half=half, layers="last", parts=parts),
    )


#: By component, the places inside it, those first that are the likelier.
PLACES: Final[Mapping[str, tuple[Place, ...]]] = {
    "multi_head_attention": _maps("multi_head_attention", _OF_ATTENTION),
    "feed_forward": _maps("feed_forward", _OF_FEED_FORWARD),
    "encoder_layer": (*_ENCODER_LAYER, *_maps_of(_ENCODER_LAYER)),
    "decoder_layer": (*_DECODER_LAYER, *_maps_of(_DECODER_LAYER)),
    "encoder": (*_ENCODER_LAYER, *_layers_of("encoder")),
    "decoder": (*_DECODER_LAYER, *_layers_of("decoder")),
    "transformer": (
        *_DECODER_LAYER,
        *_ENCODER_LAYER,
        Place("the decoder's half", half="decoder"),
        Place("the encoder's half", half="encoder"),
        *_layers_of("decoder", _CALLED),
        *_layers_of("encoder", _CALLED),
    ),
}


class Located(Textbook):
    """A textbook that knows where it is at work."""

    at = At()

    def _there(self, step: Callable[..., Result], *args: Any, at: At, **named: Any) -> Result:
        before = self.at
        self.at = at
        try:
            return step(*args, **named)
        finally:
            self.at = before

    def embedded(self, ids: Array, side: str, pad_id: int, params: Params) -> Array:
        half = "encoder" if side == "source" else "decoder"
        return self._there(super().embedded, ids, side, pad_id, params, at=At(half))

    def encoder(self, *args: Any, num_layers: int, **named: Any) -> dict[str, Array]:
        here = At("encoder", layers=num_layers)
        return self._there(super().encoder, *args, at=here, num_layers=num_layers, **named)

    def decoder(self, *args: Any, num_layers: int, **named: Any) -> dict[str, Array]:
        here = At("decoder", layers=num_layers)
        return self._there(super().decoder, *args, at=here, num_layers=num_layers, **named)

    def layer_input(self, x: Array, index: int) -> Array:
        # The layer of that number follows, until the next one or the end of the stack.
        self.at = replace(self.at, layer=index)
        return super().layer_input(x, index)

    def encoder_layer(self, *args: Any, **named: Any) -> dict[str, Array]:
        here = replace(self.at, sublayer=("encoder_layer", 0))
        return self._there(super().encoder_layer, *args, at=here, **named)

    def decoder_layer(self, *args: Any, **named: Any) -> dict[str, Array]:
        here = replace(self.at, sublayer=("decoder_layer", 0))
        return self._there(super().decoder_layer, *args, at=here, **named)

    def sublayer(
        self, x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
    ) -> tuple[Array, Array]:
        here = replace(self.at, sublayer=(self.at.sublayer[0], number))
        return self._there(super().sublayer, x, function, at=here, number=number, sums=sums, params=params)

    def projection(self, x: Array, params: Mapping[str, Array], role: str) -> Array:
        return self._there(super().projection, x, params, role, at=replace(self.at, role=role))

    def project(self, x: Array, params: Mapping[str, Array], role: str) -> Array:
        # Not through the step above: the maps of a feed-forward network are no projections.
        return self._there(super().project, x, params, role, at=replace(self.at, role=role))


def can_be_made(place: Place, make: type[Any]) -> bool:
    """Whether the class of a mistake can be made there alone.

    What it inherits from another mistake could not be left out elsewhere, and in one map only maps differ.
    """
    return make.__bases__ == (DifferentiatedTextbook,) and (not place.role or bool(_MAPPED & vars(make).keys()))


def only_at(place: Place, make: type[Any]) -> type[Any]:
    """The class of a mistake that can be made there alone, to stand behind `Located`."""
    there: type[Any]

    def here_or_not(self: Any, name: str) -> Any:
        return getattr(super(there if place.holds(self.at) else make, self), name)

    def step(name: str) -> Callable[..., Any]:
        return lambda self, *args, **named: here_or_not(self, name)(*args, **named)

    steps = {
        name: step(name) if isinstance(value, FunctionType) else property(partial(here_or_not, name=name))
        for name, value in vars(make).items()
        if not name.startswith("__")
    }
    there = type("Somewhere", (make,), steps)
    return there
