"""docs/gpu.md, whose last part benchmarks/gpu.py writes: its table, a dry run, and a machine without a GPU."""

from __future__ import annotations

import re
import sys

import pytest

from goldformer.adapters import pretend_device
from repository import REPOSITORY

PAGE = REPOSITORY / "docs" / "gpu.md"
ROWS = re.findall(
    r"^\| (.+?) \| (caught|missed) \| (caught|missed) \| (\S+) \|$", PAGE.read_text("utf-8"), re.MULTILINE
)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(REPOSITORY)
    from benchmarks import gpu

    copy = tmp_path / "gpu.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(gpu, "PAGE", copy)
    return gpu


def run(gpu, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    gpu.main()


def test_the_table_has_the_thirteen_kinds_of_mixtures_and_mistakes_of_the_catalogue(spec):
    assert len(ROWS) == 13
    assert {mistake for *_, mistake in ROWS} <= {*spec.properties["device-hygiene"].catches}
    assert [pretend for _, _, pretend, _ in ROWS] == ["caught"] * 13


def test_without_a_gpu_the_page_stays_and_a_sentence_says_so(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "find_gpu", lambda: None)
    with pytest.raises(
        SystemExit, match=r"^PyTorch finds no GPU here, so nothing was measured: docs/gpu\.md stays as it is\.$"
    ):
        run(gpu, monkeypatch)
    assert gpu.PAGE.read_text("utf-8") == PAGE.read_text("utf-8")


def test_a_gpu_that_is_not_there_is_named(gpu, monkeypatch):
    with pytest.raises(SystemExit, match=r"^there is no device tpu: .*: docs/gpu\.md stays as it is\.$"):
        run(gpu, monkeypatch, "--device", "tpu")


@pytest.mark.skipif(pretend_device.register() is not None, reason="no pretend device here")
def test_a_dry_run_measures_a_sample_on_the_pretend_device(gpu, monkeypatch, capsys):
    run(gpu, monkeypatch, "--dry-run")
    printed = capsys.readouterr().out
    assert printed.startswith("On `pretend`, a device of kind pretend, with Python ")
    ((passed, judged),) = re.findall(
        r"^\| reference \| – \| (\d+)/(\d+) \| – \| – \| 0\.\d+ \|$", printed, re.MULTILINE
    )
    assert passed == judged
    assert gpu.PAGE.read_text("utf-8") == PAGE.read_text("utf-8")


def test_what_was_measured_replaces_what_was_measured_before_and_nothing_else(gpu, monkeypatch):
    tally = {"passed": 5, "failed": 1, "errored": 0, "worst_ratio": 2.0}
    ran = {"components": [{"component": "softmax", "dtypes": {"float16": tally}}], "seconds": 1.0, "problem": ""}
    absent = {"components": [], "seconds": 0.0, "problem": "not installed"}
    found = {("reference", "float16"): ran}
    monkeypatch.setattr(gpu, "run", lambda name, dtype, *rest: found.get((name, dtype), absent))
    monkeypatch.setattr(gpu, "find_gpu", lambda: "cuda")
    monkeypatch.setattr(gpu, "name_hardware", lambda device: "a fast one")
    monkeypatch.setattr(gpu.LIBRARIES["torch"], "unavailable", lambda device: None)
    for _ in range(2):
        run(gpu, monkeypatch)
        written = gpu.PAGE.read_text("utf-8")
    kept, _, measured = written.partition("## Measured\n")
    assert kept == PAGE.read_text("utf-8").partition("## Measured\n")[0]
    assert measured.startswith("\nOn `cuda`, a fast one, with Python ")
    assert (
        "| reference | – | – | – | **5/6** | 2 |" in measured or "| reference | – | – | **5/6** | – | 2 |" in measured
    )
    assert "so far" not in measured
    assert "torch-nn" not in measured
