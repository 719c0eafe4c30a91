"""The suite's side of the protocol: call one process, restart it after a fault, and present it as an adapter.

Peer              the other end: send a line, receive a line
Client            the calls of a process
command_client    make the Client of a command
adapter_object    make an adapter object of a Client
"""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, Final, Protocol

from goldformer.adapters.arrays import Wire
from goldformer.adapters.process import TIMEOUT
from goldformer.adapters.process.child import TAIL, Child, ChildFault
from goldformer.adapters.process.faults import CallFault, FaultReason, Stray, TooLarge, WireError
from goldformer.adapters.process.messages import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NOT_IMPLEMENTED,
    PARSE_ERROR,
    PROTOCOL,
    ErrorObject,
    Handshake,
)
from goldformer.adapters.process.patience import Patience
from goldformer.adapters.process.wire import (
    decode_arrays,
    decode_state,
    encode_arguments,
    read_reply,
    request_line,
    validate_model,
)
from goldformer.adapters.untrusted_text import LONGEST_MESSAGE, abbreviate, clip_text, printable, printable_name
from goldformer.spec import Contract
from goldformer.spec.sessions import STATE

#: The number of consecutive failed starts after which the process is not started again.
_MOST_STARTS: Final = 3
#: The beginnings of lines that the runtimes of Rust and Node print below the error itself.
_RUNTIME_NOTES: Final = ("note: ", "stack backtrace:", "Node.js v")
#: The seconds that a process has to end when it is asked to.
_SHUTDOWN_SECONDS: Final = 1.0


class Peer(Protocol):
    """The other end of a conversation."""

    @property
    def owner(self) -> int:
        """The id of the process that started it; a fork of that process must not use it."""

    def exchange(self, message: bytes, seconds: float) -> bytes:
        """Send a line and return the next one; ChildFault if no line comes within `seconds`."""

    def measure_cpu(self) -> float:
        """Return the seconds of processor time that it has used; 0 if nobody limits them."""

    def stop(self) -> None:
        """Kill it without waiting for its end, because nothing more is asked of it."""

    def end(self, grace: float = 0.0) -> None:
        """Wait `grace` seconds for it to end, then kill it."""

    def stderr_tail(self) -> str:
        """Return the end of what it wrote to standard error."""


class Client:
    """A process that answers calls, one at a time.

    `spawn` starts it, and may raise CallFault. A subclass may override the methods below `_ask`, which word the faults.
    After several calls in a row with a fault of GIVE_UP_ON, further calls raise a CallFault at once.
    """

    GIVE_UP_ON: frozenset[FaultReason] = frozenset({"timeout"})

    def __init__(self, spawn: Callable[[], Peer], timeout: float = TIMEOUT) -> None:
        """Remember how to start it; the first call starts it."""
        self._spawn = spawn
        self._timeout = timeout
        self._child: Peer | None = None
        self._id = 0
        self._failed: list[CallFault] = []
        self._patience = Patience(timeout, self.GIVE_UP_ON)
        self._lock = threading.Lock()
        self.handshake: Handshake | None = None

    def start(self) -> Handshake:
        """Start it and do the handshake; CallFault if that fails."""
        with self._lock:
            self._ensure_started()
        assert self.handshake is not None  # _ensure_started sets it
        return self.handshake

    def call(
        self, method: str, arguments: Mapping[str, Any], most: int | None = None, *, has_state: bool = False
    ) -> dict[str, Any] | None:
        """Call a method and return its arrays by name; NotImplementedError or CallFault if there is no result.

        A result of more than `most` arrays is refused before any of them is decoded. A result that `has_state` has the
        number of a state too.
        """
        with self._lock:
            self._patience.require_hope(method)
            child, handshake = self._ensure_started()
            try:
                params = encode_arguments(arguments, handshake.encoding)
                found = self._call(child, method, params, most, has_state=has_state)
            except TooLarge as error:
                raise CallFault("too-large", f"{method} cannot be called: {error}") from error
            except CallFault as fault:
                self._patience.note(method, fault)
                raise
            except NotImplementedError:
                self._patience.note(method, None)
                raise
            self._patience.note(method, None)
            return found

    def _call(
        self, child: Peer, method: str, params: bytes, most: int | None, *, has_state: bool
    ) -> dict[str, Any] | None:
        result = self._ask(child, method, params)
        try:
            state = {}
            if has_state and isinstance(result, dict) and STATE in result:
                state[STATE] = decode_state(result.pop(STATE), f"result.{STATE}")
            return None if result is None else {**decode_arrays(result, "result", most), **state}
        except WireError as error:
            # The answer came in time and in order, so the process can be used again.
            raise self._no_result(method, error, child) from error

    def close(self) -> None:
        """Ask it to shut down, and end it; a later call starts it again."""
        with self._lock:
            child, self._child = self._own_child(), None
            if child is None:
                return
            self._id += 1
            with contextlib.suppress(ChildFault):
                child.exchange(request_line(self._id, "shutdown", {}), _SHUTDOWN_SECONDS)
            child.end(_SHUTDOWN_SECONDS)

    def stop(self) -> None:
        """Kill the process without waiting for its end, which `close` does; nothing may be asked of it meanwhile."""
        with self._lock:
            child = self._own_child()
            if child is not None:
                child.stop()

    def watch(self, wrap: Callable[[Callable[[], Peer]], Callable[[], Peer]]) -> None:
        """Replace the function that starts the process by `wrap` of it."""
        self._spawn = wrap(self._spawn)

    def _own_child(self) -> Peer | None:
        """Return the child if this process started it: a fork of the suite starts its own."""
        return self._child if self._child is not None and self._child.owner == os.getpid() else None

    def _ensure_started(self) -> tuple[Peer, Handshake]:
        child = self._own_child()
        if child is not None and self.handshake is not None:
            return child, self.handshake
        if len(self._failed) >= _MOST_STARTS:
            last = self._failed[-1]
            raise CallFault(last.reason, f"was not started again after {_MOST_STARTS} failures: {last}", last.detail)
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
        hello = {"protocol": PROTOCOL, "suite": f"goldformer {version('goldformer')}"}
        try:
            result = self._ask(child, "initialize", hello)
            return validate_model(Handshake, result, "result")
        except NotImplementedError as error:
            self._abandon(child)
            raise _protocol_fault("answers that it has no method initialize", child) from error
        except WireError as error:
            self._abandon(child)
            raise _protocol_fault(f"answered initialize without a valid handshake: {error}", child) from error
        except CallFault:
            self._abandon(child)
            raise

    def _ask(self, child: Peer, method: str, params: Mapping[str, Any] | bytes) -> Any:
        """Send a request and return its result; WireError if the request is too large."""
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
            self._abandon(child)  # interrupted: the answer would be read as that to the next request
            raise
        if not isinstance(reply, ErrorObject):
            return reply
        message_text = printable(clip_text(reply.message, LONGEST_MESSAGE))
        if reply.code in (METHOD_NOT_FOUND, NOT_IMPLEMENTED):
            raise NotImplementedError(message_text or f"{method} is not implemented")
        detail = printable(clip_text(reply.data, TAIL)) if isinstance(reply.data, str) else ""
        if reply.code in (PARSE_ERROR, INVALID_REQUEST):
            raise _protocol_fault(f"could not read the request {method}: {message_text}", child)
        raise self._explain_error(message_text or "an error without a message", reply.code, detail)

    def _abandon(self, child: Peer) -> None:
        child.end()
        self._child = None

    def _exchange(self, child: Peer, message: bytes, method: str) -> bytes:
        """Send a request and return the answer; ChildFault if no answer comes in time."""
        del method
        return child.exchange(message, self._timeout)

    def _fault(self, fault: ChildFault, method: str, child: Peer) -> CallFault:
        """Return the fault for a request to which no line came."""
        stderr = child.stderr_tail()
        last = f'. Last on standard error: "{_find_cause_line(stderr)[:200]}"' if stderr else ""
        what = f"the process {fault} when it was asked for {method}{last}"
        if fault.reason == "timeout":
            what += (
                ". Is standard output flushed after every line? If it is, give it more time with --timeout "
                "(of pytest: --call-timeout), or find out where it waits"
            )
        return CallFault(fault.reason, what, stderr)

    def _no_answer(self, method: str, error: WireError, child: Peer) -> CallFault:
        """Return the fault for a line that does not answer the request."""
        stray = isinstance(error, Stray)
        hint = ". Standard output is only for messages: log to standard error" if stray else ""
        return _protocol_fault(f"wrote a line that does not answer {method}: {error}{hint}", child)

    def _no_result(self, method: str, error: WireError, child: Peer) -> CallFault:
        """Return the fault for an answer that holds something other than arrays."""
        return _protocol_fault(f"answered {method} without a valid result: {error}", child)

    def _explain_error(self, message: str, code: int, detail: str) -> CallFault:
        """Return the fault for an answer that is an error."""
        return CallFault("raised", f"{message} (code {code})", detail)


def _protocol_fault(what: str, child: Peer) -> CallFault:
    return CallFault("protocol", f"the process {what}", child.stderr_tail())


def _find_cause_line(stderr: str) -> str:
    """Return the last line of standard error that names the error, and no line of its stack trace."""
    lines = stderr.splitlines()
    causes = [line for line in lines if line.strip() and not line[0].isspace() and not line.startswith(_RUNTIME_NOTES)]
    return (causes or lines)[-1].strip()


def command_client(command: str, timeout: float) -> Client:
    """Make the client of a command; ValueError if the command cannot be split into words."""
    words = shlex.split(command)
    if not words:
        raise ValueError("the command is empty")

    def spawn() -> Child:
        try:
            return Child(words)
        except OSError as error:
            raise CallFault("crashed", f"cannot be started: {words[0]}: {error.strerror}") from error

    return Client(spawn, timeout)


def adapter_object(client: Client, contracts: Mapping[str, Contract]) -> Any:
    """Start a process and return an object with the names of an adapter module; CallFault if it cannot be started.

    ValueError if it names an unknown component.
    """
    handshake = client.start()
    if fault := _find_fault(handshake, list(contracts)):
        client.close()
        raise ValueError(f"initialize: {fault}")
    functions = {name: _make_function(client, contracts[name]) for name in handshake.components}
    functions |= {f"{name}_gradient": _make_gradient(client, f"{name}_gradient") for name in handshake.gradients}
    return SimpleNamespace(
        ARRAYS=Wire.name,
        NAME=printable_name(handshake.name),
        VERSION=printable_name(handshake.version),
        FAMILY=handshake.family,
        CONVENTIONS=handshake.conventions,
        DTYPES=tuple(handshake.dtypes),
        DEVICES=("cpu",),
        CLOSE=client.close,
        **functions,
    )


def _find_fault(handshake: Handshake, known: list[str]) -> str:
    """Return what is wrong with the names of a handshake, or ""; `known` are the components that there are."""
    lists: dict[str, Sequence[str]] = {
        "components": handshake.components,
        "gradients": handshake.gradients,
        "dtypes": handshake.dtypes,
    }
    for kind, names in lists.items():
        for name, count in Counter(names).items():
            if kind != "dtypes" and name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                guess = f": did you mean {close[0]}?" if close else f"; components are {', '.join(known)}"
                return f"{kind} has {abbreviate(name)}{guess}"
            if count > 1:
                return f"{kind} lists {name} {count} times: list it once"
            if kind == "gradients" and name not in handshake.components:
                return f"gradients has {name}, which is missing in components: list it in both, or in neither"
    return ""


def _make_function(client: Client, contract: Contract) -> Callable[..., Any]:
    has_state = contract.session is not None

    def function(**arguments: Any) -> Any:
        # A call without a state begins a session.
        given = {name: value for name, value in arguments.items() if value is not None}
        return client.call(contract.component, given, len(contract.outputs), has_state=has_state)

    return function


def _make_gradient(client: Client, method: str) -> Callable[..., Any]:
    def gradient(**arguments: Any) -> Any:
        return client.call(method, arguments, len(arguments) + len(arguments.get("params", ())))

    return gradient
