"""The adapters that a class or a function may need, most likely first."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice, product
from typing import Any, Final

from goldformer.adapters.inference.inputs import list_arguments
from goldformer.adapters.inference.names import SIZES, find_part, list_roles, split_words
from goldformer.adapters.inference.parameters import name_parameters
from goldformer.adapters.inference.target import PROBE, Construction, Leaf, Made, Target, list_leaves
from goldformer.adapters.inference.wiring import Wiring
from goldformer.adapters.protocol import INFERRED_FUNCTIONS
from goldformer.spec import Spec

#: The components whose adapter can be inferred, the largest first: a class with many parts is no smaller component.
COMPONENTS: Final = (
    "transformer",
    "decoder_only_model",
    "decoder_only_layer",
    "decoder",
    "encoder",
    "decoder_layer",
    "encoder_layer",
    "multi_head_attention",
    "fused_multi_head_attention",
    "gated_feed_forward",
    "feed_forward",
    "layer_norm",
    "rms_norm",
    "token_embedding",
    "grouped_query_attention",
    "scaled_dot_product_attention",
    "rotary_embedding",
    "positional_encoding",
    "softmax",
)

_OF_HEADS: Final = ("width", "heads", "head_width", "value_width", "input_width", "positions", "batch")
_OF_LAYERS: Final = ("width", "heads", "head_width", "value_width", "inner", "expansion", "positions")
_OF_MODELS: Final = (
    "vocab", "source_vocab", "target_vocab", "word_width", *_OF_LAYERS,
    "layers", "encoder_layers", "decoder_layers", "pad",
)  # fmt: skip

_OF_BLOCKS: Final = ("width", "heads", "kv_heads", "head_width", "inner", "expansion", "positions", "base", "batch")

#: The sizes that a constructor may ask for, by component.
SIZES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "transformer": _OF_MODELS,
    "decoder_only_model": ("vocab", *_OF_BLOCKS, "layers"),
    "decoder_only_layer": _OF_BLOCKS,
    "decoder": (*_OF_LAYERS, "layers"),
    "encoder": (*_OF_LAYERS, "layers"),
    "decoder_layer": _OF_LAYERS,
    "encoder_layer": _OF_LAYERS,
    "multi_head_attention": _OF_HEADS,
    "fused_multi_head_attention": _OF_HEADS,
    "gated_feed_forward": ("width", "inner", "expansion"),
    "feed_forward": ("width", "inner", "expansion"),
    "layer_norm": ("width",),
    "rms_norm": ("width",),
    "token_embedding": ("vocab", "width"),
    "grouped_query_attention": ("temperature", "head_width", "width"),
    "scaled_dot_product_attention": ("temperature", "head_width", "width"),
    "rotary_embedding": ("width", "head_width", "positions", "base", "rotary_width"),
    "positional_encoding": ("width", "positions"),
    "softmax": (),
}


#: The words of an argument that is a ready attention, and those that make one a number or a width.
_ATTENTION_WORDS: Final = frozenset({"attn", "att", "attention", "mha", "msa"})
_COUNT_WORDS: Final = frozenset({"n", "num", "number", "count", "total"})
_WIDTH_WORDS: Final = frozenset({"d", "dim", "size", "width", "hidden", "inner", "units", "n"})

#: The most classes that are tried for a ready module.
_MOST_PARTS: Final = 4


def propose(target: Target, component: str, spec: Spec) -> Iterator[Wiring]:
    """Yield the wirings that fit the names and shapes of a target; masks and layouts of the data are left open."""
    contract = spec.contracts[component]
    if not target.is_class:
        if component in INFERRED_FUNCTIONS:
            yield from (Wiring(target, contract, arguments) for arguments in list_arguments(target, contract))
        return
    listed = list(list_arguments(target, contract))
    if not listed:
        return
    # A guess at the number that scores are divided by would look like a mistake.
    guesses = component not in ("scaled_dot_product_attention", "grouped_query_attention")
    # Some code takes a width for its heads, and only one that they share.
    for shared in (False, True):
        found = False
        for construction, leaves in _build_each(target, component, guesses=guesses, shared=shared):
            for naming in name_parameters(component, leaves, construction):
                found = True
                yield from (Wiring(target, contract, one, construction, naming) for one in listed)
        if found:
            return


def _list_constructions(
    target: Target, component: str, *, guesses: bool = True, shared: bool = False, users: tuple[Any, ...] = ()
) -> Iterator[Construction]:
    """Yield the ways to build a class for a component, with ready modules where its constructor takes them.

    With `shared`, the heads share the width of the model. `users` are the classes that take this one as a ready module:
    none of them is a part of it.
    """
    roles, kinds = SIZES_OF[component], _find_kinds(target, component)
    found = {kind: list(islice(_list_parts(target, kind, users), _MOST_PARTS)) for kind in {*kinds.values()}}
    # Attentions of one layer are of one class.
    for chosen in product(*found.values()):
        parts = dict(zip(found, chosen, strict=True))
        given = {name: parts[kind] for name, kind in kinds.items()}
        yield from target.list_constructions(roles, given, guesses=guesses, shared=shared)


def _build_each(
    target: Target, component: str, *, guesses: bool = True, shared: bool = False
) -> Iterator[tuple[Construction, list[Leaf]]]:
    """Yield the ways to build a class for a component that work, each with the parameters of its module."""
    for construction in _list_constructions(target, component, guesses=guesses, shared=shared):
        module = _try_to_build(target, construction)
        if module is not None:
            yield construction, list_leaves(module)


def _find_kinds(target: Target, component: str) -> dict[str, str]:
    """Return the component of each ready module that a constructor takes, by its argument, as names say."""
    # What names say is a number or a switch, such as layer_norm_eps, is no module.
    required = [argument.name for argument in target.list_sizes() if argument.is_required and argument.constant is None]
    kinds = {}
    for name in required:
        words = split_words(name)
        if list_roles(name, SIZES) or _COUNT_WORDS & {*words}:
            continue
        if _ATTENTION_WORDS & {*words} and component in ("encoder_layer", "decoder_layer"):
            kinds[name] = "multi_head_attention"
        elif "norm" in words:
            kinds[name] = "layer_norm"
        elif {"layer", "block"} & {*words} and component in ("encoder", "decoder"):
            kinds[name] = f"{component}_layer"
    if "multi_head_attention" in kinds.values():
        # Next to a ready attention, feed_forward is no width.
        kinds |= {
            n: "feed_forward" for n in required if find_part(n) == "feed" and not _WIDTH_WORDS & {*split_words(n)}
        }
    return kinds


def _list_parts(target: Target, kind: str, users: tuple[Any, ...] = ()) -> Iterator[Made]:
    """Yield the classes next to a target whose parameters are those of a component, each with a way to build it."""
    for other in (other for other in target.list_neighbours() if other.thing not in users):
        for construction in _list_constructions(other, kind, users=(*users, target.thing)):
            module = _try_to_build(other, construction)
            if module is not None and any(name_parameters(kind, list_leaves(module), construction)):
                yield Made(other.thing, construction.arguments)
                break


def explain_parts(target: Target) -> str:
    """Return what to write for a class whose constructor takes modules that nothing next to it gives; "" for others."""
    for component in ("encoder_layer", "decoder_layer", "encoder", "decoder"):
        kinds = _find_kinds(target, component)
        missing = [name for name, kind in kinds.items() if not any(_list_parts(target, kind))]
        if missing:
            sizes = [argument.name for argument in target.list_sizes() if argument.is_required]
            # Some constructors take classes, and call them.
            text = inspect.getsource(target.thing.__init__)
            parts = {n: "YourClass" if re.search(rf"\b{n}\(", text) else "YourClass(…)" for n in kinds}
            given = ", ".join(f"{name}={parts.get(name, '…')}" for name in sizes)
            own = "d_model, num_heads, d_ff" + (", num_layers" if component in ("encoder", "decoder") else "")
            return (
                f"takes arguments for which its file has no class: {' and '.join(missing)}. Import a class there, give "
                f"a default, or write a subclass that builds them: def __init__(self, {own}): super().__init__({given})"
            )
    return ""


def _try_to_build(target: Target, construction: Construction) -> Any:
    """Return a module of probing sizes, or None if the constructor refuses them."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return target.build(construction, PROBE)
    except Exception:  # the sizes are a guess, and a wrong one may raise anything
        return None


def explain_unbuilt(target: Target) -> str:
    """Return why no module of a class can be built, as a sentence with a remedy; "" if one can."""
    reasons = []
    for construction in (c for shared in (False, True) for c in target.list_constructions(PROBE, shared=shared)):
        try:
            target.build(construction, PROBE)
        except Exception as error:
            given = ", ".join(f"{name}={PROBE[role]}" for name, role in construction.list_sizes())
            reasons.append(f"{target.name}({given}) raises {type(error).__name__}: {error}")
        else:
            return ""
    reason = reasons[0].rstrip(".") if reasons else "nothing says what the arguments of its constructor are"
    return f"{reason}. Give a subclass whose __init__ takes its sizes by usual names, such as d_model and num_heads"


def has_fixed_sizes(target: Target) -> bool:
    """Return True for a class with parameters whose constructor takes no size, as where its sizes are constants."""
    arguments = target.list_sizes()
    if any(list_roles(a.name, SIZES) or (a.is_required and a.constant is None) for a in arguments):
        return False
    module = _try_to_build(target, Construction({a.name: a.constant for a in arguments if a.is_required}))
    return module is not None and bool(list_leaves(module))
