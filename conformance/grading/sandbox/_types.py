"""The types that callers of a sandbox need: limits, levels of isolation, and the error when a level is not reached."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

#: How strongly a process is isolated; each level has what those before it have.
#: `process`: a disposable process with limits, without privileges, with nothing inherited.
#: `files`: it reads only the interpreter and its own code, and writes only to a folder of its own.
#: `full`: a file system of its own and of limited size, no network, no other process in sight, its number of processes
#: and the memory of all of them together limited.
Level = Literal["process", "files", "full"]

LEVELS: Final[tuple[Level, ...]] = ("process", "files", "full")

#: The sum of the memory of all processes is measured again and again.
MEMORY_WATCH: Final = "memory-watch"

#: A program waits if it uses less than this share of the wall time. A program that computes gets more of a core, unless
#: two hundred others compute too.
COMPUTING: Final = 0.01

#: Stands in the message of a call that was ended because it computed nothing for longer than `wait`.
WAITS: Final = "sleeps or waits"

#: The features that each level needs in addition to those before it; any feature of a group is enough.
NEEDED: Final[Mapping[Level, tuple[tuple[str, ...], ...]]] = {
    "process": (("unprivileged-user",), ("limits",)),
    "files": (("no-new-privileges",), ("no-capabilities",), ("mount-namespace", "landlock")),
    # Only a file system of its own limits the total size of what a process writes.
    "full": (
        ("mount-namespace",),
        ("network-namespace",),
        ("pid-namespace",),
        ("ipc-namespace",),
        # The kernel counts all memory, or refuses memory that no process has; then the rest is added up.
        (MEMORY_WATCH, "cgroup"),
        ("process-limit", "cgroup"),
    ),
}

#: How to get a feature that is missing.
_HELP: Final[Mapping[str, str]] = {
    "unprivileged-user": (
        "to be run by an ordinary user, or Python where every user can read it (not under /root), or the capability "
        "SYS_ADMIN"
    ),
    "landlock": "Linux 5.13 or newer with landlock among the kernel's security modules",
    "process-limit": "to be run by an ordinary user",
    MEMORY_WATCH: "Linux on x86-64 or arm64 with seccomp and /proc",
    "cgroup": "to have a control group that can be written to",
}
_NAMESPACES: Final = (
    "Linux that lets ordinary users make namespaces (sysctl user.max_user_namespaces, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0), or root with the capability SYS_ADMIN; in Docker, "
    "--security-opt seccomp=unconfined --cap-add SYS_ADMIN"
)


class SandboxError(BaseException):
    """A process cannot be isolated here as required; the message says what is missing and how to get it.

    It is no Exception, so that code that catches an Exception does not blame the isolated program for it.
    """


class TooLittleMemory(SandboxError):
    """The array library alone takes more memory than a program may use."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a sandboxed program. Times in seconds, sizes in MiB.

    `call` limits the processor time of one call, `start` that of everything until the first call (importing), and `cpu`
    that of each process. `wait` limits the wall time of an answer for which the program hardly computes. `memory` is
    the address space of a process and the memory of all of them together, by default what the array library takes here
    and a GiB more; `output` is what it prints, `file` the size of one file that it writes.
    """

    call: float = 5.0
    start: float = 20.0
    wait: float = 60.0
    cpu: float = 120.0
    memory: int = 0
    processes: int = 16
    output: int = 1
    file: int = 16


@dataclass(frozen=True, slots=True)
class Isolation:
    """The level of isolation reached, and the features in force, such as `landlock` or `limits`.

    `missing` gives the reason for each feature that is not in force.
    """

    level: Level
    features: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


def rate_isolation(features: Collection[str], refused: Mapping[str, str]) -> Isolation:
    """Return the highest level that these features reach; SandboxError if they reach none."""
    level: Level | None = None
    for candidate in LEVELS:
        if _find_missing(candidate, features):
            break
        level = candidate
    if level is None:
        raise SandboxError(_explain("process", features, refused))
    return Isolation(level, tuple(features), dict(refused))


def require_level(isolation: Isolation, level: Level) -> None:
    """Raise SandboxError if a level is not reached."""
    if LEVELS.index(isolation.level) < LEVELS.index(level):
        raise SandboxError(_explain(level, isolation.features, isolation.missing))


def _find_missing(level: Level, features: Collection[str]) -> list[tuple[str, ...]]:
    return [group for group in NEEDED[level] if not set(group) & set(features)]


def _explain(level: Level, features: Collection[str], refused: Mapping[str, str]) -> str:
    lines = [f"isolation {level} cannot be had on this machine:"]
    for group in (group for below in LEVELS[: LEVELS.index(level) + 1] for group in _find_missing(below, features)):
        why = "; ".join(f"{name}: {refused.get(name, 'not there')}" for name in group)
        needs = ", or ".join(dict.fromkeys(_HELP.get(name, _NAMESPACES) for name in group))
        lines.append(f"  no {' or '.join(group)} ({why})\n    needs {needs}")
    return "\n".join(lines)
