"""The suite's side: speaks to one process, starts it again after a fault, and gives it the form of an adapter.

Peer              the other end: a line to it, a line from it
Client            its calls, by whatever makes a Peer
command_client    a Client of a command
adapter_object    a Client as an adapter module
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Final, Protocol

from goldformer import __version__
from goldformer.adapters.process import TIMEOUT
from goldformer.adapters.process.arrays import Wire
from goldformer.adapters.process.child import TAIL, Child, ChildFault
from goldformer.adapters.process.faults import CallFault, NoSuchMethod, Stray, TooLarge, WireError, clipped, printable
from goldformer.adapters.process.messages import read_reply, request_line
from goldformer.adapters.process.schema import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_IMPLEMENTED,
    PARSE_ERROR,
    PROTOCOL,
    ErrorObject,
    Handshake,
)
from goldformer.adapters.process.wire import decode_arrays, encode_arguments, validated

#: After so many starts in a row that failed, it is not started again.
_STARTS: Final = 3
#: How much of an error's message is kept; of what explains it further, as much as of standard error.
_LONGEST_MESSAGE: Final = 2000
#: How a line of standard error begins that a runtime adds below what happened: Rust's and Node's.
_NOT_TELLING: Final = ("note: ", "stack backtrace:", "Node.js v")
#: Seconds that it may take over ending.
_FAREWELL: Final = 1.0


class Peer(Protocol):
    """The other end of a conversation, and the process that started it."""

    @property
    def owner(self) -> int:
        """The process that started it; a fork of that one is not to speak to it."""

    def exchange(self, message: bytes, seconds: float) -> bytes:
        """Send a line and return the next one; ChildFault when none comes within so many seconds."""

    def end(self, grace: float = 0.0) -> None:
        """End it, after so many seconds in which it may end by itself."""

    def stderr_tail(self) -> str:
        """The last that it wrote beside its answers."""


class Client:
    """A process that answers calls, one at a time.

    `spawn` starts it, and may raise CallFault. What the underscored methods below `_ask` say of faults, a subclass may
    say otherwise.
    """

    def __init__(self, spawn: Callable[[], Peer], timeout: float = TIMEOUT) -> None:
        """Remember how to start it; it is started by the first call."""
        self._spawn = spawn
        self._timeout = timeout
        self._child: Peer | None = None
        self._id = 0
        self._failed: list[CallFault] = []
        self._lock = threading.Lock()
        self.handshake: Handshake | None = None

    def start(self) -> Handshake:
        """Start it and shake hands; CallFault when that fails."""
        with self._lock:
            self._started()
        assert self.handshake is not None  # by _started
        return self.handshake

    def call(self, method: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The arrays that a call gives, by name; NotImplementedError or CallFault when there are none."""
        with self._lock:
            child, handshake = self._started()
            try:
                result = self._ask(child, method, encode_arguments(given, handshake.encoding))
            except TooLarge as error:
                raise CallFault("too-large", f"{method} cannot be called: {error}") from error
            try:
                return None if result is None else decode_arrays(result, "result")
            except WireError as error:
                # Its answer came in time and in its place: the process itself is sound.
                raise self._no_result(method, error, child) from error

    def close(self) -> None:
        """Ask it to end, and end it; a later call starts it again."""
        with self._lock:
            child, self._child = self._mine(), None
            if child is None:
                return
            self._id += 1
            with contextlib.suppress(ChildFault):
                child.exchange(request_line(self._id, "shutdown", {}), _FAREWELL)
            child.end(_FAREWELL)

    def watch(self, wrap: Callable[[Callable[[], Peer]], Callable[[], Peer]]) -> None:
        """Start from now on what `wrap` makes of what starts it."""
        self._spawn = wrap(self._spawn)

    def _mine(self) -> Peer | None:
        """The process that was started here: a fork of the suite starts its own."""
        return self._child if self._child is not None and self._child.owner == os.getpid() else None

    def _started(self) -> tuple[Peer, Handshake]:
        child = self._mine()
        if child is not None and self.handshake is not None:
            return child, self.handshake
        if len(self._failed) >= _STARTS:
            last = self._failed[-1]
            raise CallFault(last.reason, f"was not started again after {_STARTS} failures: {last}", last.detail)
        try:
            self._child = child = self._spawn()
            handshake = self._shake_hands(child)
        except CallFault as fault:
            self._failed.append(fault)
            raise
        self._failed.clear()
        self.handshake = handshake
        return child, handshake

    def _shake_hands(self, child: Peer) -> Handshake:
        hello = {"protocol": PROTOCOL, "suite": f"goldformer {__version__}"}
        try:
            result = self._ask(child, "initialize", hello)
            return validated(Handshake, result, "result")
        except NotImplementedError as error:
            self._abandon(child)
            raise _protocol("answers initialize as a method that it has not", child) from error
        except WireError as error:
            self._abandon(child)
            raise _protocol(f"answered initialize with what is no handshake: {error}", child) from error
        except CallFault:
            self._abandon(child)
            raise

    def _ask(self, child: Peer, method: str, params: Mapping[str, Any]) -> Any:
        """The result of one request; WireError when it is too large."""
        self._id += 1
        message = request_line(self._id, method, params)
        try:
            line = self._exchange(child, message, method)
            reply = read_reply(line, self._id)
        except ChildFault as fault:
            self._abandon(child)
            raise self._fault(fault, method, child) from fault
        except WireError as error:
            self._abandon(child)
            raise self._no_answer(method, error, child) from error
        except BaseException:
            self._abandon(child)  # interrupted in the middle: its answer would come too late
            raise
        if not isinstance(reply, ErrorObject):
            return reply
        message_text = printable(clipped(reply.message, _LONGEST_MESSAGE))
        if reply.code in (METHOD_NOT_FOUND, NOT_IMPLEMENTED):
            absent = NoSuchMethod if reply.code == METHOD_NOT_FOUND else NotImplementedError
            raise absent(message_text or f"{method} is not implemented")
        detail = printable(clipped(reply.data, TAIL)) if isinstance(reply.data, str) else ""
        if reply.code in (PARSE_ERROR, INVALID_REQUEST):
            raise _protocol(f"could not read the request {method}: {message_text}", child)
        raise self._raised(message_text or "an error without a message", reply.code, detail)

    def _abandon(self, child: Peer) -> None:
        child.end()
        self._child = None

    def _exchange(self, child: Peer, message: bytes, method: str) -> bytes:
        """The answer to one request; ChildFault when none comes in time."""
        del method
        return child.exchange(message, self._timeout)

    def _fault(self, fault: ChildFault, method: str, child: Peer) -> CallFault:
        """No line came."""
        told = child.stderr_tail()
        last = f'. Last on standard error: "{_telling(told)[:200]}"' if told else ""
        what = f"the process {fault} when it was asked for {method}{last}"
        if fault.reason == "timeout":
            what += (
                ". Is standard output flushed after every line? Else give it longer with --timeout "
                "(of pytest: --call-timeout), or find out where it waits"
            )
        return CallFault(fault.reason, what, told)

    def _no_answer(self, method: str, error: WireError, child: Peer) -> CallFault:
        """A line came that does not answer the request."""
        stray = isinstance(error, Stray)
        hint = ". Standard output is for messages alone: log to standard error" if stray else ""
        return _protocol(f"wrote what is no answer to {method}: {error}{hint}", child)

    def _no_result(self, method: str, error: WireError, child: Peer) -> CallFault:
        """It answered with something else than arrays."""
        return _protocol(f"answered {method} with what is no result: {error}", child)

    def _raised(self, message: str, code: int, detail: str) -> CallFault:
        """It answered with an error."""
        return CallFault("raised", f"{message} (code {code})", detail)


def _protocol(what: str, child: Peer) -> CallFault:
    return CallFault("protocol", f"the process {what}", child.stderr_tail())


def _telling(told: str) -> str:
    """The last line of standard error that says what happened, and not from where it was called."""
    lines = told.splitlines()
    said = [line for line in lines if line.strip() and not line[0].isspace() and not line.startswith(_NOT_TELLING)]
    return (said or lines)[-1].strip()


def command_client(command: str, timeout: float = TIMEOUT) -> Client:
    """The client of a command; ValueError for one that is no list of words."""
    words = shlex.split(command)
    if not words:
        raise ValueError("the command is empty")

    def spawn() -> Child:
        try:
            return Child(words)
        except OSError as error:
            raise CallFault("crashed", f"cannot be started: {words[0]}: {error.strerror}") from error

    return Client(spawn, timeout)


def adapter_object(client: Client, contracts: Iterable[str]) -> Any:
    """What an adapter module defines, by a process, which is started; CallFault when it cannot be.

    ValueError when a component that it names is none.
    """
    handshake = client.start()
    known = list(contracts)
    for kind, names in (("components", handshake.components), ("gradients", handshake.gradients)):
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                guess = f": did you mean {close[0]}?" if close else f"; components are {', '.join(known)}"
                client.close()
                raise ValueError(f"initialize: {kind} has {name!r}{guess}")
    methods = [*handshake.components, *(f"{name}_gradient" for name in handshake.gradients)]
    return SimpleNamespace(
        ARRAYS=Wire.name,
        NAME=printable(handshake.name),
        VERSION=printable(handshake.version),
        CONVENTIONS=handshake.conventions,
        DTYPES=tuple(handshake.dtypes),
        DEVICES=("cpu",),
        CLOSE=client.close,
        **{method: _function(client, method) for method in methods},
    )


def _function(client: Client, method: str) -> Callable[..., Any]:
    def function(**given: Any) -> Any:
        return client.call(method, given)

    return function
