"""Broken on purpose: one edit in a copy of the reference at a time must fail, and say what a student understands."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.support.runs import make_run

from comparisons import remark_lines
from goldformer.adapters import find_adapter
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.suspects import find_failing_roots, rank_suspects
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.reports.text import explain_verdict

ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class Break:
    """One edit: in a file of reference_impl, old text for new; and what the suite must make of it."""

    mistake: str
    file: str
    old: str
    new: str
    root: str
    passes: tuple[str, ...] = ()


BREAKS = (
    Break(
        "scale-missing", "transformer.py",
        "attention_scores(query, key) / math.sqrt(query.shape[-1])", "attention_scores(query, key)",
        ATTENTION, ("softmax", "positional_encoding"),
    ),
    Break(
        "softmax-query-axis", "transformer.py",
        "weights = softmax(scores)", "weights = softmax(scores.transpose(-1, -2)).transpose(-1, -2)",
        ATTENTION, ("softmax",),
    ),
    Break(
        "mask-inverted", "transformer.py",
        "scores.masked_fill(~mask,", "scores.masked_fill(mask,",
        ATTENTION, ("softmax", "causal_mask"),
    ),
    Break(
        "causal-plus-one", "transformer.py",
        "<= torch.arange(q_seq, device=device)[:, None]", "<= torch.arange(q_seq, device=device)[:, None] + 1",
        "causal_mask", (ATTENTION, "multi_head_attention"),
    ),
    Break(
        "head-split-view", "transformer.py",
        "return x.reshape(*x.shape[:2], num_heads, -1).transpose(1, 2)",
        "return x.reshape(x.shape[0], num_heads, x.shape[1], -1)",
        "multi_head_attention", (ATTENTION,),
    ),
    Break(
        "wo-missing", "transformer.py",
        "return affine(merge_heads(heads), self.w_o, self.b_o), weights",
        "return merge_heads(heads)[..., : self.w_o.shape[-1]], weights",
        "multi_head_attention", (ATTENTION,),
    ),
    Break(
        "pe-double-exp", "transformer.py",
        "10000.0 ** (two_i / d_model)", "10000.0 ** (2 * two_i / d_model)",
        "positional_encoding", ("softmax",),
    ),
    Break(
        "pe-sin-cos-swap", "transformer.py",
        "torch.where(channel % 2 == 0, angle.sin(), angle.cos())",
        "torch.where(channel % 2 == 0, angle.cos(), angle.sin())",
        "positional_encoding", ("softmax",),
    ),
)  # fmt: skip


#: Enough to tell where an edit is, and what does not depend on it. The models built of these take ten times as long.
COMPONENTS = ("softmax", "causal_mask", "positional_encoding", ATTENTION, "multi_head_attention", "encoder_layer")


@pytest.mark.sample(4)
@pytest.mark.parametrize("edit", BREAKS, ids=lambda edit: edit.mistake)
def test_every_break_is_caught_named_and_placed(edit, broken_reference, spec, verdicts_of):
    path = broken_reference(edit.file, edit.old, edit.new)
    bench = Bench(spec, find_adapter(path, spec), "float32", "cpu")
    verdicts = verdicts_of(bench, *COMPONENTS)
    bad = [v for v in verdicts if v.bad]
    assert bad, f"{edit.mistake} is not caught"
    # Placed: it fails where the edit is, and what does not depend on it still conforms.
    roots, _ = find_failing_roots(verdicts, spec)
    assert edit.root in roots
    for component in edit.passes:
        assert not [v.check for v in bad if v.component == component]
    # Caught with a margin, not by a hair: rounding is within 1, a mistake lies far beyond it.
    assert max(v.ratio or 0 for v in bad) > 1000
    # Named: the mistakes that fit what failed and what passed include the one made, before all that fit less.
    named = [s.mistake.id for s in rank_suspects(make_run(verdicts), edit.root, spec)]
    assert edit.mistake in named[:4]
    text = "\n".join(remark_lines(verdicts, spec))
    assert f"Fix first: {edit.root}\n" in text
    assert spec.mistakes[edit.mistake].hint.split()[0] in text
    report = explain_verdict(Explained(next(v for v in bad if v.differences)), spec)
    for part in ("expected", "actual", "Clause", "Source", "Repeat      goldformer check"):
        assert part in report


#: What is right in float32 and wrong in a half type: the edit, the cases that show it, and the dtypes they show it in.
HALF_BREAKS = {
    "angle": (
        ("decoder_only.py", "row, rest = widen(x[..., :width])", "row, rest = (x[..., :width])"),
        ("dom-three-hundred-positions", "lmc-three-hundred-positions"),
        ("float16", "bfloat16"),
    ),
    "position": (
        ("decoder_only.py", "positions[..., None].to(row.dtype)", "positions[..., None].to(x.dtype).to(row.dtype)"),
        ("dom-three-hundred-positions", "lmc-three-hundred-positions"),
        ("bfloat16",),
    ),
    "exponent": (
        ("parts.py", "lambda x: x * x.sigmoid()", "lambda x: x / (1 + (-x).half().exp())"),
        ("dol-gates-of-minus-twelve", "moe-ffn-gates-of-minus-twelve"),
        ("float16",),
    ),
}


@pytest.mark.parametrize("name", HALF_BREAKS)
def test_what_is_computed_in_a_half_type_fails_in_whole_components(name, broken_reference, spec):
    edit, cases, dtypes = HALF_BREAKS[name]
    implementations = [find_adapter("reference", spec), find_adapter(broken_reference(*edit), spec)]
    for dtype in dtypes:
        right, wrong = (Bench(spec, implementation, dtype, "cpu") for implementation in implementations)
        for id_ in cases:
            assert check_case(spec.cases[id_], right).ratio < 0.5
            assert check_case(spec.cases[id_], wrong).ratio > 5
