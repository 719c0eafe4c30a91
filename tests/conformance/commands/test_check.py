"""goldformer check: exit statuses, what is selected, what is printed, and the JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from comparisons import verdict
from goldformer.adapters import pretend_device
from goldformer.conformance.cli import main
from goldformer.conformance.diagnosis.precision import find_precision
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.properties.registry import components_of
from goldformer.conformance.reports.report_schema import RunReport
from goldformer.spec.load import SpecFiles

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
        (["textbook", "--component", "softmax,zzz"], "goldformer: --component zzz: known are alibi_bias, "),
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
        (
            ["textbook", "--wrap", "vmap", "--property", "sm-shift"],
            "goldformer: --wrap judges golden cases only: leave out",
        ),
        (
            ["textbook", "--wrap", "export", "--component", "softmax"],
            "goldformer: nothing was checked: not wrapped: torch.export takes functions of PyTorch, and",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_checked_is_2_and_says_why(arguments, says, check):
    result = check(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(says)


TABLE = """
import torch

ARRAYS = "torch"
table = {}

def softmax(scores):
    # A table that the code keeps from one call to the next.
    ones = table.setdefault(scores.shape, torch.ones_like(scores))
    return torch.softmax(scores * ones, -1)
"""


def test_wrap_judges_golden_cases_with_and_without_the_wrapper(check):
    result = check("reference", "--wrap", "vmap", "--component", "softmax,layer_norm")
    assert result.exit_code == 0
    said = " ".join(result.stdout.split())
    wrapped = r"Wrapped: by vmap, ([1-9]\d) cases: \1 equal bit for bit Not wrapped: 3 cases, which are not judged\. "
    assert re.search(wrapped, said)
    assert "of softmax: no argument of softmax has an axis of samples, which torch.vmap maps over" in said
    assert "Few cases apply" not in said


def test_what_tracing_leaves_in_a_table_of_the_code_is_not_held_against_it(check):
    """Export runs the code with tensors of its own, which stay in the table and would fail in a later call."""
    result = check(TABLE, "--wrap", "export", "--json", "-")
    verdicts = json.loads(result.stdout)["verdicts"]
    assert {verdict["reason"] for verdict in verdicts} <= {"", "not-wrapped"}
    assert any(verdict["wrapped"] for verdict in verdicts)
    assert result.exit_code == 0


def test_many_unknown_words_are_not_all_listed(check):
    message = check("textbook", "--case", "zzz").stderr
    assert message.startswith("goldformer: --case zzz: known are alibi-two-heads, alibi-one-head, ")
    assert message.endswith("…\n")
    assert len(message) < 400


@pytest.mark.parametrize("option", [["--threads", "0"], ["--no-such-option"], ["--dtype"]])
def test_a_bad_option_is_2(option, check):
    assert check("textbook", *option).exit_code == 2


def test_everything_skipped_for_different_reasons_is_2(check, golden_cases):
    source = RIGHT.partition("def softmax")[0] + "def softmax(scores):\n    raise NotImplementedError('later')\n"
    result = check(source, "--component", "softmax")
    says = "goldformer: nothing was checked: everything was skipped, most for: later\n"
    assert (result.exit_code, result.stderr) == (2, says)
    number = golden_cases("softmax", gradients=False)
    assert f"partial: nothing wrong was found in 0 of {number} cases" in result.stdout


# What is printed of many failures


def test_a_message_of_another_component_is_repeated(check):
    made = "def {name}({given}):\n    raise ValueError('half of {name} is missing')\n\n\n"
    source = made.format(name="softmax", given="scores") + made.format(name="feed_forward", given="x, *, params")
    lines = check(f'ARRAYS = "numpy"\n\n\n{source}').stdout.splitlines()
    alike = [line.partition(" in ")[2] for line in lines if "say the same" in line]
    # The first failure is in the diagnosis.
    assert alike == ["softmax say the same: raised ValueError: half of softmax is missing"]
    assert any(line.endswith("raised ValueError: half of feed_forward is missing") for line in lines)


OTHER_NAMES = RIGHT.replace("scores", "logits")


def test_the_same_message_again_and_again_is_counted(check):
    result = check(OTHER_NAMES, "--component", "softmax")
    message = "softmax requires logits and does not take scores; the suite calls it with scores"
    text = " ".join(result.stdout.split())
    assert result.stdout.count("\nERRORED  ") == 1
    count = int(re.search(r"(\d+) checks fail: \1 of softmax \(-v explains each\)", text)[1])
    assert f"→ {message}" in text
    every = check(OTHER_NAMES, "--component", "softmax", "-v").stdout
    assert "checks fail: " not in every
    assert every.count("ERRORED") == count


def test_failures_of_several_components_are_counted_by_component(check):
    # What raises is not searched for mistakes, which takes longer than all else.
    source = DOUBLED + "\n".join(
        f"def {name}(*_, **__):\n    raise RuntimeError('no')"
        for name in ("layer_norm", "feed_forward", "one_hot", "shift_right", "causal_mask")
    )
    lines = " ".join(check(source).stdout.split())
    (counted,) = re.findall(r"\d+ checks fail: (.*? more) \(-v explains each\)", lines)
    assert re.fullmatch(r"(\d+ of \w+, ){3}\d+ of \w+ and \d more", counted)


def test_a_parameter_of_another_name_lists_those_that_there_are(check):
    source = RIGHT + "def feed_forward(x, *, params):\n    return x @ params['w1']\n"
    stdout = " ".join(check(source, "--case", "ffn-hidden-all-positive").stdout.split())
    assert "raised KeyError: 'w1' (" in stdout
    assert "; params has w_1, b_1, w_2, b_2" in stdout


@pytest.mark.parametrize("asked", ["params['norm.gamma']", "part(params, 'norm')['gamma']"])
def test_a_parameter_that_an_option_would_bring_is_told_with_the_option(asked, check):
    source = (
        f"from goldformer.adapters.layouts import part\n{RIGHT}"
        f"def encoder(x, mask=None, *, num_heads, num_layers, params):\n    return x * {asked}\n"
    )
    stdout = " ".join(check(source, "--case", "encs-one-layer").stdout.split())
    assert (
        '; a call has norm.gamma if the adapter declares CONVENTIONS = {"final_norm": "after_stack"}; params' in stdout
    )


def test_a_parameter_that_no_option_would_bring_is_not(check):
    source = RIGHT + "def encoder(x, mask=None, *, num_heads, num_layers, params):\n    return x * params['gamma_1']\n"
    stdout = " ".join(check(source, "--case", "encs-one-layer").stdout.split())
    assert "raised KeyError: 'gamma_1' (" in stdout
    assert "a call has" not in stdout


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


def list_checks(spec, components, *dtypes):
    """Every check of some components, as `judged` gives them."""
    cases = [(c.id, c.component) for c in plan(spec, components)]
    properties = [
        (p.id, name) for name in components for p in spec.properties.values() if name in components_of(p, spec)
    ]
    return [(*pair, dtype) for dtype in dtypes for pair in cases + properties]


def test_without_filters_everything_that_the_adapter_has_runs_in_float32(check, spec):
    assert judged(check(RIGHT, "--json", "-")) == list_checks(spec, ["softmax"], "float32")


def test_without_filters_an_adapter_without_float32_runs_in_its_first_dtype(check, spec):
    declared = RIGHT + "DTYPES = ('float64', 'float16')\n"
    assert judged(check(declared, "--json", "-")) == list_checks(spec, ["softmax"], "float64")


def test_all_dtypes_are_those_of_the_adapter(check, spec):
    wanted = list_checks(spec, ["softmax"], "float64", "float32", "float16")
    assert judged(check(RIGHT, "--json", "-", "--dtype", "all")) == wanted
    declared = RIGHT + "DTYPES = ('float16', 'float64')\n"
    wanted = list_checks(spec, ["softmax"], "float16", "float64")
    assert judged(check(declared, "--json", "-", "--dtype", "all")) == wanted


def test_strict_runs_what_the_adapter_does_not_have_too(check, spec):
    given = check(RIGHT, "--json", "-", "--strict", "--component", "softmax,causal_mask")
    assert judged(given) == list_checks(spec, ["causal_mask", "softmax"], "float32")


def test_the_files_of_a_component_that_is_not_there_are_not_read(check, monkeypatch):
    read = []
    original = SpecFiles.read_component

    def note(self, name):
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(SpecFiles, "read_component", note)
    assert check(RIGHT).exit_code == 0
    assert {*read} == {"softmax"}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--case", "sm-saturated"], [("sm-saturated", "float32")]),
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
    assert [(id_, dtype) for id_, _, dtype in judged(check(RIGHT, *options, "--json", "-"))] == wanted


def test_a_component_brings_its_cases_and_properties(check, spec):
    ran = judged(check(RIGHT, "--component", "softmax", "--dtype", "float32", "--json", "-"))
    assert {component for _, component, _ in ran} == {"softmax"}
    assert len(ran) == len(spec.cases_of("softmax")) + 10


# What is printed


def test_the_summary_has_a_row_for_every_component_that_is_there_and_a_line_for_the_others(check, spec, golden_cases):
    _, heading, row, *lines = check(RIGHT).stdout.splitlines()
    assert heading.split() == ["component", "passed", "failed", "not", "impl.", "skipped", "refuses", "error÷tol."]
    assert row.split()[0] == "softmax"
    assert "  1/1  " in row
    judged, every = golden_cases("softmax", gradients=False), golden_cases("softmax")
    assert row.endswith(f"  conforms ({judged} of {every} cases apply)")
    *lines, edition = lines
    assert edition == f"Spec: {spec.editions['2017']}"
    text = " ".join(" ".join(lines).split())
    absent = [name for name in spec.components if name != "softmax"]
    assert text.endswith(f"Not implemented: {', '.join(absent[:4])} and {len(absent) - 4} more")
    every = " ".join(check(RIGHT, "-v").stdout.split())
    assert every.endswith(f"Not implemented: {', '.join(absent)} {edition}")


def test_who_chooses_checks_is_not_told_that_they_are_few(check):
    chosen = check(RIGHT, "--case", "sm-saturated,sm-a-thousand")
    assert chosen.exit_code == 0
    assert "conforms (2 of 2 cases apply)\n" in chosen.stdout
    assert "conforms, on properties only\n" in check(RIGHT, "--property", "sm-shift").stdout


def test_what_takes_most_cases_away_is_said_with_what_to_do(check):
    source = RIGHT.replace("def softmax", "def one(").partition("def one(")[0] + LAYER_NORM
    result = check(source, "--component", "layer_norm")
    stdout = " ".join(result.stdout.split())
    assert result.exit_code == 3
    assert re.search(r"Partial: layer_norm, [1-4] of \d+ cases that the declared options admit were judged", stdout)
    assert (
        " only one row (if your code can do it, let the adapter call that; if a convention has it, declare it)"
        in stdout
    )
    assert re.search(r"Perhaps not shown: \d+ known mistakes of layer_norm \(", stdout)
    names = check(source, "--component", "layer_norm", "-v").stdout
    assert "-v names them all" not in names
    assert "-v names them all" in stdout


LAYER_NORM = """def layer_norm(x, params):
    if x.ndim > 1:
        raise NotImplementedError("only one row")
    return (x - x.mean()) / np.sqrt(x.var() + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]
"""


LATER = "\ndef {}(*_, **__):\n    raise NotImplementedError('later')\n"


def test_a_function_that_no_case_fits_is_partial(check, golden_cases):
    number = golden_cases("layer_norm", gradients=False)
    source = RIGHT + LATER.format("layer_norm")
    for options, code in (((), 3), (("--allow-partial",), 0), (("--strict", "--allow-partial"), 1)):
        result = check(source, "--component", "softmax,layer_norm", *options)
        assert result.exit_code == code
        partial = rf"^layer_norm .*partial: nothing wrong was found in 0 of {number} cases$"
        assert re.search(partial, result.stdout, re.MULTILINE)
        assert "Not implemented" not in result.stdout


def test_five_components_without_a_judged_case_are_partial(check):
    names = ("layer_norm", "feed_forward", "causal_mask", "cross_entropy", "encoder_layer")
    result = check(RIGHT + "".join(map(LATER.format, names)))
    assert result.exit_code == 3
    assert result.stdout.count("partial: nothing wrong was found in 0 of ") == 5
    assert result.stderr.startswith("goldformer: ")
    said = (
        "is partial: too few cases were judged of causal_mask, feed_forward, layer_norm, cross_entropy, encoder_layer"
    )
    assert said in result.stderr


#: Its projections are shared by the heads and its scores divided by √d_model, which no case of one head shows.
ONE_HEAD = """
ARRAYS = "torch"
CONVENTIONS = {"biases": "not_in_q_k_v"}


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    d_model = query.shape[-1]
    if num_heads != 1 or any(params["w_" + role].shape != (d_model, d_model) for role in "qkvo"):
        raise NotImplementedError("one projection of (d_k, d_k) for all heads")
    query, key, value = query @ params["w_q"], key @ params["w_k"], value @ params["w_v"]
    scores = query @ key.mT / d_model**0.5
    if mask is not None:
        mask = mask.reshape(mask.shape[:-3] + mask.shape[-2:]) if mask.ndim == 4 else mask
        scores = scores.masked_fill(~mask, -1e20)
    return scores.softmax(-1) @ value @ params["w_o"] + params.get("b_o", 0)
"""


def test_what_declines_nearly_every_case_is_partial(check, tmp_path):
    files = {name: tmp_path / name for name in ("junit", "markdown", "html", "json")}
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    result = check(ONE_HEAD, *options)
    assert result.exit_code == 3
    assert re.search(r"partial: nothing wrong was found in 2 of \d+ cases$", result.stdout, re.MULTILINE)
    assert "34 one projection of (d_k, d_k) for all heads" in " ".join(result.stdout.split())
    assert result.stderr.endswith("judged of multi_head_attention. --allow-partial accepts that\n")
    texts = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    assert '<skipped message="partial: nothing wrong was found in 2 of ' in texts["junit"]
    assert "◐ **" in texts["markdown"]
    assert '<td class="partial">' in texts["html"]
    saved = json.loads(texts["json"])
    assert (saved["outcome"], saved["components"][0]["state"]) == ("partial", "partial")
    allowed = check(ONE_HEAD, "--allow-partial")
    assert (allowed.exit_code, allowed.stderr) == (0, "")
    assert "partial: nothing wrong was found in 2 of " in allowed.stdout


ON_THE_CPU = """
import torch

ARRAYS = "torch"

def softmax(scores):
    return torch.softmax(scores + torch.zeros(1, dtype=scores.dtype), -1)
"""


@pytest.mark.skipif(pretend_device.register() is not None, reason="no pretend device here")
@pytest.mark.parametrize(
    ("declared", "options", "code"),
    [
        ("", (), 0),
        ("DEVICES = ('cpu',)", (), 0),
        ("DEVICES = ('cpu', 'cuda')", (), 1),
        ("", ("--strict",), 1),
        ("", ("--device", "pretend"), 1),
    ],
)
def test_what_would_fail_on_a_gpu_fails_where_one_is_asked_for(declared, options, code, check):
    result = check(
        f"{ON_THE_CPU}{declared}\n",
        "--component",
        "softmax",
        "--property",
        "device-hygiene",
        "--property",
        "sm-shift",
        *options,
    )
    assert result.exit_code == code
    assert ("Right here, would fail on a GPU: " in result.stdout) is (not declared and code == 0)


#: Correct, but for its declaration: it has no biases.
WITHOUT_BIASES = """
ARRAYS = "torch"
CONVENTIONS = {"empty_row": "nan"}


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    if any(name.startswith("b_") for name, value in params.items() if value is not None):
        raise NotImplementedError("no biases")

    def split(x, role):
        return (x @ params[f"w_{role}"]).unflatten(-1, (num_heads, -1)).transpose(-3, -2)

    query, key, value = split(query, "q"), split(key, "k"), split(value, "v")
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -float("inf"))
    weights = scores.softmax(-1)
    return (weights @ value).transpose(-3, -2).flatten(-2) @ params["w_o"], weights
"""


def test_the_option_that_explains_what_is_declined_is_named_and_admits_the_rest(check):
    result = check(WITHOUT_BIASES)
    assert result.exit_code == 3
    assert (
        "All calls that it declines have what biases: not_in_attention leaves out: declare "
        'CONVENTIONS = {"biases": "not_in_attention"} in the adapter'
    ) in " ".join(result.stdout.split())
    declared = check(WITHOUT_BIASES.replace('"nan"', '"nan", "biases": "not_in_attention"'))
    assert declared.exit_code == 0
    assert "Partial" not in declared.stdout
    # No option has what this one declines.
    assert "All calls that it declines" not in " ".join(check(ONE_HEAD).stdout.split())


TIED = """
from goldformer.spec.formulas.options import OPTIONS
from goldformer.adapters.textbook.build import build_textbook

ARRAYS = "numpy"
CONVENTIONS = {"positions": "learned", "output_layer": "tied"}
transformer = build_textbook(*(OPTIONS[item] for item in CONVENTIONS.items()), only="transformer").transformer
"""


def test_what_few_stored_cases_fit_gets_cases_of_its_own(check):
    result = check(TIED)
    lines = " ".join(result.stdout.split())
    assert result.exit_code == 0
    assert "few stored cases of transformer fit all that the adapter declares, so 22 more were derived for it" in lines
    judged_cases = re.search(r"conforms \((\d+) of \d+ cases apply\)", lines)
    assert judged_cases is not None
    assert int(judged_cases[1]) >= 20
    (first,) = (c for c, *_ in judged(check(TIED, "--json", "-")) if c.endswith("plain-as-declared"))
    assert judged(check(TIED, "--json", "-", "--case", first)) == [(first, "transformer", "float32")]


# Robustness and precision

ACCEPTING = RIGHT.replace('raise ValueError("scores: empty")', "return scores")
COARSE = RIGHT.replace("    powers = ", "    given, scores = scores, scores.astype('float32')\n    powers = ").replace(
    "return powers / powers.sum(-1, keepdims=True)",
    "return (powers / powers.sum(-1, keepdims=True)).astype(given.dtype)",
)


def test_a_bad_input_that_is_accepted_is_a_line_of_its_own(check):
    result = check(ACCEPTING, "--component", "softmax")
    assert result.exit_code == 0
    assert "  0/1  " in result.stdout
    assert "Robustness: refuses 0 of 1 bad inputs; accepts sm-no-elements (-v shows each; only" in result.stdout
    assert "Fix first" not in result.stdout
    assert "accepts a bad scores" not in result.stdout
    assert "→ accepts a bad scores" in check(ACCEPTING, "--component", "softmax", "-v").stdout
    assert "FAILED  sm-no-elements" in check(ACCEPTING, "--component", "softmax", "--strict", "-v").stdout
    # Strictly, the gradient that it lacks would be the first to fix.
    strict = check(ACCEPTING, "--case", "sm-no-elements", "--strict")
    assert strict.exit_code == 1
    assert "Fix first: softmax\n  First seen: sm-no-elements: accepts a bad scores" in strict.stdout


def test_a_bad_input_alone_was_checked_whether_it_is_accepted_or_not(check):
    for source in (RIGHT, ACCEPTING):
        assert check(source, "--case", "sm-no-elements").exit_code == 0
    assert check(ACCEPTING, "--case", "sm-no-elements", "--strict").exit_code == 1


def test_a_robust_run_says_so(check):
    assert "\nRobustness: refuses 1 of 1 bad inputs\n" in check(RIGHT).stdout


def test_what_computes_in_float32_is_one_finding(check, golden_cases):
    assert check(COARSE, "--component", "softmax").exit_code == 0
    result = check(COARSE, "--component", "softmax", "--dtype", "all")
    assert result.exit_code == 0
    judged, every = golden_cases("softmax", gradients=False), golden_cases("softmax")
    # The dtype in which the fewest apply counts: float16 cannot hold the scores of one.
    assert f"conforms to float32 ({judged - 1} of {every} cases apply)" in result.stdout
    text = " ".join(result.stdout.split())
    assert text.count("Computes in float32: ") == 1
    assert "right only to float32, first seen in softmax (sm-" in text
    assert re.search(
        r"up to \d\.\d digits are lost\. Look for a cast to float32\. Only --strict, or strict=True in Python, fails",
        text,
    )
    assert "Cause unknown" not in text
    strict = check(COARSE, "--component", "softmax", "--dtype", "float64", "--strict")
    assert strict.exit_code == 1
    assert "Computes in float32" not in strict.stdout


LOGSUMEXP = """
import torch

ARRAYS = "torch"

def softmax(scores):
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
"""


def test_a_softmax_by_logsumexp_is_named_and_float32_is_not_blamed_for_it(check):
    result = check(LOGSUMEXP, "--dtype", "all", "-q")
    assert result.exit_code == 1
    text = " ".join(result.stdout.split())
    assert "Mistake found: softmax-logsumexp, the softmax is exp(scores − logsumexp(scores))" in text
    # Of the large calls it says nothing, and says so.
    compared, failing, others = map(
        int, re.search(r"in (\d+) of (\d+) failing cases .*?; (\d+) were not compared\. ", text).groups()
    )
    assert (compared + others, others > 0) == (failing, True)
    assert "Loses digits in float64: 10 results in float64 are right only to float32" in text
    assert "Look for exp(scores − logsumexp(scores)), whose logarithm is rounded at the size of the scores." in text
    assert "a cast to float32" not in text


def test_precision_enters_in_the_lowest_component(spec):
    found = [
        verdict(check, component, "skipped", "precision", "float64", ratio=ratio)
        for check, component, ratio in (
            ("sdpa-one", "scaled_dot_product_attention", 2e6),
            ("pe-one", "positional_encoding", 1e7),
            ("tf-one", "transformer", 3e7),
        )
    ]
    (finding,) = find_precision(found, spec)
    assert finding.label == "Computes in float32"
    assert "3 results in float64 are right only to float32, first seen in positional_encoding and " in finding.text
    assert "scaled_dot_product_attention (pe-one); up to 7.5 digits are lost" in finding.text
    (finding,) = find_precision([replace(found[0], ratio=175.0)], spec)
    assert finding.label == "Loses digits in float64"
    assert not [*find_precision([], spec)]


def test_a_mistake_that_shows_little_does_not_look_like_float32(spec):
    near = verdict("rms-spikes", "rms_norm", "skipped", "precision", "float64", ratio=1e8)
    wrong = verdict("rms-rows", "rms_norm", "failed", "wrong-value", "float64", ratio=1e9)
    assert [finding.label for finding in find_precision([near], spec)] == ["Computes in float32"]
    assert not [*find_precision([near, wrong], spec)]
    assert [*find_precision([near, replace(wrong, component="rotary_embedding")], spec)]
    assert [*find_precision([near, replace(wrong, dtype="float32")], spec)]


# Interruption

SLOW = RIGHT.replace("def softmax", "import os, signal\ncalls = 0\ndef softmax").replace(
    "    if 0 in scores.shape:",
    "    global calls\n    calls += 1\n    if calls == 8:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
    "    if 0 in scores.shape:",
)


def test_what_was_judged_before_a_stop_is_printed(check):
    result = check(SLOW, "--component", "softmax")
    assert result.exit_code == 130
    assert re.search(r"^softmax +[1-7] ", result.stdout, re.MULTILINE)
    what = r"a call in case [a-z0-9-]+ of softmax in float32 had run for \d\.\d s"
    assert re.fullmatch(rf"goldformer: stopped after \d of \d\d checks: {what}\n", result.stderr)


def test_a_stop_before_the_first_check_is_130_too(check, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr("goldformer.conformance.commands.check.load_spec", stop)
    result = check(RIGHT)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "goldformer: stopped\n")


def test_what_was_judged_before_a_stop_is_saved(check, tmp_path):
    summary = tmp_path / "summary.md"
    result = check(SLOW, "--component", "softmax", "--json", "-", "--markdown", str(summary))
    data = json.loads(result.stdout)
    assert (result.exit_code, data["problem"]) == (130, result.stderr.strip().removeprefix("goldformer: "))
    assert 0 < len(data["verdicts"]) < 8
    assert "stopped after " in summary.read_text(encoding="utf-8")


def test_what_is_never_run_is_not_called_unimplemented(check):
    lines = check("textbook", "--component", "softmax", "--dtype", "bfloat16").stdout.splitlines()
    assert lines[-2].endswith("not checked")


def test_a_failure_shows_case_values_clause_document_and_how_to_repeat_it(check, spec):
    result = check(DOUBLED, "--case", "sm-one-row-by-hand", "--dtype", "float32", "--verbose")
    text = result.stdout
    assert text.startswith("FAILED  sm-one-row-by-hand  (softmax, float32 on cpu)\n")
    assert "\nmine 7\n" in text
    assert "\nFix first: softmax\n  First seen: sm-one-row-by-hand: output: 3 of 3" in text
    for part in (
        spec.cases["sm-one-row-by-hand"].title,
        "→ output: 3 of 3 values are wrong, such as 1.69 instead of 0.844 at [2]: ",
        "first at [0]: expected 0.0420100661, actual 0.0840201",
        "worst at [2]: expected 0.843794734, actual 1.68758",
        "error ÷ tolerance ",
        "Clause      SM-1 MUST: The formula",
        "Clause      SM-2 MUST: Rows are distributions over the last axis",
        "Source      java J1",
        "--case sm-one-row-by-hand --dtype float32\n",
    ):
        assert part in text


def test_the_verdict_is_last_and_within_a_screen(check):
    brief, full = (check(DOUBLED, "--component", "softmax", *v).stdout for v in ((), ("--verbose",)))
    said = ("mine 7", "notes (-v lists all)", "\ncomponent ", "\nFix first", " checks fail: ", "\nRepeat: ")
    places = [brief.index(text) for text in said]
    assert places == sorted(places)
    assert len(brief[places[2] :].splitlines()) <= 25
    (count,) = re.findall(r"^(\d+) checks fail: ", brief, re.MULTILINE)
    assert "FAILED  " not in brief
    assert full.count("Repeat      goldformer check") == full.count("FAILED  ") == int(count)
    assert full.index("FAILED  ") < full.index("\nmine 7") < full.index("Fix first")


def test_quiet_is_the_summary_alone(check):
    result = check(DOUBLED, "--component", "softmax", "--quiet")
    assert result.exit_code == 1
    assert re.match(r"mine 7\n\d notes \(-v lists all\)\ncomponent ", result.stdout)
    assert "FAILED" not in result.stdout
    assert "Fix first: softmax" in result.stdout


def test_declared_conventions_and_hints_are_told(check):
    source = RIGHT + 'CONVENTIONS = {"empty_row": "zeros"}\ndef casual_mask(q_seq, kv_seq): ...\n'
    last = check(source, "--component", "softmax").stdout.splitlines()[-3:-1]
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


def test_json_has_every_verdict_and_nothing_else_is_on_standard_output(check, adapter_file, spec):
    result = check(WRONG, "--component", "softmax,causal_mask", "--json", "-")
    data = json.loads(result.stdout, parse_constant=refuse_constants)
    assert result.exit_code == 1
    assert data["adapter"] == {
        "name": "mine", "version": "7", "origin": adapter_file(WRONG),
        "arrays": "numpy", "conventions": {}, "hints": [],
    }  # fmt: skip
    assert data["device"] == "cpu"
    assert set(data) == {
        "goldformer", "spec", "python", "adapter", "device", "outcome", "components", "not_implemented", "diagnosis",
        "problem", "verdicts",
    }  # fmt: skip
    assert data["spec"] == spec.editions["2017"].as_json()
    assert data["not_implemented"] == ["causal_mask"]
    assert [finding["label"] for finding in data["diagnosis"]][:2] == ["Fix first", "First seen"]
    row = next(row for row in data["components"] if row["component"] == "softmax")
    of_softmax = [v for v in data["verdicts"] if v["component"] == "softmax"]
    assert row["failed"] == sum(v["status"] in ("failed", "errored") for v in of_softmax) > 0
    assert row["passed"] == sum(v["status"] == "passed" and v["asks"] != "refusal" for v in of_softmax) > 0
    assert (row["refused"], row["bad_inputs"]) == (1, 1)
    assert row["cases_judged"] == row["cases"] - 2
    assert (row["worst_ratio"], row["state"]) == ("inf", "fails first")


WRONG_AXIS = """
import numpy as np

ARRAYS = "numpy"


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum(axis=0, keepdims=True)
"""


def test_the_smallest_wrong_calls_are_saved_as_cases_that_fail_again(check, tmp_path):
    adapter, folder = tmp_path / "mine.py", tmp_path / "found"
    adapter.write_text(WRONG_AXIS)
    chosen = "--component", "softmax", "--property", "sm-simplex"
    result = check(str(adapter), *chosen, "--save-cases", str(folder))
    assert result.exit_code == 1
    (saved,) = folder.iterdir()
    assert saved.name == "softmax-sm-simplex-float32.yaml"
    assert result.stdout.endswith(f"- wrote {saved}\n")
    assert check(str(adapter), "--cases", str(saved), "-q").exit_code == 1
    assert check("textbook", "--cases", str(saved), "-q").exit_code == 0


def test_a_folder_for_cases_without_a_parent_is_refused_before_the_work(check, tmp_path):
    result = check("textbook", "--component", "softmax", "--save-cases", str(tmp_path / "none" / "found"))
    assert result.exit_code == 2
    assert result.stderr.endswith(f"none/found: there is no folder {tmp_path / 'none'}\n")


def test_json_is_saved_while_text_is_printed(check, tmp_path):
    path = tmp_path / "report.json"
    result = check(DOUBLED, "--component", "softmax", "--json", str(path))
    assert re.match(r"mine 7\n\d notes ", result.stdout)
    assert result.stdout.endswith(f"- wrote {path}\n")
    saved = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse_constants)
    assert saved == json.loads(check(DOUBLED, "--component", "softmax", "--json", "-").stdout) | {
        "verdicts": saved["verdicts"]
    }
    assert len(saved["verdicts"]) > 10


def test_json_verdicts_can_be_read_back(check):
    for data in json.loads(check(DOUBLED, "--component", "softmax", "--json", "-").stdout)["verdicts"]:
        assert Verdict.from_json(data).check == data["check"]


def test_json_of_nothing_checked_is_still_json_and_2(check):
    result = check(RIGHT, "--component", "causal_mask", "--json", "-")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["not_implemented"] == ["causal_mask"]
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
        RunReport.model_validate_json(check(adapter, "--json", "-").stdout)
    printed = json.loads(CliRunner().invoke(main, ["schema", "report"]).stdout)
    assert printed["required"] == [
        "goldformer", "spec", "python", "adapter", "device", "outcome", "components", "not_implemented", "diagnosis",
        "problem", "verdicts",
    ]  # fmt: skip
    assert {"enum": ["inf", "-inf", "nan"]} in printed["$defs"]["Difference"]["properties"]["ratio"]["anyOf"]


def test_one_run_writes_all_that_a_build_server_shows(check, tmp_path):
    """JUnit XML needed a second run, by pytest."""
    saved = {option: tmp_path / f"out.{option}" for option in ("junit", "markdown", "html")}
    options = [word for option, path in saved.items() for word in (f"--{option}", str(path))]
    done = check(DOUBLED, "--component", "softmax", "-q", *options)
    assert done.exit_code == 1
    assert all(f"- wrote {path}" in done.stdout.splitlines() for path in saved.values())
    root = ElementTree.parse(saved["junit"]).getroot()
    row = next(line.split() for line in done.stdout.splitlines() if line.startswith("softmax "))
    assert [root.get("tests"), root.get("failures")] == [str(len(root.findall(".//testcase"))), row[2]]
    assert saved["markdown"].read_text(encoding="utf-8").startswith("## Conformance")
    assert saved["html"].read_text(encoding="utf-8").startswith("<!doctype html>")


def test_junit_goes_to_a_folder_that_is_there(check):
    done = check(RIGHT, "--component", "softmax", "--junit", "nowhere/out.xml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--junit nowhere/out.xml: there is no folder nowhere" in done.stderr


def test_cases_and_components_may_be_patterns(check):
    result = check("textbook", "-k", "sm-*by-hand", "-c", "soft*", "--json", "-")
    assert {id_ for id_, *_ in judged(result)} == {"sm-one-row-by-hand"}
    refused = check("textbook", "-k", "zz-*")
    assert (refused.exit_code, refused.stderr) == (2, "goldformer: --case zz-*: nothing fits this pattern\n")
    refused = check("textbook", "--component", "sdpa")
    assert refused.stderr == "goldformer: --component sdpa: did you mean scaled_dot_product_attention?\n"
