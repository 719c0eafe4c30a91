"""goldformer check: exit statuses, what is selected, what is printed, and the JSON."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.judging.cases import plan
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.properties.registry import components_of
from goldformer.conformance.reports.report_schema import Report

RIGHT = """
import numpy as np

ARRAYS = "numpy"
NAME = "mine"
VERSION = "7"

def softmax(scores):
    if 0 in scores.shape:
        raise ValueError("scores: empty")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
WRONG = RIGHT.replace("scores.max(-1, keepdims=True)", "0")  # overflows
DOUBLED = RIGHT.replace("return powers", "return 2 * powers")


@pytest.fixture
def check(adapter_file):
    """Run `goldformer check` on an adapter given by source or by name."""

    def run(adapter, *options):
        name = adapter_file(adapter) if "\n" in adapter else adapter
        return CliRunner().invoke(main, ["check", name, *options])

    return run


def judged(result):
    """(check, component, dtype) of every verdict of --json."""
    return [(v["check"], v["component"], v["dtype"]) for v in json.loads(result.stdout)["verdicts"]]


# Exit statuses


def test_conforming_is_0(check):
    result = check(RIGHT)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("mine 7\ncomponent ")


@pytest.mark.parametrize("adapter", [WRONG, DOUBLED, RIGHT.replace("if 0 in", "if 1 / 0 in")])
def test_failing_is_1(adapter, check):
    assert check(adapter).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["refrence"], "goldformer: no adapter 'refrence'. Did you mean reference?"),
        (["missing.py"], "goldformer: missing.py: no such file."),
        (["textbook", "--case", "sdpa-causl"], "goldformer: --case sdpa-causl: did you mean sdpa-causal?\n"),
        (["textbook", "--component", "sofmax"], "goldformer: --component sofmax: did you mean softmax?\n"),
        (["textbook", "--property", "sm-shft"], "goldformer: --property sm-shft: did you mean sm-shift?\n"),
        (["textbook", "--dtype", "float23"], "goldformer: --dtype float23: did you mean float32?\n"),
        (["textbook", "--dtype", "int"], "goldformer: --dtype int: known are float64, float32, float16, bfloat16\n"),
        (["textbook", "--component", "softmax,zzz"], "goldformer: --component zzz: known are causal_mask, "),
        (
            ["textbook", "--dtype", "bfloat16", "--case", "sdpa-causal"],
            "goldformer: nothing was checked: textbook works in float64, float32, float16, not in bfloat16\n",
        ),
        (
            ["textbook", "--device", "cuda", "--component", "softmax"],
            "goldformer: nothing was checked: textbook works on cpu, not on cuda\n",
        ),
        (
            ["textbook", "--case", "sdpa-causal", "--component", "softmax"],
            "goldformer: nothing was checked: no check fits all of these options\n",
        ),
        (
            ["textbook", "--case", "sdpa-causal", "--property", "sdpa-batch"],
            "goldformer: nothing was checked: no check fits all of these options\n",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_checked_is_2_and_says_why(arguments, says, check):
    result = check(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(says)


def test_many_unknown_words_are_not_all_listed(check):
    message = check("textbook", "--case", "zzz").stderr
    assert message.startswith("goldformer: --case zzz: known are mask-causal-4, mask-causal-1, ")
    assert message.endswith("…\n")
    assert len(message) < 400


@pytest.mark.parametrize("option", [["--threads", "0"], ["--no-such-option"], ["--dtype"]])
def test_a_bad_option_is_2(option, check):
    assert check("textbook", *option).exit_code == 2


def test_everything_skipped_for_different_reasons_is_2(check):
    source = RIGHT.partition("def softmax")[0] + "def softmax(scores):\n    raise NotImplementedError('later')\n"
    result = check(source, "--component", "softmax")
    says = "goldformer: nothing was checked: everything was skipped, most for: later\n"
    assert (result.exit_code, result.stderr) == (2, says)
    assert "nothing to judge" in result.stdout


# What is printed of many failures


OTHER_NAMES = RIGHT.replace("scores", "logits")


def test_the_same_message_again_and_again_is_counted(check):
    result = check(OTHER_NAMES, "--component", "softmax")
    message = "softmax requires logits and does not take scores; the suite calls it with scores"
    alike = [line for line in result.stdout.splitlines() if line.endswith(f": {message}") and line[0] in "E…"]
    assert len(alike) == 4, "two are explained, three are lines, and one counts the others"
    assert alike[-1].startswith("… ")
    assert alike[-1].endswith(f" more of softmax (-v lists them): {message}")
    every = check(OTHER_NAMES, "--component", "softmax", "-v").stdout
    assert "more of softmax" not in every
    assert every.count("ERRORED") == result.stdout.count("ERRORED") + int(alike[-1].split()[1])


def test_a_parameter_of_another_name_lists_those_that_there_are(check):
    source = RIGHT + "def feed_forward(x, *, params):\n    return x @ params['w1']\n"
    stdout = " ".join(check(source, "--case", "ffn-hidden-all-positive").stdout.split())
    assert "raised KeyError: 'w1' (" in stdout
    assert "; params has w_1, b_1, w_2, b_2" in stdout


def test_a_crash_in_every_call_is_no_sign_of_a_mistake(check):
    # With one case asked for, all the mistakes that it lists would fit.
    source = RIGHT + "def feed_forward(x, *, params):\n    return x @ undefined\n"
    for options in (["--case", "ffn-distinct-sizes"], ["--component", "feed_forward"]):
        stdout = check(source, *options).stdout
        assert "raised NameError: name 'undefined' is not defined" in stdout
        assert "Possible causes" not in stdout


def test_what_only_some_calls_raise_is_no_variant_unless_they_have_something_in_common(check):
    hint = "If it has no such variant: raise NotImplementedError in the adapter"
    source = RIGHT.replace("    powers = np", "    scores.reshape(3, -1, 5)\n    powers = np")
    assert hint not in check(source, "--component", "softmax").stdout
    biased = RIGHT + "def feed_forward(x, *, params):\n    return x * params['b_1'].sum()\n"
    assert "without b_1" not in check(biased, "--component", "feed_forward").stdout  # nothing passes
    assert hint not in check(RIGHT.replace("if 0 in", "if 1 / 0 in"), "--component", "softmax").stdout


# What is selected


def test_without_filters_every_case_and_property_runs_in_two_dtypes(check, spec):
    cases = [(c.id, c.component) for c in plan(spec)]
    properties = [
        (p.id, name) for name in spec.components for p in spec.properties.values() if name in components_of(p, spec)
    ]
    wanted = [(*pair, dtype) for dtype in ("float64", "float32") for pair in cases + properties]
    assert judged(check(RIGHT, "--json")) == wanted


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--case", "sm-saturated"], [("sm-saturated", "float64"), ("sm-saturated", "float32")]),
        (["--case", "sm-saturated", "--dtype", "float16"], [("sm-saturated", "float16")]),
        (
            ["--case", "sm-saturated,sm-a-thousand", "--dtype", "float16,float32"],
            [(case, d) for d in ("float16", "float32") for case in ("sm-a-thousand", "sm-saturated")],
        ),
        (
            ["--case", "sm-saturated", "--case", "sm-a-thousand", "--dtype", "float16"],
            [("sm-a-thousand", "float16"), ("sm-saturated", "float16")],
        ),
        (["--property", "sm-shift", "--dtype", "float32"], [("sm-shift", "float32")]),
        (
            ["--property", "repeat-calls", "--component", "softmax", "--dtype", "float32"],
            [("repeat-calls", "float32")],
        ),
    ],
    ids=["case", "case and dtype", "words with commas", "words repeated", "property", "property of a component"],
)
def test_filters_select_just_what_they_name(options, wanted, check):
    assert [(id_, dtype) for id_, _, dtype in judged(check(RIGHT, *options, "--json"))] == wanted


def test_a_component_brings_its_cases_and_properties(check, spec):
    ran = judged(check(RIGHT, "--component", "softmax", "--dtype", "float32", "--json"))
    assert {component for _, component, _ in ran} == {"softmax"}
    assert len(ran) == len(spec.cases_of("softmax")) + 6


# What is printed


def test_the_summary_has_a_row_for_every_component(check, spec):
    lines = check(RIGHT).stdout.splitlines()
    assert lines[1].split() == ["component", "passed", "failed", "not", "impl.", "skipped", "error÷tol."]
    rows = {line.split()[0]: line for line in lines[2:]}
    assert list(rows) == list(spec.components)
    assert rows["softmax"].endswith("conforms (40 of 44 checks apply)")
    assert rows["causal_mask"].split()[1:] == ["·", "·", "26", "·", "–", "not", "implemented"]


def test_what_is_never_run_is_not_called_unimplemented(check):
    assert check("textbook", "--component", "softmax", "--dtype", "bfloat16").stdout.rstrip().endswith("not checked")


def test_a_failure_shows_case_values_clause_document_and_how_to_repeat_it(check, spec):
    result = check(DOUBLED, "--case", "sm-one-row-by-hand", "--dtype", "float32")
    head, *lines = result.stdout.splitlines()
    assert head == "FAILED  sm-one-row-by-hand  (softmax, float32 on cpu)"
    text = "\n".join(lines)
    for part in (
        spec.cases["sm-one-row-by-hand"].title,
        "→ output: 3 of 3 values are wrong, by up to ",
        "first at [0]: expected 0.0420100661, actual 0.0840201",
        "worst at [2]: expected 0.843794734, actual 1.68758",
        "error ÷ tolerance ",
        "Clause      SM-1 MUST: The formula",
        "Clause      SM-2 MUST: Rows are distributions over the last axis",
        "Source      java J1",
        "--case sm-one-row-by-hand --dtype float32\n",
        "Fix first: softmax\n  First seen: sm-one-row-by-hand: output: 3 of 3",
    ):
        assert part in text


def test_two_failures_of_a_component_are_explained_and_the_rest_are_lines(check):
    brief, full = (check(DOUBLED, "--component", "softmax", *v).stdout for v in ((), ("--verbose",)))
    assert brief.count("Repeat      goldformer check") == 2
    assert brief.count("\nFAILED  sm-") > 20
    assert full.count("Repeat      goldformer check") == full.count("FAILED  ")


def test_quiet_is_the_summary_alone(check):
    result = check(DOUBLED, "--component", "softmax", "--quiet")
    assert result.exit_code == 1
    assert result.stdout.startswith("mine 7\ncomponent ")
    assert "FAILED" not in result.stdout
    assert "Fix first: softmax" in result.stdout


def test_declared_conventions_and_hints_are_told(check):
    source = RIGHT + 'CONVENTIONS = {"empty_row": "zeros"}\ndef casual_mask(q_seq, kv_seq): ...\n'
    last = check(source, "--component", "softmax").stdout.splitlines()[-2:]
    assert last == [
        "Convention declared: empty_row: zeros",
        "Note: casual_mask is no component: did you mean causal_mask?",
    ]


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--strict",), 1)])
def test_strict_fails_what_is_absent_and_what_only_should_be_refused(options, code, check):
    accepts_nothing = RIGHT.replace("if 0 in scores.shape:", "if False:").replace(
        "powers = ", "if 0 in scores.shape: return scores\n    powers = "
    )
    assert check(accepts_nothing, "--case", "sm-no-elements,sm-saturated", *options).exit_code == code
    assert check(RIGHT, "--component", "softmax,causal_mask", *options).exit_code == code


def test_what_is_absent_neither_comes_first_nor_mends_itself(check):
    wrong = RIGHT.replace("powers.sum(-1, keepdims=True)", "powers.sum()")
    stdout = check(wrong, "--strict", "--component", "softmax,multi_head_attention,causal_mask").stdout
    diagnosis = stdout[stdout.index("Fix first: ") :]
    assert diagnosis.count("Fix first: ") == 1
    assert diagnosis.startswith("Fix first: softmax")
    assert "perhaps only because" not in diagnosis
    assert "Not implemented: causal_mask, multi_head_attention" in diagnosis


def test_strict_passes_numpy_code_that_is_complete(check):
    whole = "causal_mask,padding_mask,softmax,token_embedding,positional_encoding,layer_norm,feed_forward,encoder"
    assert check("textbook", "--strict", "--dtype", "float32", "--component", whole).exit_code == 0


def test_strict_fails_numpy_code_without_a_backward_pass(check):
    result = check(RIGHT, "--strict", "--dtype", "float32", "--case", "sm-gradient")
    assert result.exit_code == 1
    assert "numpy does not differentiate by itself: provide softmax_gradient" in result.stdout


def test_text_that_looks_like_markup_is_printed_as_it_is(check):
    source = DOUBLED.replace("return 2 *", 'raise ValueError("[red]q:key:[/red] [3]")\n    return 2 *')
    assert "→ raised ValueError: [red]q:key:[/red] [3]\n" in check(source, "--case", "sm-saturated").stdout


# JSON


def refuse_constants(text):
    raise AssertionError(f"{text} is no JSON")


def test_json_has_every_verdict_and_nothing_else_is_on_standard_output(check, adapter_file):
    result = check(WRONG, "--component", "softmax,causal_mask", "--json")
    data = json.loads(result.stdout, parse_constant=refuse_constants)
    assert result.exit_code == 1
    assert data["adapter"] == {
        "name": "mine", "version": "7", "origin": adapter_file(WRONG),
        "arrays": "numpy", "conventions": {}, "hints": [],
    }  # fmt: skip
    assert data["device"] == "cpu"
    assert set(data) == {"goldformer", "python", "adapter", "device", "components", "verdicts"}
    row = next(row for row in data["components"] if row["component"] == "softmax")
    of_softmax = [v for v in data["verdicts"] if v["component"] == "softmax"]
    assert row["failed"] == sum(v["status"] in ("failed", "errored") for v in of_softmax) > 0
    assert row["passed"] == sum(v["status"] == "passed" for v in of_softmax) > 0
    assert (row["worst_ratio"], row["state"]) == ("inf", "fails first")


def test_json_verdicts_can_be_read_back(check):
    for data in json.loads(check(DOUBLED, "--component", "softmax", "--json").stdout)["verdicts"]:
        assert Verdict.from_json(data).check == data["check"]


def test_json_of_nothing_checked_is_still_json_and_2(check):
    result = check(RIGHT, "--component", "causal_mask", "--json")
    assert result.exit_code == 2
    assert {v["reason"] for v in json.loads(result.stdout)["verdicts"]} == {"not-implemented"}
    assert result.stderr == "goldformer: nothing was checked: mine has no causal_mask\n"


# The report as a page, and its JSON as a schema


def test_html_saves_the_report(check, tmp_path):
    path = tmp_path / "report.html"
    result = check(DOUBLED, "--dtype", "float32", "--html", str(path))
    assert result.exit_code == 1
    text = path.read_text(encoding="utf-8")
    assert "fails first" in text
    assert 'aria-label="actual,' in text
    assert result.stdout.replace("\n", "").endswith(f"- wrote {path}")


def test_html_without_a_folder_is_refused_before_the_work(check):
    result = check(RIGHT, "--html", "no/report.html")
    assert (result.exit_code, result.stderr.strip()) == (2, "goldformer: --html no/report.html: there is no folder no")


def test_the_json_is_what_its_schema_says(check):
    for adapter in (RIGHT, WRONG, DOUBLED):
        Report.model_validate_json(check(adapter, "--json").stdout)
    printed = json.loads(CliRunner().invoke(main, ["schema", "report"]).stdout)
    assert printed["required"] == ["goldformer", "python", "adapter", "device", "components", "verdicts"]
    assert {"enum": ["inf", "-inf", "nan"]} in printed["$defs"]["Difference"]["properties"]["ratio"]["anyOf"]
