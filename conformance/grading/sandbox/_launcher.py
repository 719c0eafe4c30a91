"""The process that all processes of submissions are forked from: it has imported what they need, and runs nothing.

Its parent asks for one thing at a time, in a line of JSON over a Unix socket, and is answered by a line:
fork (with three descriptors), look at one, end one.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from goldformer.conformance.grading.model import Limits
from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox import _namespaces as namespaces
from goldformer.conformance.grading.sandbox._cgroup import Group, Parents, remove_all
from goldformer.conformance.grading.sandbox._isolation import STEPS, Cell, keep_only, shut_in, tried
from goldformer.conformance.grading.sandbox._mounts import make_root, remove
from goldformer.conformance.grading.sandbox._processes import Reaper, end_orphans, ending, processes_of

if TYPE_CHECKING:
    from goldformer.spec import Spec

_BUFFER: Final = 1 << 16
#: Those of a process: to it, from it, and what it prints.
_PIPES: Final = 3


def main() -> None:
    """Import everything, say what this machine allows, and serve until the parent's end of the socket is closed."""
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=config["control"])
    _live_with(config["parent"], lambda: os._exit(1))
    features, refused = namespaces.enter(config["without"])
    if namespaces.PIDS in features:
        _go_on_in_a_fork(control, config["parent"], config["folder"])
    # Not before: a library may start threads, and a process that has any cannot make a user namespace.
    from goldformer.conformance.grading.sandbox._preload import prepared

    zygote = Zygote(control, config, features, refused, prepared(config["arrays"]))
    zygote.answer({"refused": zygote.refused, "features": zygote.features, "size": _size()})
    zygote.serve()
    zygote.end_all()
    os._exit(0)


def _live_with(parent: int, end: Callable[[], None]) -> None:
    """End when the parent ends."""

    def parted(*_: Any) -> None:
        if os.getppid() != parent:  # and not just the thread that started this
            end()

    if platform.system() == "Linux":
        signal.signal(signal.SIGTERM, parted)
        linux.die_with_parent(signal.SIGTERM)
        linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to act upon
    parted()


def _go_on_in_a_fork(control: socket.socket, parent: int, folder: str) -> None:
    """Be the first process of the namespace that was made; the one that made it stays to see the end."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        linux.die_with_parent(signal.SIGKILL)
        return
    control.close()

    def end() -> None:
        # The parent's end may be told when the fork has ended of itself, and what it leaves is being removed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    _live_with(parent, end)
    os.waitpid(pid, 0)
    if os.getppid() != parent or ending(parent):  # which can clear up nothing any longer
        remove_all(os.path.basename(folder))
        remove(Path(folder))
    os._exit(0)


def _size() -> int:
    """The address space of this process, in MiB; 0 where that cannot be seen."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return 0


class Zygote:
    """Forks, looks, ends."""

    def __init__(
        self, control: socket.socket, config: dict[str, Any], features: list[str], refused: dict[str, str], spec: Spec
    ) -> None:
        self._control = control
        self._unread = b""
        self._received: list[int] = []
        self._spec = spec
        self._reaper = Reaper()
        self._groups: dict[int, Group] = {}
        self._forks = 0
        self._name = os.path.basename(config["folder"])
        self._pids = namespaces.Pids() if namespaces.PIDS in features else None
        self._users = namespaces.USER in features
        self._root = f"{config['folder']}/root"
        wanted = [name for name in STEPS if name not in config["without"]]
        for name, made in (("mount-namespace", self._make_root), ("cgroup", self._find_groups)):
            if name in wanted:
                try:
                    made()
                except OSError as error:
                    wanted.remove(name)
                    refused[name] = str(error.strerror or error)
        self._steps = wanted
        refused |= self._tried(config)
        self.refused = refused
        self._steps = [name for name in wanted if name not in refused]
        self.features = [*features, *self._steps]
        linux.refuse_tracers()

    def serve(self) -> None:
        """Answer one request after another."""
        while line := self._line():
            request = json.loads(line)
            match request:
                case {"fork": fork}:
                    descriptors, self._received = self._received, []
                    self.answer(self._fork(fork, descriptors))
                case {"look": pid}:
                    self.answer({"ended": self._reaper.ended(pid)})
                case {"end": pid}:
                    self.answer(self._end(pid))

    def end_all(self) -> None:
        """Leave nothing behind."""
        for pid in list(self._reaper.running):
            self._end(pid)

    def answer(self, reply: dict[str, Any]) -> None:
        """Send a line."""
        self._control.sendall(json.dumps(reply).encode() + b"\n")

    def _line(self) -> bytes:
        """The next request, empty at the end; descriptors that come with it are kept."""
        while b"\n" not in self._unread:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._control, _BUFFER, _PIPES)
            except OSError:
                return b""
            if not data:
                return b""
            self._unread += data
            self._received += descriptors
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _make_root(self) -> None:
        make_root(self._root)

    def _find_groups(self) -> None:
        self._parents = Parents.found()

    def _group(self, limits: Limits) -> Group | None:
        self._forks += 1
        return self._parents.make(f"{self._name}-{self._forks}", limits) if "cgroup" in self._steps else None

    def _fork(self, fork: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        limits = Limits(**fork.pop("limits"))
        group: Group | None = None
        try:
            group = self._group(limits)
            cell = Cell(
                **fork, limits=limits, root=self._root, others=self._others(limits),
                groups=tuple(map(str, group.folders)) if group else (),
            )  # fmt: skip
            pid = self._forked()
            if pid == 0:
                self._become(cell, descriptors)
        except OSError as error:
            if group:
                group.end()
            return {"failed": str(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._reaper.running.add(pid)
        if group:
            self._groups[pid] = group
        return {"pid": pid}

    def _forked(self) -> int:
        if self._pids:
            self._pids.another()
        return os.fork()

    def _others(self, limits: Limits) -> int:
        """How many processes count together with those of the next fork."""
        if os.geteuid() == 0:
            return 0
        if self._users:
            return 2 + len(self._reaper.running) * limits.processes  # this one and the one that started it
        return processes_of(os.geteuid())

    def _tried(self, config: dict[str, Any]) -> dict[str, str]:
        """Which steps this machine refuses, and why."""
        reader, writer = os.pipe()
        limits = Limits()
        group = self._group(limits)
        groups = tuple(map(str, group.folders)) if group else ()
        cell = Cell(config["folder"], config["folder"], self._root, config["user"], limits, 0, groups)
        pid = self._forked()
        if pid == 0:
            try:
                os.write(writer, json.dumps(tried(cell, self._steps)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            told = stream.read()
        os.waitpid(pid, 0)
        if group:
            group.end()
        refused: dict[str, str] = json.loads(told)
        return refused

    def _become(self, cell: Cell, descriptors: list[int]) -> None:
        """Be the process of a submission; never returns."""
        from goldformer.conformance.grading.sandbox._server import serve_box

        status = 1
        try:
            os.setsid()
            self._control.detach()
            requests, replies = keep_only(*descriptors)
            try:
                cell = shut_in(cell, self._steps)
            except OSError as error:
                os.write(replies, json.dumps({"failed": str(error)}).encode() + b"\n")
                os._exit(1)
            serve_box(requests, replies, cell.box, self._spec)
            status = 0
        except BaseException:
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _end(self, pid: int) -> dict[str, Any]:
        """Kill one and all that it started; how it ended."""
        if pid not in self._reaper.running:
            return {"failed": f"no process {pid} is running"}
        status, seconds = self._reaper.end(pid)
        if not self._pids:
            end_orphans(self._reaper.running)
        group = self._groups.pop(pid, None)
        return {"status": status, "cpu": seconds, "out_of_memory": group.end() if group else False}
