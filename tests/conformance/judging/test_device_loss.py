"""A call that ends the device of its process: it fails, with its line, and everything after it is judged."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import goldformer
from goldformer.adapters import find_adapter, pretend_device
from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.wrapping import wrap_adapter
from goldformer.conformance.baseline.model import BaselineRequest
from goldformer.conformance.baseline.record import record
from goldformer.conformance.cli import main
from goldformer.conformance.judging import host
from goldformer.conformance.judging.device_loss import explain_device_loss
from goldformer.conformance.judging.fresh_process import FreshProcess
from goldformer.conformance.judging.host import call_apart, find_host
from goldformer.conformance.judging.invoke import BadResult
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.reports.comparison import ComparisonRequest
from goldformer.conformance.runner import check_implementation

# The device must be there before the first gradient of the process.
here = pytest.mark.skipif(LIBRARIES["torch"].unavailable("pretend") is not None, reason="no pretend device here")

ASSERTION = (
    "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda for more "
    "information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to "
    "enable device-side assertions.\n"
)

#: An adapter that computes on a device, which rows of one element end for good.
DYING = f"""
import os
import numpy as np

ARRAYS = "numpy"
NAME = "dying"
ended = []


def launch(ends):
    if ends:
        ended.append(True)
    if ended:
        raise RuntimeError({ASSERTION!r})


def softmax(scores):
    launch(scores.shape[-1] == 1)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(x, params):
    launch(False)
    centred = x - x.mean(-1, keepdims=True)
    root = np.sqrt((centred**2).mean(-1, keepdims=True) + np.asarray(1e-5, x.dtype))
    return centred / root * params["gamma"] + params["beta"]
"""
#: The same without that device.
LASTING = DYING.replace("    launch(scores.shape[-1] == 1)\n", "")
#: On a GPU a launch returns before it has failed, unless launches are in order: the next call finds the device gone.
LATE = f"""
import os
import torch

ARRAYS = "torch"
ended = []


def softmax(scores):
    if ended:
        raise RuntimeError({ASSERTION!r})
    if scores.shape[-1] == 1:
        ended.append(True)
        if "CUDA_LAUNCH_BLOCKING" in os.environ:
            raise RuntimeError({ASSERTION!r})
    return torch.softmax(scores, -1)
"""
#: Rows of three elements end the process itself where the device was lost before.
CRASHING = DYING.replace(
    "    powers =",
    "    if scores.shape[-1] == 3 and 'CUDA_LAUNCH_BLOCKING' in os.environ:\n        os._exit(3)\n    powers =",
)
#: A lookup beyond the table, which every GPU asserts.
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

MESSAGE = (
    "raised RuntimeError: CUDA error: device-side assert triggered ({}:14, launch); it ends the device of its process"
)


#: The properties that look at the arrays of a call, which a fresh process has not.
OF_ARRAYS = {"memory-around", "same-storage", "own-results", "new-memory", "repeat-calls"}


@pytest.fixture(autouse=True)
def forget_losses(monkeypatch):
    monkeypatch.setattr(pretend_device, "_losses", [])


def judge(path, spec, *components, device="cpu"):
    request = ComparisonRequest(("float32",), components, device)
    found = check_implementation(str(path), request, spec)
    assert not found.problem
    return {(v.check, v.component): v for v in found.verdicts}


def check_on_pretend_device(path, *words):
    """Return the exit status of `goldformer check`, and the verdicts of its JSON."""
    done = CliRunner().invoke(main, ["check", path, "--device", "pretend", "--json", "-", *words])
    return done.exit_code, json.loads(done.stdout)["verdicts"]


def describe(verdicts):
    return {key: (v.status, v.reason, v.message, v.ratio) for key, v in verdicts.items()}


@pytest.fixture(scope="module")
def lasting(tmp_path_factory, spec):
    path = tmp_path_factory.mktemp("lasting") / "mine.py"
    path.write_text(LASTING)
    return judge(path, spec, "softmax", "layer_norm")


# ── what counts as a lost device ──


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: an illegal memory access was encountered",
        "CUDA error: misaligned address",
        "CUDA error: unspecified launch failure",
        "CUDA driver error: cudaErrorIllegalAddress",
        "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS",
        "HIP error: hipErrorLaunchFailure",
    ],
)
def test_fatal_words_are_a_lost_device_wherever_they_come_from(message):
    error = BadResult("raised", f"raised RuntimeError: {message} (mine.py:3, softmax)")
    error.__cause__ = RuntimeError(message)
    told = explain_device_loss(error, LIBRARIES["numpy"], "cpu")
    assert told == f"raised RuntimeError: {message} (mine.py:3, softmax)"
    # An implementation in a process of its own cannot take the device of this one.
    assert not explain_device_loss(error, LIBRARIES["process"], "cpu")


def test_the_advice_of_torch_is_left_out():
    told = explain_device_loss(RuntimeError(ASSERTION), LIBRARIES["numpy"], "cpu")
    assert told == "raised RuntimeError: CUDA error: device-side assert triggered"


def test_other_errors_leave_the_device_as_it_was():
    assert pretend_device.register() is None
    for message in ("CUDA error: invalid configuration argument", "CUDA out of memory", "the shapes differ"):
        assert not explain_device_loss(RuntimeError(message), LIBRARIES["torch"], "cpu")
        assert not explain_device_loss(RuntimeError(message), LIBRARIES["torch"], "pretend")


def test_any_error_is_looked_at_on_the_device(monkeypatch):
    assert pretend_device.register() is None
    monkeypatch.setattr(pretend_device, "_losses", ["everything fails there"])
    assert explain_device_loss(RuntimeError("odd"), LIBRARIES["torch"], "pretend") == "raised RuntimeError: odd"
    assert not explain_device_loss(RuntimeError("odd"), LIBRARIES["torch"], "cpu")
    # A device that is full is there.
    monkeypatch.setattr(pretend_device, "_losses", ["pretend out of memory. Tried to allocate 2 MiB"])
    assert not explain_device_loss(RuntimeError("odd"), LIBRARIES["torch"], "pretend")


# ── everything else is judged ──


def test_only_the_call_that_ends_the_device_fails(adapter_file, spec, lasting):
    path = adapter_file(DYING)
    found = judge(path, spec, "softmax", "layer_norm")
    assert found.keys() == lasting.keys()
    failed = {key for key, verdict in found.items() if verdict.bad}
    assert ("sm-one-element", "softmax") in failed
    # A property fails if one of its drawn calls has rows of one element.
    assert {check for check, _ in failed} <= {"sm-one-element", "sm-simplex", "sm-shift"}
    assert {(found[key].reason, found[key].message) for key in failed} == {("crashed", MESSAGE.format(path))}
    others = {key for key in found.keys() - failed if key[0] not in OF_ARRAYS}
    assert {k: v for k, v in describe(found).items() if k in others} == {
        k: v for k, v in describe(lasting).items() if k in others
    }


@here
def test_an_error_that_comes_late_is_told_with_the_call_that_made_it(adapter_file, monkeypatch):
    started = []

    def start(setup):
        started.append(setup)
        return FreshProcess(setup)

    monkeypatch.setattr(host, "FreshProcess", start)
    path = adapter_file(LATE)
    status, verdicts = check_on_pretend_device(path)
    assert status == 1
    first, *others = [verdict for verdict in verdicts if verdict["status"] == "errored"]
    assert first["message"] == (
        "an earlier call of softmax ends the device of its process, which this call found gone: that one raised "
        f"RuntimeError: CUDA error: device-side assert triggered ({path}:15, softmax)"
    )
    # In the fresh process each such call is told by itself.
    assert others
    assert {verdict["message"] for verdict in others} == {
        f"raised RuntimeError: CUDA error: device-side assert triggered ({path}:15, softmax); "
        "it ends the device of its process"
    }
    # Which call ended the device is known: no process is started to see what a case does when it is called first.
    assert len(started) <= len(others) + 1
    assert not any(verdict["state"] for verdict in verdicts)


def test_a_process_that_ends_is_replaced(adapter_file, spec, lasting):
    found = judge(adapter_file(CRASHING), spec, "softmax", "layer_norm")
    ended = {v.message for v in found.values() if v.reason == "crashed"} - {MESSAGE.format("")}
    assert "ended its process with exit status 3" in ended
    right, wanted = (
        {
            key
            for key, v in of.items()
            if key[1] == "layer_norm" and v.status is Status.PASSED and key[0] not in OF_ARRAYS
        }
        for of in (found, lasting)
    )
    assert right == wanted


@here
def test_an_assertion_on_the_pretend_device_is_that_of_a_gpu(adapter_file):
    lasting = BEYOND.replace("if ids.shape[-1] == 1", "if False")
    found = []
    for source, name, status in ((lasting, "lasting.py", 0), (BEYOND, "beyond.py", 1)):
        path = adapter_file(source, name)
        ended, verdicts = check_on_pretend_device(path, "--component", "token_embedding,softmax")
        assert ended == status
        found.append({(v["check"], v["component"]): v for v in verdicts})
    right, mine = found
    failed = {key for key, verdict in mine.items() if verdict["status"] == "errored"}
    assert failed
    for key in failed:
        assert mine[key]["reason"] == "crashed"
        assert mine[key]["message"] == (
            "raised RuntimeError: pretend error: device-side assert triggered: index out of range in self "
            f"(aten.embedding.default) ({path}:10, token_embedding); it ends the device of its process"
        )
    assert mine.keys() == right.keys()
    others = {key for key in mine.keys() - failed if key[0] not in OF_ARRAYS}
    assert all(mine[key]["status"] == right[key]["status"] for key in others)
    assert {key[1] for key in failed} == {"token_embedding"}


def test_a_component_whose_every_call_ends_the_device_is_given_up(adapter_file, spec):
    found = judge(adapter_file(DYING.replace("scores.shape[-1] == 1", "True")), spec, "softmax", "layer_norm")
    softmax = [v for (_, component), v in found.items() if component == "softmax" and v.reason == "crashed"]
    assert sum(v.was_asked for v in softmax) == 10
    assert not any(v.bad for (_, component), v in found.items() if component == "layer_norm")


# ── every way to check ──


def test_compare_gives_a_whole_report(adapter_file, tmp_path):
    path, saved = adapter_file(DYING), tmp_path / "found.json"
    command = ["compare", path, "textbook", "--component", "softmax", "--dtype", "float32", "--json", str(saved)]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 1, done.output
    mine, textbook = json.loads(saved.read_text())["implementations"]
    assert (mine["outcome"], textbook["outcome"]) == ("fails", "conforms")
    assert not mine["problem"]


def test_pytest_runs_every_test(adapter_file, tmp_path):
    command = [sys.executable, "-m", "pytest", "--pyargs", "goldformer.conformance", "-q", "-p", "no:cacheprovider"]
    command += ["--adapter", adapter_file(DYING), "--component", "softmax"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1, done.stdout
    assert "fault in goldformer" not in done.stdout
    assert "it ends the device of its" in " ".join(done.stdout.split())
    [line] = [line for line in done.stdout.splitlines() if line.startswith("softmax ")]
    passed, failed = map(int, line.split()[1:3])
    # Besides them, the gradients of NumPy are not implemented, and some properties need the arrays of this process.
    assert passed + failed == 23
    assert 1 <= failed <= 3


def test_a_baseline_has_every_other_call(adapter_file, spec):
    request = BaselineRequest(dtypes=("float32",), devices=("cpu",), components=("softmax",), threads=1, tf32=False)
    entries = {}
    for source in (DYING, LASTING):
        found = find_adapter(adapter_file(source), spec)
        entries[source] = {key.case: entry for key, entry in record(found, spec, request).entries.items()}
    mine, other = entries[DYING], entries[LASTING]
    assert mine.keys() == other.keys()
    ended = {case for case, entry in mine.items() if entry.ended is not None and entry != other[case]}
    assert ended == {"sm-one-element"}
    assert mine["sm-one-element"].ended.reason == "crashed"
    assert sum(bool(entry.outputs) for entry in mine.values()) > 10
    for case in mine.keys() - ended:
        for name, output in mine[case].outputs.items():
            assert output.stored.equals(other[case].outputs[name].stored)


def test_an_object_in_memory_says_why_the_rest_is_not_judged(adapter_file):
    names = {}
    exec(DYING, names)
    report = goldformer.check({name: names[name] for name in ("softmax", "layer_norm")}, arrays="numpy")
    verdicts = report.comparison.records[0].verdicts
    first, *others = [verdict for verdict in verdicts if verdict.reason in ("crashed", "not-checkable")]
    assert first.reason == "crashed"
    assert "an object in memory cannot be loaded in another process" in first.message
    assert {verdict.reason for verdict in others} == {"not-checkable"}
    gone = "this process has no device any more since a call that raised RuntimeError: CUDA error: device-side assert"
    assert sum(verdict.message.startswith(gone) for verdict in others) > 20
    assert not any(verdict.is_fault for verdict in verdicts)


def test_a_file_is_checked_from_python_as_on_the_command_line(adapter_file):
    report = goldformer.check(adapter_file(DYING), "softmax")
    verdicts = report.comparison.records[0].verdicts
    assert not any(verdict.is_fault for verdict in verdicts)
    assert {v.check for v in verdicts if v.reason == "not-checkable"} == {"device-hygiene", *OF_ARRAYS}
    assert {verdict.reason for verdict in verdicts if verdict.bad} == {"crashed"}
    assert sum(verdict.status is Status.PASSED for verdict in verdicts) >= 20


# ── the process of the calls ──


def test_calls_may_be_made_apart_from_the_start(adapter_file, spec, bench):
    path = adapter_file(
        LASTING.replace("ended = []", "ended = []\ncalls = []").replace(
            "    powers", "    calls.append(1)\n    print('called')\n    powers", 1
        )
    )
    at = bench(path)
    assert call_apart(at.adapter)
    verdict = goldformer.conformance.judging.cases.check_case(spec.cases["sm-one-element"], at)
    assert verdict.status is Status.PASSED
    assert sys.modules["goldformer_adapter_" + path.rpartition("/")[2].removesuffix(".py")].calls == []
    process = find_host(at.adapter).process
    assert process is not None
    process.close()


def test_an_adapter_in_memory_cannot_be_called_apart(spec):
    adapter = find_adapter("textbook", spec)
    assert adapter.loader.load is not None
    assert not call_apart(
        goldformer.adapters.Adapter.from_object(sys.modules["goldformer.adapters.builtin.textbook"], "t", spec)
    )


def test_a_fresh_process_wraps_the_functions_too(spec):
    wrapped = wrap_adapter(find_adapter("reference", spec), "vmap", spec)
    assert wrapped.loader.load is not None
    again = wrapped.loader.load(spec)
    plain = find_adapter("reference", spec).functions["softmax"]
    assert again.functions["softmax"] is not plain
    assert inspect.unwrap(again.functions["softmax"]) is inspect.unwrap(plain)


def test_a_problem_is_the_same_in_another_process():
    import pickle

    bad = BadResult("raised", "raised ValueError: no", ValueError("no"), ("x",))
    bad.hint = "; do this"
    again = pickle.loads(pickle.dumps(bad))
    assert (str(again), again.reason, again.unreached, again.hint) == (str(bad), bad.reason, bad.unreached, bad.hint)
    assert again.detail == bad.detail
    assert np.array_equal([1], [1])
