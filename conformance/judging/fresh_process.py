"""A process that loads an implementation again and makes its calls, one at a time, for a process without its device.

FreshProcess is the side of the process that asks; `answer_calls` is the other one. Both are this Python and trust each
other: they exchange pickles over pipes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.process.faults import CallFault, describe_status
from goldformer.adapters.protocol import Adapter, AdapterError
from goldformer.conformance.judging.device_loss import explain_device_loss
from goldformer.spec import Spec, load_spec

#: A call that can be pickled: the function of an adapter that makes it.
Call = Callable[[Adapter], Any]

#: The first pickle is the path on which the modules are found.
_PROGRAM: Final = """
import os, pickle, sys
requests = os.fdopen(os.dup(0), "rb")
sys.path[:] = pickle.load(requests)
from goldformer.conformance.judging.fresh_process import answer_calls
answer_calls(requests)
"""

#: Launches are in order, so that an error is raised at the line of its operation. The process that lost its device may
#: still hold memory there, and JAX would take three quarters of it.
_ENVIRONMENT: Final = {"CUDA_LAUNCH_BLOCKING": "1", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

#: The seconds that a process has to end after its input was closed.
_GRACE: Final = 5.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The implementation of a fresh process, and the settings of its array library."""

    load: Callable[[Spec], Adapter]
    arrays: str
    tf32: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The value that a call returned."""

    value: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception that a call raised, which leaves the device as it was."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Lost:
    """The error with which a call ended the device of its process."""

    error: str


@dataclass(frozen=True, slots=True)
class NotLoaded:
    """The reason why the implementation cannot be loaded here."""

    why: str


Reply = Returned | Raised | Lost | NotLoaded


class FreshProcess:
    """A process for the calls of one implementation; it ends when it is closed, and when its owner ends."""

    def __init__(self, setup: Setup) -> None:
        """Start it; it loads the implementation before the first call."""
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT}, start_new_session=True,
        )  # fmt: skip
        self.close: Final = weakref.finalize(self, _end, self._process)
        self._unsent = pickle.dumps(sys.path) + pickle.dumps(setup)

    def ask(self, call: Call, device: str) -> Reply:
        """Make a call on a device there; CallFault if the process ended without an answer."""
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None, "Popen made a pipe"
        assert replies is not None, "Popen made a pipe"
        message, self._unsent = self._unsent + pickle.dumps((call, device)), b""
        try:
            requests.write(message)
            requests.flush()
            reply: Reply = pickle.load(replies)
        except (OSError, EOFError) as error:
            status = self._process.wait()
            raise CallFault("crashed", f"ended its process with {describe_status(status)}") from error
        return reply


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a process, and kill it if it does not end."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def answer_calls(requests: BinaryIO) -> None:
    """Make the calls that are requested, and answer on standard output, until they end or one ends the device."""
    # Output of the implementation must not mix with the answers, and it must not read the calls.
    replies = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    with contextlib.suppress(EOFError, BrokenPipeError):
        _answer(pickle.load(requests), requests, replies)


def _answer(setup: Setup, requests: BinaryIO, replies: BinaryIO) -> None:
    library = LIBRARIES[setup.arrays]
    try:
        adapter = setup.load(load_spec())
    except AdapterError as error:
        pickle.load(requests)
        _reply(NotLoaded(str(error)), replies)
        return
    with contextlib.closing(adapter), library.keep_settings(), library.limit_threads(setup.threads):
        library.choose_precision(tf32=setup.tf32)
        while True:
            call, device = pickle.load(requests)
            reply = _make_call(call, device, adapter)
            _reply(reply, replies)
            if isinstance(reply, Lost):
                return


def _make_call(call: Call, device: str, adapter: Adapter) -> Reply:
    library = LIBRARIES[adapter.arrays]
    # PyTorch gets to know the pretend device by this question.
    if why := library.unavailable(device):
        return NotLoaded(why)
    try:
        return Returned(call(adapter))
    except Exception as error:
        if loss := explain_device_loss(error, library, device):
            return Lost(loss)
        return Raised(error)


def _reply(reply: Reply, replies: BinaryIO) -> None:
    try:
        message = pickle.dumps(reply)
    except Exception:
        # Only exceptions of unknown classes cannot be pickled; the text of their trace can.
        assert isinstance(reply, Raised), "results are arrays of NumPy"
        message = pickle.dumps(Raised(RuntimeError("".join(traceback.format_exception(reply.error)))))
    replies.write(message)
    replies.flush()
