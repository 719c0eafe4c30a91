"""Changes that take one thing out of a call: a part of the component, a mask, all heads but one, all layers but one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from goldformer.conformance.judging.invoke import Arguments, Array
from goldformer.conformance.properties.relations import join_names
from goldformer.spec import Contract
from goldformer.spec.model import read_count

Change = Callable[[Arguments], Arguments]

_WORDS: Final = {
    "": "attention",
    "self_attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward network",
}
#: The weight by which a part ends.
_LAST_WEIGHT: Final = re.compile(
    r"(?:(?P<stack>\w+)\.\d+\.)?(?:(?P<block>self_attention|cross_attention)\.w_o|(?P<network>feed_forward)\.w_2|w_o)"
)
#: It fills all digits of what it multiplies: the numbers of cases often have few.
_UNEVEN: Final = 0.7310585786300049
#: A power of two, so that no digit changes. Numbers this many times smaller escape most limits.
_SHRUNK: Final = 2.0**-5


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of a call, and in words what holds after it; after those `instead` it changes nothing."""

    id: str
    words: str
    change: Change
    instead: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """An attention or a feed-forward network of a component, in all layers of its stack.

    `silence` makes it add nothing. `details` take out what it has, `probes` change its numbers. Its results are
    seen only through the parts with the ids `behind`.
    """

    id: str
    words: str
    kind: str
    silence: Switch
    details: tuple[Switch, ...]
    probes: tuple[Switch, ...]
    behind: tuple[str, ...] = ()
    #: The axes of a call along which an attention has its keys.
    key_axes: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return True if the part is all of its component: an attention."""
        return self.id == "attention"


def list_parts(arguments: Arguments) -> list[Part]:
    """Return the parts that a call has, the decoder's before the encoder's, which is seen only through it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in arguments.params:
        if match := _LAST_WEIGHT.fullmatch(name):
            found.setdefault((match["stack"] or "", match["block"] or match["network"] or ""), []).append(
                name.rpartition(".")[0]
            )
    has_two = len({stack for stack, _ in found}) > 1
    order = sorted(found, key=lambda key: (key[0] == "encoder" and has_two, [*_WORDS].index(key[1])))
    return [_make_part(arguments, stack, block, found[stack, block], named=has_two) for stack, block in order]


def _make_part(arguments: Arguments, stack: str, block: str, prefixes: Sequence[str], *, named: bool) -> Part:
    id_ = f"{stack}.{block}" if named else block or "attention"
    words = f"the {stack}'s {_WORDS[block]}" if named else f"the {_WORDS[block]}"
    label = f"{id_}." if block else ""

    def choose(*names: str) -> set[str]:
        return {full for p in prefixes for n in names if (full := f"{p}.{n}".lstrip(".")) in arguments.params}

    def clear(detail: str, *names: str, instead: tuple[str, ...] = ()) -> Iterator[Switch]:
        """Set parameters to 0, if there are any."""
        if chosen := choose(*names):
            shown = [name for name in names if choose(name)]
            words = f"{label}{' = '.join(shown)} = 0"
            yield Switch(f"{id_}{detail}", words, _scale(chosen, 0.0), tuple(f"{id_}:{other}" for other in instead))

    def shrink(detail: str, what: str, *names: str) -> Switch:
        return Switch(f"{id_}:{detail}", f"{what} 32 times smaller", _scale(choose(*names), _SHRUNK))

    def ignore_shift(*names: str) -> Switch:
        """Make a part blind to one number added to all channels, which a layer normalisation hides from the others."""
        shown = join_names([name for name in names if choose(name)])
        return Switch(f"{id_}:shift", f"columns of {label}{shown} that sum to 0", _centre(choose(*names)))

    behind = ("decoder.cross_attention",) if named and stack == "encoder" else ()
    if block == "feed_forward":
        (silence,) = clear("", "w_2", "b_2")
        details = (*clear(":constant", "w_2"), *clear(":biases", "b_1", "b_2", instead=("constant",)))
        probes = (
            ignore_shift("w_1"),
            Switch(f"{id_}:negative", "no negative hidden number", _keep_positive(choose("w_1"), choose("b_1"))),
            shrink("size", "hidden numbers", "w_1", "b_1"),
        )
        return Part(id_, words, "feed_forward", silence, details, probes if choose("b_1") else probes[::2], behind)
    (silence,) = clear("", "w_o", "b_o")
    fused = choose("w_qkv", "b_qkv")
    keys, queries = (_clear_projection(choose(f"w_{role}", f"b_{role}"), fused, "qk".index(role)) for role in "kq")
    details = (
        *clear(":constant", "w_o"),
        *clear(":biases", "b_q", "b_k", "b_v", "b_qkv", "b_o", instead=("constant",)),
        Switch(f"{id_}:weights", f"all queries of {words} 0", queries, (f"{id_}:constant",)),
        Switch(f"{id_}:keys", f"all keys of {words} 0", keys, (f"{id_}:constant", f"{id_}:weights")),
    )
    probes = (
        ignore_shift("w_q", "w_k", "w_v", "w_qkv"),
        shrink("scores", "scores", "w_q", "b_q"),
        shrink("size", "values", "w_v", "b_v"),
    )
    key_axes = ("source_seq",) if behind or block == "cross_attention" else ("seq", "kv_seq")
    return Part(id_, words, "attention", silence, details, probes[:1] if fused else probes, behind, key_axes)


def list_layer_switches(contract: Contract, arguments: Arguments) -> list[Switch]:
    """Return the switches that leave one layer of each stack of several."""
    attributes = arguments.attributes
    deep = [stack for stack in contract.layers if read_count(attributes[stack.count]) > 1]
    return [
        Switch(f"layers:{stack.prefix}", f"{stack.count} = 1", _leave_first_layer(stack.prefix, stack.count))
        for stack in deep
    ]


def list_general(contract: Contract, arguments: Arguments) -> list[Switch]:
    """Return the switches of the whole call: samples, words, masks, heads, lengths.

    Masks go before lengths: a mask that is cut may leave no key.
    """
    sizes = arguments.bind(contract).sizes
    words = {"seq": "one word", "source_seq": "one word to attend to", "q_seq": "one query", "kv_seq": "one key"}
    if "source" in contract.inputs:
        words |= {"seq": "one target word", "source_seq": "one source word"}
    elif "memory" in contract.inputs:
        words |= {"seq": "one target word", "source_seq": "one row of memory"}
    masks = [n for n, spec in contract.inputs.items() if spec.kind == "bool" and n in arguments.inputs]
    has_ids = any(spec.kind == "ids" for spec in contract.inputs.values())
    beams = read_count(arguments.attributes.get("beam_size", 1))
    return [
        *([Switch("beams", "beam_size = 1", _leave_one_beam)] if beams > 1 else []),
        *([Switch("samples", "one sample", _cut_axis(contract, "batch"))] if sizes.get("batch", 1) > 1 else []),
        *([Switch("ids", "one word throughout each sentence", _repeat_word)] if has_ids else []),
        *(Switch(f"mask:{name}", f"no {name}", _leave_out_input(name)) for name in masks),
        *([Switch("heads", "one head", _leave_one_head(contract))] if sizes.get("heads", 1) > 1 else []),
        *(Switch(f"words:{a}", words[a], _cut_axis(contract, a)) for a in words if sizes.get(a, 1) > 1),
    ]


def list_of_skeleton(arguments: Arguments, *, post: bool) -> list[Switch]:
    """Return the switches of what is left when all parts are silent: norms, embedding, output layer."""
    gains = [name for name in arguments.params if name.endswith("gamma")]
    last = _find_last_norm(gains, post=post)
    hidden = ([last] if last else []) if "table" in arguments.params else gains[:-1] if post else []
    cuts = [Switch(f"cut:{gain}", f"{gain} = 0", _scale({gain}, 0.0)) for gain in hidden]
    table = [Switch("words:table", "table = 0", _scale({"table"}, 0.0))] if "table" in arguments.params else []
    return [*cuts, *table, Switch("gains", "all gains 1 and shifts 0", _reset_norms, tuple(cut.id for cut in cuts))]


def list_memory_switches(arguments: Arguments, *, post: bool) -> list[Switch]:
    """Return the switch that makes the memory 0, which shows nowhere while the cross-attention is silent."""
    if "memory" in arguments.inputs:
        return [Switch("memory", "memory = 0", _clear_memory)]
    gains = [name for name in arguments.params if name.startswith("encoder") and name.endswith("gamma")]
    last = "encoder_norm.gamma" if "encoder_norm.gamma" in gains else gains[-1] if gains and post else ""
    if "source" not in arguments.inputs or not last:
        return []
    norm = {last, last.replace("gamma", "beta")}
    return [Switch("memory", f"{' = '.join(sorted(norm, reverse=True))} = 0", _scale(norm, 0.0))]


def make_uneven(arguments: Arguments) -> Switch:
    """Return the switch that gives the inputs of a call all their digits, so that rounding them shows."""
    inputs = {name for name, array in arguments.inputs.items() if array.dtype.kind == "f"}
    words = f"{join_names([*inputs] or ['table'])} times {_UNEVEN:.3f}"

    def change(arguments: Arguments) -> Arguments:
        if not inputs:
            return _scale({"table"}, _UNEVEN)(arguments)
        return replace(arguments, inputs={n: a * _UNEVEN if n in inputs else a for n, a in arguments.inputs.items()})

    return Switch("uneven", words, change)


def list_single_steps(arguments: Arguments) -> list[Switch]:
    """Return the switch that leaves one step of decoding, if there are several."""
    steps = read_count(arguments.attributes.get("max_length", 1))
    return [Switch("steps", "max_length = 1", _set_attribute("max_length", 1))] if steps > 1 else []


def _find_last_norm(gains: Sequence[str], *, post: bool) -> str:
    """Return the gain of the last normalisation that a result passes, or "" if a residual goes around it."""
    final = [name for name in gains if name in ("norm.gamma", "decoder_norm.gamma")]
    of_layers = [name for name in gains if name.startswith("decoder.")]
    return final[0] if final else of_layers[-1] if post and of_layers else ""


def change_params(arguments: Arguments, changed: Mapping[str, Array]) -> Arguments:
    """Return a call with some parameters replaced."""
    return replace(arguments, params={**arguments.params, **changed})


def _scale(names: set[str], factor: float) -> Change:
    def change(arguments: Arguments) -> Arguments:
        return change_params(arguments, {n: a * factor for n, a in arguments.params.items() if n in names})

    return change


def _keep_positive(weights: set[str], biases: set[str]) -> Change:
    """Make all hidden numbers positive: 1 plus a little."""

    def change(arguments: Arguments) -> Arguments:
        shrunk = _scale(weights, _SHRUNK)(arguments)
        return change_params(shrunk, {n: np.ones_like(a) for n, a in arguments.params.items() if n in biases})

    return change


def _clear_projection(plain: set[str], fused: set[str], place: int) -> Change:
    """Make all queries (place 0) or keys (place 1) 0, also where one matrix makes queries, keys and values."""

    def change(arguments: Arguments) -> Arguments:
        heads = read_count(arguments.attributes["num_heads"])
        changed = {}
        for name in fused & arguments.params.keys():
            array = arguments.params[name].copy()
            array.reshape(*array.shape[:-1], heads, 3, -1)[..., place, :] = 0.0
            changed[name] = array
        return change_params(_scale(plain, 0.0)(arguments), changed)

    return change


def _centre(names: set[str]) -> Change:
    return lambda arguments: change_params(
        arguments, {n: a - a.mean(0) for n, a in arguments.params.items() if n in names}
    )


def _reset_norms(arguments: Arguments) -> Arguments:
    norms = {n: np.full_like(a, float(n.endswith("gamma"))) for n, a in arguments.params.items()
             if n.endswith(("gamma", "beta"))}  # fmt: skip
    return change_params(arguments, norms)


def _leave_first_layer(prefix: str, count: str) -> Change:
    def change(arguments: Arguments) -> Arguments:
        later = re.compile(rf"{prefix}\.[1-9]\d*\.")
        kept = {name: array for name, array in arguments.params.items() if not later.match(name)}
        return replace(_set_attribute(count, 1)(arguments), params=kept)

    return change


def _set_attribute(name: str, value: int) -> Change:
    return lambda arguments: replace(arguments, attributes={**arguments.attributes, name: value})


def _leave_one_beam(arguments: Arguments) -> Arguments:
    return _set_attribute("top_beams", 1)(_set_attribute("beam_size", 1)(arguments))


def _clear_memory(arguments: Arguments) -> Arguments:
    return replace(arguments, inputs={**arguments.inputs, "memory": 0.0 * arguments.inputs["memory"]})


def _leave_out_input(name: str) -> Change:
    def change(arguments: Arguments) -> Arguments:
        return replace(arguments, inputs={n: array for n, array in arguments.inputs.items() if n != name})

    return change


def _leave_one_head(contract: Contract) -> Change:
    cut = _cut_axis(contract, "heads")
    return lambda arguments: _set_attribute("num_heads", 1)(cut(arguments))


def _repeat_word(arguments: Arguments) -> Arguments:
    inputs = {
        n: np.broadcast_to(a[:, :1], a.shape).copy() if a.dtype.kind == "i" else a for n, a in arguments.inputs.items()
    }
    return replace(arguments, inputs=inputs)


def _cut_axis(contract: Contract, axis: str) -> Change:
    """Keep the first place of an axis in every input that has it."""

    def cut(name: str, array: Array) -> Array:
        axes = [str(symbol) for symbol in contract.inputs[name].shape.axes][-array.ndim :]
        for place in _find_places(axes, axis):
            array = array.take([0], place - len(axes))
        return array

    return lambda arguments: replace(arguments, inputs={n: cut(n, a) for n, a in arguments.inputs.items()})


def _find_places(axes: Sequence[str], axis: str) -> Iterator[int]:
    return (place for place, name in enumerate(axes) if name == axis)
