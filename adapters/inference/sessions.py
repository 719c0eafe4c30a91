"""Classes that keep keys and values between calls: how they keep them, and how they are called one call after another.

A session's state is the object with what it keeps, the cache that it returned, and the number of tokens so far. An
attention with projections is judged as attention of queries, keys and values: its input is all three next to each
other, and each projection selects its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any, Final

from goldformer.adapters import layouts
from goldformer.adapters.inference.caches import Cache, find_cache, find_output, make_first
from goldformer.adapters.inference.calls import Calling
from goldformer.adapters.inference.target import resolve
from goldformer.spec import load_spec

#: The components that are called in sessions, by those that are called once; an attention has no parameters of its own.
SESSIONS: Final[Mapping[str, str]] = {
    "decoder_only_model": "cached_model",
    "multi_head_attention": "cached_attention",
    "fused_multi_head_attention": "cached_attention",
}
_WHOLE: Final = ("multi_head_attention", "fused_multi_head_attention")

#: The tokens that a session has room for, at least and at most, by those of its first call.
_LEAST, _MOST, _TIMES = 128, 4096, 8

#: An array of any library.
Array = Any


@dataclass
class State:
    """The state that a call of a session leaves for the next one."""

    module: Any
    cache: Any
    #: The tokens so far, and those that there is room for.
    length: int
    room: int


def run_session(wiring: Calling, cache: Cache, call: dict[str, Any]) -> Any:
    """Call a class with the tokens of one call of a session; return its outputs, and the state in a session."""
    torch, contract = import_module("torch"), wiring.contract
    has_state = contract.session is not None
    own, inner = _open(wiring, call) if has_state else (wiring, call)
    first = next(iter(own.contract.inputs))
    ids = inner[first]
    state = call.get("state") or State(None, None, 0, min(max(_LEAST, _TIMES * ids.shape[1]), _MOST))
    if ids.requires_grad or any(array.requires_grad for array in call.get("params", {}).values()):
        raise NotImplementedError(f"{wiring.target.name} keeps keys and values without their gradients")
    if cache.tokens == "one_after" and state.length and ids.shape[1] > 1:
        raise NotImplementedError(f"{wiring.target.name} takes one token a call after the first")
    outputs = []
    with torch.no_grad():
        step = 1 if cache.tokens == "one" else ids.shape[1]
        for start in range(0, ids.shape[1], step):
            inputs = {n: inner[n][:, start : start + step] for n in own.contract.inputs if n not in own.contract.masks}
            output, state = _continue(own, cache, {**inner, **inputs}, state)
            outputs.append(output)
    joined = torch.cat(outputs, 1)
    if contract.component == "cached_attention":
        joined = _read_heads(joined, call)
    return (joined, state) if has_state else joined


def _continue(own: Calling, cache: Cache, call: dict[str, Any], state: State) -> tuple[Array, State]:
    """Make one call, given the state of an earlier one; return its output and the state that it leaves."""
    first = next(iter(own.contract.inputs))
    tokens = call[first].shape[1]
    sized = {**call, "start": state.length, "length": state.room}
    module, kept = state.module, state.cache
    if module is None:
        find_size = partial(own.find_size, call=sized)
        # A fused projection is one of the layouts of three.
        separate = load_spec().contracts[_WHOLE[0]] if own.component in _WHOLE else own.contract
        module, params = replace(own, contract=separate).build(sized)
        module.load_state_dict(params, strict=False)
        if cache.setup:
            room = {name: resolve(value, find_size) for name, value in (cache.room or {}).items()}
            getattr(module, cache.setup)(**room)
        module = module.to(own.find_like(sized))
        kept = make_first(cache.first, find_size)
    given = own.pass_arguments(sized)
    given |= {cache.argument: kept} if cache.argument else {}
    masks = _make_masks(own, cache, sized, state.length + tokens, state.room)
    returned = module(**given, **masks)
    kept = find_cache(returned, kept) if cache.argument else None
    output, left = find_output(returned), State(module, kept, state.length + tokens, state.room)
    return layouts.batch_first(output) if own.sequence_first else output, left


def _open(wiring: Calling, call: dict[str, Any]) -> tuple[Calling, dict[str, Any]]:
    """Return the wiring of the component that a call of a session is a part of, and that call."""
    contracts = load_spec().contracts
    if wiring.component == "cached_model":
        return replace(wiring, contract=contracts["decoder_only_model"]), call
    whole = contracts["fused_multi_head_attention" if "x" in wiring.arguments.call.values() else _WHOLE[0]]
    return replace(wiring, contract=whole), project(call)


def project(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return the call of an attention with projections that has these queries, keys and values (batch, heads, seq, d).

    Values that are wider than keys are shared out to several heads of the same query and key, narrower ones are padded
    with zeros. The heads that are left have no query, key or value, and give zeros.
    """
    torch, query, key = import_module("torch"), call["query"], call["key"]
    heads, width = query.shape[1], query.shape[-1]
    group, parts = heads // max(key.shape[1], 1), -(-call["value"].shape[-1] // max(width, 1))
    if not (width and parts) or heads != group * key.shape[1] or key.shape[1] != call["value"].shape[1]:
        raise NotImplementedError("each group of queries has one head of keys and one of values")
    value = torch.nn.functional.pad(call["value"], (0, parts * width - call["value"].shape[-1]))
    x = torch.cat(
        [a.transpose(1, 2).flatten(2) for a in (query, *(a.repeat_interleave(group, 1) for a in (key, value)))], -1
    )
    size, index = x.shape[-1], torch.arange(heads * width, device=x.device).unflatten(0, (heads, width))
    repeated = index.repeat_interleave(parts, 0).flatten()
    places = (
        repeated,
        repeated + heads * width,
        torch.arange(parts * heads * width, device=x.device) + 2 * heads * width,
    )
    eye = torch.eye(size, dtype=x.dtype, device=x.device)
    maps = {
        f"w_{name}": torch.nn.functional.pad(eye[:, columns], (0, size - len(columns)))
        for name, columns in zip("qkv", places, strict=True)
    }
    inputs = dict.fromkeys(("x", "query", "key", "value"), x)
    sizes = dict.fromkeys(("num_heads", "num_kv_heads"), size // width)
    return {**inputs, **sizes, "params": {**maps, "w_o": eye}, "mask": call["mask"]}


def _read_heads(output: Array, call: Mapping[str, Any]) -> Array:
    """Return the output (batch, heads, seq, d_v) of an attention that was called with `project`."""
    heads, width = call["query"].shape[1], call["query"].shape[-1]
    wide = -(-call["value"].shape[-1] // width) * width
    return output[..., : heads * wide].unflatten(-1, (heads, wide)).transpose(1, 2)[..., : call["value"].shape[-1]]


def _make_masks(own: Calling, cache: Cache, call: dict[str, Any], so_far: int, room: int) -> dict[str, Any]:
    """Return the masks of a call of a session: its tokens see themselves and all tokens before them."""
    torch, masks = import_module("torch"), [name for name in own.contract.masks if name in call]
    if not masks:
        return {}
    first = call[next(iter(own.contract.inputs))]
    mask, takes = call[masks[0]], own.arguments.all_masks and own.mask.shape not in ("absent", "causal")
    if not takes:
        if mask is not None:
            raise NotImplementedError(f"{own.target.name} takes no such mask")
        return own.read_masks({**call, masks[0]: None}) if own.mask.shape != "causal" else {}
    # A cache of a fixed size is read whole: its empty places are hidden.
    columns = room if cache.setup else so_far
    rows = torch.arange(so_far - first.shape[1], so_far, device=first.device)
    causal = rows[:, None] >= torch.arange(columns, device=first.device)
    if mask is not None:
        causal = causal & torch.nn.functional.pad(mask, (0, columns - so_far))
    keys = first.new_empty((first.shape[0], columns, first.shape[-1]))
    return own.convert_mask(masks[0], causal, first, keys, call["num_heads"])
