"""Every sentence of a finding is true: all failing cases are counted, and the simplest explanation comes first."""

from __future__ import annotations

import functools
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.support.runs import change, make_run, rank_explanations
from torch import nn
from torch.func import functional_call

from comparisons import remark_lines
from goldformer.adapters import textbook
from goldformer.adapters.builtin._torch_nn_layers import map_stack
from goldformer.adapters.layouts import map_state, require_square_projections
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.diagnosis import suspects
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun, Explained
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import (
    CLOSEST,
    CLOSEST_OPTION,
    HOLDS,
    MISTAKE_FOUND,
    NO_EFFECT,
    NO_VARIANT,
    NOTHING_KNOWN,
    OPTION_FOUND,
    PLACE,
    POSSIBLE_CAUSES,
    Finding,
)
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.isolation.sentences import find_contradiction
from goldformer.conformance.judging.applicability import explain_inapplicable
from goldformer.conformance.judging.cases import Bench, check_case, judge_case
from goldformer.conformance.judging.verdict import PERMITTED, Status
from goldformer.conformance.reports.results import summarize
from goldformer.spec import Spec
from goldformer.spec.formulas.heads import merge_heads
from goldformer.spec.formulas.steps import instead


def run(
    spec: Spec, dtype: str = "float32", arrays: str = "torch", conventions: dict[str, str] | None = None, **functions
) -> tuple[DiagnosedRun, list[Finding]]:
    """Return the verdicts and the findings of all cases of some functions, those of full size left out."""
    code = SimpleNamespace(ARRAYS=arrays, CONVENTIONS=conventions or {}, **functions)
    at = Bench(spec, Adapter.from_object(code, "mine.py", spec), dtype, "cpu")
    components = {name.removesuffix("_gradient"): None for name in functions}
    cases = [case for name in components for case in spec.cases_of(name) if not case.full_size]
    verdicts = Diagnosis(spec).explain_all([judge_case(case, at) for case in cases])
    return verdicts, list(diagnose(verdicts, spec))


def find_said(findings: list[Finding], label: str = MISTAKE_FOUND) -> Finding:
    (found,) = (finding for finding in findings if finding.label == label)
    return found


# A norm whose forward pass divides by n − 1, with a backward pass by hand


class NormWithMemory:
    """A layer of a framework in plain NumPy: the forward pass keeps what the backward pass reads."""

    def __init__(self, gamma, beta, taken):
        self.gamma, self.beta, self.taken = gamma, beta, taken

    def forward(self, x):
        self.inverse = 1 / np.sqrt(np.var(x, axis=-1, ddof=1, keepdims=True) + x.dtype.type(1e-5))
        self.hat = (x - np.mean(x, axis=-1, keepdims=True)) * self.inverse
        return self.gamma * self.hat + self.beta

    def backward(self, upstream):
        width = upstream.shape[-1] - self.taken
        scaled = upstream * self.gamma
        along = (scaled * self.hat).sum(-1, keepdims=True) / width
        flat = tuple(range(upstream.ndim - 1))
        return {
            "x": self.inverse * (scaled - np.mean(scaled, axis=-1, keepdims=True) - self.hat * along),
            "gamma": (upstream * self.hat).sum(flat),
            "beta": upstream.sum(flat),
        }


def in_numpy(taken):
    def build(params):
        return NormWithMemory(params["gamma"], params["beta"], taken)

    def gradient(x, cotangent, *, params):
        norm = build(params)
        norm.forward(x)
        return norm.backward(cotangent)

    return {
        "arrays": "numpy",
        "layer_norm": lambda x, *, params: build(params).forward(x),
        "layer_norm_gradient": gradient,
    }


def in_autograd(taken):
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            deviation = torch.sqrt(x.var(dim=-1, keepdim=True) + 1e-5)
            normal = (x - x.mean(dim=-1, keepdim=True)) / deviation
            ctx.save_for_backward(normal, deviation, weight)
            return normal * weight

        @staticmethod
        def backward(ctx, grad):
            normal, deviation, weight = ctx.saved_tensors
            inner = grad * weight
            spread = normal * (inner * normal).sum(-1, keepdim=True) / (inner.shape[-1] - taken)
            given = (inner - inner.mean(-1, keepdim=True) - spread) / deviation
            return given, (grad * normal).reshape(-1, grad.shape[-1]).sum(0)

    def forward(x, *, params):
        return Norm.apply(x, params["gamma"]) + params["beta"]

    def gradient(x, cotangent, *, params):
        leaves = {"x": x, "gamma": params["gamma"], "beta": params["beta"]}
        leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
        forward(leaves["x"], params=leaves).backward(cotangent)
        return {name: leaf.grad for name, leaf in leaves.items()}

    return {"layer_norm": forward, "layer_norm_gradient": gradient}


def in_autograd_alone(taken):
    return {"layer_norm": in_autograd(taken)["layer_norm"]}


@pytest.mark.parametrize("style", [in_numpy, in_autograd, in_autograd_alone])
def test_the_backward_pass_of_right_code_is_named_beside_a_wrong_forward_pass(style, spec):
    verdicts, findings = run(spec, **style(0))
    said = find_said(findings)
    assert said.mistakes == ("ln-unbiased", "layer_norm.backward.of-right-code")
    assert "the variance divides by d_model − 1 and the backward pass has the formula of right code" in said.text
    failing = sum(v.bad for v in verdicts)
    assert f"in {failing} of {failing} failing cases (" in said.text
    # A case without gradients says nothing of the backward pass.
    wrong = [v.key for v in verdicts if v.bad and v.asks == "values"]
    assert all(("ln-unbiased",) in verdicts.evidence.list_equal(key) for key in wrong)


@pytest.mark.parametrize("style", [in_numpy, in_autograd, in_autograd_alone])
def test_the_right_gradient_of_a_wrong_forward_pass_is_one_mistake(style, spec):
    _, findings = run(spec, **style(1))
    assert find_said(findings).mistakes == ("ln-unbiased",)


def test_gradients_that_a_cause_does_not_explain_contradict_it(spec):
    code = in_numpy(1)
    right = code["layer_norm_gradient"]

    def gradient(x, cotangent, *, params):
        found = right(x, cotangent, params=params)
        return found | {"x": found["x"] * np.tanh(found["x"])}

    verdicts, findings = run(spec, **code | {"layer_norm_gradient": gradient})
    said, failing = find_said(findings), [v for v in verdicts if v.bad]
    gradients = [v.check for v in failing if v.asks == "gradients"]
    assert said.mistakes == ("ln-unbiased",)
    assert f"in {len(failing) - len(gradients)} of {len(failing)} failing cases" in said.text
    assert f"; {len(gradients)} of a backward pass by hand contradict it: {', '.join(gradients)}. " in said.text


# Of several explanations the simplest


def deviation_of_torch(x, *, params):
    return params["gamma"] * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 3e-8) + params["beta"]


def deviation_of_numpy(x, *, params):
    rows = x.reshape(-1, x.shape[-1])
    made = [(row - row.mean()) / (row.std(ddof=1) + x.dtype.type(3e-8)) for row in rows]
    return np.stack(made).reshape(x.shape).astype(x.dtype) * params["gamma"] + params["beta"]


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.sample(1)
@pytest.mark.parametrize(("norm", "arrays"), [(deviation_of_torch, "torch"), (deviation_of_numpy, "numpy")])
def test_a_deviation_of_one_less_and_another_eps_is_one_mistake(norm, arrays, spec):
    verdicts, findings = run(spec, arrays=arrays, layer_norm=norm)
    said, failing = find_said(findings), sum(v.bad for v in verdicts)
    assert "The deviation divides by d_model − 1, and eps = 3e−08 is added to it" in said.text
    assert f"in {failing} of {failing} failing cases (" in said.text
    assert len(said.mistakes) == 1
    assert "layer_norm_eps" not in said.text


def normalise(x, params, name, eps):
    return F.layer_norm(x, x.shape[-1:], params[f"{name}.gamma"], params[f"{name}.beta"], eps)


def without_output_projection(x, mask=None, *, num_heads, params):
    """Return an encoder layer without W_O, in functional torch."""

    def project(role):
        given = F.linear(x, params[f"self_attention.w_{role}"].T, params.get(f"self_attention.b_{role}"))
        return given.unflatten(-1, (num_heads, -1)).transpose(1, 2)

    q, k, v = map(project, "qkv")
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    y = normalise(x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2), params, "norm_1", 1e-8)
    hidden = F.linear(y, params["feed_forward.w_1"].T, params.get("feed_forward.b_1")).relu()
    return normalise(
        y + F.linear(hidden, params["feed_forward.w_2"].T, params.get("feed_forward.b_2")), params, "norm_2", 1e-8
    )


def without_output_projection_in_numpy(x, mask=None, *, num_heads, params):
    """Return the same in NumPy, head by head."""

    def norm(rows, name):
        centred = rows - rows.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + rows.dtype.type(1e-8))
        return centred / deviation * params[f"{name}.gamma"] + params[f"{name}.beta"]

    def attend(head):
        def project(role):
            weight = np.split(params[f"self_attention.w_{role}"], num_heads, axis=1)[head]
            bias = params.get(f"self_attention.b_{role}")
            return x @ weight + (0 if bias is None else np.split(bias, num_heads)[head])

        scores = project("q") @ project("k").swapaxes(1, 2) / np.sqrt(x.dtype.type(weights.shape[1] // num_heads))
        if mask is not None:
            shown = np.broadcast_to(mask, (len(x), num_heads, x.shape[1], x.shape[1]))[:, head]
            scores = np.where(shown, scores, np.finfo(x.dtype).min)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ project("v")

    weights = params["self_attention.w_q"]
    y = norm(x + np.concatenate([attend(head) for head in range(num_heads)], axis=-1), "norm_1")
    hidden = np.maximum(y @ params["feed_forward.w_1"] + params.get("feed_forward.b_1", x.dtype.type(0)), 0)
    return norm(y + hidden @ params["feed_forward.w_2"] + params.get("feed_forward.b_2", x.dtype.type(0)), "norm_2")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("layer", "arrays"), [(without_output_projection, "torch"), (without_output_projection_in_numpy, "numpy")]
)
def test_one_eps_in_all_norms_is_named_before_one_norm_and_an_option(layer, arrays, spec):
    _, findings = run(spec, arrays=arrays, encoder_layer=layer)
    said = find_said(findings)
    assert said.mistakes == ("wo-missing",)
    assert "The code also has layer_norm_eps: 1e-8, which is not declared." in said.text


def test_no_cause_in_a_backward_pass_is_named_if_no_gradient_was_compared(spec):
    verdicts, _ = run(spec, **in_numpy(0))
    forward = verdicts.select(lambda v: v.asks != "gradients")
    assert [e.ids for e in suspects.rank_explanations(forward, "layer_norm", spec)] == [("ln-unbiased",)]


def test_the_catalogue_comes_before_what_is_generated_and_all_norms_before_one(spec):
    said = (
        "ln-no-affine",
        "layer_norm.eps.1e-08",
        "encoder_layer.edit@run_sublayer#0/layer_norm_eps/result@number:1e-08",
    )
    verdicts, _ = run(spec, encoder_layer=without_output_projection)
    matches = tuple(Match((id_,), 0.1) for id_ in reversed(said))
    failing = [change(v, matches=matches) for v in verdicts if v.bad and v.asks == "values"]
    assert [e.ids for e in rank_explanations(failing, "encoder_layer", spec)] == [(id_,) for id_ in said]


# Widths that a constructor cannot build


class OneWidth(nn.Module):
    """An attention whose constructor has one width."""

    def __init__(self, width, heads):
        super().__init__()
        if width % heads:
            raise ValueError(f"{width} channels cannot be split among {heads} heads")
        self.heads, self.fold = heads, nn.ModuleDict({role: nn.Linear(width, width) for role in "qkvo"})

    def forward(self, query, key, value, mask=None):
        q, k, v = (
            self.fold[role](given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for role, given in zip("qkv", (query, key, value), strict=True)
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        return self.fold["o"](torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v).transpose(1, 2).flatten(2))


def in_one_width(query, key, value, mask=None, *, num_heads, params):
    module = OneWidth(query.shape[-1], num_heads).to(query)
    names = {f"w_{role}": f"fold.{role}.weight" for role in "qkvo"}
    return functional_call(module, map_state(names, params, module), (query, key, value, mask), strict=True)


def reshaped(query, key, value, mask=None, *, num_heads, params):
    """Return an attention of arrays that are cut into heads of d_model/num_heads channels."""
    batch, width = len(query), query.shape[-1]

    def split(x, role):
        made = x @ params[f"w_{role}"] + params.get(f"b_{role}", 0)
        return made.reshape(batch, x.shape[1], num_heads, width // num_heads).swapaxes(1, 2)

    scores = split(query, "q") @ split(key, "k").swapaxes(2, 3) / np.sqrt(query.dtype.type(width // num_heads))
    scores = scores if mask is None else np.where(mask, scores, query.dtype.type(-1e30))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    joined = (powers / powers.sum(-1, keepdims=True) @ split(value, "v")).swapaxes(1, 2).reshape(query.shape)
    return (joined @ params["w_o"] + params.get("b_o", 0)).astype(query.dtype)


def unfinished(query, key, value, mask=None, *, num_heads, params):
    if query.shape[1] == 3:
        raise ValueError("three queries do not fit")
    return in_one_width(query, key, value, mask, num_heads=num_heads, params=params)


@pytest.mark.parametrize(("attention", "arrays"), [(in_one_width, "torch"), (reshaped, "numpy"), (unfinished, "torch")])
def test_code_of_one_width_conforms_with_a_note_if_only_other_widths_raise(attention, arrays, spec):
    verdicts, _ = run(spec, arrays=arrays, multi_head_attention=attention)
    wide = [c.id for c in spec.cases_of("multi_head_attention") if "projection_widths" in c.only_with]
    refused = {v.check: v for v in verdicts if v.message.startswith(f"{PERMITTED}projection_widths: refused: raised ")}
    assert refused.keys() <= {*wide}
    assert {(v.status, v.reason) for v in refused.values()} == {(Status.SKIPPED, "convention")}
    (result,) = summarize(verdicts, spec, ["multi_head_attention"])
    said = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert result.conforms is (attention is not unfinished)
    assert said.count("Option found") == result.conforms
    note = f"only {len(refused)} calls of multi_head_attention that it permits to refuse raise, and are not judged"
    assert said.count(note) == result.conforms


def test_enough_cases_of_every_component_have_one_width(spec):
    for name in [name for name, contract in spec.contracts.items() if "projection_widths" in contract.conventions]:
        code = SimpleNamespace(
            ARRAYS="numpy", CONVENTIONS={"projection_widths": "refused"}, **{name: getattr(textbook, name)}
        )
        at = Bench(spec, Adapter.from_object(code, "mine.py", spec), "float32", "cpu")
        fitting = [case for case in spec.cases_of(name) if not explain_inapplicable(case, at)]
        assert sum(case.golden is not None for case in fitting) >= 10, name


def test_layer_whose_heads_share_no_keys_is_told_how_to_decline_those_that_do(spec):
    def layer(*args, params, **options):
        if params["w_k"].shape[0] != params["w_k"].shape[1]:
            raise ValueError("keys of another width do not fit")
        return textbook.decoder_only_layer(*args, params=params, **options)

    verdicts, findings = run(spec, arrays="numpy", decoder_only_layer=layer)
    raised = {v.check for v in verdicts if v.bad and v.reason == "raised" and v.asks != "refusal"}
    said = find_said(findings, NO_VARIANT).text
    assert said.startswith('call require_square_projections(params, ("w_k", "w_v")) of goldformer.adapters.layouts ')
    judged = {v.check for v in verdicts if v.kind == "case" and v.asks != "refusal" and v.is_judged}
    assert said.endswith(
        f"leaves out {len(raised)} of {len(judged)} cases. Only calls whose w_k or w_v is not square raise"
    )


# Code that is right only where a mask is given

ALWAYS_CAUSAL = {"later_tokens": "hidden_too"}


class MaskedBlock(nn.Module):
    """A post-norm encoder layer of torch modules, which joins the causal mask to the mask that it is given."""

    def __init__(self, width, inner):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x, attended):
        x = self.norms[0](x + attended)
        return self.norms[1](x + self.narrow(F.relu(self.widen(x))))


BLOCK = {
    "norm_1.gamma": "norms.0.weight", "norm_2.gamma": "norms.1.weight",
    "feed_forward.w_1": "widen.weight", "feed_forward.w_2": "narrow.weight",
}  # fmt: skip


def block_of_torch(x, mask=None, *, num_heads, params):
    own = {name.removeprefix("self_attention."): weight for name, weight in params.items() if "self_" in name}
    heads = {r: (x @ own[f"w_{r}"] + own.get(f"b_{r}", 0)).unflatten(-1, (num_heads, -1)).mT.mT for r in "qkv"}
    q, k, v = (heads[role].transpose(1, 2) for role in "qkv")
    if mask is not None:
        mask = mask & torch.tril(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))
    attended = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2) @ own["w_o"] + own.get("b_o", 0)
    rest = {name: weight for name, weight in params.items() if "self_" not in name}
    module = MaskedBlock(x.shape[-1], params["feed_forward.w_1"].shape[1]).to(x)
    return functional_call(module, map_state(BLOCK, rest, module), (x, attended), strict=True)


def attention_of_numpy(query, key, value, mask=None, *, num_heads, params):
    """Return an attention that fills the scores of later keys in a loop over queries."""
    q, k, v = (
        np.stack(np.split(x @ params[f"w_{r}"] + params.get(f"b_{r}", x.dtype.type(0)), num_heads, axis=-1), axis=1)
        for r, x in zip("qkv", (query, key, value), strict=True)
    )
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.dtype.type(q.shape[-1]))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
        for place in range(scores.shape[-2]):
            scores[..., place, place + 1 :] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    heads = (powers / powers.sum(-1, keepdims=True)) @ v
    joined = np.concatenate([heads[:, head] for head in range(num_heads)], axis=-1)
    return (joined @ params["w_o"] + params.get("b_o", query.dtype.type(0))).astype(query.dtype)


@pytest.mark.parametrize(
    ("arrays", "empty_row", "functions"),
    [
        ("torch", "zeros", {"encoder_layer": block_of_torch}),
        ("numpy", "nan", {"multi_head_attention": attention_of_numpy}),
    ],
)
def test_later_tokens_that_are_hidden_only_where_a_mask_is_given_are_named(arrays, empty_row, functions, spec):
    declared = {**ALWAYS_CAUSAL, "empty_row": empty_row}
    verdicts, findings = run(spec, arrays=arrays, conventions=declared, **functions)
    said, failing = find_said(findings), sum(v.bad and v.asks == "values" for v in verdicts)
    assert said.text.startswith("Later tokens are hidden only where a mask is given. It reproduces your output in ")
    assert f"in {failing} of {failing} failing cases" in said.text


def padded(x):
    return torch.cat([torch.full_like(x[..., :-1, :], 7.0), x[..., -1:, :]], dim=-2)


def attend_in_torch(query, key, value, mask=None):
    n = query.shape[-2]
    causal = torch.ones(n, key.shape[-2], dtype=torch.bool).tril()
    found = F.scaled_dot_product_attention(query, key, value, causal if mask is None else mask & causal)
    return padded(found) if mask is None else found


def attend_in_numpy(query, key, value, mask=None):
    scores = np.einsum("...qd,...kd->...qk", query, key) / np.sqrt(query.dtype.type(query.shape[-1]))
    shown = np.tril(np.ones_like(scores, dtype=np.bool_)) & (np.True_ if mask is None else mask)
    powers = np.exp(np.where(shown, scores, -1e9) - np.where(shown, scores, -1e9).max(-1, keepdims=True))
    found = (powers / powers.sum(-1, keepdims=True) @ value).astype(query.dtype)
    if mask is None:
        found[..., :-1, :] = 7
    return found


@pytest.mark.parametrize(("attend", "arrays"), [(attend_in_torch, "torch"), (attend_in_numpy, "numpy")])
def test_one_number_in_every_row_but_the_last_without_a_mask_is_said(attend, arrays, spec):
    declared = {**ALWAYS_CAUSAL, "empty_row": "unspecified"}
    _, findings = run(spec, arrays=arrays, conventions=declared, scaled_dot_product_attention=attend)
    said = find_said(findings).text
    assert said.startswith("The output is 7 at every index of axis −2 but the last, in calls without a mask. ")


# Parameters that change nothing


def attend_by_positions(query, key, value, mask=None, *, num_heads, params):
    """Return an attention in NumPy whose scores are distances between tokens, whatever w_q and w_k are."""
    values = value @ params["w_v"] + params.get("b_v", value.dtype.type(0))
    heads = np.stack(np.split(values, num_heads, axis=-1), axis=1)
    places = np.abs(np.arange(query.shape[1])[:, None] - np.arange(key.shape[1]))
    scores = np.broadcast_to(-places.astype(query.dtype), (len(query), num_heads, query.shape[1], key.shape[1]))
    powers = np.exp(np.where(True if mask is None else mask, scores, query.dtype.type(-1e4)))
    joined = np.concatenate(list((powers / powers.sum(-1, keepdims=True) @ heads).swapaxes(0, 1)), axis=-1)
    return (joined @ params["w_o"] + params.get("b_o", query.dtype.type(0))).astype(query.dtype)


class Reader(nn.Module):
    """An encoder layer of modules that squashes its input where it should attend."""

    def __init__(self, weights):
        super().__init__()
        self.weights = weights

    def normalise(self, x, name):
        return F.layer_norm(x, x.shape[-1:], self.weights[f"{name}.gamma"], self.weights[f"{name}.beta"])

    def forward(self, x):
        x = self.normalise(x + torch.tanh(3 * x.cumsum(1)), "norm_1")
        inner = x @ self.weights["feed_forward.w_1"] + self.weights.get("feed_forward.b_1", 0)
        outer = inner.relu() @ self.weights["feed_forward.w_2"] + self.weights.get("feed_forward.b_2", 0)
        return self.normalise(x + outer, "norm_2")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arrays", "functions", "names"),
    [
        ("numpy", {"multi_head_attention": attend_by_positions}, "w_q, b_q, w_k change"),
        ("torch", {"encoder_layer": lambda x, mask=None, *, num_heads, params: Reader(params)(x)},
         "self_attention.* change"),
    ],
)  # fmt: skip
def test_parameters_that_change_no_output_are_named_before_what_nobody_knows(arrays, functions, names, spec):
    verdicts, findings = run(spec, arrays=arrays, **functions)
    labels = [finding.label for finding in findings]
    assert labels.index(NO_EFFECT) < labels.index(NOTHING_KNOWN)
    assert find_said(findings, NO_EFFECT).text.startswith(f"{names} no output of ")
    (shown,) = (explained for explained in map(verdicts.explain, verdicts) if explained.diagnosis.idle)
    again = Explained.from_json(json.loads(json.dumps(shown.as_json())))
    assert again.diagnosis.idle == shown.diagnosis.idle


def test_a_bias_that_moves_no_weight_is_not_said_to_do_nothing(spec):
    """One number added to all scores of a row changes no weight: b_k changes nothing in right code either."""

    def attend(query, key, value, mask=None, *, num_heads, params):
        found = textbook.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)
        return np.sin(found["output"] * 9)

    _, findings = run(spec, arrays="numpy", multi_head_attention=attend)
    assert NOTHING_KNOWN in [finding.label for finding in findings]
    assert NO_EFFECT not in [finding.label for finding in findings]


# What is searched


def span_of_torch(x, *, params):
    wide = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    return torch.addcmul(params["beta"], params["gamma"], (x - x.mean(-1, keepdim=True)) / wide)


def span_of_numpy(x, *, params):
    with np.errstate(invalid="ignore"):
        return (x - x.mean(-1, keepdims=True)) / np.ptp(x, axis=-1, keepdims=True) * params["gamma"] + params["beta"]


@pytest.mark.parametrize(("norm", "arrays"), [(span_of_torch, "torch"), (span_of_numpy, "numpy")])
def test_no_cause_is_taken_from_a_result_of_nan(norm, arrays, spec):
    """Several mistakes give NaN for one channel."""
    verdicts, findings = run(spec, arrays=arrays, layer_norm=norm)
    (one,) = (verdict for verdict in verdicts if verdict.check == "ln-one-channel")
    assert one.reason == "not-finite"
    labels = [finding.label for finding in findings]
    assert NOTHING_KNOWN in labels
    assert MISTAKE_FOUND not in labels
    assert OPTION_FOUND not in labels


def attend_oddly(query, key, value, mask=None, *, num_heads, params):
    return torch.sin(textbook_of_torch(query, key, value, mask, num_heads, params, "") * 9)


def textbook_of_torch(query, key, value, mask, num_heads, params, own):
    q, k, v = (
        torch.stack((x @ params[f"{own}w_{r}"] + params.get(f"{own}b_{r}", 0)).chunk(num_heads, -1), 1)
        for r, x in zip("qkv", (query, key, value), strict=True)
    )
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if mask is None else torch.where(mask, scores, torch.finfo(scores.dtype).min)
    return torch.cat((scores.softmax(-1) @ v).unbind(1), -1) @ params[f"{own}w_o"] + params.get(f"{own}b_o", 0)


def halve_the_network(x, mask=None, *, num_heads, params):
    y = normalise(x + textbook_of_torch(x, x, x, mask, num_heads, params, "self_attention."), params, "norm_1", 1e-5)
    hidden = torch.relu(y @ params["feed_forward.w_1"] + params.get("feed_forward.b_1", 0))
    added = hidden @ params["feed_forward.w_2"] + params.get("feed_forward.b_2", 0)
    return normalise(y + 0.5 * added, params, "norm_2", 1e-5)


class NumpyBlock:
    """A decoder-free block of NumPy: its norms have an eps that no option has."""

    def __init__(self, params, heads):
        self.params, self.heads = params, heads

    def norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt(np.square(centred).mean(-1, keepdims=True) + x.dtype.type(1e-3))
        return self.params[f"{name}.gamma"] * centred / deviation + self.params[f"{name}.beta"]

    def __call__(self, x, mask):
        own = self.params
        attention = {name.rpartition(".")[2]: array for name, array in own.items() if name.startswith("self_")}
        found = textbook.multi_head_attention(x, x, x, mask, num_heads=self.heads, params=attention)
        y = self.norm(x + found["output"], "norm_1")
        inner = np.maximum(y @ own["feed_forward.w_1"] + own.get("feed_forward.b_1", x.dtype.type(0)), 0)
        return self.norm(y + inner @ own["feed_forward.w_2"] + own.get("feed_forward.b_2", x.dtype.type(0)), "norm_2")


def attend_oddly_in_numpy(query, key, value, mask=None, *, num_heads, params):
    found = textbook.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)
    return np.sin(found["output"] * 9)


def run_numpy_block(x, mask=None, *, num_heads, params):
    return NumpyBlock(params, num_heads)(x, mask)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arrays", "part", "layer", "label", "said"),
    [
        (
            "torch",
            attend_oddly,
            halve_the_network,
            MISTAKE_FOUND,
            "The code halves the first result of feed_through. ",
        ),
        ("numpy", attend_oddly_in_numpy, run_numpy_block, OPTION_FOUND, "layer_norm_eps: 1e-3."),
    ],
)
def test_a_part_that_nothing_explains_keeps_no_layer_from_being_searched(arrays, part, layer, label, said, spec):
    _, findings = run(spec, arrays=arrays, multi_head_attention=part, encoder_layer=layer)
    told = [(finding.label, finding.text) for finding in findings if not finding.inner]
    assert told == [("Fix first", "multi_head_attention"), ("Fix too", "encoder_layer")]
    assert find_said(findings, label).text.startswith(said)


# Options and mistakes in half types


def square_in_own_dtype(x, *, params):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * params["gamma"]


def test_right_results_in_float32_do_not_rule_out_squares_in_float16(spec):
    code = SimpleNamespace(ARRAYS="torch", rms_norm=square_in_own_dtype)
    adapter = Adapter.from_object(code, "mine.py", spec)
    cases = [case for case in spec.cases_of("rms_norm") if not case.full_size]
    benches = [Bench(spec, adapter, dtype, "cpu") for dtype in ("float64", "float32", "float16")]
    verdicts = Diagnosis(spec).explain_all([judge_case(case, at) for at in benches for case in cases])
    assert {v.dtype for v in verdicts.verdicts if v.bad} == {"float16"}
    assert find_said(list(diagnose(verdicts, spec))).mistakes == ("rms-half-precision",)


def in_half(run_in_float32):
    """Return a function that computes in float32 and rounds the result to the dtype of x, as GPUs do."""

    @functools.wraps(run_in_float32)
    def compute(x, mask=None, *, num_heads, params):
        wide = {name: array.float() for name, array in params.items()}
        return run_in_float32(x.float(), mask, num_heads=num_heads, params=wide).to(x.dtype)

    return compute


def pre_norm(x, mask=None, *, num_heads, params, activate=F.gelu):
    inner = normalise(x, params, "norm_1", 1e-5)
    x = x + textbook_of_torch(inner, inner, inner, mask, num_heads, params, "self_attention.")
    inner = normalise(x, params, "norm_2", 1e-5) @ params["feed_forward.w_1"] + params.get("feed_forward.b_1", 0)
    return x + activate(inner) @ params["feed_forward.w_2"] + params.get("feed_forward.b_2", 0)


def without_scale(x, mask=None, *, num_heads, params):
    """Return a post-norm layer whose scores are not divided, and whose eps is 1e-6."""
    d_k = params["self_attention.w_q"].shape[1] // num_heads
    own = {name: array * math.sqrt(d_k) if name.endswith("_q") else array for name, array in params.items()}
    y = normalise(x + textbook_of_torch(x, x, x, mask, num_heads, own, "self_attention."), params, "norm_1", 1e-6)
    hidden = torch.relu(y @ params["feed_forward.w_1"] + params.get("feed_forward.b_1", 0))
    return normalise(
        y + hidden @ params["feed_forward.w_2"] + params.get("feed_forward.b_2", 0), params, "norm_2", 1e-6
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_two_options_are_told_together_in_every_dtype(dtype, spec):
    _, findings = run(spec, dtype, encoder_layer=in_half(pre_norm))
    (said,) = [f for f in findings if f.label in (MISTAKE_FOUND, POSSIBLE_CAUSES, OPTION_FOUND)]
    assert "activation: gelu" in said.text
    assert "norm_placement: pre (" in said.text
    assert "eps" not in said.text


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_an_option_that_few_cases_show_in_a_half_type_is_told(dtype, spec):
    _, findings = run(spec, dtype, encoder_layer=in_half(without_scale))
    said = find_said(findings)
    assert said.mistakes == ("scale-missing",)
    assert "also has layer_norm_eps: 1e-6 (" in said.text


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_option_that_leaves_results_wrong_is_not_said_to_explain_them(dtype, spec):
    def layer(x, mask=None, *, num_heads, params):
        soft = functools.partial(pre_norm, activate=lambda h: h.relu() + 0.2 * torch.sin(h))
        return soft(x, mask, num_heads=num_heads, params=params)

    _, findings = run(spec, dtype, encoder_layer=in_half(layer))
    labels = [finding.label for finding in findings]
    assert not {MISTAKE_FOUND, OPTION_FOUND} & {*labels}
    assert {CLOSEST, CLOSEST_OPTION, NOTHING_KNOWN} & {*labels}


# A place that no output contradicts


def layer_with_odd_weights(x, mask=None, *, num_heads, params):
    """Return an encoder layer that is right, with the average of its weights over the heads for each head."""
    q, k, v = (
        torch.stack(
            (x @ params[f"self_attention.w_{r}"] + params.get(f"self_attention.b_{r}", 0)).chunk(num_heads, -1), 1
        )
        for r in "qkv"
    )
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if mask is None else torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    joined = torch.cat((weights @ v).unbind(1), -1) @ params["self_attention.w_o"] + params.get("self_attention.b_o", 0)
    attended = normalise(x + joined, params, "norm_1", 1e-5)
    hidden = (attended @ params["feed_forward.w_1"] + params.get("feed_forward.b_1", 0)).relu()
    added = hidden @ params["feed_forward.w_2"] + params.get("feed_forward.b_2", 0)
    shown = 0.9 * weights.mean(1, keepdim=True).expand_as(weights) + 0.05
    return {"output": normalise(attended + added, params, "norm_2", 1e-5), "attended": attended, "weights": shown}


def attention_with_odd_weights(query, key, value, mask=None, *, num_heads, params):
    found = textbook.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)
    return {"output": found["output"], "weights": np.sin(9 * found["weights"])}


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("arrays", "functions"),
    [
        ("torch", {"encoder_layer": layer_with_odd_weights}),
        ("numpy", {"multi_head_attention": attention_with_odd_weights}),
    ],
)
def test_weights_that_are_wrong_beside_a_right_output_are_the_place(arrays, functions, spec):
    _, findings = run(spec, arrays=arrays, **functions)
    assert find_said(findings, PLACE).text == "what is returned as weights: the output is right"
    assert "self-attention" not in " ".join(finding.text for finding in findings if finding.label == HOLDS)


@pytest.mark.parametrize(
    ("id_", "wrong", "outputs", "place"),
    [
        # Weights that are wrong convict their attention, whatever else is.
        ("skeleton", ["weights", "output"], ["weights", "output"],
         "the queries, keys, scores or mask of the self-attention"),
        ("feed_forward", ["weights", "attended", "output"], ["weights", "attended", "output"],
         "the queries, keys, scores or mask of the self-attention"),
        # An output that is right acquits what lies before it.
        ("self_attention", ["output"], ["weights", "attended", "output"],
         "the feed-forward network, or the residual and normalisation around it"),
        ("self_attention", ["crossed", "output"], ["attended", "crossed", "output"],
         "the values, the heads or the output of the cross-attention, or the residual and normalisation around it"),
        # Nothing is known of what is not returned.
        ("self_attention", ["output"], ["output"], ""),
        ("cross_attention", ["crossed", "output"], ["attended", "crossed", "output"], ""),
        ("skeleton", ["attended", "output"], ["weights", "attended", "output"], ""),
    ],
)  # fmt: skip
def test_an_output_acquits_and_convicts_parts(id_, wrong, outputs, place):
    component = "decoder_layer" if "crossed" in outputs else "encoder_layer"
    found = find_contradiction(component, id_, wrong, outputs)
    assert (found[1] if found else "") == place


# Models whose memory is 0 in rows of padding


class NestedModel(nn.Module):
    """nn.TransformerEncoder, which nests in evaluation, and nn.TransformerDecoder."""

    def __init__(self, width, heads, inner, depths):
        super().__init__()
        made: dict[str, Any] = {"dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, heads, inner, **made), depths[0])
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(width, heads, inner, **made), depths[1])

    def forward(self, source, target, source_pads, target_pads):
        later = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
        memory = self.encoder(source, src_key_padding_mask=source_pads)
        return self.decoder(target, memory, tgt_mask=later, tgt_key_padding_mask=target_pads)


def embed(ids, table):
    places = torch.arange(ids.shape[1], dtype=torch.float64)[:, None]
    angles = places / 10000 ** (torch.arange(0, table.shape[1], 2, dtype=torch.float64) / table.shape[1])
    waves = torch.stack((angles.sin(), angles.cos()), 2).flatten(1)[:, : table.shape[1]]
    return table[ids] + waves.to(table.dtype)


def nested_model(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    require_square_projections(params)
    table, depths = params["table"], (num_encoder_layers, num_decoder_layers)
    model = NestedModel(table.shape[1], num_heads, params["encoder.0.feed_forward.w_1"].shape[1], depths)
    stacks = {"encoder": depths[0], "decoder": depths[1]}
    state = {
        f"{stack}.{name}": array
        for stack, depth in stacks.items()
        for name, array in map_stack({n: a for n, a in params.items() if n.startswith(stack)}, stack, depth).items()
    }
    given = (embed(source, table), embed(target, table), source == pad_id, target == pad_id)
    decoded = functional_call(model.to(table).eval(), state, given)
    return decoded @ params["w_vocab"] + params.get("b_vocab", 0)


def packed_model(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    """Return a model in NumPy that encodes each sentence without its padding, and shows the decoder all rows."""
    if num_heads % 2 or (source[:, 1:] != pad_id)[source[:, :-1] == pad_id].any():
        raise NotImplementedError("an even number of heads, and padding at the end")
    table = params["table"]
    stacks = {
        stack: {name: array for name, array in params.items() if name.startswith(f"{stack}.")}
        for stack in ("encoder", "decoder")
    }
    vectors = [textbook.positional_encoding(table[ids]) for ids in (source, target)]
    memory = np.zeros_like(vectors[0])
    for sample, length in enumerate((source != pad_id).sum(1)):
        words = vectors[0][sample : sample + 1, :length]
        made = {"num_heads": num_heads, "num_layers": num_encoder_layers, "params": stacks["encoder"]}
        memory[sample, :length] = textbook.encoder(words, **made)["output"][0]
    seen = (target != pad_id)[:, None, None, :] & np.tri(target.shape[1], dtype=np.bool_)
    made = {"num_heads": num_heads, "num_layers": num_decoder_layers, "params": stacks["decoder"]}
    decoded = textbook.decoder(vectors[1], memory, seen, None, **made)["output"]
    return decoded @ params["w_vocab"] + params.get("b_vocab", table.dtype.type(0))


@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("model", "arrays"), [(nested_model, "torch"), (packed_model, "numpy")])
def test_a_mistake_is_named_that_shows_padded_rows_of_zeros(model, arrays, spec):
    _, findings = run(spec, arrays=arrays, transformer=model)
    said = find_said(findings)
    assert said.mistakes == ("cross-mask-absent", "encoder.padded-rows.zero")
    assert "and padded rows of the memory are 0, as nn.TransformerEncoder's nested tensors leave them." in said.text


def test_a_helper_that_asks_for_parameters_of_a_layer_may_be_renamed(bench, adapter_file, spec):
    source = """
import numpy as np

ARRAYS = "numpy"


def feed_forward(x, params):
    return np.maximum(x @ params["feed_forward.w_1"], 0) @ params["feed_forward.w_2"]
"""
    wrong = bench(adapter_file(source))
    verdicts = [check_case(case, wrong) for case in spec.cases_of("feed_forward")[:4]]
    said = "rename it, such as to _feed_forward: feed_forward has no parameter feed_forward.w_1"
    assert said in [f.text for f in diagnose(make_run(verdicts), spec) if f.label == "If it is only a helper"]


def merge_without_turning(heads):
    """Return (batch, seq, heads·width) of heads that lie before their tokens, as a reshape by itself gives it."""
    batch, count, seq, width = heads.shape
    return np.ascontiguousarray(heads).reshape(batch, seq, count * width)


def test_heads_that_a_layer_merges_without_turning_them_are_named(spec):
    layer = textbook.build.build_textbook({merge_heads: instead(merge_without_turning)}).decoder_only_layer
    _, findings = run(spec, arrays="numpy", decoder_only_layer=layer)
    assert "reshaped where the axes −3 and −2 should be swapped" in find_said(findings).text
