"""The smallest input of a violated property is a case: it loads, derives, and fails whoever violated the property."""

from __future__ import annotations

import re
import textwrap
from types import SimpleNamespace

import pytest
import yaml
from click.testing import CliRunner

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.cli import main
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.reports.text import explain_verdict
from goldformer.spec import load_spec
from goldformer.spec.goldenfile import read_entries, render
from goldformer.spec.load import load_own_cases
from goldformer.spec.oracle.run import derive_golden
from spoiling import keep, load

SPEC = load_spec()
#: What these compare is random, runs elsewhere, or is no call of a component: no golden value shows it.
NO_CASE = {
    "device-hygiene",
    "repeat-calls",
    "no-memory",
    "memory-layout",
    "dropout-after-evaluation",
    "sdpa-dropout",
    "xavier-seed",
    "dropout-values",
    "dropout-seed",
    "dropout-independence",
    "shas-gradient",
    "shas-one-by-one",
    "sha-message",
}
#: One mistake for each property, to show its counterexample.
SHOWN = {p.id: p.catches[0] for p in SPEC.properties.values() if p.id not in NO_CASE}


def bench_of(mistake, dtype="float64"):
    return Bench(SPEC, Adapter.from_object(implementations()[mistake].make(), mistake, SPEC), dtype, "cpu")


def counterexample(property_, mistake, dtype="float64"):
    prop = SPEC.properties[property_]
    verdict = check_property(prop, prop.component, bench_of(mistake, dtype))
    assert verdict.status is Status.FAILED
    return verdict.example


@pytest.fixture
def derived(tmp_path):
    """The one case of a counterexample, as a user's file of any name holds it, with its golden values."""

    def read(text):
        path = tmp_path / "found.yaml"
        path.write_text(text, encoding="utf-8")
        (case,) = load_own_cases(path, SPEC)
        return derive_golden(case, SPEC)

    return read


@pytest.mark.sample(6)
@pytest.mark.parametrize("property_", SHOWN)
def test_a_counterexample_fails_the_mistake_and_no_other(property_, derived):
    text = counterexample(property_, SHOWN[property_])
    # What it is, what was expected, and the case, of which recipes say most.
    assert text.startswith(f"# {property_}: ")
    assert len(text.splitlines()) <= 26
    case = derived(text)
    assert (case.id, case.title) == (f"found-by-{property_}", SPEC.properties[property_].title)
    assert check_case(case, bench_of(SHOWN[property_])).status is Status.FAILED
    conventions = getattr(implementations()[SHOWN[property_]].make(), "CONVENTIONS", {})
    right = Adapter.from_object(build_textbook(CONVENTIONS=conventions), "right", SPEC)
    assert check_case(case, Bench(SPEC, right, "float64", "cpu")).status is Status.PASSED


@pytest.mark.parametrize(
    ("property_", "mistake"),
    [
        ("dropout-values", "dropout-no-rescale"),
        ("xavier-seed", "xavier-one-seed"),
        ("sdpa-dropout", "attention-dropout-output"),
    ],
)
def test_what_is_random_has_no_case(property_, mistake):
    assert counterexample(property_, mistake) == ""


def test_a_counterexample_of_a_float32_run_is_the_same():
    of_64, of_32 = (counterexample("sdpa-causality", "mask-multiply-zero", d) for d in ("float64", "float32"))
    assert of_64 == of_32


def test_a_case_in_recipes_and_few_lines():
    text = counterexample("sdpa-causality", "mask-multiply-zero")
    assert text.splitlines() == [
        "# sdpa-causality: the output up to position 0 changes when later rows of key and value are replaced",
        "component: scaled_dot_product_attention",
        "cases:",
        "  - id: found-by-sdpa-causality",
        '    title: "under a causal mask, later keys and values do not matter"',
        "    clauses: [SDPA-6, MASK-2]",
        "    source: derived",
        "    sizes: {lead: [1], q_seq: 2, d_k: 3, kv_seq: 2, d_v: 2}",
        "    equal_sizes: as drawn",
        "    inputs:",
        "      query: {draw: dyadic, seed: 0, range: [-2, 2], step: 1/64}",
        "      key: {draw: dyadic, seed: 0, range: [-2, 2], step: 1/64}",
        "      value: {draw: dyadic, seed: 0, range: [-2, 2], step: 1/64}",
        "      mask: {causal: true, shape: [2, 2]}",
        "    only_with: {empty_row: uniform, later_tokens: as_masked}",
        "    expect: {output: all, weights: all, scores: all, scaled_scores: all}",
    ]


def test_what_is_no_longer_as_it_was_drawn_is_written_out():
    (case,) = yaml.safe_load(counterexample("ln-rows", "ln-wrong-axis"))["cases"]
    # The property rounds what it draws to quarters.
    assert {number % 0.25 for row in case["inputs"]["x"]["values"] for number in row} == {0}
    assert case["params"] == {"draw": "dyadic", "seed": 0, "range": [-1, 1], "step": "1/64"}
    (case,) = yaml.safe_load(counterexample("mha-hidden-tokens", "mask-repeat-order"))["cases"]
    assert case["inputs"]["mask"] == {"lengths": [1, 2], "shape": [2, 1, 1, 2]}
    (case,) = yaml.safe_load(counterexample("greedy-batch", "batch-eos"))["cases"]
    assert case["params"]["biases"] is False
    assert case["params"]["but"]["decoder.0.norm_3.gamma"] == {"fill": 1}


def test_the_conventions_are_those_that_the_adapter_declares():
    says_that_it_is_concatenated = build_textbook(CONVENTIONS={"pe_layout": "concatenated"})
    prop = SPEC.properties["pe-shift-is-rotation"]
    bench = Bench(SPEC, Adapter.from_object(says_that_it_is_concatenated, "mine", SPEC), "float64", "cpu")
    (case,) = yaml.safe_load(check_property(prop, "positional_encoding", bench).example)["cases"]
    assert case["only_with"]["pe_layout"] == "concatenated"


def test_it_is_printed_under_the_verdict():
    prop = SPEC.properties["sm-simplex"]
    verdict = check_property(prop, "softmax", bench_of("softmax-unstable"))
    assert explain_verdict(Explained(verdict), SPEC).endswith(verdict.example)
    assert "\n  As a case   --save-cases FOLDER saves it as a file, which --cases FILE reads:\n#" in explain_verdict(
        Explained(verdict), SPEC
    )


def test_it_can_be_pasted_into_the_spec_and_derived_there(spec_copy):
    """The item of the list goes behind those of the component's own file."""
    keep(spec_copy, ["layer_norm"])
    file = spec_copy / "cases" / "layer_norm.yaml"
    item = counterexample("ln-rows", "ln-wrong-axis").partition("cases:\n")[2]
    file.write_text(file.read_text(encoding="utf-8").rstrip("\n") + "\n" + item + "\n", encoding="utf-8")
    result = CliRunner().invoke(
        main, ["derive", "--case", "found-by-ln-rows", "--spec", str(spec_copy), "--jobs", "1", "--no-cache"]
    )
    assert (result.exit_code, result.output.split()[:2]) == (
        0,
        ["wrote", str(spec_copy.resolve() / "golden/layer_norm.json")],
    )
    case = load(spec_copy).cases["found-by-ln-rows"]
    assert check_case(case, bench_of("ln-wrong-axis")).status is Status.FAILED
    assert check_case(case, bench_of("ln-unbiased")).status is Status.FAILED
    assert check_case(case, bench_of("wo-missing")).status is Status.PASSED


# Cases of one's own

ADAPTER = """
import numpy as np

ARRAYS = "numpy"

def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / {sum}
"""
OWN = """
component: softmax
cases:
  - id: mine
    title: Mine
    clauses: [SM-1]
    source: derived
    sizes: {lead: [], n: 3}
    inputs:
      scores: {values: [0, 1, 3]}
    expect: {output: all}
"""


@pytest.fixture
def check(tmp_path, adapter_file):
    """Run `goldformer check --cases` on a right or a wrong softmax and files of cases."""

    def run(*texts, right=True, options=()):
        paths = [tmp_path / f"cases-{i}.yaml" for i in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text, encoding="utf-8")
        adapter = adapter_file(ADAPTER.replace("{sum}", "powers.sum(-1, keepdims=True)" if right else "3"))
        named = [word for path in paths for word in ("--cases", str(path))]
        result = CliRunner().invoke(main, ["check", adapter, *named, "--dtype", "float64", *options])
        return SimpleNamespace(result=result, paths=paths, adapter=adapter)

    return run


def test_only_the_cases_of_the_file_are_checked(check):
    result = check(OWN).result
    assert result.exit_code == 0
    assert re.search(r"^softmax +1 +· .* conforms \(1 of 1 cases apply\)$", result.stdout, re.MULTILINE)


def test_a_case_of_the_file_that_fails_says_how_to_repeat_it(check):
    ran = check(OWN, right=False)
    assert ran.result.exit_code == 1
    assert f"Repeat: goldformer check {ran.adapter} --cases {ran.paths[0].resolve()} --case mine" in ran.result.stdout


def test_golden_values_that_the_file_has_are_taken(check, tmp_path):
    folder = tmp_path / "golden"
    folder.mkdir()
    (folder / "softmax.yaml").write_text(OWN, encoding="utf-8")
    golden = SPEC.cases["sm-one-row-by-hand"]
    text = (SPEC.root / "cases" / "softmax.yaml").read_text(encoding="utf-8")
    first = text[text.index(f"  - id: {golden.id}") : text.index("\n  - id: ", text.index(f"  - id: {golden.id}"))]
    renamed = f"component: softmax\ncases:\n{first.replace(golden.id, 'renamed')}\n"
    entry = render(read_entries(SPEC.root / "golden" / "softmax.json")[golden.id])
    brought = f"{renamed}golden:\n  renamed:\n{textwrap.indent(entry, '    ')}\n"
    assert check(brought).result.exit_code == 0
    # Were they derived anew, nobody would see that they are others.
    number = re.search(r'"values": \[(0\.\d+)', brought)[1]
    assert check(brought.replace(number, "0.5")).result.exit_code == 1
    for spoilt, said in (
        (brought.replace(f"[{number}, ", "["), "renamed: output has shape (2,), the contract says (3,)"),
        (brought.replace("  renamed:", "  misspelt:"), "misspelt: 'misspelt' is no case of cases-0.yaml"),
    ):
        result = check(spoilt).result
        assert result.exit_code == 2
        assert result.output.endswith(f":13: golden.{said}: remove it, and it is derived again\n")


def test_cases_of_several_files_and_one_of_them(check):
    other = OWN.replace("id: mine", "id: other")
    assert re.search(r"^softmax +2 ", check(OWN, other).result.stdout, re.MULTILINE)
    assert re.search(r"^softmax +1 ", check(OWN, other, options=["--case", "other"]).result.stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([OWN, OWN], "{1}:4: id: 'mine' is taken: the spec has it, or a file before"),
        (
            [OWN.replace("id: mine", "id: sm-several-rows")],
            "{0}:4: id: 'sm-several-rows' is taken: the spec has it, or",
        ),
        (
            [OWN.replace("id: mine", "id: sm-shift")],
            "{0}:4: id: 'sm-shift' is taken: the spec has it, or a file before",
        ),
        (
            [OWN.replace("SM-1", "SM-99")],
            "{0}:6: mine.clauses: SM-99 is no clause of transformer.md or decoder_only.md",
        ),
        ([OWN.replace("component: softmax", "component: sofmax")], "{0}:2: component: 'sofmax' has no contract"),
        ([""], "{0}:1: file: is empty"),
    ],
)
def test_a_file_that_cannot_be_used_is_2_and_says_where(texts, said, check):
    ran = check(*texts)
    assert ran.result.exit_code == 2
    assert said.format(*(path.resolve() for path in ran.paths)) in ran.result.stderr


def test_a_file_that_is_not_there_is_2(check, tmp_path):
    ran = check(options=["--cases", str(tmp_path / "nowhere.yaml")])
    assert ran.result.exit_code == 2
    assert "nowhere.yaml:1: file: cannot be read: No such file or directory" in ran.result.stderr


def test_a_tie_that_nothing_decides_is_2(check):
    tie = """
component: greedy_decode
cases:
  - id: tie
    title: All logits are equal
    clauses: [DEC-2]
    source: derived
    sizes: {vocab: 3, d_model: 2, d_k: 2, d_v: 2, d_ff: 2, batch: 1, source_seq: 1, heads: 1}
    attributes: {num_heads: 1, num_encoder_layers: 1, num_decoder_layers: 1, pad_id: 0, bos_id: 1, eos_id: 2,
      max_length: 1}
    inputs:
      source: {values: [[1]]}
    params: {draw: dyadic, seed: 0, range: [-1, 1], step: 1/64, biases: false, but: {w_vocab: {fill: 0}}}
    only_with: {embedding_scale: none, norm_placement: post, layer_norm_eps: 1e-5, pe_layout: interleaved}
    expect: {ids: all}
"""
    result = check(tie).result
    assert result.exit_code == 2
    assert "tie: 1 of its 1 decisions are between exactly equal candidates" in result.stderr
