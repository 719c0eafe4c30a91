"""Start sandboxed processes: each is isolated before it reads its code, and ended with everything that it started."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import IO, Any, Final

from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox._cgroup import remove_all
from goldformer.conformance.grading.sandbox._client import Ending, SandboxClient, SandboxProcess, State
from goldformer.conformance.grading.sandbox._folders import SweptFolder
from goldformer.conformance.grading.sandbox._isolation import make_environment
from goldformer.conformance.grading.sandbox._mounts import remove_folder
from goldformer.conformance.grading.sandbox._types import (
    Isolation,
    Level,
    Limits,
    SandboxError,
    TooLittleMemory,
    rate_isolation,
    require_level,
)

#: User numbers that no system gives out, above those of containers: 16 for each process that has a sandbox.
_USERS: Final = 1_900_000_000
_PROCESSES: Final = 1 << 22
_numbers: Final = itertools.count()
#: The unit of the default memory in MiB: it is rounded up, so that small differences between machines do not count.
_GIB: Final = 1024
#: The least memory in MiB that a program needs in addition to its library.
_LEAST_MEMORY: Final = 64
#: Seconds that the launcher may take to answer, also for importing the library: only one that hangs takes so long.
_ANSWERING: Final = 300.0
_CHUNK: Final = 1 << 16
#: Seconds that the launcher gets to end by itself.
_FAREWELL: Final = 5.0
#: The feature by which a process sees only its own files.
_OWN_FILES: Final = "mount-namespace"
#: Python without the settings, packages and folders of the user.
_PYTHON: Final = ("-s", "-P", "-B")
_MAIN: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop()); "
    "from goldformer.conformance.grading.sandbox import _launcher; _launcher.main()"
)
#: Limits of the launcher's processes; a caller may have further ones.
_LIMITS: Final = tuple(field.name for field in dataclasses.fields(Limits))


class Sandbox:
    """Starts isolated processes, all forked from one launcher that has imported the array library already.

    `isolation` says how they are isolated, which is the same for all of them.
    """

    isolation: Isolation

    def __init__(
        self,
        limits: Limits,
        arrays: str,
        require: Level | None = None,
        *,
        without: Collection[str] = (),
    ) -> None:
        """Start the launcher; SandboxError if that fails, or if it does not reach the required level.

        `arrays` is the library that adapters use; `without` names features to leave out.
        """
        self._limits = limits
        self._arrays = arrays
        self._without = tuple(without)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        swept = SweptFolder("goldformer-sandbox-", 0o755)
        #: A folder that only this sandbox uses.
        self.folder: Final = swept.path
        self._remove = weakref.finalize(self, _remove_own, swept, os.getpid())
        self._launcher: _LauncherProcess | None = None
        try:
            self._launcher = self._start_launcher()
            left_out = dict.fromkeys(self._without, "left out")
            self.isolation = rate_isolation(self._launcher.features, {**self._launcher.refused, **left_out})
            if require is not None:
                require_level(self.isolation, require)
            #: The address space in MiB that the array library takes, and the memory that a program may use.
            self.size: int = self._launcher.size
            self.memory = limits.memory or (-(-self.size // _GIB) + 1) * _GIB
            self._limits = dataclasses.replace(limits, memory=self.memory)
            self._check_memory(self.size)
            if "pid-namespace" not in self.isolation.features and os.geteuid() != 0:
                # The sandboxed process has the same user, and this process has the expected values in memory.
                linux.refuse_tracers()
        except BaseException:
            self.close()
            raise

    def start(self, folder: Path) -> SandboxProcess:
        """Start a process for a folder that holds `adapter.py` and the folder `submission`."""
        with self._lock:
            if self._launcher is None:
                raise SandboxError("the sandbox is closed")
            if self._owner != os.getpid():
                raise SandboxError("the sandbox belongs to the process that made it: this one needs its own")
            try:
                return self._launcher.fork(folder, self._choose_user(), self._limits)
            except _LauncherLost:
                self._launcher.close()
            self._launcher = self._start_launcher()
            try:
                return self._launcher.fork(folder, self._choose_user(), self._limits)
            except _LauncherLost as lost:
                raise SandboxError(f"the launcher of sandboxed processes {lost}") from lost

    def client(self, folder: Path) -> SandboxClient:
        """Return a client of such a folder, which every user may read from then on if processes see no other folder.

        Calls start a process, and another one after a fault.
        """
        folder = folder.resolve()
        if _OWN_FILES in self.isolation.features:
            _make_readable(folder)
        return SandboxClient(lambda: self.start(folder), self._limits)

    def close(self) -> None:
        """End everything that was started here."""
        launcher, self._launcher = self._launcher, None
        if launcher is not None:
            launcher.close()
        self._remove()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_launcher(self) -> _LauncherProcess:
        return _LauncherProcess(self._arrays, self.folder, self._without, self._choose_user())

    def _check_memory(self, size: int) -> None:
        if self.memory < size + _LEAST_MEMORY:
            what = f"limits.memory is {self.memory} MiB, and {self._arrays} alone takes {size} MiB"
            raise TooLittleMemory(f"{what} of address space: give at least {size + _LEAST_MEMORY}")

    def _choose_user(self) -> int:
        return _USERS + os.getpid() % _PROCESSES * 16 + next(_numbers) % 16


def _make_readable(folder: Path) -> None:
    """Let every user read a folder and its files."""
    for inner, _, files in os.walk(folder):
        _add_mode(Path(inner), 0o555)
        for name in files:
            _add_mode(Path(inner, name), 0o444)


def _add_mode(path: Path, bits: int) -> None:
    mode = path.lstat().st_mode
    if not stat.S_ISLNK(mode) and mode & bits != bits:
        path.chmod(stat.S_IMODE(mode) | bits)


def _remove_own(folder: SweptFolder, owner: int) -> None:
    if os.getpid() == owner:
        folder.remove()


class _LauncherLost(Exception):
    """The launcher does not answer any more."""


class _LauncherProcess:
    """The parent's end of the launcher. Several threads may use it; it answers one request at a time."""

    def __init__(self, arrays: str, folder: Path, without: Sequence[str], user: int) -> None:
        """Start it; SandboxError if that fails."""
        ours, theirs = socket.socketpair()
        config = {
            "control": theirs.fileno(), "parent": os.getpid(), "arrays": arrays, "folder": str(folder),
            "without": list(without), "user": user,
        }  # fmt: skip
        self._folder = folder
        (folder / "root").mkdir(exist_ok=True)
        self._lock = threading.Lock()
        self._unread = b""
        self._log = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        root = str(Path(str(resources.files("goldformer"))).parent)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_PYTHON, "-c", _MAIN, json.dumps(config), root],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, pass_fds=[theirs.fileno()],
                # The same hashes in every run.
                env={**make_environment(str(folder)), "PYTHONHASHSEED": "0"}, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._control = ours
        self._end = weakref.finalize(self, _end_launcher, self._process, ours, self._log, folder.name, os.getpid())
        try:
            hello = self._read(_ANSWERING)
        except _LauncherLost as lost:
            raise SandboxError(f"the launcher of sandboxed processes {lost}{self._read_log()}") from lost
        #: The features that this machine refuses, with the reason; and those in force.
        self.refused: Mapping[str, str] = hello["refused"]
        self.features: tuple[str, ...] = tuple(hello["features"])
        #: The address space in MiB that the launcher takes, and so does every fork.
        self.size: int = hello["size"]

    def fork(self, folder: Path, user: int, limits: Limits) -> SandboxProcess:
        """Fork a process for a folder and wait until it is isolated; _LauncherLost if the launcher is gone."""
        (requests, there), (back, replies), (printed, output) = os.pipe(), os.pipe(), os.pipe()
        ours, theirs = (there, back, printed), (requests, replies, output)
        copy = self._copy(folder, user)
        try:
            folders = {"code": str(copy / "code" if copy else folder), "tmp": str(copy / "tmp") if copy else ""}
            values = {name: getattr(limits, name) for name in _LIMITS}
            reply = self._ask({"fork": {**folders, "user": user, "limits": values}}, theirs)
        except BaseException:
            _close_all(ours)
            if copy:
                remove_folder(copy)
            raise
        finally:
            _close_all(theirs)
        pid = reply.get("pid", 0)
        process = SandboxProcess(
            ours, limits, lambda: self._look(pid), lambda: self._kill(pid), lambda: self._end_process(pid, copy)
        )
        if problem := reply.get("failed") or process.find_problem(_ANSWERING):
            process.end()
            raise SandboxError(f"no sandboxed process could be made: {problem}")
        return process

    def _copy(self, folder: Path, user: int) -> Path | None:
        """Copy the code for a process that sees the file system of this machine, and add a folder to write to.

        The original may lie in a folder that other users cannot enter. No user but the process's own may enter the
        copy, so that no other submission reads it.
        """
        if _OWN_FILES in self.features:
            return None
        copy = Path(tempfile.mkdtemp(prefix="copy-", dir=self._folder))
        shutil.copytree(folder, copy / "code", symlinks=True)
        _make_readable(copy / "code")
        (copy / "tmp").mkdir(0o700)
        if os.geteuid() == 0:
            try:
                os.chown(copy, user, user)
            except OSError:  # a container that has few users: the process becomes one that owns nothing
                copy.chmod(0o755)
        return copy

    def _look(self, pid: int) -> State:
        try:
            return self._ask({"look": pid})
        except _LauncherLost as lost:
            self._check_closed(lost)
            return {"ended": True, "cpu": 0.0}

    def _kill(self, pid: int) -> None:
        """Kill a process, which is ended later."""
        with contextlib.suppress(_LauncherLost):  # ending the process finds that out too
            self._ask({"kill": pid})

    def _end_process(self, pid: int, copy: Path | None) -> Ending:
        """End a process and everything that it started, and remove the copy of its code."""
        try:
            return self._ask({"end": pid})
        except _LauncherLost as lost:
            self._check_closed(lost)
            return {"status": -signal.SIGKILL, "cpu": 0.0}
        finally:
            if copy:
                remove_folder(copy)

    def _check_closed(self, lost: _LauncherLost) -> None:
        """Raise SandboxError unless the launcher was ended here, which ended its processes too."""
        if self._end.alive:
            raise SandboxError(f"the launcher of sandboxed processes {lost}") from lost

    def close(self) -> None:
        """End the launcher and everything that it forked."""
        self._end()

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode() + b"\n"], list(descriptors))
            except OSError as error:
                raise _LauncherLost(f"cannot be reached: {error.strerror}") from error
            return self._read(_ANSWERING)

    def _read(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        while b"\n" not in self._unread:
            try:
                data = self._control.recv(_CHUNK)
            except TimeoutError as error:
                raise _LauncherLost(f"gave no answer within {seconds:g} s") from error
            except OSError as error:
                raise _LauncherLost(f"cannot be reached: {error.strerror}") from error
            if not data:
                raise _LauncherLost("has ended")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read_log(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _end_launcher(
    process: subprocess.Popen[bytes], control: socket.socket, log: IO[bytes], name: str, owner: int
) -> None:
    if os.getpid() != owner:
        return
    control.close()  # the launcher ends when this closes
    try:
        process.wait(_FAREWELL)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    log.close()
    remove_all(name)
