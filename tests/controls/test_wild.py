"""Implementations in the styles that people write: what is right is not called wrong, and the table of the bench."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import cache

import pytest
from benchmarks.wild import (
    DECLARED,
    DEFAULT,
    Settings,
    describe_verdict,
    format_table,
    judge_mistake,
    list_remarks,
    main,
    make_table,
    run,
)
from tests.support.wild import TESTED, Mistake, read_bench, split_declaration

from goldformer.adapters import find_adapter
from goldformer.conformance.diagnosis.edits.edit import is_edit
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.spec import load_spec

BENCH = [wild for wild in read_bench() if wild.path.parent == TESTED]
CORRECT = [wild for wild in BENCH if wild.is_correct]
#: Programs that conform with what they declare.
CONVENTIONAL = [wild for wild in BENCH if not wild.on_purpose]
VARIANTS = [wild for wild in BENCH if not wild.is_correct]


@pytest.mark.parametrize("wild", BENCH, ids=lambda wild: wild.name)
def test_each_mistake_changes_one_place_and_leaves_python(wild):
    for name in wild.mistakes:
        compile(wild.apply_mistake(name), wild.path.name, "exec")


def test_each_id_is_one_of_the_catalogue_or_an_option(spec):
    ids = {id_ for wild in BENCH for mistake in wild.mistakes.values() for id_ in mistake.ids}
    named = [(id_, *id_.split(": ")) for id_ in ids if id_.partition(": ")[0] in spec.conventions]
    options = {id_ for id_, name, option in named if spec.conventions[name].read_option(option) == option}
    assert {id_ for id_ in ids if not is_edit(id_)} <= spec.mistakes.keys() | options
    assert {id_ for wild in BENCH for id_ in wild.on_purpose} <= spec.mistakes.keys()


#: Code that fails in half types for a reason of its own: a fill of −1e9 raises, or is −∞ and makes NaN of empty rows,
#: and a scale that is a tensor of float32 meets halves.
FAILS_IN = {
    "float32": (),
    "bfloat16": (),
    "float16": (
        "annotated_clones",
        "free_width_decoding",
        "keras_like_layers",
        "numpy_from_scratch",
        "post_norm_clones",
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", FAILS_IN)
@pytest.mark.parametrize("wild", CONVENTIONAL, ids=lambda wild: wild.name)
def test_no_number_is_called_wrong(wild, dtype, spec):
    adapter = find_adapter(str(wild.path), spec)
    declared, unknown = split_declaration(wild.declares, spec)
    assert unknown == {}
    adapter = replace(adapter, conventions={**adapter.conventions, **declared})
    bench = Bench(spec, adapter, dtype, "cpu")
    verdicts = [check_case(case, bench) for case in plan(spec, adapter.functions) if case.error is None]
    assert any(v.is_judged for v in verdicts)
    bad = {v.reason for v in verdicts if v.bad}
    assert bad <= {"raised", "not-finite"}
    assert bool(bad) == (wild.name in FAILS_IN[dtype])


# What the bench asks for: `python -m benchmarks.wild` runs all of it and prints the table


MISTAKES = [(wild, name) for wild in BENCH for name in wild.mistakes]
#: Code that has not every form that cases ask for, such as masks that are no lengths, or a second sentence of a beam.
KEEPS_FEWER = {"bert_style_encoder", "gpt_blocks_thirds", "gpt_without_masks", "losses_kl_padding"}


@cache
def run_clean(wild_name, declaration):
    """The run of an implementation as it is, without the models of full size."""
    (wild,) = read_bench([wild_name])
    return run(wild, declaration, None, Settings(small=True), load_spec())


@pytest.mark.sample(1)
@pytest.mark.parametrize("wild", CORRECT, ids=lambda wild: wild.name)
def test_correct_code_conforms_by_default(wild):
    record = run_clean(wild.name, DEFAULT)
    assert (describe_verdict(wild, record), record["bad"]) == ("conforms", [])


@pytest.mark.sample(1)
@pytest.mark.parametrize("wild", CONVENTIONAL, ids=lambda wild: wild.name)
def test_code_conforms_with_what_it_declares_and_keeps_its_cases(wild):
    record = run_clean(wild.name, DECLARED)
    assert record["not_in_spec"] == {}
    assert (describe_verdict(wild, record), record["bad"]) == ("conforms", [])
    assert (record["judged"] < 0.8 * record["exist"]) == (wild.name in KEEPS_FEWER)


@pytest.mark.sample(1)
@pytest.mark.parametrize("wild", VARIANTS, ids=lambda wild: wild.name)
def test_a_variant_is_named_if_it_does_not_declare_itself(wild):
    verdict = describe_verdict(wild, run_clean(wild.name, DEFAULT))
    assert verdict.startswith("named: ")


@pytest.mark.sample(1)
@pytest.mark.parametrize(("wild", "mistake"), MISTAKES, ids=lambda part: getattr(part, "name", part))
def test_a_mistake_is_caught_where_it_is_and_not_misnamed(wild, mistake):
    record = run(wild, DECLARED, mistake, Settings(small=True), load_spec())
    outcome = judge_mistake(wild.mistakes[mistake], record, run_clean(wild.name, DECLARED))
    assert (outcome.misnamed, outcome.said if outcome.misnamed else ()) == (False, ())
    assert outcome.caught
    assert outcome.placed


# The table


def make_record(*bad, findings=(), judged=9, exist=10):
    """A run in which some checks fail, by "check component"."""
    failed = [[*text.split(), "wrong-value", "differs"] for text in bad]
    return {"bad": failed, "faults": [], "findings": list(findings), "judged": judged, "exist": exist}


MISTAKE = Mistake("old", "new", "The scores are not scaled.", ("scale-missing", "scale-twice"))
FOUND = ["Mistake found", "…", ["scale-missing"]]
OTHER = ["Mistake found", "…", ["kv-swap"]]


@pytest.mark.parametrize(
    ("bad", "findings", "outcome"),
    [
        ((), (), (False, False, False, False)),
        (("a softmax",), (), (False, False, False, False)),
        (("a softmax", "b encoder"), (["Fix first", "softmax", []],), (True, False, False, False)),
        (("b encoder",), (["Fix first", "encoder", []], FOUND), (True, True, True, False)),
        (("b encoder",), (["Fix first", "encoder", []], OTHER), (True, True, False, True)),
        (("b encoder",), (["Fix first", "encoder", []], OTHER, FOUND), (True, True, True, False)),
        (("b encoder",), (["Fix first", "encoder", []], ["Closest known mistake", "…", ["kv-swap"]]),
         (True, True, False, False)),
    ],
    ids=["nothing fails", "fails without it too", "elsewhere", "named", "misnamed", "both", "closest is no name"],
)  # fmt: skip
def test_a_mistake_is_judged_next_to_the_run_without_it(bad, findings, outcome):
    found = judge_mistake(MISTAKE, make_record(*bad, findings=findings), make_record("a softmax"))
    assert (found.caught, found.placed, found.named, found.misnamed) == outcome


VARIANT = ["Mistake found", "…", ["ln-unbiased"]]
FIRST = [["Fix first", "layer_norm", []], VARIANT]


@pytest.mark.parametrize(
    ("message", "findings", "outcome"),
    [
        ("differs", FIRST, (False, False, False, False)),
        ("differs more", FIRST, (False, False, False, False)),
        ("differs more", [*FIRST, ["Fix too", "encoder", []], FOUND], (True, True, True, False)),
        ("differs more", [*FIRST, ["Fix too", "encoder", []], ["Cause unknown", "…", []]], (True, True, False, False)),
        ("differs", [*FIRST, ["Fix too", "encoder", []], FOUND], (False, False, True, False)),
    ],
    ids=["same", "nothing new is said", "named", "without a name", "said of the same result"],
)  # fmt: skip
def test_a_mistake_in_code_that_fails_already_is_caught_if_something_else_is_said(message, findings, outcome):
    clean = make_record("a layer_norm", "b encoder", findings=FIRST)
    record = make_record("a layer_norm", "b encoder", findings=findings)
    record["bad"][1][-1] = message
    found = judge_mistake(MISTAKE, record, clean)
    assert (found.caught, found.placed, found.named, found.misnamed) == outcome


def test_a_name_that_the_code_deserves_without_the_mistake_is_no_name_of_it():
    clean = make_record("a softmax", findings=[OTHER])
    outcome = judge_mistake(MISTAKE, make_record("a softmax", "b softmax", findings=[OTHER]), clean)
    assert (outcome.caught, outcome.named, outcome.misnamed) == (True, False, False)


def test_the_verdict_on_an_implementation_in_words():
    wild = replace(CORRECT[0], variant={"layer_norm_eps": "1e-6"})
    option = ["Option found", "…", ["layer_norm_eps: 1e-6"]]
    assert describe_verdict(wild, make_record()) == "conforms"
    assert describe_verdict(wild, make_record(judged=0)) == "nothing judged"
    assert describe_verdict(wild, make_record("a softmax", findings=[option])) == "named: layer_norm_eps: 1e-6"
    unknown = ["Cause unknown", "…", []]
    record = make_record("a softmax", findings=[option, unknown])
    assert describe_verdict(wild, record) == "partly named: layer_norm_eps: 1e-6"
    assert describe_verdict(wild, make_record("a softmax")) == "fails without a name (1 wrong-value)"
    assert describe_verdict(wild, make_record("a softmax", findings=[OTHER])) == "misnamed: kv-swap (1 wrong-value)"
    assert describe_verdict(wild, {"crash": "TypeError: x"}) == "crash: TypeError: x"
    empty = ["Option found", "…", ["empty_row: zeros"]]
    assert describe_verdict(wild, make_record("a softmax", findings=[empty])).startswith("misnamed: ")
    open_row = replace(wild, variant={"empty_row": "unspecified", "positions": "learned"})
    missing = ["Mistake found", "…", ["pe-missing"]]
    record = make_record("a softmax", findings=[empty, missing])
    assert describe_verdict(open_row, record) == "named: empty_row: zeros, pe-missing"


def test_a_mistake_is_run_and_counted_in_the_table(spec):
    (wild,) = read_bench(["single_head_training"])
    settings = Settings(cases_only=True)
    records = [run(wild, DEFAULT, None, settings, spec), run(wild, DEFAULT, "ascent", settings, spec)]
    assert [record["run"] for record in records] == [DEFAULT, DEFAULT]
    row, total = make_table([wild], records)
    assert row[:3] == ("single_head_training", "correct", "18")
    assert row[5:9] == ("–", "–", "1", "1")
    assert total[7:] == row[7:]
    assert list(list_remarks([wild], records)) == []
    assert format_table([row]).count("\n") == 2


def test_the_command_reads_earlier_results_and_says_what_is_left(tmp_path, capsys):
    out = tmp_path / "results.jsonl"
    place = {"implementation": "einsum_functional", "run": DEFAULT, "mistake": None}
    record = {**make_record(), **place, **asdict(Settings())}
    other = {**record, "dtype": "float64", "judged": 3}
    out.write_text("".join(json.dumps(r) + "\n" for r in (record, other)), encoding="utf-8")
    assert main(["einsum_functional", "--out", str(out), "--seconds", "0", "--mistakes", "none"]) == 0
    printed = capsys.readouterr()
    assert "| einsum_functional | correct | 39 | conforms | 9/10 | – |" in printed.out
    assert printed.err == "1 runs are left: call it again with the same --out\n"
    assert main(["einsum_functional", "--out", str(out), "--seconds", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [record]


def test_the_command_names_an_implementation_that_is_not_there():
    with pytest.raises(ValueError, match="no implementation 'einsum'; there are annotated_clones"):
        main(["einsum"])


def test_a_declaration_is_split_into_what_the_spec_has(spec):
    declared = {"layer_norm_eps": "1e-6", "empty_row": "unspecified", "layer_norm_eps_2": "1e-6", "pe_layout": "odd"}
    assert split_declaration(declared, spec) == (
        {"layer_norm_eps": "1e-6", "empty_row": "unspecified"},
        {"layer_norm_eps_2": "1e-6", "pe_layout": "odd"},
    )
