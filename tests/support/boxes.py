"""Submissions for tests: folders that a jail runs, and what their code finds."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import numpy as np

from goldformer.adapters.process.arrays import WireArray
from goldformer.adapters.process.faults import CallFault
from goldformer.conformance.grading import linux

#: All that lies between a submission and everything else, beside limits and another user.
WALLS = (
    "cgroup", "ipc-namespace", "landlock", "mount-namespace", "network-namespace", "pid-namespace", "user-namespace",
    "uts-namespace",
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


def make_box(folder, submission, adapter=ADAPTER, **others):
    """A box: submission.py with a source, files beside it, and the adapter."""
    (folder / "submission").mkdir(parents=True)
    (folder / "adapter.py").write_text(adapter, encoding="utf-8")
    for name, text in {"submission": submission, **others}.items():
        (folder / "submission" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


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
