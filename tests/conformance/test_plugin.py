"""The suite under pytest: its summary, its failures, its exit codes, across processes, and its silence elsewhere."""

from __future__ import annotations

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from repository import REPOSITORY

SUITE = REPOSITORY / "conformance"

RIGHT = """
import numpy as np

ARRAYS = "numpy"
NAME = "mine"

def softmax(scores):
    if 0 in scores.shape:
        raise ValueError("scores: empty")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
ACCEPTS_ANYTHING = RIGHT.replace('raise ValueError("scores: empty")', "return scores")
DOUBLED = ACCEPTS_ANYTHING.replace("return powers", "return 2 * powers") + "\ndef casual_mask(): ...\n"

GOLDEN, PROPERTIES = SUITE / "test_golden.py", SUITE / "test_properties.py"


class Run:
    """One run of pytest in a process and a folder of its own."""

    def __init__(self, folder, *arguments):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
        self.folder = folder
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def rows(self):
        """The summary's rows by component, without the spaces."""
        _, _, after = self.out.partition("error÷tol.\n")
        rows = itertools.takewhile(re.compile(r"[a-z_]+ +[·\d]").match, after.splitlines())
        return {row.split()[0]: row.split()[1:] for row in rows}


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Run files of the suite on an adapter, by name or by source, in a folder whose name has a space."""

    def run(adapter, *options, files=(GOLDEN,)):
        folder = tmp_path_factory.mktemp("run") / "a folder"
        folder.mkdir()
        if "\n" in adapter:
            (folder / "mine.py").write_text(adapter, encoding="utf-8")
            adapter = "../a folder/mine.py"
        return Run(folder, *map(str, files), "--adapter", adapter, *options)

    return run


STRICT = (DOUBLED, "--component", "softmax,causal_mask", "--dtype", "float32", "--strict")


@pytest.fixture(scope="module")
def broken(suite):
    """A strict run on a softmax that is doubled and accepts anything, in an adapter without a causal mask."""
    return suite(*STRICT, files=(GOLDEN, PROPERTIES))


# A run that conforms


@pytest.fixture(scope="module")
def conforming(suite):
    """The whole suite on two components of the textbook, in all of its dtypes."""
    return suite("textbook", "--component", "softmax,causal_mask", "-v", "--dtype", "all", files=(SUITE,))


def test_the_summary_tells_what_was_done_by_component(conforming, golden_cases):
    assert conforming.code == 0
    assert "= conformance of textbook =" in conforming.out
    heading = r"^component +passed +failed +not impl\. +skipped +refuses +error÷tol\.$"
    assert re.search(heading, conforming.out, re.MULTILINE)
    passed, failed, absent, skipped, refuses, ratio, *state = conforming.rows["causal_mask"]
    assert (passed, failed, absent, skipped, refuses, ratio) == ("39", "·", "·", "·", "4/4", "0")
    passed, failed, absent, skipped, refuses, ratio, *state = conforming.rows["softmax"]
    assert (failed, absent, refuses) == ("·", "·", "1/1")
    laws = len(re.findall(r"test_properties\.py::test_property\[float32-softmax-[\w-]+\] [PS]", conforming.out))
    assert laws > 2
    assert int(passed) + int(skipped) == 3 * (golden_cases("softmax") + laws)
    # The dtype in which the fewest apply counts: float16 cannot hold the scores of one.
    every = golden_cases("softmax")
    assert " ".join(state) == f"conforms ({every - 1} of {every} cases apply)"
    assert "Robustness: refuses 5 of 5 bad inputs" in conforming.out
    assert 0 < float(ratio) < 0.5
    assert list(conforming.rows) == ["causal_mask", "softmax"]


def test_every_dtype_gives_a_test_for_every_case_and_property(conforming, spec):
    ids = [case.id for name in ("causal_mask", "softmax") for case in spec.cases_of(name)]
    golden = re.findall(r"test_golden\.py::test_golden\[(\w+)-([\w-]+)\] [PS]", conforming.out)
    assert golden == [(dtype, id_) for dtype in ("float64", "float32", "float16") for id_ in ids]
    properties = re.findall(r"test_properties\.py::test_property\[(\w+)-softmax-sm-simplex\] PASSED", conforming.out)
    assert properties == ["float64", "float32", "float16"]


# A run that a fault of goldformer spoils

FAULT = """
from goldformer.conformance.judging import measure

def compared(*_):
    raise LookupError("of our own")

measure.measure = compared
"""


def test_a_fault_of_goldformer_is_an_internal_error_of_pytest(tmp_path):
    (tmp_path / "broken_judge.py").write_text(FAULT, encoding="utf-8")
    options = ("-p", "broken_judge", "--adapter", "textbook", "--component", "softmax", "--dtype", "float32")
    # One case will do: every other one ends in the same fault.
    run = Run(tmp_path, str(GOLDEN), *options, "-k", "sm-one-row-by-hand")
    assert run.code == pytest.ExitCode.INTERNAL_ERROR
    assert "Fault in goldformer: a fault in goldformer: LookupError: of our own (broken_judge.py:" in run.out
    assert "Fix first" not in run.out


# A run that fails


def test_a_failing_run_is_1_and_names_the_root_the_mistake_and_a_misspelt_component(broken, golden_cases):
    assert broken.code == 1
    judged, every = golden_cases("softmax", gradients=False), golden_cases("softmax")
    assert " ".join(broken.rows["softmax"]).endswith(f" fails first ({judged} of {every} cases apply)")
    assert list(broken.rows) == ["softmax"]
    assert "Not implemented: causal_mask" in broken.out
    assert "Fix first: softmax" in broken.out
    assert "Note: casual_mask is no component: did you mean causal_mask?" in broken.out


def test_a_failing_case_shows_what_a_student_needs(broken, spec):
    (block,) = re.findall(r"^FAILED  sm-one-row-by-hand .*?Repeat .*?$", broken.out, re.MULTILINE | re.DOTALL)
    for part in (
        "(softmax, float32 on cpu)",
        spec.cases["sm-one-row-by-hand"].title,
        "first at [0]: expected 0.0420100661, actual 0.0840201",
        "error ÷ tolerance ",
        "Clause      SM-1 MUST: The formula",
        "Source      java J1",
        "Repeat      goldformer check '../a folder/mine.py' --case sm-one-row-by-hand --dtype float32 --strict",
    ):
        assert part in block
    assert "Traceback" not in broken.out
    assert "conformance/plugin.py" not in broken.out.partition("short test summary")[0]


@pytest.fixture(scope="module")
def reported(suite):
    """A run on a softmax that is doubled, without a dtype, as a build server starts it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "true")
        return suite(DOUBLED, "--component", "softmax", "--junitxml", "junit.xml")


def test_without_a_dtype_it_is_float32(reported):
    assert set(re.findall(r"::test_\w+\[(\w+)-", reported.out)) == {"float32"}


def test_each_failure_is_shown_once_on_a_build_server_too(reported):
    """Where `CI` is set, pytest's short summary does not cut what a failure says."""
    run = reported
    assert run.code == 1
    assert run.out.count("  Repeat ") == len(re.findall(r"^FAILED .*::test_golden", run.out, re.MULTILINE)) > 5


def test_junit_xml_says_what_is_wrong_and_of_what(reported):
    tests = {test.get("name"): test for test in ElementTree.parse(reported.folder / "junit.xml").iter("testcase")}
    wrong = tests["test_golden[float32-sm-one-row-by-hand]"]
    assert wrong.find("failure").get("message").startswith("output: 3 of 3 values are wrong, such as ")
    assert "Clause      SM-1 MUST" in wrong.find("failure").text
    told = {p.get("name"): p.get("value") for p in wrong.iter("property")}
    assert float(told.pop("ratio")) > 1
    assert told.pop("repeat").startswith("goldformer check '../a folder/mine.py' --case sm-one-row-by-hand ")
    assert told == {
        "component": "softmax", "dtype": "float32", "device": "cpu", "reason": "wrong-value", "clauses": "SM-1 SM-2",
    }  # fmt: skip
    accepted = tests["test_golden[float32-sm-no-elements]"]
    assert accepted.find("skipped").get("message").startswith("robustness: ")


@pytest.mark.parametrize("what", ["--case sm-saturated", "--property sm-simplex --component softmax"])
def test_the_line_that_repeats_a_failure_fails_again(what, broken, monkeypatch):
    (line,) = re.findall(rf"^  Repeat      (goldformer check .*{what}.*)$", broken.out, re.MULTILINE)
    program, *arguments = shlex.split(line)
    assert program == "goldformer"
    monkeypatch.chdir(broken.folder)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert "\nFix first: softmax\n" in result.stdout


def test_the_line_that_repeats_a_failure_works_in_a_shell(broken):
    line = next(line for line in broken.out.splitlines() if line.startswith("  Repeat ")).split(maxsplit=1)[1]
    here = Path(sys.executable).parent
    done = subprocess.run(
        line, shell=True, cwd=broken.folder, env={"PATH": str(here)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")


# Strictness and processes


def test_absent_components_have_no_tests_and_accepted_input_is_skipped(suite):
    run = suite(ACCEPTS_ANYTHING, "--component", "softmax,causal_mask", "--dtype", "float32", "-rs")
    assert run.code == 0
    assert list(run.rows) == ["softmax"]
    assert "Not implemented: causal_mask" in run.out
    assert "mine has no causal_mask" not in run.out
    assert run.rows["softmax"][4] == "0/1"
    assert "robustness: accepts a bad scores and returns an array of shape (3, 2, 0)" in run.out


def test_a_run_of_what_is_not_there_says_so_and_is_not_green(suite, golden_cases):
    run = suite(RIGHT, "--component", "causal_mask")
    assert run.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "Nothing was checked. Not implemented: causal_mask" in run.out


def test_strict_fails_absent_components_and_accepted_input(broken, spec):
    assert broken.out.count("\nFAILED  mask-causal") == len(spec.cases_of("causal_mask"))
    assert broken.rows["softmax"][4] == "0/1"
    assert re.search(r"^FAILED  sm-no-elements .*\n.*\n  → accepts a bad scores", broken.out, re.MULTILINE)
    assert "--case sm-no-elements --dtype float32 --strict\n" in broken.out


def test_two_processes_sum_up_as_one_does(suite, broken):
    run = suite(*STRICT, "-n", "2", files=(GOLDEN, PROPERTIES))
    assert "2 workers" in run.out
    assert (run.code, run.rows) == (broken.code, broken.rows)
    closing = [re.search(r"^Fix first:.*?(?=^=)", r.out, re.MULTILINE | re.DOTALL).group() for r in (run, broken)]
    assert closing[0] == closing[1]


CUBED_KEYS = """
import goldformer.adapters.textbook as textbook

ARRAYS = "numpy"

def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    key = key + key**3 / 8
    return textbook.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)["output"]
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_place_of_an_unknown_mistake_is_told_whoever_ran_its_cases(suite, processes):
    run = suite(CUBED_KEYS, "-n", processes, "-k", "mha-self or mha-cross or mha-no")
    assert "  Cause unknown: " in run.out
    assert "  Place: the queries, keys or scores of the attention\n" in run.out


CACHED = """
import numpy as np

ARRAYS = "numpy"
kept = {}

def layer_norm(x, params):
    mean, variance = kept.setdefault(x.shape, (x.mean(-1, keepdims=True), x.var(-1, keepdims=True)))
    return params["gamma"] * (x - mean) / np.sqrt(variance + 1e-5) + params["beta"]
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("processes", ["0", "2"])
def test_state_between_calls_is_named_with_the_command_that_shows_it(suite, processes):
    run = suite(CACHED, "-n", processes, "--dist", "loadfile", "-k", "layer_norm or ln-")
    said = " ".join(run.out.split())
    assert "Mistake found: nondeterminism, the same call gives different results: state between calls. ln-" in said
    assert re.search(r"\n  Repeat: goldformer check '.*mine\.py' --case ln-[\w-]+,ln-[\w-]+ --dtype float32\n", run.out)


# Too few cases

FEW = (
    RIGHT
    + """
def causal_mask(*, q_seq, kv_seq):
    if q_seq != kv_seq:
        raise NotImplementedError("square")
    return np.tri(q_seq, dtype=bool)
"""
)


def test_too_few_cases_are_a_line_of_the_summary_and_no_failure(suite):
    run = suite(FEW, "--component", "softmax,causal_mask")
    assert run.code == 0
    assert " ".join(run.rows["causal_mask"]).endswith("partial: nothing wrong was found in 8 of 13 cases")
    said = "Partial: causal_mask, 8 of 13 cases that the declared options admit were judged, and at least 10 must"
    assert said in " ".join(run.out.split())


#: What `FEW` declines is a strict failure by itself. Here no stored case fits what is declared, and none is derived.
NO_CASE_FITS = """
from goldformer.spec.formulas.options import OPTIONS
from goldformer.adapters.textbook.build import build_textbook

ARRAYS = "numpy"
CONVENTIONS = {"pe_layout": "concatenated"}
greedy_decode = build_textbook(OPTIONS["pe_layout", "concatenated"], only="greedy_decode").greedy_decode
"""
NONE_DERIVED = """
from goldformer.conformance import selection

def derive(*_):
    return {}

selection.derive_declared = derive
"""


@pytest.mark.parametrize(
    ("strict", "code", "processes"),
    [((), pytest.ExitCode.OK, "0"), (("--strict",), pytest.ExitCode.TESTS_FAILED, "2")],
)
def test_too_few_cases_fail_a_strict_run(strict, code, processes, tmp_path):
    (tmp_path / "mine.py").write_text(NO_CASE_FITS, encoding="utf-8")
    (tmp_path / "none_derived.py").write_text(NONE_DERIVED, encoding="utf-8")
    options = ("-p", "none_derived", "--adapter", "mine.py", "--component", "greedy_decode", "-n", processes)
    run = Run(tmp_path, str(GOLDEN), *options, *strict)
    assert run.code == code
    assert " ".join(run.rows["greedy_decode"]).endswith("partial: nothing wrong was found in 0 of 0 cases")
    assert "FAILED" not in run.out
    assert ("--strict fails what is partial: greedy_decode" in run.out) is bool(strict)


def test_who_chooses_tests_is_not_told_that_they_are_few(suite):
    run = suite(FEW, "-k", "mask-causal")
    assert run.code == 0
    assert "Partial" not in run.out
    assert run.rows["causal_mask"][-4:] == ["of", "13", "cases", "apply)"]


# Runs that cannot be


@pytest.mark.parametrize(
    ("adapter", "options", "says"),
    [
        ("textbok", (), "goldformer: no adapter 'textbok'. Did you mean textbook? Give a file"),
        ("textbook", ("--component", "sofmax"), "--component sofmax: known are alibi_bias, causal_mask, "),
        ("textbook", ("--dtype", "int8"), "--dtype int8: known are float64, float32, float16, bfloat16"),
    ],
    ids=["adapter", "component", "dtype"],
)
def test_what_cannot_be_run_is_a_usage_error(adapter, options, says, suite):
    run = suite(adapter, *options)
    assert run.code == pytest.ExitCode.USAGE_ERROR
    assert says in run.err
    assert "Traceback" not in run.out + run.err


def test_a_run_in_which_everything_is_skipped_is_not_green(suite, golden_cases):
    run = suite("textbook", "--component", "softmax", "--dtype", "bfloat16")
    assert run.code == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "Nothing was checked: everything was skipped." in run.out
    assert run.rows["softmax"] == ["·", "·", "·", str(golden_cases("softmax")), "·", "–", "not", "checked"]


# Other people's tests

THEIRS = {
    "test_imports.py": """
import sys

class Bench: ...

def test_nothing_is_imported(request):
    assert request.config.pluginmanager.hasplugin('goldformer')
    names = ('goldformer.spec', 'goldformer.adapters', 'goldformer.conformance.judging', 'numpy', 'torch')
    assert [name for name in names if name in sys.modules] == []
""",
    "test_bench.py": """
import pytest

@pytest.fixture
def bench():
    return 'theirs'

def test_bench(bench):
    assert bench == 'theirs'
""",
}


def test_a_project_of_its_own_never_notices_the_plugin_and_keeps_its_fixture_named_bench(tmp_path):
    for name, text in THEIRS.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    run = Run(tmp_path, "-W", "error", "-v")
    assert run.code == 0
    assert re.findall(r"::(\w+) (\w+)", run.out) == [("test_bench", "PASSED"), ("test_nothing_is_imported", "PASSED")]
    mentions = [line for line in run.out.splitlines() if "goldformer" in line and not line.startswith("plugins: ")]
    assert (mentions, run.err) == ([], "")
