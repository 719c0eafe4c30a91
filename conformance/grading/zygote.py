"""The process that all processes of submissions are forked from: it has imported what they need, and runs nothing.

Its parent asks for one thing at a time, in a line of JSON over a Unix socket, and is answered by a line:
fork (with two descriptors), look at one, end one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any, Final

from goldformer.conformance.grading import linux, mounts, namespaces
from goldformer.conformance.grading.model import Limits
from goldformer.conformance.grading.sandbox import STEPS, Cell, keep_only, shut_in, tried

#: What submissions may come to need: parts of the standard library that Python imports by itself, or late.
_LATE: Final = (
    "ast", "bdb", "codecs", "collections.abc", "copy", "dataclasses", "encodings.ascii", "encodings.idna",
    "encodings.latin_1", "encodings.utf_8", "enum", "fractions", "functools", "heapq", "inspect", "itertools",
    "linecache", "locale", "math", "numbers", "operator", "pickle", "pprint", "random", "re", "shutil", "statistics",
    "string", "subprocess", "tempfile", "textwrap", "threading", "tokenize", "traceback", "types", "typing",
    "unittest", "warnings", "goldformer.adapters.layouts",
)  # fmt: skip
_OF_LIBRARIES: Final = {
    "numpy": ("numpy", "numpy.linalg", "numpy.random", "numpy.fft"),
    "torch": ("numpy", "numpy.random", "torch", "torch.nn", "torch.nn.functional", "torch.autograd", "torch.nn.init"),
    "jax": ("numpy", "jax", "jax.numpy", "jax.nn"),
}
_BUFFER: Final = 1 << 16
#: Seconds over which what an ended process left behind is looked for.
_SWEEP: Final = 2.0


def main() -> None:
    """Import everything, say what this machine allows, and serve until the parent's end of the socket is closed."""
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=config["control"])
    _live_with(config["parent"])
    features, refused = namespaces.enter(config["without"])
    if namespaces.PIDS in features:
        _go_on_in_a_fork(control)
    zygote = Zygote(control, config, features, refused)
    zygote.answer({"refused": zygote.refused, "features": zygote.features})
    zygote.serve()
    zygote.end_all()
    os._exit(0)


def _live_with(parent: int) -> None:
    """End when the parent ends."""

    def parted(*_: Any) -> None:
        if os.getppid() != parent:  # and not just the thread that started this
            os._exit(1)

    if sys.platform == "linux":
        signal.signal(signal.SIGTERM, parted)
        linux.die_with_parent(signal.SIGTERM)
        linux.refuse_tracers()
        linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to act upon
    parted()


def _go_on_in_a_fork(control: socket.socket) -> None:
    """Be the first process of the namespace that was made; the one that made it ends with it."""
    pid = os.fork()
    if pid:
        control.close()
        os.waitpid(pid, 0)
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    linux.die_with_parent(signal.SIGKILL)


class Zygote:
    """Forks, looks, ends."""

    def __init__(
        self, control: socket.socket, config: dict[str, Any], features: list[str], refused: dict[str, str]
    ) -> None:
        self._control = control
        self._unread = b""
        self._boxes: set[int] = set()
        self._pids = namespaces.Pids() if namespaces.PIDS in features else None
        self._users = namespaces.USER in features
        self._spec = _prepared(config["arrays"])
        self._root = f"{config['folder']}/root"
        wanted = [name for name in STEPS if name not in config["without"]]
        try:
            if "mount-namespace" in wanted:
                mounts.make_root(self._root)
        except OSError as error:
            wanted.remove("mount-namespace")
            refused["mount-namespace"] = str(error.strerror)
        refused |= self._tried(config, wanted)
        self.refused = refused
        self._steps = [name for name in wanted if name not in refused]
        self.features = [*features, *self._steps]

    def serve(self) -> None:
        """Answer one request after another."""
        while True:
            while b"\n" not in self._unread:
                try:
                    data, descriptors, _, _ = socket.recv_fds(self._control, _BUFFER, 2)
                except OSError:
                    return
                if not data:
                    return
                self._unread += data
                received = descriptors
            line, _, self._unread = self._unread.partition(b"\n")
            request = json.loads(line)
            match request:
                case {"fork": fork}:
                    self.answer(self._fork(fork, received))
                case {"look": pid}:
                    self.answer({"ended": pid not in self._boxes or _has_ended(pid)})
                case {"end": pid}:
                    self.answer(self._end(pid))

    def end_all(self) -> None:
        """Leave nothing behind."""
        for pid in list(self._boxes):
            self._end(pid)

    def answer(self, reply: dict[str, Any]) -> None:
        """Send a line."""
        self._control.sendall(json.dumps(reply).encode() + b"\n")

    def _fork(self, fork: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        limits = Limits(**fork["limits"])
        cell = Cell(**{**fork, "limits": limits, "root": self._root, "others": self._others(limits)})
        try:
            if self._pids:
                self._pids.another()
            pid = os.fork()
            if pid == 0:
                self._become(cell, descriptors)
        except OSError as error:
            return {"failed": error.strerror}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._boxes.add(pid)
        return {"pid": pid}

    def _others(self, limits: Limits) -> int:
        """How many processes count together with those of the next fork."""
        if os.geteuid() == 0:
            return 0
        if self._users:
            return 2 + len(self._boxes) * limits.processes  # this one and the one that started it
        return _processes_of(os.geteuid())

    def _tried(self, config: dict[str, Any], steps: list[str]) -> dict[str, str]:
        """Which steps this machine refuses, and why."""
        reader, writer = os.pipe()
        cell = Cell(config["folder"], config["folder"], self._root, config["user"], Limits())
        if self._pids:
            self._pids.another()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writer, json.dumps(tried(cell, steps)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            told = stream.read()
        os.waitpid(pid, 0)
        refused: dict[str, str] = json.loads(told) if told else dict.fromkeys(steps, "the process that tried it ended")
        return refused

    def _become(self, cell: Cell, descriptors: list[int]) -> None:
        """Be the process of a submission; never returns."""
        status = 1
        try:
            os.setsid()
            self._control.detach()
            descriptor = keep_only(*descriptors)
            try:
                cell = shut_in(cell, self._steps)
            except OSError as error:
                os.write(descriptor, json.dumps({"failed": str(error)}).encode() + b"\n")
                os._exit(1)
            from goldformer.conformance.grading.box import serve_box

            spec = self._spec
            del self
            serve_box(descriptor, cell.box, spec)
            status = 0
        except BaseException:
            with contextlib.suppress(BaseException):
                import traceback

                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _end(self, pid: int) -> dict[str, Any]:
        """Kill it and all that it started; how it ended."""
        if pid not in self._boxes:
            return {"failed": f"no process {pid} is running"}
        self._boxes.discard(pid)
        by_itself = _has_ended(pid)
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        if not self._pids:
            self._sweep()
        return {
            "status": os.waitstatus_to_exitcode(status),
            "by_itself": by_itself,
            "cpu": usage.ru_utime + usage.ru_stime,
        }

    def _sweep(self) -> None:
        """Kill what left its session and was handed to this process when its own parent ended."""
        deadline = time.monotonic() + _SWEEP
        while (orphans := _children() - self._boxes) and time.monotonic() < deadline:
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(orphan, signal.SIGKILL)
            for orphan in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan, 0)


def _children() -> set[int]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children", encoding="ascii") as file:
            return {int(word) for word in file.read().split()}
    except OSError:
        return set()


def _processes_of(user: int) -> int:
    """How many processes and threads a user has."""
    count = 0
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and entry.stat().st_uid == user:
                count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count


def _has_ended(pid: int) -> bool:
    # Not reaped: its number still stands for its group, which is ended later.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _prepared(arrays: str) -> Any:
    """Import what submissions need; the contracts and conventions of the spec, and nothing else of it."""
    for name in (*_LATE, *_OF_LIBRARIES[arrays], "goldformer.conformance.grading.box"):
        importlib.import_module(name)
    if arrays == "torch":
        torch = sys.modules["torch"]
        torch.set_num_threads(1)
        assert torch.get_num_threads() == 1
    assert threading.active_count() == 1, "a library started a thread, which a fork does not have"
    from goldformer.spec import load_spec

    spec = dataclasses.replace(load_spec(cases=False), mistakes={}, properties={}, errata={}, documents={}, clauses={})
    gc.collect()
    gc.freeze()
    return spec
