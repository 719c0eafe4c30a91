"""Start a process, isolate it, exchange messages with it, and end it: `Sandbox` is the door to this room.

    with Sandbox(Limits(), "numpy") as sandbox:
        process = sandbox.start(folder)             # or sandbox.client(folder) for calls with arrays
        reply = process.exchange(request, seconds)
        process.end()

The names are loaded when they are used: the launcher imports this package too, and must load nothing else first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldformer.exports import load_on_use

if TYPE_CHECKING:
    from goldformer.conformance.grading.sandbox._client import SandboxClient, SandboxProcess
    from goldformer.conformance.grading.sandbox._folders import SweptFolder
    from goldformer.conformance.grading.sandbox._linux import die_with_parent
    from goldformer.conformance.grading.sandbox._sandbox import Sandbox
    from goldformer.conformance.grading.sandbox._types import (
        LEVELS,
        WAITS,
        Isolation,
        Level,
        Limits,
        SandboxError,
        TooLittleMemory,
    )

__all__ = [
    "COMPUTING",
    "LEVELS",
    "WAITS",
    "Isolation",
    "Level",
    "Limits",
    "Sandbox",
    "SandboxClient",
    "SandboxError",
    "SandboxProcess",
    "SweptFolder",
    "TooLittleMemory",
    "die_with_parent",
]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "_client": ("SandboxClient", "SandboxProcess"),
        "_folders": ("SweptFolder",),
        "_linux": ("die_with_parent",),
        "_sandbox": ("Sandbox",),
        "_types": ("COMPUTING", "Isolation", "LEVELS", "Level", "Limits", "SandboxError", "TooLittleMemory", "WAITS"),
    },
)
