"""Submissions for tests: folders that a jail runs, and what their code finds."""

from __future__ import annotations

import ast
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from goldformer.adapters.process.arrays import WireArray
from goldformer.adapters.process.faults import CallFault
from goldformer.conformance.grading import linux
from goldformer.conformance.grading.model import Limits

#: All that lies between a submission and everything else, beside limits and another user.
WALLS = (
    "cgroup", "ipc-namespace", "landlock", "mount-namespace", "network-namespace", "pid-namespace", "system-calls",
    "user-namespace", "uts-namespace",
)  # fmt: skip
ADAPTER = """\
ARRAYS = "numpy"
import submission
def softmax(scores): return submission.softmax(scores)
"""
#: Calls what a submission defines, and says what that gives.
ASKING = """\
ARRAYS = "numpy"
import submission
def softmax(scores): raise LookupError(repr(submission.found()))
"""
SCORES = {"scores": WireArray("float64", np.array([0.0, 1.0, 3.0]))}
NOBODY = 65534
LIMITS = Limits(call=2.0, start=5.0, total=60.0, cpu=20, memory=512, processes=8, file=2)
SOFTMAX = """\
import numpy as np
def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""
DOING = "import ctypes, os, signal, sys, time\nimport numpy as np\ndef softmax(scores):\n    {}\n"


def make_box(folder, submission, adapter=ADAPTER, **others):
    """A box: submission.py with a source, files beside it, and the adapter."""
    (folder / "submission").mkdir(parents=True)
    (folder / "adapter.py").write_text(adapter, encoding="utf-8")
    for name, text in {"submission": submission, **others}.items():
        (folder / "submission" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


@contextmanager
def clients(jail, folder):
    """Make clients of submissions by their sources; all of them end with it."""
    made = []

    def make(source, adapter=ADAPTER, *, of=jail, **others):
        made.append(of.client(make_box(folder / f"box{len(made)}", source, adapter, **others)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def softmax_of(client):
    """The softmax that it gives."""
    return client.call("softmax", SCORES)["output"].values


def fault_of(client, given=SCORES):
    """Why a call of softmax gave no result."""
    try:
        result = client.call("softmax", given)
    except CallFault as fault:
        return fault
    raise AssertionError(f"it gave {result}")


def found_by(jail, folder, source):
    """What `found` gives, which the source of a submission defines, when it runs in a box."""
    client = jail.client(make_box(folder, source, ASKING))
    try:
        fault = fault_of(client)
    finally:
        client.close()
    text = str(fault)
    assert text.startswith("LookupError: "), (text, fault.detail)
    return ast.literal_eval(text.removeprefix("LookupError: "))


def as_nobody(words):
    """Become the ordinary user nobody and run a program; root's own folder is covered but for Python itself."""
    interpreter = os.path.realpath(sys.base_prefix)
    if interpreter.startswith("/root/"):
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        held = os.open(interpreter, os.O_PATH)
        linux.mount("none", "/root", "tmpfs", 0, "size=1m,mode=755")
        Path(interpreter).mkdir(parents=True)
        linux.mount(f"/proc/self/fd/{held}", interpreter, None, linux.MS_BIND | linux.MS_REC)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(words[0], words)


if __name__ == "__main__":
    as_nobody(sys.argv[1:])
