"""`assert_correct` in half types: a pool of right and wrong code at ordinary sizes, and styles of rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from tests.support.runs import make_run
from torch.nn import functional as F

import goldformer
from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.api.own_call import OwnCall
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.comparator import find_ratio
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.measure import find_tolerance
from goldformer.conformance.reports.remarks import make_remarks
from goldformer.spec import load_spec

Call = Any
Code = Callable[[Call], Any]

ATTENTION = "scaled_dot_product_attention"
DTYPES = ["bfloat16", "float16", "float32"]
#: The sizes of each component: (batch, heads, tokens, width) or the like.
SIZES: dict[str, list[tuple[int, ...]]] = {
    ATTENTION: [(1, 1, 256, 64), (2, 4, 128, 32), (1, 2, 64, 128), (1, 2, 300, 80), (4, 1, 48, 16), (1, 2, 257, 96)],
    "softmax": [(8, 64), (32, 128), (2, 4, 100), (4, 1000), (16, 33), (3, 4, 257)],
    "layer_norm": [(8, 64), (32, 256), (2, 10, 768), (16, 1024), (64, 96), (4, 16, 128)],
    "feed_forward": [(2, 16, 64), (1, 32, 128), (4, 8, 32), (2, 20, 96), (1, 64, 64), (3, 10, 256)],
    "cross_entropy": [(2, 16, 64), (1, 32, 128), (4, 8, 32), (2, 20, 1000), (1, 64, 64), (3, 10, 257)],
}  # fmt: skip


def draw_call(component: str, size: tuple[int, ...], dtype: str) -> Call:
    random = torch.Generator().manual_seed(sum(size))

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=random).to(getattr(torch, dtype))

    width = size[-1]
    if component == ATTENTION:
        tokens = size[-2]
        mask = torch.ones(tokens, tokens, dtype=torch.bool).tril(tokens // 3)
        return {"query": draw(*size), "key": draw(*size), "value": draw(*size), "mask": mask}
    if component == "softmax":
        return {"scores": 2 * draw(*size)}
    if component == "layer_norm":
        return {"x": draw(*size) + 0.25, "params": {"gamma": draw(width).abs() + 0.5, "beta": draw(width)}}
    if component == "feed_forward":
        w_1, w_2 = draw(width, 4 * width) / math.sqrt(width), draw(4 * width, width) / math.sqrt(4 * width)
        return {"x": draw(*size), "params": {"w_1": w_1, "b_1": draw(4 * width), "w_2": w_2, "b_2": draw(width)}}
    targets = torch.randint(1, width, size[:-1], generator=random)
    targets[:, -3:] = 0
    return {"logits": 2 * draw(*size), "targets": targets, "pad_id": 0}


def widen(call: Call) -> Call:
    """Return a call in float32."""
    return {name: widen(value) if isinstance(value, dict) else _to_float(value) for name, value in call.items()}


def _to_float(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def upcast(code: Code) -> Code:
    """Return code that computes in float32 and rounds the result."""

    def run(call: Call) -> Any:
        like = next(value for value in call.values() if isinstance(value, torch.Tensor))
        return code(widen(call)).to(like.dtype)

    return run


def select_keys(call: Call, keys: slice) -> Call:
    parts = {name: call[name][..., keys, :] for name in ("key", "value")}
    return {**call, **parts, "mask": call["mask"][:, keys]}


# attention


def attend(call: Call, scale: float | None = None) -> Any:
    return F.scaled_dot_product_attention(call["query"], call["key"], call["value"], call["mask"], scale=scale)


def attend_eagerly(call: Call) -> Any:
    scores = call["query"] @ call["key"].mT / math.sqrt(call["query"].shape[-1])
    return torch.softmax(scores.masked_fill(~call["mask"], -math.inf), -1) @ call["value"]


def scale_queries_first(call: Call) -> Any:
    scores = (call["query"] * call["query"].shape[-1] ** -0.5) @ call["key"].mT
    return torch.softmax(scores.masked_fill(~call["mask"], -math.inf), -1) @ call["value"]


def normalise_last(call: Call) -> Any:
    scores = call["query"] @ call["key"].mT / math.sqrt(call["query"].shape[-1])
    scores = scores.masked_fill(~call["mask"], -math.inf)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers @ call["value"]) / powers.sum(-1, keepdim=True)


def attend_in_blocks(call: Call, *, rescale: bool = True, first_mask: bool = False, stop: int = 0) -> Any:
    """Run over blocks of 16 keys with a running maximum, in the dtype of the call."""
    query, width, mask = call["query"], 16, call["mask"]
    total, top, output = 0.0, torch.full((*query.shape[:-1], 1), -1e30, dtype=query.dtype), 0.0
    for start in range(0, call["key"].shape[-2] - stop, width):
        keys = slice(start, start + width)
        part = select_keys(call, keys)
        scores = query @ part["key"].mT / math.sqrt(query.shape[-1])
        shown = mask[:, : scores.shape[-1]] if first_mask else part["mask"]
        scores = scores.masked_fill(~shown, -math.inf)
        above = torch.maximum(top, scores.amax(-1, keepdim=True))
        powers = (scores - above).exp()
        factor = (top - above).exp() if rescale else 1.0
        total, output = total * factor + powers.sum(-1, keepdim=True), output * factor + powers @ part["value"]
        top = above
    return output / total


def drop_last_row(code: Code) -> Code:
    def run(call: Call) -> Any:
        result = code(call).clone()
        result[..., -1, :] = 0
        return result

    return run


# norms, softmax, feed-forward, losses


def norm(call: Call) -> Any:
    return F.layer_norm(call["x"], call["x"].shape[-1:], call["params"]["gamma"], call["params"]["beta"])


def norm_in_steps(call: Call, *, correction: int = 0, centre: bool = True, eps: float = 1e-5) -> Any:
    x, params = call["x"], call["params"]
    centred = x - x.mean(-1, keepdim=True) if centre else x
    variance = (centred * centred).sum(-1, keepdim=True) / (x.shape[-1] - correction)
    return centred / (variance + eps).sqrt() * params["gamma"] + params["beta"]


def norm_by_squares(call: Call) -> Any:
    x, params = call["x"], call["params"]
    mean, squares = x.mean(-1, keepdim=True), (x * x).mean(-1, keepdim=True)
    return (x - mean) * (squares - mean * mean + 1e-5).rsqrt() * params["gamma"] + params["beta"]


def leave_out(code: Code, name: str, instead: float) -> Code:
    """Return code with a parameter that is a constant."""

    def run(call: Call) -> Any:
        params = {**call["params"], name: torch.full_like(call["params"][name], instead)}
        return code({**call, "params": params})

    return run


def softmax_in_steps(call: Call) -> Any:
    powers = (call["scores"] - call["scores"].amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def feed(call: Call, activate: Code = F.relu) -> Any:
    params = call["params"]
    hidden = activate(F.linear(call["x"], params["w_1"].mT, params["b_1"]))
    return F.linear(hidden, params["w_2"].mT, params["b_2"])


def feed_in_steps(call: Call) -> Any:
    params = call["params"]
    hidden = (call["x"] @ params["w_1"] + params["b_1"]).clamp(min=0)
    return hidden @ params["w_2"] + params["b_2"]


def lose(call: Call, **options: Any) -> Any:
    logits = call["logits"].reshape(-1, call["logits"].shape[-1])
    return F.cross_entropy(logits, call["targets"].reshape(-1), **{"ignore_index": 0, **options})


def lose_in_steps(call: Call) -> Any:
    losses = -call["logits"].log_softmax(-1).gather(-1, call["targets"][..., None])[..., 0]
    return losses[call["targets"] != 0].mean()


RIGHT: dict[str, list[Code]] = {
    ATTENTION: [
        attend, attend_eagerly, scale_queries_first, normalise_last, upcast(attend), upcast(attend_eagerly),
        upcast(attend_in_blocks),
    ],
    "softmax": [lambda c: c["scores"].softmax(-1), softmax_in_steps, upcast(softmax_in_steps)],
    "layer_norm": [norm, norm_in_steps, upcast(norm), upcast(norm_in_steps), upcast(norm_by_squares)],
    "feed_forward": [feed, feed_in_steps, upcast(feed)],
    "cross_entropy": [lose, lose_in_steps, upcast(lose)],
}  # fmt: skip

WRONG: dict[str, dict[str, Code]] = {
    ATTENTION: {
        "last 16 keys dropped": lambda c: attend(select_keys(c, slice(-16))),
        "last block dropped": upcast(lambda c: attend_in_blocks(c, stop=16)),
        "sum not rescaled": upcast(lambda c: attend_in_blocks(c, rescale=False)),
        "first block's mask": upcast(lambda c: attend_in_blocks(c, first_mask=True)),
        "last row 0": drop_last_row(attend),
        "times 1.05": lambda c: attend(c) * 1.05,
        "not scaled": lambda c: attend(c, scale=1.0),
        "no mask": lambda c: attend({**c, "mask": None}),
    },
    "softmax": {
        "times 1.05": lambda c: c["scores"].softmax(-1) * 1.05,
        "over another axis": lambda c: c["scores"].softmax(-2),
        "base 2": lambda c: (c["scores"] * math.log(2)).softmax(-1),
    },
    "layer_norm": {
        "times 1.05": lambda c: norm(c) * 1.05,
        "RMSNorm": lambda c: norm_in_steps(c, centre=False),
        "no beta": leave_out(norm, "beta", 0.0),
        "no gamma": leave_out(norm, "gamma", 1.0),
        "last row 0": drop_last_row(norm),
    },
    "feed_forward": {
        "GELU": lambda c: feed(c, F.gelu),
        "no inner bias": leave_out(feed, "b_1", 0.0),
        "no outer bias": leave_out(feed, "b_2", 0.0),
    },
    "cross_entropy": {"padding counted": lambda c: lose(c, reduction="sum") / c["targets"].numel()},
}


@cache
def evaluate(component: str, size: tuple[int, ...], dtype: str) -> tuple[Call, Any]:
    """Return a drawn call, and what is expected of its first output."""
    spec = load_spec()
    call = draw_call(component, size, dtype)
    first = spec.contracts[component].first_output
    own = OwnCall.read(component, call, None, spec)
    (outputs,) = own.derive([first]).golden.options.values()
    return call, outputs[first]


def measure(component: str, size: tuple[int, ...], dtype: str, code: Code) -> float:
    """Return the share of the tolerance that the result of code needs."""
    call, golden = evaluate(component, size, dtype)
    with torch.no_grad():
        result = code(call)
    assert str(result.dtype) == f"torch.{dtype}"
    limits = find_tolerance(golden, load_spec().contracts[component], dtype)
    return find_ratio(LIBRARIES["torch"].numpy(result), golden.values, limits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("component", SIZES)
def test_right_code_of_all_styles_stays_far_below_the_tolerance(component, dtype):
    shares = {
        (number, size): measure(component, size, dtype, code)
        for size in SIZES[component]
        for number, code in enumerate(RIGHT[component])
    }
    assert max(shares.values()) < 0.6, {key: share for key, share in shares.items() if share >= 0.6}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("component", SIZES)
def test_wrong_code_fails_at_every_size(component, dtype):
    shares = {
        (name, size): measure(component, size, dtype, code)
        for size in SIZES[component]
        for name, code in WRONG[component].items()
    }
    assert min(shares.values()) > 1.0, {key: share for key, share in shares.items() if not share > 1.0}


# rounded once


def assert_attention(result: torch.Tensor, call: Call, **options: Any) -> None:
    goldformer.assert_correct(result, ATTENTION, **{**call, "mask": None}, **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_once_sees_the_last_key_and_a_slightly_other_temperature(dtype):
    call = {**draw_call(ATTENTION, (1, 1, 256, 64), dtype), "mask": None}
    once, eager = upcast(attend)(call), attend_eagerly({**call, "mask": torch.tensor(data=True)})
    assert_attention(once, call, rounding="once")
    assert_attention(attend(call), call, rounding="once")
    shorter = {**call, "key": call["key"][..., :-1, :], "value": call["value"][..., :-1, :]}
    warmer: Code = lambda c: attend(c, scale=1.05 / 8)  # noqa: E731
    for code, given in ((attend, shorter), (warmer, call), (lambda c: 1.01 * attend(c), call)):
        with pytest.raises(goldformer.NonConformance):
            assert_attention(upcast(code)(given), call, rounding="once")
    assert_attention(eager, call)
    says = f"wrong in {dtype}: right if the result of each operation is rounded to {dtype}, not if only the last one is"
    with pytest.raises(goldformer.NonConformance, match=says):
        assert_attention(eager, call, rounding="once")


@pytest.mark.parametrize("component", ["layer_norm", "softmax", "feed_forward", "cross_entropy"])
def test_code_that_computes_in_float32_is_rounded_once(component):
    for dtype, code in product(("bfloat16", "float16"), RIGHT[component]):
        call = draw_call(component, SIZES[component][0], dtype)
        goldformer.assert_correct(upcast(code)(call), component, rounding="once", **call)


# coarse sums


def add_one_by_one(terms: torch.Tensor, axis: int) -> Any:
    """Add in the dtype of the terms."""
    total = torch.zeros_like(terms.select(axis, 0))
    for k in range(terms.shape[axis]):
        total = total + terms.select(axis, k)
    return total


def attend_with_coarse_sums(call: Call) -> Any:
    scores = add_one_by_one(call["query"][..., :, None, :] * call["key"][..., None, :, :], -1) / 8
    return add_one_by_one(torch.softmax(scores, -1)[..., None] * call["value"][..., None, :, :], -2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_coarse_sums_are_told_from_mistakes(dtype):
    call = draw_call(ATTENTION, (1, 1, 256, 64), dtype)
    coarse = f"is wrong in {dtype}: right only if sums run in {dtype}, not in float32: output: "
    with pytest.raises(goldformer.NonConformance, match=coarse):
        assert_attention(attend_with_coarse_sums(call), call)
    bare = {**call, "mask": torch.ones(256, 256, dtype=torch.bool)}
    for wrong in (attend(bare) * 1.05, drop_last_row(attend)(bare), attend(select_keys(bare, slice(-16)))):
        with pytest.raises(goldformer.NonConformance, match=f"is wrong in {dtype}: output: ") as caught:
            assert_attention(wrong, call)
        # The right result is nearer to it than whatever loses digits. That the last row is 0 is seen.
        said = str(caught.value)
        assert "Mistake found" not in said or "with 0 at the last index of axis −2" in said


@pytest.mark.parametrize("required", [False, True])
def test_coarse_sums_are_tolerated_unless_precision_is_required(required):
    call = draw_call(ATTENTION, (1, 1, 256, 64), "bfloat16") | {"mask": None}
    spec, result = load_spec(), attend_with_coarse_sums(call)
    own = OwnCall.read(ATTENTION, call, None, spec)
    case = own.derive(["output"])
    adapter = replace(own.adapter, functions={ATTENTION: lambda **_: result})
    bench = Bench(spec.with_cases({case.id: case}), adapter, "bfloat16", "cpu", Policy(require_precision=required))
    verdict = judge_case(case, bench).verdict
    assert verdict.is_tolerated is not required
    assert verdict.bad is required
    assert verdict.message.startswith("right only if sums run in bfloat16, not in float32: output: ")
    findings = [f"{finding.label}: {finding.text}" for finding in make_remarks(make_run([verdict]), {}, spec)]
    says = (
        "Coarse sums: 1 result is right only to sums that run in bfloat16, first seen in scaled_dot_product_attention ("
    )
    assert any(text.startswith(says) for text in findings) is not required


# what a half type cannot show


def test_the_report_says_how_results_were_rounded_and_what_does_not_show():
    def softmax(scores: torch.Tensor) -> Any:
        return softmax_in_steps({"scores": scores})

    half = str(goldformer.check(softmax, arrays="torch", dtypes=["bfloat16"]))
    said = " ".join(half.split())
    assert re.search(
        r"Rounding: \d+ of \d+ right results in bfloat16 are those of float32, rounded once; in half of the cases, "
        r"changes of less than 0?\.?\d+ % of a result do not show: check float32 too",
        said,
    )
    both = " ".join(str(goldformer.check(softmax, arrays="torch", dtypes=["bfloat16", "float32"])).split())
    assert "of a result do not show" in both
    assert "check float32 too" not in both
    assert "Rounding: " not in str(goldformer.check(softmax, arrays="torch", dtypes=["float32"]))


@pytest.mark.parametrize(("dtype", "shows"), [("float32", True), ("float16", True), ("bfloat16", False)])
def test_a_variance_over_n_minus_1_does_not_show_in_bfloat16(dtype, shows):
    call = draw_call("layer_norm", (8, 64), dtype)
    result = upcast(lambda c: norm_in_steps(c, correction=1))(call)
    if shows:
        with pytest.raises(goldformer.NonConformance, match="ln-unbiased"):
            goldformer.assert_correct(result, "layer_norm", **call)
    else:
        goldformer.assert_correct(result, "layer_norm", **call)
