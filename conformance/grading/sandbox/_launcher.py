"""Run the process from which sandboxed processes are forked: it has imported what they need, and runs nothing else.

Its parent sends one request at a time, a line of JSON over a Unix socket, and gets one line back: fork a process (with
three descriptors), look at one, kill one, end one.

`multiprocessing.forkserver` with a preload cannot replace it: it forks directly from its own loop, so that nothing can
prepare a PID namespace, a control group or the process limit before the fork, there is one per parent for all
libraries, and it reports an exit status without processor time or memory. It would be no faster either: most of the
time of a start goes into the isolation, which stays.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox._cgroup import Group, find_parent, remove_all
from goldformer.conformance.grading.sandbox._isolation import (
    STEPS,
    SandboxSetup,
    close_descriptors,
    isolate,
    try_steps,
)
from goldformer.conformance.grading.sandbox._mounts import make_root, remove_folder
from goldformer.conformance.grading.sandbox._types import MEMORY_WATCH, Limits
from goldformer.conformance.grading.sandbox._usage import INTERVAL, check_measurable, measure_cpu, measure_descendants

if TYPE_CHECKING:
    from goldformer.spec import Spec

_BUFFER: Final = 1 << 16
#: The pipes of a process: to it, from it, and its standard output.
_PIPES: Final = 3
#: The flag of a process that is on its way out (PF_EXITING).
_EXITING: Final = 0x4
#: MiB of the trial process.
_TRIAL_MEMORY: Final = 256
#: Seconds over which descendants of an ended process are searched for.
_SWEEP: Final = 2.0


def main() -> None:
    """Import everything, report what this machine allows, and serve until the parent closes its end of the socket."""
    # Sandboxed processes are other users, and enter the folders that are made here. Their own umask comes later.
    os.umask(0o022)
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=config["control"])
    _end_with(config["parent"], lambda: os._exit(1))
    features, refused = linux.enter_namespaces(config["without"])
    if linux.PID_NAMESPACE in features:
        _continue_in_fork(control, config["parent"], config["folder"])
    # Only now: a library may start threads, and a process with threads cannot make a user namespace.
    from goldformer.conformance.grading.sandbox._preload import preload

    spec = preload(config["arrays"])
    launcher = Launcher(control, config, features, refused, spec)
    launcher.answer({"refused": launcher.refused, "features": launcher.features, "size": _measure_size()})
    launcher.serve()
    launcher.end_all()
    os._exit(0)


def _end_with(parent: int, end: Callable[[], None]) -> None:
    """Call `end` when the parent ends."""

    def check(*_: Any) -> None:
        if os.getppid() != parent:  # and not only the thread of the parent that started this process
            end()

    if platform.system() == "Linux":
        signal.signal(signal.SIGTERM, check)
        linux.die_with_parent(signal.SIGTERM)
        linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    check()


def _continue_in_fork(control: socket.socket, parent: int, folder: str) -> None:
    """Return as the first process of the new PID namespace; the process that made it waits for the end."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        linux.die_with_parent(signal.SIGKILL)
        return
    control.close()

    def end() -> None:
        # The fork may have ended by itself already, while its files are being removed.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    _end_with(parent, end)
    os.waitpid(pid, 0)
    if os.getppid() != parent or is_ending(parent):  # the parent cannot clean up any more
        remove_all(os.path.basename(folder))
        remove_folder(Path(folder))
    os._exit(0)


def _measure_size() -> int:
    """Return the address space of this process in MiB; 0 if the system does not tell."""
    with contextlib.suppress(OSError), open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE") >> 20
    return 0


def is_ending(pid: int) -> bool:
    """Return True if a process has ended or is about to: its descriptors close before its parent is notified."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    flags = stat.rpartition(")")[2].split()[6]
    return bool(int(flags) & _EXITING)


class Launcher:
    """Forks processes, looks at them, and ends them."""

    def __init__(
        self, control: socket.socket, config: dict[str, Any], features: list[str], refused: dict[str, str], spec: Spec
    ) -> None:
        self._control = control
        self._unread = b""
        self._received: list[int] = []
        self._spec = spec
        self._reaper = _Reaper()
        self._groups: dict[int, Group] = {}
        self._memory: dict[int, int] = {}
        self._out_of_memory: dict[int, None] = {}
        self._forks = 0
        self._name = os.path.basename(config["folder"])
        self._pids = linux.PidNamespaces() if linux.PID_NAMESPACE in features else None
        self._users = linux.USER_NAMESPACE in features
        self._root = f"{config['folder']}/root"
        self._steps = [name for name in STEPS if name not in config["without"]]
        for name, prepare in (("mount-namespace", self._make_root), ("cgroup", self._find_groups)):
            if name in self._steps:
                try:
                    prepare()
                except OSError as error:
                    self._steps.remove(name)
                    refused[name] = str(error.strerror or error)
        refused |= self._find_refused(config)
        self._steps = [name for name in self._steps if name not in refused]
        self.features = [*features, *self._steps]
        self._watches = "cgroup" not in self._steps and MEMORY_WATCH not in config["without"]
        if self._watches:
            try:
                self._check_watch()
                self.features.append(MEMORY_WATCH)
            except OSError as error:
                self._watches = False
                refused[MEMORY_WATCH] = str(error.strerror or error)
        self.refused = refused
        linux.refuse_tracers()

    def serve(self) -> None:
        """Answer one request after another."""
        while line := self._read_line():
            match json.loads(line):
                case {"fork": fork}:
                    descriptors, self._received = self._received, []
                    self.answer(self._fork(fork, descriptors))
                case {"look": pid}:
                    self.answer({"ended": self._reaper.has_ended(pid), "cpu": measure_cpu(pid)})
                case {"kill": pid}:
                    if pid in self._reaper.running:
                        self._reaper.kill(pid)
                    self.answer({})
                case {"end": pid}:
                    self.answer(self._end(pid))

    def end_all(self) -> None:
        """End every process that is still running."""
        for pid in list(self._reaper.running):
            self._end(pid)

    def answer(self, reply: dict[str, Any]) -> None:
        """Send a line."""
        self._control.sendall(json.dumps(reply).encode() + b"\n")

    def _check_watch(self) -> None:
        """Raise OSError unless all memory of the processes can be measured from here."""
        if "system-calls" not in self._steps:
            raise OSError("memory that belongs to no process cannot be refused without system-calls")
        check_measurable()
        # One page fault counts as one page: with huge pages it would make five hundred.
        linux.refuse_huge_pages()

    def _watch_memory(self) -> None:
        """Kill the running processes if they take more memory together than they may."""
        running = self._reaper.running - self._out_of_memory.keys()
        most = sum(self._memory[pid] for pid in running)
        if running and measure_descendants() > most:
            for pid in running:
                self._out_of_memory[pid] = None
                self._reaper.kill(pid)
                if not self._pids:
                    _end_orphans(self._reaper.running)

    def _read_line(self) -> bytes:
        """Return the next request, or nothing at the end; keep the descriptors that come with it."""
        while b"\n" not in self._unread:
            while self._watches and self._reaper.running and not select.select([self._control], [], [], INTERVAL)[0]:
                self._watch_memory()
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
        self._parent = find_parent()

    def _make_group(self, limits: Limits) -> Group | None:
        if "cgroup" not in self._steps:
            return None
        self._forks += 1
        group = Group(self._parent / f"{self._name}-{self._forks}")
        group.make(limits)
        return group

    def _fork(self, fork: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        limits = Limits(**fork.pop("limits"))
        group: Group | None = None
        try:
            group = self._make_group(limits)
            setup = SandboxSetup(
                **fork, limits=limits, root=self._root, others=self._count_others(limits),
                group=str(group.folder) if group else "",
            )  # fmt: skip
            pid = self._fork_process()
            if pid == 0:
                self._become(setup, descriptors)
        except OSError as error:
            if group:
                group.end()
            return {"failed": str(error)}
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._reaper.running.add(pid)
        self._memory[pid] = limits.memory << 20
        if group:
            self._groups[pid] = group
        return {"pid": pid}

    def _fork_process(self) -> int:
        if self._pids:
            self._pids.prepare_next()
        return os.fork()

    def _count_others(self, limits: Limits) -> int:
        """Return the number of processes that count together with those of the next fork."""
        if os.geteuid() == 0:
            return 0
        if self._users:
            return 2 + len(self._reaper.running) * limits.processes  # this process and the one that started it
        return _count_processes(os.geteuid())

    def _find_refused(self, config: dict[str, Any]) -> dict[str, str]:
        """Return the steps that this machine refuses with the reason, by a trial process."""
        reader, writer = os.pipe()
        limits = Limits(memory=_measure_size() + _TRIAL_MEMORY)
        group = self._make_group(limits)
        own = str(group.folder) if group else ""
        setup = SandboxSetup(config["folder"], config["folder"], self._root, config["user"], limits, 0, own)
        pid = self._fork_process()
        if pid == 0:
            try:
                os.write(writer, json.dumps(try_steps(setup, self._steps)).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as stream:
            answer = stream.read()
        os.waitpid(pid, 0)
        if group:
            group.end()
        refused: dict[str, str] = json.loads(answer)
        return refused

    def _become(self, setup: SandboxSetup, descriptors: list[int]) -> None:
        """Become the sandboxed process; never return."""
        from goldformer.conformance.grading.sandbox._server import serve_calls

        status = 1
        try:
            os.setsid()
            self._control.detach()
            requests, replies = close_descriptors(*descriptors)
            try:
                setup = isolate(setup, self._steps)
            except OSError as error:
                os.write(replies, json.dumps({"failed": str(error)}).encode() + b"\n")
                os._exit(1)
            serve_calls(requests, replies, setup.code, self._spec)
            status = 0
        except SystemExit:
            pass  # it has printed why
        except BaseException:
            with contextlib.suppress(BaseException):
                traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _end(self, pid: int) -> dict[str, Any]:
        """Kill a process and everything that it started; report its end."""
        if pid not in self._reaper.running:
            return {"failed": f"no process {pid} is running"}
        status, seconds = self._reaper.end(pid)
        if not self._pids:
            _end_orphans(self._reaper.running)
        group = self._groups.pop(pid, None)
        del self._memory[pid]
        killed = pid in self._out_of_memory
        self._out_of_memory.pop(pid, None)
        return {"status": status, "cpu": seconds, "out_of_memory": group.end() if group else killed}


class _Reaper:
    """Children that were forked here and are not reaped yet."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self._reaped: dict[int, tuple[int, float]] = {}

    def has_ended(self, pid: int) -> bool:
        """Return True if a process has ended or is unknown."""
        if pid not in self.running or pid in self._reaped:
            return True
        if hasattr(os, "waitid"):
            # Do not reap it: its number still identifies its group, which is ended later.
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        return self._reap(pid, os.WNOHANG)

    def end(self, pid: int) -> tuple[int, float]:
        """Kill a process with its session; return its exit status (minus a signal's number) and processor seconds."""
        self.kill(pid)
        if pid not in self._reaped:
            self._reap(pid, 0)
        self.running.discard(pid)
        return self._reaped.pop(pid)

    def kill(self, pid: int) -> None:
        """Kill a process with its session, and leave it to be reaped."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)

    def _reap(self, pid: int, options: int) -> bool:
        found, status, usage = os.wait4(pid, options)
        if found:
            self._reaped[pid] = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        return bool(found)


def _end_orphans(known: Collection[int]) -> None:
    """Kill all children except the known ones: processes that left their session and whose own parent ended."""
    deadline = time.monotonic() + _SWEEP
    while (orphans := _list_children() - set(known)) and time.monotonic() < deadline:
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
        for orphan in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def _list_children() -> set[int]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children", encoding="ascii") as file:
            return {int(word) for word in file.read().split()}
    except OSError:
        return set()  # not Linux


def _count_processes(user: int) -> int:
    """Return the number of processes and threads of a user; 0 if the system does not tell."""
    count = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and entry.stat().st_uid == user:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count
