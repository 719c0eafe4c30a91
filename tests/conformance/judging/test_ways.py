"""Code that is right, but wrong in one way of being called: it fails, and the way is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.func import functional_call

from goldformer.adapters import Adapter
from goldformer.adapters.layouts import linear_weight
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.ways import WAYS, select_ways


@dataclass
class Call:
    """The traits by which a program can tell one call from another."""

    inputs: tuple[Any, ...]
    mask: Any = None
    weight: Any = None
    module: Any = None

    @property
    def first(self) -> Any:
        return self.inputs[0]


def keeps_first(call: Call) -> bool:
    number = call.first.flatten()[0].item()
    return bool(call.module.__dict__.setdefault("kept", number) != number)


def is_transposed(array: Any) -> bool:
    if array is None or array.ndim == 1 or min(array.shape[-2:]) == 1:
        return False
    return bool(array.stride()[-2:] == (1, array.shape[-2]))


class Finish(torch.autograd.Function):
    """The output as it is, with a backward pass of its own."""

    @staticmethod
    def forward(ctx, output, first, wrong):
        ctx.wrong = wrong
        return output.view_as(output)

    @staticmethod
    def backward(ctx, gradient):
        needed = ctx.needs_input_grad[:2]
        return gradient * (1 + ctx.wrong(Gradient(gradient, needed))), None, None


class Gradient(NamedTuple):
    """The traits by which a backward pass can tell one call from another."""

    first: Any
    needed: tuple[bool, bool]


#: By way of a gradient: whether a backward pass is one in which the program is wrong.
WRONG_BACKWARD: dict[str, Callable[[Gradient], bool]] = {
    "cotangent-transposed": lambda call: is_transposed(call.first),
    "cotangent-strided": lambda call: call.first.stride()[-2:] == (2 * call.first.shape[-1], 2),
    "some-gradients": lambda call: not all(call.needed),
}

#: By way: whether a call is one in which the program is wrong.
WRONG: dict[str, Callable[[Call], bool]] = {
    "mask-transposed": lambda call: is_transposed(call.mask),
    "mask-strided": lambda call: call.mask is not None and call.mask.ndim > 0 and call.mask.stride(-1) == 2,
    "mask-expanded": lambda call: call.mask is not None and 0 in call.mask.stride(),
    "inputs-transposed": lambda call: is_transposed(call.first),
    "inputs-strided": lambda call: call.first.stride()[-2:] == (2 * call.first.shape[-1], 2),
    "no-mask": lambda call: call.mask is None,
    "same-object": lambda call: len({*map(id, call.inputs)}) < len(call.inputs),
    "training": lambda call: call.module.training,
    "second-call": keeps_first,
    "recording": lambda call: call.first.requires_grad and (call.weight is None or call.weight.requires_grad),
    "recording-inputs": lambda call: call.first.requires_grad and not call.weight.requires_grad,
    "recording-parameters": lambda call: call.weight.requires_grad and not call.first.requires_grad,
}


def attend(query, key, value, mask):
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(-1) @ value


def is_never(_: Any) -> bool:
    return False


@dataclass
class Wrong:
    """When a program is wrong, in its forward and in its backward pass."""

    call: Callable[[Call], bool] = is_never
    gradient: Callable[[Gradient], bool] = is_never

    def finish(self, output: Any, call: Call) -> Any:
        return Finish.apply(output + self.call(call), call.first, self.gradient)


#: What the classes are, which take only what the contract has.
NOW = [Wrong()]


def scaled_dot_product_attention(query, key, value, mask=None):
    """Attention as a function of an adapter."""
    return NOW[0].finish(attend(query, key, value, mask), Call((query, key, value), mask))


class Heads(nn.Module):
    """Attention as a class."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, 0.1
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        read = ((self.w_q, query), (self.w_k, key), (self.w_v, value))
        q, k, v = (w(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for w, x in read)
        heads = nn.functional.dropout(attend(q, k, v, mask), self.dropout, self.training)
        call = Call((query, key, value), mask, self.w_q.weight, self)
        return NOW[0].finish(self.w_o(heads.transpose(1, 2).flatten(2)), call)


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    """Build the class as an adapter does."""
    if not params["w_q"].shape == params["w_k"].shape == params["w_v"].shape == params["w_o"].shape:
        raise NotImplementedError("one width")
    module = Heads(query.shape[-1], num_heads).to(query.dtype).eval()
    return functional_call(module, make_state(params), (query, key, value, mask), strict=True)


class Network(nn.Module):
    """The network as a class."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.drop, self.w_1, self.w_2 = nn.Dropout(0.5), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        return NOW[0].finish(self.w_2(self.drop(self.w_1(x).relu())), Call((x,), None, self.w_1.weight, self))


def feed_forward(x, *, params):
    """Build the class as an adapter does."""
    module = Network(*params["w_1"].shape).to(x.dtype).eval()
    return functional_call(module, make_state(params), (x,), strict=True)


def make_state(params):
    weights = {f"{name}.weight": linear_weight(w) for name, w in params.items() if name.startswith("w_")}
    zeros = {name: w.new_zeros(w.shape[0]) for name, w in weights.items()}
    return weights | {
        name.replace("weight", "bias"): params.get(name[:-7].replace("w_", "b_"), zeros[name]) for name in weights
    }


#: The programs: a function of an adapter, and two classes that an adapter builds.
ATTEND, HEADS, NETWORK = scaled_dot_product_attention, multi_head_attention, feed_forward
PROGRAMS = {
    "mask-transposed": (ATTEND, HEADS),
    "mask-strided": (ATTEND, HEADS),
    "mask-expanded": (ATTEND, HEADS),
    "inputs-transposed": (ATTEND, NETWORK),
    "inputs-strided": (ATTEND, NETWORK),
    "same-object": (ATTEND, HEADS),
    "no-mask": (ATTEND, HEADS),
    "training": (HEADS, NETWORK),
    "second-call": (HEADS, NETWORK),
    "recording": (ATTEND, NETWORK),
    "recording-inputs": (HEADS, NETWORK),
    "recording-parameters": (HEADS, NETWORK),
    "cotangent-transposed": (ATTEND, NETWORK),
    "cotangent-strided": (ATTEND, NETWORK),
    "some-gradients": (ATTEND, HEADS),
}


def judge_ways(function, wrong, spec, **declared):
    """Return the failing verdicts of the cases that are called in some way, and how many passed."""
    NOW[0], component = wrong, function.__name__
    program = SimpleNamespace(ARRAYS="torch", CONVENTIONS=declared, **{component: function})
    adapter = Adapter.from_object(program, "program", spec)
    bench = Bench(spec, adapter, "float32", "cpu")
    verdicts = [judge_case(spec.cases[id_], bench).verdict for id_ in select_ways(component, spec)]
    return [v for v in verdicts if v.bad], sum(not v.bad and v.is_judged for v in verdicts)


def test_every_way_has_two_wrong_programs():
    assert PROGRAMS.keys() == WAYS.keys()


@pytest.mark.parametrize(("way", "function"), [(way, one) for way, both in PROGRAMS.items() for one in both])
def test_code_that_is_wrong_in_one_way_fails_and_the_way_is_named(way, function, spec):
    wrong = Wrong(WRONG[way]) if way in WRONG else Wrong(gradient=WRONG_BACKWARD[way])
    declared = {"later_tokens": "hidden_only"} if way == "no-mask" else {}
    bad, passed = judge_ways(function, wrong, spec, **declared)
    assert bad
    assert passed
    assert {(v.reason, v.message.partition(": ")[0] + ": ") for v in bad} == {("way", WAYS[way].describe(""))}


@pytest.mark.parametrize("function", [ATTEND, HEADS, NETWORK])
def test_right_code_passes_in_every_way(function, spec):
    bad, passed = judge_ways(function, Wrong(), spec)
    assert bad == []
    assert passed > 10
