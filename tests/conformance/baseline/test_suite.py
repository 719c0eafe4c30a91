"""pytest with --baseline: a case whose result moved fails with its class, and a bad baseline is a usage error."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from repository import REPOSITORY

GOLDEN = REPOSITORY / "conformance" / "test_golden.py"

SOFTMAX = """
import numpy as np

ARRAYS = "numpy"
NAME = "mine"

def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
#: Off by what float16 rounds away, and float32 does not.
COARSE = SOFTMAX.replace("return powers /", "powers += powers.dtype.type(1e-4) * (powers < 1)\n    return powers /")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A baseline of the right softmax."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "old.py").write_text(SOFTMAX, encoding="utf-8")
    done = CliRunner().invoke(main, ["baseline", "record", str(folder / "old.py"), "--out", str(folder / "base")])
    assert done.exit_code == 0, done.output
    return str(folder / "base")


@pytest.fixture
def run(recorded, adapter_file, tmp_path):
    """Run pytest on the golden cases of softmax and an adapter, against the baseline of the right one."""

    def pytest_on(source, *options, folder=recorded):
        words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(GOLDEN), "--component", "softmax"]
        words += ["--adapter", adapter_file(source, "new.py"), "--baseline", folder, *options]
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    return pytest_on


def failed(done):
    return [line for line in done.stdout.splitlines() if line.startswith("FAILED ") and "::" in line]


def test_what_did_not_move_is_as_without_a_baseline(run):
    """The one failure is that of code that accepts what it is to refuse, which no baseline holds."""
    done = run(SOFTMAX)
    assert not any("since the baseline" in line for line in done.stdout.splitlines())
    assert {line.partition("[")[2].partition("]")[0].partition("-")[2] for line in failed(done)} <= {"sm-empty-row"}


def read_output(done):
    return " ".join(done.stdout.split())


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("source", "says"),
    [
        (COARSE, "since the baseline, precision: output moved by "),
        (SOFTMAX.replace("return powers", "return 2 * powers"), "; since the baseline, unexplained: output moved by "),
        (
            SOFTMAX.replace("return powers", "return np.float64(1) * powers"),
            "; since the baseline, form: it gave a result then",
        ),
    ],
    ids=["precision", "unexplained", "form"],
)
def test_what_moved_fails_with_its_class(source, says, run):
    assert says in read_output(run(source, "--dtype", "float32"))


GRADIENT = """
def softmax_gradient(scores, cotangent):
    weights = softmax(scores)
    return {"scores": weights * (cotangent - (weights * cotangent).sum(-1, keepdims=True))}
"""


def test_a_conforming_result_that_moved_fails_too_and_says_how_to_repeat_it(run):
    done = run(SOFTMAX + GRADIENT, "--dtype", "float32")
    assert done.returncode == 1
    assert "since the baseline, form: gives a result now; it was not-implemented: numpy does not" in read_output(done)
    assert "Repeat goldformer baseline check " in read_output(done)


def test_a_dtype_that_was_not_recorded_is_not_compared(run):
    assert "since the baseline" not in run(COARSE, "--dtype", "float16").stdout


def test_a_bad_baseline_is_a_usage_error(run):
    done = run(SOFTMAX, folder="gone")
    assert done.returncode == 4
    assert "goldformer: --baseline gone: there is no such folder: manifest.yaml is missing" in done.stderr
