"""A baseline of one device, checked on another: what moved there, and why."""

from __future__ import annotations

import contextlib

import pytest
from click.testing import CliRunner

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.imports import forget_modules
from goldformer.conformance.cli import main

# The device must be there before the first gradient of the process.
pytestmark = pytest.mark.skipif(LIBRARIES["torch"].unavailable("pretend") is not None, reason="no pretend device here")

KERNELS = """
import torch

ARRAYS = "torch"


def layer_norm(x, *, params):
    eps = 1e-5 if x.device.type == "cpu" else EPS
    return torch.nn.functional.layer_norm(x, x.shape[-1:], params["gamma"], params["beta"], eps=eps)


def softmax(scores):
    weights = torch.softmax(scores, -1)
    return weights if scores.device.type == "cpu" else weights.DTYPE().float()


def dropout(x, *, rate, training=True, seed=None):
    return torch.nn.functional.dropout(x, rate, training)
"""
RIGHT = KERNELS.replace("EPS", "1e-5").replace("DTYPE", "float")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a baseline of the CPU."""
    place = tmp_path_factory.mktemp("baseline")
    (place / "mine.py").write_text(RIGHT)
    done = run(place, "record", "mine.py", "--out", "cpu", "--dtype", "float32")
    assert done.exit_code == 0, done.stderr
    return place


def run(place, *words):
    # The file has another source each time, which is to be read.
    with contextlib.chdir(place), forget_modules(place):
        return CliRunner().invoke(main, ["baseline", *words])


def check(place, source, *words):
    (place / "mine.py").write_text(source)
    return run(place, "check", "mine.py", "cpu", *words)


def test_the_same_results_on_another_device_did_not_move(folder):
    done = check(folder, RIGHT, "--device", "pretend")
    assert done.exit_code == 0, done.stderr
    assert "Changed: device: cpu → pretend" in done.stdout
    assert "nothing moved" in done.stdout


def test_a_precision_and_a_mistake_of_one_device_are_named(folder):
    done = check(folder, KERNELS.replace("EPS", "1e-6").replace("DTYPE", "bfloat16"), "--device", "pretend")
    assert done.exit_code == 1, done.stderr
    assert "Option found: layer_norm_eps: 1e-6" in done.stdout
    assert "Precision: looks like bfloat16: all values of output are bfloat16 numbers" in done.stdout
    repeats = [line for line in done.stdout.splitlines() if line.startswith("  Repeat")]
    assert repeats
    assert all(line.endswith(" --dtype float32 --device pretend") for line in repeats)
    # Nothing that `update` could accept: the results of this device have no place in the baseline.
    assert "baseline update" not in done.stdout
    again = run(folder, "update", "mine.py", "cpu", "--device", "pretend", "--yes")
    assert again.exit_code == 2
    assert "--device pretend: cpu has cpu" in again.stderr


def test_a_device_that_does_not_exist_here_is_no_drift(folder):
    done = check(folder, RIGHT, "--device", "cuda")
    assert done.exit_code == 2, done.stdout
    assert "no CUDA GPU here" in done.stderr


def test_tf32_is_asked_for_and_repeated(folder):
    done = check(folder, KERNELS.replace("EPS", "1e-6").replace("DTYPE", "float"), "--tf32", "--device", "pretend")
    assert "Changed: device: cpu → pretend" in done.stdout
    assert "TF32" in done.stdout
    assert "goldformer baseline check mine.py cpu --tf32 --case" in done.stdout
