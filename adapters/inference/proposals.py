"""The adapters that a class or a function may need, most likely first."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from goldformer.adapters.inference.inputs import list_arguments
from goldformer.adapters.inference.parameters import name_parameters
from goldformer.adapters.inference.target import PROBE, Construction, Target, find_config, list_leaves
from goldformer.adapters.inference.writing import Wiring
from goldformer.adapters.protocol import INFERRED_FUNCTIONS, Adapter
from goldformer.spec import Spec

#: The components whose adapter can be inferred, the largest first: what has most parts can be nothing smaller.
COMPONENTS: Final = (
    "transformer",
    "decoder",
    "encoder",
    "decoder_layer",
    "encoder_layer",
    "multi_head_attention",
    "fused_multi_head_attention",
    "feed_forward",
    "layer_norm",
    "token_embedding",
    "scaled_dot_product_attention",
    "positional_encoding",
    "softmax",
)

_OF_HEADS: Final = ("width", "heads", "head_width", "value_width", "input_width", "positions")
_OF_LAYERS: Final = ("width", "heads", "head_width", "value_width", "inner", "expansion", "positions")
_OF_MODELS: Final = (
    "vocab", "source_vocab", "target_vocab", *_OF_LAYERS, "layers", "encoder_layers", "decoder_layers", "pad",
)  # fmt: skip

#: The sizes that a constructor may ask for, by component.
SIZES_OF: Final[Mapping[str, tuple[str, ...]]] = {
    "transformer": _OF_MODELS,
    "decoder": (*_OF_LAYERS, "layers"),
    "encoder": (*_OF_LAYERS, "layers"),
    "decoder_layer": _OF_LAYERS,
    "encoder_layer": _OF_LAYERS,
    "multi_head_attention": _OF_HEADS,
    "fused_multi_head_attention": _OF_HEADS,
    "feed_forward": ("width", "inner", "expansion"),
    "layer_norm": ("width",),
    "token_embedding": ("vocab", "width"),
    "scaled_dot_product_attention": ("temperature", "head_width", "width"),
    "positional_encoding": ("width", "positions"),
    "softmax": (),
}


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
    guesses = component != "scaled_dot_product_attention"
    for construction in target.list_constructions(SIZES_OF[component], guesses=guesses):
        module = _try_to_build(target, construction)
        if module is None:
            continue
        for naming in name_parameters(component, list_leaves(module), construction):
            yield from (Wiring(target, contract, one, construction, naming) for one in listed)


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
    for construction in target.list_constructions(PROBE):
        try:
            target.build(construction, PROBE)
        except Exception as error:
            given = ", ".join(f"{name}={PROBE[role]}" for name, role in construction.sizes.items())
            reasons.append(f"{target.name}({given}) raises {type(error).__name__}: {error}")
        else:
            return ""
    reason = reasons[0] if reasons else "nothing says what the arguments of its constructor are"
    return f"{reason}. Give a subclass whose __init__ takes its sizes by usual names, such as d_model and num_heads"


def find_embedding_stack(target: Target) -> str:
    """Return the stack, "encoder" or "decoder", that a class is apart from its embedding tables, or ""."""
    if not target.is_class:
        return ""
    for construction in target.list_constructions(SIZES_OF["transformer"]):
        module = _try_to_build(target, construction)
        leaves = list_leaves(module) if module is not None else []
        others = [leaf for leaf in leaves if leaf.kind != "table"]
        for stack in ("encoder", "decoder"):
            if len(others) < len(leaves) and any(name_parameters(stack, others, construction)):
                return stack
    return ""


def load_wiring(wiring: Wiring, spec: Spec) -> Adapter:
    """Return the adapter that the text of a wiring defines, with the target itself in the place of its import."""
    target, wrapper = wiring.target, wiring.construction.wrapper
    module = ModuleType(f"inferred_{target.name}")
    vars(module)[wiring.local_name] = target.thing
    if wrapper:
        vars(module)[wrapper] = find_config(target, wrapper)
    text = "\n".join(line for line in wiring.write().splitlines() if not line.startswith(target.import_line))
    exec(compile(text, f"<inferred adapter of {target.name}>", "exec"), vars(module))
    # Our own text needs no checks, and there may be hundreds.
    adapter = Adapter.from_trusted(module, target.name, spec, arrays=target.arrays)
    return replace(adapter, conventions=wiring.declared)
