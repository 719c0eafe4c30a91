"""The parent's end of the process that submissions are forked from: starts it, asks it, ends it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import goldformer
from goldformer.conformance.grading.model import Limits
from goldformer.conformance.grading.sandbox import _cgroup as cgroup
from goldformer.conformance.grading.sandbox._client import BoxPeer
from goldformer.conformance.grading.sandbox._isolation import environment
from goldformer.conformance.grading.sandbox._levels import JailError
from goldformer.conformance.grading.sandbox._mounts import remove

#: Seconds that importing a library may take before anything is graded, and that one answer may take.
_IMPORTING: Final = 120.0
_ANSWERING: Final = 30.0
_CHUNK: Final = 1 << 16
#: Seconds that it is given to end by itself.
_FAREWELL: Final = 5.0
#: Without the settings, packages and folders of whoever started it; hashes alike in every run.
_PYTHON: Final = ("-s", "-P", "-B")
_MAIN: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop()); "
    "from goldformer.conformance.grading.sandbox import _launcher; _launcher.main()"
)


class Lost(Exception):
    """The process is not there any longer."""


class Zygote:
    """Forks processes of submissions, and ends them. For several threads, one request at a time."""

    def __init__(self, arrays: str, folder: Path, without: Sequence[str], user: int) -> None:
        """Start it; JailError when it cannot be."""
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
        root = str(Path(goldformer.__file__).parent.parent)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, *_PYTHON, "-c", _MAIN, json.dumps(config), root],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, pass_fds=[theirs.fileno()],
                env={**environment(str(folder)), "PYTHONHASHSEED": "0"}, cwd="/", start_new_session=True,
            )  # fmt: skip
        self._control = ours
        self._end = weakref.finalize(self, _ended, self._process, ours, self._log, folder.name, os.getpid())
        try:
            hello = self._read(_IMPORTING)
        except Lost as lost:
            raise JailError(f"the process that submissions are forked from {lost}{self._told()}") from lost
        #: The features that this machine refuses, each with the reason; and those in force.
        self.refused: Mapping[str, str] = hello["refused"]
        self.features: tuple[str, ...] = tuple(hello["features"])
        #: What it takes of the address space, in MiB; and so does every fork.
        self.size: int = hello["size"]

    def fork(self, box: Path, user: int, limits: Limits) -> BoxPeer:
        """A process for a box, shut in; Lost when this one is not there any longer."""
        (requests, there), (back, replies), (printed, output) = os.pipe(), os.pipe(), os.pipe()
        ours, theirs = (there, back, printed), (requests, replies, output)
        place = self._place(box)
        try:
            inside = {"box": str(place / "box" if place else box), "tmp": str(place / "tmp") if place else ""}
            fork = {**inside, "user": user, "limits": dataclasses.asdict(limits)}
            reply = self._ask({"fork": fork}, theirs)
        except BaseException:
            _close(ours)
            if place:
                remove(place)
            raise
        finally:
            _close(theirs)
        peer = BoxPeer(reply.get("pid", 0), ours, _Ender(self, place), limits)
        if problem := reply.get("failed") or peer.problem(_ANSWERING):
            peer.end()
            raise JailError(f"no process could be made for a submission: {problem}")
        return peer

    def _place(self, box: Path) -> Path | None:
        """Where a process lives that sees the file system of this machine: a copy of its box, and a folder to write to.

        The box itself may lie in a folder of whoever grades, where no other user gets.
        """
        if "mount-namespace" in self.features:
            return None
        place = Path(tempfile.mkdtemp(prefix="place-", dir=self._folder))
        place.chmod(0o755)
        shutil.copytree(box, place / "box", symlinks=True)
        (place / "tmp").mkdir(0o700)
        return place

    def look(self, pid: int) -> bool:
        """Whether a process has ended."""
        return bool(self._ask({"look": pid})["ended"])

    def end(self, pid: int) -> Mapping[str, Any]:
        """End a process and all that it started; how it ended."""
        return self._ask({"end": pid})

    @property
    def closed(self) -> bool:
        """Whether it was ended here."""
        return not self._end.alive

    def close(self) -> None:
        """End it, and with it all that it forked."""
        self._end()

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> dict[str, Any]:
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode() + b"\n"], list(descriptors))
            except OSError as error:
                raise Lost(f"cannot be reached: {error.strerror}") from error
            return self._read(_ANSWERING)

    def _read(self, seconds: float) -> dict[str, Any]:
        self._control.settimeout(seconds)
        while b"\n" not in self._unread:
            try:
                data = self._control.recv(_CHUNK)
            except TimeoutError as error:
                raise Lost(f"gave no answer within {seconds:g} s") from error
            except OSError as error:
                raise Lost(f"cannot be reached: {error.strerror}") from error
            if not data:
                raise Lost("has ended")
            self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _told(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


@dataclass(frozen=True, slots=True)
class _Ender:
    """Ends one process, and removes the folder that it wrote to."""

    zygote: Zygote
    place: Path | None

    def look(self, pid: int) -> bool:
        try:
            return self.zygote.look(pid)
        except Lost as lost:
            return self._gone(lost)

    def end(self, pid: int) -> Mapping[str, Any]:
        try:
            return self.zygote.end(pid)
        except Lost as lost:
            return {"status": -signal.SIGKILL, "cpu": 0.0, "gone": self._gone(lost)}
        finally:
            if self.place:
                remove(self.place)

    def _gone(self, lost: Lost) -> bool:
        if not self.zygote.closed:
            raise JailError(f"the process that submissions are forked from {lost}") from lost
        return True


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _ended(process: subprocess.Popen[bytes], control: socket.socket, log: IO[bytes], name: str, owner: int) -> None:
    if os.getpid() != owner:
        return
    control.close()  # which it takes as the end
    try:
        process.wait(_FAREWELL)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    log.close()
    cgroup.remove_all(name)
