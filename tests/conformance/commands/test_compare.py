"""goldformer compare: exit statuses, what is printed and saved, and each implementation in a process of its own."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from comparisons import ALL, FAILING, MISSING, RIGHT, made, of, verdict, wrong
from goldformer.conformance.cli import main
from goldformer.conformance.commands import compare as command
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import ComparisonRequest
from goldformer.conformance.reports.comparison_data import as_json, markdown
from goldformer.conformance.reports.results import Counts
from goldformer.conformance.runner import check_implementation, run_comparison

SOFTMAX = """
import numpy as np
import beside

ARRAYS = "numpy"
NAME = "mine"
VERSION = beside.VERSION

def softmax(scores):
    if 0 in scores.shape:
        raise ValueError("scores: empty")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return beside.FACTOR * powers / powers.sum(-1, keepdims=True)
"""

#: The outcome of RIGHT.
CONFORMS = "conforms · 1 component · 1 of 2 cases apply"


#: Two of its three cases are declined.
PARTIAL = made(
    "few",
    verdict("sm-one", "softmax"),
    *(verdict(f"sm-{nth}", "softmax", "skipped", "not-implemented") for nth in range(2)),
    implemented=frozenset({"softmax"}),
)


def compare(*arguments):
    return CliRunner().invoke(main, ["compare", *arguments])


# ── running ──


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A folder of adapters: two of one name, each beside a module of one name, and one that ends its process."""
    folder = tmp_path_factory.mktemp("adapters")
    for name, version, factor in (("old", "1", "1"), ("new", "2", "2")):
        (folder / name).mkdir()
        (folder / name / "it.py").write_text(SOFTMAX, encoding="utf-8")
        (folder / name / "beside.py").write_text(f"VERSION = {version!r}\nFACTOR = {factor}\n", encoding="utf-8")
    (folder / "crash.py").write_text("import os\nos._exit(3)\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(two):
    """A run on both of them, on one that crashes and on one that is not there."""
    given = [str(two / file) for file in ("old/it.py", "new/it.py", "crash.py", "gone.py")]
    return compare(*given, "--component", "softmax", "--dtype", "float32", "--json", str(two / "all.json"))


@pytest.fixture(scope="module")
def saved(run, two):
    return json.loads((two / "all.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)


def test_each_implementation_has_a_process_of_its_own(saved):
    """One process would hand the first module `beside` to both, and would end with the one that crashes."""
    found = [(i["version"], i["outcome"], i["problem"].partition(".")[0]) for i in saved["implementations"]]
    assert found == [
        ("1", "conforms", ""),
        ("2", "fails", ""),
        ("", "unusable", "its process ended in the middle of a check"),
        ("", "unusable", "no such file"),
    ]


def test_one_that_is_unusable_is_2_and_said(run, two):
    assert run.exit_code == 2
    assert run.stderr.splitlines() == [
        f"goldformer: {two / 'crash.py'}: its process ended in the middle of a check",
        f"goldformer: {two / 'gone.py'}: no such file. `goldformer new {two / 'gone.py'}` writes one to start from",
    ]


def test_the_table_names_apart_what_is_named_alike(run, two):
    heading, row = run.stdout.splitlines()[:2]
    assert re.split(r"\s{2,}", heading.strip()) == [
        "component",
        f"mine ({two / 'old/it.py'})",
        f"mine ({two / 'new/it.py'})",
        str(two / "crash.py"),
        str(two / "gone.py"),
    ]
    assert re.match(r"softmax +✓ \d+ of \d+ · 0\.\d+ +✗ \d+ of \d+ · \d\S+ +– +–\s*$", row)


def test_what_was_run_is_in_the_json(saved, spec):
    assert (saved["dtypes"], saved["components"], saved["device"], saved["threads"]) == (
        ["float32"], ["softmax"], "cpu", 1,
    )  # fmt: skip
    assert saved["environment"].keys() == {"goldformer", "spec", "Python", "system", "processor"}
    right, doubled = saved["implementations"][:2]
    assert right["libraries"]["numpy"]
    assert right["seconds"] > 0
    (component,) = doubled["components"]
    judged = component["passed"] + component["failed"] + component["errored"]
    counted = judged + sum(component["skipped"].values()) + component["bad_inputs"]
    assert counted == len(component_verdicts(spec))
    assert component["dtypes"]["float32"]["failed"] == component["failed"] == len(doubled["failures"])
    assert doubled["clauses"]["SM-1"]["failed"] > 0
    assert [r["text"] for r in doubled["diagnosis"] if r["label"] == "Fix first"] == ["softmax"]


def component_verdicts(spec):
    return check_implementation("textbook", ComparisonRequest(("float32",), ("softmax",)), spec).verdicts


def test_the_verdicts_are_those_of_check(saved, two):
    result = CliRunner().invoke(
        main, ["check", str(two / "new/it.py"), "--component", "softmax", "--dtype", "float32", "--json", "-"]
    )
    checked = [Verdict.from_json(v) for v in json.loads(result.stdout)["verdicts"]]
    failures = [Verdict.from_json(v) for v in saved["implementations"][1]["failures"]]
    assert [(v.check, v.message) for v in failures] == [(v.check, v.message) for v in checked if v.bad]


def test_they_are_handed_on_as_they_are_done_and_kept_in_order(spec):
    seen = []

    def watch(found, total):
        for one in found:
            seen.append((one.given, total))
            yield one

    found = run_comparison(["no.py", "none.py"], ComparisonRequest(("float32",)), spec, 1, watch)
    assert sorted(seen) == [("no.py", 2), ("none.py", 2)]
    assert [i.given for i in found.implementations] == ["no.py", "none.py"]


def test_what_the_options_leave_nothing_of_is_unusable(spec):
    found = check_implementation("textbook", ComparisonRequest(("bfloat16",), ("softmax",)), spec)
    assert found.outcome == "unusable"
    assert found.problem.startswith("nothing was checked: ")


# ── counting ──


def test_a_tally_counts_each_verdict_once():
    tally = Counts.of([*RIGHT.verdicts, *FAILING.verdicts])
    assert (tally.passed, tally.failed, tally.errored) == (3, 1, 1)
    assert (tally.bad, tally.number_judged) == (2, 5)
    assert tally.skipped == {"convention": 1, "not-implemented": 1}
    assert tally.worst == 2.5e5
    assert Counts.of([]).worst is None


def test_roots_are_told_from_those_that_fail_along_with_them(spec):
    assert {c.component: c.state for c in FAILING.results(spec).values()} == {
        "softmax": "fails first",
        "scaled_dot_product_attention": "fails",
    }


@pytest.mark.parametrize(
    ("implementations", "outcome"),
    [
        ([RIGHT], "conforms"),
        ([RIGHT, PARTIAL], "partial"),
        ([PARTIAL, FAILING], "fails"),
        ([PARTIAL, MISSING], "unusable"),
        ([RIGHT, FAILING], "fails"),
        ([RIGHT, MISSING], "unusable"),
        ([MISSING, FAILING], "unusable"),
        ([], "unusable"),
    ],
)
def test_the_worst_outcome_is_that_of_all(implementations, outcome):
    assert of(*implementations).outcome == outcome


# ── the command, on verdicts made up ──


@pytest.fixture
def told(monkeypatch):
    def run(comparison, *options):
        monkeypatch.setattr(command, "run_comparison", lambda *_: comparison)
        return compare("any", *options)

    return run


@pytest.mark.parametrize(("comparison", "code"), [(of(RIGHT), 0), (of(RIGHT, FAILING), 1), (ALL, 2)])
def test_exit_status(comparison, code, told):
    assert told(comparison).exit_code == told(comparison, "--allow-partial").exit_code == code


def test_too_few_cases_are_3_and_said_unless_they_are_allowed(told):
    result = told(of(RIGHT, PARTIAL))
    said = "goldformer: few.py is partial: too few cases were judged of softmax. --allow-partial accepts that\n"
    assert (result.exit_code, result.stderr) == (3, said)
    assert "◐ partial · 1 of 3 cases" in result.stdout
    allowed = told(of(RIGHT, PARTIAL), "--allow-partial")
    assert (allowed.exit_code, allowed.stderr) == (0, "")
    assert told(of(PARTIAL, FAILING)).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["textbook", "--component", "sofmax"], "--component sofmax: did you mean softmax?"),
        (["textbook", "--dtype", "float23"], "--dtype float23: did you mean float32?"),
        (["textbook", "reference", "textbook"], "textbook is named twice: compare it once"),
        (["textbook", "--html", "no/a.html"], "--html no/a.html: there is no folder no"),
        (["textbook", "--json", "no/b.json"], "--json no/b.json: there is no folder no"),
    ],
)
def test_what_cannot_be_done_is_2_and_said_before_anything_is_run(arguments, says, monkeypatch):
    monkeypatch.setattr(command, "run_comparison", lambda *_: pytest.fail("it runs"))
    result = compare(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"goldformer: {says}\n")


@pytest.mark.parametrize("arguments", [[], ["textbook", "--jobs", "0"], ["textbook", "--threads", "0"]])
def test_a_bad_command_line_is_2(arguments):
    assert compare(*arguments).exit_code == 2


def test_what_is_printed(told):
    lines = told(ALL).stdout.splitlines()
    assert [re.split(r"\s{2,}", line.strip()) for line in lines[:4]] == [
        ["component", "right", "a | <b>*bad*</b>", "missing.py"],
        ["layer_norm", "– not implemented", "–", "–"],
        ["softmax", "✓ 2 of 2 · 0.25", "✗ 1 of 2 · 2.5e+05", "–"],
        ["scaled_dot_product_attention", "–", "✗ 0 of 1", "–"],
    ]
    assert f"right 7: {CONFORMS} (1.2 s)" in lines
    assert "Convention declared: empty_row: nan" in lines
    assert "Note: sotfmax is no component: did you mean softmax?" in lines
    assert "Fix first: softmax" in lines
    assert "missing.py: no such file. `goldformer new missing.py` writes one" in lines


def test_every_file_is_saved_and_named(told, tmp_path):
    names = {"--html": "a.html", "--json": "a.json", "--markdown": "a.md"}
    options = [word for option, name in names.items() for word in (option, str(tmp_path / name))]
    result = told(ALL, *options)
    assert result.stdout.splitlines()[-3:] == [f"- wrote {tmp_path / name}" for name in names.values()]
    assert (tmp_path / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "a.md").read_text(encoding="utf-8").startswith("## Conformance")
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["outcome"] == "unusable"


# ── JSON and Markdown ──


def test_json_has_counts_and_the_failing_verdicts_alone(spec):
    right, failing, missing = as_json(ALL, spec)["implementations"]
    assert right["not_implemented"] == ["layer_norm"]
    (softmax,) = right["components"]
    assert softmax.pop("dtypes").keys() == {"float64", "float32"}
    assert softmax == {
        "component": "softmax", "state": "conforms", "passed": 2, "failed": 0, "errored": 0,
        "skipped": {"convention": 1}, "worst_ratio": 0.25, "refused": 0, "bad_inputs": 0,
        "cases_judged": 1, "cases_admitted": 1, "cases_needed": 1, "cases": 2, "cases_lost": [], "unseen_mistakes": [],
        "judged_up_to": {},
    }  # fmt: skip
    assert right["failures"] == []
    assert [v["check"] for v in failing["failures"]] == ["sm-one", "sdpa-one"]
    assert (missing["components"], missing["problem"]) == ([], MISSING.problem)


def test_markdown_has_a_table_that_names_do_not_break(spec):
    lines = markdown(ALL, spec).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| component"))
    assert lines[start : start + 5] == [
        "| component | right | a \\| \\<b>\\*bad\\*\\</b> | missing.py |",
        "| --- | --- | --- | --- |",
        "| `layer_norm` | – not implemented | – | – |",
        "| `softmax` | ✓ 2 of 2 · 0.25 | ✗ 1 of 2 · 2.5e+05 | – |",
        "| `scaled_dot_product_attention` | – | ✗ 0 of 1 | – |",
    ]
    # A table needs an empty line before it and behind it.
    assert (lines[start - 1], lines[start + 5]) == ("", "")


def test_markdown_says_how_each_ends_what_to_mend_and_what_it_ran_on(spec):
    text = markdown(ALL, spec)
    for line in (
        f"- ✓ **right 7**: {CONFORMS} (declares empty_row: nan)",
        "- ✗ **a \\| \\<b>\\*bad\\*\\</b> 7**: fails in 2 of 2 components",
        "- ! **missing.py**: no such file. \\`goldformer new missing.py\\` writes one",
        "- **Fix first**: softmax",
        "<details><summary>2 failing checks</summary>",
        "- `sm-one` (float32): output: 3 of 9 values are wrong (sm-one)",
        "$ goldformer check mine.py --case sm-one",
    ):
        assert line in text.splitlines()
    assert re.search(
        r"^goldformer \S+ · spec \S+ cases \w+ · Python .* · numpy 2\.0 · cpu · float64, float32$", text, re.MULTILINE
    )


def test_a_long_list_of_failures_is_cut_in_markdown(spec):
    text = markdown(of(made("mine", *(wrong(f"sm-{nth}", "softmax") for nth in range(25)))), spec)
    assert text.count("\n- `sm-") == 10
    assert "\n- and 15 more\n" in text


# ── the same of one implementation, by check ──


def test_check_saves_a_summary(tmp_path, golden_cases):
    summary = tmp_path / "summary.md"
    options = ["--component", "softmax", "--dtype", "float32", "--markdown", str(summary)]
    result = CliRunner().invoke(main, ["check", "textbook", *options])
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == f"- wrote {summary}"
    assert re.search(r"^\| `softmax` \| ✓ \d+ of \d+ · 0\.\d+ \|$", summary.read_text(encoding="utf-8"), re.MULTILINE)
    number = golden_cases("softmax")
    said = f"conforms · 1 component · {number} of {number} cases apply · refuses 1 of 1 bad inputs"
    assert said in summary.read_text(encoding="utf-8")


def test_check_writes_nothing_but_json_to_standard_output(tmp_path):
    options = ["--component", "softmax", "--dtype", "float32", "--json", "-", "--html", str(tmp_path / "page.html")]
    result = CliRunner().invoke(main, ["check", "textbook", *options])
    assert json.loads(result.stdout)["components"]
    assert (tmp_path / "page.html").exists()


def test_check_saves_what_could_not_be_checked_too(tmp_path):
    drawn = tmp_path / "summary.md"
    result = CliRunner().invoke(
        main, ["check", "textbook", "--component", "softmax", "--dtype", "bfloat16", "--markdown", str(drawn)]
    )
    assert result.exit_code == 2
    assert "nothing was checked" in drawn.read_text(encoding="utf-8")


def test_check_refuses_a_folder_that_is_not_there():
    result = CliRunner().invoke(main, ["check", "textbook", "--markdown", "no/a.md"])
    assert (result.exit_code, result.stderr) == (2, "goldformer: --markdown no/a.md: there is no folder no\n")
