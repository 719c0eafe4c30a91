"""Submissions for tests: folders that a sandbox runs, and what their code finds."""

from __future__ import annotations

import ast
import os
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from goldformer.adapters.dtypes import WireArray
from goldformer.adapters.process.faults import CallFault
from goldformer.conformance.grading.sandbox import Limits, Sandbox, SandboxError
from goldformer.conformance.grading.sandbox import _linux as linux

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
LIMITS = Limits(call=2.0, start=5.0, wait=4.0, cpu=20, memory=512, processes=8, file=2)
SOFTMAX = """\
import numpy as np
def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""
DOING = "import ctypes, os, signal, sys, time\nimport numpy as np\ndef softmax(scores):\n    {}\n"


def make_folder(folder, submission, adapter=ADAPTER, **others):
    """Write submission.py with a source, files next to it, and the adapter."""
    (folder / "submission").mkdir(parents=True)
    (folder / "adapter.py").write_text(adapter, encoding="utf-8")
    for name, text in {"submission": submission, **others}.items():
        (folder / "submission" / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def make_sandbox(*given, **named):
    """Start a sandbox; skip the test, with the reason, if this machine and user cannot have it."""
    try:
        return Sandbox(*given, **named)
    except SandboxError as error:
        pytest.skip(" ".join(str(error).split("\n")[:2]))  # the others say what would help


@contextmanager
def clients(sandbox, folder):
    """Make clients of submissions by their sources; all of them end with it."""
    made = []

    def make(source, adapter=ADAPTER, *, of=sandbox, **others):
        made.append(of.client(make_folder(folder / f"code{len(made)}", source, adapter, **others)))
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


def found_by(sandbox, folder, source):
    """Run `found`, which the source of a submission defines, in a sandbox; return its result."""
    client = sandbox.client(make_folder(folder, source, ASKING))
    try:
        fault = fault_of(client)
    finally:
        client.close()
    text = str(fault)
    assert text.startswith("LookupError: "), (text, fault.detail)
    return ast.literal_eval(text.removeprefix("LookupError: "))


def as_nobody(words):
    """Become the ordinary user nobody and run a program; that user can enter every folder that the program needs."""
    # What covers a folder gets a mode of its own.
    os.umask(0o022)
    while locked := locked_folders(needed_folders()):
        uncover(locked)
    # The folder that this process is in may be covered by now.
    os.chdir(os.getcwd())
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.execv(words[0], words)


def needed_folders():
    """Return the folders of Python, of this checkout, of every module that can be imported, and of the user."""
    named = [sys.base_prefix, sys.prefix, *sys.path, os.environ.get("HOME"), os.environ.get("TMPDIR")]
    found = {Path(os.path.realpath(name)) for name in named if name} | {Path(__file__).resolve().parents[2]}
    return sorted(folder for folder in found if folder.is_dir())


def locked_folders(needed):
    """Return the outermost folders that nobody cannot enter, each with the needed folders that it holds or is."""
    locked = {}
    for folder in needed:
        wall = next((outer for outer in (*reversed(folder.parents), folder) if not nobody_enters(outer)), None)
        if wall is not None:
            locked.setdefault(wall, []).append(folder)
    return locked


def nobody_enters(folder):
    """Return True if the mode of a folder lets nobody enter it."""
    found = folder.stat()
    bit = 0o100 if found.st_uid == NOBODY else 0o010 if found.st_gid == NOBODY else 0o001
    return bool(found.st_mode & bit)


def uncover(locked):
    """Cover each locked folder, for this process alone, with one that can be entered and shows what is needed."""
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    for wall, needed in locked.items():
        # A folder that is locked itself shows each thing that it holds.
        every = {place for folder in needed for place in (wall.iterdir() if folder == wall else [folder])}
        shown = [place for place in every if every.isdisjoint(place.parents)]
        links = {place: os.readlink(place) for place in shown if place.is_symlink()}
        held = {place: os.open(place, os.O_PATH) for place in shown if place not in links}
        folders = {place for place in held if place.is_dir()}
        linux.mount("none", str(wall), "tmpfs", 0, "size=1m,mode=755")
        for place, target in links.items():
            place.symlink_to(target)
        for place, descriptor in held.items():
            (place if place in folders else place.parent).mkdir(parents=True, exist_ok=True)
            if place not in folders:
                place.touch()
            linux.mount(f"/proc/self/fd/{descriptor}", str(place), None, linux.MS_BIND | linux.MS_REC)
            os.close(descriptor)


if __name__ == "__main__":
    as_nobody(sys.argv[1:])
