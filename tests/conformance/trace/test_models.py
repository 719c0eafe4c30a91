"""Two models, layer by layer: right ports are the same, and a mistake is found where it is made."""

from __future__ import annotations

import copy
import json
from operator import itemgetter
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import goldformer
from goldformer.conformance.trace.passes import NotComparable
from pages import Page, must_scroll_by_keyboard
from ported import make_ids, make_models

#: A mistake, the place and the function that are named first, and a fact.
MISTAKES = [
    ("epsilon", "blocks.0-1.norm1", "forward", "add has 1e-05, theirs 1e-06"),
    ("norm without a mean of squares", "blocks.0-1.norm1", "forward", ""),
    ("base of the angles", "blocks.0-1.attn, between wv and wo", "apply_rope", ""),
    ("pairs of neighbours", "blocks.0-1.attn, between wv and wo", "apply_rope", ""),
    ("heads tiled", "blocks.0-1.attn, between wv and wo", "forward", ""),
    ("scale of the width", "blocks.0-1.attn, between wv and wo", "forward", "is 0.5 × theirs"),
    ("soft cap", "blocks.0-1.attn, between wv and wo", "forward", "mine computes tanh there, theirs –"),
    (
        "mask is one key late",
        "blocks.0-1.attn, between wv and wo",
        "forward",
        "360 scores are hidden, in theirs 440",
    ),
    (
        "gate and up exchanged",
        "blocks.0-1.ffn, between w1 and w2",
        "forward",
        "silu takes output of blocks.0.ffn.w3, theirs output of blocks.0.ffn.w1",
    ),
    ("GELU for SiLU", "blocks.0-1.ffn, between w1 and w2", "forward", "mine computes gelu there, theirs silu"),
    ("bias left out", "blocks.0-1.attn.wv", "", "mine has not the bias of theirs"),
    ("norm after", "blocks.0-1, before attn", "", "the value is theirs' output of embed_tokens"),
    ("no residual", "blocks.0-1, after ffn", "", "theirs' output of layers.0.mlp"),
    ("embedding scaled", "between tok and blocks.0", "forward", "the value is 5.65685 × theirs"),
    ("logits scaled", "the output, after head", "forward", "the value is 0.5 × theirs"),
]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("mistake", "place", "function", "fact"), MISTAKES)
def test_a_mistake_is_found_where_it_is_made(mistake, place, function, fact):
    found = goldformer.trace(*make_models(mistake), make_ids())
    assert found.verdict == "differs"
    first = found.findings[0]
    assert first.places.startswith(place)
    assert first.mine.startswith(function)
    assert fact in "; ".join(first.facts)
    assert first.ratio > 10 * found.limit


@pytest.mark.parametrize("variant", ["", "right, with SDPA", "right, in one sum", "positions from 1"])
@pytest.mark.parametrize("seed", range(3))
def test_a_right_port_is_the_same(variant, seed):
    found = goldformer.trace(*make_models(variant, seed), make_ids())
    assert found
    assert max(item.ratio for item in found.items) < 2


def test_nothing_is_the_same_in_a_half_type():
    mine, theirs = (model.bfloat16() for model in make_models("right, with SDPA"))
    found = goldformer.trace(mine, theirs, make_ids())
    assert found.verdict == "not decidable"
    assert "call float() on both models" in " ".join(str(found).split())
    assert goldformer.trace(make_models("heads tiled")[0].bfloat16(), theirs, make_ids()).verdict == "differs"


def test_two_mistakes_are_both_found():
    mine, theirs = make_models("heads tiled")
    mine.blocks[1].ffn.mistake = "gate and up exchanged"
    found = goldformer.trace(mine, theirs, make_ids())
    assert [finding.places for finding in found.findings] == [
        "blocks.0-1.attn, between wv and wo",
        "blocks.1.ffn, between w1 and w2",
    ]


def test_the_models_are_left_as_they_were():
    mine, theirs = make_models("heads tiled")
    before = copy.deepcopy(theirs.state_dict())
    call = nn.Module.__call__
    goldformer.trace(mine, theirs, make_ids())
    assert nn.Module.__call__ is call
    assert all(torch.equal(tensor, before[name]) for name, tensor in theirs.state_dict().items())
    assert {tensor.dtype for tensor in theirs.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mine, theirs: (mine.train(), theirs), "mine is in training mode, where dropout .* call its eval"),
        (lambda mine, theirs: (mine.double(), theirs.double()), "weights in torch.float64.*call float"),
        (lambda mine, theirs: (mine, theirs.bfloat16()), "mine has weights in torch.float32, theirs in torch.bfloat16"),
        (
            lambda mine, theirs: (make_models(seed=1)[0], theirs),
            "mine has none of the weights of theirs: load the same",
        ),
        (lambda mine, theirs: (lambda ids: ids, theirs), "mine calls no nn.Module"),
        (lambda mine, theirs: (lambda ids: mine(ids[:, :5]), theirs), "return the same output"),
        (
            lambda mine, theirs: (mine, lambda ids: theirs(ids)["lost"]),
            "theirs raises KeyError for these inputs: 'lost'",
        ),
        (
            lambda mine, theirs: (lambda ids: iter([mine(ids)]), theirs),
            "mine returns no tensor of floats, tuple or dictionary of them: return its logits",
        ),
        (
            lambda mine, theirs: (mine, lambda ids: iter([theirs(ids)])),
            "theirs returns no tensor of floats, tuple or dictionary of them",
        ),
        (
            lambda mine, theirs: (mine, lambda ids: nn.functional.dropout(theirs(ids)["logits"], 0.5)),
            "theirs gives other numbers when it runs again, first at the output: draw no random numbers",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(change, message):
    with pytest.raises(NotComparable, match=message):
        goldformer.trace(*change(*make_models()), make_ids())


def test_the_page_stands_alone_and_draws_each_row():
    found = goldformer.trace(*make_models("heads tiled"), make_ids())
    page = Page(found.to_html())
    assert page.declared == "doctype html"
    must_scroll_by_keyboard(page)
    bars = [float(a["style"].removeprefix("width: ").removesuffix("%")) for a, _ in page.all("span") if "style" in a]
    assert len(bars) == len(found.rows)
    assert max(bars) == bars[[differs for *_, differs in found.rows].index(True)] <= 100
    assert json.loads(found.to_json())["verdict"] == "differs"


def test_layers_are_cut_and_a_large_run_is_told(monkeypatch):
    monkeypatch.setattr("goldformer.conformance.trace.models._LONG", 0.0)
    told = []
    found = goldformer.trace(*make_models("heads tiled"), make_ids(), layers=range(1), tell=told.append)
    assert {finding.places for finding in found.findings} == {"blocks.0.attn, between wv and wo"}
    assert not [item for item in found.items if ".1." in item.place[0]]
    assert "GiB" in told[0]


def test_arrays_differ_where_half_of_the_digits_do():
    theirs = {name: torch.randn(3, 4, generator=torch.Generator().manual_seed(1)) for name in "abc"}
    mine = {name: array.numpy() * (1.001 if name == "b" else 1) for name, array in theirs.items()}
    found = goldformer.trace_arrays(mine, theirs)
    assert [finding.places for finding in found.findings] == ["b"]
    assert goldformer.trace_arrays(theirs, theirs)
    with pytest.raises(NotComparable, match="name the same activations in both"):
        goldformer.trace_arrays({"a": torch.ones(2)}, {"b": torch.ones(3)})


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        ([1.0, 2.0], [1, 2], "same"),
        ([True], [1.0], "same"),
        (np.arange(3) * (1 + 1e-7), np.arange(3.0), "same"),  # float64, of an array that was float32
        ([1 + 1j], [1 + 1j], "same"),
        ([1 - 1j], [1 + 1j], "differs"),
        ([1.0, torch.inf], [1.0, -torch.inf], "differs"),
        ([torch.nan], [torch.inf], "differs"),
    ],
)
def test_arrays_of_any_numbers_are_compared(mine, theirs, verdict):
    own: Any = {1: mine}
    found = goldformer.trace_arrays(own, own | {1: theirs, 2: [0.0] * 4})
    assert found.verdict == verdict
    assert found.weights == ("mine has no 2 of 4 numbers",)
    assert verdict in found.to_html()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([1, None]), "a is no array of numbers: .*object"),
        ({"b": 1.0}, "a is no array of numbers: .*dict"),
        (torch.ones(2, device="meta"), "a is no array of numbers: .*meta"),
        (np.ones(2, np.uint16), "a is in uint16, which may be the bits of bfloat16: give floats"),
    ],
)
def test_what_is_no_array_is_named(array, message):
    with pytest.raises(NotComparable, match=message):
        goldformer.trace_arrays({"a": array}, {"a": array})


@torch.library.custom_op("goldformer_test::swish", mutates_args=())
def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


class Conv1D(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(width, width)), nn.Parameter(torch.empty(width))

    def forward(self, x):
        return x @ self.weight + self.bias


class Theirs(nn.Module):
    """Two layers of a norm, a matrix that is applied and kept, and another one."""

    def __init__(self, first=nn.Linear):
        super().__init__()
        width = (WIDTH, WIDTH) if first is nn.Linear else (WIDTH,)
        self.norm, self.first, self.second = (
            nn.ModuleList(kind(*size) for _ in range(2))
            for kind, size in ((nn.LayerNorm, (WIDTH,)), (first, width), (nn.Linear, (WIDTH, WIDTH)))
        )
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 6 + (parameter.dim() == 1))

    def step(self, i, x, cache):
        kept = cache.setdefault(i, [])
        kept.append(self.first[i](self.norm[i](x)))
        return x + self.second[i](torch.stack(kept).mean(0))

    def forward(self, x):
        cache = {}
        for token in (x, x.flip(0)):
            y = token
            for i in range(2):
                y = self.step(i, y, cache)
        return y


class Layer(nn.Module):
    """The second half of a layer with weights of its own, and a cache that it gets."""

    def __init__(self, theirs, i, change):
        super().__init__()
        other, second = theirs.first[0 if change == "another layer" else i], theirs.second[i]
        weight = other.weight.mT if isinstance(other, Conv1D) else other.weight
        self.norm, self.first = copy.deepcopy(theirs.norm[i]), nn.Linear(WIDTH, WIDTH)
        self.first.load_state_dict({"weight": weight, "bias": other.bias + (change == "bias")})
        self.is_doubled = change == "doubled residual"
        self.w2, self.b2 = copy.deepcopy(second.weight), copy.deepcopy(second.bias)

    def forward(self, x, cache):
        cache.append(self.first(self.norm(x)))
        if self.is_doubled:
            x = x * 2 + torch.empty(0).sum()  # an operation without a number
        return x + nn.functional.linear(torch.stack(cache).mean(0), self.w2, self.b2)


class Mine(nn.Module):
    def __init__(self, theirs, change=""):
        super().__init__()
        self.layers = nn.ModuleList(Layer(theirs, i, change) for i in range(2))

    def forward(self, x):
        caches = [[], []]
        for token in (x, x.flip(0)):
            y = token
            for layer, cache in zip(self.layers, caches, strict=True):
                y = layer(y, cache)
        return y


WIDTH = 24


def trace_layers(change="", first=nn.Linear):
    theirs = Theirs(first)
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(6))
    return goldformer.trace(Mine(theirs, change).eval(), theirs.eval(), x)


def test_a_cache_that_arrives_as_an_argument_stays_the_same_object():
    assert trace_layers()
    assert trace_layers(first=Conv1D)


def test_an_operation_without_a_number_is_compared_with_none():
    assert trace_layers("doubled residual").verdict == "differs"


@pytest.mark.parametrize("first", [nn.Linear, Conv1D])
def test_weights_of_another_layer_are_named(first):
    found = trace_layers("another layer", first)
    assert found.findings[0].places.startswith("layers.1.first")
    assert found.findings[0].facts == ("weight is first.0.weight of theirs", "bias is first.0.bias of theirs")


def test_a_matrix_that_lies_in_another_way_is_no_fact():
    (finding,) = trace_layers("bias", Conv1D).findings
    assert finding.facts == ("bias has other numbers than theirs",)


def test_weights_in_another_order_are_named_whatever_their_axes():
    linear = nn.Linear(WIDTH, WIDTH)
    theirs = nn.Sequential(linear).eval()
    mine = copy.deepcopy(theirs)
    mine[0].load_state_dict({"weight": linear.weight.mT, "bias": linear.bias.flip(0)})
    (finding,) = goldformer.trace(mine, theirs, torch.eye(3, WIDTH)).findings
    assert finding.facts == ("weight is the transpose of theirs", "bias is theirs in another order")


class UnbiasedNorm(nn.LayerNorm):
    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x / (x.var(-1, keepdim=True) + self.eps).sqrt() * self.weight + self.bias


def test_a_norm_in_one_function_is_compared_with_a_norm_in_many():
    theirs = nn.Sequential(*Theirs().norm, nn.Linear(WIDTH, WIDTH)).eval()
    mine = copy.deepcopy(theirs)
    for i in range(2):
        mine[i] = UnbiasedNorm(WIDTH)
        mine[i].load_state_dict(theirs[i].state_dict())
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(6))
    (finding,) = goldformer.trace(mine.eval(), theirs, x).findings
    assert "x.var(-1, keepdim=True)" in finding.mine
    assert finding.facts == ("the value of mul is 0.978945 × theirs",)  # √(23 ÷ 24)


class Apply(nn.Module):
    """A module of PyTorch's, and a function of what it gives."""

    def __init__(self, module, function=torch.relu):
        super().__init__()
        self.module, self.function = module, function

    def forward(self, x):
        return self.function(self.module(x))


def trace_applied(mine, theirs, *functions):
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(6))
    return goldformer.trace(*(Apply(*both).eval() for both in zip((mine, theirs), functions, strict=True)), x)


def test_values_that_are_not_finite_are_compared():
    linear = nn.Linear(WIDTH, WIDTH)
    fill = [
        lambda x, number=number: x.index_fill(0, torch.tensor(1), torch.tensor(number))
        for number in (torch.inf, -torch.inf)
    ]
    assert trace_applied(linear, copy.deepcopy(linear), fill[0], fill[0])
    (finding,) = trace_applied(linear, copy.deepcopy(linear), *fill).findings
    assert "fill" in finding.mine
    assert not finding.facts  # an infinite number counts as 0 there: no factor, no other order


def test_models_in_inference_mode_or_compiled_are_traced():
    linear = nn.Linear(WIDTH, WIDTH)
    assert trace_applied(linear, copy.deepcopy(linear), torch.relu, torch.inference_mode()(torch.relu))
    assert trace_applied(linear, torch.compile(copy.deepcopy(linear)), torch.relu, torch.relu)


def test_an_original_that_cannot_run_in_float64_is_named():
    lstm = nn.LSTM(WIDTH, WIDTH)
    with pytest.raises(NotComparable, match="theirs in float64 raises ValueError for these inputs: RNN input dtype"):
        trace_applied(copy.deepcopy(lstm), lstm, itemgetter(0), itemgetter(0))


def test_models_without_numbers_are_named():
    linear = nn.Linear(WIDTH, WIDTH, device="meta").eval()
    with pytest.raises(NotComparable, match="a model is on the device meta: load its weights"):
        goldformer.trace(linear, copy.deepcopy(linear), torch.ones(3, WIDTH, device="meta"))


def test_parameters_may_be_complex_or_empty():
    theirs = nn.Linear(WIDTH, WIDTH)
    theirs.table = nn.Parameter(torch.ones(0, 3))
    theirs.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    assert trace_applied(copy.deepcopy(theirs), theirs, torch.relu, torch.relu)


@pytest.mark.parametrize(
    ("mine", "theirs", "facts"),
    [
        (lambda x: torch.relu(x) ** 2, torch.relu, ()),  # mine has a ReLU too
        (torch.nn.functional.silu, torch.relu, ("mine computes silu there, theirs relu",)),
        (torch.ops.goldformer_test.swish, torch.relu, ()),  # it may compute anything
    ],
)
def test_an_operation_is_missing_only_where_all_are_seen(mine, theirs, facts):
    linear = nn.Linear(WIDTH, WIDTH)
    (finding,) = trace_applied(linear, copy.deepcopy(linear), mine, theirs).findings
    assert finding.facts == facts


class Split(nn.Module):
    """Queries, keys and values of nn.MultiheadAttention, one matrix each."""

    def __init__(self, theirs, heads):
        super().__init__()
        self.heads, width = heads, theirs.embed_dim
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        state = theirs.state_dict()
        for name, *both in zip("qkv", state["in_proj_weight"].chunk(3), state["in_proj_bias"].chunk(3), strict=True):
            getattr(self, name).load_state_dict(dict(zip(("weight", "bias"), both, strict=True)))
        self.o.load_state_dict(theirs.out_proj.state_dict())

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        scores = q @ k.mT * (WIDTH / 4) ** -0.5
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Attends(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, heads, batch_first=True)
        for name in ("in_proj_bias", "out_proj.bias"):
            nn.init.normal_(self.attend.get_parameter(name))

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("heads", [4, 6])
def test_a_fused_attention_is_compared_with_one_in_parts(heads):
    theirs = Attends(4)
    found = trace_applied(Split(theirs.attend, heads), theirs, torch.relu, torch.relu)
    assert bool(found) == (heads == 4)
    assert found.weights == (
        "4 of 4 of theirs are in mine",
        "module.attend.in_proj_weight of theirs is module.q.weight + module.k.weight + module.v.weight in one",
        "module.attend.in_proj_bias of theirs is module.q.bias + module.k.bias + module.v.bias in one",
    )
    assert not [fact for finding in found.findings for fact in finding.facts]  # theirs has a softmax that is not seen


def test_what_is_handed_on_has_one_name_and_a_line_is_of_a_model():
    norm = nn.BatchNorm1d(5)
    mine = nn.Sequential(nn.Linear(WIDTH, WIDTH), norm).eval()
    theirs = copy.deepcopy(mine)
    norm.load_state_dict({**norm.state_dict(), "running_mean": torch.arange(5.0)})
    x = torch.randn(3, 5, WIDTH, generator=torch.Generator().manual_seed(6))
    (finding,) = goldformer.trace(mine, theirs, x).findings
    assert not finding.facts  # what arrives is no difference
    assert finding.mine.startswith("forward (batchnorm.py:")
