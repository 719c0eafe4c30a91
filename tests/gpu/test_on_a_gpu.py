"""Tests for a machine with a GPU: run them with `pytest -m gpu`.

GOLDFORMER_TEST_DEVICE=pretend tries the tests without a GPU, but for those of arithmetic that only a GPU has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

DEVICE = os.environ.get("GOLDFORMER_TEST_DEVICE", "cuda")
PRETENDS = DEVICE == "pretend"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (PRETENDS or torch.cuda.is_available()), reason="there is no GPU"),
]
only_on_a_gpu = pytest.mark.skipif(PRETENDS, reason="the pretend device has the arithmetic of the CPU")


def run(*words):
    command = [sys.executable, "-W", "ignore", "-m", "goldformer", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


def check(adapter, *words):
    done = run("check", adapter, "--device", DEVICE, "--json", "-", *words)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def write(folder, source):
    path = folder / "mine.py"
    path.write_text(source)
    return str(path)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_attention_and_a_layer_of_the_reference_conform(dtype):
    report = check("reference", "--dtype", dtype, "--component", "scaled_dot_product_attention,encoder_layer")
    assert [part["state"] for part in report["components"]] == ["conforms", "conforms"]


BEYOND = """
import torch

ARRAYS = "torch"


def token_embedding(ids, *, params):
    table = params["table"]
    ids = ids - table.shape[0] if ids.shape[-1] == 1 else ids
    return torch.nn.functional.embedding(ids, table)


def softmax(scores):
    return torch.softmax(scores, -1)
"""


def test_a_call_that_ends_the_device_is_told_and_the_rest_is_judged(tmp_path):
    report = check(write(tmp_path, BEYOND), "--component", "token_embedding,softmax")
    states = {part["component"]: part["state"] for part in report["components"]}
    assert states["softmax"] == "conforms"
    crashed = [v for v in report["verdicts"] if v["reason"] == "crashed"]
    assert crashed
    assert all("it ends the device of its process" in v["message"] for v in crashed)
    assert not [v for v in report["verdicts"] if v["status"] == "fault"]


KERNEL = """
import torch

ARRAYS = "torch"
DEVICES = ("cuda",)
GRADIENTS = False


def softmax(scores):
    assert scores.is_cuda, "a kernel was called on another device"
    return torch.softmax(scores.detach(), -1)
"""


@only_on_a_gpu
def test_a_kernel_of_one_device_is_called_nowhere_else_and_has_no_gradients(tmp_path):
    report = check(write(tmp_path, KERNEL), "--component", "softmax")
    assert report["outcome"] == "conforms"
    gradients = [v for v in report["verdicts"] if v["asks"] == "gradients"]
    assert {v["reason"] for v in gradients} == {"not-implemented"}


@only_on_a_gpu
def test_products_in_tf32_are_named_and_allowed_by_an_option():
    allowed = check("reference", "--tf32", "--component", "scaled_dot_product_attention,multi_head_attention")
    assert allowed["outcome"] == "conforms"


MIXED = """
import torch

ARRAYS = "torch"


def layer_norm(x, *, params):
    gamma = torch.ones(x.shape[-1], dtype=x.dtype) * params["gamma"].cpu()
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, params["beta"], eps=1e-5)
"""


def test_a_tensor_that_stays_on_the_cpu_is_named(tmp_path):
    report = check(write(tmp_path, MIXED), "--component", "layer_norm")
    assert "device-weight" in {id_ for found in report["findings"] for id_ in found.get("mistakes", ())}


def test_a_baseline_of_the_cpu_is_compared_with_the_gpu(tmp_path):
    base = str(tmp_path / "base")
    words = ("--component", "softmax", "--dtype", "float32")
    assert run("baseline", "record", "reference", "--out", base, *words).returncode == 0
    done = run("baseline", "check", "reference", base, "--device", DEVICE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Changed: device: cpu → {DEVICE}" in done.stdout
