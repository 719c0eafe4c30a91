"""Code that no call gives golden values: what known mistakes explain is named, and the rest is not judged."""

from __future__ import annotations

import pytest

import goldformer
from goldformer.adapters.imports import forget_modules
from goldformer.adapters.inference import MisfitError
from repository import REPOSITORY

STYLES = REPOSITORY / "tests" / "support" / "styles"

#: By class or function: a mistake that the check names.
NAMED = {
    "defective_parts.py:Unscaled": "scale-missing",
    "defective_parts.py:OverQueries": "softmax-query-axis",
    "defective_parts.py:NoTransposeBack": "head-merge-view",
    "defective_parts.py:SwappedWaves": "pe-sin-cos-swap",
    "defective_parts.py:GatedByUp": "glu-swapped",
    "defective_parts.py:RmsWithoutWeight": "rms-no-weight",
    "defective_parts.py:CountingRotary": "rope-offset-missing",
    "defective_parts.py:NoResidualLayer": "residual-missing",
    "grouped_queries.py:groups_last": "gqa-heads-out-of-order",
    "grouped_queries.py:wide_scale": "gqa-scale-kv-heads",
    "layers_of_tables.py:OnlyQueriesTurn": "block-keys-not-turned",
}

#: What may be meant, with a part of what is said of it.
LEFT_OUT = {
    "SineScores": "Place: the queries, keys or scores of the attention",
    "MedianNorm": "it computes something else",
    "SquaredReluNet": "it computes something else",
}

#: A layer with a mistake beside an eps that only its norms say.
LAYER = """
import torch
from torch import nn

EPS = float("1e-6")

class Network(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear2(torch.relu(self.linear1(x)))

class Attention(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.heads = heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.w_q, self.w_k, self.w_v))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        scores = scores if mask is None else scores.masked_fill(mask == 0, -1e9)
        return self.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff):
        super().__init__()
        self.attention, self.network = Attention(d_model, heads), Network(d_model, d_ff)
        self.norm1, self.norm2 = nn.LayerNorm(d_model, eps=EPS), nn.LayerNorm(d_model, eps=EPS)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm1(x + self.network(x))
"""


#: An attention with two mistakes, the one in its heads and the other in its scores.
TWO_MISTAKES = LAYER.replace(" / q.shape[-1] ** 0.5", "").replace(".transpose(1, 2).flatten(2)", ".reshape(x.shape)")


@pytest.fixture(autouse=True)
def imports_are_undone(tmp_path):
    with forget_modules(STYLES), forget_modules(tmp_path):
        yield


def list_mistakes(report):
    return {id_ for finding in report.findings for id_ in finding.mistakes}


@pytest.mark.sample(3)
@pytest.mark.parametrize("place", NAMED)
def test_a_mistake_is_named_where_names_decide_the_call(place):
    report = goldformer.check(f"{STYLES}/{place}")
    assert report.comparison.outcome == "fails"
    assert NAMED[place] in list_mistakes(report)
    assert any("by its names: no call gave golden values" in hint for hint in report.record.hints)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_no_known_mistake_explains_is_not_judged(name):
    with pytest.raises(MisfitError, match=LEFT_OUT[name]):
        goldformer.check(f"{STYLES}/defective_parts.py:{name}")


def test_a_part_says_the_eps_beside_a_mistake(tmp_path):
    (tmp_path / "own_layer.py").write_text(LAYER)
    report = goldformer.check(f"{tmp_path}/own_layer.py:EncoderLayer")
    assert report.comparison.outcome == "fails"
    assert "wrong-ln-reused" in list_mistakes(report)


def test_two_mistakes_of_a_class_and_its_part_are_named(tmp_path):
    (tmp_path / "two_mistakes.py").write_text(TWO_MISTAKES)
    report = goldformer.check(f"{tmp_path}/two_mistakes.py:Attention")
    assert list_mistakes(report) == {"scale-missing", "head-merge-view"}


def test_the_rest_of_a_file_is_judged(tmp_path):
    text = (STYLES / "defective_parts.py").read_text()
    median = text[text.index("class MedianNorm") :].partition("\n\n\n")[0]
    (tmp_path / "two.py").write_text(f"{LAYER.partition('class Attention')[0]}\n\n{median}\n")
    report = goldformer.check(f"{tmp_path}/two.py")
    assert report.comparison.outcome == "partial"
    assert report.record.partial == ("MedianNorm",)
    assert {verdict.component for verdict in report.record.verdicts} == {"feed_forward"}
