"""Cases of one's own, which --cases reads from files."""

from __future__ import annotations

import re
import textwrap
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec import load_spec
from goldformer.spec.goldenfile import read_entries, render

SPEC = load_spec()

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
