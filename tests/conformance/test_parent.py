"""Code that ends its process, or never ends: what the parent of a command says, and what is judged all the same."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GOLDFORMER = Path(sys.executable).with_name("goldformer")

SOFTMAX = """
import ctypes, os, sys
import numpy as np
ARRAYS = "numpy"
calls = []
def softmax(scores):
    calls.append(scores)
    {}
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
#: Native code that ends its process, how that is said, in the calls of one case.
ENDS = {
    "os.abort()": "signal SIGABRT",
    "ctypes.CDLL(None).exit(0)": "exit status 0",
    "os._exit(0)": "exit status 0",
}
TWO = ("--case", "sm-one-row-by-hand,sm-several-rows")


@pytest.fixture
def check(adapter_file):
    """Run `goldformer check` on a softmax with a statement, in a process of its own."""

    def run(statement, *options):
        words = [GOLDFORMER, "check", adapter_file(SOFTMAX.format(statement)), *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.mark.parametrize("end", ENDS)
def test_a_case_that_ends_the_process_is_named_and_the_rest_is_judged(end, check):
    done = check(f"scores.ndim == 3 and {end}", *TWO, "--json", "-")
    assert done.returncode == 1
    how = f"the code ended its process with {ENDS[end]} in a call in case sm-several-rows of softmax in float32"
    assert done.stderr == f"goldformer: {how}: it is run once more, with its calls in a process of their own\n"
    found = {v["check"]: (v["status"], v["reason"], v["message"]) for v in json.loads(done.stdout)["verdicts"]}
    assert found == {
        "sm-one-row-by-hand": ("passed", "", ""),
        "sm-several-rows": ("errored", "crashed", f"ended its process with {ENDS[end]}"),
    }


def test_code_that_ends_the_process_when_it_is_loaded_is_2(adapter_file):
    path = adapter_file("import os\nos.abort()\n")
    done = subprocess.run([GOLDFORMER, "check", path], capture_output=True, text=True, timeout=60, check=False)
    says = f"goldformer: the code ended its process with signal SIGABRT in the loading of {path}: nothing was judged\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", says)


def test_an_end_that_does_not_come_again_is_not_forgotten(check, tmp_path):
    flag = tmp_path / "flag"
    done = check(f"os.path.exists({str(flag)!r}) or (open({str(flag)!r}, 'w'), os.abort())", *TWO)
    assert done.returncode == 2
    assert done.stderr.endswith("sm-one-row-by-hand of softmax in float32; no check did so a second time\n")


def test_an_end_that_an_earlier_call_causes_is_not_laid_to_the_call(check):
    done = check("len(calls) == 2 and os.abort()", *TWO)
    assert done.returncode == 1
    says = (
        "ended its process with signal SIGABRT, but not when it is the first call of a fresh one: an earlier call may"
    )
    assert says in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("number", "loop", "says"),
    [
        (signal.SIGINT, "exec('while True: pass')", " s\n"),
        (signal.SIGTERM, "sum(range(10**15))", " s, and did not end when it was asked to\n"),
    ],
    ids=["python", "native"],
)
def test_a_stop_says_which_call_was_running_and_for_how_long(number, loop, says, adapter_file, tmp_path):
    path = adapter_file(SOFTMAX.format(f"open({str(tmp_path / 'called')!r}, 'w').close(); {loop}"))
    with start(path, tmp_path) as process:
        time.sleep(1.2)
        process.send_signal(number)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    what, _, seconds = errors.removesuffix(says).rpartition(" had run for ")
    assert what.startswith("goldformer: stopped")
    assert what.endswith(": a call in case sm-one-row-by-hand of softmax in float32")
    assert float(seconds) >= 1


def start(path, folder):
    """Start a check, and wait until the code is called."""
    process = subprocess.Popen(
        [GOLDFORMER, "check", path, *TWO], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (folder / "called").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def test_nothing_outlives_a_parent_that_is_killed(adapter_file, tmp_path):
    called = tmp_path / "called"
    note = f"open({str(called)!r}, 'w').write(str(os.getpid()))"
    with start(adapter_file(SOFTMAX.format(f"{note}; sum(range(10**15))")), tmp_path) as process:
        process.kill()
    child = int(called.read_text(encoding="utf-8"))
    assert child != process.pid
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def is_running(pid):
    """Return True for a process that has not ended: one that nobody waited for has no command line any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except FileNotFoundError:
        return False


def test_python_names_the_case_in_the_trace_of_its_end(adapter_file):
    """The process is the user's own: nothing outlives it but what was printed."""
    path = adapter_file(SOFTMAX.format("scores.ndim == 3 and os.abort()"))
    program = f"import goldformer; goldformer.check({path!r}, cases=['sm-several-rows'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGABRT
    assert f'File "{path}", line 8 in softmax' in done.stderr
    assert " in case sm-several-rows of softmax in float32\n" in done.stderr
