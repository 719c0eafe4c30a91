"""What keeps submissions apart on this machine: which features make a level, and why one is not reached.

JailError
└── raised when submissions cannot be kept apart as was asked; it passes by whatever catches an Exception, so that no
    submission is blamed for it
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from goldformer.conformance.grading.model import LEVELS, Isolation, Level

#: What each level needs beside what those before it need; of features in one group, any does.
NEEDED: Final[Mapping[Level, tuple[tuple[str, ...], ...]]] = {
    "process": (("unprivileged-user",), ("limits",)),
    "files": (("no-new-privileges",), ("no-capabilities",), ("mount-namespace", "landlock")),
    # What a submission writes has a size of its own only in a file system of its own.
    "full": (
        ("mount-namespace",),
        ("network-namespace",),
        ("pid-namespace",),
        ("ipc-namespace",),
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
    "cgroup": "to have a control group that can be written to",
}
_NAMESPACES: Final = (
    "Linux that lets ordinary users make namespaces (sysctl user.max_user_namespaces, and on Ubuntu "
    "kernel.apparmor_restrict_unprivileged_userns=0), or root with the capability SYS_ADMIN; in Docker, "
    "--security-opt seccomp=unconfined --cap-add SYS_ADMIN"
)


class JailError(BaseException):
    """Submissions cannot be kept apart here as was asked; the message says what is missing and how to get it."""


def isolation(features: Collection[str], refused: Mapping[str, str]) -> Isolation:
    """The level that these features make; JailError when it is none."""
    level: Level | None = None
    for candidate in LEVELS:
        if _lacking(candidate, features):
            break
        level = candidate
    if level is None:
        raise JailError(_explained("process", features, refused))
    return Isolation(level, tuple(features), dict(refused))


def demand(found: Isolation, level: Level) -> None:
    """JailError when a level is not reached."""
    if LEVELS.index(found.level) < LEVELS.index(level):
        raise JailError(_explained(level, found.features, found.missing))


def _lacking(level: Level, features: Collection[str]) -> list[tuple[str, ...]]:
    return [group for group in NEEDED[level] if not set(group) & set(features)]


def _explained(level: Level, features: Collection[str], refused: Mapping[str, str]) -> str:
    groups = [group for below in LEVELS[: LEVELS.index(level) + 1] for group in _lacking(below, features)]
    lines = [f"isolation {level} cannot be had on this machine:"]
    for group in groups:
        why = "; ".join(f"{name}: {refused.get(name, 'not there')}" for name in group)
        needs = ", or ".join(dict.fromkeys(_HELP.get(name, _NAMESPACES) for name in group))
        lines.append(f"  no {' or '.join(group)} ({why})\n    needs {needs}")
    return "\n".join(lines)
