"""Namespaces of a process' own: first for the one that all are forked from, then for each fork."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.sandbox import _linux as linux

USER: Final = "user-namespace"
PIDS: Final = "pid-namespace"
#: Those that a fork makes for itself; none has anything in it: not even the loopback of a network.
OWN: Final = {
    "network-namespace": linux.CLONE_NEWNET,
    "ipc-namespace": linux.CLONE_NEWIPC,
    "uts-namespace": linux.CLONE_NEWUTS,
}


def enter(without: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """Become able to make namespaces, as root or in a user namespace, and make one of processes for the next fork.

    What is in force, and what is refused and why. Must be called before any thread or library is started.
    """
    features: list[str] = []
    refused: dict[str, str] = {}
    if os.geteuid() != 0 and USER not in without:
        try:
            _become_master(os.geteuid(), os.getegid())
            features.append(USER)
        except OSError as error:
            refused[USER] = str(error.strerror or error)
    if PIDS not in without:
        try:
            linux.unshare(linux.CLONE_NEWPID)
            features.append(PIDS)
        except OSError as error:
            refused[PIDS] = str(error.strerror or error)
    return features, refused


def _become_master(user: int, group: int) -> None:
    """Make a user namespace, in which this process has every capability, and is still itself."""
    linux.unshare(linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")


class Pids:
    """Makes namespaces of processes, one for each fork: the first process in it, with whose end all others end."""

    def __init__(self) -> None:
        """Remember the one of this process."""
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def another(self) -> None:
        """Have the next fork, and no other, begin one."""
        linux.setns(self._own, linux.CLONE_NEWPID)
        linux.unshare(linux.CLONE_NEWPID)
