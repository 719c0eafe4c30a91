"""Start a process, isolate it, exchange messages with it, and end it: `Sandbox` is the door to this room.

    with Sandbox(Limits(), "numpy") as sandbox:
        process = sandbox.start(folder)             # or sandbox.client(folder) for calls with arrays
        reply = process.exchange(request, seconds)
        process.end()

The names are loaded when they are used: the launcher imports this package too, and must load nothing else first.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from goldformer.conformance.grading.sandbox._client import SandboxClient, SandboxProcess
    from goldformer.conformance.grading.sandbox._linux import die_with_parent
    from goldformer.conformance.grading.sandbox._sandbox import Sandbox, probe_isolation
    from goldformer.conformance.grading.sandbox._types import LEVELS, Isolation, Level, Limits, SandboxError

__all__ = [
    "LEVELS",
    "Isolation",
    "Level",
    "Limits",
    "Sandbox",
    "SandboxClient",
    "SandboxError",
    "SandboxProcess",
    "die_with_parent",
    "probe_isolation",
]

_MODULES: Final = {
    "Sandbox": "_sandbox", "probe_isolation": "_sandbox", "SandboxClient": "_client", "SandboxProcess": "_client",
    "die_with_parent": "_linux",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a public name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, '_types')}"), name)
