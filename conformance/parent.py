"""A light parent process that outlives the process in which somebody's code is loaded and called.

If that code ends its process, as native code does that aborts, the parent says what was running, and runs the command
once more: then each call is made in a process of its own, as after the loss of a device, and the rest is judged.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Any, Final

import click

from goldformer.conformance.judging import running

#: The exit statuses of a command that nothing could be done of, and of one that Ctrl-C stopped.
UNUSABLE: Final = 2
STOPPED: Final = 130

#: The seconds that the running call has to end after Ctrl-C or SIGTERM; native code may never look for a signal.
_GRACE: Final = 5
#: A terminal sends Ctrl-C to both processes, and the parent passes it on: two within so many seconds are one.
_SAME: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def fork_from_parent() -> None:
    """Return in a new process, and never in this one, which outlives it and ends with its status."""
    while True:
        running.share_note()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(writer)
            _end_with_parent(reader)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and not ignored, as in the background
                signal.signal(signal.SIGINT, _Interrupt())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return
        os.close(reader)
        stop = _Stop(pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(writer)
        status = running.read_status()
        status = _explain_end(ended, stop) if status is None else status
        if status is not None:
            os._exit(status)


def _end_with_parent(pipe: int) -> None:
    """Let SIGIO end this process when its parent ends, which holds the other end of the pipe."""
    import fcntl  # Windows has no fork, and no such module

    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)


def _explain_end(ended: int, stop: _Stop) -> int | None:
    """Say what ended the process before its command was done; return the exit status, or None to try once more."""
    what = running.read_running()[0]
    if stop.time:
        _say("stopped" + (f": {stop.killed}, and did not end when it was asked to" if stop.killed else ""))
        return STOPPED
    how = f"signal {signal.Signals(-ended).name}" if ended < 0 else f"exit status {ended}"
    message = f"the code ended its process with {how}{f' in {what}' if what else ''}"
    if running.ended or running.LOADING in what:
        _say(f"{message}: nothing was judged")
        return UNUSABLE
    _say(f"{message}: it is run once more, with its calls in a process of their own")
    running.ended = message
    return None


def _say(message: str) -> None:
    with contextlib.suppress(OSError):
        click.secho(f"goldformer: {message}", fg="red", err=True)


class _Interrupt:
    """A handler of SIGINT that raises KeyboardInterrupt, once for the two signals of one Ctrl-C."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, *_: Any) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > _SAME:
            raise KeyboardInterrupt


class _Stop:
    """The handler of signals in the parent: passes them on, and kills a call that does not end for all that."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        #: When the first signal came; 0 before.
        self.time = 0.0
        #: What was running, and for how long, if the process had to be killed.
        self.killed = ""
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._pass_on)
        signal.signal(signal.SIGALRM, self._kill)

    def _pass_on(self, number: int, _: Any) -> None:
        self.time = self.time or time.monotonic()
        os.kill(self._pid, number)
        signal.alarm(_GRACE)

    def _kill(self, *_: Any) -> None:
        what, since = running.read_running()
        # Whatever began later, such as to explain what was found, is part of a clean end.
        if what and since < self.time:
            self.killed = running.describe_running()
            os.kill(self._pid, signal.SIGKILL)
