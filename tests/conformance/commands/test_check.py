"""goldformer check: what no transcript can show: signals, devices, files that are not read, and JSON as data."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from goldformer.adapters import pretend_device
from goldformer.conformance.cli import main
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.properties.registry import components_of
from goldformer.conformance.reports.record_json import make_report_model
from goldformer.spec.load import SpecFiles
from transcripts import PROGRAMS

RIGHT = (PROGRAMS / "softmax.py").read_text(encoding="utf-8")
WRONG = RIGHT.replace("scores.max(-1, keepdims=True)", "0")  # overflows
DOUBLED = RIGHT.replace("return powers", "return 2 * powers")
STOP = "calls += 1\n    if calls == 8:\n        os.kill(os.getpid(), signal.SIGTERM)\n"
STOPPED = RIGHT.replace("def softmax", "import os, signal\ncalls = 0\ndef softmax").replace(
    "    if 0 in", f"    global calls\n    {STOP}    if 0 in"
)
ON_THE_CPU = """
import torch
ARRAYS = "torch"
def softmax(scores):
    return torch.softmax(scores + torch.zeros(1, dtype=scores.dtype), -1)
"""


@pytest.fixture
def check(adapter_file):
    """Run `goldformer check` on an adapter given by source or by name."""

    def run(adapter, *options):
        name = adapter_file(adapter) if "\n" in adapter else adapter
        return CliRunner().invoke(main, ["check", name, *options])

    return run


def test_what_was_judged_before_a_stop_is_printed_and_saved(check, tmp_path):
    result = check(STOPPED, "--component", "softmax")
    assert result.exit_code == 130
    assert re.search(r"^softmax +[1-7] ", result.stdout, re.MULTILINE)
    what = r"a call in case [a-z0-9-]+ of softmax in float32 had run for \d\.\d s"
    assert re.fullmatch(rf"goldformer: stopped after \d of \d\d checks: {what}\n", result.stderr)
    summary = tmp_path / "summary.md"
    result = check(STOPPED, "--component", "softmax", "--json", "-", "--markdown", str(summary))
    data = json.loads(result.stdout)
    assert (result.exit_code, data["problem"]) == (130, result.stderr.strip().removeprefix("goldformer: "))
    assert 0 < len(data["verdicts"]) < 8
    assert "stopped after " in summary.read_text(encoding="utf-8")


def test_a_stop_before_the_first_check_is_130_too(check, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr("goldformer.conformance.commands.check.load_spec", stop)
    result = check(RIGHT)
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "goldformer: stopped\n")


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
    chosen = ("--component", "softmax", "--property", "device-hygiene,sm-shift")
    result = check(f"{ON_THE_CPU}{declared}\n", *chosen, *options)
    assert result.exit_code == code
    assert ("Right here, would fail on a GPU: " in result.stdout) is (not declared and code == 0)


def test_every_check_of_the_components_that_are_there_runs_and_no_other_file_is_read(check, spec, monkeypatch):
    read = []
    original = SpecFiles.read_component

    def note(self, name):
        read.append(name)
        return original(self, name)

    monkeypatch.setattr(SpecFiles, "read_component", note)
    result = check(RIGHT, "--json", "-", "--dtype", "float64,float16")
    assert {*read} == {"softmax"}
    laws = [law.id for law in spec.properties.values() if "softmax" in components_of(law, spec)]
    every = [*(case.id for case in plan(spec, ["softmax"])), *laws]
    judged = [(verdict["check"], verdict["dtype"]) for verdict in json.loads(result.stdout)["verdicts"]]
    assert judged == [(check_id, dtype) for dtype in ("float64", "float16") for check_id in every]


@pytest.mark.parametrize("source", [RIGHT, WRONG, DOUBLED])
def test_the_json_is_what_its_schema_says_and_can_be_read_back(source, check):
    text = check(source, "--json", "-").stdout
    make_report_model().model_validate_json(text)
    for data in json.loads(text)["verdicts"]:
        assert Verdict.from_json(data).check == data["check"]


def test_options_that_are_those_of_a_family_are_named_so(check):
    norm = """ARRAYS = "numpy"
CONVENTIONS = {"rms_norm_eps": "1e-5"}
def rms_norm(x, params):
    return x / ((x * x).mean(-1, keepdims=True) + 1e-5) ** 0.5 * params["gamma"]
"""
    case = ("--case", "rms-distinct-sizes", "--component", "rms_norm")
    assert re.search("^Options: as in .*llama-3", check(norm, *case).stdout, re.MULTILINE)
    assert "Options: as in" not in check(norm.replace("1e-5", "1e-4"), *case).stdout
    chosen = check(norm.replace('"1e-5"', '"1e-6"'), *case, "--family", "llama-3").stdout
    assert "Declared: rms_norm_eps: 1e-5" in chosen


HALF_AWARE = """
import torch
ARRAYS = "torch"

class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("ones", torch.ones(1))

def softmax(scores):
    return torch.softmax(scores.float(), -1)CAST

def layer_norm(x, *, params):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], params["gamma"], params["beta"])
"""


@pytest.mark.parametrize(
    ("cast", "code", "dtypes", "said"),
    [
        (
            ".to(scores.dtype)",
            0,
            {"float32", "bfloat16"},
            "judged in float32, and softmax in bfloat16 too; --dtype all",
        ),
        (
            ".to(scores.dtype) * Table().ones.to(scores)",
            0,
            {"float32"},
            "in bfloat16 the buffers of its module are rounded",
        ),
        # It was made for float32 alone.
        ("", 0, {"float32"}, "softmax names half types and is judged in float32 only; in bfloat16: output is float32"),
        (
            ".to(scores.dtype) * (1.06 if scores.dtype == torch.bfloat16 else 1)",
            1,
            {"float32", "bfloat16"},
            "judged in",
        ),
    ],
)
def test_code_that_names_half_types_is_judged_in_one(cast, code, dtypes, said, check, tmp_path):
    saved = tmp_path / "found.json"
    result = check(HALF_AWARE.replace("CAST", cast), "--json", saved, "--component", "softmax,layer_norm")
    verdicts = json.loads(saved.read_text())["verdicts"]
    assert result.exit_code == code
    assert {v["dtype"] for v in verdicts if v["component"] == "softmax"} == dtypes
    # Nothing in the other component is made for half types.
    assert {v["dtype"] for v in verdicts if v["component"] == "layer_norm"} == {"float32"}
    assert said in " ".join(result.stdout.split())
