"""The process in which an implementation is called: this one until it has no device any more, and a fresh one then.

So it is from the start if the code ended the process of this command when it was run before.

A call that ends the device of its process, by a failed assertion or a bad address in a kernel, gets no answer. It is
repeated in a fresh process, where launches are in order, and every later call is made there, so that it can be judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.process.faults import CallFault, FaultReason
from goldformer.adapters.process.patience import Patience
from goldformer.adapters.protocol import Adapter, Loader
from goldformer.conformance.judging import running
from goldformer.conformance.judging.device_loss import explain_device_loss
from goldformer.conformance.judging.fresh_process import Call, FreshProcess, Lost, NotLoaded, Raised, Setup

#: A component is given up after so many calls in a row that end the device: each takes a new process, which is seconds.
_MOST_LOSSES: Final = 10

#: About the seconds that a new process takes.
_SECONDS: Final = 5.0
_COUNTED: Final[tuple[FaultReason, ...]] = ("crashed",)

_ENDS: Final = "ends the device of its process"
_AND_ENDS: Final = f"; it {_ENDS}"
_AS_FIRST: Final = "when it is the first call of a fresh one"
_DAMAGE: Final = "an earlier call may have written outside its arrays"


Value = TypeVar("Value")


class DeviceGone(Exception):
    """A call cannot be made, because this process has no device and no other one can load the implementation."""


@dataclass(eq=False)
class Host:
    """The process of one implementation's calls; `loss` is the error that ended the device of this process."""

    loss: str = ""
    #: True if calls are made in another process.
    is_apart: bool = False
    #: Why no other process can make the calls.
    why_here: str = "an object in memory cannot be loaded in another process"
    process: FreshProcess | None = None
    #: The call before the one that ended the device.
    before: tuple[str, Call] | None = None
    patience: Patience = field(default_factory=lambda: Patience(_SECONDS, _COUNTED, _MOST_LOSSES))


#: By loader: adapters that are made of one another are the same implementation.
_HOSTS: Final[WeakKeyDictionary[Loader, Host]] = WeakKeyDictionary()


def find_host(adapter: Adapter) -> Host:
    """Return the host of an implementation."""
    is_apart = bool(running.ended) and adapter.loader.load is not None
    return _HOSTS.setdefault(adapter.loader, Host(is_apart=is_apart))


def call_apart(adapter: Adapter) -> bool:
    """Make all calls of an implementation in a process of its own from now on; return False if that is impossible."""
    host = find_host(adapter)
    host.is_apart = adapter.loader.load is not None
    return host.is_apart


def follow_host(adapter: Adapter, reloaded: Adapter) -> Adapter:
    """Return an adapter that was loaded again; its calls are made apart if those of the first one are."""
    if find_host(adapter).is_apart:
        call_apart(reloaded)
    return reloaded


def run_call(call: Call, component: str, adapter: Adapter, device: str) -> Any:
    """Make a call of a component, and return its value or raise its exception.

    CallFault if the call ends the device of its process, DeviceGone if that was lost before and there is no other one.
    """
    return running.run_step("a call", lambda: _run_call(call, component, adapter, device))


def _run_call(call: Call, component: str, adapter: Adapter, device: str) -> Any:
    host = find_host(adapter)
    if host.is_apart:
        return _ask(call, component, host, adapter, device)
    try:
        return call(adapter)
    except Exception as error:
        loss = explain_device_loss(error, LIBRARIES[adapter.arrays], device)
        if not loss:
            raise
        raise _explain_loss(loss, call, component, host, adapter, device) from error
    finally:
        if device != "cpu" and not host.loss:
            host.before = (component, call)


def run_here(call: Callable[[], Value], adapter: Adapter, device: str) -> Value:
    """Make a call with arrays of this process, and return its value or raise its exception.

    CallFault if the call ends the device, DeviceGone if calls are made in another process, which has not these arrays.
    """
    host = find_host(adapter)
    if host.is_apart or host.loss:
        raise DeviceGone("it looks at the arrays of a call, and calls are made in another process")
    try:
        return running.run_step("a call", call)
    except Exception as error:
        loss = explain_device_loss(error, LIBRARIES[adapter.arrays], device)
        if not loss:
            raise
        host.loss = loss
        call_apart(adapter)
        raise CallFault("crashed", f"{loss}{_AND_ENDS}") from error


def _explain_loss(
    loss: str, call: Call, component: str, host: Host, adapter: Adapter, device: str
) -> CallFault | DeviceGone:
    """Return the error of a call after which this process has no device; later calls are made in a fresh one."""
    if host.loss:
        return DeviceGone(f"{_describe_gone(host)}; start Python again, and check a file or a module of your own")
    host.loss = loss
    if not call_apart(adapter):
        return CallFault("crashed", f"{loss}{_AND_ENDS}, and nothing can be judged there any more: {host.why_here}")
    repeated = _find_loss(call, component, host, adapter, device)
    if repeated is not None:
        return repeated
    if host.before is not None and (earlier := _find_loss(host.before[1], host.before[0], host, adapter, device)):
        what = f"an earlier call of {host.before[0]} {_ENDS}, which this call found gone"
        return CallFault("crashed", f"{what}: that one {str(earlier).removesuffix(_AND_ENDS)}")
    return CallFault("crashed", f"{loss}{_AND_ENDS}, but not {_AS_FIRST}")


def _find_loss(call: Call, component: str, host: Host, adapter: Adapter, device: str) -> CallFault | DeviceGone | None:
    """Return the fault of a call that ends the device of a fresh process too, or None."""
    try:
        _ask(call, component, host, adapter, device)
    except (CallFault, DeviceGone) as fault:
        return fault
    except Exception:
        return None  # it fails for another reason, with which the device has nothing to do
    return None


def _ask(call: Call, component: str, host: Host, adapter: Adapter, device: str) -> Any:
    """Make a call in a fresh process, or in the one of the calls before if they left its device as it was."""
    host.patience.require_hope(component)
    is_first = host.process is None
    if host.process is None:
        host.process = FreshProcess(_make_setup(adapter))
    try:
        reply = host.process.ask(call, device)
    except CallFault as fault:
        host.patience.note(component, fault)
        _end_process(host)
        if not is_first and _find_loss(call, component, host, adapter, device) is None:
            raise CallFault("crashed", f"{fault}, but not {_AS_FIRST}: {_DAMAGE}") from fault
        raise
    except BaseException:
        _end_process(host)  # interrupted: the answer would be read as that to the next call
        raise
    if isinstance(reply, NotLoaded):
        _end_process(host)
        host.is_apart, host.why_here = False, reply.why
        raise DeviceGone(_describe_gone(host))
    if isinstance(reply, Lost):
        _end_process(host)
        lost = CallFault("crashed", f"{reply.error}{_AND_ENDS}")
        host.patience.note(component, lost)
        raise lost
    host.patience.note(component, None)
    if isinstance(reply, Raised):
        raise reply.error
    return reply.value


def _make_setup(adapter: Adapter) -> Setup:
    assert adapter.loader.load is not None, "calls are made apart only if another process can load the implementation"
    return Setup(adapter.loader.load, adapter.arrays, *LIBRARIES[adapter.arrays].read_settings())


def _end_process(host: Host) -> None:
    if host.process is not None:
        host.process.close()
        host.process = None


def _describe_gone(host: Host) -> str:
    return f"this process has no device any more since a call that {host.loss}: {host.why_here}"
